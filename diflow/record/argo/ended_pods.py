"""The status of pods that diflow ends itself, as no kubelet does."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

EXECUTOR: Final = "wait"
"""Argo's container that reports how the main container has ended."""
KILLED: Final = 137
"""The exit code of a container that was killed (SIGKILL), or whose state is unknown."""
_REASON: Final = "Released"


def failed(message: str, *, is_bound: bool, containers: Iterable[tuple[Any, Any]] = (), at: str = "") -> dict[str, Any]:
    """The patch of a pod's status that ends it. Argo takes `message` as the message of the attempt.

    `containers`: the (name, image) of those that no kubelet reports on, which have ended too (`at`: when, in RFC 3339).
    Without any, only Argo's executor is ended: the pod may have the name of one that was deleted before its executor
    had reported, as when its Node object was deleted, and Argo would wait for that report for ever. There is no time of
    its end then, so that Argo makes a new attempt at once.
    """
    status: dict[str, Any] = {"phase": "Failed", "reason": _REASON, "message": message}
    if not is_bound:
        # Without this condition kubectl would still show the pod as SchedulingGated.
        condition = {"type": "PodScheduled", "status": "False", "reason": _REASON, "message": message}
        status["conditions"] = [condition]
    known = list(containers)
    status["containerStatuses"] = [
        _terminated(name, image, reason="ContainerStatusUnknown", message=message, at=at) for name, image in known
    ] or [_terminated(EXECUTOR, "", reason=_REASON, message=message)]
    return {"status": status}


def _terminated(name: Any, image: Any, *, reason: str, message: str, at: str = "") -> dict[str, Any]:
    """A container's status that says that it was killed."""
    end = {"exitCode": KILLED, "reason": reason, "message": message, **({"finishedAt": at} if at else {})}
    state = {"terminated": end}
    return {"name": name, "image": image, "imageID": "", "ready": False, "restartCount": 0, "state": state}
