"""Reconciliation: from a job's Workflow and pods to the writes that bring them closer to the decision.

Nothing is decided here, and there is no state: if the process is killed after any write, the next call continues from
the objects. The table in docs/decisions/0005 lists what happens when.
"""

from __future__ import annotations

import hashlib
import math
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from diflow import amounts, keys
from diflow.allocator.engine import failing, node_checks, patches
from diflow.allocator.engine.free_capacity import FreeCapacity
from diflow.allocator.engine.patches import Note, Write
from diflow.allocator.engine.records import JobRead, PodRead
from diflow.bounds import MOST_PARTS
from diflow.figures import counted
from diflow.state import chain, untrusted
from diflow.state.allocation import Allocation
from diflow.state.exclusions import Exclusions
from diflow.state.parameters import replicas_text
from diflow.state.patches import live
from diflow.state.roster import roster

Needs = dict[str, dict[str, int]]

# The kubelet's message for a pod that it does not admit: an attempt that ends with it does not count as a failure, even
# if Argo evaluates it with a copy of the Workflow from before the decision.
REJECTED = "Pod was rejected"
_SKEW_SECONDS = 300.0
"""By which the clock of the API server may be ahead of that of this process."""
_RESUMED = {"suspend": None}
# A new job on which nothing was decided for so long (the allocator is paused, or cannot read it) is shown to Argo.
_SHOWN_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Job:
    """A job's Workflow and its live pods.

    `before` and `after` are the previous and the next Workflow of the job, if they exist; `old_pods` are the live pods
    of the previous ones. A full Workflow is too large for another round, which begins in the next Workflow. `known_as`:
    the key of the job, if it is not this Workflow's. `submitted_seconds`: when the first existing Workflow of the job
    was created, None if it is this one.
    """

    read: JobRead
    pods: Sequence[PodRead]
    before: JobRead | None = None
    after: JobRead | None = None
    old_pods: Sequence[PodRead] = ()
    is_full: bool = False
    known_as: str = ""
    submitted_seconds: float | None = None

    @property
    def created_seconds(self) -> float:
        """When the job was submitted: the creation of its first Workflow that still exists."""
        return self.read.created_seconds if self.submitted_seconds is None else self.submitted_seconds

    @property
    def key(self) -> str:
        return self.read.key

    @property
    def title(self) -> str:
        """The job's "namespace/name", whichever Workflow it is in."""
        return self.known_as or self.read.key

    @property
    def is_superseded(self) -> bool:
        """The job continues in another Workflow, or that is decided."""
        return bool(self.read.continued_in) or self.after is not None

    @property
    def is_over(self) -> bool:
        """It has ended or is ending, continues in another Workflow, or has a Workflow that cannot be read."""
        read = self.read
        return read.has_ended or read.is_stopping or bool(read.problem) or self.is_superseded

    @property
    def may_begin(self) -> bool:
        """The previous Workflow, if there is one, names this one as its successor."""
        return self.before is None or self.before.continued_in == self.read.identity.name

    def is_made_of(self, other: Job) -> bool:
        """Whether it consists of the same objects as `other`: comparing by identity is cheaper than by value."""
        return (
            self.read is other.read
            and self.before is other.before
            and self.after is other.after
            and (self.is_full, self.known_as, self.submitted_seconds)
            == (other.is_full, other.known_as, other.submitted_seconds)
            and _are_the_same(self.pods, other.pods)
            and _are_the_same(self.old_pods, other.old_pods)
        )

    def is_wanted(self, pod: PodRead) -> bool:
        """Whether the pod is of the current round and not released."""
        job = self.read
        return pod.place is not None and pod.place.round == job.current and pod.member not in job.released

    def members(self) -> Iterator[tuple[str, int, str]]:
        """(task, index, member) of each replica that should run now."""
        for role in self.read.roles:
            for index in range(self.read.running(role.name)):
                yield role.name, index, self.read.member(role.name, index)

    def has_started(self) -> bool:
        """Whether a replica of the current round, in its latest restart, was admitted or has finished."""
        tree, latest = self.read.tree, self.latest_restart()
        if self.read.places_until and not latest:
            return True  # its pods are created without gates
        if any(not pod.is_gated for pod in self.current_pods() if pod.place and pod.place.restart == latest):
            return True
        return latest <= tree.restart_of.get(self.read.current, 0) and any(
            tree.is_done(member) for _, _, member in self.members()
        )

    def current_pods(self) -> list[PodRead]:
        """The pods of the current round, at most one for each granted replica: others are strays."""
        found = [pod for pod in self.pods if self.is_wanted(pod) and self._is_granted(pod)]
        latest: dict[str, PodRead] = {}
        for pod in found:
            other = latest.setdefault(pod.member, pod)
            if other.place and pod.place and pod.place.order > other.place.order:
                latest[pod.member] = pod
        return found if len(latest) == len(found) else list(latest.values())

    def strays(self) -> list[PodRead]:
        """Pods labelled as replicas that are not granted or have another pod: every user who may create pods can make
        them. They give the job no claim to a place, and the allocator does not end them."""
        wanted = [pod for pod in self.pods if self.is_wanted(pod)]
        current = self.current_pods()
        if len(current) == len(wanted):
            return []
        known = {pod.identity.uid for pod in current}
        return [pod for pod in wanted if pod.identity.uid not in known]

    def _is_granted(self, pod: PodRead) -> bool:
        read, place = self.read, pod.place
        if place is None:
            return False
        count = read.granted.get(read.current, {}).get(place.task, 0)
        return place.index < count and place.member == read.member_text(place.task, place.index)

    def lacks(self) -> list[str]:
        """The replicas of the current round ("worker-3") that have not finished and have no live pod."""
        there, finished = {pod.member for pod in self.current_pods()}, self.read.tree.finished
        return [
            f"{task}-{index}" for task, index, member in self.members() if member not in there and not finished(member)
        ]

    @property
    def is_incomplete(self) -> bool:
        """It was admitted, and some of its first pods do not exist: those that do wait for them."""
        read = self.read
        return bool(read.places_until and not read.restarts and not read.tree.recreated and self.lacks())

    def latest_restart(self) -> int:
        seen = [pod.place.restart for pod in self.current_pods() if pod.place]
        return max([*seen, self.read.tree.restart_of.get(self.read.current, 0)])

    def leaving(self) -> list[PodRead]:
        """Live pods that should end."""
        return [pod for pod in self.pods if not self.is_wanted(pod)]


