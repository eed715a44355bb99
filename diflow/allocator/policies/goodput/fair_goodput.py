"""`fair+goodput`: fair shares decide what each queue holds, goodput how its jobs use it.

With jobs in several queues a cycle has three parts, each on the predicted state after the one before:

1. A cycle of `fair` for minimum gangs: gangs start within their queues' shares and guarantees, then those that fit
   beside them; capacity is reclaimed from queues above their share. Whole gangs do not grow.
2. If a queue holds less than it deserves, a goodput plan with the deserved shares as quotas, and if that is not enough
   a whole cycle of `fair`, in which jobs grow and shrink by single replicas. What meets most of the shares is used,
   whatever its value.
3. A goodput plan inside the queues: each may use what it holds and what is idle.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from diflow.allocator.model.arrays import BoolArray, FloatArray, IntArray, frozen
from diflow.allocator.model.ledger import Ledger
from diflow.allocator.model.plan import ADMIT, PREEMPT, RESIZE, WAIT, Plan, carry_out, keep_plan
from diflow.allocator.model.reasons import Loss
from diflow.allocator.model.snapshot import UNLIMITED, Snapshot
from diflow.allocator.policies.fair.cycle import BETWEEN_QUEUES, GENTLE, Cycle
from diflow.allocator.policies.fair.losses import Given, with_final_reasons
from diflow.allocator.policies.fair.prepared import prepared
from diflow.allocator.policies.fair.shares import ROUNDING, deserved_by, usable_capacity, value_of
from diflow.allocator.policies.fair.state import State
from diflow.allocator.policies.fixed_point import followed, joined, leaves_home, no_worse_than_keeping, of_whole
from diflow.allocator.policies.goodput.gangs import has_pools
from diflow.allocator.policies.goodput.policy import GoodputPolicy
from diflow.allocator.policies.limits import as_within_maximums, within_maximums
from diflow.allocator.policies.settings import PolicySettings
from diflow.allocator.policies.waiting import Feasibility, empty_slots

PARTS = 1e6
"""Resolution of met shares, as parts of the cluster; below it goodput decides."""


class FairGoodputPolicy:
    """Fair shares between queues, goodput inside each."""

    name = "fair+goodput"

    def __init__(self, settings: PolicySettings | None = None) -> None:
        self._settings = settings or PolicySettings()
        self._inner = GoodputPolicy(self._settings, name=self.name)

    def allocate(self, job: int, snapshot: Snapshot) -> Plan:
        """Start the new job in free capacity; no other job changes."""
        return self._inner.allocate(job, prepared(snapshot, by_namespace=True))

    def optimize(self, snapshot: Snapshot) -> Plan:
        snapshot.work.begin()
        return within_maximums(snapshot, self.name, self._within, keeps_pool=True)

    def _within(self, snapshot: Snapshot, restarts: BoolArray | None) -> Plan:
        """The plan for a snapshot whose jobs have given up what is above their maximum. `restarts` (J): the jobs that
        restart for this."""
        used = prepared(snapshot, by_namespace=True)
        if not _several_queues(used):
            quotas = within_caps if snapshot.facts.capped else None
            return self._inner.plan(used if used.keeps_guarantees else snapshot, quotas=quotas, moved=restarts)
        given: list[Given] = []
        step = partial(self._step, given)
        ways = (
            lambda: followed(used, step(used), step),
            lambda: self._inner.plan(used, quotas=idle_to_all, moved=restarts),
        )
        plan = no_worse_than_keeping(used, ways, lambda s, found: self._measure(s, found, restarts), self.name)
        plan = of_whole(used, with_final_reasons(used, plan, given, losers_only=True))
        return self._explained(used, plan)

    def measure(self, snapshot: Snapshot, plan: Plan) -> float:
        """Lexicographic: met guarantees, then met shares, then goodput's value; only the latter with one queue."""
        return self._measure(*as_within_maximums(snapshot, plan, keeps_pool=True))

    def _measure(self, snapshot: Snapshot, plan: Plan, restarts: BoolArray | None) -> float:
        """As `measure`, of a snapshot whose jobs have given up what is above their maximum. `restarts`: as in
        `_within`."""
        used = prepared(snapshot, by_namespace=True)
        value = self._inner.value(used, plan, moved=restarts)
        if not _several_queues(used):
            return value
        sure, met = Met(used).of_plan(plan)
        return round(sure * PARTS) * PARTS * 10 + round(met * PARTS) + value / (1 + value)

    def _explained(self, snapshot: Snapshot, plan: Plan) -> Plan:
        """The plan with the reasons of waiting jobs as they are after it."""
        # Also of stopped jobs whose capacity no other job uses in the end.
        lost = np.array([isinstance(reason, Loss) for reason in plan.reasons], dtype=np.bool_)
        waits = (plan.action == WAIT) | ((plan.action == PREEMPT) & ~lost)
        if not waits.any():
            return plan
        state = self._state(carry_out(snapshot, plan))
        _confine(state.ledger, waits)
        explained, reasons = Cycle(state, inside_queues=False).reasons(), list(plan.reasons)
        for job in np.flatnonzero(waits).tolist():
            reasons[job] = explained[job]
        return replace(plan, reasons=tuple(reasons))

    def _cycle(self, snapshot: Snapshot) -> Cycle:
        return Cycle(self._state(snapshot), inside_queues=False)

    def _state(self, snapshot: Snapshot) -> State:
        return State(snapshot, self._settings, wanted=_largest(snapshot), grows=False)

    def _step(self, given: list[Given], snapshot: Snapshot) -> Plan:
        """One cycle: between queues, then inside them. Losses between queues are added to `given`."""
        met = Met(snapshot)
        plan = self._between_queues(snapshot, met, given)
        if met.lacks(plan):
            plan = self._with_shares(snapshot, met, plan, given)
        inside = self._inner.plan(carry_out(snapshot, plan), quotas=idle_to_all, moved=_moved(plan))
        whole = self._joined(snapshot, plan, inside)
        return plan if met.of_plan(whole) < met.of_plan(plan) else whole

    def _with_shares(self, snapshot: Snapshot, met: Met, plan: Plan, given: list[Given]) -> Plan:
        """The plan with what meets most of the shares after it: nothing, a goodput plan with the shares as quotas, or a
        cycle of `fair`. Goodput's sizes are those that are worth most, with which a queue may miss its share by far."""
        after = carry_out(snapshot, plan)
        best = self._joined(snapshot, plan, self._inner.within(after, strict(after), moved=_moved(plan)))
        best = max(plan, best, key=met.of_plan)
        if not met.lacks(best):
            return best
        cycle = Cycle(State(after, self._settings, wanted=_largest(after)))
        fair = self._joined(snapshot, plan, cycle.decided_by(BETWEEN_QUEUES, self.name))
        if met.of_plan(fair) <= met.of_plan(best):
            return best
        given += cycle.transactions.given
        return fair

    def _between_queues(self, snapshot: Snapshot, met: Met, given: list[Given]) -> Plan:
        """The fair cycle between queues; without reclaiming if less of the shares would be met."""
        keep = keep_plan(snapshot, self.name)
        for steps in (BETWEEN_QUEUES, GENTLE):
            cycle = self._cycle(snapshot)
            plan = cycle.decided_by(steps, self.name)
            if met.of_plan(plan) >= met.of_plan(keep):
                given += cycle.transactions.given
                return plan
        return keep

    def _joined(self, snapshot: Snapshot, plan: Plan, again: Plan) -> Plan:
        return plan if leaves_home(snapshot, again) else joined(snapshot, plan, again)


