"""The choice of victims so that a gang can start: the smallest set found, as one transaction, all or nothing."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from diflow.allocator.model.arrays import BoolArray, FloatArray, IntArray, frozen
from diflow.allocator.model.domains import most_in_one, rooms
from diflow.allocator.model.ledger import MOST, Ledger, Placement
from diflow.allocator.model.packing import slots
from diflow.allocator.model.snapshot import Snapshot

MayTake = Callable[[int, list[int]], bool]
"""(job, amount by resource) → whether the amount may be taken from the job."""
MOST_ALONE = 32
"""Candidates that are tried as the only victim if the search found a larger set or failed."""
MOST_TRIES = 64
"""Limit of these attempts, counting each of a candidate's nodes to start with."""
MOST_NODES = 32
"""Nodes of a role that are compared to find the one from which a replica is taken."""
MOST_STEPS = 512
"""Steps of one search. A gang that needs more evictions waits."""


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """One eviction. It leaves the victim at its minimum or above, or stopped. `counts`: replicas by role."""

    job: int
    taken: Placement
    counts: dict[int, int]


@dataclass(frozen=True, slots=True, eq=False)
class _Search:
    """Arguments of `evict_for`. `first`: the node from which replicas are taken first, -1: the one that helps most.
    `within` (N): the nodes of which one set has to hold all of the job; None: all."""

    job: int
    want: dict[int, int]
    candidates: Sequence[int]
    may_take: MayTake
    first: int = -1
    within: BoolArray | None = None


def order_of_victims(snapshot: Snapshot) -> IntArray:
    """The order of victims: the lowest priority first, then the youngest, which loses least."""
    created, priority = snapshot.job_created_seconds, snapshot.job_priority
    return snapshot.memo.get(
        "order of victims", (created, priority), lambda: np.lexsort((np.arange(snapshot.jobs), -created, priority))
    )


def evict_for(
    ledger: Ledger,
    job: int,
    want: dict[int, int],
    candidates: Sequence[int],
    may_take: MayTake,
    *,
    surplus_only: bool = False,
) -> list[int] | None:
    """Evict until `want` (role → more replicas) fits, and place it. Returns the victims, or None with nothing changed.

    Free capacity is used first. `candidates` are in the order of victims. In each priority, all candidates first lose
    replicas above their minimum one by one (the last ones first); only then, unless `surplus_only`, whole gangs.
    Afterwards every eviction that is not needed is undone, the largest first. `may_take` may refuse an eviction."""
    if ledger.try_gang(job, want) is not None:
        return []
    theirs = np.zeros(ledger.snapshot.jobs, dtype=np.bool_)
    theirs[candidates] = True
    for nodes in rooms(ledger, job, want, lambda: ledger.use_of(theirs)):
        found = _evict_for(ledger, _Search(job, want, candidates, may_take, within=nodes), surplus_only=surplus_only)
        if found is not None:
            return found
    return None


def _evict_for(ledger: Ledger, search: _Search, *, surplus_only: bool) -> list[int] | None:
    """As `evict_for`, on the nodes of the search."""
    job, want = search.job, search.want
    steps = _evict(ledger, search, surplus_only=surplus_only)
    if not ledger.fits(job, want):
        for step in reversed(steps):
            ledger.restore(step.job, step.taken)
        if not steps or len(steps) >= MOST_STEPS:
            return None
        steps = _one_victim(ledger, search, surplus_only=surplus_only)
        if not steps:
            return None
    _take_back(ledger, job, want, steps)
    steps = _fewer(ledger, search, steps)
    ledger.try_gang(job, want)
    return sorted({step.job for step in steps})


def _one_victim(ledger: Ledger, search: _Search, *, surplus_only: bool) -> list[_Step]:
    """Evictions from a single job that suffice, for when those from several were refused in the end: the first ones
    may have been useless and all that their queue could lose. Leaves the ledger after these evictions; empty: none
    suffice."""
    tries = 0
    for victim in search.candidates[:MOST_ALONE]:
        nodes = {node for role in ledger.roles_of(victim) for node in ledger.placement(role)[0].tolist()}
        for first in (-1, *(sorted(nodes) if len(nodes) > 1 else ())):
            tries += 1
            if tries > MOST_TRIES:
                return []
            alone = replace(search, candidates=[victim], first=first)
            steps = _evict(ledger, alone, surplus_only=surplus_only)
            if steps and ledger.fits(search.job, search.want):
                return steps
            for step in reversed(steps):
                ledger.restore(step.job, step.taken)
            if not steps:
                break
    return []


