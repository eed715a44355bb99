"""The routes of v1alpha1: the answers, their messages, and what is stored in the cluster afterwards."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import json
from typing import Any

import httpx
import pytest

from diflow.common import keys
from diflow.contrib.di_orchestrator import modules
from diflow.contrib.di_orchestrator.changes import majority, replacing, split
from diflow.kube.kinds import NODE, WORKFLOW
from diflow.server.settings import ServerSettings
from tests.builders import job, task
from tests.contrib.di_orchestrator import oldjobs
from tests.kube.fakeapi import Answer, Request, serving
from tests.server.place import Place, asynchronous, bearer

Json = dict[str, Any]
REPLICAS = "/v1alpha1/replicas"
FAILED = "/v1alpha1/replicas/failed"
WHO = {"namespace": "default", "coordinator": "old-coordinator"}


def submitted(place: Place, name: str = "old", **options: Any) -> str:
    """A job with a running coordinator. Returns the token of that pod."""
    body = oldjobs.workflow(name, **options)
    body["metadata"] |= {"uid": f"uid-wf-{name}"}
    place.api.add(WORKFLOW, body, namespace="default")
    place.pod(name, "coordinator", 0, ip="10.0.0.1")
    return place.authority.pod_token(f"{name}-coordinator-1-0", job=name)


def argo(place: Place, name: str = "old", **phases: str) -> None:
    """Argo's nodes of pods, each named `<round>_<module>_<index>_<attempt>` with `-` as `__`."""
    found = copy.deepcopy(place.workflow(name))
    known = found.setdefault("status", {"phase": "Running"}).setdefault("nodes", {})
    for key, phase in phases.items():
        round_, module, index, attempt = key.replace("__", "-").lstrip("r").split("_")
        node = f"{name}.round({int(round_) - 1}:{round_}).{module}({index}:{index}).{module}({attempt})"
        known[node] = {"id": node, "name": node, "type": "Pod", "phase": phase, "displayName": node}
    place.api.add(WORKFLOW, found)
    place.settle()


async def ask(client: httpx.AsyncClient, token: str, method: str, body: Any, path: str = REPLICAS) -> Json:
    """A request as DI-engine's clients send it: JSON without a Content-Type."""
    answer = await client.request(method, path, headers=bearer(token), content=json.dumps(body))
    assert answer.status_code == 200, answer.text
    assert (answer.json()["success"], answer.json()["code"]) == (True, 0)
    return dict(answer.json())


def stored(place: Place, name: str = "old") -> modules.Modules:
    found = modules.read(place.workflow(name))
    assert found is not None
    assert not found.problem
    return found


def hosts(urls: list[str]) -> list[str]:
    """The host names in these addresses, which have the form that clients take apart."""
    for url in urls:
        assert url.count(":") == 1
        assert url.split(":")[0].endswith(".di.default")
    return [url.split(".")[0] for url in urls]


@asynchronous
async def test_replicas_are_created_listed_and_deleted(place: Place) -> None:
    token = submitted(place)
    async with place.asked() as client:
        empty = (await client.get(REPLICAS, params=WHO, headers=bearer(token))).json()
        assert empty["data"] == {**WHO, "collectors": [], "learners": []}
        body = {**WHO, "collectors": {"replicas": 2, "cpus": "0.5", "cpu": 9}, "learners": {"replicas": 1, "gpus": 1}}
        made = await ask(client, token, "POST", body)
        assert made["message"] == "successfully create replicas"
        data = made["data"]
        assert [len(data[key]) for key in ("collectors", "learners")] == [2, 1]
        assert {url.split(":")[1] for url in data["collectors"]} == {"22270"}
        assert {url.split(":")[1] for url in data["learners"]} == {"22271"}
        place.settle()
        found = (await client.request("GET", REPLICAS, params=WHO, headers=bearer(token), content="{}")).json()
        assert found["message"] == "successfully get replicas"
        assert found["data"] == data
        assert stored(place).groups["2"]["collector"].resources == {"cpu": "0.5"}
        assert stored(place).groups["2"]["learner"].resources == {modules.GPU: "1"}
        gone = await ask(client, token, "DELETE", {**WHO, "collectors": {"replicas": 1}, "learners": {"replicas": 9}})
        assert gone["message"] == "successfully delete replicas"
        assert gone["data"] == {**WHO, "collectors": data["collectors"][1:], "learners": data["learners"]}
        place.settle()
        left = (await client.get(REPLICAS, params=WHO, headers=bearer(token))).json()["data"]
        assert left == {**WHO, "collectors": data["collectors"][:1], "learners": []}
    assert json.loads(place.parameter("old", keys.PARAM_ROUNDS)) == ["1", "2"], "rounds are only appended"
    assert json.loads(place.parameter("old", keys.PARAM_RELEASED)) == ["2/collector/1", "2/learner/0"]


