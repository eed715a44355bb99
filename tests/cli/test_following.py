"""watch, wait and logs: following a job to its end, through restarts, deletions and lost connections."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from diflow.common import keys
from diflow.kube.kinds import POD, WORKFLOW
from tests.cli.runner import Cli, play
from tests.kube.fakeapi import CUT, Answer, FakeApi, Request, status
from tests.record.seen import SeenJob, SeenPod


def job(name: str = "job") -> SeenJob:
    made = SeenJob(name, learner=1, collector=1)
    made.pod("learner-0").placed(1)
    made.pod("collector-0").placed(1)
    return made


def all_ready(made: SeenJob) -> None:
    for pod in made.pods:
        pod.ready(5)


def all_end(made: SeenJob, *, phase: str = "Succeeded", code: int = 0) -> None:
    for pod in made.pods:
        pod.ends(20, code=code)
    made.ended(21, phase)


def life(diflow: Cli, made: SeenJob, *, phase: str = "Succeeded") -> list[Callable[[], object]]:
    """Both pods become ready, and end."""

    def ready() -> None:
        all_ready(made)
        diflow.has(made)

    def end() -> None:
        all_end(made, phase=phase, code=0 if phase == "Succeeded" else 1)
        diflow.has(made)

    return [ready, end]


# --- watch ------------------------------------------------------------------------------------------------------------


def test_watch_prints_a_line_for_each_change_where_there_is_no_terminal(diflow: Cli) -> None:
    made = job()
    diflow.has(made)
    play(diflow, *life(diflow, made))
    result = diflow("watch", "job")
    assert result.code == 0
    lines = [line.split(maxsplit=2)[1:] for line in result.out.splitlines()]
    for replica in ("learner-0", "collector-0"):
        told = [what for who, what in lines if who == replica]
        assert told == ["Pending on node-a", "Running on node-a", "Succeeded on node-a"]
    # Pods and Workflow are watched apart, so the lines between these depend on which watch delivers first.
    about = [what for who, what in lines if who == "job"]
    assert list(dict.fromkeys(what.partition(":")[0] for what in about)) == ["Starting", "Running", "Succeeded"]
    assert about[0] == "Starting: 0 of 2 replicas ready"
    assert "Running: all 2 replicas ready" in about
    assert lines[-1] == ["job", "Succeeded: the job succeeded"]


def test_watch_ends_with_1_when_the_job_fails_and_with_3_when_it_is_deleted(diflow: Cli) -> None:
    made = job()
    diflow.has(made)
    play(diflow, *life(diflow, made, phase="Failed"))
    assert diflow("watch", "job").code == 1
    diflow.has(job("other"))
    play(diflow, lambda: diflow.api.remove(WORKFLOW, "other"))
    result = diflow("watch", "other")
    assert (result.code, result.err) == (3, "job other was deleted\n")


def test_watch_gives_up_when_its_time_has_passed(diflow: Cli) -> None:
    diflow.has(job())
    result = diflow("watch", "job", "--timeout", "0.3s")
    assert result.code == 124
    assert "job job is still Starting after 0.3 s: 0 of 2 replicas ready" in result.err


def test_watch_of_a_job_that_has_ended_says_so_at_once(diflow: Cli) -> None:
    made = job()
    all_ready(made)
    all_end(made)
    diflow.has(made)
    result = diflow("watch", "@latest")
    assert result.code == 0
    assert result.out.splitlines()[-1].endswith("Succeeded: the job succeeded")


def test_watch_goes_on_through_a_broken_stream(diflow: Cli) -> None:
    made = job()
    diflow.has(made)
    first = {"/workflows": True, "/pods": True}

    def rule(request: Request) -> Answer | None:
        end = f"/{request.path.rsplit('/', 1)[-1]}"
        return Answer(lines=[CUT]) if request.query.get("watch") and first.pop(end, False) else None

    play(diflow, *life(diflow, made))
    diflow.api.rule(rule)
    assert diflow("watch", "job").code == 0


def test_a_user_who_may_not_see_pods_watches_the_workflow(diflow: Cli) -> None:
    made = job()
    diflow.has(made)
    play(diflow, *life(diflow, made))
    diflow.api.rule(lambda r: status(403, "no") if "/pods" in r.path else None)
    result = diflow("watch", "job")
    assert result.code == 0
    assert "Running: all 2 replicas ready" in result.out


# --- wait -------------------------------------------------------------------------------------------------------------


def test_wait_ends_with_the_job(diflow: Cli) -> None:
    made = job()
    diflow.has(made)
    play(diflow, *life(diflow, made))
    result = diflow("wait", "job")
    assert (result.code, result.out) == (0, "")
    assert result.err == "job Succeeded: the job succeeded\n"


def test_wait_for_a_failing_job_ends_with_1_and_says_why(diflow: Cli) -> None:
    made = SeenJob("job", learner=1, backoff_limit=0).all_ready()
    made.pods[0].ends(8, code=2)
    diflow.has(made.ended(9, "Failed"))
    result = diflow("wait", "job")
    assert result.code == 1
    assert result.err.startswith("error: job job failed: learner-0 failed: Error (exit code 2)")


@pytest.mark.parametrize(
    ("until", "code"),
    [("phase=Running", 0), ("phase=starting", 0), ("phase=Succeeded", 0), ("phase=Restarting", 1), ("end", 0)],
)
def test_a_phase_that_has_passed_was_reached(diflow: Cli, until: str, code: int) -> None:
    made = SeenJob("job", learner=1).all_ready()
    made.pods[0].ends(8)
    diflow.has(made.ended(9))
    result = diflow("wait", "job", "--for", until)
    assert result.code == code
    if code:
        assert "job ended without being Restarting" in result.err


def test_waiting_for_failed_is_met_by_a_failure(diflow: Cli) -> None:
    diflow.has(SeenJob("job", learner=1).ended(9, "Failed"))
    assert diflow("wait", "job", "--for", "phase=Failed").code == 0


def test_wait_for_running_returns_while_the_job_runs(diflow: Cli) -> None:
    made = job()
    diflow.has(made)
    play(diflow, life(diflow, made)[0])
    result = diflow("wait", "job", "--for", "phase=Running")
    assert (result.code, result.err) == (0, "job Running: all 2 replicas ready\n")


@pytest.mark.parametrize("loss", ["deleted", "vanished"])
def test_a_job_does_not_run_whose_pod_was_just_deleted(diflow: Cli, loss: str) -> None:
    made = job()
    all_ready(made)
    lost = made.pods[0]
    if loss == "deleted":
        lost.deleted(30)
    else:
        lost.vanished()
    diflow.has(made)
    shown = diflow("get", "job").out
    assert shown.splitlines()[1].split()[1:4] == ["Rescheduling", "1", "2"]
    assert "learner-0 gets a new pod: 1 of 2 replicas ready" in diflow("describe", "job").out

    def again() -> None:
        lost.gone(40)
        made.pod("learner-0", created=41, uncounted=1).ready(45)
        diflow.has(made)

    play(diflow, again)
    result = diflow("wait", "job", "--for", "phase=Running")
    assert (result.code, result.err) == (0, "job Running: all 2 replicas ready\n")
    assert len(made.pods) == 3


def test_a_pod_that_never_had_a_node_is_no_reschedule_of_its_replica(diflow: Cli) -> None:
    made = job()
    all_ready(made)
    made.pods[0].gone(40)
    made.pod("learner-0", created=41, uncounted=1).gone(42, message="Pod was rejected: it is made again")
    made.pod("learner-0", created=43, uncounted=2).ready(45)
    diflow.has(made)
    out = diflow("describe", "job").out
    row = next(line.split() for line in out.splitlines() if line.startswith("  learner-0"))
    assert row[:5] == ["learner-0", "0", "Running", "0", "1"]
    assert "Reschedules: 1\n" in out


def test_a_job_whose_pods_may_not_be_seen_runs_as_argo_says(diflow: Cli) -> None:
    made = job()
    all_ready(made)
    diflow.has(made)
    diflow.api.rule(lambda r: status(403, "no") if r.path.endswith("/pods") else None)
    assert diflow("wait", "job", "--for", "phase=Running").code == 0
    assert diflow("get", "job").out.splitlines()[1].split()[1:4] == ["Running", "2", "2"]


def test_a_stopped_job_whose_pods_are_deleted_is_not_rescheduled(diflow: Cli) -> None:
    made = job()
    all_ready(made)
    made.pods[0].deleted(30)
    diflow.has(made.shutdown())
    assert "is being stopped" in diflow("describe", "job").out
    assert diflow("get", "job").out.splitlines()[1].split()[1] == "Running,Stopping"


def test_wait_for_deleted(diflow: Cli) -> None:
    diflow.has(job())
    play(diflow, lambda: diflow.api.remove(WORKFLOW, "job"))
    result = diflow("wait", "job", "--for", "deleted")
    assert (result.code, result.err) == (0, "job is deleted\n")
    assert diflow("wait", "job", "--for", "deleted").code == 0


def test_a_job_that_is_deleted_while_it_is_waited_for_is_not_found(diflow: Cli) -> None:
    diflow.has(job())
    play(diflow, lambda: diflow.api.remove(WORKFLOW, "job"))
    result = diflow("wait", "job")
    assert result.code == 3
    assert "job job was deleted before it had ended" in result.err


def test_wait_has_a_time_limit(diflow: Cli) -> None:
    diflow.has(job())
    result = diflow("wait", "job", "--timeout", "0.2")
    assert result.code == 124
    assert "job job is still Starting after 0.2 s" in result.err
    assert diflow("wait", "job", "--for", "deleted", "--timeout", "0.2").code == 124


@pytest.mark.parametrize("text", ["phase=Nope", "nothing", "phase"])
def test_what_cannot_be_waited_for_is_wrong_usage(diflow: Cli, text: str) -> None:
    result = diflow("wait", "job", "--for", text)
    assert result.code == 2
    assert "--for is end, deleted, or phase= one of" in " ".join(result.err.split())


@pytest.mark.parametrize("text", ["soon", "-3", "5y", "nan"])
def test_a_length_of_time_must_be_one(diflow: Cli, text: str) -> None:
    assert diflow("wait", "job", "--timeout", text).code == 2


# --- logs -------------------------------------------------------------------------------------------------------------


def stamped(second: float, text: str) -> str:
    return f"2026-01-02T03:04:{second:09.6f}Z {text}"


@pytest.fixture
def written(diflow: Cli) -> tuple[Cli, SeenJob]:
    """A running job whose two replicas have written in turn."""
    made = job()
    all_ready(made)
    for i, pod in enumerate(made.pods):
        assert pod.pod is not None
        pod.pod["metadata"]["name"] = f"job-pod-{i}"
    diflow.has(made)
    diflow.api.logs["job-pod-0"] = [stamped(1, "hello"), stamped(3, "loss 0.5"), stamped(5, "loss 0.4")]
    diflow.api.logs["job-pod-1"] = [
        stamped(2, 'time=2026-01-02T03:04:02.0Z level=INFO msg="waiting for signals" argo=true'),
        stamped(2, "an episode"),
        stamped(4, "return 20"),
    ]
    return diflow, made


def test_logs_of_all_replicas_come_in_the_order_of_time_with_their_replica_in_front(
    written: tuple[Cli, SeenJob],
) -> None:
    diflow, _ = written
    assert diflow("logs", "job").out.splitlines() == [
        "learner-0   | hello",
        "collector-0 | an episode",
        "learner-0   | loss 0.5",
        "collector-0 | return 20",
        "learner-0   | loss 0.4",
    ]


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (("--task", "collector"), ["collector-0 | an episode", "collector-0 | return 20"]),
        (("--rank", "0", "--grep", "loss"), ["learner-0 | loss 0.5", "learner-0 | loss 0.4"]),
        (("--rank", "1", "-g", "^return"), ["collector-0 | return 20"]),
        (("--task", "collector", "--rank", "0", "-g", "episode"), ["collector-0 | an episode"]),
    ],
)
def test_logs_can_be_narrowed_down(written: tuple[Cli, SeenJob], args: tuple[str, ...], expected: list[str]) -> None:
    diflow, _ = written
    assert diflow("logs", "job", *args).out.splitlines() == expected


def test_the_server_is_asked_for_no_more_than_is_wanted(written: tuple[Cli, SeenJob]) -> None:
    diflow, _ = written
    diflow("logs", "job", "--tail", "2", "--since", "10m")
    requests = [r for r in diflow.api.requests if r.path.endswith("/log")]
    assert {(r.query["tailLines"], r.query["sinceSeconds"]) for r in requests} == {("2", "600")}


def test_the_time_of_each_line_can_be_shown(written: tuple[Cli, SeenJob]) -> None:
    diflow, _ = written
    assert diflow("logs", "job", "--rank", "0", "--timestamps").out.startswith(
        "learner-0 | 2026-01-02T03:04:01.000000Z hello"
    )


@pytest.mark.parametrize(
    ("args", "code", "text"),
    [
        (("--task", "wizard"), 3, "job has no task wizard: it has learner, collector"),
        (("--rank", "9"), 3, "job has no rank 9: its ranks are 0 to 1"),
        (("--task", "learner", "--rank", "1"), 3, "learner of job has no rank 1: its ranks are 0 to 0"),
        (("--grep", "("), 2, "--grep is not a regular expression"),
        (("-f", "--previous"), 2, "there is nothing to follow"),
        (("--previous",), 3, "no replica of job was started again"),
    ],
)
def test_a_choice_of_logs_that_is_none_says_so(
    written: tuple[Cli, SeenJob], args: tuple[str, ...], code: int, text: str
) -> None:
    diflow, _ = written
    result = diflow("logs", "job", *args)
    assert (result.code, result.out) == (code, "")
    assert text in result.err


def test_a_replica_that_has_written_nothing_or_lost_its_pod_is_named(diflow: Cli) -> None:
    made = SeenJob("job", learner=1, collector=1)
    made.pod("learner-0").placed(1).waiting("ImagePullBackOff", "no such image")
    made.pod("collector-0").ready(2).gone(9)
    diflow.has(made)
    result = diflow("logs", "job")
    assert result.code == 0
    assert "learner-0: has written nothing yet: ImagePullBackOff: no such image (check the" in result.err
    assert "collector-0: its pod is gone, and its logs with it" in result.err


def test_previous_logs_are_those_of_the_attempt_before(diflow: Cli) -> None:
    made = SeenJob("job", learner=1)
    old = made.pod("learner-0").ready(2).ends(5, code=1)
    new = made.pod("learner-0", created=7, counted=1).ready(8)
    assert old.pod is not None
    assert new.pod is not None
    old.pod["metadata"]["name"], new.pod["metadata"]["name"] = "old", "new"
    diflow.has(made)
    diflow.api.logs.update(old=[stamped(1, "it breaks")], new=[stamped(9, "again")])
    assert diflow("logs", "job", "--previous").out == "learner-0 | it breaks\n"
    assert diflow("logs", "job").out == "learner-0 | again\n"


def failed_check(made: SeenJob) -> SeenPod:
    """An attempt whose node check has failed: its main container was never started."""
    found = made.pod("learner-0").placed(1).ends(5, code=3, message="diflow-check: Error (exit code 3)")
    assert found.pod is not None
    found.pod["metadata"]["name"] = "checked"
    ended = {"exitCode": 3, "startedAt": "2026-01-01T00:00:02Z", "finishedAt": "2026-01-01T00:00:03Z"}
    unknown = {"exitCode": 137, "reason": "ContainerStatusUnknown", "startedAt": None, "finishedAt": None}
    found.pod["status"] |= {
        "initContainerStatuses": [
            {"name": "init", "state": {"terminated": {**ended, "exitCode": 0}}},
            {"name": keys.CHECK_CONTAINER, "state": {"terminated": ended}},
        ],
        "containerStatuses": [{"name": "main", "state": {"terminated": unknown}}],
    }
    return found


def test_of_a_replica_whose_node_check_failed_the_output_of_the_check_is_printed(diflow: Cli) -> None:
    made = SeenJob("job", learner=1)
    failed_check(made)
    diflow.has(made)
    diflow.api.logs["checked"] = [stamped(1, "no link")]
    result = diflow("logs", "job")
    assert result.out == "learner-0 | no link\n"
    assert "learner-0: its work did not begin, as the init container diflow-check failed; this is" in result.err
    (request,) = [r for r in diflow.api.requests if r.path.endswith("/log")]
    assert request.query["container"] == "diflow-check"


def test_the_check_of_a_replica_that_was_started_again_is_in_the_previous_logs(diflow: Cli) -> None:
    made = SeenJob("job", learner=1)
    failed_check(made)
    again = made.pod("learner-0", created=7, uncounted=1).placed(8)
    diflow.has(made)
    diflow.api.logs["checked"] = [stamped(1, "no link")]
    assert diflow("logs", "job", "--previous").out == "learner-0 | no link\n"
    result = diflow("logs", "job")
    assert result.out == "learner-0 | no link\n", "as long as the new pod has written nothing"
    assert "learner-0, its pod before: its work did not begin, as the init container diflow-check" in result.err
    again.ready(9)
    assert again.pod is not None
    again.pod["metadata"]["name"] = "again"
    diflow.has(made)
    diflow.api.logs["again"] = [stamped(9, "at work")]
    assert diflow("logs", "job").out == "learner-0 | at work\n"


def test_the_check_of_a_gang_that_waits_for_its_next_round_is_shown(diflow: Cli) -> None:
    made = SeenJob("job", preemptible=True, learner=1)
    failed_check(made)
    made.moves_to("2", learner=1).pod("learner-0", created=7, round="2")
    diflow.has(made)
    diflow.api.logs["checked"] = [stamped(1, "no link")]
    assert diflow("logs", "job").out == "learner-0 | no link\n"


def test_following_prints_the_output_of_a_check_that_fails(diflow: Cli) -> None:
    made = job("job")
    diflow.has(made)
    diflow.api.logs["checked"] = [stamped(1, "no link")]

    def fail() -> None:
        made.pods.clear()
        failed_check(made)
        diflow.has(made)

    play(diflow, fail, lambda: diflow.has(made.ended(21, "Failed")))
    result = diflow("logs", "-f", "job")
    assert (result.code, result.out) == (1, "learner-0   | no link\n")
    assert "the init container diflow-check failed" in result.err


def test_following_reads_all_replicas_until_the_job_has_ended(written: tuple[Cli, SeenJob]) -> None:
    diflow, made = written
    play(diflow, life(diflow, made)[1])
    result = diflow("logs", "-f", "job")
    assert result.code == 0
    assert sorted(result.out.splitlines()) == [
        "collector-0 | an episode",
        "collector-0 | return 20",
        "learner-0   | hello",
        "learner-0   | loss 0.4",
        "learner-0   | loss 0.5",
    ]
    assert result.err.endswith("job Succeeded: the job succeeded\n")


def test_following_never_waits_for_a_replica_that_does_not_start(diflow: Cli) -> None:
    made = job()
    made.pods[0].ready(3)
    assert made.pods[0].pod is not None
    made.pods[0].pod["metadata"]["name"] = "p"
    made.pods[1].waiting("ImagePullBackOff")
    diflow.has(made)
    diflow.api.logs["p"] = [stamped(1, "alone")]
    play(diflow, lambda: diflow.api.remove(WORKFLOW, "job"))
    assert diflow("logs", "-f", "job").out == "learner-0   | alone\n"


def test_following_takes_up_replicas_that_are_started_again(diflow: Cli) -> None:
    made = SeenJob("job", learner=1)
    first = made.pod("learner-0").ready(2)
    assert first.pod is not None
    first.pod["metadata"]["name"] = "one"
    diflow.has(made)
    diflow.api.logs.update(one=[stamped(1, "first try")], two=[stamped(9, "second try")])

    def again() -> None:
        first.ends(5, code=1)
        second = made.pod("learner-0", created=7, counted=1).ready(8)
        assert second.pod is not None
        second.pod["metadata"] |= {"name": "two", "uid": "uid-two"}
        diflow.has(made)

    def end() -> None:
        made.pods[1].ends(20)
        diflow.has(made.ended(21))

    play(diflow, again, end)
    result = diflow("logs", "-f", "job")
    assert result.code == 0
    assert result.out.splitlines() == ["learner-0 | first try", "learner-0 | second try"]
    assert "learner-0: a new pod runs" in result.err


def test_a_follow_that_loses_its_connection_reads_on_without_saying_a_line_twice(
    diflow: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diflow.cli.logs._RECONNECT_SECONDS", 0.01)
    made = SeenJob("job", learner=1)
    pod = made.pod("learner-0").ready(2).pod
    assert pod is not None
    pod["metadata"]["name"] = "p"
    diflow.has(made)
    lines = [stamped(1, "one"), stamped(2, "two"), stamped(2, "two again"), stamped(3, "three")]
    streams = iter([[*lines[:2], CUT], lines[1:]])
    diflow.api.rule(lambda r: Answer(lines=next(streams, [])) if r.path.endswith("/log") else None)
    play(diflow, lambda: None, lambda: made.pods[0].ends(20), lambda: diflow.has(made.ended(21)))
    result = diflow("logs", "-f", "job")
    assert [line.partition("| ")[2] for line in result.out.splitlines()] == ["one", "two", "two again", "three"]
    asked = [r.query.get("sinceTime") for r in diflow.api.requests if r.path.endswith("/log")]
    assert asked == [None, "2026-01-02T03:04:02.000000Z"]


def test_a_followed_job_that_fails_ends_with_1_and_one_that_is_deleted_with_3(diflow: Cli) -> None:
    made = job()
    diflow.has(made)
    play(diflow, *life(diflow, made, phase="Failed"))
    assert diflow("logs", "-f", "job").code == 1
    diflow.has(job("other"))
    play(diflow, lambda: diflow.api.remove(WORKFLOW, "other"))
    assert diflow("logs", "-f", "other").code == 3


def test_a_pod_whose_logs_are_gone_is_passed_over(diflow: Cli) -> None:
    made = job()
    all_ready(made)
    diflow.has(made)
    diflow.api.rule(lambda r: status(404, "pods not found") if r.path.endswith("/log") else None)
    play(diflow, life(diflow, made)[1])
    assert diflow("logs", "-f", "job").code == 0
    result = diflow("logs", "job")
    assert result.code == 0
    assert "learner-0: its pod is gone, and its logs with it" in result.err


def test_what_is_followed_is_only_this_jobs(diflow: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    made = job()
    all_ready(made)
    all_end(made)
    diflow.has(made)
    selectors = [r.query.get("labelSelector") for r in _after(diflow.api, lambda: diflow("logs", "-f", "job"))]
    assert "workflows.argoproj.io/workflow=job" in selectors


def _after(api: FakeApi, act: Callable[[], Any]) -> list[Request]:
    before = len(api.requests)
    act()
    return [r for r in api.requests[before:] if r.path == POD.path("default")]


def test_a_cluster_that_goes_away_makes_the_job_unknown_until_it_is_back(
    diflow: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diflow.kube.api._BACKOFF_SECONDS", (0.3, 0.3))
    made = job()
    diflow.has(made)
    failures = iter(range(4))

    def rule(request: Request) -> Answer | None:
        watched = request.query.get("watch") and request.path.endswith("/workflows")
        if watched and next(failures, None) is not None:
            return status(503, "etcd is down")
        if watched and made.status["phase"] == "Running":
            threading.Timer(0.3, end).start()
        return None

    def end() -> None:
        all_ready(made)
        all_end(made)
        diflow.has(made)

    diflow.api.rule(rule)
    result = diflow("watch", "job")
    assert result.code == 0
    told = [line.split(maxsplit=2)[2] for line in result.out.splitlines() if line.split()[1] == "job"]
    assert any(text.startswith("Unknown: ") and "(HTTP 503: etcd is down)" in text for text in told), told
    assert told[-1] == "Succeeded: the job succeeded"
