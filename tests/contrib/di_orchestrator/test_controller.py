"""Jobs of v1alpha1: their Workflow, the pods that the controller takes away, and their status."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from diflow.common import keys
from diflow.common.errors import UnavailableError
from diflow.contrib.di_orchestrator import manifest, modules
from diflow.contrib.di_orchestrator.modules import Group
from diflow.contrib.di_orchestrator.unwanted import failed, todo
from diflow.jobs.dijobs import DIJOB
from diflow.kube.kinds import POD, WORKFLOW
from tests.builders import template
from tests.controller.lab import Lab, lab

Json = dict[str, Any]
TWO = Group(("abcde", "fghij"))


def started(at: Lab, name: str = "old", **spec: Any) -> None:
    """A job whose coordinator runs, with two collectors."""
    at.apply_old(name, **spec)
    at.until(lambda: name in at.workflows(), "it has a Workflow")
    at.ask(name, {"collector": TWO})
    at.runs(name, (1, "coordinator", 0, 0), (2, "collector", 0, 0), (2, "collector", 1, 0))
    at.until(lambda: at.phase(name) == "Running", "it runs")


def known(at: Lab, name: str = "old") -> modules.Modules:
    found = modules.read(at.workflows()[name])
    assert found is not None
    return found


def test_the_workflow_is_the_objects_own_and_its_phases_follow_the_coordinator() -> None:
    with lab() as at:
        started(at)
        made = at.workflows()["old"]
        assert made["metadata"]["ownerReferences"][0]["name"] == "old"
        status = at.status("old")
        assert [one["type"] for one in status["conditions"]] == ["Created", "Running"]
        assert [one["reason"] for one in status["conditions"]] == ["JobCreated", "JobRunning"]
        assert (status["replicas"], status["readyReplicas"]) == (3, 3)
        assert status["taskStatus"]["collector"] == {"Running": 2}
        at.runs("old", (2, "collector", 0, 0), phase="Failed")
        at.rest()
        assert at.phase("old") == "Running", "a collector does not concern the coordinator"


def test_the_pods_of_replicas_that_are_not_wanted_any_more_are_deleted() -> None:
    with lab() as at:
        started(at)
        at.ask("old", release=(known(at).replicas[0],))
        at.rest()
        assert sorted(at.pods()) == ["old-1-coordinator-0-0", "old-2-collector-1-0"]


def test_a_coordinator_has_time_to_disconnect_from_a_replica_that_is_removed() -> None:
    with lab() as at:
        started(at)
        at.ask("old", release=(known(at).replicas[0],))
        at.step()
        assert len(at.pods()) == 3
        at.step(4.0)
        assert len(at.pods()) == 2


def test_of_a_job_with_very_many_pods_some_are_taken_away_in_each_look() -> None:
    with lab() as at:
        started(at)
        many = tuple(f"{i:05d}" for i in range(100))
        at.ask("old", {"collector": Group(many)})
        at.runs("old", *((3, "collector", i, 0) for i in range(100)))
        at.rest()
        at.runs("old", (1, "coordinator", 0, 0), phase="Succeeded")
        at.pass_time()
        assert at.process is not None
        at.process.catch_up()
        looks = []
        while at.process.look():
            at.process.catch_up()
            looks.append(len(at.pods()))
        assert looks[-1] == 103 - 32
        at.rest()
        assert sorted(at.pods()) == ["old-1-coordinator-0-0"]


def test_pods_that_have_waited_for_their_coordinator_do_not_wait_again() -> None:
    with lab() as at:
        started(at)
        many = tuple(f"{i:05d}" for i in range(40))
        at.ask("old", {"collector": Group(many)})
        at.runs("old", *((3, "collector", i, 0) for i in range(40)))
        at.rest()
        at.ask("old", release=known(at).of("collector"))
        at.step()
        assert len(at.pods()) == 43
        at.step(4.0)
        assert len(at.pods()) == 1


def test_pods_that_go_on_after_the_end_of_the_job_are_stopped_when_their_grace_period_is_over() -> None:
    """Argo has sent SIGTERM, which they ignore, and sees them no more."""
    with lab() as at:
        started(at)
        at.runs("old", (2, "collector", 1, 0), phase="Succeeded")
        at.ends("old", "Failed")
        for _ in range(34):
            at.step()
        assert [deadline(at, name) for name in at.pods()] == [None, None, None]
        at.step(4.0)
        ends = {name: deadline(at, name) for name in at.pods()}
        assert ends == {"old-1-coordinator-0-0": 1, "old-2-collector-0-0": 1, "old-2-collector-1-0": None}
        at.rest(seconds=30)
        assert len(at.api.seen("PATCH", "/pods/")) == 2, "once each"


def deadline(at: Lab, name: str) -> Any:
    return at.pods()[name]["spec"].get("activeDeadlineSeconds")


def test_of_very_many_pods_that_go_on_some_are_stopped_in_each_look() -> None:
    with lab() as at:
        started(at)
        at.ask("old", {"collector": Group(tuple(f"{i:05d}" for i in range(40)))})
        at.runs("old", *((3, "collector", i, 0) for i in range(40)))
        at.ends("old", "Failed")
        for _ in range(34):
            at.step()
        at.pass_time(2.0)
        assert at.process is not None
        at.process.lead()
        at.process.catch_up()
        assert at.process.look()
        assert len(at.api.seen("PATCH", "/pods/")) == 32
        at.rest()
        assert len(at.api.seen("PATCH", "/pods/")) == 43


@pytest.mark.parametrize("end", ["Failed", "gone"])
def test_a_job_is_stopped_with_the_step_that_waits_for_it(end: str) -> None:
    with lab() as at:
        labels, created = {keys.STEP: "true"}, at.cluster._time()
        metadata = {"name": "outer-train-1", "labels": labels, "creationTimestamp": created}
        pod = {"metadata": metadata, "spec": {"nodeName": "a", "containers": []}, "status": {"phase": "Running"}}
        at.api.add(POD, pod)
        obj = at.apply_old()
        at.api.add(DIJOB, {**obj, "metadata": {**obj["metadata"], "annotations": {keys.WAITED_BY: "outer-train-1"}}})
        at.until(lambda: "old" in at.workflows(), "it has a Workflow")
        at.runs("old", (1, "coordinator", 0, 0))
        at.until(lambda: at.phase("old") == "Running", "it runs")
        assert "shutdown" not in at.workflows()["old"]["spec"]
        if end == "gone":
            at.api.remove(POD, "outer-train-1")
        else:
            at.api.add(POD, {**pod, "status": {"phase": end}})
        at.until(lambda: at.workflows()["old"]["spec"].get("shutdown") == "Stop", "it is stopped")
        assert [reason for reason, _ in at.events("old")] == ["Stopped"]


def test_a_pod_that_has_not_started_ends_by_its_status_as_argo_would_make_it_again() -> None:
    with lab() as at:
        started(at)
        at.ask("old", {"learner": Group(("zzzzz",))})
        at.runs("old", (3, "learner", 0, 0), phase="Pending")
        at.rest()
        at.ask("old", release=known(at).of("learner"))
        at.rest()
        status = at.pods()["old-3-learner-0-0"]["status"]
        assert (status["phase"], status["reason"]) == ("Failed", "Released")
        at.runs("old", (3, "learner", 0, 0), phase="Failed")
        at.rest()
        assert "old-3-learner-0-0" not in at.pods(), "Argo has seen its end"


def test_a_pod_that_argo_has_not_seen_run_is_not_deleted_yet() -> None:
    with lab() as at:
        started(at)
        workflow = at.workflows()["old"]
        for node in workflow["status"]["nodes"].values():
            node["phase"] = "Pending" if ".collector" in node["name"] else "Running"
        at.api.add(WORKFLOW, workflow)
        at.ask("old", release=known(at).of("collector"))
        at.rest()
        assert len(at.pods()) == 3
        at.runs("old", (2, "collector", 0, 0), (2, "collector", 1, 0))
        at.rest()
        assert len(at.pods()) == 1


def test_of_a_replica_that_fails_again_and_again_the_last_pods_are_kept() -> None:
    with lab() as at:
        started(at)
        for attempt in range(4):
            at.runs("old", (2, "collector", 0, attempt), phase="Failed")
        at.runs("old", (2, "collector", 0, 4))
        at.rest()
        assert sorted(at.pods()) == [
            "old-1-coordinator-0-0", "old-2-collector-0-3", "old-2-collector-0-4", "old-2-collector-1-0",
        ]  # fmt: skip


@pytest.mark.parametrize(("policy", "left"), [("Running", []), ("All", []), ("None", ["old-2-collector-1-0"])])
@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_the_others_end_with_the_coordinator(phase: str, policy: str, left: list[str]) -> None:
    with lab() as at:
        started(at, cleanPodPolicy=policy)
        at.runs("old", (2, "collector", 0, 0), phase="Failed")
        at.runs("old", (1, "coordinator", 0, 0), phase=phase)
        at.rest()
        assert json.loads(at.workflows()["old"]["spec"]["arguments"]["parameters"][4]["value"]) == [
            "2/collector/0", "2/collector/1",
        ]  # fmt: skip
        kept = [] if policy == "All" else ["old-2-collector-0-0"]
        assert sorted(at.pods()) == ["old-1-coordinator-0-0", *kept, *left]
        for name in left:
            assert at.pods()[name]["spec"]["activeDeadlineSeconds"] == 1
        at.ends("old", phase)
        at.rest()
        assert at.phase("old") == phase
        assert at.status("old")["conditions"][-1]["reason"] == f"Job{phase}"


def test_a_request_that_comes_with_the_end_is_released_too() -> None:
    with lab() as at:
        started(at)
        at.runs("old", (1, "coordinator", 0, 0), phase="Succeeded")
        at.rest()
        at.ask("old", {"learner": Group(("zzzzz",))})
        at.runs("old", (3, "learner", 0, 0))
        at.rest()
        assert known(at).of(*modules.ADDED) == ()
        assert "old-3-learner-0-0" not in at.pods()


def test_each_write_is_made_again_after_a_crash() -> None:
    with lab() as at:
        started(at)
        at.end()
        at.runs("old", (1, "coordinator", 0, 0), phase="Succeeded")
        at.begin()
        at.rest()
        assert sorted(at.pods()) == ["old-1-coordinator-0-0"]


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({"coordinator": {}}, "spec.coordinator.template: is missing"),
        ({"learner": {"template": {"spec": {"containers": []}}}}, "spec.learner.template.spec.containers"),
        ({"collector": 7}, "spec.collector.template: is missing"),
    ],
)
def test_an_invalid_job_fails_with_the_reason_and_makes_nothing(spec: Json, text: str) -> None:
    with lab() as at:
        at.apply_old("bad", **spec)
        at.until(lambda: at.phase("bad") == "Failed", "it has failed")
        assert text in at.message("bad")
        assert at.workflows() == {}


def test_aggregators_have_the_template_of_their_object() -> None:
    with lab() as at:
        spec = {"aggregator": {"template": template("aggregate")}}
        config = {"metadata": {"name": "aggregator-config"}, "spec": spec}
        at.api.add(manifest.AGGREGATOR_CONFIG, config, namespace="di-system")
        started(at)
        found = [one for one in at.workflows()["old"]["spec"]["templates"] if one["name"] == modules.AGGREGATOR]
        assert found[0]["container"]["command"] == ["sh", "-c", "aggregate"]
        ports = json.loads(at.workflows()["old"]["metadata"]["annotations"][keys.MODULES])
        assert ports == dict(modules.PORTS)


@pytest.mark.parametrize("given", ["x", 7, [], {"spec": {}}, {"spec": {"containers": [{"name": "a"}] * 300}}])
def test_jobs_wait_while_the_template_of_aggregators_is_invalid(given: Any) -> None:
    with lab() as at:
        config: Json = {"metadata": {"name": "aggregator-config"}, "spec": {"aggregator": {"template": given}}}
        at.api.add(manifest.AGGREGATOR_CONFIG, config, namespace="di-system")
        at.apply_old()
        at.until(lambda: "the AggregatorConfig: spec.aggregator" in at.message("old"), "it says why it waits")
        assert at.phase("old") == "Created"
        config["spec"]["aggregator"]["template"] = template("aggregate")
        at.api.add(manifest.AGGREGATOR_CONFIG, config, namespace="di-system")
        at.until(lambda: "old" in at.workflows(), "it is tried again")


@pytest.mark.parametrize("text", ["", "kind: AggregatorConfigs", "{", "- 1"])
def test_a_file_without_an_aggregator_config_makes_jobs_wait(tmp_path: Path, text: str) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(text)
    for path in (file, tmp_path / "missing"):
        with pytest.raises(UnavailableError, match=path.name):
            manifest.aggregator_in(path)


@pytest.mark.parametrize("text", ["", "{", "{}", "null", "[1]", '["1", null]', "[" * 5000, '"x"'])
@pytest.mark.parametrize("parameter", [keys.PARAM_MODULES, keys.PARAM_ROUNDS, keys.PARAM_RELEASED])
def test_a_parameter_that_its_user_has_edited_is_named_in_the_status_and_ends_nothing(
    parameter: str, text: str
) -> None:
    if (parameter, text) == (keys.PARAM_MODULES, "{}"):
        return  # as it is at first
    with lab() as at:
        started(at)
        at.runs("old", (1, "coordinator", 0, 0), phase="Succeeded")
        before = dict(at.workflows()["old"])
        edit(at, parameter, text)
        at.rest()
        assert at.phase("old") == "Unknown"
        assert f"the parameter {parameter} is not what diflow wrote" in at.message("old")
        assert len(at.pods()) == 3
        assert at.process is not None
        assert at.process.controller.reconciler.refused == {}, "it is no fault of the controller"
        (value,) = (one["value"] for one in _parameters(before) if one["name"] == parameter)
        edit(at, parameter, value)
        at.rest()
        assert sorted(at.pods()) == ["old-1-coordinator-0-0"]


def edit(at: Lab, parameter: str, text: str) -> None:
    """`kubectl edit` of a parameter of the Workflow."""
    workflow = at.workflows()["old"]
    parameters = [{**one, "value": text} if one["name"] == parameter else one for one in _parameters(workflow)]
    at.api.add(WORKFLOW, {**workflow, "spec": {**workflow["spec"], "arguments": {"parameters": parameters}}})


def _parameters(workflow: Json) -> list[Json]:
    found: list[Json] = workflow["spec"]["arguments"]["parameters"]
    return found


def test_an_edited_parameter_makes_no_writes() -> None:
    with lab() as at:
        started(at)
        workflow = at.workflows()["old"]
        workflow["spec"]["arguments"]["parameters"][-1]["value"] = "{"
        found = modules.read(workflow)
        assert found is not None
        assert found.problem
        assert todo(workflow, found, list(at.pods().values()), policy="Running").patch is None


def ended_containers(status: dict[str, Any]) -> dict[str, str | None]:
    """When each container of a patched status ended."""
    return {one["name"]: one["state"]["terminated"].get("finishedAt") for one in status["containerStatuses"]}


def test_a_pod_that_is_ended_ends_with_the_containers_on_which_argo_waits() -> None:
    at = "2026-01-01T00:00:00Z"
    bound = {"spec": {"nodeName": "a"}, "status": {"containerStatuses": [{"name": "main"}, {"name": "wait"}]}}
    status = failed(bound, now=at)["status"]
    assert (status["phase"], "conditions" in status) == ("Failed", False)
    assert ended_containers(status) == {"main": at, "wait": at}
    gated = failed({"spec": {}}, now=at)["status"]
    assert (gated["phase"], gated["conditions"][0]["reason"]) == ("Failed", "Released")
    assert ended_containers(gated) == {"wait": None}, "an earlier pod of its name may not have reported; no back-off"
