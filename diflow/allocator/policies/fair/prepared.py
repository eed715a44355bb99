"""The snapshot as the fair policies read it: a queue for each parent's own jobs, priorities that age, and guarantees
that jobs which are not preemptible keep free.

All change the input, so the policies handle neither parents with jobs of their own nor ageing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from diflow.allocator.model.arrays import FloatArray, IntArray, frozen
from diflow.allocator.model.reasons import NamespaceShare, OwnShare, QueueShare
from diflow.allocator.model.snapshot import UNLIMITED, Snapshot, kept_guarantees

OWN = "/own"
"""Suffix of the queue for a parent's own jobs. Names of queues cannot contain a slash."""
IN = "/in/"
"""Between the name of a queue and that of a namespace: the queue for the jobs of that namespace."""
MOST_NAMESPACES = 64
"""Such queues at most: with more, no queue is divided, as a plan's time grows with the number of queues."""


def prepared(snapshot: Snapshot, *, ageing_seconds: float = 0.0, by_namespace: bool = False) -> Snapshot:
    """The snapshot with a queue of weight 1 for the own jobs of each parent, and with aged priorities. `by_namespace`:
    with a queue of weight 1 for the jobs of each namespace of a queue too.

    The added queues come last, so the queues of `snapshot` keep their indices. The same object if nothing changes.
    """
    out = _with_own_queues(snapshot)
    if by_namespace:
        out = _with_namespaces(out)
    if ageing_seconds > 0:
        out = replace(out, job_priority=frozen(aged_priority(snapshot, ageing_seconds)))
    if out.queue_guarantee.any() and kept_guarantees(out) is not None:
        out = replace(
            out, keeps_guarantees=True, memo=out.memo.get("with guarantees", (out.job_preemptible,), out.apart)
        )
    return out


def share_of(snapshot: Snapshot, queue: int, resource: int, *, holds: int, deserves: float, needs: int) -> QueueShare:
    """The reason of a gang that needs so much of a resource, of which a queue of a prepared snapshot holds enough."""
    name, what = snapshot.queue_names[queue], snapshot.resources[resource]
    if IN in name:
        return NamespaceShare(name.partition("/")[0], what, holds, deserves, needs)
    kind = OwnShare if name.endswith(OWN) else QueueShare
    return kind(name.removesuffix(OWN), what, holds, deserves, needs)


def aged_priority(snapshot: Snapshot, ageing_seconds: float) -> IntArray:
    """J: each job's priority plus one for each `ageing_seconds` that it waited, up to the highest priority of any job.

    A running job waited until its first start; a stopped job also since its stop. So a job keeps the priority with
    which it started, and a job of the same age cannot preempt it immediately.
    """
    s = snapshot
    holds = s.jobs_of(s.held_role)
    started = s.job_started_seconds >= 0
    waited: FloatArray = np.where(started, s.job_started_seconds, s.now_seconds) - s.job_created_seconds
    again = started & ~holds & (s.job_changed_seconds >= 0)
    waited = waited + np.where(again, s.now_seconds - s.job_changed_seconds, 0.0)
    raised = s.job_priority + np.floor(np.clip(waited / ageing_seconds, 0, 2**31)).astype(np.int64)
    highest = s.job_priority.max(initial=0)
    out: IntArray = np.maximum(np.minimum(raised, highest), s.job_priority)
    return out


def _with_own_queues(snapshot: Snapshot) -> Snapshot:
    s = snapshot
    own = np.zeros(s.queues, dtype=np.bool_)
    own[s.job_queue[s.job_queue >= 0]] = True
    parents = np.zeros(s.queues, dtype=np.bool_)
    parents[s.queue_parent[s.queue_parent >= 0]] = True
    mixed = np.flatnonzero(own & parents)
    if len(mixed) == 0:
        return s
    sources = (s.queue_names, s.queue_parent, s.queue_weight, s.queue_guarantee, s.queue_cap, s.job_queue)
    changed = s.memo.get("own queues", sources, lambda: _changed_fields(s, mixed))
    return replace(s, **changed)


def _with_namespaces(snapshot: Snapshot) -> Snapshot:
    """The snapshot with a queue below each queue for each namespace of its jobs, if there are several and not too many
    of them."""
    s = snapshot
    spaces = [name.rpartition("/")[0] for name in s.job_names]
    of_queue: dict[int, list[str]] = {}
    for queue, space in zip(s.job_queue.tolist(), spaces, strict=True):
        known = of_queue.setdefault(queue, [])
        if space not in known:
            known.append(space)
    parts = [
        (q, space) for q, found in sorted(of_queue.items()) if q >= 0 and len(found) > 1 for space in sorted(found)
    ]
    if not 0 < len(parts) <= MOST_NAMESPACES:
        return s
    place = {part: s.queues + i for i, part in enumerate(parts)}
    queue = [place.get((q, space), q) for q, space in zip(s.job_queue.tolist(), spaces, strict=True)]
    names = [f"{s.queue_names[q]}{IN}{space}" for q, space in parts]
    fields = _added_queues(s, [q for q, _ in parts], names)
    sources = (s.job_names, s.job_queue, s.queue_names, s.queue_parent, s.queue_weight, s.queue_guarantee, s.queue_cap)
    known_fields = s.memo.get("namespaces", sources, lambda: {**fields, "job_queue": frozen(np.array(queue))})
    return replace(s, **known_fields)


def _changed_fields(snapshot: Snapshot, mixed: IntArray) -> dict[str, Any]:
    place = np.arange(-1, snapshot.queues)
    place[mixed + 1] = snapshot.queues + np.arange(len(mixed))
    names = [snapshot.queue_names[q] + OWN for q in mixed.tolist()]
    return {**_added_queues(snapshot, mixed.tolist(), names), "job_queue": frozen(place[snapshot.job_queue + 1])}


def _added_queues(snapshot: Snapshot, parents: list[int], names: list[str]) -> dict[str, Any]:
    """The fields of queues with one more of weight 1 below each of these parents."""
    s, resources, count = snapshot, len(snapshot.resources), len(parents)
    above = np.array(parents, dtype=np.int64)
    return {
        "queue_names": (*s.queue_names, *names),
        "queue_parent": frozen(np.concatenate([s.queue_parent, above])),
        "queue_weight": frozen(np.concatenate([s.queue_weight, np.ones(count)])),
        "queue_guarantee": frozen(np.vstack([s.queue_guarantee, np.zeros((count, resources), dtype=np.int64)])),
        "queue_lends": frozen(np.append(s.queue_lends, np.zeros(count, dtype=np.bool_)))
        if len(s.queue_lends)
        else (s.queue_lends),
        "queue_cap": frozen(np.vstack([s.queue_cap, np.full((count, resources), UNLIMITED, dtype=np.int64)])),
        # Values derived from these queues must not replace those derived from the snapshot's own.
        "memo": s.apart(),
    }