def _fewer(ledger: Ledger, search: _Search, found: list[_Step]) -> list[_Step]:
    """The eviction of a single gang instead of `found`, if that stops fewer replicas and no higher priority; else
    `found`. Leaves the ledger after the returned evictions."""
    best, size = found, sum(_replicas(step) for step in found)
    if size < 2 or all(ledger.holds(step.job) for step in found):
        return found
    highest = max(ledger.facts.priority[step.job] for step in found)
    useful = _useful_nodes(ledger, search)
    for victim in search.candidates[:MOST_ALONE]:
        held = sum(ledger.count[r] for r in ledger.roles_of(victim)) + sum(
            _replicas(step) for step in best if step.job == victim
        )
        if held >= size or ledger.facts.priority[victim] > highest:
            continue
        for step in reversed(best):
            ledger.restore(step.job, step.taken)
        alone = _whole_step(ledger, victim, useful, search)
        if alone is not None and ledger.fits(search.job, search.want):
            best, size = [alone], _replicas(alone)
            continue
        if alone is not None:
            ledger.restore(victim, alone.taken)
        for step in best:
            for role, (nodes, counts) in step.taken.items():
                ledger.give(step.job, role, nodes, counts)
    return best


def _replicas(step: _Step) -> int:
    return sum(step.counts.values())


class Reach:
    """Upper bound of what could be taken from some jobs, in total (`total`, R) and on each node; valid until the ledger
    changes.

    Most searches on a full cluster fail after hundreds of steps: this bound rules out most of them beforehand.
    """

    def __init__(self, ledger: Ledger, jobs: BoolArray, over: FloatArray | None) -> None:
        """`over` (Q×R): the most that the jobs of each queue may lose; None: all they hold. A gang that may not be
        taken whole keeps its minimum."""
        s = ledger.snapshot
        self._ledger = ledger
        self._count: IntArray = np.where(jobs[s.role_job], ledger.replicas, 0)
        """Replicas of each role that may be taken (G)."""
        self.total: FloatArray
        if over is None:
            self.total = (self._count @ s.role_request).astype(np.float64)
        else:
            self._count = np.minimum(self._count, _most_to_take(ledger, over))
            by_queue = np.zeros(over.shape)
            np.add.at(by_queue, s.job_queue[s.role_job], s.role_request * self._count[:, None])
            self.total = np.minimum(by_queue, over).sum(axis=0)
        self._by_node: IntArray | None = None
        self._idle: dict[tuple[int, bool], list[int]] = {}
        self._fits: dict[int, int] = {}

    def is_enough(self, want: dict[int, int], kept: Sequence[tuple[IntArray, IntArray]] = ()) -> bool:
        """Whether there would be enough for `want` in total if all this were taken; False is certain, True is not.

        `kept`: reservations that would be lifted before; the same in all calls.
        """
        return all(self._has_in_all(role, count, kept) for role, count in want.items())

    def fits_on_nodes(self, want: dict[int, int]) -> bool:
        """Whether the roles would fit, each by itself, if all this were taken; False is certain, True is not.

        To be called after reservations were lifted, with nothing else changed.
        """
        return all(count <= self._most_on_nodes(role) for role, count in want.items() if count > 0)

    def _has_in_all(self, role: int, count: int, kept: Sequence[tuple[IntArray, IntArray]]) -> bool:
        facts, shape = self._ledger.facts, self._ledger.facts.shape[role]
        key = shape, bool(kept)
        if key not in self._idle:
            free = self._ledger.free
            for nodes, amount in kept:
                free = free.copy()
                free[nodes] += amount
            self._idle[key] = (np.maximum(free[facts.eligible(shape)], 0).sum(axis=0) + self.total).tolist()
        idle = self._idle[key]
        return all(count * amount <= idle[r] for r, amount in facts.asks[shape])

    def _most_on_nodes(self, role: int) -> int:
        ledger = self._ledger
        shape = ledger.facts.shape[role]
        if shape not in self._fits:
            if self._by_node is None:
                roles, nodes, counts = ledger.triples()
                self._by_node = ledger.snapshot.usage(roles, nodes, np.minimum(counts, self._count[roles]))
            fits = slots(ledger.free + self._by_node, ledger.snapshot.role_request[role], ledger.facts.eligible(shape))
            self._fits[shape] = most_in_one(ledger.snapshot, ledger.facts.level[shape], fits)
        return self._fits[shape]


def _most_to_take(ledger: Ledger, over: FloatArray) -> IntArray:
    """Replicas of each role that its job may lose if queues may lose at most `over` (Q×R) (G)."""
    s, whole = ledger.snapshot, ledger.replicas
    request, theirs = s.role_request, over[s.job_queue[s.role_job]]
    most = np.where(request > 0, np.floor(theirs / np.maximum(request, 1)), np.inf).min(axis=1)
    out: IntArray = np.where(most >= whole, whole, np.minimum(most, np.maximum(whole - s.role_min, 0))).astype(np.int64)
    return out


