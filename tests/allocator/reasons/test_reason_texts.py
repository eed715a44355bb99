"""The reasons as text: which resource is short on which nodes, which limit binds, and what would have to change."""

from __future__ import annotations

import re

import pytest

from diflow.allocator.model import reasons
from diflow.allocator.model.amounts import amount
from diflow.allocator.model.plan import Plan
from diflow.allocator.model.reasons import Reason
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.model.views import JobView, NodeView, QueueView, RoleView, build
from diflow.allocator.policies.base import load_policy
from diflow.allocator.reasons import reason_texts
from tests.policies.generators import snapshots


def lines(snapshot: Snapshot, plan: Plan) -> list[str]:
    """A line for each job, in the order of their names."""
    return [reason_texts.text(snapshot, plan, job) for job in range(snapshot.jobs)]


def worker(cpu: int, memory: int, low: int, high: int | None = None, name: str = "worker") -> RoleView:
    return RoleView(name, {"cpu": 1000 * cpu, "memory": 1024 * memory}, low, high)


def cluster() -> tuple[Snapshot, Plan]:
    """a and b hold 6 of 8 cpu each, c is empty but for one job, d is closed."""
    nodes = [NodeView(n, {"cpu": 8000, "memory": 16384, "pods": 9}, is_open=n != "d") for n in "abcd"]
    jobs = [
        JobView(
            "firm", (worker(6, 4, 2),), preemptible=False, placed={"worker": {"a": 1, "b": 1}}, started_seconds=0.0
        ),
        JobView("full", (worker(7, 1, 1),), placed={"worker": {"c": 1}}, started_seconds=0.0),
        JobView("gang", (worker(2, 4, 4),), created_seconds=800.0, preemptible=False),
        JobView("huge", (worker(2, 4, 40),), created_seconds=800.0),
        JobView("capped", (worker(1, 1, 3),), created_seconds=800.0, queue="small"),
    ]
    queues = [QueueView("default"), QueueView("small", cap={"cpu": 2000})]
    snapshot = build(nodes, jobs, queues, now_seconds=1000.0)
    return snapshot, load_policy("fit").optimize(snapshot)


def details(name: str) -> list[str]:
    snapshot, plan = cluster()
    return reason_texts.details(snapshot, plan, snapshot.job_names.index(name))


def test_a_job_that_waits_says_what_is_short_where_and_what_would_have_to_change() -> None:
    assert details("gang") == [
        "it waits for capacity: its gang needs 4 replicas at once and 2 fit now, each 2 cpu, 4Gi memory; "
        "c lacks 1 cpu, 1 node is closed",
        "asks for: 4 × worker of 2 cpu, 4Gi memory; priority 0, not preemptible, queue default",
        "worker: 2 more fit now (1 on a, 1 on b); c lacks 1 cpu, 1 node is closed",
        "  2 cpu each: 5 cpu free in all on 3 nodes, at most 2 cpu on one (a)",
        "  4Gi memory each: 39Gi memory free in all on 3 nodes, at most 15Gi memory on one (c)",
        "would start when there is capacity for 2 × (2 cpu, 4Gi memory) more where it may run, or with a minimum of 2",
        "in its way: 1 job that may not be moved, 1 job of its priority or above (`spec.priority: high` may stop some)",
    ]


def test_a_cap_and_a_gang_that_is_too_big_are_named() -> None:
    capped = details("capped")
    assert "queue 'small' is capped" in capped[0]
    assert "limit: queue 'small' may hold 2 cpu, and holds 0 cpu" in capped
    assert capped[-1].startswith("would start with a smaller gang, when the cap is raised")
    huge = "its gang needs 40 × worker, each 2 cpu, 4Gi memory, and they take 16 of them, even when all are open"
    assert f"cannot start on the nodes that are there: {huge}" in details("huge")[0]
    assert details("huge")[-1] == "would start with nodes that are added, fewer replicas"


