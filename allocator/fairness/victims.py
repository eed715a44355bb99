"""Whom to stop so that a gang can start: the smallest set found, as one transaction, done whole or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from diflow.allocator.arrays import BoolArray, IntArray
from diflow.allocator.ledger import Ledger, Placement
from diflow.allocator.snapshot import Snapshot

MOST_STEPS = 512
"""Steps of one search. A gang that needs more victims than that waits for room instead."""


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """One eviction that leaves the victim's gang at its minimum or above, or gone."""

    job: int
    taken: Placement


def make_room(
    ledger: Ledger,
    job: int,
    want: dict[int, int],
    candidates: Iterable[int],
    may_take: Callable[[int, IntArray], bool],
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


def _evict(
    ledger: Ledger,
    job: int,
    want: dict[int, int],
    candidates: Iterable[int],
    may_take: Callable[[int, IntArray], bool],
) -> list[_Step]:
    """Evictions, one after the other, until the gang fits or nobody is left."""
    steps: list[_Step] = []
    useful = _useful_nodes(ledger, job, want)
    for victim in candidates:
        # A victim that holds nothing where the gang may run is of no use.
        if not any(useful[ledger.placement(role)[0]].any() for role in ledger.roles_of(victim)):
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
    latest_first.sort(key=lambda step: -_size(ledger.snapshot, step))
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


def _next_step(
    ledger: Ledger, victim: int, useful: BoolArray, may_take: Callable[[int, IntArray], bool]
) -> _Step | None:
    """Take one replica above the minimum, or the whole gang when there is none; None if nothing may be taken."""
    snapshot = ledger.snapshot
    whole = ledger.within_limits(victim)
    for role in reversed(ledger.roles_of(victim)):
        if whole and ledger.replicas[role] > snapshot.role_min[role]:
            nodes, _ = ledger.placement(role)
            there = nodes[useful[nodes]]
            if len(there) and may_take(victim, snapshot.role_request[role]):
                one = {role: (there[-1:].copy(), np.ones(1, dtype=np.int64))}
                ledger.give(victim, role, *one[role])
                return _Step(victim, one)
    # What cannot leave its nodes may shrink, but would have nowhere to come back to.
    if not ledger.holds(victim) or snapshot.job_pinned[victim]:
        return None
    amount = sum(
        (ledger.replicas[role] * snapshot.role_request[role] for role in ledger.roles_of(victim)),
        np.zeros(len(snapshot.resources), dtype=np.int64),
    )
    if not may_take(victim, amount):
        return None
    return _Step(victim, ledger.release(victim))


def _may_return(ledger: Ledger, step: _Step) -> bool:
    """Whether giving this back leaves the victim a whole gang."""
    return all(
        ledger.replicas[role] + (step.taken[role][1].sum() if role in step.taken else 0)
        >= ledger.snapshot.role_min[role]
        for role in ledger.roles_of(step.job)
    )


def _size(snapshot: Snapshot, step: _Step) -> float:
    total = np.maximum(snapshot.node_allocatable.sum(axis=0), 1)
    return float(
        max((counts.sum() * snapshot.role_request[role] / total).max() for role, (_, counts) in step.taken.items())
    )
