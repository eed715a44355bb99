"""The request that a client is sending: its phase, and how much of it has come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

    from diflow.server.settings import ServerSettings

# Bytes on the wire per byte of a body, at most: chunks of one byte need six.
_FRAMING: Final = 8
_MOST_FIELDS: Final = 100


class Incoming:
    """The current request of a connection, as far as it has come. The parser's callbacks tell it each part.

    `is_open`: its first byte was read, and its last one was not; `in_head`: that is so of its head. `cycle`: uvicorn's
    object for it, from the end of its head to the end of its body.
    """

    __slots__ = (
        "_body", "_chunk", "_fields", "_head", "_limits", "_raw", "cycle", "in_head", "is_head_too_long", "is_open",
    )  # fmt: skip

    def __init__(self, limits: ServerSettings) -> None:
        self._limits = limits
        self._chunk = 0
        self.begin()
        self.is_open = self.in_head = False

    def receive(self, size: int) -> None:
        """Count a chunk that is parsed next."""
        self._raw += size
        self._chunk = size

    def begin(self) -> None:
        """A request begins. The chunk counts, unless the request before ended in it."""
        self.is_open = self.in_head = True
        self.cycle: RequestResponseCycle | None = None
        self._raw = self._chunk
        self._head = self._fields = self._body = 0
        self.is_head_too_long = False

    def end_head(self) -> None:
        """The head is complete, and bytes are counted for the body."""
        self.in_head = False
        self._raw = 0

    def end(self) -> None:
        """The body is complete."""
        self.is_open = False
        self.cycle = None
        self._chunk = 0

    def takes_head(self, size: int, *, fields: int = 0) -> bool:
        """Count a part of the head. Returns whether the head is within the limits."""
        self._head += size
        self._fields += fields
        if self._head > self._limits.header_bytes or self._fields > _MOST_FIELDS:
            self.is_head_too_long = True
            return False
        return True

    def takes_body(self, size: int) -> bool:
        """Count a part of the body. Returns whether the body is within the limit."""
        self._body += size
        return self._body <= self._limits.body_bytes

    @property
    def is_exceeded(self) -> bool:
        """Whether more bytes have come than any head, or any body with its framing, within the limits has."""
        if not self.is_open:
            return False
        return self._raw > (self._limits.header_bytes if self.in_head else _FRAMING * self._limits.body_bytes)
