"""Gangs of which kube-scheduler does not bind all pods in time: all of it goes back to waiting, in its own words.

kube-scheduler knows more than the allocator: rules that came with a newer Kubernetes, plugins of its own, devices that
are claimed. A gang that it has refused once is let go without nodes the next time, so that it chooses them itself.
If it refuses that, too, the job pauses, twice as long each time: nobody else waits for it. A preemptible job of which
enough pods are bound goes on with these, and does not grow in the pause. The count and the end of the pause are in the
allocation. Nothing of this uses backoffLimit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from diflow.allocator.reconcile.pending import smaller
from diflow.allocator.watch.free_capacity import FreeCapacity
from diflow.allocator.watch.job import Job
from diflow.allocator.write import patches
from diflow.allocator.write.patches import Note, Write
from diflow.allocator.write.rounds import REJECTED, decision_of, next_round, place_again
from diflow.common.durations import backoff, span
from diflow.common.words import counted, named
from diflow.record.allocation import Allocation
from diflow.record.pod import PodRecord

_MOST_NAMED: Final = 3
_TOGETHER_SECONDS: Final = 30.0
"""Pods that were made so much later than others began are no part of the gang's start: Argo makes those of a gang in a
few seconds."""
_FIRST_PAUSE_SECONDS: Final = 60.0
_WHY: Final = f"{REJECTED}: kube-scheduler did not bind all of its gang"


def take_back(job: Job, late: Sequence[PodRecord], now: float, *, seconds: float, longest_pause: float) -> list[Write]:
    """Take back the places of a gang of which these pods were not bound within `seconds`; of one that runs, those of
    the late ones alone. `longest_pause`: in seconds, between two tries."""
    read, at = job.read, job.read.current_allocation
    if at is None:
        return []
    is_apart = not read.terms.is_preemptible and _has_begun_before(job, late)
    refusals = at.refusals + 1
    # The first try on nodes that kube-scheduler chooses follows at once.
    chooses = not (at.unpinned or at.refusals or read.spec.required or read.notes.excluded)
    pause = 0.0 if chooses else backoff((_FIRST_PAUSE_SECONDS, longest_pause), max(0, refusals - 2))
    were = "was" if len(late) == 1 else "were"
    why = f"{_names(late)} of its gang {were} not bound within {span(seconds)}: {_said(late)}"
    later = "; it is tried again " + (f"in {span(pause)}" if pause else "on nodes that kube-scheduler chooses")
    note = Note("Refused", why + later, is_warning=True)
    decision = decision_of("wait", why + later, now)

    def paused(found: Allocation) -> Allocation:
        return replace(found, refusals=refusals, paused_until=now + pause if pause else 0.0)

    if read.terms.is_preemptible:
        bound = {pod.replica: pod.host for pod in job.latest_pods if pod.host}
        fewer = smaller(job, bound) if pause else None
        if fewer is not None:
            counts = {task: len(nodes) for task, nodes in fewer.items()}
            said = f"{why}; it goes on with {counted(sum(counts.values()), 'replica')}"
            note, decision = Note("Refused", said, is_warning=True), decision_of("resize", said, now)
            return [next_round(job, counts, fewer, now=now, decision=decision, note=note, change=paused)]
        return [next_round(job, read.needs.least, {}, now=now, decision=decision, note=note, change=paused)]
    if is_apart:
        gone = {pod.replica for pod in late}
        return [
            place_again(job, gone, now=now, note=note, change=paused),
            *(patches.fail(pod, job.key, _WHY) for pod in late),
        ]
    nowhere = paused(patches.placed(read, {}, now=now))
    return [patches.change_job(read, allocation=nowhere, decision=decision, note=note)]


def bound_elsewhere(job: Job, capacity: FreeCapacity) -> list[Write]:
    """Record where kube-scheduler has bound the pods of which it chooses the nodes."""
    read, at = job.read, job.read.placed
    if at is None or not (at.unpinned or at.refusals):
        return []
    hosts = {pod.replica: pod.host for pod in job.current_pods if capacity.is_open(pod.host)}
    nodes = {
        task: tuple(hosts.get((task, index), node) for index, node in enumerate(names))
        for task, names in at.nodes.items()
    }
    is_whole = all(pod.host for pod in job.current_pods) and not job.lacks() and bool(hosts)
    # With fewer replicas than it was refused with, the next try to grow counts from where it was.
    is_over = is_whole and at.refusals > 0 and not at.paused_until
    if nodes == dict(at.nodes) and not is_over:
        return []
    found = replace(at, nodes=nodes, refusals=0 if is_over else at.refusals)
    return [patches.change_job(read, allocation=found)]


def _has_begun_before(job: Job, late: Sequence[PodRecord]) -> bool:
    """Whether the gang has run before these pods were made: they replace others, or were added."""
    began = [pod.began for pod in job.current_pods if pod.began]
    return bool(began) and min(began) + _TOGETHER_SECONDS < min(pod.created for pod in late)


def _names(late: Sequence[PodRecord]) -> str:
    return f"{counted(len(late), 'pod')} ({named([pod.identity.name for pod in late], _MOST_NAMED)})"


def _said(late: Sequence[PodRecord]) -> str:
    """kube-scheduler's own words about the first of these pods about which it said something."""
    said = next((pod.refusal for pod in late if pod.refusal), "")
    if said:
        return f'kube-scheduler says "{said}"'
    gates = sorted({gate for pod in late for gate in pod.gates})
    if gates:
        return f"scheduling gates of others hold them: {named(gates, _MOST_NAMED)}"
    return "kube-scheduler says nothing of them; does the scheduler that they name run?"
