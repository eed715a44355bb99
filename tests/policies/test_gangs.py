"""Indivisible gangs: no gang of a queue above its share keeps a gang waiting to which another queue is entitled, where
the queues would share better (leximin) with it and with smaller gangs in the place of the larger one."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from diflow.allocator.model.plan import carry_out, changes
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.model.views import PODS, JobView, NodeView, QueueView, RoleView, build
from diflow.allocator.policies.base import load_policy
from diflow.allocator.policies.fair.shares import deserved, queue_demand
from tests.policies.test_queues import held

PER_NODE = 8
SIZES = (1, 2, 3, 4, 6, 8, 12)
NOW = 1100.0


def gang(name: str, size: int, placed: dict[str, int] | None = None, created: float = 1000.0) -> JobView:
    role = RoleView("task", {"memory": 1, PODS: 1, "gpu": 1}, minimum=size, maximum=size, desired=size)
    since = created if placed else None
    where = {"task": placed} if placed else {}
    return JobView(
        name, (role,), queue=name[0], preemptible=True, created_seconds=created, placed=where,
        started_seconds=since, changed_seconds=since,
    )  # fmt: skip


def cluster(gpus: int, jobs: Iterable[JobView], weights: dict[str, int]) -> Snapshot:
    nodes = [NodeView(f"n{i}", {"memory": 1000, PODS: 110, "gpu": PER_NODE}) for i in range(gpus // PER_NODE)]
    return build(nodes, list(jobs), [QueueView(q, weight=w) for q, w in weights.items()], now_seconds=NOW)


def clusters(seed: int, count: int) -> Iterator[tuple[int, Snapshot]]:
    """Random clusters, of which the queue `a` holds as much as fits; no gang has waited long enough for a turn."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        gpus = int(rng.choice([8, 16, 24, 40]))
        free = {f"n{i}": PER_NODE for i in range(gpus // PER_NODE)}
        weights = {q: int(rng.choice([1, 1, 1, 2])) for q in "abc"[: int(rng.integers(2, 4))]}
        jobs = []
        for queue in weights:
            for i in range(int(rng.integers(1, 6))):
                size, placed = int(rng.choice(SIZES)), {}
                if (queue == "a" or rng.random() < 0.3) and sum(free.values()) >= size:
                    placed = _take(free, size)
                jobs.append(gang(f"{queue}{i}", size, placed, NOW - float(rng.integers(1, 290))))
        yield gpus, cluster(gpus, jobs, weights)


def _take(free: dict[str, int], size: int) -> dict[str, int]:
    out = {}
    for node in sorted(free, key=free.__getitem__):
        taken = min(size, free[node])
        if taken:
            free[node] -= taken
            out[node] = taken
            size -= taken
    return out


def kept_waiting(snapshot: Snapshot, gpus: int) -> list[str]:
    """Entitled gangs that wait for one or two gangs of a queue above its share, where the queues would share better:
    found by trying all exchanges with all replacements."""
    s = snapshot
    gpu = s.resources.index("gpu")
    size = {name: int(low) for name, low in zip(s.job_names, s.role_min, strict=True) if low <= gpus}
    wanted = np.where(s.role_min <= gpus, s.role_desired, 0)
    share = dict(zip(s.queue_names, deserved(s, queue_demand(s, wanted))[:, gpu].tolist(), strict=True))
    runs = frozenset(s.job_names[int(s.role_job[role])] for role in s.held_role)

    def used(jobs: Iterable[str], queue: str) -> int:
        return sum(size[name] for name in jobs if name[0] == queue)

    def parts(jobs: Iterable[str]) -> dict[str, float]:
        return {q: min(1.0, used(jobs, q) / share[q]) for q in share if share[q]}

    out = []
    now = parts(runs)
    for name in sorted(set(size) - runs):
        queue = name[0]
        if used(runs, queue) + size[name] > share[queue] + 1e-6:
            continue
        for victims in _victims(runs, queue):
            theirs = victims[0][0]
            if used(runs, theirs) <= share[theirs] + 1e-6:
                continue
            after = runs - set(victims) | {name}
            room = gpus - sum(size[job] for job in after)
            others = sorted(job for job in size if job not in runs and job[0] == theirs)
            for count in range(len(others) + 1):
                for instead in itertools.combinations(others, count):
                    if sum(size[job] for job in instead) > room:
                        continue
                    then = parts(after | set(instead))
                    met = [sum(part[q] * share[q] for q in part) for part in (now, then)]
                    if sorted(then.values()) > sorted(now.values()) and then[theirs] > now[queue] and met[1] >= met[0]:
                        out.append(f"{name} waits for {victims}, which {instead} could replace")
    return out


def _victims(runs: Iterable[str], queue: str) -> Iterator[tuple[str, ...]]:
    others = sorted(name for name in runs if name[0] != queue)
    for count in (1, 2):
        yield from (them for them in itertools.combinations(others, count) if len({name[0] for name in them}) == 1)


@pytest.mark.parametrize("name", ["fair", "fair+goodput"])
def test_smaller_gangs_of_its_queue_take_the_place_of_one_above_the_share(name: str) -> None:
    """`a` and `b` hold 4 of 8 GPUs each, and deserve 2⅔: alone, `a` would be worse off than `c` is now."""
    jobs = [gang("a0", 4, {"n0": 4}), gang("a1", 2), gang("b0", 4, {"n0": 4}), gang("c0", 2)]
    snapshot = cluster(8, jobs, {"a": 1, "b": 1, "c": 1})
    assert len(kept_waiting(snapshot, 8)) == 1
    plan = load_policy(name).optimize(snapshot)
    assert held(snapshot, plan) == {"a0": 0, "a1": 2, "b0": 4, "c0": 2}
    assert changes(load_policy(name).optimize(carry_out(snapshot, plan))) == 0


@pytest.mark.parametrize("name", ["fair", "fair+goodput"])
def test_a_namespace_that_takes_nothing_now_replaces_nothing(name: str) -> None:
    modest = replace(gang("c0", 2), modest=True)
    jobs = [gang("a0", 4, {"n0": 4}), gang("a1", 2), gang("b0", 4, {"n0": 4}), modest]
    snapshot = cluster(8, jobs, {"a": 1, "b": 1, "c": 1})
    assert held(snapshot, load_policy(name).optimize(snapshot)) == {"a0": 4, "a1": 0, "b0": 4, "c0": 0}


def test_gangs_that_no_exchange_helps_do_not_make_a_plan_of_many_jobs_late() -> None:
    """Half of each node is held by jobs that cannot be stopped, and each gang needs whole nodes."""
    count = 1500
    names = [f"n{i}" for i in range(count)]
    jobs = [gang(f"a{name}", 4, {name: 4}) for name in names]
    jobs += [replace(gang(f"af{name}", 4, {name: 4}), preemptible=False) for name in names]
    for size in range(count // 4, count // 4 + 20):
        whole = RoleView("task", {"gpu": PER_NODE}, minimum=size, maximum=size, desired=size)
        jobs.append(replace(gang(f"b{size}", 1), roles=(whole,)))
    snapshot = cluster(count * PER_NODE, jobs, {"a": 1, "b": 1})
    began = time.process_time()
    assert changes(load_policy("fair").optimize(snapshot)) == 0
    assert time.process_time() - began < 6.0


@pytest.mark.parametrize("name", ["fair", "fair+goodput"])
def test_a_gang_above_the_share_stays_where_its_queue_would_be_worse_off_than_the_other_is_now(name: str) -> None:
    jobs = [gang("a0", 6, {"n0": 6}), gang("b0", 1, {"n0": 1}), gang("b1", 3)]
    snapshot = cluster(8, jobs, {"a": 1, "b": 1})
    assert held(snapshot, load_policy(name).optimize(snapshot))["a0"] == 6


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fair", "fair+goodput"])
def test_no_gang_above_a_share_keeps_an_entitled_one_waiting_on_random_clusters(name: str) -> None:
    policy, at_first = load_policy(name), 0
    for gpus, first in clusters(1, 300):
        snapshot = first
        at_first += bool(kept_waiting(snapshot, gpus))
        for _ in range(3):
            snapshot = carry_out(snapshot, policy.optimize(snapshot))
        assert kept_waiting(snapshot, gpus) == []
    assert at_first > 50
