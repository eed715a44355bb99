"""The routes of replicas in v2alpha1: the responses, and what is stored in the cluster afterwards."""

from __future__ import annotations

import asyncio
import copy
import json
import re
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import httpx
import pytest

from diflow.common import keys
from diflow.common.errors import InvalidError
from diflow.common.limits import MOST_REPLICAS
from diflow.jobs.scale import scale
from diflow.kube.kinds import POD, WORKFLOW
from diflow.record.job import record_of
from diflow.record.requests.notes import KEYS_KEPT
from diflow.server.api.queueing import WAITING
from diflow.server.settings import ServerSettings
from tests.builders import job, task
from tests.kube.fakeapi import Answer, Request, status
from tests.server.page_scene import trim_workflow
from tests.server.place import Place, asynchronous, bearer, elastic, mixed, part_of, soon

IDS = ("default.mixed", "default.mixed.1", "default%2Fmixed", "default/mixed")
FORMS = ("/v2alpha1/job/{id}/replicas", "/v2alpha1/{id}/replicas")


def wanted(place: Place, name: str) -> dict[str, int]:
    return dict(json.loads(place.parameter(name, keys.PARAM_REPLICAS)))


def refused(answer: Any, code: int) -> str:
    """The message of a refusal, whose envelope is as it has to be."""
    body = answer.json()
    assert answer.status_code == code, body
    assert body.keys() == {"success", "code", "message", "data"}
    assert body["success"] is False
    assert body["code"] == 1
    assert not set("'\"") & set(body["message"])
    assert answer.headers["x-request-id"]
    return str(body["message"])


def asking(
    client: httpx.AsyncClient, name: str, token: str
) -> Callable[[str, int], Coroutine[Any, Any, httpx.Response]]:
    """What adds (POST) or removes (DELETE) a number of a job's replicas with this token."""

    async def ask(method: str, number: int) -> httpx.Response:
        path = f"/v2alpha1/job/default.{name}/replicas"
        return await client.request(method, path, headers=bearer(token), json={"replicas": number})

    return ask


# --- reading ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", IDS)
@asynchronous
async def test_get_gives_the_addresses_by_rank_for_every_form_of_the_id(place: Place, form: str, name: str) -> None:
    place.running(mixed())
    token = place.authority.pod_token("mixed-learner-1-0", job="mixed")
    async with place.asked() as client:
        answer = await client.get(form.format(id=name), headers=bearer(token))
    assert answer.status_code == 200
    assert answer.json() == {
        "success": True,
        "code": 0,
        "message": "successfully get replicas",
        "data": ["10.0.0.1:22270", "10.0.0.2:22270", "10.0.0.3:22270"],
    }


@asynchronous
async def test_a_pod_without_an_address_has_an_empty_place_and_a_named_port_is_told(place: Place) -> None:
    place.submit(mixed())
    port = {"containers": [{"name": "main", "ports": [{"name": "di-port", "containerPort": 7000}]}]}
    place.pod("mixed", "learner", 0, ip="10.0.0.1", spec=port)
    place.pod("mixed", "collector", 1, ip="fd00::7")
    place.pod("mixed", "collector", 0, ip="", status={"podIP": ""})
    token = place.authority.pod_token("mixed-learner-1-0", job="mixed")
    async with place.asked() as client:
        answer = await client.get("/v2alpha1/job/default.mixed/replicas", headers=bearer(token))
    assert answer.json()["data"] == ["10.0.0.1:7000", "", "[fd00::7]:22270"]


@asynchronous
async def test_a_body_and_no_content_type_with_a_get_are_no_fault(place: Place) -> None:
    place.running(mixed())
    token = place.authority.pod_token("mixed-learner-1-0", job="mixed")
    async with place.asked() as client:
        path = "/v2alpha1/job/default.mixed/replicas"
        answer = await client.request("GET", path, content=b"{}", headers=bearer(token))
        head = await client.head(path, headers=bearer(token))
    assert answer.status_code == head.status_code == 200
    assert head.content == b""


@asynchronous
async def test_the_addresses_follow_the_cluster(place: Place) -> None:
    place.running(mixed())
    token = place.authority.pod_token("mixed-learner-1-0", job="mixed")
    async with place.asked() as client:

        async def addresses() -> list[str]:
            answer = await client.get("/v2alpha1/job/default.mixed/replicas", headers=bearer(token))
            return list(answer.json()["data"])

        assert len(await addresses()) == 3
        place.set("mixed", granted={"1": {"learner": 1, "collector": 3}})
        place.pod("mixed", "collector", 2, ip="10.0.0.4")
        await soon(lambda: len(place.cache.job("default", "mixed").addresses) == 4)  # type: ignore[union-attr]
        await soon(lambda: place.cache.job("default", "mixed").addresses[3])  # type: ignore[union-attr]
        assert await addresses() == [f"10.0.0.{n}:22270" for n in (1, 2, 3, 4)]
        # A released replica is not listed any more, though its pod still saves its work.
        place.set("mixed", released=["1/collector/2"])
        await soon(lambda: len(place.cache.job("default", "mixed").addresses) == 3)  # type: ignore[union-attr]
        assert await addresses() == [f"10.0.0.{n}:22270" for n in (1, 2, 3)]