def _are_the_same(some: Sequence[PodRead], others: Sequence[PodRead]) -> bool:
    return len(some) == len(others) and all(map(operator.is_, some, others))


@dataclass(frozen=True, slots=True)
class Pace:
    """Minimum times between disruptions."""

    between_rounds_seconds: float = 10.0
    """The least age of a round that is replaced because it lost a replica: evictions come in bursts."""
    explain_seconds: float = 5.0
    """How long a failure that counts waits for one of another replica that does not, of a job with a failure policy:
    peers of a lost replica fail as well, and Argo may hear of them first."""


def reconcile(
    job: Job,
    capacity: FreeCapacity,
    *,
    now: float,
    pace: Pace | None = None,
    overdue: frozenset[str] = frozenset(),
    planned_ago: float = 0.0,
    most_memory: int | None = None,
) -> list[Write]:
    """The next writes for this job. Admissions reserve from `capacity`, so that no two jobs get the same.

    `overdue`: uids of admitted pods that kube-scheduler has not bound in time. `planned_ago`: seconds since the last
    plan that was carried out, infinite without one. `most_memory`: the MiB that a replica may have after it ran out of
    memory, None without a limit.
    """
    read = job.read
    if first := _to_successor(job, now) or _to_argo(read, capacity) or _repair(read):
        return first
    if read.has_ended or (read.problem and not read.is_stopping):
        return []
    if read.is_stopping:
        # Argo ends running pods. It also waits for the end of unbound pods, which no kubelet reports.
        unbound = [pod for pod in job.pods if not pod.host and not pod.is_terminating]
        resumed = [patches.change_job(read, spec=_RESUMED)] if read.awaits_admission else []
        return [
            *resumed,  # Argo ends no Workflow that is suspended
            *_lost(job, capacity),
            *(patches.fail(pod, job.key, f"{REJECTED}: the job was stopped") for pod in unbound),
        ]
    if read.continued_in or read.awaits_admission:
        out = [*_lost(job, capacity), *_unwanted(job, capacity)]
        if not read.continued_in:
            out += _first_admission(job, capacity, now) or _too_late(job, capacity, now, planned_ago)
        return out
    if read.restarts > read.backoff_limit:
        return [_give_up(read, now)]
    pace = pace or Pace()
    follows = _after_failures(job, capacity, now, pace, most_memory) if read.has_policy else None
    return _go_on(job, capacity, now, pace, overdue) if follows is None else follows


