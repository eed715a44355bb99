"""A queue that a job names is looked up when it is submitted, by who may read the queues."""

from __future__ import annotations

from typing import Any

import pytest

from diflow.common import keys
from diflow.common.errors import InvalidError
from diflow.common.queue_access import QueueAccess
from diflow.jobs.checks.queues import NOT_LENT
from diflow.jobs.submit import submit
from diflow.kube.kinds import CONFIG_MAP, WORKFLOW
from tests.builders import job
from tests.cli.placed import queues
from tests.cli.runner import Cli
from tests.kube.fakeapi import status

_QUEUES = "queues: [{name: default}, {name: research}, {name: vision}]"
_NO_EFFECT = "spec.queue 'reserach' has no effect: the administrator has defined no queues, and all jobs share one"


@pytest.fixture
def cluster(diflow: Cli) -> Cli:
    """A cluster with an allocator."""
    diflow.prepare()
    data = {"scheduling": "gang", "namespace": "diflow-system"}
    diflow.api.add(CONFIG_MAP, {"metadata": {"name": "diflow-allocator"}, "data": data}, namespace="kube-public")
    return diflow


def told(diflow: Cli, queue: str | None, **fields: Any) -> list[str]:
    """What the submission of a job with this queue says."""
    said: list[str] = []
    submit(job(name="job", queue=queue, **fields), cluster=diflow.api.cluster(), on_note=said.append)
    assert "job" in diflow.api.objects[WORKFLOW.path("default")]
    return said


def test_a_misspelt_queue_is_refused_with_the_one_that_was_meant(cluster: Cli) -> None:
    queues(cluster, _QUEUES)
    why = r"^spec\.queue: there is no queue 'reserach': did you mean 'research'\?$"
    with pytest.raises(InvalidError, match=why):
        told(cluster, "reserach")
    assert "job" not in cluster.api.objects.get(WORKFLOW.path("default"), {})


def test_a_queue_that_is_like_no_other_is_refused_with_those_that_there_are(cluster: Cli) -> None:
    queues(cluster, _QUEUES)
    with pytest.raises(InvalidError, match="there is no queue 'quantum': there are default, research, vision"):
        told(cluster, "quantum")


@pytest.mark.parametrize("queue", ["research", None])
def test_a_queue_that_there_is_is_not_spoken_of(cluster: Cli, queue: str | None) -> None:
    queues(cluster, _QUEUES)
    assert told(cluster, queue) == []


@pytest.mark.parametrize(
    ("queue", "fields", "is_told"),
    [
        ("default", {"preemptible": False}, True),
        ("default", {"preemptible": True}, False),
        ("vision", {"preemptible": False}, False),
    ],
)
@pytest.mark.parametrize("is_admin", [True, False])
def test_a_fixed_job_is_told_that_it_borrows_no_guarantee(
    cluster: Cli, queue: str, fields: dict[str, Any], is_told: bool, is_admin: bool
) -> None:
    text = """
        queues:
          - {name: default}
          - {name: vision, guarantee: {nvidia.com/gpu: 8}}
          - {name: open, guarantee: {nvidia.com/gpu: 8}, lendsTo: all}
    """
    if is_admin:
        queues(cluster, text)
    else:
        cluster.api.fail(status(403, "Forbidden", reason="Forbidden"), path="/configmaps/diflow-queues")
        public = {"metadata": {"name": keys.PUBLIC_QUEUES}, "data": {"queues.yaml": QueueAccess.read(text).text()}}
        cluster.api.add(CONFIG_MAP, public, namespace="kube-public")
    assert told(cluster, queue, **fields) == ([NOT_LENT] if is_told else [])


@pytest.mark.parametrize("text", [None, "queues: []"])
def test_where_no_queues_are_defined_a_name_has_no_effect_and_that_is_said_once(cluster: Cli, text: str | None) -> None:
    if text is not None:
        queues(cluster, text)
    assert told(cluster, "reserach") == [_NO_EFFECT]


def test_the_command_says_so(cluster: Cli) -> None:
    said = cluster("submit", cluster.file("job.yaml", job(name="job", queue="reserach").to_yaml()))
    assert said.code == 0, said.err
    assert said.err.count(_NO_EFFECT) == 1


def test_the_default_queue_is_not_spoken_of(cluster: Cli) -> None:
    assert told(cluster, "default") == []


@pytest.mark.parametrize("text", ["queues: {", "queues: [1]", "queues: 3", "- x", "queues: [{name: 2026-13-45}]"])
def test_queues_that_cannot_be_understood_refuse_nothing(cluster: Cli, text: str) -> None:
    """The allocator tells the administrator, and goes on with those that it knew."""
    queues(cluster, text)
    assert told(cluster, "reserach") == []


def test_a_user_who_may_not_read_the_queues_submits_and_the_allocator_says_it(cluster: Cli) -> None:
    queues(cluster, _QUEUES)
    cluster.api.fail(status(403, "Forbidden", reason="Forbidden"), path="/configmaps/diflow-queues")
    assert told(cluster, "reserach") == []


def test_the_queue_of_a_job_that_argo_alone_runs_is_not_looked_up(cluster: Cli) -> None:
    queues(cluster, _QUEUES)
    assert told(cluster, "reserach", scheduling="none") == []


def test_the_administrator_may_keep_the_queues_elsewhere(cluster: Cli) -> None:
    data = {"scheduling": "gang", "namespace": "diflow-system", "queues": "team-queues"}
    cluster.api.add(CONFIG_MAP, {"metadata": {"name": "diflow-allocator"}, "data": data}, namespace="kube-public")
    team = {"metadata": {"name": "team-queues"}, "data": {"queues.yaml": _QUEUES}}
    cluster.api.add(CONFIG_MAP, team, namespace="diflow-system")
    assert told(cluster, "research") == []