@asynchronous
async def test_a_job_that_went_on_in_another_workflow_is_one_job(place: Place) -> None:
    first = place.submit(elastic(replicas=2))
    part_of(place, first, "elastic-s2", rounds=["2"], current=2, granted={"2": {"worker": 2}})
    for index in range(2):
        place.pod("elastic", "worker", index, ip=f"10.0.1.{index}", round_="2", workflow="elastic-s2")
    token = place.authority.pod_token("elastic-s2-worker-2-0", job="elastic")
    async with place.asked() as client:
        answer = await client.get("/v2alpha1/job/default.elastic/replicas", headers=bearer(token))
        assert answer.json()["data"] == ["10.0.1.0:22270", "10.0.1.1:22270"]
        more = await client.post("/v2alpha1/job/default.elastic/replicas", headers=bearer(token), json={"replicas": 1})
        assert more.status_code == 200
    assert wanted(place, "elastic-s2") == {"worker": 3}
    assert wanted(place, "elastic") == {"worker": 2}


@asynchronous
async def test_the_number_of_requests_to_the_api_server_does_not_grow_with_reads(place: Place) -> None:
    place.running(mixed())
    token = place.authority.pod_token("mixed-learner-1-0", job="mixed")
    async with place.asked() as client:
        for _ in range(3):
            await client.get("/v2alpha1/job/default.mixed/replicas", headers=bearer(token))
        await soon(lambda: place.app.state.core.readiness()[0])
        before = len(place.api.requests)
        for _ in range(50):
            assert (await client.get("/v2alpha1/job/default.mixed/replicas", headers=bearer(token))).is_success
        assert len(place.api.requests) == before


# --- asking -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@asynchronous
async def test_post_and_delete_change_what_is_desired_and_nothing_else(place: Place, form: str) -> None:
    place.running(mixed())
    token = place.authority.pod_token("mixed-collector-1-1", job="mixed")
    path = form.format(id="default.mixed")
    before = {p["name"]: p["value"] for p in place.workflow("mixed")["spec"]["arguments"]["parameters"]}
    async with place.asked() as client:
        added = await client.post(path, headers=bearer(token), json={"replicas": 2})
        assert added.json() == {"success": True, "code": 0, "message": "successfully add replicas", "data": None}
        assert wanted(place, "mixed") == {"learner": 1, "collector": 4}
        deleted = await client.request("DELETE", path, headers=bearer(token), json={"replicas": 1})
        assert deleted.json()["message"] == "successfully delete replicas"
        assert wanted(place, "mixed") == {"learner": 1, "collector": 3}
        named = await client.post(path, headers=bearer(token), json={"replicas": 1, "task": "learner"})
        assert named.status_code == 200
    after = {p["name"]: p["value"] for p in place.workflow("mixed")["spec"]["arguments"]["parameters"]}
    assert after.pop("replicas") == '{"learner":2,"collector":3}'
    before.pop("replicas")
    assert after == before
    patches = place.api.seen("PATCH", "/workflows/mixed")
    assert {patch.query.get("fieldManager") for patch in patches} == {keys.SERVER}


@asynchronous
async def test_without_a_named_task_the_elastic_one_is_meant_else_the_last(place: Place) -> None:
    collector = task("collector", replicas=2).model_copy(update={"max_replicas": 6})
    place.running(job(task("learner"), collector, task("evaluator"), name="named"))
    place.running(job(task("learner"), task("collector"), task("evaluator"), name="plain"))
    person = place.authority.person("ada", ("patch", "default", "*"))
    async with place.asked() as client:
        for name in ("named", "plain"):
            answer = await client.post(
                f"/v2alpha1/job/default.{name}/replicas", headers=bearer(person), json={"replicas": 1}
            )
            assert answer.status_code == 200
    assert wanted(place, "named") == {"learner": 1, "collector": 3, "evaluator": 1}
    assert wanted(place, "plain") == {"learner": 1, "collector": 1, "evaluator": 2}


