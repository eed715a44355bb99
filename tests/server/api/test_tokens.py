"""Authentication and authorisation: tokens of pods and users, valid and not, and how reviews are cached."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from diflow.common import keys
from diflow.kube.kinds import POD
from diflow.server.api.identity import claims
from diflow.server.settings import ServerSettings
from tests.kube.fakeapi import Answer, Request, serving, status
from tests.server.place import NOW, Place, asynchronous, bearer, elastic, mixed, part_of, soon

PATH = "/v2alpha1/job/default.mixed/replicas"
POD_NAME = "mixed-learner-1-0"


def message(answer: Any, code: int) -> str:
    assert answer.status_code == code, answer.text
    return str(answer.json()["message"])


@asynchronous
async def test_a_pod_of_the_job_is_let_in_and_its_token_is_reviewed_once(place: Place) -> None:
    place.running(mixed())
    token = place.authority.pod_token(POD_NAME, job="mixed")
    async with place.asked() as client:
        await soon(lambda: place.app.state.core.readiness()[0])
        before = place.authority.reviews
        answers = await asyncio.gather(*(client.get(PATH, headers=bearer(token)) for _ in range(20)))
        assert {answer.status_code for answer in answers} == {200}
        assert place.authority.reviews == before + 1
        assert not place.authority.access_reviews


@asynchronous
async def test_the_answer_of_a_review_holds_no_longer_than_it_may(place: Place) -> None:
    place.running(mixed())
    token = place.authority.pod_token(POD_NAME, job="mixed")
    async with place.asked() as client:
        assert (await client.get(PATH, headers=bearer(token))).status_code == 200
        place.authority.tokens.clear()  # it was revoked
        place.time.move(59)
        assert (await client.get(PATH, headers=bearer(token))).status_code == 200
        place.time.move(2)
        message(await client.get(PATH, headers=bearer(token)), 401)


@asynchronous
async def test_a_token_works_never_past_its_end(place: Place) -> None:
    place.running(mixed())
    start = NOW + place.time.now()
    token = place.authority.pod_token(POD_NAME, job="mixed", expires=start + 30)
    async with place.asked() as client:
        assert (await client.get(PATH, headers=bearer(token))).status_code == 200
        place.time.move(29)
        assert (await client.get(PATH, headers=bearer(token))).status_code == 200
        place.time.move(1)
        assert "expired" in message(await client.get(PATH, headers=bearer(token)), 401)


@asynchronous
async def test_an_expired_token_costs_no_review(place: Place) -> None:
    place.running(mixed())
    token = place.authority.pod_token(POD_NAME, job="mixed", expires=NOW)
    async with place.asked() as client:
        await soon(lambda: place.app.state.core.readiness()[0])
        before = place.authority.reviews
        answer = await client.get(PATH, headers=bearer(token))
        message(answer, 401)
        assert answer.headers["www-authenticate"].startswith("Bearer")
        assert place.authority.reviews == before


@asynchronous
async def test_a_token_that_nobody_gave_is_401_and_is_not_asked_about_again(place: Place) -> None:
    place.running(mixed())
    forged = place.authority.pod_token(POD_NAME, job="mixed")
    place.authority.tokens.clear()
    async with place.asked() as client:
        await soon(lambda: place.app.state.core.readiness()[0])
        before = place.authority.reviews
        for _ in range(5):
            message(await client.get(PATH, headers=bearer(forged)), 401)
        assert place.authority.reviews == before + 1
        place.time.move(11)
        message(await client.get(PATH, headers=bearer(forged)), 401)
        assert place.authority.reviews == before + 2


@pytest.mark.parametrize(
    ("header", "code"),
    [
        (None, 401),
        ("", 401),
        ("Basic YTpi", 401),
        ("Bearer ", 401),
        ("Bearer " + "x" * 9000, 401),
        ("Bearer ü", 401),
        ("Bearer a.b.c", 401),
        ("Bearer a.e30.c", 401),
    ],
)
@asynchronous
async def test_no_token_and_nonsense_are_401(place: Place, header: str | None, code: int) -> None:
    place.running(mixed())
    async with place.asked() as client:
        given = {} if header is None else {"Authorization": header.encode()}
        answer = await client.get(PATH, headers=given)  # type: ignore[arg-type]
    message(answer, code)
    assert answer.headers["www-authenticate"]


@asynchronous
async def test_the_token_of_another_job_is_403_whether_this_job_is_there_or_not(place: Place) -> None:
    place.running(mixed())
    place.running(elastic())
    token = place.authority.pod_token("elastic-worker-1-0", job="elastic")
    async with place.asked() as client:
        there = await client.get(PATH, headers=bearer(token))
        absent = await client.get("/v2alpha1/job/default.nobody/replicas", headers=bearer(token))
        elsewhere = await client.get("/v2alpha1/job/other.mixed/replicas", headers=bearer(token))
    assert message(there, 403) == message(absent, 403) == message(elsewhere, 403)
    assert there.json() == absent.json()


@asynchronous
async def test_a_token_that_lies_about_its_audience_gets_nowhere(place: Place) -> None:
    """What it says of itself only shows the way; the API server is asked about this audience."""
    place.running(mixed())
    token = place.authority.pod_token(POD_NAME, job="mixed")
    place.authority.tokens[token]["audiences"] = ["https://kubernetes"]
    async with place.asked() as client:
        message(await client.get(PATH, headers=bearer(token)), 401)


@asynchronous
async def test_an_api_server_that_knows_nothing_of_audiences_lets_nobody_in(place: Place) -> None:
    place.running(mixed())
    place.authority.knows_audiences = False
    token = place.authority.pod_token(POD_NAME, job="mixed")
    async with place.asked() as client:
        message(await client.get(PATH, headers=bearer(token)), 401)


@asynchronous
async def test_a_pod_that_is_gone_may_nothing_more_though_its_token_is_still_good(place: Place) -> None:
    place.running(mixed())
    token = place.authority.pod_token(POD_NAME, job="mixed")
    async with place.asked() as client:
        assert (await client.get(PATH, headers=bearer(token))).status_code == 200
        place.api.remove(POD, POD_NAME)
        await soon(lambda: place.cache.pod("default", POD_NAME) is None)
        message(await client.get(PATH, headers=bearer(token)), 403)
        # A new pod with the same name is another pod.
        place.pod("mixed", "learner", 0, metadata={"uid": "uid-of-another"})
        await soon(lambda: place.cache.pod("default", POD_NAME) is not None)
        message(await client.get(PATH, headers=bearer(token)), 403)


@asynchronous
async def test_pods_of_an_earlier_round_are_told_so(place: Place) -> None:
    place.running(elastic(replicas=2))
    old = place.authority.pod_token("elastic-worker-1-0", job="elastic")
    new = place.authority.pod_token("elastic-worker-2-0", job="elastic")
    path = "/v2alpha1/job/default.elastic/replicas"
    async with place.asked() as client:
        assert (await client.get(path, headers=bearer(old))).status_code == 200
        place.set("elastic", rounds=["1", "2"], current="2", granted={"1": {"worker": 2}, "2": {"worker": 1}})
        place.pod("elastic", "worker", 0, ip="10.0.2.1", round_="2")
        await soon(lambda: place.cache.job("default", "elastic").addresses == ["10.0.2.1:22270"])  # type: ignore[union-attr]
        assert "earlier round: the job is in round 2" in message(await client.get(path, headers=bearer(old)), 410)
        report = "/v2alpha1/job/default.elastic/profilings"
        for answer in (
            await client.post(report, headers=bearer(old), json={"speed": 1}),
            await client.post(path, headers=bearer(old), json={"replicas": 1}),
            await client.put("/hints/default/elastic", headers=bearer(old), json={}),
            await client.get("/discover/default/elastic/0", headers=bearer(old)),
        ):
            message(answer, 410)
        assert not place.app.state.core.reporter.waiting
        assert (await client.get(path, headers=bearer(new))).json()["data"] == ["10.0.2.1:22270"]
    assert not place.api.seen("PATCH")


@asynchronous
async def test_pods_of_the_workflow_before_are_told_so_too(place: Place) -> None:
    first = place.submit(elastic(replicas=1, low=1))
    place.pod("elastic", "worker", 0, ip="10.0.0.1")
    part_of(place, first, "elastic-s2", rounds=["2"], current=2, granted={"2": {"worker": 1}})
    place.pod("elastic", "worker", 0, ip="10.0.1.0", round_="2", workflow="elastic-s2")
    token = place.authority.pod_token("elastic-worker-1-0", job="elastic")
    async with place.asked() as client:
        answer = await client.post("/v2alpha1/job/default.elastic/profilings", headers=bearer(token), json={})
    assert "earlier round: the job is in round 2" in message(answer, 410)


@asynchronous
async def test_a_pod_of_a_round_that_is_not_known_yet_is_asked_to_come_again(place: Place) -> None:
    """The watch of Workflows may be behind that of pods."""
    place.running(elastic(replicas=2))
    place.pod("elastic", "worker", 0, ip="10.0.2.1", round_="2")
    token = place.authority.pod_token("elastic-worker-2-0", job="elastic")
    path, report = (f"/v2alpha1/job/default.elastic/{what}" for what in ("replicas", "profilings"))
    async with place.asked() as client:
        for answer in (
            await client.get(path, headers=bearer(token)),
            await client.post(report, headers=bearer(token), json={"speed": 1}),
        ):
            assert "round 2 of the job is not known here yet" in message(answer, 503)
            assert answer.headers["Retry-After"] == "1"
        place.set("elastic", rounds=["1", "2"], current="2", granted={"1": {"worker": 2}, "2": {"worker": 1}})
        await soon(lambda: place.cache.job("default", "elastic").addresses == ["10.0.2.1:22270"])  # type: ignore[union-attr]
        assert (await client.post(report, headers=bearer(token), json={"speed": 1})).status_code == 200


@asynchronous
async def test_a_pod_of_the_next_workflow_is_asked_to_come_again_until_that_is_known(place: Place) -> None:
    place.submit(elastic(replicas=1, low=1))
    place.pod("elastic", "worker", 0, name="next", round_="2", workflow="elastic-s2", owner="uid-of-the-next")
    token = place.authority.pod_token("next", job="elastic")
    async with place.asked() as client:
        answer = await client.get("/v2alpha1/job/default.elastic/replicas", headers=bearer(token))
    message(answer, 503)


@pytest.mark.parametrize("round_", ["1000000000000000000000", "", "²", "x", "01"])
@asynchronous
async def test_a_pod_of_a_round_that_can_never_be_is_refused(place: Place, round_: str) -> None:
    place.running(elastic(replicas=2))
    place.set("elastic", rounds=["1", "2"], current="2", granted={"2": {"worker": 2}})
    place.pod("elastic", "worker", 0, name="odd", round_=round_)
    token = place.authority.pod_token("odd", job="elastic")
    async with place.asked() as client:
        answer = await client.get("/v2alpha1/job/default.elastic/replicas", headers=bearer(token))
    message(answer, 403)


@pytest.mark.parametrize(
    "change",
    [
        {"user": {"username": "system:serviceaccount:other:diflow-worker"}},
        {"user": {"username": "system:serviceaccount:default:diflow-worker", "extra": {}}},
        {"user": {"username": "mallory"}},
    ],
)
@asynchronous
async def test_a_token_that_is_bound_to_no_pod_of_the_namespace_is_refused(
    place: Place, change: dict[str, Any]
) -> None:
    place.running(mixed())
    token = place.authority.pod_token(POD_NAME, job="mixed")
    known = place.authority.tokens[token]
    known["user"] = {**known["user"], **change["user"]}
    async with place.asked() as client:
        answer = await client.get(PATH, headers=bearer(token))
    assert answer.status_code == 403


@asynchronous
async def test_a_pod_of_another_workflow_of_that_name_is_refused(place: Place) -> None:
    place.submit(mixed())
    place.pod("mixed", "learner", 0, owner="uid-of-an-earlier-workflow")
    token = place.authority.pod_token(POD_NAME, job="mixed")
    async with place.asked() as client:
        assert (await client.get(PATH, headers=bearer(token))).status_code == 403


# --- people -----------------------------------------------------------------------------------------------------------


@asynchronous
async def test_people_may_what_the_cluster_lets_them_do_with_the_workflow(place: Place) -> None:
    place.running(mixed())
    reader = place.authority.person("ada", ("get", "default", "mixed"))
    writer = place.authority.person("bob", ("patch", "default", "mixed"))
    async with place.asked() as client:
        assert (await client.get(PATH, headers=bearer(reader))).status_code == 200
        message(await client.post(PATH, headers=bearer(reader), json={"replicas": 1}), 403)
        message(await client.post("/v2alpha1/job/default.mixed/profilings", headers=bearer(reader), json={}), 403)
        message(await client.get(PATH, headers=bearer(writer)), 403)
        assert (await client.post(PATH, headers=bearer(writer), json={"replicas": 1})).status_code == 200


@asynchronous
async def test_people_are_told_of_a_missing_job_only_if_they_may_see_it(place: Place) -> None:
    place.running(mixed())
    ada = place.authority.person("ada", ("get", "default", "*"))
    eve = place.authority.person("eve")
    absent = "/v2alpha1/job/default.nobody/replicas"
    async with place.asked() as client:
        message(await client.get(absent, headers=bearer(ada)), 404)
        one, other = await client.get(absent, headers=bearer(eve)), await client.get(PATH, headers=bearer(eve))
    assert message(one, 403) == message(other, 403)


@asynchronous
async def test_rights_are_reviewed_once_and_taken_back_within_their_time(place: Place) -> None:
    place.running(mixed())
    ada = place.authority.person("ada", ("get", "default", "mixed"))
    async with place.asked() as client:
        for _ in range(5):
            assert (await client.get(PATH, headers=bearer(ada))).status_code == 200
        assert place.authority.access_reviews == 2, "of all jobs of the namespace, and of this one"
        place.authority.rights.clear()
        place.time.move(61)
        message(await client.get(PATH, headers=bearer(ada)), 403)
        message(await client.get(PATH, headers=bearer(ada)), 403)
        assert place.authority.access_reviews == 4


@asynchronous
@pytest.mark.parametrize("by_name", [False, True])
async def test_a_user_who_may_read_many_jobs_is_not_slowed_down(place: Place, *, by_name: bool) -> None:
    """As a monitor that reads each job of a namespace: reviews that succeed do not count against its address."""
    jobs = [f"job-{number}" for number in range(150)]
    for name in jobs:
        place.running(elastic(name))
    rights = [("get", "default", name) for name in jobs] if by_name else [("get", "default", "*")]
    ada = place.authority.person("ada", *rights)
    async with place.asked() as client:
        for name in jobs:
            answer = await client.get(f"/v2alpha1/job/default.{name}/replicas", headers=bearer(ada))
            assert answer.status_code == 200
    assert place.authority.access_reviews == (1 + len(jobs) if by_name else 1)


@asynchronous
async def test_the_own_account_of_a_pod_opens_nothing(place: Place) -> None:
    """The token that Kubernetes mounts into every pod: the cluster lets that account see no Workflow."""
    place.running(mixed())
    token = place.authority.pod_token(POD_NAME, job="mixed", audience="https://kubernetes")
    async with place.asked() as client:
        message(await client.get(PATH, headers=bearer(token)), 403)
    assert place.authority.access_reviews == 2, "of all jobs of the namespace, and of this one"


# --- the API server is away, or slow, or flooded ----------------------------------------------------------------------


@asynchronous
async def test_a_review_that_cannot_be_made_is_503_and_is_not_remembered(place: Place) -> None:
    place.running(mixed())
    token = place.authority.pod_token(POD_NAME, job="mixed")
    async with place.asked() as client:
        await soon(lambda: place.app.state.core.readiness()[0])
        place.api.fail(status(500, "etcd is away"), path="tokenreviews")
        answer = await client.get(PATH, headers=bearer(token))
        assert "etcd" not in message(answer, 503)
        assert answer.headers["retry-after"]
        assert (await client.get(PATH, headers=bearer(token))).status_code == 200


@contextmanager
def slow_review(place: Place, token: str) -> Iterator[tuple[threading.Event, threading.Event]]:
    """(asked, go): `asked` is set when the token's review begins, which then waits for `go`."""
    asked, go = threading.Event(), threading.Event()

    def rule(request: Request) -> Answer | None:
        if request.path.endswith("tokenreviews") and request.body["spec"]["token"] == token:
            asked.set()
            assert go.wait(60)
        return None

    place.api.rule(rule)
    try:
        yield asked, go
    finally:
        go.set()


