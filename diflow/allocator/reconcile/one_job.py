"""Reconciliation: from a job's Workflow and pods to the writes that bring them closer to the decision.

No nodes are chosen here: planning does that. The rules of the job itself are applied here: its `backoffLimit`, its
`startDeadlineSeconds` and `activeDeadlineSeconds`, and its failure policy, which may end it, leave out nodes or raise
the memory of its pods.

There is no state: if the process is killed after any write, the next call continues from the objects. The table in
docs/decisions/0005 lists what happens when.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from diflow.allocator.reconcile import elsewhere, failing, node_checks, peers, run_times
from diflow.allocator.reconcile.admission import admissions, first_admission, start_left
from diflow.allocator.reconcile.hand_over import hand_over
from diflow.allocator.reconcile.incomplete import given_back
from diflow.allocator.reconcile.losses import Loss
from diflow.allocator.reconcile.refused import bound_elsewhere, take_back
from diflow.allocator.watch.free_capacity import FreeCapacity
from diflow.allocator.watch.job import Job
from diflow.allocator.write import patches
from diflow.allocator.write.patches import Note, Write
from diflow.allocator.write.rounds import (
    REJECTED,
    after_the_last_restart,
    decision_of,
    next_names,
    next_round,
    place_again,
    stop,
)
from diflow.common import keys
from diflow.common.durations import timestamp
from diflow.common.words import counted
from diflow.jobs.retry import QUIET_SECONDS
from diflow.kube.kinds import WORKFLOW
from diflow.record.allocation import Allocation
from diflow.record.job import JobRecord
from diflow.record.patches import UNLABELLED, live
from diflow.record.pod import PodRecord

_SKEW_SECONDS = 300.0
"""By which the clock of the API server may be ahead of that of this process."""
_STOPPING: Final[Mapping[str, Any]] = {"labels": UNLABELLED, "spec": {"suspend": None}}
"""What Argo needs to end a job that waits and that somebody has stopped."""
# A new job on which nothing was decided for so long (the allocator is paused, or cannot read it) is shown to Argo.
_SHOWN_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Pace:
    """Minimum times between disruptions."""

    between_rounds_seconds: float = 10.0
    """The least age of a round that is replaced because it lost a replica: evictions come in bursts."""
    explain_seconds: float = 5.0
    """How long a failure that counts waits for one of another replica that does not, of a job with a failure policy:
    peers of a lost replica fail as well, and Argo may hear of them first."""
    bind_seconds: float = 60.0
    """How long kube-scheduler has to bind a pod that it has refused."""
    longest_pause_seconds: float = 1800.0
    """Between two tries of a gang that kube-scheduler refuses, or of a job whose rounds end soon."""
    incomplete_seconds: float = 600.0
    """How long a gang that is not preemptible may lack places; 0: for ever."""


def reconcile(
    job: Job,
    capacity: FreeCapacity,
    *,
    now: float,
    pace: Pace,
    overdue: frozenset[str],
    planned_ago: float,
    most_memory: int | None,
) -> list[Write]:
    """The next writes for this job. Admissions reserve from `capacity`, so that no two jobs get the same.

    `overdue`: uids of admitted pods that kube-scheduler has not bound in time. `planned_ago`: seconds since the last
    plan that was carried out, infinite without one. `most_memory`: the MiB that a replica may have after it ran out of
    memory, None without a limit.
    """
    read = job.read
    if first := _deleted(read, now) or hand_over(job, now) or _to_argo(read, capacity):
        return first
    if read.has_ended or (read.problem and not read.is_stopping):
        return []
    if read.is_stopping:
        # Argo ends running pods. It also waits for the end of unbound pods, which no kubelet reports.
        unbound = [pod for pod in job.pods if not pod.host and not pod.is_terminating]
        resumed = [patches.change_job(read, **_STOPPING)] if read.argo.awaits_admission else []
        return [
            *resumed,  # Argo ends no Workflow that is suspended
            *_lost(job, capacity),
            *(patches.fail(pod, job.key, f"{REJECTED}: the job was stopped") for pod in unbound),
        ]
    if read.chain.continued_in or read.argo.awaits_admission:
        out = [*_lost(job, capacity), *_unwanted(job, capacity)]
        if not read.chain.continued_in:
            out += first_admission(job, capacity, now) or _too_late(job, capacity, now, planned_ago)
        return out
    follows = run_times.exceeded(job, now=now) or _after_argo_retry(job, capacity)
    if follows is None and (noted := peers.forgiven(job, now)):
        follows = noted
    if follows is None and read.restarts > read.spec.backoff_limit:
        follows = [_give_up(read, now)]
    if follows is None and read.spec.has_rules:
        follows = _after_failures(job, capacity, now, pace, most_memory)
    if follows is None and (found := elsewhere.moved(job, _admitted(job), capacity, now)):
        follows = [*_lost(job, capacity), *_unwanted(job, capacity), *found]
    writes = _go_on(job, capacity, now, pace, overdue) if follows is None else follows
    # Each write of a Workflow names its version: the note waits for the next look if there is another one.
    return writes if any(write.kind is WORKFLOW for write in writes) else [*writes, *run_times.noted(job, now=now)]


def _deleted(read: JobRecord, now: float) -> list[Write]:
    """Stop a job whose Workflow waits for the deletion of its pods: Argo would replace each pod that is deleted."""
    if not read.argo.is_being_deleted or read.has_ended or read.is_stopping:
        return []
    return [patches.stop_job(read, decision=decision_of("stop", "its Workflow is being deleted", now))]


def _to_argo(read: JobRecord, capacity: FreeCapacity) -> list[Write]:
    """Show a job to Argo that was hidden from it, though nothing was decided on it."""
    if not read.argo.is_hidden or not (read.is_stopping or capacity.age(read.argo.created_seconds) > _SHOWN_SECONDS):
        return []
    if read.is_stopping:
        return [patches.change_job(read, **_STOPPING)]
    return [patches.change_job(read, labels={keys.INSTANCE: None})]


def _after_argo_retry(job: Job, capacity: FreeCapacity) -> list[Write] | None:
    """What follows for a job that `argo retry` has left without pods; None if it needs no repair."""
    left = repair_left(job.read, capacity)
    if left == math.inf:
        return None
    return [*_lost(job, capacity), *_unwanted(job, capacity), *([patches.repair(job.read)] if left <= 0 else [])]


def repair_left(read: JobRecord, capacity: FreeCapacity) -> float:
    """Seconds until a job is repaired that `argo retry` has left without pods; infinite if it needs no repair.

    While Argo changes the job, it could write into the version that the repair has made (`retry.QUIET_SECONDS`).
    """
    is_done_with = read.has_ended or read.problem or read.is_stopping or read.chain.continued_in
    if is_done_with or not read.argo.tree.is_stuck or read.argo.tree.is_offloaded:
        return math.inf
    return 1.0 + QUIET_SECONDS - capacity.age(read.argo.tree.changed)  # Argo's times are whole seconds


def end_pods(job: Job, capacity: FreeCapacity) -> list[Write]:
    """End the running pods of a job whose Workflow cannot be written. Gated pods use no capacity, and stay."""
    why = f"{REJECTED}: the job's Workflow is too large to be changed"
    running = [pod for pod in job.pods if pod.where and not capacity.has_lost(pod)]
    return _lost(job, capacity) + _ended(job, running, why, capacity.now_seconds)


def _ended(job: Job, pods: Iterable[PodRecord], why: str, now: float) -> list[Write]:
    """End these pods, but for those that were told to end already."""
    return [patches.stop(pod, job.key, why, timestamp(now)) for pod in pods if not pod.is_ending]


def _go_on(job: Job, capacity: FreeCapacity, now: float, pace: Pace, overdue: frozenset[str]) -> list[Write]:
    read = job.read
    out = [*_lost(job, capacity), *_unwanted(job, capacity)]
    if read.terms.is_preemptible and (together := _together(job, capacity, now, pace)) is not None:
        return out + together
    moved = [] if read.terms.is_preemptible else _without_place(job, now)
    if not moved:
        moved = given_back(job, capacity, now, seconds=pace.incomplete_seconds)
    if not moved and read.spec.node_check is not None:
        moved = _checked(job, now)
    if moved:
        return [*out, *moved]
    if not read.terms.is_preemptible:
        out += _stopped_for_health(job, capacity, now)
        out += _left(job, capacity, now)
    late = [pod for pod in job.current_pods if pod.identity.uid in overdue]
    if late:
        return [*out, *take_back(job, late, now, seconds=pace.bind_seconds, longest_pause=pace.longest_pause_seconds)]
    if found := bound_elsewhere(job, capacity):
        return [*out, *found]
    out += admissions(job, capacity)
    change = None if read.terms.is_preemptible else _regrant(job, now)
    if change is not None:
        out.append(change)
    return out


def _together(job: Job, capacity: FreeCapacity, now: float, pace: Pace) -> list[Write] | None:
    """The restart of all replicas of a preemptible job, of which one failed or was taken away; None if none did."""
    read = job.read
    is_explained = read.spec.has_rules and failing.is_explained(read)
    if read.argo.tree.failed(read.live.current) and not _round_is_over(read) and not is_explained:
        if explain_left(job, capacity, pace) > 0:
            return []
        if (waits := _for_peers(job, capacity, now, pace)) is not None:
            return waits
        if read.spec.has_rules and read.restarts >= read.spec.backoff_limit:
            return [_give_up(read, now)]
        return _restart_together(job, now)
    again = _taken_away(job, capacity, now, pace) or _restarts_elsewhere(job, capacity, now)
    if again is not None:
        return [again]
    # A round that lost a replica will be replaced: no pods are admitted to it.
    is_over = is_explained or any(member.startswith(f"{read.live.current}/") for member in read.argo.tree.recreated)
    return [] if is_over else None


def _for_peers(job: Job, capacity: FreeCapacity, now: float, pace: Pace) -> list[Write] | None:
    """What follows from failures of a preemptible job before all its members had begun: nothing until they have, and
    then a new round that is not counted. None if they count."""
    read, at = job.read, job.read.placed
    loss = Loss(job, capacity, now=now, longest_pause=pace.longest_pause_seconds)
    if at is None or loss.pause or not peers.failed_before(job, [read.argo.tree.failed_at]):
        return None
    if job.not_begun:
        why = peers.told(job)
        if read.notes.decision.why == why:
            return []
        return [patches.change_job(read, decision=decision_of("restart", why, now), note=Note("Waiting", why))]
    text = "a replica failed before all had begun: all start again together, not counted"
    nodes = {} if _is_on_lost_node(at, capacity) else at.nodes
    return [next_round(job, read.running, nodes, now=now, note=Note("Restarted", text), change=loss.noted)]


def _after_failures(
    job: Job, capacity: FreeCapacity, now: float, pace: Pace, most_memory: int | None
) -> list[Write] | None:
    """What follows from failures by the job's failure policy; None if nothing does."""
    read = job.read
    is_final = not read.terms.is_preemptible or not (
        failing.is_explained(read) or explain_left(job, capacity, pace) > 0
    )
    found = failing.consequence(read, running=_admitted(job), now=now, most_memory=most_memory, is_final=is_final)
    if found.stop:
        return [stop(read, found.stop, now=now)]
    out = [*_lost(job, capacity), *_unwanted(job, capacity)]
    if found:
        note = Note("OutOfMemory" if found.reason == "OutOfMemory" else "NodeLeftOut", found.why, is_warning=True)
        decision = decision_of("restart", found.why, now)
        return [
            *out,
            place_again(
                job, found.moved, now=now, memory=found.memory, excluded=found.excluded, decision=decision, note=note
            ),
        ]
    # Argo may have made a pod before it read the new memory. A round is made with it.
    pods = () if read.terms.is_preemptible else job.current_pods
    small = [pod for pod in pods if pod.is_gated and 0 < pod.memory < read.live.memory.get(pod.task, 0)]
    why = f"{REJECTED}: it is made again with more memory"
    return [*out, *(patches.fail(pod, job.key, why) for pod in small)] if small else None


