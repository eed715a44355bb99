"""How much of one request is read: bytes of its head and its body, header fields, and bytes on the wire."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from diflow.server.settings import ServerSettings

# Bytes on the wire per byte of a body, at most: chunks of one byte need six.
_FRAMING: Final = 8
_MOST_FIELDS: Final = 100


class Budget:
    """What the client has sent of the current request."""

    __slots__ = ("_body", "_chunk", "_fields", "_head", "_limits", "_raw", "is_head_too_long")

    def __init__(self, limits: ServerSettings) -> None:
        self._limits = limits
        self._chunk = 0
        self.begin_request()

    def receive(self, size: int) -> None:
        """Count a chunk that is parsed next."""
        self._raw += size
        self._chunk = size

    def begin_request(self) -> None:
        """Begin anew. The chunk counts, unless the request before ended in it."""
        self._raw = self._chunk
        self._head = self._fields = self._body = 0
        self.is_head_too_long = False

    def end_head(self) -> None:
        self._raw = 0

    def end_request(self) -> None:
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

    def is_exceeded(self, *, in_head: bool) -> bool:
        """Whether more bytes have come than any head, or any body with its framing, within the limits has."""
        return self._raw > (self._limits.header_bytes if in_head else _FRAMING * self._limits.body_bytes)
