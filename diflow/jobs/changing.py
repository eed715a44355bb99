"""Changes the Workflow of a job: reads it, decides, and writes; all again if it was changed meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from diflow.common.clock import SYSTEM, Clock
from diflow.common.errors import ConflictError
from diflow.jobs import lookup
from diflow.jobs.checks.connecting import connect
from diflow.kube.api import Cluster
from diflow.kube.kinds import WORKFLOW, Kind

_TRIES: Final = 6
_PAUSE_SECONDS: Final = 0.2
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class OfOther:
    """A merge patch of another object than the Workflow."""

    kind: Kind
    name: str
    patch: dict[str, Any]


Change = OfOther | dict[str, Any] | None


def change(
    name: str,
    decide: Callable[[dict[str, Any]], tuple[T, Change]],
    *,
    namespace: str | None = None,
    cluster: Cluster | None = None,
    clock: Clock = SYSTEM,
) -> T:
    """Call `decide` with the job's current Workflow; write the merge patch that it returns (None: nothing to write),
    which is one of the Workflow if it does not say otherwise.

    Returns the other value of `decide`. A patch that must not go to a Workflow that was changed since names its
    resourceVersion. Raises NotFoundError, ConflictError if conflicts persist, and the errors of `decide`.
    """
    cluster = cluster or connect()
    attempt = 0
    while True:
        attempt += 1
        workflow = lookup.current_workflow(name, namespace=namespace, cluster=cluster)
        result, patch = decide(workflow)
        if patch is None:
            return result
        if not isinstance(patch, OfOther):
            patch = OfOther(WORKFLOW, workflow["metadata"]["name"], patch)
        try:
            cluster.patch(patch.kind, patch.name, patch.patch, namespace=namespace)
        except ConflictError:
            if attempt == _TRIES:
                raise
            clock.sleep(_PAUSE_SECONDS * attempt)
        else:
            return result
