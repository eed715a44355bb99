"""Follows a job: the newest state of its Workflow and its pods after each change.

A reflector of the Workflow and one of its pods run in threads. The reader gets the newest state, not a queue of events,
so a slow reader misses steps but is never behind.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from diflow.common import keys
from diflow.common.errors import JobFailedError, NotFoundError, UnauthorizedError, UnavailableError
from diflow.jobs import dijobs, parts
from diflow.kube.kinds import POD, WORKFLOW
from diflow.kube.reflector import Reflector
from diflow.record import chain
from diflow.record.status.observe import observe
from diflow.record.status.status import derive_seen

if TYPE_CHECKING:
    from diflow.kube.api import Cluster
    from diflow.record.status.observe import Observation
    from diflow.record.status.status import JobStatus

# Changes come in bursts (Argo writes the Workflow, then the pods change): wait a moment and report them together.
_GATHER_SECONDS: Final = 0.1
_IDLE_SECONDS: Final = 1.0


def selector(name: str) -> str:
    """The label selector for the pods of a job, including those of its steps."""
    return f"{keys.ARGO_WORKFLOW}={name}"


@dataclass(frozen=True)
class FollowedJob:
    """A job as it was at one time. `workflow` is None if it does not exist (any more).

    `trouble`: why the cluster cannot be read now; the state is then an old one.
    """

    workflow: dict[str, Any] | None
    pods: tuple[dict[str, Any], ...]
    trouble: str = ""

    @cached_property
    def seen(self) -> Observation:
        """What its Workflow and its pods show."""
        return observe(self.workflow or {}, self.pods)

    @cached_property
    def status(self) -> JobStatus:
        """Its status; while the cluster cannot be read, that is unknown, and the numbers are old."""
        status = derive_seen(self.seen)
        return replace(status, phase="Unknown", message=self.trouble) if self.trouble else status


class _News:
    """What the reflectors' threads tell the reader: that there is something new, and errors. Guarded by `changed`."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.number = 0
        self.trouble = ""
        self.error: Exception | None = None
        self.may_read_pods = True
        self._failures = 0

    def tell(self, *_: object) -> None:
        """An object has changed, or was read for the first time."""
        with self.changed:
            self.number += 1
            self.changed.notify_all()

    def of_workflow(self, error: Exception | None) -> None:
        """The first failure of several may be a watch that ends: the second one is shown."""
        with self.changed:
            self._failures = 0 if error is None else self._failures + 1
            self.trouble = str(error) if self._failures > 1 else ""
            if not isinstance(error, UnavailableError | None):
                self.error = error
            self.tell()

    def of_pods(self, error: Exception | None) -> None:
        """A user without access to the pods still follows the Workflow."""
        with self.changed:
            self.may_read_pods = not isinstance(error, UnauthorizedError)
            if not isinstance(error, UnavailableError | UnauthorizedError | None):
                self.error = error
            self.tell()


def follow(
    cluster: Cluster, name: str, *, namespace: str | None = None, seconds: float | None = None
) -> Iterator[FollowedJob]:
    """Yield the states of a job, starting with the current one, until `seconds` have passed or the job is deleted.

    A job that continues in another Workflow is followed there. A DIJob object that has no Workflow yet is waited for.
    Raises NotFoundError if there is no such job, JobFailedError if it has failed without a Workflow, TimeoutError if it
    has none in time, and the errors of the requests.
    """
    deadline = time.monotonic() + seconds if seconds is not None else None
    workflow = _await_workflow(cluster, name, namespace=namespace, deadline=deadline)
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


def _await_workflow(
    cluster: Cluster, name: str, *, namespace: str | None, deadline: float | None
) -> dict[str, Any] | None:
    """The current Workflow of a job; None if there is neither a Workflow nor a DIJob object of this name."""
    while (workflow := parts.newest(cluster, name, namespace=namespace)) is None:
        obj = dijobs.find(cluster, name, namespace=namespace)
        if obj is None:
            return None
        status = dijobs.status_of(obj)
        if status.phase == "Failed":
            raise JobFailedError(f"job {name} failed: {status.message}")
        if status.ended:
            raise NotFoundError(f"job {name} has succeeded, and its Workflow was deleted since")
        if _over(deadline):
            raise TimeoutError(f"job {name} has no Workflow yet: {status.message}")
        time.sleep(_IDLE_SECONDS if deadline is None else _left(deadline, _IDLE_SECONDS))
    return workflow


def _follow_one(
    cluster: Cluster, workflow: dict[str, Any], *, namespace: str | None, deadline: float | None
) -> Iterator[FollowedJob]:
    """The states of one Workflow, from this one on."""
    name, news = workflow["metadata"]["name"], _News()
    workflows = Reflector(
        cluster,
        WORKFLOW,
        namespace=namespace,
        fields=f"metadata.name={name}",
        on_change=news.tell,
        on_trouble=news.of_workflow,
    )
    pods = Reflector(
        cluster, POD, namespace=namespace, labels=selector(name), on_change=news.tell, on_trouble=news.of_pods
    )
    state: dict[str, Any] | None = workflow
    seen, is_read = -1, False
    for reflector in (workflows, pods):
        reflector.start()
    try:
        while True:
            with news.changed:
                # Short waits, so that Ctrl-C is noticed on every platform.
                while news.number == seen and not news.error and not _over(deadline):
                    news.changed.wait(_IDLE_SECONDS if deadline is None else _left(deadline, _IDLE_SECONDS))
                if news.error is not None:
                    raise news.error
                if news.number == seen:
                    return
                seen, trouble = news.number, news.trouble
                is_read = is_read or (workflows.synced and (pods.synced or not news.may_read_pods))
            if is_read:
                state = next(iter(workflows.items().values()), None)
            elif not trouble:
                continue
            yield FollowedJob(state, tuple(pods.items().values()), trouble)
            if state is None:
                return
            time.sleep(_GATHER_SECONDS if deadline is None else _left(deadline, _GATHER_SECONDS))
    finally:
        for reflector in (workflows, pods):
            reflector.stop(timeout=0.0)


def _over(deadline: float | None) -> bool:
    return deadline is not None and time.monotonic() >= deadline


def _left(deadline: float, most: float) -> float:
    return max(0.0, min(most, deadline - time.monotonic()))
