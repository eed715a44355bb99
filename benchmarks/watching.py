"""Records when the API server shows a change: the clock of the live measurements."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from diflow.kube.api import Cluster
from diflow.kube.kinds import Kind
from diflow.kube.reflector import Key, Reflector


class Watch:
    """When each object of a kind in a namespace first had each value that `read` returns for it ("": none).

    Times are `time.monotonic` when this process received the event.
    """

    def __init__(self, cluster: Cluster, namespace: str, kind: Kind, read: Callable[[dict[str, Any]], str]) -> None:
        self._read = read
        self._seen: dict[str, dict[str, float]] = {}
        self._last: dict[str, str] = {}
        self._news = threading.Condition()
        self._reflector = Reflector(cluster, kind, namespace=namespace, on_change=self._note)

    def __enter__(self) -> Watch:
        self._reflector.start()
        if not self._reflector.wait_synced(60):
            raise TimeoutError(f"the {self._reflector.kind.plural} cannot be listed: {self._reflector.trouble}")
        return self

    def __exit__(self, *_: object) -> None:
        self._reflector.stop()

    def when(self, wanted: Callable[[str], bool], *, first: bool = True) -> dict[str, float]:
        """When each object first had a wanted value (or the last such value)."""
        with self._news:
            return {
                name: min(times) if first else max(times)
                for name, values in self._seen.items()
                if (times := [at for value, at in values.items() if wanted(value)])
            }

    def until(self, what: str, found: Callable[[dict[str, str]], bool], *, timeout: float = 300.0) -> float:
        """Wait until the current values of all objects, by name, are as wanted. Returns the time."""
        with self._news:
            if not self._news.wait_for(lambda: found(self._last), timeout):
                raise TimeoutError(f"after {timeout:.0f} s still not: {what}")
            return time.monotonic()

    def _note(self, _what: str, key: Key, _old: dict[str, Any] | None, new: dict[str, Any] | None) -> None:
        name = key[1]
        value = "" if new is None else self._read(new)
        with self._news:
            if self._last.get(name, "") == value:
                return
            self._last[name] = value
            self._seen.setdefault(name, {}).setdefault(value, time.monotonic())
            self._news.notify_all()
