"""Fields and manifests that people bring from Kubernetes and from other programs: kept, refused with the reason, or
with a warning that says what follows instead."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from diflow import DIJob
from diflow.common.durations import span
from diflow.kube.kinds import (
    CONFIG_MAP,
    LIMIT_RANGE,
    PRIORITY_CLASS,
    RESOURCE_QUOTA,
    SERVICE_ACCOUNT,
    WORKFLOW,
)
from diflow.record.job import record_of
from diflow.record.run_time import RunTime
from diflow.record.status.status import derive
from diflow.workflows import render
from tests.allocator.lab import Lab
from tests.cli.runner import Cli, Result, run
from tests.fuzz.argopods import pods
from tests.kube.fakeapi import Answer, Request
from tests.reports.lab import UsersLab, job, lab, task
from tests.reports.restricted import violations

Json = dict[str, Any]
MAIN: Json = {
    "name": "di-container",
    "image": "r/x:1",
    "command": ["python3"],
    "resources": {"limits": {"cpu": "1", "memory": "1Gi"}},
}


def manifest(*, metadata: Json | None = None, pod: Json | None = None, main: Json | None = None, **spec: Any) -> Json:
    """A DIJob of one task with more of a pod's spec and of its container."""
    one = {"name": "worker", "template": {"spec": {"containers": [{**MAIN, **(main or {})}], **(pod or {})}}}
    return {
        "apiVersion": "diengine.opendilab.org/v2alpha1",
        "kind": "DIJob",
        "metadata": metadata or {"name": "a"},
        "spec": {"tasks": [one], **spec},
    }


def lint(diflow: Cli, data: Json) -> Result:
    return run("lint", diflow.file("job.yaml", data))


def pod_of(data: Json) -> Json:
    (made,) = pods(render(DIJob.from_manifest(data)))
    return dict(made["spec"])


# --- suspend, run time, names -----------------------------------------------------------------------------------------


def test_a_job_with_suspend_is_created_suspended(diflow: Cli) -> None:
    diflow.prepare()
    data = manifest(suspend=True, pod={"restartPolicy": "OnFailure"})
    result = diflow("submit", diflow.file("job.yaml", data))
    assert result.code == 0
    made = diflow.api.objects[WORKFLOW.path("default")]["a"]
    assert made["spec"]["suspend"] is True
    assert "suspended (`diflow resume a`" in diflow("describe", "a").out
    assert diflow("resume", "a").code == 0
    assert not diflow.api.objects[WORKFLOW.path("default")]["a"]["spec"].get("suspend")


def test_a_suspended_gang_gets_places_when_it_is_resumed() -> None:
    with lab() as at:
        at.cluster.machine("n0", cpu="4")
        at.cluster.submit(job("a", task(replicas=2), suspend=True, start_deadline_seconds=10))
        at.cluster.submit(job("b", task()))
        at.until(lambda: at.running("b"), "the other job runs")
        at.watch("a", seconds=30)
        assert at.running("a") == {}
        assert not ended(at)
        at.cluster.annotate("a", held="")
        at.until(lambda: len(at.running("a")) == 2, "it runs")


def ended(at: Lab, name: str = "a") -> bool:
    return at.cluster.phase(name) in ("Failed", "Error", "Succeeded")


def why(at: UsersLab, name: str = "a") -> str:
    return str(at.decision(at.parts(name)[-1])["why"])


def test_the_time_in_the_queue_is_no_run_time() -> None:
    with lab() as at:
        at.cluster.machine("n0", cpu="1")
        at.cluster.submit(job("first", task(), active_deadline_seconds=40))
        at.until(lambda: at.running("first"), "the first job runs")
        at.cluster.submit(job("a", task(), active_deadline_seconds=20))
        at.watch("a", seconds=25)
        assert not ended(at)
        at.until(lambda: at.running("a"), "it runs")
        began = at.time.now()
        at.until(lambda: ended(at), "its time is over")
        assert 18 <= at.time.now() - began <= 26
        assert why(at) == "DeadlineExceeded: it has run for 20 s, its activeDeadlineSeconds"
        assert "Max" not in why(at)


