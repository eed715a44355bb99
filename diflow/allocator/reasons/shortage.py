"""Which resources are short on which nodes: the numbers behind "it does not fit", and their text.

They are computed from the capacity that a plan leaves free, as that is what the next job would find.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace

import numpy as np

from diflow.allocator.model.amounts import amount
from diflow.allocator.model.arrays import BoolArray, IntArray
from diflow.allocator.model.domains import best_domain, one_domain_of, totals
from diflow.allocator.model.packing import ANY_NUMBER, slots
from diflow.allocator.model.plan import Plan
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.model.views import NOT_OFFERED, PODS
from diflow.allocator.reasons.readers import ALL, Reader
from diflow.common.words import counted, named, quantity

OBSTACLES_NAMED = 4
NODES_NAMED = 3
"""The most nodes that a text names; it counts the others."""


@dataclass(frozen=True, slots=True)
class Fit:
    """How a role fits into the free capacity.

    `need`: its minimum replicas. `where` (N): the nodes where it may run, of a job that requires a domain only those of
    the best one. `slots` (N): the replicas that fit on each node, 0 where it may not run. `lacks`: the nodes that are
    closest to one more replica, with what each lacks by resource. `closed`, `unsuitable`: numbers of nodes.
    """

    need: int
    where: BoolArray
    slots: IntArray
    lacks: tuple[tuple[int, dict[int, int]], ...]
    closed: int
    unsuitable: int

    @property
    def fits(self) -> int:
        return int(np.minimum(self.slots, 2**31).sum())


class Leftover:
    """The capacity that a plan leaves free (N×R), and how roles fit into it, computed once for equal roles."""

    def __init__(self, snapshot: Snapshot, plan: Plan) -> None:
        self.snapshot, self.plan = snapshot, plan
        used = snapshot.usage(plan.role, plan.node, plan.count)
        self.free: IntArray = snapshot.node_allocatable - snapshot.node_foreign - used
        self._known: dict[tuple[bytes, int, int], Fit] = {}
        self._rooms: dict[int, BoolArray] = {}

    def fit(self, role: int) -> Fit:
        s = self.snapshot
        request, job = s.role_request[role], int(s.role_job[role])
        is_bound = bool(s.job_required[job] >= 0)
        key = (request.tobytes(), int(s.role_class[role]), job if is_bound else -1)
        if key not in self._known:
            suits = s.class_nodes[s.role_class[role]]
            where = s.eligible(role) & self._room(job) if is_bound else s.eligible(role)
            found = slots(self.free, request, where)
            self._known[key] = Fit(
                need=0,
                where=where,
                slots=found,
                lacks=self._lacks(request, np.flatnonzero(where & (found == 0))),
                closed=int((~s.node_open).sum()),
                unsuitable=int((s.node_open & ~suits).sum()),
            )
        return replace(self._known[key], need=int(s.role_min[role]))

    def _room(self, job: int) -> BoolArray:
        """N: the domain in which the job that requires one is by the plan, or the best one for its gang."""
        s = self.snapshot
        if job not in self._rooms:
            held = self.plan.node[s.role_job[self.plan.role] == job]
            if len(held):
                there = one_domain_of(s.node_domain, held, int(s.job_required[job]))
            else:
                there = best_domain(s, job, {role: self._slots(role) for role in s.facts.roles_of[job]})
            self._rooms[job] = np.zeros(s.nodes, dtype=np.bool_) if there is None else there
        return self._rooms[job]

    def _slots(self, role: int) -> IntArray:
        return slots(self.free, self.snapshot.role_request[role], self.snapshot.eligible(role))

    def in_domains(self, roles: Sequence[int], *, reader: Reader = ALL) -> str:
        """What the gang of these roles of a job needs in one domain, and what the best ones have: "it needs 16
        nvidia.com/gpu in one rack: r1 has 12 free and fits 1, r2 has 8 free and fits 1, 2 others fit no more". Only for
        one role with the replicas that fit."""
        s = self.snapshot
        level = int(s.job_required[s.role_job[roles[0]]])
        row, count = s.node_domain[level], len(s.domain_names)
        need = sum((int(s.role_min[r]) * s.role_request[r] for r in roles), np.zeros(len(s.resources), dtype=np.int64))
        known, asked = np.unique(row[row >= 0]), np.flatnonzero(need)
        if not len(asked) or not len(known):
            return ""
        here = np.any([s.eligible(role) for role in roles], axis=0)
        fits = totals(row, self._slots(roles[0]) if len(roles) == 1 else np.zeros(s.nodes, dtype=np.int64), count)
        idle = np.maximum(self.free, 0) * here[:, None]
        free = {r: np.bincount(row + 1, weights=idle[:, r], minlength=count + 1)[1:] for r in asked.tolist()}
        part = np.min([free[r] / need[r] for r in free], axis=0)
        best = known[np.lexsort((known, -part[known], -fits[known]))].tolist()
        scarce = min(free, key=lambda r: (free[r][best[0]] / need[r], r))
        name = s.resources[scarce]
        parts = [
            f"{reader.node(s.domain_names[d], place)} has {quantity(name, free[scarce][d])} free"
            + (f" and fits {fits[d]:.0f}" if len(roles) == 1 else "")
            for place, d in enumerate(best[:NODES_NAMED])
        ]
        if best[NODES_NAMED:]:
            one, many = ("fits", "fit") if len(roles) == 1 else ("has", "have")
            parts.append(f"{counted(len(best) - NODES_NAMED, f'other {one}', plural=f'others {many}')} no more")
        return f"it needs {amount(name, int(need[scarce]))} in one {s.level_names[level]}: {', '.join(parts)}"

    def _lacks(self, request: IntArray, nodes: IntArray) -> tuple[tuple[int, dict[int, int]], ...]:
        short = np.maximum(request - np.maximum(self.free[nodes], 0), 0)
        nearest = np.lexsort((nodes, (short / np.maximum(request, 1)).sum(axis=1)))[: NODES_NAMED + 1]
        return tuple(
            (int(nodes[i]), {int(r): int(short[i, r]) for r in np.flatnonzero(short[i]).tolist()})
            for i in nearest.tolist()
        )

    def short(self, role: int, *, excluded: Set[str] = frozenset(), reader: Reader = ALL) -> str:
        """What the closest nodes lack for one more replica: "n1 lacks 1 cpu, 3 more nodes are short too". `excluded`:
        the nodes that are left out for its job."""
        found, s = self.fit(role), self.snapshot
        parts = [
            f"{reader.node(s.node_names[node], place, what='node')} lacks {amounts(s, lacking)}"
            for place, (node, lacking) in enumerate(found.lacks[:NODES_NAMED])
            if lacking
        ]
        more = int((found.where & (found.slots == 0)).sum()) - len(parts)
        if more > 0 and parts:
            parts.append(f"{counted(more, 'more node is', plural='more nodes are')} short too")
        if found.closed:
            parts.append(f"{_nodes(found.closed)} closed")
        others = np.flatnonzero(s.node_open & ~s.class_nodes[s.role_class[role]]).tolist() if found.unsuitable else []
        left_out = sum(s.node_names[node] in excluded for node in others)
        if left_out:
            parts.append(f"{_nodes(left_out)} left out for this job")
        return ", ".join([*parts, *unsuitable(s, role, [n for n in others if s.node_names[n] not in excluded])])


def unsuitable(snapshot: Snapshot, role: int, nodes: Sequence[int]) -> list[str]:
    """What of these nodes excludes a role, with the number of them: "2 nodes have the taint nvidia.com/gpu:NoSchedule,
    which it does not tolerate"."""
    if not nodes:
        return []
    if snapshot.conditions is None:
        return [f"{_nodes(len(nodes))} not what it may run on"]
    found = snapshot.conditions.unsuitable(role, nodes)
    parts = [f"{counted(count, 'node')} {what.has(count)}" for count, what in found[:OBSTACLES_NAMED]]
    if rest := sum(count for count, _ in found[OBSTACLES_NAMED:]):
        parts.append(f"{_nodes(rest)} excluded by others of these")
    return parts


