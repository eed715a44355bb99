"""What careless and hostile users do to a few names, at random, while the controller is killed now and then.

Whatever they do: what they delete leaves nothing, each object has at most the Workflow of its own, and the controller
comes to rest and reports no fault of its own.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any, Final

import pytest

from diflow.common import keys
from diflow.common.errors import DiflowError
from diflow.controller.reconcile import Reconciler
from diflow.jobs.dijobs import DIJOB
from diflow.kube.kinds import POD, WORKFLOW
from diflow.record.dijob import owner_of
from tests.builders import template
from tests.controller.lab import Lab, lab

Json = dict[str, Any]
NAMES: Final = ("a", "b", "a-b")
SCENES: Final = 40
GARBAGE: Final[tuple[Any, ...]] = (
    None,
    7,
    "",
    "x" * 300,
    [],
    {},
    -1,
    2**40,
    True,
    "{{workflow.name}}",
    {"a": {"b": []}},
)
_Play = Callable[[Lab, random.Random, str], None]


def two_tasks(at: Lab, dice: random.Random, name: str) -> None:
    tasks = [{"type": "learner"}, {"type": "collector", "replicas": dice.randint(1, 4)}]
    at.apply(name, scheduling=dice.choice(["gang", "none"]), preemptible=dice.random() < 0.3, tasks=tasks)


def one_template(at: Lab, dice: random.Random, name: str) -> None:
    at.apply_one(name, template=template("sleep"), minReplicas=dice.randint(0, 3), maxReplicas=dice.randint(1, 5))


def nonsense(at: Lab, dice: random.Random, name: str) -> None:
    """A spec that no API server with the CRD takes, or only one with an older CRD."""
    field = dice.choice(["tasks", "template", "priority", "volumes", "minReplicas", "coordinator", "engineFields"])
    at.apply_one(name, **{"template": template(), field: dice.choice(GARBAGE)})


def deleted(at: Lab, _: random.Random, name: str) -> None:
    if name in at.dijobs():
        at.api.remove(DIJOB, name)


def workflow_deleted(at: Lab, _: random.Random, name: str) -> None:
    if name in at.workflows():
        at.api.remove(WORKFLOW, name)


def workflow_of_others(at: Lab, _: random.Random, name: str) -> None:
    if name not in at.workflows():
        at.api.add(WORKFLOW, {"metadata": {"name": name, "uid": f"other-{name}"}, "spec": {"suspend": True}})


def labels_removed(at: Lab, _: random.Random, name: str) -> None:
    edit(at, WORKFLOW, name, labels={})


def owner_removed(at: Lab, _: random.Random, name: str) -> None:
    edit(at, WORKFLOW, name, ownerReferences=[])


def carried_out_edited(at: Lab, dice: random.Random, name: str) -> None:
    edit(at, WORKFLOW, name, annotations={keys.CARRIED_OUT: json.dumps(dice.choice(GARBAGE))})


def parameter_edited(at: Lab, dice: random.Random, name: str) -> None:
    workflow = at.workflows().get(name)
    if workflow is None or not owner_of(workflow)[1]:
        return
    given = [dict(one) for one in workflow["spec"]["arguments"]["parameters"]]
    dice.choice(given)["value"] = json.dumps(dice.choice(GARBAGE))
    at.api.add(WORKFLOW, {**workflow, "spec": {**workflow["spec"], "arguments": {"parameters": given}}})


def status_written(at: Lab, dice: random.Random, name: str) -> None:
    if name in at.dijobs():
        field = dice.choice(
            ["replicas", "reportedReplicas", "scaleRequests", "phase", "conditions", "message", "result"]
        )
        at.write_status(name, **{field: dice.choice(GARBAGE)})


def waits(at: Lab, dice: random.Random, name: str) -> None:
    edit(at, DIJOB, name, annotations={keys.WAITED_BY: dice.choice(["nobody", "../x", "A" * 300, ""])})


def pod_deleted(at: Lab, dice: random.Random, _: str) -> None:
    if at.pods():
        at.api.remove(POD, dice.choice(sorted(at.pods())))


def killed(at: Lab, _: random.Random, __: str) -> None:
    at.end()
    at.begin()


PLAYS: Final[tuple[_Play, ...]] = (
    two_tasks, two_tasks, two_tasks, one_template, one_template, nonsense, deleted, deleted, workflow_deleted,
    workflow_of_others, labels_removed, owner_removed, carried_out_edited, parameter_edited, status_written, waits,
    pod_deleted, killed,
)  # fmt: skip


def edit(at: Lab, kind: Any, name: str, **metadata: Any) -> None:
    with at.api.changed:
        obj = at.api.objects.get(kind.path("default"), {}).get(name)
    if obj is not None:
        if "annotations" in metadata:
            metadata["annotations"] = {**(obj["metadata"].get("annotations") or {}), **metadata["annotations"]}
        at.api.add(kind, {**obj, "metadata": {**obj["metadata"], **metadata}})


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_whatever_users_do_nothing_of_it_is_lost_or_left(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    faults: list[Exception] = []
    dice = random.Random(seed)
    with lab(runs=lambda _: (dice.choice([3.0, 20.0]), dice.choice([0, 0, 0, 1]))) as at:
        back_off = Reconciler._back_off

        def noted(self: Reconciler, key: Any, error: Exception) -> float:
            if not isinstance(error, DiflowError):
                faults.append(error)
            return back_off(self, key, error)

        monkeypatch.setattr(Reconciler, "_back_off", noted)
        for _ in range(SCENES):
            dice.choice(PLAYS)(at, dice, dice.choice(NAMES))
            for _ in range(dice.choice([0, 0, 1, 3])):
                at.step()
            assert faults == []
            owners = [owner_of(workflow)[1] for workflow in at.workflows().values()]
            assert len({one for one in owners if one}) == sum(bool(one) for one in owners), "one Workflow for each"
        for name in list(at.dijobs()):
            at.api.remove(DIJOB, name)
        at.rest()
        others = {name for name, obj in at.workflows().items() if not owner_of(obj)[1]}
        assert set(at.workflows()) == others, "what is left was never a job's own, or was taken from it"
        for name in others:
            at.api.remove(WORKFLOW, name)
        at.rest()
        assert at.pods() == {}
        at.apply("after")
        at.until(lambda: at.phase("after") in ("Succeeded", "Failed"), "the next job is as any other", seconds=120)
