"""suspend, resume, stop, retry, delete, doctor, version, completion."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from diflow.cli.doctor import verdict
from diflow.jobs.checks.doctor import Finding
from diflow.kube.kinds import (
    CONFIG_MAP,
    CRD,
    DEPLOYMENT,
    LEASE,
    POD,
    PRIORITY_CLASS,
    SERVICE,
    SERVICE_ACCOUNT,
    WORKFLOW,
)
from tests.allocator import fencing
from tests.cli.runner import Cli, run
from tests.kube.fakeapi import Answer, Request, status
from tests.record.seen import SeenJob


def stored(diflow: Cli, name: str = "job") -> dict[str, Any]:
    found: dict[str, Any] = diflow.api.objects[WORKFLOW.path("default")][name]
    return found


def failed(name: str = "job") -> SeenJob:
    job = SeenJob(name, learner=1, collector=1, backoff_limit=1)
    job.pod("learner-0").ready(2).ends(30)
    job.pod("collector-0").ready(2).ends(9, code=1)
    job.pod("collector-0", created=10, counted=1).ready(12).ends(20, code=1)
    job.node("", kind="DAG", phase="Failed")
    job.node(".round", kind="TaskGroup", phase="Failed")
    job.node(".round(0:1)", kind="DAG", phase="Failed")
    for task, phase in (("learner", "Succeeded"), ("collector", "Failed")):
        place = f".round(0:1).{task}"
        job.node(place, kind="TaskGroup", phase=phase)
        job.node(f"{place}(0:0)", kind="Retry", phase=phase)
    job.node(".onExit", kind="Retry").node(".onExit(0)", kind="Pod")
    job.node(".round(0:1).superseded", kind="Skipped", phase="Skipped")
    return job.shutdown(by_itself=True).ended(40, "Failed", message="Stopped with strategy 'Stop'")


def test_suspend_and_resume_change_the_workflow_as_argo_does(diflow: Cli) -> None:
    diflow.has(SeenJob("job", learner=1).all_ready())
    result = diflow("suspend", "job")
    assert (result.code, result.out) == (0, "")
    assert "diflow resume job -n default" in result.err
    assert stored(diflow)["spec"]["suspend"] is True
    assert diflow("resume", "job").code == 0
    assert "suspend" not in stored(diflow)["spec"]


@pytest.mark.parametrize(("args", "how"), [((), "Stop"), (("--now",), "Terminate")])
def test_stop_asks_argo_to_shut_the_workflow_down(diflow: Cli, args: tuple[str, ...], how: str) -> None:
    diflow.has(SeenJob("job", learner=1).all_ready())
    assert diflow("stop", "@latest", *args).code == 0
    assert stored(diflow)["spec"]["shutdown"] == how


@pytest.mark.parametrize("command", ["suspend", "resume", "stop"])
def test_a_job_that_has_ended_cannot_be_changed(diflow: Cli, command: str) -> None:
    diflow.has(SeenJob("job", learner=1).ended(9))
    result = diflow(command, "job")
    assert result.code == 4
    assert "job job has ended already (Succeeded)" in result.err
    assert diflow.api.seen("PATCH") == []


def test_a_retry_keeps_what_succeeded_and_forgets_what_failed(diflow: Cli) -> None:
    job = failed()
    diflow.has(job)
    result = diflow("retry", "job")
    assert result.code == 0
    workflow = stored(diflow)
    nodes = {node["name"]: node for node in workflow["status"]["nodes"].values()}
    assert nodes["job"]["phase"] == "Running"
    assert nodes["job.round(0:1)"]["phase"] == "Running"
    assert nodes["job.round(0:1).learner(0:0)(0).learner(0)"]["phase"] == "Succeeded"
    assert not any(name.startswith("job.round(0:1).collector(") for name in nodes)
    assert not any(name.startswith("job.onExit") for name in nodes)
    assert "job.round(0:1).superseded" not in nodes
    assert "shutdown" not in workflow["spec"]
    assert "phase" not in workflow["status"]
    left = [name for name in diflow.api.objects[POD.path("default")] if "collector" in name]
    assert left == []
    assert any("learner" in name for name in diflow.api.objects[POD.path("default")])


@pytest.mark.parametrize(
    ("job", "text"),
    [
        (SeenJob("job", learner=1).all_ready(), "job job is Running: only a failed job can be retried"),
        (SeenJob("job", learner=1).ended(3), "delete it and submit it again"),
    ],
)
def test_only_a_failed_job_can_be_retried(diflow: Cli, job: SeenJob, text: str) -> None:
    diflow.has(job)
    result = diflow("retry", "job")
    assert result.code == 4
    assert text in result.err
    assert diflow.api.seen("PATCH") == []


def test_a_retry_of_a_job_that_changed_meanwhile_begins_again(diflow: Cli) -> None:
    """The pods are deleted before the Workflow is written: the write must not be lost by a change in between."""
    diflow.has(failed())

    def change(request: Request) -> None:
        if request.method == "DELETE" and not stored(diflow)["metadata"]["labels"].get("changed"):
            workflow = stored(diflow)
            labels = {**workflow["metadata"]["labels"], "changed": "yes"}
            diflow.api.add(WORKFLOW, {**workflow, "metadata": {**workflow["metadata"], "labels": labels}})

    diflow.api.rule(change)
    assert diflow("retry", "job").code == 0
    assert len(diflow.api.seen("PATCH")) == 2
    assert stored(diflow)["metadata"]["labels"]["changed"] == "yes"
    assert "phase" not in stored(diflow)["status"]


def test_a_retry_of_a_job_that_changes_all_the_time_is_a_conflict(diflow: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diflow.jobs.changing._PAUSE_SECONDS", 0.0)
    diflow.has(failed())
    diflow.api.fail(status(409, "modified", reason="Conflict"), method="PATCH", times=100)
    assert diflow("retry", "job").code == 4
    assert len(diflow.api.seen("PATCH")) == 6


def test_a_retry_reads_only_the_metadata_of_pods_and_deletes_the_ones_that_it_has_seen(diflow: Cli) -> None:
    diflow.has(failed())
    pods = diflow.api.objects[POD.path("default")].items()
    uids = {pod["metadata"]["uid"] for name, pod in pods if "collector" in name}
    assert diflow("retry", "job").code == 0
    lists = [request for request in diflow.api.seen("GET") if request.path == POD.path("default")]
    assert lists
    assert all("as=PartialObjectMetadataList" in request.headers["Accept"] for request in lists)
    assert {request.body["preconditions"]["uid"] for request in diflow.api.seen("DELETE")} == uids


def test_a_pod_that_somebody_has_made_meanwhile_is_not_deleted_by_a_retry(diflow: Cli) -> None:
    diflow.has(failed())
    name, pod = next(
        (name, pod) for name, pod in diflow.api.objects[POD.path("default")].items() if "collector" in name
    )

    def replace(request: Request) -> None:
        if request.method == "DELETE" and request.path == POD.path("default", name):
            diflow.api.add(POD, {**pod, "metadata": {**pod["metadata"], "uid": "another"}})

    diflow.api.rule(replace)
    assert diflow("retry", "job").code == 4
    assert diflow.api.objects[POD.path("default")][name]["metadata"]["uid"] == "another"
    assert diflow.api.seen("PATCH") == []


def test_a_retry_repairs_a_job_that_argo_retry_has_left_without_pods(diflow: Cli) -> None:
    job = SeenJob("job", learner=1, collector=1, backoff_limit=1)
    job.pod("learner-0").ready(2)
    place = ".round(0:1).collector(0:0)"
    for name, kind in (("", "DAG"), (".round(0:1)", "DAG"), (place, "Retry")):
        job.node(name, kind=kind, phase="Running")
    for attempt in range(2):
        job.node(f"{place}({attempt})", kind="DAG", phase="Running")
    diflow.has(job)
    assert "repair it with `diflow retry job`" in diflow("describe", "job").out
    assert diflow("retry", "job").code == 0
    left = diflow.api.objects[WORKFLOW.path("default")]["job"]["status"]["nodes"]
    assert not [name for name in left if place in name]
    assert [name for name in left if ".learner(0:0)" in name]
    assert diflow.api.seen("DELETE") == []
    assert "only a failed job can be retried" in diflow("retry", "job").err


def test_a_retry_waits_until_the_old_pods_are_gone(diflow: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diflow.jobs.retry._POLL_SECONDS", (0.01, 0.01))
    monkeypatch.setattr("diflow.jobs.retry._PODS_GONE_SECONDS", 0.1)
    diflow.has(failed())
    diflow.api.rule(lambda r: status(200, "") if r.method == "DELETE" else None)
    result = diflow("retry", "job")
    assert result.code == 4
    assert "old pods of job job are still being deleted" in result.err
    assert diflow.api.seen("PATCH") == []


def test_offloaded_nodes_cannot_be_retried_here(diflow: Cli) -> None:
    workflow = failed().workflow()
    workflow["status"].pop("nodes")
    workflow["status"]["offloadNodeStatusVersion"] = "fnv:1"
    diflow.api.add(WORKFLOW, workflow)
    result = diflow("retry", "job")
    assert result.code == 5
    assert "use `argo retry job`" in result.err


def test_deleted_jobs_are_gone(diflow: Cli) -> None:
    diflow.has(SeenJob("a", learner=1), SeenJob("b", learner=1), SeenJob("c", learner=1))
    result = diflow("delete", "a", "b", "--wait")
    assert (result.code, result.out) == (0, "")
    assert sorted(diflow.api.objects[WORKFLOW.path("default")]) == ["c"]
    request = diflow.api.seen("DELETE")[0]
    assert request.body["propagationPolicy"] == "Background"


def test_deleting_what_is_not_there_is_told_after_the_rest_is_done(diflow: Cli) -> None:
    diflow.has(SeenJob("a", learner=1))
    result = diflow("delete", "nope", "a")
    assert result.code == 3
    assert "there is no job nope in the namespace 'default'" in result.err
    assert diflow.api.objects[WORKFLOW.path("default")] == {}
    assert diflow("delete", "nope", "--ignore-not-found").code == 0


def test_a_workflow_of_somebody_else_is_never_deleted(diflow: Cli) -> None:
    diflow.api.add(WORKFLOW, {"metadata": {"name": "theirs"}, "spec": {}})
    assert diflow("delete", "theirs").code == 3
    assert diflow("stop", "theirs").code == 3
    assert stored(diflow, "theirs")


# --- doctor -----------------------------------------------------------------------------------------------------------


def test_doctor_finds_nothing_wrong_where_nothing_is(diflow: Cli) -> None:
    diflow.prepare()
    result = diflow("doctor")
    assert result.code == 0, result.out
    assert "✗" not in result.out
    assert "✓ Argo's workflow controller: 4.0.7" in result.out
    assert "✓ your rights in default: all 11" in result.out
    lines = result.out.splitlines()
    made = sum(line.startswith(("✓", "!")) for line in lines)
    others = sum(line.startswith("–") for line in lines)
    assert lines[-1] == f"{made} checks passed; {others} checks not made (–)"


@pytest.mark.parametrize(
    ("served", "group", "said"),
    [
        (False, None, "✓ PodGroups in default: this Kubernetes has none"),
        (True, None, "! PodGroups in default: served, and not used"),
        (True, {"podGroupName": "x"}, "✓ PodGroups in default: kube-scheduler binds the pods of a gang all together"),
    ],
    ids=["not served", "not used", "used"],
)
def test_doctor_says_whether_gangs_are_native(
    diflow: Cli, served: bool, group: dict[str, str] | None, said: str
) -> None:
    diflow.prepare()

    def rule(request: Request) -> Answer | None:
        if request.path == "/apis/scheduling.k8s.io/v1beta1" and served:
            return Answer(200, {"resources": [{"name": "podgroups"}]})
        if request.method == "POST" and request.path.endswith("/pods") and group:
            return Answer(201, {**request.body, "spec": {**request.body["spec"], "schedulingGroup": group}})
        return None

    diflow.api.rule(rule)
    result = diflow("doctor")
    assert result.code == 0, result.out
    assert said in result.out
    assert not diflow.api.objects.get(POD.path("default"))


def test_doctor_names_each_thing_that_is_missing_and_what_to_do(diflow: Cli) -> None:
    diflow.prepare(argo="v3.5.1")
    diflow.api.remove(SERVICE_ACCOUNT, "diflow-steps")
    diflow.api.remove(SERVICE, "di")
    diflow.api.remove(PRIORITY_CLASS, "diflow-high")
    diflow.api.denied |= {("create", "workflows"), ("get", "pods")}
    result = diflow("doctor")
    assert result.code == 5
    text = result.out
    assert "✗ your right to create workflows.argoproj.io in default: missing, so no submit" in text
    assert "✗ your right to get pods/log in default: missing, so no logs" in text
    assert "✗ Argo's workflow controller: Argo Workflows 3.5.1 is too old: 3.7 or newer is needed" in text
    assert (
        "✗ service account diflow-steps in default: missing\n    → kubectl apply -n default -k manifests/jobs" in text
    )
    assert (
        "✗ Service di in default: the Service di, by which replicas find each other, is missing in 'default'\n"
        "    → kubectl apply -n default -k manifests/jobs" in text
    )
    assert "✗ PriorityClass diflow-high: missing\n    → kubectl apply -k manifests/cluster" in text
    assert text.splitlines()[-1].startswith("6 of ")


def test_doctor_finds_a_priority_class_whose_pods_stop_others(diflow: Cli) -> None:
    diflow.prepare()
    diflow.api.remove(PRIORITY_CLASS, "diflow-high")
    diflow.api.add(PRIORITY_CLASS, {"metadata": {"name": "diflow-high"}, "preemptionPolicy": "PreemptLowerPriority"})
    result = diflow("doctor")
    assert result.code == 5
    assert "✗ PriorityClass diflow-high: is of an earlier release: kube-scheduler stops pods of others" in result.out
    assert "→ kubectl replace --force -f manifests/cluster/priorityclasses.yaml" in result.out


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (None, "missing: workflows"),
        ({"openAPIV3Schema": {"properties": {"spec": {"x-kubernetes-preserve-unknown-fields": True}}}}, "minimal"),
        ({"openAPIV3Schema": {"type": "object"}}, "minimal"),
    ],
)
def test_doctor_tells_missing_and_minimal_crds(diflow: Cli, schema: dict[str, Any] | None, text: str) -> None:
    diflow.prepare()
    name = "workflows.argoproj.io"
    diflow.api.remove(CRD, name)
    if schema is not None:
        diflow.api.add(CRD, {"metadata": {"name": name}, "spec": {"versions": [{"schema": schema}]}})
    result = diflow("doctor")
    assert result.code == 5
    assert text in result.out


def test_doctor_counts_what_may_not_be_looked_at_as_in_order(diflow: Cli) -> None:
    diflow.prepare()
    diflow.api.rule(lambda r: status(403, "no") if r.method == "GET" and r.path != "/version" else None)
    result = diflow("doctor")
    assert result.code == 0
    assert "– Argo's CRDs: not checked, as you may not read it" in result.out
    assert "Service di in default:" not in result.out.replace("– Service di in default: not checked", "")


def test_doctor_advises_where_ended_jobs_are_not_recorded(diflow: Cli) -> None:
    diflow.prepare()
    result = diflow("doctor")
    assert result.code == 0
    assert (
        "! record of ended jobs in default: missing, so diflow list --ended shows no job whose Workflow was deleted\n"
        "    → kubectl apply -n default -k manifests/jobs" in result.out
    )
    diflow.api.add(CONFIG_MAP, {"metadata": {"name": "diflow-ended"}})
    assert "✓ record of ended jobs in default\n" in diflow("doctor").out


@pytest.mark.parametrize("name", ["diflow-ended", "diflow-applications"])
def test_doctor_finds_a_record_that_cannot_be_written(diflow: Cli, name: str) -> None:
    diflow.prepare()
    diflow.api.add(CONFIG_MAP, {"metadata": {"name": name}, "immutable": True})
    result = diflow("doctor")
    assert result.code != 0
    assert "in default: immutable, so " in result.out
    assert f"→ kubectl delete -n default configmap {name}, and apply manifests/jobs again" in result.out


def test_doctor_advises_where_applications_are_not_remembered(diflow: Cli) -> None:
    diflow.prepare()
    result = diflow("doctor")
    assert result.code == 0
    assert "! memory of applications in default: missing, so under goodput each job starts as if" in result.out
    diflow.api.add(CONFIG_MAP, {"metadata": {"name": "diflow-applications"}})
    assert "✓ memory of applications in default\n" in diflow("doctor").out


def test_doctor_says_whether_former_leaders_are_fenced(diflow: Cli) -> None:
    diflow.prepare()
    out = diflow("doctor").out
    assert "– the allocator: not installed: Argo alone runs the jobs" in out
    assert "✓ the fence of the allocator: not needed: there is no allocator" in out
    public = {"metadata": {"name": "diflow-allocator"}, "data": {"namespace": fencing.SYSTEM}}
    diflow.api.add(CONFIG_MAP, public, namespace="kube-public")
    assert "– the fence of the allocator: not checked: the allocator has never led" in diflow("doctor").out
    lease = {"metadata": {"name": "diflow-allocator"}, "spec": {"leaseTransitions": 1}}
    diflow.api.add(LEASE, lease, namespace=fencing.SYSTEM)
    result = diflow("doctor")
    assert result.code == 5
    assert "✗ the fence of the allocator: not in force" in result.out
    assert "→ kubectl apply -f manifests/allocator/fence.yaml" in result.out
    fencing.install(diflow.api)
    assert "✓ the fence of the allocator: in force" in diflow("doctor").out
    assert diflow.api.objects.get(WORKFLOW.path("default"), {}) == {}
    diflow.api.rule(lambda r: status(403, "no") if r.method == "POST" and "dryRun" in r.query else None)
    assert "– the fence of the allocator: not checked, as you may not read it" in diflow("doctor").out


def test_doctor_says_when_no_allocator_runs(diflow: Cli) -> None:
    diflow.prepare()
    public = {"metadata": {"name": "diflow-allocator"}, "data": {"namespace": fencing.SYSTEM}}
    diflow.api.add(CONFIG_MAP, public, namespace="kube-public")
    stands_still = (
        "✗ the allocator: installed, and no process leads: gangs wait, and nothing is resized\n"
        f"    → kubectl get pods -n {fencing.SYSTEM}; kubectl logs -n {fencing.SYSTEM} deployment/diflow-allocator"
    )
    assert stands_still in diflow("doctor").out
    for spec in (
        {"holderIdentity": "one", "leaseDurationSeconds": 15, "renewTime": "2020-01-01T00:00:00.000000Z"},
        {"holderIdentity": "", "leaseDurationSeconds": 15, "renewTime": "2999-01-01T00:00:00.000000Z"},
        {"holderIdentity": "one", "leaseDurationSeconds": "long", "renewTime": 7},
    ):
        diflow.api.add(LEASE, {"metadata": {"name": "diflow-allocator"}, "spec": spec}, namespace=fencing.SYSTEM)
        result = diflow("doctor")
        assert (result.code, stands_still in result.out) == (5, True), spec
    leads = {"holderIdentity": "one", "leaseDurationSeconds": 15, "renewTime": "2999-01-01T00:00:00.000000Z"}
    diflow.api.add(LEASE, {"metadata": {"name": "diflow-allocator"}, "spec": leads}, namespace=fencing.SYSTEM)
    assert "✓ the allocator: runs" in diflow("doctor").out


def test_doctor_says_whether_the_server_is_ready(diflow: Cli) -> None:
    diflow.prepare()
    assert "– the server: not found: without it, no REST API and no reports" in diflow("doctor").out
    for ready, line in ((0, "✗ the server: 0 of 2 pods are ready"), (2, "✓ the server: 2 of 2 pods are ready")):
        diflow.api.add(
            DEPLOYMENT,
            {"metadata": {"name": "diflow-server"}, "status": {"replicas": 2, "readyReplicas": ready}},
            namespace="diflow-system",
        )
        assert line in diflow("doctor").out


def test_doctor_says_when_there_is_no_controller(diflow: Cli) -> None:
    diflow.prepare()
    diflow.api.objects[DEPLOYMENT.path(None)] = {}
    assert "Argo's workflow controller: not found in any namespace" in diflow("doctor").out


def test_doctor_shows_what_the_probe_measured(diflow: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from diflow.labs import conformance

    diflow.prepare()
    facts = [
        conformance.Finding(1, "a group grows", True, "in 3 s", 3.0),
        conformance.Finding(2, "names stay", False, "they changed", 1.0),
    ]
    asked: list[Any] = []

    def probe(_cluster: Any, namespace: str, *, settings: Any = None) -> list[conformance.Finding]:
        asked.append((namespace, settings))
        return facts

    monkeypatch.setattr(conformance, "probe", probe)
    result = diflow("doctor", "--probe", "--probe-image", "shell:1")
    assert result.code == 5
    assert "✓ Argo, fact 1: a group grows: in 3 s" in result.out
    assert "✗ Argo, fact 2: names stay: they changed\n    → this Argo does not behave as diflow needs" in result.out
    assert asked[0][0] == "default"
    assert asked[0][1].image == "shell:1"


def test_doctor_says_that_a_probe_could_not_run(diflow: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from diflow.common.errors import NotFoundError
    from diflow.labs import conformance

    def probe(*_: Any, **__: Any) -> Any:
        raise NotFoundError("there is no service account")

    diflow.prepare()
    monkeypatch.setattr(conformance, "probe", probe)
    result = diflow("doctor", "--probe")
    assert result.code == 5
    assert "✗ conformance probe: there is no service account" in result.out


def test_a_finding_that_is_in_order_needs_no_remedy() -> None:
    assert verdict(Finding("x", ok=True, detail="d", remedy="r")) == "✓ x: d"
    assert verdict(Finding("x", ok=False, remedy="r")) == "✗ x\n    → r"


# --- version, completion ----------------------------------------------------------------------------------------------


def test_the_versions_of_all_parts_are_told(diflow: Cli) -> None:
    diflow.prepare()
    lines = diflow("version").out.splitlines()
    assert lines[0].startswith("diflow 0.")
    assert lines[1:] == ["Kubernetes v1.34.4", "Argo Workflows 4.0.7"]


def test_the_version_needs_no_cluster(diflow: Cli) -> None:
    assert run("version", "--client").out.startswith("diflow ")
    result = run("version")
    assert result.code == 0
    assert "the cluster was not asked" in result.err
    assert diflow.api.requests == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "powershell"])
def test_each_shell_gets_its_completion(shell: str) -> None:
    result = run("completion", shell)
    assert result.code == 0
    assert "_DIFLOW_COMPLETE" in result.out


@pytest.mark.parametrize(
    ("shell", "asked"),
    [
        ("bash", {"COMP_WORDS": "diflow su", "COMP_CWORD": "1"}),
        ("zsh", {"_TYPER_COMPLETE_ARGS": "diflow su"}),
        ("fish", {"_TYPER_COMPLETE_ARGS": "diflow su", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}),
    ],
)
def test_the_shell_gets_the_commands_that_begin_so(shell: str, asked: dict[str, str]) -> None:
    environment = {**os.environ, **asked, "_DIFLOW_COMPLETE": f"complete_{shell}"}
    command = [sys.executable, "-m", "diflow"]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert "submit" in answer.stdout
    assert "suspend" in answer.stdout
    assert "stop" not in answer.stdout


def test_names_of_jobs_are_completed(diflow: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from diflow.cli.options import complete_job

    diflow.has(SeenJob("alpha", learner=1), SeenJob("beta", learner=1))
    monkeypatch.setenv("KUBECONFIG", str(diflow.kubeconfig))
    assert complete_job("") == ["@latest", "beta", "alpha"]
    assert complete_job("al") == ["alpha"]
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    assert complete_job("") == []


def test_deleting_takes_its_time_when_it_must(diflow: Cli) -> None:
    diflow.has(SeenJob("a", learner=1))
    diflow.api.fail(status(200, ""), method="DELETE")

    def gone_a_moment_after_it_was_asked_for() -> None:
        while not diflow.api.seen("DELETE"):
            time.sleep(0.01)
        time.sleep(0.3)
        diflow.api.remove(WORKFLOW, "a")

    threading.Thread(target=gone_a_moment_after_it_was_asked_for, daemon=True).start()
    assert diflow("delete", "a", "--wait").code == 0