def _admitted(job: Job) -> dict[str, tuple[int, ...]]:
    """By member, the place in the order of attempts of the pods that were admitted."""
    return {pod.member: pod.place.order for pod in job.current_pods if pod.place is not None and not pod.is_gated}


def explain_left(job: Job, capacity: FreeCapacity, pace: Pace) -> float:
    """Seconds until the others of a round restart because of a failure that counts; 0 or less if they do so now."""
    read = job.read
    if not read.spec.has_rules or not read.terms.is_preemptible:
        return 0.0
    failed = read.first_failure_seconds
    return pace.explain_seconds - capacity.age(failed) if failed else 0.0


def _give_up(read: JobRecord, now: float) -> Write:
    why = f"its replicas failed {read.restarts} times altogether; backoffLimit is {read.spec.backoff_limit}"
    if read.restarts <= read.spec.backoff_limit:
        # Of a job that restarts as a whole: this is the failure after the last one.
        why = after_the_last_restart(failing.verdict(read), read)
    return stop(read, why, now=now)


def _too_late(job: Job, capacity: FreeCapacity, now: float, planned_ago: float) -> list[Write]:
    """Stop a job that did not get its places within its startDeadlineSeconds, nor by a plan that was made after them:
    the allocator may have been away or paused until then."""
    if start_left(job, capacity) > -planned_ago:
        return []
    why = f"it has not started within {job.read.spec.start_deadline_seconds} s, its startDeadlineSeconds"
    return [stop(job.read, why, now=now)]