def _to_successor(job: Job, now: float) -> list[Write]:
    """Hand the job over to its next Workflow, if there is one."""
    return _hand_over(job, job.after, now) if job.after is not None and not job.read.continued_in else []


def _to_argo(read: JobRead, capacity: FreeCapacity) -> list[Write]:
    """Show a job to Argo that was hidden from it, though nothing was decided on it."""
    if not read.is_hidden or not (read.is_stopping or capacity.age(read.created_seconds) > _SHOWN_SECONDS):
        return []
    return [patches.change_job(read, labels={keys.INSTANCE: None}, spec=_RESUMED if read.is_stopping else None)]


def _repair(read: JobRead) -> list[Write]:
    """Run a job again that `argo retry` has left without pods."""
    is_done_with = read.has_ended or read.problem or read.is_stopping or read.continued_in
    return [patches.repair(read)] if read.tree.is_stuck and not read.tree.is_offloaded and not is_done_with else []


def end_pods(job: Job, capacity: FreeCapacity) -> list[Write]:
    """End the running pods of a job whose Workflow cannot be written. Gated pods use no capacity, and stay."""
    why = f"{REJECTED}: the job's Workflow is too large to be changed"
    return _lost(job, capacity) + [
        patches.stop(pod, job.key, why, timestamp(capacity.now_seconds))
        for pod in job.pods
        if pod.where
        and not pod.is_stopping
        and not pod.is_terminating
        and not (pod.host and capacity.is_lost(pod.host))
    ]


def _go_on(job: Job, capacity: FreeCapacity, now: float, pace: Pace, overdue: frozenset[str]) -> list[Write]:
    read = job.read
    out = [*_lost(job, capacity), *_unwanted(job, capacity)]
    if read.is_preemptible and (together := _together(job, capacity, now, pace)) is not None:
        return out + together
    moved = [] if read.is_preemptible else _without_place(job, now)
    if not moved and read.node_check is not None:
        moved = _checked(job, now)
    if moved:
        return [*out, *moved]
    if not read.is_preemptible:
        out += _stopped_for_health(job, capacity, now)
    late = [pod for pod in job.current_pods() if pod.identity.uid in overdue]
    if late:
        return [*out, *_take_back(job, late, now)]
    out += _admissions(job, capacity)
    change = None if read.is_preemptible else _regrant(job, now)
    if change is not None:
        out.append(change)
    return out + _rosters(job)


def _together(job: Job, capacity: FreeCapacity, now: float, pace: Pace) -> list[Write] | None:
    """The restart of all replicas of a preemptible job, of which one failed or was taken away; None if none did."""
    read = job.read
    is_explained = read.has_policy and failing.is_explained(read)
    if read.tree.failed(read.current) and not _round_is_over(read) and not is_explained:
        if explain_left(job, capacity, pace) > 0:
            return []
        if read.has_policy and read.restarts >= read.backoff_limit:
            return [_give_up(read, now)]
        return _restart_together(job, now)
    again = _taken_away(job, capacity, now, pace) or _restarts_elsewhere(job, capacity, now)
    if again is not None:
        return [again]
    # A round that lost a replica will be replaced: no pods are admitted to it.
    is_over = is_explained or any(member.startswith(f"{read.current}/") for member in read.tree.recreated)
    return [] if is_over else None


def _after_failures(
    job: Job, capacity: FreeCapacity, now: float, pace: Pace, most_memory: int | None
) -> list[Write] | None:
    """What follows from failures by the job's failure policy; None if nothing does."""
    read = job.read
    running = {pod.member: pod.place.order for pod in job.current_pods() if pod.place is not None and not pod.is_gated}
    is_final = not read.is_preemptible or not (failing.is_explained(read) or explain_left(job, capacity, pace) > 0)
    found = failing.consequence(read, running=running, now=now, most_memory=most_memory, is_final=is_final)
    if found.stop:
        made = decision("stop", found.stop, now)
        return [patches.stop_job(read, decision=made, note=Note("Stopped", found.stop, is_warning=True))]
    out = [*_lost(job, capacity), *_unwanted(job, capacity)]
    if found:
        note = Note("OutOfMemory" if found.reason == "OutOfMemory" else "NodeLeftOut", found.why, is_warning=True)
        made = decision("restart", found.why, now)
        return [
            *out,
            place_again(
                job, found.moved, now=now, memory=found.memory, excluded=found.excluded, decision=made, note=note
            ),
        ]
    # Argo may have made a pod before it read the new memory. A round is made with it.
    pods = () if read.is_preemptible else job.current_pods()
    small = [p for p in pods if p.is_gated and p.place and 0 < p.memory < read.memory.get(p.place.task, 0)]
    why = f"{REJECTED}: it is made again with more memory"
    return [*out, *(patches.fail(pod, job.key, why) for pod in small)] if small else None