@asynchronous
async def test_failed_replicas_are_replaced_by_others_with_the_same_resources(place: Place) -> None:
    token = submitted(place)
    async with place.asked() as client:
        body = {**WHO, "collectors": {"replicas": 2, "memory": 1073741824}, "learners": {"replicas": 1}}
        data = (await ask(client, token, "POST", body))["data"]
        first, second = hosts(data["collectors"])
        failed = {**WHO, "collectors": [f"{first}.di", first], "learners": [data["learners"][0]]}
        again = await ask(client, token, "POST", failed, FAILED)
        assert again["message"] == "successfully recreate replicas"
        (new,) = hosts(again["data"]["collectors"])
        assert new not in (first, second)
        assert len(again["data"]["learners"]) == 1
        assert stored(place).groups["3"]["collector"].resources == {"memory": "1073741824"}
        # It is repeated, as the answer may have been lost: nothing is replaced twice.
        assert (await ask(client, token, "POST", failed, FAILED))["data"] == {**WHO, "collectors": [], "learners": []}
        place.settle()
        left = (await client.get(REPLICAS, params=WHO, headers=bearer(token))).json()["data"]
        assert sorted(hosts(left["collectors"])) == sorted([second, new])


@pytest.mark.parametrize("is_stored", [True, False])
@pytest.mark.parametrize("what", ["create", "delete", "replace"])
@asynchronous
async def test_a_server_that_is_killed_at_its_write_makes_nothing_twice(
    place: Place, what: str, is_stored: bool
) -> None:
    token = submitted(place)
    async with place.asked() as client:
        two = {**WHO, "collectors": {"replicas": 2}}
        before = (await ask(client, token, "POST", two))["data"]["collectors"]
        method, path, body = {
            "create": ("POST", REPLICAS, two),
            "delete": ("DELETE", REPLICAS, {**WHO, "collectors": {"replicas": 1}}),
            "replace": ("POST", FAILED, {**WHO, "collectors": before[:1]}),
        }[what]
        cuts: list[Request] = []

        def rule(request: Request) -> Answer | None:
            if request.method != "PATCH" or "workflows" not in request.path or cuts:
                return None
            cuts.append(request)
            return dataclasses.replace(place.api._plain(request) if is_stored else Answer(), cut=True)

        place.api.rule(rule)
        lost = await client.request(method, path, headers=bearer(token), content=json.dumps(body))
        assert (lost.status_code, len(cuts)) == (503, 1)
    second = Place(place.api)  # another process, which knows nothing but what is stored
    second.authority.tokens = place.authority.tokens
    async with second.asked() as other:
        listed = (await other.get(REPLICAS, params=WHO, headers=bearer(token))).json()["data"]["collectors"]
        expected = {"create": 4, "delete": 1, "replace": 2}[what] if is_stored else 2
        assert len(listed) == expected
        if what == "replace":
            await ask(other, token, method, body, path)
            second.settle()
            left = (await other.get(REPLICAS, params=WHO, headers=bearer(token))).json()["data"]["collectors"]
            assert (len(left), before[0] in left) == (2, False)