def test_the_run_times_of_all_rounds_and_workflows_are_added_without_the_time_between_them() -> None:
    with lab() as at:
        at.cluster.machine("n0", cpu="2")
        elastic = task(replicas=2, min_replicas=1, max_replicas=2)
        at.cluster.submit(job("a", elastic, preemptible=True, active_deadline_seconds=60))
        at.until(lambda: at.running("a"), "it runs")
        at.watch("a", seconds=20)
        at.cluster.cordon("n0")
        at.cluster.evict(at.cluster.of("a")["worker-0"]["metadata"]["name"])
        at.until(lambda: not at.running("a"), "it has lost its place")
        at.watch("a", seconds=100)
        assert not ended(at), "it waits"
        at.cluster.cordon("n0", on=False)
        at.until(lambda: at.running("a"), "it runs again", seconds=90)
        began = at.time.now()
        at.until(lambda: ended(at), "its time is over", seconds=90)
        assert 20 <= at.time.now() - began <= 50
        assert why(at).startswith("DeadlineExceeded: it has run for 60 s")


def test_a_task_that_runs_for_too_long_ends_the_job() -> None:
    with lab() as at:
        at.cluster.machine("n0", cpu="4")
        at.cluster.submit(job("a", task("train"), task("eval", active_deadline_seconds=15)))
        at.until(lambda: len(at.running("a")) == 2, "it runs")
        at.until(lambda: ended(at), "its time is over")
        assert why(at) == "DeadlineExceeded: its task eval has run for 15 s, its activeDeadlineSeconds"


def test_the_run_time_is_known_to_the_next_leader() -> None:
    with lab() as at:
        at.cluster.machine("n0", cpu="4")
        at.cluster.submit(job("a", task(), active_deadline_seconds=40))
        at.until(lambda: at.running("a"), "it runs")
        began = at.time.now()
        at.watch("a", seconds=10)
        at.end()
        at.begin()
        at.until(lambda: ended(at), "its time is over", seconds=60)
        assert 35 <= at.time.now() - began <= 50


def test_a_copy_of_a_job_has_its_own_time() -> None:
    with lab() as at:
        at.cluster.machine("n0", cpu="4")
        at.cluster.submit(job("a", task(), active_deadline_seconds=40))
        stale = {"past": {"": 39}, "since": {}, "of": 17}
        at.cluster.annotate("a", **{"run-time": json.dumps(stale)})
        at.until(lambda: at.running("a"), "it runs")
        at.watch("a", seconds=20)
        assert not ended(at)


def test_describe_shows_how_long_a_job_has_run_of_what_it_may(diflow: Cli) -> None:
    diflow.prepare()
    data = manifest(activeDeadlineSeconds=3600, scheduling="gang")
    data["spec"]["tasks"][0]["activeDeadlineSeconds"] = 600
    assert diflow("submit", diflow.file("job.yaml", data)).code == 0
    made = diflow.api.objects[WORKFLOW.path("default")]["a"]
    ran = RunTime({"": 90.0, "worker": 60.0}).text(of=record_of(made).submitted_seconds)
    made["metadata"]["annotations"]["diflow/run-time"] = ran
    (line,) = [line for line in diflow("describe", "a").out.splitlines() if line.startswith("Run time:")]
    assert line.split(maxsplit=2)[2] == f"{span(90)} of {span(3600)}, worker: {span(60)} of {span(600)}"


def test_a_ttl_that_is_too_short_is_refused_with_the_reason(diflow: Cli) -> None:
    result = lint(diflow, manifest(ttlSecondsAfterFinished=0))
    assert result.code == 2
    assert "must be at least 60, in which the end of the job is seen and recorded, not 0" in result.err


