"""`goodput`: all preemptible jobs are re-allocated by their reports.

The value of an allocation is Σ w·s^p. s is the job's speedup, at the batch size with the best goodput, over its
smallest configuration. w is the value of a second of its work: higher for jobs that scale badly (`goodput/price.py`),
have little left, are old, or have a high priority. A move multiplies s by the fraction of the horizon left after the
restart cost. A knapsack, or on large clusters the greedy on concave hulls, chooses the replica counts; placement leaves
unchanged jobs where they are. The plan is used only if its value exceeds that of the current allocation.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial

import numpy as np

from diflow.allocator.model.arrays import BoolArray, FloatArray, IntArray
from diflow.allocator.model.ledger import Ledger, Placement
from diflow.allocator.model.packing import ANY_NUMBER
from diflow.allocator.model.plan import KEEP, PREEMPT, RESIZE, Plan, Why, keep_plan
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.policies.fixed_point import followed, is_no_worse, recounted
from diflow.allocator.policies.goodput.exact import Job as Searched
from diflow.allocator.policies.goodput.exact import Option, search
from diflow.allocator.policies.goodput.gangs import gangs_of, view_of
from diflow.allocator.policies.goodput.knapsack import exact_columns
from diflow.allocator.policies.goodput.optimise import Problem, greedy, improve, in_use
from diflow.allocator.policies.goodput.price import YOUNG_SECONDS, ahead_of, seconds_left, unit_costs
from diflow.allocator.policies.goodput.table import Table, Tables
from diflow.allocator.policies.reservations import turn, waits_since
from diflow.allocator.policies.settings import PolicySettings
from diflow.allocator.policies.waiting import (
    Feasibility,
    Kept,
    Reasons,
    Told,
    broken_gangs,
    explain_waiting,
    grow_in_place,
    make_whole,
    minimum_gang,
    reserve,
    start_order,
    told_impossible,
)

MOST_PRIORITIES = 32
"""Steps of priority that a weight distinguishes."""
WIDEST_STEP = 8
"""Most steps between neighbouring priorities, if their range exceeds MOST_PRIORITIES."""
SERVED_FACTOR = 1e3
"""Bonus for running the job that waited longest, in multiples of the largest weight: more than any other value."""
LONGEST_HORIZON = 7200.0
"""Longest horizon of a move, in seconds."""
MARGIN = 1e-6
"""Relative improvement that a plan needs over the current allocation: less is rounding."""
SILENT_PERIODS = 5
"""Periods after which a running job without reports is assumed never to report."""
TINY_JOBS = 8
TINY_NODES = 6
SEARCH_STEPS = 600
"""Most placements that the exhaustive search tries: about 10 ms."""
CLOSE = 0.995
"""Fraction of the upper bound at which the search stops."""
EXACT_WORK = 1500
"""Jobs × configurations up to which the counts are solved exactly: about 1 ms."""


_GAIN, _SHRUNK = int(Why.GAIN), int(Why.SHRUNK_FOR_OTHERS)
_EXPLORES, _DOES_NOT_FIT = int(Why.EXPLORES), int(Why.DOES_NOT_FIT)

Quota = Callable[[Snapshot], IntArray]


class GoodputPolicy:
    """Goodput-optimal re-allocation."""

    def __init__(self, settings: PolicySettings | None = None, *, name: str = "goodput") -> None:
        self.name = name
        self._settings = settings or PolicySettings()
        self._tables = Tables()
        self._last: Case | None = None

    def allocate(self, job: int, snapshot: Snapshot) -> Plan:
        """Start the new job in free capacity, at its most valuable size; no other job changes."""
        only = np.zeros(snapshot.jobs, dtype=np.bool_)
        only[job] = True
        return self.plan(snapshot, considered=only)

    def optimize(self, snapshot: Snapshot) -> Plan:
        return self.plan(snapshot)

    def measure(self, snapshot: Snapshot, plan: Plan) -> float:
        """Sum of the jobs' values under the plan, restart costs included."""
        return self._case(snapshot).total(plan)

    def _case(self, snapshot: Snapshot) -> Case:
        """The case of the snapshot. The last one is cached: a plan and its measures use the same snapshot."""
        case = self._last
        if case is None or case.snapshot is not snapshot:
            case = self._last = Case(snapshot, self._settings, self._tables, None, None)
        return case

    def within(self, snapshot: Snapshot, quota: IntArray, *, moved: BoolArray) -> Plan:
        """The best plan in which no queue exceeds its quota (Q×R), even if its value is below the current one. `moved`:
        as in `plan`."""
        case = Case(snapshot, self._settings, self._tables, None, quota, moved=moved)
        return case.reach(*case.aim(), self.name)

    def plan(
        self,
        snapshot: Snapshot,
        *,
        considered: BoolArray | None = None,
        quota: Quota | None = None,
        moved: BoolArray | None = None,
    ) -> Plan:
        """The plan. `considered` (J): the only jobs that may change. `quota`: the most that the jobs of each queue may
        hold together (Q×R). `moved` (J): jobs that start or restart in any case, for which resizing is free.
        """

        allowed = quota(snapshot) if quota else None
        case = Case(snapshot, self._settings, self._tables, considered, allowed, moved=moved)
        if considered is not None:
            return case.solve(self.name)
        return recounted(snapshot, self._followed(case, quota))

    def _followed(self, case: Case, quota: Quota | None) -> Plan:
        snapshot, plan = case.snapshot, case.solve(self.name)

        def look(present: Snapshot) -> Plan:
            allowed = quota(present) if quota else None
            after = Case(present, self._settings, self._tables, None, allowed, before=case)
            return after.solve(self.name)

        plan = followed(snapshot, plan, look)
        self._last = case
        if not ((plan.action == RESIZE) | (plan.action == PREEMPT)).any():
            return plan
        # Each step was worth it in the state before that step; the whole plan must be worth it in the current state.
        if case.total(plan) < case.total(case.keep(self.name)):
            plan = case.keep(self.name)
        return plan if is_no_worse(case.total(plan), case.present_total) else keep_plan(snapshot, self.name)


