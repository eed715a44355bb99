"""Follows a job: the newest state of its Workflow and its pods after each change.

Two watches run in threads and update one shared state. The reader gets the newest state, not a queue of events, so a
slow reader misses steps but is never behind.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from diflow.errors import UnauthorizedError
from diflow.jobs import parts
from diflow.kube.kinds import POD, WORKFLOW, Kind
from diflow.state import chain

if TYPE_CHECKING:
    from diflow.kube.api import Cluster

# Changes come in bursts (Argo writes the Workflow, then the pods change): wait a moment and report them together.
_GATHER_SECONDS: Final = 0.1
_IDLE_SECONDS: Final = 1.0


def selector(name: str) -> str:
    """The label selector for the pods of a job, including those of its steps."""
    return f"workflows.argoproj.io/workflow={name}"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a job at one time. `workflow` is None if it does not exist (any more).

    `trouble`: why the cluster cannot be read now; the state is then an old one.
    """

    workflow: dict[str, Any] | None
    pods: tuple[dict[str, Any], ...]
    trouble: str = ""


@dataclass(slots=True)
class _Board:
    """The last state that the watches have seen. Guarded by `changed`."""

    changed: threading.Condition = field(default_factory=threading.Condition)
    number: int = 0
    workflow: dict[str, Any] | None = None
    pods: dict[str, dict[str, Any]] = field(default_factory=dict)
    trouble: str = ""
    error: Exception | None = None
    closed: bool = False


def follow(
    cluster: Cluster, name: str, *, namespace: str | None = None, seconds: float | None = None
) -> Iterator[Snapshot]:
    """Yield the states of a job, starting with the current one, until `seconds` have passed or the job is deleted.

    A job that continues in another Workflow is followed there. Raises NotFoundError if there is no such job, and the
    errors of the requests.
    """
    deadline = time.monotonic() + seconds if seconds is not None else None
    workflow = parts.newest(cluster, name, namespace=namespace)
    if workflow is None:
        workflow = cluster.get(WORKFLOW, name, namespace=namespace)  # raises
    while workflow is not None:
        job, uid, after = chain.job_name(workflow), workflow["metadata"].get("uid"), None
        for snapshot in _follow_one(cluster, workflow, namespace=namespace, deadline=deadline):
            if snapshot.workflow is None:  # it may have continued in another one since
                after = parts.newest(cluster, job, namespace=namespace)
                if after is None or after["metadata"].get("uid") == uid or not chain.continues(after)[0]:
                    yield snapshot
                    return
                break
            after = parts.following(cluster, snapshot.workflow, namespace=namespace)
            if after is not None:
                break
            yield snapshot
        workflow = after


def _follow_one(
    cluster: Cluster, workflow: dict[str, Any], *, namespace: str | None, deadline: float | None
) -> Iterator[Snapshot]:
    """The states of one Workflow, from this one on."""
    name = workflow["metadata"]["name"]
    pods, version = _pods(cluster, name, namespace)
    board = _Board(workflow=workflow, pods={_uid(pod): pod for pod in pods})
    threads = [
        threading.Thread(
            target=_watch,
            args=(cluster, board, kind, name),
            kwargs={"namespace": namespace, "since": since},
            daemon=True,
        )
        for kind, since in ((WORKFLOW, workflow["metadata"].get("resourceVersion")), (POD, version))
    ]
    for thread in threads:
        thread.start()
    seen = -1
    try:
        while True:
            with board.changed:
                # Short waits, so that Ctrl-C is noticed on every platform.
                while board.number == seen and not board.error and not _over(deadline):
                    board.changed.wait(_IDLE_SECONDS if deadline is None else _left(deadline, _IDLE_SECONDS))
                if board.error is not None:
                    raise board.error
                if board.number == seen:
                    return
                seen = board.number
                snapshot = Snapshot(board.workflow, tuple(board.pods.values()), board.trouble)
            yield snapshot
            if snapshot.workflow is None:
                return
            time.sleep(_GATHER_SECONDS if deadline is None else _left(deadline, _GATHER_SECONDS))
    finally:
        with board.changed:
            board.closed = True


def _pods(cluster: Cluster, name: str, namespace: str | None) -> tuple[list[dict[str, Any]], str | None]:
    """The pods; none if the user may not list them, as the Workflow alone shows most."""
    try:
        return cluster.snapshot(POD, namespace=namespace, labels=selector(name))
    except UnauthorizedError:
        return [], None


def _watch(cluster: Cluster, board: _Board, kind: Kind, name: str, *, namespace: str | None, since: str | None) -> None:
    whole = kind is WORKFLOW
    try:
        for change in cluster.watch(
            kind,
            name=name if whole else "",
            labels="" if whole else selector(name),
            namespace=namespace,
            since=since,
            stop=lambda: board.closed,
            troubled=lambda error: _note(board, str(error or "")) if whole else None,
        ):
            with board.changed:
                gone = change.kind == "DELETED"
                if whole:
                    board.workflow = None if gone else change.object
                elif gone:
                    board.pods.pop(_uid(change.object), None)
                else:
                    board.pods[_uid(change.object)] = change.object
                board.number += 1
                board.changed.notify_all()
    except UnauthorizedError as error:
        if whole:  # a user without access to the pods still follows the Workflow
            _fail(board, error)
    except Exception as error:
        _fail(board, error)


def _note(board: _Board, trouble: str) -> None:
    with board.changed:
        if board.trouble != trouble:
            board.trouble = trouble
            board.number += 1
            board.changed.notify_all()


def _fail(board: _Board, error: Exception) -> None:
    with board.changed:
        board.error = error
        board.changed.notify_all()


def _uid(pod: dict[str, Any]) -> str:
    return str(pod["metadata"].get("uid") or pod["metadata"]["name"])


def _over(deadline: float | None) -> bool:
    return deadline is not None and time.monotonic() >= deadline


def _left(deadline: float, most: float) -> float:
    return max(0.0, min(most, deadline - time.monotonic()))
