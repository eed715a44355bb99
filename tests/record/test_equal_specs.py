"""Jobs that differ in their names alone share what is read of them, and nothing else."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest

from diflow.common import keys
from diflow.common.errors import InvalidError
from diflow.common.jsontext import canonical_json
from diflow.common.limits import MOST_MANIFEST_BYTES, MOST_TASKS
from diflow.common.memo import MIB
from diflow.dijob.model import DIJob, Task, read_annotation
from diflow.dijob.stored import read_job
from diflow.record.job import JobRecord, record_of
from diflow.record.waiting import from_metadata
from tests.builders import job


def written(**fields: Any) -> str:
    return canonical_json(job(*fields.pop("tasks", ()), **fields).to_manifest())


def test_a_second_metadata_or_rubbish_after_the_spec_is_not_read_as_a_job() -> None:
    text = written()
    for wrong in (text[:-1], text + "}", text[:-1] + "]}", text[:-1] + "x}"):
        with pytest.raises(InvalidError):
            read_annotation(wrong)
    renamed = text[:-1] + ',"metadata":{"name":"other"}}'  # JSON takes the last of two
    assert read_annotation(renamed).name == DIJob.from_manifest(json.loads(renamed)).name == "other"


def test_jobs_of_equal_specs_keep_their_names() -> None:
    first, second, longer = (read_annotation(written(name=name)) for name in ("one", "two", "three"))
    assert (first.name, second.name, longer.name) == ("one", "two", "three")
    assert read_job(written(name="one")).spec is read_job(written(name="two")).spec
    assert second == DIJob.from_manifest(json.loads(written(name="two")))


@pytest.mark.parametrize("name", ["Capital", "under_score", "-x", "x" * 64, "", 5])
def test_a_name_that_is_invalid_is_named(name: object) -> None:
    manifest = json.loads(written(name="fine"))
    manifest["metadata"]["name"] = name
    with pytest.raises(InvalidError) as caught:
        read_annotation(canonical_json(manifest))
    with pytest.raises(InvalidError) as expected:
        DIJob.from_manifest(manifest)
    assert str(expected.value) in str(caught.value)


def test_an_error_has_the_jobs_own_name() -> None:
    manifest = json.loads(written(name="b" * 50))
    manifest["spec"]["tasks"][0] = {**manifest["spec"]["tasks"][0], "type": "none", "name": "a-task-of-a-long-name"}
    with pytest.raises(InvalidError, match="b" * 50):
        read_annotation(canonical_json(manifest))


def test_the_states_of_two_jobs_are_their_own() -> None:
    def state(name: str, **annotations: str) -> JobRecord:
        head = {"metadata": {"name": name, "annotations": {keys.DIJOB: written(name=name), **annotations}}}
        return record_of(from_metadata(head))

    first, second = state("one"), state("two", **{keys.REQUESTED: "{}"})
    assert not first.problem
    assert not second.problem
    assert first.live.granted == second.live.granted
    assert (first.identity.name, second.identity.name) == ("one", "two")
    replicas = [dict(found.texts.parameters)[keys.PARAM_REPLICAS] for found in (first, second)]
    assert replicas[0] != replicas[1] == "{}"


def test_the_specs_that_are_known_stay_within_their_memory_and_the_largest_is_one_of_them() -> None:
    """Specs of many short tasks take most for each byte of their text."""
    tracemalloc.start()
    try:
        for i in range(2500):
            text = json.dumps({"tasks": [{"name": f"t{n}"} for n in range(MOST_TASKS)], "queue": f"q{i}"})
            manifest = f'{{"kind":"DIJob","metadata":{{"name":"a"}},"spec":{text}}}'
            assert read_job(manifest).spec.without_templates.tasks
        assert tracemalloc.get_traced_memory()[0] < 40 * MIB
    finally:
        tracemalloc.stop()
    template = {"spec": {"containers": [{"name": "a", "image": "x", "args": ["x" * (MOST_MANIFEST_BYTES - 400)]}]}}
    largest = written(tasks=(Task(type="learner", template=template),))
    assert MOST_MANIFEST_BYTES - 400 < len(largest) <= MOST_MANIFEST_BYTES
    assert read_job(largest).spec is read_job(largest).spec
