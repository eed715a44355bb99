"""Which pool of nodes a job gets under `goodput`, and what is known of it there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import Bounds, LinearConstraint, milp

from benchmarks.policies_speed import cluster as busy
from benchmarks.policies_speed import pooled
from diflow.allocator.model.arrays import FloatArray, IntArray
from diflow.allocator.model.plan import Action, Plan
from diflow.allocator.model.profile import POOL, REPLICAS, STEP_SECONDS, Prior, Profile
from diflow.allocator.model.reasons import DoesNotFit
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.model.views import POOL_LABEL, JobView, NodeView, RoleView, build
from diflow.allocator.policies.base import load_policy
from diflow.allocator.policies.goodput import pool_choice
from diflow.allocator.policies.goodput.case import Case
from diflow.allocator.policies.goodput.fitting import fit_all
from diflow.allocator.policies.goodput.gangs import MOST_DISTINCT_POOLS
from diflow.allocator.policies.goodput.pooled import MOST_STRANGE, in_pools
from diflow.allocator.policies.goodput.table import Tables
from diflow.allocator.policies.settings import PolicySettings
from diflow.common.names import UNKNOWN_POOL, pool_number
from tests.policies.profiles import reported

FAST, SLOW = pool_number("fast"), pool_number("slow")
NUMBERS = (FAST, SLOW)
SHAPES = ((1, 1), (1, 2), (1, 4), (2, 8))


def rows(pool: int, *shapes: tuple[int, int], pace: float = 1.0, sync: float = 0.01) -> list[tuple[float, ...]]:
    """Times in a pool in which all takes `pace` times as long."""
    out: list[tuple[float, ...]] = []
    for nodes, replicas in shapes:
        for batch in (16, 64, 256):
            own = pace * (0.01 + 0.002 * batch)
            out.append((nodes, replicas, batch, own, own + (0.0 if replicas == 1 else pace * sync * (1 + nodes)), pool))
    return out


def profile(*given: tuple[float, ...], **more: object) -> Profile:
    return replace(reported(np.array(given).reshape(-1, 6)), **more)  # type: ignore[arg-type]


def both(fast: float, slow: float = 1.0, *, sync: float = 0.01, **more: object) -> Profile:
    """One-GPU times in both pools."""
    return profile(*rows(FAST, (1, 1), pace=fast, sync=sync), *rows(SLOW, (1, 1), pace=slow, sync=sync), **more)


def job(name: str, known: Profile | None, most: int = 4, **more: object) -> JobView:
    return JobView(name, (RoleView("w", {"gpu": 1}, 1, most, 1),), profile=known, **more)  # type: ignore[arg-type]


def running(name: str, known: Profile | None, node: str, count: int, *, age: float = 3600.0) -> JobView:
    return job(name, known, started_seconds=10_000.0 - age, changed_seconds=10_000.0 - age,
               created_seconds=10_000.0 - age, service_seconds=age * count,
               placed={"w": {node: count}})  # fmt: skip


def cluster(*jobs: JobView, fast: int = 1, slow: int = 1, speed: Mapping[str, float] | None = None) -> Snapshot:
    """Nodes of 4 GPUs: fast-0, ..., slow-0, ..."""
    nodes = [
        NodeView(f"{pool}-{i}", {"gpu": 4}, labels={POOL_LABEL: pool})
        for pool, count in (("fast", fast), ("slow", slow))
        for i in range(count)
    ]
    return build(nodes, jobs, now_seconds=10_000.0, pool_speed=speed or {})


def places(snapshot: Snapshot, plan: Plan) -> dict[str, dict[str, int]]:
    out: dict[str, dict[str, int]] = {}
    for role, node, count in zip(plan.role.tolist(), plan.node.tolist(), plan.count.tolist(), strict=True):
        out.setdefault(snapshot.job_names[snapshot.role_job[role]], {})[snapshot.node_names[node]] = count
    return out


def planned(snapshot: Snapshot, **settings: float) -> dict[str, dict[str, int]]:
    return places(snapshot, load_policy("goodput", PolicySettings(**settings)).optimize(snapshot))  # type: ignore[arg-type]


# -- what is known of a job in a pool --


def test_rows_of_another_pool_are_multiplied_by_the_ratio_of_the_jobs_own_times_on_one_gpu() -> None:
    given = profile(*rows(SLOW, *SHAPES, pace=3.0), *rows(FAST, (1, 1)))
    fast = in_pools(given, NUMBERS, (1.0, 1.0), {})[0]
    assert fast.reach == 8
    expected = np.array(rows(FAST, *SHAPES))
    got = {(row[0], row[1], row[2]): row[STEP_SECONDS] for row in fast.rows.tolist()}
    assert got == {(row[0], row[1], row[2]): pytest.approx(row[STEP_SECONDS]) for row in expected.tolist()}


def test_without_a_measurement_the_setting_says_how_fast_a_pool_is() -> None:
    given = profile(*rows(SLOW, *SHAPES))
    fast, slow = in_pools(given, NUMBERS, (4.0, 2.0), {})
    assert slow.rows[:, STEP_SECONDS] == pytest.approx(2.0 * fast.rows[:, STEP_SECONDS])
    assert sorted(fast.rows[:, REPLICAS].tolist()) == sorted(slow.rows[:, REPLICAS].tolist())


def test_what_earlier_jobs_have_shown_of_both_pools_counts_more_than_the_setting() -> None:
    records = {
        FAST: Prior(version=1, observations=np.array(rows(FAST, *SHAPES))),
        SLOW: Prior(version=2, observations=np.array(rows(SLOW, *SHAPES, pace=5.0))),
    }
    models = dict(zip((1, 2), fit_all([records[FAST].observations, records[SLOW].observations]), strict=True))
    # This job is twice as slow as those before; it has run in the slow pool alone.
    given = profile(*rows(SLOW, (1, 1), pace=10.0), priors=records)
    fast, slow = in_pools(given, NUMBERS, (1.0, 1.0), models)
    assert fast.reach == slow.reach == 8
    assert _step(fast.rows, 4) == pytest.approx(_step(np.array(rows(FAST, (1, 4), pace=2.0)), 4), rel=0.05)
    assert _step(slow.rows, 1) == pytest.approx(_step(np.array(rows(SLOW, (1, 1), pace=10.0)), 1))


def _step(table: FloatArray, replicas: int) -> float:
    mine = table[(table[:, REPLICAS] == replicas) & (table[:, 2] == 64)]
    return float(mine[0, STEP_SECONDS])


def test_rows_without_a_pool_are_those_of_a_pool_of_speed_one() -> None:
    given = profile(*rows(UNKNOWN_POOL, *SHAPES))
    fast, slow = in_pools(given, NUMBERS, (2.0, 1.0), {})
    assert slow.rows[:, STEP_SECONDS] == pytest.approx(given.observations[:, STEP_SECONDS])
    assert fast.rows[:, STEP_SECONDS] == pytest.approx(0.5 * slow.rows[:, STEP_SECONDS])


def test_a_record_without_a_pool_is_that_of_a_pool_of_speed_one() -> None:
    record = Prior(version=1, observations=np.array(rows(UNKNOWN_POOL, *SHAPES)))
    models = {1: fit_all([record.observations])[0]}
    fast, slow = in_pools(Profile(prior=record), NUMBERS, (2.0, 1.0), models)
    assert fast.reach == slow.reach == 8
    assert fast.rows[:, STEP_SECONDS] == pytest.approx(0.5 * slow.rows[:, STEP_SECONDS])


@pytest.mark.parametrize("slow", [0, 1], ids=["one pool", "two pools"])
def test_reports_are_read_by_the_same_rules_with_one_pool_as_with_several(slow: int) -> None:
    """What a job has measured of itself counts: how long it restarts, and on how many replicas it has run although its
    model is its own. Without a model nobody knows how long its work takes."""
    times = np.array(rows(FAST, *SHAPES))
    told = profile(restart_seconds=50.0, fraction_done=0.5, work_done=100.0)
    modelled = profile(*rows(FAST, *SHAPES), parameters=fit_all([times])[0], profiled_replicas=2)
    snapshot = cluster(job("modelled", modelled, most=64), job("told", told), fast=8, slow=slow)
    table = Case(snapshot, PolicySettings(largest_growth=2.0), Tables()).table
    assert table.restart_seconds.tolist()[1] == 50.0
    assert table.replicas[0].max() == 16
    assert np.isnan(table.left_seconds).tolist() == [True, True]


def test_a_gang_over_several_pools_keeps_its_place() -> None:
    gang = JobView("a", (RoleView("w", {"gpu": 1}, 6, 6, 6),), started_seconds=1_000.0, changed_seconds=1_000.0,
                   placed={"w": {"fast-0": 4, "slow-0": 2}})  # fmt: skip
    assert planned(cluster(gang, job("b", both(1.0))))["a"] == {"fast-0": 4, "slow-0": 2}


@pytest.mark.parametrize("factor", [1e-6, 1e6])
def test_absurd_ratios_leave_times_that_a_model_can_be_fitted_to(factor: float) -> None:
    given = profile(*rows(SLOW, *SHAPES), *rows(FAST, (1, 1), pace=factor))
    for seen in in_pools(given, NUMBERS, (1e6, 1e-6), {}):
        assert np.isfinite(fit_all([seen.rows])[0]).all()


# -- which pool a job gets --


def test_the_fast_pool_goes_to_the_job_that_gains_most_from_it() -> None:
    snapshot = cluster(job("gains", both(0.1)), job("hardly", both(0.8)))
    found = planned(snapshot, largest_growth=4.0)
    assert found == {"gains": {"fast-0": 4}, "hardly": {"slow-0": 4}}
    # The names do not decide.
    snapshot = cluster(job("a", both(0.8)), job("b", both(0.1)))
    assert planned(snapshot, largest_growth=4.0) == {"a": {"slow-0": 4}, "b": {"fast-0": 4}}


def test_a_pool_that_is_slower_for_one_application_may_be_faster_for_another() -> None:
    snapshot = cluster(job("a", both(2.0)), job("b", both(0.5)), speed={"fast": 10.0})
    assert planned(snapshot, largest_growth=4.0) == {"a": {"slow-0": 4}, "b": {"fast-0": 4}}


def test_a_job_of_which_nothing_is_known_goes_where_the_setting_says() -> None:
    assert planned(cluster(job("a", None), speed={"slow": 3.0})) == {"a": {"slow-0": 4}}
    assert planned(cluster(job("a", None), speed={"fast": 3.0})) == {"a": {"fast-0": 4}}


def test_a_running_job_moves_to_a_free_faster_pool_if_that_is_worth_the_restart() -> None:
    mine = both(0.2, restart_seconds=30.0)
    moved = planned(cluster(running("a", mine, "slow-0", 1)))
    assert list(moved["a"]) == ["fast-0"]
    assert planned(cluster(running("a", replace(mine, restart_seconds=1e5), "slow-0", 1), slow=1)) != moved
    # Nearly as fast: not worth it, so it grows where it is.
    assert list(planned(cluster(running("a", both(0.99, restart_seconds=600.0), "slow-0", 2)))["a"]) == ["slow-0"]


def test_a_job_that_may_not_be_moved_keeps_its_pool() -> None:
    mine = both(0.05, restart_seconds=1.0)
    fixed = replace(running("a", mine, "slow-0", 1), preemptible=False)
    assert planned(cluster(fixed))["a"] == {"slow-0": 1}
    pinned = replace(running("a", mine, "slow-0", 1), pinned=True)
    assert list(planned(cluster(pinned))["a"]) == ["slow-0"]


def test_a_move_to_another_pool_is_a_resize_with_all_pods_promised() -> None:
    snapshot = cluster(running("a", both(0.1, restart_seconds=10.0), "slow-0", 1))
    plan = load_policy("goodput").optimize(snapshot)
    assert plan.action.tolist() == [int(Action.RESIZE)]
    assert not plan.bind_now.any()


def test_no_job_is_spread_over_two_pools() -> None:
    snapshot = cluster(job("a", both(1.0, sync=0.0), most=8))
    found = planned(snapshot, largest_growth=8.0)
    assert len(found["a"]) == 1


def test_a_gang_that_no_pool_holds_may_be_spread() -> None:
    gang = JobView("a", (RoleView("w", {"gpu": 1}, 6, 6, 6),))
    assert sum(planned(cluster(gang))["a"].values()) == 6


def test_a_gang_that_fits_in_no_pool_now_waits_and_is_told_the_pool_with_most_room() -> None:
    gang = JobView("b", (RoleView("w", {"gpu": 1}, 4, 4, 4),), created_seconds=9_990.0)
    fixed = [replace(running(name, None, node, count), preemptible=False)
             for name, node, count in (("x", "fast-0", 1), ("y", "slow-0", 2))]  # fmt: skip
    snapshot = cluster(gang, *fixed)
    plan = load_policy("goodput").optimize(snapshot)
    assert "b" not in places(snapshot, plan)
    assert plan.reasons[snapshot.job_names.index("b")] == DoesNotFit(4, 3)


def test_a_gang_that_waits_too_long_gets_its_place_in_one_pool() -> None:
    """Small jobs hold both pools; they give one up, not a half of each."""
    small = [running(f"s{i}", both(1.0), f"{pool}-0", 1, age=60.0) for i, pool in enumerate(["fast", "slow"] * 3)]
    gang = JobView("gang", (RoleView("w", {"gpu": 1}, 4, 4, 4),), created_seconds=1_000.0)
    found = planned(cluster(gang, *small))
    assert sum(found["gang"].values()) == 4
    assert len(found["gang"]) == 1


def test_other_roles_may_be_in_another_pool() -> None:
    nodes = [
        NodeView("gpu-0", {"cpu": 4, "gpu": 4}, labels={POOL_LABEL: "fast"}),
        NodeView("cpu-0", {"cpu": 32, "gpu": 0}, labels={}),
    ]
    roles = (RoleView("learner", {"cpu": 1, "gpu": 1}, 1, 2, 2), RoleView("collector", {"cpu": 4, "gpu": 0}, 4, 4, 4))
    snapshot = build(nodes, [JobView("a", roles)], now_seconds=10_000.0)
    plan = load_policy("goodput").optimize(snapshot)
    at = {snapshot.role_names[r]: snapshot.node_names[n] for r, n in zip(plan.role, plan.node, strict=True)}
    assert at == {"learner": "gpu-0", "collector": "cpu-0"}


def test_the_largest_batch_of_a_pool_bounds_what_is_expected_there() -> None:
    """In the fast pool a replica holds a sixteenth of the samples, so it is the slower one."""
    mine = both(0.9, local_batches={FAST: 4}, grad_var=1e6, accumulation=False)
    assert list(planned(cluster(job("a", mine)))["a"]) == ["slow-0"]


def test_with_one_pool_a_plan_does_not_depend_on_its_name() -> None:
    jobs = [job(f"j{i}", profile(*rows(UNKNOWN_POOL, *SHAPES[:2])), most=8) for i in range(3)]

    def of(name: str) -> bytes:
        nodes = [NodeView(f"n{i}", {"gpu": 4}, labels={POOL_LABEL: name}) for i in range(2)]
        snapshot = build(nodes, jobs, now_seconds=10_000.0)
        return load_policy("goodput").optimize(snapshot).to_bytes(snapshot)

    assert of("") == of("fast")


def test_numbers_of_pools_follow_from_names() -> None:
    names = ["", "t4", "rtx", "a100", "NVIDIA-A100-SXM4-40GB"]
    numbers = [pool_number(name) for name in names]
    assert len(set(numbers)) == len(names)
    assert all(0 < number <= 10**9 for number in numbers)
    assert pool_number("t4") == 91_306_478


def test_a_cluster_on_which_every_node_is_a_pool_is_planned_as_one() -> None:
    count = MOST_DISTINCT_POOLS + 1
    nodes = [NodeView(f"n{i:03d}", {"gpu": 4}, labels={POOL_LABEL: f"p{i:03d}"}) for i in range(count)]
    jobs = [job(f"j{i}", profile(*rows(UNKNOWN_POOL, *SHAPES)), most=8) for i in range(3)]
    alike = [replace(node, labels={}) for node in nodes]
    plans = [
        places(snapshot, load_policy("goodput").optimize(snapshot))
        for snapshot in (build(some, jobs, now_seconds=10_000.0) for some in (nodes, alike))
    ]
    assert plans[0] == plans[1]


def test_rows_of_many_invented_pools_are_mostly_ignored() -> None:
    invented = [(*row[:POOL], number + 0.5) for number in range(1, 253) for row in rows(number, (1, 2))[:1]]
    given = profile(*invented, *rows(SLOW, *SHAPES))
    seen = in_pools(given, NUMBERS, (1.0, 1.0), {})[0].rows
    assert 1 <= len(seen) <= len(rows(SLOW, *SHAPES)) + MOST_STRANGE


@pytest.mark.parametrize("seed", [0, 4])
def test_pools_and_counts_come_within_a_thousandth_of_an_integer_program(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy cluster of 40 jobs and 16 nodes in three pools, where prices alone leave some jobs without a place."""
    seen: list[tuple[FloatArray, IntArray, IntArray, float]] = []
    settle = pool_choice.settle

    def watched(
        value: FloatArray, amount: IntArray, share: FloatArray, capacity: IntArray, pool: IntArray
    ) -> tuple[IntArray, IntArray, float]:
        found = settle(value, amount, share, capacity, pool)
        seen.append((value, amount, capacity, found[2]))
        return found

    monkeypatch.setattr(pool_choice, "settle", watched)
    Case(pooled(busy(40, 16, seed=seed)), PolicySettings(), Tables())
    value, amount, capacity, _ = seen[0]
    assert max(found for *_, found in seen) >= 0.999 * _integer_program(value, amount, capacity)


def _integer_program(value: FloatArray, amount: IntArray, capacity: IntArray) -> float:
    """The largest sum of values: at most one configuration of each job, and no pool over any resource."""
    at = np.argwhere(np.isfinite(value))
    rows = np.zeros((len(value) + capacity.size, len(at)))
    for column, (j, p, c) in enumerate(at.tolist()):
        rows[j, column] = 1
        first = len(value) + p * capacity.shape[1]
        rows[first : first + capacity.shape[1], column] = amount[j, p, c]
    most = np.concatenate([np.ones(len(value)), capacity.ravel()])
    found = milp(
        -value[tuple(at.T)],
        constraints=LinearConstraint(rows, -np.inf, most),
        integrality=np.ones(len(at)),
        bounds=Bounds(0, 1),
        options={"mip_rel_gap": 1e-6},
    )
    return float(-found.fun)
