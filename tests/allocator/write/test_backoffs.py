"""How long a job is left alone whose writes were refused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from diflow.allocator.write.backoffs import Backoffs
from diflow.common.clock import Clock
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
    found = Backoffs(Clock(monotonic=lambda: now[0]))
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
    found = Backoffs(Clock(monotonic=lambda: 0.0))
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


def refuse_pods_for_ever(at: Lab, name: str) -> None:
    """As of a pod whose node selector its user has changed: the API server takes no other one."""

    def rule(request: Request) -> Answer | None:
        is_admission = request.method == "PATCH" and f"/pods/{name}-" in request.path and "status" not in request.path
        return (
            status(422, "only additions to spec.nodeSelector are allowed", reason="Invalid") if is_admission else None
        )

    at.api.rule(rule)


def test_a_job_whose_pods_cannot_be_written_gives_its_places_back_and_says_why(at: Lab) -> None:
    refuse_pods_for_ever(at, "hog")
    at.cluster.submit(job("hog", task(replicas=2 * GANG, cpu="1")))
    at.cluster.resume("hog")
    at.until(lambda: at.allocation("hog") != {}, "it has places")
    at.cluster.submit(job("other", task(replicas=2, cpu="1")))
    at.until(lambda: len(at.cluster.running("other")) == 2, "the other one gets them", seconds=600)
    assert any("its pods cannot be changed" in text for reason, text in at.events("hog") if reason == "Refused")


def test_a_job_whose_pods_cannot_be_written_is_preempted(at: Lab) -> None:
    refuse_pods_for_ever(at, "hog")
    at.cluster.submit(job("hog", task(replicas=2 * GANG, cpu="1"), preemptible=True))
    at.cluster.resume("hog")
    at.until(lambda: at.allocation("hog") != {}, "it has places")
    at.cluster.submit(job("high", task(replicas=2, cpu="1"), priority="high"))
    at.until(lambda: len(at.cluster.running("high")) == 2, "it gets places of the other one", seconds=60)
