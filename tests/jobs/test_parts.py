"""A job that continues in other Workflows is one job for the library and for every command."""

from __future__ import annotations

import json
import re
import threading
from typing import Any

import pytest

from diflow import ConflictError, DIJob, Task
from diflow.common import keys
from diflow.common.errors import NoNamespaceError
from diflow.jobs import lookup, parts, submit, suspend, wait
from diflow.jobs.follow import follow
from diflow.jobs.scale import scale
from diflow.kube.kinds import EVENT, POD, WORKFLOW
from diflow.record import chain
from diflow.record.status.status import derive, derive_ended
from diflow.workflows.pods import dijob_annotation
from diflow.workflows.successor import successor
from tests.builders import job, template
from tests.cli.runner import Cli, play
from tests.kube.fakeapi import Answer, Request, status
from tests.record.seen import SeenJob, at, history

GANG = {keys.SCHEDULING: "gang"}


class Long:
    """A job in the fake server that continues in one Workflow after the other."""

    def __init__(self, diflow: Cli) -> None:
        self.diflow = diflow
        self.part = 1
        self.seen = self._seen("long", "1")
        self.body: dict[str, Any] = self.seen.workflow()
        self.put()

    @property
    def name(self) -> str:
        return self.seen.name

    def put(self) -> None:
        """Store the current state of the newest part and its pods in the server."""
        new = self.seen.workflow()
        metadata = {**new["metadata"], **{k: self.body["metadata"][k] for k in ("labels", "annotations")}}
        self.body = self.diflow.api.add(WORKFLOW, {**new, "metadata": {**metadata, "creationTimestamp": self.made}})
        for pod in self.seen.all_pods():
            pod["metadata"]["labels"]["workflows.argoproj.io/workflow"] = self.name
            self.diflow.api.add(POD, pod)

    @property
    def made(self) -> str:
        return at(100 * (self.part - 1))

    def begin(self) -> None:
        """Create the next part, which no other part names yet."""
        self.before = self.body
        self.part += 1
        name, round_ = f"long-s{self.part}", str(self.part)
        given = {"rounds": f'["{round_}"]', "current": round_, "granted": json.dumps({round_: {"worker": 2}})}
        made = successor(self.before, name=name, parameters=given, annotations={})
        self.seen = self._seen(name, round_)
        self.body = made
        self.put()

    def link(self) -> None:
        """Continue the job in it."""
        metadata = self.before["metadata"]
        annotations = {**metadata["annotations"], keys.CONTINUED_IN: self.name}
        labels = {**metadata["labels"], keys.CHAIN: "long", keys.PART: str(self.part - 1)}
        known = {"annotations": annotations, "labels": labels}
        self.before = self.diflow.api.add(WORKFLOW, {**self.before, "metadata": {**metadata, **known}})

    def go_on(self) -> None:
        self.begin()
        self.link()

    def end_before(self) -> None:
        """The previous part ends, as all its rounds are over."""
        status = {**self.before["status"], "phase": "Succeeded", "finishedAt": at(self.part * 100)}
        labels = {
            **self.before["metadata"]["labels"],
            "workflows.argoproj.io/phase": "Succeeded",
            "workflows.argoproj.io/completed": "true",
        }
        metadata = {**self.before["metadata"], "labels": labels}
        self.before = self.diflow.api.add(WORKFLOW, {**self.before, "metadata": metadata, "status": status})

    def _seen(self, name: str, round_: str) -> SeenJob:
        made = SeenJob(name, preemptible=True, worker=2)
        made.labels = dict(GANG)
        worker = Task(name="worker", replicas=2, template=template("x"))
        made.annotations = {keys.DIJOB: dijob_annotation(DIJob(name="long", tasks=(worker,), preemptible=True))}
        made.rounds, made.granted = [round_], {round_: {"worker": 2}}
        start = 100 * (self.part - 1)
        made.status["startedAt"] = at(start)
        for index in range(2):
            made.pod(f"worker-{index}", created=start + 1, round=round_).ready(start + 5)
        return made


@pytest.fixture
def long(diflow: Cli) -> Long:
    return Long(diflow)


def resubmitted(diflow: Cli, body: dict[str, Any], name: str, **labels: str) -> dict[str, Any]:
    """A copy by `argo resubmit`: it keeps labels, annotations and owners."""
    metadata = body["metadata"]
    labels = {**metadata["labels"], keys.RESUBMITTED: metadata["name"], **labels}
    made = {**metadata, "name": name, "uid": f"uid-{name}", "labels": labels, "creationTimestamp": at(900)}
    return diflow.api.add(WORKFLOW, {**body, "metadata": made})