BODIES: list[tuple[str, Any, int, str]] = [
    ("POST", {"replicas": -1}, 400, "replicas"),
    ("POST", {"replicas": "1"}, 400, "replicas"),
    ("POST", {"replicas": True}, 400, "replicas"),
    ("POST", {"replicas": 1.5}, 400, "replicas"),
    ("POST", [1], 400, "object"),
    ("POST", b"", 400, "empty"),
    ("POST", b"{", 400, "not JSON"),
    ("POST", b'{"replicas": NaN}', 400, "NaN"),
    ("POST", b'{"replicas": 1, "replicas": 2}', 400, "twice"),
    ("POST", b'{"replicas": 1, "task": "\xff"}', 400, "UTF-8"),
    ("POST", b'{"replicas": ' + b"9" * 5000 + b"}", 400, "replicas"),
    ("POST", b'{"a":' * 40 + b"1" + b"}" * 40, 400, "deeper"),
    ("POST", {"replicas": 1, "task": "trainer"}, 400, "no task trainer"),
    ("POST", b'{"replicas": 1, "task": "\\ud800"}', 400, "unicode"),
    ("POST", b'{"\\ud800": 1, "\\ud800": 1}', 400, "twice"),
    ("POST", {"replicas": 1, "Replicas": 2}, 400, "twice"),
    ("POST", {"replicas": 100_000}, 422, "at most 2,000 replicas"),
    ("POST", {"replicas": 10**18}, 422, "at most 2,000 replicas"),
    ("DELETE", {"replicas": 2}, 409, "minimum is 1"),
    ("DELETE", {"replicas": 10**18}, 409, "minimum is 1"),
    ("DELETE", {"replicas": -1}, 400, "replicas"),
]
"""(method, body, status, a part of the message) of requests for a job of a learner and two collectors."""


@pytest.mark.parametrize(("method", "body", "code", "words"), BODIES)
@asynchronous
async def test_what_cannot_be_asked_for_is_refused_and_nothing_is_written(
    place: Place, method: str, body: Any, code: int, words: str
) -> None:
    place.running(mixed())
    token = place.authority.pod_token("mixed-learner-1-0", job="mixed")
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with place.asked() as client:
        answer = await client.request(
            method, "/v2alpha1/job/default.mixed/replicas", headers=bearer(token), content=content
        )
    said = refused(answer, code)
    assert words in said
    assert not re.search(r"(?<!\w)-[0-9]|Input|valid dictionary|instance of", said), "of no replicas below zero"
    assert not place.api.seen("PATCH")


PATHS: list[tuple[str, int, str]] = [
    ("/v2alpha1/job/mixed/replicas", 400, "job id mixed must be in namespace.name format"),
    ("/v2alpha1/job/default.mixed.x/replicas", 400, "must be in namespace.name format"),
    ("/v2alpha1/job/default.mixed.1.2/replicas", 400, "must be in namespace.name format"),
    ("/v2alpha1/job/it's/replicas", 400, "job id it`s must be"),
    ("/v2alpha1/job/.mixed/replicas", 400, "must be in namespace.name format"),
    ("/v2alpha1/job/default.mixed.2/replicas", 409, "generation 2 is not the current one, which is 1"),
    ("/v2alpha1/job/default.other/replicas", 404, "no job default.other"),
    ("/v2alpha1/job/default.mixed/pods", 404, "nothing at this path"),
    ("/v2alpha1/jobs/default.mixed/replicas", 404, "nothing at this path"),
    ("/v2alpha1/jobs/default/mixed/replicas", 404, "nothing at this path"),
    ("/v2alpha1/job/default/mixed.1/replicas", 400, "must be in namespace.name format"),
    ("/v2alpha1", 404, "nothing at this path"),
]
"""(path, status, a part of the message)."""


@pytest.mark.parametrize(("path", "code", "words"), PATHS)
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
@asynchronous
async def test_bad_ids_unknown_jobs_and_stale_generations_are_told_apart(
    place: Place, path: str, code: int, words: str, method: str
) -> None:
    place.running(mixed())
    person = place.authority.person("ada", ("get", "default", "*"), ("patch", "default", "*"))
    async with place.asked() as client:
        answer = await client.request(method, path, headers=bearer(person), json={"replicas": 1})
    assert words in refused(answer, code)


