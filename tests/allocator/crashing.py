"""A process that is killed at one of its writes."""

from __future__ import annotations

from dataclasses import dataclass

from tests.allocator.lab import Killed


@dataclass
class Crash:
    """Kills the process at its `at`-th write: before it is sent, or after the server has applied it."""

    at: int
    is_sent: bool
    seen: int = 0

    def before(self, method: str, path: str) -> None:
        if _is_write(method, path):
            self.seen += 1
            if self.seen == self.at and not self.is_sent:
                raise Killed

    def after(self, method: str, path: str) -> None:
        if _is_write(method, path) and self.seen == self.at and self.is_sent:
            raise Killed


def _is_write(method: str, path: str) -> bool:
    return method != "GET" and "leases" not in path
