"""The allocator records the jobs that have ended, each namespace on its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from diflow.allocator.remember import ended_jobs, namespace_records
from diflow.allocator.remember.ended_jobs import EndedJobs
from diflow.common import keys
from diflow.common.errors import LostLeadershipError
from diflow.kube.kinds import CONFIG_MAP, WORKFLOW
from diflow.record.namespace import ended
from diflow.record.namespace.ended import EndedJob
from tests.allocator.faults import Time, client, eventually
from tests.kube.fakeapi import Answer, FakeApi, Request, serving, status
from tests.record.seen import SeenJob, at

COMPLETED = {"workflows.argoproj.io/completed": "true"}


class Leader:
    """An elector, as far as the recorder uses it."""

    leads = True

    def check(self) -> int:
        if not self.leads:
            raise LostLeadershipError("another process leads")
        return 1

    def writes_as(self, epoch: str) -> str:
        return f"diflow-allocator/diflow-system/uid/{epoch}"


class Scene:
    """A recorder of a process that leads."""

    def __init__(self, api: FakeApi) -> None:
        self.api, self.time = api, Time()
        self.leader = Leader()
        self.recorder = self.new()

    def new(self) -> EndedJobs:
        """The recorder of a new process."""
        elector: Any = self.leader
        made = EndedJobs(client(self.api), elector, clock=self.time.clock)
        made.workflows.start()
        return made

    def prepare(self, *namespaces: str) -> None:
        for name in namespaces:
            self.api.add(CONFIG_MAP, {"metadata": {"name": keys.ENDED_JOBS}}, namespace=name)

    def end(self, *names: str, namespace: str = "default", seconds: int = 50, **changed: Any) -> None:
        """These jobs end."""
        for name in names:
            made = SeenJob(name, learner=1).all_ready().ended(seconds).workflow()
            labels = {**made["metadata"]["labels"], **COMPLETED}
            made["metadata"] |= {"labels": labels, "namespace": namespace, "uid": f"{namespace}-{name}", **changed}
            self.api.add(WORKFLOW, made, namespace=namespace)

    def seen(self, count: int, recorder: EndedJobs | None = None) -> None:
        """Wait until the watch has this many Workflows."""
        found = (recorder or self.recorder).workflows
        eventually(lambda: found.synced and len(found.items()) == count, f"{count} ended jobs are seen")

    def text(self, namespace: str = "default") -> str:
        return ended.text_of(self.api.objects[CONFIG_MAP.path(namespace)][keys.ENDED_JOBS])

    def recorded(self, namespace: str = "default") -> list[EndedJob]:
        return ended.parse(self.text(namespace), namespace=namespace, now_seconds=time.time())

    def names(self, namespace: str = "default") -> list[str]:
        return [job.name for job in self.recorded(namespace)]

    def reads(self, namespace: str = "default") -> int:
        """How many Workflows of the namespace were read."""
        return len(self.api.seen("GET", f"/namespaces/{namespace}/workflows/"))


@pytest.fixture
def scene() -> Iterator[Scene]:
    with serving() as api:
        made = Scene(api)
        yield made
        made.recorder.workflows.stop()


def test_a_job_stays_recorded_after_its_workflow_was_deleted(scene: Scene) -> None:
    scene.prepare("default")
    scene.end("first")
    scene.seen(1)
    assert scene.recorder.record() == 1
    scene.api.remove(WORKFLOW, "first")
    scene.seen(0)
    scene.end("second", seconds=60)
    scene.seen(1)
    scene.recorder.record()
    assert [(job.name, job.phase, job.ended) for job in scene.recorded()] == [
        ("first", "Succeeded", at(50)),
        ("second", "Succeeded", at(60)),
    ]


def test_the_watch_asks_for_metadata_of_what_has_ended_alone(scene: Scene) -> None:
    scene.end("first")
    scene.seen(1)
    for request in scene.api.seen("GET", "/workflows"):
        assert "completed=true" in request.query["labelSelector"]
        assert "as=PartialObjectMetadata" in request.headers["Accept"]


def test_a_recorded_job_is_not_read_nor_written_again(scene: Scene) -> None:
    scene.prepare("default")
    scene.end("first", "second")
    scene.seen(2)
    assert scene.recorder.record() == 1
    requests = len(scene.api.seen("GET", "/namespaces/default"))
    assert scene.recorder.record() == 0
    assert len(scene.api.seen("GET", "/namespaces/default")) == requests
    after = scene.new()
    scene.seen(2, after)
    reads = scene.reads()
    assert after.record() == 0
    assert scene.reads() == reads, "a new leader knows from the record which Workflows were read"
    after.workflows.stop()


def test_what_a_killed_leader_has_not_written_is_written_by_the_next_one(scene: Scene) -> None:
    scene.prepare("default")
    scene.end("first")
    scene.seen(1)
    scene.api.fail(Answer(cut=True), method="PATCH")
    assert scene.recorder.record() == 0
    after = scene.new()
    scene.seen(1, after)
    assert after.record() == 1
    assert scene.names() == ["first"]
    after.workflows.stop()


def test_a_job_that_was_retried_is_recorded_as_it_ended_last(scene: Scene) -> None:
    scene.prepare("default")
    scene.end("first")
    scene.seen(1)
    scene.recorder.record()
    retried = SeenJob("first", learner=1).all_ready().workflow()
    retried["metadata"]["uid"] = "default-first"
    scene.api.add(WORKFLOW, retried)
    scene.seen(0)
    scene.recorder.record()
    scene.end("first", seconds=300)
    scene.seen(1)
    scene.recorder.record()
    assert [(job.name, job.ended) for job in scene.recorded()] == [("first", at(300))]


def test_jobs_that_the_allocator_does_not_schedule_are_recorded_too(scene: Scene) -> None:
    scene.prepare("default")
    scene.end("plain", labels={keys.MANAGED_BY: "diflow", keys.SCHEDULING: "none", **COMPLETED})
    scene.seen(1)
    scene.recorder.record()
    assert scene.names() == ["plain"]


def test_a_flood_in_one_namespace_displaces_and_delays_no_other(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ended_jobs, "_MOST_READ", 5)
    monkeypatch.setattr(ended_jobs, "_MOST_READ_IN_ALL", 12)
    scene.prepare("alpha", "flood", "zulu")
    scene.end(*(f"spam-{i:02}" for i in range(40)), namespace="flood")
    scene.end("mine", namespace="zulu")
    scene.end("one", namespace="alpha")
    scene.seen(42)
    scene.recorder.record()
    assert (scene.names("alpha"), scene.names("zulu"), len(scene.names("flood"))) == (["one"], ["mine"], 5)
    for _ in range(7):
        scene.recorder.record()
    assert len(scene.names("flood")) == 40


def test_the_namespaces_take_turns(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ended_jobs, "_MOST_READ", 5)
    monkeypatch.setattr(ended_jobs, "_Budget", lambda: _Left(5))
    scene.prepare("alpha", "beta")
    scene.end(*(f"a-{i}" for i in range(20)), namespace="alpha")
    scene.end("b", namespace="beta")
    scene.seen(21)
    scene.recorder.record()
    scene.time.move(10)
    scene.recorder.record()
    assert (len(scene.names("alpha")), scene.names("beta")) == (9, ["b"])


class _Left:
    def __init__(self, left: int) -> None:
        self.left = left


def test_of_more_jobs_than_the_record_takes_only_the_last_ones_are_read(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ended_jobs, "MOST_ENDED_JOBS", 3)
    scene.prepare("default")
    for i in range(9):
        scene.end(f"job-{i}", creationTimestamp=at(i))
    scene.seen(9)
    scene.recorder.record()
    assert sorted(scene.names()) == ["job-6", "job-7", "job-8"]
    assert scene.reads() == 3


def test_a_long_job_that_ends_after_many_younger_ones_is_recorded(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ended_jobs, "MOST_ENDED_JOBS", 3)
    scene.prepare("default")
    for i in range(1, 9):
        scene.end(f"job-{i}", creationTimestamp=at(i))
    scene.seen(8)
    scene.recorder.record()
    scene.end("days", seconds=5000, creationTimestamp=at(0))
    scene.seen(9)
    scene.recorder.record()
    assert scene.names()[-1] == "days"


def test_a_clock_that_is_slow_loses_no_record(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.prepare("default")
    scene.end("a", "b")
    scene.seen(2)
    scene.recorder.record()
    monkeypatch.setattr("time.time", lambda: 0.0)
    scene.end("c")
    scene.seen(3)
    scene.recorder.record()
    assert sorted(job.name for job in ended.parse(scene.text(), namespace="default")) == ["a", "b", "c"]


def test_a_namespace_without_a_record_is_asked_seldom(scene: Scene) -> None:
    scene.end("first")
    scene.seen(1)
    for _ in range(10):
        assert scene.recorder.record() == 0
        scene.time.move(10)
    assert len(scene.api.seen("GET", "/configmaps/")) == 3
    assert scene.reads() == 0
    scene.prepare("default")
    scene.time.move(600)
    assert scene.recorder.record() == 1


REFUSALS: list[Callable[[], Answer]] = [
    lambda: status(403, "forbidden", reason="Forbidden"),
    lambda: status(409, "the object has been modified", reason="Conflict"),
    lambda: status(422, "data: Forbidden: field is immutable when `immutable` is set", reason="Invalid"),
    lambda: status(413, "too large", reason="RequestEntityTooLarge"),
]


@pytest.mark.parametrize("refusal", REFUSALS)
def test_a_record_that_cannot_be_written_is_the_trouble_of_its_namespace_alone(
    scene: Scene, refusal: Callable[[], Answer]
) -> None:
    scene.prepare("bad", "good")

    def rule(request: Request) -> Answer | None:
        return refusal() if request.method == "PATCH" and "/bad/" in request.path else None

    scene.api.rule(rule)
    scene.end("first", namespace="bad")
    scene.end("first", namespace="good")
    scene.seen(2)
    for _ in range(60):
        scene.recorder.record()
        scene.time.move(10)
    assert (scene.text("bad"), scene.names("good")) == ("", ["first"])
    assert len(scene.api.seen("PATCH", "/bad/")) < 8, "the pauses grow"
    scene.api.rules.clear()
    scene.time.move(600)
    assert scene.recorder.record() == 1


def test_nonsense_in_a_record_is_replaced(scene: Scene) -> None:
    scene.api.add(CONFIG_MAP, {"metadata": {"name": keys.ENDED_JOBS}, "data": {"jobs": "[" * 900_000, "own": "kept"}})
    scene.end("first")
    scene.seen(1)
    scene.recorder.record()
    assert scene.names() == ["first"]
    assert len(scene.text()) < 1000
    assert scene.api.objects[CONFIG_MAP.path("default")][keys.ENDED_JOBS]["data"]["own"] == "kept"


def test_a_workflow_that_cannot_be_read_delays_no_other(scene: Scene) -> None:
    scene.prepare("default")
    scene.end("first")
    odd: dict[str, Any] = {"metadata": {"name": "odd", "labels": {keys.MANAGED_BY: "diflow", **COMPLETED}}}
    scene.api.add(WORKFLOW, {**odd, "spec": [], "status": {"phase": "Failed", "nodes": 7, "finishedAt": {}}})
    scene.seen(2)
    scene.recorder.record()
    assert "first" in scene.names()
    assert scene.recorder.record() == 0


def test_a_process_that_does_not_lead_writes_nothing(scene: Scene) -> None:
    scene.prepare("default")
    scene.end("first")
    scene.seen(1)
    scene.leader.leads = False
    with pytest.raises(LostLeadershipError):
        scene.recorder.record()
    assert scene.text() == ""


def test_a_record_that_was_changed_meanwhile_is_not_overwritten(scene: Scene) -> None:
    scene.prepare("default")
    scene.end("first")
    scene.seen(1)
    theirs = ended.text([EndedJob("theirs", "Failed", at(1), namespace="default")])

    def rule(request: Request) -> None:
        if request.method == "GET" and "/workflows/first" in request.path:
            scene.api.add(CONFIG_MAP, {"metadata": {"name": keys.ENDED_JOBS}, "data": {"jobs": theirs}})

    scene.api.rule(rule)
    assert scene.recorder.record() == 0
    scene.api.rules.clear()
    scene.time.move(60)
    assert scene.recorder.record() == 1
    assert scene.names() == ["theirs", "first"]


def test_the_thread_records_until_it_is_stopped_and_no_error_ends_it(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(namespace_records, "PASS_SECONDS", 0.01)
    scene.prepare("default")
    scene.end("first")
    elector: Any = scene.leader
    recorder = EndedJobs(client(scene.api), elector, clock=scene.time.clock)
    broken = iter([RuntimeError("a mistake of ours")])
    record = recorder.record

    def flawed() -> int:
        for error in broken:
            raise error
        return record()

    monkeypatch.setattr(recorder, "record", flawed)
    stop = threading.Event()
    thread = threading.Thread(target=recorder.run, args=(stop,))
    thread.start()
    eventually(scene.text, "it is recorded")
    stop.set()
    thread.join(60)
    assert not thread.is_alive()


def test_the_thread_ends_when_another_process_leads(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespace_records, "PASS_SECONDS", 0.01)
    scene.prepare("default")
    scene.end("first")
    scene.leader.leads = False
    elector: Any = scene.leader
    recorder = EndedJobs(client(scene.api), elector, clock=scene.time.clock)
    recorder.run(threading.Event())
    assert scene.text() == ""
