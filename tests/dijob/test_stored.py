"""The stored form of a job is what its user's model says, and nothing that somebody wrote into it goes through."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from pydantic import BaseModel

from diflow import DIJob, InvalidError
from diflow.common import quantities
from diflow.common.jsontext import NotOfTypeError, canonical_json, reader
from diflow.dijob import model, stored
from diflow.dijob.conditions import read_where
from diflow.dijob.stored import read_job
from diflow.workflows.pods import dijob_annotation
from tests.builders import job, manifest
from tests.fuzz.dijobs import Maker

Json = dict[str, Any]


def plain(value: Any) -> Any:
    """A part of a job as plain data, whichever model it is of."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", by_alias=True, exclude_none=True)
    return {k: v for k, v in json.loads(canonical_json(_builtins(value))).items() if v is not None}


def _builtins(value: Any) -> Any:
    import msgspec

    return msgspec.to_builtins(value)


@pytest.mark.slow
def test_of_random_jobs_the_stored_form_says_what_the_users_model_says() -> None:
    read = 0
    for seed in range(400):
        made = None
        with suppress(InvalidError), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = DIJob.from_manifest(Maker(seed).manifest())
        if made is None:
            continue
        read += 1
        found = read_job(dijob_annotation(made))
        spec = found.spec
        assert (found.name, found.namespace) == (made.name, made.namespace)
        assert (spec.is_preemptible, spec.priority, spec.queue, spec.scheduling, spec.backoff_limit) == (
            made.preemptible, made.priority, made.queue, made.scheduling, made.backoff_limit,
        )  # fmt: skip
        for one, other in zip(spec.tasks, made.tasks, strict=True):
            for field in ("type", "name", "replicas", "min_replicas", "max_replicas", "node_unit", "max_memory"):
                assert getattr(one, field) == getattr(other, field), (seed, field)
            whole = other.template["spec"]
            assert one.main == (other.work_container.get("name") or "")
            assert quantities.of_pod(one.pod) == quantities.of_pod(whole), seed
            assert read_where(one.pod) == read_where(whole), seed
    assert read > 50


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("node_check", model.NodeCheck(image="x", command=("true",), max_moves=5)),
        ("node_check", model.NodeCheck()),
        ("health", model.Health(progress_seconds=0, action="restart")),
        ("health", model.Health()),
        ("topology", model.Topology(required="rack")),
    ],
)
def test_a_part_and_its_defaults_are_those_of_the_users_model(name: str, value: BaseModel) -> None:
    given: Json = {name: value, "scheduling": "gang"}
    made = job(**given)
    assert plain(getattr(read_job(dijob_annotation(made)).spec, name)) == plain(value)


def test_the_defaults_of_a_job_are_those_of_the_users_model() -> None:
    spec, made = read_job(dijob_annotation(job())).spec, job()
    assert (spec.priority, spec.is_preemptible, spec.backoff_limit) == (
        made.priority, made.preemptible, made.backoff_limit,
    )  # fmt: skip
    assert (spec.queue, spec.scheduling, spec.health, spec.node_check, spec.monitor, spec.failure_policy) == (None,) * 6


def edited(change: Callable[[Json], object]) -> str:
    given = manifest()
    change(given["spec"]["tasks"][0])
    return json.dumps(given)


def of_spec(**fields: Any) -> str:
    given = manifest()
    given["spec"] |= fields
    return json.dumps(given)


HOSTILE = {
    "no text": None,
    "nothing": "",
    "a list": "[]",
    "another kind": json.dumps({**manifest(), "kind": "Job"}),
    "brackets": "[" * 120_000,
    "brackets in the template": edited(lambda task: task.update(template=0)).replace(
        '"template": 0', '"template": ' + "[" * 100_000
    ),
    "a megabyte": json.dumps(manifest()) + " " * 2**20,
    "NaN": edited(lambda task: task.update(replicas=float("nan"))),
    "infinity": edited(lambda task: task.update(replicas=1e400)),
    "a huge number": edited(lambda task: task.update(replicas=10**4000)),
    "a half": edited(lambda task: task.update(replicas=1.5)),
    "yes": edited(lambda task: task.update(replicas=True)),
    "a count as text": edited(lambda task: task.update(replicas="1")),
    "more than all": edited(lambda task: task.update(replicas=2001)),
    "a name of another script": edited(lambda task: task.update(name="²")),
    "half a surrogate pair": json.dumps(manifest()).replace('"true"', '"\\ud800"'),
    "half a pair as it is": json.dumps(manifest()).replace('"true"', '"\ud800"'),
    "no containers": edited(lambda task: task.update(template={"spec": {"containers": []}})),
    "a container that is none": edited(lambda task: task.update(template={"spec": {"containers": [7]}})),
    "an amount of a list": edited(
        lambda task: task["template"]["spec"]["containers"][0].update(resources={"requests": {"cpu": []}})
    ),
    "a port of a million": edited(
        lambda task: task["template"]["spec"]["containers"][0].update(ports=[{"hostPort": 10**6}])
    ),
    "a selector of numbers": edited(lambda task: task["template"]["spec"].update(nodeSelector={"a": 5})),
    "two tasks of one name": of_spec(tasks=manifest()["spec"]["tasks"] * 2),
    "a priority of its own": of_spec(priority="highest"),
    "no preemption": of_spec(preemptible="no"),
    "a queue of two lines": of_spec(queue="a\nb"),
    "health of a list": of_spec(health=[]),
    "a bound below another": edited(lambda task: task.update(replicas=1, minReplicas=2)),
    "a unit that does not divide": edited(lambda task: task.update(replicas=3, nodeUnit=2)),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_what_diflow_has_not_written_is_refused_in_one_line_and_at_once(what: str) -> None:
    began = time.process_time()
    with pytest.raises(InvalidError) as error:
        read_job(HOSTILE[what])
    assert time.process_time() - began < 0.1
    assert str(error.value).startswith("the annotation diflow/dijob is ")
    assert len(str(error.value)) < 400
    assert "\n" not in str(error.value)


def test_of_two_equal_keys_the_last_one_counts_and_unknown_ones_count_nothing() -> None:
    text = edited(lambda task: task.update(replicas=2)).replace('"replicas": 2', '"replicas": 2, "replicas": 3')
    assert read_job(text.replace('"spec"', '"later": {"a": [1e5]}, "spec"', 1)).spec.tasks[0].replicas == 3


def test_equal_specs_are_kept_once_and_hold_nothing_of_the_whole_text() -> None:
    one, other = (read_job(dijob_annotation(job(name=name))) for name in ("one", "other"))
    assert one.spec is other.spec
    (task,) = stored.decoded(dijob_annotation(job(name="third"))).spec.tasks
    assert bytes(task.template).startswith(b'{"spec":')


def test_a_reader_raises_one_kind_of_error_and_says_where() -> None:
    read = reader(dict[str, list[int]])
    for text in (None, 7, "[" * 10**6, "\ud800", '{"a":[1,"x"]}', "x" * (2**20 + 1)):
        with pytest.raises(NotOfTypeError):
            read(text)
    with pytest.raises(NotOfTypeError, match="must be a whole number, not text") as error:
        read('{"a":[1,"x"]}')
    assert error.value.path.endswith("[1]")
