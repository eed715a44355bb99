"""Data shards over HTTP: what is leased is stored, whatever happens to the server, and judged job by job."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from diflow.kube.kinds import CONFIG_MAP, POD
from diflow.server.settings import ServerSettings
from diflow.shards import ledger as ledger_module
from diflow.shards.ledger import Ledger
from tests.kube.fakeapi import Answer, Request, status
from tests.server.place import Place, asynchronous, bearer, elastic, mixed, soon

PATH = "/v2alpha1/job/default.elastic/shards"
NAME = "diflow-shards-elastic"
BODY = {"dataset": "train", "size": 95, "shard": 10}


def token(place: Place, index: int = 0) -> str:
    return place.authority.pod_token(f"elastic-worker-1-{index}", job="elastic")


async def ask(client: httpx.AsyncClient, given: str, **over: Any) -> httpx.Response:
    return await client.post(PATH, headers=bearer(given), json={**BODY, **over})


async def units(client: httpx.AsyncClient, given: str, **over: Any) -> list[int]:
    answer = await ask(client, given, **over)
    assert answer.status_code == 200, answer.text
    return [shard["unit"] for shard in answer.json()["data"]["shards"]]


def stored(place: Place) -> dict[str, Any]:
    return place.api.objects[CONFIG_MAP.path("default")][NAME]


def ledger(place: Place) -> Ledger:
    return Ledger.read(json.loads(stored(place)["data"]["ledger"]))


@asynchronous
async def test_pods_lease_shards_and_report_them_done(place: Place) -> None:
    place.running(elastic(replicas=2))
    first, second = token(place, 0), token(place, 1)
    async with place.asked() as client:
        answer = await ask(client, first, want=2)
        assert answer.json()["data"] == {
            "shards": [
                {"unit": 0, "epoch": 0, "start": 0, "stop": 10},
                {"unit": 1, "epoch": 0, "start": 10, "stop": 20},
            ],
            "refused": [],
            "leaseSeconds": 300.0,
            "finished": False,
        }
        assert await units(client, second, want=8) == [2, 3, 4, 5, 6, 7, 8, 9][:8]
        assert await units(client, first, want=2, done=[0]) == await units(client, first, want=2, done=[0]) == [1]
        done = (await ask(client, second, want=0, done=[*range(2, 10)])).json()["data"]
        assert done["finished"] is False
        assert (await ask(client, first, want=2, done=[1])).json()["data"]["finished"] is True
    (owner,) = stored(place)["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("Workflow", "uid-wf-elastic")


@asynchronous
async def test_requests_that_arrive_together_share_writes(place: Place) -> None:
    place.running(elastic(replicas=8))
    tokens = [token(place, index) for index in range(8)]
    async with place.asked() as client:
        await ask(client, tokens[0])
        before = len(place.api.seen("PUT"))
        found = await asyncio.gather(*(units(client, each) for each in tokens[1:]))
    assert sorted(unit for each in found for unit in each) == list(range(1, 8))
    assert len(place.api.seen("PUT")) - before < 7


@asynchronous
async def test_the_shards_of_a_pod_that_is_gone_come_back_first(place: Place) -> None:
    place.running(elastic(replicas=2))
    first, second = token(place, 0), token(place, 1)
    async with place.asked() as client:
        assert await units(client, first, want=2) == [0, 1]
        assert await units(client, second) == [2]
        place.api.remove(POD, "elastic-worker-1-0")
        await soon(lambda: place.cache.pod("default", "elastic-worker-1-0") is None)
        place.time.move(10)
        place.api.bookmark()
        await soon(lambda: place.cache.pods.age_seconds < 1)
        assert await units(client, second, want=4) == [0, 1, 2, 3]
        assert (await ask(client, first)).status_code == 403


@asynchronous
async def test_while_the_pods_of_an_earlier_round_end_they_keep_their_shards_report_them_and_get_no_more(
    place: Place,
) -> None:
    place.running(elastic(replicas=2))
    first, second = token(place, 0), token(place, 1)
    async with place.asked() as client:
        assert await units(client, first, want=2) == [0, 1]
        assert await units(client, second) == [2]
        place.set("elastic", rounds=["1", "2"], current="2", granted={"1": {"worker": 2}, "2": {"worker": 1}})
        place.pod("elastic", "worker", 0, ip="10.0.2.1", round_="2")
        new = place.authority.pod_token("elastic-worker-2-0", job="elastic")
        await soon(lambda: place.cache.job("default", "elastic").addresses == ["10.0.2.1:22270"])  # type: ignore[union-attr]
        place.time.move(60)
        place.api.bookmark()
        await soon(lambda: place.cache.pods.age_seconds < 1)
        assert await units(client, second, want=8) == [2]
        answer = await ask(client, first, want=8, done=[0])
        assert [shard["unit"] for shard in answer.json()["data"]["shards"]] == [1]
        assert await units(client, new, want=2) == [3, 4], "those of the others may still be done"
        assert (await ask(client, new, want=2, done=[1])).json()["data"]["refused"] == [1]
        for index in range(2):
            place.api.remove(POD, f"elastic-worker-1-{index}")
        await soon(lambda: place.cache.pod("default", "elastic-worker-1-1") is None)
        place.time.move(10)
        place.api.bookmark()
        await soon(lambda: place.cache.pods.age_seconds < 1)
        data = (await ask(client, new, want=4, done=[1])).json()["data"]
        assert not data["refused"], "a checkpoint has it"
        assert [shard["unit"] for shard in data["shards"]] == [2, 3, 4, 5]


@asynchronous
async def test_without_the_right_to_keep_ledgers_the_answer_says_what_to_apply(place: Place) -> None:
    place.running(elastic(replicas=2))
    async with place.asked() as client:
        place.api.fail(status(403, "configmaps is forbidden", reason="Forbidden"), path="configmaps", times=1)
        answer = await ask(client, token(place))
        assert answer.status_code == 409
        assert "kubectl apply -n default -k manifests/shards" in answer.json()["message"]
        assert await units(client, token(place)) == [0]


@asynchronous
async def test_two_servers_share_the_ledger(place: Place) -> None:
    place.running(elastic(replicas=2))
    first, second = token(place, 0), token(place, 1)
    async with place.asked() as client:
        other = place.make_app()
        transport = httpx.ASGITransport(other, client=("10.9.9.9", 4711))
        async with (
            other.router.lifespan_context(other),
            httpx.AsyncClient(transport=transport, base_url="http://server") as beside,
        ):
            seen: list[int] = []
            for _ in range(2):
                mine = await units(client, first, want=2)
                theirs = await units(beside, second, want=2)
                assert not set(mine) & set(theirs)
                seen += [*mine, *theirs]
                await units(beside, first, want=0, done=mine)
                await units(client, second, want=0, done=theirs)
            assert sorted(seen) == list(range(8))


@pytest.mark.parametrize("at", range(6))
@pytest.mark.parametrize("is_stored", [True, False])
@asynchronous
async def test_a_server_that_is_killed_at_any_write_loses_and_repeats_nothing(
    place: Place, at: int, is_stored: bool
) -> None:
    place.running(elastic(replicas=2))
    given = token(place)
    writes = [0]

    def rule(request: Request) -> Answer | None:
        if request.method not in ("POST", "PUT") or "configmaps" not in request.path:
            return None
        writes[0] += 1
        if writes[0] - 1 != at:
            return None
        if is_stored:
            place.api.add(CONFIG_MAP, {**request.body, "metadata": {**request.body["metadata"], "name": NAME}})
        return Answer(cut=True)

    seen: list[int] = []
    async with place.asked() as client:
        place.api.rule(rule)
        done: list[int] = []
        for _ in range(12):
            answer = await ask(client, given, want=2, done=done)
            if answer.status_code == 503:  # another server is asked, which knows nothing but what is stored
                place.app.state.core.shards.batches.results.clear()
                continue
            data = answer.json()["data"]
            assert not data["refused"]
            done = [shard["unit"] for shard in data["shards"]]
            seen += done
            if data["finished"]:
                break
        assert data["finished"]
    assert seen == list(range(10))


@asynchronous
async def test_a_ledger_that_somebody_broke_is_said_of_this_job_alone(place: Place) -> None:
    place.running(elastic(replicas=2))
    place.running(mixed())
    given = token(place)
    other = place.authority.pod_token("mixed-learner-1-0", job="mixed")
    async with place.asked() as client:
        await ask(client, given)
        place.api.add(CONFIG_MAP, {**stored(place), "data": {"ledger": "[" * 100_000}})
        answer = await ask(client, given, want=3)
        assert answer.status_code == 409
        assert NAME in answer.json()["message"]
        path = PATH.replace("elastic", "mixed")
        assert (await client.post(path, headers=bearer(other), json=BODY)).status_code == 200


@asynchronous
async def test_of_a_ledger_that_cannot_be_written_the_answer_says_what_to_do(place: Place) -> None:
    place.running(elastic(replicas=2))
    async with place.asked() as client:
        refused = status(422, "data: Forbidden: field is immutable when `immutable` is set", reason="Invalid")
        place.api.fail(refused, path="configmaps", times=1)
        answer = await ask(client, token(place))
        assert answer.status_code == 409
        said = answer.json()["message"]
        assert said.startswith(f"ConfigMap {NAME} cannot be written (")
        assert "immutable" in said
        assert said.endswith("delete it to begin again with all shards")


@asynchronous
async def test_the_ledger_of_a_former_job_of_the_name_counts_for_nothing(place: Place) -> None:
    place.running(elastic(replicas=2))
    old = {"metadata": {"name": NAME, "ownerReferences": [{"uid": "uid-of-another"}]}, "data": {"ledger": "no ledger"}}
    place.api.add(CONFIG_MAP, old)
    async with place.asked() as client:
        assert await units(client, token(place)) == [0]


@asynchronous
async def test_what_is_refused(place: Place) -> None:
    place.running(elastic(replicas=2))
    first, second = token(place, 0), token(place, 1)
    person = place.authority.person("ada", ("patch", "default", "elastic"))
    async with place.asked() as client:
        await ask(client, first)
        assert (await ask(client, person)).status_code == 403
        answer = await ask(client, second, size=96)
        assert answer.status_code == 409
        assert "95 samples" in answer.json()["message"]
        assert (await ask(client, second, done=[0])).json()["data"]["refused"] == [0]
        assert (await ask(client, second, done=[9])).status_code == 422
        many = {"shard": 1, "size": 10**12, "epochs": 10**6}
        shape = ({"size": 10**12 + 1}, {"want": 65}, many, {"done": [0] * 257}, {"seed": -1})
        for wrong in (*shape, {"dataset": "a/b"}, {"worker": ""}, {"worker": "a/b"}):
            assert (await ask(client, second, **wrong)).status_code == 422, wrong
    assert 0 in ledger(place).tables["train"].held["uid-elastic-worker-1-0/0"].units


@asynchronous
async def test_without_the_api_server_nothing_is_leased(place: Place) -> None:
    place.running(elastic(replicas=2))
    async with place.asked() as client:
        place.api.fail(status(503, "away", reason="ServiceUnavailable"), path="configmaps", times=2)
        answer = await ask(client, token(place))
        assert answer.status_code == 503
        assert "Retry-After" in answer.headers


@asynchronous
async def test_only_the_pods_of_the_job_get_shards_of_it(place: Place) -> None:
    place.running(elastic(replicas=2))
    place.running(mixed())
    async with place.asked() as client:
        assert (await client.post(PATH, json=BODY)).status_code == 401
        assert (await ask(client, "made.up.token")).status_code == 401
        others = place.authority.pod_token("mixed-learner-1-0", job="mixed")
        assert (await ask(client, others)).status_code == 403, "a token for another job"
        foreign = place.authority.pod_token("mixed-learner-1-0", job="elastic")
        assert (await ask(client, foreign)).status_code == 403, "a pod of another job"
        gone = place.authority.pod_token("elastic-worker-1-7", job="elastic")
        assert (await ask(client, gone)).status_code in (401, 403), "a pod that is not there"
        former = place.authority.pod_token("elastic-worker-1-0", job="elastic", pod_uid="uid-of-a-former-pod")
        assert (await ask(client, former)).status_code in (401, 403), "a former pod of that name"
        assert NAME not in place.api.objects.get(CONFIG_MAP.path("default"), {}), "nothing was written"


@asynchronous
async def test_numbers_that_nobody_means_are_refused_and_change_nothing(place: Place) -> None:
    place.running(elastic(replicas=2))
    given = token(place)
    async with place.asked() as client:
        assert await units(client, given) == [0]
        before = stored(place)
        huge = ["1e308", "9" * 400, "-1", "true", '"10"', "null", "1.5", "[]", "NaN", "Infinity", "1e400"]
        for field in ("size", "shard", "epochs", "seed", "want", "leaseSeconds", "done"):
            for value in huge:
                if (field, value) in (("seed", "null"), ("done", "[]"), ("leaseSeconds", "1.5")):
                    continue
                text = json.dumps({**BODY, field: "@"}).replace('"@"', value)
                headers = {**bearer(given), "Content-Type": "application/json"}
                answer = await client.post(PATH, headers=headers, content=text)
                assert answer.status_code in (400, 422), (field, value, answer.text)
        for done in ([10**15], [2], [-1], [[0]], ["0"], [True]):
            assert (await ask(client, given, done=done)).status_code == 422, done
        assert stored(place) == before


@asynchronous
async def test_a_pod_that_invents_workers_and_data_sets_reaches_the_bounds_of_its_own_job(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_module, "MOST_BYTES", 4096)
    place.running(elastic(replicas=2))
    place.running(mixed())
    honest, hostile = token(place, 0), token(place, 1)
    other = place.authority.pod_token("mixed-learner-1-0", job="mixed")
    async with place.asked() as client:
        large = {"size": 10**12, "shard": 1, "seed": 7}
        assert await units(client, honest, want=2, **large) == [0, 1]
        codes = [
            (await ask(client, hostile, worker=f"invented-{number}", want=64, **large)).status_code
            for number in range(40)
        ]
        assert codes[0] == 200
        assert codes[-1] == 503, "its ledger is full"
        answers = [await ask(client, hostile, dataset=f"set-{number}", want=0, **large) for number in range(30)]
        assert [answer.status_code for answer in answers].count(200) == 15
        assert answers[-1].status_code == 409
        assert len(stored(place)["data"]["ledger"]) < 2 * 4096
        # The honest worker keeps its shards, and goes on with them; the other job does not notice.
        assert (await units(client, honest, want=2, done=[0], **large))[0] == 1
        path = PATH.replace("elastic", "mixed")
        assert (await client.post(path, headers=bearer(other), json=BODY)).status_code == 200


@asynchronous
async def test_a_fault_of_the_server_answers_all_that_wait(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.running(elastic(replicas=2))
    tokens = [token(place, index) for index in range(2)]
    async with place.asked() as client:
        line = place.app.state.core.shards
        monkeypatch.setattr(line, "_write", lambda *_: 1 / 0)
        answers = await asyncio.gather(*(ask(client, each) for each in tokens))
        assert [answer.status_code for answer in answers] == [503, 503]
        monkeypatch.undo()
        assert await units(client, tokens[0]) == [0]


@asynchronous
async def test_a_large_job_may_send_more_requests(place: Place) -> None:
    place.settings = ServerSettings(job_rate=1.0, job_burst=1)
    place.running(elastic(replicas=500, high=500))
    async with place.asked() as client:
        path = PATH.replace("shards", "replicas")
        codes = [(await client.get(path, headers=bearer(token(place, index)))).status_code for index in range(3)]
    assert codes == [200, 200, 429], "1 for each 250 replicas"
