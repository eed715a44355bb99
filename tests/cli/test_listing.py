"""get, list, describe, and their output formats."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml

from diflow.jobs import lookup
from diflow.jobs.dijobs import DIJOB
from diflow.kube.kinds import EVENT, POD, WORKFLOW
from diflow.record.health import HealthState
from tests.cli.placed import dijob, put
from tests.cli.runner import Cli, run
from tests.kube.fakeapi import status
from tests.record.seen import SeenJob, at


def running(name: str = "cartpole") -> SeenJob:
    job = SeenJob(name, learner=1, collector=2)
    job.pod("learner-0").ready(5, on="node-a")
    job.pod("collector-0").ready(6, on="node-b")
    job.pod("collector-1").placed(2, on="node-b").waiting("ImagePullBackOff", 'Back-off pulling image "none"')
    return job


def older(name: str, seconds: int) -> SeenJob:
    class Older(SeenJob):
        def workflow(self) -> dict[str, Any]:
            made = super().workflow()
            made["metadata"]["creationTimestamp"] = at(-seconds)
            return made

    return Older(name, learner=1).all_ready().ended(50)


def columns(out: str) -> list[list[str]]:
    return [line.split() for line in out.splitlines()]


def test_the_list_has_the_columns_of_di_orchestrator_and_the_newest_first(diflow: Cli) -> None:
    diflow.has(older("old", 5000), running())
    head, new, old = columns(diflow("list").out)
    assert head == ["NAME", "PHASE", "READY", "REPLICAS", "RESTARTS", "RESCHEDULES", "AGE"]
    assert new[:6] == ["cartpole", "Starting", "2", "3", "0", "0"]
    assert old[:6] == ["old", "Succeeded", "0", "1", "0", "0"]


def test_a_list_reads_no_pods(diflow: Cli) -> None:
    diflow.has(running())
    diflow("list")
    assert diflow.api.seen("GET", "/pods") == []


def test_workflows_that_are_not_diflows_are_not_listed(diflow: Cli) -> None:
    diflow.api.add(WORKFLOW, {"metadata": {"name": "somebodys"}, "spec": {}})
    result = diflow("list")
    assert (result.code, result.out) == (0, "")
    assert "there are no jobs in the namespace 'default' (-A shows all)" in result.err
    assert diflow("list", "-o", "json").out.strip().startswith("{")


def test_get_says_that_a_workflow_is_not_diflows(diflow: Cli) -> None:
    diflow.api.add(WORKFLOW, {"metadata": {"name": "somebodys"}, "spec": {}})
    result = diflow("get", "somebodys")
    assert result.code == 3
    assert "is not a diflow job: use `argo` for it" in result.err


def test_a_missing_job_is_not_found(diflow: Cli) -> None:
    for command in ("get", "describe", "logs", "watch", "wait", "suspend", "resume", "stop", "retry"):
        result = diflow(command, "nope")
        assert (result.code, result.out) == (3, ""), command
        assert "there is no job nope in the namespace 'default': `diflow list -A` shows all jobs" in result.err


def test_get_as_json_is_a_dijob_with_its_phases_in_their_order(diflow: Cli) -> None:
    diflow.has(running())
    job = json.loads(diflow("get", "cartpole", "-o", "json").out)
    assert (job["apiVersion"], job["kind"]) == ("diengine.opendilab.org/v2alpha1", "DIJob")
    assert job["metadata"]["name"] == "cartpole"
    assert [c["type"] for c in job["status"]["conditions"]] == ["Pending", "Starting"]
    assert job["status"]["taskStatus"] == {"learner": {"Running": 1}, "collector": {"Running": 1, "Pending": 1}}
    assert job["spec"]["tasks"][0]["name"] == "learner"


def test_get_as_yaml_is_the_same_data(diflow: Cli) -> None:
    diflow.has(running())
    as_json = json.loads(diflow("get", "cartpole", "-o", "json").out)
    assert yaml.safe_load(diflow("get", "cartpole", "-o", "yaml").out) == as_json


def test_several_jobs_are_a_list(diflow: Cli) -> None:
    diflow.has(running("a"), running("b"))
    data = json.loads(diflow("get", "a", "b", "-o", "json").out)
    assert data["kind"] == "List"
    assert [item["metadata"]["name"] for item in data["items"]] == ["a", "b"]


def test_names_alone_can_be_handed_on(diflow: Cli) -> None:
    diflow.has(running("a"), older("b", 60))
    assert diflow("list", "-o", "name").out == "a\nb\n"


def test_the_wide_form_says_why(diflow: Cli) -> None:
    diflow.has(running())
    out = diflow("list", "-o", "wide").out
    assert "NAMESPACE" in out
    assert "PRIORITY" in out
    assert "2 of 3 replicas ready; collector-1: ImagePullBackOff: image none (check the image" in out


def test_a_suspended_job_is_listed_as_such(diflow: Cli) -> None:
    asleep, over = running("asleep"), older("over", 60)
    asleep.spec["suspend"] = over.spec["suspend"] = True
    diflow.has(asleep, over)
    put(diflow, dijob("waits", {"worker": 1}), created=at(-100))
    put(diflow, dijob("held", {"worker": 1}), created=at(-110), suspend=True)
    found = {row[0]: row[1] for row in map(str.split, diflow("list").out.splitlines()[1:])}
    assert found == {
        "asleep": "Starting,Suspended",
        "over": "Succeeded",
        "waits": "Pending",
        "held": "Pending,Suspended",
    }
    assert diflow("get", "asleep").out.splitlines()[1].split()[1] == "Starting,Suspended"
    assert json.loads(diflow("get", "asleep", "-o", "json").out)["status"]["phase"] == "Starting"


def test_of_many_jobs_a_suspended_one_is_listed_as_such(diflow: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the metadata of gangs that wait is read then."""
    monkeypatch.setattr(lookup, "_MANY", 0)
    put(diflow, dijob("waits", {"worker": 1}))
    put(diflow, dijob("held", {"worker": 1}), suspend=True)
    put(diflow, dijob("runs", {"worker": 1}), at={"worker": ["a"]}, suspend=True)
    found = {row[0]: row[1] for row in map(str.split, diflow("list").out.splitlines()[1:])}
    assert found == {"waits": "Pending", "held": "Pending,Suspended", "runs": "Running,Suspended"}


