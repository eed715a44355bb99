"""What users read about the health of a job: the text of the annotation and of its Events."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Sized
from typing import Final

from diflow.allocator.health.verdict import Verdict
from diflow.allocator.reconcile.health_inputs import Replica
from diflow.common.durations import span
from diflow.common.words import counted, named
from diflow.dijob.stored import Health

_MOST_NAMED: Final = 4


def unheard_text(seconds: float) -> str:
    """Why a job is not judged about which no server has written anything for so long."""
    return f"not judged: for {span(seconds)} no server has written what it reports: check diflow-server"


def verdict_text(
    health: Health, verdict: Verdict, replicas: Sequence[Replica], *, restarts: int, slow_nodes: Mapping[str, Sized]
) -> str:
    """What was found, "" if all is well. `restarts`: how often the job was restarted because of its health;
    `slow_nodes`: the jobs that are slow on each node where several are."""
    parts = []
    if verdict.silent:
        parts.append(f"no sign of life for {span(health.heartbeat_seconds)}: {_named(verdict.silent, replicas)}")
    if verdict.stalled:
        seconds = health.first_progress_seconds if verdict.is_before_first else health.progress_seconds
        parts.append(f"no step for {span(seconds)}: {_named(verdict.stalled, replicas)}")
    if verdict.behind:
        parts.append(f"the others wait for {_named(verdict.behind, replicas)}")
    if verdict.slow:
        parts.append(_slow_text(verdict.slow, replicas, slow_nodes))
    if verdict.hanging and health.action == "restart" and restarts >= health.max_restarts:
        parts.append(f"not restarted again, after {counted(restarts, 'restart')} (maxRestarts)")
    return "; ".join(parts)


def _slow_text(slow: Mapping[int, float], replicas: Sequence[Replica], slow_nodes: Mapping[str, Sized]) -> str:
    slowest = sorted(slow, key=lambda rank: (-slow[rank], rank))
    out = []
    for rank in slowest[:_MOST_NAMED]:
        replica, factor = replicas[rank], slow[rank]
        times = f"{factor:.1f} times slower than" if math.isfinite(factor) else "making no step, unlike"
        jobs = len(slow_nodes.get(replica.pod.host if replica.pod is not None else "", ()))
        out.append(
            f"{replica} is {times} the median of the others" + (f" ({jobs} jobs are slow there)" if jobs else "")
        )
    more = len(slowest) - len(out)
    return ", ".join(out) + (f", and {more} more" if more > 0 else "")


def _named(ranks: frozenset[int], replicas: Sequence[Replica]) -> str:
    if len(ranks) == len(replicas) > 1:
        return f"all {len(replicas)} replicas"
    return named([str(replicas[rank]) for rank in sorted(ranks)], _MOST_NAMED)
