"""`fair`: queues with weights, guarantees and caps; gangs; DRF; priorities; backfill, preempt and reclaim.

The semantics are kube-batch's, without its faults. A cycle is a list of steps over one ledger, each a small function;
settings name and order them:

    allocate   queues in turn, the one that holds least of what it deserves first: its best gang, then single replicas
    backfill   what is still idle goes to anybody, queues above their share too: it can be reclaimed
    preempt    inside a queue, from lower priorities, all or nothing
    reclaim    across queues, from those above what they deserve, all or nothing
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence

import numpy as np

from diflow.allocator.arrays import BoolArray, FloatArray, IntArray
from diflow.allocator.fairness.consent import RULES, Rule, agreed
from diflow.allocator.fairness.orders import node_scores, ordered_jobs, queue_share
from diflow.allocator.fairness.shares import deserved_by, total_room
from diflow.allocator.fairness.victims import MayTake, Reach, make_room, order_of_victims
from diflow.allocator.ledger import Ledger
from diflow.allocator.packing import ANY_NUMBER
from diflow.allocator.plan import Plan, Why, evictions, keep_plan
from diflow.allocator.settings import PolicySettings
from diflow.allocator.settle import followed, is_no_worse
from diflow.allocator.snapshot import Snapshot
from diflow.allocator.waiting import Feasibility, Kept, Reasons, explain_waiting, minimum_gang, reserve, start_order

MOST_TRANSACTIONS = 64
"""Preemptions and reclaims tried in one cycle: each may look at hundreds of victims. The next cycle goes on."""
MOST_LOOKS = 1024
"""Gangs looked at in one cycle for which victims were thought of, most of them without a search."""
GENTLE = ("allocate", "backfill")
"""The steps that take from nobody."""
RANKS = 4
"""Priorities that the measure tells apart (the lower ones count as one)."""


class FairPolicy:
    """Fair queues."""

    name = "fair"

    def __init__(self, settings: PolicySettings | None = None) -> None:
        self._settings = settings or PolicySettings()

    def allocate(self, job: int, snapshot: Snapshot) -> Plan:
        """Start the newcomer within what its queue deserves, or in what is idle; nobody else is touched."""
        only = np.zeros(snapshot.jobs, dtype=np.bool_)
        only[job] = True
        return Cycle(snapshot, self._settings, considered=only).run(GENTLE, self.name)

    def optimize(self, snapshot: Snapshot) -> Plan:
        cycle = Cycle(snapshot, self._settings)
        plan = followed(snapshot, cycle.run(self._settings.steps, self.name), self._look, cycle.rests)
        if evictions(snapshot, plan) == 0:
            return plan
        met = met_shares(snapshot)
        value = met.of_plan(plan)
        if cycle.gentle is None or value < met.of(*cycle.gentle) - 1e-9:
            gentle = Cycle(snapshot, self._settings).run(GENTLE, self.name)
            if value < met.of_plan(gentle) - 1e-9:
                plan, value = gentle, met.of_plan(gentle)
        kept = met.of(snapshot.held_role, snapshot.held_count)
        return plan if is_no_worse(value, kept) else keep_plan(snapshot, self.name)

    def measure(self, snapshot: Snapshot, plan: Plan) -> float:
        """What of the deserved shares is met, jobs of higher priority counted first and far more."""
        return met_shares(snapshot).of_plan(plan)

    def _look(self, snapshot: Snapshot) -> Plan | None:
        cycle = Cycle(snapshot, self._settings)
        return cycle.run(self._settings.steps, self.name) if cycle.changes_something() else None


def met_shares(snapshot: Snapshot) -> MetShares:
    """The measure of this snapshot's plans; the same for all snapshots in which queues deserve the same."""
    sources = (deserved_by(snapshot), total_room(snapshot), snapshot.facts)
    return snapshot.memo.get("met shares", sources, lambda: MetShares(snapshot))