def test_latest_is_the_newest_job(diflow: Cli) -> None:
    diflow.has(older("old", 5000), running(), older("older", 9000))
    assert diflow("get", "@latest", "-o", "name").out == "cartpole\n"


def test_latest_of_none_is_not_found(diflow: Cli) -> None:
    result = diflow("get", "@latest")
    assert result.code == 3
    assert "there is no job in the namespace 'default' yet" in result.err


def test_jobs_can_be_chosen_by_label(diflow: Cli) -> None:
    diflow.has(running())
    diflow("list", "-l", "diflow/priority=high")
    request = diflow.api.seen("GET", "/workflows")[-1]
    assert request.query["labelSelector"].startswith("app.kubernetes.io/managed-by=diflow,diflow/priority=high")


def test_describe_tells_all(diflow: Cli) -> None:
    diflow.has(running())
    diflow.api.add(
        EVENT,
        {
            "metadata": {"name": "e1", "creationTimestamp": at(3)},
            "type": "Warning",
            "reason": "Failed",
            "message": "Error: ImagePullBackOff",
            "lastTimestamp": at(4),
            "involvedObject": {"kind": "Pod", "name": "cartpole-collector-123"},
        },
    )
    diflow.api.add(
        EVENT,
        {"metadata": {"name": "e2", "creationTimestamp": at(3)}, "involvedObject": {"kind": "Pod", "name": "other-1"}},
    )
    out = diflow("describe", "cartpole").out
    lines = [line.split() for line in out.splitlines()]
    assert ["Phase:", "Starting"] in lines
    assert ["Ready:", "2", "of", "3"] in lines
    assert any(line[1:2] == ["Pending"] for line in lines)
    collector = next(line for line in lines if line[:1] == ["collector-1"])
    assert collector[:3] == ["collector-1", "2", "Waiting"]
    assert "node-b" in collector
    assert "pod/cartpole-collector-123" in out
    assert "pod/other-1" not in out


def test_describe_of_a_job_that_has_ended_counts_the_replicas_that_succeeded(diflow: Cli) -> None:
    job = SeenJob("job", learner=1).all_ready()
    job.pods[0].ends(8)
    diflow.has(job.ended(9))
    lines = [line.split() for line in diflow("describe", "job").out.splitlines()]
    assert ["Succeeded:", "1", "of", "1"] in lines
    assert not [line for line in lines if line[:1] == ["Ready:"]]


