"""Results of node checks over HTTP: what is accepted and stored, and when the work of a replica may begin."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from diflow import DIJob
from diflow.common import keys
from diflow.dijob.model import NodeCheck
from diflow.kube.kinds import POD, WORKFLOW
from diflow.record import nodecheck
from diflow.record.exclusions import Exclusions
from diflow.record.nodecheck import Entry, Record
from tests.kube.fakeapi import Answer, Request, status
from tests.server.place import NOW, Place, asynchronous, bearer, elastic, soon

PATH = "/v2alpha1/job/default.elastic/checks"
BODY = {"figures": {"product": 0.1, "memory": 0.2}}


def running(place: Place, *, replicas: int = 2, **over: Any) -> DIJob:
    """A job with a node check, each pod on a node of its own, with a uid of its own."""
    job = elastic(replicas=replicas, low=1, node_check=NodeCheck(**over))
    place.submit(job)
    for index in range(replicas):
        uid = f"{index}0000000-0000-0000-0000-000000000000"
        name = f"elastic-worker-1-{index}"
        labels = place.pod("elastic", "worker", index, ip=f"10.0.0.{index + 1}")["metadata"]
        place.api.add(
            POD,
            {
                **place.api.objects[POD.path("default")][name],
                "metadata": {**labels, "uid": uid},
                "spec": {"nodeName": f"node-{index}", "containers": [{"name": "main"}]},
            },
        )
    return job


def token(place: Place, index: int) -> str:
    return place.authority.pod_token(
        f"elastic-worker-1-{index}", job="elastic", pod_uid=f"{index}0000000-0000-0000-0000-000000000000"
    )


async def ask(client: httpx.AsyncClient, given: str, body: Any = BODY) -> httpx.Response:
    return await client.post(PATH, headers=bearer(given), json=body)


def stored(place: Place) -> Record:
    return Record.parse(place.workflow("elastic")["metadata"]["annotations"].get(keys.NODE_CHECK))


async def verdict(client: httpx.AsyncClient, given: str, body: Any = BODY) -> dict[str, Any]:
    answer = await ask(client, given, body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json()["data"])


async def all_reported(place: Place, client: httpx.AsyncClient, *bodies: Any) -> None:
    """Report as the pods do: again and again, until all is stored."""
    for _ in range(600):
        for index, body in enumerate(bodies):
            await verdict(client, token(place, index), body)
        if len(stored(place).entries) == len(bodies):
            break
        await asyncio.sleep(0.05)
    await soon(lambda: len(known(place).entries) == len(bodies))


def wall(place: Place) -> float:
    """The time of the server, in seconds since 1970."""
    return NOW + place.time.now()


def known(place: Place) -> Record:
    """The record as the server's cache has it."""
    view = place.cache.job("default", "elastic")
    assert view is not None
    return Record.parse(view.workflow.texts.check_text)


@asynchronous
async def test_the_work_begins_when_the_results_of_all_are_stored(place: Place) -> None:
    running(place)
    async with place.asked() as client:
        first = await verdict(client, token(place, 0))
        assert first == {
            "verdict": "wait", "reason": "0 of 2 replicas have been checked", "checked": 0, "replicas": 2,
        }  # fmt: skip
        await all_reported(place, client, BODY, BODY)
        for index in (0, 1):
            assert (await verdict(client, token(place, index)))["verdict"] == "go"
    record = stored(place)
    assert record.round == "1"
    assert record.entries == {
        rank: Entry(f"{rank}0000000", {"product": 0.1, "memory": 0.2}) for rank in (0, 1)
    }  # fmt: skip


@asynchronous
async def test_a_gang_with_a_slow_node_waits_to_be_placed_again(place: Place) -> None:
    running(place, replicas=3)
    async with place.asked() as client:
        await all_reported(place, client, BODY, {"figures": {"product": 0.31}}, BODY)
        for index in range(3):
            said = await verdict(client, token(place, index), [BODY, {"figures": {"product": 0.31}}, BODY][index])
            assert said["verdict"] == "wait"
            why = "product 0.31 s, 3.1 times the others' median 0.1 s"
            assert said["reason"] == f"is placed again without node node-1: {why}"


@asynchronous
async def test_a_gang_that_was_placed_again_often_enough_begins(place: Place) -> None:
    running(place, replicas=3, max_moves=1)
    record = Exclusions().without(
        "node-9", reason="slow", source=nodecheck.SOURCE, now=NOW, attempts=[nodecheck.move(1)]
    )
    place.workflow("elastic")["metadata"]["annotations"][keys.EXCLUDED] = record.to_json()
    place.api.add(WORKFLOW, place.workflow("elastic"))
    async with place.asked() as client:
        await all_reported(place, client, BODY, {"figures": {"product": 0.31}}, BODY)
        assert (await verdict(client, token(place, 0)))["verdict"] == "go"


