"""`fair+goodput`: fair shares decide what each queue may hold, goodput how to use it best inside that.

One code path: the quota of every queue is computed by the fair policy's water-filling, from the largest that its jobs
could use, and handed to the goodput policy as the room of the queue's group. What one queue leaves, others may use.
"""

from __future__ import annotations

import numpy as np

from diflow.allocator.arrays import BoolArray, IntArray
from diflow.allocator.fairness.shares import deserved_by, total_room
from diflow.allocator.plan import Plan
from diflow.allocator.policies.goodput import GoodputPolicy
from diflow.allocator.settings import PolicySettings
from diflow.allocator.snapshot import Snapshot
from diflow.allocator.waiting import Feasibility


class TogetherPolicy:
    """Fair between queues, goodput-optimal inside each."""

    name = "fair+goodput"

    def __init__(self, settings: PolicySettings | None = None) -> None:
        self._settings = settings or PolicySettings()
        self._inner = GoodputPolicy(self._settings, name=self.name)

    def allocate(self, job: int, snapshot: Snapshot) -> Plan:
        only = np.zeros(snapshot.jobs, dtype=np.bool_)
        only[job] = True
        return self._inner.plan(snapshot, considered=only, quota=quotas)

    def optimize(self, snapshot: Snapshot) -> Plan:
        return self._inner.plan(snapshot, quota=quotas)

    def measure(self, snapshot: Snapshot, plan: Plan) -> float:
        """The goodput policy's value of what is held within the queues' quotas."""
        return self._inner.measure(snapshot, plan)


def quotas(snapshot: Snapshot) -> IntArray:
    """Q×R whole amounts that each queue's jobs may hold.

    Deserved shares are rounded down to whole replicas of the queue's smallest request and the rest is handed out in the
    order of what was cut off, so that no replica's worth of room belongs to nobody.
    """
    highest = np.minimum(snapshot.role_max, 2**40)
    share = deserved_by(snapshot, _possible(snapshot), wanted=highest)
    whole = np.floor(share + 1e-6).astype(np.int64)
    total = total_room(snapshot)
    tops = snapshot.queue_parent < 0
    for r in range(len(snapshot.resources)):
        left = int(min(total[r], np.floor(share[tops, r].sum() + 1e-6)) - whole[tops, r].sum())
        cut = share[:, r] - whole[:, r]
        for q in np.argsort(-cut, kind="stable")[: max(0, left)].tolist():
            if cut[q] > 1e-6 and tops[q]:
                whole[q, r] += 1
    # What a queue must be left with: jobs that cannot be moved.
    return whole


def _possible(snapshot: Snapshot) -> BoolArray:
    feasible = Feasibility(snapshot)
    out = snapshot.jobs_of(snapshot.held_role)
    for j in np.flatnonzero(~out & (snapshot.job_queue >= 0)).tolist():
        out[j] = feasible.reason(j) is None
    return out
