"""One tenant's requests cost others at most their turn: replicas, reviews, node checks, shards and pages alike."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from diflow.server.api.identity import tenant_of
from diflow.server.page import Permissions, Visitor
from diflow.server.settings import ServerSettings
from tests.kube.fakeapi import Answer, Request, serving
from tests.server.page_serving import GOOD, NARROW, Stage
from tests.server.place import Place, asynchronous, bearer, elastic, soon

PATH = "/v2alpha1/job/{}.{}/replicas"
SLOW_SECONDS = 0.05


@contextmanager
def slow(place: Place, part: str) -> Iterator[list[str]]:
    """Requests with this in their path or body take a while. Yields the namespaces, or "", in their order."""
    seen: list[str] = []
    lock = threading.Lock()

    def rule(request: Request) -> Answer | None:
        if request.method in ("PATCH", "POST", "PUT") and part in request.path:
            with lock:
                seen.append(request.path.partition("/namespaces/")[2].partition("/")[0])
            time.sleep(SLOW_SECONDS)
        return None

    place.api.rule(rule)
    yield seen


def _jobs(place: Place, namespace: str, count: int) -> list[str]:
    for number in range(count):
        place.submit(elastic(f"{namespace}-{number}", namespace=namespace), name=f"{namespace}-{number}")
    return [f"{namespace}-{number}" for number in range(count)]


@asynchronous
@pytest.mark.parametrize("flood", [150, 500])
async def test_requests_for_replicas_of_hundreds_of_jobs_delay_those_of_another_namespace_by_a_turn(
    place: Place, flood: int
) -> None:
    evil, victim = _jobs(place, "evil", flood), _jobs(place, "vision", 1)[0]
    mallory = bearer(place.authority.person("mallory", ("patch", "evil", "*")))
    alice = bearer(place.authority.person("alice", ("patch", "vision", "*")))
    with slow(place, "/workflows/") as written:
        async with place.asked() as client:
            warm = await client.post(PATH.format("vision", victim), json={"replicas": 0}, headers=alice)
            assert warm.status_code == 200
            sent = [
                asyncio.ensure_future(client.post(PATH.format("evil", job), json={"replicas": 1}, headers=mallory))
                for job in evil
            ]
            await soon(lambda: len(written) > 8)
            before = len(written)
            answer = await client.post(PATH.format("vision", victim), json={"replicas": 1}, headers=alice)
            assert answer.status_code == 200
            assert written.index("vision") - before <= 24, "about one write of each thread, and its turn"
            codes = [one.status_code for one in await asyncio.gather(*sent)]
            assert set(codes) <= {200, 503}
            assert (503 in codes) == (flood > 300), "of more than may wait, the flood loses some"


@asynchronous
async def test_writes_that_take_long_hold_no_more_than_half_of_the_threads(place: Place) -> None:
    """As those of jobs that change all the time, so that each write is tried again and again."""
    evil, victim = _jobs(place, "evil", 40), _jobs(place, "vision", 1)[0]
    mallory = bearer(place.authority.person("mallory", ("patch", "evil", "*")))
    alice = bearer(place.authority.person("alice", ("patch", "vision", "*")))
    go = threading.Event()

    def rule(request: Request) -> Answer | None:
        if request.method == "PATCH" and "/evil/" in request.path:
            go.wait(30)
        return None

    place.api.rule(rule)
    async with place.asked() as client:
        sent = [
            asyncio.ensure_future(client.post(PATH.format("evil", job), json={"replicas": 1}, headers=mallory))
            for job in evil
        ]
        try:
            await soon(lambda: place.app.state.core.writes.jobs == 40)
            asked = client.post(PATH.format("vision", victim), json={"replicas": 1}, headers=alice)
            assert (await asyncio.wait_for(asked, 10)).status_code == 200
        finally:
            go.set()
            await asyncio.gather(*sent)


@asynchronous
async def test_valid_tokens_of_one_account_displace_no_review_of_another_and_have_a_rate() -> None:
    with serving() as api:
        place = Place(api, settings=ServerSettings(reviews_kept=40, review_rate=20.0, job_rate=1e6, job_burst=1e6))
        place.running(elastic("mine", namespace="vision"))
        tokens = [
            place.authority.pod_token(f"p{n}", job="x", namespace="evil", audience="https://kubernetes")
            for n in range(300)
        ]
        alice = bearer(place.authority.person("alice", ("get", "vision", "*")))
        async with place.asked() as client, place.client(host="10.6.6.6") as flood:
            path = PATH.format("vision", "mine")
            assert (await client.get(path, headers=alice)).status_code == 200
            reviews, rights = place.authority.reviews, place.authority.access_reviews
            codes = [(await flood.get(path, headers=bearer(token))).status_code for token in tokens]
            assert set(codes) == {403, 429}
            assert place.authority.reviews - reviews <= 200, "ten seconds of the rate"
            assert place.authority.access_reviews - rights <= 400
            known = place.authority.reviews, place.authority.access_reviews
            assert (await client.get(path, headers=alice)).status_code == 200
            assert (place.authority.reviews, place.authority.access_reviews) == known, "hers are kept"


@asynchronous
async def test_the_reviews_of_a_flood_from_one_address_delay_those_of_another_by_a_turn(place: Place) -> None:
    place.running(elastic("mine", namespace="vision"))
    tokens = [place.authority.person(f"mallory-{n}") for n in range(200)]
    alice = bearer(place.authority.person("alice", ("get", "vision", "*")))
    with slow(place, "reviews") as reviewed:
        async with place.asked() as client, place.client(host="10.6.6.6") as flood:
            path = PATH.format("vision", "mine")
            sent = [asyncio.ensure_future(flood.get(path, headers=bearer(token))) for token in tokens]
            await soon(lambda: len(reviewed) > 8)
            before = len(reviewed)
            assert (await client.get(path, headers=alice)).status_code == 200
            assert len(reviewed) - before <= 60, "her three reviews had each a turn"
            await asyncio.gather(*sent)


@asynchronous
async def test_an_account_with_any_number_of_tokens_has_one_rate_of_access_reviews() -> None:
    with serving() as api:
        place = Place(api, settings=ServerSettings(review_rate=5.0))
        place.running(elastic("mine", namespace="vision"))
        async with place.asked():
            codes = []
            for number in range(40):
                token = place.authority.pod_token(
                    f"p{number}", job="x", namespace="evil", audience="https://kubernetes"
                )
                async with place.client(host=f"10.7.{number}.1") as client:
                    codes.append((await client.get(PATH.format("vision", "mine"), headers=bearer(token))).status_code)
            assert 429 in codes
            assert place.authority.access_reviews <= 50


def test_the_tenant_of_a_service_account_is_its_namespace() -> None:
    assert tenant_of("system:serviceaccount:evil:one") == tenant_of("system:serviceaccount:evil:two")
    assert tenant_of("system:serviceaccount:evil:one") != tenant_of("system:serviceaccount:good:one")
    assert tenant_of("maria") == "maria"


@asynchronous
async def test_the_shards_of_many_jobs_delay_those_of_another_namespace_by_a_turn() -> None:
    body = {"dataset": "train", "size": 95, "shard": 10}
    with serving() as api:
        place = Place(api, settings=ServerSettings(job_rate=1e6, job_burst=1e6, shard_rate=1.0))
        callers = []
        for number, namespace in enumerate([*["evil"] * 30, "vision"]):
            name = f"{namespace}-{number}"
            place.submit(elastic(name, namespace=namespace))
            place.pod(name, "worker", 0, ip=f"10.0.1.{number}", namespace=namespace)
            token = place.authority.pod_token(f"{name}-worker-1-0", job=name, namespace=namespace)
            callers.append((f"/v2alpha1/job/{namespace}.{name}/shards", bearer(token)))

        async def pause(seconds: float) -> None:
            place.time.move(seconds)
            await asyncio.sleep(0.05)

        with slow(place, "/configmaps") as written:
            async with place.asked(pause=pause) as client:
                sent = [asyncio.ensure_future(client.post(path, json=body, headers=who)) for path, who in callers]
                assert {one.status_code for one in await asyncio.gather(*sent)} == {200}
        assert written.index("vision") <= 16, "the burst, a turn, and what a thread each had begun"


@asynchronous
async def test_pages_of_one_visitor_delay_those_of_another_by_a_turn() -> None:
    stage = Stage()
    stage.visitors = {
        GOOD: Visitor("mallory", Permissions(None, nodes=True), "mallory"),
        NARROW: Visitor("maria", Permissions(frozenset({"rl"})), "maria"),
    }
    transport = httpx.ASGITransport(stage.app())
    order: list[str] = []

    async def ask(token: str, text: str) -> None:
        answer = await client.get("/board", params={"q": text}, headers=bearer(token))
        assert answer.status_code == 200
        order.append(token)

    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        sent = [asyncio.ensure_future(ask(GOOD, f"text-{number}")) for number in range(60)]
        await asyncio.sleep(0)
        await asyncio.gather(*sent, ask(NARROW, ""))
    assert order.index(NARROW) <= 35, "those that may be shown at once, and a turn"
