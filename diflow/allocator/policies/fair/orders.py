"""Orders of jobs, queues and nodes, as small functions that settings select and combine.

A job order returns a number for each job (J), lower first; the first function that distinguishes two jobs decides, as
in kube-batch's tiers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from diflow.allocator.model.arrays import FloatArray, IntArray
from diflow.allocator.model.ledger import Ledger
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.policies.fair.shares import dominant_share


def by_priority(snapshot: Snapshot, ledger: Ledger) -> FloatArray:
    """Higher priority first."""
    del ledger
    priority = snapshot.job_priority
    return snapshot.memo.get("by priority", (priority,), lambda: -priority.astype(np.float64))


def by_gang(snapshot: Snapshot, ledger: Ledger) -> FloatArray:
    """Gangs that are not ready before those that are."""
    return (~snapshot.jobs_of(ledger.replicas < snapshot.role_min)).astype(np.float64)


def by_drf(snapshot: Snapshot, ledger: Ledger) -> FloatArray:
    """Lower dominant share first."""
    return dominant_share(snapshot.demand_by_job(ledger.replicas), ledger.facts.whole)


def by_creation(snapshot: Snapshot, ledger: Ledger) -> FloatArray:
    """Older first."""
    del ledger
    return snapshot.job_created_seconds


JOB_ORDERS: dict[str, Callable[[Snapshot, Ledger], FloatArray]] = {
    "priority": by_priority,
    "gang": by_gang,
    "drf": by_drf,
    "created": by_creation,
}


def ordered_jobs(snapshot: Snapshot, ledger: Ledger, names: Sequence[str]) -> IntArray:
    """All jobs in the order of these functions; ties by name."""
    keys: list[FloatArray | IntArray] = [np.arange(snapshot.jobs)]
    keys += [JOB_ORDERS[name](snapshot, ledger) for name in reversed(names)]
    return np.lexsort(keys)


def most_requested(free: IntArray, allocatable: IntArray) -> FloatArray:
    """Fuller nodes higher (0..1)."""
    return 1.0 - least_requested(free, allocatable)


def least_requested(free: IntArray, allocatable: IntArray) -> FloatArray:
    """Emptier nodes higher (0..1)."""
    out: FloatArray = np.clip(free / np.maximum(allocatable, 1), 0.0, 1.0).mean(axis=1)
    return out


def balanced(free: IntArray, allocatable: IntArray) -> FloatArray:
    """Nodes whose resources are used evenly higher (0..1)."""
    out: FloatArray = 1.0 - np.clip(free / np.maximum(allocatable, 1), 0.0, 1.0).std(axis=1)
    return out


NODE_ORDERS: dict[str, Callable[[IntArray, IntArray], FloatArray]] = {
    "most_requested": most_requested,
    "least_requested": least_requested,
    "balanced": balanced,
}


def node_scores(
    snapshot: Snapshot, weights: Sequence[tuple[str, float]]
) -> Callable[[IntArray, FloatArray | None], FloatArray | None] | None:
    """The weighted sum of node scores (N), as a function of the free capacity (N×R) and the role's preference (N,
    0..1), which is the score `affinity`; None for packing alone, which needs no scores."""
    affinity = sum(weight for name, weight in weights if name == "affinity")
    used = [(name, weight) for name, weight in weights if name != "affinity" and weight != 0]
    is_packing = all(name == "most_requested" and weight > 0 for name, weight in used)
    if is_packing and not affinity:
        return None

    def score(free: IntArray, preference: FloatArray | None) -> FloatArray | None:
        if is_packing and preference is None:
            return None
        out = np.zeros(snapshot.nodes) if preference is None else affinity * preference
        for name, weight in used:
            out += weight * NODE_ORDERS[name](free, snapshot.node_allocatable)
        return out

    return score
