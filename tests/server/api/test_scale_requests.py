"""Scale requests as a pure function: from the values in a Workflow to the values to write."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diflow import DIJob
from diflow.common import keys
from diflow.common.clock import Clock
from diflow.common.errors import ConflictError, InvalidError, NotFoundError
from diflow.kube.kinds import WORKFLOW
from diflow.record.job import record_of
from diflow.record.requests.changes import Draft, check_scalable
from diflow.record.requests.notes import KEYS_KEPT, Noted, Notes
from diflow.server.api.scale_requests import ScaleRequest, ScaleRequests, step
from diflow.server.http.errors import ApiError
from diflow.workflows import render
from tests.allocator.faults import Time
from tests.builders import job, task
from tests.kube.fakeapi import status
from tests.server.place import Place, mixed, part_of


def workflow(dijob: DIJob) -> dict[str, Any]:
    body = render(dijob.model_copy(update={"namespace": "default", "scheduling": "gang"}))
    body["metadata"] |= {"uid": "u", "resourceVersion": "1"}
    return body


def put(body: dict[str, Any], change: dict[str, Any]) -> None:
    """Merge a patch in, as the API server does."""
    body["spec"]["arguments"]["parameters"] = change["spec"]["arguments"]["parameters"]
    body["metadata"]["annotations"] |= change["metadata"].get("annotations", {})


def carry_out(body: dict[str, Any], by: int, *, name: str = "", running: dict[str, int]) -> int:
    """Carry a request out. Returns 0, or the status with which it was refused."""
    try:
        wanted = step(Draft.of(record_of(body)), ScaleRequest("default", "job", by, name), running=running)
    except ApiError as error:
        return error.status
    put(body, wanted.patch())
    return 0


def bounded(name: str, replicas: int, low: int | None, high: int | None) -> Any:
    return task("none", name=name, replicas=replicas).model_copy(update={"min_replicas": low, "max_replicas": high})


STEPS = st.lists(st.integers(-6, 6).filter(bool), max_size=12)


@given(
    low=st.integers(1, 4), above=st.integers(0, 4), more=st.integers(0, 4), running=st.integers(1, 12),
    steps=STEPS, others=st.booleans(),
)  # fmt: skip
@settings(max_examples=80, derandomize=True, database=None)
def test_what_a_preemptible_job_is_asked_for_is_its_bound_and_stays_within_its_own(
    *, low: int, above: int, more: int, running: int, steps: list[int], others: bool
) -> None:
    submitted, high = low + above, low + above + more
    running = min(max(running, low), high)
    tasks = [bounded("worker", submitted, low, high)]
    if others:
        tasks = [task("learner"), *tasks, bounded("helper", 2, 1, 3)]
    body = workflow(job(*tasks, preemptible=True))
    index = 1 if others else 0
    number = running
    for by in steps:
        goal = number + by
        refused = carry_out(body, by, name="worker", running={"worker": running})
        if refused:
            assert refused == (409 if by < 0 else 422)
            assert (goal < low) if by < 0 else (goal > high)
            continue
        assert (goal >= low) if by < 0 else (goal <= high)
        number = goal
        current = record_of(body)
        asked = current.range_of(index)
        assert asked.high == number, "the allocator gives no more"
        assert asked.low == min(low, number), "and may give as few as ever"
        if others:  # other tasks stay
            helper = record_of(body).range_of(2)
            assert (helper.low, helper.high) == (1, 3)
            assert current.range_of(0).text() == "1"
        if goal == high == submitted and "worker" not in current.wishes.bounds:
            number = running  # the whole submitted range: as if there had been no request


@given(replicas=st.integers(1, 5), high=st.none() | st.integers(5, 9), steps=STEPS)
@settings(max_examples=40, derandomize=True, database=None)
def test_a_job_that_is_not_preemptible_has_the_number_that_was_asked_for(
    replicas: int, high: int | None, steps: list[int]
) -> None:
    body = workflow(job(task("learner"), bounded("worker", replicas, None, high)))
    number = replicas
    for by in steps:
        goal = number + by
        refused = carry_out(body, by, running={})
        if refused:
            assert refused == (409 if by < 0 else 422)
            assert goal < 1 or (high is not None and goal > high)
            continue
        number = goal
        asked = record_of(body).range_of(1)
        assert (asked.low, asked.high) == (number, number)
        replicas_now = dict(record_of(body).texts.parameters)[keys.PARAM_REPLICAS]
        assert json.loads(replicas_now) == {"learner": 1, "worker": number}


def test_a_preemptible_job_without_bounds_scales_its_last_task_down_and_back() -> None:
    body = workflow(job(task("learner"), task("collector", replicas=4), preemptible=True))
    carry_out(body, -2, running={"learner": 1, "collector": 4})
    assert record_of(body).range_of(1).text() == "1 to 2"
    carry_out(body, 2, running={"learner": 1, "collector": 2})
    assert record_of(body).range_of(1).text() == "1 to 4"
    assert carry_out(body, 5, running={"learner": 1, "collector": 4}) == 422


def test_a_host_name_that_would_be_too_long_is_refused() -> None:
    current = record_of(workflow(job(bounded("worker-" + "x" * 39, 9, None, None), name="a-long-name-of")))
    with pytest.raises(ApiError, match="host name") as caught:
        step(Draft.of(current), ScaleRequest("default", "job", 1000), running={})
    assert caught.value.status == 422


def test_notes_keep_the_newest_keys_and_read_what_they_wrote() -> None:
    notes = Notes({str(n): "x" for n in range(KEYS_KEPT + 5)}, {"worker": Noted((2, 8), (2, 4))})
    read = Notes.read(notes.text())
    assert list(read.done) == [str(n) for n in range(5, KEYS_KEPT + 5)]
    assert read.ranges == {"worker": Noted((2, 8), (2, 4))}


@pytest.mark.parametrize(
    "broken",
    [
        "",
        "[",
        "[]",
        "3",
        '{"done": 3}',
        '{"done": [1]}',
        '{"done": [["a"]]}',
        '{"done": [["a", 1]]}',
        '{"done": [["' + "a" * 65 + '", "b"]]}',
        '{"ranges": {"a": 1}}',
        '{"ranges": {"a": [1, 4]}}',
        '{"ranges": {"a": {"range": [1, 4]}}}',
        '{"ranges": {"a": {"range": [1, 1e999], "bounds": [1, 2]}}}',
        '{"ranges": {"a": {"range": [true, 4], "bounds": [1, 2]}}}',
        '{"ranges": {"a": {"range": [0, 4], "bounds": [1, 2]}}}',
        '{"ranges": {"a": {"range": [4, 1], "bounds": [1, 2]}}}',
        '{"ranges": {"a": {"range": [1, 4], "bounds": [1, ' + "9" * 5000 + "]}}}",
        '{"ranges": {"a": {"range": [1, 100001], "bounds": [1, 2]}}}',
        "[" * 100_000,
        " " * 65_536 + "{}",
    ],
)
def test_notes_without_what_cannot_be_true(broken: str) -> None:
    assert Notes.read(broken) == Notes()


def test_a_range_was_noted_for_the_bounds_that_stand_beside_it_alone() -> None:
    notes = Notes({"a": "b"}, {"worker": Noted((2, 8), (2, 4)), "helper": Noted((1, 3), (1, 2))})
    assert notes.range_of("worker", (2, 4)) == (2, 8)
    assert notes.range_of("worker", (3, 4)) is None
    assert notes.range_of("worker", None) is None
    assert notes.range_of("other", (2, 4)) is None
    assert notes.without_range("worker") == Notes({"a": "b"}, {"helper": Noted((1, 3), (1, 2))})


@pytest.mark.parametrize(
    ("edit", "error"),
    [
        (lambda w: w["metadata"]["labels"].pop(keys.MANAGED_BY), NotFoundError),
        (lambda w: w.update(status={"phase": "Failed"}), ConflictError),
        (lambda w: w["metadata"]["labels"].update({keys.SCHEDULING: "none"}), InvalidError),
        (lambda w: w["metadata"]["annotations"].update({keys.DIJOB: "{"}), InvalidError),
    ],
)
def test_a_workflow_of_which_nothing_can_be_asked_says_why(edit: Any, error: type[Exception]) -> None:
    body = workflow(job(task("learner")))
    edit(body)
    with pytest.raises(error):
        check_scalable(record_of(body))


def test_an_api_server_that_hangs_holds_a_thread_for_a_bounded_time(place: Place) -> None:
    place.running(mixed())
    place.api.fail(status(504, "the request has timed out"), method="PATCH", times=1000)
    time = Time()
    clock = Clock(monotonic=time.now, sleep=lambda _: time.move(3.0), jitter=lambda _, high: high)
    scale_requests = ScaleRequests(place.cluster, place.cache, clock=clock)
    with pytest.raises(ApiError) as caught:
        scale_requests.write(ScaleRequest("default", "mixed", 1, key="a"))
    assert caught.value.status == 503
    assert len(place.api.seen("PATCH")) == 4  # at 0, 3, 6 and 9 s


def linked(place: Place, *, parts: int, label: str) -> None:
    """Let the job mixed continue in so many Workflows, which the cache does not have."""
    place.running(mixed())
    first = place.workflow("mixed")
    before = None
    for number in range(parts, 1, -1):  # from the last one
        previous = f"part-{number - 1}" if number > 2 else "mixed"
        made = copy.deepcopy(first)
        made["metadata"] |= {"name": f"part-{number}", "uid": f"uid-{number}"}
        made["metadata"]["labels"] |= {keys.CHAIN: label, keys.PART: str(number)}
        del made["metadata"]["labels"][keys.MANAGED_BY]
        made["metadata"]["annotations"] |= {
            keys.CONTINUES: previous,
            keys.CONTINUES_UID: f"uid-{number - 1}" if number > 2 else first["metadata"]["uid"],
            **({keys.CONTINUED_IN: before} if before else {}),
        }
        place.api.add(WORKFLOW, made)
        before = f"part-{number}"
    place.workflow("mixed")["metadata"]["annotations"][keys.CONTINUED_IN] = before


@pytest.mark.parametrize("label", ["mixed", "other"])
def test_a_chain_of_workflows_of_a_users_making_costs_a_few_requests(place: Place, label: str) -> None:
    linked(place, parts=40, label=label)
    with pytest.raises(ApiError) as caught:
        ScaleRequests(place.cluster, place.cache).write(ScaleRequest("default", "mixed", 1))
    assert caught.value.status == 503
    assert len(place.api.seen("GET", "/workflows/")) <= 4
    assert not place.api.seen("PATCH")


def test_a_part_that_the_cache_does_not_have_yet_is_found(place: Place) -> None:
    place.running(mixed())
    view = place.cache.job("default", "mixed")
    place.cache.job = lambda *_: view  # type: ignore[method-assign]
    part_of(place, place.workflow("mixed"), "part-2")
    assert ScaleRequests(place.cluster, place.cache).write(ScaleRequest("default", "mixed", 1))
    (patch,) = place.api.seen("PATCH")
    assert patch.path.endswith("/part-2")


def test_a_number_that_is_no_multiple_of_the_unit_is_refused() -> None:
    made = task("none", name="w", replicas=4).model_copy(update={"max_replicas": 8, "node_unit": 2})
    body = workflow(job(made))
    assert carry_out(body, 1, running={"w": 4}) == 422
    assert carry_out(body, 2, running={"w": 4}) == 0
    assert record_of(body).wishes.desired == {"w": 6}