def test_describe_shows_each_message_once(diflow: Cli) -> None:
    pull = "Back-off pulling image registry.example.com/team/none"
    other = "mount of the volume data has failed: there is no such claim"
    made = SeenJob("job", learner=2, collector=3)
    for name, why in (("learner-0", other), ("learner-1", other), *((f"collector-{i}", pull) for i in range(3))):
        made.pod(name).placed(1).waiting("Waits", why)
    made.decided("wait", "waits for capacity: its gang needs 4 replicas at once and 2 fit now", seconds=1)
    made.labels["diflow/scheduling"] = "gang"
    diflow.has(made)
    for number in range(3):
        told(diflow, number, reason="Waiting", about="job", message="a message that is said three times")
    out = diflow("describe", "job").out
    assert [out.count(text) for text in (pull, other, "a message that is said three times (3 times)")] == [1, 1, 1]
    rows = {line.split()[0]: line.split("   ")[-1].strip() for line in out.splitlines() if line.startswith("  ")}
    assert rows["learner-0"] == f"Waits: {other}"
    assert rows["learner-1"] == "as learner-0"
    assert {rows[f"collector-{i}"] for i in range(3)} == {"see Message"}
    assert re.search("Starting +see Message", out)


def test_describe_lists_each_phase_once_however_often_the_job_was_in_it(diflow: Cli) -> None:
    made = SeenJob("job", backoff_limit=100, learner=1)
    for number in range(50):
        made.pod("learner-0", created=10 * number, counted=number).ready(10 * number + 2).ends(10 * number + 5, code=1)
    made.pod("learner-0", created=500, counted=50).ready(505)
    diflow.has(made)
    section = diflow("describe", "job").out.partition("Phases\n")[2].partition("\n\n")[0]
    assert [line.split()[1] for line in section.splitlines()[1:]] == ["Pending", "Starting", "Restarting", "Running"]


def gang() -> SeenJob:
    job = running().decided("resize", "grew from 2 to 3: node-b became free", seconds=4)
    job.labels["diflow/scheduling"] = "gang"
    return job


def told(
    diflow: Cli,
    number: int,
    *,
    reason: str,
    by: str = "diflow-allocator",
    about: str = "cartpole",
    message: str = "",
) -> None:
    diflow.api.add(
        EVENT,
        {
            "metadata": {"name": f"e{number}", "creationTimestamp": at(0)},
            "type": "Normal",
            "reason": reason,
            "message": message or f"message {number}",
            "lastTimestamp": at(number),
            "source": {"component": by},
            "involvedObject": {"kind": "Workflow", "name": about},
        },
    )


def test_describe_tells_what_the_allocator_decided_and_did(diflow: Cli) -> None:
    diflow.has(gang())
    for number in range(12, 0, -1):
        told(diflow, number, reason="Resized" if number % 2 else "Preempted")
    told(diflow, 13, reason="WorkflowRunning", by="workflow-controller")
    told(diflow, 14, reason="Admitted", about="other")
    out = diflow("describe", "cartpole").out
    assert re.search(r"^Allocator: +grew from 2 to 3: node-b became free \(\w+ ago\)$", out, re.MULTILINE)
    section = out.split("\nAllocator\n")[1].split("\n\n")[0].splitlines()
    assert [line.split()[1:] for line in section[1:]] == [
        ["Resized" if number % 2 else "Preempted", "message", str(number)] for number in range(3, 13)
    ]
    events = out.split("\nEvents\n")[1]
    assert "message 13" in events
    assert "Resized" not in events


def test_describe_tells_which_replicas_are_stalled_and_why_they_were_restarted(diflow: Cli) -> None:
    found = HealthState("1", at(5), "no step for 15m: cartpole-0", stalled=frozenset({0}), restarts=1, last="earlier")
    job = gang()
    job.annotations["diflow/health"] = found.text()
    diflow.has(job)
    out = diflow("describe", "cartpole").out
    assert re.search(r"^Health: +no step for 15m: cartpole-0 \(since \w+\)$", out, re.MULTILINE)
    assert re.search(r"^Last restart: +earlier$", out, re.MULTILINE)


def test_describe_tells_nothing_of_the_health_of_another_round(diflow: Cli) -> None:
    job = gang()
    job.annotations["diflow/health"] = HealthState("7", why="no step").text()
    diflow.has(job)
    assert "no step" not in diflow("describe", "cartpole").out


def test_describe_does_not_list_the_signs_of_life_of_each_rank(diflow: Cli) -> None:
    job = gang()
    job.profilings = '{"speed":5,"signals":{"at":1},"usage":{"cpu":[1.5,true,null]},"note":"a"}'
    diflow.has(job)
    out = diflow("describe", "cartpole").out
    assert "speed: 5" in out
    assert '  usage: {"cpu": [1.5, true, null]}' in out, "as JSON, and not as Python writes it"
    assert "  note: a" in out
    assert "signals" not in out