@asynchronous
async def test_other_methods_media_types_and_sizes_are_refused(place: Place) -> None:
    place.running(mixed())
    token = place.authority.pod_token("mixed-learner-1-0", job="mixed")
    path = "/v2alpha1/job/default.mixed/replicas"

    async def streamed() -> Any:
        for _ in range(80):
            yield b" " * 1024

    async with place.asked() as client:
        put = await client.put(path, headers=bearer(token), json={"replicas": 1})
        refused(put, 405)
        assert put.headers["allow"] == "DELETE, GET, HEAD, POST"
        form = await client.post(path, headers=bearer(token), data={"replicas": "1"})
        refused(form, 415)
        packed = {**bearer(token), "Content-Encoding": "gzip", "Content-Type": "application/json"}
        refused(await client.post(path, headers=packed, content=b"x"), 415)
        large = await client.post(path, headers=bearer(token), content=b" " * 70_000)
        refused(large, 413)
        refused(await client.post(path, headers=bearer(token), content=streamed()), 413)
        fine = await client.post(
            path,
            headers={**bearer(token), "Content-Type": "application/json; charset=UTF-8"},
            content=b'{"replicas":1,"unknown":{}}',
        )
        assert fine.status_code == 200
    assert wanted(place, "mixed")["collector"] == 3


@pytest.mark.parametrize("body", [{"replicas": 0}, {}, {"replicas": None}, {"task": "learner"}])
@pytest.mark.parametrize("method", ["POST", "DELETE"])
@asynchronous
async def test_nothing_is_changed_for_zero_replicas(place: Place, method: str, body: dict[str, Any]) -> None:
    place.running(mixed())
    token = place.authority.pod_token("mixed-learner-1-0", job="mixed")
    async with place.asked() as client:
        answer = await client.request(method, "/v2alpha1/job/default.mixed/replicas", headers=bearer(token), json=body)
    assert answer.status_code == 200
    assert not place.api.seen("PATCH")


@pytest.mark.parametrize("body", [{"Replicas": 1, "Task": "learner"}, {"REPLICAS": 1, "tASK": "learner"}])
@asynchronous
async def test_keys_are_taken_in_any_case_as_upstreams_decoder_takes_them(place: Place, body: dict[str, Any]) -> None:
    place.running(mixed())
    token = place.authority.pod_token("mixed-learner-1-0", job="mixed")
    async with place.asked() as client:
        answer = await client.post("/v2alpha1/job/default.mixed/replicas", headers=bearer(token), json=body)
    assert answer.status_code == 200
    assert wanted(place, "mixed")["learner"] == 2


@asynchronous
async def test_a_job_cannot_ask_for_more_replicas_than_any_job_may_have_in_all(place: Place) -> None:
    place.running(mixed())  # 1 learner, 2 collectors
    token = place.authority.pod_token("mixed-learner-1-0", job="mixed")
    path = "/v2alpha1/job/default.mixed/replicas"
    async with place.asked() as client:
        more = MOST_REPLICAS - 3
        answer = await client.post(path, headers=bearer(token), json={"replicas": more + 1})
        assert "2,001 replicas in all" in refused(answer, 422)
        assert (await client.post(path, headers=bearer(token), json={"replicas": more})).status_code == 200
        refused(await client.post(path, headers=bearer(token), json={"replicas": 1, "task": "learner"}), 422)
        with pytest.raises(InvalidError, match="2,001 replicas in all"):
            await asyncio.to_thread(
                scale, "mixed", task="learner", replicas=2, namespace="default", cluster=place.cluster
            )
    assert wanted(place, "mixed") == {"learner": 1, "collector": MOST_REPLICAS - 1}


@asynchronous
async def test_a_job_cannot_ask_for_more_hosts_than_its_pods_can_be_told(place: Place) -> None:
    place.running(job(task("none", name="w" * 20), name="j" * 30))
    person = place.authority.person("ada", ("patch", "default", "*"))
    async with place.asked() as client:
        answer = await client.post(
            f"/v2alpha1/job/default.{'j' * 30}/replicas", headers=bearer(person), json={"replicas": 1_800}
        )
        assert "bytes of host names" in refused(answer, 422)
        with pytest.raises(InvalidError, match="--replicas: .*bytes of host names"):
            await asyncio.to_thread(scale, "j" * 30, replicas=1_800, namespace="default", cluster=place.cluster)
    assert not place.api.seen("PATCH")