@asynchronous
async def test_slow_reviews_hold_up_nobody_whose_token_is_known(place: Place) -> None:
    place.running(mixed())
    known = place.authority.pod_token(POD_NAME, job="mixed")
    late = place.authority.pod_token("mixed-collector-1-0", job="mixed")
    with slow_review(place, late) as (asked, go):
        async with place.asked() as client:
            assert (await client.get(PATH, headers=bearer(known))).status_code == 200
            waiting = asyncio.ensure_future(client.get(PATH, headers=bearer(late)))
            await soon(asked.is_set)
            assert (await client.get(PATH, headers=bearer(known))).status_code == 200
            assert not waiting.done()
            go.set()
            assert (await waiting).status_code == 200


@asynchronous
async def test_one_who_hangs_up_does_not_end_the_review_that_others_wait_for(place: Place) -> None:
    place.running(mixed())
    token = place.authority.pod_token(POD_NAME, job="mixed")
    with slow_review(place, token) as (_, go):
        async with place.asked() as client:
            core = place.app.state.core
            first = asyncio.ensure_future(client.get(PATH, headers=bearer(token)))
            await soon(lambda: core.identity._reviews._running)
            second = asyncio.ensure_future(client.get(PATH, headers=bearer(token)))
            await asyncio.sleep(0)
            first.cancel()
            go.set()
            assert (await second).status_code == 200


