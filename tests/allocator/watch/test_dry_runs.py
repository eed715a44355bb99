"""Dry runs of pods: who is asked about, when, how often, and at whose cost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

from diflow.allocator.watch import dry_runs
from diflow.allocator.watch.dry_runs import DryRuns
from diflow.allocator.watch.records import planning_record_of
from diflow.common.clock import Clock
from diflow.common.errors import UnavailableError
from diflow.kube.api import Cluster
from diflow.kube.kinds import POD
from diflow.kube.sparing import Shares
from diflow.record.job import JobRecord
from diflow.workflows import render
from tests.allocator.faults import eventually
from tests.allocator.lab import job, task

Json = dict[str, Any]


class Server:
    """An API server that answers dry runs; `admit` makes the pod, or raises."""

    def __init__(self) -> None:
        self.workflows: dict[tuple[str, str], Json] = {}
        self.tried: list[Json] = []
        self.admit: Callable[[Json], Json] = lambda pod: pod
        self.now = 0.0

    def without_retries(self, **_: float) -> Server:
        return self

    def get(self, _: object, name: str, *, namespace: str) -> Json:
        return self.workflows[namespace, name]

    def create(self, kind: object, body: Json, **options: Any) -> Json:
        assert kind is POD
        assert options["dry_run"]
        self.tried.append(body)
        return self.admit(body)


def dry_runs_of(
    server: Server, *, shares: Shares | None = None, on_news: Callable[[str], object] = lambda _: None
) -> DryRuns:
    made = DryRuns(
        cast(Cluster, server),
        shares=shares or Shares(share=1.0, burst=100.0),
        on_news=on_news,
        clock=Clock(monotonic=lambda: server.now),
    )
    made.is_on = True
    return made


def record(server: Server, name: str, *, namespace: str = "default", label: str = "") -> JobRecord:
    """A gang that waits; jobs of another label are of another kind."""
    made = task()
    if label:
        made = made.model_copy(update={"template": {**made.template, "metadata": {"labels": {"kind": label}}}})
    body = render(job(name, made))
    body["metadata"] |= {"namespace": namespace, "uid": f"uid-{name}"}
    server.workflows[namespace, name] = body
    return planning_record_of(body)


def by_key(*reads: JobRecord) -> Mapping[str, JobRecord]:
    return {read.key: read for read in reads}


def more(pod: Json) -> Json:
    containers = [*pod["spec"]["containers"], {"name": "mesh", "resources": {"requests": {"cpu": "100m"}}}]
    return {**pod, "spec": {**pod["spec"], "containers": containers}}


def test_a_job_waits_for_the_first_answer_and_then_has_what_admission_adds() -> None:
    server, news = Server(), list[str]()
    server.admit = more
    runs, read = dry_runs_of(server, on_news=news.append), record(server, "a")
    first = runs.applied(by_key(read))["default/a"]
    assert first.needs.is_unasked
    runs.ask_due()
    assert news == ["what admission makes of default/a is known"]
    known = runs.applied(by_key(read))["default/a"]
    assert not known.needs.is_unasked
    assert known.needs.roles[0].request["cpu"] == read.needs.roles[0].request["cpu"] + 100
    assert runs.applied(by_key(read))["default/a"] is known, "an unchanged job is the same object"


def test_of_a_pod_to_which_nothing_is_added_the_record_stays_the_same_object() -> None:
    server = Server()
    runs, read = dry_runs_of(server), record(server, "a")
    runs.applied(by_key(read))
    runs.ask_due()
    assert runs.applied(by_key(read))["default/a"] is read


def test_until_it_is_on_nothing_is_asked_and_nobody_waits() -> None:
    server = Server()
    runs, read = dry_runs_of(server), record(server, "a")
    runs.is_on = False
    assert runs.applied(by_key(read))["default/a"] is read
    runs.ask_due()
    assert server.tried == []


def test_kinds_beyond_the_bound_are_taken_as_their_templates_have_them() -> None:
    server = Server()
    runs = dry_runs_of(server)
    many = [record(server, f"j{i}", label=str(i)) for i in range(dry_runs.MOST_KINDS + 3)]
    other = record(server, "other", namespace="else")
    found = runs.applied(by_key(*many, other))
    assert [read.key for read in many if not found[read.key].needs.is_unasked] == [read.key for read in many[-3:]]
    assert found["else/other"].needs.is_unasked
    runs.ask_due()
    assert len(server.tried) == dry_runs.MOST_KINDS + 1
    assert not any(read.needs.is_unasked for read in runs.applied(by_key(*many, other)).values())


def test_a_namespace_without_a_share_waits_alone_and_for_a_bounded_time() -> None:
    server = Server()
    shares = Shares(share=0.001, burst=0.5, clock=Clock(monotonic=lambda: server.now))
    runs = dry_runs_of(server, shares=shares)
    shares.charge("greedy", 1.0)
    reads = by_key(record(server, "a", namespace="greedy"), record(server, "b"))
    runs.applied(reads)
    runs.ask_due()
    found = runs.applied(reads)
    assert (found["greedy/a"].needs.is_unasked, found["default/b"].needs.is_unasked) == (True, False)
    server.now = 61.0
    runs.ask_due()
    assert not runs.applied(reads)["greedy/a"].needs.is_unasked
    assert {pod["metadata"]["namespace"] for pod in server.tried} == {"default"}


def test_what_is_forgotten_is_asked_again() -> None:
    server = Server()
    runs, read = dry_runs_of(server), record(server, "a")
    for _ in range(2):
        runs.applied(by_key(read))
        runs.ask_due()
        runs.applied({})
    assert len(server.tried) == 2


@contextmanager
def working(runs: DryRuns) -> Iterator[None]:
    over = threading.Event()
    runs.start(over)
    try:
        yield
    finally:
        over.set()
        with runs._changed:
            runs._changed.notify_all()


def test_namespaces_whose_webhooks_hang_leave_threads_to_others() -> None:
    server, go_on = Server(), threading.Event()

    def admit(pod: Json) -> Json:
        if pod["metadata"]["namespace"].startswith("hung"):
            go_on.wait(30)
            raise UnavailableError("no answer")
        return pod

    server.admit = admit
    runs = dry_runs_of(server)
    hung = [record(server, f"h{i}", namespace=f"hung-{i}") for i in range(7)]
    try:
        with working(runs):
            runs.applied(by_key(*hung))
            eventually(lambda: len(server.tried) == 7, "each is asked about")
            reads = by_key(*hung, *(record(server, f"b{i}", namespace="b", label=str(i)) for i in range(20)))
            runs.applied(reads)
            eventually(
                lambda: not any(runs.applied(reads)[f"b/b{i}"].needs.is_unasked for i in range(20)), "others go on"
            )
            assert runs.applied(reads)["hung-0/h0"].needs.is_unasked
            go_on.set()
    finally:
        go_on.set()


def test_slow_namespaces_take_half_of_the_threads_at_most() -> None:
    server = Server()
    runs = dry_runs_of(server)
    names = [f"slow-{i}" for i in range(10)]

    def admit(pod: Json) -> Json:
        server.now += 3.0
        return pod

    server.admit = admit
    runs.applied(by_key(*(record(server, name, namespace=name) for name in names)))
    runs.ask_due()
    runs.applied(by_key(*(record(server, name, namespace=name, label="new") for name in names)))
    taken = [runs._take() for _ in range(10)]
    assert sum(one is not None for one in taken) == dry_runs._MOST_SLOW
