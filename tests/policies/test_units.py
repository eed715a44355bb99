"""Replicas in multiples of a unit, under each policy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from diflow.allocator.model.arrays import frozen
from diflow.allocator.model.plan import Plan, carry_out
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.model.validate import faults
from diflow.allocator.model.views import JobView, NodeView, RoleView, build
from diflow.allocator.policies.base import load_policy
from diflow.allocator.policies.units import in_units
from tests.policies.generators import random_snapshot

GPU = "nvidia.com/gpu"
POLICIES = ("fit", "fair", "goodput", "fair+goodput")


def job(name: str, least: int, most: int, unit: int = 1, *, created: float = 900.0, held: int = 0) -> JobView:
    return JobView(
        name,
        (RoleView("worker", {GPU: 1}, least, most, most, unit=unit),),
        created_seconds=created,
        placed={"worker": {"n0": held}} if held else {},
    )


def counts(snapshot: Snapshot, plan: Plan) -> dict[str, int]:
    found = np.bincount(snapshot.role_job[plan.role], weights=plan.count, minlength=snapshot.jobs)
    return dict(zip(snapshot.job_names, found.astype(int).tolist(), strict=True))


def cluster(gpus: int, *jobs: JobView) -> Snapshot:
    return build([NodeView("n0", {GPU: gpus})], jobs, now_seconds=1000.0)


def test_the_counts_of_a_role_are_made_multiples() -> None:
    role = RoleView("worker", {}, 3, 9, 8, unit=4)
    assert (role.least, role.most, role.wanted) == (4, 8, 8)
    small = RoleView("worker", {}, 1, 3, 2, unit=4)
    assert (small.least, small.most, small.wanted) == (4, 4, 4)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_job_runs_with_a_multiple_and_the_rest_goes_to_another(policy: str) -> None:
    snapshot = cluster(7, job("a", 4, 8, 4), job("b", 1, 8, created=950.0))
    plan = in_units(load_policy(policy).optimize, snapshot)
    assert not faults(snapshot, plan)
    # A job without a profile begins on up to four replicas under goodput, in powers of two.
    assert counts(snapshot, plan) == {"a": 4, "b": 2 if "goodput" in policy else 3}


@pytest.mark.parametrize("policy", POLICIES)
def test_a_job_that_cannot_grow_by_a_unit_keeps_what_it_has(policy: str) -> None:
    snapshot = cluster(7, job("a", 4, 8, 4, held=4))
    plan = in_units(load_policy(policy).optimize, snapshot)
    assert counts(snapshot, plan) == {"a": 4}


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
def test_in_random_clusters_each_plan_is_valid_and_has_multiples(policy: str) -> None:
    rng = np.random.default_rng(7)
    known = load_policy(policy)
    rounded = 0
    for _ in range(150):
        snapshot = _with_units(rng, random_snapshot(rng, holding=0.0, jobs=8))
        for _ in range(3):
            calls = list[Plan]()

            def ask(at: Snapshot, calls: list[Plan] = calls) -> Plan:
                calls.append(known.optimize(at))
                return calls[-1]

            plan = in_units(ask, snapshot)
            assert not faults(snapshot, plan)
            total = np.bincount(plan.role, weights=plan.count, minlength=snapshot.roles).astype(int)
            assert not (total % snapshot.role_unit).any()
            assert len(calls) <= 6
            rounded += len(calls) > 1
            snapshot = carry_out(snapshot, plan, now_seconds=snapshot.now_seconds + 600)
            if rng.random() < 0.5:  # other pods take capacity
                closed = snapshot.node_open & (rng.random(snapshot.nodes) < 0.8)
                snapshot = replace(snapshot, node_open=frozen(closed))
    assert rounded > 2


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
def test_the_units_of_some_jobs_do_not_shrink_another_one_that_runs(policy: str) -> None:
    known, calls = load_policy(policy), list[int]()
    for seed in range(32):
        rng = np.random.default_rng(seed)
        gpus = int(rng.integers(30, 120))
        held = gpus // 2 // 4 * 4
        others = []
        for number in range(int(rng.integers(4, 12))):
            unit = int(rng.choice([2, 3, 5, 7, 8]))
            least, most = (int(count) * unit for count in (1, rng.integers(1, 20)))
            others.append(job(f"other-{number}", least, most, unit, created=901.0 + number))
        snapshot = cluster(gpus, job("victim", 4, 100, 4, held=held), *others)
        asked = list[Snapshot]()

        def ask(at: Snapshot, asked: list[Snapshot] = asked) -> Plan:
            asked.append(at)
            return known.optimize(at)

        plan = in_units(ask, snapshot)
        assert not faults(snapshot, plan)
        # Without units no job would take what another one has grown to, beyond the minimum of a job that waits.
        without = counts(
            snapshot, known.optimize(replace(snapshot, role_unit=frozen(np.ones_like(snapshot.role_unit))))
        )
        assert counts(snapshot, plan)["victim"] >= without["victim"] // 4 * 4
        calls.append(len(asked))
    assert max(calls) <= 4


def test_without_units_the_policy_is_asked_once_and_its_plan_is_the_answer() -> None:
    snapshot = cluster(7, job("a", 1, 8), job("b", 1, 8))
    known = load_policy("fit")
    plan = known.optimize(snapshot)
    assert in_units(lambda _: plan, snapshot) is plan


def test_a_policy_that_ignores_its_limits_is_not_asked_for_ever() -> None:
    snapshot = cluster(8, job("a", 2, 8, 2), job("b", 1, 8))
    other = cluster(8, job("a", 3, 3), job("b", 1, 1))
    odd = load_policy("fit").optimize(other)
    asked = list[Snapshot]()

    def stubborn(at: Snapshot) -> Plan:
        asked.append(at)
        return odd

    plan = in_units(stubborn, snapshot)
    assert len(asked) == 6
    assert [text for text in faults(snapshot, plan) if "no multiple of its unit" in text]


def _with_units(rng: np.random.Generator, snapshot: Snapshot) -> Snapshot:
    unit = np.array((1, 2, 2, 3, 4))[rng.integers(0, 5, snapshot.roles)]
    least = -(-snapshot.role_min // unit) * unit
    most = np.maximum(snapshot.role_max // unit * unit, least)
    desired = np.clip(snapshot.role_desired // unit * unit, least, most)
    return replace(
        snapshot,
        role_unit=frozen(unit),
        role_min=frozen(least),
        role_max=frozen(most),
        role_desired=frozen(desired),
    )
