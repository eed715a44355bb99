"""What a job's user asks of it, as it stands in its Workflow, and the patch that asks for something else.

It is what `diflow scale` and the server share: both read a Workflow, think, and write only what a user may write (the
parameter `replicas`, the annotation `diflow/bounds`). Neither of them is known here, nor is the cluster.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from diflow import chain, keys, names, status
from diflow.errors import ConflictError, InvalidError, NotFoundError
from diflow.job import DIJob, canonical_json
from diflow.scaling import Asked, Bounds, asked

Json = dict[str, Any]

_ENDED = frozenset({"Succeeded", "Failed", "Error"})


@dataclass(frozen=True, slots=True)
class Standing:
    """What stands in one version of a job's Workflow: `wanted` replicas and `bounds` by task, all `parameters`."""

    name: str
    workflow: str
    uid: str
    version: str
    job: DIJob
    wanted: Mapping[str, int]
    bounds: Bounds
    parameters: tuple[tuple[str, str], ...]
    annotations: Mapping[str, str]

    def asked(self, index: int) -> Asked:
        """What is asked for one task now."""
        return asked(self.job, index, wanted=self.wanted, bounds=self.bounds)

    def parameter(self, name: str) -> str:
        """A parameter of the Workflow, or ""."""
        return next((value for known, value in self.parameters if known == name), "")

    def change(
        self, wanted: Mapping[str, int], bounds: Bounds, *, annotations: Mapping[str, str] | None = None
    ) -> Json:
        """The merge patch that asks for these instead. It is meant for this version of the Workflow alone."""
        text = canonical_json(dict(wanted))
        parameters = list(self.parameters)
        if all(name != keys.PARAM_REPLICAS for name, _ in parameters):
            parameters.append((keys.PARAM_REPLICAS, ""))
        # A list in a merge patch is replaced as a whole: the others go along as they were.
        values = [{"name": n, "value": text if n == keys.PARAM_REPLICAS else value} for n, value in parameters]
        change: Json = {
            "metadata": {"uid": self.uid, "resourceVersion": self.version},
            "spec": {"arguments": {"parameters": values}},
        }
        noted = dict(annotations or {})
        if bounds != self.bounds:
            given = {task: {"min": pair[0], "max": pair[1]} for task, pair in bounds.items()}
            noted[keys.BOUNDS] = canonical_json(given)
        if noted:
            change["metadata"]["annotations"] = noted
        return change

    def check_hostnames(self, index: int, highest: int, *, path: str) -> None:
        """Raises InvalidError if the name of the last of `highest` replicas of this task would be too long."""
        names.check_hostname(self.workflow, self.job.tasks[index].name, highest, path=path)


def standing(workflow: Mapping[str, Any]) -> Standing:
    """What stands in a Workflow.

    Raises NotFoundError if it is not diflow's, ConflictError if it has ended, InvalidError if nobody acts on what is
    asked (`scheduling: none`), or if it cannot be understood any more.
    """
    metadata = workflow["metadata"]
    name, labels = chain.job_name(workflow), metadata.get("labels") or {}
    annotations = metadata.get("annotations") or {}
    if not status.is_job(workflow):
        raise NotFoundError(f"the Workflow {name} is not a diflow job")
    phase = (workflow.get("status") or {}).get("phase")
    if phase in _ENDED:
        raise ConflictError(f"job {name} has ended already ({phase}): nothing of it can be scaled")
    if labels.get(keys.SCHEDULING, "none") != "gang":
        raise InvalidError(
            f"job {name} has scheduling: none, so Argo alone runs it and nothing acts on other numbers: submit it with "
            "scheduling: gang, for the allocator"
        )
    job = _dijob(name, annotations)
    parameters = tuple(
        (str(p.get("name", "")), str(p.get("value", "")))
        for p in ((workflow.get("spec") or {}).get("arguments") or {}).get("parameters") or []
    )
    return Standing(
        name=name,
        workflow=metadata["name"],
        uid=metadata["uid"],
        version=metadata["resourceVersion"],
        job=job,
        wanted=_wanted(dict(parameters).get(keys.PARAM_REPLICAS, ""), job),
        bounds=_bounds(annotations.get(keys.BOUNDS) or "", job),
        parameters=parameters,
        annotations=annotations,
    )


def _dijob(name: str, annotations: Mapping[str, str]) -> DIJob:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return DIJob.from_manifest(json.loads(annotations.get(keys.DIJOB) or ""))
    except (ValueError, RecursionError, InvalidError) as error:
        raise InvalidError(f"job {name} cannot be understood any more (annotation {keys.DIJOB}): {error}") from None


def _wanted(text: str, job: DIJob) -> dict[str, int]:
    """What is asked for now; of what somebody made unreadable, as little as the allocator takes of it: nothing."""
    tasks = {task.name for task in job.tasks}
    try:
        given = json.loads(text) if text else {}
        if isinstance(given, dict) and all(name in tasks and _is_count(n) for name, n in given.items()):
            return dict(given)
    except (ValueError, RecursionError):
        pass
    return {}


def _bounds(text: str, job: DIJob) -> dict[str, tuple[int, int]]:
    tasks = {task.name for task in job.tasks}
    try:
        given = json.loads(text) if text else {}
        out = {name: (item["min"], item["max"]) for name, item in given.items()}
        if all(n in tasks and _is_count(low) and _is_count(high) and low <= high for n, (low, high) in out.items()):
            return out
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        pass
    return {}


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