def test_what_is_in_the_way_of_a_job_is_named_where_an_empty_cluster_would_hold_it() -> None:
    nodes = [
        NodeView("a", {"cpu": 8000}, foreign={"cpu": 7000, "memory": 99}),
        NodeView("b", {"cpu": 4000}, is_open=False),
        NodeView("c", {"cpu": 16000}, foreign={"cpu": 9000}, is_open=False),
        NodeView("d", {"cpu": 1000}, foreign={"cpu": 1000}),
        NodeView("e", {"cpu": 2000}, foreign={"cpu": 1000}),
        NodeView("f", {"cpu": 2000}, foreign={"cpu": 1000}),
    ]
    jobs = [
        JobView("crowded", (RoleView("w", {"cpu": 2000}, 6, 6, 6),)),
        JobView("never", (RoleView("w", {"cpu": 2000}, 17, 17, 17),)),
        JobView("both", (RoleView("few", {"cpu": 2000}, 6, 6, 6), RoleView("many", {"cpu": 2000}, 17, 17, 17))),
    ]
    snapshot = build(nodes, jobs, now_seconds=1000.0)
    plan = load_policy("fit").optimize(snapshot)
    told = {name: reason_texts.details(snapshot, plan, at) for at, name in enumerate(snapshot.job_names)}
    assert told["crowded"][0] == (
        "it cannot start now: its gang needs 6 × w, each 2 cpu, and 0 fit; c: other pods hold 9 cpu and it is closed, "
        "a: other pods hold 7 cpu, b: it is closed, 2 more nodes are held or closed"
    )
    assert told["crowded"][-1] == "would start when those pods have ended and those nodes are open"
    for name in ("never", "both"):
        assert told[name][0].startswith("it cannot start on the nodes that are there: its gang needs 17 × ")
        assert "and they take 16 of them" in told[name][0]
        assert told[name][0].endswith(": 1 node is too small for 2 cpu")
        assert (
            told[name][-1]
            == "would start with less for each replica, or larger nodes, nodes that are added, fewer replicas"
        )


def test_a_job_that_runs_says_what_it_holds_and_is_to_hold() -> None:
    assert details("firm")[1:] == [
        "asks for: 2 × worker of 6 cpu, 4Gi memory; priority 0, not preemptible, queue default",
        "holds: 2 × worker (1 on a, 1 on b)",
    ]
    snapshot = build([NodeView("n", {"cpu": 4000})], [JobView("new", (RoleView("w", {"cpu": 1000}, 1, 8),))])
    plan = load_policy("fit").optimize(snapshot)
    told = reason_texts.details(snapshot, plan, 0)
    assert told[1:4] == [
        "asks for: 1 to 8 × w of 1 cpu; priority 0, preemptible, queue default",
        "is to hold: 4 × w (4 on n)",
        "w: 0 more fit now; n lacks 1 cpu",
    ]


def test_a_job_that_is_not_preemptible_and_lacks_replicas_says_that_they_have_no_room() -> None:
    jobs = [
        JobView("some", (worker(2, 1, 1, 3),), preemptible=False, placed={"worker": {"a": 1}}, started_seconds=0.0),
        JobView("all", (worker(1, 1, 1),), preemptible=False, placed={"worker": {"a": 1}}, started_seconds=0.0),
    ]
    snapshot = build([NodeView("a", {"cpu": 4000, "memory": 16384, "pods": 9})], jobs, now_seconds=1000.0)
    said = reason_texts.Explainer(snapshot, load_policy("fit").optimize(snapshot))
    assert said.sentence(snapshot.job_names.index("some")).endswith(
        "keeps what it holds: no node has room for the rest"
    )
    assert said.sentence(snapshot.job_names.index("all")).endswith("it is not preemptible, so it is never moved")


def test_a_job_that_has_all_it_may_have_says_so() -> None:
    most = worker(1, 1, 1, 2)
    few = JobView("few", (most,), placed={"worker": {"n": 1}}, started_seconds=0.0)
    all_ = JobView("all", (most,), placed={"worker": {"n": 2}}, started_seconds=0.0)
    snapshot = build([NodeView("n", {"cpu": 3000, "memory": 4096})], [few, all_], now_seconds=1000.0)
    assert lines(snapshot, load_policy("fit").optimize(snapshot)) == [
        "all: keep: keeps what it holds: it has all that it may have",
        "few: keep: keeps what it holds: no change is worth its cost",
    ]


@pytest.mark.parametrize(
    ("action", "why", "said"),
    [
        ("keep", "keeps what it holds: it has all that it may have", "it keeps what it holds: it has all that"),
        ("admit", "starts: it gets 2 of the 2 replicas it asks for", "it starts: it gets 2 of the 2 replicas"),
        (
            "late",
            "has not been placed within 60 s, and waits: no node",
            "it has not been placed within 60 s, and waits",
        ),
        (
            "resize",
            "speed 1.00 → 2.00 times its smallest",
            "it changes its number of replicas: speed 1.00 → 2.00 times",
        ),
        ("restart", "worker-0 failed (main: Error)", "worker-0 failed (main: Error)"),
        ("check", "its node check left out node a: no disk", "its node check left out node a: no disk"),
    ],
)
def test_a_decision_is_a_sentence_about_the_job(action: str, why: str, said: str) -> None:
    assert reason_texts.sentence(action, why).startswith(said)