@asynchronous
async def test_a_replica_that_was_made_again_has_a_new_name(place: Place) -> None:
    token = submitted(place)
    async with place.asked() as client:
        data = (await ask(client, token, "POST", {**WHO, "collectors": {"replicas": 1}}))["data"]
        (name,) = hosts(data["collectors"])

        async def listed() -> list[str]:
            return hosts((await client.get(REPLICAS, params=WHO, headers=bearer(token))).json()["data"]["collectors"])

        argo(place, r2_collector_0_0="Running")
        assert await listed() == [name]
        argo(place, r2_collector_0_0="Failed")
        assert await listed() == [], "it has ended, and the next pod is not there yet"
        argo(place, r2_collector_0_1="Running")
        assert await listed() == [f"{name}-1"]
        # The client reports the pod that it lost: the one that runs stays.
        again = await ask(client, token, "POST", {**WHO, "collectors": [name]}, FAILED)
        assert hosts(again["data"]["collectors"]) == [f"{name}-1"]
        assert json.loads(place.parameter("old", keys.PARAM_RELEASED)) == []
        again = await ask(client, token, "POST", {**WHO, "collectors": [f"{name}-1"]}, FAILED)
        assert name not in hosts(again["data"]["collectors"])[0]
        assert json.loads(place.parameter("old", keys.PARAM_RELEASED)) == ["2/collector/0"]


@asynchronous
async def test_a_learner_of_several_gpus_is_an_aggregator_with_ddp_learners(place: Place) -> None:
    token = submitted(place)
    for i, gpus in enumerate((8, 8, 0, 4)):
        place.api.add(NODE, {"metadata": {"name": f"n{i}"}, "status": {"allocatable": {modules.GPU: str(gpus)}}})
    async with place.asked() as client:
        data = (await ask(client, token, "POST", {**WHO, "learners": {"replicas": 1, "gpus": "10", "cpus": 4}}))["data"]
        (aggregator,) = hosts(data["learners"])
        assert aggregator.startswith("old-aggregator-")
        each = stored(place).groups["2"]["ddp-learner"].each
        assert [(one["world"], one["local"], one["start"]) for one in each] == [("10", "8", "0"), ("10", "2", "8")]
        assert [one["resources"] for one in each] == [{"cpu": "4", modules.GPU: "8"}, {"cpu": "4", modules.GPU: "2"}]
        assert [port["name"] for port in each[1]["ports"]] == ["gpu-port-1"]
        assert each[0]["ports"][-1] == {"name": "master-port", "containerPort": 10314, "protocol": "TCP"}
        place.settle()
        assert (await client.get(REPLICAS, params=WHO, headers=bearer(token))).json()["data"]["learners"] == data[
            "learners"
        ]
        # The aggregator itself asks, with its own token.
        place.pod("old", "aggregator", 0, ip="10.0.0.9", round_="2")
        place.settle()
        mine = place.authority.pod_token("old-aggregator-2-0", job="old")
        asked = {"Namespace": "default", "AGGREGATOR": aggregator}
        found = (await client.get(REPLICAS, params=asked, headers=bearer(mine))).json()["data"]
        assert (found["coordinator"], found["collectors"]) == (aggregator, [])
        ports = [url.split(":")[1] for url in found["learners"]]
        assert ports == [*(str(22271 + i) for i in range(8)), "22271", "22272"]
        gone = await ask(client, token, "POST", {**WHO, "learners": [f"{aggregator}.di"]}, FAILED)
        assert len(gone["data"]["learners"]) == 1
        assert stored(place).groups["3"]["ddp-learner"].each == each
        assert len(json.loads(place.parameter("old", keys.PARAM_RELEASED))) == 3
        place.settle()
        answer = await client.get(REPLICAS, params=asked, headers=bearer(mine))
        assert answer.status_code == 410, "its pod is not wanted any more"


