"""What a request can come to other than its answer, as exceptions with the HTTP status that tells it.

They are the server's side of the table in docs/api.md. A message is for the caller: it names no internals, and the
envelope takes quotes out of it. `diflow.errors` are turned into these in one place (`from_diflow`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from diflow.errors import ConflictError, DiflowError, InvalidError, NotFoundError, UnavailableError
from diflow.server.http.envelope import plain


class ApiError(Exception):
    """A request that is answered with `status` and an envelope that says why.

    `data` goes into the envelope; `headers` are added to the answer.
    """

    def __init__(
        self, status: int, message: str, *, data: Any = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.data = data
        self.headers = dict(headers or {})


class ClientGoneError(Exception):
    """The caller hung up before the request was whole: nobody is left to answer."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with one field of a body. `path` is such as `gradParams.norm` or `observed[2][0]`."""

    path: str
    message: str

    def to_dict(self) -> dict[str, str]:
        """As the envelope has it. Names of fields are the caller's, and may hold anything."""
        return {"path": plain(self.path), "message": plain(self.message)}


def bad_request(message: str) -> ApiError:
    """400: it cannot be understood."""
    return ApiError(400, message)


def unauthorized(message: str) -> ApiError:
    """401: it is not known who asks."""
    return ApiError(401, message, headers={"WWW-Authenticate": 'Bearer realm="diflow"'})


def forbidden(message: str = "this caller may not do that with this job, if there is one") -> ApiError:
    """403: this caller may not. The message must not tell whether there is such a job."""
    return ApiError(403, message)


def not_found(message: str) -> ApiError:
    """404: there is no such job, or no such path."""
    return ApiError(404, message)


def conflict(message: str) -> ApiError:
    """409: not in the state that the job is in."""
    return ApiError(409, message)


def gone(message: str) -> ApiError:
    """410: over for good, the job or this round of it. Whoever asked need not ask again."""
    return ApiError(410, message)


def unprocessable(message: str, faults: Sequence[Fault] = ()) -> ApiError:
    """422: it can be understood, and cannot be so."""
    return ApiError(422, message, data={"errors": [fault.to_dict() for fault in faults]} if faults else None)


def too_many(message: str, *, after_seconds: float) -> ApiError:
    """429: come again later."""
    return ApiError(429, message, headers=retry_after(after_seconds))


def unavailable(message: str, *, after_seconds: float = 1.0) -> ApiError:
    """503: not now; come again later."""
    return ApiError(503, message, headers=retry_after(after_seconds))


def retry_after(seconds: float) -> dict[str, str]:
    """The header that says when to come again: whole seconds, at least one, at most an hour."""
    return {"Retry-After": str(min(3600, max(1, math.ceil(seconds) if math.isfinite(seconds) else 3600)))}


def from_diflow(error: DiflowError) -> ApiError:
    """The answer for an error of the adapter, of which the caller is told no more than helps him."""
    if isinstance(error, NotFoundError):
        return not_found("there is no such job any more")
    if isinstance(error, ConflictError):
        return conflict(str(error))
    if isinstance(error, InvalidError):
        return unprocessable(str(error), [Fault(error.path, error.message)] if error.path else [])
    after = error.retry_after_seconds if isinstance(error, UnavailableError) else None
    return unavailable("the cluster cannot be asked now", after_seconds=after or 1.0)
