"""What a verdict on the health of a job is made from: its replicas by rank, and the signs that the server wrote."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from diflow.allocator.health.judging import Floats
from diflow.allocator.health.verdict import Signs
from diflow.allocator.watch.job import Job
from diflow.common.memo import MIB, remembered
from diflow.record import signals
from diflow.record.pod import PodRecord
from diflow.record.signals import NEVER, Signals


@dataclass(frozen=True, slots=True)
class Replica:
    """A replica that should run, with its present pod."""

    task: str
    index: int
    pod: PodRecord | None
    is_done: bool = False

    def __str__(self) -> str:
        where = f" on {self.pod.host}" if self.pod is not None and self.pod.host else ""
        return f"{self.task}-{self.index}{where}"


def replicas_of(job: Job) -> list[Replica]:
    """The replicas of the current round by rank."""
    pods = {pod.replica: pod for pod in job.latest_pods}
    done = job.read.argo.tree.is_done
    return [Replica(task, index, pods.get((task, index)), done(member)) for task, index, member in job.members()]


def began(replicas: Sequence[Replica]) -> Floats:
    """When each present pod began; `nan` for one that does not run, or is being ended."""
    return np.array(
        [
            replica.pod.began
            if replica.pod is not None and replica.pod.began > 0 and not replica.pod.is_ending
            else math.nan
            for replica in replicas
        ]
    )


def done(replicas: Sequence[Replica]) -> NDArray[np.bool_]:
    """Which replicas have ended."""
    return np.array([replica.is_done for replica in replicas], dtype=bool)


@remembered(most_bytes=8 * MIB)
def signals_of(profilings: str) -> Signals | None:
    """The signals beside the reports of a job; None if there are none."""
    return signals.of(profilings)


def signs(given: Signals, ranks: int) -> Signs:
    """The signs of these ranks as arrays."""

    def floats(values: Sequence[float], missing: float) -> Floats:
        out = np.full(ranks, np.nan)
        known = np.asarray(values[:ranks], dtype=np.float64)
        out[: len(known)] = np.where(known == missing, np.nan, known)
        return out

    moved = floats(given.moved, NEVER)
    return Signs(
        at=float(given.at),
        since=float(given.since),
        heard=floats(given.heard, NEVER),
        moved=moved,
        steps=np.where(np.isfinite(moved), floats(given.steps, NEVER), np.nan),
        work=floats(given.work, 0.0),
    )
