"""`fair`: queues with weights, guarantees and caps; gangs; DRF; priorities; backfill, preempt and reclaim.

The semantics are kube-batch's, without its faults. A cycle is a list of steps over one ledger, each a small function;
settings name and order them:

    allocate   queues in turn, the one that holds least of what it deserves first: its best gang, then single replicas
    backfill   what is still idle goes to anybody, queues above their share too: it can be reclaimed
    preempt    inside a queue, from lower priorities, all or nothing
    reclaim    across queues, from those above what they deserve, all or nothing
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

import numpy as np

from diflow.allocator.arrays import BoolArray, FloatArray, IntArray
from diflow.allocator.fairness.orders import node_scores, ordered_jobs, queue_share
from diflow.allocator.fairness.shares import deserved, dominant_share, queue_demand, total_room
from diflow.allocator.fairness.victims import make_room
from diflow.allocator.ledger import Ledger, ancestors
from diflow.allocator.plan import Plan, Why, evictions
from diflow.allocator.settings import PolicySettings
from diflow.allocator.settle import no_worse_than_keeping, settled
from diflow.allocator.snapshot import Snapshot
from diflow.allocator.waiting import Feasibility, Kept, Reasons, explain_waiting, minimum_gang, reserve

MOST_TRANSACTIONS = 64
"""Preemptions and reclaims tried in one cycle: each may look at hundreds of victims. The next cycle goes on."""
RANKS = 4
"""Priorities that the measure tells apart (the lower ones count as one)."""


class FairPolicy:
    """Fair queues."""

    name = "fair"

    def __init__(self, settings: PolicySettings | None = None) -> None:
        self._settings = settings or PolicySettings()
        self._last: MetShares | None = None

    def allocate(self, job: int, snapshot: Snapshot) -> Plan:
        """Start the newcomer within what its queue deserves, or in what is idle; nobody else is touched."""
        only = np.zeros(snapshot.jobs, dtype=np.bool_)
        only[job] = True
        return Cycle(snapshot, self._settings, considered=only).run(("allocate", "backfill"), self.name)

    def optimize(self, snapshot: Snapshot) -> Plan:
        plan = settled(snapshot, self._cycle)
        if evictions(snapshot, plan) == 0:
            return plan
        gentle = Cycle(snapshot, self._settings).run(("allocate", "backfill"), self.name)
        if self.measure(snapshot, plan) < self.measure(snapshot, gentle) - 1e-9:
            plan = gentle
        return no_worse_than_keeping(snapshot, (lambda: plan,), self.measure, self.name)

    def measure(self, snapshot: Snapshot, plan: Plan) -> float:
        """What of the deserved shares is met, jobs of higher priority counted first and far more."""
        met = self._last
        if met is None or met.snapshot is not snapshot:
            met = self._last = MetShares(snapshot)
        return met.of(plan)

    def _cycle(self, snapshot: Snapshot) -> Plan:
        return Cycle(snapshot, self._settings).run(self._settings.steps, self.name)


class MetShares:
    """The measure of one snapshot's plans: what is held within the deserved shares, weighted by priority."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        total = total_room(snapshot)
        self._shares = deserved(snapshot, queue_demand(snapshot, snapshot.role_desired), total)
        self._total = np.maximum(total, 1)
        levels = np.unique(snapshot.job_priority)[-(RANKS - 1) :]
        self._levels = len(levels) + 1
        rank = np.searchsorted(levels, snapshot.job_priority, side="right")
        # A row for each queue and level, the highest first; the last for jobs without a queue.
        row = snapshot.job_queue * self._levels + (len(levels) - rank)
        self._row = np.where(snapshot.job_queue >= 0, row, snapshot.queues * self._levels)[snapshot.role_job]

    def of(self, plan: Plan) -> float:
        """Σ over queues and resources of what the plan gives within the share, priorities counted one by one."""
        s, levels = self.snapshot, self._levels
        held = np.zeros((s.queues * levels + 1, len(s.resources)))
        np.add.at(held, self._row[plan.role], s.role_request[plan.role] * plan.count[:, None])
        # Higher priorities use up the share first.
        so_far = np.cumsum(held[:-1].reshape(s.queues, levels, -1), axis=1)
        met = np.diff(np.minimum(so_far, self._shares[:, None, :]), axis=1, prepend=0.0)
        by_level = (met / self._total).sum(axis=(0, 2))
        return float(by_level @ 1e3 ** np.arange(levels - 1, -1, -1))


