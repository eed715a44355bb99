"""The controller is killed at each single write, and the next process reaches the same final state."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from diflow.common import keys
from diflow.contrib.di_orchestrator import modules
from diflow.contrib.di_orchestrator.modules import Group
from diflow.jobs.dijobs import DIJOB
from diflow.kube.kinds import POD, WORKFLOW
from diflow.record.job import record_of
from tests.allocator.crashing import Crash
from tests.allocator.lab import Killed
from tests.builders import template
from tests.controller.lab import Lab, lab

Json = dict[str, Any]


Play = Callable[[Lab], None]
SLEEPS = template("sleep")


def life(at: Lab) -> None:
    at.apply(tasks=[{"type": "learner"}, {"type": "collector", "replicas": 2}])


def invalid(at: Lab) -> None:
    at.apply(tasks=[{"type": "learner"}, {"type": "learner"}])


def waiting(at: Lab) -> None:
    at.apply(scheduling="gang", tasks=[{"type": "learner"}, {"type": "collector", "replicas": 2}])


def more_by_the_spec(at: Lab) -> None:
    at.apply(scheduling="gang", tasks=[{"type": "learner"}, {"type": "collector", "replicas": 5}])


def more_by_the_status(at: Lab) -> None:
    at.write_status(replicas=at.status()["replicas"] + 2)


def both(at: Lab) -> None:
    more_by_the_spec(at)
    more_by_the_status(at)


def dropped(at: Lab) -> None:
    """Another client writes the status without the fields that it does not know."""
    obj = at.dijob()
    at.api.add(DIJOB, {**obj, "status": {"phase": obj["status"]["phase"], "replicas": obj["status"]["replicas"] + 1}})


def workflow_deleted(at: Lab) -> None:
    at.api.remove(WORKFLOW, "job")


def begun(at: Lab) -> None:
    at.apply(tasks=[{"type": "learner", "template": SLEEPS, "replicas": 2}])
    while at.phase() != "Running":
        step_through_crashes(at)


def refused(at: Lab) -> None:
    at.apply(tasks=[{"type": "learner", "template": SLEEPS, "replicas": 4}])


def deleted(at: Lab) -> None:
    at.delete()


def expiring(at: Lab) -> None:
    at.apply(ttlSecondsAfterFinished=60)


def awaited(at: Lab) -> None:
    """A job for which a step waits, whose pod runs."""
    begun(at)
    obj = at.dijob()
    at.api.add(DIJOB, {**obj, "metadata": {**obj["metadata"], "annotations": {keys.WAITED_BY: "step"}}})
    step_pod(at, "Running")


def step_ended(at: Lab) -> None:
    step_pod(at, "Failed")


def step_pod(at: Lab, phase: str) -> None:
    metadata = {"name": "step", "labels": {keys.STEP: "true"}, "creationTimestamp": "2026-11-21T00:00:00Z"}
    at.api.add(POD, {"metadata": metadata, "spec": {"containers": []}, "status": {"phase": phase}})


def two_minutes(at: Lab) -> None:
    for _ in range(30):
        step_through_crashes(at, 5.0)


def with_a_coordinator(at: Lab) -> None:
    """A job of v1alpha1 with two collectors and a learner."""
    at.apply_old()
    while "old" not in at.workflows():
        step_through_crashes(at)
    at.ask("old", {"collector": Group(("abcde", "fghij"))}, {"learner": Group(("klmno",))})
    at.runs("old", (1, "coordinator", 0, 0), (2, "collector", 0, 0), (2, "collector", 1, 0), (3, "learner", 0, 0))


def fewer_collectors(at: Lab) -> None:
    known = modules.read(at.workflows()["old"])
    assert known is not None
    at.ask("old", release=(known.of("collector")[0],))


def coordinator_ended(at: Lab) -> None:
    at.runs("old", (1, "coordinator", 0, 0), phase="Succeeded")


def argo_ended(at: Lab) -> None:
    at.ends("old", "Succeeded")


def awaited_coordinator(at: Lab) -> None:
    with_a_coordinator(at)
    obj = at.dijob("old")
    at.api.add(DIJOB, {**obj, "metadata": {**obj["metadata"], "annotations": {keys.WAITED_BY: "step"}}})
    step_pod(at, "Running")


PLAYS: dict[str, tuple[list[Play], int]] = {
    "the life of a job": ([life], 5),
    "an invalid job": ([invalid], 1),
    "requests by the spec": ([waiting, more_by_the_spec], 5),
    "requests by the status": ([waiting, more_by_the_status], 5),
    "requests by both at once": ([waiting, both], 5),
    "a status without the record": ([waiting, dropped], 5),
    "a Workflow that is deleted before the start": ([waiting, workflow_deleted], 5),
    "a Workflow that is deleted after the start": ([begun, workflow_deleted], 5),
    "a refused request": ([begun, refused], 5),
    "a deleted job": ([begun, deleted], 4),
    "a job whose step ends": ([awaited, step_ended], 5),
    "an expired job": ([expiring, two_minutes], 5),
    "the life of a coordinator": ([with_a_coordinator, fewer_collectors, coordinator_ended, argo_ended], 8),
    "a coordinator whose step ends": ([awaited_coordinator, step_ended], 4),
}
"""The scenes of each play, and the least number of its writes."""


def step_through_crashes(at: Lab, seconds: float = 1.0) -> None:
    """As `Lab.step`; a process that is killed is replaced by a new one."""
    try:
        at.step(seconds)
    except Killed:
        at.end()
        at.begin()


def rest_through_crashes(at: Lab) -> None:
    quiet, seen = 0, at.happenings()
    for _ in range(200):
        step_through_crashes(at)
        now = at.happenings()
        quiet, seen = (quiet + 1, seen) if now == seen else (0, now)
        if quiet >= 6:
            return
    raise AssertionError("no rest")


def end_of(scenes: list[Play], crash: Crash) -> Json:
    """Run the scenario with one crash, and return the final state."""
    with lab(runs=lambda _: (40.0, 0)) as at:
        assert at.process is not None
        at.process.line.before, at.process.line.after = crash.before, crash.after
        for scene in scenes:
            scene(at)
            rest_through_crashes(at)
        made = [r for r in at.api.seen("POST", "workflows") if not r.query.get("dryRun")]
        return {
            "jobs": {name: _timeless(obj.get("status") or {}) for name, obj in at.dijobs().items()},
            "workflows": {name: _workflow(obj) for name, obj in at.workflows().items()},
            "pods": len(at.cluster.pods()),
            "made twice": len(made) > 2,
        }


def _timeless(status: Json) -> Json:
    out = {k: v for k, v in status.items() if k not in ("startTime", "completionTimestamp", "expiresAt", "conditions")}
    out["conditions"] = [(c["type"], c["status"], c["reason"]) for c in status.get("conditions", [])]
    return out


def _workflow(obj: Json) -> Json:
    state = record_of(obj)
    return {
        "wanted": dict(state.wishes.desired),
        "phase": state.argo.phase,
        "modules": modules.read(obj),
        "carried out": json.loads(obj["metadata"]["annotations"].get(keys.CARRIED_OUT, "null")),
        "owners": [owner["name"] for owner in obj["metadata"]["ownerReferences"]],
    }


@pytest.mark.slow
@pytest.mark.parametrize("play", PLAYS)
def test_killed_at_any_write_it_ends_where_it_would_have_ended(play: str) -> None:
    scenes, least = PLAYS[play]
    undisturbed = Crash(at=0, is_sent=False)
    wanted = end_of(scenes, undisturbed)
    assert undisturbed.seen >= least
    for is_sent in (False, True):
        for k in range(1, undisturbed.seen + 1):
            crash = Crash(at=k, is_sent=is_sent)
            # Events are not compared: a process that is killed between a request and its Event leaves none.
            assert end_of(scenes, crash) == wanted, f"killed {'after' if is_sent else 'before'} write {k}"
            assert crash.seen >= k