def explain_left(job: Job, capacity: FreeCapacity, pace: Pace) -> float:
    """Seconds until the others of a round restart because of a failure that counts; 0 or less if they do so now."""
    read = job.read
    if not read.has_policy or not read.is_preemptible:
        return 0.0
    failed = untrusted.seconds(failing.first_failure(read))
    return pace.explain_seconds - capacity.age(failed) if failed else 0.0


def needs(pods: Sequence[PodRead], allocation: Allocation) -> Needs | None:
    """Node → resource → amount that these pods need, None if one of them has no node."""
    out: Needs = {}
    for pod in pods:
        assert pod.place is not None
        node = allocation.node(pod.place.task, pod.place.index)
        if not node:
            return None
        amounts.add(out.setdefault(node, {}), pod.request)
    return out


def _give_up(read: JobRead, now: float) -> Write:
    why = f"its replicas failed {read.restarts} times altogether; backoffLimit is {read.backoff_limit}"
    if read.restarts <= read.backoff_limit:  # of a job that restarts as a whole: this is the failure after the last one
        why = f"{failing.verdict(read)} after {counted(read.restarts, 'restart')}; backoffLimit is {read.backoff_limit}"
    return patches.stop_job(read, decision=decision("stop", why, now), note=Note("Stopped", why, is_warning=True))


def start_left(job: Job, capacity: FreeCapacity) -> float:
    """Seconds until the job must have got its places, 0 or less when it is too late; infinite if it has them or may
    wait."""
    read = job.read
    # A user who suspends a job that waits wants it to wait.
    if read.start_deadline_seconds is None or not read.awaits_admission or read.is_suspended or _has_places(read):
        return math.inf
    return read.start_deadline_seconds - capacity.age(job.created_seconds)


def _has_places(read: JobRead) -> bool:
    at = read.allocation
    return at is not None and at.round == read.current and at.is_placed


def _too_late(job: Job, capacity: FreeCapacity, now: float, planned_ago: float) -> list[Write]:
    """Stop a job that did not get its places within its startDeadlineSeconds, nor by a plan that was made after them:
    the allocator may have been away or paused until then."""
    if start_left(job, capacity) > -planned_ago:
        return []
    why = f"it has not started within {job.read.start_deadline_seconds} s, its startDeadlineSeconds"
    made = decision("stop", why, now)
    return [patches.stop_job(job.read, decision=made, note=Note("Stopped", why, is_warning=True))]


def next_round(
    job: Job, counts: Mapping[str, int], nodes: Mapping[str, tuple[str, ...]], *, now: float, **note_and_decision: Any
) -> Write:
    """As `patches.new_round`; if the job's Workflow is full, in the next Workflow."""
    return patches.new_round(
        job.read, counts, nodes, now=now, names=next_names(job) if job.is_full else (), **note_and_decision
    )


def place_again(
    job: Job,
    gone: Set[tuple[str, int]],
    *,
    now: float,
    excluded: Exclusions | None = None,
    memory: Mapping[str, int] | None = None,
    **note_and_decision: Any,
) -> Write:
    """Take the places of the replicas `gone` (task, index) back, so that planning finds others, and record `excluded`
    and `memory`, the MiB of the next pods by task.

    A preemptible job moves as a whole: to a new round, which has no places yet. This uses none of its backoffLimit.
    `note_and_decision`: as in `patches`.
    """
    read, at = job.read, job.read.allocation
    if read.is_preemptible:
        counts = {role.name: role.low for role in read.roles}
        return next_round(job, counts, {}, now=now, excluded=excluded, memory=memory, **note_and_decision)
    moved = None
    if gone and at is not None and at.round == read.current:
        nodes = {
            task: tuple("" if (task, index) in gone else node for index, node in enumerate(places))
            for task, places in at.nodes.items()
        }
        moved = Allocation(at.round, nodes, now, at.first, at.moves)
    return patches.change_job(
        read, parameters=live(memory=memory), allocation=moved, excluded=excluded, **note_and_decision
    )