# --- which one it is --------------------------------------------------------------------------------------------------


def test_a_job_is_found_in_its_newest_part(diflow: Cli, long: Long) -> None:
    cluster = diflow.api.cluster()
    for name in ("long", "long-s2", "long-s3"):
        found = lookup.get("long", cluster=cluster)
        assert (found.workflow["metadata"]["name"], found.name, found.created) == (name, "long", at(0))
        assert len(found.pods) == 2
        long.go_on()


def test_a_part_that_nobody_names_is_not_the_jobs(diflow: Cli, long: Long) -> None:
    long.begin()
    cluster = diflow.api.cluster()
    assert lookup.get("long", cluster=cluster).workflow["metadata"]["name"] == "long"
    assert [j.workflow["metadata"]["name"] for j in lookup.list_jobs(cluster=cluster)] == ["long"]
    long.link()
    assert [j.workflow["metadata"]["name"] for j in lookup.list_jobs(cluster=cluster)] == ["long-s2"]


def test_parts_that_are_gone_leave_the_job_where_it_is(diflow: Cli, long: Long) -> None:
    long.go_on()
    long.go_on()
    for name in ("long", "long-s2"):
        diflow.api.remove(WORKFLOW, name)
        found = lookup.get("long", cluster=diflow.api.cluster())
        assert (found.workflow["metadata"]["name"], found.name) == ("long-s3", "long")


def test_a_copy_of_a_part_is_another_job(diflow: Cli, long: Long) -> None:
    cluster = diflow.api.cluster()
    long.go_on()
    resubmitted(diflow, long.before, "long-a")
    resubmitted(diflow, long.body, "long-s2-a")
    assert sorted(lookup.names(cluster=cluster)) == ["long", "long-a", "long-s2-a"]
    found = lookup.get("long-a", cluster=cluster)
    assert (found.name, found.workflow["metadata"]["name"], found.created) == ("long-a", "long-a", at(900))
    assert "went on" not in found.status.message
    diflow.api.remove(WORKFLOW, "long")
    assert lookup.get("long", cluster=cluster).workflow["metadata"]["name"] == "long-s2"
    assert diflow("delete", "long-s2-a").code == 0
    assert sorted(diflow.api.objects[WORKFLOW.path("default")]) == ["long-a", "long-s2"]
    assert diflow("delete", "long").code == 0
    assert sorted(diflow.api.objects[WORKFLOW.path("default")]) == ["long-a"]


def test_a_copy_of_a_part_goes_on_in_parts_of_its_own(diflow: Cli, long: Long) -> None:
    long.go_on()
    copy = resubmitted(diflow, long.body, "again")
    after = successor(copy, name="again-s2", parameters={}, annotations={})
    after["metadata"]["uid"] = "uid-again-s2"
    assert (chain.job_name(after), chain.part(after)) == ("again", 2)
    named = {**copy["metadata"]["annotations"], keys.CONTINUED_IN: "again-s2"}
    labels = {**copy["metadata"]["labels"], keys.CHAIN: "again", keys.PART: "1"}
    copy = {**copy, "metadata": {**copy["metadata"], "annotations": named, "labels": labels}}
    assert chain.current("again", [copy, after, long.before, long.body]) is after


def test_links_that_one_side_alone_has_make_no_part(long: Long) -> None:
    long.go_on()
    first, second = long.before, long.body
    assert chain.current("long", [first, second]) is second
    assert chain.current("long", []) is None

    def claims(name: str, created: float, **more: str) -> dict[str, Any]:
        annotations = {**second["metadata"]["annotations"], **more}
        made = {**second["metadata"], "name": name, "annotations": annotations, "creationTimestamp": at(created)}
        return {**second, "metadata": made}

    assert chain.current("long", [claims("a", 1), first, second]) is second
    assert chain.current("long", [second, claims("a", 901)]) is second, "of two, the older one"
    ring = claims("b", 902, **{keys.CONTINUED_IN: "b", keys.CONTINUES: "b"})
    assert chain.current("long", [ring, second]) is second
    assert chain.current("long", [ring]) is None


def test_another_workflow_that_has_the_name_by_now_is_not_taken_for_the_next_part(diflow: Cli, long: Long) -> None:
    long.go_on()
    diflow.api.remove(WORKFLOW, "long-s2")
    diflow.has(SeenJob("long-s2", learner=1))
    cluster = diflow.api.cluster()
    assert lookup.get("long", cluster=cluster).workflow["metadata"]["name"] == "long"
    assert sorted(j.name for j in lookup.list_jobs(cluster=cluster)) == ["long", "long-s2"]


