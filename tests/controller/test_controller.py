"""DIJob objects get their Workflows and their status: what users see, over a fake API server and a fake Argo."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest

from diflow.common import keys
from diflow.common.clock import Clock
from diflow.common.kept import bytes_of
from diflow.controller.workqueue import Key
from diflow.dijob import stored
from diflow.jobs.dijobs import DIJOB
from diflow.kube.kinds import CONFIG_MAP, POD, SERVICE_ACCOUNT, WORKFLOW, Kind
from diflow.kube.sparing import Shares
from diflow.record.health import HealthState
from diflow.record.job import record_of
from diflow.workflows.successor import successor
from tests.builders import template
from tests.controller.lab import Lab, lab
from tests.kube.fakeapi import Answer, Request, status

Json = dict[str, Any]


@pytest.fixture(name="at")
def _at() -> Iterator[Lab]:
    with lab() as found:
        yield found


def replicas(at: Lab, name: str = "job") -> dict[str, int]:
    """The requested replicas in the Workflow."""
    state = record_of(at.workflows()[name])
    return dict(state.wishes.desired)


def bounds(at: Lab, name: str = "job") -> dict[str, tuple[int, int]]:
    return dict(record_of(at.workflows()[name]).wishes.bounds)


# --- the life of a job ------------------------------------------------------------------------------------------------


def test_a_job_gets_a_workflow_of_its_name_which_it_owns_and_its_status_goes_through_the_phases(at: Lab) -> None:
    made = at.apply(tasks=[{"type": "learner"}, {"type": "collector", "replicas": 2}])
    phases: list[str] = []
    for _ in range(40):
        at.step()
        if at.phase() not in phases:
            phases.append(at.phase())
    (workflow,) = at.workflows().values()
    (owner,) = workflow["metadata"]["ownerReferences"]
    assert (workflow["metadata"]["name"], owner["uid"], owner["controller"]) == ("job", made["metadata"]["uid"], True)
    assert owner["blockOwnerDeletion"] is True
    assert phases[0] == "Pending"
    assert phases[-1] == "Succeeded"
    assert "Running" in phases
    found = at.status()
    assert (found["replicas"], found["readyReplicas"], found["restarts"]) == (3, 0, 0)
    assert found["taskStatus"] == {"learner": {"Succeeded": 1}, "collector": {"Succeeded": 2}}
    assert found["allocation"] == {"learner": ["a"], "collector": ["a", "a"]}
    assert found["completionTimestamp"]
    assert [(c["type"], c["status"], c["reason"]) for c in found["conditions"]][-1] == (
        "Succeeded", "True", "JobSucceeded",
    )  # fmt: skip
    assert {c["reason"] for c in found["conditions"]} >= {"JobPending", "JobStarting", "JobRunning"}


def test_an_object_may_be_created_before_its_queue(at: Lab) -> None:
    public = {"scheduling": "gang", "namespace": "diflow-system"}
    at.api.add(CONFIG_MAP, {"metadata": {"name": keys.ALLOCATOR}, "data": public}, namespace=keys.PUBLIC_NAMESPACE)
    queues = {"queues.yaml": "queues: [{name: vision}]"}
    at.api.add(CONFIG_MAP, {"metadata": {"name": keys.QUEUES}, "data": queues}, namespace="diflow-system")
    at.apply(queue="research")
    at.until(lambda: "job" in at.workflows(), "it has its Workflow")
    assert at.phase() != "Failed"


def test_a_job_that_fails_ends_failed_with_the_reason() -> None:
    with lab(runs=lambda _: (2.0, 3)) as at:
        at.apply(backoffLimit=1)
        at.until(lambda: at.phase() == "Failed", "it has failed")
        assert at.status()["restarts"] == 1
        assert at.status()["reason"] == "JobFailed"


def test_what_the_jobs_health_has_found_is_a_condition() -> None:
    with lab(runs=lambda _: (60.0, 0)) as at:

        def says(status: str, reason: str) -> str:
            (found,) = [c for c in at.status()["conditions"] if c["type"] == "Healthy"]
            assert (found["status"], found["reason"]) == (status, reason)
            return str(found["lastTransitionTime"])

        def finds(minute: int, **fields: Any) -> None:
            workflow = at.workflows()["job"]
            found = HealthState("1", f"2026-11-21T09:{minute}:00Z", **fields)
            annotations = {**workflow["metadata"]["annotations"], keys.HEALTH: found.text()}
            at.api.add(WORKFLOW, {**workflow, "metadata": {**workflow["metadata"], "annotations": annotations}})
            at.rest()

        at.apply(health={}, tasks=[{"type": "learner"}])
        at.until(lambda: at.phase() == "Running", "it runs")
        assert "Healthy" not in {c["type"] for c in at.status()["conditions"]}, "nothing was found"
        finds(10, why="learner-0 is silent", silent=frozenset({0}))
        began = says("False", "ReplicasSilent")
        finds(11, why="learner-0 has stopped", stalled=frozenset({0}))
        assert says("False", "ReplicasStalled") == began, "since it is not healthy"
        finds(12)
        assert says("True", "ReplicasAdvance") > began
        at.until(lambda: at.phase() == "Succeeded", "it ends")
        assert "Healthy" not in {c["type"] for c in at.status()["conditions"]}


def test_deleting_the_object_leaves_nothing(at: Lab) -> None:
    at.apply()
    at.until(lambda: at.phase() == "Running", "it runs")
    at.delete()
    at.rest()
    assert at.workflows() == {}
    assert at.cluster.pods() == []


def test_labels_and_annotations_of_the_object_are_those_of_the_workflow_but_not_those_of_other_programs(
    at: Lab,
) -> None:
    obj = at.apply()
    labels = {"team": "vision", "argocd.argoproj.io/instance": "x", keys.MANAGED_BY: "Helm"}
    annotations = {"note": "kept", "kubectl.kubernetes.io/last-applied-configuration": "{}" * 1000}
    at.api.add(DIJOB, {**obj, "metadata": {**obj["metadata"], "labels": labels, "annotations": annotations}})
    at.rest()
    metadata = at.workflows()["job"]["metadata"]
    assert metadata["labels"]["team"] == "vision"
    assert metadata["labels"][keys.MANAGED_BY] == keys.MANAGED_BY_VALUE
    assert "argocd.argoproj.io/instance" not in metadata["labels"]
    assert metadata["annotations"]["note"] == "kept"
    assert "kubectl.kubernetes.io/last-applied-configuration" not in metadata["annotations"]


# --- what cannot run --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({"tasks": [{"type": "collector"}, {"type": "collector"}]}, "the number of collector task is more than one"),
        ({"tasks": [{"type": "none"}]}, "none type task has no name"),
        ({"tasks": [{"name": "x"}, {"name": "x"}]}, "there is more than one task named x"),
        ({"cleanPodPolicy": "Some"}, "Invalid CleanPodPolicy Some, expected in [None, Running, All]"),
    ],
)
def test_an_invalid_object_ends_failed_with_the_text_of_di_orchestrator_and_makes_nothing(
    at: Lab, spec: Json, text: str
) -> None:
    at.apply(**spec)
    at.rest()
    assert (at.phase(), at.message()) == ("Failed", text)
    assert (at.status()["reason"], at.workflows()) == ("JobFailed", {})
    assert at.status()["completionTimestamp"]


@pytest.mark.parametrize(
    ("metadata", "text"),
    [
        (
            {"annotations": {keys.HELD: "true"}},
            "metadata.annotations.diflow/held: names under diflow/ are set by diflow",
        ),
        ({"annotations": {keys.APPLICATION: "!"}}, "metadata.annotations.diflow/application: must be the name of an"),
        ({"labels": {"diengine/job": "x"}}, "metadata.labels.diengine/job: names under diengine/ are set by diflow"),
        ({"labels": {keys.WAITED_BY: "x"}}, "metadata.labels.diflow/waited-by: names under diflow/ are set by diflow"),
        ({"annotations": {keys.APPLICATION: "resnet", keys.WAITED_BY: "", "argoproj.io/x": "y"}}, ""),
    ],
)
def test_names_of_diflow_that_are_not_for_users_are_refused_as_lint_does(at: Lab, metadata: Json, text: str) -> None:
    obj = at.apply("named", scheduling="gang")
    at.api.add(DIJOB, {**obj, "metadata": {**obj["metadata"], **metadata}})
    at.apply("other", scheduling="gang")
    at.rest()
    assert at.phase("other") == "Pending"
    assert at.message("named").startswith(text)
    assert at.phase("named") == ("Failed" if text else "Pending")
    assert list(at.workflows()) == (["other"] if text else ["named", "other"])


@pytest.mark.parametrize(
    "spec",
    [
        None,
        [],
        "text",
        {},
        {"tasks": None},
        {"tasks": {"a": 1}},
        {"tasks": [[]]},
        {"tasks": [{"type": "learner", "template": {"spec": {"containers": "x"}}}]},
        {"tasks": [{"type": {"a": 1}, "replicas": "9" * 5000, "template": {}}]},
        {"tasks": [{"type": "learner", "template": {}}] * 5000},
        {"tasks": [{"type": "learner", "replicas": 10**30, "template": template()}]},
    ],
    ids=lambda spec: str(spec)[:40],
)
def test_whatever_a_spec_contains_it_is_the_trouble_of_its_job_alone(at: Lab, spec: Any) -> None:
    obj = at.apply("strange")
    at.api.add(DIJOB, {**obj, "spec": spec, "status": {"conditions": 3, "phase": [], "replicas": "x"}})
    at.apply("good")
    at.until(lambda: at.phase("good") == "Succeeded", "the other one runs")
    assert at.phase("strange") == "Failed"
    assert list(at.workflows()) == ["good"]


def test_large_objects_are_refused_and_not_kept(at: Lab) -> None:
    big = "x" * 200_000
    at.apply("large", tasks=[{"type": "learner", "template": template(container={"args": [big]})}])
    obj = at.apply("noted")
    at.api.add(DIJOB, {**obj, "metadata": {**obj["metadata"], "annotations": {"note": big}}})
    at.rest()
    assert "its spec: 200," in at.message("large")
    assert "labels and annotations: 200," in at.message("noted")
    assert {at.phase("large"), at.phase("noted")} == {"Failed"}
    assert at.process is not None
    caches = at.process.controller.caches
    assert all(not kept.job for key in caches.jobs() if (kept := caches.dijob(key)) is not None)


def test_what_is_kept_of_objects_with_very_many_small_parts_is_little(at: Lab) -> None:
    """40,000 empty tolerations are 117 kB, and would be 3 MB of Python's objects."""
    obj = at.apply("many")
    spec = copy.deepcopy(obj["spec"])
    spec["tasks"][0]["template"]["spec"]["tolerations"] = [{}] * 40_000
    at.api.add(DIJOB, {**obj, "spec": spec})
    at.rest()
    assert at.process is not None
    kept = at.process.controller.caches.dijobs.get("default", "many")
    assert bytes_of([kept]) < 10_000


