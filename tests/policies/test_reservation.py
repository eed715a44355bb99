"""Law 9: a feasible gang of any size starts within a bound, however many small jobs keep coming."""

from __future__ import annotations

import pytest

from diflow.allocator.model.reasons import Reserved
from diflow.allocator.model.validate import faults
from diflow.allocator.model.views import JobView, NodeView, QueueView, RoleView, build
from diflow.allocator.policies.base import load_policy

PERIOD = 60.0
SMALL_SECONDS = 600.0
RESERVE_AFTER = 300.0


@pytest.mark.parametrize("policy_name", ["fit", "fair", "goodput", "fair+goodput"])
@pytest.mark.parametrize("queues", [1, 2])
@pytest.mark.parametrize("size", [4, 10, 16])
def test_a_gang_starts_although_small_jobs_never_stop_coming(policy_name: str, queues: int, size: int) -> None:
    """4 nodes of 4, always more small jobs than fit, none preemptible; the gang is created when the cluster is full."""
    policy = load_policy(policy_name)
    nodes = [NodeView(f"n{i}", {"gpu": 4}) for i in range(4)]
    small: dict[str, tuple[float, float | None, dict[str, int]]] = {}
    number, now, gang_came = 0, 0.0, 5 * PERIOD
    # The bound: small jobs that came before it (16 run, 20 wait) run and end, its reservation begins, and what was
    # started before that ends.
    bound = gang_came + RESERVE_AFTER + 3 * SMALL_SECONDS + 3 * PERIOD
    while now <= bound:
        for name in [n for n, (_, began, _) in small.items() if began is not None and now - began >= SMALL_SECONDS]:
            del small[name]
        while sum(began is None for _, began, _ in small.values()) < 20:
            small[f"small{number:04d}"] = (now, None, {})
            number += 1
        role = RoleView("w", {"gpu": 1}, 1, 1, 1)
        jobs = [
            JobView(
                n,
                (role,),
                queue=f"q{int(n[-1]) % queues}",
                preemptible=False,
                created_seconds=c,
                started_seconds=b,
                placed={"w": p},
            )
            for n, (c, b, p) in small.items()
        ]
        if now >= gang_came:
            large = RoleView("w", {"gpu": 1}, size, size, size)
            jobs.append(JobView("gang", (large,), queue="q0", preemptible=False, created_seconds=gang_came))
        snapshot = build(nodes, jobs, [QueueView(f"q{i}") for i in range(queues)], now_seconds=now)
        plan = policy.optimize(snapshot)
        assert faults(snapshot, plan) == []
        for g, n, _ in zip(plan.role.tolist(), plan.node.tolist(), plan.count.tolist(), strict=True):
            name = snapshot.job_names[int(snapshot.role_job[g])]
            if name == "gang":
                return
            created, began, _ = small[name]
            small[name] = (created, now if began is None else began, {snapshot.node_names[n]: 1})
        now += PERIOD
    pytest.fail(f"the gang of {size} still waits after {bound - gang_came:g} s")


def test_small_jobs_use_what_the_reserved_gang_leaves_over() -> None:
    nodes = [NodeView("n1", {"gpu": 4}), NodeView("n2", {"gpu": 4}), NodeView("n3", {"gpu": 4})]
    role = RoleView("w", {"gpu": 1}, 1, 1, 1)
    jobs = [
        JobView("long", (RoleView("w", {"gpu": 1}, 5, 5, 5),), preemptible=False, placed={"w": {"n1": 2, "n3": 3}}),
        JobView("gang", (RoleView("w", {"gpu": 1}, 8, 8, 8),), created_seconds=0.0),
        JobView("small-a", (role,), preemptible=False, created_seconds=900.0),
        JobView("small-b", (role,), preemptible=False, created_seconds=901.0),
    ]
    snapshot = build(nodes, jobs, now_seconds=1000.0)
    for name in ("fit", "fair"):
        plan = load_policy(name).optimize(snapshot)
        started = {snapshot.job_names[int(snapshot.role_job[g])] for g in plan.role.tolist()}
        # n1 and n2 are reserved for the gang, although n1 is half empty; the free one of n3 is not needed.
        assert started == {"long", "small-a"}, name
        assert isinstance(plan.reasons[snapshot.job_names.index("small-b")], Reserved)
