"""What a text names to its reader."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from diflow.allocator.model.plan import Action, Plan, keep_plan
from diflow.allocator.model.reasons import DoesNotFit, PreemptedForPriority, Reason, Reserved, TooBig
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.model.views import JobView, NodeView, RoleView, build
from diflow.allocator.reasons.readers import ALL, Reader, owner
from diflow.allocator.reasons.reason_texts import Explainer
from diflow.common import keys


@dataclass(frozen=True, slots=True)
class Foreign(Reason):
    """A reason of another package, which names a job as it likes."""

    job: str

    def text(self) -> str:
        return f"is behind {self.job}, as {self.job} said (nvidia.com/gpu, 1/2)"


_ROLES = (RoleView("worker", {"cpu": 1500}, 4),)


def _snapshot() -> Snapshot:
    nodes = [NodeView(name, {"cpu": 2000}) for name in ("node-alpha", "node-beta", "node-gamma")]
    high = keys.WORKFLOW_PRIORITIES["high"]
    return build(nodes, [JobView("default/mine", _ROLES), JobView("secret/merger", _ROLES, priority=high)])


def _plan(snapshot: Snapshot, reason: Reason) -> Plan:
    kept = keep_plan(snapshot, "test")
    return replace(kept, action=np.full_like(kept.action, int(Action.WAIT)), reasons=(reason,) * snapshot.jobs)


@pytest.mark.parametrize(
    "reason",
    [
        PreemptedForPriority(0, 1, "secret/merger"),
        Reserved(1, 1, 10.0, "secret/merger"),
        Foreign("secret/merger"),
        Foreign("'secret/merger'"),
    ],
)
def test_a_job_of_another_namespace_is_described(reason: Reason) -> None:
    snapshot = _snapshot()
    explainer = Explainer(snapshot, _plan(snapshot, reason))
    row = snapshot.job_names.index("default/mine")
    mine = explainer.reason(row, reader=owner("default"))
    assert "merger" not in mine
    assert "a job of another namespace (priority high, queue " in mine
    assert "merger" not in "\n".join(explainer.details(row, reader=owner("default")))
    assert "secret/merger" in explainer.reason(row, reader=ALL)
    assert "secret/merger" in explainer.reason(row, reader=Reader(frozenset({"default", "secret"}), nodes=False))
    if isinstance(reason, Foreign):
        assert "(nvidia.com/gpu, 1/2)" in mine


def test_nodes_are_named_to_those_who_may_list_them() -> None:
    snapshot = _snapshot()
    for reason in (DoesNotFit(4, 3), TooBig(4, 3)):
        found = Explainer(snapshot, _plan(snapshot, reason))
        for reader, is_named in ((owner("default"), False), (ALL, True)):
            assert ("node-" in "\n".join(found.details(0, reader=reader))) == is_named
    small = build([NodeView(name, {"cpu": 500}) for name in ("node-a", "node-b")], [JobView("default/mine", _ROLES)])
    found = Explainer(small, _plan(small, DoesNotFit(4, 0)))
    assert "one node lacks 1 cpu, another lacks 1 cpu" in found.reason(0, reader=owner("default"))
    assert "node-a lacks 1 cpu, node-b lacks 1 cpu" in found.reason(0)