@asynchronous
async def test_a_flood_of_worthless_tokens_is_slowed_down_and_the_good_ones_stay_known(place: Place) -> None:
    place.running(mixed())
    good = place.authority.pod_token(POD_NAME, job="mixed")
    async with place.asked() as client, place.client(host="10.6.6.6") as flood:
        assert (await client.get(PATH, headers=bearer(good))).status_code == 200
        codes = [(await flood.get(PATH, headers=bearer(f"junk-{n}"))).status_code for n in range(150)]
        assert codes[0] == 401
        assert codes[-1] == 429
        assert place.authority.reviews <= 105
        assert (await client.get(PATH, headers=bearer(good))).status_code == 200


@asynchronous
async def test_many_good_tokens_from_one_address_are_no_flood(place: Place) -> None:
    """As behind a proxy, or when all are reviewed again at once."""
    place.running(mixed())
    tokens = [place.authority.person(f"person-{n}") for n in range(250)]
    async with place.asked():
        identity = place.app.state.core.identity
        for token in tokens:
            assert (await identity.user(token, address="10.5.5.5")).name


# --- without tokens ---------------------------------------------------------------------------------------------------


@asynchronous
async def test_clients_of_the_field_without_a_token_are_let_in_only_where_a_setting_says_so(place: Place) -> None:
    place.running(mixed())
    async with place.asked(), place.client(host="10.0.0.1") as pod:
        message(await pod.get(PATH), 401)


