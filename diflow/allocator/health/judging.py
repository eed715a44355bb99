"""Silence, hangs and slow ranks, from arrays with one entry for each rank of a job.

Times are in seconds of one clock, whichever it is; `nan` means that something was never seen. Nothing here reads a
clock, so a judgement can be repeated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from diflow.common.deadlines import Deadlines

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Job = tuple[str, str]
"""The namespace and the name of a job."""
Nodes = Mapping[Job, Sequence[str]]
"""Nodes of some ranks of each job."""

# As in DLRover's node check, a rank is slow from twice the median of the others.
SLOW: Final = 2.0
# With fewer samples a single pause is a large part of what is seen.
MIN_SAMPLES: Final = 8


def silent(began: Floats, heard: Floats, now: float, deadlines: Deadlines, *, since: float = -np.inf) -> Bools:
    """The ranks without a sign of life for longer than the deadline. Ranks that have not begun (`nan`) are not judged,
    nor those that were not heard since they began: these have the time of their first step (`stalled`). No server
    has listened before `since`."""
    return (heard >= began) & (now - np.maximum(heard, since) > deadlines.heartbeat)


def stalled(began: Floats, advanced: Floats, now: float, deadlines: Deadlines, *, since: float = -np.inf) -> Bools:
    """The ranks whose step has not risen for longer than the deadline. `advanced` is when it last rose; a rise from
    before `began` belongs to an earlier pod, and does not count."""
    moved = advanced >= began
    limit = np.where(moved, deadlines.progress, deadlines.first_progress)
    return np.isfinite(began) & (now - np.maximum(np.where(moved, advanced, began), since) > limit)


def culprits(stopped_ranks: Bools, silent_ranks: Bools, steps: Floats) -> Bools:
    """Of a job with stalled ranks, those that the others wait for.

    In a collective all ranks stall at about one step, so a stalled rank is not at fault by that alone: the silent ones
    are, or those behind the furthest one. Where that does not divide the ranks, all stalled ranks are named.
    """
    if not stopped_ranks.any():
        return stopped_ranks.copy()
    known = np.isfinite(steps)
    behind = stopped_ranks & (~known | (steps < np.max(steps[known]))) if known.any() else stopped_ranks
    for suspects in (stopped_ranks & silent_ranks, behind):
        if 0 < 2 * int(suspects.sum()) <= len(steps):
            return suspects
    return stopped_ranks.copy()


def rates(times: Floats, steps: Floats, *, least: int = MIN_SAMPLES) -> Floats:
    """Steps per second of each rank: the median of the slopes of all pairs of its samples (Theil-Sen).

    Both arrays have the shape (..., samples, ranks). `nan` where a rank has fewer than `least` valid samples.
    """
    enough = (np.isfinite(times) & np.isfinite(steps)).sum(axis=-2) >= least
    if not enough.any():
        return np.full(enough.shape, np.nan)
    first, second = np.triu_indices(times.shape[-2], 1)
    apart = times[..., second, :] - times[..., first, :]
    risen = steps[..., second, :] - steps[..., first, :]
    slopes = np.divide(risen, apart, out=np.full(apart.shape, np.nan), where=apart > 0)
    # A column without any slope would be a warning; it is not judged anyway.
    slopes = np.where(enough[..., None, :], slopes, 0.0)
    # nanmedian sorts in Python's loop where a value is missing, so it is the exception.
    middle: Any = np.nanmedian(slopes, axis=-2) if np.isnan(slopes).any() else np.median(slopes, axis=-2)
    return np.where(enough, middle, np.nan)


def slowness(rate: Floats) -> Floats:
    """How many times slower each rank is than the median of the others, itself left out; shape (..., ranks).

    Infinite for a rank that makes no step while the others do. `nan` for a rank without a rate, with fewer than two
    others, or whose others make no step either.
    """
    ranks = rate.shape[-1]
    known = np.isfinite(rate)
    ordered = np.sort(np.where(known, rate, np.inf), axis=-1)
    place = np.argsort(np.argsort(np.where(known, rate, np.inf), axis=-1, kind="stable"), axis=-1, kind="stable")
    others = known.sum(axis=-1, keepdims=True) - 1

    def without_itself(index: NDArray[np.int64]) -> Floats:
        moved = np.clip(index + (place <= index), 0, ranks - 1)
        return np.take_along_axis(ordered, moved, axis=-1)

    low, high = np.maximum(others - 1, 0) // 2, np.maximum(others, 0) // 2
    middle = (without_itself(low) + without_itself(high)) / 2
    judged = known & (others >= 2) & (middle > 0) & np.isfinite(middle)
    still = judged & (rate <= 0)
    ratio = np.divide(middle, rate, out=np.full(rate.shape, np.nan), where=judged & (rate > 0))
    return np.where(still, np.inf, ratio)


def slow(rate: Floats) -> Bools:
    """The ranks that are slow; shape (..., ranks)."""
    with np.errstate(invalid="ignore"):
        return slowness(rate) >= SLOW


def slow_nodes(slow_ranks: Nodes, compared: Nodes) -> dict[str, tuple[Job, ...]]:
    """The nodes on which more than one job has a slow rank, with these jobs. `slow_ranks` has the nodes of the slow
    ranks of each job, `compared` those of all ranks that were compared with others.

    Users report what makes a rank slow, so the jobs of one namespace do not suffice where those of others show that
    the node is not slow.
    """
    slow, known = _jobs_of(slow_ranks), _jobs_of(compared)
    out: dict[str, tuple[Job, ...]] = {}
    for node, jobs in sorted(slow.items()):
        is_only_theirs = len({namespace for namespace, _ in jobs | known.get(node, set())}) == 1
        if len(jobs) > 1 and (is_only_theirs or len({namespace for namespace, _ in jobs}) > 1):
            out[node] = tuple(sorted(jobs))
    return out


def _jobs_of(nodes: Nodes) -> dict[str, set[Job]]:
    out: dict[str, set[Job]] = {}
    for job, names in nodes.items():
        for node in names:
            out.setdefault(node, set()).add(job)
    return out