def test_a_job_of_which_the_present_part_was_deleted_has_failed(diflow: Cli, long: Long) -> None:
    long.go_on()
    long.end_before()
    diflow.api.remove(WORKFLOW, "long-s2")
    status = lookup.get("long", cluster=diflow.api.cluster()).status
    assert (status.phase, status.message) == ("Failed", "went on in the Workflow long-s2, which is gone")
    ended = derive_ended(long.before)
    assert ended is not None
    assert ended.phase == "Failed"


def test_the_name_of_any_part_stands_for_the_job(diflow: Cli, long: Long) -> None:
    long.go_on()
    long.go_on()
    assert lookup.get("long-s2", cluster=diflow.api.cluster()).workflow["metadata"]["name"] == "long-s3"


def left(long: Long, *, code: int) -> None:
    """A replica of the present part fails, and the job continues in another Workflow."""
    long.seen.pods[1].ends(100 * long.part - 10, code=code)
    long.put()
    long.go_on()
    given = long.before["spec"]["arguments"]["parameters"]
    next(one for one in given if one["name"] == keys.PARAM_CURRENT)["value"] = ""  # as the switch does
    long.end_before()


def test_describe_lists_the_failures_in_the_earlier_workflows(diflow: Cli, long: Long) -> None:
    for code in (3, 4):
        left(long, code=code)
    out = diflow("describe", "long").out
    (title,) = [i for i, line in enumerate(out.splitlines()) if line == "Failures"]
    rows = out.splitlines()[title + 2 : title + 4]
    assert ["exit code 3" in rows[0], "exit code 4" in rows[1]] == [True, True], out
    assert all("worker-1" in row and row.endswith("all replicas were started again") for row in rows)
    diflow.api.remove(WORKFLOW, "long")
    out = diflow("describe", "long").out
    assert ("exit code 3" in out, "exit code 4" in out) == (False, True)


def test_describe_reads_a_few_earlier_workflows_at_most(diflow: Cli, long: Long) -> None:
    for code in range(11, 18):
        left(long, code=code)
    before = len(diflow.api.requests)
    out = diflow("describe", "long").out
    assert [code for code in range(11, 18) if f"exit code {code}" in out] == [13, 14, 15, 16, 17]
    assert "those of the Workflow long-s2 and of earlier ones are not shown" in out
    read = [r for r in diflow.api.requests[before:] if r.path.endswith(("/long", "/long-s3"))]
    assert {r.path.rpartition("/")[2] for r in read} <= {"long", "long-s3"}


@pytest.mark.parametrize(
    ("job_name", "number", "most", "salt", "name"),
    [
        ("long", 2, 60, "", "long-s2"),
        ("long", 12, 60, "1f", "long-s12-1f"),
        ("a" * 60, 2, 60, "", r"a{50}-[0-9a-f]{6}-s2"),
        ("a-b-c-d-e-f", 2, 12, "", r"a-[0-9a-f]{6}-s2"),
        ("long", 2, 6, "", ""),
    ],
)
def test_names_of_parts_are_no_longer_than_allowed(job_name: str, number: int, most: int, salt: str, name: str) -> None:
    made = chain.part_name(job_name, number, most_characters=most, salt=salt)
    assert re.fullmatch(name, made), made
    assert len(made) <= most


def test_long_names_that_begin_alike_stay_apart() -> None:
    names = {chain.part_name("x" * 50 + end, 2, most_characters=40) for end in ("a", "b", "c")}
    assert len(names) == 3


def test_what_a_name_has_room_for_is_what_hosts_leave() -> None:
    assert chain.longest_name({"worker": 8}) == 63 - len("-worker-0000")
    assert chain.longest_name({"w": 100_000}) == 63 - len("-w-100000")
    assert chain.longest_name({}) == 63


# --- what it went through ---------------------------------------------------------------------------------------------


def test_what_a_job_went_through_before_is_in_its_status(long: Long) -> None:
    long.seen.pod("worker-1", created=20, restart=1).ready(30)
    long.put()
    long.go_on()
    long.seen.moves_to("3", worker=2)
    long.seen.pod("worker-0", created=150, round="3").ready(160)
    long.put()
    long.go_on()
    status = derive(long.body, long.seen.all_pods())
    assert (status.phase, status.restarts, status.reschedules) == ("Running", 1, 3)
    assert status.start_time == at(0)
    assert history(status) == [
        ("Pending", 0),
        ("Starting", 1),
        ("Restarting", 20),
        ("Rescheduling", 200),
        ("Running", 205),
    ]