@asynchronous
async def test_with_the_setting_a_pod_is_known_by_its_address_in_its_own_namespace() -> None:
    with serving() as api:
        place = Place(api, settings=ServerSettings(unproven_pods=True))
        place.running(mixed())
        place.running(elastic("neighbour"))
        place.submit(mixed("foreign", namespace="other"))
        place.pod("foreign", "learner", 0, ip="10.8.0.1", namespace="other")
        place.pod("mixed", "collector", 0, ip="10.0.0.77", name="host", spec={"hostNetwork": True})
        with capture_logs() as lines:
            async with place.asked():
                async with place.client(host="10.0.0.1") as pod:
                    assert (await pod.get(PATH)).status_code == 200
                    neighbour = await pod.get("/v2alpha1/job/default.neighbour/replicas")
                    assert neighbour.status_code == 200
                    assert (await pod.post(PATH, json={"replicas": 1})).status_code == 200
                    message(await pod.get("/v2alpha1/job/other.foreign/replicas"), 403)
                    forwarded = await pod.get(PATH, headers={"X-Forwarded-For": "10.8.0.1"})
                    assert forwarded.status_code == 200  # the header is ignored
                for host in ("10.99.0.1", "10.0.0.77"):  # of no pod, and of a node
                    async with place.client(host=host) as stranger:
                        message(await stranger.get(PATH), 401)
                async with place.client(host="::ffff:10.0.0.1") as mapped:
                    assert (await mapped.get(PATH)).status_code == 200
        assert any(line["event"] == "pods are served without a token" for line in lines)


