"""The working copy in which a policy tries placements: free room, caps of queues, and who holds what.

A policy takes and gives back whole gangs; a gang that does not fit leaves no trace. How many replicas of a shape each
node takes is remembered for each shape and brought up to date on the nodes that changed, so that thousands of gangs
of few shapes cost microseconds each.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from diflow.allocator.arrays import BoolArray, FloatArray, IntArray
from diflow.allocator.packing import ANY_NUMBER, place, place_by_score, slots
from diflow.allocator.snapshot import UNLIMITED, Snapshot

Placement = dict[int, tuple[IntArray, IntArray]]
"""role → (nodes, counts)."""


class Ledger:
    """Free room of a snapshot, after what is terminating has gone (`settled`), and the allocation being made."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.free = snapshot.settled()
        self.replicas = snapshot.held_by_role()
        self.starts = snapshot.role_starts()
        self.start_list: list[int] = self.starts.tolist()
        self.job_queue: list[int] = snapshot.job_queue.tolist()
        self._held_at: list[int] = np.searchsorted(snapshot.held_role, np.arange(snapshot.roles + 1)).tolist()
        self._own: Placement = {}
        self._touched = np.zeros(snapshot.roles, dtype=np.bool_)
        self._shape_of = _shapes(snapshot)
        self.shape_list: list[int] = self._shape_of.tolist()
        self._room: dict[int, tuple[IntArray, int]] = {}
        self._log: list[int] = []
        self._ancestors = ancestors(snapshot.queue_parent)
        self.capped = bool((snapshot.queue_cap < UNLIMITED).any())
        self.queue_used = self._queue_use()
        self.preference: FloatArray | None = None
        self.scores: Callable[[IntArray], FloatArray] | None = None
        """Scores of nodes from what is free, where they are to decide before packing does."""
        self.pool_of: dict[int, int] = {}
        """job → the node pool that it is to stay in, for jobs that are confined to one."""

    def roles_of(self, job: int) -> range:
        return range(self.start_list[job], self.start_list[job + 1])

    def shape(self, role: int) -> int:
        """Index of the role's request and node conditions: roles of one shape fit in the same places."""
        return self.shape_list[role]

    def held_range(self, role: int) -> tuple[int, int]:
        """Where the role's part of the snapshot's `held_node` and `held_count` begins and ends."""
        return self._held_at[role], self._held_at[role + 1]

    def placement(self, role: int) -> tuple[IntArray, IntArray]:
        """(nodes, counts) that the role holds in this ledger."""
        if self._touched[role]:
            return self._own.get(role, (_NONE, _NONE))
        low, high = self._held_at[role], self._held_at[role + 1]
        return self.snapshot.held_node[low:high], self.snapshot.held_count[low:high]

    def room(self, role: int) -> IntArray:
        """Replicas of `role` that each node takes now (N). Not to be written to."""
        shape = self.shape_list[role]
        known = self._room.get(shape)
        snapshot = self.snapshot
        if known is not None:
            room, seen = known
            if seen == len(self._log):
                return room
            if len(self._log) - seen <= max(8, snapshot.nodes // 4):
                where = np.array(self._log[seen:], dtype=np.int64)
                room[where] = slots(self.free[where], snapshot.role_request[role], snapshot.eligible(role)[where])
                self._room[shape] = (room, len(self._log))
                return room
        room = slots(self.free, snapshot.role_request[role], snapshot.eligible(role))
        self._room[shape] = (room, len(self._log))
        return room

    def queue_room(self, job: int, role: int) -> int:
        """Replicas of `role` that the caps of the job's queue and its parents still allow."""
        if not self.capped or self.job_queue[job] < 0:
            return ANY_NUMBER
        request = self.snapshot.role_request[role]
        asked = request > 0
        if not asked.any():
            return ANY_NUMBER
        chain = self._ancestors[self.job_queue[job]]
        left = (self.snapshot.queue_cap[chain] - self.queue_used[chain])[:, asked] // request[asked]
        return max(0, int(left.min()))

    def within_caps(self, job: int, want: dict[int, int]) -> bool:
        """Whether the caps of the job's queue and its parents allow so many more replicas of its roles, together."""
        if not self.capped or self.job_queue[job] < 0:
            return True
        need = np.zeros(len(self.snapshot.resources), dtype=np.int64)
        for role, count in want.items():
            need += count * self.snapshot.role_request[role]
        chain = self._ancestors[self.job_queue[job]]
        over = self.queue_used[chain] + need > self.snapshot.queue_cap[chain]
        return not bool((over & (need > 0)).any())

    def try_gang(self, job: int, want: dict[int, int], *, together: int = -1) -> Placement | None:
        """Take `want` more replicas of the job's roles, all or nothing. Roles that ask for most go first.

        The role `together` is put on one node or not at all.
        """
        taken: Placement = {}
        roles = [role for role, count in want.items() if count > 0]
        if len(roles) > 1:
            roles.sort(key=lambda role: (-self.weight(role), role))
        for role in roles:
            found = None
            if want[role] <= self.queue_room(job, role):
                room = self.room_for(job, role)
                if role != together or int(room.max(initial=0)) >= want[role]:
                    found = self._find(room, want[role])
            if found is None:
                for done, (nodes, counts) in taken.items():
                    self.give(job, done, nodes, counts)
                return None
            self.take(job, role, *found)
            taken[role] = found
        return taken

    def _find(self, room: IntArray, count: int) -> tuple[IntArray, IntArray] | None:
        if self.scores is None:
            return place(room, count, self.preference)
        return place_by_score(room, count, self.scores(self.free))

    def fits(self, job: int, want: dict[int, int]) -> bool:
        """Whether `try_gang` would succeed; nothing is changed."""
        taken = self.try_gang(job, want)
        if taken is None:
            return False
        for role, (nodes, counts) in taken.items():
            self.give(job, role, nodes, counts)
        return True

    def most(self, job: int, role: int) -> int:
        """Replicas of `role` that fit now beside everything, caps included."""
        return min(int(np.minimum(self.room_for(job, role), 2**40).sum()), self.queue_room(job, role))

    def take(self, job: int, role: int, nodes: IntArray, counts: IntArray) -> None:
        self._change(job, role, nodes, counts, 1)

    def give(self, job: int, role: int, nodes: IntArray, counts: IntArray) -> None:
        self._change(job, role, nodes, counts, -1)

    def release(self, job: int) -> Placement:
        """Give back everything the job holds; what it held is returned."""
        held: Placement = {}
        for role in self.roles_of(job):
            nodes, counts = self.placement(role)
            if len(nodes):
                held[role] = (nodes.copy(), counts.copy())
                self.give(job, role, *held[role])
        return held

    def restore(self, job: int, held: Placement) -> None:
        for role, (nodes, counts) in held.items():
            self.take(job, role, nodes, counts)

    def block(self, nodes: IntArray, amount: IntArray) -> IntArray:
        """Keep up to `amount` (len(nodes)×R) of what is free on these nodes from everybody; returns what is kept."""
        kept: IntArray = np.clip(self.free[nodes], 0, amount)
        self.free[nodes] -= kept
        self._log.extend(nodes.tolist())
        return kept

    def unblock(self, nodes: IntArray, amount: IntArray) -> None:
        self.free[nodes] += amount
        self._log.extend(nodes.tolist())

    def holds(self, job: int) -> bool:
        return any(self.replicas[role] > 0 for role in self.roles_of(job))

    def within_limits(self, job: int) -> bool:
        """Whether each role of the job has between its minimum and its maximum. What is not can only be left alone,
        made whole, or stopped."""
        s = self.snapshot
        return all(s.role_min[r] <= self.replicas[r] <= s.role_max[r] for r in self.roles_of(job))

    def differs(self) -> bool:
        """Whether the allocation is another than the snapshot's."""
        s = self.snapshot
        for role in np.flatnonzero(self._touched).tolist():
            low, high = self.held_range(role)
            nodes, counts = self.placement(role)
            if not np.array_equal(nodes, s.held_node[low:high]) or not np.array_equal(counts, s.held_count[low:high]):
                return True
        return False

    def triples(self) -> tuple[IntArray, IntArray, IntArray]:
        """The allocation as (role, node, count)."""
        stay = ~self._touched[self.snapshot.held_role]
        parts = [(self.snapshot.held_role[stay], self.snapshot.held_node[stay], self.snapshot.held_count[stay])]
        own = [(r, n, c) for r, (n, c) in self._own.items() if len(n)]
        if own:
            role = np.repeat(np.array([r for r, _, _ in own], dtype=np.int64), [len(n) for _, n, _ in own])
            parts.append((role, np.concatenate([n for _, n, _ in own]), np.concatenate([c for _, _, c in own])))
        role = np.concatenate([p[0] for p in parts])
        node = np.concatenate([p[1] for p in parts])
        count = np.concatenate([p[2] for p in parts])
        return role, node, count

    def room_for(self, job: int, role: int) -> IntArray:
        """Replicas of `role` that each node takes now for this job, caps of queues aside (N). Not to be written to."""
        room = self.room(role)
        pool = self.pool_of.get(job)
        if pool is not None:
            room = np.where(self.snapshot.node_pool == pool, room, 0)
        if self.snapshot.job_pinned[job]:
            home = self.home(job)
            if home.any():
                room = np.where(home, room, 0)
        return room

    def home(self, job: int) -> BoolArray:
        """Nodes that the job's pods are on in the snapshot."""
        out = np.zeros(self.snapshot.nodes, dtype=np.bool_)
        low, high = self._held_at[self.start_list[job]], self._held_at[self.start_list[job + 1]]
        out[self.snapshot.held_node[low:high]] = True
        return out

    def weight(self, role: int) -> float:
        """The largest part of any resource that one replica takes (of the whole cluster)."""
        total = np.maximum(self.snapshot.node_allocatable.sum(axis=0), 1)
        return float((self.snapshot.role_request[role] / total).max())

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
        self._touched[role] = True
        request = self.snapshot.role_request[role]
        self.free[nodes] -= sign * counts[:, None] * request
        self._log.extend(nodes.tolist())
        total = sign * int(counts.sum())
        self.replicas[role] += total
        queue = self.job_queue[job]
        if queue >= 0:
            self.queue_used[self._ancestors[queue]] += total * request

    def _queue_use(self) -> IntArray:
        s = self.snapshot
        used = np.zeros((s.queues, len(s.resources)), dtype=np.int64)
        queue = s.job_queue[s.role_job]
        amount = s.role_request * self.replicas[:, None]
        for q in range(s.queues):
            mine = amount[queue == q].sum(axis=0)
            used[self._ancestors[q]] += mine
        return used


_NONE: IntArray = np.zeros(0, dtype=np.int64)


def _one_node(held: IntArray, counts: IntArray, node: IntArray, more: IntArray) -> tuple[IntArray, IntArray]:
    """A placement (sorted by node) with `more` at one node: most changes are of one, and a general merge is dear."""
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


def ancestors(parent: IntArray) -> list[list[int]]:
    """For each queue: itself and the queues above it. A circle is cut where it closes."""
    out: list[list[int]] = []
    for queue in range(len(parent)):
        chain = [queue]
        while parent[chain[-1]] >= 0 and int(parent[chain[-1]]) not in chain:
            chain.append(int(parent[chain[-1]]))
        out.append(chain)
    return out


def _shapes(snapshot: Snapshot) -> IntArray:
    if snapshot.roles == 0:
        return np.zeros(0, dtype=np.int64)
    table = np.column_stack([snapshot.role_class, snapshot.role_request])
    # Rows as bytes: np.unique over an axis sorts structured rows, several times slower.
    rows = np.ascontiguousarray(table).view(np.dtype((np.void, table.dtype.itemsize * table.shape[1]))).ravel()
    _, inverse = np.unique(rows, return_inverse=True)
    return inverse.astype(np.int64)
