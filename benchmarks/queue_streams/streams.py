"""Streams of jobs on a small cluster with queues, to measure how queues share a cluster over time.

This module does not know policies.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Literal

import numpy as np

from diflow.allocator.model.views import PODS, NodeView, QueueView

GPU = "nvidia.com/gpu"
REQUEST = {"cpu": 1000, "memory": 4096, PODS: 1, GPU: 1}
"""Request of a replica: millicores, MiB, one pod, one GPU."""
PLENTY = {"cpu": 128_000, "memory": 1_048_576, PODS: 110}
"""Resources of a node beside its GPUs: more than all jobs together could use. 110 pods are the kubelet's default."""

SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16)
SIZE_WEIGHTS = (40, 20, 5, 12, 2, 4, 1, 9, 1, 2, 1, 3)
"""Relative frequency of each gang size. Most are small, as in published traces of training clusters, where more than
half of the jobs ask for one or two GPUs while large jobs use most of the GPU time: here gangs of 8 and more are one in
six, and use half of it. Powers of two are more frequent; the others are there because they do not pack evenly."""


Offers = Literal["shares", "even"]
FULL = 1.5
"""The load at which, with `shares`, each queue's demand exceeds its weight's fraction of the cluster."""
_UP_TO = tuple(accumulate(SIZE_WEIGHTS))


@dataclass(frozen=True, slots=True)
class StreamJob:
    """A job that is created at `created_seconds` and takes `work_seconds` with `most` GPUs, inversely proportional
    longer with fewer. Its gang has `least` to `most` replicas of one GPU.
    """

    name: str
    queue: str
    created_seconds: float
    least: int
    most: int
    work_seconds: float
    preemptible: bool = True
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Stream:
    """A cluster, its queues (not nested), and its jobs. Only GPUs are scarce."""

    nodes: tuple[NodeView, ...]
    queues: tuple[QueueView, ...]
    jobs: tuple[StreamJob, ...]
    cycles: int = 300
    period_seconds: float = 60.0
    restart_seconds: float = 30.0
    """Downtime of a job that is started again, moved or resized."""


@dataclass(frozen=True, slots=True)
class Kind:
    """The parameters of random streams."""

    load: float = 1.0
    """GPU seconds of all jobs over those of the cluster. Exact for each stream, because with distributions as wide as
    these a hundred random jobs may add up to half or twice the intended load."""
    cycles: int = 300
    period_seconds: float = 60.0
    restart_seconds: float = 30.0
    least_nodes: int = 3
    most_nodes: int = 6
    node_gpus: int = 8
    weights: tuple[int, ...] = (1, 2, 5)
    offers: Offers = "shares"
    """How the load is divided among the queues: see `parts`."""
    mean_seconds: float = 1800.0
    """Mean duration of a job: thirty cycles, a tenth of a stream."""
    sigma: float = 1.0
    """Sigma of the lognormal durations: the median is 0.6 of the mean; one job in thirty takes four times the mean."""
    not_preemptible: float = 0.2
    """Fraction of the jobs that are not preemptible."""
    elastic: float = 0.0
    """Fraction of the preemptible jobs that can run with a quarter of their GPUs."""
    priorities: tuple[int, ...] = (0,)
    """Each job has one of these, drawn uniformly."""


def parts(weights: tuple[int, ...], offers: Offers) -> tuple[float, ...]:
    """Each queue's fraction of the load.

    `shares`: at load FULL a queue demands its weight's fraction of the cluster plus an even part of the excess, so each
    demands more than that fraction, and queues of low weight far more. `even`: all queues demand the same, so those of
    high weight have to reclaim their shares.
    """
    if offers == "even":
        return tuple(1 / len(weights) for _ in weights)
    total = sum(weights)
    return tuple((weight / total + (FULL - 1) / len(weights)) / FULL for weight in weights)


def random_stream(seed: int, kind: Kind | None = None) -> Stream:
    """The stream of this seed.

    In each queue jobs come as in a Poisson process of which it is known how many come. Streams of one seed that differ
    in load alone have the same cluster and begin with the same jobs in each queue, which come at other times.
    """
    kind = kind or Kind()
    rng = np.random.default_rng(seed)
    nodes = int(rng.integers(kind.least_nodes, kind.most_nodes + 1))
    capacity = nodes * kind.node_gpus
    until = kind.cycles * kind.period_seconds
    jobs: list[StreamJob] = []
    for q, (part, own) in enumerate(zip(parts(kind.weights, kind.offers), rng.spawn(len(kind.weights)), strict=True)):
        jobs += _jobs(own, kind, f"q{q}", offered=kind.load * part * capacity * until, until=until)
    jobs.sort(key=lambda job: (job.created_seconds, job.name))
    return Stream(
        nodes=tuple(gpu_node(f"node-{i}", kind.node_gpus) for i in range(nodes)),
        queues=tuple(QueueView(f"q{q}", weight=float(weight)) for q, weight in enumerate(kind.weights)),
        jobs=tuple(jobs),
        cycles=kind.cycles,
        period_seconds=kind.period_seconds,
        restart_seconds=kind.restart_seconds,
    )


def gpu_node(name: str, gpus: int) -> NodeView:
    """A node on which only GPUs are scarce."""
    return NodeView(name, {**PLENTY, GPU: gpus})


def _jobs(rng: np.random.Generator, kind: Kind, queue: str, *, offered: float, until: float) -> list[StreamJob]:
    """Jobs of one queue with `offered` GPU seconds in total; the last one is shortened to match."""
    jobs, times, now, left = list[StreamJob](), list[float](), 0.0, offered
    while left > 0:
        now += float(rng.exponential())
        job = _job(rng, kind, f"{queue}-{len(jobs):04d}", queue)
        job = replace(job, work_seconds=min(job.work_seconds, left / job.most))
        left = left - job.most * job.work_seconds if job.most * job.work_seconds < left else 0.0
        jobs.append(job)
        times.append(now)
    # The stream ends when the next job would come.
    end = now + float(rng.exponential())
    return [replace(job, created_seconds=until * time / end) for job, time in zip(jobs, times, strict=True)]


def _job(rng: np.random.Generator, kind: Kind, name: str, queue: str) -> StreamJob:
    """A random job. Draws equally many random numbers for all options."""
    seconds = math.exp(float(rng.normal(math.log(kind.mean_seconds) - kind.sigma**2 / 2, kind.sigma)))
    any_size, fixed, elastic, rank = rng.random(4).tolist()
    size = SIZES[bisect_right(_UP_TO, any_size * _UP_TO[-1])]
    preemptible = fixed >= kind.not_preemptible
    return StreamJob(
        name=name,
        queue=queue,
        created_seconds=0.0,
        least=max(1, size // 4) if preemptible and elastic < kind.elastic else size,
        most=size,
        work_seconds=seconds,
        preemptible=preemptible,
        priority=kind.priorities[int(rank * len(kind.priorities))],
    )
