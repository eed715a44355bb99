"""Searches for victims: those that are ruled out beforehand would fail."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from diflow.allocator.model.arrays import BoolArray, FloatArray
from diflow.allocator.model.ledger import Ledger
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.model.views import QueueView, build
from diflow.allocator.policies.fair.cycle import Cycle
from diflow.allocator.policies.fair.policy import FairPolicy
from diflow.allocator.policies.fair.shares import deserved_by
from diflow.allocator.policies.fair.state import State
from diflow.allocator.policies.fair.transactions import MOST_TRANSACTIONS
from diflow.allocator.policies.fair.victim_filters import agreed, drf
from diflow.allocator.policies.fair.victims import MayTake, Reach, evict_for, order_of_victims
from diflow.allocator.policies.settings import PolicySettings
from tests.policies import laws
from tests.policies.generators import snapshots
from tests.policies.judging import cheap
from tests.policies.test_queues import gang, held, node


def keeps_its_share(ledger: Ledger, over: FloatArray) -> MayTake:
    """Each queue loses at most `over` in total."""
    before = [list(row) for row in ledger.used]

    def may_take(victim: int, amount: list[int]) -> bool:
        queue = ledger.facts.job_queue[victim]
        given = [b - now for b, now in zip(before[queue], ledger.used[queue], strict=True)]
        return all(g + a <= most or a == 0 for g, a, most in zip(given, amount, over[queue], strict=True))

    return may_take


def search(
    snapshot: Snapshot, job: int, candidates: BoolArray, over: FloatArray | None, count: int
) -> tuple[bool, bool]:
    """(whether the bound allows success, whether the search succeeds)."""
    ledger = Ledger(snapshot)
    want = dict.fromkeys(ledger.roles_of(job), count)
    reach = Reach(ledger, candidates, over)
    told = reach.is_enough(want) and reach.fits_on_nodes(want)
    order = order_of_victims(snapshot)
    chosen = [j for j in order[candidates[order]].tolist() if j != job]
    may_take = (lambda _victim, _amount: True) if over is None else keeps_its_share(ledger, over)
    return told, evict_for(ledger, job, want, chosen, may_take) is not None


def test_no_search_that_succeeds_is_ruled_out_beforehand() -> None:
    rng = np.random.default_rng(5)
    seen: set[tuple[bool, bool]] = set()
    for snapshot in snapshots(11, 300, jobs=10, nodes=4):
        ledger = Ledger(snapshot)
        # Queues above other queues count what those below them hold: here each is looked at by itself.
        if (snapshot.queue_parent >= 0).any():
            continue
        spare = np.maximum(ledger.queue_used - deserved_by(snapshot), 0.0)
        for job in np.flatnonzero((snapshot.job_queue >= 0) & ~snapshot.job_pinned).tolist():
            candidates = snapshot.job_preemptible & (rng.random(snapshot.jobs) < 0.8) & (snapshot.job_queue >= 0)
            candidates[job] = False
            for over in (None, spare):
                told, found = search(snapshot, job, candidates, over, int(rng.integers(1, 5)))
                assert told or not found
                seen.add((told, found))
    assert seen == {(True, True), (True, False), (False, False)}


def share(ledger: Ledger, job: int) -> Fraction:
    """The dominant share, exactly."""
    amount = ledger.amount({r: ledger.count[r] for r in ledger.roles_of(job)})
    return max(Fraction(a, t) for a, t in zip(amount, ledger.facts.total, strict=True))


@pytest.mark.slow
def test_by_drf_each_victim_keeps_what_the_preemptor_gets_and_who_is_not_asked_would_not_give() -> None:
    rng = np.random.default_rng(7)
    taken = refused = hopeless = 0
    for snapshot in snapshots(12, 500, jobs=10, nodes=4):
        for job in np.flatnonzero((snapshot.job_queue >= 0) & ~snapshot.job_pinned).tolist():
            everybody = snapshot.job_preemptible & (snapshot.job_queue >= 0)
            everybody[job] = False
            order = order_of_victims(snapshot)
            count = int(rng.integers(1, 4))
            ends = []
            for all_asked in (False, True):
                ledger = Ledger(snapshot)
                want = dict.fromkeys(ledger.roles_of(job), count)
                able, may_take = agreed([drf(ledger)], job, want, everybody)
                reach = Reach(ledger, able, None)
                told = reach.is_enough(want) and reach.fits_on_nodes(want)
                asked = everybody if all_asked else able
                found = evict_for(ledger, job, want, order[asked[order]].tolist(), may_take)
                assert told or found is None
                hopeless += not told
                ends.append((found, ledger.count))
            assert ends[0] == ends[1]
            victims, _ = ends[0]
            for victim in victims or ():
                assert share(ledger, victim) >= share(ledger, job)
            taken += bool(victims)
            refused += victims is None and any(
                share(Ledger(snapshot), v) > 0 for v in np.flatnonzero(everybody).tolist()
            )
    assert min(taken, refused, hopeless) > 50


@pytest.mark.slow
def test_no_law_is_broken_where_drf_must_agree() -> None:
    policy = FairPolicy(PolicySettings(victims=("drf",)))
    differs = 0
    for number, snapshot in enumerate(snapshots(13, 400, jobs=8, nodes=4)):
        plan = policy.optimize(snapshot)
        assert cheap(policy, snapshot, plan) == []
        if number % 8 == 0:
            assert laws.settles(policy, snapshot, plan) == []
        differs += plan.to_bytes(snapshot) != FairPolicy().optimize(snapshot).to_bytes(snapshot)
    assert differs > 20


def test_hopeless_gangs_do_not_use_up_what_a_cycle_may_try() -> None:
    """The first jobs that fit nowhere used to be tried again each cycle, and those after them never."""
    count = MOST_TRANSACTIONS + 10
    # Each wants more than its queue's other job can lose, and nothing else may be taken.
    jobs = [gang("base", 6, low=6, placed={"n1": 6}, preemptible=False, cpu=1)]
    jobs += [gang("weak", 2, low=2, placed={"n1": 2}, cpu=1)]
    # No two are of one kind, or one would stand for all of it.
    jobs += [
        gang(f"large-{i:03}", 3 + i % 5 + i // 5, low=3 + i % 5, priority=2, created=float(i), cpu=1)
        for i in range(count)
    ]
    jobs += [gang("small", 2, low=2, priority=1, created=1e6, cpu=1)]
    snapshot = build([node(cpu=8)], jobs, [QueueView("default")])
    result = held(snapshot, FairPolicy().optimize(snapshot))
    assert (result["base"], result["weak"], result["small"]) == (6, 0, 2)


def test_what_was_granted_in_part_is_asked_for_again_in_the_same_cycle() -> None:
    # Ten more are desired, more than can be taken. Five are found, and then two of the five that are left.
    jobs = [
        gang("high", 16, priority=1, placed={"n1": 6}, cpu=1),
        gang("low", 7, placed={"n1": 7}, cpu=1),
    ]
    snapshot = build([node(cpu=13)], jobs, [QueueView("default")])
    plan = Cycle(State(snapshot, PolicySettings())).run(("preempt",), "fair")
    assert held(snapshot, plan) == {"high": 13, "low": 0}
