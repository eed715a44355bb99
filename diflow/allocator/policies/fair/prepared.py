"""The snapshot as the fair policies read it: a queue for each parent's own jobs, and priorities that age.

Both change the input, so the policies handle neither parents with jobs of their own nor ageing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from diflow.allocator.model.arrays import FloatArray, IntArray, frozen
from diflow.allocator.model.reasons import OwnShare, QueueShare
from diflow.allocator.model.snapshot import UNLIMITED, Memo, Snapshot

OWN = "/own"
"""Suffix of the queue for a parent's own jobs. Names of queues cannot contain a slash."""


def prepared(snapshot: Snapshot, *, ageing_seconds: float = 0.0) -> Snapshot:
    """The snapshot with a queue of weight 1 for the own jobs of each parent, and with aged priorities.

    The added queues come last, so the queues of `snapshot` keep their indices. The same object if nothing changes.
    """
    out = _with_own_queues(snapshot)
    if ageing_seconds > 0:
        out = replace(out, job_priority=frozen(aged_priority(snapshot, ageing_seconds)))
    return out


def share_of(snapshot: Snapshot, queue: int, resource: int, *, holds: int, deserves: float, needs: int) -> QueueShare:
    """The reason of a gang that needs so much of a resource, of which a queue of a prepared snapshot holds enough."""
    name, what = snapshot.queue_names[queue], snapshot.resources[resource]
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


def _changed_fields(snapshot: Snapshot, mixed: IntArray) -> dict[str, Any]:
    s, resources = snapshot, len(snapshot.resources)
    place = np.arange(-1, s.queues)
    place[mixed + 1] = s.queues + np.arange(len(mixed))
    return {
        "queue_names": (*s.queue_names, *(s.queue_names[q] + OWN for q in mixed.tolist())),
        "queue_parent": frozen(np.concatenate([s.queue_parent, mixed])),
        "queue_weight": frozen(np.concatenate([s.queue_weight, np.ones(len(mixed))])),
        "queue_guarantee": frozen(np.vstack([s.queue_guarantee, np.zeros((len(mixed), resources), dtype=np.int64)])),
        "queue_cap": frozen(np.vstack([s.queue_cap, np.full((len(mixed), resources), UNLIMITED, dtype=np.int64)])),
        "job_queue": frozen(place[s.job_queue + 1]),
        # Values derived from these queues must not replace those derived from the snapshot's own.
        "memo": Memo(),
    }
