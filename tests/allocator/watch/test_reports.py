"""A job's report triggers a plan if it changes the speed by more than the fraction `speed_change`."""

from __future__ import annotations

import json

from diflow.allocator.model.plan import Plan
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.policies.base import load_policy
from diflow.allocator.policies.settings import PolicySettings
from diflow.allocator.settings import AllocatorSettings
from diflow.allocator.watch import reports
from diflow.record import signals
from diflow.server.api.folding import Report, Shape, fold
from diflow.server.api.models import Profiling
from tests.allocator.lab import Lab, job, lab, task


class Counting:
    """`fit`, with a count of its calls."""

    name = "fit"

    def __init__(self) -> None:
        self.asked = 0
        self._policy = load_policy("fit")

    def optimize(self, snapshot: Snapshot) -> Plan:
        self.asked += 1
        return self._policy.optimize(snapshot)


def plans(found: Lab, policy: Counting, speed: float) -> int:
    """The number of plans after a report of this speed."""
    before = policy.asked
    found.cluster.edit("job", profilings=json.dumps({"speed": speed, "replicas": 2, "batch": 8}))
    for _ in range(4):
        found.step()
    return policy.asked - before


def test_a_report_that_changes_the_speed_by_more_than_the_fraction_is_planned_for_at_once() -> None:
    policy = Counting()
    settings = AllocatorSettings(writers=1, debounce_seconds=0.0, period_seconds=3600.0, speed_change=0.1)
    with lab(policy=policy, settings=settings) as found:
        found.cluster.node("one", cpu="4")
        found.cluster.submit(job("job", task(replicas=2, min_replicas=1, max_replicas=2), preemptible=True))
        found.until(lambda: len(found.cluster.running("job")) == 2, "it runs")
        found.rest()
        assert plans(found, policy, 100.0) == 1, "the first one"
        assert plans(found, policy, 105.0) == 0
        assert plans(found, policy, 130.0) == 1
        assert plans(found, policy, 118.0) == 0
        assert plans(found, policy, 110.0) == 1, "each step is small, and together they are not"
        assert plans(found, policy, 110.5) == 0, "it was planned for"


def adaptdl(**params: float) -> str:
    """The server's record of a job's own performance model, as AdaptDL reports it."""
    scaling = {"alpha_c": 0.05, "beta_c": 1e-3, "alpha_n": 0.01, "beta_n": 1e-4, "alpha_r": 0.01, "beta_r": 1e-4}
    hints = {"initBatchSize": 128, "maxBatchSize": 1024, "localBszBounds": [16, 256], "maxProfiledReplicas": 6}
    return json.dumps({**hints, "replicas": 6, "nodes": 1, "perfParams": {**scaling, "gamma": 1.5, **params}})


def test_a_job_whose_own_model_says_that_its_replicas_stall_each_other_shrinks() -> None:
    settings = AllocatorSettings(writers=1, debounce_seconds=0.0, period_seconds=60.0)
    policy = load_policy("goodput", PolicySettings(least_seconds_between_resizes=5.0))
    with lab(policy=policy, settings=settings) as found:
        found.cluster.node("one", cpu="8")
        found.cluster.submit(job("job", task(replicas=6, min_replicas=1, max_replicas=6), preemptible=True))
        found.until(lambda: found.cluster.running("job"), "it runs")
        found.cluster.edit("job", profilings=adaptdl())
        found.until(lambda: len(found.cluster.running("job")) == 4, "it grows, as its model says", seconds=600)
        found.rest()
        found.cluster.edit("job", profilings=adaptdl(alpha_n=300.0, beta_n=100.0, alpha_r=300.0, beta_r=100.0))
        found.until(lambda: len(found.cluster.running("job")) == 1, "it shrinks to what works", seconds=600)


def test_a_job_that_reports_its_steps_alone_is_no_trouble_if_they_are_judged() -> None:
    shape = Shape("1", "worker", 1, {"worker": 1}, has_health=True)
    assert reports.complaint(fold("", {}, shape, now=1e9)) == ""
    assert reports.complaint(fold("", {0: Report("worker", Profiling(step=1), 0)}, shape, now=1e9)) == ""
    assert reports.complaint('{"signals": {"at": 1}}') != ""


def test_the_first_step_of_a_job_that_nobody_judges_is_no_faulty_report() -> None:
    shape = Shape("1", "worker", 1, {"worker": 1})
    text = fold("", {0: Report("worker", Profiling(step=1), 0)}, shape, now=1e9)
    assert reports.profile(text) is None
    assert reports.complaint(text) == ""
    assert reports.complaint('{"ranks": {}}')
    assert reports.complaint('{"ranks": {"0": 1}}')
    assert reports.complaint('{"ranks": {"0": {"task": "worker"}}, "speed": "fast"}')


def test_signs_of_life_alone_are_no_faulty_report() -> None:
    signs = {"round": "1", "at": 100, "since": 90, "heard": [2, -1], "moved": [-1, -1], "steps": [0, 0]}
    text = json.dumps({"round": 1, "at": 100.0, signals.NAME: signs})
    assert reports.profile(text) is None
    assert reports.complaint(text) == ""
    assert reports.complaint(json.dumps({"speed": "fast", signals.NAME: signs}))
    assert reports.complaint(json.dumps({signals.NAME: {**signs, "heard": "all"}}))
