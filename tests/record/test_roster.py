"""Ranks and hosts for given numbers of replicas. tests/e2e/test_members.py compares them with Argo's."""

from __future__ import annotations

import pytest

from diflow.record.roster import roster


def test_ranks_count_over_all_tasks_in_their_order_and_index_the_hosts() -> None:
    found = roster("job", "ml", {"learner": 1, "collector": 2})
    assert found.nodes == (
        "job-learner-0.di.ml.svc.cluster.local,"
        "job-collector-0.di.ml.svc.cluster.local,"
        "job-collector-1.di.ml.svc.cluster.local"
    )
    assert found.rank_of("collector", 1) == 2
    assert found.hosts[found.rank_of("collector", 0)].startswith("job-collector-0.")


def test_a_task_that_grows_moves_the_ranks_behind_it_and_no_host_name() -> None:
    before = roster("job", "ml", {"collector": 1, "evaluator": 1})
    after = roster("job", "ml", {"collector": 3, "evaluator": 1})
    assert (before.rank_of("evaluator", 0), after.rank_of("evaluator", 0)) == (1, 3)
    assert set(before.hosts) < set(after.hosts)


def test_a_task_that_is_not_in_it_is_an_error() -> None:
    with pytest.raises(KeyError):
        roster("job", "ml", {"learner": 1}).rank_of("collector", 0)


def test_short_hosts_are_those_of_the_expression_in_the_pods() -> None:
    assert roster("job", "ml", {"learner": 1, "collector": 1}, short=True).nodes == "job-learner-0,job-collector-0"