@pytest.mark.parametrize(
    ("tasks", "replicas", "words"),
    [
        (40, 100_000, "(spec.tasks[0].replicas): must be a whole number <= 2000"),
        (40, 2_000, "it says 80,000 replicas, and a job may have 2,000"),
        (2, 1_001, "it says 2,002 replicas, and a job may have 2,000"),
        (1, 10**30, "(spec.tasks[0].replicas): must be a whole number <= 2000"),
        (41, 1, "it says 41 tasks, and a job may have 40"),
    ],
)
@asynchronous
async def test_a_job_beyond_all_bounds_is_told_so_and_nothing_of_it_is_built(
    place: Place, tasks: int, replicas: int, words: str
) -> None:
    place.running(mixed())
    place.submit(elastic("huge"))
    huge = copy.deepcopy(place.workflow("huge"))
    dijob = json.loads(huge["metadata"]["annotations"][keys.DIJOB])
    [task] = dijob["spec"]["tasks"]
    dijob["spec"]["tasks"] = [{**task, "name": f"t{n}", "replicas": replicas} for n in range(tasks)]
    huge["metadata"]["annotations"][keys.DIJOB] = json.dumps(dijob)
    place.api.add(WORKFLOW, huge)
    place.set("huge", granted={"1": {f"t{n}": replicas for n in range(tasks)}})
    person = place.authority.person("ada", ("get", "default", "*"), ("patch", "default", "*"))
    async with place.asked() as client:
        for answer in (
            await client.get("/v2alpha1/default.huge/replicas", headers=bearer(person)),
            await client.post("/v2alpha1/default.huge/replicas", headers=bearer(person), json={"replicas": 1}),
            await client.post("/v2alpha1/default.huge/profilings", headers=bearer(person), json={"speed": 1}),
            await client.get("/discover/default/huge/0?timeout=60", headers=bearer(person)),
        ):
            assert words in refused(answer, 409)
        view = place.cache.job("default", "huge")
        assert view is not None
        assert (view.members, view.workflow.spec.tasks, view.counts) == ((), (), {})
        fine = await client.get("/v2alpha1/default.mixed/replicas", headers=bearer(person))
        assert len(fine.json()["data"]) == 3
    assert not place.api.seen("PATCH")
    [facts] = [trim_workflow(place.workflow("huge"))]
    assert facts is not None
    assert (words in facts.message, facts.tasks) == (True, ())


@asynchronous
async def test_a_job_that_argo_alone_runs_and_one_that_has_ended_are_told_so(place: Place) -> None:
    place.running(mixed("alone", scheduling="none"))
    place.submit(mixed("done"))
    ended = {**place.workflow("done"), "status": {"phase": "Succeeded"}}
    place.api.add(WORKFLOW, ended)
    person = place.authority.person("ada", ("patch", "default", "*"))
    async with place.asked() as client:
        for name, words in (("alone", "scheduling none"), ("done", "ended")):
            answer = await client.post(
                f"/v2alpha1/job/default.{name}/replicas", headers=bearer(person), json={"replicas": 1}
            )
            assert words in refused(answer, 409)
    assert not place.api.seen("PATCH")


# --- preemptible jobs -------------------------------------------------------------------------------------------------


@asynchronous
async def test_a_preemptible_job_is_asked_within_its_bounds_from_what_it_has(place: Place) -> None:
    place.running(elastic())
    place.set("elastic", granted={"1": {"worker": 6}})
    person = place.authority.person("ada", ("patch", "default", "*"))
    async with place.asked() as client:
        ask = asking(client, "elastic", person)
        assert (await ask("DELETE", 1)).status_code == 200  # it has 6
        assert wanted(place, "elastic") == {"worker": 5}
        assert "maximum is 8" in refused(await ask("POST", 4), 422)
        assert (await ask("POST", 3)).status_code == 200
        assert wanted(place, "elastic") == {"worker": 8}
        assert "minimum is 2" in refused(await ask("DELETE", 7), 409)
        assert (await ask("DELETE", 6)).status_code == 200
        assert wanted(place, "elastic") == {"worker": 2}


@asynchronous
async def test_a_number_that_is_the_submitted_one_is_a_bound_too_and_can_be_raised_again(place: Place) -> None:
    place.running(elastic())  # 4 were submitted, 2 to 8 are allowed
    place.set("elastic", granted={"1": {"worker": 6}})
    person = place.authority.person("ada", ("patch", "default", "*"))
    async with place.asked() as client:
        ask = asking(client, "elastic", person)
        assert (await ask("DELETE", 2)).status_code == 200
        annotations = place.workflow("elastic")["metadata"]["annotations"]
        assert json.loads(annotations[keys.BOUNDS]) == {"worker": {"min": 2, "max": 4}}
        assert (await ask("POST", 4)).status_code == 200
        assert wanted(place, "elastic") == {"worker": 8}
        refused(await ask("POST", 1), 422)


@asynchronous
async def test_bounds_that_a_person_has_set_since_hold(place: Place) -> None:
    place.submit(elastic(), annotations={**place_annotations(elastic()), keys.BOUNDS: '{"worker":{"min":3,"max":5}}'})
    person = place.authority.person("ada", ("patch", "default", "*"))
    async with place.asked() as client:
        ask = asking(client, "elastic", person)
        assert "maximum is 5" in refused(await ask("POST", 2), 422)
        assert "minimum is 3" in refused(await ask("DELETE", 2), 409)
        assert (await ask("POST", 1)).status_code == 200
    assert wanted(place, "elastic") == {"worker": 5}