class Case:
    """One call: everything that is derived from one snapshot.

    `before`: the case of the snapshot from which this one follows by carrying out a plan; its weights are used again.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        settings: PolicySettings,
        tables: Tables,
        considered: BoolArray | None,
        quota: IntArray | None,
        *,
        before: Case | None = None,
        moved: BoolArray | None = None,
    ) -> None:
        self.snapshot, self.settings, self.quota = snapshot, settings, quota
        self.facts = snapshot.facts
        self._quota: list[list[int]] | None = None if quota is None else quota.tolist()
        self.considered = considered
        self.rows = np.arange(snapshot.jobs)
        self.bound = np.inf
        self.gangs = gangs = gangs_of(snapshot, settings)
        self.view = view = view_of(snapshot, gangs, considered)
        self.table: Table = tables.make(
            snapshot,
            low=gangs.low,
            high=gangs.high,
            wanted=gangs.wanted,
            per_node=gangs.per_node,
            held=view.held,
            held_nodes=view.held_nodes,
            growth=settings.largest_growth,
            between_nodes=settings.between_nodes,
            patience_seconds=SILENT_PERIODS * settings.period_seconds,
        )
        base = np.where(self.table.goodput[:, 0] > 0, self.table.goodput[:, 0], 1.0)
        self.speed = self.table.goodput / base[:, None]
        # A broken gang does no work.
        self.present_speed = np.where(broken_gangs(snapshot), 0.0, self.table.present / base)
        self.spread_speed = self.table.spread / base
        # A job whose reports allow no configuration at all is still worth starting.
        hopeless = self.table.goodput.max(axis=1, initial=0.0) <= 0
        if hopeless.any():
            self.speed[hopeless, 0] = 1.0
            self.spread_speed[hopeless] = 1.0
            self.present_speed[hopeless & (view.held > 0)] = 1.0
        self.amounts: IntArray = self.table.replicas[:, :, None] * gangs.request[:, None, :] + gangs.others[:, None, :]
        self.weight: FloatArray
        self.left: FloatArray
        self.weight, self.left = self._weights() if before is None else (before.weight, before.left)
        self._feasible = Feasibility(snapshot)
        # Value of running at all, whatever the speed: only for jobs that waited too long.
        self.bonus = np.zeros(snapshot.jobs)
        self.starved = self._longest_waiting()
        self.reserved_for = self.kept_for = -1
        self.kept: Kept = []
        self._keep: Plan | None = None
        self._aimed: tuple[IntArray, Problem] | None = None
        self._since: FloatArray | None = None
        # Fraction of the horizon left after the restart cost. The horizon ends with the job or with its next change,
        # which is expected after as much time as has passed since the last one.
        changed = snapshot.job_changed_seconds
        still = np.where(changed >= 0, snapshot.now_seconds - changed, 0.0)
        horizon = np.maximum(np.minimum(still, LONGEST_HORIZON), settings.horizon_seconds)
        self.penalty = self._left_by_a_move(self.rows, horizon[:, None])
        if moved is not None:
            self.penalty[moved] = 1.0

    def _left_by_a_move(self, jobs: IntArray, horizon: FloatArray | float) -> FloatArray:
        """Fraction of the horizon left after the restart cost of a move, for each configuration (len(jobs)×C). The
        horizon is `horizon` seconds, or the time to the job's end if that is less."""
        ahead: FloatArray = np.minimum(self.left[jobs, None] / np.maximum(self.speed[jobs], 1e-9), horizon)
        return ahead / (ahead + self.settings.restart_seconds)

    def _elastic(self, plan: Plan) -> tuple[FloatArray, IntArray]:
        """(replicas of each job's elastic role under the plan (J), number of their nodes (J))."""
        roles, elastic = self.snapshot.roles, self.gangs.elastic
        count: FloatArray = np.bincount(plan.role, weights=plan.count, minlength=roles).astype(np.float64)
        return count[elastic], np.bincount(plan.role, minlength=roles)[elastic]

    def _weights(self) -> tuple[FloatArray, FloatArray]:
        """(value of a second of each job's work (J), seconds left in its smallest configuration (J)).

        They depend only on what carrying out a plan does not change; otherwise each plan would cause the next.
        """
        snapshot, settings, table = self.snapshot, self.settings, self.table
        left = seconds_left(snapshot, table)
        total = snapshot.capacity()[snapshot.node_open].sum(axis=0)
        share = (self.amounts / np.maximum(total, 1)).max(axis=2)
        usable = table.anyway & (snapshot.job_queue >= 0)[:, None]
        cost, pace = unit_costs(self.speed, share, usable)
        weight = cost * ahead_of(np.maximum(left / pace, YOUNG_SECONDS), snapshot, settings.queue_ahead)
        if settings.patience > 0:
            age = np.maximum(snapshot.now_seconds - snapshot.job_created_seconds, 0.0)
            weight = weight * np.exp2(settings.patience * age / (age + left))
        priority = snapshot.job_priority - snapshot.job_priority.min(initial=0)
        if priority.max(initial=0) > MOST_PRIORITIES:
            # PriorityClasses are often hundreds apart, and clipping would merge most of them.
            levels, at = np.unique(priority, return_inverse=True)
            steps = np.minimum(np.diff(levels, prepend=levels[:1]), WIDEST_STEP)
            priority = np.minimum(np.cumsum(steps)[at], MOST_PRIORITIES)
        return weight * np.power(settings.priority_factor, priority), left

    def _longest_waiting(self) -> int:
        """The job that has waited longest for its first start, if at least `reserve_after_seconds`, or -1. It gets a
        bonus that exceeds every other value, and keeps it for as long after the start: otherwise the next cycle would
        stop it again.
        """
        snapshot, limit = self.snapshot, self.settings.reserve_after_seconds
        now = snapshot.now_seconds
        lately = self.view.running & (snapshot.job_started_seconds - snapshot.job_created_seconds >= limit)
        lately &= now - snapshot.job_started_seconds < limit
        waits = ~self.view.running & self.view.free_to_move & (snapshot.job_started_seconds < 0)
        waits &= now - snapshot.job_created_seconds >= limit
        # The same bonus for all of them, or they would only replace each other.
        served = (lately | waits) & self.view.free_to_move
        if served.any():
            self.bonus[served] = SERVED_FACTOR * float(self.weight.max(initial=0.0))
        if not waits.any():
            return -1
        order = start_order(snapshot)
        feasible, ledger = self._feasible, Ledger(snapshot)
        for j in order[waits[order]].tolist():
            if feasible.reason(j) is None and not self._quota_is_full(ledger, j):
                return int(j)
        return -1

    def _quota_is_full(self, ledger: Ledger, job: int) -> bool:
        if ledger.capped and any(ledger.queue_headroom(job, r) < n for r, n in minimum_gang(ledger, job).items()):
            return True
        return self.quota is not None and not self._within_quota(ledger, job, minimum_gang(ledger, job))

    def value_of(self, speed: FloatArray, weight: FloatArray) -> FloatArray:
        if self.settings.concavity == 1.0:
            return weight * np.maximum(speed, 0.0)
        out: FloatArray = weight * np.power(np.maximum(speed, 0.0), self.settings.concavity)
        return out

    def total(self, plan: Plan) -> float:
        """Value of a plan: the sum of the jobs' values, restart costs included."""
        snapshot, table, gangs = self.snapshot, self.table, self.gangs
        if snapshot.jobs == 0:
            return 0.0
        count, nodes = self._elastic(plan)
        at = np.maximum(((table.replicas <= count[:, None]) & (table.replicas > 0)).sum(axis=1) - 1, 0)
        speed = np.where(count > 0, self.speed[self.rows, at], 0.0)
        spread = (count == gangs.low) & (nodes > 1) & (count <= gangs.per_node)
        speed = np.where(spread, self.spread_speed, speed)
        resized = plan.action == RESIZE
        kept = plan.action == KEEP
        paid = np.where(resized & snapshot.job_preemptible, self.penalty[self.rows, at], 1.0)
        speed = np.where(kept, self.present_speed, speed * paid)
        # Growth of a job that is not preemptible was asked for by its user: it never counts as a loss.
        asked = resized & ~snapshot.job_preemptible
        if asked.any():
            speed = np.where(asked, np.maximum(speed, self.present_speed), speed)
        value = self.value_of(speed, self.weight)
        if self.bonus.any():
            value = value + np.where(speed > 0, self.bonus, 0.0)
        return float(value.sum())

    def keep(self, name: str) -> Plan:
        """The plan that changes no running job and starts the jobs that fit."""
        if self._keep is None:
            self._keep = self.reach(self.view.held, None, name)
        return self._keep

    @cached_property
    def present_total(self) -> float:
        """Value of the current allocation."""
        value = self.value_of(self.present_speed, self.weight)
        return float((value + np.where(self.present_speed > 0, self.bonus, 0.0)).sum())

    def aim(self) -> tuple[IntArray, Problem]:
        """(target replicas of each job's elastic role (J), the problem that they solve)."""
        if self._aimed is None:
            problem = self.problem()
            self._aimed = self._choose(problem), problem
        return self._aimed

    def solve(self, name: str) -> Plan:
        """The better of the best plan found and `keep`."""
        if not self.view.free_to_move.any():
            return self.keep(name)
        target, problem = self.aim()
        if (target == self.view.held)[self.view.free_to_move].all():
            return self.keep(name)
        plan = self.reach(target, problem, name)
        kept = self.total(self.keep(name))
        best = max(self.total(plan), kept)
        # The search does not support caps and quotas.
        plain = self.quota is None and not self.facts.capped
        if plain and snapshot_is_tiny(self.snapshot) and best < CLOSE * self.bound:
            plan = self._search(problem, best, name) or plan
        return plan if self.total(plan) > kept + MARGIN * abs(kept) else self.keep(name)

    def _search(self, problem: Problem, best: float, name: str) -> Plan | None:
        """Exhaustive search for a plan worth more than `best`; None if there is none or a job has several roles."""
        snapshot, view = self.snapshot, self.view
        movable = np.flatnonzero(view.free_to_move).tolist()
        if any(len(self.facts.roles_of[j]) != 1 for j in movable):
            return None
        ledger = self._ledger()
        for j in movable:
            ledger.release(j)
        free = np.where(snapshot.node_open[:, None], ledger.free, 0)
        # Pods may stay on a closed node, but no new ones may start there.
        jobs = [self._options(problem, ledger, j) for j in movable]
        rest = best - sum(self.value_of(self.present_speed, self.weight)[~view.free_to_move])
        found = search(
            jobs, free.tolist(), self._scarce(problem), start=rest, most_steps=SEARCH_STEPS, good_enough=CLOSE
        )
        if found is None:
            return None
        marks = Reasons(snapshot)
        ledger = self._ledger()
        self.reserved_for = self.kept_for = -1
        self.kept = []
        places = dict(zip(movable, found[1], strict=True))
        now = {j: self._present(j) for j in movable}
        changed = [j for j in movable if (places[j] or ()) != now[j]]
        for j in changed:
            ledger.release(j)
        for j in changed:
            if places[j]:
                nodes, counts = (np.array(part, dtype=np.int64) for part in zip(*(places[j] or ()), strict=True))
                ledger.take(j, self.gangs.elastic_list[j], nodes, counts)
        self._explain(ledger, np.array(changed, dtype=np.int64), marks)
        self._fill(ledger, marks)
        for nodes, amount in self.kept:
            ledger.unblock(nodes, amount)
        self._tell_waiting(ledger, marks)
        return marks.plan(ledger, name)

    def _options(self, problem: Problem, ledger: Ledger, job: int) -> Searched:
        snapshot, view, gangs = self.snapshot, self.view, self.gangs
        role = gangs.elastic_list[job]
        nodes = snapshot.eligible(role)
        if snapshot.job_pinned[job] and ledger.home(job).any():
            nodes = nodes & ledger.home(job)
        weight, bonus = float(self.weight[job]), float(self.bonus[job])
        out: list[Option] = []
        for c in np.flatnonzero(np.isfinite(problem.value[job])).tolist():
            count = int(self.table.replicas[job, c])
            paid = float(self.penalty[job, c]) if view.running[job] and snapshot.job_preemptible[job] else 1.0
            value = bonus + weight * float(self.speed[job, c] * paid) ** self.settings.concavity
            out.append(Option(value, count, spread=count > gangs.per_node_list[job]))
            if count == gangs.low_list[job] and 1 < count <= gangs.per_node_list[job]:
                value = bonus + weight * float(self.spread_speed[job] * paid) ** self.settings.concavity
                out.append(Option(value, count, spread=True))
        if view.running[job]:
            value = bonus + weight * float(self.present_speed[job]) ** self.settings.concavity
            out.append(Option(value, int(view.held[job]), fixed=self._present(job)))
        out.sort(key=lambda option: (-option.value, option.count))
        request = tuple(snapshot.role_request[role].tolist())
        return Searched(request, tuple(np.flatnonzero(nodes).tolist()), tuple(out))

    def _present(self, job: int) -> tuple[tuple[int, int], ...]:
        mine = self.snapshot.held_role == self.gangs.elastic[job]
        nodes, counts = self.snapshot.held_node[mine], self.snapshot.held_count[mine]
        return tuple(zip(nodes.tolist(), counts.tolist(), strict=True))

    def _scarce(self, problem: Problem) -> int:
        largest = np.where(np.isfinite(problem.value)[:, :, None], problem.amount, 0).max(axis=1).sum(axis=0)
        return int(np.argmax(largest / np.maximum(problem.capacity[-1], 1)))

    def _ledger(self) -> Ledger:
        ledger = Ledger(self.snapshot)
        if (self.view.pool >= 0).any():
            ledger.pool_of = {j: pool for j, pool in enumerate(self.view.pool.tolist()) if pool >= 0}
        return ledger

    def reach(self, target: IntArray, problem: Problem | None, name: str) -> Plan:
        """The plan that places these targets, then starts and grows jobs that still fit."""
        ledger = self._ledger()
        marks = Reasons(self.snapshot)
        self.reserved_for = self.kept_for = -1
        self.kept = []
        make_whole(ledger, start_order(self.snapshot), self._allowed(), marks)
        self._place(ledger, target, marks)
        self._fill(ledger, marks)
        self._grow_in_place(ledger, marks)
        if problem is not None and self._raise(ledger, problem, marks):
            # A job that grew may be on other nodes now: a waiting job may fit, or wait for another reason.
            self._fill(ledger, marks)
        for nodes, amount in self.kept:
            ledger.unblock(nodes, amount)
        self._tell_waiting(ledger, marks)
        return marks.plan(ledger, name)

    def problem(self) -> Problem:
        snapshot, view, table, gangs = self.snapshot, self.view, self.table, self.gangs
        free = snapshot.capacity()
        stays = ~view.free_to_move[snapshot.role_job[snapshot.held_role]]
        if stays.any():
            held = (snapshot.held_role[stays], snapshot.held_node[stays], snapshot.held_count[stays])
            free = free - snapshot.usage(*held)
        free = np.maximum(free, 0)
        free = free * snapshot.node_open[:, None]
        # Groups of capacity: the pools if there are several, the queues if they have quotas, and last the cluster.
        capacity = [free.sum(axis=0)[None, :]]
        groups = [np.zeros(snapshot.jobs, dtype=np.int64)]
        if self.quota is not None:
            used = snapshot.demand_by_job(snapshot.held_by_role())
            left = self.quota.copy()
            fixed = ~view.free_to_move & (snapshot.job_queue >= 0)
            np.subtract.at(left, snapshot.job_queue[fixed], used[fixed])
            capacity.insert(0, np.maximum(left, 0))
            groups.append(snapshot.job_queue)
            groups[0] = groups[0] + snapshot.queues
        if (view.pool >= 0).any():
            pools = len(snapshot.pool_names)
            of_pool = snapshot.node_pool == np.arange(pools)[:, None]
            capacity.insert(0, np.stack([free[mine].sum(axis=0) for mine in of_pool]))
            groups = [np.where(group >= 0, group + pools, -1) for group in groups]
            groups[0] = np.where(view.pool >= 0, view.pool, groups[0])
        share = self.amounts / np.maximum(capacity[-1][0], 1)
        cost = np.maximum(share.max(axis=2), 1e-12 * np.maximum(table.replicas, 1))
        running = view.running[:, None]
        speed = np.where(running, self.speed * self.penalty, self.speed)
        same = (table.replicas == view.held[:, None]) & running
        speed = np.where(same, self.present_speed[:, None], speed)
        value = self.value_of(speed, self.weight[:, None]) + self.bonus[:, None]
        usable = (table.replicas > 0) & (speed > 0) & view.free_to_move[:, None]
        # A job that cannot be resized later starts at its desired size or its minimum.
        rigid = ~snapshot.job_preemptible[:, None] & (table.replicas != gangs.wanted[:, None])
        usable &= ~(rigid & (table.replicas != gangs.low[:, None]))
        value = np.where(usable, value, -np.inf)
        return Problem(
            value, self.amounts, cost, np.concatenate(capacity), np.column_stack(groups), np.zeros(snapshot.jobs)
        )

    def _choose(self, problem: Problem) -> IntArray:
        """The optimiser's target replicas of each job's elastic role (J)."""
        exact, bound = exact_columns(problem, most_work=EXACT_WORK)
        if not (self.view.pool >= 0).any():
            # With several pools a job may be worth more in another one, so this is no upper bound.
            self.bound = bound
        column = self._by_slope(problem) if exact is None else exact
        picked = self.table.replicas[self.rows, np.maximum(column, 0)]
        return np.where(column >= 0, picked, np.where(self.view.free_to_move, 0, self.view.held))

    def _by_slope(self, problem: Problem) -> IntArray:
        """Columns chosen by the greedy and then improved."""
        column = greedy(problem)
        left = problem.capacity - in_use(problem, column)
        rounds = 12 if self.snapshot.jobs <= 1000 else 2
        column, _ = improve(problem, column, left, movable=self.view.free_to_move, rounds=rounds)
        return column

    def _place(self, ledger: Ledger, target: IntArray, marks: Reasons) -> None:
        """Place the targets: unchanged jobs stay, the others are placed again, the largest first."""
        view = self.view
        changed = (view.free_to_move & (target != view.held)).nonzero()[0]
        before: dict[int, Placement] = {j: ledger.release(j) for j in changed[view.running[changed]].tolist()}
        if self.starved >= 0 and target[self.starved] == 0:
            low = self.gangs.low_list[self.starved]
            # It is placed before all other jobs; if it does not fit yet, capacity is reserved until it does.
            if self._put(ledger, self.starved, low, spread=True) or self._minimum(ledger, self.starved):
                target = target.copy()
                target[self.starved] = low
                changed = changed[changed != self.starved]
                self._explain(ledger, np.array([self.starved]), marks)
            else:
                self.kept = self._reserve(ledger, self.starved)
                self.reserved_for = self.starved if self.kept else -1
        if not len(changed):
            return
        order = changed[np.lexsort((changed, -self.weight[changed], -target[changed]))]
        failed: list[tuple[int, int]] = []
        for j, count in zip(order.tolist(), target[order].tolist(), strict=True):
            if count > 0 and not self._put(ledger, j, count):
                failed.append((j, count))
        for j, count in failed:
            self._put_smaller(ledger, j, count, before.get(j))
        self._explain(ledger, changed, marks)

    def _put(self, ledger: Ledger, job: int, count: int, *, spread: bool = False) -> bool:
        """Place `count` replicas of the elastic role, and the other roles. Unless `spread`, the elastic role goes on
        one node if an empty node is large enough."""
        gangs = self.gangs
        role = gangs.elastic_list[job]
        want = {role: count} if len(gangs.wants[job]) == 1 else {**gangs.wants[job], role: count}
        together = role if count <= gangs.per_node_list[job] and not spread else -1
        if self.quota is not None and not self._within_quota(ledger, job, want):
            return False
        return ledger.try_gang(job, want, together=together) is not None

    def _within_quota(self, ledger: Ledger, job: int, want: dict[int, int]) -> bool:
        queue = self.facts.job_queue[job]
        if self._quota is None or queue < 0:
            return True
        allowed, used = self._quota[queue], ledger.used[queue]
        return not any(more and used[r] + more > allowed[r] for r, more in enumerate(ledger.amount(want)))

    def _quota_slots(self, ledger: Ledger, job: int, role: int) -> int:
        """Replicas of `role` that the quota of the job's queue still allows."""
        queue = self.facts.job_queue[job]
        if self._quota is None or queue < 0:
            return ANY_NUMBER
        allowed, used = self._quota[queue], ledger.used[queue]
        left = [(allowed[r] - used[r]) // amount for r, amount in self.facts.asks[self.facts.shape[role]]]
        return max(0, min(left, default=ANY_NUMBER))

    def _put_smaller(self, ledger: Ledger, job: int, wanted: int, before: Placement | None) -> None:
        """Place the largest configuration below `wanted` that fits; at its present size, on its nodes if possible."""
        held = int(self.view.held[job])
        for count in reversed(self.table.replicas[job].tolist()):
            if not 0 < count < wanted:
                continue
            if before is not None and count == held and _back(ledger, job, before):
                return
            if self._put(ledger, job, count):
                return
        if before is not None and _back(ledger, job, before):
            return
        self._put(ledger, job, self.gangs.low_list[job], spread=True)

    def _fill(self, ledger: Ledger, marks: Reasons) -> None:
        """Start waiting jobs that fit, in start order, and reserve capacity for the gang that waits longest."""
        snapshot, facts, gangs = self.snapshot, self.facts, self.gangs
        if _holding(ledger).all():
            return
        reserved_for = oldest = self._try_the_starved_again(ledger, marks)
        order = start_order(snapshot)
        order = order[~_holding(ledger)[order]]
        waited = snapshot.now_seconds - waits_since(snapshot)[order]
        long = (waited >= self.settings.reserve_after_seconds).tolist()
        considered = None if self.considered is None else self.considered.tolist()
        # Without caps and quotas, jobs of one shape do not fit once one of them did not.
        limited = facts.capped or self._quota is not None
        before = snapshot.held_by_role()
        failed: dict[tuple[int, int], int] = {}
        for j, is_long in zip(order.tolist(), long, strict=True):
            queue = facts.job_queue[j]
            impossible = self._feasible.reason(j) if queue >= 0 else (Why.NO_SUCH_QUEUE, (0.0, 0.0, 0.0))
            if impossible is not None:
                continue
            low, role = gangs.low_list[j], gangs.elastic_list[j]
            key = (facts.shape[role], queue if limited else -1)
            over = self._quota is not None and not self._within_quota(ledger, j, minimum_gang(ledger, j))
            may_start = not over and j != reserved_for and (considered is None or considered[j])
            if may_start and failed.get(key, 2**62) > low:
                if self._start(ledger, j):
                    got = sum(ledger.count[r] for r in facts.roles_of[j])
                    if self.view.running[j]:
                        held = sum(int(before[r]) for r in facts.roles_of[j])
                        marks.set(j, Why.PLACED_AGAIN, (float(got), float(held), 0.0))
                    else:
                        marks.set(j, Why.FITS, (float(got), float(gangs.wanted[j] + got - ledger.count[role]), 0.0))
                    continue
                if len(gangs.wants[j]) == 1:
                    failed[key] = low
            if is_long and oldest < 0 and not over and explain_waiting(ledger, j)[0] is Why.DOES_NOT_FIT:
                # One gang at a time has its turn, also in a pause of its reservation.
                oldest = j
                if kept := self._reserve(ledger, j):
                    self.kept += kept
                    reserved_for = j
                    failed.clear()
        self.kept_for = reserved_for

    def _tell_waiting(self, ledger: Ledger, marks: Reasons) -> None:
        """Set the reasons of waiting jobs. The ledger must have no reservation."""
        facts, kept_for = self.facts, self.kept_for
        if kept_for >= 0 and ledger.holds(kept_for):
            kept_for = -1
        # The pool chosen for a new job does not confine it: it may start in another one.
        pools, ledger.pool_of = ledger.pool_of, {}
        told: dict[int, Told] = {}
        for j in np.flatnonzero(~_holding(ledger)).tolist():
            kind = facts.kinds[j]
            if facts.pinned[j] or kind not in told:
                told[kind] = self._told_waiting(ledger, j, kept_for)
            marks.set(j, *told[kind])
        ledger.pool_of = pools

    def _told_waiting(self, ledger: Ledger, job: int, kept_for: int) -> Told:
        queue = self.facts.job_queue[job]
        impossible = self._feasible.reason(job) if queue >= 0 else (Why.NO_SUCH_QUEUE, (0.0, 0.0, 0.0))
        if impossible is not None:
            return told_impossible(ledger, job, impossible)
        told = explain_waiting(ledger, job, kept_for)
        fits = told[0] is Why.DOES_NOT_FIT and self._quota is not None and ledger.fits(job, minimum_gang(ledger, job))
        return (self._above_quota(ledger, job) if fits else None) or told

    def _above_quota(self, ledger: Ledger, job: int) -> Told | None:
        """The quota that the gang would exceed, although it fits."""
        queue = self.facts.job_queue[job]
        assert self._quota is not None
        allowed, used = self._quota[queue], ledger.used[queue]
        for r, more in enumerate(ledger.amount(minimum_gang(ledger, job))):
            if more and used[r] + more > allowed[r]:
                return Why.QUEUE_SHARE, (float(used[r]), float(allowed[r]), float(r)), queue
        return None

    def _start(self, ledger: Ledger, job: int) -> bool:
        """Start the job with its minimum: on one node, over several, or in another pool."""
        low = self.gangs.low_list[job]
        alone = len(self.gangs.wants[job]) == 1 and job not in ledger.pool_of
        if alone and ledger.most(job, self.gangs.elastic_list[job]) < low:
            return False
        return self._put(ledger, job, low) or self._put(ledger, job, low, spread=True) or self._minimum(ledger, job)

    def _try_the_starved_again(self, ledger: Ledger, marks: Reasons) -> int:
        """Start the starved job if it fits by now, else renew its reservation. Returns the job if it still waits, or
        -1."""
        job = self.reserved_for
        if job < 0:
            return -1
        for nodes, amount in self.kept:
            ledger.unblock(nodes, amount)
        self.kept = []
        if self._start(ledger, job):
            self._explain(ledger, np.array([job]), marks)
            self.reserved_for = -1
        else:
            self.kept = reserve(ledger, job)
        return self.reserved_for

    def _reserve(self, ledger: Ledger, job: int) -> Kept:
        """A reservation for the job; empty before its turn and in pauses."""
        s = self.snapshot
        if self._since is None:
            self._since = waits_since(s)
        found = turn(s, job, waits_since=float(self._since[job]), size=1.0, settings=self.settings)
        return reserve(ledger, job) if found is not None and found.has_reservation else []

    def _minimum(self, ledger: Ledger, job: int) -> bool:
        ledger.pool_of.pop(job, None)
        want = minimum_gang(ledger, job)
        if self._quota is not None and not self._within_quota(ledger, job, want):
            return False
        return ledger.try_gang(job, want) is not None

    def _grow_in_place(self, ledger: Ledger, marks: Reasons) -> None:
        """Grow jobs that are not preemptible to their desired size in free capacity."""
        beside = None if self._quota is None else partial(self._quota_slots, ledger)
        grow_in_place(ledger, start_order(self.snapshot), self._allowed(), marks, beside)

    def _allowed(self) -> BoolArray:
        """Jobs that may get something (J)."""
        return np.ones(self.snapshot.jobs, dtype=np.bool_) if self.considered is None else self.considered

    def _raise(self, ledger: Ledger, problem: Problem, marks: Reasons) -> bool:
        """Grow preemptible jobs into what placement left over, steepest slope first. Returns whether any grew."""
        snapshot, gangs = self.snapshot, self.gangs
        attempts = 24 if snapshot.jobs <= 1000 else 8
        now = ledger.replicas[gangs.elastic]
        match = (self.table.replicas == now[:, None]) & (now[:, None] > 0)
        column = np.where(match.any(axis=1), match.argmax(axis=1), -1)
        movable = self.view.free_to_move & (column >= 0) & snapshot.job_preemptible
        rows, columns = self.rows, np.arange(match.shape[1])
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
            if self._put(ledger, job, int(self.table.replicas[job, col])):
                column[job], raised = col, True
                self._explain(ledger, np.array([job]), marks)
            else:
                ledger.restore(job, held)
                value[job, col] = -np.inf
        return raised

    def _explain(self, ledger: Ledger, jobs: IntArray, marks: Reasons) -> None:
        """Set the reasons of placed jobs: their speed under the plan and before, and their weight."""
        count = ledger.replicas[self.gangs.elastic[jobs]]
        replicas = self.table.replicas[jobs]
        at = np.maximum(((replicas <= count[:, None]) & (replicas > 0)).sum(axis=1) - 1, 0)
        speed = np.where(count > 0, self.speed[jobs, at], 0.0)
        running, known = self.view.running[jobs], self.table.known[jobs]
        why = np.where(
            running,
            np.where((count > 0) & (count >= self.view.held[jobs]), _GAIN, _SHRUNK),
            np.where(count > 0, np.where(known, _GAIN, _EXPLORES), _DOES_NOT_FIT),
        )
        numbers = zip(speed.tolist(), self.present_speed[jobs].tolist(), self.weight[jobs].tolist(), strict=True)
        for j, reason, values in zip(jobs.tolist(), why.tolist(), numbers, strict=True):
            marks.set(j, reason, values)


def snapshot_is_tiny(snapshot: Snapshot) -> bool:
    """Few enough jobs and nodes to search exhaustively."""
    return snapshot.jobs <= TINY_JOBS and snapshot.nodes <= TINY_NODES


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


def _holding(ledger: Ledger) -> BoolArray:
    """Jobs that hold something in the ledger (J)."""
    return ledger.snapshot.jobs_of(ledger.replicas > 0)
