"""Whom to stop so that a gang can start: the smallest set found, as one transaction, done whole or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from diflow.allocator.arrays import BoolArray, FloatArray, IntArray, frozen
from diflow.allocator.ledger import MOST, Ledger, Placement
from diflow.allocator.packing import slots
from diflow.allocator.snapshot import Snapshot

MayTake = Callable[[int, list[int]], bool]
"""Whether so much (by resource) may be taken from this job."""
MOST_STEPS = 512
"""Steps of one search. A gang that needs more victims than that waits for room instead."""


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """One eviction that leaves the victim's gang at its minimum or above, or gone. `counts`: replicas by role."""

    job: int
    taken: Placement
    counts: dict[int, int]


def order_of_victims(snapshot: Snapshot) -> IntArray:
    """Jobs in the order in which they are to suffer: the lowest priority first, then the youngest, who loses least."""
    created, priority = snapshot.job_created_seconds, snapshot.job_priority
    return snapshot.memo.get(
        "order of victims", (created, priority), lambda: np.lexsort((np.arange(snapshot.jobs), -created, priority))
    )


def make_room(
    ledger: Ledger,
    job: int,
    want: dict[int, int],
    candidates: Iterable[int],
    may_take: MayTake,
) -> list[int] | None:
    """Evict until `want` fits, and start it. Returns the victims, or None with nothing changed.

    Room that is idle is counted first. Candidates come in the order in which they are to suffer; each loses replicas
    above its minimum one by one (the last ones first), then the rest of its gang at once. Afterwards every eviction
    that turns out not to be needed is taken back, the largest first. `may_take(job, amount)` may refuse an eviction.
    """
    if ledger.try_gang(job, want) is not None:
        return []
    steps = _evict(ledger, job, want, candidates, may_take)
    if not ledger.fits(job, want):
        for step in reversed(steps):
            ledger.restore(step.job, step.taken)
        return None
    _take_back(ledger, job, want, steps)
    ledger.try_gang(job, want)
    return sorted({step.job for step in steps})