def test_objects_for_which_their_namespace_has_no_room_are_held_and_go_on_when_there_is_some(at: Lab) -> None:
    at.settings = at.settings.model_copy(update={"kept_mib": 0})
    at.end()
    at.begin()
    at.apply("held")
    at.rest()
    assert at.phase("held") == ""
    assert list(at.workflows()) == []
    with at.api.changed:
        events = list(at.api.objects.get("/api/v1/namespaces/default/events", {}).values())
    (said,) = [e["message"] for e in events if e["involvedObject"]["name"] == "held"]
    assert "the DIJob objects of namespace default fill the 0 MiB of memory" in said
    at.settings = at.settings.model_copy(update={"kept_mib": 64})
    at.end()
    at.begin()
    at.until(lambda: at.phase("held") == "Succeeded", "it runs")


def test_looks_at_the_jobs_of_a_namespace_that_cost_too_much_wait_and_those_of_others_do_not(at: Lab) -> None:
    assert at.process is not None
    controller = at.process.controller
    shares = controller._shares = Shares(share=0.5, burst=5.0, clock=Clock(monotonic=at.time.now))
    shares.charge("default", 25.0)
    looks: list[Key] = []
    look = controller.reconciler.look

    def seen(key: Key) -> Any:
        looks.append(key)
        return look(key)

    controller.reconciler.look = seen  # type: ignore[method-assign]
    at.apply()
    for _ in range(30):
        controller.queue.add(("other", "unknown"))
        at.step()
    assert set(looks) == {("other", "unknown")}
    assert at.phase() == ""
    at.until(lambda: at.phase() == "Succeeded", "it runs when there is time again", seconds=60)


