"""Reasons of waiting jobs name the binding limit with correct values, and the checker rejects wrong reasons."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from diflow.allocator.model.plan import Plan
from diflow.allocator.model.reasons import (
    KEPT,
    Crowded,
    DoesNotFit,
    ItsTurn,
    NoSurplus,
    QueueCap,
    QueueShare,
    Reason,
    Reclaimed,
    Reserved,
    ShrunkForOthers,
    TooBig,
)
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.model.views import JobView, QueueView, build
from diflow.allocator.policies.fair.policy import FairPolicy
from diflow.allocator.policies.fit.policy import FitPolicy
from diflow.allocator.reasons import reason_texts
from tests.policies import reasons
from tests.policies.test_shares_hold import borrowed_cluster, fair, job, node


def told(snapshot: Snapshot, name: str) -> str:
    plan = fair(snapshot)
    assert reasons.refuted(snapshot, plan) == []
    return reason_texts.text(snapshot, plan, snapshot.job_names.index(name)).partition(": ")[2]


def test_the_reasons_say_which_gang_has_its_turn_and_which_jobs_wait_for_it() -> None:
    snapshot = borrowed_cluster(1000.0, preemptible=False)
    assert told(snapshot, "sixteen") == (
        "wait: waits for capacity: its turn has come, and capacity is reserved for it for 1101 s more; "
        "14 fit there now of the 16 replicas that its gang needs"
    )
    assert told(snapshot, "one00") == (
        "wait: waits: its 1 replica would fit, but capacity is reserved for 'sixteen', whose turn it is, "
        "for 1101 s more at most"
    )


def test_the_reason_of_a_job_that_would_not_fit_anyway_names_no_reservation() -> None:
    snapshot = borrowed_cluster(1000.0, preemptible=False)
    large = job("large", 15, low=15, created=900.0, gpu=1, preemptible=False)
    nodes = [node(f"n{i}", gpu=8, cpu=64) for i in range(3)]
    jobs = [
        job("eight", 8, low=8, placed={"n0": 8}, gpu=1),
        job("two", 2, low=2, placed={"n1": 2}, gpu=1, preemptible=False),
        job("sixteen", 16, low=16, created=1.0, gpu=1),
        large,
    ]
    snapshot = build(nodes, jobs, [QueueView("default")], now_seconds=1000.0)
    assert "its gang needs 15 replicas at once and 14 fit now" in told(snapshot, "large")


def test_the_reason_names_the_team_whose_cap_binds() -> None:
    jobs = [
        job("a", 3, low=3, queue="ann", placed={"n1": 3}, cpu=1000),
        job("b", 2, low=2, queue="bob", created=1.0, cpu=1000),
    ]
    queues = [QueueView("team", cap={"cpu": 4000}), QueueView("ann", parent="team"), QueueView("bob", parent="team")]
    snapshot = build([node(cpu=16000)], jobs, queues)
    assert "queue 'team' is capped at 4 cpu and has 1 cpu of that left; the gang needs 2 cpu" in told(snapshot, "b")


def test_the_share_that_binds_is_named_with_what_is_held_of_it() -> None:
    jobs = [
        job("a", 4, low=4, queue="q1", placed={"n1": 4}, cpu=1000),
        job("b", 4, low=4, queue="q2", placed={"n1": 4}, cpu=1000),
        job("c", 1, queue="q1", created=1.0, cpu=1000),
    ]
    snapshot = build([node(cpu=8000)], jobs, [QueueView("q1"), QueueView("q2")])
    assert "queue 'q1' holds 4 of the 4 cpu that it deserves, and the gang needs 1 cpu more" in told(snapshot, "c")


def test_the_reason_of_a_stopped_job_names_the_job_that_gets_its_place() -> None:
    jobs = [
        job("low", 4, low=4, placed={"n1": 4}, cpu=1),
        job("high", 4, low=4, priority=1, created=1.0, cpu=1),
    ]
    snapshot = build([node(cpu=4)], jobs, [QueueView("default")])
    assert told(snapshot, "low").startswith("preempt: gives way to 'high', which has a higher priority; 0 replicas")


def test_the_reason_of_a_job_that_shrinks_names_the_job_that_leaves_a_cordoned_node() -> None:
    """The other one ends with fewer replicas than it had, as its maximum was lowered."""
    jobs = [
        job("elastic", 4, placed={"n1": 4}, cpu=1),
        job("leaves", 1, priority=1, placed={"n2": 2}, cpu=1),
    ]
    snapshot = build([node(cpu=4), replace(node("n2", cpu=4), is_open=False)], jobs, now_seconds=1000.0)
    plan = FitPolicy().optimize(snapshot)
    assert reasons.refuted(snapshot, plan) == []
    assert "'leaves' needs" in reason_texts.text(snapshot, plan, 0)
    # Nobody shrinks for a job that stays where it is.
    stays = replace(snapshot, node_open=np.array([True, True]), role_max=np.array([4, 2]))
    wrong = _changed(FitPolicy().optimize(stays), 0, ShrunkForOthers(3, 4, "leaves"))
    assert len(reasons.refuted(stays, wrong)) == 1


def _random_cluster(rng: np.random.Generator) -> Snapshot:
    """Two teams of two users each, and one team alone; nodes of cpu, memory and pods, most of them full."""
    queues = [
        QueueView("red", weight=float(rng.integers(1, 4)), cap={"cpu": int(rng.integers(4, 30))}),
        QueueView("blue", weight=float(rng.integers(1, 4)), guarantee={"cpu": int(rng.integers(0, 6))}),
        QueueView("green", weight=float(rng.integers(0, 3))),
    ]
    queues += [QueueView(f"{team}-{user}", parent=team) for team in ("red", "blue") for user in "ab"]
    nodes = [node(f"n{i}", cpu=int(rng.integers(4, 13)), memory=int(rng.integers(10, 60))) for i in range(3)]
    free = {n.name: n.allocatable["cpu"] for n in nodes}
    jobs: list[JobView] = []
    for i in range(int(rng.integers(8, 16))):
        low = int(rng.integers(1, 6))
        placed = {}
        where = f"n{int(rng.integers(3))}"
        if rng.random() < 0.5 and free[where] >= low and low <= 10:
            placed, free[where] = {where: low}, free[where] - low
        jobs.append(
            job(
                f"j{i:02}",
                low + int(rng.integers(0, 4)),
                low=low,
                queue=queues[int(rng.integers(len(queues)))].name,
                priority=int(rng.random() < 0.2),
                created=float(rng.integers(0, 3000)),
                placed=placed,
                preemptible=bool(rng.random() < 0.7),
                cpu=1,
            )
        )
    return build(nodes, jobs, queues, now_seconds=3000.0)


@pytest.mark.slow
def test_no_reason_of_five_hundred_jobs_that_wait_is_refuted() -> None:
    rng = np.random.default_rng(14)
    waited, seen = 0, set[type[Reason]]()
    while waited < 500:
        snapshot = _random_cluster(rng)
        plan = fair(snapshot)
        assert reasons.refuted(snapshot, plan) == []
        assert all(reason_texts.text(snapshot, plan, job) for job in range(snapshot.jobs))
        some = reasons.of_waiting(snapshot, plan)
        waited += len(some)
        seen.update(map(type, some))
    assert {DoesNotFit, QueueCap, QueueShare, NoSurplus, ItsTurn} <= seen


def _changed(plan: Plan, at: int, reason: Reason) -> Plan:
    return replace(plan, reasons=(*plan.reasons[:at], reason, *plan.reasons[at + 1 :]))


@pytest.mark.parametrize(
    "reason",
    [
        DoesNotFit(1, 1),
        QueueCap("q1", "cpu", needs=1, left=0, cap=4),
        QueueShare("q1", "cpu", holds=3, deserves=4.0, needs=1),
        QueueShare("q1", "cpu", holds=4, deserves=4.0, needs=2),
        NoSurplus("cpu", lacks=1, above=3.0),
        Reserved(1, 0, 100.0, "b"),
        ItsTurn(1, 0, 100.0),
        TooBig(1, 0),
        Crowded(1, 0),
        Reclaimed(0, 1, "b"),
        KEPT,
    ],
    ids=str,
)
def test_a_wrong_reason_is_refuted(reason: Reason) -> None:
    jobs = [
        job("a", 4, low=4, queue="q1", placed={"n1": 4}, cpu=1),
        job("b", 4, low=4, queue="q2", placed={"n1": 4}, cpu=1),
        job("c", 1, queue="q1", created=1.0, cpu=1),
    ]
    snapshot = build([node(cpu=8)], jobs, [QueueView("q1"), QueueView("q2")], now_seconds=100.0)
    plan = FairPolicy().optimize(snapshot)
    assert reasons.refuted(snapshot, plan) == []
    assert len(reasons.refuted(snapshot, _changed(plan, 2, reason))) == 1