def test_argo_counts_the_time_of_a_job_that_it_alone_runs(diflow: Cli) -> None:
    data = manifest(activeDeadlineSeconds=3600, scheduling="none")
    assert render(DIJob.from_manifest(data))["spec"]["activeDeadlineSeconds"] == 3600
    assert (
        "activeDeadlineSeconds"
        not in render(DIJob.from_manifest({**data, "spec": {**data["spec"], "suspend": True}}))["spec"]
    )
    assert (
        "activeDeadlineSeconds"
        not in render(DIJob.from_manifest(manifest(activeDeadlineSeconds=9, scheduling="gang")))["spec"]
    )
    diflow.prepare()
    made = {**data, "spec": {**data["spec"], "suspend": True}}
    assert diflow("submit", diflow.file("job.yaml", made)).code == 0
    assert diflow("resume", "a").code == 0
    assert diflow.api.objects[WORKFLOW.path("default")]["a"]["spec"]["activeDeadlineSeconds"] == 3600


def test_a_job_with_a_deadline_of_argo_says_that_it_has_exceeded_it() -> None:
    made = render(DIJob.from_manifest(manifest(activeDeadlineSeconds=60, scheduling="none")))
    made["metadata"] |= {"uid": "u", "namespace": "default", "creationTimestamp": "2026-01-01T00:00:00Z"}
    times = {"startedAt": "2026-01-01T00:00:01Z", "finishedAt": "2026-01-01T00:01:02Z"}
    status = derive({**made, "status": {"phase": "Failed", "nodes": {}, **times}})
    assert (status.phase, status.reason) == ("Failed", "DeadlineExceeded")
    assert status.message == "DeadlineExceeded: it has run for 60 s, its activeDeadlineSeconds"
    assert status.conditions[-1].reason == "DeadlineExceeded"


def test_generate_name_makes_a_new_name_each_time(diflow: Cli) -> None:
    diflow.prepare()
    file = diflow.file("job.yaml", manifest(metadata={"generateName": "sweep-"}))
    names = [diflow("submit", file).out.strip() for _ in range(2)]
    assert len(set(names)) == 2
    assert all(name.startswith("sweep-") and len(name) == len("sweep-") + 5 for name in names)
    assert set(names) <= diflow.api.objects[WORKFLOW.path("default")].keys()
    assert diflow("submit", file, "--name", "mine").out.strip() == "mine"


# --- fields of a template ---------------------------------------------------------------------------------------------


def test_the_restart_policy_of_a_template_is_answered(diflow: Cli) -> None:
    result = lint(diflow, manifest(pod={"restartPolicy": "OnFailure"}))
    assert result.code == 0
    assert "template.spec.restartPolicy has no effect: a replica that fails is started again" in result.err
    assert lint(diflow, manifest(pod={"restartPolicy": "Never"})).err == ""
    assert lint(diflow, manifest(pod={"restartPolicy": "Sometimes"})).code == 2


@pytest.mark.parametrize("field", ["hostname", "subdomain", "hostnameOverride", "ephemeralContainers", "workloadRef"])
def test_what_a_template_cannot_set_is_refused_with_the_reason(diflow: Cli, field: str) -> None:
    result = lint(diflow, manifest(pod={field: "mine"}))
    assert result.code == 2
    assert f"spec.tasks[0].template.spec.{field}: is " in result.err
    assert "leave it out" in result.err


@pytest.mark.parametrize(
    "main",
    [
        {"restartPolicyRules": []}, {"env": [{"name": "A", "valueFrom": {"fileKeyRef": {}}}]},
        {"volumeMounts": [{"name": "v", "mountPath": "/v", "bindMountOptions": []}]},
        {"livenessProbe": {"httpGet": {"port": 80, "protocol": "HTTP"}}},
    ],
)  # fmt: skip
def test_what_argo_does_not_pass_on_to_pods_is_refused_with_the_reason(diflow: Cli, main: Json) -> None:
    result = lint(diflow, manifest(main=main, pod={"volumes": [{"name": "v", "emptyDir": {}}]}))
    assert result.code == 2
    assert "is not known: Argo Workflows does not pass it on to pods" in result.err


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("runtimeClassName", "gvisor"), ("dnsPolicy", "None"), ("hostUsers", False),
        ("resourceClaims", [{"name": "g", "resourceClaimName": "c"}]), ("setHostnameAsFQDN", True),
        ("enableServiceLinks", False), ("shareProcessNamespace", True),
        ("terminationGracePeriodSeconds", 7), ("readinessGates", [{"conditionType": "a/b"}]), ("hostPID", True),
        ("preemptionPolicy", "PreemptLowerPriority"), ("os", {"name": "linux"}),
    ],
)  # fmt: skip
def test_other_fields_of_a_template_reach_the_pod(field: str, value: Any) -> None:
    assert pod_of(manifest(pod={field: value}))[field] == value


