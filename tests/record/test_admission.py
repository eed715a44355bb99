"""Whether a job waits for its admission, and until when its pods are created without gates."""

from __future__ import annotations

import json
from typing import Any

import pytest

from diflow.common import keys
from diflow.record.allocation import Allocation
from diflow.record.job import JobRecord, record_of
from diflow.record.parameters import ADMITTED
from diflow.workflows import render
from tests.builders import job, task


def gang(places: Any = "{}", *, suspend: Any = True, held: Any = None, uid: str = "", **status: Any) -> JobRecord:
    body = render(job(task(replicas=2), name="job", scheduling="gang"))
    for item in body["spec"]["arguments"]["parameters"]:
        if item["name"] == "places":
            item["value"] = places
    body["spec"]["suspend"] = suspend
    body["metadata"]["uid"] = uid
    if held is not None:
        body["metadata"]["annotations"][keys.HELD] = held
    return record_of({**body, "status": status})


def test_a_gang_waits_from_its_submission_until_it_is_admitted() -> None:
    assert gang().argo.awaits_admission
    assert not gang().wishes.is_suspended
    assert gang().argo.places_until == 0
    admitted = gang('{"until":1767323100}', suspend=None)
    assert (admitted.argo.awaits_admission, admitted.wishes.is_suspended, admitted.argo.places_until) == (
        False,
        False,
        1767323100,
    )
    assert gang(ADMITTED, suspend=None).argo.places_until == 0


@pytest.mark.parametrize("suspend", [None, False, 1, "true", "false", {}, []])
def test_only_a_suspended_workflow_waits(suspend: Any) -> None:
    assert not gang(suspend=suspend).argo.awaits_admission
    assert not gang(suspend=suspend).wishes.is_suspended


@pytest.mark.parametrize(("held", "waits"), [("true", False), ("false", True), ("", True), (True, True), ({}, True)])
def test_what_its_user_has_suspended_does_not_wait(held: Any, waits: bool) -> None:
    assert gang(held=held).argo.awaits_admission is waits
    assert gang(held=held).wishes.is_suspended is not waits


@pytest.mark.parametrize("places", ["", "{ }", " {}", ADMITTED, "null", "[]", '{"until":0,"x":"y"}', None, 3])
def test_only_the_text_that_was_rendered_waits(places: Any) -> None:
    assert not gang(places).argo.awaits_admission
    assert gang(places).wishes.is_suspended


def test_a_job_without_the_allocator_never_waits() -> None:
    body = render(job())
    body["spec"]["suspend"] = True
    assert not record_of(body).argo.awaits_admission
    assert record_of(body).wishes.is_suspended


@pytest.mark.parametrize(
    "status", [{"nodes": {"x": {}}}, {"compressedNodes": "x"}, {"offloadNodeStatusVersion": "fnv:1"}, {"nodes": [1]}]
)
def test_a_job_of_which_argo_has_made_something_does_not_wait(status: dict[str, Any]) -> None:
    assert not gang(**status).argo.awaits_admission
    assert gang(**status).wishes.is_suspended


def test_empty_nodes_are_none() -> None:
    assert gang(nodes={}, compressedNodes="", phase="Running").argo.awaits_admission


HOSTILE = [
    "", "no json", "[]", "3", "null", '"{}"', "{", "[" * 5000, "{" * 5000, '{"until":' * 5000,
    '{"until":"1767323100"}', '{"until":true}', '{"until":null}', '{"until":[1]}', '{"until":{"until":1}}',
    '{"until":-1}', '{"until":1e12}', '{"until":1e999}', '{"until":NaN}', '{"until":Infinity}',
    f'{{"until":{"9" * 400}}}', f'{{"until":{"9" * 5000}}}', '{"Until":5}', '{"until":\ud800}',
    '{"until":1767323100,"x":' + '{"x":' * 80 + "1" + "}" * 81,
]  # fmt: skip


@pytest.mark.parametrize("places", HOSTILE, ids=range(len(HOSTILE)))
def test_places_that_nobody_of_diflow_wrote_hold_for_no_pod(places: str) -> None:
    assert gang(places, suspend=None).argo.places_until == 0


def test_places_larger_than_any_are_not_parsed() -> None:
    """A job of the most replicas has less than a third of these, whatever its names."""
    huge = '{"until":1767323100,"x":"' + "y" * 600_000 + '"}'
    state = gang(huge, suspend=None)
    assert state.argo.places_until == 0
    assert state.problem, "its parameters are not kept either"
    assert state.texts.parameters == ()


def test_the_places_of_an_allocation_are_those_of_its_first_pods() -> None:
    at = Allocation("3", {"learner": ("a",), "worker": ("b", "", "a")})
    text = at.places(uid="uid-job", until=1767323100.9)
    assert json.loads(text) == {
        "until": 1767323100,
        "uid": "uid-job",
        "3/learner/0/0/0": "a",
        "3/worker/0/0/0": "b",
        "3/worker/2/0/0": "a",
    }
    assert gang(text, suspend=None, uid="uid-job").argo.places_until == 1767323100
    assert gang(text, suspend=None, uid="uid-of-a-copy").argo.places_until == 0


def test_the_keys_of_places_are_those_that_the_expression_asks_for() -> None:
    body = render(job(task(replicas=2), scheduling="gang", backoff_limit=1))
    (pods,) = (t for t in body["spec"]["templates"] if t["name"] == "learner")
    asked = pods["podSpecPatch"].split("(p[", 1)[1].split("]", 1)[0]
    values = {"inputs.parameters.round": "1", "inputs.parameters.member": "0", "inputs.parameters.attempt": "0",
              "string(retries)": "0"}  # fmt: skip
    key = "".join(values.get(part, part.strip("'")) for part in asked.split(" + "))
    assert key in json.loads(Allocation("1", {"learner": ("a", "b")}).places(uid="", until=1))