@asynchronous
async def test_many_requests_for_gpus_list_the_nodes_once(place: Place) -> None:
    token = submitted(place)
    place.api.add(NODE, {"metadata": {"name": "n0"}, "status": {"allocatable": {modules.GPU: "8"}}})
    body = {**WHO, "learners": {"replicas": 1, "gpus": 10}}
    async with place.asked() as client:
        await asyncio.gather(*(ask(client, token, "POST", body) for _ in range(5)))
        assert len([r for r in place.api.seen("GET") if r.path.endswith("/nodes")]) == 1
        place.api.add(NODE, {"metadata": {"name": "n0"}, "status": {"allocatable": {modules.GPU: "4"}}})
        place.time.move(60)
        await ask(client, token, "POST", body)
    assert len(stored(place).groups["7"]["ddp-learner"].each) == 3, "nodes that have changed are seen"


@pytest.mark.parametrize("name", ["old", "an-aggregator-abcde", "a-coordinator"])
@asynchronous
async def test_a_coordinator_is_found_by_its_name_whatever_the_name_of_its_job(place: Place, name: str) -> None:
    token = submitted(place, name)
    async with place.asked() as client:
        for parameter in ("name", "coordinator"):
            params = {"namespace": "default", parameter: f"{name}-coordinator"}
            answer = await client.get(REPLICAS, params=params, headers=bearer(token))
            assert answer.status_code == 200, answer.text
            assert answer.json()["data"]["coordinator"] == f"{name}-coordinator"


def test_gpus_of_a_pod_are_the_most_frequent_number_among_the_nodes() -> None:
    assert majority([8, 8, 0, 4]) == 8
    assert majority([4, 4, 8, 8, 0, 0, 0]) == 8
    assert majority([0, 0]) == 0
    assert [split(10, 8), split(8, 8), split(16, 8), split(3, 0), split(5, 2)] == [[8, 2], [8], [8, 8], [3], [2, 2, 1]]


ERRORS: list[tuple[str, str, Any, int, str]] = [
    ("GET", f"{REPLICAS}?job=x", None, 400, "request param job is not supported"),
    ("PUT", REPLICAS, {}, 501, "PUT not implemented"),
    ("GET", FAILED, None, 501, "GET not implemented"),
    ("DELETE", FAILED, {}, 501, "DELETE not implemented"),
    ("GET", f"{REPLICAS}?namespace=default&coordinator=x", None, 404, "pod: default/x not exists in cache"),
    ("POST", REPLICAS, {**WHO, "coordinator": "no-coordinator"}, 404,
     "pod: default/no-coordinator not exists in cache"),
    ("POST", REPLICAS, {}, 404, "pod: / not exists in cache"),
    ("POST", REPLICAS, {**WHO, "coordinator": "new"}, 404, "module new is not owned by any DIJob"),
    ("POST", REPLICAS, {**WHO, "coordinator": "over-coordinator"}, 404,
     "coordinator over-coordinator is owned by stale DIJob"),
    ("GET", f"{REPLICAS}?namespace=default&aggregator=old-aggregator-abcde", None, 404,
     "pod: default/old-aggregator-abcde not exists in cache"),
    ("POST", FAILED, {**WHO, "collectors": ["old-collector-abcde.di"]}, 404,
     "pod: default/old-collector-abcde not exists in cache"),
    ("POST", REPLICAS, {**WHO, "coordinator": "plain-coordinator", "learners": {"replicas": 1, "gpus": 2}}, 404,
     "AGConfig: di-system/aggregator-config not exists in cache"),
    ("POST", REPLICAS, "x", 400, "failed to decode request body: it must be a JSON object"),
    ("POST", REPLICAS, {**WHO, "collectors": 1}, 400,
     "failed to decode request body: collectors must be a JSON object"),
    ("POST", REPLICAS, {**WHO, "collectors": {"replicas": "2"}}, 400,
     "failed to decode request body: collectors.replicas must be a whole number"),
    ("POST", REPLICAS, {**WHO, "learners": {"replicas": 1, "cpus": "much"}}, 400,
     "failed to decode request body: learners.cpus must be a quantity such as 2, 500m or 4Gi"),
    ("POST", REPLICAS, {**WHO, "learners": {"replicas": 1, "memory": -1}}, 400,
     "failed to decode request body: learners.memory must be a quantity such as 2, 500m or 4Gi"),
    ("POST", REPLICAS, {**WHO, "learners": {"replicas": 10**9}}, 422, "learners.replicas: at most 2,000 are allowed"),
    ("POST", REPLICAS, {**WHO, "learners": {"replicas": 1, "gpus": 1e300}}, 422, "learners.gpus is too large"),
    ("POST", REPLICAS, {**WHO, "learners": {"replicas": 1, "gpus": 10**9}}, 422,
     "learners.gpus: 1,000,000,000, and at most 256,000 are allowed"),
    ("POST", REPLICAS, {**WHO, "learners": {"replicas": 1, "gpus": 256_000}}, 422,
     "learners.gpus: 256,000 in one pod, and at most 128 have a port of their own"),
    ("POST", REPLICAS, {**WHO, "learners": {"replicas": 1500, "gpus": 2}}, 422,
     "learners: 3,000 pods of 2 GPUs, and at most 2,000 pods are allowed"),
    ("POST", REPLICAS, {**WHO, "learners": {"replicas": 1, "gpus": 0.5}}, 422,
     "learners.gpus must be a whole number, not 0.5"),
    ("POST", REPLICAS, {**WHO, "learners": {"replicas": 900, "gpus": 128}}, 409,
     "the Workflow of the job has no space for this request: ask for fewer replicas, or delete the job and create it "
     "again"),
    ("POST", FAILED, {**WHO, "learners": "old"}, 400, "failed to decode request body: learners must be a list of text"),
]  # fmt: skip


