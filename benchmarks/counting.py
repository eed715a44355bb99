"""A fake API server in a process of its own, which counts the writes of one kind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from diflow.kube.kinds import Kind
from tests.kube.fakeapi import Answer, FakeApi, Request, serving
from tests.server.place import Place

Json = dict[str, Any]
Writes = list[tuple[float, Json]]
"""(monotonic seconds, the object that was written)."""

ROOT = Path(__file__).resolve().parents[1]


class CountingApi:
    """The process, as its user sees it."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self._process = process
        self.url = url

    def counts(self) -> Json:
        """What `serve` was given to make of the writes since the last call."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return dict(json.loads(self._process.stdout.readline()))


@contextmanager
def counting_api(module: str, on: set[int]) -> Iterator[tuple[CountingApi, dict[str, str]]]:
    """Run `python -m <module> api`, which calls `serve`, on these processors. Yields it, and the pods' tokens."""
    command = [sys.executable, "-m", module, "api"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        os.sched_setaffinity(process.pid, on)
        try:
            assert process.stdout is not None
            started = json.loads(process.stdout.readline())
            yield CountingApi(process, started["url"]), started["tokens"]
        finally:
            process.kill()


def serve(kind: Kind, fill: Callable[[FakeApi, Place], dict[str, str]], counted: Callable[[Writes], Json]) -> None:
    """Serve what `fill` adds; it returns the pods' tokens. For each line on stdin, print what `counted` makes of the
    writes of `kind` since the line before."""
    with serving() as api:
        tokens = fill(api, Place(api))
        writes: Writes = []
        add = api.add

        def noting(written: Kind, body: Json, **where: str) -> Json:
            """As `add`, which every accepted write calls."""
            if written is kind:
                writes.append((time.monotonic(), body))
            return add(written, body, **where)

        def forget(_: Request) -> Answer | None:
            api.requests.clear()
            return None

        setattr(api, "add", noting)  # noqa: B010 (a method of this object alone)
        api.rule(forget)
        print(json.dumps({"url": api.url, "tokens": tokens}), flush=True)
        for _ in sys.stdin:
            seen, writes[:] = list(writes), []
            print(json.dumps(counted(seen)), flush=True)