def _lost(job: Job, capacity: FreeCapacity) -> list[Write]:
    """Write off the pods on lost nodes: Argo would wait for their end indefinitely."""
    gone = [pod for pod in job.pods if capacity.has_lost(pod)]
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
        patches.stop(pod, job.key, f"{REJECTED}: {_released(job, pod)}", timestamp(capacity.now_seconds))
        for pod in job.leaving()
        if not pod.is_ending and not capacity.has_lost(pod)
    ]


def _released(job: Job, pod: PodRecord) -> str:
    """Why a pod was released."""
    read = job.read
    if pod.identity.uid in job.forgotten:
        return "Argo has forgotten it, and goes on with an earlier attempt"
    if pod.round == read.live.current:
        return "released, as fewer replicas are wanted"
    return f"released for round {read.live.current}"


def _round_is_over(read: JobRecord) -> bool:
    return read.argo.tree.round_phase.get(read.live.current, "") in ("Succeeded", "Failed", "Error")


def _restart_together(job: Job, now: float) -> list[Write]:
    """After a replica has failed, end the others, so that Argo's retry of the round starts all of them together.

    The mark in the parameter `released` comes first, as Argo retries a stopped pod that is not released. Argo may still
    see the pod's end before the parameter; a pod that it has created then is gated, and is ended here as well.
    """
    read = job.read
    failed = read.argo.tree.failed(read.live.current)
    name = failed[0].split("/", 1)[1].replace("/", "-")
    restart = read.argo.tree.restart_of.get(read.live.current, 0)
    rest = [pod for pod in job.current_pods if pod.restart == restart and not pod.is_ending]
    mark = f"{read.live.current}/{restart}"
    if rest and mark not in read.live.released:
        return [patches.change_job(read, parameters=live(released=[mark]))]
    why = f"{name} has failed: the round starts again together"
    out = _ended(job, rest, why, now)
    if out:
        message = f"{name} failed; the round starts again together (backoffLimit {read.spec.backoff_limit})"
        out[0] = replace(out[0], note=Note("Restarted", message))
    return out