def test_a_huge_status_of_others_is_replaced(at: Lab) -> None:
    at.apply()
    at.rest()
    at.write_status(profilings={"a": "x" * 1_000_000})
    at.rest()
    assert at.status()["profilings"] == {}


def test_deep_reports_and_large_numbers_do_not_make_the_controller_write_forever(at: Lab) -> None:
    at.apply(tasks=[{"type": "learner", "template": template("sleep")}])
    at.until(lambda: at.phase() == "Running", "it runs")
    deep: Any = 2**70
    for _ in range(60):
        deep = {"a": deep}
    at.cluster.edit("job", profilings=json.dumps(deep))

    # As the API server stores numbers: what is read back is not what was written.
    def lossy(request: Request) -> Answer | None:
        if request.method == "PUT" and "profilings" in str(request.body):
            request.body["status"]["profilings"] = json.loads(
                json.dumps(request.body["status"]["profilings"]), parse_int=lambda text: float(text) + 1e10
            )
        return None

    at.api.rule(lossy)
    at.step()
    before = len(at.api.seen("PUT", "/status"))
    for _ in range(3):
        at.step()
    assert len(at.api.seen("PUT", "/status")) <= before + 1


# --- names that are taken ---------------------------------------------------------------------------------------------


def test_a_workflow_that_is_not_of_the_object_is_left_alone(at: Lab) -> None:
    other = at.api.add(WORKFLOW, {"metadata": {"name": "job"}, "spec": {"suspend": True}})
    at.apply()
    at.rest()
    assert at.phase() == "Failed"
    assert "there is a Workflow job in the namespace 'default' that is not of this DIJob" in at.message()
    assert at.workflows() == {"job": other}


@pytest.mark.parametrize("fails", [False, True])
def test_the_status_of_an_object_that_is_deleted_before_its_write_is_not_kept(
    at: Lab, monkeypatch: pytest.MonkeyPatch, *, fails: bool
) -> None:
    assert at.process is not None
    process, caches = at.process, at.process.controller.caches
    expect = caches.expect_status

    def late(key: Key, written: Json) -> None:
        at.delete()
        process.catch_up()
        expect(key, written)
        if fails:
            at.api.fail(status(504, "the request has timed out"), method="PUT", times=1)

    monkeypatch.setattr(caches, "expect_status", late)
    at.apply()
    at.step()
    assert "job" not in at.dijobs()
    assert caches._sent == {}


def test_a_job_waits_until_the_workflow_of_an_earlier_object_of_its_name_is_deleted(at: Lab) -> None:
    at.apply()
    at.until(lambda: at.phase() == "Running", "it runs")
    old = at.workflows()["job"]["metadata"]["ownerReferences"][0]["uid"]
    collect, at.collect = at.collect, lambda: None  # type: ignore[method-assign]
    at.delete()
    at.apply()
    at.step(2.0)
    assert at.phase() == "Pending"
    assert "the Workflow of an earlier DIJob job is being deleted" in at.message()
    at.collect = collect  # type: ignore[method-assign]
    at.until(lambda: at.phase() == "Succeeded", "it runs then", seconds=120)
    assert at.workflows()["job"]["metadata"]["ownerReferences"][0]["uid"] != old


def keep_pods(at: Lab) -> None:
    """The pods of deleted Workflows stay, as in their grace period."""

    def collect() -> None:
        pods = at.pods()
        Lab.collect(at)
        for name in pods.keys() - at.pods().keys():
            metadata = {**pods[name]["metadata"], "deletionTimestamp": at.cluster._time()}
            at.api.add(POD, {**pods[name], "metadata": metadata})

    at.collect = collect  # type: ignore[method-assign]


def pod(at: Lab, name: str, *, of: str, **labels: str) -> None:
    """A pod with the label of a Workflow that it is not of, on a machine that the fake kubelets do not know."""
    metadata = {"name": name, "labels": {"workflows.argoproj.io/workflow": of, **labels}}
    at.api.add(POD, {"metadata": metadata, "spec": {"nodeName": "elsewhere"}, "status": {"phase": "Running"}})


def test_a_job_waits_until_the_pods_of_an_earlier_workflow_of_its_name_are_gone() -> None:
    with lab(runs=lambda _: (600.0, 1)) as at:
        at.apply(backoffLimit=0, tasks=[{"type": "learner"}, {"type": "collector", "replicas": 6}])
        at.until(lambda: at.phase() == "Running", "it runs")
        keep_pods(at)
        at.cluster.grace_seconds = 40.0
        at.delete()
        at.apply(backoffLimit=0)
        for _ in range(30):
            at.step()
        assert (at.phase(), at.workflows()) == ("Pending", {})
        assert "there are pods of an earlier Workflow job in the namespace 'default'" in at.message()
        assert "(is being deleted)" in at.message()
        assert "and 4 more" in at.message()
        for name in at.pods():
            at.api.remove(POD, name)
        at.step()
        assert list(at.workflows()) == ["job"], "the end of the last pod calls for a look"
        at.until(lambda: at.phase() == "Running", "it runs then")


def test_a_pod_of_others_with_the_label_holds_that_job_alone_and_is_named(at: Lab) -> None:
    pod(at, "theirs", of="job")
    at.apply()
    at.apply("other")
    at.until(lambda: at.phase("other") == "Succeeded", "the other one runs")
    assert (at.phase(), list(at.workflows())) == ("Pending", ["other"])
    assert "for those of the new one: theirs. Wait until they are gone, and delete those that stay" in at.message()
    for i in range(100):
        pod(at, f"theirs-{i}", of="job")
    at.until(lambda: "and at least 17 more" in at.message(), "it is read in part", seconds=90)
    for name in [name for name in at.pods() if name.startswith("theirs")]:
        at.api.remove(POD, name)
    at.until(lambda: at.phase() == "Succeeded", "it runs then", seconds=120)