def _evict(ledger: Ledger, search: _Search, *, surplus_only: bool) -> list[_Step]:
    """Evictions, one after the other, until the gang fits or no candidate is left."""
    job, want, candidates = search.job, search.want, search.candidates
    steps: list[_Step] = []
    useful = _useful_nodes(ledger, search)
    everywhere = bool(useful.all())
    priority = ledger.facts.priority
    ways = (_surplus_step,) if surplus_only else (_surplus_step, _whole_step)
    levels = [list(level) for _, level in itertools.groupby(candidates, key=priority.__getitem__)]
    for level, next_step in itertools.product(levels, ways):
        for victim in level:
            # A victim without pods on eligible nodes is useless.
            if not everywhere and not any(useful[ledger.placement(role)[0]].any() for role in ledger.roles_of(victim)):
                continue
            while len(steps) < MOST_STEPS:
                step = next_step(ledger, victim, useful, search)
                if step is None:
                    break
                steps.append(step)
                if ledger.fits(job, want):
                    return steps
    return steps


def _take_back(ledger: Ledger, job: int, want: dict[int, int], steps: list[_Step]) -> None:
    """Undo every eviction that is not needed, the largest first, later before earlier ones."""
    # With one role the last eviction was needed, because it made the gang fit.
    spare = steps[:-1] if len(want) == 1 or len(steps) == 1 else steps
    latest_first = list(reversed(spare))
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


def _useful_nodes(ledger: Ledger, search: _Search) -> BoolArray:
    job, want = search.job, search.want
    out = np.zeros(ledger.snapshot.nodes, dtype=np.bool_)
    if not ledger.within_caps(job, want):
        # The queue is at its cap: victims on any node help.
        return ~out
    for role in want:
        out |= ledger.snapshot.eligible(role)
    if ledger.snapshot.job_pinned[job] and ledger.home(job).any():
        out &= ledger.home(job)
    return out if search.within is None else out & search.within


def _surplus_step(ledger: Ledger, victim: int, useful: BoolArray, search: _Search) -> _Step | None:
    """Take one replica above the minimum; None if there is none, or it may not be taken."""
    facts = ledger.facts
    if not ledger.within_limits(victim):
        return None
    for role in reversed(facts.roles_of[victim]):
        if ledger.count[role] <= facts.role_min[role]:
            continue
        nodes, _ = ledger.placement(role)
        there = nodes[useful[nodes]]
        if len(there) and search.may_take(victim, facts.request[role]):
            one = {role: (_best_node(ledger, search, role, there), _ONE)}
            ledger.give(victim, role, *one[role])
            return _Step(victim, one, {role: 1})
    return None


def _best_node(ledger: Ledger, search: _Search, role: int, there: IntArray) -> IntArray:
    """The node of `there` where the fewest evictions of `role` let one more wanted replica fit, then where the most
    fit; the last of equal ones. Nodes with enough replicas of `role` come first."""
    if len(there) == 1:
        return there
    if search.first in there:
        return np.array([search.first], dtype=np.int64)
    facts = ledger.facts
    given = facts.request[role]
    wanted = [facts.asks[facts.shape[r]] for r in search.want]
    nodes, counts = ledger.placement(role)
    held = dict(zip(nodes.tolist(), counts.tolist(), strict=True))
    best, least = int(there[-1]), (True, MOST, 0)
    for node in there[:-MOST_NODES:-1].tolist():
        free = ledger.free[node].tolist()
        for asks in wanted:
            fits = min((max(0, free[r]) // amount for r, amount in asks), default=0)
            missing = [((fits + 1) * amount - free[r], given[r]) for r, amount in asks if (fits + 1) * amount > free[r]]
            steps = max((-(-short // each) if each else MOST for short, each in missing), default=MOST)
            if steps == MOST:
                continue
            then = min((free[r] + steps * given[r]) // amount for r, amount in asks)
            cost = steps > held[node], steps, fits - then
            if cost < least:
                best, least = node, cost
    return np.array([best], dtype=np.int64)


def _whole_step(ledger: Ledger, victim: int, useful: BoolArray, search: _Search) -> _Step | None:
    """Take all that is left of the gang; None if it may not be taken."""
    del useful
    facts = ledger.facts
    # A pinned job may shrink; if it were stopped, its nodes might not be free again.
    if not ledger.holds(victim) or facts.pinned[victim]:
        return None
    counts = {role: ledger.count[role] for role in facts.roles_of[victim]}
    if not search.may_take(victim, ledger.amount(counts)):
        return None
    return _Step(victim, ledger.release(victim), counts)


_ONE: IntArray = frozen(np.ones(1, dtype=np.int64))


def _may_return(ledger: Ledger, step: _Step) -> bool:
    """Whether undoing this eviction leaves the victim a whole gang."""
    low, count = ledger.facts.role_min, ledger.count
    return all(count[role] + step.counts.get(role, 0) >= low[role] for role in ledger.roles_of(step.job))


def _size(ledger: Ledger, step: _Step) -> float:
    """Dominant share of what the step frees."""
    request, total = ledger.facts.request, ledger.facts.total
    return max(
        count * amount / whole
        for role, count in step.counts.items()
        for amount, whole in zip(request[role], total, strict=True)
    )
