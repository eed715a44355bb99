"""The age of a job, which orders it: proven by existing Workflows, never taken from its own annotation."""

from __future__ import annotations

from dataclasses import replace

from diflow.allocator.plan.inputs import picture
from diflow.allocator.policies.waiting import start_order
from diflow.allocator.watch.cluster_state import ClusterState, assemble
from diflow.allocator.watch.records import planning_record_of
from diflow.common import keys
from diflow.record.identity import Identity
from diflow.record.job import JobRecord
from diflow.record.live import Live
from tests.allocator.values import NOW, capacity, changed, node, read
from tests.allocator.watch.test_records import workflow


def part(name: str, *, age: float, continues: str = "", uid: str = "", continued_in: str = "") -> JobRecord:
    made = changed(read(), identity=Identity("ns", name, f"uid-{name}", "1"), created_seconds=NOW - age, name=name)
    if continues:
        made = changed(made, name="first", part=2, continues=continues, continues_uid=uid or f"uid-{continues}")
    return changed(made, live=Live((), ""), continued_in=continued_in) if continued_in else made


def state(*reads: JobRecord) -> ClusterState:
    return assemble(reads, [node("a")], ())


def test_the_submitted_annotation_of_a_job_does_not_count() -> None:
    made = workflow(annotations={keys.SUBMITTED: "1970-01-01T00:00:00Z"})
    made["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    plain = workflow()
    plain["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    assert planning_record_of(made).argo.created_seconds == planning_record_of(plain).argo.created_seconds > 0


def test_a_job_that_went_on_is_as_old_as_its_first_workflow() -> None:
    there = state(
        part("first", age=900, continued_in="second"),
        part("second", age=500, continues="first", continued_in="third"),
        part("third", age=100, continues="second"),
    )
    assert there.jobs["ns/third"].created_seconds == NOW - 900


def test_a_job_is_as_old_as_its_workflow_unless_an_older_one_names_it() -> None:
    old = part("first", age=900)
    assert state(old, part("thief", age=1, continues="first")).jobs["ns/thief"].created_seconds == NOW - 1
    passed = part("first", age=900, continued_in="second")
    assert state(passed, part("thief", age=1, continues="first")).jobs["ns/thief"].created_seconds == NOW - 1
    other = part("second", age=1, continues="first", uid="another")
    assert state(passed, other).jobs["ns/second"].created_seconds == NOW - 1
    assert state(part("second", age=1, continues="first")).jobs["ns/second"].created_seconds == NOW - 1


def test_workflows_that_name_each_other_in_a_circle_have_an_age() -> None:
    one = changed(part("one", age=5, continues="two"), continued_in="two")
    two = changed(part("two", age=3, continues="one"), continued_in="one")
    assert state(one, two).jobs["ns/one"].created_seconds == NOW - 5


def test_the_order_of_those_that_wait_goes_by_the_proven_age() -> None:
    there = state(
        part("first", age=900, continued_in="second"), part("second", age=1, continues="first"), part("b", age=500)
    )
    shown = picture(replace(there, pods=(), queues=()), capacity(), now=NOW)
    order = [shown.snapshot.job_names[j] for j in start_order(shown.snapshot).tolist()]
    assert order == ["ns/first", "ns/b"], "the name is still that of the first part"
