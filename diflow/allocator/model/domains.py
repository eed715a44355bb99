"""On which sets of nodes a job may be placed, in order of preference: the one place where placement reads the topology.

A gang goes into the smallest domain that holds it: one node, else one domain of the narrowest level, and so on, else
anywhere. If its job requires a level, it goes into one domain of that level, or it is not placed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np

from diflow.allocator.model.arrays import BoolArray, FloatArray, IntArray
from diflow.allocator.model.packing import ANY_NUMBER, slots
from diflow.allocator.model.snapshot import Facts, Snapshot

MOST_TRIED = 32
"""Domains of a level in which a gang of several roles is tried. Each of its roles fits there by itself, so it seldom
fails; those with the most free slots are tried."""


class Free(Protocol):
    """What is free on the nodes now: a ledger (`ledger.py`), as far as it is read here."""

    snapshot: Snapshot
    facts: Facts
    free: IntArray
    scores: Callable[[IntArray, FloatArray | None], FloatArray | None] | None

    def nodes_of(self, job: int) -> IntArray: ...
    def slots_for(self, job: int, role: int) -> IntArray: ...
    def home(self, job: int) -> BoolArray: ...


def choices(ledger: Free, job: int, want: Mapping[int, int], together: int) -> Iterator[BoolArray | None]:
    """The sets of nodes (N) on which to try to place `want` (role → more replicas), in order; None: all nodes.

    Replicas of a job that holds something go into the domains where it is. Of the domains that can hold a new gang, the
    first are those with its pods in the snapshot, then those that can hold its desired size, then the fullest.
    """
    level = ledger.facts.required[job]
    held = ledger.nodes_of(job)
    if len(held):
        yield from _around(ledger.facts.domains, held, level)
    else:
        yield from _one_node(ledger, job, want)
        yield from _one_domain(ledger, job, want, together)
    if level < 0:
        yield None


def _around(of_node: IntArray, held: IntArray, level: int) -> Iterator[BoolArray]:
    """The domains that contain these nodes, level by level; within one domain of the required `level`, if there is one.
    Nothing if the nodes are in several domains of it."""
    within = None
    if level >= 0:
        within = one_domain_of(of_node, held, level)
        if within is None:
            return
    for row in of_node[max(0, level) :][::-1]:
        mine = np.unique(row[held])
        mine = mine[mine >= 0]
        if len(mine):
            inside = np.isin(row, mine)
            yield inside if within is None else inside & within


def one_domain_of(of_node: IntArray, held: IntArray, level: int) -> BoolArray | None:
    """The nodes (N) of the domain of this level that contains these nodes; None if there is no such domain."""
    mine = of_node[level, held]
    inside: BoolArray = of_node[level] == mine[0]
    return inside if mine[0] >= 0 and (mine == mine[0]).all() else None


def _one_node(ledger: Free, job: int, want: Mapping[int, int]) -> Iterator[BoolArray]:
    """The nodes that best fit a gang of one role that will not grow, in the fullest domains."""
    roles = [role for role, count in want.items() if count > 0]
    if len(roles) != 1 or ledger.facts.role_desired[roles[0]] > want[roles[0]] or ledger.scores is not None:
        return
    fits = ledger.slots_for(job, roles[0])
    best = fits >= want[roles[0]]
    if not best.any():
        return
    best &= fits == fits[best].min()
    preference = ledger.facts.preference[ledger.facts.shape[roles[0]]]
    if preference is not None:
        best &= preference == preference[best].max()
    home = ledger.home(job)
    if (best & home).any():
        best &= home
    for row in ledger.facts.domains:
        inside = best & (row >= 0)
        if inside.any():
            free = _by_domain(ledger, row, fits)
            nodes = inside.nonzero()[0]
            chosen = int(nodes[free[row[nodes]].argmin()])
            best = inside & (row == row[chosen])
    yield best


def _one_domain(ledger: Free, job: int, want: Mapping[int, int], together: int) -> Iterator[BoolArray]:
    """The domains that can hold all of `want`, each role by itself: those of the narrowest level first."""
    facts = ledger.facts
    roles = [role for role, count in want.items() if count > 0]
    fits = {role: ledger.slots_for(job, role) for role in roles}
    if together in fits:
        fits[together] = np.where(fits[together] >= want[together], fits[together], 0)
    home = ledger.home(job)
    level = facts.required[job]
    for row in facts.domains[::-1] if level < 0 else facts.domains[level:][::-1]:
        able: BoolArray = np.ones(_count(ledger), dtype=np.bool_)
        lacks, spare = np.zeros(len(able)), np.zeros(len(able))
        for role in roles:
            free = _by_domain(ledger, row, fits[role])
            able &= free >= want[role]
            weight = facts.weight[facts.shape[role]]
            lacks += weight * np.maximum(max(want[role], facts.role_desired[role]) - free, 0)
            spare += weight * free
        found = able.nonzero()[0]
        if not len(found):
            continue
        if len(roles) > 1 and len(found) > MOST_TRIED:
            found = np.sort(found[np.lexsort((found, -spare[found]))[:MOST_TRIED]])
        strange = ~np.isin(found, row[home])
        for domain in found[np.lexsort((found, spare[found], lacks[found], strange))].tolist():
            yield row == domain


def rooms(ledger: Free, job: int, want: Mapping[int, int], freed: Callable[[], IntArray]) -> list[BoolArray | None]:
    """The sets of nodes (N) of which one has to hold all replicas of the job, if `freed` (N×R) is free as well as what
    is free now: those with the largest part of `want` (role → more replicas) now come first. [None]: no level is
    required, so all nodes."""
    facts, s = ledger.facts, ledger.snapshot
    level = facts.required[job]
    if level < 0:
        return [None]
    held = ledger.nodes_of(job)
    if len(held):
        home = one_domain_of(facts.domains, held, level)
        return [] if home is None else [home]
    then_free = ledger.free + freed()
    row, able = facts.domains[level], np.ones(_count(ledger), dtype=np.bool_)
    part: FloatArray = np.ones(len(able))
    for role in (role for role, count in want.items() if count > 0):
        then = slots(then_free, s.role_request[role], s.eligible(role))
        able &= _by_domain(ledger, row, then) >= want[role]
        part = np.minimum(part, _by_domain(ledger, row, ledger.slots_for(job, role)) / want[role])
    found = able.nonzero()[0]
    return [row == domain for domain in found[np.lexsort((found, -part[found]))][:MOST_TRIED].tolist()]


def best_domain(
    snapshot: Snapshot, job: int, fits: Mapping[int, IntArray], among: BoolArray | None = None
) -> BoolArray | None:
    """The nodes (N) of the domain of the required level that holds the largest part of the job's minimum, by its worst
    role there; None if no level is required. `fits`: role → replicas that fit on each node (N). `among`: the nodes (N)
    of the domains that are compared; no node is returned if there are none."""
    s, level = snapshot, snapshot.facts.required[job]
    if level < 0:
        return None
    row = s.node_domain[level]
    inside: BoolArray = row >= 0
    if among is not None:
        inside &= among
    known = np.unique(row[inside])
    if not len(known):
        return inside
    part: FloatArray = np.ones(len(s.domain_names))
    spare = np.zeros(len(part))
    for role, by_node in fits.items():
        free = totals(row, by_node, len(part))
        part = np.minimum(part, free / max(1, int(s.role_min[role])))
        spare += free
    best: int = np.lexsort((known, -spare[known], -part[known])).tolist()[0]
    inside = row == known[best]
    return inside  # noqa: RET504 (mypy does not know the type of a comparison)


def most_in_one(snapshot: Snapshot, level: int, by_node: IntArray) -> int:
    """The largest sum of `by_node` (N) over the nodes of one domain of the level; over all nodes if it is -1."""
    if level < 0:
        return int(np.minimum(by_node, _MOST).sum())
    return int(totals(snapshot.node_domain[level], by_node, len(snapshot.domain_names)).max(initial=0))


def totals(row: IntArray, by_node: IntArray, count: int) -> FloatArray:
    """The sum of `by_node` (N) over the nodes of each domain (`count`); `row`: the domain of each node, or -1."""
    return np.bincount(row + 1, weights=np.minimum(by_node, ANY_NUMBER), minlength=count + 1)[1:].astype(np.float64)


def spread(of_node: IntArray, nodes: Sequence[int] | IntArray) -> tuple[int, ...]:
    """The number of domains of each level, the widest first, that contain these nodes; a node without a domain counts
    as one by itself."""
    return tuple(len(np.unique(row[nodes][row[nodes] >= 0])) + int((row[nodes] < 0).sum()) for row in of_node)


def _by_domain(ledger: Free, row: IntArray, by_node: IntArray) -> FloatArray:
    return totals(row, by_node, _count(ledger))


def _count(ledger: Free) -> int:
    return len(ledger.snapshot.domain_names)


_MOST = 2**40
