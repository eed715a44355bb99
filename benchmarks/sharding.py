"""Data shards of one large job: 1,000 workers lease 10,000 shards a minute of 10^9 samples, from one server.

The server has one processor; the workers and a fake API server have the others. A worker behaves as diflow's client: it
has four leases, and asks when it has used two. All start at once, as the ranks of a gang do. After the measurement the
server is killed, and another one takes its place.
"""

from __future__ import annotations

import asyncio
import collections
import itertools
import json
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.counting import CountingApi, Writes, counting_api, serve
from benchmarks.figures import Figure
from benchmarks.serving import cpu_seconds_of, processors
from diflow.kube.kinds import CONFIG_MAP
from diflow.shards.ledger import MOST_BYTES
from tests.cli.runner import kubeconfig
from tests.kube.fakeapi import FakeApi
from tests.server.place import Place
from tests.server.processes import Served, served, until
from tests.server.wire import request

Json = dict[str, Any]

PART = "sharding"
WORKERS = 1000
SAMPLES = 10**9
SHARD = 1000
HELD = 4
USED = 2
LEASES_A_MINUTE = 10_000
SECONDS = 60.0
STARTING_SECONDS = 20.0
JOB = "large"


def measure(*, seconds: float = SECONDS) -> list[Figure]:
    """The figures of this part."""
    mine, theirs = processors()
    with counting_api("benchmarks.sharding", theirs) as (api, tokens), tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "kubeconfig"
        config.write_text(kubeconfig(api.url))
        command = ("-m", "diflow", "server", "run", "--log-format", "json", "--kubeconfig", str(config))
        with served(command, host="", on=mine) as first, served(command, host="", on=mine) as second:
            for server in (first, second):
                until(lambda s=server: s.metric("diflow_server_ready") == 1, "the server is ready")  # type: ignore[misc]
            usable = os.sched_getaffinity(0)
            os.sched_setaffinity(0, theirs)
            try:
                load = asyncio.run(_Load(first, second, tokens, api).run(seconds))
            finally:
                os.sched_setaffinity(0, usable)
            return load.figures()


