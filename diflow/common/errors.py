"""All errors that diflow raises on purpose, as a tree of what the caller can do.

    DiflowError
    ├── InvalidError        the input is invalid: correct the field at `path`
    │   └── TooLargeError   the object would exceed the cluster's size limit
    ├── NotFoundError       there is no such object
    │   └── NoNamespaceError    nor a namespace for it
    ├── ConflictError       the name is taken, or the object was changed meanwhile
    ├── UnauthorizedError   the cluster denies access
    ├── UnavailableError    the cluster is not reachable or not ready; retry after `retry_after_seconds`
    ├── LostLeadershipError another process leads, or may: stop writing
    └── JobFailedError      the job ran and failed

A message says what happened, to which object, and what to do next. `exit_code` is the CLI's exit code.
"""

from __future__ import annotations

from typing import ClassVar


class DiflowError(Exception):
    """The base class of diflow's errors."""

    exit_code: ClassVar[int] = 1
    answer: str = ""
    """What the API server said, unaltered; "" if it said nothing."""


class InvalidError(DiflowError):
    """The input is invalid.

    `path` is the field's path in the manifest (`spec.tasks[0].template`), or "" for the whole of it.
    """

    exit_code: ClassVar[int] = 2

    def __init__(self, message: str, *, path: str = "") -> None:
        super().__init__(f"{path}: {message}" if path else message)
        self.message = message
        self.path = path


class TooLargeError(InvalidError):
    """The object, or its annotations, would exceed the cluster's size limit."""


class NotFoundError(DiflowError):
    """The named object does not exist (or is not visible to this user)."""

    exit_code: ClassVar[int] = 3


class NoNamespaceError(NotFoundError):
    """The namespace does not exist."""


class ConflictError(DiflowError):
    """The name is taken, or the object was changed concurrently."""

    exit_code: ClassVar[int] = 4


class UnavailableError(DiflowError):
    """The cluster is not reachable, or lacks a prerequisite (such as Argo Workflows)."""

    exit_code: ClassVar[int] = 5

    def __init__(self, message: str, *, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class UnauthorizedError(UnavailableError):
    """The cluster denied access: not logged in, or a right is missing."""


class LostLeadershipError(DiflowError):
    """This process does not lead (any more), or cannot be sure of it: it must not write."""

    exit_code: ClassVar[int] = 5


class JobFailedError(DiflowError):
    """The job failed."""

    exit_code: ClassVar[int] = 1
