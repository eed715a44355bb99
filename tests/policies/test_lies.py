"""What a job reports is not proved: it moves nothing from another namespace's equal share."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from diflow.allocator.model.plan import carry_out
from diflow.allocator.model.profile import Profile
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.model.views import PODS, JobView, NodeView, QueueView, RoleView, build
from diflow.allocator.policies.base import load_policy

GPUS = 16
HONEST = {"grad_sqr": 1.0, "grad_var": 1.0, "max_batch_size": 256}
LIES = (
    {"grad_sqr": 0.001, "grad_var": 1000.0, "max_batch_size": 256},
    {"grad_sqr": 0.001, "grad_var": 1000.0, "max_batch_size": 2**20},
    {"grad_sqr": 1.0, "grad_var": 1.0, "max_batch_size": 2**20},
    {"seconds": 1e-6},
)
POLICIES = pytest.mark.parametrize("policy", ["goodput", "fair+goodput"])


def profile(
    version: int, *, grad_sqr: float = 1.0, grad_var: float = 1.0, max_batch_size: int = 256, seconds: float = 0.05
) -> Profile:
    """Of a job whose steps really take as long as those of all others."""
    return Profile(
        version=version,
        observations_version=version,
        parameters=np.array([seconds, 0.01, 0.02, 0.005, 0.05, 0.01, 1.5]),
        observations=np.zeros((0, 6)),
        profiled_replicas=GPUS,
        initial_batch=64,
        max_batch=max_batch_size,
        max_local_batch=256,
        grad_sqr=grad_sqr,
        grad_var=grad_var,
    )


def cluster(jobs: dict[str, Profile]) -> Snapshot:
    views = [
        JobView(
            name,
            (RoleView("task", {"memory": 1, PODS: 1, "gpu": 1}, minimum=1, maximum=GPUS, desired=GPUS),),
            queue="default",
            preemptible=True,
            created_seconds=float(at),
            profile=of_job,
        )
        for at, (name, of_job) in enumerate(jobs.items())
    ]
    nodes = [NodeView(f"n{i}", {"memory": 1000, PODS: 110, "gpu": 4}) for i in range(GPUS // 4)]
    return build(nodes, views, [QueueView("default")], now_seconds=1000.0)


def held_by_namespaces(policy: str, jobs: dict[str, Profile]) -> dict[str, int]:
    """What each namespace holds after some hours."""
    snapshot, used = cluster(jobs), load_policy(policy)
    for _ in range(6):
        after = carry_out(snapshot, used.optimize(snapshot))
        snapshot = replace(after, now_seconds=after.now_seconds + 1800.0)
    out = dict.fromkeys(sorted(name.partition("/")[0] for name in jobs), 0)
    for role, count in zip(snapshot.held_role.tolist(), snapshot.held_count.tolist(), strict=True):
        out[snapshot.job_names[snapshot.role_job[role]].partition("/")[0]] += count
    return out


@POLICIES
@pytest.mark.parametrize("lie", LIES, ids=str)
def test_a_lie_takes_nothing_of_another_namespaces_part(policy: str, lie: dict[str, float]) -> None:
    jobs = {f"{space}/job": profile(at + 1) for at, space in enumerate(("a", "b", "c"))}
    assert held_by_namespaces(policy, {**jobs, "evil/job": profile(9, **lie)}) == {"a": 4, "b": 4, "c": 4, "evil": 4}  # type: ignore[arg-type]


@POLICIES
def test_many_jobs_of_one_namespace_have_one_part(policy: str) -> None:
    jobs = {"a/job": profile(1), **{f"evil/{i}": profile(2 + i, **LIES[1]) for i in range(6)}}  # type: ignore[arg-type]
    assert held_by_namespaces(policy, jobs) == {"a": 8, "evil": 8}


@POLICIES
def test_what_a_namespace_does_not_use_goes_to_others(policy: str) -> None:
    jobs = {"a/job": profile(1)}
    assert held_by_namespaces(policy, jobs) == {"a": GPUS}
    snapshot = cluster({"a/job": profile(1), "b/job": profile(2)})
    alone = replace(snapshot, role_max=np.array([GPUS, 2]), role_desired=np.array([GPUS, 2]))
    plan = load_policy(policy).optimize(alone)
    assert np.bincount(plan.role, plan.count).tolist() == [14, 2] or plan.count.sum() >= 12