@asynchronous
async def test_after_most_of_the_time_those_that_have_reported_begin(place: Place) -> None:
    running(place, replicas=2, timeout_seconds=60)
    async with place.asked() as client:
        await all_reported(place, client, BODY)
        assert (await verdict(client, token(place, 0)))["verdict"] == "wait"
        place.time.move(46)
        place.api.bookmark()
        assert (await verdict(client, token(place, 0)))["verdict"] == "go"


@asynchronous
async def test_the_time_is_counted_from_the_start_of_the_first_check(place: Place) -> None:
    """Who misses a peer waits for it, and reports late: the check must not end before its results are judged."""
    running(place, replicas=3, timeout_seconds=60)
    late, later = ({**BODY, "elapsedSeconds": seconds} for seconds in (36, 40))
    async with place.asked() as client:
        await all_reported(place, client, late, later)
        assert wall(place) - stored(place).since == pytest.approx(40, abs=2)
        assert (await verdict(client, token(place, 0), late))["verdict"] == "wait"
        place.time.move(6)
        place.api.bookmark()
        assert (await verdict(client, token(place, 0), late))["verdict"] == "go"


@asynchronous
async def test_a_check_began_no_longer_ago_than_it_may_take(place: Place) -> None:
    running(place, timeout_seconds=60)
    async with place.asked() as client:
        await all_reported(place, client, {**BODY, "elapsedSeconds": 1e6})
    assert wall(place) - stored(place).since == pytest.approx(60, abs=2)


@asynchronous
async def test_a_replica_that_was_started_again_waits_for_its_own_result(place: Place) -> None:
    running(place, replicas=2, timeout_seconds=60)
    old = Record("1", NOW - 5000, {1: Entry("10000000", {"product": 0.1}), 0: Entry("ffffffff", {"product": 9.0})})
    place.workflow("elastic")["metadata"]["annotations"][keys.NODE_CHECK] = old.to_json()
    place.api.add(WORKFLOW, place.workflow("elastic"))
    async with place.asked() as client:
        assert (await verdict(client, token(place, 0)))["verdict"] == "wait"
        while stored(place).entries[0].pod != "00000000":
            await verdict(client, token(place, 0))  # as the pod does: a write may take too long, and comes again
            await asyncio.sleep(0.05)
        await soon(lambda: known(place).entries[0].pod == "00000000")
        assert (await verdict(client, token(place, 0)))["verdict"] == "go"
    assert stored(place).entries[0] == Entry("00000000", {"product": 0.1, "memory": 0.2})


@asynchronous
async def test_a_result_that_another_server_has_overwritten_comes_again(place: Place) -> None:
    running(place)
    async with place.asked() as client:
        await all_reported(place, client, BODY)
        lost = Record("1", NOW, {1: Entry("10000000", {"product": 0.1})})
        place.workflow("elastic")["metadata"]["annotations"][keys.NODE_CHECK] = lost.to_json()
        place.api.add(WORKFLOW, place.workflow("elastic"))
        await soon(lambda: known(place) == lost)
        await verdict(client, token(place, 0))
        await soon(lambda: set(stored(place).entries) == {0, 1})


@asynchronous
async def test_two_servers_write_one_record(place: Place) -> None:
    """The cache of this server is behind: its write is refused, and repeated on what is there."""
    running(place)
    other = Record("1", NOW, {1: Entry("10000000", {"product": 0.1})}).to_json()
    once = [True]

    def race(request: Request) -> Answer | None:
        if request.method == "PATCH" and once and isinstance(request.body, list) and len(request.body) == 3:
            once.clear()
            place.workflow("elastic")["metadata"]["annotations"][keys.NODE_CHECK] = other
        return None

    async with place.asked() as client:
        await all_reported(place, client, BODY)
        place.api.rule(race)
        await verdict(client, token(place, 0), {"figures": {"product": 0.5}})
        await soon(lambda: set(stored(place).entries) == {0, 1})
    assert not once


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"figures": {"product": -1}}, "figures.product"),
        ({"figures": {"product": "fast"}}, "figures.product"),
        ({"figures": {"product": 1e7}}, "figures.product"),
        ({"figures": {f"f{i}": 1.0 for i in range(17)}}, "figures"),
        ({"figures": [1]}, "figures"),
        ({"failed": "x" * 201}, "failed"),
        ({"failed": 7}, "failed"),
        ({"elapsedSeconds": -1}, "elapsedSeconds"),
        ({"unmet": [-1]}, "unmet[0]"),
        ({"unmet": [2000]}, "unmet[0]"),
        ({"unmet": list(range(17))}, "unmet"),
        ([1], ""),
    ],
)
@asynchronous
async def test_garbage_is_refused_with_its_path_and_written_nowhere(place: Place, body: Any, path: str) -> None:
    running(place)
    async with place.asked() as client:
        answer = await ask(client, token(place, 0), body)
    assert answer.status_code == 422
    assert path in {fault["path"] for fault in answer.json()["data"]["errors"]}
    assert not place.api.seen("PATCH")


