"""`python -m tests.server.flood PORT COUNT ADDRESSES`: opens so many silent connections at once and holds them.

They come from as many addresses of this machine (127.0.x.2), each of a network of its own. When all have been tried it
prints `{"open": n}`, and when a line comes on stdin, what became of each: how many were told 503, 408, reset, or are
open still.
"""

from __future__ import annotations

import asyncio
import collections
import json
import resource
import sys

_PATIENCE_SECONDS = 90.0


class Silent(asyncio.Protocol):
    def __init__(self, counts: collections.Counter[str]) -> None:
        self.counts = counts
        self.raw = b""

    def data_received(self, data: bytes) -> None:
        self.raw += data

    def eof_received(self) -> None:
        return None

    def connection_lost(self, _: Exception | None) -> None:
        self.counts[self.raw[9:12].decode() or "reset"] += 1
        self.counts["gone"] += 1


async def main(port: int, count: int, addresses: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, count + 200) if hard > 0 else count + 200, hard))
    loop = asyncio.get_running_loop()
    counts: collections.Counter[str] = collections.Counter()
    kept = []
    limit = asyncio.Semaphore(500)

    async def one(number: int) -> None:
        async with limit:
            source = f"127.0.{number % addresses}.2"
            try:
                transport, _ = await loop.create_connection(
                    lambda: Silent(counts), "127.0.0.1", port, local_addr=(source, 0)
                )
            except OSError:
                counts["refused"] += 1
            else:
                kept.append(transport)

    await asyncio.gather(*(one(number) for number in range(count)))
    print(json.dumps({"tried": count}), flush=True)  # noqa: T201
    await loop.run_in_executor(None, sys.stdin.readline)
    # If the listener's backlog was full, a connection is open on this side alone: it ends only when something is sent.
    for transport in kept:
        if not transport.is_closing():
            transport.write(b"G")
    ends = loop.time() + _PATIENCE_SECONDS
    while counts["gone"] < len(kept) and loop.time() < ends:
        await asyncio.sleep(0.1)
    print(json.dumps({**counts, "open": len(kept) - counts["gone"]}), flush=True)  # noqa: T201


if __name__ == "__main__":
    asyncio.run(main(*map(int, sys.argv[1:])))