def test_pods_on_the_network_of_their_node_find_each_other_by_name() -> None:
    assert pod_of(manifest(pod={"hostNetwork": True}))["dnsPolicy"] == "ClusterFirstWithHostNet"
    assert pod_of(manifest(pod={"hostNetwork": True, "dnsPolicy": "Default"}))["dnsPolicy"] == "Default"
    assert "dnsPolicy" not in pod_of(manifest())


# --- restricted namespaces --------------------------------------------------------------------------------------------

_CONFINED: Json = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


@pytest.mark.parametrize(
    ("pod", "main"),
    [
        ({}, {}),
        ({"securityContext": {"fsGroup": 2000}}, {"securityContext": {"readOnlyRootFilesystem": True}}),
        ({}, {"securityContext": {"runAsUser": 1000}}),
        ({}, {"securityContext": {"capabilities": {"add": ["NET_BIND_SERVICE"]}}}),
        ({}, {"securityContext": {"allowPrivilegeEscalation": False}}),
        ({"securityContext": {"runAsUser": 1000}}, {"securityContext": {"capabilities": {"drop": ["ALL"]}}}),
        (
            {"initContainers": [{"name": "i", "image": "x:1", "securityContext": {"readOnlyRootFilesystem": True}},
                                {"name": "s", "image": "x:1", "restartPolicy": "Always"}]},
            {"securityContext": _CONFINED},
        ),
    ],
)  # fmt: skip
def test_what_a_restricted_namespace_needs_is_added_field_by_field(pod: Json, main: Json) -> None:
    assert violations(pod_of(manifest(pod=pod, main=main))) == []


@pytest.mark.parametrize(
    "own",
    [
        {"privileged": True}, {"capabilities": {"add": ["SYS_ADMIN"]}}, {"capabilities": {"add": ["IPC_LOCK"]}},
        {"capabilities": {"drop": ["NET_RAW"]}}, {"allowPrivilegeEscalation": True}, {"runAsUser": 0},
        {"runAsNonRoot": False}, {"seccompProfile": {"type": "Unconfined"}},
    ],
)  # fmt: skip
def test_nothing_that_a_user_states_is_overridden(own: Json) -> None:
    (main,) = [c for c in pod_of(manifest(main={"securityContext": own}))["containers"] if c["name"] == "main"]
    assert main["securityContext"].items() >= own.items()
    if own.get("privileged") or "SYS_ADMIN" in own.get("capabilities", {}).get("add", ()):
        assert "allowPrivilegeEscalation" not in main["securityContext"], "Kubernetes refuses both together"


