"""Records when the API server shows a change: the clock of the live measurements."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from diflow.errors import DiflowError
from diflow.kube.api import Cluster
from diflow.kube.kinds import Kind


class Watch:
    """When each object of a kind in a namespace first had each value that `read` returns for it ("": none).

    Times are `time.monotonic` when this process received the event.
    """

    def __init__(self, cluster: Cluster, namespace: str, kind: Kind, read: Callable[[dict[str, Any]], str]) -> None:
        self._cluster, self._namespace, self._kind, self._read = cluster, namespace, kind, read
        self._seen: dict[str, dict[str, float]] = {}
        self._last: dict[str, str] = {}
        self._version: str | None = None
        self._news = threading.Condition()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Watch:
        items, self._version = self._cluster.snapshot(self._kind, namespace=self._namespace)
        for item in items:
            self._note(item)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()

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

    def _run(self) -> None:
        while not self._stop.is_set():
            with suppress(DiflowError):
                for change in self._cluster.watch(
                    self._kind, namespace=self._namespace, since=self._version, stop=self._stop.is_set
                ):
                    self._note(change.object, is_gone=change.kind == "DELETED")

    def _note(self, obj: dict[str, Any], *, is_gone: bool = False) -> None:
        name = obj["metadata"]["name"]
        value = "" if is_gone else self._read(obj)
        with self._news:
            if self._last.get(name, "") == value:
                return
            self._last[name] = value
            self._seen.setdefault(name, {}).setdefault(value, time.monotonic())
            self._news.notify_all()
