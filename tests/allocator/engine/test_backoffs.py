"""How long a job is left alone whose writes were refused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from diflow.allocator.engine.backoffs import Backoffs
from tests.allocator.lab import Lab, job, lab, task
from tests.kube.fakeapi import Answer, Request, status

GANG = 8


@pytest.fixture
def at() -> Iterator[Lab]:
    with lab() as made:
        made.cluster.node("only", cpu=2 * GANG)
        yield made
        assert made.cluster.problems == []


def refuse_the_pods(at: Lab, code: int) -> list[str]:
    """Let the API server refuse the first patch of each pod. Returns the list of these, which grows."""
    refused: list[str] = []

    def rule(request: Request) -> Answer | None:
        if request.method != "PATCH" or "/pods/" not in request.path or request.path in refused:
            return None
        refused.append(request.path)
        return status(code, "not now")

    at.api.rule(rule)
    return refused


@pytest.mark.parametrize("code", [503, 409])
def test_a_gang_whose_pods_are_all_refused_once_is_left_alone_no_longer_than_one_pod(at: Lab, code: int) -> None:
    at.cluster.submit(job("gang", task(replicas=GANG, cpu="1")))
    at.cluster.resume("gang")  # its pods are there, with gates that the allocator removes
    refused = refuse_the_pods(at, code)
    at.until(lambda: len(refused) == GANG, "all patches were refused once")
    began = at.time.now()
    at.until(lambda: len(at.cluster.running("gang")) == GANG, "all of them run")
    assert at.time.now() - began < 10, "it was a minute"
    assert [reason for reason, _ in at.events("gang") if reason == "Refused"] == []


def test_a_back_off_is_longer_each_time_and_ends() -> None:
    now = [0.0]
    found = Backoffs(lambda: now[0])
    pauses = []
    for _ in range(12):
        found.start("a", ValueError("no"))
        pauses.append(found.next_end() - now[0])
        now[0] = found.next_end()
        assert not found.is_active("a")
        assert found.end_expired() == ["a"]
    assert pauses[0] < 1.0
    assert 30.0 < pauses[-1] <= 60.0
    assert found.jobs() == frozenset()


def test_only_conflicts_in_a_row_back_a_job_off() -> None:
    found = Backoffs(lambda: 0.0)
    for _ in range(3):
        assert not found.conflicted("a")
    found.succeeded("a")
    for _ in range(3):
        assert not found.conflicted("a")
    assert "changed by others all the time" in found.conflicted("a")
    assert found.is_active("a")
    assert not found.is_active("b")
    found.keep(())
    assert not found.is_active("a")
