"""Shared by the tests of the reflector and the elector: simulated time, and waiting for conditions."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import urllib3

from diflow.common.clock import Clock
from diflow.kube.api import Cluster
from tests.kube.fakeapi import FakeApi

_PATIENCE_SECONDS = 60.0


class Time:
    """A clock that advances only by sleeps and by hand, and records the sleeps."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now = 1000.0
        self.slept: list[float] = []

    def now(self) -> float:
        with self._lock:
            return self._now

    @property
    def clock(self) -> Clock:
        """All of it; the wall clock shows the same seconds."""
        return Clock(monotonic=self.now, wall=self.now, sleep=self.sleep)

    def move(self, seconds: float) -> None:
        with self._lock:
            self._now += seconds

    def sleep(self, seconds: float) -> None:
        with self._lock:
            self._now += seconds
            self.slept.append(seconds)


def client(api: FakeApi) -> Cluster:
    """A client with time-outs so long that a busy machine alone never causes one."""
    return api.cluster(read_seconds=60.0, connect_seconds=60.0)


def eventually(true: Callable[[], object], what: str = "") -> None:
    """Wait until the condition holds; fail after a very long time."""
    ends = time.monotonic() + _PATIENCE_SECONDS
    while not true():
        assert time.monotonic() < ends, f"this never came about: {what or true}"
        time.sleep(0.005)


class Refusing:
    """A transport that refuses connections while `away` is true."""

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