# --- Workflows that the object owns, and that are not its job's -------------------------------------------------------


def owners(at: Lab, workflow: str) -> list[str]:
    return [one["name"] for one in at.workflows()[workflow]["metadata"].get("ownerReferences") or []]


@pytest.mark.parametrize("end", ["Succeeded", "Failed"])
def test_a_copy_by_argo_resubmit_is_another_job_which_does_not_end_this_one(end: str) -> None:
    with lab(runs=lambda _: (600.0, 0)) as at:
        at.apply(ttlSecondsAfterFinished=60)
        at.until(lambda: at.phase() == "Running", "it runs")
        made = at.resubmit()
        at.ends(made, end)
        for _ in range(20):
            at.step(5.0)
        assert (at.phase(), list(at.dijobs())) == ("Running", ["job"])
        assert owners(at, "job") == ["job"]
        assert owners(at, made) == [], "the object has given it up"


def test_a_copy_of_an_ended_job_outlives_the_object(at: Lab) -> None:
    at.apply(ttlSecondsAfterFinished=60)
    at.until(lambda: at.phase() == "Succeeded", "it has succeeded")
    made = at.resubmit()
    at.step()
    before = at.status()
    at.ends(made, "Running")
    at.rest()
    assert at.status() == before
    for _ in range(16):
        at.step(5.0)
    assert (at.dijobs(), list(at.workflows())) == ({}, [made])


def test_a_copy_without_its_original_is_not_the_job(at: Lab) -> None:
    at.apply(tasks=[{"type": "learner"}])
    at.until(lambda: at.phase() == "Running", "it runs")
    at.api.fail(status(403, "no"), method="PATCH", path="workflows", times=1000)
    made = at.resubmit()
    at.api.remove(WORKFLOW, "job")
    at.rest()
    assert at.phase() == "Failed"
    assert "was deleted before the end of the job was seen" in at.message()
    assert owners(at, made) == ["job"]


def test_a_copy_that_cannot_be_given_up_is_tried_once_and_is_no_trouble_of_the_job(at: Lab) -> None:
    at.apply(scheduling="gang", tasks=[{"type": "learner"}])
    at.rest()
    at.api.fail(status(403, "no"), method="PATCH", path="job-x7k2p", times=1000)
    made = at.resubmit()
    at.rest()
    at.cluster.edit(made, profilings='{"speed": 1}')
    at.rest()
    assert len(at.api.seen("PATCH", made)) == 1
    at.apply(scheduling="gang", tasks=[{"type": "learner", "replicas": 3}])
    at.rest()
    assert (replicas(at), replicas(at, made)) == ({"learner": 3}, {"learner": 1})
    assert at.process is not None
    assert at.process.controller.reconciler.refused == {}


def test_the_workflow_of_its_name_is_the_jobs_whatever_its_labels_say(at: Lab) -> None:
    at.apply(scheduling="gang", tasks=[{"type": "learner"}])
    at.rest()
    workflow = at.workflows()["job"]
    labels = {**workflow["metadata"]["labels"], keys.RESUBMITTED: "job", keys.CHAIN: "other", keys.PART: "7"}
    at.api.add(WORKFLOW, {**workflow, "metadata": {**workflow["metadata"], "labels": labels}, "status": {}})
    at.rest()
    assert owners(at, "job") == ["job"]
    at.ends("job", "Failed")
    at.until(lambda: at.phase() == "Failed", "it is followed")


def test_many_copies_are_given_up_some_in_each_look(at: Lab) -> None:
    at.apply(scheduling="gang")
    at.rest()
    made = [at.resubmit(name=f"job-c{i}") for i in range(20)]
    at.rest()
    assert {tuple(owners(at, name)) for name in made} == {()}


def test_copies_of_the_parts_of_a_long_job_are_not_its_parts(at: Lab) -> None:
    second = at_second_part(at)
    at.resubmit("job", name="job-a")
    at.resubmit(second, name="job-s2-a")
    forged = at.resubmit(second, name="job-s9")
    strip(at, forged, keys.RESUBMITTED, part="9")
    for name in ("job-a", "job-s2-a", forged):
        at.ends(name, "Failed")
    at.rest()
    assert at.phase() != "Failed"
    at.api.remove(WORKFLOW, "job")
    at.rest()
    assert at.phase() != "Failed", "the part of the job is older than the forged one"
    at.ends(second, "Succeeded")
    at.until(lambda: at.phase() == "Succeeded", "its own part has ended")


@pytest.mark.parametrize("links", [{}, {keys.CONTINUES: "job", keys.CONTINUES_UID: "job"}, {keys.CONTINUED_IN: "job"}])
def test_a_workflow_with_forged_owners_and_labels_does_not_change_the_status(links: dict[str, str]) -> None:
    with lab(runs=lambda _: (600.0, 0)) as at:
        at.apply()
        at.until(lambda: at.phase() == "Running", "it runs")
        uid = at.workflows()["job"]["metadata"]["uid"]
        links = {key: uid if key == keys.CONTINUES_UID else value for key, value in links.items()}
        made = at.resubmit(name="job-s2")
        strip(at, made, keys.RESUBMITTED, part="2", **links)
        at.ends(made, "Failed")
        at.rest()
        assert at.phase() == "Running"


def at_second_part(at: Lab) -> str:
    """A job that continues in its second Workflow."""
    worker = {"name": "worker", "replicas": 2, "minReplicas": 1, "maxReplicas": 4}
    at.apply(scheduling="gang", preemptible=True, tasks=[worker])
    at.rest()
    second = successor(at.workflows()["job"], name="job-s2", parameters={}, annotations={})
    made = {"uid": "part-2", "creationTimestamp": at.cluster._time()}
    at.api.add(WORKFLOW, {**second, "metadata": {**second["metadata"], **made}, "status": {}})
    at.cluster.annotate("job", **{keys.CONTINUED_IN.removeprefix("diflow/"): "job-s2"})
    at.rest()
    return "job-s2"