@dataclass(frozen=True, slots=True, eq=False)
class Reach:
    """What could be taken from some jobs at most: on each node (`by_node`, N×R), and in all (`total`, R).

    It holds until the ledger changes. Most searches on a full cluster end with nothing, after hundreds of steps: this
    tells those beforehand.
    """

    by_node: IntArray
    total: FloatArray
    _most: dict[tuple[int, bool], int] = field(default_factory=dict)

    @classmethod
    def of(
        cls, ledger: Ledger, held: tuple[IntArray, IntArray, IntArray], jobs: BoolArray, over: FloatArray | None
    ) -> Reach:
        """`held`: the ledger's triples. `over` (Q×R): what the jobs of each queue have to give, None for all that they
        hold; a gang of which not all may be taken keeps its minimum."""
        s = ledger.snapshot
        role, node, count = held
        some = jobs[s.role_job[role]]
        role, node, count = role[some], node[some], count[some]
        if over is None:
            by_node = s.usage(role, node, count)
            return cls(by_node, by_node.sum(axis=0))
        queue, request = s.job_queue[s.role_job], s.role_request
        most = np.where(request > 0, np.floor(over[queue] / np.maximum(request, 1)), np.inf).min(axis=1)
        whole = ledger.replicas
        most = np.where(most >= whole, whole, np.minimum(most, np.maximum(whole - s.role_min, 0)))
        count = np.minimum(count, most.astype(np.int64)[role])
        by_queue = np.zeros(over.shape)
        np.add.at(by_queue, queue[role], request[role] * count[:, None])
        return cls(s.usage(role, node, count), np.minimum(by_queue, over).sum(axis=0))

    def allows(self, ledger: Ledger, want: dict[int, int], kept: Sequence[tuple[IntArray, IntArray]] = ()) -> bool:
        """Whether `want` could fit if all this were taken; False is certain, True is not. `kept`: room that would be
        given back before, always the same."""
        return all(count <= self._most_of(ledger, role, kept) for role, count in want.items() if count > 0)

    def _most_of(self, ledger: Ledger, role: int, kept: Sequence[tuple[IntArray, IntArray]]) -> int:
        """Replicas of the role, by itself."""
        shape = ledger.facts.shape[role]
        key = shape, bool(kept)
        if key not in self._most:
            free, eligible = ledger.free, ledger.facts.eligible(shape)
            for nodes, room in kept:
                free = free.copy()
                free[nodes] += room
            fits = slots(free + self.by_node, ledger.snapshot.role_request[role], eligible)
            idle = np.maximum(free[eligible], 0).sum(axis=0) + self.total
            asked = [idle[r] // amount for r, amount in ledger.facts.asks[shape]]
            self._most[key] = int(min([np.minimum(fits, MOST).sum(), *asked]))
        return self._most[key]


def _evict(
    ledger: Ledger,
    job: int,
    want: dict[int, int],
    candidates: Iterable[int],
    may_take: MayTake,
) -> list[_Step]:
    """Evictions, one after the other, until the gang fits or nobody is left."""
    steps: list[_Step] = []
    useful = _useful_nodes(ledger, job, want)
    everywhere = bool(useful.all())
    for victim in candidates:
        # A victim that holds nothing where the gang may run is of no use.
        if not everywhere and not any(useful[ledger.placement(role)[0]].any() for role in ledger.roles_of(victim)):
            continue
        while len(steps) < MOST_STEPS:
            step = _next_step(ledger, victim, useful, may_take)
            if step is None:
                break
            steps.append(step)
            if ledger.fits(job, want):
                return steps
    return steps


def _take_back(ledger: Ledger, job: int, want: dict[int, int], steps: list[_Step]) -> None:
    """Undo every eviction that was not needed, the largest first, the latest before the earlier ones."""
    latest_first = list(reversed(steps))
    latest_first.sort(key=lambda step: -_size(ledger, step))
    for step in latest_first:
        if not _may_return(ledger, step):
            continue
        ledger.restore(step.job, step.taken)
        if ledger.fits(job, want):
            steps.remove(step)
        else:
            for role, (nodes, counts) in step.taken.items():
                ledger.give(step.job, role, nodes, counts)


def _useful_nodes(ledger: Ledger, job: int, want: dict[int, int]) -> BoolArray:
    out = np.zeros(ledger.snapshot.nodes, dtype=np.bool_)
    for role in want:
        out |= ledger.snapshot.eligible(role)
    if ledger.snapshot.job_pinned[job] and ledger.home(job).any():
        out &= ledger.home(job)
    return out


def _next_step(ledger: Ledger, victim: int, useful: BoolArray, may_take: MayTake) -> _Step | None:
    """Take one replica above the minimum, or the whole gang when there is none; None if nothing may be taken."""
    facts = ledger.facts
    if ledger.within_limits(victim):
        for role in reversed(facts.roles_of[victim]):
            if ledger.count[role] <= facts.role_min[role]:
                continue
            nodes, _ = ledger.placement(role)
            there = nodes[useful[nodes]]
            if len(there) and may_take(victim, facts.request[role]):
                one = {role: (there[-1:].copy(), _ONE)}
                ledger.give(victim, role, *one[role])
                return _Step(victim, one, {role: 1})
    # What cannot leave its nodes may shrink, but would have nowhere to come back to.
    if not ledger.holds(victim) or facts.pinned[victim]:
        return None
    counts = {role: ledger.count[role] for role in facts.roles_of[victim]}
    if not may_take(victim, ledger.amount(counts)):
        return None
    return _Step(victim, ledger.release(victim), counts)


_ONE: IntArray = frozen(np.ones(1, dtype=np.int64))


def _may_return(ledger: Ledger, step: _Step) -> bool:
    """Whether giving this back leaves the victim a whole gang."""
    low, count = ledger.facts.role_min, ledger.count
    return all(count[role] + step.counts.get(role, 0) >= low[role] for role in ledger.roles_of(step.job))


def _size(ledger: Ledger, step: _Step) -> float:
    """The largest part of any resource of the cluster that the step frees."""
    request, total = ledger.facts.request, ledger.facts.total
    return max(
        count * amount / whole
        for role, count in step.counts.items()
        for amount, whole in zip(request[role], total, strict=True)
    )
