"""Pods of an earlier Workflow of the name that a job is to have.

They outlive their Workflow by their grace period. Argo finds the pods of a Workflow by names and annotations which
follow from the name of the Workflow alone: it takes such pods for those of the new one, and their exit codes, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from diflow.common.clock import SYSTEM, Clock
from diflow.common.errors import ConflictError, UnauthorizedError
from diflow.jobs.follow import selector
from diflow.kube.kinds import POD
from diflow.record import untrusted

if TYPE_CHECKING:
    from diflow.kube.api import Cluster

Json = dict[str, Any]

WAIT_SECONDS: Final = 60.0
"""Twice the usual grace period of a pod."""
_PAUSE_SECONDS: Final = 1.0
_MOST_READ: Final = 20
_MOST_NAMED: Final = 3


class EarlierPodsError(ConflictError):
    """There are pods of an earlier Workflow."""


def check(cluster: Cluster, name: str, *, namespace: str) -> None:
    """Check that there are no pods of the Workflow `name`, which does not exist. Raises EarlierPodsError, which names
    some of them. Those that the user may not list are assumed to be gone."""
    try:
        found = cluster.list_all(POD, namespace=namespace, labels=selector(name), metadata_only=True, limit=_MOST_READ)
    except UnauthorizedError:
        return
    if found:
        raise EarlierPodsError(
            f"there are pods of an earlier Workflow {name} in the namespace {namespace!r}, which Argo would take for "
            f"those of the new one: {_named(found)}. Wait until they are gone, and delete those that stay; or give "
            "the job another name"
        )


def wait(
    cluster: Cluster,
    name: str,
    *,
    namespace: str,
    on_wait: Callable[[str], object] = lambda _: None,
    clock: Clock = SYSTEM,
) -> None:
    """As `check`, after waiting at most `WAIT_SECONDS` until the pods are gone. `on_wait` is called once, with what is
    waited for, if there are any."""
    until = clock.monotonic() + WAIT_SECONDS
    is_first = True
    while True:
        try:
            check(cluster, name, namespace=namespace)
        except EarlierPodsError as error:
            if clock.monotonic() >= until:
                raise
            if is_first:
                on_wait(str(error))
            is_first = False
            clock.sleep(_PAUSE_SECONDS)
        else:
            return


def _named(pods: list[Json]) -> str:
    """Some of the pods as text, those first that nobody deletes."""
    rows = []
    for pod in pods:
        metadata = untrusted.sub(pod, "metadata")
        goes = bool(metadata.get("deletionTimestamp"))
        rows.append((goes, untrusted.string(metadata.get("name")) + (" (is being deleted)" if goes else "")))
    rows.sort()
    more = len(rows) - _MOST_NAMED
    names = ", ".join(text for _, text in rows[:_MOST_NAMED])
    return f"{names} and {'at least ' if len(rows) >= _MOST_READ else ''}{more} more" if more > 0 else names
