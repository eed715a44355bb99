"""Every error that diflow raises on purpose, as a tree of what the caller can do about it.

    DiflowError
    ├── InvalidError        the input is wrong: mend the field at `path`
    │   └── TooLargeError   the object would become larger than the cluster keeps
    ├── NotFoundError       there is no such object
    ├── ConflictError       the name is taken, or the object changed meanwhile
    ├── UnauthorizedError   the cluster does not allow it
    ├── UnavailableError    the cluster cannot be reached or is not ready; try again after `retry_after_seconds`
    ├── LostLeadershipError another process leads now, or may: write nothing more
    └── JobFailedError      the job ran and failed

A message says what happened, to which object, and what to do next. `exit_code` is what the CLI ends with.
"""

from __future__ import annotations

from typing import ClassVar


class DiflowError(Exception):
    """The root of all errors that a user of diflow may meet."""

    exit_code: ClassVar[int] = 1


class InvalidError(DiflowError):
    """Something in the input is wrong.

    `path` is the field's path in the manifest (`spec.tasks[0].template`), or "" for the whole of it.
    """

    exit_code: ClassVar[int] = 2

    def __init__(self, message: str, *, path: str = "") -> None:
        super().__init__(f"{path}: {message}" if path else message)
        self.message = message
        self.path = path


class TooLargeError(InvalidError):
    """The object, or the annotations of it, would become larger than the cluster keeps."""


class NotFoundError(DiflowError):
    """The named object does not exist (or is not visible to this user)."""

    exit_code: ClassVar[int] = 3


class ConflictError(DiflowError):
    """The name is taken, or the object was changed by somebody else in between."""

    exit_code: ClassVar[int] = 4


class UnavailableError(DiflowError):
    """The cluster cannot be reached, or lacks what diflow needs (such as Argo Workflows)."""

    exit_code: ClassVar[int] = 5

    def __init__(self, message: str, *, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class UnauthorizedError(UnavailableError):
    """The cluster was reached and refused: not logged in, or a right is missing."""


class LostLeadershipError(DiflowError):
    """This process does not lead (any more), or cannot know that it does: it must not write."""

    exit_code: ClassVar[int] = 5


class JobFailedError(DiflowError):
    """The job ran to its end and failed."""

    exit_code: ClassVar[int] = 1