def _restarts_elsewhere(job: Job, capacity: FreeCapacity, now: float) -> Write | None:
    """A restarted round adds nodes to its Workflow as a new one does: if that is full, use the next Workflow."""
    read, at = job.read, job.read.placed
    if not job.is_full or not job.latest_restart or job.has_started() or not next_names(job):
        return None
    if at is None or _is_on_lost_node(at, capacity):
        return None
    return next_round(job, read.running, at.nodes, now=now)


def _is_on_lost_node(at: Allocation, capacity: FreeCapacity) -> bool:
    return any(capacity.is_lost(node) for nodes in at.nodes.values() for node in nodes)


def _waits_on_lost_node(job: Job, at: Allocation, capacity: FreeCapacity) -> bool:
    """Whether the node of an unfinished replica is lost."""
    finished = job.read.argo.tree.finished
    return any(capacity.is_lost(at.node(task, index)) for task, index, member in job.members() if not finished(member))


def _taken_away(job: Job, capacity: FreeCapacity, now: float, pace: Pace) -> Write | None:
    """A new round on the same nodes after a replica's pod was evicted or deleted, as its peers would wait for it."""
    read = job.read
    prefix = f"{read.live.current}/"
    gone = sorted(m for m in read.argo.tree.recreated if m.startswith(prefix))
    at = read.placed
    if not gone or at is None:
        return None
    if _waits_on_lost_node(job, at, capacity):
        return None  # planning places it elsewhere
    if capacity.age(at.since) < pace.between_rounds_seconds:
        return None
    name = gone[0].split("/", 1)[1].replace("/", "-")
    loss = Loss(job, capacity, now=now, longest_pause=pace.longest_pause_seconds)
    if loss.pause:
        why = f"{name} was taken away, not counted; {loss.text}"
        note, decision = Note("Waiting", why, is_warning=True), decision_of("wait", why, now)
        return next_round(job, read.needs.least, {}, now=now, decision=decision, note=note, change=loss.noted)
    return next_round(
        job,
        read.running,
        {} if _is_on_lost_node(at, capacity) else at.nodes,
        now=now,
        note=Note("Rescheduled", f"{name} was taken away: all replicas start again together, not counted"),
        change=loss.noted,
    )


