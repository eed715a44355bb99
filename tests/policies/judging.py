"""Judges a policy on many snapshots, in several processes: the work behind test_laws.py."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import get_context

import numpy as np

from diflow.allocator.model.plan import Plan
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.policies.base import Policy, load_policy
from tests.policies import laws, queue_laws, reasons, topology_laws
from tests.policies.generators import snapshots
from tests.policies.lives import lives
from tests.policies.pool_clusters import pool_clusters
from tests.policies.queue_clusters import queue_clusters
from tests.policies.topology_clusters import topology_clusters

PROCESSES = min(4, os.cpu_count() or 1)
PARTS = 32
"""Of ten thousand snapshots or more; of fewer there are four parts. The same everywhere: what is judged must not depend
on the machine's processors."""
MOST_TOLD = 5
"""Snapshots told of a part: one fault mostly shows in many."""


@dataclass(frozen=True)
class Part:
    """`count` snapshots of one seed for one policy; each `dear_each`-th is judged by the dear laws too. Of "queues"
    each one is judged by law 6 and the laws of queues, of "topology" each one by the laws of topology. "pools" are
    clusters with several pools of nodes."""

    policy: str
    kind: str
    seed: int
    count: int
    dear_each: int


def parts(policy: str, count: int, *, dear_each: int, seed: int = 0) -> list[Part]:
    """A quarter of `count` random snapshots, the others moments of lives, in parts small enough to keep all busy."""
    number = PARTS if count >= 10_000 else 4
    each = -(-count // number)
    kinds = ("lives", "random", "lives", "lives")
    return [Part(policy, kinds[i % 4], seed + i, each, dear_each) for i in range(number)]


def queue_parts(policy: str, count: int, *, dear_each: int, seed: int = 0) -> list[Part]:
    """As many clusters that queues share, for `fair`; nothing for the others, which share nothing."""
    if policy != "fair":
        return []
    return [replace(part, kind="queues") for part in parts(policy, count, dear_each=dear_each, seed=seed)]


def topology_parts(policy: str, count: int, *, dear_each: int, seed: int = 0) -> list[Part]:
    """As many clusters with racks and blocks."""
    return [replace(part, kind="topology") for part in parts(policy, count, dear_each=dear_each, seed=seed)]


def pool_parts(policy: str, count: int, *, dear_each: int, seed: int = 0) -> list[Part]:
    """As many clusters with several pools of nodes, for the policies that read pools; nothing for the others."""
    if policy not in laws.KEEP_TO_A_POOL:
        return []
    return [replace(part, kind="pools") for part in parts(policy, count, dear_each=dear_each, seed=seed)]


def judge(work: list[Part]) -> list[tuple[int, list[str]]]:
    """(snapshots judged, what was broken) of each part."""
    return [result or judge_part(part) for part, result in zip(work, _in_processes(work), strict=True)]


def _in_processes(work: list[Part]) -> list[tuple[int, list[str]] | None]:
    """The results of all parts; None for one whose process was killed from outside (a machine short of memory)."""
    if PROCESSES == 1:
        return [None] * len(work)
    # Not forked: a process of pytest has threads, and forking one that has is not safe.
    with _one_thread_each(), ProcessPoolExecutor(PROCESSES, get_context("spawn")) as pool:
        begun = [pool.submit(judge_part, part) for part in work]
        return [None if isinstance(one.exception(), BrokenProcessPool) else one.result() for one in begun]


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Processes that are started meanwhile leave the other cores alone: the linear algebra under numpy has threads."""
    before = os.environ.get("OPENBLAS_NUM_THREADS")
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["OPENBLAS_NUM_THREADS"]
        else:
            os.environ["OPENBLAS_NUM_THREADS"] = before


def judge_part(part: Part) -> tuple[int, list[str]]:
    policy = load_policy(part.policy)
    rng = np.random.default_rng(1000 + part.seed)
    told: list[str] = []
    number = 0
    for number, (snapshot, plan) in enumerate(_planned(part, policy.optimize), 1):
        found = cheap(policy, snapshot, plan)
        if part.kind == "queues":
            found += queue_laws.queues_hold(snapshot, plan)
        if part.kind == "topology":
            found += topology_laws.topology_holds(snapshot, plan)
        if number % part.dear_each == 0:
            found += laws.same_bytes(policy, snapshot, plan, rng)
        if number % part.dear_each == 0 or part.kind == "queues":
            found += laws.settles(policy, snapshot, plan)
        if found:
            told.append(f"{part.policy}, {part.kind}, seed {part.seed}, snapshot {number - 1}: {found}")
            if len(told) >= MOST_TOLD:
                break
    return number, told


def cheap(policy: Policy, snapshot: Snapshot, plan: Plan) -> list[str]:
    """Laws 1 to 4, 7 and 18, that jobs are in one pool, and that no reason is refuted."""
    return [
        *laws.sound(snapshot, plan),
        *laws.in_one_pool(snapshot, plan),
        *laws.nobody_waits_for_nothing(snapshot, plan),
        *laws.excuses_hold(snapshot, plan),
        *laws.no_worse_than_keeping(policy, snapshot, plan),
        *laws.within_maximums(snapshot, plan),
        *reasons.refuted(snapshot, plan),
    ]


def _planned(part: Part, ask: Callable[[Snapshot], Plan]) -> Iterator[tuple[Snapshot, Plan]]:
    profiled = part.policy not in ("fit", "fair")  # these two read no profiles
    if part.kind == "queues":
        return ((snapshot, ask(snapshot)) for snapshot in queue_clusters(part.seed, part.count))
    if part.kind == "topology":
        return topology_clusters(part.seed, part.count, ask, profiled=profiled)
    if part.kind == "pools":
        return pool_clusters(part.seed, part.count, ask)
    if part.kind == "lives":
        return lives(part.seed, part.count, ask, profiled=profiled)
    large = part.count // 8
    return (
        (snapshot, ask(snapshot))
        for jobs, nodes, count in ((4, 3, part.count - large), (6, 4, large))
        for snapshot in snapshots(part.seed, count, jobs=jobs, nodes=nodes, profiled=profiled)
    )