@asynchronous
async def test_with_the_setting_no_pod_reports_about_another_job() -> None:
    with serving() as api:
        place = Place(api, settings=ServerSettings(unproven_pods=True))
        place.running(mixed())
        place.running(elastic("neighbour"))
        async with place.asked(), place.client(host="10.0.0.1") as pod:
            report = "/v2alpha1/job/default.neighbour/profilings"
            for body in ({"speed": 1e9}, {"speed": 1e9, "rank": 0}, {"speed": 1e9, "replicas": 4}):
                assert "own pods" in message(await pod.post(report, json=body), 403)
            hints = await pod.put("/hints/default/neighbour", json={"initBatchSize": 7})
            assert "own pods" in message(hints, 403)
            assert not place.app.state.core.reporter.waiting
            own = await pod.post("/v2alpha1/job/default.mixed/profilings", json={"speed": 5})
            assert own.status_code == 200
            await soon(lambda: place.api.seen("PATCH"))
        assert json.loads(place.parameter("mixed", keys.PARAM_PROFILINGS))["ranks"].keys() == {"0"}
        assert not json.loads(place.parameter("neighbour", keys.PARAM_PROFILINGS) or "{}")


@asynchronous
async def test_with_the_setting_a_pod_of_an_earlier_round_is_told_so() -> None:
    with serving() as api:
        place = Place(api, settings=ServerSettings(unproven_pods=True))
        place.running(elastic(replicas=1, low=1))
        place.set("elastic", rounds=["1", "2"], current="2", granted={"1": {"worker": 1}, "2": {"worker": 1}})
        async with place.asked(), place.client(host="10.0.0.1") as pod:
            answer = await pod.post("/v2alpha1/job/default.elastic/profilings", json={"speed": 1})
        assert "earlier round" in message(answer, 410)