def _without_place(job: Job, now: float) -> list[Write]:
    """End the pods of a gang whose place was taken back, as some of its pods were not created. They have gates then."""
    at = job.read.current_allocation
    if at is None or at.is_placed:
        return []
    why = f"{REJECTED}: its gang is not complete: it waits for another place"
    return _ended(job, (pod for pod in job.current_pods if pod.where or not pod.gates), why, now)


def _left(job: Job, capacity: FreeCapacity, now: float) -> list[Write]:
    """End the pods on nodes that announce their end, once they have another place: each gets its grace period to save
    a checkpoint, which is not counted."""
    at = job.read.current_allocation
    if at is None:
        return []
    moved = [
        pod
        for pod in job.current_pods
        if pod.host and at.node(*pod.replica) not in ("", pod.host) and not capacity.has_lost(pod)
    ]
    moved = [pod for pod in moved if pod.host in capacity.nodes and capacity.nodes[pod.host].ends]
    return _ended(job, moved, f"{REJECTED}: its node announces its end: it starts again on another one", now)


def _stopped_for_health(job: Job, capacity: FreeCapacity, now: float) -> list[Write]:
    """End the pods of silent and stalled replicas, as `health.py` has decided. Argo makes them again, which is not
    counted; they get their places back."""
    health, found = job.read.spec.health, job.read.notes.health
    if health is None or health.action != "restart" or found is None or found.round != job.read.live.current:
        return []
    stop = found.stop
    # Of a text that a user has edited, a time in the future would end each new pod, for ever.
    if stop is None or stop.until > now + _SKEW_SECONDS:
        return []
    why = f"{REJECTED}: it was silent or stalled, and starts again"
    hanging = (pod for pod in job.current_pods if stop.has(pod.task, pod.index, pod.created) and not pod.is_gated)
    return _ended(job, (pod for pod in hanging if not capacity.has_lost(pod)), why, now)


def _checked(job: Job, now: float) -> list[Write]:
    """Place the gang again without the nodes that its check finds faulty; of a job that is not preemptible, the
    replicas there. None of this counts against backoffLimit."""
    why = "its node is left out after the node check"
    ended = _ended(job, node_checks.misplaced(job), why, now)
    found = node_checks.left_out(job, now)
    if ended or found is None:
        return ended
    note = Note("NodeLeftOut", f"the node check leaves out {found.text}: placed again, not counted", is_warning=True)
    gone = {pod.replica for pod in found.pods}
    decision = decision_of("check", f"its node check left out {found.text}", now)
    return [place_again(job, gone, now=now, excluded=found.excluded, decision=decision, note=note)]


def _regrant(job: Job, now: float) -> Write | None:
    """Shrink a non-preemptible job to what is asked for: release the highest ranks, and drop them when they end."""
    read = job.read
    granted = dict(read.live.counts)
    released = set(read.live.released)
    dropped: list[str] = []
    there = {pod.member for pod in job.pods}
    for role in read.needs.roles:
        count = granted.get(role.name, 0)
        while count > 1 and read.live.key(role.name, count - 1) in released:
            member = read.live.key(role.name, count - 1)
            if not read.argo.tree.is_done(member) or member in there:
                break
            count -= 1
            released.discard(member)
            dropped.append(member)
        granted[role.name] = count
    leave: list[str] = []
    for role in read.needs.roles:
        running = read.live.running(role.name)
        leave += [read.live.key(role.name, index) for index in range(max(1, role.desired), running)]
    if not dropped and not leave:
        return None
    # A member stays in `released` until it is not granted: Argo reads both parameters each time.
    parameters = live(granted={**read.live.granted, read.live.current: granted}, released=sorted(released | set(leave)))
    note = decision = None
    at = read.notes.allocation
    if leave:
        before = sum(read.running.values())
        note = Note(
            "Resized", f"{before} → {counted(before - len(leave), 'replica')}: {', '.join(_names(leave))} released"
        )
        if at is not None:
            wanted = {role.name: role.desired for role in read.needs.roles}
            nodes = {task: where[: max(1, wanted.get(task, 1))] for task, where in at.nodes.items()}
            at = replace(at, nodes=nodes, since=now)
        decision = decision_of("resize", f"gave up {counted(len(leave), 'replica')}: its user asked for fewer", now)
    return patches.change_job(
        read, parameters=parameters, allocation=at if leave else None, decision=decision, note=note
    )


def _names(members: Sequence[str]) -> list[str]:
    return [member.split("/", 1)[1].replace("/", "-") for member in members]