@pytest.mark.parametrize("places", ["", '{"round":"1","nodes":{"worker":["a","a"]}}'])
def test_a_job_that_goes_on_before_argo_wrote_that_it_runs_is_rescheduled_if_it_had_places(
    long: Long, places: str
) -> None:
    metadata = long.body["metadata"]
    annotations = {**metadata["annotations"], keys.ALLOCATION: places}
    status = {**long.body["status"], "nodes": {}}
    long.body = long.diflow.api.add(
        WORKFLOW, {**long.body, "metadata": {**metadata, "annotations": annotations}, "status": status}
    )
    long.go_on()
    phases = [phase for phase, _ in history(derive(long.body, long.seen.all_pods()))]
    assert ("Rescheduling" in phases) == bool(places), phases


def test_carried_history_that_somebody_made_unreadable_is_left_out(long: Long) -> None:
    long.go_on()
    for text in ("{", "[]", '{"phases":3}', '{"phases":[["Running"],["Running",1,2],["Running","x","y"],7]}'):
        annotations = {**long.body["metadata"]["annotations"], keys.HISTORY_BEFORE: text}
        status = derive({**long.body, "metadata": {**long.body["metadata"], "annotations": annotations}})
        assert [c.type for c in status.conditions] == ["Pending", "Starting", "Running"]
        assert status.start_time == at(100)


# --- what is done with it ---------------------------------------------------------------------------------------------


def test_one_line_is_listed_and_one_name_completed(diflow: Cli, long: Long) -> None:
    diflow.has(SeenJob("other", learner=1))
    long.go_on()
    long.end_before()
    long.go_on()
    lines = diflow("list").out.splitlines()[1:]
    assert [line.split()[:6] for line in lines] == [
        ["other", "Pending", "0", "1", "0", "0"],
        ["long", "Running", "2", "2", "0", "2"],
    ]
    assert diflow("list", "-o", "name").out.split() == ["other", "long"]
    assert lookup.names(cluster=diflow.api.cluster()) == ["other", "long"]
    assert lookup.latest(cluster=diflow.api.cluster()) == "other", "it was submitted later"


def test_it_is_shown_under_its_own_name(diflow: Cli, long: Long) -> None:
    long.go_on()
    got = json.loads(diflow("get", "long", "-o", "json").out)
    assert (got["metadata"]["name"], got["metadata"]["creationTimestamp"]) == ("long", at(0))
    assert "long-s2" not in diflow("watch", "long", "--timeout", "0").out
    for part in ("long", "long-s2"):
        event = {
            "metadata": {"name": f"{part}.1"},
            "involvedObject": {"kind": "Workflow", "name": part},
            "source": {"component": "diflow-allocator"},
            "reason": "Continued",
            "message": f"said of {part}",
            "lastTimestamp": at(1),
        }
        diflow.api.add(EVENT, event)
    described = diflow("describe", "long").out
    assert "said of long\n" in described + "\n"
    assert "said of long-s2" in described
    assert "Submitted:" in described


def test_it_is_waited_for_over_a_hand_over(diflow: Cli, long: Long) -> None:
    def over() -> None:
        long.end_before()

    def end() -> None:
        long.seen.ended(300)
        for pod in long.seen.pods:
            pod.ends(290)
        long.put()

    play(diflow, long.begin, long.link, over, end)
    status = wait.wait("long", cluster=diflow.api.cluster(), timeout_seconds=60)
    assert (status.phase, status.reschedules, status.completion_timestamp) == ("Succeeded", 1, at(300))


def test_a_follower_that_missed_the_hand_over_goes_on_in_the_part_there_is(diflow: Cli, long: Long) -> None:
    seen: list[str] = []
    told = threading.Event()

    def swap() -> None:
        with diflow.api.changed:
            long.go_on()
            diflow.api.remove(WORKFLOW, "long")

    play(diflow, swap, told.set)
    for snapshot in follow(diflow.api.cluster(), "long", seconds=60):
        assert snapshot.workflow is not None
        seen.append(snapshot.workflow["metadata"]["name"])
        if seen[-1] == "long-s2":
            break
    assert set(seen) == {"long", "long-s2"}