def excluding(snapshot: Snapshot, role: int) -> tuple[list[str], list[str]]:
    """(why nodes take none of a role though all are open and empty, with their numbers; what would open them to it, of
    which the first would open most)."""
    s = snapshot
    suits = s.suits(role)
    texts = unsuitable(s, role, np.flatnonzero(~suits).tolist())
    remedies: list[tuple[int, str]] = []
    if s.conditions is not None:
        found = s.conditions.unsuitable(role, np.flatnonzero(~suits).tolist())
        remedies += [(count, what.remedy) for count, what in found[:OBSTACLES_NAMED] if what.remedy]
    small = suits & (_ever(s, role) == 0)
    for lacking, count in _lacking(s, role, np.flatnonzero(small).tolist()):
        texts.append(f"{counted(count, 'node')} {lacking}")
    if small.any():
        remedies.append((int(small.sum()), "less for each replica, or larger nodes"))
    remedies.sort(key=lambda one: -one[0])
    return texts, [text for _, text in remedies]


def _lacking(snapshot: Snapshot, role: int, nodes: Sequence[int]) -> list[tuple[str, int]]:
    """What nodes do not have of a resource that a role asks for, and how many of them."""
    s, found = snapshot, Counter[tuple[int, bool]]()
    asked = np.flatnonzero(s.role_request[role]).tolist()
    for node in nodes:
        short = next((r for r in asked if s.node_allocatable[node, r] < s.role_request[role, r]), None)
        if short is not None:
            found[short, bool(s.node_allocatable[node, short])] += 1
    out = []
    for (resource, is_offered), count in found.most_common(OBSTACLES_NAMED):
        is_, offer = ("is", "offers") if count == 1 else ("are", "offer")
        each = amount(s.resources[resource], int(s.role_request[role, resource]))
        out.append((f"{is_} too small for {each}" if is_offered else f"{offer} no {_names(s, role, resource)}", count))
    return out


