"""Of jobs with `health`, the server keeps who reported when, and says that it listens."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import Any

from diflow import DIJob
from diflow.common import keys
from diflow.dijob.model import Health
from diflow.record import signals, untrusted
from diflow.record.signals import BEAT_SECONDS, IDLE_SECONDS, NEVER, Signals
from tests.server.place import NOW, Place, asynchronous, bearer, elastic, soon

PATH = "/v2alpha1/job/default.elastic/profilings"


def healthy() -> DIJob:
    return elastic(health=Health())


def kept(place: Place) -> Signals:
    found = signals.of(place.parameter("elastic", keys.PARAM_PROFILINGS))
    assert found is not None
    return found


def listens(place: Place, seconds: int) -> None:
    """Let time pass for a server that listens."""
    for _ in range(seconds):
        place.time.move(1)
        place.app.state.core.reporter.beat()


async def begun(place: Place) -> Any:
    """The reporter, without a random delay, when it has said for the first time that it listens."""
    place.jitter = lambda _low, _high: 0.0
    reporter = place.app.state.core.reporter
    reporter.beat()
    await soon(partial(has_written, place, 1))
    return reporter


def is_writing(place: Place) -> bool:
    return ("default", "elastic") in place.app.state.core.reporter.batches


def patches(place: Place) -> int:
    return len(place.api.seen("PATCH"))


def has_written(place: Place, times: int) -> bool:
    """Whether the server has written so often, and sees it."""
    view = place.app.state.core.cache.job("default", "elastic")
    return (
        patches(place) == times
        and not is_writing(place)
        and view.workflow.texts.report == place.parameter("elastic", keys.PARAM_PROFILINGS)
    )


@asynchronous
async def test_a_report_is_a_sign_of_life_of_the_pod_that_sent_it(place: Place) -> None:
    place.running(healthy())
    token = place.authority.pod_token("elastic-worker-1-2", job="elastic")
    async with place.asked() as client:
        await client.post(PATH, headers=bearer(token), json={"step": 7})
        await soon(partial(has_written, place, 1))
        now = int(NOW + place.time.now())
        assert kept(place).heard == kept(place).moved == (NEVER, NEVER, now, NEVER)
        assert kept(place).steps == (0, 0, 7, 0)
        # About the whole job, and AdaptDL's hints: its own rank has sent them.
        await client.post(PATH, headers=bearer(token), json={"speed": 3, "replicas": 4, "step": 8})
        await soon(partial(has_written, place, 2))
        assert kept(place).steps == (0, 0, 8, 0)
        place.time.move(5)
        await client.put("/hints/default/elastic", headers=bearer(token), json={"initBatchSize": 77})
        await soon(partial(has_written, place, 3))
        assert kept(place).heard[2] > kept(place).moved[2]


@asynchronous
async def test_a_job_without_health_has_no_signs(place: Place) -> None:
    place.running(elastic())
    token = place.authority.pod_token("elastic-worker-1-2", job="elastic")
    async with place.asked() as client:
        await client.post(PATH, headers=bearer(token), json={"step": 7})
        await soon(partial(has_written, place, 1))
        place.time.move(1000)
        place.api.bookmark()
        place.app.state.core.reporter.beat()
        await soon(lambda: not place.app.state.core.reporter.waiting)
    assert "signals" not in json.loads(place.parameter("elastic", keys.PARAM_PROFILINGS))
    assert patches(place) == 1


@asynchronous
async def test_a_server_says_that_it_listens_while_nobody_reports_and_no_more_often_than_it_has_to(
    place: Place,
) -> None:
    place.running(healthy())
    async with place.asked():
        reporter = await begun(place)
        first = kept(place)
        assert first.heard == (NEVER,) * 4
        for beat in range(1, 6):
            listens(place, IDLE_SECONDS - 1)
            assert not is_writing(place), "nothing is due"
            listens(place, 1)
            await soon(partial(has_written, place, beat + 1))
        assert (kept(place).since, kept(place).at) == (first.since, first.at + 5 * IDLE_SECONDS)
        place.time.move(IDLE_SECONDS)
        reporter.beat()
        await soon(partial(has_written, place, 7))
        assert kept(place).since == kept(place).at, "it was away"


@asynchronous
async def test_it_says_so_soon_after_each_deadline_of_a_replica(place: Place) -> None:
    place.running(elastic(health=Health(heartbeat_seconds=75)))
    token = place.authority.pod_token("elastic-worker-1-2", job="elastic")
    async with place.asked() as client:
        place.jitter = lambda _low, _high: 0.0
        await client.post(PATH, headers=bearer(token), json={"step": 7})
        await soon(partial(has_written, place, 1))
        heard = kept(place).heard[2]
        listens(place, IDLE_SECONDS)
        await soon(partial(has_written, place, 2))
        listens(place, 15)
        assert not is_writing(place), "the deadline is this second"
        listens(place, 1)
        await soon(partial(has_written, place, 3))
        assert (kept(place).at, kept(place).heard[2]) == (heard + 76, heard)


@asynchronous
async def test_a_clock_that_is_set_makes_no_replica_silent(place: Place) -> None:
    place.running(healthy())
    async with place.asked():
        reporter = await begun(place)
        place.time.move(3600)
        reporter.beat()
        await soon(partial(has_written, place, 2))
        assert kept(place).since == kept(place).at


@asynchronous
async def test_a_server_waits_for_a_while_whether_another_one_says_it(place: Place) -> None:
    """Two servers that write at the same time conflict: half of the writes would be refused, and followed by reads."""
    place.running(healthy())
    async with place.asked():
        reporter = place.app.state.core.reporter
        waits: list[float] = []
        place.jitter = lambda low, high: waits.append(high) or low  # type: ignore[func-returns-value]
        reporter.beat()
        assert not patches(place), "another one may have begun"
        place.time.move(4.0)
        reporter.beat()
        await soon(partial(has_written, place, 1))
        listens(place, IDLE_SECONDS)
        await soon(partial(has_written, place, 2))  # it wrote the last one, and goes on
        reporter.batches.results.clear()  # as if another one had written it
        reporter._beats.clear()
        listens(place, IDLE_SECONDS + 3)
        assert not is_writing(place), "not yet"
        listens(place, 1)
        await soon(partial(has_written, place, 3))
    assert max(waits) + 2 * BEAT_SECONDS <= 30, "a hang is found so soon after its deadline"


@asynchronous
async def test_of_two_servers_one_says_it(place: Place) -> None:
    place.running(healthy())
    async with place.asked():
        reporter = await begun(place)
        place.time.move(BEAT_SECONDS)
        text = untrusted.mapping(place.parameter("elastic", keys.PARAM_PROFILINGS))
        other = {
            **text,
            "at": NOW + place.time.now(),
            "signals": {**text["signals"], "at": int(NOW + place.time.now())},
        }
        refused = place.api.seen("PATCH")
        place.set("elastic", profilings=other)
        reporter.beat()  # the cache may not have it yet
        await soon(lambda: not is_writing(place))
        reporter.beat()
        await soon(lambda: not is_writing(place))
    assert untrusted.mapping(place.parameter("elastic", keys.PARAM_PROFILINGS)) == other
    assert len(place.api.seen("PATCH")) - len(refused) <= 1, "at most one, which the API server refuses"


@asynchronous
async def test_nothing_is_said_of_a_job_without_pods_or_that_has_ended(place: Place) -> None:
    place.submit(healthy())
    async with place.asked():
        place.app.state.core.reporter.beat()
        assert not place.app.state.core.reporter.jobs
    assert patches(place) == 0


@asynchronous
async def test_a_monitor_shows_life_by_cpu_time_and_by_the_log_only(place: Place) -> None:
    place.running(healthy())
    token = place.authority.pod_token("elastic-worker-1-0", job="elastic")
    async with place.asked() as client:
        count = 0

        async def heard(**body: Any) -> float:
            """Seconds since the last sign of life after this report, ten seconds after the last one."""
            nonlocal count
            count += 1
            place.time.move(10)
            await client.post(PATH, headers=bearer(token), json=body)
            await soon(partial(has_written, place, count))
            return kept(place).at - kept(place).heard[0]

        assert await heard(cpuSeconds=5.0, logBytes=10) == 0
        assert await heard(cpuSeconds=9.0, logBytes=10) == 0
        assert await heard(cpuSeconds=9.05, logBytes=10) == 10, "half a percent is idle"
        assert await heard(cpuSeconds=9.1, logBytes=10) == 20
        assert await heard(cpuSeconds=9.1, logBytes=11) == 0
        assert await heard(cpuSeconds=9.1, logBytes=11) == 10
        assert await heard(cpuSeconds=9.1, logBytes=11, step=3) == 0
        assert await heard(cpuSeconds=9.1, logBytes=11, step=3) == 10
        assert await heard(speed=1.0) == 0, "the program's own report"


@asynchronous
async def test_a_monitor_and_the_program_do_not_take_each_others_place(place: Place) -> None:
    place.running(healthy())
    token = place.authority.pod_token("elastic-worker-1-0", job="elastic")
    view_of = place.cache.job
    place.jitter = lambda _low, _high: 0.0
    go = asyncio.Event()

    async def pause(_: float) -> None:
        await go.wait()

    async with place.asked(pause=pause) as client:
        reporter = place.app.state.core.reporter
        await client.post(PATH, headers=bearer(token), json={"cpuSeconds": 5.0})
        await soon(partial(has_written, place, 1))
        assert view_of("default", "elastic") is not None
        await client.post(PATH, headers=bearer(token), json={"step": 9, "speed": 2.0})
        await client.post(PATH, headers=bearer(token), json={"cpuSeconds": 5.0, "memoryBytes": 77})
        (report,) = reporter.batches.waiting["default", "elastic"].reports.values()
        assert (report.body.step, report.body.speed, report.body.memory_bytes, report.is_alive) == (9, 2.0, 77, True)
        go.set()
        await soon(partial(has_written, place, 2))
