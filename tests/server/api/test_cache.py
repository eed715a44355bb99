"""The server's cache: what it keeps, how it is indexed, and that no content of an object breaks it."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diflow.common import keys
from diflow.dijob.stored import StoredTask
from diflow.kube.kinds import POD, WORKFLOW
from diflow.record.job import JobRecord
from diflow.record.pod import PodRecord, serving_record_of
from diflow.record.requests.ranges import elastic
from diflow.server.api.reading import served_record_of
from diflow.workflows import render
from tests.allocator.faults import eventually
from tests.builders import job, task
from tests.kube.fakeapi import serving
from tests.server import place as places
from tests.server.place import Place, mixed, part_of


@pytest.fixture
def started(place: Place) -> Any:
    """A place whose cache runs until the test ends."""
    yield place
    place.cache.stop()


def begin(place: Place) -> None:
    place.cache.start()
    place.settle()


def test_a_job_is_found_by_its_name_and_goes_with_its_workflow(started: Place) -> None:
    started.running(mixed())
    begin(started)
    view = started.cache.job("default", "mixed")
    assert view is not None
    assert view.addresses == ["10.0.0.1:22270", "10.0.0.2:22270", "10.0.0.3:22270"]
    assert view is started.cache.job("default", "mixed")  # it is made once
    assert started.cache.job("other", "mixed") is None
    assert [one.name for one in started.cache.jobs()] == ["mixed"]
    started.api.remove(WORKFLOW, "mixed")
    eventually(lambda: started.cache.job("default", "mixed") is None)
    assert not started.cache.jobs()
    assert not started.cache._parts
    assert not started.cache._views


def test_pods_that_come_before_their_workflow_are_found_when_it_comes(started: Place) -> None:
    begin(started)
    started.pod("late", "learner", 0, ip="10.1.1.1", owner="uid-wf-late")
    eventually(lambda: started.cache.pod("default", "late-learner-1-0"))
    assert started.cache.job("default", "late") is None
    started.submit(job(task("learner"), name="late"))
    eventually(lambda: started.cache.job("default", "late"))
    assert started.cache.job("default", "late").addresses == ["10.1.1.1:22270"]  # type: ignore[union-attr]


def test_nothing_is_left_of_pods_that_are_gone(started: Place) -> None:
    started.running(mixed())
    begin(started)
    for name in list(started.api.objects[POD.path("default")]):
        started.api.remove(POD, name)
    eventually(lambda: not started.cache._pods)
    assert not started.cache._by_address
    assert started.cache.job("default", "mixed").addresses == ["", "", ""]  # type: ignore[union-attr]


def test_pods_that_have_ended_and_those_of_others_are_not_kept(started: Place) -> None:
    started.submit(mixed())
    started.pod("mixed", "learner", 0, status={"phase": "Succeeded"})
    started.pod("mixed", "collector", 0, ip="10.0.0.2", name="mine")
    foreign = {"metadata": {"name": "foreign", "labels": {"app": "x"}}, "spec": {}, "status": {"podIP": "10.0.0.2"}}
    started.api.add(POD, foreign)
    begin(started)
    assert started.cache.pods.items().keys() == {("default", "mine")}
    assert started.cache.pod_at("10.0.0.2").name == "mine"  # type: ignore[union-attr]


def test_an_address_that_two_pods_claim_is_that_of_nobody(started: Place) -> None:
    started.submit(mixed())
    started.pod("mixed", "collector", 0, ip="10.0.0.5")
    started.pod("mixed", "collector", 1, ip="10.0.0.5")
    begin(started)
    assert started.cache.pod_at("10.0.0.5") is None
    started.api.remove(POD, "mixed-collector-1-0")
    eventually(lambda: started.cache.pod_at("10.0.0.5"))


def test_of_a_chain_the_last_part_that_is_named_counts(started: Place) -> None:
    first = started.submit(places.elastic())
    begin(started)
    # The second part is made before the first one names it: until then the job is the first.
    second = copy.deepcopy(first)
    second["metadata"] |= {
        "name": "elastic-s2",
        "uid": "uid-wf-elastic-s2",
        "labels": {**second["metadata"]["labels"], keys.CHAIN: "elastic", keys.PART: "2"},
        "annotations": {
            **second["metadata"]["annotations"],
            keys.CONTINUES: "elastic",
            keys.CONTINUES_UID: "uid-wf-elastic",
        },
    }
    started.api.add(WORKFLOW, second)
    eventually(lambda: started.cache.workflows.get("default", "elastic-s2"))
    assert started.cache.job("default", "elastic").workflow.identity.name == "elastic"  # type: ignore[union-attr]
    part_of(started, first, "elastic-s2")
    eventually(lambda: started.cache.job("default", "elastic").workflow.identity.name == "elastic-s2")  # type: ignore[union-attr]
    started.api.remove(WORKFLOW, "elastic")  # the first part may be gone
    eventually(lambda: started.cache.workflows.get("default", "elastic") is None)
    assert started.cache.job("default", "elastic").workflow.identity.name == "elastic-s2"  # type: ignore[union-attr]
    assert started.cache.job("default", "elastic-s2") is None


def test_a_job_of_which_a_workflow_in_between_is_deleted_is_in_its_last_one(started: Place) -> None:
    second = part_of(started, started.submit(places.elastic()), "elastic-s2")
    third = part_of(started, second, "elastic-s3")
    third["metadata"]["labels"][keys.PART] = "3"
    started.api.add(WORKFLOW, third)
    started.api.remove(WORKFLOW, "elastic-s2")
    begin(started)
    assert started.cache.job("default", "elastic").workflow.identity.name == "elastic-s3"  # type: ignore[union-attr]


def test_changes_are_told_by_job_until_one_leaves(started: Place) -> None:
    started.running(mixed())
    begin(started)
    told: list[tuple[str, str]] = []
    leave = started.cache.subscribe(told.append)
    started.pod("mixed", "collector", 1, ip="10.7.7.7")
    eventually(lambda: ("default", "mixed") in told)
    leave()
    told.clear()
    started.pod("mixed", "collector", 1, ip="10.7.7.8")
    eventually(lambda: started.cache.pod_at("10.7.7.8"))
    assert not told


def test_others_may_have_more_kept() -> None:
    with serving() as api:

        def beside(obj: Any, record: JobRecord | PodRecord, _: Any) -> tuple[str, str]:
            assert obj["metadata"]["name"] == record.identity.name
            is_job = isinstance(record, JobRecord)
            return record.name, obj["metadata"]["labels"][keys.PRIORITY] if is_job else obj["spec"]["nodeName"]

        place = Place(api, beside=beside)
        place.running(mixed())
        place.cache.start()
        try:
            place.settle()
            view = place.cache.job("default", "mixed")
            assert view is not None
            assert [kept["beside"] for kept in place.cache.workflows.items().values()] == [("mixed", "normal")]
            assert {kept["beside"][1] for kept in place.cache.pods.items().values()} == {"node-1"}
        finally:
            place.cache.stop()


def test_nothing_is_kept_beside_the_records_unless_it_is_asked_for(started: Place) -> None:
    started.running(mixed())
    begin(started)
    kept = [*started.cache.workflows.items().values(), *started.cache.pods.items().values()]
    assert [one["beside"] for one in kept] == [None] * 4


def test_an_old_copy_says_why_it_is_no_good(started: Place) -> None:
    assert "workflows" in started.cache.trouble()
    begin(started)
    assert started.cache.is_fresh()
    assert started.cache.trouble() == ""
    started.time.move(91)
    assert not started.cache.is_fresh()
    assert "said nothing" in started.cache.trouble()
    assert started.cache.age_seconds >= 91


@pytest.mark.parametrize(
    ("tasks", "bounds", "name"),
    [
        ([("learner", 1, None, None), ("collector", 2, None, None)], {}, "collector"),
        ([("learner", 1, None, None), ("collector", 2, 1, 4), ("evaluator", 1, None, None)], {}, "collector"),
        ([("a", 1, None, 4), ("b", 2, 1, 4)], {}, "a"),
        ([("a", 3, 3, 3), ("b", 2, None, None)], {}, "b"),
        ([("a", 1, None, None), ("b", 2, None, None)], {"a": (1, 5)}, "a"),
        ([], {}, ""),
    ],
)
def test_the_elastic_task_is_the_first_with_room_else_the_last(
    tasks: list[tuple[str, int, int | None, int | None]], bounds: dict[str, tuple[int, int]], name: str
) -> None:
    assert elastic([StoredTask("none", *one) for one in tasks], bounds=bounds) == name


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 10**6) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
TEXTS = ANYTHING.map(json.dumps) | st.text(max_size=10) | st.just("[" * 5000)


@given(
    parameters=st.dictionaries(
        st.sampled_from(
            [
                keys.PARAM_CURRENT,
                keys.PARAM_GRANTED,
                keys.PARAM_INCARNATIONS,
                keys.PARAM_RELEASED,
                keys.PARAM_PROFILINGS,
            ]
        ),
        TEXTS | ANYTHING,
    ),
    annotations=st.dictionaries(st.sampled_from([keys.DIJOB, keys.BOUNDS, keys.CONTINUES]), TEXTS),
    granted=st.dictionaries(st.sampled_from(["learner", "collector", "x"]), ANYTHING),
)
@settings(max_examples=60, derandomize=True, database=None)
def test_whatever_somebody_edits_into_a_workflow_it_can_be_read(
    parameters: dict[str, Any], annotations: dict[str, str], granted: dict[str, Any]
) -> None:
    body = render(mixed().model_copy(update={"namespace": "default", "scheduling": "gang"}))
    body["metadata"] |= {"uid": "u", "resourceVersion": "1"}
    body["metadata"]["annotations"] |= annotations
    given_parameters = {keys.PARAM_GRANTED: json.dumps({"1": granted}), **parameters}
    for item in body["spec"]["arguments"]["parameters"]:
        if item["name"] in given_parameters:
            item["value"] = given_parameters[item["name"]]
    read = served_record_of(body)
    assert read.name == "mixed"
    assert all(count >= 0 for count in read.running.values())
    assert isinstance(read.elastic, str)


@given(
    labels=st.dictionaries(st.sampled_from([keys.JOB, keys.OPERATOR, keys.ARGO_WORKFLOW]), st.text(max_size=5)),
    rank=st.text(max_size=8) | st.just("1" * 5000),
    ports=st.lists(
        st.fixed_dictionaries({}, optional={"name": st.just("di-port"), "containerPort": ANYTHING}), max_size=3
    ),
    status=st.fixed_dictionaries({}, optional={"podIP": st.text(max_size=8), "phase": st.text(max_size=4)}),
)
@settings(max_examples=60, derandomize=True, database=None)
def test_whatever_is_in_a_pod_it_can_be_read(
    labels: dict[str, str], rank: str, ports: list[dict[str, Any]], status: dict[str, Any]
) -> None:
    pod = serving_record_of(
        {
            "metadata": {
                "namespace": "n",
                "name": "p",
                "uid": "u",
                "labels": labels,
                "annotations": {
                    keys.ARGO_NODE_NAME: f"{labels.get(keys.ARGO_WORKFLOW)}.round(0:1)(0).w(0:{rank})(0).w(0)"
                },
            },
            "spec": {"containers": [{"name": "main", "ports": ports}]},
            "status": status,
        }
    )
    assert 1 <= pod.endpoint.port <= 65_535
    assert pod.index >= -1


def test_a_workflow_that_calls_itself_a_later_part_of_a_job_is_not_the_job(started: Place) -> None:
    first = started.submit(places.elastic())
    begin(started)
    false = copy.deepcopy(first)
    false["metadata"] |= {
        "name": "false",
        "uid": "uid-wf-false",
        "labels": {**false["metadata"]["labels"], keys.CHAIN: "elastic", keys.PART: "999999"},
    }
    started.api.add(WORKFLOW, false)
    eventually(lambda: started.cache.workflows.get("default", "false"))
    assert started.cache.job("default", "elastic").workflow.identity.name == "elastic"  # type: ignore[union-attr]
