"""Failures of a request, as exceptions with an HTTP status: the server's side of the table in docs/api.md.

A message is for the caller: it names no internals, and the envelope removes quotes from it. `from_diflow` is the one
place that converts `diflow.common.errors`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from diflow.common.errors import ConflictError, DiflowError, InvalidError, NotFoundError, UnavailableError
from diflow.server.http.envelope import plain


class ApiError(Exception):
    """The request is answered with `status`; `message` and `data` go into the envelope, `headers` into the response."""

    def __init__(
        self, status: int, message: str, *, data: Any = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.data = data
        self.headers = dict(headers or {})


class ClientGoneError(Exception):
    """The client disconnected before its request was complete: there is nothing to answer."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with one field of a body. `path` is such as `gradParams.norm` or `observed[2][0]`."""

    path: str
    message: str

    def to_dict(self) -> dict[str, str]:
        """For the envelope. The caller chooses the names of fields, so they may contain anything."""
        return {"path": plain(self.path), "message": plain(self.message)}


def bad_request(message: str) -> ApiError:
    """400: the request cannot be parsed."""
    return ApiError(400, message)


def unauthorized(message: str) -> ApiError:
    """401: the caller is not authenticated."""
    return ApiError(401, message, headers={"WWW-Authenticate": 'Bearer realm="diflow"'})


def forbidden(message: str = "this caller may not do that with this job, if there is one") -> ApiError:
    """403: the caller is not allowed to do this. The message must not reveal whether the job exists."""
    return ApiError(403, message)


def not_found(message: str) -> ApiError:
    """404: no such job, or no such path."""
    return ApiError(404, message)


def conflict(message: str) -> ApiError:
    """409: not possible in the job's current state."""
    return ApiError(409, message)


def gone(message: str) -> ApiError:
    """410: the job, or this round of it, has ended. A retry is pointless."""
    return ApiError(410, message)


def unprocessable(message: str, faults: Sequence[Fault] = ()) -> ApiError:
    """422: well-formed, but not valid."""
    return ApiError(422, message, data={"errors": [fault.to_dict() for fault in faults]} if faults else None)


def too_many(message: str, *, after_seconds: float) -> ApiError:
    """429: rate limit exceeded; retry later."""
    return ApiError(429, message, headers=retry_after(after_seconds))


def unavailable(message: str, *, after_seconds: float = 1.0) -> ApiError:
    """503: not possible now; retry later."""
    return ApiError(503, message, headers=retry_after(after_seconds))


def retry_after(seconds: float) -> dict[str, str]:
    """The Retry-After header: whole seconds, at least one, at most an hour."""
    return {"Retry-After": str(min(3600, max(1, math.ceil(seconds) if math.isfinite(seconds) else 3600)))}


def from_diflow(error: DiflowError) -> ApiError:
    """The response for an error of the Kubernetes adapter. It tells the caller only what the caller can act on."""
    if isinstance(error, NotFoundError):
        return not_found("there is no such job any more")
    if isinstance(error, ConflictError):
        return conflict(str(error))
    if isinstance(error, InvalidError):
        return unprocessable(str(error), [Fault(error.path, error.message)] if error.path else [])
    after = error.retry_after_seconds if isinstance(error, UnavailableError) else None
    return unavailable("the cluster cannot be asked now", after_seconds=after or 1.0)
