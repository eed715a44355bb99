"""Changes objects of the cluster, mostly the Workflow of a job: reads, decides, and writes; all again if the object was
changed meanwhile."""

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
class Patch:
    """A merge patch of an object. One that must not go to an object that was changed since names its
    resourceVersion."""

    kind: Kind
    name: str
    body: dict[str, Any]


Change = Patch | dict[str, Any] | None


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

    Returns the other value of `decide`. Raises NotFoundError, ConflictError if conflicts persist, and the errors of
    `decide`.
    """
    cluster = cluster or connect()

    def read() -> tuple[T, Patch | None]:
        workflow = lookup.current_workflow(name, namespace=namespace, cluster=cluster)
        result, patch = decide(workflow)
        return result, Patch(WORKFLOW, workflow["metadata"]["name"], patch) if isinstance(patch, dict) else patch

    return until_written(read, namespace=namespace, cluster=cluster, clock=clock)


def until_written(
    read: Callable[[], tuple[T, Patch | None]], *, namespace: str | None, cluster: Cluster, clock: Clock = SYSTEM
) -> T:
    """Call `read`, which reads and decides, and write the patch that it returns, if there is one; all again if the
    object was changed meanwhile. Returns the other value of `read`."""
    attempt = 0
    while True:
        attempt += 1
        result, patch = read()
        if patch is None:
            return result
        try:
            cluster.patch(patch.kind, patch.name, patch.body, namespace=namespace, metadata_only=True)
        except ConflictError:
            if attempt == _TRIES:
                raise
            clock.sleep(_PAUSE_SECONDS * attempt)
        else:
            return result