def next_names(job: Job) -> tuple[str, ...]:
    """Candidate names of the job's next Workflow, in order of preference; none if the tasks' names are too long."""
    read = job.read
    if read.part >= MOST_PARTS:
        return ()
    longest = chain.longest_name({role.name: role.high for role in read.roles})
    salt = hashlib.sha256(read.identity.uid.encode()).hexdigest()[:5]
    names = (chain.part_name(read.name, read.part + 1, most_characters=longest, salt=given) for given in ("", salt))
    return tuple(name for name in names if name)


def _hand_over(job: Job, after: JobRead, now: float) -> list[Write]:
    """Hand the job over to its next Workflow, which exists.

    The last write makes the next Workflow the authoritative one, so changes to this one are copied to it first.
    """
    read = job.read
    if read.has_ended or read.is_stopping:
        if after.has_ended or after.is_stopping:
            return []
        why = f"the job ended in {read.identity.name}, before it continued here"
        return [patches.stop_job(after, decision=decision("stop", why, now), of=read.key)]
    if not read.problem and (update := _copy_changes(read, after)):
        return [update]
    note = Note("Continued", f"continues in {after.identity.name}: this Workflow has {read.tree.count} nodes")
    return [
        patches.change_job(
            read,
            parameters=live(current=""),
            annotations={keys.CONTINUED_IN: after.identity.name},
            labels={keys.CHAIN: read.name, keys.PART: str(read.part)},
            note=note,
        )
    ]


def _copy_changes(read: JobRead, after: JobRead) -> Write | None:
    """Copy what has changed in this Workflow since the next one was created; None if nothing has."""
    wanted, has = replicas_text(read.parameters), replicas_text(after.parameters)
    counted = (read.restarts, read.reschedules + 1)
    mine, its = (wanted, read.bounds, read.is_suspended, *counted), (
        has, after.bounds, after.is_suspended, after.restarts_before, after.rounds_before,
    )  # fmt: skip
    if mine == its or after.problem:
        return None
    return patches.change_job(
        after,
        parameters=live(replicas=wanted),
        annotations={
            keys.BOUNDS: read.bounds or None,
            keys.RESTARTS_BEFORE: str(counted[0]),
            keys.ROUNDS_BEFORE: str(counted[1]),
        },
        spec={"suspend": read.is_suspended or None},
        of=read.key,
    )


def decision(action: str, why: str, now: float) -> dict[str, str]:
    """The content of the annotation `diflow/decision`."""
    return {"action": action, "why": why, "time": timestamp(now)}


def timestamp(now: float) -> str:
    from datetime import UTC, datetime  # noqa: PLC0415 (only when something is written)

    return datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _lost(job: Job, capacity: FreeCapacity) -> list[Write]:
    """Write off the pods on lost nodes: Argo would wait for their end indefinitely."""
    gone = [pod for pod in job.pods if pod.host and capacity.is_lost(pod.host)]
    where = ", ".join(f"{node}, which {capacity.trouble(node)}" for node in sorted({pod.host for pod in gone}))
    note = Note(
        "NodeLost", f"{len(gone)} of its pods {'was' if len(gone) == 1 else 'were'} on {where}", is_warning=True
    )
    at = timestamp(capacity.now_seconds)
    return [
        patches.write_off(pod, job.key, f"The node was lost: {pod.host}", at, note=note if pod is gone[0] else None)
        for pod in gone
    ]


def _unwanted(job: Job, capacity: FreeCapacity) -> list[Write]:
    return [
        patches.stop(pod, job.key, f"{REJECTED}: {_released(job.read, pod)}", timestamp(capacity.now_seconds))
        for pod in job.leaving()
        if not pod.is_stopping and not pod.is_terminating and not (pod.host and capacity.is_lost(pod.host))
    ]


def _released(read: JobRead, pod: PodRead) -> str:
    """Why a pod was released."""
    if pod.place is not None and pod.place.round == read.current:
        return "released, as fewer replicas are wanted"
    return f"released for round {read.current}"


