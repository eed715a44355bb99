"""Ranks and hosts for given numbers of replicas. tests/e2e/test_members.py compares them with Argo's."""

from __future__ import annotations

import pytest

from diflow.settings import RenderSettings
from diflow.state.roster import roster, service_of
from diflow.workflows import render
from tests.builders import job, task


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


def test_a_workflow_from_before_keeps_the_hosts_of_its_own_service() -> None:
    now = render(job(task("learner")), settings=RenderSettings())
    assert service_of(now) == "di"
    before = {**now, "spec": {"templates": [*now["spec"]["templates"], {"name": "make-service", "resource": {}}]}}
    assert service_of(before) == "di-job"
    found = roster("job", "ml", {"learner": 1}, service=service_of(before))
    assert found.nodes == "job-learner-0.di-job.ml.svc.cluster.local"


@pytest.mark.parametrize(
    "templates", [None, 3, "make-service", [None, 3, ["make-service"]], [{"name": ["make-service"]}], [{"name": {}}]]
)
def test_templates_that_somebody_edited_are_not_those_of_a_workflow_from_before(templates: object) -> None:
    assert service_of({"metadata": {"name": "job"}, "spec": {"templates": templates}}) == "di"


def test_a_workflow_from_before_without_a_name_is_no_error() -> None:
    assert service_of({"metadata": None, "spec": {"templates": [{"name": "make-service"}]}}) == "di-"