def test_what_is_asked_for_goes_to_the_newest_part(diflow: Cli, long: Long) -> None:
    long.go_on()
    cluster = diflow.api.cluster()
    suspend.suspend("long", cluster=cluster)
    scale("long", low=1, high=4, cluster=cluster)
    suspend.stop("long", cluster=cluster)
    stored = diflow.api.objects[WORKFLOW.path("default")]
    assert stored["long-s2"]["metadata"]["annotations"][keys.HELD] == "true"
    assert stored["long-s2"]["spec"]["shutdown"] == "Stop"
    assert json.loads(stored["long-s2"]["metadata"]["annotations"][keys.BOUNDS]) == {"worker": {"min": 1, "max": 4}}
    assert not {"suspend", "shutdown"} & stored["long"]["spec"].keys()
    assert keys.BOUNDS not in stored["long"]["metadata"]["annotations"]


@pytest.mark.parametrize("verb", ["stop", "scale"])
def test_what_is_asked_for_while_a_job_goes_on_is_not_lost(diflow: Cli, long: Long, verb: str) -> None:
    gone: list[str] = []

    def in_between(request: Request) -> Answer | None:
        if request.method == "PATCH" and not gone:
            gone.append(request.path)
            long.go_on()
        return None

    diflow.api.rule(in_between)
    cluster = diflow.api.cluster()
    if verb == "stop":
        suspend.stop("long", cluster=cluster)
    else:
        scale("long", replicas=1, cluster=cluster)
    stored = diflow.api.objects[WORKFLOW.path("default")]
    assert gone[0].endswith("/long")
    if verb == "stop":
        assert [stored[name]["spec"].get("shutdown") for name in ("long", "long-s2")] == [None, "Stop"]
    else:
        asked = {p["name"]: p["value"] for p in stored["long-s2"]["spec"]["arguments"]["parameters"]}
        assert json.loads(asked["replicas"]) == {"worker": 1}


@pytest.mark.parametrize("lost", ["", "long"])
@pytest.mark.parametrize("named", ["long", "long-s2"])
def test_it_is_deleted_with_all_its_parts(diflow: Cli, long: Long, lost: str, named: str) -> None:
    diflow.has(SeenJob("other", learner=1))
    long.go_on()
    long.begin()
    if lost:
        diflow.api.remove(WORKFLOW, lost)
    done = diflow("delete", named)
    assert (done.code, set(diflow.api.objects[WORKFLOW.path("default")])) == (0, {"other"}), done.err


def test_its_name_is_not_given_to_another_job_while_a_part_is_there(diflow: Cli, long: Long) -> None:
    diflow.prepare()
    long.go_on()
    diflow.api.remove(WORKFLOW, "long")
    with pytest.raises(ConflictError, match="there is a Workflow long-s2 .*diflow delete long "):
        submit.submit(job(name="long"), cluster=diflow.api.cluster())


def test_a_user_who_may_not_list_workflows_still_finds_a_job(diflow: Cli, long: Long) -> None:
    long.go_on()
    refused = Answer(403, {"kind": "Status", "reason": "Forbidden", "message": "may not list"})
    diflow.api.fail(refused, method="GET", path=WORKFLOW.path("default") + "?", times=100)
    found = parts.newest(diflow.api.cluster(), "long")
    assert found is not None
    assert found["metadata"]["name"] == "long-s2"


def test_a_job_that_names_itself_as_its_next_part_is_found_with_few_requests(diflow: Cli, long: Long) -> None:
    found = diflow.api.objects[WORKFLOW.path("default")][long.name]
    metadata = found["metadata"]
    named = {keys.CONTINUED_IN: "long", keys.CONTINUES: "long", keys.CONTINUES_UID: metadata["uid"]}
    ring = {**metadata, "annotations": {**metadata["annotations"], **named}}
    diflow.api.add(WORKFLOW, {**found, "metadata": ring})
    before = len(diflow.api.requests)
    made = parts.newest(diflow.api.cluster(), "long")
    assert made is not None
    assert made["metadata"]["uid"] == metadata["uid"]
    assert len(diflow.api.requests) - before == 2


def test_a_job_that_does_not_exist_is_told_from_a_namespace_that_does_not(diflow: Cli) -> None:
    assert parts.newest(diflow.api.cluster(), "there is no namespace/x") is None
    with pytest.raises(NoNamespaceError):
        parts.newest(diflow.api.cluster(), "job", namespace="a/b")
    diflow.api.fail(status(404, 'namespaces "nowhere" not found', reason="NotFound"))
    with pytest.raises(NoNamespaceError):
        parts.newest(diflow.api.cluster(), "job", namespace="nowhere")