class MetShares:
    """The measure of one snapshot's plans: what is held within the deserved shares, weighted by priority."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self._shares = deserved_by(snapshot)
        self._total = np.maximum(total_room(snapshot), 1)
        levels = np.unique(snapshot.job_priority)[-(RANKS - 1) :]
        self._levels = len(levels) + 1
        rank = np.searchsorted(levels, snapshot.job_priority, side="right")
        # A row for each queue and level, the highest first; the last for jobs without a queue.
        row = snapshot.job_queue * self._levels + (len(levels) - rank)
        self._row = np.where(snapshot.job_queue >= 0, row, snapshot.queues * self._levels)[snapshot.role_job]

    def of_plan(self, plan: Plan) -> float:
        return self.of(plan.role, plan.count)

    def of(self, role: IntArray, count: IntArray) -> float:
        """Σ over queues and resources of what these replicas are within the share, priorities counted one by one."""
        s, levels = self.snapshot, self._levels
        held = np.zeros((s.queues * levels + 1, len(s.resources)))
        np.add.at(held, self._row[role], s.role_request[role] * count[:, None])
        # Higher priorities use up the share first.
        so_far = held[:-1].reshape(s.queues, levels, -1).cumsum(axis=1)
        met = np.minimum(so_far, self._shares[:, None, :])
        met[:, 1:] = met[:, 1:] - met[:, :-1]
        by_level = (met / self._total).sum(axis=(0, 2))
        return float(by_level @ 1e3 ** np.arange(levels - 1, -1, -1))


class Cycle:
    """One cycle over one ledger. `considered`: the only jobs that may be given anything."""

    def __init__(self, snapshot: Snapshot, settings: PolicySettings, considered: BoolArray | None = None) -> None:
        self.snapshot, self.settings = snapshot, settings
        self.ledger = Ledger(snapshot)
        self.ledger.scores = node_scores(snapshot, settings.node_order)
        self.facts = self.ledger.facts
        nobody = np.zeros(0, dtype=np.bool_)
        self._seen: tuple[int, BoolArray, BoolArray] = (-1, nobody, nobody)
        none = np.zeros(0, dtype=np.int64)
        self._ordered: tuple[int, IntArray] = (-1, none)
        self._reached: tuple[int, dict[tuple[bytes, tuple[int, ...]], Reach]] = (-1, {})
        self.feasible = Feasibility(snapshot)
        self.possible = self._possible()
        self.ran = self._holders()
        self.allowed = self.possible if considered is None else self.possible & considered
        self.deserved = deserved_by(snapshot, self.possible)
        self.shares: list[list[float]] = self.deserved.tolist()
        self.total: list[int] = np.maximum(total_room(snapshot), 1).tolist()
        self.marks = Reasons(snapshot)
        self.reserved_for = -1
        self.kept: Kept = []
        self._is_lifted = False
        # Until something is given back: of each shape (and queue, where there are caps) the smallest gang that found no
        # room, and the kinds of jobs whose gang is above its queue's share.
        self.too_big: dict[tuple[int, int], int] = {}
        self.above_share: set[int] = set()
        self.transactions = self.looks = 0
        self.took = False
        self.decided = False
        self.gentle: tuple[IntArray, IntArray] | None = None
        """(role, count) that all would hold if nobody had to give anything up, where the steps begin so."""

    def run(self, steps: tuple[str, ...], name: str) -> Plan:
        """All the steps (unless they are done already), what is left to anybody, and the reasons."""
        self._decide(steps)
        self._explain()
        return self.marks.plan(self.ledger, name)

    def changes_something(self) -> bool:
        """Whether the plan of all steps would, without making it."""
        self._decide(self.settings.steps)
        return self.ledger.differs()

    def rests(self) -> bool:
        """Whether the next cycle is certain to change nothing. The last thing that a cycle is good for: it begins anew
        with what it came to, which is what the next one finds where nobody is bound to his nodes and queues deserve
        the same."""
        s, ledger = self.snapshot, self.ledger
        if s.job_pinned.any() or not s.node_open.all():
            return False
        stopped = self.ran & ~self._holders()
        if any(self.feasible.reason(job) is not None for job in stopped.nonzero()[0].tolist()):
            return False
        held = ledger.count.copy()
        self._lift()
        self.reserved_for, self._is_lifted = -1, False
        self._forget()
        self.transactions = self.looks = 0
        self._serve_the_oldest()
        for step in self.settings.steps:
            getattr(self, step)()
            if ledger.count != held:
                return False
        return True

    def _decide(self, steps: tuple[str, ...]) -> None:
        if self.decided:
            return
        self.decided = True
        self._serve_the_oldest()
        for at, step in enumerate(steps):
            if steps[:at] == GENTLE:
                role, _, count = self.ledger.triples()
                self.gentle = role, count
            getattr(self, step)()
        if self.took:
            # What evictions left over goes to whoever fits, or they would wait beside free room.
            self._forget()
            self._try_the_oldest_again()
            self.backfill()

    def allocate(self) -> None:
        """Gangs and replicas within what their queues deserve."""
        self._serve(within_share=True)

    def backfill(self) -> None:
        """What is idle to anybody who fits."""
        self._serve(within_share=False)

    def preempt(self) -> None:
        """Inside a queue: room for jobs of higher priority."""
        hopeless = set[tuple[int, ...]]()
        while self._preempt_in_turn(hopeless):
            pass

    def _preempt_in_turn(self, hopeless: set[tuple[int, ...]]) -> bool:
        """Each job that wants something once, in order; False if none got anything.

        `hopeless`: what tells jobs apart for which nothing was found since something changed.
        """
        facts, any_got = self.facts, False
        lowest = self._lowest_priority()
        wanting = self._in_order(self._short() & self.allowed & (self.snapshot.job_priority > lowest))
        if not wanting:
            return False
        weaker, rules = self._weaker(), self._rules()
        for job in wanting:
            if self._has_tried_enough():
                return False
            queue, rank = facts.job_queue[job], facts.priority[job]
            lower = weaker(rank, queue)
            look = (rank, *self._look(job)) if lower is not None else ()
            if lower is None or look in hopeless:
                continue
            hopeless.add(look)
            for want in self._wishes(job):
                able, may_take = agreed(rules, job, want, lower)
                if able is not lower and not able.any():
                    continue
                victims = self._transaction(job, want, able, may_take)
                if victims is not None:
                    self._note(job, victims, Why.PREEMPTED_FOR_PRIORITY)
                    weaker, rules = self._weaker(), self._rules()
                    hopeless.clear()
                    any_got = True
                    break
        return any_got

    def _weaker(self) -> Callable[[int, int], BoolArray | None]:
        """Jobs of a queue that may have to give to one of some priority, by (priority, queue); None for nobody."""
        s = self.snapshot
        weak = self._holders() & s.job_preemptible
        known: dict[tuple[int, int], BoolArray | None] = {}

        def weaker(rank: int, queue: int) -> BoolArray | None:
            key = rank, queue
            if key not in known:
                lower: BoolArray = weak & (s.job_priority < rank) & (s.job_queue == queue)
                known[key] = lower if lower.any() else None
            return known[key]

        return weaker

    def _lowest_priority(self) -> int:
        """Of those that may have to give: nobody of this priority, or below, can take from anybody. It never falls
        while jobs of higher priorities take from those of lower ones."""
        s = self.snapshot
        return int(s.job_priority.min(initial=_HIGHEST, where=self._holders() & s.job_preemptible))

    def _rules(self) -> list[Rule]:
        """What must agree to a preemption, for the ledger as it is."""
        return [RULES[name](self.ledger) for name in self.settings.victims]

    def reclaim(self) -> None:
        """Across queues: room for jobs of queues below what they deserve."""
        hopeless = set[tuple[int, ...]]()
        while self._reclaim_in_turn(hopeless):
            pass

    def _reclaim_in_turn(self, hopeless: set[tuple[int, ...]]) -> bool:
        """As `_preempt_in_turn`."""
        richer, any_got = self._richer(), False
        has_share = self._has_share()
        for job in self._wanting():
            if self._has_tried_enough():
                return False
            if not has_share(job):
                continue
            queue = self.facts.job_queue[job]
            look = self._look(job)
            if look in hopeless:
                continue
            hopeless.add(look)
            for want in self._wishes(job):
                need = self.ledger.amount(want)
                if not self._within(queue, need):
                    continue
                asked = tuple(r for r, amount in enumerate(need) if amount > 0)
                candidates = richer(queue, asked)
                if candidates is None:
                    break
                victims = self._transaction(job, want, candidates, self._reclaimable(queue, asked), asked)
                if victims is not None:
                    self._note(job, victims, Why.RECLAIMED)
                    richer, has_share = self._richer(), self._has_share()
                    hopeless.clear()
                    any_got = True
                    break
        return any_got

    def _has_share(self) -> Callable[[int], bool]:
        """Whether one replica more of a job is within what its queue deserves, for the ledger as it is: or whatever it
        wishes for is not."""
        facts = self.facts
        known: dict[tuple[int, int], bool] = {}

        def has_share(job: int) -> bool:
            queue = facts.job_queue[job]
            for role in facts.roles_of[job]:
                key = queue, facts.shape[role]
                if key not in known:
                    known[key] = self._within(queue, facts.request[role])
                if known[key]:
                    return True
            return False

        return has_share

    def _look(self, job: int) -> tuple[int, ...]:
        """What tells two jobs apart when victims are sought for them: what they ask for and what they hold."""
        count = self.ledger.count
        return (self.facts.kinds[job], *[count[role] for role in self.facts.roles_of[job]])

    def _richer(self) -> Callable[[int, tuple[int, ...]], BoolArray | None]:
        """Jobs that may have to give to a queue, by (queue, resources that are asked for); None for nobody.

        They are those of queues beside it that hold more than they deserve.
        """
        s, chains = self.snapshot, self.facts.chains
        able = self._holders() & s.job_preemptible

        above: dict[tuple[int, ...], list[int]] = {}
        of_queues: dict[tuple[int, ...], BoolArray | None] = {}

        def richer(queue: int, asked: tuple[int, ...]) -> BoolArray | None:
            if asked not in above:
                above[asked] = [q for q in range(s.queues) if self._over(q, asked)]
            mine = chains[queue]
            gives = tuple(q for q in above[asked] if q not in mine and queue not in chains[q])
            if gives not in of_queues:
                of_queue = np.zeros(s.queues + 1, dtype=np.bool_)
                of_queue[list(gives)] = True
                out: BoolArray = of_queue[s.job_queue] & able
                of_queues[gives] = out if out.any() else None
            return of_queues[gives]

        return richer

    def _reclaimable(self, queue: int, asked: Sequence[int]) -> MayTake:
        """Whether a victim's queue, and all above it up to the common parent, keep what they deserve."""
        chains, common = self.facts.chains, set(self.facts.chains[queue])

        def may_take(victim: int, amount: list[int]) -> bool:
            for q in chains[self.facts.job_queue[victim]]:
                if q in common:
                    return True
                used, share = self.ledger.used[q], self.shares[q]
                if any(amount[r] > 0 and used[r] - amount[r] < share[r] - 1e-9 for r in asked):
                    return False
            return True

        return may_take

    # -- the parts --

    def _possible(self) -> BoolArray:
        """Jobs that could run on an empty cluster. Others ask for nothing: they must not hold shares back."""
        s, feasible = self.snapshot, self.feasible
        by_kind = [feasible.reason(job) is None for job in self.facts.first_of_kind]
        starts: BoolArray = np.array(by_kind, dtype=np.bool_)[self.facts.kind_of]
        return (starts | self._holders()) & (s.job_queue >= 0)

    def _holders(self) -> BoolArray:
        """Jobs that hold something (J). Not to be written to."""
        return self._look_around()[1]

    def _short(self) -> BoolArray:
        """Jobs that hold less than they ask for (J). Not to be written to."""
        return self._look_around()[2]

    def _look_around(self) -> tuple[int, BoolArray, BoolArray]:
        """What the ledger says of all jobs, and up to which of its changes that holds."""
        if self._seen[0] != self.ledger.moves:
            s, count = self.snapshot, self.ledger.replicas
            self._seen = self.ledger.moves, s.jobs_of(count > 0), s.jobs_of(count < s.role_desired)
        return self._seen

    def _in_order(self, chosen: BoolArray) -> list[int]:
        """These jobs in the order in which they are served."""
        if not chosen.any():
            return []
        moves, order = self._ordered
        if moves != self.ledger.moves:
            order = ordered_jobs(self.snapshot, self.ledger, self.settings.job_order)
            self._ordered = self.ledger.moves, order
        out: list[int] = order[chosen[order]].tolist()
        return out

    def _waiting(self) -> list[int]:
        return self._in_order(self.allowed & ~self._holders())

    def _wanting(self) -> list[int]:
        """Jobs that wait or hold less than they ask for, in order."""
        return self._in_order(self._short() & self.allowed)

    def _wishes(self, job: int) -> list[dict[int, int]]:
        """What to evict others for, the most wished first: its gang, or more replicas of one that runs."""
        facts, ledger, count = self.facts, self.ledger, self.ledger.count
        if not ledger.holds(job):
            return [minimum_gang(ledger, job)]
        if not ledger.within_limits(job):
            # It lost pods, or its minimum was raised: all that is missing or nothing.
            missing = {r: max(0, facts.role_min[r] - count[r]) for r in facts.roles_of[job]}
            return [missing] if not any(count[r] > facts.role_max[r] for r in missing) else []
        out: list[dict[int, int]] = []
        for role in facts.roles_of[job]:
            more = facts.role_desired[role] - count[role]
            while more > 0 and count[role] >= facts.role_min[role]:
                out.append({role: more})
                more //= 2
        return out

    def _gang_amount(self, job: int) -> list[int]:
        return self.ledger.amount(minimum_gang(self.ledger, job))

    def _within(self, queue: int, need: list[int]) -> bool:
        """Whether the queue and all above it stay within what they deserve with this much more, in what is asked."""
        for q in self.facts.chains[queue]:
            used, share = self.ledger.used[q], self.shares[q]
            for r, amount in enumerate(need):
                if amount > 0 and used[r] + amount > share[r] + 1e-9:
                    return False
        return True

    def _over(self, queue: int, asked: Sequence[int]) -> bool:
        """Whether the queue or one above it is above what it deserves in something that is asked."""
        used, shares = self.ledger.used, self.shares
        return any(used[q][r] > shares[q][r] + 1e-9 for q in self.facts.chains[queue] for r in asked)

    def _serve_the_oldest(self) -> None:
        """The gang that waits longest, of a queue that deserves more, goes first; or room is kept for it."""
        s, facts, ledger = self.snapshot, self.facts, self.ledger
        waited = s.now_seconds - s.job_created_seconds
        long = self.allowed & ~self._holders() & (waited >= self.settings.reserve_after_seconds)
        if not long.any():
            return
        order = start_order(s)
        for job in order[long[order]].tolist():
            asked = [r for r, amount in enumerate(self._gang_amount(job)) if amount > 0]
            # A gang may be larger than all that its queue deserves: the first replica above the share brings it whole.
            if any(ledger.used[q][r] >= self.shares[q][r] for q in facts.chains[facts.job_queue[job]] for r in asked):
                continue
            if any(ledger.queue_room(job, r) < facts.role_min[r] for r in facts.roles_of[job]):
                continue
            if ledger.try_gang(job, minimum_gang(ledger, job)) is not None:
                self._mark(job, Why.FITS)
                continue
            # Room is kept from those that come later, not from those that come first.
            for other in self._waiting():
                if facts.priority[other] > facts.priority[job]:
                    self._start(other, within_share=True)
            self.kept = reserve(ledger, job)
            if self.kept:
                self.reserved_for = job
                self._forget()
                return

    def _forget(self) -> None:
        """Something was given back: what did not fit may fit now."""
        self.too_big.clear()
        self.above_share.clear()

    def _serve(self, *, within_share: bool) -> None:
        """Queues in turn, by share; of each its best job: first whole gangs, then single replicas by dominant share."""
        self._keep_again()
        queue_of = self.facts.job_queue
        queues = range(self.snapshot.queues)
        waiting, short_jobs = self._waiting(), self._wanting()
        if not (waiting or short_jobs) or not self.ledger.takes_any():
            return
        gangs: list[list[int]] = [[] for _ in queues]
        for j in reversed(waiting):
            gangs[queue_of[j]].append(j)
        place = {j: at for at, j in enumerate(short_jobs)}
        growing: list[list[tuple[float, int, int]]] = [[] for _ in queues]
        holds = self._holders()
        for j in short_jobs:
            if holds[j] and self.ledger.within_limits(j):
                growing[queue_of[j]].append(self._entry(j, place))
        for entries in growing:
            heapq.heapify(entries)
        heap = [(self._key(q), q) for q in queues if gangs[q] or growing[q]]
        heapq.heapify(heap)
        while heap:
            _, q = heapq.heappop(heap)
            # Whoever does not fit changes nothing: the queue's next one is tried at once.
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

    def _key(self, queue: int) -> tuple[float, ...]:
        """Order of queues: settings name the functions."""
        out: list[float] = []
        for name in self.settings.queue_order:
            if name == "proportion":
                # A queue in a full parent waits with it: the parent's share counts first.
                chain = reversed(self.facts.chains[queue])
                out += [queue_share(self.ledger.used[q], self.shares[q]) for q in chain]
        return tuple(out)

    def _where(self, role: int, queue: int) -> tuple[int, int]:
        """What roles have in common that find room in the same places, within the same caps: the keys of `too_big`."""
        return self.facts.shape[role], queue if self.facts.capped else -1

    def _start(self, job: int, *, within_share: bool) -> bool:
        facts, ledger = self.facts, self.ledger
        queue, role = facts.job_queue[job], facts.roles_of[job][0]
        # Of several roles one may fit elsewhere, and the others then too.
        alone = len(facts.roles_of[job]) == 1
        where = self._where(role, queue)
        if alone and facts.role_min[role] >= self.too_big.get(where, ANY_NUMBER):
            return False
        if within_share and facts.kinds[job] in self.above_share:
            return False
        gang = minimum_gang(ledger, job)
        if within_share and not self._within(queue, ledger.amount(gang)):
            self.above_share.add(facts.kinds[job])
            return False
        if ledger.try_gang(job, gang) is None:
            if alone:
                self.too_big[where] = facts.role_min[role]
            return False
        self._mark(job, Why.FITS)
        return True

    def _entry(self, job: int, place: dict[int, int]) -> tuple[float, int, int]:
        """The job among those of its queue that grow: the smallest dominant share is served first."""
        ledger = self.ledger
        amount = ledger.amount({r: ledger.count[r] for r in self.facts.roles_of[job]})
        return max(a / t for a, t in zip(amount, self.total, strict=True)), place[job], job

    def _grow(self, growing: list[tuple[float, int, int]], place: dict[int, int], *, within_share: bool) -> bool:
        """One more replica for the job of a queue with the smallest dominant share; False if it gets none."""
        facts, ledger = self.facts, self.ledger
        _, _, job = heapq.heappop(growing)
        queue = facts.job_queue[job]
        for role in facts.roles_of[job]:
            if ledger.count[role] >= facts.role_desired[role]:
                continue
            where = self._where(role, queue)
            if not facts.pinned[job] and self.too_big.get(where) == 1:
                continue
            if within_share and not self._within(queue, facts.request[role]):
                continue
            if ledger.try_gang(job, {role: 1}) is not None:
                if self.marks.why[job] != int(Why.FITS):
                    self._mark(job, Why.GROWN)
                heapq.heappush(growing, self._entry(job, place))
                return True
            if not facts.pinned[job]:
                self.too_big[where] = 1
        return False

    def _transaction(
        self, job: int, want: dict[int, int], victims: BoolArray, may_take: MayTake, reclaims: tuple[int, ...] = ()
    ) -> list[int] | None:
        """Search for victims, if caps allow the gang at all, this cycle has not searched enough, and all of them
        together have enough to give. `reclaims`: the resources of which queues keep what they deserve."""
        facts, ledger = self.facts, self.ledger
        if any(ledger.queue_room(job, r) < n for r, n in want.items()):
            return None
        self.looks += 1
        above = self.reserved_for >= 0 and facts.priority[job] > facts.priority[self.reserved_for]
        if not above:
            self._keep_again()
        if self._has_tried_enough():
            return None
        reach = self._reach(victims, reclaims)
        if not reach.is_enough(want, self.kept if above else ()):
            return None
        order = order_of_victims(self.snapshot)
        candidates = [victim for victim in order[victims[order]].tolist() if victim != job]
        if above:
            self._lift()

        def in_vain() -> bool:
            return not reach.fits_on_nodes(want)

        found = make_room(ledger, job, want, candidates, may_take, is_hopeless=in_vain)
        # What can be told to be in vain is not counted: it costs little.
        self.transactions += found is not None or not in_vain()
        if found is not None:
            self.took = True
            self._forget()
        return found

    def _has_tried_enough(self) -> bool:
        return self.transactions >= MOST_TRANSACTIONS or self.looks >= MOST_LOOKS

    def _reach(self, victims: BoolArray, reclaims: tuple[int, ...]) -> Reach:
        """What these jobs could give at most."""
        ledger = self.ledger
        if self._reached[0] != ledger.changes:
            self._reached = ledger.changes, {}
        known = self._reached[1]
        key = (victims.tobytes(), reclaims)
        if key not in known:
            over: FloatArray | None = None
            if reclaims:
                over = np.maximum(ledger.queue_used - self.deserved + 1e-6, 0.0)
                if len(reclaims) < len(self.total):
                    over[:, [r for r in range(len(self.total)) if r not in reclaims]] = np.inf
            known[key] = Reach(ledger, victims, over)
        return known[key]

    def _try_the_oldest_again(self) -> None:
        """Whom room is kept for may fit by now; else it is kept on."""
        job = self.reserved_for
        if job < 0:
            return
        self._lift()
        if self.ledger.holds(job) or self.ledger.try_gang(job, minimum_gang(self.ledger, job)) is not None:
            self._mark(job, Why.FITS)
            self.reserved_for, self._is_lifted = -1, False
        else:
            self._keep_again()

    def _lift(self) -> None:
        """Give back what is kept for the gang that waits longest."""
        for nodes, amount in self.kept:
            self.ledger.unblock(nodes, amount)
        self.kept, self._is_lifted = [], self.reserved_for >= 0

    def _keep_again(self) -> None:
        """Keep room again if it was given back for one who comes first: only when somebody comes who does not."""
        if self._is_lifted:
            self.kept, self._is_lifted = reserve(self.ledger, self.reserved_for), False

    def _note(self, job: int, victims: list[int], why: Why) -> None:
        self._mark(job, Why.FITS)
        for victim in victims:
            self.marks.set(victim, why, (self._got(victim), 0.0, 0.0), job)

    def _mark(self, job: int, why: Why) -> None:
        wanted = sum(self.facts.role_desired[r] for r in self.facts.roles_of[job])
        queue = self.facts.job_queue[job]
        self.marks.set(job, why, (self._got(job), wanted, self._share_of(queue)), queue)

    def _got(self, job: int) -> int:
        return sum(self.ledger.count[r] for r in self.facts.roles_of[job])

    def _share_of(self, queue: int) -> float:
        share = queue_share(self.ledger.used[queue], self.shares[queue])
        return share if math.isfinite(share) else 0.0

    def _explain(self) -> None:
        """The reasons of those that wait."""
        facts, marks = self.facts, self.marks
        self._keep_again()
        kept = bool(self.kept)
        self._lift()
        waits = np.flatnonzero(~self._holders()).tolist()
        possible: list[bool] = self.possible.tolist()
        told: dict[int, tuple[Why, tuple[float, float, float], int]] = {}
        for j in waits:
            if marks.why[j] in _EVICTED:
                if kept and self.ledger.fits(j, minimum_gang(self.ledger, j)):
                    marks.set(j, Why.RESERVED, (facts.role_min[facts.roles_of[j][0]], 0.0, 0.0), self.reserved_for)
            elif not possible[j]:
                marks.set(j, *self._impossible(j), facts.job_queue[j])
            elif self.reserved_for == j:
                marks.set(j, Why.NO_ROOM, (facts.role_min[facts.roles_of[j][0]], 0.0, 0.0))
            elif facts.pinned[j] or facts.kinds[j] not in told:
                explain_waiting(self.ledger, j, self.reserved_for, marks)
                if not facts.pinned[j]:
                    told[facts.kinds[j]] = Why(int(marks.why[j])), marks.values[j], int(marks.subject[j])
            else:
                marks.set(j, *told[facts.kinds[j]])

    def _impossible(self, job: int) -> tuple[Why, tuple[float, float, float]]:
        reason = self.feasible.reason(job) if self.facts.job_queue[job] >= 0 else None
        return reason or (Why.NO_SUCH_QUEUE, (0.0, 0.0, 0.0))


_HIGHEST = 2**62
_EVICTED = (int(Why.PREEMPTED_FOR_PRIORITY), int(Why.RECLAIMED))


def deserved_table(snapshot: Snapshot, settings: PolicySettings | None = None) -> tuple[FloatArray, IntArray]:
    """(deserved, allocated), each Q×R: what `diflow queue` shows."""
    cycle = Cycle(snapshot, settings or PolicySettings())
    return cycle.deserved, cycle.ledger.queue_used


__all__ = ["Cycle", "FairPolicy", "MetShares", "deserved_table"]
