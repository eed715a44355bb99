"""The laws of fair queues as functions of (snapshot, plan), which return the violations.

They use only the snapshot, the plan and `fair.shares`, which has its own tests. Two queues are compared below their
nearest common ancestor, in the resources that a job asks for and that are contended there ("counted" below). A parent's
own jobs are one more child of it. Jobs of several roles are checked only as victims.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from diflow.allocator.model.arrays import BoolArray, IntArray
from diflow.allocator.model.plan import Plan, carry_out, keep_plan
from diflow.allocator.model.reasons import Reclaimed, Reserved
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.policies.fair.prepared import prepared
from diflow.allocator.policies.fair.shares import shares_by
from diflow.allocator.policies.settings import PolicySettings
from diflow.allocator.policies.turns import last_older_start, turn_of, waits_since
from diflow.allocator.policies.waiting import Feasibility
from tests.policies.reasons import fixed_room

SLACK = 1e-6
"""Shares that differ by less are equal."""
SETTINGS = PolicySettings()


@dataclass(frozen=True, slots=True)
class Exchange:
    """What one job could lose: `pods` (N) of each of its roles, and the amount by resource."""

    victim: int
    pods: dict[int, IntArray]
    amount: IntArray
    stops: bool


class Cluster:
    """The allocation of a snapshot, and its deserved shares."""

    def __init__(self, snapshot: Snapshot) -> None:
        s = self.s = prepared(snapshot)
        feasible = Feasibility(s)
        self.holds = s.jobs_of(s.held_role)
        self.could_run = np.array([feasible.reason(j) is None and not s.job_refusal[j] for j in range(s.jobs)])
        shares = shares_by(s, (self.could_run | self.holds) & (s.job_queue >= 0))
        self.deserved, self._contended = shares.deserved, shares.contended
        self.pods = np.zeros((s.roles, s.nodes), dtype=np.int64)
        np.add.at(self.pods, (s.held_role, s.held_node), s.held_count)
        self.count = self.pods.sum(axis=1)
        self.free = s.node_allocatable - s.node_foreign - s.usage(s.held_role, s.held_node, s.held_count)
        self.chains = [_upwards(s, q) for q in range(s.queues)]
        self.used = np.zeros((s.queues, len(s.resources)), dtype=np.int64)
        by_job = s.demand_by_job(self.count)
        for j in range(s.jobs):
            if s.job_queue[j] >= 0:
                self.used[self.chains[s.job_queue[j]]] += by_job[j]

    def lacking(self) -> BoolArray:
        """Resources (R) that are contended among the queues at the top."""
        out: BoolArray = self._contended[-1]
        return out

    def sides(self, queue: int, other: int) -> tuple[list[int], list[int]]:
        """The two queues and their ancestors, below the nearest common ancestor; empty for a queue that is an ancestor
        of the other."""
        mine, theirs = self.chains[queue], self.chains[other]
        return [q for q in mine if q not in theirs], [q for q in theirs if q not in mine]

    def counted(self, queue: int, asked: IntArray) -> IntArray:
        """Requested resources (amounts, R) that are contended between the queue and its siblings."""
        out: IntArray = np.flatnonzero((asked > 0) & self._contended[int(self.s.queue_parent[queue])])
        return out

    def part(self, queue: int, asked: IntArray) -> float:
        """Held over deserved of the queue, the largest over the counted resources; infinite if it holds one of which it
        deserves nothing."""
        part = 0.0
        for r in self.counted(queue, asked).tolist():
            share, held = self.deserved[queue, r], self.used[queue, r]
            if held > 0:
                part = max(part, held / share if share > SLACK else math.inf)
        return part

    def is_below(self, side: Sequence[int], asked: IntArray) -> bool:
        """Whether these queues hold less than they deserve of all counted resources, and one counts where they compete
        with the others."""
        if not len(self.counted(side[-1], asked)):
            return False
        counts = ((self.deserved[q] > SLACK)[self.counted(q, asked)].all() for q in side)
        return all(counts) and all(self.part(q, asked) < 1 - SLACK for q in side)

    def lacked_by_one_alone(self, mine: Sequence[int], theirs: Sequence[int], asked: IntArray) -> IntArray:
        """The requested amounts (R) of resources that these queues lack and those do not."""
        out = asked.copy()
        for r in self.counted(mine[-1], asked).tolist():
            lacks = all(self.used[q, r] < self.deserved[q, r] - SLACK for q in mine)
            if not lacks or any(self.used[q, r] < self.deserved[q, r] - SLACK for q in theirs):
                out[r] = 0
        return out

    def is_within(self, job: int, need: IntArray) -> bool:
        """Whether the job's queue and its ancestors deserve this much more of all counted resources."""
        return all(
            (self.used[q] + need <= self.deserved[q] + SLACK)[self.counted(q, need)].all()
            for q in self.chains[self.s.job_queue[job]]
        )

    def is_guaranteed(self, side: Sequence[int], need: IntArray) -> bool:
        """Whether one of these queues has a guarantee that covers this much more of all counted resources."""
        return any(
            len(counted := self.counted(q, need)) > 0
            and bool((self.used[q, counted] + need[counted] <= self.s.queue_guarantee[q, counted]).all())
            for q in side
        )

    def has_to_spare(self, side: Sequence[int], amount: IntArray, asked: IntArray) -> bool:
        """Whether each of these queues is above its share by this much, of a counted resource."""
        for q in side:
            counted = self.counted(q, asked)
            above = (amount > 0) & (self.used[q] - amount >= self.deserved[q] - SLACK)
            if len(counted) and not above[counted].any():
                return False
        return True

    def leaves_more(self, side: Sequence[int], amount: IntArray, asked: IntArray, part: float) -> bool:
        """Whether each of these queues keeps its share, or more than this part of it, of a counted resource of those
        that it would lose with `amount`."""
        for q in side:
            given = counted[amount[counted] > 0] if len(counted := self.counted(q, asked)) else counted
            deserved = self.deserved[q, given]
            left = np.where(deserved > SLACK, (self.used[q] - amount)[given] / np.maximum(deserved, SLACK), math.inf)
            if len(given) and left.max() < 1 - SLACK and left.max() <= part + SLACK:
                return False
        return True

    def keeps_guarantees(self, side: Sequence[int], amount: IntArray, asked: IntArray) -> bool:
        """Whether each of these queues keeps its guarantee of what counts there or further up in `side`, and of what
        was not requested."""
        lacked = self.lacked(side, asked) | (asked == 0)
        if not len(side):
            return True
        sure = np.where(lacked & (amount > 0), self.s.queue_guarantee[list(side)], 0)
        return not ((sure > 0) & (self.used[list(side)] - amount < sure)).any()

    def lacked(self, side: Sequence[int], asked: IntArray) -> BoolArray:
        """For each of these queues, each the parent of the one before: what counts there or further up (R)."""
        out = np.zeros((len(side), len(asked)), dtype=np.bool_)
        for at, q in enumerate(side):
            out[: at + 1, self.counted(q, asked)] = True
        return out

    def fits(self, job: int, role: int, count: int, given: Exchange | None = None) -> bool:
        """Whether `count` more replicas of a job's only role fit on nodes, within caps, and beside what other queues
        could claim of a job that is not preemptible, instead of `given`."""
        s = self.s
        request, nodes = s.role_request[role], s.eligible(role)
        if s.job_pinned[job] and self.pods[role].any():
            nodes = nodes & (self.pods[role] > 0)
        free, used = self.free, self.used
        if given is not None:
            free, used = free.copy(), used.copy()
            for theirs, pods in given.pods.items():
                free += pods[:, None] * s.role_request[theirs]
            used[self.chains[s.job_queue[given.victim]]] -= given.amount
        asked = request > 0
        need = count * request
        for q in self.chains[s.job_queue[job]]:
            if ((used[q] + need > s.queue_cap[q]) & asked).any():
                return False
        if not s.job_preemptible[job] and s.queue_guarantee.any():
            room = np.array(fixed_room(s, keep_plan(s, "law"), job))
            if ((need > room) & asked).any():
                return False
        if not nodes.any():
            return False
        return int((np.maximum(free[nodes][:, asked], 0) // request[asked]).min(axis=1).sum()) >= count

    def wishes(self) -> Iterator[tuple[int, int, int]]:
        """(job, role, count) of jobs of one role that wait for their minimum, or for one more replica."""
        s = self.s
        starts = s.role_starts()
        for j in range(s.jobs):
            role = int(starts[j])
            if s.job_queue[j] < 0 or starts[j + 1] - role != 1 or not self.could_run[j]:
                continue
            if not self.holds[j]:
                yield j, role, int(s.role_min[role])
            elif s.role_min[role] <= self.count[role] < min(s.role_desired[role], s.role_max[role]):
                yield j, role, 1

    def exchanges(self, victim: int) -> Iterator[Exchange]:
        """What the job can lose: single replicas above its minimum, more and more, those of each node first; and all
        it has, if it could start again."""
        s = self.s
        roles = range(int(s.role_starts()[victim]), int(s.role_starts()[victim + 1]))
        if all(s.role_min[r] <= self.count[r] <= s.role_max[r] for r in roles):
            for role in roles:
                there = np.flatnonzero(self.pods[role])
                for first in there.tolist():
                    nodes = [first, *there[there != first][::-1].tolist()]
                    in_order = np.repeat(nodes, self.pods[role][nodes])
                    for taken in range(1, int(self.count[role] - s.role_min[role]) + 1):
                        pods = np.bincount(in_order[:taken], minlength=s.nodes).astype(np.int64)
                        yield Exchange(victim, {role: pods}, taken * s.role_request[role], stops=False)
        if not s.job_pinned[victim]:
            amount = (self.count[list(roles), None] * s.role_request[list(roles)]).sum(axis=0)
            yield Exchange(victim, {r: self.pods[r] for r in roles}, amount, stops=True)

    def displaced(self, victim: int, mine: Sequence[int], asked: IntArray) -> IntArray | None:
        """What the victim's queue would lose if the victim were stopped and started again in place of others: what it
        holds above its minimum, and what jobs hold, those with the fewest replicas first, that it could preempt and
        that hold its minimum of what these queues compete for with the victim's, one alone or together. None if there
        are no such jobs."""
        s = self.s
        held, needs = s.demand_by_job(self.count), s.demand_by_job(s.role_min)[victim]
        counted = self.counted(mine[-1], asked)
        counted = counted[needs[counted] > 0]
        lower = (s.job_queue == s.job_queue[victim]) & (s.job_priority < s.job_priority[victim])
        lower &= s.job_preemptible & ~s.job_pinned
        replicas = np.bincount(s.role_job, weights=self.count, minlength=s.jobs)
        together = np.zeros(len(asked), dtype=np.int64)
        for job in sorted(np.flatnonzero(lower).tolist(), key=lambda job: replicas[job]):
            together = together + held[job]
            for lost in (held[job], together):
                if (lost >= needs)[counted].all():
                    out: IntArray = lost + held[victim] - needs
                    return out
        return None

    def size_to_share(self, job: int) -> float:
        """A job's gang over the shares of its queue and its ancestors; infinite if one already has its share."""
        s = self.s
        roles = range(int(s.role_starts()[job]), int(s.role_starts()[job + 1]))
        need = (s.role_min[list(roles), None] * s.role_request[list(roles)]).sum(axis=0)
        size = 0.0
        for q in self.chains[s.job_queue[job]]:
            if self.part(q, need) >= 1 - SLACK:
                return math.inf
            for r in self.counted(q, need).tolist():
                size = max(size, need[r] / self.deserved[q, r] if self.deserved[q, r] > 0 else math.inf)
        return size

    def has_reservation(self, job: int) -> bool:
        """Whether the job has a reservation now, with an end."""
        size = self.size_to_share(job)
        since = float(waits_since(self.s)[job])
        after = last_older_start(self.s, job, self.holds)
        found = turn_of(self.s, job, waits_since=since, size=size, settings=SETTINGS, after=after)
        return found is not None and self.s.now_seconds < found.until < math.inf


def shares_are_reached(snapshot: Snapshot, plan: Plan) -> list[str]:
    """Law 13: after the plan no queue is below its share if one exchange with one job could change that.

    For each claimant, a waiting job (for its minimum) or a running one (for one more replica), and each preemptible
    victim of a queue that is neither an ancestor nor a descendant of the claimant's: if

    * the claimant's queues below the nearest common ancestor hold less than they deserve of all counted resources, and
      the victim's there hold more of a counted resource, by at least what the victim would lose; or a guarantee there
      covers the claimant; and
    * the victim's queues and the common ancestors keep their guarantees, and, guarantees aside, the victim was stopped
      fewer than `most_stops` times; and if it would start again in place of jobs of lower priority of its own queue,
      its queues keep their guarantees without those, and their shares or a larger part of them than the claimant's has;
    * then the claimant does not fit, on nodes and within caps, in idle capacity plus what the victim would lose:
      replicas above its minimum, or its whole gang.

    A claimant that is not preemptible is not checked while capacity may be reserved for an older gang.
    """
    after = Cluster(carry_out(snapshot, plan))
    s = after.s
    victims = [j for j in np.flatnonzero(after.holds & s.job_preemptible).tolist() if s.job_queue[j] >= 0]
    may_be_kept = bool((~after.holds & (s.now_seconds - waits_since(s) >= SETTINGS.reserve_after_seconds)).any())
    out = []
    for job, role, count in after.wishes():
        if may_be_kept and not s.job_preemptible[job]:
            continue
        need = count * s.role_request[role]
        for victim in victims:
            mine, theirs = after.sides(int(s.job_queue[job]), int(s.job_queue[victim]))
            above = [q for q in after.chains[s.job_queue[job]] if q not in mine]
            if not mine or not theirs:
                continue
            sure = after.is_guaranteed(mine, need)
            if not sure and not (after.is_below(mine, need) and (not after.holds[job] or after.is_within(job, need))):
                continue
            often = not sure and s.job_restarts[victim] >= SETTINGS.most_stops
            instead = after.displaced(victim, mine, need)
            returns = instead is not None and not (
                after.keeps_guarantees(theirs, instead, need)
                and after.keeps_guarantees(above, instead - need, need)
                and after.leaves_more(theirs, instead, need, max(after.part(q, need) for q in mine))
            )
            for given in after.exchanges(victim):
                if (
                    not (given.stops and (often or (not sure and returns)))
                    and (sure or after.has_to_spare(theirs, given.amount, need))
                    and after.keeps_guarantees(theirs, given.amount, need)
                    and after.keeps_guarantees(above, given.amount - need, need)
                    and after.fits(job, role, count, given)
                ):
                    what = "stops" if given.stops else f"gives {sum(int(p.sum()) for p in given.pods.values())}"
                    right = "its guarantee" if sure else "its share"
                    names = s.job_names
                    out.append(f"law 13: {names[job]} has {count} within {right} if {names[victim]} {what}")
                    break
    return out


def idle_capacity_is_used(snapshot: Snapshot, plan: Plan) -> list[str]:
    """Law 14: after the plan, a job of one role that fits on nodes and within caps waits only for a reservation.

    The job is not preemptible or has a higher priority (otherwise it could borrow the capacity), and the reservation is
    for a job of its priority or a higher one, unless its gang is above its queue's share. The reservation has an end:
    that of the named job, or of another waiting job, because the named one may have started by the same plan.
    """
    before, after = Cluster(snapshot), Cluster(carry_out(snapshot, plan))
    s, names = after.s, snapshot.job_names
    waiting = [j for j in np.flatnonzero(~after.holds & after.could_run).tolist() if s.job_queue[j] >= 0]
    out = []
    for job, role, count in after.wishes():
        if after.holds[job] or not after.fits(job, role, count):
            continue
        reason = plan.reasons[job]
        other = names.index(reason.job) if isinstance(reason, Reserved) else job
        if other == job:
            out.append(f"law 14: {names[job]} waits ({reason.word}) though it fits")
        elif s.job_preemptible[job] and s.job_priority[job] <= s.job_priority[other]:
            out.append(f"law 14: {names[job]} could borrow the capacity that is reserved for {names[other]}")
        elif not any(
            s.job_priority[o] >= s.job_priority[job] or not after.is_within(job, count * s.role_request[role])
            for o in ([other] if not after.holds[other] else waiting)
        ):
            out.append(f"law 14: {names[job]} waits for {names[other]}, which does not come before it")
        elif not any(before.has_reservation(o) or after.has_reservation(o) for o in [other, *waiting]):
            out.append(f"law 14: {names[job]} waits for {names[other]}, and there is no end to it")
    return out


def who_takes_has_less(snapshot: Snapshot, plan: Plan) -> list[str]:
    """Law 15: a job that loses replicas to another queue loses them to one that had a smaller part of its share.

    For each job with that reason: before the plan the claimant's queues below the nearest common ancestor held less
    than they deserve of the counted resources that the claimant asks for and the victim lost, or of one such resource
    of which the victim's queues lacked nothing, or lacked a guarantee. After it the victim's queues there keep their
    guarantees, and keep their share of a counted resource or a larger part of it than the poorest claimant's. Queues in
    which jobs lost replicas for another reason are not checked, nor claimants that end with what they had or in whose
    queues a job lost replicas: they only replace what a third queue took. A job that has as many replicas as before, on
    other nodes, lost some and got others: those of lower priority in its queue may have lost theirs to it. Neither are
    queues checked that contain another victim and its claimant: the gangs of both may differ in size.

    The claimant may also have what a third job took from the victim, if both losses are right in this sense, and the
    third job ends with no more than it had. It may be of the claimant's queue and of lower priority. If nothing is
    contended between claimant and victim, it may itself have lost to the claimant, and replaced that.
    """
    law = _Losses(snapshot, plan)
    out: list[str] = []
    judged = []
    for victim, claimant in law.lost_to:
        direct = law.claim(claimant, victim)
        if direct is None:
            out.append(f"law 15: {law.told(victim, claimant)}, whose queue is its own, above or below")
            continue
        # The direct way may be wrong in the end although the queue lacked something.
        ways = [*([[direct]] if direct.is_right else law.ways_by_priority(victim, claimant))]
        ways += law.ways_through_third_queues(victim, claimant)
        if not ways:
            out.append(f"law 15: {law.told(victim, claimant)}, whose queue has what it deserves")
        judged.append((victim, claimant, ways or [[direct]]))
    least: dict[int, float] = {}
    for _, _, ways in judged:
        for q in ways[0][0].theirs:
            least[q] = min(ways[0][0].had, least.get(q, math.inf))
    for victim, claimant, ways in judged:
        found = [[what for claim in way for what in law.broken_by(claim, least)] for way in ways]
        if all(found):
            out += [f"law 15: {law.told(victim, claimant)}{what}" for what in found[0]]
    return out


@dataclass(frozen=True, slots=True)
class _Claim:
    """What one job asks for of another queue: `asked` (R), of the victim's queues below the nearest common ancestor.
    `had`: the part of its share that the claimant's queue had before, -1 if that does not matter."""

    asked: IntArray
    theirs: list[int]
    had: float
    is_right: bool


class _Losses:
    """The losses of a plan to other queues: `lost_to` has (victim, claimant)."""

    def __init__(self, snapshot: Snapshot, plan: Plan) -> None:
        self.before, self.after = Cluster(snapshot), Cluster(carry_out(snapshot, plan))
        s = self._s = self.before.s
        lost = s.jobs_of(self.after.count < self.before.count)
        to = {v: plan.reasons[v] for v in np.flatnonzero(lost).tolist()}
        self.lost_to = [(v, s.job_names.index(why.job)) for v, why in to.items() if isinstance(why, Reclaimed)]
        left_a_node: BoolArray = (self.after.pods < self.before.pods).sum(axis=1) > 0
        moved = s.jobs_of(left_a_node)
        self._losers = self._queues_of(moved)
        by_claim = np.isin(np.arange(s.jobs), [victim for victim, _ in self.lost_to])
        self._otherwise = self._queues_of(lost & ~by_claim)
        for victim, claimant in self.lost_to:
            mine = self.before.chains[s.job_queue[victim]]
            same = s.job_queue == s.job_queue[victim]
            if (moved & ~lost & same & (s.job_priority > s.job_priority[victim])).any():
                self._otherwise.update(mine)
            self._otherwise.update(q for q in mine if q in self.before.chains[s.job_queue[claimant]])

    def _queues_of(self, jobs: BoolArray) -> set[int]:
        s = self._s
        return {q for j in np.flatnonzero(jobs & (s.job_queue >= 0)) for q in self.before.chains[s.job_queue[j]]}

    def told(self, victim: int, claimant: int) -> str:
        return f"{self._s.job_names[victim]} lost to {self._s.job_names[claimant]}"

    def claim(self, claimant: int, victim: int) -> _Claim | None:
        """The claim to what the victim lost; None if one queue contains the other."""
        s, before, after = self._s, self.before, self.after
        gave = (s.role_request * (before.count - after.count)[:, None])[s.role_job == victim].sum(axis=0)
        role = int(s.role_starts()[claimant])
        mine, theirs = before.sides(int(s.job_queue[claimant]), int(s.job_queue[victim]))
        if not mine or not theirs:
            return None
        asked = np.where(gave > 0, s.role_request[role], 0)
        if not len(before.counted(mine[-1], asked)):
            asked = s.role_request[role]
        if not before.is_below(mine, asked):
            alone = before.lacked_by_one_alone(mine, theirs, np.where(gave > 0, asked, 0))
            asked = alone if len(before.counted(mine[-1], alone)) else asked
        sure = any((before.used[q] < s.queue_guarantee[q])[before.counted(q, asked)].any() for q in mine)
        free = sure or bool(self._losers & set(mine)) or before.count[role] >= after.count[role]
        had = -1.0 if free else max(before.part(q, asked) for q in mine)
        return _Claim(asked, theirs, had, free or before.is_below(mine, asked))

    def ways_by_priority(self, victim: int, claimant: int) -> Iterator[list[_Claim]]:
        """The claims on the victim of jobs of the claimant's queue that it may have preempted."""
        for third in self._thirds(victim, claimant):
            first = self.claim(third, victim)
            same = self._s.job_queue[third] == self._s.job_queue[claimant]
            lower = self._s.job_priority[third] < self._s.job_priority[claimant]
            if first is not None and same and lower and self._lacks(third, victim):
                yield [first]

    def ways_through_third_queues(self, victim: int, claimant: int) -> Iterator[list[_Claim]]:
        """The claims of a third job on the victim and of the claimant on the third job, where both are right."""
        for third in self._thirds(victim, claimant):
            first, then = self.claim(third, victim), self.claim(claimant, third)
            if first is None or then is None or not self._lacks(claimant, third):
                continue
            replaced = (third, claimant) in self.lost_to and not self._compete(claimant, victim)
            if replaced or self._lacks(third, victim):
                yield [first, then]

    def _thirds(self, victim: int, claimant: int) -> Iterator[int]:
        """Other jobs that end with no more than they had."""
        starts = self._s.role_starts()
        for third in np.flatnonzero(self.before.could_run & (self._s.job_queue >= 0)).tolist():
            role = int(starts[third])
            if third not in (victim, claimant) and self.after.count[role] <= self.before.count[role]:
                yield third

    def _lacks(self, claimant: int, victim: int) -> bool:
        """Whether the claimant's queues lacked what it asks for, or a guarantee of it."""
        s, before = self._s, self.before
        mine, _ = before.sides(int(s.job_queue[claimant]), int(s.job_queue[victim]))
        asked = s.role_request[int(s.role_starts()[claimant])]
        sure = any((before.used[q] < s.queue_guarantee[q])[before.counted(q, asked)].any() for q in mine)
        return sure or before.is_below(mine, asked)

    def _compete(self, claimant: int, victim: int) -> bool:
        """Whether the claimant asks for anything that is contended between its queue and the victim's."""
        mine, _ = self.before.sides(int(self._s.job_queue[claimant]), int(self._s.job_queue[victim]))
        asked = self._s.role_request[int(self._s.role_starts()[claimant])]
        return len(self.before.counted(mine[-1], asked)) > 0

    def broken_by(self, claim: _Claim, least: dict[int, float]) -> list[str]:
        """What the victim's queues lost although they keep it by the law. `least`: the part of its share that the
        poorest claimant of each queue had."""
        s, before, after = self._s, self.before, self.after
        out = []
        for q, lacked in zip(claim.theirs, before.lacked(claim.theirs, claim.asked), strict=True):
            if q in self._otherwise:
                continue
            counted = before.counted(q, claim.asked)
            sure_of = np.minimum(s.queue_guarantee[q], before.used[q])
            if (after.used[q] < sure_of)[lacked].any():
                out.append(f" what {s.queue_names[q]} is guaranteed")
            has = (after.used[q] >= after.deserved[q] - SLACK) & (before.used[q] > after.used[q])
            had = min(claim.had, least.get(q, math.inf))
            if len(counted) and not has[counted].any() and after.part(q, claim.asked) < min(1.0, had) - SLACK:
                out.append(", which had a larger part than is left")
        return out


def queues_hold(snapshot: Snapshot, plan: Plan) -> list[str]:
    """Laws 13, 14 and 15."""
    return [
        *shares_are_reached(snapshot, plan),
        *idle_capacity_is_used(snapshot, plan),
        *who_takes_has_less(snapshot, plan),
    ]


def _upwards(snapshot: Snapshot, queue: int) -> list[int]:
    chain = [queue]
    while snapshot.queue_parent[chain[-1]] >= 0 and int(snapshot.queue_parent[chain[-1]]) not in chain:
        chain.append(int(snapshot.queue_parent[chain[-1]]))
    return chain
