"""Tenants take turns, at a rate that they share or at places, and keep what is theirs."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from diflow.common.clock import Clock
from diflow.server.http.errors import ApiError
from diflow.server.http.parts import Parts
from diflow.server.http.turns import Turns
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

    def __init__(self, *, rate: float = 10.0, burst: float = 1.0, part: float = 1.0) -> None:
        self.clock = _Clock()
        self.turns = Turns(rate=rate, burst=burst, part=part, clock=Clock(monotonic=self.clock, pause=self.clock.sleep))
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


@asynchronous
async def test_a_tenant_gets_its_part_of_the_rate_and_leaves_the_rest_to_others() -> None:
    run = _Run(burst=10.0, part=0.4)
    writers = [run.write("many") for _ in range(20)]
    await asyncio.gather(*writers)
    at_once = [at for _, at in run.had if at == 0]
    assert len(at_once) == 4
    assert 3.5 <= run.had[-1][1] <= 4.5, "sixteen more, four a second"
    writers = [run.write("many") for _ in range(20)]
    await asyncio.sleep(0)
    now = run.clock.now
    await run.write("other")
    assert run.had[-1][0] == "other" or ("other", round(now, 1)) in run.had
    await asyncio.gather(*writers)


# --- places -----------------------------------------------------------------------------------------------------------


@asynchronous
async def test_one_tenant_gets_no_more_places_than_it_leaves_free_and_another_has_one_at_once() -> None:
    turns = Turns(places=8)
    many = [asyncio.ensure_future(turns.wait("many")) for _ in range(20)]
    await asyncio.sleep(0.01)
    assert sum(one.done() for one in many) == 4
    await asyncio.wait_for(turns.wait("one"), 1)
    turns.done("many")
    await asyncio.sleep(0.01)
    assert sum(one.done() for one in many) == 5
    turns.done("one")
    await asyncio.sleep(0.01)
    assert sum(one.done() for one in many) == 5, "four are in use, and four free"
    for one in many:
        one.cancel()


@asynchronous
async def test_a_single_place_goes_round_the_tenants() -> None:
    turns, order = Turns(places=1), []

    async def work(tenant: str) -> None:
        await turns.wait(tenant)
        order.append(tenant)
        await asyncio.sleep(0)
        turns.done(tenant)

    await asyncio.gather(*(work("many") for _ in range(50)), work("one"), work("two"))
    assert order.index("one") <= 3
    assert order.index("two") <= 4
    assert turns.busy == 0


@asynchronous
async def test_where_no_more_may_wait_the_tenant_with_the_most_loses_its_newest() -> None:
    turns = Turns(places=1, most=10)
    await turns.wait("many")
    many = [asyncio.ensure_future(turns.wait("many")) for _ in range(10)]
    await asyncio.sleep(0)
    with pytest.raises(ApiError):
        await turns.wait("many")
    one = asyncio.ensure_future(turns.wait("one"))
    await asyncio.sleep(0.01)
    assert [isinstance(each.exception(), ApiError) for each in many if each.done()] == [True]
    assert many[-1].done()
    turns.done("many")
    await asyncio.sleep(0.01)
    turns.done("many")
    await asyncio.wait_for(one, 1)
    for each in many:
        each.cancel()


@asynchronous
async def test_a_caller_that_leaves_in_the_moment_of_its_turn_gives_the_place_back() -> None:
    turns = Turns(places=1)
    await turns.wait("a")
    waiting = asyncio.ensure_future(turns.wait("a"))
    await asyncio.sleep(0.01)
    turns.done("a")
    turns._next()  # the giver has not run yet
    await asyncio.sleep(0)
    waiting.cancel()
    with suppress(asyncio.CancelledError):
        await waiting
    await asyncio.wait_for(turns.wait("b"), 1)


# --- what is kept -----------------------------------------------------------------------------------------------------


def test_what_one_tenant_keeps_displaces_its_own() -> None:
    parts: Parts[int, str] = Parts(10, timer=lambda: 0.0)
    parts.keep(-1, "mine", tenant="one")
    for number in range(100):
        parts.keep(number, "many", tenant="many")
    assert parts.get(-1) == "mine"
    assert len(parts) == 10
    assert [parts.get(number) for number in (90, 91, 99)] == [None, "many", "many"]


def test_tenants_of_the_same_size_do_not_displace_each_other() -> None:
    parts: Parts[tuple[str, int], int] = Parts(10, timer=lambda: 0.0)
    for number in range(5):
        parts.keep(("one", number), number, tenant="one")
        parts.keep(("two", number), number, tenant="two")
    parts.keep(("two", 5), 5, tenant="two")
    assert all(parts.get(("one", number)) == number for number in range(5))
    assert parts.get(("two", 0)) is None


def test_what_is_kept_ends() -> None:
    now = 0.0
    parts: Parts[str, int] = Parts(10, timer=lambda: now)
    parts.keep("a", 1, tenant="t", seconds=5.0)
    parts.keep("b", 2, tenant="t")
    now = 5.0
    assert parts.get("a") is None
    assert list(parts) == ["b"]
