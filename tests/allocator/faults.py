"""What the tests of the reflector and the elector share: time that they make pass, and waiting without guessing."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import urllib3

from diflow.kube.api import Cluster
from tests.kube.fakeapi import FakeApi

_PATIENCE_SECONDS = 60.0


class Time:
    """A clock that stands still until somebody sleeps on it or moves it, and keeps a record of the sleeps."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now = 1000.0
        self.slept: list[float] = []

    def now(self) -> float:
        with self._lock:
            return self._now

    def move(self, seconds: float) -> None:
        with self._lock:
            self._now += seconds

    def sleep(self, seconds: float) -> None:
        with self._lock:
            self._now += seconds
            self.slept.append(seconds)


def client(api: FakeApi) -> Cluster:
    """A client that waits so long for an answer that a busy machine alone never makes it give up."""
    return api.cluster(read_seconds=60.0, connect_seconds=60.0)


def eventually(true: Callable[[], object], what: str = "") -> None:
    """Wait until it is so; after a very long time, fail."""
    ends = time.monotonic() + _PATIENCE_SECONDS
    while not true():
        assert time.monotonic() < ends, f"this never came about: {what or true}"
        time.sleep(0.005)


class Refusing:
    """A transport whose server is away for as long as `away` says: connections to it are refused."""

    def __init__(self, away: Callable[[], bool]) -> None:
        self._pool = urllib3.PoolManager(maxsize=8)
        self._away = away
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._nobody = f"http://127.0.0.1:{free.getsockname()[1]}/"
        self.refused = 0

    def request(self, method: str, url: str, **options: Any) -> Any:
        if self._away():
            self.refused += 1
            url = self._nobody
        return self._pool.request(method, url, **options)
