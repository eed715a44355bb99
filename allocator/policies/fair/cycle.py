"""One cycle of the fair policies over one ledger: starts, growth, preemption and reclaiming.

A cycle first completes broken gangs, serves guarantees, and gives the oldest gang its turn. Then it runs a list of
steps, which settings select and order:

    allocate   queues in turn, the one furthest below its share first: its first gang, then single replicas
    backfill   idle capacity for all jobs, also of queues above their share: it can be reclaimed
    preempt    inside a queue: from lower priorities, and from the surplus of equal ones, all or nothing
    reclaim    across queues, from those that hold more of their share, all or nothing
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import numpy as np

from diflow.allocator.model.arrays import BoolArray, FloatArray, IntArray
from diflow.allocator.model.ledger import Ledger
from diflow.allocator.model.packing import ANY_NUMBER
from diflow.allocator.model.plan import Plan, Why
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.policies.fair.claims import Claim, Standings, asked_for
from diflow.allocator.policies.fair.measure import Measure, Worth
from diflow.allocator.policies.fair.orders import node_scores, ordered_jobs
from diflow.allocator.policies.fair.reasons import Binding, Given
from diflow.allocator.policies.fair.shares import dominant, shares_by, total_room
from diflow.allocator.policies.fair.victim_filters import RULES, Rule, agreed
from diflow.allocator.policies.fair.victims import MayTake, Reach, make_room, order_of_victims
from diflow.allocator.policies.reservations import Oldest, borrowers, largest_late, last_older_start, turn, waits_since
from diflow.allocator.policies.settings import PolicySettings
from diflow.allocator.policies.waiting import Feasibility, Kept, Reasons, Told, minimum_gang, reserve, told_impossible

MOST_TRANSACTIONS = 64
"""Preemptions and reclaims tried in one cycle: each may look at hundreds of victims. The next cycle continues."""
MOST_LOOKS = 1024
"""Gangs for which victims are considered in one cycle, most of them without a search."""
GENTLE = ("allocate", "backfill")
"""The steps without preemption."""
BETWEEN_QUEUES = ("allocate", "backfill", "reclaim")
"""The steps that decide between queues."""


T = TypeVar("T")


class Cycle:
    """One cycle over one ledger.

    `considered` (J): the only jobs that may get anything. `inside_queues`: whether jobs of equal priority share their
    queue's surplus. `careful`: whether an exchange that lowers the measure of the whole is refused. `kept` (roles,
    counts): the allocation with which the measure compares plans, if it is not the snapshot's. `wanted` (G): replicas
    from which shares are computed, instead of the desired ones. `grows`: whether running jobs get more than their
    minimum.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        settings: PolicySettings,
        considered: BoolArray | None = None,
        *,
        inside_queues: bool = True,
        careful: bool = False,
        kept: tuple[IntArray, IntArray] | None = None,
        wanted: IntArray | None = None,
        grows: bool = True,
    ) -> None:
        self.snapshot, self.settings = snapshot, settings
        self.inside_queues, self.careful = inside_queues, careful
        self.measured_from = kept
        self._aim = snapshot.role_desired if grows else snapshot.role_min
        self._aims: list[int] = self._aim.tolist()
        self.ledger = Ledger(snapshot)
        self.ledger.scores = node_scores(snapshot, settings.node_order)
        self.facts = self.ledger.facts
        self._same: tuple[int, int] = (-1, -1)
        self._known: tuple[int, dict[Hashable, Any]] = (-1, {})
        self.feasible = Feasibility(snapshot)
        self.possible = self.feasible.possible()
        self.ran = self._holders()
        self.allowed = self.possible if considered is None else self.possible & considered
        self.shares = shares_by(snapshot, self.possible, wanted=wanted)
        self.deserved: FloatArray = self.shares.deserved
        self.standings = Standings(self.ledger, self.shares)
        self.total: list[int] = np.maximum(total_room(snapshot), 1).tolist()
        self._all = tuple(range(len(self.total)))
        self._measure: Measure | None = None
        self.marks = Reasons(snapshot)
        self.given: list[Given] = []
        """Losses of jobs for others, in order."""
        self.oldest: Oldest | None = None
        """The gang whose turn it is, if it still waits."""
        self.turn: Oldest | None = None
        """The gang whose turn it was when the cycle began."""
        self.kept: Kept = []
        # Until something is released: for each shape (and queue, if there are caps) the smallest gang that did not fit,
        # and the kinds of jobs whose gang is above its queue's share.
        self.too_big: dict[tuple[int, int], int] = {}
        self.above_share: set[int] = set()
        self.transactions = self.looks = 0
        self.took = False
        self.decided = False

    def run(self, steps: tuple[str, ...], name: str) -> Plan:
        """The plan of all steps, with reasons."""
        self._decide(steps)
        self._explain()
        return self.marks.plan(self.ledger, name)

    def decided_by(self, steps: tuple[str, ...], name: str) -> Plan:
        """The plan of these steps, without the reasons of waiting jobs."""
        self._decide(steps)
        return self.marks.plan(self.ledger, name)

    def reasons(self) -> Reasons:
        """The reasons of waiting jobs for the snapshot as it is."""
        self.turn = self.oldest = self._find_oldest()
        self._explain()
        return self.marks

    def changes_something(self) -> bool:
        """Whether the plan of all steps changes anything; cheaper than `run`."""
        self._decide(self.settings.steps)
        return self.ledger.differs()

    def measure(self) -> Measure:
        """The measure of plans for the snapshot."""
        if self._measure is None:
            self._measure = Measure(self.snapshot, self.shares, self.possible, self.measured_from)
        return self._measure

    def rests(self) -> bool:
        """Whether the next cycle certainly changes nothing. Destructive: re-runs the steps on the result; discard the
        object afterwards. The next cycle starts from this result if no job is pinned and shares stay the same."""
        s, ledger = self.snapshot, self.ledger
        if s.job_pinned.any() or not s.node_open.all():
            return False
        stopped = self.ran & ~self._holders()
        if any(self.feasible.reason(job) is not None for job in stopped.nonzero()[0].tolist()):
            return False
        held = ledger.count.copy()
        moved = (s.job_started_seconds >= 0) & s.jobs_of(ledger.replicas != s.held_by_role())
        if (moved & (s.job_restarts + 1 >= self.settings.most_stops)).any():
            return False
        self._lift()
        self.oldest = None
        self.ran = self._holders().copy()
        self._forget()
        self.transactions = self.looks = 0
        before = self.measure()
        if self.measured_from is None:
            # The next cycle measures from the state after this one: refused exchanges may be accepted then.
            role, _, count = ledger.triples()
            self._measure = Measure(s, self.shares, self.possible, (role, count))
            tried, still = self._tried(), self._reclaim_for.__name__
            tried -= {look for look in tried if look[0] != still or self.careful}
        try:
            return self._changes_nothing(held)
        finally:
            self._measure = before

    def _changes_nothing(self, held: list[int]) -> bool:
        self._begin(self.settings.steps)
        # A job that starts in this cycle may count as a borrower in the next one.
        if self.ledger.count != held or (self.turn is not None and not self.ledger.holds(self.turn.job)):
            return False
        for step in self.settings.steps:
            getattr(self, step)()
            if self.ledger.count != held:
                return False
        return True

    def _decide(self, steps: tuple[str, ...]) -> None:
        if self.decided:
            return
        self._begin(steps)
        self.decided = True
        for step in steps:
            getattr(self, step)()
        if self.took:
            # Start waiting jobs that fit in what evictions left over.
            self._forget()
            self._try_the_oldest_again()
            self.backfill()

    def _begin(self, steps: tuple[str, ...]) -> None:
        """What comes before the steps."""
        self._make_whole()
        self._serve_guarantees(takes="reclaim" in steps)
        self._serve_the_oldest(takes="reclaim" in steps or "preempt" in steps)

    def allocate(self) -> None:
        """Place gangs and replicas within their queues' shares."""
        self._serve(within_share=True)

    def backfill(self) -> None:
        """Place all jobs that fit in idle capacity."""
        self._serve(within_share=False)

    def _make_whole(self) -> None:
        """Complete gangs that are below their minimum (pods were lost, or the minimum was raised)."""
        low = self.snapshot.jobs_of(self.ledger.replicas < self.snapshot.role_min)
        for job in self._in_order(low & self._holders() & self.allowed):
            before, missing = self._got(job), self._missing(job)
            if missing is not None and self.ledger.try_gang(job, missing) is not None:
                self.marks.set(job, Why.PLACED_AGAIN, (self._got(job), before, 0.0))

    def _missing(self, job: int) -> dict[int, int] | None:
        """What a gang below its minimum lacks; None if a role is above its maximum."""
        facts, count = self.facts, self.ledger.count
        if any(count[r] > facts.role_max[r] for r in facts.roles_of[job]):
            return None
        return {r: max(0, facts.role_min[r] - count[r]) for r in facts.roles_of[job]}

    def _serve_guarantees(self, *, takes: bool) -> None:
        """Place gangs and replicas within their queues' guarantees, before all others."""
        if not self.standings.guaranteed:
            return
        progress = True
        while progress and not self._has_tried_enough():
            progress = False
            for job in self._wanting():
                for want in self._wishes(job):
                    if not self.standings.lacks_guarantee(self.facts.job_queue[job], self.ledger.amount(want)):
                        continue
                    if self.ledger.try_gang(job, want) is not None:
                        self._mark(job, Why.FITS)
                        progress = True
                    elif takes and self._reclaim(job, want, by_guarantee=True):
                        progress = True
                    if progress:
                        break

    def preempt(self) -> None:
        """Preempt inside each queue, for jobs of higher priority and for new jobs beside jobs that can shrink."""
        self._take_in_turn(self._outranking, self._preempt_for)
        self._share_inside_queues()

    def _take_in_turn(self, wanting: Callable[[], list[int]], take: Callable[[int], bool]) -> None:
        """Let each of these jobs preempt for its request, in order and repeatedly, until none gets anything.

        What failed is not tried again, also not for an equal job, until something changes.
        """
        progress = True
        while progress:
            progress = False
            for job in wanting():
                if self._has_tried_enough():
                    return
                tried, look = self._tried(), (take.__name__, *self._look(job))
                if look not in tried:
                    tried.add(look)
                    progress |= take(job)

    def _tried(self) -> set[tuple[object, ...]]:
        """Failed attempts to preempt in the current state of the ledger."""
        return self._remembered("tried", set[tuple[object, ...]])

    def _outranking(self) -> list[int]:
        """Jobs that want something and have a higher priority than a possible victim.

        The lowest priority of possible victims never falls while higher priorities take from lower ones.
        """
        s = self.snapshot
        lowest = s.job_priority.min(initial=_HIGHEST, where=self._holders() & s.job_preemptible)
        return self._in_order(self._short() & self.allowed & (s.job_priority > lowest))

    def _preempt_for(self, job: int) -> bool:
        """One transaction for a job, with victims of lower priority in its queue."""
        lower = self._weaker(self.facts.priority[job], self.facts.job_queue[job])
        if lower is None:
            return False
        for want in self._wishes(job):
            able, may_take = agreed(self._rules(), job, want, lower)
            if able is not lower and not able.any():
                continue
            grows = self._grows(job)
            if grows:
                may_take = _both(may_take, self._no_larger_gang(want))
            victims = self._transaction(job, want, able, may_take, must_be_worth_it=grows)
            if victims is not None:
                self._note(job, victims, Why.PREEMPTED_FOR_PRIORITY)
                return True
        return False

    def _weaker(self, rank: int, queue: int) -> BoolArray | None:
        """Possible victims in the queue for a job of this priority; None if there are none."""

        def found() -> BoolArray | None:
            s = self.snapshot
            lower: BoolArray = self._holders() & s.job_preemptible & (s.job_priority < rank) & (s.job_queue == queue)
            return lower if lower.any() else None

        return self._remembered(("weaker", rank, queue), found)

    def _rules(self) -> list[Rule]:
        """The victim filters, for the current state of the ledger."""
        return self._remembered("rules", lambda: [RULES[name](self.ledger) for name in self.settings.victims])

    def _share_inside_queues(self) -> None:
        """Jobs that held nothing when the cycle began take from what jobs of their queue and priority (or below) hold
        above their minimum: up to their own minimum in any case, beyond it down to equal dominant shares."""
        if self.inside_queues:
            self._take_in_turn(self._newcomers, self._share_with)

    def _newcomers(self) -> list[int]:
        return self._in_order(self._short() & self.allowed & ~self.ran) if self._with_surplus().any() else []

    def _with_surplus(self) -> BoolArray:
        """Jobs that can shrink (J)."""
        s = self.snapshot
        out: BoolArray = s.job_preemptible & s.jobs_of(self.ledger.replicas > s.role_min) & self._holders()
        return out

    def _share_with(self, job: int) -> bool:
        s, facts = self.snapshot, self.facts
        givers = self._with_surplus() & (s.job_queue == facts.job_queue[job]) & (s.job_priority <= facts.priority[job])
        givers[job] = False
        if not givers.any():
            return False
        for want in self._wishes(job):
            asked, agrees = agreed(self._rules(), job, want, givers)
            may_take = agrees if not self.ledger.holds(job) else _both(agrees, self._down_to_equal(job, want))
            victims = self._transaction(job, want, asked, may_take, surplus_only=True, must_be_worth_it=True)
            if victims is not None:
                self._note(job, victims, Why.SHARED_IN_QUEUE)
                return True
        return False

    def _no_larger_gang(self, want: dict[int, int]) -> MayTake:
        """Whether a gang that would be stopped is no larger than the growth of a running job."""
        most = dominant(self.ledger.amount(want), self.total) + _SAME
        return lambda victim, amount: self._has_spare(victim) or dominant(amount, self.total) <= most

    def _down_to_equal(self, job: int, want: dict[int, int]) -> MayTake:
        """Whether a victim keeps at least the dominant share that the job ends with."""
        least = dominant(self.ledger.held_amount(job, want), self.total) - _SAME

        def may_take(victim: int, amount: list[int]) -> bool:
            held = self.ledger.held_amount(victim)
            return dominant([h - a for h, a in zip(held, amount, strict=True)], self.total) >= least

        return may_take

    def reclaim(self) -> None:
        """Reclaim across queues, for jobs of queues below their share or guarantee."""
        self._serve_guarantees(takes=True)
        self._take_in_turn(self._poorest_first, self._reclaim_for)
        self._share_inside_queues()

    def _poorest_first(self) -> list[int]:
        """Jobs that want something, those of the queue with the smallest part of its share first."""
        if not (self._holders() & self.snapshot.job_preemptible).any():
            return []
        wanting, queue = self._wanting(), self.facts.job_queue
        keys = {q: self._key(q) for q in {queue[job] for job in wanting}}
        return sorted(wanting, key=lambda job: keys[queue[job]])

    def _reclaim_for(self, job: int) -> bool:
        return any(self._reclaim(job, want, by_guarantee=False) for want in self._wishes(job))

    def _reclaim(self, job: int, want: dict[int, int], *, by_guarantee: bool) -> bool:
        """One transaction across queues."""
        queue = self.facts.job_queue[job]
        claim = Claim(
            self.standings,
            queue,
            self.ledger.amount(want),
            priority=self.facts.priority[job],
            by_guarantee=by_guarantee,
            grows_by=sum(want.values()) if self._grows(job) else 0,
        )
        gives = claim.possible_victims()
        if not gives.any():
            return False
        able = self._holders() & self.snapshot.job_preemptible & gives[self.snapshot.job_queue]
        if not able.any():
            return False
        may_take = claim.may_take if by_guarantee else self._unless_stopped_often(claim.may_take)
        victims = self._transaction(job, want, able, may_take, keeps=claim.floor())
        if victims is None:
            return False
        self._note(job, victims, Why.RECLAIMED_BY_GUARANTEE if by_guarantee else Why.RECLAIMED)
        return True

    def _unless_stopped_often(self, may_take: MayTake) -> MayTake:
        """A filter for shares and turns: a job that was moved `most_stops` times keeps its minimum."""
        most = self.settings.most_stops
        restarts: list[int] = self.snapshot.job_restarts.tolist()

        def agrees(victim: int, amount: list[int]) -> bool:
            return (restarts[victim] < most or self._has_spare(victim)) and may_take(victim, amount)

        return agrees

    def _grows(self, job: int) -> bool:
        """Whether the job runs as a whole gang."""
        return self.ledger.holds(job) and self.ledger.within_limits(job)

    def _has_spare(self, job: int) -> bool:
        """Whether the job holds more than its minimum."""
        facts, count = self.facts, self.ledger.count
        return any(count[r] > facts.role_min[r] for r in facts.roles_of[job])

    def _look(self, job: int) -> tuple[int, ...]:
        """Cache key of the search for victims: jobs with equal requests and allocations are alike."""
        count = self.ledger.count
        return (self.facts.kinds[job], self.facts.priority[job], *[count[role] for role in self.facts.roles_of[job]])

    # -- the parts --

    def _holders(self) -> BoolArray:
        """Jobs that hold something (J). Read-only."""
        return self._remembered("holders", lambda: self.snapshot.jobs_of(self.ledger.replicas > 0))

    def _short(self) -> BoolArray:
        """Jobs that hold less than they want (J). Read-only."""
        return self._remembered("short", lambda: self.snapshot.jobs_of(self.ledger.replicas < self._aim))

    @property
    def _state(self) -> int:
        """Increases with each change of the ledger, except changes that are undone."""
        changes, before = self._same
        return before if changes == self.ledger.changes else self.ledger.changes

    def _remembered(self, what: Hashable, make: Callable[[], T]) -> T:
        """The result of `make`, cached until the ledger changes."""
        if self._known[0] != self._state:
            self._known = self._state, {}
        known = self._known[1]
        if what not in known:
            known[what] = make()
        found: T = known[what]
        return found

    def _in_order(self, chosen: BoolArray) -> list[int]:
        """These jobs in job order."""
        if not chosen.any():
            return []
        order = self._remembered("order", lambda: ordered_jobs(self.snapshot, self.ledger, self.settings.job_order))
        out: list[int] = order[chosen[order]].tolist()
        return out

    def _waiting(self) -> list[int]:
        return self._in_order(self.allowed & ~self._holders())

    def _wanting(self) -> list[int]:
        """Jobs that wait or hold less than they want, in job order."""
        return self._in_order(self._short() & self.allowed)

    def _wishes(self, job: int) -> list[dict[int, int]]:
        """The requests for which others may be evicted, largest first: a gang, or more replicas of a running job."""
        facts, ledger, count = self.facts, self.ledger, self.ledger.count
        if not ledger.holds(job):
            return [minimum_gang(ledger, job)]
        if not ledger.within_limits(job):
            # Below its minimum (it was raised, or pods were lost): all that is missing or nothing.
            missing = self._missing(job)
            return [missing] if missing is not None else []
        out: list[dict[int, int]] = []
        for role in facts.roles_of[job]:
            more = self._aims[role] - count[role]
            while more > 0 and count[role] >= facts.role_min[role]:
                out.append({role: more})
                more //= 2
        return out

    def _gang_amount(self, job: int) -> list[int]:
        return self.ledger.amount(minimum_gang(self.ledger, job))

    def _find_oldest(self) -> Oldest | None:
        """The gang whose turn it is: the first by priority and age that has waited long enough, in a queue below its
        share; of equal age the one of the queue that lacks most."""
        s, facts, ledger = self.snapshot, self.facts, self.ledger
        waits = self.allowed & ~self._holders()
        since = waits_since(s)
        waits &= s.now_seconds - since >= self.settings.reserve_after_seconds
        if not waits.any():
            return None
        rank = np.zeros(s.queues + 1)
        rank[sorted(range(s.queues), key=self._key)] = np.arange(s.queues)
        order = np.lexsort((np.arange(s.jobs), rank[s.job_queue], since, -s.job_priority))
        late = largest_late(s, self._holders(), self.settings)
        refused: set[tuple[int, int]] = set()
        for job in order[waits[order]].tolist():
            kind = facts.kinds[job], facts.priority[job]
            if kind in refused:
                continue
            large = dominant(self._gang_amount(job), self.total)
            if late < large / 2 and not any(ledger.queue_room(job, r) < facts.role_min[r] for r in facts.roles_of[job]):
                size = self._size_to_share(job)
                found = turn(
                    s,
                    job,
                    waits_since=float(since[job]),
                    size=size,
                    settings=self.settings,
                    after=last_older_start(s, job, self._holders()),
                )
                if found is not None:
                    return found
            # Younger jobs of its kind have no turn either.
            refused.add(kind)
        return None

    def _size_to_share(self, job: int) -> float:
        """The gang over its queue's share, the largest over the counted resources and the queue's ancestors; infinite
        if one of them holds its share."""
        queue, need = self.facts.job_queue[job], self._gang_amount(job)
        asked = asked_for(need)
        if self.standings.is_full(queue, asked):
            return math.inf
        out = 0.0
        for q in self.facts.chains[queue]:
            for r in self.standings.counted(q, asked):
                out = max(out, need[r] / self.standings.deserved[q][r])
        return out

    def _serve_the_oldest(self, *, takes: bool) -> None:
        """Start the oldest gang whatever its queue's share, if necessary with borrowed capacity; else reserve capacity
        for it."""
        self.turn = self.oldest = oldest = self._find_oldest()
        if oldest is None:
            return
        facts, job = self.facts, oldest.job
        if self._start_oldest():
            return
        # The reservation does not apply to jobs that come before the gang.
        for other in self._waiting():
            if facts.priority[other] > facts.priority[job]:
                self._start(other, within_share=True)
        if takes and self.inside_queues and self._recall(oldest):
            return
        self._keep()

    def _start_oldest(self) -> bool:
        assert self.oldest is not None
        job = self.oldest.job
        if not self.ledger.holds(job) and self.ledger.try_gang(job, minimum_gang(self.ledger, job)) is None:
            return False
        self._mark(job, Why.FITS)
        self.oldest = None
        return True

    def _recall(self, oldest: Oldest) -> bool:
        """Start the gang with what jobs of its queue borrowed since its turn began, and what other queues hold above
        their shares, if both together are enough."""
        s, job, queue = self.snapshot, oldest.job, self.facts.job_queue[oldest.job]
        want = minimum_gang(self.ledger, job)
        holds = self._holders() & self.ran
        lent, wholly = (which & (s.job_queue == queue) for which in borrowers(s, oldest, holds))
        if not lent.any():
            return False
        need, rank = self.ledger.amount(want), self.facts.priority[job]
        claim = Claim(self.standings, queue, need, priority=rank)
        able = lent | (holds & s.job_preemptible & claim.possible_victims()[s.job_queue])

        def may_take(victim: int, amount: list[int]) -> bool:
            if lent[victim]:
                return bool(wholly[victim]) or self._has_spare(victim)
            return claim.may_take(victim, amount)

        victims = self._transaction(job, want, able, self._unless_stopped_often(may_take), must_be_worth_it=True)
        if victims is None:
            return False
        self._note(job, [v for v in victims if lent[v]], Why.GAVE_BACK_KEPT_ROOM)
        self._note(job, [v for v in victims if not lent[v]], Why.RECLAIMED)
        self.oldest = None
        return True

    def _keep(self) -> None:
        """Reserve capacity for the oldest gang where it lacks least, borrowed capacity counted as free.

        In a pause of the reservation, gangs that fit may use the capacity, but none may preempt for a remainder:
        otherwise the passing of time alone would stop jobs.
        """
        oldest = self.oldest
        if oldest is None or self.settings.reserve_for_seconds <= 0 or self.kept:
            return
        ledger = self.ledger
        _, lent = borrowers(self.snapshot, oldest, self._holders() & self.ran)
        role, node, count = ledger.triples()
        mine = lent[self.snapshot.role_job[role]]
        borrowed = self.snapshot.usage(role[mine], node[mine], count[mine]) if mine.any() else None
        self.kept = reserve(ledger, oldest.job, borrowed)
        if self.kept:
            self._forget()

    def _pauses(self) -> bool:
        """Whether this is a pause of the oldest gang's reservation."""
        return self.oldest is not None and not self.oldest.keeps_room

    def _lift(self) -> None:
        """Lift the oldest gang's reservation."""
        for nodes, amount in self.kept:
            self.ledger.unblock(nodes, amount)
        if self.kept:
            self._forget()
        self.kept = []

    def _try_the_oldest_again(self) -> None:
        """Start the gang whose turn it was if it fits by now (it may have been preempted again); else reserve capacity
        for it."""
        if self.turn is None or self.ledger.holds(self.turn.job):
            return
        self._lift()
        self.oldest = self.turn
        if not self._start_oldest():
            self._keep()

    def _forget(self) -> None:
        """Something was released: jobs that did not fit may fit now."""
        self.too_big.clear()
        self.above_share.clear()

    def _serve(self, *, within_share: bool) -> None:
        """Place all jobs in unreserved idle capacity; preemptible jobs may borrow the reservation."""
        if self._pauses():
            self._lift()
        else:
            self._keep()
        self._serve_jobs(self.allowed, within_share=within_share)
        if self._pauses():
            self._keep()
        elif self.kept:
            s, oldest = self.snapshot, self.oldest
            among = self.allowed
            if oldest is not None:
                among = among & s.job_preemptible & (s.job_priority <= self.facts.priority[oldest.job])
            # Else it has started beside its reservation: one of several roles may fit on other nodes by then.
            self._lift()
            self._serve_jobs(among, within_share=within_share)
            self._keep()

    def _serve_jobs(self, among: BoolArray, *, within_share: bool) -> None:
        """Queues in turn, by share; of each its first job: whole gangs, then single replicas by dominant share."""
        queue_of = self.facts.job_queue
        queues = range(self.snapshot.queues)
        waiting, short_jobs = self._in_order(among & ~self._holders()), self._in_order(among & self._short())
        if not (waiting or short_jobs) or not self.ledger.takes_any():
            return
        gangs: list[list[int]] = [[] for _ in queues]
        for j in reversed(waiting):
            gangs[queue_of[j]].append(j)
        place = {j: at for at, j in enumerate(short_jobs)}
        growing = self._growing(short_jobs, place)
        heap = [(self._key(q), q) for q in queues if gangs[q] or growing[q]]
        heapq.heapify(heap)
        while heap:
            _, q = heapq.heappop(heap)
            while gangs[q]:
                job = gangs[q].pop()
                if self._start(job, within_share=within_share):
                    if job in place:
                        heapq.heappush(growing[q], self._entry(job, place))
                    break
            else:
                while growing[q] and not self._grow(growing[q], place, within_share=within_share):
                    pass
            if gangs[q] or growing[q]:
                heapq.heappush(heap, (self._key(q), q))

    def _growing(self, short_jobs: list[int], place: dict[int, int]) -> list[list[tuple[float, int, int]]]:
        """For each queue a heap of its running jobs that hold less than they want."""
        out: list[list[tuple[float, int, int]]] = [[] for _ in range(self.snapshot.queues)]
        holds = self._holders()
        for j in short_jobs:
            if holds[j] and self.ledger.within_limits(j):
                out[self.facts.job_queue[j]].append(self._entry(j, place))
        for entries in out:
            heapq.heapify(entries)
        return out

    def _key(self, queue: int) -> tuple[float, ...]:
        """Sort key of queues, by the functions of the settings."""
        out: list[float] = []
        for name in self.settings.queue_order:
            if name == "proportion":
                # A queue in a full parent waits with it: the parent's share counts first. Of equal ratios the queue
                # that deserves more comes first: after one more replica it has the smaller ratio.
                for q in reversed(self.facts.chains[queue]):
                    out += self.standings.rank(q, self.standings.counted(q, self._all))
        return tuple(out)

    def _where(self, role: int, queue: int) -> tuple[int, int]:
        """Key of `too_big`: roles with the same key fit on the same nodes within the same caps."""
        return self.facts.shape[role], queue if self.facts.capped else -1

    def _start(self, job: int, *, within_share: bool) -> bool:
        """Start a gang. False if it may not start or does not fit, with nothing changed."""
        if self.oldest is not None and job == self.oldest.job:
            return self._start_oldest()
        facts, ledger = self.facts, self.ledger
        queue, role = facts.job_queue[job], facts.roles_of[job][0]
        # With several roles, one may fit elsewhere, and then the others too.
        alone = len(facts.roles_of[job]) == 1
        where = self._where(role, queue)
        if alone and facts.role_min[role] >= self.too_big.get(where, ANY_NUMBER):
            return False
        if within_share and facts.kinds[job] in self.above_share:
            return False
        gang = minimum_gang(ledger, job)
        if within_share and not self._is_within(queue, ledger.amount(gang)):
            self.above_share.add(facts.kinds[job])
            return False
        if ledger.try_gang(job, gang) is None:
            if alone:
                self.too_big[where] = facts.role_min[role]
            return False
        self._mark(job, Why.FITS)
        return True

    def _entry(self, job: int, place: dict[int, int]) -> tuple[float, int, int]:
        """Heap entry of a growing job: the smallest dominant share comes first."""
        return dominant(self.ledger.held_amount(job), self.total), place[job], job

    def _grow(self, growing: list[tuple[float, int, int]], place: dict[int, int], *, within_share: bool) -> bool:
        """Place one more replica of the queue's job with the smallest dominant share. False if it gets none."""
        facts, ledger = self.facts, self.ledger
        _, _, job = heapq.heappop(growing)
        queue = facts.job_queue[job]
        for role in facts.roles_of[job]:
            if ledger.count[role] >= self._aims[role]:
                continue
            where = self._where(role, queue)
            if not facts.pinned[job] and self.too_big.get(where) == 1:
                continue
            if within_share and not self._is_within(queue, facts.request[role]):
                continue
            if ledger.try_gang(job, {role: 1}) is not None:
                self._mark(job, Why.FITS if self.marks.why[job] == int(Why.FITS) else Why.GROWN)
                heapq.heappush(growing, self._entry(job, place))
                return True
            if not facts.pinned[job]:
                self.too_big[where] = 1
        return False

    def _is_within(self, queue: int, need: list[int]) -> bool:
        return self.standings.stays_within(self.facts.chains[queue], need, asked_for(need))

    def _transaction(
        self,
        job: int,
        want: dict[int, int],
        victims: BoolArray,
        may_take: MayTake,
        *,
        keeps: FloatArray | None = None,
        surplus_only: bool = False,
        must_be_worth_it: bool = False,
    ) -> list[int] | None:
        """Search for victims, within the limits of a cycle, if the candidates together hold enough.

        `must_be_worth_it`: refuse an exchange that lowers the measure of the whole: exchanges inside a queue may leave
        it with less, because gangs differ in size.

        `keeps` (Q×R): what the victims' queues keep at least; None: nothing. The oldest gang's reservation is open to
        the gang itself, to jobs that come before it, and to preemptible jobs.
        """
        if not self._caps_allow(job, want, victims):
            return None
        self.looks += 1
        if self._has_tried_enough():
            return None
        kept, oldest = self.kept, self.oldest
        uses_kept = (
            bool(kept)
            and oldest is not None
            and (
                job == oldest.job
                or self.facts.priority[job] > self.facts.priority[oldest.job]
                or bool(self.snapshot.job_preemptible[job])
            )
        )
        reach = self._reach(victims, keeps)
        if not reach.is_enough(want, kept if uses_kept else ()):
            return None
        state, order = self._state, order_of_victims(self.snapshot)
        candidates = [victim for victim in order[victims[order]].tolist() if victim != job]
        # Between queues, and for a growing job, only amounts count, not the number of running jobs.
        running = must_be_worth_it and not self.ledger.holds(job)
        must_be_worth_it |= self.careful
        before = self.ledger.held_by([job, *candidates]) if must_be_worth_it else {}
        worth = self._worth_now(running=running) if must_be_worth_it else None
        if uses_kept:
            self._lift()

        def in_vain() -> bool:
            return not reach.fits_on_nodes(want)

        found = make_room(self.ledger, job, want, candidates, may_take, surplus_only=surplus_only, is_hopeless=in_vain)
        if found is not None and worth is not None and self._worth(running=running).is_below(worth):
            self.ledger.return_to(before)
            found = None
        # An attempt that is ruled out without a search is not counted, because it is cheap.
        self.transactions += found is not None or not in_vain()
        if found is not None:
            self.took = True
            self._forget()
        else:
            self._same = self.ledger.changes, state
        if uses_kept:
            self._keep()
            if found is None:
                self._same = self.ledger.changes, state
        return found

    def _worth(self, *, running: bool) -> Worth:
        role, _, count = self.ledger.triples()
        return self.measure().of(role, count, running=running)

    def _worth_now(self, *, running: bool) -> Worth:
        """The worth before a search, cached because most searches fail and change nothing."""
        return self._remembered(("worth", self.measure(), running), lambda: self._worth(running=running))

    def _caps_allow(self, job: int, want: dict[int, int], victims: BoolArray) -> bool:
        """Whether caps allow this much more once these jobs have lost all that they hold."""
        ledger, facts = self.ledger, self.facts
        if ledger.within_caps(job, want):
            return True
        s, need = self.snapshot, ledger.amount(want)
        held = s.demand_by_job(ledger.replicas)
        for q in facts.chains[facts.job_queue[job]]:
            inside = np.array([q in facts.chains[other] for other in range(s.queues)] + [False], dtype=np.bool_)
            theirs = held[victims & inside[s.job_queue]].sum(axis=0).tolist()
            for amount, used, given, cap in zip(need, ledger.used[q], theirs, facts.caps[q], strict=True):
                if amount > 0 and used - given + amount > cap:
                    return False
        return True

    def _has_tried_enough(self) -> bool:
        return self.transactions >= MOST_TRANSACTIONS or self.looks >= MOST_LOOKS

    def _reach(self, victims: BoolArray, keeps: FloatArray | None) -> Reach:
        """The upper bound of what these jobs could lose."""

        def found() -> Reach:
            over: FloatArray | None = None
            if keeps is not None:
                over = np.where(keeps > 0, np.maximum(self.ledger.queue_used - keeps + 1e-6, 0.0), np.inf)
            return Reach(self.ledger, victims, over)

        return self._remembered((victims.tobytes(), b"" if keeps is None else keeps.tobytes()), found)

    def _note(self, job: int, victims: list[int], why: Why) -> None:
        self._mark(job, Why.FITS)
        if self.oldest is not None and job == self.oldest.job:
            # It has started: it needs no reservation any more.
            self._lift()
            self.oldest = None
        for victim in victims:
            self.given.append(Given(victim, job, why))

    def _mark(self, job: int, why: Why) -> None:
        wanted = sum(self.facts.role_desired[r] for r in self.facts.roles_of[job])
        queue = self.facts.job_queue[job]
        self.marks.set(job, why, (self._got(job), wanted, 0.0), queue)

    def _got(self, job: int) -> int:
        return sum(self.ledger.count[r] for r in self.facts.roles_of[job])

    def _explain(self) -> None:
        """Set the reasons of waiting jobs."""
        facts, marks = self.facts, self.marks
        self._keep()
        kept, oldest = [] if self._pauses() else self.kept, self.oldest
        self._lift()
        binding = Binding(
            self.ledger,
            self.standings,
            oldest=oldest,
            kept=kept,
            within_share="backfill" not in self.settings.steps,
        )
        waits = np.flatnonzero(~self._holders()).tolist()
        possible: list[bool] = self.possible.tolist()
        told: dict[int, Told] = {}
        for j in waits:
            if not possible[j]:
                marks.set(j, *self._impossible(j))
            elif facts.pinned[j] or (oldest is not None and oldest.job == j):
                marks.set(j, *binding.of(j))
            else:
                kind = facts.kinds[j]
                if kind not in told:
                    told[kind] = binding.of(j)
                marks.set(j, *told[kind])

    def _impossible(self, job: int) -> Told:
        reason = self.feasible.reason(job) if self.facts.job_queue[job] >= 0 else None
        return told_impossible(self.ledger, job, reason or (Why.NO_SUCH_QUEUE, (0.0, 0.0, 0.0)))


def _both(one: MayTake, other: MayTake) -> MayTake:
    return lambda victim, amount: one(victim, amount) and other(victim, amount)


_HIGHEST = 2**62
_SAME = 1e-9
"""Dominant shares that differ by less are equal."""