def _round_is_over(read: JobRead) -> bool:
    return read.tree.round_phase.get(read.current, "") in ("Succeeded", "Failed", "Error")


def _restart_together(job: Job, now: float) -> list[Write]:
    """After a replica has failed, end the others, so that Argo's retry of the round starts all of them together.

    The mark in the parameter `released` comes first, as Argo retries a stopped pod that is not released. Argo may still
    see the pod's end before the parameter; a pod that it has created then is gated, and is ended here as well.
    """
    read = job.read
    failed = read.tree.failed(read.current)
    name = failed[0].split("/", 1)[1].replace("/", "-")
    restart = read.tree.restart_of.get(read.current, 0)
    rest = [
        pod
        for pod in job.current_pods()
        if pod.place and pod.place.restart == restart and not pod.is_stopping and not pod.is_terminating
    ]
    mark = f"{read.current}/{restart}"
    if rest and mark not in read.released:
        return [patches.change_job(read, parameters=live(released=[mark]))]
    why = f"{name} has failed: the round starts again together"
    out = [patches.stop(pod, job.key, why, timestamp(now)) for pod in rest]
    if out:
        message = f"{name} failed; the round starts again together (backoffLimit {read.backoff_limit})"
        first = out[0]
        out[0] = Write(
            first.kind, first.target, first.job, first.body, first.subresource, Note("Restarted", message), first.why
        )
    return out


def _restarts_elsewhere(job: Job, capacity: FreeCapacity, now: float) -> Write | None:
    """A restarted round adds nodes to its Workflow as a new one does: if that is full, use the next Workflow."""
    read, at = job.read, job.read.allocation
    if not job.is_full or not job.latest_restart() or job.has_started() or not next_names(job):
        return None
    if at is None or at.round != read.current or not at.is_placed or _is_on_lost_node(at, capacity):
        return None
    return next_round(job, {role.name: read.running(role.name) for role in read.roles}, at.nodes, now=now)


def _is_on_lost_node(at: Allocation, capacity: FreeCapacity) -> bool:
    return any(capacity.is_lost(node) for nodes in at.nodes.values() for node in nodes)


def _waits_on_lost_node(job: Job, at: Allocation, capacity: FreeCapacity) -> bool:
    """Whether the node of an unfinished replica is lost."""
    finished = job.read.tree.finished
    return any(capacity.is_lost(at.node(task, index)) for task, index, member in job.members() if not finished(member))


def _taken_away(job: Job, capacity: FreeCapacity, now: float, pace: Pace) -> Write | None:
    """A new round on the same nodes after a replica's pod was evicted or deleted, as its peers would wait for it."""
    read = job.read
    prefix = f"{read.current}/"
    gone = sorted(m for m in read.tree.recreated if m.startswith(prefix))
    at = read.allocation
    if not gone or at is None or at.round != read.current or not at.is_placed:
        return None
    if _waits_on_lost_node(job, at, capacity):
        return None  # planning places it elsewhere
    if capacity.age(at.since) < pace.between_rounds_seconds:
        return None
    name = gone[0].split("/", 1)[1].replace("/", "-")
    counts = {role.name: read.running(role.name) for role in read.roles}
    return next_round(
        job,
        counts,
        {} if _is_on_lost_node(at, capacity) else at.nodes,
        now=now,
        note=Note("Rescheduled", f"{name} was taken away: all replicas start again together, not counted"),
    )


def _without_place(job: Job, now: float) -> list[Write]:
    """End the pods of a gang whose place was taken back, as some of its pods were not created. They have gates then."""
    at = job.read.allocation
    if at is None or at.round != job.read.current or at.is_placed:
        return []
    why = "its gang is not complete: it waits for another place"
    return [
        patches.stop(pod, job.key, f"{REJECTED}: {why}", timestamp(now))
        for pod in job.current_pods()
        if pod.where and not pod.is_stopping and not pod.is_terminating
    ]


def _stopped_for_health(job: Job, capacity: FreeCapacity, now: float) -> list[Write]:
    """End the pods of silent and stalled replicas, as `health.py` has decided. Argo makes them again, which is not
    counted; they get their places back."""
    health, found = job.read.health, job.read.found
    if health is None or health.action != "restart" or found is None or found.round != job.read.current:
        return []
    stop = found.stop
    # Of a text that a user has edited, a time in the future would end each new pod, for ever.
    if stop is None or stop.until > now + _SKEW_SECONDS:
        return []
    why = f"{REJECTED}: it was silent or stalled, and starts again"
    return [
        patches.stop(pod, job.key, why, timestamp(now))
        for pod in job.current_pods()
        if pod.place
        and stop.has(pod.place.task, pod.place.index, pod.created)
        and not (pod.is_gated or pod.is_stopping or pod.is_terminating)
        and not (pod.host and capacity.is_lost(pod.host))
    ]


