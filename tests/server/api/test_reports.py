"""Profilings and AdaptDL's hints: what is accepted, what is refused, and what is written into the Workflow."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from diflow.allocator.watch import reports
from diflow.common import keys
from diflow.kube.kinds import WORKFLOW
from diflow.server.settings import ServerSettings
from tests.kube.fakeapi import Answer, Request, status
from tests.server.place import Place, asynchronous, bearer, elastic, mixed, soon

PATH = "/v2alpha1/job/default.elastic/profilings"
SHORT = "/v2alpha1/default.elastic/profilings"


def standing(place: Place, name: str = "elastic") -> dict[str, Any]:
    """The value of the parameter."""
    return dict(json.loads(place.parameter(name, keys.PARAM_PROFILINGS)))


def patches(place: Place) -> int:
    return len(place.api.seen("PATCH"))


def faults(answer: Any) -> dict[str, str]:
    """path → message of a 422."""
    assert answer.status_code == 422, answer.text
    body = answer.json()
    assert body["success"] is False
    assert not set("'\"") & set(body["message"])
    return {fault["path"]: fault["message"] for fault in body["data"]["errors"]}


@pytest.mark.parametrize("path", [PATH, SHORT])
@pytest.mark.parametrize("wrapped", [True, False])
@asynchronous
async def test_a_report_of_a_pod_is_what_the_allocator_reads(place: Place, path: str, wrapped: bool) -> None:
    place.running(elastic(replicas=2))
    token = place.authority.pod_token("elastic-worker-1-1", job="elastic")
    report = {"speed": 250.0, "batch": 32, "step": 7, "progress": 0.25, "gradParams": {"norm": 1.0, "var": 2.0}}
    async with place.asked() as client:
        answer = await client.post(path, headers=bearer(token), json={"data": report} if wrapped else report)
        assert answer.json() == {
            "success": True, "code": 0, "message": "successfully report profilings", "data": None,
        }  # fmt: skip
        await soon(lambda: patches(place))
    text = place.parameter("elastic", keys.PARAM_PROFILINGS)
    assert reports.complaint(text) == ""
    assert reports.speed(text) == pytest.approx(500.0)  # two replicas of the same speed
    profile = reports.profile(text)
    assert profile is not None
    assert profile.fraction_done == 0.25
    assert profile.grad_sqr == 1.0
    assert profile.observations[0, :3].tolist() == [1, 2, 32]
    assert standing(place)["ranks"] == {"1": {"task": "worker", "speed": 250, "step": 7, "batch": 32}}


@pytest.mark.parametrize(
    ("report", "path"),
    [
        (b'{"speed": NaN}', "speed"),
        (b'{"speed": Infinity}', "speed"),
        (b'{"speed": 1e999}', "speed"),
        (b'{"speed": 1e308}', "speed"),
        (b'{"speed": -1}', "speed"),
        (b'{"speed": 0}', "speed"),
        (b'{"speed": "fast"}', "speed"),
        (b'{"speed": true}', "speed"),
        (b'{"speed": [1]}', "speed"),
        (b'{"step": -1}', "step"),
        (b'{"step": 1.5}', "step"),
        (b'{"step": 1' + b"0" * 400 + b"}", "step"),
        (b'{"batch": 0}', "batch"),
        (b'{"progress": 1.01}', "progress"),
        (b'{"gradParams": {"norm": -1, "var": 1}}', "gradParams.norm"),
        (b'{"gradParams": {"norm": 1}}', "gradParams.var"),
        (b'{"gradParams": {"norm": 1, "var": NaN}}', "gradParams.var"),
        (b'{"gradParams": 3}', "gradParams"),
        (b'{"localBszBounds": [1]}', "localBszBounds"),
        (b'{"localBszBounds": [8, 4]}', "localBszBounds"),
        (b'{"localBszBounds": [8, "x"]}', "localBszBounds[1]"),
        (b'{"observed": [[1, 2, 3, 0.1]]}', "observed[0]"),
        (b'{"observed": [[1, 2, 32, 0.1, 0.1], [1, 2, 32, 0.1, -0.1]]}', "observed[1][4]"),
        (b'{"observed": [[3, 2, 32, 0.1, 0.1]]}', "observed[0]"),
        (b'{"observed": {"a": 1}}', "observed"),
        (b'{"unknown": {"deep": [1, NaN]}}', "unknown.deep[1]"),
        (b'{"it\'s \\ud800": NaN}', "it`s  "),
        (b'{"round": 2}', "round"),
        (b'{"data": [1]}', "data"),
        (b'{"data": {"speed": -1}}', "data.speed"),
        (b"[1]", ""),
        (b'"text"', ""),
        (b'{"stepSeconds": 1, "syncSeconds": 2}', "syncSeconds"),
        (b'{"replicas": 1, "nodes": 2}', "nodes"),
    ],
)
@asynchronous
async def test_garbage_is_refused_with_its_path_and_written_nowhere(place: Place, report: bytes, path: str) -> None:
    place.running(elastic())
    token = place.authority.pod_token("elastic-worker-1-0", job="elastic")
    headers = {**bearer(token), "Content-Type": "application/json"}
    async with place.asked() as client:
        answer = await client.post(PATH, headers=headers, content=report)
    assert path in faults(answer)
    assert not patches(place)


@pytest.mark.parametrize(
    ("report", "said"),
    [
        (b'{"speed": "fast"}', {"speed": "must be a number"}),
        (b'{"step": 1.5}', {"step": "must be a whole number"}),
        (b'{"step": -1}', {"step": "must be 0 or more"}),
        (b'{"speed": 0}', {"speed": "must be more than 0"}),
        (b'{"replicas": 2001}', {"replicas": "must be at most 2,000"}),
        (b'{"rank": 2001}', {"rank": "must be at most 2,000"}),
        (b'{"speed": 1e16}', {"speed": "must be at most 1e+15"}),
        (b'{"stepSeconds": 1e6}', {"stepSeconds": "must be less than 1,000,000"}),
        (b'{"gradientAccumulation": 1}', {"gradientAccumulation": "must be true or false"}),
        (b'{"gradParams": 3}', {"gradParams": "must be a JSON object"}),
        (b'{"gradParams": {"norm": 1}}', {"gradParams.var": "is missing"}),
        (b'{"localBszBounds": 7}', {"localBszBounds": "must be a list"}),
        (b'{"localBszBounds": [1]}', {"localBszBounds": "must have 2 items or more"}),
        (b'{"localBszBounds": [1, 2, 3]}', {"localBszBounds": "must have at most 2 items"}),
        (b'{"Speed": -1}', {"speed": "must be more than 0"}),
        (b'{"DATA": {"SPEED": -1}}', {"data.speed": "must be more than 0"}),
        (b'{"speed": 1, "Speed": 2}', {"speed": "is in the body twice: as speed and as Speed"}),
    ],
)
@asynchronous
async def test_what_is_wrong_with_a_report_is_said_in_plain_words(
    place: Place, report: bytes, said: dict[str, str]
) -> None:
    place.running(elastic())
    token = place.authority.pod_token("elastic-worker-1-0", job="elastic")
    async with place.asked() as client:
        answer = await client.post(PATH, headers={**bearer(token), "Content-Type": "application/json"}, content=report)
    assert faults(answer) == said


@asynchronous
async def test_the_keys_of_a_report_are_taken_in_any_case(place: Place) -> None:
    place.running(elastic())
    token = place.authority.pod_token("elastic-worker-1-0", job="elastic")
    report = {"Data": {"Speed": 25.0, "GRADPARAMS": {"Norm": 1, "VAR": 2}, "other": 1, "Other": 2}}
    async with place.asked() as client:
        assert (await client.post(PATH, headers=bearer(token), json=report)).status_code == 200
        await soon(lambda: patches(place))
    assert standing(place)["speed"] == 100
    assert standing(place)["gradParams"] == {"norm": 1, "var": 2}


@asynchronous
async def test_a_report_of_an_earlier_round_is_refused(place: Place) -> None:
    place.running(elastic(replicas=1, low=1))
    person = place.authority.person("ada", ("patch", "default", "elastic"))
    async with place.asked() as client:
        place.set("elastic", rounds=["1", "2"], current="2", granted={"1": {"worker": 1}, "2": {"worker": 3}})
        await soon(lambda: place.cache.job("default", "elastic").workflow.round == "2")  # type: ignore[union-attr]
        answer = await client.post(PATH, headers=bearer(person), json={"round": 1, "speed": 5})
        assert faults(answer) == {"round": "the current round is 2"}
        stale = await client.post("/v2alpha1/default.elastic.1/profilings", headers=bearer(person), json={"speed": 5})
        assert stale.status_code == 409
        fine = await client.post(PATH, headers=bearer(person), json={"round": 2, "speed": 5, "replicas": 3})
        assert fine.status_code == 200
        await soon(lambda: patches(place))
    assert reports.speed(place.parameter("elastic", keys.PARAM_PROFILINGS)) == 5.0


@asynchronous
async def test_many_reports_become_one_write_a_second_with_the_newest_of_each_rank(place: Place) -> None:
    place.running(elastic())
    tokens = [place.authority.pod_token(f"elastic-worker-1-{n}", job="elastic") for n in range(4)]
    waiting: list[float] = []
    go = asyncio.Event()

    async def pause(seconds: float) -> None:
        waiting.append(seconds)
        await go.wait()
        place.time.move(seconds)

    async with place.asked(pause=pause) as client:
        first = await client.post(PATH, headers=bearer(tokens[0]), json={"speed": 1, "step": 0})
        assert first.status_code == 200
        await soon(lambda: patches(place) == 1)  # the first one waits for nothing
        for step in range(1, 6):
            for token in tokens:
                answer = await client.post(PATH, headers=bearer(token), json={"speed": 100.0 + step, "step": step})
                assert answer.status_code == 200
        await soon(lambda: waiting)
        assert patches(place) == 1
        assert 0.9 <= waiting[0] <= 1.0
        go.set()
        await soon(lambda: patches(place) == 2)
    told = standing(place)
    assert {rank: item["step"] for rank, item in told["ranks"].items()} == {str(n): 5 for n in range(4)}
    assert told["speed"] == 420
    assert patches(place) == 2


@asynchronous
async def test_hints_and_reports_of_one_replica_do_not_take_each_others_place(place: Place) -> None:
    place.running(elastic())
    token = place.authority.pod_token("elastic-worker-1-0", job="elastic")
    person = place.authority.person("ada", ("patch", "default", "elastic"))
    go = asyncio.Event()

    async def pause(_: float) -> None:
        await go.wait()

    async with place.asked(pause=pause) as client:
        await client.post(PATH, headers=bearer(token), json={"step": 1})
        await soon(lambda: patches(place) == 1)
        await client.put("/hints/default/elastic", headers=bearer(token), json={"initBatchSize": 77})
        await client.post(PATH, headers=bearer(token), json={"step": 2})
        await client.post(PATH, headers=bearer(person), json={"speed": 90, "replicas": 4, "batch": 8})
        go.set()
        await soon(lambda: patches(place) == 2)
    told = standing(place)
    assert (told["initBatchSize"], told["ranks"]["0"]["step"], told["speed"]) == (77, 2, 90)


@asynchronous
async def test_a_replica_on_its_way_out_is_answered_and_counts_no_more(place: Place) -> None:
    place.running(mixed())
    place.set("mixed", released=["1/collector/1"])
    token = place.authority.pod_token("mixed-collector-1-1", job="mixed")
    path = "/v2alpha1/job/default.mixed/profilings"
    async with place.asked() as client:
        assert (await client.post(path, headers=bearer(token), json={"speed": 1})).status_code == 200
        assert not place.app.state.core.reporter.waiting
    assert not patches(place)


@asynchronous
async def test_a_person_speaks_for_a_replica_that_is_there(place: Place) -> None:
    place.running(mixed())
    person = place.authority.person("ada", ("patch", "default", "mixed"))
    path = "/v2alpha1/job/default.mixed/profilings"
    async with place.asked() as client:
        answer = await client.post(path, headers=bearer(person), json={"speed": 1, "rank": 3})
        assert faults(answer) == {"rank": "the job has 3 replicas"}
        assert (await client.post(path, headers=bearer(person), json={"speed": 5, "rank": 2})).status_code == 200
        await soon(lambda: patches(place))
    assert standing(place, "mixed")["ranks"] == {"2": {"task": "collector", "speed": 5}}


@asynchronous
async def test_two_jobs_do_not_wait_for_each_other(place: Place) -> None:
    place.running(elastic())
    place.running(elastic("second"))
    one = place.authority.pod_token("elastic-worker-1-0", job="elastic")
    two = place.authority.pod_token("second-worker-1-0", job="second")
    async with place.asked() as client:
        await client.post(PATH, headers=bearer(one), json={"speed": 1})
        await client.post("/v2alpha1/job/default.second/profilings", headers=bearer(two), json={"speed": 2})
        await soon(lambda: patches(place) == 2)
        assert not place.pauses


@asynchronous
async def test_a_write_changes_this_parameter_alone_whatever_argo_writes_meanwhile(place: Place) -> None:
    place.running(elastic())
    token = place.authority.pod_token("elastic-worker-1-0", job="elastic")
    left = [2]

    def disturb(request: Request) -> Answer | None:
        if request.method == "PATCH" and left[0]:
            left[0] -= 1
            changed = {**place.workflow("elastic"), "status": {"phase": "Running", "message": str(left[0])}}
            place.api.add(WORKFLOW, changed)
        return None

    place.api.rule(disturb)
    before = {p["name"]: p["value"] for p in place.workflow("elastic")["spec"]["arguments"]["parameters"]}
    async with place.asked() as client:
        await client.post(PATH, headers=bearer(token), json={"speed": 10})
        await soon(lambda: standing(place).get("speed"))
    after = {p["name"]: p["value"] for p in place.workflow("elastic")["spec"]["arguments"]["parameters"]}
    assert {**after, "profilings": ""} == {**before, "profilings": ""}
    assert place.workflow("elastic")["status"]["phase"] == "Running"
    assert patches(place) == 1  # the object's version does not matter
    assert place.api.seen("PATCH")[0].query["fieldManager"] == "diflow-server"


@asynchronous
async def test_what_another_server_has_written_meanwhile_is_kept(place: Place) -> None:
    place.running(elastic())
    token = place.authority.pod_token("elastic-worker-1-0", job="elastic")
    theirs = {"round": "1", "at": 0, "ranks": {"3": {"task": "worker", "speed": 300}}, "speed": 1, "observed": []}
    left = [1]

    def other(request: Request) -> Answer | None:
        if request.method == "PATCH" and left[0]:
            left[0] -= 1
            place.set("elastic", profilings=theirs)
        return None

    place.api.rule(other)
    async with place.asked() as client:
        await client.post(PATH, headers=bearer(token), json={"speed": 100})
        await soon(lambda: standing(place).get("ranks", {}).get("0"))
    told = standing(place)
    assert set(told["ranks"]) == {"0", "3"}
    assert told["speed"] == 800  # the mean of both, for four replicas


@asynchronous
async def test_another_servers_write_a_moment_ago_is_a_reason_to_wait(place: Place) -> None:
    place.running(elastic())
    token = place.authority.pod_token("elastic-worker-1-0", job="elastic")
    async with place.asked() as client:
        from tests.server.place import NOW

        place.set("elastic", profilings={"round": "1", "at": NOW + place.time.now() - 0.25, "ranks": {}})
        await soon(lambda: "at" in (place.cache.job("default", "elastic").workflow.texts.report or ""))  # type: ignore[union-attr]
        await client.post(PATH, headers=bearer(token), json={"speed": 100})
        await soon(lambda: patches(place))
    assert place.pauses == [pytest.approx(0.75, abs=0.01)]


@asynchronous
async def test_reports_wait_while_the_api_server_cannot_take_them(place: Place) -> None:
    place.running(elastic())
    token = place.authority.pod_token("elastic-worker-1-0", job="elastic")
    async with place.asked() as client:
        place.api.fail(status(503, "no leader"), method="PATCH", times=3)
        answer = await client.post(PATH, headers=bearer(token), json={"speed": 100})
        assert answer.status_code == 200
        await soon(lambda: standing(place).get("speed") == 400)
    assert patches(place) == 4
    assert place.pauses == [pytest.approx(1.0), pytest.approx(2.0), pytest.approx(4.0)]


@asynchronous
async def test_what_was_taken_is_written_before_the_server_ends(place: Place) -> None:
    place.running(elastic())
    token = place.authority.pod_token("elastic-worker-1-0", job="elastic")

    async def pause(_: float) -> None:
        await asyncio.Event().wait()

    async with place.asked(pause=pause) as client:
        await client.post(PATH, headers=bearer(token), json={"speed": 1})
        await soon(lambda: patches(place) == 1)
        await client.post(PATH, headers=bearer(token), json={"speed": 2})
        assert place.app.state.core.reporter.waiting == 1
    assert standing(place)["ranks"]["0"]["speed"] == 2


@asynchronous
async def test_reports_of_a_job_that_ended_or_went_on_are_dropped(place: Place) -> None:
    place.running(elastic())
    token = place.authority.pod_token("elastic-worker-1-0", job="elastic")
    go = asyncio.Event()

    async def pause(_: float) -> None:
        await go.wait()

    async with place.asked(pause=pause) as client:
        await client.post(PATH, headers=bearer(token), json={"speed": 1})
        await soon(lambda: patches(place) == 1)
        await client.post(PATH, headers=bearer(token), json={"speed": 2})
        place.api.add(WORKFLOW, {**place.workflow("elastic"), "status": {"phase": "Succeeded"}})
        await soon(lambda: place.cache.job("default", "elastic").workflow.has_ended)  # type: ignore[union-attr]
        go.set()
        await soon(lambda: not place.app.state.core.reporter.waiting)
    assert patches(place) == 1


@asynchronous
async def test_a_report_about_a_job_that_has_ended_is_refused_with_that_reason(place: Place) -> None:
    place.running(elastic())
    ended = {**place.workflow("elastic"), "status": {"phase": "Succeeded"}}
    place.api.add(WORKFLOW, ended)
    token = place.authority.pod_token("elastic-worker-1-0", job="elastic")
    person = place.authority.person("ada", ("patch", "default", "*"), ("get", "default", "*"))
    async with place.asked() as client:
        for who in (token, person):
            for answer in (
                await client.post(PATH, headers=bearer(who), json={"speed": 1}),
                await client.put("/hints/default/elastic", headers=bearer(who), json={"initBatchSize": 1}),
                await client.get("/v2alpha1/job/default.elastic/replicas", headers=bearer(who)),
                await client.get("/discover/default/elastic/0?timeout=60", headers=bearer(who)),
            ):
                assert answer.status_code == 410, answer.text
                assert answer.json()["message"] == "job default.elastic has ended"
        assert not place.app.state.core.reporter.waiting
    assert not patches(place)


@asynchronous
async def test_a_workflow_that_has_ended_is_not_the_end_of_a_job_that_goes_on_in_another(place: Place) -> None:
    first = place.submit(elastic(replicas=1, low=1))
    first["metadata"]["annotations"][keys.CONTINUED_IN] = "elastic-s2"  # which is not seen yet
    place.api.add(WORKFLOW, {**first, "status": {"phase": "Succeeded"}})
    person = place.authority.person("ada", ("get", "default", "*"), ("patch", "default", "*"))
    async with place.asked() as client:
        answer = await client.get("/discover/default/elastic/1?timeout=0", headers=bearer(person))
        assert answer.status_code == 408
        assert (await client.post(PATH, headers=bearer(person), json={"speed": 1})).status_code == 200
        answer = await client.get("/v2alpha1/job/default.elastic/replicas", headers=bearer(person))
        assert answer.status_code == 200


@asynchronous
async def test_a_parameter_that_somebody_made_unreadable_or_removed_is_written_again(place: Place) -> None:
    for number, broken in enumerate(("[[[", "x" * 100_000, None, '{"é": "<&>"}')):
        name = f"job-{number}"
        place.running(elastic(name))
        found = place.workflow(name)
        given = found["spec"]["arguments"]["parameters"]
        if broken is None:
            given[:] = [p for p in given if p["name"] != keys.PARAM_PROFILINGS]
        else:
            next(p for p in given if p["name"] == keys.PARAM_PROFILINGS)["value"] = broken
        place.api.add(WORKFLOW, found)
    person = place.authority.person("ada", ("patch", "default", "*"))
    async with place.asked() as client:
        for number in range(4):
            path = f"/v2alpha1/job/default.job-{number}/profilings"
            assert (await client.post(path, headers=bearer(person), json={"speed": 5})).status_code == 200
        await soon(lambda: patches(place) == 4)
    for number in range(4):
        assert reports.speed(place.parameter(f"job-{number}", keys.PARAM_PROFILINGS)) == 20


@asynchronous
async def test_all_jobs_share_a_rate_of_writes(place: Place) -> None:
    """However many report, Argo and the API server have time for other jobs."""
    place.settings = ServerSettings(job_rate=1e6, job_burst=1e6, report_rate=4)
    person = place.authority.person("ada", ("patch", "default", "*"))
    for number in range(20):
        place.running(elastic(f"job-{number}"))
    go = asyncio.Event()

    async def pause(seconds: float) -> None:
        await go.wait()
        place.time.move(seconds)

    async with place.asked(pause=pause) as client:
        for step in range(3):
            for number in range(20):
                path = f"/v2alpha1/job/default.job-{number}/profilings"
                answer = await client.post(path, headers=bearer(person), json={"speed": 5, "step": step})
                assert answer.status_code == 200
            await soon(lambda: patches(place) == 8, "two seconds' writes are made at once")
        began = place.time.now()
        go.set()
        await soon(lambda: not place.app.state.core.reporter.waiting)
    assert patches(place) == 28, "those that had waited were written once, and the first ones once more"
    assert place.time.now() - began >= 20 / 4 - 0.01


@asynchronous
async def test_of_jobs_that_are_gone_nothing_is_kept(place: Place) -> None:
    person = place.authority.person("ada", ("patch", "default", "*"))
    async with place.asked() as client:
        reporter = place.app.state.core.reporter
        for number in range(30):
            name = f"job-{number}"
            place.running(elastic(name))
            await soon(lambda name=name: place.cache.job("default", name) is not None)  # type: ignore[misc]
            path = f"/v2alpha1/job/default.{name}/profilings"
            assert (await client.post(path, headers=bearer(person), json={"speed": 5})).status_code == 200
            await soon(lambda number=number: patches(place) == number + 1)  # type: ignore[misc]
            await soon(lambda: not reporter.waiting)
            place.api.remove(WORKFLOW, name)
            await soon(lambda name=name: place.cache.job("default", name) is None)  # type: ignore[misc]
            reporter.beat()
            assert not reporter.jobs


# --- AdaptDL ----------------------------------------------------------------------------------------------------------

HINTS = {
    "initBatchSize": 128,
    "localBszBounds": [32, 256],
    "globalBatchSize": None,
    "maxBatchSize": 1024,
    "maxProfiledReplicas": 2,
    "gradientAccumulation": True,
    "gradParams": {"norm": 0.5, "var": 1.5},
    "perfParams": dict.fromkeys(("alpha_c", "beta_c", "alpha_n", "beta_n", "alpha_r", "beta_r"), 0.1) | {"gamma": 1.2},
}


@asynchronous
async def test_hints_are_answered_with_an_empty_200_and_reach_the_allocator(place: Place) -> None:
    place.running(elastic(replicas=2))
    token = place.authority.pod_token("elastic-worker-1-0", job="elastic")
    async with place.asked() as client:
        answer = await client.put("/hints/default/elastic", headers=bearer(token), json={**HINTS, "other": 1})
        assert (answer.status_code, answer.content) == (200, b"")
        await soon(lambda: patches(place))
    text = place.parameter("elastic", keys.PARAM_PROFILINGS)
    assert "other" not in standing(place)
    profile = reports.profile(text)
    assert profile is not None
    assert (profile.initial_batch, profile.max_batch) == (128, 1024)
    assert (profile.min_local_batch, profile.max_local_batch) == (32, 256)
    assert (profile.grad_sqr, profile.grad_var, profile.accumulation) == (0.5, 1.5, True)
    assert standing(place)["perfParams"]["gamma"] == 1.2


@pytest.mark.parametrize(
    ("bounds", "read"),
    [([None, 256], (1, 256)), ([32, None], (32, 1024)), ([None, None], (1, 1024)), (None, (1, 128))],
)
@asynchronous
async def test_a_half_open_bound_of_a_replicas_batch_is_no_bound_on_that_side(
    place: Place, bounds: Any, read: tuple[int, int]
) -> None:
    place.running(elastic(replicas=2))
    token = place.authority.pod_token("elastic-worker-1-0", job="elastic")
    async with place.asked() as client:
        answer = await client.put(
            "/hints/default/elastic", headers=bearer(token), json={**HINTS, "localBszBounds": bounds}
        )
        assert answer.status_code == 200, answer.text
        await soon(lambda: patches(place))
    profile = reports.profile(place.parameter("elastic", keys.PARAM_PROFILINGS))
    assert profile is not None
    assert (profile.min_local_batch, profile.max_local_batch) == read


@pytest.mark.parametrize(
    ("hints", "path"),
    [
        ({"initBatchSize": -1}, "initBatchSize"),
        ({"localBszBounds": [2, 1]}, "localBszBounds"),
        ({"localBszBounds": [None, 0]}, "localBszBounds[1]"),
        ({"localBszBounds": [None]}, "localBszBounds"),
        ({"perfParams": {"alpha_c": 1}}, "perfParams.beta_c"),
        ({"gradParams": {"norm": 1e308, "var": 1}}, "gradParams.norm"),
        ([], ""),
    ],
)
@asynchronous
async def test_hints_that_cannot_be_are_refused(place: Place, hints: Any, path: str) -> None:
    place.running(elastic())
    token = place.authority.pod_token("elastic-worker-1-0", job="elastic")
    async with place.asked() as client:
        answer = await client.put("/hints/default/elastic", headers=bearer(token), json=hints)
    assert path in faults(answer)


@asynchronous
async def test_discover_gives_the_addresses_once_all_are_known(place: Place) -> None:
    place.submit(elastic(replicas=2))
    place.pod("elastic", "worker", 0, ip="10.0.0.1")
    token = place.authority.pod_token("elastic-worker-1-0", job="elastic")
    async with place.asked() as client:
        waiting = asyncio.ensure_future(client.get("/discover/default/elastic/0?timeout=60", headers=bearer(token)))
        await soon(lambda: place.app.state.core.discovery.waiting)
        before = len(place.api.requests)
        place.pod("elastic", "worker", 1, ip="10.0.0.2")
        answer = await waiting
        assert (answer.status_code, answer.json()) == (200, ["10.0.0.1", "10.0.0.2"])
        assert len(place.api.requests) == before  # without a request to the API server
        assert not place.app.state.core.discovery.waiting


@pytest.mark.parametrize(
    ("group", "timeout", "code"),
    [
        ("0", "0", 408),
        ("1", "0", 408),
        ("x", "0", 400),
        ("0", "x", 400),
        ("%C2%B2", "0", 400),
        ("%D9%A3", "0", 400),
        ("9" * 5000, "0", 400),
        ("0", "%C2%B2", 400),
        ("0", "9" * 5000, 400),
    ],
)
@asynchronous
async def test_discover_of_what_is_not_known_is_408(place: Place, group: str, timeout: str, code: int) -> None:
    place.submit(elastic(replicas=2))
    place.pod("elastic", "worker", 0, ip="10.0.0.1")
    token = place.authority.pod_token("elastic-worker-1-0", job="elastic")
    async with place.asked() as client:
        answer = await client.get(f"/discover/default/elastic/{group}?timeout={timeout}", headers=bearer(token))
    assert answer.status_code == code


@asynchronous
async def test_a_long_poll_ends_when_the_job_ends_or_its_group_is_over(place: Place) -> None:
    place.submit(elastic(replicas=2))
    place.submit(elastic("other", replicas=2))
    person = place.authority.person("ada", ("get", "default", "*"))
    async with place.asked() as client:
        waiting = [
            asyncio.ensure_future(client.get(f"/discover/default/{name}/0?timeout=60", headers=bearer(person)))
            for name in ("elastic", "other")
        ]
        await soon(lambda: place.app.state.core.discovery.waiting == 2)
        place.api.add(WORKFLOW, {**place.workflow("elastic"), "status": {"phase": "Failed"}})
        place.set("other", rounds=["1", "2"], current="2", granted={"1": {"worker": 2}, "2": {"worker": 2}})
        answers = [await one for one in waiting]
    assert [answer.status_code for answer in answers] == [410, 410]
    assert "has ended" in answers[0].json()["message"]
    assert "group 0 is over" in answers[1].json()["message"]


@asynchronous
async def test_discover_waits_for_a_bounded_number_of_callers(place: Place) -> None:
    place.submit(elastic(replicas=2))
    place.pod("elastic", "worker", 0, ip="10.0.0.1")
    token = place.authority.pod_token("elastic-worker-1-0", job="elastic")
    async with place.asked(waiters=2) as client:
        path = "/discover/default/elastic/0?timeout=60"
        waiting = [asyncio.ensure_future(client.get(path, headers=bearer(token))) for _ in range(2)]
        await soon(lambda: place.app.state.core.discovery.waiting == 2)
        third = await client.get(path, headers=bearer(token))
        assert third.status_code == 503
        assert third.headers["retry-after"]
        waiting[0].cancel()
        await soon(lambda: place.app.state.core.discovery.waiting == 1)
        place.pod("elastic", "worker", 1, ip="10.0.0.2")
        assert (await waiting[1]).status_code == 200


@asynchronous
async def test_nobody_waits_for_a_caller_who_has_hung_up(place: Place) -> None:
    place.submit(elastic(replicas=2))
    place.pod("elastic", "worker", 0, ip="10.0.0.1")
    token = place.authority.pod_token("elastic-worker-1-0", job="elastic")
    hang_up = asyncio.Event()
    messages: list[Any] = [{"type": "http.request", "body": b"", "more_body": False}]
    sent: list[Any] = []

    async def receive() -> Any:
        if messages:
            return messages.pop()
        await hang_up.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    async with place.asked():
        scope = {
            "type": "http", "method": "GET", "path": "/discover/default/elastic/0", "query_string": b"timeout=60",
            "client": ("10.9.9.9", 1), "headers": [(b"authorization", f"Bearer {token}".encode())],
        }  # fmt: skip
        asking = asyncio.ensure_future(place.app(scope, receive, send))
        discovery = place.app.state.core.discovery
        await soon(lambda: discovery.waiting)
        hang_up.set()
        await asking
        await soon(lambda: not discovery.waiting)
    assert not sent


@asynchronous
async def test_discover_is_for_those_who_may_see_the_job(place: Place) -> None:
    place.running(elastic())
    place.running(mixed())
    token = place.authority.pod_token("mixed-learner-1-0", job="mixed")
    async with place.asked() as client:
        assert (await client.get("/discover/default/elastic/0", headers=bearer(token))).status_code == 403
        assert (await client.get("/discover/default/elastic/0")).status_code == 401
        assert (await client.put("/hints/default/elastic", headers=bearer(token), json={})).status_code == 403


@asynchronous
async def test_the_old_text_is_tested_for_only_where_it_can_be_encoded_in_one_way(place: Place) -> None:
    place.running(elastic())
    place.running(elastic("odd"))
    place.set("odd", profilings='{"é": "<&>"}')
    person = place.authority.person("ada", ("patch", "default", "*"))
    async with place.asked() as client:
        for name in ("elastic", "odd"):
            path = f"/v2alpha1/job/default.{name}/profilings"
            assert (await client.post(path, headers=bearer(person), json={"speed": 5})).status_code == 200
            await soon(lambda name=name: "speed" in standing(place, name))  # type: ignore[misc]
    for name, tested in (("elastic", True), ("odd", False)):
        [request] = place.api.seen("PATCH", f"/workflows/{name}")
        values = [part["value"] for part in request.body if part["op"] == "test" and part["path"].endswith("/value")]
        assert bool(values) is tested
