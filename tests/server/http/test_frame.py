"""The middleware around every request: envelopes for all errors, request ids, and a log that keeps secrets."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from starlette.routing import BaseRoute, Route
from structlog.testing import capture_logs

from diflow.server.api.core import Core
from diflow.server.api.routes import Endpoint
from diflow.server.http import envelope
from diflow.server.http.exchange import Exchange
from diflow.server.telemetry import Answered
from tests.server.place import Place, asynchronous, bearer, mixed, soon

PATH = "/v2alpha1/job/default.mixed/replicas"


def broken(core: Core) -> list[BaseRoute]:  # noqa: ARG001
    """Routes that go wrong in their own ways."""

    async def fails(_: Exchange) -> None:
        raise ZeroDivisionError("a secret of the handler")

    return [Route("/fails", Endpoint("/fails", {"GET": fails}))]


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        ("GET", "/", 404),
        ("GET", "/v1alpha3/replicas", 404),
        ("GET", "/v2alpha1/job/default.mixed/replicas/", 404),
        ("PATCH", PATH, 405),
        ("POST", "/healthz", 405),
        ("POST", "/openapi.json", 405),
        ("BREW", PATH, 405),
        ("GET", PATH, 401),
        ("GET", "/fails", 500),
    ],
)
@asynchronous
async def test_every_error_has_the_envelope_and_an_id(place: Place, method: str, path: str, code: int) -> None:
    place.running(mixed())
    with capture_logs() as lines:
        async with place.asked(routes=broken) as client:
            answer = await client.request(method, path, headers={"X-Request-Id": "abc-1"})
    assert answer.status_code == code
    body = answer.json()
    assert body.keys() == {"success", "code", "message", "data"}
    assert (body["success"], body["code"]) == (False, 1)
    assert not set("'\"\n") & set(body["message"])
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"] == "abc-1"
    assert "secret" not in answer.text
    assert "Traceback" not in answer.text
    if code == 405:
        assert answer.headers["allow"]
    if code == 500:
        assert any(line["event"] == "failed" and line["error"] == "ZeroDivisionError" for line in lines)


@pytest.mark.parametrize("given", ["x" * 65, "with space", "ü", "a\tb", ""])
@asynchronous
async def test_an_id_that_is_not_sane_gets_another_one(place: Place, given: str) -> None:
    async with place.asked() as client:
        one = await client.get("/healthz", headers=[(b"X-Request-Id", given.encode())])
        two = await client.get("/healthz")
    assert one.headers["x-request-id"] not in ("", given)
    assert one.headers["x-request-id"] != two.headers["x-request-id"]


@asynchronous
async def test_the_log_holds_neither_tokens_nor_bodies(place: Place) -> None:
    place.running(mixed())
    token = place.authority.pod_token("mixed-learner-1-0", job="mixed")
    other = place.authority.person("ada", ("get", "default", "mixed"))
    with capture_logs() as lines:
        async with place.asked(routes=broken) as client:
            for headers in (bearer(token), bearer(other), bearer("a-worthless-token")):
                await client.get(f"{PATH}?access_token={token}", headers=headers)
                await client.post(PATH, headers=headers, json={"replicas": 1, "task": "a-secret-task"})
                await client.post(
                    "/v2alpha1/default.mixed/profilings", headers=headers, json={"speed": -1, "password": "a-secret"}
                )
                await client.get("/fails", headers=headers)
    text = json.dumps(lines)
    assert len([line for line in lines if line["event"] == "request"]) == 12
    for secret in (token, token.split(".")[1], other, "a-worthless-token", "a-secret", "access_token", "Bearer"):
        assert secret not in text
    assert {line["caller"] for line in lines if "caller" in line} == {"pod default/mixed-learner-1-0", "ada"}


@asynchronous
async def test_routine_is_logged_for_who_looks_for_a_fault_and_changes_for_everybody(place: Place) -> None:
    place.running(mixed())
    token = place.authority.pod_token("mixed-learner-1-0", job="mixed")
    with capture_logs() as lines:
        async with place.asked() as client:
            await client.get(PATH, headers=bearer(token))
            await client.post("/v2alpha1/default.mixed/profilings", headers=bearer(token), json={"speed": 1})
            await client.put("/hints/default/mixed", headers=bearer(token), json={})
            await client.post(PATH, headers=bearer(token), json={"replicas": 1})
            await client.post(PATH, headers=bearer(token), json={"replicas": -1})
    levels = [line["log_level"] for line in lines if line["event"] == "request"]
    assert levels == ["debug", "debug", "debug", "info", "info"]


@asynchronous
async def test_answers_are_told_to_who_counts_them(place: Place) -> None:
    place.running(mixed())
    token = place.authority.pod_token("mixed-learner-1-0", job="mixed")
    told: list[Answered] = []
    async with place.asked(on_answer=told.append) as client:
        await client.get(PATH, headers=bearer(token))
        await client.get("/nowhere")
    assert [(one.method, one.route, one.status) for one in told] == [
        ("GET", "/v2alpha1/job/{id}/replicas", 200),
        ("GET", "", 404),
    ]


@asynchronous
async def test_a_caller_who_hangs_up_in_the_middle_of_a_body_leaves_nothing_behind(place: Place) -> None:
    place.running(mixed())
    token = place.authority.pod_token("mixed-learner-1-0", job="mixed")
    told: list[Answered] = []
    sent: list[Any] = []
    messages = [{"type": "http.request", "body": b'{"repli', "more_body": True}, {"type": "http.disconnect"}]

    async def receive() -> Any:
        return messages.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    async with place.asked(on_answer=told.append):
        scope = {
            "type": "http", "method": "POST", "path": PATH, "query_string": b"", "client": ("10.9.9.9", 1),
            "headers": [(b"authorization", f"Bearer {token}".encode()), (b"content-type", b"application/json")],
        }  # fmt: skip
        await place.app(scope, receive, send)
    assert not sent
    assert [one.status for one in told] == [499]
    assert not place.api.seen("PATCH")


@asynchronous
async def test_a_write_goes_on_though_its_caller_has_gone(place: Place) -> None:
    """Once it was sent it may stand in the cluster: a time-out of the caller does not take it back half-way."""
    place.running(mixed())
    token = place.authority.pod_token("mixed-learner-1-0", job="mixed")
    async with place.asked() as client:
        assert (await client.get(PATH, headers=bearer(token))).status_code == 200
        asking = asyncio.ensure_future(client.post(PATH, headers=bearer(token), json={"replicas": 1}))
        await soon(lambda: place.app.state.core.writes.busy or asking.done())
        asking.cancel()
        await soon(lambda: '"collector":3' in place.parameter("mixed", "replicas"))
        await soon(lambda: not place.app.state.core.writes.busy)


@asynchronous
async def test_the_document_and_the_health_pages_need_no_token(place: Place) -> None:
    async with place.asked() as client:
        assert (await client.get("/openapi.json")).json()["openapi"].startswith("3.1")
        health = await client.get("/healthz")
        assert (health.status_code, health.content) == (200, b"")


def test_messages_are_one_line_of_bounded_length_without_quotes() -> None:
    text = json.loads(envelope.failure('it\'s "so"\r\n\x00\u2028long' + "x" * 1000))["message"]
    assert text.startswith("it`s `so` long")
    assert len(text) <= 500
    assert json.loads(envelope.success("\ud800 alone"))["message"] == "  alone"