def _take_back(job: Job, late: Sequence[PodRead], now: float) -> list[Write]:
    """Take the place of replicas that kube-scheduler does not bind there; planning finds another one."""
    read, at = job.read, job.read.allocation
    names = ", ".join(pod.identity.name for pod in late)
    where = ", ".join(sorted({pod.pinned for pod in late}))
    note = Note("Refused", f"kube-scheduler does not bind {names} to {where}: placed again", is_warning=True)
    if at is None or at.round != read.current:
        return []
    if read.is_preemptible:
        return [place_again(job, set(), now=now, note=note)]
    gone = {(pod.place.task, pod.place.index) for pod in late if pod.place}
    why = f"{REJECTED}: kube-scheduler did not bind it to its node"
    return [place_again(job, gone, now=now, note=note), *(patches.fail(pod, job.key, why) for pod in late)]


def _checked(job: Job, now: float) -> list[Write]:
    """Place the gang again without the nodes that its check finds faulty; of a job that is not preemptible, the
    replicas there. None of this counts against backoffLimit."""
    why = "its node is left out after the node check"
    ended = [
        patches.stop(pod, job.key, why, timestamp(now))
        for pod in node_checks.misplaced(job)
        if not pod.is_stopping and not pod.is_terminating
    ]
    found = node_checks.left_out(job, now)
    if ended or found is None:
        return ended
    note = Note("NodeLeftOut", f"the node check leaves out {found.text}: placed again, not counted", is_warning=True)
    gone = {(pod.place.task, pod.place.index) for pod in found.pods if pod.place}
    said = decision("check", f"left out {found.text}", now)
    return [place_again(job, gone, now=now, excluded=found.excluded, decision=said, note=note)]


def _admissions(job: Job, capacity: FreeCapacity) -> list[Write]:
    """Remove the gates of pods whose place has enough free capacity now; those of a gang all at once."""
    read = job.read
    at = read.allocation
    if at is None or at.round != read.current or not at.is_placed or read.is_suspended or not job.may_begin:
        return []
    latest = job.latest_restart()
    gated = [p for p in job.current_pods() if p.is_gated and not p.is_terminating and p.place]
    gated = [p for p in gated if p.place and p.place.restart == latest and _is_known(read, p)]
    if not gated or (read.is_preemptible and former_pods(job, capacity)):
        return []
    if not job.has_started():
        present = {pod.member for pod in gated}
        if not all(member in present or read.tree.finished(member) for _, _, member in job.members()):
            return []
        need = needs(gated, at)
        if need is None or not capacity.fits(need):
            return []
        capacity.take(need)
        return [patches.admit(p, at.node(p.place.task, p.place.index), job.key) for p in gated if p.place]
    out = []
    for pod in gated:
        need = needs([pod], at)
        if need is not None and capacity.fits(need):
            capacity.take(need)
            assert pod.place is not None
            out.append(patches.admit(pod, at.node(pod.place.task, pod.place.index), job.key))
    return out


def _is_known(read: JobRead, pod: PodRead) -> bool:
    """Whether the Workflow shows how the attempt before this pod ended, if that matters: by the failure policy it may
    lose its node."""
    assert pod.place is not None
    if not read.has_policy or not (pod.place.counted or pod.place.uncounted):
        return True
    return read.tree.newest.get(pod.member, (0, 0, 0, 0)) >= pod.place.order


def _first_admission(job: Job, capacity: FreeCapacity, now: float) -> list[Write]:
    """Let Argo create the pods of a job, on their nodes, as soon as these have enough free capacity."""
    read, at = job.read, job.read.allocation
    if at is None or not _has_places(read) or not job.may_begin:
        return []
    need = allocated(read, at)
    if need is None or not capacity.fits(need):
        return []
    capacity.take(need)
    return [patches.change_job(read, **patches.admission(at, now=now))]


