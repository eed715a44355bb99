"""One cycle of `fit`, over one ledger.

1. serve    by priority. In each priority: preemptible jobs that lost pods or are outside their limits are placed
            again; jobs that are not preemptible grow to their desired size; then new jobs start, the oldest first. A
            job that does not fit preempts: replicas above the minimum of jobs of its priority or below, whole jobs only
            of lower priorities. Stopped jobs wait like new ones. Capacity is reserved for the oldest gang.
2. fill     by priority: preemptible jobs grow into what is left (`backfill`).

The reasons follow from the final allocation (`reasons`).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

import numpy as np

from diflow.allocator.model.arrays import BoolArray
from diflow.allocator.model.ledger import Ledger, Placement
from diflow.allocator.model.reasons import (
    DoesNotFit,
    DoesNotFitElsewhere,
    PlacedAgain,
    PreemptedForPriority,
    Reason,
    ShrunkForOthers,
)
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.policies.fit.backfill import (
    Member,
    drop_to_minimum,
    fill,
    put,
    roles_that_scale,
    size,
    tidy,
)
from diflow.allocator.policies.fit.preemption import preempt
from diflow.allocator.policies.limits import above_maximum, give_up_in_place, on_open, within
from diflow.allocator.policies.settings import PolicySettings
from diflow.allocator.policies.turns import Turn, lasting_use, turn_of, waits_since
from diflow.allocator.policies.waiting import (
    Feasibility,
    Kept,
    explain_waiting,
    first_reasons,
    lift,
    minimum_gang,
    reserve,
    start,
)

AGAIN, GROW, START = 0, 1, 2
"""The order of actions within a priority."""
MOST_TRANSACTIONS = 200
"""Attempts at preemption in one cycle: each looks at the whole allocation (4 ms with 8,000 replicas). The next cycle
continues."""
FREELY, GENTLY, STILL = 0, 1, 2
"""What a cycle may do to running jobs: preempt them; only place jobs outside their limits again; only place broken
gangs again."""


class Cycle:
    """One cycle over one ledger. `considered` (J): the only jobs that may start, in free capacity. `care`: FREELY,
    GENTLY or STILL."""

    def __init__(
        self,
        snapshot: Snapshot,
        settings: PolicySettings,
        *,
        considered: BoolArray | None = None,
        care: int = FREELY,
    ) -> None:
        s = snapshot
        self.snapshot, self.settings = s, settings
        self.ledger = Ledger(s)
        self.work = s.work
        self.reasons = first_reasons(s)
        self.feasible = Feasibility(s)
        self.alone = considered is not None
        self.takes = care == FREELY and considered is None
        self.considered = np.ones(s.jobs, dtype=np.bool_) if considered is None else considered
        self.held = self.ledger.replicas.copy()
        self.ran = s.jobs_of(s.held_role)
        self.restarts = np.zeros(s.jobs, dtype=np.bool_)
        """Preemptible jobs that start or change in this plan in any case (J)."""
        self.started: list[int] = []
        self.stays = self._cannot_resize()
        out_of_limits, above = self._out_of_limits(), above_maximum(s)
        # Until they are placed again they can only be stopped as a whole.
        self.again = out_of_limits & s.job_preemptible & (s.job_queue >= 0) & ~(s.job_pinned & self.stays)
        if care == STILL:
            self.again &= s.jobs_of(self.held < s.role_min)
        # What is above a maximum may be given up in any case.
        self.again |= above
        self.stays |= out_of_limits
        self.stopped: list[int] = []
        """Stopped jobs that are not in the queue again yet."""
        self.waiting: list[int] = []
        self.blame: dict[int, tuple[type[Reason], int]] = {}
        """By job that another one changed, or that is placed again: the kind of reason, and the other job or -1."""
        self.impossible: dict[int, Reason] = {}
        self.too_small: set[int] = set()
        self.since = waits_since(s)
        self.turn: Turn | None = None
        """The gang whose turn it is."""
        self.reserved_for = -1
        self.kept: Kept = []
        self.spared: BoolArray | None = None
        self.disturbs = False
        self.transactions = 0
        # A shape that did not fit with some minimum does not fit with a larger one until capacity comes free.
        self._full: dict[tuple[int, ...], int] = {}
        self._hopeless: dict[tuple[int, ...], tuple[int, int]] = {}

    def run(self) -> None:
        """Serve the queue, and fill what is left. `reasons.explain` says why, from the final allocation."""
        self._serve()
        self._serve_again()
        self._fill()
        self._lift()

    # -- which jobs --

    def _cannot_resize(self) -> BoolArray:
        """Jobs that are not preemptible, or whose pods could not return to their node: it is closed, overcommitted or
        no longer eligible (J)."""
        s = self.snapshot
        bad = ~s.class_nodes[s.role_class[s.held_role], s.held_node] | ~s.node_open[s.held_node]
        over_full = np.any(self.ledger.free < 0, axis=1)
        bad |= over_full[s.held_node]
        return ~s.job_preemptible | s.jobs_of(s.held_role[bad])

    def _out_of_limits(self) -> BoolArray:
        """Running jobs below their minimum or above their maximum (J).

        Jobs on closed nodes are left alone: if they have to leave, the snapshot does not contain their pods.
        """
        s = self.snapshot
        return s.jobs_of((self.held < s.role_min) | (self.held > s.role_max)) & self.ran

    def _queue(self) -> list[tuple[int, int, float, int]]:
        s = self.snapshot
        short = s.jobs_of(self.held < s.role_desired)
        kind = np.full(s.jobs, -1, dtype=np.int64)
        kind[~self.ran] = START
        if not self.alone:
            kind[self.ran & short & ~s.job_preemptible & (s.job_queue >= 0)] = GROW
            kind[self.again] = AGAIN
        jobs = np.flatnonzero(kind >= 0)
        return sorted(
            zip(
                (-s.job_priority[jobs]).tolist(),
                kind[jobs].tolist(),
                s.job_created_seconds[jobs].tolist(),
                jobs.tolist(),
                strict=True,
            )
        )

    def _serve(self) -> None:
        queue = self._queue()
        do: dict[int, Callable[[int], None]] = {AGAIN: self._place_again, GROW: self._grow, START: self._start}
        s = self.snapshot
        while queue:
            _, kind, _, job = heapq.heappop(queue)
            with self.work.of(job):
                do[kind](job)
            while self.stopped:
                victim = self.stopped.pop()
                again = (-int(s.job_priority[victim]), START, float(s.job_created_seconds[victim]), victim)
                heapq.heappush(queue, again)

    def _start(self, job: int) -> None:
        ledger = self.ledger
        if ledger.holds(job) or not self._possible(job):
            return
        if (
            self.considered[job]
            and not self.work.is_spent(job)
            and (self._starts(job) or self._takes(job, minimum_gang(ledger, job)))
        ):
            self._has_started(job)
            return
        self._waits(job)

    def _has_started(self, job: int) -> None:
        self.started.append(job)
        if self.snapshot.job_preemptible[job]:
            self.restarts[job] = True
        elif not self.alone:
            self._grow(job)
            roles = list(self.ledger.roles_of(job))
            # Its growth comes before new jobs and the reservation.
            self.disturbs |= bool((self.ledger.replicas[roles] < self.snapshot.role_desired[roles]).any())

    def _possible(self, job: int) -> bool:
        reason = self.feasible.impossible(job)
        if reason is not None:
            self.impossible[job] = reason
        return reason is None

    def _starts(self, job: int) -> bool:
        """Start in free capacity: preemptible jobs with their minimum for now, others as large as fits."""
        s, ledger = self.snapshot, self.ledger
        roles = ledger.roles_of(job)
        low = int(s.role_min[roles[0]])
        key = (ledger.shape(roles[0]), ledger.job_queue[job] if ledger.capped else -1, int(s.job_pinned[job]))
        if len(roles) == 1 and self._full.get(key, 2**62) <= low:
            return False
        fits = put(ledger, job, minimum_gang(ledger, job)) if s.job_preemptible[job] else start(ledger, job)
        if not fits and len(roles) == 1 and not (s.job_pinned[job] and self.ran[job]):
            self._full[key] = low
        return fits

    def _waits(self, job: int) -> None:
        """The job waits; if it is the first whose turn has come, capacity is reserved for it."""
        s = self.snapshot
        self.waiting.append(job)
        if self.turn is not None or s.modest[job]:
            return
        found = turn_of(s, job, waits_since=float(self.since[job]), size=1.0, settings=self.settings)
        if found is None:
            return
        if isinstance(explain_waiting(self.ledger, job), DoesNotFit):
            self.turn = found
            if found.has_reservation:
                self._reserve(job)

    def _reserve(self, job: int) -> None:
        self.kept = self._reserved(job)
        if self.kept:
            self.reserved_for = job
            self.spared = np.zeros(self.snapshot.nodes, dtype=np.bool_)
            for nodes, _ in self.kept:
                self.spared[nodes] = True

    def _reserved(self, job: int) -> Kept:
        assert self.turn is not None
        return reserve(self.ledger, job, lasting=lasting_use(self.snapshot, self.turn))

    def _lift(self) -> None:
        lift(self.ledger, self.kept)
        self.kept = []

    def _takes(self, job: int, want: dict[int, int]) -> bool:
        """Start by preemption."""
        s, ledger = self.snapshot, self.ledger
        if not self.takes or s.modest[job]:
            return False
        roles = list(want)
        rank = int(s.job_priority[job])
        key = (ledger.shape(roles[0]), ledger.job_queue[job] if ledger.capped else -1, int(s.owners[job]))
        simple = len(roles) == 1 and not ledger.is_bound(job)
        count, above = self._hopeless.get(key, (2**62, rank))
        if simple and want[roles[0]] >= count and rank <= above:
            return False
        if self.transactions >= MOST_TRANSACTIONS:
            return False
        self.transactions += 1
        others = s.job_preemptible & (s.job_priority <= rank)
        others[job] = False
        if (able := s.takes_from(job)) is not None:
            others &= able
        # A pinned job may shrink; if it were stopped, its nodes might not be free again.
        may_shrink, may_stop = others & ~self.stays, others & (s.job_priority < rank) & ~s.job_pinned
        victims = ledger.searched(
            job,
            lambda: preempt(ledger, job, want, may_shrink=may_shrink, may_stop=may_stop, spared=self.spared),
        )
        if victims is None:
            if simple:
                self._hopeless[key] = (want[roles[0]], rank)
            return False
        self.disturbs = True
        self._full.clear()
        for other in victims.shrunk:
            self.restarts[other] = True
            self.blame.setdefault(other, (ShrunkForOthers, job))
        for other in victims.stopped:
            self.restarts[other] = False
            self.blame[other] = (PreemptedForPriority, job)
        self.stopped += victims.stopped
        return True

    def _place_again(self, job: int) -> None:
        """Place a job that lost pods or is outside its limits again: with what it held, within its limits, or with its
        minimum."""
        s, ledger = self.snapshot, self.ledger
        if not ledger.holds(job):
            return
        low = minimum_gang(ledger, job)
        broken = any(ledger.replicas[r] < least for r, least in low.items())
        held = ledger.release(job)
        # A whole gang does not restart with fewer replicas than it has on open nodes.
        startable = within(s, low, on_open(s, held))
        least = low if broken else startable
        sizes = [within(s, low, held), startable, least]
        has_queue = ledger.job_queue[job] >= 0
        fits = has_queue and any(put(ledger, job, want) for want in sizes)
        in_place = not fits and not broken and self._gives_up_in_place(job, held)
        if fits or in_place or (has_queue and self._takes(job, least)):
            # It could not get its current places again, so it does not share them with others.
            self.restarts[job], self.disturbs = not in_place, True
            self.stays[job] = in_place
            self.blame.setdefault(job, (PlacedAgain, -1))
        elif broken and has_queue and not s.job_pinned[job]:
            # A broken gang does no work, and others can use its capacity.
            self.disturbs = True
            self._full.clear()
            if self._possible(job):
                self._waits(job)
        else:
            ledger.restore(job, held)
            self.stays[job] = True
            self.blame[job] = (DoesNotFitElsewhere, -1)

    def _gives_up_in_place(self, job: int, held: Placement) -> bool:
        """Try to reduce a job that held this to its maximum on its current nodes, as the cap of its queue, or a missing
        queue, allows no new placement. Returns whether that was possible."""
        self.ledger.restore(job, held)
        if give_up_in_place(self.ledger, job):
            return True
        self.ledger.release(job)
        return False

    def _grow(self, job: int) -> None:
        """Grow a job that is not preemptible to its desired size, beside the pods it has."""
        s, ledger = self.snapshot, self.ledger
        missing = {r: int(s.role_min[r] - ledger.replicas[r]) for r in ledger.roles_of(job)}
        if any(more > 0 for more in missing.values()):
            # Below its minimum (it was raised, or pods were lost): all that is missing or nothing.
            want = {r: more for r, more in missing.items() if more > 0}
            if ledger.try_gang(job, want) is None and not self._takes(job, want):
                return
        for role in ledger.roles_of(job):
            more = int(s.role_desired[role] - ledger.replicas[role])
            while more > 0:
                if ledger.try_gang(job, {role: more}) is None and not self._takes(job, {role: more}):
                    more //= 2
                else:
                    more = int(s.role_desired[role] - ledger.replicas[role])

    def _serve_again(self) -> None:
        """Start waiting jobs that fit in capacity left over by preemption or the reservation."""
        if not self.waiting or not (self.disturbs or self.reserved_for >= 0):
            return
        if self.reserved_for >= 0:
            job = self.reserved_for
            self._lift()
            if self.considered[job] and put(self.ledger, job, minimum_gang(self.ledger, job)):
                self.reserved_for = -1
                self._has_started(job)
            else:
                self.kept = self._reserved(job)
        self._full.clear()
        for job in self.waiting:
            if self.considered[job] and not self.ledger.holds(job) and job != self.reserved_for and self._starts(job):
                self._has_started(job)

    # -- how many replicas --

    def _fill(self) -> None:
        s, ledger = self.snapshot, self.ledger
        sharing = self._sharing()
        for m in sharing:
            if m.worth == 0:
                drop_to_minimum(ledger, m.job)
        for level in sorted({int(s.job_priority[m.job]) for m in sharing}, reverse=True):
            members = [m for m in sharing if s.job_priority[m.job] == level]
            left_out = fill(ledger, members)
            self.too_small |= left_out
            if any(m.worth > 0 and m.job not in left_out for m in members):
                self.disturbs = True
        fresh = [j for j in self.started if not s.job_preemptible[j]]
        if tidy(ledger, fresh + [m.job for m in sharing if m.worth == 0]):
            # Less fragmentation: a waiting job may fit now.
            self.disturbs = True

    def _sharing(self) -> list[Member]:
        """The jobs that share what is left, the oldest first: those that start or restart, and those that may grow."""
        s, ledger = self.snapshot, self.ledger
        grows = self._may_grow()
        out: list[Member] = []
        for j in np.lexsort((np.arange(s.jobs), s.job_created_seconds)).tolist():
            if self.restarts[j] and ledger.holds(j):
                out.append(Member(j))
            elif grows[j] and any(ledger.most(j, r) > 0 for r in roles_that_scale(ledger, j)):
                out.append(Member(j, worth=max(1.0, self.settings.least_growth * size(ledger, j))))
        return out

    def _may_grow(self) -> BoolArray:
        """Preemptible running jobs below their maximum that did not change recently (J)."""
        s = self.snapshot
        if self.alone:
            return np.zeros(s.jobs, dtype=np.bool_)
        return self.below_maximum() & ~self.changed_lately()

    def below_maximum(self) -> BoolArray:
        """Running jobs that may be resized, below their maximum (J)."""
        s = self.snapshot
        below = s.jobs_of(self.ledger.replicas < s.role_max)
        return below & self.ran & ~self.stays & ~self.restarts & (s.job_queue >= 0)

    def changed_lately(self) -> BoolArray:
        """Jobs that were resized or moved too recently to grow (J)."""
        s = self.snapshot
        since = s.now_seconds - s.job_changed_seconds
        out: BoolArray = (s.job_changed_seconds >= 0) & (since < self.settings.least_seconds_between_resizes)
        return out