@asynchronous
async def test_a_person_without_a_right_is_told_which_one_whether_the_job_is_there_or_not(place: Place) -> None:
    place.running(mixed())
    eve = place.authority.person("eve", ("get", "default", "*"))
    absent = "/v2alpha1/job/default.nobody/replicas"
    async with place.asked() as client:
        one = await client.post(PATH, headers=bearer(eve), json={"replicas": 1})
        other = await client.post(absent, headers=bearer(eve), json={"replicas": 1})
    said = message(one, 403)
    assert said == message(other, 403)
    for word in ("eve", "patch", "workflows.argoproj.io", "namespace default"):
        assert word in said


def test_what_a_token_says_of_itself_is_read_without_being_believed() -> None:
    assert claims("a.b").audiences == ()
    assert claims("a.%%%.c").audiences == ()
    assert claims("a.W10.c").audiences == ()  # []
    assert claims("a.eyJhdWQiOiJ4In0.c").audiences == ("x",)  # {"aud":"x"}
    assert claims("a.eyJleHAiOnRydWV9.c").expires is None  # {"exp":true}
    endless = base64.urlsafe_b64encode(b'{"exp":1' + b"0" * 400 + b"}").decode().rstrip("=")
    assert claims(f"a.{endless}.c").expires is None  # no float can hold it