def strip(at: Lab, name: str, label: str, *, part: str, **annotations: str) -> None:
    """Take a label from a Workflow, and let it claim to be a part of the job."""
    workflow = at.workflows()[name]
    metadata = workflow["metadata"]
    labels = {key: value for key, value in metadata["labels"].items() if key != label}
    labels |= {keys.CHAIN: "job", keys.PART: part}
    claims = {"labels": labels, "annotations": {**metadata["annotations"], **annotations}}
    at.api.add(WORKFLOW, {**workflow, "metadata": {**metadata, **claims}})


# --- what is missing --------------------------------------------------------------------------------------------------


def test_a_job_waits_for_what_the_cluster_lacks_and_says_so(at: Lab) -> None:
    at.api.remove(SERVICE_ACCOUNT, keys.WORKER_ACCOUNT)
    at.apply()
    at.step(2.0)
    assert at.phase() == "Pending"
    assert "the service account diflow-worker is missing in the namespace 'default'" in at.message()
    at.api.add(SERVICE_ACCOUNT, {"metadata": {"name": keys.WORKER_ACCOUNT}})
    at.until(lambda: at.phase() == "Succeeded", "it runs then", seconds=120)


def test_jobs_that_are_applied_together_share_the_check_of_their_namespace(at: Lab) -> None:
    before = len(at.api.seen("GET", "serviceaccounts"))
    for i in range(5):
        at.apply(f"job-{i}", scheduling="gang")
    at.rest()
    assert len(at.workflows()) == 5
    assert len(at.api.seen("GET", "serviceaccounts")) == before + 2
    for _ in range(12):
        at.step()
    at.api.remove(SERVICE_ACCOUNT, keys.WORKER_ACCOUNT)
    at.apply("late", scheduling="gang")
    at.rest()
    assert "the service account diflow-worker is missing" in at.message("late")


def test_an_api_server_that_fails_for_a_while_costs_no_job(at: Lab) -> None:
    at.api.fail(Answer(500, {"message": "etcd is slow"}), method="POST", path="workflows", times=3)
    at.api.fail(Answer(429, {"message": "later"}, headers={"Retry-After": "2"}), method="PUT", path="dijobs", times=2)
    at.apply()
    at.until(lambda: at.phase() == "Succeeded", "it runs then", seconds=120)


def test_an_admission_that_refuses_the_workflow_for_good_fails_the_job(at: Lab) -> None:
    text = "admission webhook denied the request: no jobs on Fridays"
    at.api.fail(status(422, text, reason="Invalid"), method="POST", path="workflows", times=1)
    at.apply()
    at.rest()
    assert at.phase() == "Failed"
    assert "no jobs on Fridays" in at.message()


def test_a_reason_that_differs_each_time_does_not_shorten_the_pauses(at: Lab) -> None:
    for i in range(60):
        text = f"try {i}: etcd is slow"
        at.api.fail(Answer(503, {"message": text}), method="POST", path="workflows", times=1)
    at.apply()
    for _ in range(60):
        at.step()
    assert "etcd is slow" in at.message(), "the reason is shown"
    assert at.process is not None
    assert 4 <= at.process.controller.reconciler.made["status"] <= 8, "0.5 s, 1 s, 2 s ... between two looks"


def test_what_others_change_meanwhile_is_looked_at_at_once(at: Lab) -> None:
    at.api.fail(Answer(503, {"message": "etcd is slow"}), method="POST", path="workflows", times=1000)
    at.apply()
    for _ in range(30):
        at.step()
    at.apply(cleanPodPolicy="Some")
    at.step(2.0)
    assert at.phase() == "Failed"


# --- a deletion that waits for the pods -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "finalizers", "stops"),
    [
        (DIJOB, ["foregroundDeletion"], True),
        (WORKFLOW, ["foregroundDeletion"], True),
        (DIJOB, ["orphan"], False),
        (DIJOB, {"foregroundDeletion": 1}, False),
    ],
)
def test_a_job_whose_pods_are_deleted_first_is_stopped(at: Lab, kind: Kind, finalizers: Any, stops: bool) -> None:
    at.apply()
    at.until(lambda: at.phase() == "Running", "it runs")
    obj = at.api.objects[kind.path("default")]["job"]
    gone = {"deletionTimestamp": at.cluster._time(), "finalizers": finalizers}
    at.api.add(kind, {**obj, "metadata": {**obj["metadata"], **gone}})
    at.rest()
    assert (at.workflows()["job"]["spec"].get("shutdown") == "Stop") == stops
    assert [reason for reason, _ in at.events()].count("Stopped") == int(stops)


# --- a Workflow that was deleted --------------------------------------------------------------------------------------


def test_a_deleted_workflow_is_made_again_if_the_job_had_not_begun(at: Lab) -> None:
    at.apply(scheduling="gang")  # without an allocator it waits
    at.until(lambda: at.phase() == "Pending", "it waits")
    first = at.api.seen("POST", "workflows")
    at.api.remove(WORKFLOW, "job")
    at.rest()
    assert at.phase() == "Pending"
    assert "job" in at.workflows()
    assert len(at.api.seen("POST", "workflows")) > len(first)


def test_a_deleted_workflow_of_a_job_that_had_begun_fails_the_job(at: Lab) -> None:
    at.apply(tasks=[{"type": "learner"}])
    at.until(lambda: at.phase() == "Running", "it runs")
    at.api.remove(WORKFLOW, "job")
    at.rest()
    assert at.phase() == "Failed"
    assert "was deleted before the end of the job was seen" in at.message()
    assert [(c["type"], c["status"]) for c in at.status()["conditions"]][-2:] == [
        ("Running", "False"), ("Failed", "True"),
    ]  # fmt: skip
    assert at.workflows() == {}


def test_of_a_job_that_has_ended_the_workflow_may_be_deleted(at: Lab) -> None:
    at.apply()
    at.until(lambda: at.phase() == "Succeeded", "it has succeeded")
    before = at.status()
    at.api.remove(WORKFLOW, "job")
    at.rest()
    assert at.status() == before
    assert at.workflows() == {}


