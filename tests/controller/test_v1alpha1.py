"""Jobs of v1alpha1: their Workflow, the pods that the controller takes away, and their status."""

from __future__ import annotations

import json
from typing import Any

import pytest

from diflow import keys
from diflow.controller.modules import todo
from diflow.jobs import v1alpha1
from diflow.kube.kinds import WORKFLOW
from diflow.state import modules
from diflow.state.modules import Group
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
        at.api.add(v1alpha1.AGGREGATOR_CONFIG, config, namespace="di-system")
        started(at)
        found = [one for one in at.workflows()["old"]["spec"]["templates"] if one["name"] == modules.AGGREGATOR]
        assert found[0]["container"]["command"] == ["sh", "-c", "aggregate"]
        ports = json.loads(at.workflows()["old"]["metadata"]["annotations"][keys.MODULES])
        assert ports == dict(modules.PORTS)


def test_an_edited_parameter_makes_no_writes() -> None:
    with lab() as at:
        started(at)
        workflow = at.workflows()["old"]
        workflow["spec"]["arguments"]["parameters"][-1]["value"] = "{"
        found = modules.read(workflow)
        assert found is not None
        assert found.problem
        assert todo(workflow, found, list(at.pods().values()), policy="Running").patch is None
