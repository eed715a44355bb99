"""The transport of a connection. It is closed so that the client can read the last response."""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable
from typing import Final

# Input that is read and discarded after the last response of a connection. A client whose connection is reset at once
# may never see that response (RFC 9112, 9.6).
_DISCARDED_BYTES: Final = 256 * 1024


class DrainingTransport:
    """The transport as uvicorn's code sees it: `close` calls `drain` instead of closing it at once."""

    __slots__ = ("_discarded", "_drain", "_transport", "abort", "is_closing", "write")

    def __init__(self, transport: asyncio.Transport, *, drain: Callable[[], None]) -> None:
        self._transport = transport
        self._drain: Callable[[], None] | None = drain
        self._discarded = 0
        self.abort = transport.abort
        self.is_closing = transport.is_closing
        self.write = transport.write

    def close(self) -> None:
        if self._drain is not None:
            self._drain()

    def forget(self) -> None:
        """Break the reference cycle, so that a closed connection is freed at once."""
        self._drain = None

    def end(self, *, is_read: bool) -> None:
        """Send nothing more; close at once if the client's input `is_read`, and else discard it from now on."""
        if self._transport.is_closing():
            return
        if is_read and not self.has_unread():
            self._transport.close()
        elif self._transport.can_write_eof():
            self._transport.write_eof()
            self._transport.resume_reading()

    def discard(self, size: int) -> None:
        """Count input that is discarded, and read no more of it than the limit."""
        self._discarded += size
        if self._discarded > _DISCARDED_BYTES:
            self._transport.pause_reading()

    def has_unread(self) -> bool:
        """Whether the client has sent something that has not been read yet."""
        if self._transport.is_closing():
            return False
        asked = select.poll()
        asked.register(self._transport.get_extra_info("socket").fileno(), select.POLLIN)
        return bool(asked.poll(0))