@asynchronous
async def test_errors_have_the_texts_that_clients_know(place: Place) -> None:
    submitted(place)
    submitted(place, "plain", aggregator=False)
    submitted(place, "over")
    place.submit(job(task(), name="new"))
    person = place.authority.person("ann", *((verb, "default", "*") for verb in ("get", "patch")), ("patch", "", ""))
    async with place.asked() as client:
        argo(place, "over", r1_coordinator_0_0="Succeeded")
        for method, path, body, code, text in ERRORS:
            content = None if body is None else json.dumps(body)
            answer = await client.request(method, path, headers=bearer(person), content=content)
            assert (answer.status_code, answer.json()["message"]) == (code, text), (method, path, body)
            assert (answer.json()["success"], answer.json()["code"], answer.json()["data"]) == (False, 1, None)


@asynchronous
async def test_all_jobs_of_a_namespace_are_listed_to_those_who_may(place: Place) -> None:
    token = submitted(place)
    submitted(place, "second")
    place.submit(job(task(), name="new"))
    ann = place.authority.person("ann", ("list", "default", ""))
    bob = place.authority.person("bob", ("get", "default", "old"))
    async with place.asked() as client:
        found = (await client.get(REPLICAS, params={"namespace": "default"}, headers=bearer(ann))).json()["data"]
        assert [one["coordinator"] for one in found] == ["old-coordinator", "second-coordinator"]
        assert (await client.get(REPLICAS, headers=bearer(ann))).status_code == 403, "all namespaces"
        for given in (bob, token):
            assert (
                await client.get(REPLICAS, params={"namespace": "default"}, headers=bearer(given))
            ).status_code == 403
        assert (await client.get(REPLICAS, params={"namespace": "default"})).status_code == 401


@asynchronous
async def test_lists_of_many_replicas_are_refused_and_many_lists_have_to_wait(place: Place) -> None:
    ids = [f"{i:05d}" for i in range(modules.MOST_EVER)]
    groups = {str(r + 2): {"collector": {"ids": ids[r * 1000 : r * 1000 + 1000]}} for r in range(10)}
    for name in ("a", "b", "c"):
        submitted(place, name)
    ann = place.authority.person("ann", ("list", "default", ""))
    async with place.asked() as client:

        async def listed() -> httpx.Response:
            return await client.get(REPLICAS, params={"namespace": "default"}, headers=bearer(ann))

        for name in ("a", "b", "c"):
            assert (await listed()).status_code == 200
            place.set(name, modules=json.dumps(groups))
            place.settle()
        answer = await listed()
        assert answer.status_code == 422
        assert "name a namespace or a coordinator" in answer.json()["message"]
        codes = [(await listed()).status_code for _ in range(20)]
        assert codes[-1] == 429
        params = {**WHO, "coordinator": "a"}
        bob = place.authority.person("bob", ("get", "default", "a"))
        assert (await client.get(REPLICAS, params=params, headers=bearer(bob))).status_code == 200


