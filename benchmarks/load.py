"""A load generator with low overhead: `python -m benchmarks.load < plan.json` prints throughput and latencies.

The plan has `port`, `requests` (complete requests as text, sent in turn, repeatedly), `connections` (kept open, each
from its own address, like pods), `seconds`, and `rate`: requests per second, sent whether or not earlier ones were
answered (latency then counts from when a request was due). Without `rate` each connection sends its next request when
it has the response.
"""

from __future__ import annotations

import asyncio
import collections
import itertools
import json
import sys
from typing import Any

import uvloop

_TICK_SECONDS = 0.002


class _Caller(asyncio.Protocol):
    """One connection. It supports only responses with a Content-Length."""

    def __init__(self, load: _Load) -> None:
        self._load = load
        self._raw = b""
        self._due = 0.0

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._load.is_free(self)

    def ask(self, due: float) -> None:
        self._due = due
        self._transport.write(next(self._load.requests))

    def data_received(self, data: bytes) -> None:
        raw = self._raw + data if self._raw else data
        end = raw.find(b"\r\n\r\n")
        at = raw.lower().find(b"\r\ncontent-length: ", 0, end)
        if end < 0 or at < 0:
            self._raw = raw
            return
        length = int(raw[at + 18 : raw.find(b"\r\n", at + 18)])
        if len(raw) < end + 4 + length:
            self._raw = raw
            return
        self._raw = b""
        self._load.answered(self._due, raw[9:12])
        if b"\r\nconnection: close" not in raw[:end].lower():
            self._load.is_free(self)

    def connection_lost(self, _: Exception | None) -> None:
        self._load.is_lost()


class _Load:
    def __init__(self, plan: dict[str, Any]) -> None:
        self._plan = plan
        self._loop = asyncio.get_running_loop()
        self.requests = itertools.cycle([text.encode() for text in plan["requests"]])
        self._rate: float | None = plan.get("rate")
        self._free: collections.deque[_Caller] = collections.deque()
        self._due: collections.deque[float] = collections.deque()
        self._latencies: list[float] = []
        self._statuses: collections.Counter[str] = collections.Counter()
        self._opened = 0
        self._opening: set[asyncio.Task[Any]] = set()
        self._is_over = False
        self._began = 0.0

    async def run(self) -> dict[str, Any]:
        connecting = [self._connect() for _ in range(self._plan["connections"])]
        self._began = self._loop.time()
        await asyncio.gather(*connecting)
        if self._rate:
            await self._keep_the_rate(self._rate)
        else:
            await asyncio.sleep(self._plan["seconds"])
        self._is_over = True
        seconds = self._loop.time() - self._began
        ordered = sorted(self._latencies)
        return {
            "seconds": seconds,
            "answers": len(ordered),
            "statuses": dict(self._statuses),
            "unanswered": len(self._due),
            **{f"p{p}_ms": 1000 * ordered[min(len(ordered) - 1, len(ordered) * p // 100)] for p in (50, 95, 99)},
        }

    async def _keep_the_rate(self, rate: float) -> None:
        sent = 0
        while (now := self._loop.time() - self._began) < self._plan["seconds"]:
            while sent < now * rate:
                self._due.append(self._began + sent / rate)
                sent += 1
            while self._due and self._free:
                self._free.popleft().ask(self._due.popleft())
            await asyncio.sleep(_TICK_SECONDS)

    def is_free(self, caller: _Caller) -> None:
        if self._is_over:
            return
        if self._rate is None:
            caller.ask(self._loop.time())
        elif self._due:
            caller.ask(self._due.popleft())
        else:
            self._free.append(caller)

    def answered(self, due: float, status: bytes) -> None:
        self._latencies.append(self._loop.time() - due)
        self._statuses[status.decode()] += 1

    def is_lost(self) -> None:
        """Replace a connection that the server closed."""
        if not self._is_over:
            task = self._loop.create_task(self._connect())
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _connect(self) -> None:
        self._opened += 1
        source = f"127.0.3.{1 + self._opened % self._plan['connections'] % 250}"
        await self._loop.create_connection(
            lambda: _Caller(self), "127.0.0.1", self._plan["port"], local_addr=(source, 0)
        )


async def _main() -> None:
    print(json.dumps(await _Load(json.load(sys.stdin)).run()))


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_main())