# --- unknown fields and other kinds -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"template": {"activeDeadlineSeconds": 3}}, " here: it belongs to spec.tasks[0].activeDeadlineSeconds"),
        ({"backoffLimit": 3}, " here: it belongs to spec.backoffLimit"),
        ({"nodeSelector": {}}, " here: it belongs to spec.tasks[0].template.spec.nodeSelector"),
        ({"image": "x"}, " here: it belongs to spec.tasks[0].template.spec.containers[].image"),
        ({"labels": {}}, " here: it belongs to spec.tasks[0].template.metadata.labels"),
        ({"replcas": 3}, ": did you mean replicas?"),
        ({"min-replicas": 3}, ": did you mean minReplicas?"),
        ({"restartPolicy": "OnFailure"}, ": leave it out: spec.backoffLimit says how often"),
        ({"completions": 3}, ": spec.tasks[].replicas is the number of replicas"),
        ({"dependsOn": []}, ": all tasks start together"),
    ],
)  # fmt: skip
def test_an_unknown_field_of_a_task_is_an_error_that_says_where_it_belongs(
    diflow: Cli, change: Json, said: str
) -> None:
    data = manifest()
    one = data["spec"]["tasks"][0]
    one |= {**change, "template": {**one["template"], **change.get("template", {})}}
    result = lint(diflow, data)
    assert result.code == 2
    assert f": is not known{said}" in result.err


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"runPolicy": {}}, "its fields are fields of spec here"),
        ({"pytorchReplicaSpecs": {}}, "write spec.tasks"),
        ({"podFailurePolicy": {}}, "write spec.failurePolicy"),
        ({"parallelism": 3}, "spec.tasks[].replicas"),
        ({"minAvailable": 3}, "all replicas start together"),
        ({"ttlStrategy": {}}, "write spec.ttlSecondsAfterFinished"),
        ({"priorityClassName": "x"}, "write spec.priority"),
        ({"containers": []}, "it belongs to spec.tasks[].template.spec.containers"),
        ({"replicas": 3}, "it belongs to spec.tasks[].replicas"),
        ({"backofLimit": 3}, "did you mean backoffLimit?"),
        ({"health": {"colour": 1}}, "known here are action, firstProgressSeconds, heartbeatSeconds"),
    ],
)
def test_an_unknown_field_of_a_job_is_an_error_that_says_what_to_write(diflow: Cli, spec: Json, said: str) -> None:
    for command in ("lint", "submit", "render"):
        result = diflow(command, diflow.file("job.yaml", manifest(**spec)))
        assert result.code == 2
        assert said in result.err
    assert diflow.api.seen("POST") == []


@pytest.mark.parametrize(
    ("version", "kind", "said"),
    [
        ("kubeflow.org/v1", "PyTorchJob", "`diflow convert FILE`"),
        ("trainer.kubeflow.org/v1alpha1", "TrainJob", "`diflow convert FILE`"),
        ("kubeflow.org/v2beta1", "MPIJob", "a job of Kubeflow's training operator"),
        ("ray.io/v1", "RayJob", "of KubeRay"),
        ("jobset.x-k8s.io/v1alpha2", "JobSet", "a set of Jobs"),
        ("batch/v1", "Job", "a Job of Kubernetes"),
        ("batch.volcano.sh/v1alpha1", "Job", "a job of Volcano"),
        ("argoproj.io/v1alpha1", "Workflow", "submit it with `argo submit`"),
        ("elastic.iml.github.io/v1alpha1", "ElasticJob", "a job of DLRover"),
    ],
)
def test_a_manifest_of_another_program_is_named_with_the_way_over(
    diflow: Cli, version: str, kind: str, said: str
) -> None:
    data = {"apiVersion": version, "kind": kind, "metadata": {"generateName": "x-"}, "spec": {}}
    several = yaml.safe_dump_all([data, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}}])
    for content in (data, several):
        for command in ("lint", "submit"):
            result = diflow(command, diflow.file("other.yaml", content))
            assert result.code == 2
            assert f"{kind} ({version}) is " in result.err
            assert "and not a DIJob" in result.err
            assert said in result.err
            assert "docs/migrating.md" in result.err


# --- Argo, accounts and quotas ----------------------------------------------------------------------------------------


def refuses_results(request: Request) -> Answer | None:
    if request.method == "POST" and request.path.endswith("/localsubjectaccessreviews"):
        return Answer(201, {"status": {"allowed": request.body["spec"]["user"].endswith(":able")}})
    return None


def test_an_account_that_cannot_report_to_argo_is_named_before_the_job_begins(diflow: Cli) -> None:
    diflow.prepare()
    diflow.api.rule(refuses_results)
    for name in ("bare", "able"):
        diflow.api.add(SERVICE_ACCOUNT, {"metadata": {"name": name}})
    given = {
        name: diflow.file(f"{name}.yaml", manifest(pod={"serviceAccountName": name}))
        for name in ("bare", "gone", "able")
    }
    result = diflow("submit", given["bare"])
    assert result.code == 5
    assert "the service account bare has no right to create workflowtaskresults.argoproj.io" in result.err
    assert "there is no service account gone" in diflow("submit", given["gone"]).err
    assert diflow.api.objects.get(WORKFLOW.path("default"), {}) == {}
    assert diflow("submit", given["able"]).code == 0


