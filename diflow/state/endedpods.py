"""The status of containers of pods that diflow ends itself, as no kubelet does."""

from __future__ import annotations

from typing import Any, Final

EXECUTOR: Final = "wait"
"""Argo's container that reports how the main container has ended."""
KILLED: Final = 137
"""The exit code of a container that was killed (SIGKILL), or whose state is unknown."""


def terminated(name: Any, image: Any, *, reason: str, message: str, at: str = "") -> dict[str, Any]:
    """A container's status that says that it was killed. `at`: when; without it, Argo makes no back-off of it."""
    end = {"exitCode": KILLED, "reason": reason, "message": message, **({"finishedAt": at} if at else {})}
    state = {"terminated": end}
    return {"name": name, "image": image, "imageID": "", "ready": False, "restartCount": 0, "state": state}