class GoodputByNamespaces(FairGoodputPolicy):
    """`goodput`, with an equal share for each namespace where jobs of several compete.

    What a job reports decides what it is worth, and nothing proves it. So it moves capacity only between the jobs of
    its own namespace, and what others leave idle. With one namespace, or caps, this is goodput alone.
    """

    name = "goodput"

    def allocate(self, job: int, snapshot: Snapshot) -> Plan:
        return self._inner.allocate(job, snapshot)

    def optimize(self, snapshot: Snapshot) -> Plan:
        shared = _in_one_queue(snapshot)
        return self._inner.optimize(snapshot) if shared is None else super().optimize(shared)

    def measure(self, snapshot: Snapshot, plan: Plan) -> float:
        shared = _in_one_queue(snapshot)
        return self._inner.measure(snapshot, plan) if shared is None else super().measure(shared, plan)


def _in_one_queue(snapshot: Snapshot) -> Snapshot | None:
    """The snapshot with all jobs in one queue; None if there are caps, or jobs of one namespace alone."""
    s = snapshot
    if s.facts.capped or len({name.rpartition("/")[0] for name in s.job_names}) < 2:
        return None
    one, resources = np.zeros(1, dtype=np.int64), len(s.resources)
    sources = (s.job_queue, s.queue_names)

    def fields() -> dict[str, Any]:
        return {
            "queue_names": ("all",),
            "queue_parent": frozen(one - 1),
            "queue_weight": frozen(np.ones(1)),
            "queue_guarantee": frozen(np.zeros((1, resources), dtype=np.int64)),
            "queue_cap": frozen(np.full((1, resources), UNLIMITED, dtype=np.int64)),
            "queue_lends": frozen(np.zeros(0, dtype=np.bool_)),
            "job_queue": frozen(np.minimum(s.job_queue, 0)),
            "memo": s.apart(),
        }

    return replace(s, **s.memo.get("in one queue", sources, fields))


def _confine(ledger: Ledger, jobs: BoolArray) -> None:
    """Confine these jobs (J), which hold nothing, to the pools of nodes in which the largest parts of their gangs fit
    now: goodput starts a job with one role in one pool. Not those that no pool could hold."""
    s = ledger.snapshot
    if not has_pools(s):
        return
    known: dict[tuple[int, int], int] = {}
    for job in np.flatnonzero(jobs).tolist():
        role, *others = ledger.roles_of(job)
        if others:
            continue
        shape, need = ledger.shape(role), int(s.role_min[role])
        if (shape, need) not in known:
            empty, now = (np.bincount(s.node_pool, there) for there in (empty_slots(s, role), ledger.slots(role)))
            best = int(np.argmax(np.where(empty >= need, now, -1.0)))
            known[shape, need] = best if empty[best] >= need else -1
        if known[shape, need] >= 0:
            ledger.pool_of[role] = known[shape, need]