def test_a_priority_class_that_does_not_exist_is_named_before_the_job_begins(diflow: Cli) -> None:
    diflow.prepare()
    file = diflow.file("job.yaml", manifest(scheduling="none", pod={"priorityClassName": "batch"}))
    result = diflow("submit", file)
    assert result.code == 5
    assert "there is no PriorityClass batch" in result.err
    diflow.api.add(PRIORITY_CLASS, {"metadata": {"name": "batch"}})
    assert diflow("submit", file).code == 0


def configured(diflow: Cli, config: Json) -> None:
    data = {name: yaml.safe_dump(value) for name, value in config.items()}
    diflow.api.add(CONFIG_MAP, {"metadata": {"name": "workflow-controller-configmap"}, "data": data})


@pytest.mark.parametrize(
    ("config", "said", "mark"),
    [
        ({"workflowDefaults": {"spec": {"activeDeadlineSeconds": 600}}}, "Defaults.spec.activeDeadlineSeconds", "✗"),
        ({"workflowDefaults": {"spec": {"podGC": {"strategy": "OnPodCompletion"}}}}, "podGC is OnPodCompletion", "✗"),
        ({"workflowDefaults": {"spec": {"podGC": {"strategy": "OnWorkflowSuccess"}}}}, "podGC is OnWorkflow", "!"),
        ({"workflowDefaults": {"spec": {"ttlStrategy": {"secondsAfterSuccess": 60}}}}, "ttlStrategy deletes", "✗"),
        ({"workflowDefaults": {"spec": {"retryStrategy": {"limit": 3}}}}, "workflowDefaults.spec.retryStrategy", "✗"),
        (
            {"workflowDefaults": {"spec": {"templateDefaults": {"retryStrategy": {"limit": 3}}}}},
            "templateDefaults.retryStrategy", "✗",
        ),
        ({"workflowDefaults": {"spec": {"nodeSelector": {"a": "b"}}}}, "workflowDefaults.spec.nodeSelector", "✗"),
        ({"workflowDefaults": {"spec": {"parallelism": 2}}}, "workflowDefaults.spec.parallelism", "✗"),
        ({"failedPodRestart": {"enabled": True}}, "failedPodRestart is enabled", "!"),
        ({"retentionPolicy": {"completed": 10}}, "retentionPolicy keeps 10 completed", "!"),
    ],
)  # fmt: skip
def test_doctor_names_what_in_argos_configuration_hurts_jobs(diflow: Cli, config: Json, said: str, mark: str) -> None:
    diflow.prepare()
    configured(diflow, config)
    result = diflow("doctor")
    (line,) = [line for line in result.out.splitlines() if said in line]
    assert line.strip().startswith(mark)
    assert "kubectl edit configmap workflow-controller-configmap" in result.out
    assert result.code == (5 if mark == "✗" else 0)


def test_doctor_says_what_of_argos_containers_a_quota_needs(diflow: Cli) -> None:
    diflow.prepare()
    quota = {"metadata": {"name": "q"}, "spec": {"hard": {"limits.cpu": "10", "requests.memory": "10Gi", "pods": "5"}}}
    diflow.api.add(RESOURCE_QUOTA, quota)
    result = diflow("doctor")
    assert "executor.resources.limits.cpu, executor.resources.requests.memory are not set" in result.out
    assert result.code == 5
    diflow.api.add(
        LIMIT_RANGE, {"metadata": {"name": "l"}, "spec": {"limits": [{"type": "Container", "default": {"cpu": "1"}}]}}
    )
    assert "executor.resources.requests.memory is not set" in diflow("doctor").out
    configured(diflow, {"executor": {"resources": {"limits": {"cpu": "1"}, "requests": {"memory": "64Mi"}}}})
    assert "executor.resources" not in diflow("doctor").out


def test_doctor_says_if_the_pods_of_jobs_cannot_report_to_argo(diflow: Cli) -> None:
    diflow.prepare()
    diflow.api.rule(refuses_results)
    result = diflow("doctor")
    assert "✗ rights of diflow-worker in default: has no right to create and patch workflowtaskresults" in result.out
