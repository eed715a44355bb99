"""Arbitrary content in a Workflow, a report or a request affects that job alone, and no code fails.

DIFLOW_HOSTILE_EXAMPLES sets how many are tried; a long run has a hundred thousand and more.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import re
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from diflow.allocator.watch import reports
from diflow.common import keys
from diflow.common.errors import DiflowError
from diflow.common.limits import MOST_REPLICAS, MOST_TASKS
from diflow.dijob.model import DIJob
from diflow.record.job import record_of
from diflow.record.reports import read
from diflow.record.requests.changes import Draft, check_scalable
from diflow.record.requests.notes import Notes
from diflow.server.api.folding import HINTS, LONGEST, WHOLE, Report, Shape, fold, written_at
from diflow.server.api.models import Hints, Profiling, ReplicasRequest, validate
from diflow.server.api.reading import served_record_of
from diflow.server.api.scale_requests import ScaleRequest, step
from diflow.server.api.v2alpha1 import checked, parse_id
from diflow.server.http import strictjson
from diflow.server.http.errors import ApiError
from diflow.workflows import render
from tests.builders import job, task
from tests.server.page_scene import trim_workflow

EXAMPLES = int(os.environ.get("DIFLOW_HOSTILE_EXAMPLES", "60"))
BOUNDED = settings(
    max_examples=EXAMPLES,
    derandomize=EXAMPLES <= 1000,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)

# Keys and values that the readers know, so that many examples are almost valid.
WORDS = st.sampled_from(
    [
        "1", "2", "worker", "learner", "replicas", "task", "speed", "step", "batch", "stepSeconds", "syncSeconds",
        "round", "ranks", "at", "observed", "nodes", "progress", "spec", "tasks", "name", "min", "max", "minReplicas",
        "maxReplicas", "done", "ranges", "range", "bounds", "gradParams", "perfParams", "norm", "var", "alpha_c",
        "gamma", "localBszBounds", "initBatchSize", "data", "Data", "SPEED", "rank", "type", "priority", "²", "٣",
        "0x1", "", "\ud800", "1/worker/0", "since", "first", "moves",
    ]
)  # fmt: skip
NUMBERS = st.one_of(
    st.integers(-3, 12),
    st.floats(),
    st.sampled_from([2**31, 2**63, 10**18, 10**400, -(10**400), 1e308, 5e-324, 1e15, 100_000, 2_001, -0.0]),
)
SCALARS = st.one_of(st.none(), st.booleans(), NUMBERS, WORDS, st.text(max_size=8))
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=6), st.dictionaries(WORDS | st.text(max_size=4), inner, max_size=8)
    ),
    max_leaves=30,
)
TEXTS = st.one_of(
    VALUES.map(json.dumps),
    st.text(max_size=40),
    st.sampled_from(["[" * 100_000, '{"a":' * 900 + "1" + "}" * 900, "9" * 5000, '{"worker":' + "9" * 5000 + "}"]),
)


def some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """An object with some of these fields; now and then one of them is something else."""
    either = {name: values | SCALARS for name, values in fields.items()}
    return st.fixed_dictionaries({}, optional=either)


TASKS = st.sampled_from(["learner", "worker", "other"])
TOLD = some(task=TASKS, speed=NUMBERS, batch=NUMBERS, stepSeconds=NUMBERS, syncSeconds=NUMBERS, step=NUMBERS)
PROFILINGS = some(
    round=st.just("1"),
    at=NUMBERS,
    ranks=st.dictionaries(st.sampled_from(["0", "1", "5", "²", "٣", "999999", "-1"]), TOLD, max_size=4),
    observed=st.lists(st.lists(NUMBERS, min_size=5, max_size=6) | SCALARS, max_size=4),
    speed=NUMBERS,
    replicas=NUMBERS,
    nodes=NUMBERS,
    batch=NUMBERS,
    progress=NUMBERS,
    data=VALUES,
    initBatchSize=NUMBERS,
    maxBatchSize=NUMBERS,
    localBszBounds=st.lists(NUMBERS, max_size=3),
    gradParams=some(norm=NUMBERS, var=NUMBERS) | VALUES,
    perfParams=st.fixed_dictionaries(
        dict.fromkeys(("alpha_c", "beta_c", "alpha_n", "beta_n", "alpha_r", "beta_r", "gamma"), NUMBERS)
    )
    | VALUES,
)
COUNTS = st.dictionaries(TASKS, NUMBERS, max_size=3)
LIKELY: dict[str, st.SearchStrategy[Any]] = {
    keys.PARAM_GRANTED: st.dictionaries(st.sampled_from(["1", "2", "²"]), COUNTS, max_size=2),
    keys.PARAM_REPLICAS: COUNTS,
    keys.PARAM_ROUNDS: st.lists(st.sampled_from(["1", "2", "²", "٣", "9" * 5000]), max_size=3),
    keys.PARAM_INCARNATIONS: st.dictionaries(st.sampled_from(["1/worker/0", "1/worker/1", "x"]), SCALARS, max_size=2),
    keys.PARAM_RELEASED: st.lists(st.sampled_from(["1/worker/1", "1/worker/0", "1/learner/0"]) | SCALARS, max_size=3),
    keys.PARAM_PROFILINGS: PROFILINGS,
    keys.BOUNDS: st.dictionaries(TASKS, some(min=NUMBERS, max=NUMBERS), max_size=3),
    keys.REQUESTS: some(
        done=st.lists(st.lists(WORDS, max_size=3), max_size=3),
        ranges=st.dictionaries(TASKS, some(range=st.lists(NUMBERS, max_size=3), bounds=st.lists(NUMBERS)), max_size=2),
    ),
    keys.ALLOCATION: some(round=WORDS, nodes=COUNTS, since=NUMBERS, first=NUMBERS, moves=NUMBERS),
    keys.DIJOB: some(
        spec=some(
            tasks=st.lists(some(name=TASKS, replicas=NUMBERS, minReplicas=NUMBERS, maxReplicas=NUMBERS), max_size=3),
            backoffLimit=NUMBERS,
        )
    ),
}


def texts(names: tuple[str, ...]) -> st.SearchStrategy[dict[str, str]]:
    """A text for some of these, likely or not."""
    return st.fixed_dictionaries({}, optional={n: LIKELY.get(n, VALUES).map(json.dumps) | TEXTS for n in names})


PARAMETERS = (
    keys.PARAM_ROUNDS, keys.PARAM_CURRENT, keys.PARAM_GRANTED, keys.PARAM_INCARNATIONS, keys.PARAM_RELEASED,
    keys.PARAM_REPLICAS, keys.PARAM_PROFILINGS,
)  # fmt: skip
ANNOTATIONS = (
    keys.DIJOB, keys.BOUNDS, keys.REQUESTS, keys.ALLOCATION, keys.DECISION, keys.CONTINUES, keys.CONTINUED_IN,
    keys.HISTORY_BEFORE,
)  # fmt: skip
GOOD = render(
    job(task("learner"), task("none", name="worker", replicas=2), name="elastic", preemptible=True).model_copy(
        update={"namespace": "default", "scheduling": "gang"}
    )
)


@given(
    parameters=texts(PARAMETERS),
    annotations=texts(ANNOTATIONS),
    part=st.none() | TEXTS,
    by=st.integers(-3, 3) | st.sampled_from([10**18, -(10**18)]),
)
@BOUNDED
def test_whatever_stands_in_a_workflow_is_read_or_named_and_stays_small(
    parameters: dict[str, str], annotations: dict[str, str], part: str | None, by: int
) -> None:
    workflow = copy.deepcopy(GOOD)
    workflow["metadata"] |= {"uid": "u", "resourceVersion": "1", "creationTimestamp": "2026-11-21T10:00:00Z"}
    workflow["metadata"]["annotations"] |= annotations
    if part is not None:
        workflow["metadata"]["labels"][keys.PART] = part
    for item in workflow["spec"]["arguments"]["parameters"]:
        item["value"] = parameters.get(item["name"], item.get("value", ""))
    read = served_record_of(workflow)
    assert sum(read.running.values()) <= MOST_REPLICAS
    assert len(read.spec.tasks) <= MOST_TASKS
    assert len(read.problem) < 200
    shown = trim_workflow(workflow)
    assert shown is not None
    assert sum(task.granted for task in shown.tasks) <= MOST_REPLICAS
    try:
        current = record_of(workflow)
        check_scalable(current)
        wanted = step(Draft.of(current), ScaleRequest("default", "elastic", by), running=read.running)
    except (ApiError, DiflowError):
        return
    assert by == 0 or sum(wanted.desired.values()) <= MOST_REPLICAS
    assert Notes.read(wanted.notes.text()).ranges == wanted.notes.ranges
    json.dumps(wanted.patch(), allow_nan=False)


@given(
    before=PROFILINGS.map(json.dumps) | TEXTS,
    given_reports=st.dictionaries(st.sampled_from([0, 1, 5, WHOLE, HINTS]), PROFILINGS | VALUES, max_size=3),
    replicas=st.integers(1, MOST_REPLICAS),
)
@BOUNDED
def test_whatever_was_reported_is_folded_into_a_short_text_that_all_readers_take(
    before: str, given_reports: dict[int, Any], replicas: int
) -> None:
    taken: dict[int, Report] = {}
    for rank, value in given_reports.items():
        model: type[Hints | Profiling] = Hints if rank == HINTS else Profiling
        body, faults = validate(model, value)
        assert (body is None) == bool(faults)
        if body is not None:
            taken[rank] = Report("worker", body)
    text = fold(before[:65_536], taken, Shape("1", "worker", 1, {"worker": replicas}), now=1.8e9)
    assert len(text) <= LONGEST
    assert not {"NaN", "Infinity"} & set(re.findall("NaN|Infinity", text))
    assert isinstance(json.loads(text), dict)
    assert written_at(text) == 1.8e9
    reports.profile(text)
    for found in (reports.speed(text), read(text).speed):
        assert found is None or 0 < found < float("inf")
    reports.profile(before)
    reports.speed(before)


@given(body=st.one_of(TEXTS.map(lambda text: text.encode(errors="surrogatepass")), st.binary(max_size=60)))
@BOUNDED
def test_whatever_is_sent_is_taken_or_refused_with_a_status(body: bytes) -> None:
    for model, constants in ((ReplicasRequest, False), (Profiling, True), (Hints, True)):
        with contextlib.suppress(ApiError):
            assert isinstance(checked(model, strictjson.parse(body, constants=constants)), model)


@given(text=TEXTS.map(lambda text: text[:16_000]))
@BOUNDED
def test_whatever_names_a_job_is_taken_or_refused(text: str) -> None:
    try:
        namespace, name, generation = parse_id(text)
    except ApiError:
        return
    assert namespace
    assert name
    assert generation is None or generation == str(int(generation))


def test_the_workflow_that_is_made_worse_is_a_good_one() -> None:
    assert served_record_of(GOOD).problem == ""
    assert DIJob.from_manifest(json.loads(GOOD["metadata"]["annotations"][keys.DIJOB])).name == "elastic"
