"""The figures of a replay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from diflow.labs.simulator.replay import Replay


@dataclass(frozen=True, slots=True)
class Metrics:
    """Times are in seconds, restarts per job; fairness is finish-time fairness (1: a fair share)."""

    policy: str
    jobs: int
    mean: float
    median: float
    p90: float
    p99: float
    makespan: float
    restarts: float
    gpu_hours: float
    worst_fairness: float
    unfair_share: float
    """Fraction of jobs with a finish-time fairness above 1."""
    very_unfair_share: float
    """Fraction of jobs above 2."""
    decision_ms: float
    """95th percentile of the wall time of a policy call, on the machine that ran it."""
    decision_cpu_ms: float
    """The same of its CPU time."""

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def metrics(result: Replay) -> Metrics:
    """The figures of one replay."""
    times = np.array([o.completion for o in result.outcomes]) if result.outcomes else np.zeros(1)
    fair = np.array([o.fairness for o in result.outcomes]) if result.outcomes else np.zeros(1)
    return Metrics(
        policy=result.policy,
        jobs=len(result.outcomes),
        mean=float(times.mean()),
        median=float(np.median(times)),
        p90=float(np.percentile(times, 90)),
        p99=float(np.percentile(times, 99)),
        makespan=max((o.finished for o in result.outcomes), default=0.0),
        restarts=float(np.mean([o.restarts for o in result.outcomes])) if result.outcomes else 0.0,
        gpu_hours=sum(o.gpu_seconds for o in result.outcomes) / 3600.0,
        worst_fairness=float(fair.max()),
        unfair_share=float((fair > 1).mean()),
        very_unfair_share=float((fair > 2).mean()),
        decision_ms=_p95_ms(result.decision_seconds),
        decision_cpu_ms=_p95_ms(result.decision_cpu_seconds),
    )


def _p95_ms(seconds: Sequence[float]) -> float:
    return 1000 * float(np.percentile(seconds, 95)) if seconds else 0.0