EACH = (
    *(reasons.KEPT, reasons.KEPT_NOT_PREEMPTIBLE, reasons.NoNodes(), reasons.Explores(), reasons.PolicyFailed()),
    *(reasons.DoesNotFitElsewhere(2, 1), reasons.TooSoon(2, 1, 9.0), reasons.GainTooSmall(2, 1)),
    reasons.TakesTooLong(),
    *(reasons.Fits(1, 2), reasons.Grown(2), reasons.PlacedAgain(2, 1)),
    *(reasons.Gain(2.0, 1.0, 1.0), reasons.WorthMoreElsewhere(1.0, 2.0)),
    *(reasons.PreemptedForPriority(0, 1, "b"), reasons.Reclaimed(0, 1, "b"), reasons.ReclaimedByGuarantee(0, 1, "b")),
    *(reasons.SharedInQueue(1, 2, "b"), reasons.GaveBackReservation(0, 1, "b"), reasons.ShrunkForOthers(1, 2, "b")),
    *(reasons.DoesNotFit(2, 1), reasons.TooBig(2, 1), reasons.Crowded(2, 1), reasons.NoSuchQueue("q")),
    *(reasons.ItsTurn(2, 1, 9.0), reasons.Reserved(2, 1, 9.0, "b")),
    reasons.RulesLeaveTooFew(2, 1, "podAntiAffinity by kubernetes.io/hostname"),
    *(reasons.QueueCap("q", "cpu", needs=2, left=1, cap=4), reasons.QueueShare("q", "cpu", 1, 1.0, 1)),
    *(
        reasons.OwnShare("q", "cpu", 1, 1.0, 1),
        reasons.NamespaceShare("q", "cpu", 1, 1.0, 1),
        reasons.NoSurplus("cpu", 2, 1.0),
    ),
    reasons.GuaranteedElsewhere("q", "cpu", 2, 1.0),
    *(reasons.LentToPreemptible("q", "cpu", needs=2, left=1), reasons.GuaranteeHeld("q", "cpu", 2, 3, ("r",))),
)
"""One of each kind."""


def test_the_words_for_machines_stay_what_they_are() -> None:
    kinds = {kind for kind in vars(reasons).values() if isinstance(kind, type) and issubclass(kind, Reason)}
    assert {kind for kind in kinds if kind.text is not Reason.text} - {reasons.Loss} == set(map(type, EACH))
    assert " ".join(sorted(reason.word for reason in EACH)) == (
        "crowded does_not_fit does_not_fit_elsewhere explores fits gain gain_too_small gave_back_reservation grown "
        "guarantee_held guaranteed_elsewhere its_turn kept kept_not_preemptible lent_to_preemptible namespace_share "
        "no_nodes no_such_queue no_surplus own_share placed_again policy_failed preempted_for_priority "
        "queue_cap queue_share reclaimed reclaimed_by_guarantee "
        "reserved rules_leave_too_few shared_in_queue shrunk_for_others shrunk_for_others takes_too_long too_big "
        "too_soon"
    )


@pytest.mark.parametrize("reason", EACH, ids=str)
def test_every_reason_can_be_said_of_it(reason: Reason) -> None:
    found = reason_texts.sentence("resize", reason.text())
    assert re.match(r"it (\w+s|is|has|can|cannot)\b", found)


def test_one_replica_is_no_replicas() -> None:
    """Noun and verb are singular for one, plural for none."""
    nodes = [NodeView("n", {"cpu": 3000})]
    cpu = {"cpu": 1000}
    jobs = [
        JobView("low", (RoleView("w", cpu, 1, 3),), placed={"w": {"n": 3}}, started_seconds=0.0),
        JobView("new", (RoleView("w", cpu, 2),), priority=1, preemptible=False, created_seconds=900.0),
        JobView("one", (RoleView("w", cpu, 1),), preemptible=False, created_seconds=950.0),
    ]
    snapshot = build(nodes, jobs, now_seconds=1000.0)
    low, new, one = lines(snapshot, load_policy("fit").optimize(snapshot))
    assert "has 1 replica instead of 3: 'new' needs capacity" in low
    assert "it gets 2 of the 2 replicas it asks for" in new
    assert "its gang needs 1 replica at once and 0 fit now" in one


@pytest.mark.parametrize("policy", ["fit", "fair"])
def test_a_job_that_starts_with_more_than_its_minimum_is_told_all_that_it_gets(policy: str) -> None:
    job = JobView("new", (RoleView("w", {"cpu": 1000}, minimum=2, maximum=5, desired=5),))
    snapshot = build([NodeView("n", {"cpu": 4000})], [job], now_seconds=1000.0)
    (new,) = lines(snapshot, load_policy(policy).optimize(snapshot))
    assert "starts: it gets 4 of the 5 replicas it asks for" in new


