"""`goodput` stops a running job only for more than the restart costs, so that jobs do not replace each other for ever.

Law 6 (`laws.settles`) judges the same on random snapshots: a plan that was carried out is followed by no other.
"""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from diflow.allocator.model.plan import carry_out, changes
from diflow.allocator.model.profile import Prior
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.model.views import JobView, NodeView, RoleView, build
from diflow.allocator.policies.base import load_policy
from diflow.allocator.policies.goodput.case import Case
from diflow.allocator.policies.goodput.table import Tables
from diflow.allocator.policies.settings import PolicySettings
from diflow.common.names import UNKNOWN_POOL
from tests.policies import laws
from tests.policies.lives import lives
from tests.policies.pool_clusters import pool_clusters
from tests.policies.test_pools import FAST, SHAPES, SLOW, cluster, places, profile, rows

NOW = 10_000.0


def gang(name: str, *, created: float, node: str = "") -> JobView:
    """A job of four replicas without reports, which has run for a minute."""
    return JobView(
        name,
        (RoleView("w", {"gpu": 1}, 4, 4, 4),),
        created_seconds=created,
        started_seconds=created,
        changed_seconds=NOW - 60.0,
        service_seconds=60.0,
        placed={"w": {node: 4}} if node else {},
    )


@pytest.mark.parametrize(("restart_seconds", "runs"), [(1.0, "older"), (30.0, "younger")])
def test_a_job_gives_way_only_to_one_that_is_worth_its_restart(restart_seconds: float, runs: str) -> None:
    """With its age, the waiting job is worth 7 % more. A restart of 30 s costs a tenth of the horizon, one of 1 s less
    than a hundredth."""
    snapshot = build(
        [NodeView("n0", {"gpu": 4})],
        [gang("older", created=0.0), gang("younger", created=NOW - 60.0, node="n0")],
        now_seconds=NOW,
    )
    policy = load_policy("goodput", PolicySettings(restart_seconds=restart_seconds, queue_ahead=1.0))
    plan = policy.optimize(snapshot)
    assert places(snapshot, plan) == {runs: {"n0": 4}}
    assert not changes(policy.optimize(carry_out(snapshot, plan)))


@pytest.mark.parametrize("policy", ["goodput", "fair+goodput"])
def test_two_jobs_do_not_exchange_their_pools_in_each_cycle(policy: str) -> None:
    """The times of `told` have no pool: if they counted where it runs, it would always seem faster elsewhere, because
    what earlier jobs have shown counts there."""
    records = {
        pool: Prior(version=at, observations=np.array(rows(pool, *SHAPES, pace=pace, sync=0.001)))
        for at, (pool, pace) in enumerate(((FAST, 2.0), (SLOW, 4.0)))
    }
    known = profile(*rows(UNKNOWN_POOL, *SHAPES[:2], sync=1.0), priors=records, prior=records[SLOW])
    silent, told = (RoleView("w", {"gpu": 1}, low, 8, low) for low in (5, 4))
    snapshot = cluster(
        JobView("silent", (silent,), created_seconds=NOW - 10.0),
        JobView("told", (told,), created_seconds=NOW - 1000.0, profile=known),
        fast=2,
        slow=2,
    )
    ask = load_policy(policy)
    plan = ask.optimize(snapshot)
    assert set(places(snapshot, plan)) == {"silent", "told"}
    assert not laws.settles(ask, snapshot, plan)


@pytest.mark.slow
@pytest.mark.parametrize("of", [lives, pool_clusters])
def test_a_plan_does_not_change_the_values_by_which_the_next_one_is_made(of: object) -> None:
    ask, tables, settings = load_policy("goodput").optimize, Tables(), PolicySettings()
    found = 0
    for snapshot, plan in islice(of(3, 400, ask), 400):  # type: ignore[operator]
        if not changes(plan):
            continue
        before, after = (_values(one, settings, tables) for one in (snapshot, carry_out(snapshot, plan)))
        assert after == pytest.approx(before)
        found += 1
    assert found > 100


def _values(snapshot: Snapshot, settings: PolicySettings, tables: Tables) -> list[float]:
    values = Case(snapshot, settings, tables).values
    return [*values.weight.tolist(), *values.left.tolist()]