@pytest.mark.parametrize("high", [2, 3])
@asynchronous
async def test_a_maximum_that_a_person_sets_is_not_passed_by_the_jobs_own_wish(place: Place, high: int) -> None:
    place.running(elastic(replicas=2, low=1, high=4))
    token = place.authority.pod_token("elastic-worker-1-0", job="elastic")
    async with place.asked() as client:
        ask = asking(client, "elastic", token)
        assert (await ask("DELETE", 1)).status_code == 200
        assert (await ask("POST", 1)).status_code == 200  # the number that was submitted: it becomes a bound
        await asyncio.to_thread(scale, "elastic", high=high, namespace="default", cluster=place.cluster)
        answers = [await ask("POST", 1) for _ in range(4)]
        assert f"maximum is {high}" in refused(answers[-1], 422)
    found = record_of(place.workflow("elastic")).range_of(0)
    assert found.high <= high


@pytest.mark.parametrize("bounds", [{"min": 2, "max": 2}, {"min": 1, "max": 3}])
@asynchronous
async def test_bounds_that_somebody_has_changed_beside_the_server_hold(place: Place, bounds: dict[str, int]) -> None:
    place.running(elastic(replicas=2, low=1, high=4))
    person = place.authority.person("ada", ("patch", "default", "*"))
    path = "/v2alpha1/job/default.elastic/replicas"
    async with place.asked() as client:
        for method in ("DELETE", "POST"):
            answer = await client.request(method, path, headers=bearer(person), json={"replicas": 1})
            assert answer.status_code == 200
        changed = copy.deepcopy(place.workflow("elastic"))
        changed["metadata"]["annotations"][keys.BOUNDS] = json.dumps({"worker": bounds})
        place.api.add(WORKFLOW, changed)
        answers = [await client.post(path, headers=bearer(person), json={"replicas": 1}) for _ in range(4)]
        assert f"maximum is {bounds['max']}" in refused(answers[-1], 422)


def place_annotations(dijob: Any) -> dict[str, str]:
    """The annotations of a job's Workflow as it is rendered."""
    from diflow.workflows import render

    return dict(render(dijob.model_copy(update={"scheduling": "gang"}))["metadata"]["annotations"])


# --- conflicts, keys, and an API server that is away ------------------------------------------------------------------


def disturb(place: Place, times: int) -> list[int]:
    """Have somebody else change the Workflow just before each of so many patches."""
    left = [times]

    def rule(request: Request) -> Answer | None:
        if request.method == "PATCH" and left[0] > 0:
            left[0] -= 1
            name = request.path.rsplit("/", maxsplit=1)[-1]
            place.api.add(WORKFLOW, place.workflow(name))
        return None

    place.api.rule(rule)
    return left


@asynchronous
async def test_a_conflict_is_thought_over_again(place: Place) -> None:
    place.running(mixed())
    token = place.authority.pod_token("mixed-learner-1-0", job="mixed")
    disturb(place, 3)
    async with place.asked() as client:
        answer = await client.post("/v2alpha1/job/default.mixed/replicas", headers=bearer(token), json={"replicas": 1})
    assert answer.status_code == 200
    assert wanted(place, "mixed")["collector"] == 3
    assert len(place.api.seen("PATCH")) == 4


@asynchronous
async def test_conflicts_without_an_end_are_given_up_with_503(place: Place) -> None:
    place.running(mixed())
    token = place.authority.pod_token("mixed-learner-1-0", job="mixed")
    disturb(place, 1000)
    async with place.asked() as client:
        answer = await client.post("/v2alpha1/job/default.mixed/replicas", headers=bearer(token), json={"replicas": 1})
    assert "changed by others" in refused(answer, 503)
    assert answer.headers["retry-after"]
    assert len(place.api.seen("PATCH")) < 20
    assert wanted(place, "mixed")["collector"] == 2


@asynchronous
async def test_ten_writers_of_one_job_are_all_answered_and_none_is_lost(place: Place) -> None:
    place.running(mixed())
    person = place.authority.person("ada", ("patch", "default", "mixed"))
    path = "/v2alpha1/job/default.mixed/replicas"
    async with place.asked() as client:

        async def writer() -> list[int]:
            return [
                (await client.post(path, headers=bearer(person), json={"replicas": 1})).status_code for _ in range(6)
            ]

        answers = await asyncio.gather(*(writer() for _ in range(10)))
    assert [code for codes in answers for code in codes] == [200] * 60
    assert wanted(place, "mixed")["collector"] == 62
    assert len(place.api.seen("PATCH")) == 60, "within one server nobody is in anybody's way"


