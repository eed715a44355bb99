"""The working copy in which a policy tries placements: free capacity, use of queues, and the allocation.

A policy places and releases whole gangs; a gang that does not fit changes nothing. The replicas of a shape that fit on
each node are cached and updated only on nodes that changed, so thousands of gangs of few shapes cost microseconds each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

import numpy as np

from diflow.allocator.model import domains
from diflow.allocator.model.arrays import BoolArray, FloatArray, IntArray
from diflow.allocator.model.packing import ANY_NUMBER, place, place_by_score, slots
from diflow.allocator.model.snapshot import Snapshot, ancestors

__all__ = ["Ledger", "Placement", "ancestors"]

Placement = dict[int, tuple[IntArray, IntArray]]
"""role → (nodes, counts)."""

ONE_BY_ONE = 16
"""Changed nodes up to which the cached slots are updated one by one."""
MOST = 2**40
"""Limit of the replicas counted on one node, so that sums over nodes cannot overflow."""


class _Slots:
    """Replicas of one shape that fit on each node (N), their sum, and the length of the log when they were counted."""

    __slots__ = ("by_node", "seen", "total")

    def __init__(self, by_node: IntArray, seen: int) -> None:
        self.by_node, self.seen = by_node, seen
        self.total = int(np.minimum(by_node, MOST).sum())


class Ledger:
    """Free capacity of a snapshot, as of `free_after_termination`, and the allocation being made.

    `count` is `replicas` as a list, for reading single roles.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.facts = facts = snapshot.facts
        self.free = snapshot.free_after_termination().copy()
        self.replicas = snapshot.held_by_role().copy()
        self.count: list[int] = self.replicas.tolist()
        self.starts, self.start_list = facts.starts, facts.start_list
        self.job_queue, self.capped = facts.job_queue, facts.capped
        self._held_at: list[int] = snapshot.memo.get(
            "held at",
            (snapshot.held_role, facts),
            lambda: snapshot.held_role.searchsorted(np.arange(snapshot.roles + 1)).tolist(),
        )
        self._own: Placement = {}
        self._slots: dict[int, _Slots] = {}
        self._homes: dict[int, BoolArray] = {}
        self._log: list[int] = []
        used = snapshot.memo.get("queue use", (snapshot.held_role, snapshot.held_count, facts), self._queue_use)
        self.used = [row.copy() for row in used]
        """Q×R held by the jobs of each queue and its descendants, as lists."""
        self.scores: Callable[[IntArray, FloatArray | None], FloatArray | None] | None = None
        """Scores of nodes (N) from the free capacity (N×R) and the role's preference (N); None: packing decides."""
        self.pool_of: dict[int, int] = {}
        """role → node pool, for roles confined to one."""
        self._within: BoolArray | None = None

    @property
    def changes(self) -> int:
        """Increases with each change of the free capacity or the allocation."""
        return len(self._log)

    @property
    def queue_used(self) -> IntArray:
        """`used` as an array (Q×R)."""
        shape = (self.snapshot.queues, len(self.snapshot.resources))
        return np.array(self.used, dtype=np.int64).reshape(shape)

    def roles_of(self, job: int) -> range:
        return self.facts.roles_of[job]

    def shape(self, role: int) -> int:
        """Index of the role's request and node conditions: roles of one shape fit on the same nodes."""
        return self.facts.shape[role]

    def held_range(self, role: int) -> tuple[int, int]:
        """The role's slice of the snapshot's `held_node` and `held_count`: (begin, end)."""
        return self._held_at[role], self._held_at[role + 1]

    def placement(self, role: int) -> tuple[IntArray, IntArray]:
        """(nodes, counts) that the role holds in this ledger."""
        own = self._own.get(role)
        if own is not None:
            return own
        low, high = self._held_at[role], self._held_at[role + 1]
        return self.snapshot.held_node[low:high], self.snapshot.held_count[low:high]

    def slots(self, role: int) -> IntArray:
        """Replicas of `role` that fit on each node now (N). Read-only."""
        return self._slots_of(self.facts.shape[role]).by_node

    def _slots_of(self, shape: int) -> _Slots:
        known = self._slots.get(shape)
        now = len(self._log)
        if known is None or now - known.seen > ONE_BY_ONE:
            request = np.zeros(self.free.shape[1], dtype=np.int64)
            for r, amount in self.facts.asks[shape]:
                request[r] = amount
            known = self._slots[shape] = _Slots(slots(self.free, request, self.facts.eligible(shape)), now)
        elif known.seen < now:
            self._update(known, shape)
        return known

    def _update(self, known: _Slots, shape: int) -> None:
        """Update the nodes that changed."""
        asks, eligible = self.facts.asks[shape], self.facts.eligible(shape)
        for node in set(self._log[known.seen :]):
            if not eligible[node]:
                continue
            free = self.free[node].tolist()
            fits = max(0, min([free[r] // amount for r, amount in asks], default=ANY_NUMBER))
            known.total += min(fits, MOST) - min(int(known.by_node[node]), MOST)
            known.by_node[node] = fits
        known.seen = len(self._log)

    def queue_headroom(self, job: int, role: int) -> int:
        """Replicas of `role` that the caps of the job's queue and its ancestors still allow."""
        facts = self.facts
        queue = facts.job_queue[job]
        asks = facts.asks[facts.shape[role]] if facts.capped and queue >= 0 else ()
        if not asks:
            return ANY_NUMBER
        left = [(facts.caps[q][r] - self.used[q][r]) // amount for q in facts.chains[queue] for r, amount in asks]
        return max(0, min(left))

    def within_caps(self, job: int, want: dict[int, int]) -> bool:
        """Whether the caps of the job's queue and its ancestors allow `want` more replicas of its roles together."""
        facts = self.facts
        queue = facts.job_queue[job]
        if not facts.capped or queue < 0:
            return True
        need = self.amount(want)
        return not any(
            amount > 0 and self.used[q][r] + amount > facts.caps[q][r]
            for q in facts.chains[queue]
            for r, amount in enumerate(need)
        )

    def amount(self, want: dict[int, int]) -> list[int]:
        """Sum of the requests of `want` (role → replicas), by resource."""
        need = [0] * self.free.shape[1]
        for role, count in want.items():
            for r, amount in self.facts.asks[self.facts.shape[role]]:
                need[r] += count * amount
        return need

    def held_amount(self, job: int, more: Mapping[int, int] | None = None) -> list[int]:
        """What the job holds, plus `more` (role → replicas), by resource."""
        more = more or {}
        return self.amount({role: self.count[role] + more.get(role, 0) for role in self.facts.roles_of[job]})

    def try_gang(self, job: int, want: dict[int, int], *, together: int = -1) -> Placement | None:
        """Place `want` more replicas of the job's roles, all or nothing, roles with the largest requests first.

        The role `together` is placed on a single node or not at all.
        """
        if not self.facts.has_topology or self._within is not None:
            return self._try_gang(job, want, together)
        if self._cannot_fit(job, want):
            return None
        for nodes in domains.choices(self, job, want, together):
            with self.confined(nodes):
                taken = self._try_gang(job, want, together)
            if taken is not None:
                return taken
        return None

    def choices(self, job: int, want: Mapping[int, int]) -> Iterable[BoolArray | None]:
        """The sets of nodes (N) on which to try to place the gang, in order of preference, for `confined`."""
        if not self.facts.has_topology or self._within is not None:
            return (self._within,)
        return () if self._cannot_fit(job, want) else domains.choices(self, job, want, -1)

    @contextmanager
    def confined(self, nodes: BoolArray | None) -> Iterator[None]:
        """Place replicas only on these nodes (N) meanwhile; None: on all."""
        before, self._within = self._within, nodes
        try:
            yield
        finally:
            self._within = before

    def _cannot_fit(self, job: int, want: Mapping[int, int]) -> bool:
        """Whether a role alone does not fit. Of a full cluster most gangs are ruled out by this, without a search."""
        return any(count > self.most(job, role) for role, count in want.items() if count > 0)

    def _try_gang(self, job: int, want: dict[int, int], together: int) -> Placement | None:
        roles = [role for role, count in want.items() if count > 0]
        if len(roles) == 1:
            role = roles[0]
            found = self._place(job, role, want[role], together=role == together)
            if found is None:
                return None
            self.take(job, role, *found)
            return {role: found}
        if len(roles) > 1:
            weight, shape = self.facts.weight, self.facts.shape
            roles.sort(key=lambda role: (-weight[shape[role]], role))
        taken: Placement = {}
        for role in roles:
            found = self._place(job, role, want[role], together=role == together)
            if found is None:
                for done, (nodes, counts) in taken.items():
                    self.give(job, done, nodes, counts)
                return None
            self.take(job, role, *found)
            taken[role] = found
        return taken

    def _place(self, job: int, role: int, count: int, *, together: bool) -> tuple[IntArray, IntArray] | None:
        if count > self.most(job, role):
            return None
        fits = self.slots_for(job, role)
        preference = self.facts.preference[self.facts.shape[role]]
        score = None if self.scores is None else self.scores(self.free, preference)
        if score is None:
            return place(fits, count, preference, together=together)
        return place_by_score(fits, count, score, preference, together=together)

    def fits(self, job: int, want: dict[int, int]) -> bool:
        """Whether `try_gang` would succeed. Changes nothing."""
        roles = [role for role, count in want.items() if count > 0]
        if len(roles) == 1:
            return want[roles[0]] <= self.most(job, roles[0])
        taken = self.try_gang(job, want)
        if taken is None:
            return False
        for role, (nodes, counts) in taken.items():
            self.give(job, role, nodes, counts)
        return True

    def most(self, job: int, role: int) -> int:
        """Replicas of `role` that fit now, within caps."""
        facts = self.facts
        if self._within is None and facts.required[job] >= 0 and not self.holds(job):
            fits = domains.most_in_one(self.snapshot, facts.required[job], self.slots_for(job, role))
        elif facts.pinned[job] or role in self.pool_of or facts.required[job] >= 0 or self._within is not None:
            fits = int(np.minimum(self.slots_for(job, role), MOST).sum())
        else:
            fits = self._slots_of(self.facts.shape[role]).total
        return min(fits, self.queue_headroom(job, role))

    def takes_any(self) -> bool:
        """Whether one more replica of any role fits anywhere."""
        return any(self._slots_of(shape).total for shape in range(len(self.facts.asks)))

    def take(self, job: int, role: int, nodes: IntArray, counts: IntArray) -> None:
        self._change(job, role, nodes, counts, 1)

    def give(self, job: int, role: int, nodes: IntArray, counts: IntArray) -> None:
        self._change(job, role, nodes, counts, -1)

    def release(self, job: int) -> Placement:
        """Release everything the job holds, and return it."""
        held: Placement = {}
        for role in self.roles_of(job):
            if self.count[role]:
                held[role] = self.placement(role)
                self._own[role] = (_NONE, _NONE)
                self._book(job, role, *held[role], -1)
        return held

    def restore(self, job: int, held: Placement) -> None:
        for role, (nodes, counts) in held.items():
            self.take(job, role, nodes, counts)

    def held_by(self, jobs: Iterable[int]) -> dict[int, Placement]:
        """The placements of these jobs, for `return_to`."""
        return {job: {role: self.placement(role) for role in self.roles_of(job)} for job in jobs}

    def return_to(self, held: Mapping[int, Placement]) -> None:
        """Restore the placements of these jobs."""
        for job, placement in held.items():
            self.release(job)
            self.restore(job, {role: there for role, there in placement.items() if len(there[0])})

    def block(self, nodes: IntArray, amount: IntArray) -> IntArray:
        """Reserve up to `amount` (len(nodes)×R) of the free capacity of these nodes. Returns the reserved amounts."""
        kept: IntArray = np.clip(self.free[nodes], 0, amount)
        self.free[nodes] -= kept
        self._log.extend(nodes.tolist())
        return kept

    def unblock(self, nodes: IntArray, amount: IntArray) -> None:
        self.free[nodes] += amount
        self._log.extend(nodes.tolist())

    def holds(self, job: int) -> bool:
        count = self.count
        return any(count[role] for role in self.facts.roles_of[job])

    def within_limits(self, job: int) -> bool:
        """Whether each role is between its minimum and its maximum. Other gangs can only be left alone, completed or
        stopped."""
        low, high, count = self.facts.role_min, self.facts.role_max, self.count
        return all(low[r] <= count[r] <= high[r] for r in self.facts.roles_of[job])

    def holding(self) -> BoolArray:
        """Jobs that hold something (J)."""
        return self.snapshot.jobs_of(self.replicas > 0)

    def triples(self) -> tuple[IntArray, IntArray, IntArray]:
        """The allocation as (role, node, count)."""
        s = self.snapshot
        if not self._own:
            return s.held_role, s.held_node, s.held_count
        stay = np.ones(s.roles, dtype=np.bool_)
        stay[list(self._own)] = False
        stay = stay[s.held_role]
        own = [(r, n, c) for r, (n, c) in self._own.items() if len(n)]
        role = np.repeat(np.array([r for r, _, _ in own], dtype=np.int64), [len(n) for _, n, _ in own])
        return (
            np.concatenate([s.held_role[stay], role]),
            np.concatenate([s.held_node[stay], *[n for _, n, _ in own]]),
            np.concatenate([s.held_count[stay], *[c for _, _, c in own]]),
        )

    def use_of(self, jobs: BoolArray) -> IntArray:
        """N×R that these jobs (J) hold now."""
        role, node, count = self.triples()
        mine = jobs[self.snapshot.role_job[role]]
        return self.snapshot.usage(role[mine], node[mine], count[mine])

    def slots_for(self, job: int, role: int) -> IntArray:
        """Replicas of `role` that fit on each node for this job, caps aside (N). Read-only.

        For a job that requires a domain of the topology: in the domain where it is, or in any if it holds nothing.
        """
        fits = self.slots(role)
        pool = self.pool_of.get(role)
        if pool is not None:
            fits = np.where(self.snapshot.node_pool == pool, fits, 0)
        if self.facts.pinned[job]:
            home = self.home(job)
            if home.any():
                fits = np.where(home, fits, 0)
        if self._within is not None:
            return np.where(self._within, fits, 0)
        if self.facts.required[job] >= 0 and len(held := self.nodes_of(job)):
            there = domains.one_domain_of(self.facts.domains, held, self.facts.required[job])
            return np.zeros_like(fits) if there is None else np.where(there, fits, 0)
        return fits

    def nodes_of(self, job: int) -> IntArray:
        """Nodes on which the job holds something now, role by role."""
        return np.concatenate([self.placement(role)[0] for role in self.facts.roles_of[job]])

    def is_bound(self, job: int) -> bool:
        """Whether other nodes may be open to the job than to jobs of equal requests: it cannot leave its nodes, or has
        to stay in its domain."""
        return self.facts.pinned[job] or (self.facts.required[job] >= 0 and self.holds(job))

    def home(self, job: int) -> BoolArray:
        """Nodes that run the job's pods in the snapshot (N). Read-only."""
        home = self._homes.get(job)
        if home is None:
            home = self._homes[job] = np.zeros(self.snapshot.nodes, dtype=np.bool_)
            low, high = self._held_at[self.start_list[job]], self._held_at[self.start_list[job + 1]]
            home[self.snapshot.held_node[low:high]] = True
        return home

    def weight(self, role: int) -> float:
        """Dominant share of one replica: its largest fraction of any resource of the cluster."""
        return self.facts.weight[self.facts.shape[role]]

    def _change(self, job: int, role: int, nodes: IntArray, counts: IntArray, sign: int) -> None:
        if len(nodes) == 0:
            return
        held_nodes, held_counts = self.placement(role)
        if len(held_nodes) == 0 and sign > 0:
            merged = (nodes, counts)
        elif len(nodes) == 1:
            merged = _one_node(held_nodes, held_counts, nodes, sign * counts)
        else:
            both = np.concatenate([held_nodes, nodes])
            amount = np.concatenate([held_counts, sign * counts])
            where, inverse = np.unique(both, return_inverse=True)
            sums = np.zeros(len(where), dtype=np.int64)
            np.add.at(sums, inverse, amount)
            merged = (where[sums > 0], sums[sums > 0])
        self._own[role] = merged
        self._book(job, role, nodes, counts, sign)

    def _book(self, job: int, role: int, nodes: IntArray, counts: IntArray, sign: int) -> None:
        """Update free capacity and use for `sign` × `counts` more replicas on these nodes."""
        facts, request = self.facts, self.snapshot.role_request[role]
        if len(nodes) == 1:
            node, total = int(nodes[0]), sign * int(counts[0])
            self.free[node] -= total * request
            self._log.append(node)
        else:
            self.free[nodes] -= sign * counts[:, None] * request
            self._log.extend(nodes.tolist())
            total = sign * int(counts.sum())
        self.count[role] += total
        self.replicas[role] = self.count[role]
        queue = facts.job_queue[job]
        if queue >= 0:
            for q in facts.chains[queue]:
                used = self.used[q]
                for r, amount in facts.asks[facts.shape[role]]:
                    used[r] += total * amount

    def _queue_use(self) -> list[list[int]]:
        s, facts = self.snapshot, self.facts
        # The last row is for jobs without a queue.
        own = np.zeros((s.queues + 1, len(s.resources)), dtype=np.int64)
        holding = np.flatnonzero(self.replicas)
        np.add.at(own, s.job_queue[s.role_job[holding]], s.role_request[holding] * self.replicas[holding, None])
        used = [[0] * len(s.resources) for _ in range(s.queues)]
        for mine, chain in zip(own.tolist(), facts.chains, strict=False):
            for q in chain:
                used[q] = [a + b for a, b in zip(used[q], mine, strict=True)]
        return used


_NONE: IntArray = np.zeros(0, dtype=np.int64)


def _one_node(held: IntArray, counts: IntArray, node: IntArray, more: IntArray) -> tuple[IntArray, IntArray]:
    """The placement (sorted by node) with `more` on one node: the common case, much faster than a general merge."""
    at = int(held.searchsorted(node[0]))
    if at == len(held) or held[at] != node[0]:
        return (
            np.concatenate([held[:at], node, held[at:]]),
            np.concatenate([counts[:at], more, counts[at:]]),
        )
    if counts[at] + more[0] <= 0:
        return np.concatenate([held[:at], held[at + 1 :]]), np.concatenate([counts[:at], counts[at + 1 :]])
    changed = counts.copy()
    changed[at] += more[0]
    return held, changed