@asynchronous
async def test_a_token_is_for_its_own_job_and_an_address_only_where_that_is_allowed(place: Place) -> None:
    submitted(place)
    other = submitted(place, "other")
    async with place.asked() as client:
        assert (await client.get(REPLICAS, params=WHO, headers=bearer(other))).status_code == 403
        assert (await client.get(REPLICAS, params=WHO)).status_code == 401
        body = json.dumps({**WHO, "collectors": {"replicas": 1}})
        assert (await client.post(REPLICAS, headers=bearer(other), content=body)).status_code == 403
    assert stored(place).replicas == ()


@asynchronous
async def test_a_learner_with_very_many_gpus_is_refused_before_anything_of_that_size_is_made(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = submitted(place)
    place.api.add(NODE, {"metadata": {"name": "n0"}, "status": {"allocatable": {modules.GPU: "8"}}})
    made: list[int] = []

    def noted(gpus: int, _: int) -> list[int]:
        made.append(gpus)
        return [gpus]

    monkeypatch.setattr("diflow.contrib.di_orchestrator.changes.split", noted)
    async with place.asked() as client:
        for gpus in (16_000, 10**9, 10**15):
            body = json.dumps({**WHO, "learners": {"replicas": 1, "gpus": gpus}})
            answer = await client.post(REPLICAS, headers=bearer(token), content=body)
            assert answer.status_code == 422
            assert answer.json()["code"] == 1
    assert made == []
    assert stored(place).replicas == ()


@asynchronous
async def test_a_job_takes_as_many_requests_as_argo_can_store(place: Place) -> None:
    token = submitted(place)
    all_of_them = json.dumps({**WHO, "collectors": {"replicas": 2000}})
    async with place.asked() as client:
        await ask(client, token, "POST", {**WHO, "collectors": {"replicas": 2000}})
        await ask(client, token, "DELETE", {**WHO, "collectors": {"replicas": 2000}})
        answer = await client.post(REPLICAS, headers=bearer(token), content=all_of_them)
        assert answer.status_code == 409, "Argo has 10,000 nodes of those that were removed, and stores 14,700"
        assert "has no space" in answer.json()["message"]
        await ask(client, token, "POST", {**WHO, "collectors": {"replicas": 100}})
    assert len(stored(place).replicas) == 2100


def test_replicas_are_named_and_removed_in_one_pass() -> None:
    """10,000 of them: with a search for each, this takes minutes."""
    ids = [f"{i:05d}" for i in range(modules.MOST_EVER)]
    workflow = oldjobs.workflow()
    groups = {str(r): modules.Group(tuple(ids[r * 100 : r * 100 + 100])) for r in range(100)}
    patch, _ = modules.changed(workflow, add=[{"aggregator": group} for group in groups.values()])
    for parameter in patch["spec"]["arguments"]["parameters"]:
        if parameter["name"] == keys.PARAM_RELEASED:
            parameter["value"] = json.dumps([f"{r + 2}/aggregator/{i}" for r in range(99) for i in range(100)])
    workflow["spec"]["arguments"] = patch["spec"]["arguments"]
    known = modules.read(workflow)
    assert known is not None
    seen = Counted(known.replicas)
    known = dataclasses.replace(known, replicas=seen)
    names = [one.hostname("old") for one in known.replicas]
    seen.looks = 0
    change = replacing("default", names)(known)
    assert len(change.release) == 100
    modules.changed(workflow, add=change.add, release=change.release)
    assert seen.looks <= 4 * modules.MOST_EVER


class Counted(tuple):  # type: ignore[type-arg]
    """Replicas that count how often one is looked at."""

    looks = 0

    def __iter__(self) -> Any:
        for one in tuple.__iter__(self):
            self.looks += 1
            yield one


@asynchronous
async def test_more_replicas_than_are_read_of_a_job_are_the_trouble_of_its_job(place: Place) -> None:
    token = submitted(place)
    ids = [f"{i:05d}" for i in range(modules.MOST_EVER + 1)]
    groups = {str(r + 2): {"collector": {"ids": ids[r * 1000 : r * 1000 + 1000]}} for r in range(11)}
    place.set("old", modules=json.dumps(groups))
    async with place.asked() as client:
        answer = await client.get(REPLICAS, params=WHO, headers=bearer(token))
        assert answer.status_code == 409
        groups["12"]["collector"]["ids"].pop()
        place.set("old", modules=json.dumps({k: v for k, v in groups.items() if v["collector"]["ids"]}))
        place.settle()
        answer = await client.get(REPLICAS, params=WHO, headers=bearer(token))
        assert len(answer.json()["data"]["collectors"]) == modules.MOST_EVER


@asynchronous
async def test_an_aggregator_without_what_its_ddp_learners_have_is_no_fault_of_the_server(place: Place) -> None:
    token = submitted(place)
    ids = {"aggregator": {"ids": ["abcde"]}, "ddp-learner": {"ids": ["fghij"]}}
    place.set("old", modules=json.dumps({"2": ids}))
    async with place.asked() as client:
        params = {"namespace": "default", "aggregator": "old-aggregator-abcde"}
        answer = await client.get(REPLICAS, params=params, headers=bearer(token))
        assert len(answer.json()["data"]["learners"]) == 1


@pytest.mark.parametrize("unproven", [True, False])
@asynchronous
async def test_pods_without_a_token_are_known_by_their_address(unproven: bool) -> None:
    with serving() as api:
        place = Place(api, settings=ServerSettings(unproven_pods=unproven))
        submitted(place)
        async with place.asked(), place.client(host="10.0.0.1") as client:
            answer = await client.post(REPLICAS, content=json.dumps({**WHO, "collectors": {"replicas": 1}}))
            assert answer.status_code == (200 if unproven else 401)
            answer = await client.get(REPLICAS, params={"namespace": "default"})
            assert answer.status_code == (200 if unproven else 401)
            answer = await client.get(REPLICAS, params={"namespace": "elsewhere"})
            assert answer.status_code == (403 if unproven else 401)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"1":{}}', '{"x":{}}', '{"2":{"coordinator":{"ids":["abcde"]}}}',
     '{"2":{"collector":{"ids":"x"}}}', '{"2":{"collector":{"ids":["abcde","abcde"]}}}',
     '{"2":{"collector":{"ids":["{{x}}"]}}}',
     '{"2":{"collector":{"ids":["abcde"],"resources":{"cpu":1}}}}',
     '{"2":{"ddp-learner":{"ids":["abcde"],"each":[1]}}}',
     '{"2":{"ddp-learner":{"ids":["abcde"],"each":[{"ports":3}]}}}', "[" * 100_000],
)  # fmt: skip
@asynchronous
async def test_an_edited_parameter_is_the_trouble_of_its_job_alone(place: Place, text: str) -> None:
    token = submitted(place)
    fine = submitted(place, "fine")
    place.set("old", modules=text)
    async with place.asked() as client:
        answer = await client.get(REPLICAS, params=WHO, headers=bearer(token))
        assert answer.status_code == 409
        assert "cannot be read" in answer.json()["message"]
        params = {**WHO, "coordinator": "fine-coordinator"}
        assert (await client.get(REPLICAS, params=params, headers=bearer(fine))).status_code == 200


@asynchronous
async def test_two_requests_at_once_both_count(place: Place) -> None:
    token = submitted(place)
    async with place.asked() as client:
        bodies = [{**WHO, "collectors": {"replicas": 1}}] * 6
        made = await asyncio.gather(*(ask(client, token, "POST", body) for body in bodies))
    urls = {url for one in made for url in one["data"]["collectors"]}
    assert len(urls) == 6
    assert len(stored(place).of("collector")) == 6