def test_a_gang_whose_roles_do_not_fit_together_says_so() -> None:
    cpu = {"cpu": 1000}
    jobs = [JobView("gang", (RoleView("a", cpu, 1), RoleView("b", cpu, 3)), preemptible=False)]
    full = JobView("full", (RoleView("w", cpu, 2),), preemptible=False, placed={"w": {"n": 2}}, started_seconds=0.0)
    snapshot = build([NodeView("n", {"cpu": 5000})], [*jobs, full], now_seconds=1000.0)
    told = reason_texts.details(snapshot, load_policy("fit").optimize(snapshot), 1)
    assert told[0] == (
        "it waits for capacity: each of its roles fits by itself, and not its 4 replicas (1 × a, 3 × b) together"
    )
    assert (
        "cannot start before 1 cpu more is free where it may run: its roles together need 4 cpu, and 3 cpu is free"
    ) in told


def test_a_gang_of_several_roles_for_which_the_nodes_only_divide_enough_capacity_badly_says_so() -> None:
    roles = (RoleView("a", {"cpu": 1000}, 1), RoleView("b", {"cpu": 3000}, 1))
    held = {"full": {"n": 1, "m": 1}}
    full = JobView("full", (RoleView("full", {"cpu": 2000}, 2),), preemptible=False, placed=held, started_seconds=0.0)
    nodes = [NodeView("n", {"cpu": 5000}), NodeView("m", {"cpu": 2500})]
    snapshot = build(nodes, [JobView("gang", roles, preemptible=False), full], now_seconds=1000.0)
    told = reason_texts.details(snapshot, load_policy("fit").optimize(snapshot), 1)
    assert "cannot start before 0.5 cpu more is free" in "\n".join(told)
    nodes[1] = NodeView("m", {"cpu": 2900})
    split = JobView("gang", (RoleView("a", {"cpu": 1000}, 1), RoleView("b", {"cpu": 2800}, 1)), preemptible=False)
    snapshot = build(nodes, [split, full], now_seconds=1000.0)
    told = reason_texts.details(snapshot, load_policy("fit").optimize(snapshot), 1)
    assert "would start when its roles fit together; each by itself does" in told


def test_no_priority_is_named_that_no_job_can_have() -> None:
    full = JobView(
        "full", (RoleView("w", {"cpu": 1000}, 1),), priority=100, placed={"w": {"n": 1}}, started_seconds=0.0
    )
    gang = JobView("gang", (RoleView("w", {"cpu": 1000}, 1),), created_seconds=9.0, preemptible=False, priority=100)
    snapshot = build([NodeView("n", {"cpu": 1000})], [full, gang], now_seconds=1000.0)
    told = reason_texts.details(snapshot, load_policy("fit").optimize(snapshot), 1)
    assert told[-1] == "in its way: 0 jobs that may not be moved, 1 job of its priority or above"


def test_a_reservation_is_named() -> None:
    nodes = [NodeView("n1", {"gpu": 4}), NodeView("n2", {"gpu": 4})]
    gpu = {"gpu": 1}
    jobs = [
        JobView("firm", (RoleView("w", gpu, 6),), preemptible=False, placed={"w": {"n1": 2, "n2": 4}}),
        JobView("gang", (RoleView("w", gpu, 4),), preemptible=False, created_seconds=0.0),
        JobView("small", (RoleView("w", gpu, 1),), created_seconds=900.0),
    ]
    snapshot = build(nodes, jobs, now_seconds=1000.0)
    told = reason_texts.details(snapshot, load_policy("fit").optimize(snapshot), snapshot.job_names.index("small"))
    assert "limit: capacity is reserved for 'gang', which has waited for 1000 s" in told


@pytest.mark.parametrize("name", ["fit", "fair", "goodput", "fair+goodput"])
def test_every_decision_of_every_policy_has_a_text(name: str) -> None:
    policy = load_policy(name)
    for snapshot in snapshots(17, 100):
        plan = policy.optimize(snapshot)
        for job, line in enumerate(lines(snapshot, plan)):
            assert line.startswith(f"{snapshot.job_names[job]}: ")
            told = reason_texts.details(snapshot, plan, job)
            assert re.match(r"it (\w+s|is|has|can|cannot)\b", told[0])
            assert line.split(": ", 2)[2] in told[0]
            assert not [part for part in told if "{" in part or not part.strip()]


def test_amounts_are_in_the_units_of_kubernetes() -> None:
    assert amount("cpu", 1500) == "1.5 cpu"
    assert amount("memory", 4096) == "4Gi memory"
    assert amount("memory", 16256) == "15.9Gi memory"
    assert amount("ephemeral-storage", 100) == "100Mi ephemeral-storage"
    assert amount("nvidia.com/gpu", 2) == "2 nvidia.com/gpu"
    assert amount("hostport/8080", 1) == "host port 8080"
    assert amount("pods", 1) == "1 pod"


@pytest.mark.parametrize("reason", EACH, ids=str)
def test_a_reason_names_the_one_thing_that_happened(reason: Reason) -> None:
    said = reason.text().split(";")[0]  # it is followed by what to do
    assert " or " not in said
