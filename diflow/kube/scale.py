"""Asks for other numbers of replicas of a job that is there. Only what the user asks for is written; the allocator acts
on it.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from diflow import chain, keys, names, status
from diflow.errors import ConflictError, InvalidError, NotFoundError
from diflow.job import DIJob, canonical_json
from diflow.kube import parts
from diflow.kube.api import Cluster
from diflow.kube.kinds import WORKFLOW
from diflow.scaling import Asked, Bounds, asked, choose_task, scales, submitted_range

_TRIES = 6
_PAUSE_SECONDS = 0.2
_MOST = 100_000


@dataclass(frozen=True, slots=True)
class Scaled:
    """What was asked for one task of a job, and what is asked for now."""

    task: str
    before: Asked
    after: Asked


def scale(
    name: str,
    *,
    task: str | None = None,
    replicas: int | None = None,
    low: int | None = None,
    high: int | None = None,
    namespace: str | None = None,
    cluster: Cluster | None = None,
    pause: Callable[[float], None] = time.sleep,
) -> Scaled:
    """Ask for `replicas`, or for `low` to `high` of a preemptible job (what is not given of the two stays).

    The write names the version that was read, and is derived anew when somebody else was faster. Raises InvalidError
    for what cannot be asked, NotFoundError, and ConflictError if the job has ended or changes all the time.
    """
    cluster = cluster or Cluster.connect()
    for attempt in range(1, _TRIES + 1):
        workflow = parts.newest(cluster, name, namespace=namespace) or cluster.get(WORKFLOW, name, namespace=namespace)
        scaled, change = _change(workflow, task=task, replicas=replicas, low=low, high=high)
        if change is None:
            return scaled
        try:
            cluster.patch(WORKFLOW, workflow["metadata"]["name"], change, namespace=namespace)
        except ConflictError:
            if attempt == _TRIES:
                raise
            pause(_PAUSE_SECONDS * attempt)
            continue
        return scaled
    raise AssertionError("unreachable")


def _change(
    workflow: dict[str, Any], *, task: str | None, replicas: int | None, low: int | None, high: int | None
) -> tuple[Scaled, dict[str, Any] | None]:
    metadata = workflow["metadata"]
    name, labels = chain.job_name(workflow), metadata.get("labels") or {}
    annotations = metadata.get("annotations") or {}
    if not status.is_job(workflow):
        raise NotFoundError(f"the Workflow {name} is not a diflow job")
    phase = (workflow.get("status") or {}).get("phase")
    if phase in ("Succeeded", "Failed", "Error"):
        raise ConflictError(f"job {name} has ended already ({phase}): nothing of it can be scaled")
    if labels.get(keys.SCHEDULING, "none") != "gang":
        raise InvalidError(
            f"job {name} has scheduling: none, so Argo alone runs it and nothing acts on other numbers: submit it with "
            "scheduling: gang, for the allocator"
        )
    job = _dijob(name, annotations)
    parameters = [
        {"name": str(p.get("name", "")), "value": str(p.get("value", ""))}
        for p in ((workflow.get("spec") or {}).get("arguments") or {}).get("parameters") or []
    ]
    wanted = _wanted(next((p["value"] for p in parameters if p["name"] == keys.PARAM_REPLICAS), ""), job)
    bounds = _bounds(annotations.get(keys.BOUNDS) or "", job)
    index = choose_task(job, task, bounds)
    before = asked(job, index, wanted=wanted, bounds=bounds)
    if replicas is not None:
        new_wanted, new_bounds = _by_number(job, index, replicas, wanted=wanted, bounds=bounds)
    else:
        new_wanted, new_bounds = _by_bounds(job, index, low, high, wanted=wanted, bounds=bounds)
    after = asked(job, index, wanted=new_wanted, bounds=new_bounds)
    if (new_wanted, new_bounds) == (wanted, bounds):
        return Scaled(before.task, before, after), None
    names.check_hostname(
        metadata["name"], before.task, after.high, path="--replicas" if replicas is not None else "--max"
    )
    text = canonical_json(new_wanted)
    if all(p["name"] != keys.PARAM_REPLICAS for p in parameters):
        parameters.append({"name": keys.PARAM_REPLICAS, "value": ""})
    # A list in a merge patch is replaced as a whole: the others go along as they were.
    parameters = [{**p, "value": text} if p["name"] == keys.PARAM_REPLICAS else p for p in parameters]
    change: dict[str, Any] = {
        "metadata": {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]},
        "spec": {"arguments": {"parameters": parameters}},
    }
    if new_bounds != bounds:
        given = {t: {"min": pair[0], "max": pair[1]} for t, pair in new_bounds.items()}
        change["metadata"]["annotations"] = {keys.BOUNDS: canonical_json(given)}
    return Scaled(before.task, before, after), change


def _by_number(
    job: DIJob, index: int, number: int, *, wanted: dict[str, int], bounds: Bounds
) -> tuple[dict[str, int], Bounds]:
    _check_count(number, "--replicas")
    task = job.tasks[index]
    new = {**wanted, task.name: number}
    now = asked(job, index, wanted=new, bounds=bounds)
    if now.high != number:
        # The number that was submitted caps nothing by itself: what caps the task then are its bounds.
        bounds = {**bounds, **_all_ranges(job, bounds), task.name: (min(now.low, number), number)}
    return new, bounds


def _by_bounds(
    job: DIJob, index: int, low: int | None, high: int | None, *, wanted: dict[str, int], bounds: Bounds
) -> tuple[dict[str, int], Bounds]:
    if not job.preemptible:
        raise InvalidError(
            f"job {job.name} is not preemptible: it has as many replicas as were asked for; use --replicas"
        )
    for number, option in ((low, "--min"), (high, "--max")):
        if number is not None:
            _check_count(number, option)
    task = job.tasks[index]
    now = asked(job, index, wanted=wanted, bounds=bounds)
    new_low, new_high = low if low is not None else now.low, high if high is not None else now.high
    if new_low > new_high:
        other = "" if low is not None and high is not None else f"; give {'--max' if high is None else '--min'}, too"
        raise InvalidError(f"the minimum {new_low} is above the maximum {new_high}{other}", path="--min")
    # A number of its own would cap the bounds: with the submitted one, they alone count.
    return {**wanted, task.name: task.replicas}, {**_all_ranges(job, bounds), task.name: (new_low, new_high)}


def _all_ranges(job: DIJob, bounds: Bounds) -> dict[str, tuple[int, int]]:
    """The bounds of all tasks that scale now: where one has bounds, the others no longer scale by themselves."""
    scaling = scales(job, bounds)
    ranges = {t.name: submitted_range(job, i, scaling=scaling) for i, t in enumerate(job.tasks)}
    return {**{name: pair for name, pair in ranges.items() if pair[0] < pair[1]}, **bounds}


def _check_count(number: int, option: str) -> None:
    if not 1 <= number <= _MOST:
        raise InvalidError(f"must be from 1 to {_MOST}, not {number}", path=option)


def _dijob(name: str, annotations: dict[str, str]) -> DIJob:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return DIJob.from_manifest(json.loads(annotations.get(keys.DIJOB) or ""))
    except (ValueError, InvalidError) as error:
        raise InvalidError(f"job {name} cannot be understood any more (annotation {keys.DIJOB}): {error}") from None


def _wanted(text: str, job: DIJob) -> dict[str, int]:
    """What is asked for now; of what somebody made unreadable, as little as the allocator takes of it: nothing."""
    tasks = {task.name for task in job.tasks}
    try:
        given = json.loads(text) if text else {}
        if isinstance(given, dict) and all(name in tasks and _is_count(n) for name, n in given.items()):
            return dict(given)
    except ValueError:
        pass
    return {}


def _bounds(text: str, job: DIJob) -> dict[str, tuple[int, int]]:
    tasks = {task.name for task in job.tasks}
    try:
        given = json.loads(text) if text else {}
        out = {name: (item["min"], item["max"]) for name, item in given.items()}
        if all(n in tasks and _is_count(low) and _is_count(high) and low <= high for n, (low, high) in out.items()):
            return out
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    return {}


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