class Cycle:
    """One cycle over one ledger. `considered`: the only jobs that may be given anything."""

    def __init__(self, snapshot: Snapshot, settings: PolicySettings, considered: BoolArray | None = None) -> None:
        self.snapshot, self.settings = snapshot, settings
        self.ledger = Ledger(snapshot)
        self.ledger.scores = node_scores(snapshot, settings.node_order)
        self.allowed = (snapshot.job_queue >= 0) & (
            np.ones(snapshot.jobs, dtype=np.bool_) if considered is None else considered
        )
        self.total = total_room(snapshot)
        self.feasible = Feasibility(snapshot)
        self.impossible: dict[int, tuple[Why, tuple[float, float, float]]] = {}
        possible = self._possible()
        self.shares = deserved(
            snapshot, queue_demand(snapshot, snapshot.role_desired, within=possible), total=self.total
        )
        self.chains = ancestors(snapshot.queue_parent)
        self.marks = Reasons(snapshot)
        self.reserved_for = -1
        self.kept: Kept = []
        self.failed: dict[tuple[int, int, bool], int] = {}
        self.transactions = 0

    def run(self, steps: tuple[str, ...], name: str) -> Plan:
        """All the steps, what is left to anybody, and the reasons."""
        self._serve_the_oldest()
        for step in steps:
            getattr(self, step)()
        if self.transactions:
            # What evictions left over goes to whoever fits, or they would wait beside free room.
            self.failed.clear()
            self._try_the_oldest_again()
            self.backfill()
        self._explain()
        return self.marks.plan(self.ledger, name)

    def allocate(self) -> None:
        """Gangs and replicas within what their queues deserve."""
        self._serve(within_share=True)

    def backfill(self) -> None:
        """What is idle to anybody who fits."""
        self._serve(within_share=False)

    def preempt(self) -> None:
        """Inside a queue: room for jobs of higher priority."""
        s = self.snapshot
        holds, hopeless = self._holders(), set[tuple[int, ...]]()
        for job in self._wanting():
            if self.transactions >= MOST_TRANSACTIONS:
                return
            look = (self.ledger.job_queue[job], int(s.job_priority[job]), *self._look(job))
            if look in hopeless:
                continue
            lower = holds & (s.job_queue == look[0]) & s.job_preemptible & (s.job_priority < look[1])
            hopeless.add(look)
            if not lower.any():
                continue
            for want in self._wishes(job):
                victims = self._transaction(job, want, np.flatnonzero(lower), lambda _job, _amount: True)
                if victims is not None:
                    self._note(job, victims, Why.PREEMPTED_FOR_PRIORITY)
                    holds = self._holders()
                    hopeless.clear()
                    break

    def reclaim(self) -> None:
        """Across queues: room for jobs of queues below what they deserve."""
        hopeless = set[tuple[int, ...]]()
        for job in self._wanting():
            if self.transactions >= MOST_TRANSACTIONS:
                return
            queue = self.ledger.job_queue[job]
            look = (queue, *self._look(job))
            if look in hopeless:
                continue
            hopeless.add(look)
            for want in self._wishes(job):
                need = self._amount(want)
                if not self._within(queue, need):
                    continue
                candidates = self._above_their_share(queue, need > 0)
                if not candidates.any():
                    break
                victims = self._transaction(job, want, np.flatnonzero(candidates), self._reclaimable(queue, need > 0))
                if victims is not None:
                    self._note(job, victims, Why.RECLAIMED)
                    hopeless.clear()
                    break

    def _look(self, job: int) -> tuple[int, ...]:
        """What tells two jobs apart when victims are sought for them: what they ask for and what they hold."""
        s, ledger = self.snapshot, self.ledger
        return tuple(
            number
            for role in ledger.roles_of(job)
            for number in (
                ledger.shape(role),
                int(ledger.replicas[role]),
                int(s.role_min[role]),
                int(s.role_desired[role]),
            )
        )

    def _above_their_share(self, queue: int, asked: BoolArray) -> BoolArray:
        """Jobs that may have to give to `queue`: those of queues beside it that hold more than they deserve."""
        s = self.snapshot
        over = np.array([self._over(q, asked) for q in range(s.queues)])
        beside = np.array([queue not in self.chains[q] and q not in self.chains[queue] for q in range(s.queues)])
        out: BoolArray = (over & beside)[s.job_queue] & (s.job_queue >= 0) & s.job_preemptible & self._holders()
        return out

    def _reclaimable(self, queue: int, asked: BoolArray) -> Callable[[int, IntArray], bool]:
        """Whether a victim's queue, and all above it up to the common parent, keep what they deserve."""
        common = set(self.chains[queue])

        def may_take(victim: int, amount: IntArray) -> bool:
            for q in self.chains[self.ledger.job_queue[victim]]:
                if q in common:
                    return True
                left = self.ledger.queue_used[q] - amount
                if (left < self.shares[q] - 1e-9)[asked & (amount > 0)].any():
                    return False
            return True

        return may_take

    # -- the parts --

    def _possible(self) -> BoolArray:
        """Jobs that could run on an empty cluster. Others ask for nothing: they must not hold shares back."""
        out = np.zeros(self.snapshot.jobs, dtype=np.bool_)
        holds = self._holders()
        for j in range(self.snapshot.jobs):
            if self.snapshot.job_queue[j] < 0:
                self.impossible[j] = (Why.NO_SUCH_QUEUE, (0.0, 0.0, 0.0))
                continue
            reason = None if holds[j] else self.feasible.reason(self.ledger, j)
            if reason is None:
                out[j] = True
            else:
                self.impossible[j] = reason
        return out

    def _holders(self) -> BoolArray:
        out = np.zeros(self.snapshot.jobs, dtype=np.bool_)
        out[self.snapshot.role_job[self.ledger.replicas > 0]] = True
        return out

    def _waiting(self) -> list[int]:
        order = ordered_jobs(self.snapshot, self.ledger, self.settings.job_order)
        waits = self.allowed & ~self._holders()
        return [j for j in order[waits[order]].tolist() if j not in self.impossible]

    def _wanting(self) -> list[int]:
        """Jobs that wait or hold less than they ask for, in order."""
        s = self.snapshot
        order = ordered_jobs(s, self.ledger, self.settings.job_order)
        short = np.zeros(s.jobs, dtype=np.bool_)
        short[s.role_job[self.ledger.replicas < s.role_desired]] = True
        short &= self.allowed
        return [j for j in order[short[order]].tolist() if j not in self.impossible]

    def _wishes(self, job: int) -> list[dict[int, int]]:
        """What to evict others for, the most wished first: its gang, or more replicas of one that runs."""
        s, ledger = self.snapshot, self.ledger
        if not ledger.holds(job):
            return [minimum_gang(ledger, job)]
        if not ledger.within_limits(job):
            # It lost pods, or its minimum was raised: all that is missing or nothing.
            missing = {r: max(0, int(s.role_min[r] - ledger.replicas[r])) for r in ledger.roles_of(job)}
            return [missing] if not any(ledger.replicas[r] > s.role_max[r] for r in missing) else []
        out: list[dict[int, int]] = []
        for role in ledger.roles_of(job):
            more = int(s.role_desired[role] - ledger.replicas[role])
            while more > 0 and ledger.replicas[role] >= s.role_min[role]:
                out.append({role: more})
                more //= 2
        return out

    def _amount(self, want: dict[int, int]) -> IntArray:
        out = np.zeros(len(self.snapshot.resources), dtype=np.int64)
        for role, count in want.items():
            out += count * self.snapshot.role_request[role]
        return out

    def _gang_amount(self, job: int) -> IntArray:
        return self._amount(minimum_gang(self.ledger, job))

    def _within(self, queue: int, need: IntArray) -> bool:
        """Whether the queue and all above it stay within what they deserve with this much more, in what is asked."""
        asked = need > 0
        for q in self.chains[queue]:
            if ((self.ledger.queue_used[q] + need)[asked] > self.shares[q][asked] + 1e-9).any():
                return False
        return True

    def _over(self, queue: int, asked: BoolArray) -> bool:
        """Whether the queue or one above it is above what it deserves in something that is asked."""
        return any(bool((self.ledger.queue_used[q] > self.shares[q] + 1e-9)[asked].any()) for q in self.chains[queue])

    def _serve_the_oldest(self) -> None:
        """The gang that waits longest, of a queue that deserves more, goes first; or room is kept for it."""
        s = self.snapshot
        waited = s.now_seconds - s.job_created_seconds
        long = self.allowed & ~self._holders() & (waited >= self.settings.reserve_after_seconds)
        order = np.lexsort((np.arange(s.jobs), s.job_created_seconds, -s.job_priority))
        for job in order[long[order]].tolist():
            if job in self.impossible:
                continue
            need = self._gang_amount(job)
            queue = int(s.job_queue[job])
            asked = need > 0
            # A gang may be larger than all that its queue deserves: the first replica above the share brings it whole.
            if any((self.ledger.queue_used[q] >= self.shares[q])[asked].any() for q in self.chains[queue]):
                continue
            if any(self.ledger.queue_room(job, r) < s.role_min[r] for r in self.ledger.roles_of(job)):
                continue
            if self.ledger.try_gang(job, minimum_gang(self.ledger, job)) is not None:
                self._mark(job, Why.FITS)
                continue
            # Room is kept from those that come later, not from those that come first.
            for other in self._waiting():
                if s.job_priority[other] > s.job_priority[job]:
                    self._start(other, within_share=True)
            self.kept = reserve(self.ledger, job)
            if self.kept:
                self.reserved_for = job
                self.failed.clear()
                return

    def _serve(self, *, within_share: bool) -> None:
        """Queues in turn, by share; of each its best job: first whole gangs, then single replicas by dominant share."""
        s = self.snapshot
        order = ordered_jobs(s, self.ledger, self.settings.job_order)
        holds = self._holders()
        gangs: list[list[int]] = [[] for _ in range(s.queues)]
        for j in order[(self.allowed & ~holds)[order]][::-1].tolist():
            if j not in self.impossible:
                gangs[int(s.job_queue[j])].append(j)
        growing: list[list[tuple[float, int, int]]] = [[] for _ in range(s.queues)]
        short = np.zeros(s.jobs, dtype=np.bool_)
        short[s.role_job[self.ledger.replicas < s.role_desired]] = True
        place = np.empty(s.jobs, dtype=np.int64)
        place[order] = np.arange(s.jobs)
        for j in np.flatnonzero(short & holds & self.allowed).tolist():
            if self.ledger.within_limits(j):
                self._enlist(growing, j, place)
        heap = [(self._key(q), q) for q in range(s.queues) if gangs[q] or growing[q]]
        heapq.heapify(heap)
        while heap:
            _, q = heapq.heappop(heap)
            # Whoever does not fit changes nothing: the queue's next one is tried at once.
            while gangs[q]:
                job = gangs[q].pop()
                if self._start(job, within_share=within_share):
                    if short[job]:
                        self._enlist(growing, job, place)
                    break
            else:
                while growing[q] and not self._grow(growing, q, place, within_share=within_share):
                    pass
            if gangs[q] or growing[q]:
                heapq.heappush(heap, (self._key(q), q))

    def _key(self, queue: int) -> tuple[float, ...]:
        """Order of queues: settings name the functions."""
        out: list[float] = []
        for name in self.settings.queue_order:
            if name == "proportion":
                # A queue in a full parent waits with it: the parent's share counts first.
                out += [queue_share(self.ledger.queue_used[q], self.shares[q]) for q in reversed(self.chains[queue])]
        return tuple(out)

    def _start(self, job: int, *, within_share: bool) -> bool:
        s, ledger = self.snapshot, self.ledger
        roles = ledger.roles_of(job)
        queue = ledger.job_queue[job]
        if within_share and not self._within(queue, self._gang_amount(job)):
            return False
        key = (ledger.shape(roles[0]), queue if ledger.capped else -1, len(roles) > 1)
        low = int(s.role_min[roles[0]])
        if len(roles) == 1 and self.failed.get(key, 2**62) <= low:
            return False
        if ledger.try_gang(job, minimum_gang(ledger, job)) is None:
            if len(roles) == 1:
                self.failed[key] = min(low, self.failed.get(key, 2**62))
            return False
        self._mark(job, Why.FITS)
        return True

    def _enlist(self, growing: list[list[tuple[float, int, int]]], job: int, place: IntArray) -> None:
        amount = sum(
            (self.ledger.replicas[r] * self.snapshot.role_request[r] for r in self.ledger.roles_of(job)),
            np.zeros(len(self.snapshot.resources), dtype=np.int64),
        )
        share = float(dominant_share(amount, self.total))
        heapq.heappush(growing[self.ledger.job_queue[job]], (share, int(place[job]), job))

    def _grow(
        self, growing: list[list[tuple[float, int, int]]], queue: int, place: IntArray, *, within_share: bool
    ) -> bool:
        """One more replica for the job of the queue with the smallest dominant share; False if it gets none."""
        s, ledger = self.snapshot, self.ledger
        _, _, job = heapq.heappop(growing[queue])
        for role in ledger.roles_of(job):
            if ledger.replicas[role] >= s.role_desired[role]:
                continue
            if within_share and not self._within(queue, s.role_request[role]):
                continue
            if ledger.try_gang(job, {role: 1}) is not None:
                if self.marks.why[job] != int(Why.FITS):
                    self._mark(job, Why.GROWN)
                self._enlist(growing, job, place)
                return True
        return False

    def _transaction(
        self, job: int, want: dict[int, int], victims: IntArray, may_take: Callable[[int, IntArray], bool]
    ) -> list[int] | None:
        """Search for victims, if caps allow the gang at all and this cycle has not searched enough."""
        s, ledger = self.snapshot, self.ledger
        if self.transactions >= MOST_TRANSACTIONS or any(ledger.queue_room(job, r) < n for r, n in want.items()):
            return None
        self.transactions += 1
        # Lowest priority first, then the youngest: it loses least.
        order = victims[np.lexsort((victims, -s.job_created_seconds[victims], s.job_priority[victims]))]
        above = self.reserved_for >= 0 and s.job_priority[job] > s.job_priority[self.reserved_for]
        if above:
            self._lift()
        found = make_room(ledger, job, want, order[order != job].tolist(), may_take)
        if above:
            self.kept = reserve(ledger, self.reserved_for)
        if found is not None:
            self.failed.clear()
        return found

    def _try_the_oldest_again(self) -> None:
        """Whom room is kept for may fit by now; else it is kept on."""
        job = self.reserved_for
        if job < 0:
            return
        self._lift()
        if self.ledger.holds(job) or self.ledger.try_gang(job, minimum_gang(self.ledger, job)) is not None:
            self._mark(job, Why.FITS)
            self.reserved_for = -1
        else:
            self.kept = reserve(self.ledger, job)

    def _lift(self) -> None:
        """Give back what is kept for the gang that waits longest."""
        for nodes, amount in self.kept:
            self.ledger.unblock(nodes, amount)
        self.kept = []

    def _note(self, job: int, victims: list[int], why: Why) -> None:
        self._mark(job, Why.FITS)
        for victim in victims:
            got = sum(int(self.ledger.replicas[r]) for r in self.ledger.roles_of(victim))
            self.marks.set(victim, why, (got, 0.0, 0.0), job)

    def _mark(self, job: int, why: Why) -> None:
        got = sum(int(self.ledger.replicas[r]) for r in self.ledger.roles_of(job))
        wanted = sum(int(self.snapshot.role_desired[r]) for r in self.ledger.roles_of(job))
        queue = int(self.snapshot.job_queue[job])
        self.marks.set(job, why, (got, wanted, self._share_of(queue)), queue)

    def _share_of(self, queue: int) -> float:
        share = queue_share(self.ledger.queue_used[queue], self.shares[queue])
        return share if np.isfinite(share) else 0.0

    def _explain(self) -> None:
        """The reasons of those that wait."""
        s = self.snapshot
        holds = self._holders()
        kept = bool(self.kept)
        self._lift()
        for j in np.flatnonzero(~holds).tolist():
            if self.marks.why[j] in (int(Why.PREEMPTED_FOR_PRIORITY), int(Why.RECLAIMED)):
                if kept and self.ledger.fits(j, minimum_gang(self.ledger, j)):
                    self.marks.set(
                        j, Why.RESERVED, (float(s.role_min[self.ledger.roles_of(j)[0]]), 0.0, 0.0), self.reserved_for
                    )
                continue
            if j in self.impossible:
                self.marks.set(j, *self.impossible[j], int(s.job_queue[j]))
                continue
            explain_waiting(self.ledger, j, self.reserved_for, self.marks)
            if self.reserved_for == j:
                self.marks.set(j, Why.NO_ROOM, (float(s.role_min[self.ledger.roles_of(j)[0]]), 0.0, 0.0))


def deserved_table(snapshot: Snapshot, settings: PolicySettings | None = None) -> tuple[FloatArray, IntArray]:
    """(deserved, allocated), each Q×R: what `diflow queue` shows."""
    cycle = Cycle(snapshot, settings or PolicySettings())
    return cycle.shares, cycle.ledger.queue_used


__all__ = ["Cycle", "FairPolicy", "MetShares", "deserved_table"]
