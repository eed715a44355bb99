"""HTTP requests to the server: the envelope of a response, and the errors for the caller.

`requests` is imported with the first request, in the background thread, as that takes a third of a second.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from diflow.client.place import Place
from diflow.common.clock import SYSTEM, Clock
from diflow.common.errors import (
    ConflictError,
    DiflowError,
    InvalidError,
    NotFoundError,
    UnauthorizedError,
    UnavailableError,
)
from diflow.version import __version__

if TYPE_CHECKING:
    import requests

_CONNECT_SECONDS: Final = 3.0
_MOST_BYTES: Final = 4 * 1024 * 1024  # of a response: the addresses of a hundred thousand replicas
_LONGEST_RETRY_SECONDS: Final = 3600.0


class Wire:
    """A kept-alive connection to the server of one place. Not thread-safe."""

    def __init__(self, place: Place, *, clock: Clock = SYSTEM) -> None:
        self._place = place
        self._clock = clock
        self._session: requests.Session | None = None

    def ask(
        self, method: str, path: str, body: Mapping[str, Any] | None, *, key: str | None, timeout_seconds: float
    ) -> Any:
        """The `data` of the response to one request. Raises a DiflowError that says what the caller can do.

        A rejected token may just have been renewed: the request is then repeated once with the new one.
        """
        token = self._place.token()
        try:
            return self._once(method, path, body, token, key=key, timeout_seconds=timeout_seconds)
        except _UnknownError:
            newer = self._place.token()
            if newer == token:
                raise
            return self._once(method, path, body, newer, key=key, timeout_seconds=timeout_seconds)

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def forget(self) -> None:
        """Drop the connection without closing it, as it belongs to the parent of this forked process."""
        self._session = None

    def _once(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        token: str | None,
        *,
        key: str | None,
        timeout_seconds: float,
    ) -> Any:
        import requests  # noqa: PLC0415 (see above)

        if self._session is None:
            self._session = _session(self._place)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        if key:
            headers["Idempotency-Key"] = key
        if body is not None:
            headers["Content-Type"] = "application/json"
        try:
            with self._session.request(
                method,
                f"{self._place.url}{path}",
                data=None if body is None else json.dumps(body, allow_nan=False, separators=(",", ":")).encode(),
                headers=headers,
                timeout=(min(_CONNECT_SECONDS, timeout_seconds), timeout_seconds),
                allow_redirects=False,  # the token is for the server only
                stream=True,
            ) as response:
                text = _read(response)
                status, answered = response.status_code, response.headers
        except (requests.RequestException, OSError, ValueError) as error:
            self.close()
            raise UnavailableError(f"{self._place.url} cannot be reached: {_reason(error)}") from None
        return self._judge(status, answered, text)

    def _judge(self, status: int, headers: Mapping[str, str], text: bytes) -> Any:
        envelope = _envelope(text)
        if status == 200 and envelope.get("success") is True:
            return envelope.get("data")
        message = _message(envelope) or f"{self._place.url} gave no answer that diflow's server would give"
        after = _retry_after(headers.get("Retry-After"), now=self._clock.wall())
        raise _error(status, message, has_token=self._place.token() is not None, after=after)


class _UnknownError(UnauthorizedError):
    """401: the server does not accept the token."""


class GoneError(ConflictError):
    """410: the job, or this replica's round of it, has ended. The server accepts no more requests of this process."""


_REFUSALS: Final[Mapping[int, type[DiflowError]]] = {
    **dict.fromkeys((400, 405, 413, 415, 422), InvalidError),
    404: NotFoundError,
    409: ConflictError,
    410: GoneError,
}


def _error(status: int, message: str, *, has_token: bool, after: float | None) -> DiflowError:
    text = f"{message} (status {status})"
    if status == 401:
        hint = "" if has_token else "; this container has no token: is something else mounted in its place?"
        return _UnknownError(text + hint, retry_after_seconds=after)
    if status == 403:
        return UnauthorizedError(text, retry_after_seconds=after)
    refusal = _REFUSALS.get(status)
    if refusal is not None:
        return refusal(text)
    return UnavailableError(text, retry_after_seconds=after)


def _session(place: Place) -> requests.Session:
    import requests  # noqa: PLC0415

    session = requests.Session()
    # Neither a proxy nor a .netrc: the server is in the cluster, and the token is for it only.
    session.trust_env = False
    session.verify = place.authorities or True
    session.headers.update(
        {"User-Agent": f"diflow-client/{__version__}", "Accept": "application/json", "Accept-Encoding": "identity"}
    )
    return session


def _read(response: requests.Response) -> bytes:
    text = bytearray()
    for piece in response.iter_content(16_384):
        text += piece
        if len(text) > _MOST_BYTES:
            raise ValueError(f"its answer is longer than {_MOST_BYTES} bytes")
    return bytes(text)


def _envelope(text: bytes) -> Mapping[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _message(envelope: Mapping[str, Any]) -> str:
    """The server's message, with the invalid fields."""
    message = envelope.get("message")
    if not isinstance(message, str) or not message:
        return ""
    data = envelope.get("data")
    faults = data.get("errors") if isinstance(data, dict) else None
    paths = [str(f.get("path")) for f in faults if isinstance(f, dict)] if isinstance(faults, list) else []
    return f"{message[:500]} ({', '.join(paths[:5])})" if paths else message[:500]


def _retry_after(text: str | None, *, now: float) -> float | None:
    """The seconds of a Retry-After header, given as a number or a date; at most an hour."""
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        from email.utils import parsedate_to_datetime  # noqa: PLC0415 (half of this module's import, for a rare form)

        try:
            seconds = parsedate_to_datetime(text).timestamp() - now
        except (ValueError, TypeError, OverflowError):
            return None
    return min(max(seconds, 0.0), _LONGEST_RETRY_SECONDS) if seconds == seconds else None  # noqa: PLR0124 (NaN)


def _reason(error: BaseException) -> str:
    """A short text of the innermost cause, as requests puts all causes into one long line."""
    found = ""
    at: BaseException | None = error
    seen: set[int] = set()
    while at is not None and id(at) not in seen:
        seen.add(id(at))
        found = getattr(at, "strerror", None) or found
        inner = getattr(at, "reason", None) or next((a for a in at.args if isinstance(a, BaseException)), None)
        at = inner if isinstance(inner, BaseException) else at.__cause__ or at.__context__
    if not found and "timed out" in str(error).lower():
        return "it took too long"
    return found or str(error)[:200] or type(error).__name__