def test_an_ended_job_is_deleted_when_its_time_has_come(at: Lab) -> None:
    at.apply(ttlSecondsAfterFinished=60)
    at.apply("wrong", cleanPodPolicy="Some", ttlSecondsAfterFinished=60)
    at.apply("kept")
    at.until(lambda: at.phase() == "Succeeded", "it has succeeded")
    assert at.status()["expiresAt"] > at.status()["completionTimestamp"]
    for _ in range(16):
        at.step(5.0)
    assert list(at.dijobs()) == ["kept"]


@pytest.mark.parametrize(("said", "left"), [("60", []), ("soon", ["wrong"])])
def test_a_job_that_was_refused_is_deleted_when_the_clusters_time_has_come(at: Lab, said: str, left: list[str]) -> None:
    public = {"metadata": {"name": keys.ALLOCATOR}, "data": {"ttlSecondsAfterFinished": said}}
    at.api.add(CONFIG_MAP, public, namespace=keys.PUBLIC_NAMESPACE)
    at.apply("wrong", cleanPodPolicy="Some")
    at.until(lambda: at.phase("wrong") == "Failed", "it has failed")
    assert bool(at.status("wrong").get("expiresAt")) == (not left)
    for _ in range(16):
        at.step(5.0)
    assert list(at.dijobs()) == left


def test_a_job_that_continues_in_another_workflow_is_followed_there(at: Lab) -> None:
    worker = {"name": "worker", "replicas": 2, "minReplicas": 1, "maxReplicas": 4}
    at.apply(scheduling="gang", preemptible=True, tasks=[worker])
    at.rest()
    first = at.workflows()["job"]
    second = successor(first, name="job-s2", parameters={}, annotations={})
    at.api.add(WORKFLOW, {**second, "metadata": {**second["metadata"], "uid": "part-2"}})
    at.rest()
    assert at.phase() == "Pending", "the new part does not count yet"
    at.cluster.annotate("job", **{keys.CONTINUED_IN.removeprefix("diflow/"): "job-s2"})
    at.rest()
    at.apply(scheduling="gang", preemptible=True, tasks=[{**worker, "maxReplicas": 6}])
    at.rest()
    assert (bounds(at), bounds(at, "job-s2")) == ({}, {"worker": (1, 6)})
    at.api.remove(WORKFLOW, "job")
    at.rest()
    assert at.phase() in ("Pending", "Rescheduling"), "the later part is the job"
    at.delete()
    at.rest()
    assert at.workflows() == {}


def test_the_end_of_a_job_is_an_event(at: Lab) -> None:
    at.apply()
    at.until(lambda: at.phase() == "Succeeded", "it has succeeded")
    at.apply("bad", tasks=[{"type": "none"}])
    at.until(lambda: at.phase("bad") == "Failed", "it has failed")
    at.rest()
    assert [reason for reason, _ in at.events()] == ["JobSucceeded"]
    assert at.events("bad") == [("JobFailed", "none type task has no name")]


def test_the_status_says_of_which_generation_of_the_object_it_is(at: Lab) -> None:
    def changed(generation: int, replicas: int) -> None:
        obj = at.dijobs()["job"]
        tasks = [{**obj["spec"]["tasks"][0], "replicas": replicas}]
        metadata = {**obj["metadata"], "generation": generation}
        at.api.add(DIJOB, {**obj, "metadata": metadata, "spec": {**obj["spec"], "tasks": tasks}})

    at.apply(scheduling="gang", tasks=[{"type": "learner"}])
    changed(1, 1)
    at.rest()
    assert at.status()["observedGeneration"] == 1
    changed(2, 3)
    at.rest()
    assert at.status()["observedGeneration"] == 2
    assert replicas(at) == {"learner": 3}, "the status of a generation comes after what it requests"


# --- requests ---------------------------------------------------------------------------------------------------------


def test_a_change_of_the_replicas_in_the_spec_is_a_scale_request(at: Lab) -> None:
    tasks = [{"type": "learner"}, {"type": "collector", "replicas": 2}]
    at.apply(scheduling="gang", tasks=tasks)
    at.rest()
    at.apply(scheduling="gang", tasks=[tasks[0], {"type": "collector", "replicas": 5}])
    at.rest()
    assert replicas(at) == {"learner": 1, "collector": 5}
    assert at.events() == [("Scaled", "collector: 2 → 5 replicas")]


