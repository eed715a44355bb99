"""The status page on the server: visitors and their permissions, as the API server reviews them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from functools import partial

import httpx
import pytest

from diflow.common import keys
from diflow.kube.kinds import CONFIG_MAP, NODE
from diflow.record.namespace import ended
from diflow.record.namespace.ended import EndedJob
from diflow.server.page import mount
from tests.allocator.faults import eventually
from tests.kube.fakeapi import Answer, Request, serving
from tests.server.page_scene import made_node
from tests.server.place import Place, asynchronous, bearer, mixed

OWN = {"sec-fetch-site": "same-origin"}


@pytest.fixture
def place() -> Iterator[Place]:
    """Two jobs in two namespaces and a node, and a server that keeps what the page needs. `admin` may list nodes."""
    with serving() as api:
        made = Place(api, has_page=True)

        def nodes(request: Request) -> Answer | None:
            spec = (request.body or {}).get("spec") or {} if request.path.endswith("/subjectaccessreviews") else {}
            if (spec.get("resourceAttributes") or {}).get("resource") != "nodes":
                return None
            assert spec["resourceAttributes"] == {"verb": "list", "resource": "nodes"}
            return Answer(201, {"status": {"allowed": spec["user"] == "admin"}})

        api.rule(nodes)
        made.running(mixed("first-job"))
        made.running(mixed("second-job", namespace="other"))
        made.api.add(NODE, {**made_node("node-1"), "apiVersion": "v1", "kind": "Node"})
        yield made


def pages(place: Place) -> AbstractAsyncContextManager[httpx.AsyncClient]:
    return place.asked(routes=partial(mount.mounted, page=place.page))


async def shown(client: httpx.AsyncClient, token: str) -> str:
    answer = await client.get("/", headers=bearer(token))
    assert answer.status_code == 200
    return answer.text


@asynchronous
async def test_a_person_sees_the_jobs_of_namespaces_in_which_they_may_list_workflows(place: Place) -> None:
    maria = place.authority.person("maria", ("list", "default", "*"), ("get", "other", "second-job"))
    async with pages(place) as client:
        page = await shown(client, maria)
        assert "first-job" in page
        assert "second-job" not in page
        assert "node-1" not in page
        other = await client.get("/board?job=other/second-job", headers=bearer(maria))
        assert "that you may see" in other.text


@asynchronous
async def test_who_may_list_everything_sees_everything(place: Place) -> None:
    admin = place.authority.person("admin", ("list", "", "*"))
    async with pages(place) as client:
        page = await shown(client, admin)
        for word in ("first-job", "second-job", "node-1", "ready", "collector"):
            assert word in page


@asynchronous
async def test_ended_jobs_are_seen_in_namespaces_without_any_workflow(place: Place) -> None:
    data = {"jobs": ended.text([EndedJob("over-long-ago", "Failed", "2026-01-01T00:00:00Z")])}
    place.api.add(CONFIG_MAP, {"metadata": {"name": keys.ENDED_JOBS}, "data": data}, namespace="past")
    place.api.add(CONFIG_MAP, {"metadata": {"name": "others"}, "data": data}, namespace="more")
    maria = place.authority.person("maria", ("list", "past", "*"))
    nobody = place.authority.person("nobody", ("list", "default", "*"))
    async with pages(place) as client:
        eventually(lambda: len(place.page.ended()) == 1, "the record is seen")
        assert "over-long-ago" in await shown(client, maria)
        assert "over-long-ago" not in await shown(client, nobody)


@asynchronous
async def test_who_may_list_nothing_is_told_so(place: Place) -> None:
    nobody = place.authority.person("nobody", ("get", "default", "first-job"))
    async with pages(place) as client:
        page = await shown(client, nobody)
        assert "You may see no jobs" in page
        assert "first-job" not in page


@asynchronous
async def test_rights_are_asked_for_once_and_not_for_each_look(place: Place) -> None:
    maria = place.authority.person("maria", ("list", "default", "*"))
    async with pages(place) as client:
        await shown(client, maria)
        before = len(place.api.requests)
        for _ in range(5):
            await shown(client, maria)
        asked = [request.path for request in place.api.requests[before:] if request.method == "POST"]
        assert asked == []
        place.authority.rights.clear()
        place.time.move(61)
        place.settle()
        assert "first-job" not in await shown(client, maria)


@asynchronous
async def test_the_token_of_a_pod_signs_nobody_in_and_no_cookie_opens_the_api(place: Place) -> None:
    maria = place.authority.person("maria", ("list", "default", "*"), ("get", "default", "*"))
    pod = place.authority.pod_token("first-job-learner-1-0", job="first-job")
    async with pages(place) as client:
        assert (await client.post("/sign-in", data={"token": pod}, headers=OWN)).status_code == 401
        signed = await client.post("/sign-in", data={"token": maria}, headers=OWN)
        assert signed.status_code == 303
        client.cookies.clear()
        cookie = {"cookie": f"diflow-token={maria}"}
        assert (await client.get("/", headers=cookie)).status_code == 200
        path = "/v2alpha1/job/default.first-job/replicas"
        assert (await client.get(path, headers=bearer(maria))).status_code == 200
        assert (await client.get(path, headers=cookie)).status_code == 401


@asynchronous
async def test_an_old_cache_and_a_silent_cluster_are_told_on_the_page(place: Place) -> None:
    maria = place.authority.person("maria", ("list", "default", "*"))
    async with pages(place) as client:
        await shown(client, maria)
        place.cache.stop()
        place.time.move(59)
        answer = await client.get("/", headers=bearer(maria))
        assert answer.status_code == 200
        place.time.move(1 + place.settings.stale_seconds)
        answer = await client.get("/", headers=bearer(maria))
        assert answer.status_code == 503
        assert "Out of date" in answer.text
        assert "first-job" in answer.text
        place.api.rule(lambda request: Answer(503) if "reviews" in request.path else None)
        answer = await client.get("/", headers=bearer("unknown"))
        assert answer.status_code == 503
        assert "cannot be asked who you are" in answer.text


@asynchronous
async def test_the_page_has_the_frame_of_every_answer_and_its_own_headers(place: Place) -> None:
    async with pages(place) as client:
        answer = await client.get("/")
        assert answer.status_code == 401
        assert answer.headers["x-request-id"]
        assert answer.headers["content-type"].startswith("text/html")
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert (await client.get("/nothing-here")).status_code == 404
