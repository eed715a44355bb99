"""A plain cycle of kube-batch, to compare `fair` with in streams. A baseline, not a policy to run a cluster with.

Like kube-batch (its default plugins gang, priority, drf and proportion, each action once a cycle):
1. `allocate` serves the queue with the smallest ratio of allocated to deserved share, the largest over all resources. A
   queue is skipped when it holds its share in *every* resource. That is checked before a job, without its request: the
   last job may lift its queue above the share. Jobs come by priority, gangs that are not ready first, then by dominant
   share, then by creation. A job that does not fit delays no other, and there are no reservations.
2. `backfill` starts jobs without requests on any eligible node.
3. `preempt` takes from jobs of the same queue with lower priority.
4. `reclaim` takes from other queues, for queues that are not skipped, as long as the victim's queue keeps its share in
   *every* resource.
5. A victim is a running replica whose gang keeps its minimum without it, or one of a gang with minimum 1. So no whole
   gang of two or more is ever stopped.
Unlike kube-batch: shares are water-filled for each resource separately (`fair.shares`); evictions happen with the whole
gang that they are for or not at all, also in `reclaim`; idle capacity is used before evictions; a job takes nothing
from itself; and the reasons only say whether a job fits.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

import numpy as np

from diflow.allocator.model.arrays import IntArray
from diflow.allocator.model.ledger import Ledger
from diflow.allocator.model.plan import Plan, make_plan
from diflow.allocator.model.reasons import KEPT, DoesNotFit, Fits, Reason
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.model.views import PODS
from diflow.allocator.policies.fair.shares import deserved_by

_ROUNDING = 1e-9
"""Tolerance of shares, in base units."""
_ONE: IntArray = np.ones(1, dtype=np.int64)

MayTake = Callable[[int, int], bool]
"""(job, role) → whether one replica may be taken, in the current state of the ledger."""
Key = tuple[int, bool, float, float, int]


class KubeBatchPolicy:
    """The four actions, one after the other."""

    name = "kube-batch"

    def optimize(self, snapshot: Snapshot) -> Plan:
        session = _Session(snapshot)
        session.allocate()
        session.backfill()
        session.preempt()
        session.reclaim()
        ledger = session.ledger
        before, after = snapshot.jobs_of(snapshot.held_role), snapshot.jobs_of(ledger.replicas > 0)
        reasons: list[Reason] = [
            (KEPT if held else Fits(0, 0)) if holds else DoesNotFit(0, 0)
            for held, holds in zip(before.tolist(), after.tolist(), strict=True)
        ]
        return make_plan(snapshot, self.name, *ledger.triples(), reasons=reasons)


class _Session:
    """One cycle over one ledger."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.ledger = Ledger(snapshot)
        self.facts = self.ledger.facts
        self.deserved: list[list[float]] = deserved_by(snapshot).tolist()
        self.created: list[float] = snapshot.job_created_seconds.tolist()
        runs = snapshot.jobs_of(snapshot.held_role) & snapshot.job_preemptible
        self.victims: list[int] = runs.nonzero()[0].tolist()

    def allocate(self) -> None:
        """Place gangs, then single replicas, of the queues in turn."""
        self._in_turn(self._give)

    def backfill(self) -> None:
        """Place gangs that request nothing but pods."""
        resources = self.snapshot.resources
        for job in range(self.snapshot.jobs):
            asks = {resources[r] for role in self.facts.roles_of[job] for r, _ in self._asks(role)}
            if self.facts.job_queue[job] >= 0 and asks <= {PODS} and not self.ledger.holds(job):
                self._give(job)

    def preempt(self) -> None:
        """Preempt inside each queue, for higher priorities."""
        for queue in range(self.snapshot.queues):
            jobs = [(self._key(job), job) for job in self._wanting() if self.facts.job_queue[job] == queue]
            heapq.heapify(jobs)
            while jobs:
                _, job = heapq.heappop(jobs)
                if self._take(job, self._weaker(job)):
                    self._push(jobs, job)

    def reclaim(self) -> None:
        """Reclaim across queues, for those below their share."""
        self._in_turn(lambda job: self._take(job, self._richer(job)))

    def _in_turn(self, serve: Callable[[int], bool]) -> None:
        """Call `serve` for the first job of the queue with the smallest `_share`, until no queue has jobs left."""
        jobs: dict[int, list[tuple[Key, int]]] = {}
        for job in self._wanting():
            jobs.setdefault(self.facts.job_queue[job], []).append((self._key(job), job))
        for entries in jobs.values():
            heapq.heapify(entries)
        queues = [(self._share(queue), queue) for queue in jobs]
        heapq.heapify(queues)
        while queues:
            _, queue = heapq.heappop(queues)
            if not jobs[queue] or self._is_overused(queue):
                continue
            _, job = heapq.heappop(jobs[queue])
            if serve(job):
                self._push(jobs[queue], job)
            heapq.heappush(queues, (self._share(queue), queue))

    def _push(self, jobs: list[tuple[Key, int]], job: int) -> None:
        """Push the job again if it wants more."""
        if self._next(job):
            heapq.heappush(jobs, (self._key(job), job))

    def _wanting(self) -> list[int]:
        """Jobs in queues that are below their desired size and may be placed."""
        s = self.snapshot
        short = s.jobs_of(self.ledger.replicas < s.role_desired) & (s.job_queue >= 0)
        return [job for job in short.nonzero()[0].tolist() if self._next(job) and not s.job_refusal[job]]

    def _next(self, job: int) -> dict[int, int]:
        """The job's next request: all that its gang lacks, or one more replica."""
        facts, count = self.facts, self.ledger.count
        roles = facts.roles_of[job]
        missing = {role: facts.role_min[role] - count[role] for role in roles if count[role] < facts.role_min[role]}
        return missing or next(({role: 1} for role in roles if count[role] < facts.role_desired[role]), {})

    def _key(self, job: int) -> Key:
        """Sort key of the job order."""
        facts, count = self.facts, self.ledger.count
        roles = facts.roles_of[job]
        used = self.ledger.amount({role: count[role] for role in roles})
        share = max((amount / total for amount, total in zip(used, facts.total, strict=True)), default=0.0)
        is_ready = all(count[role] >= facts.role_min[role] for role in roles)
        return (-facts.priority[job], is_ready, share, self.created[job], job)

    def _share(self, queue: int) -> float:
        """Allocated over deserved share of the queue, the largest over the resources."""
        parts = zip(self.ledger.used[queue], self.deserved[queue], strict=True)
        return max((used / deserved if deserved > 0 else float(used > 0) for used, deserved in parts), default=0.0)

    def _is_overused(self, queue: int) -> bool:
        return _covers(self.ledger.used[queue], self.deserved[queue])

    def _give(self, job: int) -> bool:
        """Place the job's next request in idle capacity."""
        want = self._next(job)
        return self.ledger.within_caps(job, want) and self.ledger.try_gang(job, want) is not None

    def _take(self, job: int, may_take: MayTake) -> bool:
        """Place the job's next request in idle capacity, then with a victim for each replica; all of it or nothing.

        Nothing is placed if no victim is needed: `allocate` has refused it.
        """
        ledger, want = self.ledger, self._next(job)
        if not ledger.within_caps(job, want):
            return False
        done: list[tuple[int, int, IntArray, int]] = []

        def move(owner: int, role: int, node: IntArray, sign: int) -> None:
            (ledger.take if sign > 0 else ledger.give)(owner, role, node, _ONE)
            done.append((owner, role, node, sign))

        for role in [role for role, missing in want.items() for _ in range(missing)]:
            node = self._idle_node(job, role)
            if node is None:
                victim = self._victim(job, role, may_take)
                if victim is None:
                    break
                owner, other, node = victim
                move(owner, other, node, -1)
            move(job, role, node, 1)
        else:
            if any(sign < 0 for *_, sign in done):
                return True
        for owner, other, where, sign in reversed(done):
            (ledger.give if sign > 0 else ledger.take)(owner, other, where, _ONE)
        return False

    def _idle_node(self, job: int, role: int) -> IntArray | None:
        nodes = np.flatnonzero(self.ledger.slots_for(job, role))
        return nodes[:1] if len(nodes) else None

    def _victim(self, job: int, role: int, may_take: MayTake) -> tuple[int, int, IntArray] | None:
        """(job, role, node) of a single replica whose eviction lets one of `role` fit: of the lowest priority, then the
        youngest."""
        ledger, facts = self.ledger, self.facts
        eligible = facts.eligible(facts.shape[role])
        if facts.pinned[job] and ledger.home(job).any():
            eligible = eligible & ledger.home(job)
        need: list[int] = facts.request[role]
        found: tuple[tuple[int, float], int, int, IntArray] | None = None
        for other in self.victims:
            if other == job:
                continue
            rank = (facts.priority[other], -self.created[other])
            if found is not None and rank >= found[0]:
                continue
            for part in facts.roles_of[other]:
                if not self._can_spare(other, part) or not may_take(other, part):
                    continue
                for node in ledger.placement(part)[0].tolist():
                    free: Sequence[int] = ledger.free[node].tolist()
                    if eligible[node] and all(
                        asked == 0 or asked <= has + more
                        for asked, has, more in zip(need, free, facts.request[part], strict=True)
                    ):
                        found = rank, other, part, np.array([node], dtype=np.int64)
                        break
        return None if found is None else found[1:]

    def _can_spare(self, job: int, role: int) -> bool:
        """Whether the gang keeps its minimum without one replica of `role`, or its minimum is one."""
        facts, count = self.facts, self.ledger.count
        low = facts.role_min[role]
        alone = len(facts.roles_of[job]) == 1 and low == 1
        return count[role] > 0 and (count[role] - 1 >= low or alone)

    def _weaker(self, job: int) -> MayTake:
        """Jobs of the same queue and of lower priority."""
        facts = self.facts

        def may_take(other: int, role: int) -> bool:
            del role
            is_beside = facts.job_queue[other] == facts.job_queue[job]
            return is_beside and facts.priority[other] < facts.priority[job]

        return may_take

    def _richer(self, job: int) -> MayTake:
        """Jobs of other queues that keep their share in every resource."""
        facts = self.facts

        def may_take(other: int, role: int) -> bool:
            queue = facts.job_queue[other]
            if queue < 0 or queue == facts.job_queue[job]:
                return False
            left = [used - gone for used, gone in zip(self.ledger.used[queue], facts.request[role], strict=True)]
            return _covers(left, self.deserved[queue])

        return may_take

    def _asks(self, role: int) -> tuple[tuple[int, int], ...]:
        return self.facts.asks[self.facts.shape[role]]


def _covers(amounts: Sequence[int], deserved: Sequence[float]) -> bool:
    """Whether the amounts reach the deserved share in every resource."""
    return all(amount >= share - _ROUNDING for amount, share in zip(amounts, deserved, strict=True))