@asynchronous
async def test_two_servers_agree_about_a_job_that_both_write(place: Place) -> None:
    place.running(mixed())
    person = place.authority.person("ada", ("patch", "default", "mixed"))
    path = "/v2alpha1/job/default.mixed/replicas"
    async with place.asked() as client:
        other, first = place.make_app(), place.app
        place.app = other
        async with other.router.lifespan_context(other), place.client() as second:
            place.app = first

            async def writer(asking: Any) -> list[int]:
                return [
                    (await asking.post(path, headers=bearer(person), json={"replicas": 1})).status_code
                    for _ in range(6)
                ]

            answers = await asyncio.gather(*(writer(asking) for asking in (client, second) for _ in range(5)))
    assert [code for codes in answers for code in codes] == [200] * 60
    assert wanted(place, "mixed")["collector"] == 62


@asynchronous
async def test_the_writes_that_wait_for_one_job_are_bounded_and_another_job_does_not_wait_for_them(
    place: Place,
) -> None:
    place.running(mixed())
    place.running(mixed("other"))
    person = place.authority.person("ada", ("patch", "default", "*"))
    hold = threading.Event()

    def rule(request: Request) -> Answer | None:
        if request.method == "PATCH" and request.path.endswith("/mixed"):
            assert hold.wait(60)
        return None

    place.api.rule(rule)
    async with place.asked() as client:
        ask_mixed, ask_other = (asking(client, name, person) for name in ("mixed", "other"))
        waiting = [asyncio.ensure_future(ask_mixed("POST", 1)) for _ in range(WAITING + 1)]
        queue = place.app.state.core.writes
        await soon(lambda: queue.waiting("default", "mixed") == WAITING)
        answer = await ask_mixed("POST", 1)
        assert "wait" in refused(answer, 503)
        assert answer.headers["retry-after"]
        assert (await ask_other("POST", 1)).status_code == 200
        # A caller that disconnects while it waits has requested nothing.
        waiting[-1].cancel()
        await soon(lambda: queue.waiting("default", "mixed") == WAITING - 1)
        hold.set()
        codes = [(await one).status_code for one in waiting[:-1]]
        assert codes == [200] * WAITING
        assert not queue.jobs
    assert wanted(place, "mixed")["collector"] == 2 + WAITING


@asynchronous
async def test_a_key_is_carried_out_once_even_by_another_server(place: Place) -> None:
    place.running(mixed())
    token = place.authority.pod_token("mixed-learner-1-0", job="mixed")
    path = "/v2alpha1/job/default.mixed/replicas"
    once = {**bearer(token), "Idempotency-Key": "7c1d-1"}
    async with place.asked() as client:
        for _ in range(3):
            assert (await client.post(path, headers=once, json={"replicas": 1})).status_code == 200
        other = place.make_app()  # a second replica of the server, or the same one after a restart
        place.app, first = other, place.app
        async with other.router.lifespan_context(other), place.client() as again:
            assert (await again.post(path, headers=once, json={"replicas": 1})).status_code == 200
            assert "another request" in refused(await again.post(path, headers=once, json={"replicas": 2}), 422)
            refused(await again.request("DELETE", path, headers=once, json={"replicas": 1}), 422)
        place.app = first
    assert wanted(place, "mixed")["collector"] == 3


@asynchronous
async def test_an_answer_that_got_lost_is_no_second_replica(place: Place) -> None:
    place.running(mixed())
    token = place.authority.pod_token("mixed-learner-1-0", job="mixed")
    done = [0]

    def lose(request: Request) -> Answer | None:
        if request.method == "PATCH" and not done[0]:
            done[0] += 1
            place.api._plain(request)  # it is written ...
            return status(504, "the request has timed out")  # ... and the response is lost
        return None

    place.api.rule(lose)
    path = "/v2alpha1/job/default.mixed/replicas"
    async with place.asked() as client:
        once = {**bearer(token), "Idempotency-Key": "a"}
        assert (await client.post(path, headers=once, json={"replicas": 1})).status_code == 200
        assert wanted(place, "mixed")["collector"] == 3
        done[0] = 0
        answer = await client.post(path, headers=bearer(token), json={"replicas": 1})
        refused(answer, 503)  # without a key the outcome is unknown: it is not tried again
    assert wanted(place, "mixed")["collector"] == 4