def _names(snapshot: Snapshot, role: int, resource: int) -> str:
    """The name of a resource of a role's request; of those that no node offers, all."""
    s = snapshot
    if s.resources[resource] != NOT_OFFERED or s.conditions is None:
        return s.resources[resource]
    strange = sorted(name for name in s.conditions.asks[role] if name not in s.resources)
    return named([name[:64] for name in strange], OBSTACLES_NAMED) or s.resources[resource]


def held_nodes(snapshot: Snapshot, role: int) -> list[int]:
    """The nodes that would take more of a role if they were open and held no pods but those of planned jobs; those
    first that would take most."""
    s = snapshot
    gain = _ever(s, role) - slots(s.capacity(), s.role_request[role], s.eligible(role))
    better = np.flatnonzero(gain > 0)
    found: list[int] = better[np.lexsort((better, -gain[better]))].tolist()
    return found


def _ever(snapshot: Snapshot, role: int) -> IntArray:
    """Replicas of the role that fit on each node (N) if all nodes are open and hold no pods."""
    s = snapshot
    return np.minimum(slots(s.node_allocatable, s.role_request[role], s.suits(role)), ANY_NUMBER)


def in_the_way(snapshot: Snapshot, role: int, *, reader: Reader = ALL) -> str:
    """What keeps a role from these nodes: "n1: other pods hold 3 cpu, n2: it is closed, 4 more nodes are held"."""
    s, nodes, ever = snapshot, held_nodes(snapshot, role), _ever(snapshot, role)
    asked = [(r, amount) for r, amount in enumerate(s.role_request[role].tolist()) if amount]
    parts = []
    for place, node in enumerate(nodes[:NODES_NAMED]):
        free = s.capacity()[node]
        held = {r: int(s.node_foreign[node, r]) for r, amount in asked if free[r] // amount < ever[node]}
        why = ([f"other pods hold {amounts(s, held)}"] if held else []) + (
            [] if s.node_open[node] else ["it is closed"]
        )
        parts.append(f"{reader.node(s.node_names[node], place, what='node')}: {' and '.join(why)}")
    if (more := len(nodes) - NODES_NAMED) > 0:
        parts.append(counted(more, "more node is held or closed", plural="more nodes are held or closed"))
    return ", ".join(parts)


def request(snapshot: Snapshot, role: int) -> str:
    """What one replica asks for: "2 cpu, 4Gi memory"."""
    row = snapshot.role_request[role]
    asked = {r: int(row[r]) for r in np.flatnonzero(row).tolist() if snapshot.resources[r] not in (PODS, NOT_OFFERED)}
    texts = [text for text in (amounts(snapshot, asked), _not_offered(snapshot, role)) if text]
    return ", ".join(texts) or "no resources"


def _not_offered(snapshot: Snapshot, role: int) -> str:
    """What a replica asks for that no node offers."""
    s = snapshot
    at = s.resources.index(NOT_OFFERED) if NOT_OFFERED in s.resources else -1
    if at < 0 or not s.role_request[role, at]:
        return ""
    if s.conditions is None:
        return amount(NOT_OFFERED, 1)
    strange = {name: value for name, value in s.conditions.asks[role].items() if value and name not in s.resources}
    return named([amount(name[:64], value) for name, value in sorted(strange.items())], OBSTACLES_NAMED)


def amounts(snapshot: Snapshot, values: dict[int, int]) -> str:
    """Amounts by resource index, as text."""
    return ", ".join(amount(snapshot.resources[r], value) for r, value in values.items())


def _nodes(count: int) -> str:
    return counted(count, "node is", plural="nodes are")
