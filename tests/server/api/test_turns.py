"""All jobs share a rate of writes, and their namespaces take turns."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from diflow.common.clock import Clock
from diflow.server.api.turns import Turns
from tests.server.place import asynchronous


class _Clock:
    """Time that moves only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)
        self.now += seconds


class _Run:
    """Writers of several namespaces, and when each had its turn."""

    def __init__(self, *, rate: float = 10.0, burst: float = 1.0) -> None:
        self.clock = _Clock()
        self.turns = Turns(rate=rate, burst=burst, clock=Clock(monotonic=self.clock, pause=self.clock.sleep))
        self.had: list[tuple[str, float]] = []

    def write(self, namespace: str) -> asyncio.Task[None]:
        async def one() -> None:
            await self.turns.wait(namespace)
            self.had.append((namespace, round(self.clock.now, 1)))

        return asyncio.ensure_future(one())


@asynchronous
async def test_the_rate_is_that_of_all_and_a_burst_waits_for_nothing() -> None:
    run = _Run(burst=3.0)
    await asyncio.gather(*(run.write("a") for _ in range(8)))
    assert [at for _, at in run.had] == [0, 0, 0, 0.1, 0.2, 0.3, 0.4, 0.5]


@asynchronous
async def test_a_namespace_with_very_many_jobs_delays_another_one_by_one_turn() -> None:
    run = _Run()
    writers = [run.write("many") for _ in range(1000)]
    await asyncio.sleep(0)
    writers += [run.write("one"), run.write("two")]
    await asyncio.gather(*writers)
    order = [namespace for namespace, _ in run.had]
    assert order.index("one") <= 3
    assert order.index("two") <= 4
    assert order.count("many") == 1000
    assert run.had[-1][1] >= 100, "ten a second"


@asynchronous
async def test_a_cancelled_writer_takes_no_turn() -> None:
    run = _Run()
    writers = [run.write("a") for _ in range(5)]
    await asyncio.sleep(0)
    for writer in writers[1:4]:
        writer.cancel()
    for writer in writers:
        with suppress(asyncio.CancelledError):
            await writer
    assert [at for _, at in run.had] == [0, 0.1]
    await run.write("a")
    assert run.had[-1] == ("a", 0.2)


@asynchronous
async def test_nobody_waits_when_the_process_ends() -> None:
    run = _Run(rate=0.001)
    writers = [run.write("a") for _ in range(5)]
    await asyncio.sleep(0)
    run.turns.open()
    await asyncio.gather(*writers, run.write("b"))
    assert {at for _, at in run.had[1:]} <= {0.0, 1000.0}
    assert len(run.had) == 6