class _Load:
    """All workers, and what they saw."""

    def __init__(self, server: Served, successor: Served, tokens: Mapping[str, str], api: CountingApi) -> None:
        self.server, self._successor, self._tokens, self._api = server, successor, tokens, api
        self._period = 60.0 * WORKERS * USED / LEASES_A_MINUTE
        self.owners: dict[int, int] = {}
        self.given_twice = 0
        self.refused = 0
        self.statuses: collections.Counter[int] = collections.Counter()
        self.late: collections.Counter[int] = collections.Counter()  # statuses when all had started
        self.latencies: list[float] = []
        self.first_at: list[float] = []
        self.leased = 0
        self._is_steady = False
        self._began = 0.0

    async def run(self, seconds: float) -> _Load:
        self._began = time.monotonic()
        workers = [asyncio.create_task(self._work(n, token)) for n, token in enumerate(self._tokens.values())]
        while len(self.first_at) < WORKERS or time.monotonic() - self._began < STARTING_SECONDS:
            await asyncio.sleep(0.1)
            for each in workers:
                if each.done():
                    each.result()
        self._is_steady = True
        await asyncio.to_thread(self._api.counts)
        cpu, at = cpu_seconds_of(self.server), time.monotonic()
        await asyncio.sleep(seconds)
        self._is_steady = False
        self.seconds = time.monotonic() - at
        self.cpu_seconds = cpu_seconds_of(self.server) - cpu
        self.peak_mib = self.server.peak_mib()
        self.writes = await asyncio.to_thread(self._api.counts)
        killed, self.server = self.server, self._successor
        killed.process.kill()
        before = self.statuses[200]
        await asyncio.sleep(2 * self._period)  # each worker asks the other one
        self.answers_after = self.statuses[200] - before
        for each in workers:
            each.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        return self

    async def _work(self, number: int, token: str) -> None:
        """A worker asks, uses two shards, and reports them with its next request."""
        line = _Line(self, f"127.0.{10 + number // 100}.{1 + number % 100}")
        held: list[int] = []
        done: list[int] = []
        due = 0.0
        while True:
            body = {"dataset": "train", "size": SAMPLES, "shard": SHARD, "seed": 7, "done": done, "want": HELD}
            asked = time.monotonic()
            status, fields, answer = await line.ask(_request(body, token))
            self._seen(status, time.monotonic() - asked)
            if status != 200:
                await asyncio.sleep(float(fields.get("retry-after", "1")))
                continue
            units = [each["unit"] for each in answer["data"]["shards"]]
            self.refused += len(answer["data"]["refused"])
            for unit in set(units) - set(held):
                self.given_twice += self.owners.setdefault(unit, number) != number
                self.leased += self._is_steady
            if not due:
                self.first_at.append(time.monotonic() - self._began)
                due = time.monotonic() + self._period * number / WORKERS  # ranks soon drift apart
            held, done = units[USED:], units[:USED]
            due += self._period
            await asyncio.sleep(due - time.monotonic())

    def _seen(self, status: int, seconds: float) -> None:
        self.statuses[status] += 1
        if self._is_steady:
            self.late[status] += 1
            self.latencies.append(seconds)

    def figures(self) -> list[Figure]:
        ordered = sorted(self.latencies)
        p50, p99 = (1000 * ordered[len(ordered) * p // 100] for p in (50, 99))
        minute = 60 * self.leased / self.seconds
        started = max(self.first_at)
        share = self.cpu_seconds / self.seconds
        not_200 = sum(n for status, n in self.late.items() if status != 200)
        notes = {
            "leased": f"{len(ordered) / self.seconds:.0f} requests/s, load {os.getloadavg()[0]:.1f}",
            "answer": "an answer waits for the write of its second",
            "started": f"all ask at once; statuses of all requests: {dict(self.statuses)}",
            "share": f"{1000 * self.cpu_seconds / max(1, len(ordered)):.1f} ms a request, with its part of the writes",
            "text": f"{WORKERS} workers with {HELD} leases each",
            "writes": f"two arrive at least {self.writes['gap']:.2f} s apart",
        }
        return [
            Figure(PART, "shards leased", minute, "/min", None, notes["leased"]),
            Figure(PART, "asked for over leased", LEASES_A_MINUTE / minute, "×", 1.1),
            Figure(PART, "answer, p50", p50, "ms", None, notes["answer"]),
            Figure(PART, "answer, p99", p99, "ms", 5000, ""),
            Figure(PART, "all workers have shards after", started, "s", None, notes["started"]),
            Figure(PART, "server's processor time over time", share, "×", 0.6, notes["share"]),
            Figure(PART, "writes of the ledger", self.writes["writes"] / self.seconds, "/s", 1.05, notes["writes"]),
            Figure(PART, "ledger over its bound", self.writes["bytes"] / MOST_BYTES, "×", 1.0, notes["text"]),
            Figure(PART, "workers over answers of the next server", WORKERS / max(1, self.answers_after), "×", 1.0),
            Figure(PART, "shards that two workers got", self.given_twice + self.refused, "", 0, "the kill included"),
            Figure(PART, "answers that are not 200", not_200, "", 0, str(dict(self.late))),
            Figure(PART, "memory at most", self.peak_mib, "MiB", 200),
        ]  # fmt: skip


class _Line:
    """A kept-alive connection of one worker, from an address of its own, opened again when the server closed it."""

    def __init__(self, load: _Load, source: str) -> None:
        self._load, self._source = load, source
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, text: bytes) -> tuple[int, dict[str, str], Json]:
        while True:
            try:
                return await self._once(text)
            except (OSError, asyncio.IncompleteReadError):
                self._streams = None
                await asyncio.sleep(0.1)

    async def _once(self, text: bytes) -> tuple[int, dict[str, str], Json]:
        if self._streams is None:
            port = self._load.server.port
            self._streams = await asyncio.open_connection("127.0.0.1", port, local_addr=(self._source, 0))
        reader, writer = self._streams
        writer.write(text)
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *rest = head.splitlines()
        fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in rest)}
        body = await reader.readexactly(int(fields.get("content-length", "0")))
        if fields.get("connection") == "close":
            writer.close()
            self._streams = None
        return int(first.split()[1]), fields, json.loads(body)


def _request(body: Json, token: str) -> bytes:
    path = f"/v2alpha1/job/default.{JOB}/shards"
    return request("POST", path, json.dumps(body).encode(), fields=[f"Authorization: Bearer {token}"])


# --- the API server, in a process of its own --------------------------------------------------------------------------


def _fill(_: FakeApi, place: Place) -> dict[str, str]:
    """The job, with a token of each pod."""
    from tests.builders import job, task  # noqa: PLC0415 (only in this process)

    place.running(job(task("none", name="worker", replicas=WORKERS), name=JOB))
    names = [f"{JOB}-worker-1-{index}" for index in range(WORKERS)]
    return {name: place.authority.pod_token(name, job=JOB) for name in names}


def _counted(writes: Writes) -> Json:
    """`writes`, `gap`, the shortest time between two, and `bytes`, the longest ledger."""
    gaps = [b - a for (a, _), (b, _) in itertools.pairwise(writes)]
    longest = max((len(body["data"]["ledger"]) for _, body in writes), default=0)
    return {"writes": len(writes), "gap": min(gaps, default=0.0), "bytes": longest}


if __name__ == "__main__":
    serve(CONFIG_MAP, _fill, _counted)