def allocated(read: JobRead, at: Allocation, *, but: Set[str] = frozenset()) -> Needs | None:
    """Node → resource → amount that the replicas of this allocation need, without those of the members `but`; None if
    one of them has no node."""
    out: Needs = {}
    requests = {role.name: role.request for role in read.roles}
    for task, nodes in at.nodes.items():
        for index, node in enumerate(nodes):
            if task not in requests or read.member(task, index) in but:
                continue
            if not node:
                return None
            amounts.add(out.setdefault(node, {}), requests[task])
    return out


def unborn(job: Job, now: float) -> Needs:
    """What the pods need that Argo has not created yet of a job that was admitted: they have no gates."""
    read, at = job.read, job.read.allocation
    if now >= read.places_until or at is None or at.round != read.current or not read.roles or job.latest_restart():
        return {}
    seen = {pod.member for pod in job.current_pods()} | {m for m in read.tree.members if read.tree.is_done(m)}
    return allocated(read, at, but=seen) or {}


def free_now(capacity: FreeCapacity, jobs: Iterable[Job], now: float) -> FreeCapacity:
    """`capacity` without that of admitted jobs whose pods do not exist yet."""
    for job in jobs:
        capacity.take(unborn(job, now))
    return capacity


def former_pods(job: Job, capacity: FreeCapacity) -> list[PodRead]:
    """Bound pods of earlier rounds, restarts and Workflows. While one exists, a preemptible job is not admitted."""
    latest = job.latest_restart()
    older = [
        pod for pod in job.pods if pod.place and (pod.place.round != job.read.current or pod.place.restart < latest)
    ]
    return [pod for pod in (*older, *job.old_pods) if pod.host and not capacity.is_lost(pod.host)]


def _regrant(job: Job, now: float) -> Write | None:
    """Shrink a non-preemptible job to what is asked for: release the highest ranks, and drop them when they end."""
    read = job.read
    granted = dict(read.granted[read.current])
    released = set(read.released)
    dropped: list[str] = []
    for role in read.roles:
        count = granted.get(role.name, 0)
        while count > 1 and read.member(role.name, count - 1) in released:
            member = read.member(role.name, count - 1)
            if not read.tree.is_done(member) or any(pod.member == member for pod in job.pods):
                break
            count -= 1
            released.discard(member)
            dropped.append(member)
        granted[role.name] = count
    leave: list[str] = []
    for role in read.roles:
        running = read.running(role.name)
        leave += [read.member(role.name, index) for index in range(max(1, role.wanted), running)]
    if not dropped and not leave:
        return None
    # A member stays in `released` until it is not granted: Argo reads both parameters each time.
    parameters = live(granted={**read.granted, read.current: granted}, released=sorted(released | set(leave)))
    note = said = None
    at = read.allocation
    if leave:
        before = sum(read.running(role.name) for role in read.roles)
        note = Note(
            "Resized", f"{before} → {counted(before - len(leave), 'replica')}: {', '.join(_names(leave))} released"
        )
        if at is not None:
            wanted = {role.name: role.wanted for role in read.roles}
            nodes = {task: where[: max(1, wanted.get(task, 1))] for task, where in at.nodes.items()}
            at = Allocation(at.round, nodes, now, at.first, at.moves)
        said = decision("resize", f"gave up {counted(len(leave), 'replica')}: its user asked for fewer", now)
    return patches.change_job(read, parameters=parameters, allocation=at if leave else None, decision=said, note=note)


def _names(members: Sequence[str]) -> list[str]:
    return [member.split("/", 1)[1].replace("/", "-") for member in members]


def _rosters(job: Job) -> list[Write]:
    """Update the roster (hosts, rank) of running pods where it has changed."""
    read = job.read
    counts = {role.name: read.running(role.name) for role in read.roles}
    identity = read.identity
    members = roster(identity.name, identity.namespace, counts, service=read.service, short=read.has_short_hosts)
    hosts = ",".join(members.hosts)
    out = []
    for pod in job.current_pods():
        if pod.place is None or pod.is_terminating or not pod.nodes:
            continue
        right: Mapping[str, str] = {
            keys.NODES: hosts,
            keys.REPLICAS: str(len(members.hosts)),
            keys.RANK: str(members.rank_of(pod.place.task, pod.place.index)),
        }
        if (pod.nodes, pod.replicas, pod.rank) != tuple(right.values()):
            out.append(patches.update_roster(pod, job.key, right))
    return out
