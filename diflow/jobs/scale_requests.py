"""Scale requests: the present one as read from a job's Workflow, and the patch for a new one.

Shared by `diflow scale` and the server. Both write only what users may write (the parameter `replicas`, the annotation
`diflow/bounds`). This module knows neither of them, and does not access the cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from diflow.common import keys, names
from diflow.common.errors import ConflictError, InvalidError, NotFoundError
from diflow.common.jsontext import canonical_json
from diflow.dijob.stored import StoredJob
from diflow.jobs.replica_ranges import Asked, Bounds, asked
from diflow.record import untrusted
from diflow.record.job import record_of
from diflow.record.patches import live, merged

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class CurrentRequests:
    """The requests in one version of a job's Workflow: `desired` replicas and `bounds` by task, all `parameters`."""

    name: str
    workflow: str
    uid: str
    version: str
    job: StoredJob
    desired: Mapping[str, int]
    bounds: Bounds
    parameters: tuple[tuple[str, str], ...]
    annotations: Mapping[str, str]
    awaits_admission: bool = False

    def asked(self, index: int) -> Asked:
        """The present request for one task."""
        return asked(self.job.spec, index, desired=self.desired, bounds=self.bounds)

    def change(
        self, desired: Mapping[str, int], bounds: Bounds, *, annotations: Mapping[str, str] | None = None
    ) -> Json:
        """The merge patch that requests these instead. It is valid for this version of the Workflow only."""
        values = merged(self.parameters, live(replicas=desired))
        change: Json = {
            "metadata": {"uid": self.uid, "resourceVersion": self.version},
            "spec": {"arguments": {"parameters": values}},
        }
        noted = dict(annotations or {})
        if bounds != self.bounds:
            given = {task: {"min": pair[0], "max": pair[1]} for task, pair in bounds.items()}
            noted[keys.BOUNDS] = canonical_json(given)
        if self.awaits_admission:
            noted[keys.REQUESTED] = canonical_json(dict(desired))
        if noted:
            change["metadata"]["annotations"] = noted
        return change

    def check_hostnames(self, index: int, highest: int, *, path: str) -> None:
        """Raises InvalidError if the name of the last of `highest` replicas of this task would be too long."""
        names.check_hostname(self.workflow, self.job.spec.tasks[index].name, highest, path=path)


def current_requests(workflow: Mapping[str, Any]) -> CurrentRequests:
    """Read the requests from a Workflow.

    Raises NotFoundError if it is not diflow's, ConflictError if it has ended, InvalidError if no allocator acts on it
    (`scheduling: none`) or if it is unreadable.
    """
    state = record_of(workflow)
    name = state.name
    if not state.terms.is_job:
        raise NotFoundError(f"the Workflow {name} is not a diflow job")
    if state.has_ended:
        raise ConflictError(f"job {name} has ended already ({state.argo.phase}): nothing of it can be scaled")
    if not state.terms.is_gang:
        raise InvalidError(
            f"job {name} has scheduling: none, so Argo alone runs it and nothing acts on other numbers: submit it with "
            "scheduling: gang, for the allocator"
        )
    if state.problem:
        raise InvalidError(f"job {name} cannot be read: {state.problem}")
    return CurrentRequests(
        name=name,
        workflow=state.identity.name,
        uid=state.identity.uid,
        version=state.identity.version,
        job=state.submitted,
        desired=state.wishes.desired,
        bounds=state.wishes.bounds,
        parameters=state.texts.parameters,
        annotations=untrusted.sub(workflow, "metadata", "annotations"),
        awaits_admission=state.argo.awaits_admission,
    )
