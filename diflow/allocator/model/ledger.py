"""The working copy in which a policy tries placements: free capacity, use of queues, and the allocation.

A policy places and releases whole gangs; a gang that does not fit changes nothing. The replicas of a shape that fit on
each node are cached and updated only on nodes that changed, so thousands of gangs of few shapes cost microseconds each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

import numpy as np

from diflow.allocator.model import domains
from diflow.allocator.model.arrays import BoolArray, FloatArray, IntArray
from diflow.allocator.model.packing import ANY_NUMBER, place, place_by_score, slots
from diflow.allocator.model.rules import Tally, capped, homes, spread_out
from diflow.allocator.model.snapshot import Snapshot, ancestors
from diflow.allocator.model.work import CELLS, SpentError

__all__ = ["Ledger", "Placement", "ancestors"]

Placement = dict[int, tuple[IntArray, IntArray]]
"""role → (nodes, counts)."""

_T = TypeVar("_T")

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
        self.work = snapshot.work
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
        self._fixed: list[list[int]] | None = None if facts.kept is None else self._queue_use(~snapshot.job_preemptible)
        """Q×R of `used` that jobs hold which are not preemptible, if that is limited."""
        self.scores: Callable[[IntArray, FloatArray | None], FloatArray | None] | None = None
        """Scores of nodes (N) from the free capacity (N×R) and the role's preference (N); None: packing decides."""
        self.pool_of: dict[int, int] = {}
        """role → node pool, for roles confined to one."""
        self._within: BoolArray | None = None
        self._capped: dict[int, tuple[int, IntArray]] = {}
        self._most: dict[int, tuple[int, int]] = {}

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
        """Replicas of `role` that fit on each node now (N): of one with rules about other pods, on that node alone.
        Read-only."""
        fits = self._slots_of(self.facts.shape[role]).by_node
        if role not in self.facts.ruled:
            return fits
        known = self._capped.get(role)
        if known is None or known[0] != len(self._log):
            known = self._capped[role] = len(self._log), capped(fits, role, self._tallies(role))
        return known[1]

    def _tallies(self, role: int) -> list[Tally]:
        rules = self.snapshot.rules
        counted = sum(len(rules.all[i].counted) + len(rules.all[i].owners) for i in self.facts.ruled[role])
        self.work.charge(10 * len(self.facts.ruled[role]) + counted)
        return rules.tallies(role, self.placement)

    def _slots_of(self, shape: int) -> _Slots:
        shape = self.facts.plain[shape]
        known = self._slots.get(shape)
        now = len(self._log)
        if known is None or now - known.seen > ONE_BY_ONE:
            self.work.charge(10 + self.free.size // CELLS)
            request = np.zeros(self.free.shape[1], dtype=np.int64)
            for r, amount in self.facts.asks[shape]:
                request[r] = amount
            known = self._slots[shape] = _Slots(slots(self.free, request, self.facts.eligible(shape)), now)
        elif known.seen < now:
            self._update(known, shape)
        return known

    def _update(self, known: _Slots, shape: int) -> None:
        """Update the nodes that changed."""
        self.work.charge(1 + (len(self._log) - known.seen))
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
        room = self.fixed_room(job)
        if not asks and room is None:
            return ANY_NUMBER
        left = [(facts.caps[q][r] - self.used[q][r]) // amount for q in facts.chains[queue] for r, amount in asks]
        if room is not None:
            left += [room[r] // amount for r, amount in facts.asks[facts.shape[role]]]
        return max(0, min(left, default=ANY_NUMBER))

    def fixed_room(self, job: int) -> list[int] | None:
        """What a job that is not preemptible may get of each resource, so that other queues could still claim what they
        are guaranteed; None: as much as fits. Its own queue's guarantee is always open to it, and a gang that has lost
        replicas is completed."""
        facts, fixed = self.facts, self._fixed
        queue = facts.job_queue[job]
        if fixed is None or facts.kept is None or not facts.is_fixed(job) or queue < 0:
            return None
        if self.holds(job) and any(self.count[r] < facts.role_min[r] for r in facts.roles_of[job]):
            return None
        own, top = self.snapshot.queue_guarantee[queue].tolist(), fixed[-1]
        room = []
        for r, total in enumerate(self._usable()):
            claims = sum(max(0, facts.kept[q][r] - fixed[q][r]) for q in facts.siblings[queue])
            room.append(max(0, total - top[r] - claims, own[r] - fixed[queue][r]))
        return room

    def _usable(self) -> list[int]:
        """Capacity of open nodes, and what is held on others, by resource."""
        s = self.snapshot
        sources = (s.node_allocatable, s.node_foreign, s.node_open, s.held_role, s.held_node, s.held_count)

        def found() -> list[int]:
            whole = np.maximum(s.capacity(), 0)
            held = s.capacity() - s.free_after_termination()
            out: list[int] = np.where(s.node_open[:, None], whole, np.minimum(held, whole)).sum(axis=0).tolist()
            return out

        return s.memo.get("usable for fixed jobs", sources, found)

    def within_caps(self, job: int, want: dict[int, int]) -> bool:
        """Whether the caps of the job's queue and its ancestors allow `want` more replicas of its roles together, and
        the guarantees of other queues do, if it is not preemptible."""
        facts = self.facts
        queue = facts.job_queue[job]
        room = self.fixed_room(job)
        if room is not None and any(amount > 0 and amount > room[r] for r, amount in enumerate(self.amount(want))):
            return False
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
        with self.work.of(job):
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

    def searched(self, job: int, find: Callable[[], _T | None]) -> _T | None:
        """The result of a search for this job; None, with nothing changed, if the job's namespace has no operations
        left for it in this plan."""
        if self.work.is_spent(job):
            return None
        before = self._own.copy(), self.free.copy(), self.replicas.copy(), [row.copy() for row in self.used]
        fixed = None if self._fixed is None else [row.copy() for row in self._fixed]
        try:
            with self.work.of(job, may_fail=True):
                return find()
        except SpentError:
            self._own, self.free, self.replicas, self.used = before
            self._fixed = fixed
            self.count = self.replicas.tolist()
            self._slots, self._capped, self._most = {}, {}, {}
            self._log.append(0)
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
        if job not in self.facts.bound_jobs or self._within is not None:
            return self._place_gang(job, want, together)
        roles = [role for role, count in want.items() if count > 0 and role in self.facts.ruled]
        for nodes in homes(self.snapshot.rules, roles, lambda role: self.slots_for(job, role), self.placement):
            with self.confined(nodes):
                taken = self._place_gang(job, want, together)
            if taken is not None:
                return taken
        return None

    def _place_gang(self, job: int, want: dict[int, int], together: int) -> Placement | None:
        roles = [role for role, count in want.items() if count > 0]
        self.work.charge(len(roles))
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
        if role in self.facts.ruled:
            return self._place_by_rules(job, role, count, together=together)
        fits = self.slots_for(job, role)
        self.work.charge(10 + len(fits) // CELLS)
        preference = self.facts.preference[self.facts.shape[role]]
        score = None if self.scores is None else self.scores(self.free, preference)
        if score is None:
            return place(fits, count, preference, together=together)
        return place_by_score(fits, count, score, preference, together=together)

    def _place_by_rules(self, job: int, role: int, count: int, *, together: bool) -> tuple[IntArray, IntArray] | None:
        fits = self._room_for(job, role, self._slots_of(self.facts.shape[role]).by_node)
        if together:
            fits = np.where(fits >= count, fits, 0)
        likes = self.facts.preference[self.facts.shape[role]]
        taken, placed = spread_out(fits, count, role, self._tallies(role), preference=likes, charge=self.work.charge)
        nodes = np.flatnonzero(taken)
        return None if placed < count or (together and len(nodes) > 1) else (nodes, taken[nodes])

    def _most_by_rules(self, job: int, role: int) -> int:
        """Replicas of a role with rules that fit now: as many as may be asked for at most."""
        known = self._most.get(role)
        is_free = self._within is None and role not in self.pool_of
        if known is None or known[0] != len(self._log) or not is_free:
            fits = self._room_for(job, role, self._slots_of(self.facts.shape[role]).by_node)
            high = max(0, self.facts.role_max[role] - self.count[role])
            _, placed = spread_out(fits, high, role, self._tallies(role), charge=self.work.charge)
            if not is_free:
                return placed
            known = self._most[role] = len(self._log), placed
        return known[1]

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
        self.work.charge(1)
        facts = self.facts
        if role in facts.ruled:
            fits = self._most_by_rules(job, role)
        elif self._within is None and facts.required[job] >= 0 and not self.holds(job):
            fits = domains.most_in_one(self.snapshot, facts.required[job], self.slots_for(job, role))
        elif facts.pinned[job] or role in self.pool_of or facts.required[job] >= 0 or self._within is not None:
            fits = int(np.minimum(self.slots_for(job, role), MOST).sum())
        else:
            fits = self._slots_of(self.facts.shape[role]).total
        return min(fits, self.queue_headroom(job, role))

    def takes_any(self) -> bool:
        """Whether one more replica of any role fits anywhere."""
        return any(self._slots_of(shape).total for shape in dict.fromkeys(self.facts.plain))

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
        return self._room_for(job, role, self.slots(role))

    def _room_for(self, job: int, role: int, fits: IntArray) -> IntArray:
        """`fits` (N) on the nodes that are open to this job: in its pool, where it is pinned, in its domain."""
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
        to stay in its domain, or has rules about other pods."""
        return (
            job in self.facts.bound_jobs
            or self.facts.pinned[job]
            or (self.facts.required[job] >= 0 and self.holds(job))
        )

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
        self.work.charge(5 + len(nodes) // 8)
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
        if self._fixed is not None and not facts.preemptible[job]:
            for q in (*(facts.chains[queue] if queue >= 0 else ()), -1):
                for r, amount in facts.asks[facts.shape[role]]:
                    self._fixed[q][r] += total * amount

    def _queue_use(self, jobs: BoolArray | None = None) -> list[list[int]]:
        """Q×R held by the jobs of each queue and its descendants; of only these `jobs` (J), with a last row for all."""
        s, facts = self.snapshot, self.facts
        # The last row is for jobs without a queue.
        own = np.zeros((s.queues + 1, len(s.resources)), dtype=np.int64)
        holding = np.flatnonzero(self.replicas if jobs is None else self.replicas * jobs[s.role_job])
        np.add.at(own, s.job_queue[s.role_job[holding]], s.role_request[holding] * self.replicas[holding, None])
        used = [[0] * len(s.resources) for _ in range(s.queues)]
        for mine, chain in zip(own.tolist(), facts.chains, strict=False):
            for q in chain:
                used[q] = [a + b for a, b in zip(used[q], mine, strict=True)]
        return used if jobs is None else [*used, own.sum(axis=0).tolist()]


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