@asynchronous
async def test_unknown_figures_are_ignored_and_texts_are_one_line(place: Place) -> None:
    running(place, replicas=2)
    async with place.asked() as client:
        await verdict(client, token(place, 0), {"figures": {"evil": 1.0}, "failed": "a\n\x1b[31mb", "more": {}})
        await soon(lambda: stored(place).entries)
    assert stored(place).entries == {0: Entry("00000000", {}, "a  [31mb")}


@asynchronous
async def test_results_are_taken_from_the_pods_of_the_job_alone(place: Place) -> None:
    running(place)
    place.running(elastic("other", replicas=2))
    person = place.authority.person("ann", ("patch", "default", "*"))
    async with place.asked() as client:
        assert (await ask(client, person)).status_code == 403
        assert (await client.post(PATH, json=BODY)).status_code == 401
        other = place.authority.pod_token("other-worker-1-0", job="other")
        assert (await ask(client, other)).status_code == 403
        # A job without a node check takes none.
        answer = await client.post("/v2alpha1/job/default.other/checks", headers=bearer(other), json=BODY)
        assert answer.status_code == 409
    assert not place.api.seen("PATCH")


@asynchronous
async def test_results_are_written_at_most_once_in_a_while(place: Place) -> None:
    running(place, replicas=8)
    passed = asyncio.Event()

    async def pause(_: float) -> None:
        await passed.wait()

    async with place.asked(pause=pause) as client:
        await ask(client, token(place, 0))
        await soon(lambda: len(known(place).entries) == 1)
        await asyncio.gather(*(ask(client, token(place, index)) for index in range(1, 8)))
        assert len(place.api.seen("PATCH")) == 1
        passed.set()
        await soon(lambda: len(stored(place).entries) == 8)
    assert len(place.api.seen("PATCH")) == 2


def failing_writes(place: Place) -> list[bool]:
    """Let writes fail for as long as the only item is true."""
    fails = [True]
    place.api.rule(
        lambda request: status(500, "no", reason="InternalError") if request.method == "PATCH" and fails[0] else None
    )
    return fails


@asynchronous
async def test_an_api_server_that_fails_loses_no_result(place: Place) -> None:
    running(place)
    failing = failing_writes(place)
    is_well = asyncio.Event()

    async def pause(_: float) -> None:
        # The time stands still: with each pause that passed, the cache would be older.
        await is_well.wait()

    async with place.asked(pause=pause) as client:
        await verdict(client, token(place, 0))
        await soon(lambda: place.api.seen("PATCH"))
        failing[0] = False
        is_well.set()
        await all_reported(place, client, BODY, BODY)
        assert (await verdict(client, token(place, 1)))["verdict"] == "go"


@asynchronous
async def test_writes_that_are_refused_again_and_again_are_made_less_often(place: Place) -> None:
    running(place)
    refuses = failing_writes(place)
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        refuses[0] = len(pauses) < 8
        await ask(client, token(place, 0))

    async with place.asked(pause=pause) as client:
        await ask(client, token(place, 0))
        await soon(lambda: stored(place).entries)
    assert pauses[:8] == [2, 4, 8, 16, 30, 30, 30, 30]


@asynchronous
async def test_a_first_result_that_the_cache_does_not_have_yet_is_not_overwritten(place: Place) -> None:
    running(place)
    async with place.asked() as client:
        view = place.cache.job("default", "elastic")
        assert view is not None
        assert view.workflow.texts.check_text is None
        place.cache.job = lambda *_: view  # type: ignore[method-assign]
        for index in (0, 1):
            await verdict(client, token(place, index))
            await soon(lambda n=index: set(stored(place).entries) == set(range(n + 1)))  # type: ignore[misc]


@pytest.mark.parametrize(
    "text",
    [json.dumps({"round": "1", "ranks": [[[]]]}), "", "x" * (nodecheck.LONGEST + 1)],
    ids=["not a record", "empty", "too long"],
)
@asynchronous
async def test_a_hostile_annotation_is_replaced(place: Place, text: str) -> None:
    running(place)
    place.workflow("elastic")["metadata"]["annotations"][keys.NODE_CHECK] = text
    place.api.add(WORKFLOW, place.workflow("elastic"))
    async with place.asked() as client:
        await all_reported(place, client, BODY, BODY)
        assert (await verdict(client, token(place, 0)))["verdict"] == "go"
