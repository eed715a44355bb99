"""Replicas of which no program was started, as a container runtime, a driver or a device of their node fails: elsewhere
next time.

Such a failure counts as it would without the allocator. Its node is left out for this job, for minutes and not for an
hour: the node may not be why, and the job may have no other one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from diflow.allocator.reconcile import failing
from diflow.allocator.watch.free_capacity import FreeCapacity
from diflow.allocator.watch.job import Job
from diflow.allocator.write.patches import Note, Write
from diflow.allocator.write.rounds import decision_of, place_again, replacing_round
from diflow.common.words import named
from diflow.record.argo.tree import Ending
from diflow.record.job import JobRecord

_SECONDS: Final = 300.0
_MOST_NAMED: Final = 3
_OTHER_RULES: Final = ("Elsewhere", "MoreMemory", "FailJob")
"""What a failure policy says instead."""


def moved(job: Job, running: Mapping[str, tuple[int, ...]], capacity: FreeCapacity, now: float) -> list[Write]:
    """The write by which replicas that did not begin on a node lose their places there; none if none did. `running`: as
    in `failing.consequence`."""
    read = job.read
    if not read.argo.tree.never_began:
        return []
    found = [
        ending
        for ending in failing.unanswered(read, read.argo.tree.never_began, running)
        if ending.host
        and ending.verdict.action not in _OTHER_RULES
        and not failing.has_moved(read, ending, now)
        and _has_another(job, ending, capacity, now)
    ]
    excluded, left = read.notes.excluded, list[Ending]()
    for ending in found:
        if not excluded.is_full(now) or ending.host in excluded.at(now):
            why = f"{ending.replica} did not begin: {ending.message}"
            excluded = excluded.without(
                ending.host,
                reason=why,
                source=failing.SOURCE,
                now=now,
                attempts=[ending.attempt],
                first_seconds=_SECONDS,
            )
            left.append(ending)
    if not left:
        return []
    texts = [f"{failing.failed(ending)} before its program began on {ending.host}" for ending in left]
    why = f"{named(texts, _MOST_NAMED)}: elsewhere next time"
    note, decision = Note("NodeLeftOut", why, is_warning=True), decision_of("restart", why, now)
    if not read.terms.is_preemptible:
        gone = {(ending.task, ending.index) for ending in left}
        return [place_again(job, gone, now=now, excluded=excluded, decision=decision, note=note)]
    if not any(_is_judged(read, ending) for ending in left):
        return []
    return [replacing_round(job, read.needs.least, {}, now=now, excluded=excluded, decision=decision, note=note)]


def _is_judged(read: JobRecord, ending: Ending) -> bool:
    """Whether Argo has said if a failure of a preemptible job counts."""
    tree, current = read.argo.tree, read.live.current
    return bool(
        tree.failed(current) or ending.member in tree.recreated or tree.restart_of.get(current, 0) > ending.order[0]
    )


def _has_another(job: Job, ending: Ending, capacity: FreeCapacity, now: float) -> bool:
    """Whether another node takes the replica, as far as its labels and taints say."""
    role = next((role for role in job.read.needs.roles if role.name == ending.task), None)
    out = {ending.host, *job.read.notes.excluded.at(now)}
    return role is not None and any(
        node.is_open and name not in out and role.where.admits(node.labels, node.taints)
        for name, node in capacity.nodes.items()
    )
