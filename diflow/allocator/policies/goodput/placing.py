"""Places the targets of a case on nodes, then starts and grows jobs that still fit.

Unchanged jobs stay where they are, the others are placed again, the largest first. A job that does not fit at its
target gets the largest configuration that fits. Capacity is reserved for the gang that waits longest.
"""

from __future__ import annotations

import numpy as np

from diflow.allocator.model.arrays import IntArray
from diflow.allocator.model.ledger import Ledger, Placement
from diflow.allocator.model.plan import Plan
from diflow.allocator.model.reasons import (
    DoesNotFit,
    Explores,
    Fits,
    Gain,
    PlacedAgain,
    Reason,
    WorthMoreElsewhere,
)
from diflow.allocator.policies.goodput.case import Case
from diflow.allocator.policies.goodput.optimise import Problem
from diflow.allocator.policies.goodput.table import column_of
from diflow.allocator.policies.turns import lasting_use, turn_of, waits_since
from diflow.allocator.policies.waiting import (
    Kept,
    explain_impossible,
    explain_waiting,
    first_reasons,
    grow_in_place,
    lift,
    make_whole,
    minimum_gang,
    needed_and_fitting,
    plan_of,
    reserve,
    start_order,
)


class Placing:
    """One placement. `ledger`: what is placed so far. `reasons`: those of placed jobs. `reserved_for`: the job with a
    reservation (`kept`), or -1."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self.ledger = Ledger(case.snapshot)
        self._pool: list[int] = case.view.pool.tolist()
        roles_of = case.snapshot.facts.roles_of
        self.ledger.pool_of = {role: pool for job, pool in enumerate(self._pool) if pool >= 0 for role in roles_of[job]}
        self.reasons = first_reasons(case.snapshot)
        self.kept: Kept = []
        self.reserved_for = -1

    def reach(self, target: IntArray, problem: Problem | None) -> None:
        """Place these targets; with a problem, raise jobs to larger configurations in what is left over."""
        case = self._case
        order = start_order(case.snapshot)
        if problem is None:
            # No running job changes, whatever pool was chosen for it.
            for j in case.view.changes_pool.nonzero()[0].tolist():
                self._confine(j, int(case.view.present_pool[j]))
        make_whole(self.ledger, order, case.considered, self.reasons)
        self._place(target, pools=problem is not None)
        self.fill()
        grow_in_place(
            self.ledger,
            order,
            case.considered,
            self.reasons,
            lambda job, role: case.quota.slots(self.ledger, job, role),
        )
        if problem is not None and self._raise(problem):
            # A job that grew may be on other nodes now: a waiting job may fit, or wait for another reason.
            self.fill()

    def plan(self, name: str) -> Plan:
        """The plan, with the reasons of waiting jobs. Lifts the reservation."""
        self._lift()
        self._explain_waiting()
        return plan_of(self.ledger, name, self.reasons)

    # -- targets --

    def _place(self, target: IntArray, *, pools: bool) -> None:
        """Place these targets. `pools`: in the chosen pools, also if the number of replicas is the same."""
        case, view, ledger, starved = self._case, self._case.view, self.ledger, self._case.starved
        moves = case.changes(target) if pools else view.free_to_move & (target != view.held)
        changed = moves.nonzero()[0]
        before: dict[int, Placement] = {j: ledger.release(j) for j in changed[view.running[changed]].tolist()}
        if starved >= 0 and target[starved] == 0:
            low = case.gangs.low_list[starved]
            # It is placed before all other jobs; if it does not fit yet, capacity is reserved until it does.
            if self._put(starved, low, spread=True) or self._put_minimum(starved):
                target = target.copy()
                target[starved] = low
                changed = changed[changed != starved]
                self.explain(np.array([starved]))
            else:
                self._reserve(starved)
        if not len(changed):
            return
        order = changed[np.lexsort((changed, -case.values.weight[changed], -target[changed]))]
        wanted = zip(order.tolist(), target[order].tolist(), strict=True)
        failed = [(j, count) for j, count in wanted if count > 0 and not self._put(j, count)]
        for j, count in failed:
            self._put_smaller(j, count, before.get(j))
        self.explain(changed)

    def _put(self, job: int, count: int, *, spread: bool = False) -> bool:
        """Place `count` replicas of the elastic role, and the other roles. Unless `spread`, the elastic role goes on
        one node if an empty node is large enough."""
        gangs = self._case.gangs
        role = gangs.elastic_list[job]
        want = {**gangs.wants[job], role: count}
        together = role if count <= gangs.per_node_list[job] and not spread else -1
        if not self._case.quota.admits(self.ledger, job, want):
            return False
        if self.ledger.try_gang(job, want, together=together) is not None:
            return True
        if len(want) == 1 or self._pool[job] < 0:
            return False
        # The other roles may need nodes of another pool, such as nodes without GPUs.
        self._confine(job, self._pool[job], elastic_alone=True)
        return self.ledger.try_gang(job, want, together=together) is not None

    def _put_minimum(self, job: int) -> bool:
        """Place the minimum of all roles, the elastic one in any one pool."""
        want = minimum_gang(self.ledger, job)
        if not self._case.quota.admits(self.ledger, job, want):
            return False
        if self._pool[job] < 0:
            return self.ledger.try_gang(job, want) is not None
        for pool in self._case.pools_for(job):
            for alone in (False, True) if len(want) > 1 else (False,):
                self._confine(job, pool, elastic_alone=alone)
                if self.ledger.try_gang(job, want) is not None:
                    return True
        self._confine(job, self._pool[job])
        return False

    def _confine(self, job: int, pool: int, *, elastic_alone: bool = False) -> None:
        """Place the job's replicas in this pool from now on; -1: in any."""
        self._pool[job] = pool
        for role in self._case.snapshot.facts.roles_of[job]:
            if pool < 0 or (elastic_alone and role != self._case.gangs.elastic_list[job]):
                self.ledger.pool_of.pop(role, None)
            else:
                self.ledger.pool_of[role] = pool

    def _put_smaller(self, job: int, wanted: int, before: Placement | None) -> None:
        """Place the largest configuration below `wanted` that fits; at its present size, on its nodes if possible."""
        case, ledger = self._case, self.ledger
        for count in reversed(case.table.replicas[job].tolist()):
            if not 0 < count < wanted:
                continue
            same = count == int(case.view.held[job]) and not case.view.changes_pool[job]
            if before is not None and same and _back(ledger, job, before):
                return
            if self._put(job, count):
                return
        if before is not None and _back(ledger, job, before):
            if case.view.present_pool[job] >= 0:
                self._confine(job, int(case.view.present_pool[job]))
            return
        self._put(job, case.gangs.low_list[job], spread=True)

    def _raise(self, problem: Problem) -> bool:
        """Grow preemptible jobs into what placement left over, steepest slope first. Returns whether any grew."""
        case, ledger, snapshot, table = self._case, self.ledger, self._case.snapshot, self._case.table
        attempts = 24 if snapshot.jobs <= 1000 else 8
        now = ledger.replicas[case.gangs.elastic]
        match = (table.replicas == now[:, None]) & (now[:, None] > 0)
        column = np.where(match.any(axis=1), match.argmax(axis=1), -1)
        movable = case.view.free_to_move & (column >= 0) & snapshot.job_preemptible
        # The problem has values for the chosen pool alone: a job that was placed in another one is not raised.
        movable &= np.array(self._pool, dtype=np.int64) == case.view.pool
        rows, columns = np.arange(snapshot.jobs), np.arange(match.shape[1])
        value = np.where(np.isfinite(problem.value) & movable[:, None], problem.value, -np.inf)
        raised = False
        for _ in range(attempts):
            free = np.maximum(ledger.free[snapshot.node_open].sum(axis=0), 0)
            if not free.any():
                return raised
            at = np.maximum(column, 0)
            need = problem.amount - problem.amount[rows, at][:, None, :]
            ok = (value > -np.inf) & (columns > column[:, None])
            ok &= ((need <= free) | (need <= 0)).all(axis=2)
            if not ok.any():
                return raised
            with np.errstate(invalid="ignore", divide="ignore"):
                steep = (value - problem.value[rows, at][:, None]) / (problem.cost - problem.cost[rows, at][:, None])
            steep = np.where(ok & np.isfinite(steep), steep, -np.inf)
            job, col = divmod(int(steep.argmax()), steep.shape[1])
            if not steep[job, col] > 0:
                return raised
            held = ledger.release(job)
            if self._put(job, int(table.replicas[job, col])):
                column[job], raised = col, True
                self.explain(np.array([job]))
            else:
                ledger.restore(job, held)
                value[job, col] = -np.inf
        return raised

    # -- waiting jobs and the reservation --

    def fill(self) -> None:
        """Start waiting jobs that fit, in start order, and reserve capacity for the gang that waits longest."""
        case, ledger, gangs = self._case, self.ledger, self._case.gangs
        snapshot, facts = case.snapshot, case.snapshot.facts
        if ledger.holding().all():
            return
        self._start_reserved()
        oldest = self.reserved_for
        order = start_order(snapshot)
        order = order[~ledger.holding()[order]]
        waited = snapshot.now_seconds - waits_since(snapshot)[order]
        long = (waited >= case.settings.reserve_after_seconds).tolist()
        # Without caps and quotas, jobs of one shape do not fit once one of them did not.
        limited = facts.capped or case.quota.most is not None
        before = snapshot.held_by_role().tolist()
        failed: dict[tuple[int, int], int] = {}
        for j, is_long in zip(order.tolist(), long, strict=True):
            if case.feasible.impossible(j) is not None:
                continue
            low, role = gangs.low_list[j], gangs.elastic_list[j]
            key = (facts.shape[role], facts.job_queue[j] if limited else -1)
            over = not case.quota.admits(ledger, j, minimum_gang(ledger, j))
            if not over and j != self.reserved_for and case.considered[j] and failed.get(key, 2**62) > low:
                if self._start(j):
                    got = sum(ledger.count[r] for r in facts.roles_of[j])
                    if case.view.running[j]:
                        held = sum(before[r] for r in facts.roles_of[j])
                        self.reasons[j] = PlacedAgain(got, held)
                    else:
                        wanted = gangs.desired[j] + got - ledger.count[role]
                        self.reasons[j] = Fits(got, wanted)
                    continue
                if len(gangs.wants[j]) == 1:
                    failed[key] = low
            if (
                is_long
                and oldest < 0
                and not over
                and not snapshot.modest[j]
                and isinstance(explain_waiting(ledger, j), DoesNotFit)
            ):
                # One gang at a time has its turn, also in a pause of its reservation.
                oldest = j
                if self._reserve(j):
                    failed.clear()

    def _start(self, job: int) -> bool:
        """Start the job with its minimum: on one node, over several, or in another pool."""
        low = self._case.gangs.low_list[job]
        if self.ledger.work.is_spent(job):
            return False
        with self.ledger.work.of(job):
            if self._pool[job] >= 0 and self._is_plain(job) and max(self._by_pool(job)) < low:
                return False
            alone = len(self._case.gangs.wants[job]) == 1 and self._pool[job] < 0
            if alone and self.ledger.most(job, self._case.gangs.elastic_list[job]) < low:
                return False
            return self._put(job, low) or self._put(job, low, spread=True) or self._put_minimum(job)

    def _start_reserved(self) -> None:
        """Start the job with a reservation if it fits by now, else renew the reservation."""
        job = self.reserved_for
        if job < 0:
            return
        self._lift()
        if self._start(job):
            self.explain(np.array([job]))
            self.reserved_for = -1
        else:
            self._reserve(job)

    def _reserve(self, job: int) -> bool:
        """Reserve capacity for the job; False before its turn and in pauses."""
        s = self._case.snapshot
        found = turn_of(s, job, waits_since=float(waits_since(s)[job]), size=1.0, settings=self._case.settings)
        if found is not None and found.has_reservation:
            self.kept = reserve(self.ledger, job, lasting=lasting_use(s, found))
        self.reserved_for = job if self.kept else -1
        return bool(self.kept)

    def _lift(self) -> None:
        lift(self.ledger, self.kept)
        self.kept = []

    # -- reasons --

    def explain(self, jobs: IntArray) -> None:
        """Set the reasons of placed jobs: their speed under the plan and before, and their weight.
        Those that hold nothing get theirs in the end."""
        case, values, view = self._case, self._case.values, self._case.view
        count = self.ledger.replicas[case.gangs.elastic[jobs]]
        jobs, count = jobs[count > 0], count[count > 0]
        speed = values.speed[jobs, column_of(case.table.replicas[jobs], count)]
        grows, starts = count >= view.held[jobs], ~view.running[jobs] & ~case.table.known[jobs]
        columns = (jobs, speed, values.present_speed[jobs], values.weight[jobs], grows, starts)
        for j, now, before, weight, is_more, is_new in zip(*(column.tolist() for column in columns), strict=True):
            if is_new:
                self.reasons[j] = Explores()
            else:
                self.reasons[j] = Gain(now, before, weight) if is_more else WorthMoreElsewhere(now, before)

    def _explain_waiting(self) -> None:
        """Set the reasons of waiting jobs. The ledger must have no reservation."""
        ledger, facts = self.ledger, self._case.snapshot.facts
        explained: dict[int, Reason] = {}
        for j in np.flatnonzero(~ledger.holding()).tolist():
            kind = facts.kinds[j]
            if facts.pinned[j] or kind not in explained:
                self._confine_to_best(j)
                explained[kind] = self._explained(j)
            self.reasons[j] = explained[kind]

    def _confine_to_best(self, job: int) -> None:
        """Confine the job to the pool where most of its minimum fits: the reason is about that. The roles of a job
        may be in several pools, so for one with several it is about all nodes."""
        pools = self._case.pools_for(job) if self._pool[job] >= 0 else []
        if len(self._case.gangs.wants[job]) > 1:
            pools = [-1] if pools else []
        if not pools:
            return
        fits = dict.fromkeys(pools, 0.0)
        if len(pools) > 1 and self._is_plain(job):
            by_pool = self._by_pool(job)
            fits = {pool: by_pool[pool] for pool in pools}
        elif len(pools) > 1:
            for pool in pools:
                self._confine(job, pool)
                fits[pool] = needed_and_fitting(self.ledger, job)[1]
        self._confine(job, max(pools, key=lambda pool: (fits[pool], -pool)))

    def _is_plain(self, job: int) -> bool:
        """Whether the job has one role, and may be anywhere."""
        facts = self._case.snapshot.facts
        return len(facts.roles_of[job]) == 1 and facts.required[job] < 0 and not facts.pinned[job]

    def _by_pool(self, job: int) -> list[float]:
        """Replicas of the job's elastic role that fit in each pool now."""
        s, role = self._case.snapshot, self._case.gangs.elastic_list[job]
        fits = np.minimum(self.ledger.slots(role), 2**31)
        out: list[float] = np.bincount(s.node_pool, weights=fits, minlength=len(s.pool_names)).tolist()
        return out

    def _explained(self, job: int) -> Reason:
        case, ledger = self._case, self.ledger
        impossible = case.feasible.impossible(job)
        if impossible is not None:
            return explain_impossible(ledger, job, impossible)
        reserved_for = -1 if self.reserved_for >= 0 and ledger.holds(self.reserved_for) else self.reserved_for
        explained = explain_waiting(ledger, job, reserved_for)
        fits = isinstance(explained, DoesNotFit) and ledger.fits(job, minimum_gang(ledger, job))
        return (case.quota.explain(ledger, job) if fits else None) or explained


def _back(ledger: Ledger, job: int, held: Placement) -> bool:
    """Restore the job's placement if it still fits."""
    request = ledger.snapshot.role_request
    need: dict[int, IntArray] = {}
    for role, (nodes, counts) in held.items():
        for node, count in zip(nodes.tolist(), counts.tolist(), strict=True):
            need[node] = need.get(node, np.zeros(request.shape[1], dtype=np.int64)) + count * request[role]
    if any(((amount > ledger.free[node]) & (amount > 0)).any() for node, amount in need.items()):
        return False
    if not ledger.within_caps(job, {role: int(counts.sum()) for role, (_, counts) in held.items()}):
        return False
    ledger.restore(job, held)
    return True
