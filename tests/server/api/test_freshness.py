"""A stale cache is not used, and the server recovers together with the API server."""

from __future__ import annotations

import json
from typing import Any

import pytest

from diflow.common import keys
from tests.builders import job, task
from tests.kube.fakeapi import Answer, Request, status
from tests.server.place import NOW, Place, asynchronous, bearer, elastic, mixed, soon

PATH = "/v2alpha1/job/default.mixed/replicas"


def token_of(place: Place) -> str:
    return place.authority.pod_token("mixed-learner-1-0", job="mixed")


@asynchronous
async def test_before_everything_has_been_listed_the_answer_is_503(place: Place) -> None:
    place.running(mixed())
    place.app = place.make_app()  # the cache has not been started
    async with place.app.router.lifespan_context(place.app), place.client() as client:
        answer = await client.get(PATH, headers=bearer(token_of(place)))
        assert answer.status_code == 503
        assert answer.headers["retry-after"]
        assert answer.json()["success"] is False
        ready = await client.get("/readyz")
        assert ready.status_code == 503
        assert (await client.get("/healthz")).status_code == 200
        good, why = place.app.state.core.readiness()
        assert not good
        assert "workflows" in why


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", PATH, None),
        ("POST", PATH, {"replicas": 1}),
        ("DELETE", PATH, {"replicas": 1}),
        ("POST", "/v2alpha1/default.mixed/profilings", {"speed": 1}),
        ("PUT", "/hints/default/mixed", {}),
    ],
)
@asynchronous
async def test_a_cache_that_is_too_old_answers_503_and_recovers_by_itself(
    place: Place, method: str, path: str, body: Any
) -> None:
    place.running(job(task("learner"), task("collector", replicas=4), name="mixed"))
    headers = bearer(token_of(place))
    async with place.asked() as client:
        assert (await client.request(method, path, headers=headers, json=body)).status_code == 200
        place.time.move(80)  # what is known is old, and not too old
        assert (await client.get(PATH, headers=bearer(token_of(place)))).status_code == 200
        place.time.move(11)
        answer = await client.request(method, path, headers=headers, json=body)
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "5"
        assert "api server" not in answer.text.lower()
        place.api.bookmark()  # the watch is alive again
        await soon(place.cache.is_fresh)
        assert (await client.request(method, path, headers=headers, json=body)).status_code == 200


@asynchronous
async def test_the_age_is_told_before_the_caller_is(place: Place) -> None:
    """A token of nobody learns no more from 503 than a good one."""
    place.running(mixed())
    async with place.asked() as client:
        place.time.move(91)
        one = await client.get(PATH)
        other = await client.get(PATH, headers=bearer("junk"))
    assert one.status_code == other.status_code == 503
    assert one.json() == other.json()


@asynchronous
async def test_discover_waits_out_old_news_as_its_clients_bear_no_503(place: Place) -> None:
    import asyncio

    place.running(elastic(replicas=2))
    token = place.authority.pod_token("elastic-worker-1-0", job="elastic", expires=NOW * 2)
    async with place.asked() as client:
        place.time.move(91)
        assert (await client.get("/discover/default/elastic/0?timeout=0", headers=bearer(token))).status_code == 408
        waiting = asyncio.ensure_future(client.get("/discover/default/elastic/0?timeout=60", headers=bearer(token)))
        await soon(lambda: place.app.state.core.discovery.waiting)
        place.api.bookmark()
        answer = await waiting
        assert (answer.status_code, answer.json()) == (200, ["10.0.0.1", "10.0.0.2"])


@asynchronous
async def test_while_the_api_server_is_away_reads_of_known_callers_go_on_and_writes_say_503(place: Place) -> None:
    place.running(mixed())
    known = token_of(place)
    away = [False]

    def rule(request: Request) -> Answer | None:
        return status(503, "away") if away[0] and "watch" not in request.query else None

    place.api.rule(rule)
    async with place.asked() as client:
        assert (await client.get(PATH, headers=bearer(known))).status_code == 200
        away[0] = True
        assert (await client.get(PATH, headers=bearer(known))).status_code == 200
        fresh = place.authority.pod_token("mixed-collector-1-0", job="mixed")
        assert (await client.get(PATH, headers=bearer(fresh))).status_code == 503
        assert (await client.post(PATH, headers=bearer(known), json={"replicas": 1})).status_code == 503
        away[0] = False
        assert (await client.post(PATH, headers=bearer(known), json={"replicas": 1})).status_code == 200
    assert json.loads(place.parameter("mixed", keys.PARAM_REPLICAS)) == {"learner": 1, "collector": 3}


@asynchronous
async def test_the_server_is_ready_when_tokens_can_be_reviewed(place: Place) -> None:
    place.running(mixed())
    allowed = [False]

    def rule(request: Request) -> Answer | None:
        if request.path.endswith("tokenreviews") and not allowed[0]:
            return status(403, 'User "u" cannot create resource "tokenreviews" in API group "authentication.k8s.io"')
        return None

    place.api.rule(rule)
    async with place.asked() as client:
        core = place.app.state.core
        await soon(lambda: "tokenreviews" in core.authoriser)
        answer = await client.get("/readyz")
        assert answer.status_code == 503
        assert "tokenreviews" not in answer.text
        allowed[0] = True
        await soon(lambda: core.readiness()[0])
        assert (await client.get("/readyz")).json()["success"] is True