@asynchronous
async def test_the_keys_in_the_workflow_are_bounded_and_what_is_unreadable_is_no_hindrance(place: Place) -> None:
    place.running(mixed())
    broken = place.workflow("mixed")
    broken["metadata"]["annotations"][keys.REQUESTS] = "[[["
    place.api.add(WORKFLOW, broken)
    token = place.authority.pod_token("mixed-learner-1-0", job="mixed")
    path = "/v2alpha1/job/default.mixed/replicas"
    async with place.asked() as client:
        for number in range(KEYS_KEPT + 6):
            once = {**bearer(token), "Idempotency-Key": f"key-{number}"}
            assert (await client.post(path, headers=once, json={"replicas": 1})).status_code == 200
    kept = json.loads(place.workflow("mixed")["metadata"]["annotations"][keys.REQUESTS])["done"]
    assert len(kept) == KEYS_KEPT
    assert wanted(place, "mixed")["collector"] == 2 + KEYS_KEPT + 6


@pytest.mark.parametrize("key", ["", "with space", "ü", "x" * 256])
@asynchronous
async def test_a_key_that_is_none_is_refused(place: Place, key: str) -> None:
    place.running(mixed())
    token = place.authority.pod_token("mixed-learner-1-0", job="mixed")
    async with place.asked() as client:
        answer = await client.post(
            "/v2alpha1/job/default.mixed/replicas",
            headers=[(b"Authorization", f"Bearer {token}".encode()), (b"Idempotency-Key", key.encode())],
            json={"replicas": 1},
        )
    assert "Idempotency-Key" in refused(answer, 400)


@asynchronous
async def test_a_write_that_the_api_server_cannot_take_is_503_and_never_200(place: Place) -> None:
    place.running(mixed())
    token = place.authority.pod_token("mixed-learner-1-0", job="mixed")
    async with place.asked() as client:
        path = "/v2alpha1/job/default.mixed/replicas"
        assert (await client.get(path, headers=bearer(token))).status_code == 200
        place.api.fail(status(503, "no leader"), method="PATCH", times=100)
        answer = await client.post(path, headers=bearer(token), json={"replicas": 1})
        refused(answer, 503)
        assert answer.headers["retry-after"]
        assert (await client.get(path, headers=bearer(token))).status_code == 200  # reads go on
    assert wanted(place, "mixed")["collector"] == 2


@asynchronous
async def test_a_job_that_is_deleted_meanwhile_is_404(place: Place) -> None:
    place.running(mixed())
    person = place.authority.person("ada", ("patch", "default", "mixed"))
    async with place.asked() as client:
        place.api.fail(
            status(404, 'workflows "mixed" not found', reason="NotFound"), method="GET", path="/workflows/mixed"
        )
        answer = await client.post("/v2alpha1/job/default.mixed/replicas", headers=bearer(person), json={"replicas": 1})
    refused(answer, 404)


@asynchronous
async def test_one_job_cannot_take_more_than_its_share_and_others_do_not_notice() -> None:
    from tests.kube.fakeapi import serving

    with serving() as api:
        place = Place(api, settings=ServerSettings(job_rate=1.0, job_burst=3))
        place.running(mixed())
        place.running(mixed("other"))
        token = place.authority.pod_token("mixed-learner-1-0", job="mixed")
        another = place.authority.pod_token("other-learner-1-0", job="other")
        async with place.asked() as client:
            path = "/v2alpha1/job/default.mixed/replicas"
            codes = [(await client.get(path, headers=bearer(token))).status_code for _ in range(3)]
            assert codes == [200, 200, 200]
            answer = await client.get(path, headers=bearer(token))
            refused(answer, 429)
            assert answer.headers["retry-after"] == "1"
            # Unauthorised requests do not count.
            stranger = await client.get(path, headers=bearer(another))
            refused(stranger, 403)
            fine = await client.get("/v2alpha1/job/default.other/replicas", headers=bearer(another))
            assert fine.status_code == 200
            place.time.move(1.0)
            assert (await client.get(path, headers=bearer(token))).status_code == 200


@asynchronous
async def test_pods_that_are_replaced_give_their_place_to_the_newer_one(place: Place) -> None:
    place.running(mixed())
    place.pod(
        "mixed", "collector", 0, ip="10.0.0.9", name="again",
        metadata={"creationTimestamp": "2026-11-21T11:00:00Z"},
    )  # fmt: skip
    person = place.authority.person("ada", ("get", "default", "mixed"))
    async with place.asked() as client:
        path = "/v2alpha1/job/default.mixed/replicas"
        answer = await client.get(path, headers=bearer(person))
        assert answer.json()["data"][1] == "10.0.0.9:22270"
        place.api.remove(POD, "again")
        await soon(lambda: "10.0.0.2:22270" in place.cache.job("default", "mixed").addresses)  # type: ignore[union-attr]