def test_describe_tells_nothing_of_an_earlier_job_of_the_same_name(diflow: Cli) -> None:
    diflow.has(gang())
    told(diflow, -60, reason="Admitted")
    told(diflow, -61, reason="WorkflowFailed", by="workflow-controller")
    told(diflow, 5, reason="Resized")
    out = diflow("describe", "cartpole").out
    assert "message 5" in out
    assert "message -6" not in out


def test_describe_without_the_right_to_see_events_says_so(diflow: Cli) -> None:
    diflow.has(gang())
    diflow.api.rule(lambda r: status(403, "no") if "/events" in r.path else None)
    result = diflow("describe", "cartpole")
    assert result.code == 0
    assert "Allocator\n  what it said is in the events, which you may not read" in result.out


def test_describe_of_a_job_that_the_allocator_left_alone_has_nothing_of_it(diflow: Cli) -> None:
    diflow.has(running())
    assert "Allocator" not in diflow("describe", "cartpole").out


def test_describe_of_a_job_whose_pods_may_not_be_seen_goes_by_the_workflow(diflow: Cli) -> None:
    diflow.has(running())
    diflow.api.rule(lambda r: status(403, "no") if "/pods" in r.path or "/events" in r.path else None)
    result = diflow("describe", "cartpole")
    assert result.code == 0
    assert "learner-0" in result.out
    assert "none (the cluster forgets them after an hour)" in result.out


def test_colours_are_written_only_where_they_are_wanted(diflow: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    diflow.has(running())
    assert "\x1b" not in diflow("list").out
    monkeypatch.setenv("FORCE_COLOR", "1")
    coloured = diflow("list").out
    assert "\x1b[33mStarting\x1b[0m" in coloured
    head, row = coloured.splitlines()
    assert row.replace("\x1b[33m", "").replace("\x1b[0m", "").index("2") == head.index("READY")
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in diflow("list").out


def test_a_cluster_that_does_not_answer_is_told_in_one_line(diflow: Cli) -> None:
    path = diflow.file("k", diflow.kubeconfig.read_text().replace(diflow.api.url, "http://127.0.0.1:1"))
    result = run("list", "--kubeconfig", path)
    assert result.code == 5
    assert result.err.startswith("error: no cluster answers at http://127.0.0.1:1 (connection refused): is it up?")
    assert result.err.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "args", "text"),
    [
        (None, (), "there is no kubeconfig at"),
        ("{", (), "cannot be used"),
        ("just text", (), "cannot be used"),
        ("{}", (), "cannot be used"),
        (None, ("--context", "nope"), "there is no kubeconfig at"),
    ],
)
def test_a_kubeconfig_that_cannot_be_used_says_so(
    diflow: Cli, content: str | None, args: tuple[str, ...], text: str
) -> None:
    path = diflow.file("k", content) if content is not None else str(diflow.folder / "missing")
    result = run("list", "--kubeconfig", path, *args)
    assert result.code == 5
    assert text in result.err
    assert result.err.count("\n") == 1


def test_a_context_that_does_not_exist_is_named(diflow: Cli) -> None:
    result = diflow("list", "--context", "nope")
    assert result.code == 5
    assert "nope" in result.err


def test_without_any_kubeconfig_the_way_out_is_told(diflow: Cli) -> None:
    result = run("list")
    assert result.code == 5
    assert "no cluster is known: there is no kubeconfig at" in result.err
    assert "make cluster" in result.err
    assert diflow.api.requests == []


def test_the_namespace_of_the_context_is_used_unless_another_is_given(diflow: Cli) -> None:
    text = diflow.kubeconfig.read_text().replace("namespace: default", "namespace: lab")
    diflow.kubeconfig.write_text(text)
    diflow("list")
    assert "/namespaces/lab/" in diflow.api.requests[-1].path
    diflow("list", "-n", "other")
    assert "/namespaces/other/" in diflow.api.requests[-1].path
    diflow("list", "-A")
    assert {request.path for request in diflow.api.requests[-2:]} == {WORKFLOW.path(None), DIJOB.path(None)}


def test_the_token_of_the_kubeconfig_is_sent(diflow: Cli) -> None:
    diflow("list")
    assert diflow.api.requests[-1].headers["Authorization"] == "Bearer secret-token"


def test_pods_belong_to_their_own_job(diflow: Cli) -> None:
    diflow.has(running("a"), running("a-b"))
    diflow("get", "a")
    assert diflow.api.seen("GET", POD.plural)[0].query["labelSelector"] == "workflows.argoproj.io/workflow=a"
