"""The performance model that an AdaptDL job reports (perfParams) is used by `goodput` if it is plausible."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diflow.allocator.model.plan import carry_out
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.model.views import JobView, NodeView, RoleView, build
from diflow.allocator.policies.base import load_policy
from diflow.allocator.policies.goodput import model
from diflow.allocator.policies.settings import PolicySettings
from diflow.allocator.watch import reports
from diflow.record import perfmodel
from diflow.record.reports import read as reported

SCALES = {
    "alpha_c": 0.05,
    "beta_c": 1e-3,
    "alpha_n": 0.01,
    "beta_n": 1e-4,
    "alpha_r": 0.01,
    "beta_r": 1e-4,
    "gamma": 1.5,
}
STALLS = {**SCALES, "alpha_n": 300.0, "beta_n": 100.0, "alpha_r": 300.0, "beta_r": 100.0}
"""A step of more than one replica takes a thousand times as long."""


def hints(params: Any, **more: Any) -> str:
    given = {
        "initBatchSize": 128,
        "maxBatchSize": 1024,
        "localBszBounds": [16, 256],
        "maxProfiledReplicas": 6,
        "gradParams": {"norm": 1.0, "var": 50.0},
        "replicas": 6,
        "nodes": 1,
    }
    return json.dumps({**given, "perfParams": params, **more})


def running(text: str, replicas: int = 6) -> Snapshot:
    """A cluster with one job of 1 to 8 replicas, which has run for an hour on one node."""
    job = JobView(
        "a",
        (RoleView("worker", {"gpu": 1}, 1, 8, 6),),
        preemptible=True,
        placed={"worker": {"n1": replicas}},
        started_seconds=0.0,
        changed_seconds=0.0,
        profile=reports.profile(text),
    )
    return build([NodeView("n1", {"gpu": 8})], [job], now_seconds=3600.0)


def planned(snapshot: Snapshot) -> int:
    plan = load_policy("goodput", PolicySettings()).optimize(snapshot)
    return int(carry_out(snapshot, plan).held_count.sum())


def test_six_replicas_that_stall_each_other_become_one() -> None:
    assert planned(running(hints(STALLS))) == 1


def test_a_model_that_scales_keeps_what_it_has_or_grows() -> None:
    assert planned(running(hints(SCALES))) >= 6


def test_the_speed_that_follows_from_the_model_is_the_policys_own() -> None:
    low, high = 16, 256
    text = hints(SCALES)
    params = np.array([SCALES[name] for name in perfmodel.NAMES])
    total, replicas = 128, 6
    local = -(-total // replicas)
    assert low <= local <= high
    seconds = model.step_seconds(params, np.array(False), np.array(6.0), np.array(float(local)), np.array(0.0))
    assert reports.speed(text) == pytest.approx(replicas * local / float(seconds))
    slow = reports.speed(hints(STALLS))
    assert slow is not None
    assert slow * 1000 < float(reports.speed(text) or 0)


def test_a_measured_speed_is_shown_rather_than_the_models() -> None:
    assert reports.speed(hints(SCALES, speed=77.0)) == 77


@pytest.mark.parametrize(
    "change",
    [
        {"beta_n": -1e-9}, {"beta_r": 1e30}, {"gamma": 0.5},
        {"gamma": 11}, {"alpha_c": "1"}, {"alpha_c": True}, {"beta_c": None}, {"alpha_c": 0, "beta_c": 0},
        {"alpha_n": 10**400},
    ],
)  # fmt: skip
def test_a_model_that_cannot_be_true_is_no_model(change: dict[str, Any]) -> None:
    broken = {**SCALES, **change}
    text = hints(broken)
    found = reports.profile(text)
    assert found is not None, "its gradient statistics can be used"
    assert found.parameters is None
    assert reports.speed(text) is None
    assert 1 <= planned(running(text)) <= 8


@pytest.mark.parametrize(
    "given",
    [None, [], "x", 3, {}, {"gamma": 1}, {**SCALES, "gamma": [1]}]
    + [{**SCALES, "alpha_c": value} for value in (float("nan"), float("inf"))],
)
def test_what_is_no_model_is_left_out(given: Any) -> None:
    assert reported(json.dumps({"perfParams": given})).model is None


NUMBER = st.floats(0, 1e6) | st.sampled_from([0, 1e-300, 1e-8, 1e6])
MODELS = st.fixed_dictionaries(dict.fromkeys(perfmodel.NAMES[:-1], NUMBER) | {"gamma": st.floats(1, 10)})
COUNTS = st.integers(1, 10**9) | st.none() | st.just(-1)


@settings(max_examples=150, deadline=None)
@given(MODELS, COUNTS, COUNTS, COUNTS, st.integers(1, 100_000))
def test_no_model_makes_the_policy_fail_or_the_speed_untrue(
    params: dict[str, float], low: int | None, high: int | None, total: int | None, replicas: int
) -> None:
    text = hints(params, localBszBounds=[low, high], globalBatchSize=total, replicas=replicas, nodes=2)
    speed = reports.speed(text)
    assert speed is None or 0 < speed < float("inf")
    assert 1 <= planned(running(text)) <= 8


def test_a_model_is_news_when_it_foretells_other_steps() -> None:
    one = hints(SCALES)
    assert not reports.is_news(one, hints({**SCALES, "beta_n": SCALES["beta_n"] * 1.5}), fraction=0.1), "of no weight"
    assert reports.is_news(one, hints({**SCALES, "alpha_n": 5.0}), fraction=0.1), "on several nodes"
    assert reports.is_news("{}", one, fraction=0.1)
    assert reports.is_news(hints(None), one, fraction=0.1)
