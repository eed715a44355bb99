"""Checks the reasons of a plan against the snapshot, the plan and the reasons' values alone.

Independent of the policies: shares, caps and fits are computed here again, in another way. What a reader of a plan
cannot see is not checked: on which nodes capacity is reserved, and how the roles of a gang are packed together.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from diflow.allocator.model.plan import Action, Plan
from diflow.allocator.model.reasons import (
    Crowded,
    DoesNotFit,
    Fits,
    GaveBackReservation,
    Grown,
    GuaranteedElsewhere,
    GuaranteeHeld,
    ItsTurn,
    Kept,
    KeptNotPreemptible,
    LentToPreemptible,
    Loss,
    NoNodes,
    NoSuchQueue,
    NoSurplus,
    OwnShare,
    PlacedAgain,
    PreemptedForPriority,
    QueueCap,
    QueueShare,
    Reason,
    Reclaimed,
    ReclaimedByGuarantee,
    Reserved,
    SharedInQueue,
    ShrunkForOthers,
    TooBig,
)
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.policies.fair.prepared import prepared
from tests.policies import laws
from tests.policies.deserving import Tree

NEAR = 1e-5
"""Amounts that differ by less are equal."""
MANY = 2**31
RESERVE_AFTER = 300.0
"""`reserve_after_seconds` of the settings that the laws check."""


def refuted(snapshot: Snapshot, plan: Plan) -> list[str]:
    """What is wrong with the reasons of this plan, one line for each job."""
    look = Look(snapshot, plan)
    out = []
    for job in range(snapshot.jobs):
        wrong = look.refute(job)
        if wrong:
            out.append(f"reasons: {snapshot.job_names[job]} is told {plan.reasons[job]}: {wrong}")
    return out


@dataclass(frozen=True)
class Look:
    """A snapshot and the state after a plan."""

    s: Snapshot
    plan: Plan

    def refute(self, job: int) -> str:
        """What is wrong with the job's reason; "" if nothing is."""
        reason = self.plan.reasons[job]
        check = (_HOLDING if self.then[job] else _WAITING).get(type(reason))
        if self.then[job] == 0 and check is None and self.plan.policy in ("fit", "fair"):
            return "no reason to wait"
        return check(self, job, reason) if check is not None else ""

    # -- what there is --

    @cached_property
    def held(self) -> Any:
        return np.bincount(self.s.role_job, weights=self.s.held_by_role(), minlength=self.s.jobs)

    @cached_property
    def then(self) -> Any:
        return np.bincount(self.s.role_job[self.plan.role], weights=self.plan.count, minlength=self.s.jobs)

    @cached_property
    def replicas(self) -> Any:
        """Of each role, after the plan."""
        return np.bincount(self.plan.role, weights=self.plan.count, minlength=self.s.roles).astype(np.int64)

    @cached_property
    def free(self) -> Any:
        """N×R free after the plan."""
        use = np.zeros_like(self.s.node_allocatable)
        np.add.at(use, self.plan.node, self.s.role_request[self.plan.role] * self.plan.count[:, None])
        return self.s.node_allocatable - self.s.node_foreign - use

    def roles(self, job: int) -> list[int]:
        return np.flatnonzero(self.s.role_job == job).tolist()

    def gang(self, job: int) -> Any:
        """R: request of the job's minimum."""
        roles = self.roles(job)
        return (self.s.role_request[roles] * self.s.role_min[roles, None]).sum(axis=0)

    def fits(self, role: int) -> int:
        """Replicas of the role that fit after the plan, in one domain if its job requires one."""
        rooms = self._rooms(int(self.s.role_job[role]))
        return max((self._slots(role, self.free, self._nodes(role) & room) for room in rooms), default=0)

    def best_rooms(self, job: int, free: Any) -> list[Any]:
        """The sets of nodes of which one has to hold all of the job, and that hold the largest part of its gang, by the
        worst role."""

        def part(room: Any) -> float:
            roles = self.roles(job)
            return min(self._slots(r, free, self._nodes(r) & room) / int(self.s.role_min[r]) for r in roles)

        rooms = self._rooms(job)
        most = max(map(part, rooms), default=0.0)
        return [room for room in rooms if part(room) >= most * (1 - NEAR)]

    def queue(self, name: str) -> int:
        return self.s.queue_names.index(name)

    def resource(self, name: str) -> int:
        return self.s.resources.index(name)

    def job(self, name: str) -> int:
        return self.s.job_names.index(name)

    def open_to(self, role: int) -> Any:
        """N: nodes where a new pod of the role may run."""
        return self.s.class_nodes[self.s.role_class[role]] & self.s.node_open

    def _nodes(self, role: int) -> Any:
        s, job = self.s, int(self.s.role_job[role])
        nodes = s.class_nodes[s.role_class[role]] & s.node_open
        if s.job_pinned[job] and self.held[job]:
            nodes = nodes & np.isin(np.arange(s.nodes), s.held_node[s.role_job[s.held_role] == job])
        return nodes

    def _slots(self, role: int, free: Any, nodes: Any) -> int:
        request = self.s.role_request[role]
        asked = request > 0
        if not asked.any() or not nodes.any():
            return MANY if nodes.any() else 0
        return int(min(MANY, (np.maximum(free[nodes][:, asked], 0) // request[asked]).min(axis=1).sum()))

    def gang_fits(self, job: int) -> bool:
        """Whether each role of the gang fits by itself, all in one domain if the job requires one."""
        return any(
            all(self._slots(r, self.free, self._nodes(r) & room) >= self.s.role_min[r] for r in self.roles(job))
            for room in self._rooms(job)
        )

    def _rooms(self, job: int) -> list[Any]:
        """The sets of nodes of which one has to hold all of the job, under this policy."""
        return laws.open_rooms(self.s, job, self.plan.policy)

    def says_what_fits(self, job: int, reason: DoesNotFit | Reserved) -> bool:
        """Whether these are the replicas of a role that the gang needs and that fit."""
        rooms = self.best_rooms(job, self.free) or [np.zeros(self.s.nodes, dtype=np.bool_)]
        if self.plan.policy == "fair+goodput":
            rooms = [*rooms, *laws.rooms(self.s, job)]  # between queues, gangs are told as under `fair`
        return any(
            (reason.needs, reason.fits) == (self.s.role_min[r], self._slots(r, self.free, self._nodes(r) & room))
            for r in self.roles(job)
            for room in rooms
        )

    def is_feasible(self, job: int) -> bool:
        """Whether the gang would fit on an empty cluster, each role by itself, within its queue's cap."""
        s = self.s
        empty = s.node_allocatable - s.node_foreign
        if not any(
            all(self._slots(r, empty, self.open_to(r) & room) >= s.role_min[r] for r in self.roles(job))
            for room in laws.rooms(s, job)
        ):
            return False
        for r in self.roles(job):
            cap = s.queue_cap[s.job_queue[job]]
            if not self.before.has_own(int(s.job_queue[job])) and (s.role_min[r] * s.role_request[r] > cap).any():
                return False
        return True

    @cached_property
    def before(self) -> Tree:
        return Tree(self.s, self.s.held_by_role(), self.wanted, self.is_feasible)

    @cached_property
    def after(self) -> Tree:
        # With closed nodes the total capacity depends on the allocation.
        s = replace(self.s, held_role=self.plan.role, held_node=self.plan.node, held_count=self.plan.count)
        return Tree(s, self.replicas, self.wanted, self.is_feasible)

    @property
    def wanted(self) -> Any:
        """The replicas of each role that shares count."""
        return self.s.role_max if self.plan.policy == "fair+goodput" else self.s.role_desired

    def deserves(self, queue: int, r: int, told: float) -> bool:
        """Whether the queue deserves this much, by the jobs that hold something now or after the plan."""
        return any(abs(tree.deserved[queue, r] - told) <= NEAR * max(1, told) for tree in (self.after, self.before))

    def waited(self, job: int) -> float:
        s = self.s
        since = s.job_created_seconds[job]
        if s.job_started_seconds[job] >= 0:
            since = max(since, s.job_changed_seconds[job])
        return float(s.now_seconds - since)

    def change(self, job: int) -> Any:
        """R: what the job gains by the plan."""
        roles = self.roles(job)
        return ((self.replicas - self.s.held_by_role())[roles, None] * self.s.role_request[roles]).sum(axis=0)

    def gains(self, job: int) -> bool:
        """Whether a role of the job has more replicas after the plan."""
        roles = self.roles(job)
        return bool((self.replicas[roles] > self.s.held_by_role()[roles]).any())

    def replaces(self, job: int, victim: int) -> bool:
        """Whether the job is placed again, with replicas on a node where the victim loses some."""
        if not isinstance(self.plan.reasons[job], PlacedAgain):
            return False
        change = self._by_node(job), self._by_node(victim)
        return bool(((change[0] > 0) & (change[1] < 0)).any())

    def _by_node(self, job: int) -> Any:
        """N: replicas that the job gets on each node, less those that it loses there."""
        s, plan = self.s, self.plan
        then, now = s.role_job[plan.role] == job, s.role_job[s.held_role] == job
        return np.bincount(plan.node[then], plan.count[then], s.nodes) - np.bincount(
            s.held_node[now], s.held_count[now], s.nodes
        )


def _does_not_fit(look: Look, job: int, reason: DoesNotFit) -> str:
    if not look.says_what_fits(job, reason):
        return "it is not so many that fit"
    return "it fits" if len(look.roles(job)) == 1 and look.gang_fits(job) else ""


def _too_big(look: Look, job: int, reason: TooBig) -> str:
    if look.s.job_refusal[job]:
        return ""
    return _lacks(look, job, reason, look.s.node_allocatable, is_open=False)


def _crowded(look: Look, job: int, reason: Crowded) -> str:
    empty = TooBig(reason.needs, reason.fits)
    if not _lacks(look, job, empty, look.s.node_allocatable, is_open=False):
        return "it fits not even on open and empty nodes"
    return _lacks(look, job, reason, look.s.node_allocatable - look.s.node_foreign, is_open=True)


def _lacks(look: Look, job: int, reason: TooBig | Crowded, empty: Any, *, is_open: bool) -> str:
    """Whether the gang fits nowhere in `empty`, and a role of it lacks as many as the reason says."""
    s, rooms = look.s, laws.rooms(look.s, job)

    def most(role: int, room: Any) -> int:
        where = look.open_to(role) if is_open else s.class_nodes[s.role_class[role]]
        return look._slots(role, empty, where & room)

    if any(all(most(r, room) >= s.role_min[r] for r in look.roles(job)) for room in rooms):
        return "it fits on an empty cluster"
    for r, room in itertools.product(look.roles(job), rooms or [np.zeros(s.nodes, dtype=np.bool_)]):
        if (reason.needs, reason.fits) == (s.role_min[r], most(r, room)) and reason.fits < s.role_min[r]:
            return ""
    return "an empty cluster takes another number"


def _no_nodes(look: Look, job: int, reason: NoNodes) -> str:
    del job, reason
    return "there are nodes" if look.s.node_open.any() else ""


def _no_queue(look: Look, job: int, reason: NoSuchQueue) -> str:
    del reason
    return "its queue exists" if look.s.job_queue[job] >= 0 and not look.s.job_refusal[job] else ""


def _cap(look: Look, job: int, reason: QueueCap) -> str:
    queue, r = look.queue(reason.queue), look.resource(reason.resource)
    if queue not in look.after.chain(int(look.s.job_queue[job])):
        return "that queue is not above it"
    if reason.cap != look.s.queue_cap[queue, r]:
        return f"the cap is {look.s.queue_cap[queue, r]}"
    left = max(0, look.s.queue_cap[queue, r] - look.after.used[queue, r])
    if (reason.needs, reason.left) != (look.gang(job)[r], left):
        return f"the gang needs {look.gang(job)[r]}, and {left} is left"
    return "" if reason.needs > left else "the cap does not bind"


def _lent(look: Look, job: int, reason: LentToPreemptible) -> str:
    """Of what others are guaranteed they lend nothing to jobs that are not preemptible, so that much stays out of
    their reach: counted as if each queue's jobs were the only ones with a right to its guarantee."""
    r = look.resource(reason.resource)
    if look.s.job_preemptible[job]:
        return "it is preemptible"
    if reason.needs != look.gang(job)[r] or reason.needs <= reason.left:
        return f"the gang needs {look.gang(job)[r]}"
    room = fixed_room(prepared(look.s), look.plan, job)[r]
    return "" if reason.left == room else f"{room} is left for such jobs"


def fixed_room(snapshot: Snapshot, plan: Plan, job: int) -> list[int]:
    """What other queues' guarantees leave to a job that is not preemptible, by resource."""
    s, out = snapshot, []
    queue = int(s.job_queue[job])
    above = [int(parent) for parent in s.queue_parent]
    chain = [queue]
    while above[chain[-1]] >= 0:
        chain.append(above[chain[-1]])

    def inside(top: int) -> set[int]:
        found = {top}
        while more := {q for q in range(s.queues) if above[q] in found} - found:
            found |= more
        return found

    capacity = np.maximum(s.node_allocatable - s.node_foreign, 0)
    held = s.usage(s.held_role, s.held_node, s.held_count)
    usable = np.where(s.node_open[:, None], capacity, np.minimum(held, capacity)).sum(axis=0)
    fixed = ~s.job_preemptible[s.role_job[plan.role]]
    amount = s.role_request[plan.role] * plan.count[:, None] * fixed[:, None]
    of_queue = s.job_queue[s.role_job[plan.role]]

    def keeps(top: int, r: int) -> int:
        below = sum(keeps(q, r) for q in range(s.queues) if above[q] == top)
        return max(below, int(s.queue_guarantee[top, r]))

    for r in range(len(s.resources)):
        left = int(usable[r]) - int(amount[:, r].sum())
        for at in chain:
            for q in range(s.queues):
                if q != at and q not in chain and above[q] == above[at]:
                    mine = sum(int(amount[of_queue == i, r].sum()) for i in inside(q))
                    left -= max(0, keeps(q, r) - mine)
        own = int(s.queue_guarantee[queue, r]) - sum(int(amount[of_queue == i, r].sum()) for i in inside(queue))
        out.append(max(0, left, own))
    return out


def _held(look: Look, job: int, reason: GuaranteeHeld) -> str:
    if look.gang(job)[look.resource(reason.resource)] < reason.lacks:
        return "it does not ask for that much"
    r = look.resource(reason.resource)
    queue = look.queue(reason.queue)
    if look.s.queue_guarantee[queue, r] <= 0 and not look.s.queue_guarantee[queue].any():
        return "that queue is guaranteed nothing"
    amount = look.s.role_request[look.plan.role] * look.plan.count[:, None]
    fixed = ~look.s.job_preemptible[look.s.role_job[look.plan.role]]
    of_queue = look.s.job_queue[look.s.role_job[look.plan.role]]
    there = np.isin(of_queue, [look.queue(name) for name in reason.where])
    held = int(amount[fixed & there, r].sum())
    return "" if held == reason.held else f"they hold {held}"


def _share(look: Look, job: int, reason: QueueShare) -> str:
    return next(_wrong_share(look, job, reason, look.queue(reason.queue)), "")


def _wrong_share(look: Look, job: int, reason: QueueShare, queue: int) -> Iterator[str]:
    """The first fault: later checks assume that earlier ones passed."""
    r, tree = look.resource(reason.resource), look.after
    need = int(look.gang(job)[r])
    if queue not in tree.chain(tree.leaf(int(look.s.job_queue[job]))):
        yield "that queue is not above it"
    if reason.holds != tree.used[queue, r]:
        yield f"the queue holds {tree.used[queue, r]}"
    if not look.deserves(queue, r, reason.deserves):
        yield f"the queue deserves {look.after.deserved[queue, r]}"
    if not need:
        yield "the gang asks for none of it"
    if reason.needs != need:
        yield f"the gang needs {need}"
    if look.gang_fits(job) and len(look.roles(job)) == 1:
        yield "it fits"
    if reason.holds < reason.deserves * (1 - NEAR):
        yield "the queue holds less than it deserves"
    if not any(tree.contended(queue, r) for tree in (look.after, look.before)):
        yield "nobody lacks it"
    if sum(tree.stoppable[q, r] for q in tree.beside(queue)) <= 0:
        yield "nobody else could give any"


def _own_share(look: Look, job: int, reason: OwnShare) -> str:
    queue = look.queue(reason.queue)
    if queue != look.s.job_queue[job] or not look.after.has_own(queue):
        return "these are not its queue's own jobs"
    return next(_wrong_share(look, job, reason, look.after.own(queue)), "")


def _too_little(look: Look, job: int, reason: NoSurplus | GuaranteedElsewhere, above: Any) -> str:
    """What the gang lacks, and what other queues hold `above` a limit (by queue and resource)."""
    tree, r = look.after, look.resource(reason.resource)
    nodes = np.zeros(look.s.nodes, dtype=np.bool_)
    for role in look.roles(job):
        nodes |= look.open_to(role)
    lack = reason.lacks
    lacking = [
        look.gang(job)[r] - np.maximum(look.free[nodes & room, r], 0).sum() for room in look.best_rooms(job, look.free)
    ]
    if lack not in lacking or lack <= 0:
        return f"the gang lacks {lacking}"
    others = [q for mine in tree.chain(tree.leaf(int(look.s.job_queue[job]))) for q in tree.beside(mine)]
    if sum(tree.stoppable[q, r] for q in others) <= 0:
        return "nobody else could give any"
    total = sum(above[q, r] for q in others)
    if abs(total - reason.above) > NEAR * max(1.0, total):
        return f"others hold {total} above"
    return "" if total < lack else "others hold enough"


def _no_surplus(look: Look, job: int, reason: NoSurplus) -> str:
    told = [_too_little(look, job, reason, look.after.above(tree.deserved)) for tree in (look.after, look.before)]
    return "" if "" in told else told[0]


def _guaranteed(look: Look, job: int, reason: GuaranteedElsewhere) -> str:
    queue, need = look.queue(reason.queue), look.gang(job)
    if queue not in look.after.chain(int(look.s.job_queue[job])):
        return "that queue is not above it"
    if not ((look.after.used[queue] + need <= look.s.queue_guarantee[queue]) & (need > 0)).any():
        return "its guarantee does not cover the gang"
    return _too_little(look, job, reason, look.after.above(look.after.guarantee))


def _reserved(look: Look, job: int, reason: Reserved) -> str:
    return next(_wrong_reservation(look, job, reason), "")


def _wrong_reservation(look: Look, job: int, reason: Reserved) -> Iterator[str]:
    other, s = look.job(reason.job), look.s
    if other == job or look.then[other] > 0:
        yield "capacity is reserved for no job that waits"
    if not look.gang_fits(job):
        yield "it would not fit without that"
    if not look.says_what_fits(job, reason):
        yield "it is not so many that fit"
    if not _has_waited(look, other):
        yield "that one's turn has not come"
    if look.plan.policy != "fair":
        return
    if reason.seconds <= 0:
        yield "the reservation has ended"
    if s.job_preemptible[job] and s.job_priority[job] <= s.job_priority[other]:
        yield "it could borrow the capacity"
    comes_first = (-s.job_priority[other], -look.waited(other)) <= (-s.job_priority[job], -look.waited(job))
    if not comes_first and _is_due(look, job) and not _one_as_late_runs(look, job):
        yield "it comes first itself"


def _has_waited(look: Look, job: int) -> bool:
    """Whether the job waited long enough for a turn."""
    return look.waited(job) >= RESERVE_AFTER


def _is_due(look: Look, job: int) -> bool:
    """Whether the job's turn would have come by its size, in the cluster now and after the plan."""
    s, need = look.s, look.gang(job)
    for tree in (look.before, look.after):
        size = 1.0
        for q in tree.chain(tree.leaf(int(s.job_queue[job]))):
            for r in np.flatnonzero(need).tolist():
                if tree.contended(q, r):
                    share = tree.deserved[q, r]
                    full = tree.used[q, r] >= share * (1 - NEAR)
                    size = np.inf if full or share <= NEAR else max(size, need[r] / share)
        if look.waited(job) < RESERVE_AFTER * size or look.held[job] > 0:
            return False
        if any(((tree.used[q] + need > s.queue_cap[q]) & (need > 0)).any() for q in tree.chain(int(s.job_queue[job]))):
            return False
    return True


def _one_as_late_runs(look: Look, job: int) -> bool:
    """Whether a job started in the last four hours that is at least half as large and waited as long: then there is no
    turn."""
    s = look.s
    open_to_all = s.node_allocatable[s.node_open] - s.node_foreign[s.node_open]
    on_closed = s.usage(s.held_role, s.held_node, s.held_count)[~s.node_open]
    total = np.maximum(open_to_all.sum(axis=0) + on_closed.sum(axis=0), 1)
    size = [float((look.gang(other) / total).max()) for other in range(s.jobs)]
    started = np.where(s.job_started_seconds >= 0, s.job_started_seconds, s.job_created_seconds)
    late = (look.held > 0) & (started - s.job_created_seconds >= RESERVE_AFTER)
    late &= s.now_seconds - started <= 4 * 3600.0
    return any(size[other] >= size[job] / 2 - NEAR for other in np.flatnonzero(late).tolist())


def _its_turn(look: Look, job: int, reason: ItsTurn) -> str:
    if not _has_waited(look, job) or reason.seconds <= 0:
        return "it is not its turn"
    if len(look.roles(job)) == 1 and look.gang_fits(job):
        return "it fits"
    mine = [r for r in look.roles(job) if look.s.role_min[r] == reason.needs]
    if not any(0 <= reason.fits <= min(reason.needs, look.fits(r)) for r in mine):
        return "it is not so many that fit"
    for other in np.flatnonzero(look.then == 0).tolist():
        told = look.plan.reasons[other]
        if (isinstance(told, ItsTurn) and other != job) or (isinstance(told, Reserved) and look.job(told.job) != job):
            return "another one's turn has come too"
    return ""


def _replicas(look: Look, job: int, reason: Loss) -> str:
    """A loss of the job to another one."""
    moved = isinstance(reason, PreemptedForPriority) and look.plan.action[job] == int(Action.RESIZE)
    if look.held[job] - look.then[job] < (0 if moved else 1):
        return "it held no more before"
    if (reason.replicas, reason.before) != (look.then[job], look.held[job]):
        return f"it has {look.then[job]} of {look.held[job]}"
    other = look.job(reason.job)
    if other == job:
        return "nobody is named"
    if not look.s.job_preemptible[job]:
        return "it may not be stopped"
    return "" if look.gains(other) or look.replaces(other, job) else "that one got nothing"


def _preempted(look: Look, job: int, reason: PreemptedForPriority) -> str:
    s, other = look.s, look.job(reason.job)
    if s.job_priority[other] <= s.job_priority[job]:
        return "that one's priority is no higher"
    if look.plan.policy == "fair" and s.job_queue[other] != s.job_queue[job]:
        return "that one is of another queue"
    return _replicas(look, job, reason)


def _parts(look: Look, job: int, other: int) -> tuple[list[int], list[int]]:
    """The queues of both jobs, below their nearest common ancestor."""
    tree, s = look.before, look.s
    mine = tree.chain(tree.leaf(int(s.job_queue[job])))
    theirs = tree.chain(tree.leaf(int(s.job_queue[other])))
    return [q for q in mine if q not in theirs], [q for q in theirs if q not in mine]


def _reclaimed(look: Look, job: int, reason: Reclaimed) -> str:
    wrong = _replicas(look, job, reason)
    if wrong:
        return wrong
    mine, theirs = _parts(look, job, look.job(reason.job))
    if not mine or not theirs:
        return "both are of one queue"
    other = look.job(reason.job)
    need = np.flatnonzero(look.gang(other)).tolist()

    counted = [r for r in need if look.before.contended(mine[-1], r) or look.after.contended(mine[-1], r)]
    lost, got = (look.change(j) for j in (job, other))
    nothing = np.zeros(len(look.s.resources))
    # It may be about a single resource. Other jobs of the two queues may have started in the same plan: then compare
    # what both would hold without this exchange.
    for tree, less_mine, less_theirs in ((look.before, nothing, nothing), (look.after, lost, got)):
        for among in (counted, need, *([r] for r in counted if lost[r])):
            if _met(tree, theirs[-1], less_theirs, among) < _met(tree, mine[-1], less_mine, among):
                return ""
    return "that one's queue held no less of its share"


def _met(tree: Tree, queue: int, less: Any, among: list[int]) -> float:
    """Held over deserved of the queue with this much less, the largest over these resources."""
    return max(((tree.used[queue, r] - less[r]) / max(tree.deserved[queue, r], NEAR) for r in among), default=0.0)


def _by_guarantee(look: Look, job: int, reason: ReclaimedByGuarantee) -> str:
    wrong = _replicas(look, job, reason)
    if wrong:
        return wrong
    _, theirs = _parts(look, job, look.job(reason.job))
    return "" if any(look.before.guarantee[q].any() for q in theirs) else "that one's queue is guaranteed nothing"


def _shared(look: Look, job: int, reason: SharedInQueue) -> str:
    s, other = look.s, look.job(reason.job)
    if s.job_queue[other] != s.job_queue[job] or s.job_priority[other] < s.job_priority[job]:
        return "that one is of another queue or a lower priority"
    if any(look.replicas[r] < s.role_min[r] for r in look.roles(job)):
        return "it lost more than what it had above its minimum"
    return _replicas(look, job, reason)


def _gave_back(look: Look, job: int, reason: GaveBackReservation) -> str:
    s, other = look.s, look.job(reason.job)
    if s.job_queue[other] != s.job_queue[job] or look.held[other] > 0 or not _has_waited(look, other):
        return "no capacity was reserved for that one"
    return _replicas(look, job, reason)


def _starts(look: Look, job: int, reason: Fits) -> str:
    return "" if look.held[job] == 0 and look.then[job] == reason.gets else "it does not start with so many"


def _grows(look: Look, job: int, reason: Grown) -> str:
    if look.plan.policy not in ("fit", "fair"):
        return ""
    return "" if look.gains(job) and look.then[job] == reason.replicas else "it does not grow to so many"


def _again(look: Look, job: int, reason: PlacedAgain) -> str:
    if look.plan.action[job] != int(Action.RESIZE):
        return "it stays as it is"
    return (
        "" if (reason.replicas, reason.before) == (look.then[job], look.held[job]) else "it had or has another number"
    )


def _keeps(look: Look, job: int, reason: Kept) -> str:
    del reason
    return "" if look.plan.action[job] == int(Action.KEEP) else "it is changed"


Check = Callable[[Look, int, Any], str]
_LOST: dict[type[Reason], Check] = {
    PreemptedForPriority: _preempted,
    Reclaimed: _reclaimed,
    ReclaimedByGuarantee: _by_guarantee,
    SharedInQueue: _shared,
    GaveBackReservation: _gave_back,
    ShrunkForOthers: _replicas,
}
_WAITING: dict[type[Reason], Check] = {
    DoesNotFit: _does_not_fit,
    TooBig: _too_big,
    Crowded: _crowded,
    NoNodes: _no_nodes,
    NoSuchQueue: _no_queue,
    QueueCap: _cap,
    LentToPreemptible: _lent,
    GuaranteeHeld: _held,
    QueueShare: _share,
    OwnShare: _own_share,
    NoSurplus: _no_surplus,
    GuaranteedElsewhere: _guaranteed,
    Reserved: _reserved,
    ItsTurn: _its_turn,
    **_LOST,
}
_HOLDING: dict[type[Reason], Check] = {
    Fits: _starts,
    Grown: _grows,
    PlacedAgain: _again,
    Kept: _keeps,
    KeptNotPreemptible: _keeps,
    **_LOST,
}


def of_waiting(snapshot: Snapshot, plan: Plan) -> list[Reason]:
    """The reasons of the jobs that hold nothing after the plan."""
    return [plan.reasons[job] for job in np.flatnonzero(~snapshot.jobs_of(plan.role)).tolist()]