class Met:
    """How much of guarantees and deserved shares a plan of the snapshot meets, as fractions of the cluster.

    Only sums over queues count: which jobs of a queue run is decided by goodput.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        s = self._snapshot = snapshot
        self._total = np.maximum(usable_capacity(s), 1).astype(np.float64)
        share = deserved_by(s, Feasibility(s).possible(), wanted=_largest(s))
        own = np.zeros(s.queues, dtype=np.bool_)
        own[s.job_queue[s.job_queue >= 0]] = True
        self._share: FloatArray = np.where((share > ROUNDING) & own[:, None], share, np.inf)
        self._weight: FloatArray = (np.where(np.isfinite(self._share), share, 0.0) / self._total).max(axis=1, initial=0)

    def of_plan(self, plan: Plan) -> tuple[float, float]:
        """(met guarantees, met shares), rounded to 1/PARTS."""
        s, held = self._snapshot, self.held(plan)
        met = value_of(np.minimum(self._ratio(held), 1.0)) * self._weight
        sure = 0.0
        if s.queue_guarantee.any():
            below = np.zeros_like(held)
            for q, chain in enumerate(s.facts.chains):
                below[chain] += held[q]
            sure = float((np.minimum(below, s.queue_guarantee) / self._total).sum())
        return round(sure * PARTS) / PARTS, round(float(met.sum()) * PARTS) / PARTS

    def lacks(self, plan: Plan) -> bool:
        """Whether a queue holds less than it deserves."""
        return bool(((self._ratio(self.held(plan)) < 1 - ROUNDING) & (self._weight > 0)).any())

    def held(self, plan: Plan) -> IntArray:
        """Q×R held by the queues' own jobs under the plan."""
        s = self._snapshot
        out = np.zeros((s.queues + 1, len(s.resources)), dtype=np.int64)
        np.add.at(out, s.job_queue[s.role_job[plan.role]], s.role_request[plan.role] * plan.count[:, None])
        return out[:-1]

    def _ratio(self, held: IntArray) -> FloatArray:
        out: FloatArray = (held / self._share).max(axis=1, initial=0.0)
        return out


def quotas(snapshot: Snapshot) -> IntArray:
    """Q×R: the deserved share of each queue as integers, by the largest-remainder method."""
    share = deserved_by(snapshot, Feasibility(snapshot).possible(), wanted=_largest(snapshot))
    whole = np.floor(share + 1e-6).astype(np.int64)
    total = usable_capacity(snapshot)
    tops = snapshot.queue_parent < 0
    for r in range(len(snapshot.resources)):
        left = int(min(total[r], np.floor(share[tops, r].sum() + 1e-6)) - whole[tops, r].sum())
        cut = share[:, r] - whole[:, r]
        for q in np.argsort(-cut, kind="stable")[: max(0, left)].tolist():
            if cut[q] > 1e-6 and tops[q]:
                whole[q, r] += 1
    return whole


def strict(snapshot: Snapshot) -> IntArray:
    """Q×R: the deserved share of each queue, but at least the minimums of its running jobs, so that none is stopped."""
    s = snapshot
    minimum = np.minimum(s.held_by_role(), s.role_min)
    return np.maximum(quotas(s), _by_queue(s, s.demand_by_job(minimum)))


def idle_to_all(snapshot: Snapshot) -> IntArray:
    """Q×R: what each queue holds plus all that is idle, so that no queue grows at the cost of another."""
    s = snapshot
    idle = np.maximum(s.free_after_termination()[s.node_open], 0).sum(axis=0)
    out: IntArray = _by_queue(s, s.demand_by_job(s.held_by_role())) + idle
    return out


def within_caps(snapshot: Snapshot) -> IntArray:
    """Q×R: `idle_to_all` within the caps of the queue and its ancestors, for a cluster whose jobs are in one queue."""
    out = idle_to_all(snapshot)
    for q, chain in enumerate(snapshot.facts.chains):
        out[q] = np.minimum(out[q], snapshot.queue_cap[chain].min(axis=0))
    return out


def _moved(plan: Plan) -> BoolArray:
    """Jobs that the plan starts or restarts (J)."""
    out: BoolArray = (plan.action == ADMIT) | (plan.action == RESIZE)
    return out


def _by_queue(snapshot: Snapshot, by_job: IntArray) -> IntArray:
    out = np.zeros((snapshot.queues + 1, by_job.shape[1]), dtype=np.int64)
    np.add.at(out, snapshot.job_queue, by_job)
    return out[:-1]


def _largest(snapshot: Snapshot) -> IntArray:
    """Most replicas that each role can use (G)."""
    return np.minimum(snapshot.role_max, 2**40)


def _several_queues(snapshot: Snapshot) -> bool:
    """Whether jobs are in more than one queue."""
    queue = snapshot.job_queue[snapshot.job_queue >= 0]
    return len(queue) > 0 and bool((queue != queue[0]).any())