def test_a_look_at_a_job_reads_the_record_of_its_workflow_once(at: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    at.apply(scheduling="gang")
    at.rest()
    looks, reads, read_job = 0, list[object](), stored.read_job

    def noted(text: object) -> stored.StoredJob:
        reads.append(text)
        return read_job(text)

    monkeypatch.setattr(stored, "read_job", noted)
    process = at.process
    assert process is not None
    process.controller.look_at_all()
    while process.look():
        looks += 1
    assert len(reads) == looks > 0


def test_a_change_of_the_bounds_is_one_too(at: Lab) -> None:
    worker = {"name": "worker", "replicas": 2, "minReplicas": 1, "maxReplicas": 4}
    at.apply(scheduling="gang", preemptible=True, tasks=[worker])
    at.rest()
    assert bounds(at) == {}
    at.apply(scheduling="gang", preemptible=True, tasks=[{**worker, "replicas": 3, "minReplicas": 2, "maxReplicas": 8}])
    at.rest()
    assert bounds(at) == {"worker": (2, 8)}


def test_an_event_does_not_show_a_change_where_the_bounds_stay(at: Lab) -> None:
    """Of a preemptible job with bounds the allocator chooses the number."""
    worker = {"name": "worker", "replicas": 2, "minReplicas": 2, "maxReplicas": 8}
    at.apply(scheduling="gang", preemptible=True, tasks=[worker])
    at.rest()
    at.apply(scheduling="gang", preemptible=True, tasks=[{**worker, "replicas": 4}])
    at.rest()
    assert at.events() == [("Scaled", "worker: 2 to 8 replicas, as before")]


@pytest.mark.parametrize(
    ("preemptible", "change", "wanted", "between"),
    [
        (False, ({"minReplicas": 2}, {"minReplicas": 3}), 3, {}),
        (False, ({}, {"minReplicas": 2, "maxReplicas": 4}), 2, {}),
        (True, ({"minReplicas": 1, "maxReplicas": 4}, {"minReplicas": 2, "maxReplicas": 8}), 1, {"worker": (2, 8)}),
    ],
)
def test_a_change_of_the_numbers_of_a_job_with_one_template_is_one_too(
    preemptible: bool, change: tuple[Json, Json], wanted: int, between: Json
) -> None:
    with lab() as at:
        given: Json = {"scheduling": "gang", "preemptible": preemptible, "template": template("sleep")}
        at.apply_one(**given, **change[0])
        at.rest()
        assert replicas(at) == {"worker": change[0].get("minReplicas", 1)}
        at.apply_one(**given, **change[1])
        at.rest()
        assert (replicas(at), bounds(at)) == ({"worker": wanted}, between)
        assert [reason for reason, _ in at.events()] == ["Scaled"]


@pytest.mark.parametrize(
    ("before", "after", "range_"), [({}, {}, (4, 12)), ({"minReplicas": 4}, {"minReplicas": 8}, (8, 12))]
)
def test_a_change_of_the_replicas_of_a_task_in_units_keeps_the_unit(
    at: Lab, before: Json, after: Json, range_: tuple[int, int]
) -> None:
    worker = {"name": "worker", "replicas": 8, "nodeUnit": 4}
    at.apply(scheduling="gang", preemptible=True, tasks=[{**worker, **before}])
    at.rest()
    at.apply(scheduling="gang", preemptible=True, tasks=[{**worker, "replicas": 12, **after}])
    at.rest()
    assert bounds(at) == {"worker": range_}
    assert [reason for reason, _ in at.events()] == ["Scaled"]


def test_a_change_that_the_crd_cannot_refuse_is_said_once(at: Lab) -> None:
    tasks = [{"name": "worker", "replicas": 2}]
    at.apply(scheduling="gang", monitor=True, tasks=tasks)
    at.rest()
    at.apply(scheduling="gang", monitor={}, tasks=tasks)  # the same
    at.rest()
    assert at.events() == []
    at.apply(scheduling="gang", monitor=False, nodeCheck={"maxMoves": 1}, tasks=tasks)
    at.rest()
    at.end()
    at.begin()
    at.rest()
    (said,) = at.events()
    assert said[0] == "ChangeIgnored"
    assert said[1].startswith("spec.nodeCheck and spec.monitor cannot change in a job that was created")
    at.apply(scheduling="gang", monitor=False, nodeCheck={"maxMoves": 1}, tasks=[{"name": "worker", "replicas": 3}])
    at.rest()
    assert [reason for reason, _ in at.events()] == ["ChangeIgnored", "Scaled"]
    assert replicas(at) == {"worker": 3}


def test_a_typing_error_where_the_crd_knows_no_fields_ends_the_job_before_it_begins(at: Lab) -> None:
    given = {"timeoutSecond\n\x1b[31m" + "s" * 200: 60, **{f"no{i}": i for i in range(9)}}
    at.apply(scheduling="gang", nodeCheck=given, monitor={"checkpointVolumes": "data"}, tasks=[{"name": "worker"}])
    at.rest()
    status = at.status()
    assert status["phase"] == "Failed"
    assert "is not known: known here are command, image, maxMoves, timeoutSeconds" in status["message"]
    assert "and 6 more" in status["message"]
    assert len(status["message"]) < 1500
    assert status["message"].isprintable()
    assert at.workflows() == {}


def test_a_job_is_suspended_and_resumed_by_its_spec(at: Lab) -> None:
    tasks = [{"name": "worker", "template": template(restartPolicy="OnFailure")}]
    at.apply(scheduling="none", suspend=True, activeDeadlineSeconds=60, tasks=tasks)
    at.rest()
    spec = at.workflows()["job"]["spec"]
    assert spec.get("suspend") is True
    assert "activeDeadlineSeconds" not in spec
    assert at.message().startswith("suspended")
    at.end()
    at.apply(scheduling="none", suspend=False, activeDeadlineSeconds=60, tasks=tasks)
    at.begin()
    at.until(lambda: not at.workflows()["job"]["spec"].get("suspend"), "it is resumed")
    assert at.workflows()["job"]["spec"]["activeDeadlineSeconds"] >= 60
    at.apply(scheduling="none", suspend=True, activeDeadlineSeconds=60, tasks=tasks)
    at.until(lambda: at.workflows()["job"]["spec"].get("suspend"), "it is suspended again")
    assert [reason for reason, _ in at.events()] == ["NoEffect", "Resumed", "Suspended"]
    assert "restartPolicy has no effect: a replica that fails is started again" in at.events()[0][1]


def test_what_a_user_suspends_by_command_stays_so_until_the_spec_changes(at: Lab) -> None:
    at.apply(scheduling="none", tasks=[{"name": "worker"}])
    at.rest()
    at.cluster.suspend("job")
    at.rest()
    assert at.workflows()["job"]["spec"]["suspend"] is True
    at.apply(scheduling="none", suspend=True, tasks=[{"name": "worker"}])
    at.rest()
    at.apply(scheduling="none", tasks=[{"name": "worker"}])
    at.rest()
    assert not at.workflows()["job"]["spec"].get("suspend")


def test_requests_by_other_ways_stay_until_the_spec_changes(at: Lab) -> None:
    at.apply(scheduling="gang", tasks=[{"type": "learner"}])
    at.rest()
    at.cluster.edit("job", replicas=json.dumps({"learner": 7}))
    at.rest()
    assert replicas(at) == {"learner": 7}
    at.apply(scheduling="gang", tasks=[{"type": "learner", "replicas": 2}])
    at.rest()
    assert replicas(at) == {"learner": 2}


def test_a_request_that_cannot_be_carried_out_is_refused_once_with_an_event(at: Lab) -> None:
    at.apply(tasks=[{"type": "learner", "template": template("sleep")}])  # scheduling: none
    at.until(lambda: at.phase() == "Running", "it runs")
    at.apply(tasks=[{"type": "learner", "replicas": 4, "template": template("sleep")}])
    at.rest()
    (text,) = (message for reason, message in at.events() if reason == "ScaleRefused")
    assert "has scheduling: none" in text
    assert at.phase() in ("Running", "Succeeded")


@pytest.mark.parametrize(
    ("fields", "tasks", "wanted"),
    [
        ({}, [{"type": "learner"}, {"type": "collector", "replicas": 2}], {"learner": 1, "collector": 4}),
        ({"preemptible": True}, [{"name": "worker", "minReplicas": 1, "maxReplicas": 4}, {"name": "head"}],
         {"worker": 3, "head": 1}),
    ],
    ids=["the last task", "the elastic task"],
)  # fmt: skip
def test_a_write_of_replicas_in_the_status_is_a_request_for_the_difference(
    at: Lab, fields: Json, tasks: list[Json], wanted: dict[str, int]
) -> None:
    at.apply(scheduling="gang", tasks=tasks, **fields)
    at.rest()
    total = at.status()["replicas"]
    at.write_status(replicas=total + 2)
    at.rest()
    assert replicas(at) == wanted
    assert at.status()["replicas"] == total, "the status says what is granted"
    assert at.status()["scaleRequests"] == 1


def test_a_count_of_requests_that_somebody_wrote_by_hand_is_replaced(at: Lab) -> None:
    at.apply(scheduling="gang", tasks=[{"type": "learner", "replicas": 1}])
    at.rest()
    for number, wanted in enumerate((3, 5), 1):
        at.write_status(replicas=at.status()["replicas"] + 2, scaleRequests=2**31 - 1)
        at.rest()
        assert replicas(at) == {"learner": wanted}
        assert at.status()["scaleRequests"] == number


def test_a_second_write_before_the_first_is_reported_counts_from_the_first(at: Lab) -> None:
    at.apply(scheduling="gang", tasks=[{"type": "learner", "replicas": 3}])
    at.rest()
    assert at.process is not None
    # The status cannot be written for a while, and the Workflow can.
    at.api.fail(Answer(500, {"message": "slow"}), method="PUT", path="/status", times=4)
    at.write_status(replicas=5)
    at.step()
    assert replicas(at) == {"learner": 5}
    at.write_status(replicas=6)
    at.rest()
    assert replicas(at) == {"learner": 6}


def test_a_client_that_drops_unknown_fields_of_the_status_can_request_replicas_too(at: Lab) -> None:
    at.apply(scheduling="gang", tasks=[{"type": "learner", "replicas": 3}])
    at.rest()
    obj = at.dijob()
    kept = {name: obj["status"][name] for name in ("phase", "conditions")}
    at.api.add(DIJOB, {**obj, "status": {**kept, "replicas": 5}})
    at.rest()
    assert replicas(at) == {"learner": 5}
    assert at.status()["reportedReplicas"] == at.status()["replicas"] == 3


@pytest.mark.parametrize("number", [0, 10**9, -(10**9)])
def test_an_absurd_number_in_the_status_is_refused_and_replaced(at: Lab, number: int) -> None:
    at.apply(scheduling="gang", tasks=[{"type": "learner", "replicas": 3}])
    at.rest()
    at.write_status(replicas=number)
    at.rest()
    assert replicas(at) == {"learner": 3}
    assert at.status()["replicas"] == 3


@pytest.mark.parametrize("text", ["", "x", "[]", '{"spec":{"learner":[1]},"status":[-1,2]}', "{" * 9000, '{"spec":7}'])
def test_an_edited_note_of_what_was_carried_out_does_no_harm(at: Lab, text: str) -> None:
    at.apply(scheduling="gang", tasks=[{"type": "learner", "replicas": 3}])
    at.rest()
    at.cluster.annotate("job", **{keys.CARRIED_OUT.removeprefix("diflow/"): text})
    at.apply(scheduling="gang", tasks=[{"type": "learner", "replicas": 4}])
    at.rest()
    assert replicas(at) == {"learner": 4}


# --- how often it writes ----------------------------------------------------------------------------------------------


def test_the_status_is_written_at_most_once_a_second_and_not_when_nothing_has_changed(at: Lab) -> None:
    at.apply(tasks=[{"type": "learner", "replicas": 20, "template": template("sleep")}])
    for _ in range(20):
        before = len(at.api.seen("PUT", "/status"))
        at.step(0.25)
        at.step(0.25)
        at.step(0.25)
        at.step(0.24)
        assert len(at.api.seen("PUT", "/status")) <= before + 1
    at.until(lambda: at.phase() == "Succeeded", "it has ended")
    at.rest()
    before = len(at.api.requests)
    assert at.process is not None
    at.process.controller.look_at_all()
    for _ in range(5):
        at.step()
    later = [r for r in at.api.requests[before:] if "leases" not in r.path]
    assert [r.method for r in later if r.method != "GET"] == []


def test_an_object_that_changes_while_its_status_is_written_keeps_both(at: Lab) -> None:
    at.apply(scheduling="gang", tasks=[{"type": "learner", "replicas": 3}])
    wished: list[int] = []

    def meanwhile(request: Request) -> Answer | None:
        if request.method == "PUT" and request.path.endswith("/status") and at.status() and not wished:
            wished.append(5)
            at.write_status(replicas=5)
        return None

    at.rest()
    at.api.rule(meanwhile)
    at.cluster.edit("job", profilings='{"speed": 1}')
    at.rest()
    assert wished
    assert replicas(at) == {"learner": 5}
    assert at.status()["profilings"] == {"speed": 1}


@pytest.mark.slow
def test_a_job_that_raises_does_not_stop_the_others(at: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    from diflow.controller import statuses

    made = statuses.observed

    def raising(found: Any, **options: Any) -> Json:
        if found.replicas == 7:
            raise ZeroDivisionError("a bug")
        return made(found, **options)

    monkeypatch.setattr(statuses, "observed", raising)
    at.apply("bad", tasks=[{"type": "learner", "replicas": 7}])
    at.apply("good")
    at.until(lambda: at.phase("good") == "Succeeded", "the other one runs")
    assert at.process is not None
    assert "a bug" in at.process.controller.reconciler.refused["default", "bad"]
