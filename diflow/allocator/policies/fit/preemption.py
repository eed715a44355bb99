"""Preemption for a gang: first replicas above their jobs' minimum, then as few whole jobs as possible.

One transaction over a ledger, all or nothing. Free capacity is used first. The fewest victims are found by trying every
set of one, two, ... jobs, and among sets of a size the one that loses the fewest replicas; if there are too many sets,
a greedy cover is made and reduced. Replicas above a minimum are taken node by node, where they free the most slots for
the gang, and those that turn out not to be needed are returned.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from diflow.allocator.model.arrays import BoolArray, IntArray
from diflow.allocator.model.domains import rooms
from diflow.allocator.model.ledger import Ledger, Placement
from diflow.allocator.model.packing import ANY_NUMBER, slots
from diflow.allocator.model.work import CELLS

MOST_CELLS = 4_000_000
"""Sets × nodes × resources up to which all sets of one size are tried (about 50 ms)."""
MOST_TRIALS = 48
"""Sets that are large enough in sum and are tried on the nodes; if none of them suffices, the gang waits."""


@dataclass(frozen=True, slots=True)
class Victims:
    """The victims: `shrunk` jobs keep at least their minimum, `stopped` jobs nothing."""

    shrunk: tuple[int, ...]
    stopped: tuple[int, ...]


def preempt(
    ledger: Ledger,
    job: int,
    want: dict[int, int],
    *,
    may_shrink: BoolArray,
    may_stop: BoolArray,
    spared: BoolArray | None = None,
) -> Victims | None:
    """Preempt until `want` more replicas of the job's roles fit, and place them. None, with nothing changed, if they do
    not.

    `may_shrink`, `may_stop` (J): jobs that may lose replicas above their minimum, and jobs that may be stopped. Nothing
    is taken from nodes in `spared` (N).
    """
    # Victims are useful only if they free capacity in one of these sets of nodes.
    searches = [
        _Search(ledger, job, want, may_shrink=may_shrink, may_stop=may_stop, spared=spared, within=nodes)
        for nodes in rooms(ledger, job, want, lambda: ledger.use_of(may_shrink | may_stop))
    ]
    for search in searches:
        found = search.by_shrinking(may_shrink) if search.enough(search.surplus_freed(may_shrink)) else None
        if found is not None:
            return search.finish(found, ())
    for search in searches:
        for victims in search.sets_of_victims():
            found = search.by_stopping(victims)
            if found is not None:
                return search.finish(found, victims)
    return None


@dataclass(slots=True)
class _Taken:
    """Replicas of one role taken from one node."""

    job: int
    role: int
    node: int
    count: int

    def placement(self, count: int) -> tuple[int, int, IntArray, IntArray]:
        return self.job, self.role, np.array([self.node]), np.array([count])


class _Search:
    """One search. The arrays are the part of the allocation that may be taken and is on useful nodes, `within` which
    the gang has to be (N; None: anywhere)."""

    def __init__(
        self,
        ledger: Ledger,
        job: int,
        want: dict[int, int],
        *,
        may_shrink: BoolArray,
        may_stop: BoolArray,
        spared: BoolArray | None,
        within: BoolArray | None,
    ) -> None:
        s = ledger.snapshot
        self.ledger, self.job, self.want = ledger, job, want
        self.roles = [role for role, count in want.items() if count > 0]
        home = ledger.home(job) if s.job_pinned[job] else np.zeros(0, dtype=np.bool_)
        self.mask = {r: s.eligible(r) & home if home.any() else s.eligible(r) for r in self.roles}
        if within is not None:
            self.mask = {r: mask & within for r, mask in self.mask.items()}
        useful = np.zeros(s.nodes, dtype=np.bool_)
        for mask in self.mask.values():
            useful |= mask
        if spared is not None:
            useful &= ~spared
        role, node, count = ledger.triples()
        near = useful[node] & (may_shrink | may_stop)[s.role_job[role]]
        self.role, self.node, self.count = role[near], node[near], count[near]
        self.owner = s.role_job[self.role]
        self.may_shrink, self.may_stop = may_shrink, may_stop
        self.surplus = np.maximum(ledger.replicas - s.role_min, 0)

    def finish(self, found: list[_Taken], stopped: tuple[int, ...]) -> Victims:
        """Return what is not needed, and place the gang."""
        kept = self.give_back(found)
        self.ledger.try_gang(self.job, self.want)
        return Victims(tuple(sorted({taken.job for taken in kept})), stopped)

    # -- bounds --

    def surplus_freed(self, allowed: BoolArray) -> IntArray:
        """N×R: upper bound of what comes free on each node if these jobs shrink to their minimum."""
        return self._freed(self._part(allowed))

    def enough(self, freed: IntArray) -> bool:
        """Whether each role by itself would fit if `freed` (N×R) came free."""
        s, free = self.ledger.snapshot, self.ledger.free + freed
        self._charge(len(self.roles), free)
        return all(
            int(np.minimum(slots(free, s.role_request[r], self.mask[r]), 2**40).sum()) >= self.want[r]
            for r in self.roles
        )

    def _part(self, allowed: BoolArray) -> IntArray:
        return np.where(allowed[self.owner], np.minimum(self.count, self.surplus[self.role]), 0)

    def _freed(self, count: IntArray) -> IntArray:
        some = count > 0
        self._charge(1, self.ledger.free)
        return self.ledger.snapshot.usage(self.role[some], self.node[some], count[some])

    def _charge(self, times: int, table: IntArray) -> None:
        """Count so many looks at a table, and one at all that may be taken."""
        self.ledger.work.charge(times * (10 + table.size // CELLS) + self.count.size // 8)

    # -- replicas above a minimum --

    def by_shrinking(self, allowed: BoolArray) -> list[_Taken] | None:
        """Take replicas above minimums until the gang fits, from few jobs, lower priorities first."""
        if self.ledger.fits(self.job, self.want):
            return []
        s = self.ledger.snapshot
        jobs = np.unique(self.owner[self._part(allowed) > 0])
        most = np.bincount(s.role_job, weights=self.surplus, minlength=s.jobs)[jobs]
        jobs = jobs[np.lexsort((jobs, -s.job_created_seconds[jobs], -most, s.job_priority[jobs]))]
        first, last = 1, len(jobs)
        while first < last:
            middle = (first + last) // 2
            if self.enough(self.surplus_freed(_only(jobs[:middle], s.jobs))):
                last = middle
            else:
                first = middle + 1
        while first <= len(jobs):
            found = self._shrink(_only(jobs[:first], s.jobs))
            if found is not None:
                return found
            if first == len(jobs):
                return None
            first = min(2 * first, len(jobs))
        return None

    def _shrink(self, allowed: BoolArray) -> list[_Taken] | None:
        taken: list[_Taken] = []
        while not self.ledger.fits(self.job, self.want):
            more = self._free_a_node(allowed, {t.job for t in taken})
            if not more:
                for t in taken:
                    self._return(t)
                return None
            taken += more
        return taken

    def _free_a_node(self, allowed: BoolArray, begun: set[int]) -> list[_Taken]:
        """Take replicas from the node where that frees the most slots for a role that lacks them; [] if none does."""
        s, free = self.ledger.snapshot, self.ledger.free
        part = self._part(allowed)
        if not part.any():
            return []
        freed = self._freed(part)
        for role in sorted(self.roles, key=lambda r: (-self.ledger.weight(r), r)):
            self._charge(2, free)
            request, mask = s.role_request[role], self.mask[role]
            now, then = slots(free, request, mask), slots(free + freed, request, mask)
            # If each role fits by itself but not all together, free one slot more at a time.
            short = max(1, self.want[role] - int(np.minimum(now, 2**40).sum()))
            gain = np.minimum(then - now, short)
            if gain.max(initial=0) > 0:
                lost = np.bincount(self.node, weights=part, minlength=s.nodes)
                node = int(np.lexsort((np.arange(s.nodes), lost, -gain))[0])
                return self._take_from(node, part, role, int(now[node] + gain[node]), begun)
        return []

    def _take_from(self, node: int, part: IntArray, role: int, target: int, begun: set[int]) -> list[_Taken]:
        """Take replicas from one node until `target` replicas of `role` fit there: first from jobs in `begun`, then by
        low priority, then by surplus."""
        s, ledger = self.ledger.snapshot, self.ledger
        self._charge(1, self.node)
        entries = np.flatnonzero((self.node == node) & (part > 0)).tolist()
        entries.sort(
            key=lambda e: (
                int(self.owner[e]) not in begun,
                int(s.job_priority[self.owner[e]]),
                -int(self.surplus[self.role[e]]),
                -float(s.job_created_seconds[self.owner[e]]),
                e,
            )
        )
        taken: list[_Taken] = []
        where = slice(node, node + 1)
        for e in entries:
            one = _Taken(int(self.owner[e]), int(self.role[e]), node, 0)
            while one.count < part[e] and slots(ledger.free[where], s.role_request[role])[0] < target:
                self._take(one, e)
            if one.count:
                taken.append(one)
        return taken

    def _take(self, taken: _Taken, entry: int) -> None:
        self.ledger.give(*taken.placement(1))
        self.count[entry] -= 1
        self.surplus[taken.role] -= 1
        taken.count += 1

    def _return(self, taken: _Taken, count: int | None = None) -> None:
        back = taken.count if count is None else count
        self._charge(1, self.node)
        self.ledger.take(*taken.placement(back))
        self.count[(self.role == taken.role) & (self.node == taken.node)] += back
        self.surplus[taken.role] += back
        taken.count -= back

    def give_back(self, found: list[_Taken]) -> list[_Taken]:
        """Return what is not needed to its jobs: first all that was taken from a job, by high priority, then age; then
        single replicas. Returns what stays taken."""
        s, ledger = self.ledger.snapshot, self.ledger
        by_job = sorted({t.job for t in found}, key=lambda j: (-s.job_priority[j], s.job_created_seconds[j], j))
        for job in by_job if len(by_job) > 1 else ():
            mine = [(t, t.count) for t in found if t.job == job and t.count]
            for t, count in mine:
                self._return(t, count)
            if not ledger.fits(self.job, self.want):
                for t, count in mine:
                    entry = int(np.flatnonzero((self.role == t.role) & (self.node == t.node))[0])
                    for _ in range(count):
                        self._take(t, entry)
        for t in reversed(found):
            while t.count:
                self._return(t, 1)
                if not ledger.fits(self.job, self.want):
                    self._take(t, int(np.flatnonzero((self.role == t.role) & (self.node == t.node))[0]))
                    break
        return [t for t in found if t.count]

    # -- whole jobs --

    def sets_of_victims(self) -> Iterator[tuple[int, ...]]:
        """Sets of victims that are large enough in sum, together with all that can shrink: by number of jobs, then of
        replicas, then the lowest priority and the youngest."""
        s, ledger = self.ledger.snapshot, self.ledger
        jobs = np.unique(self.owner[self.may_stop[self.owner]])
        if len(jobs) == 0:
            return
        part = self._part(self.may_shrink)
        base = ledger.free + self._freed(part)
        extra = np.zeros((len(jobs), *base.shape), dtype=np.int64)
        mine = self.may_stop[self.owner]
        rows = np.searchsorted(jobs, self.owner[mine])
        np.add.at(extra, (rows, self.node[mine]), s.role_request[self.role[mine]] * (self.count - part)[mine][:, None])
        if not self._enough_each((base + extra.sum(axis=0))[None])[0]:
            return
        loss = s.replicas_of_jobs(ledger.replicas)[jobs]
        tried = 0
        for size in range(1, len(jobs) + 1):
            if math.comb(len(jobs), size) * base.size > MOST_CELLS:
                yield from self._greedy(jobs, base, extra, loss)
                return
            for picked in self._large_enough(base, extra, loss, jobs, size):
                yield tuple(jobs[list(picked)].tolist())
                tried += 1
                if tried >= MOST_TRIALS:
                    return

    def _large_enough(
        self, base: IntArray, extra: IntArray, loss: IntArray, jobs: IntArray, size: int
    ) -> list[tuple[int, ...]]:
        s = self.ledger.snapshot
        self._charge(math.comb(len(jobs), size), base)
        found: list[tuple[int, ...]] = []
        sets = itertools.combinations(range(len(jobs)), size)
        chunk = max(1, 400_000 // (base.size * size))
        while some := list(itertools.islice(sets, chunk)):
            good = self._enough_each(base + extra[np.array(some)].sum(axis=1))
            found += [picked for picked, ok in zip(some, good.tolist(), strict=True) if ok]
        return sorted(
            found,
            key=lambda picked: (
                int(loss[list(picked)].sum()),
                int(s.job_priority[jobs[list(picked)]].max()),
                -float(s.job_created_seconds[jobs[list(picked)]].min()),
                picked,
            ),
        )

    def _enough_each(self, free: IntArray) -> BoolArray:
        """For each of K tables of free capacity (K×N×R): whether each role by itself fits."""
        out = np.ones(len(free), dtype=np.bool_)
        for role in self.roles:
            out &= self._slots_each(free, role) >= self.want[role]
        return out

    def _slots_each(self, free: IntArray, role: int) -> IntArray:
        request = self.ledger.snapshot.role_request[role]
        asked = np.flatnonzero(request)
        if len(asked) == 0:
            return np.full(len(free), ANY_NUMBER, dtype=np.int64)
        fits = (free[:, self.mask[role]][:, :, asked] // request[asked]).min(axis=2)
        out: IntArray = np.maximum(fits, 0).sum(axis=1)
        return out

    def _greedy(self, jobs: IntArray, base: IntArray, extra: IntArray, loss: IntArray) -> Iterator[tuple[int, ...]]:
        """A greedy cover by the jobs that free most, without those it can spare; extended if it is too small."""
        s, picked, free = self.ledger.snapshot, list[int](), base.copy()
        left = list(range(len(jobs)))
        for _ in range(min(len(jobs), MOST_TRIALS)):
            self._charge(len(self.roles), extra)
            value = np.zeros(len(left))
            for role in self.roles:
                value += np.minimum(self._slots_each(free + extra[left], role), self.want[role]) / self.want[role]
            best = int(np.lexsort((jobs[left], loss[left], s.job_priority[jobs[left]], -value))[0])
            picked.append(left.pop(best))
            free += extra[picked[-1]]
            if not self._enough_each(free[None])[0]:
                continue
            thin = list(picked)
            for v in sorted(picked, key=lambda v: (-loss[v], v)):
                rest = [u for u in thin if u != v]
                if rest and self._enough_each((base + extra[rest].sum(axis=0))[None])[0]:
                    thin = rest
            yield tuple(sorted(jobs[thin].tolist()))

    def by_stopping(self, victims: Sequence[int]) -> list[_Taken] | None:
        """Stop these jobs, and shrink others as far as necessary. None, with nothing changed, if that is not enough."""
        ledger = self.ledger
        gone: dict[int, Placement] = {v: ledger.release(v) for v in victims}
        mine = np.isin(self.owner, victims)
        count = self.count[mine].copy()
        self.count[mine] = 0
        others = self.may_shrink.copy()
        others[list(victims)] = False
        found = self.by_shrinking(others) if self.enough(self.surplus_freed(others)) else None
        if found is None:
            self.count[mine] = count
            for v, held in gone.items():
                ledger.restore(v, held)
        return found


def _only(jobs: IntArray, count: int) -> BoolArray:
    out = np.zeros(count, dtype=np.bool_)
    out[jobs] = True
    return out
