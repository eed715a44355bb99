"""Jobs whose rounds run side by side, where those of others follow each other: the replicas of each round come and go.

Such a job is its first round; the replicas of the others are beside it. Their Workflows have the parameter `modules`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from diflow.common import contribs, keys
from diflow.record.parameters import parameters

Object = Mapping[str, Any]


class SideBySide(Protocol):
    """The replicas of such a job."""

    def lives(self, round_: str, task: str, index: int) -> bool | None:
        """Whether a replica is wanted; None if the job has no such one."""
        ...


Reader = Callable[[Object], SideBySide | None]
"""Reads the replicas of a Workflow, if it can read any. It never raises."""


def is_one(workflow: Object) -> bool:
    """Whether this is the Workflow of such a job."""
    return any(name == keys.PARAM_MODULES for name, _ in parameters(workflow))


def read(workflow: Object) -> SideBySide | None:
    """The replicas of such a job, None for any other Workflow."""
    if not is_one(workflow):
        return None
    readers: tuple[Reader, ...] = contribs.found("records.side_by_side")
    return next((known for reader in readers if (known := reader(workflow)) is not None), None)
