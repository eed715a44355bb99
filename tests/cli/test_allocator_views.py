"""`diflow queue`, `top`, `explain` and `plan`: the cluster as the allocator sees it, with the reader's own rights."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from diflow.allocator.inspect import observer
from diflow.allocator.inspect.observer import look
from diflow.allocator.model.plan import Plan
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.policies.fit.policy import FitPolicy
from diflow.allocator.policies.settings import policy_settings
from diflow.allocator.run.process import candidate
from diflow.allocator.settings import AllocatorSettings
from diflow.cli.views.resources import amounts, shown
from diflow.cli.views.topview import picture
from diflow.common import keys
from diflow.common.words import quantity
from diflow.kube.kinds import CONFIG_MAP, NAMESPACE, POD, WORKFLOW
from diflow.record.exclusions import Exclusions
from tests.cli.placed import dijob, lease, lease_annotations, node, put, queues
from tests.cli.runner import Cli, run
from tests.kube.fakeapi import Answer, Request, status

_ROOT = Path(__file__).parents[2]
_QUEUES = """\
queues:
  - {name: vision, weight: 3, guarantee: {cpu: "2"}}
  - {name: speech, cap: {cpu: "6"}}
  - {name: speech-small, parent: speech}
"""


def ago(seconds: float) -> str:
    return (datetime.now(UTC) - timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


@pytest.fixture
def busy(diflow: Cli) -> Cli:
    """Two nodes of 8 cores, a job on both, one that waits, one that is held, one that Argo alone runs."""
    node(diflow, "a")
    node(diflow, "b")
    node(diflow, "c", closed=True)
    lease(diflow, holder="somebody")
    speed = json.dumps({"speed": 1234.5, "replicas": 4})
    runs = dijob("runs", {"learner": 1, "worker": (1, 3, 6)}, cpu="2", preemptible=True, priority="high")
    put(diflow, runs, at={"learner": ["a"], "worker": ["a", "a", "b"]}, profilings=speed, created=ago(600))
    put(diflow, dijob("big", {"worker": 12}), decided=("wait", "waits for capacity: 12 at once"), created=ago(200))
    put(diflow, dijob("high", {"worker": 11}, priority="high"), created=ago(30))
    put(diflow, dijob("alone", {"worker": 2}, scheduling="none"), at={"worker": ["b", "b"]})
    return diflow


def rows(text: str) -> list[list[str]]:
    return [re.split(r"\s{3,}", line) for line in text.splitlines() if line]


def no_right(what: str) -> Answer:
    return status(403, f'User "jane" cannot list resource "{what}" in API group "" at the cluster scope')


def test_a_cluster_without_queues_has_one_and_the_waiting_jobs_stand_in_their_order(busy: Cli) -> None:
    result = busy("queue")
    assert (result.code, result.err) == (0, "")
    head, default, waits, first, second = rows(result.out)
    assert head == ["QUEUE", "WEIGHT", "RUNNING", "WAITING", "DESERVED", "ALLOCATED", "PENDING"]
    # Two of the 16 cores belong to a job of Argo's own.
    assert default == ["default", "1", "1", "2", "cpu 14, memory 30Gi", "cpu 8, memory 4Gi", "cpu 29, memory 26Gi"]
    assert waits == ["#", "JOB", "QUEUE", "PRIORITY", "REPLICAS", "WAITS", "REASON"]
    assert first[:5] == ["1", "default/high", "default", "high", "11"]
    assert first[6] == "waits for the allocator (`diflow doctor` checks whether one runs)"
    assert [second[0], second[1], second[6]] == ["2", "default/big", "waits for capacity: 12 at once"]


def test_queues_show_their_weights_guarantees_caps_and_what_they_deserve(busy: Cli) -> None:
    queues(busy, _QUEUES)
    put(busy, dijob("seen", {"worker": 6}, queue="vision"), created=ago(5))
    put(busy, dijob("heard", {"worker": 8}, queue="speech-small"), created=ago(1))
    data = json.loads(busy("queue", "-o", "json").out)
    found = {row["name"]: row for row in data["queues"]}
    assert sorted(found) == ["speech", "speech-small", "vision"]
    assert found["vision"]["deserved"]["cpu"] == 6000
    assert found["speech-small"]["deserved"]["cpu"] == 6000
    assert (found["vision"]["guarantee"], found["speech"]["cap"]) == ({"cpu": 2000.0}, {"cpu": 6000.0})
    assert found["speech-small"]["parent"] == "speech"
    assert [row["name"] for row in data["waiting"]] == ["high", "big", "seen", "heard"]
    assert data["allocator"]["running"] is True
    table = busy("queue").out
    assert "PARENT" in table.splitlines()[0]
    assert "GUARANTEE" in table.splitlines()[0]
    assert yaml.safe_load(busy("queue", "-o", "yaml").out)["queues"] == data["queues"]


def test_a_queue_that_may_hold_nothing_shows_its_cap(busy: Cli) -> None:
    queues(busy, "queues: [{name: default, cap: {cpu: 0}}, {name: vision, cap: {cpu: 1}}]")
    caps = {line.split()[0]: line for line in busy("queue").out.splitlines() if line.strip()}
    assert caps["default"].endswith("cpu 0")
    assert caps["vision"].endswith("cpu 1")


def test_jobs_that_name_a_queue_which_is_not_there_are_told_below_the_table(busy: Cli) -> None:
    queues(busy, "queues: [{name: default}, {name: vision}]")
    assert json.loads(busy("queue", "-o", "json").out)["missing_queues"] == []
    put(busy, dijob("lost", {"worker": 2}, queue="nosuch"), at={"worker": ["a", "b"]}, created=ago(9))
    put(busy, dijob("waits", {"worker": 1}, queue="nosuch"), created=ago(5))
    text = busy("queue").out
    said = "queue nosuch does not exist: 2 jobs name it, 1 runs and 1 waits (default/lost, default/waits)"
    assert said in text.splitlines()
    (missing,) = json.loads(busy("queue", "-o", "json").out)["missing_queues"]
    assert missing == {
        "name": "nosuch",
        "allocated": {"cpu": 2000.0, "memory": 2048.0, "pods": 2.0},
        "running": 1,
        "waiting": 1,
        "jobs": ["default/lost", "default/waits"],
    }


def test_a_queue_that_a_job_names_where_none_is_defined_is_said_to_have_no_effect(busy: Cli) -> None:
    said = "spec.queue has no effect"
    assert said not in busy("queue").out
    assert said not in busy("explain", "big").out
    put(busy, dijob("lost", {"worker": 2}, queue="reserach"))
    put(busy, dijob("more", {"worker": 2}, queue="reserach"))
    line = "no queues are defined, and all jobs share one: spec.queue has no effect ('reserach' of 2 jobs)"
    assert busy("queue").out.splitlines().count(line) == 1
    note = "note: spec.queue 'reserach' has no effect: the administrator has defined no queues, and all jobs share one"
    assert busy("explain", "lost").out.splitlines().count(note) == 1
    queues(busy, "queues: [{name: default}, {name: research}]")
    assert "has no effect" not in busy("queue").out
    assert "its queue 'reserach' does not exist; did you mean 'research' in spec.queue?" in busy("explain", "lost").out


def test_queues_of_nonsense_and_unreadable_ones_are_told_and_all_else_is_shown(busy: Cli) -> None:
    queues(busy, "queues: [{name: a, weight: -1}]")
    result = busy("queue")
    assert result.code == 0
    assert "the queues cannot be understood" in result.err
    busy.api.rule(lambda r: no_right("configmaps") if "diflow-queues" in r.path else None)
    assert "the queues cannot be read, so none are shown: the user 'jane' lacks the right" in busy("queue").err


def test_jobs_of_one_namespace_keep_their_place_in_the_whole_queue(busy: Cli) -> None:
    put(busy, dijob("other", {"worker": 30}), namespace="team", created=ago(100))
    lines = rows(busy("queue", "-n", "team").out)[3:]
    assert [line[:2] for line in lines] == [["3", "team/other"]]
    assert busy("queue", "-o", "name").out.split() == ["default/high", "default/big", "team/other"]


def test_that_no_job_of_a_namespace_waits_names_it_and_says_whether_it_exists(busy: Cli) -> None:
    busy.api.add(NAMESPACE, {"metadata": {"name": "team"}})
    there, absent = busy("queue", "-n", "team"), busy("queue", "-n", "taem")
    assert there.out.splitlines()[-1] == "no job of namespace team waits"
    assert absent.out.splitlines()[-1] == "no job of namespace taem waits"
    assert "there is no namespace taem" in absent.err
    assert "there is no namespace" not in there.err
    busy.api.rule(lambda r: no_right("namespaces") if r.path.endswith("/namespaces/taem") else None)
    assert "there is no namespace" not in busy("queue", "-n", "taem").err


def test_held_and_suspended_jobs_say_so(busy: Cli) -> None:
    made = put(busy, dijob("broken", {"worker": 1}), created=ago(20))
    for parameter in made["spec"]["arguments"]["parameters"]:
        if parameter["name"] == "rounds":
            parameter["value"] = "nonsense"
    busy.api.add(WORKFLOW, made)
    put(busy, dijob("asleep", {"worker": 1}), suspend=True, created=ago(10))
    text = busy("queue").out
    assert "suspended (`diflow resume asleep` resumes it)" in text
    explained = busy("explain", "broken").out
    assert explained.startswith("default/broken is held\n"), "nothing is said of replicas that cannot be read"
    assert "it is held: the parameter rounds is not what diflow wrote" in explained
    # Only the metadata of a gang that waits is listed; `explain` reads the one that it is asked about as a whole.
    assert next(row for row in rows(text) if "default/broken" in row)[4] == "1"
    put(busy, dijob("naps", {"worker": 1}), at={"worker": ["b"]}, suspend=True)
    assert (
        "it is suspended: Argo starts no more of its pods until `diflow resume naps -n default`"
        in busy("explain", "naps").out
    )


def test_a_gang_that_its_node_check_sent_back_to_wait_says_so(busy: Cli) -> None:
    said = "its node check left out node a: product 0.9 s"
    put(busy, dijob("all", {"worker": 1}), at={"worker": [""]}, decided=("check", said), created=ago(9))
    put(busy, dijob("some", {"worker": 3}), at={"worker": ["", "b", "b"]}, decided=("check", said), created=ago(7))
    starts = ("admit", "starts: it gets 2 of 2")
    put(busy, dijob("pod", {"worker": 2}), at={"worker": ["", "b"]}, decided=starts, created=ago(8))
    text = busy("queue").out
    (waits,) = [row for row in rows(text) if "default/all" in row]
    assert waits[-1] == f"waits for a new place: {said}"
    assert f"default/some: 1 of 3 replicas waits for a new place: {said}" in text.splitlines()
    assert "default/pod: 1 of 2 replicas waits for a new place: its first place was taken back" in text.splitlines()
    data = json.loads(busy("queue", "-o", "json").out)
    assert [(row["name"], row["unplaced"]) for row in data["incomplete"]] == [("pod", 1), ("some", 1)]
    assert busy("queue", "-n", "other").out.count("waits for a new place") == 0
    assert said in _drawn(busy, 160)


def test_a_job_that_lost_replicas_with_a_node_says_so(busy: Cli) -> None:
    said = "no node has room for 1 of its 2 replicas, which lost their nodes"
    put(busy, dijob("some", {"worker": 2}), at={"worker": ["b", ""]}, decided=("wait", said))
    workflow = busy.api.objects[WORKFLOW.path("default")]["some"]
    annotations = {**workflow["metadata"]["annotations"]}
    # The pod has left the closed node, on which its place still is.
    annotations[keys.ALLOCATION] = json.dumps({"round": "1", "nodes": {"worker": ["b", "c"]}, "since": 1.0, "first": 1})
    busy.api.add(WORKFLOW, {**workflow, "metadata": {**workflow["metadata"], "annotations": annotations}})
    text = busy("queue").out
    assert f"default/some: 1 of 2 replicas waits for a new place: {said}" in text.splitlines()
    assert said in busy("describe", "some").out


@pytest.mark.parametrize("command", [("queue",), ("top",), ("explain", "big"), ("plan",)])
def test_a_missing_right_is_one_line_that_names_it(busy: Cli, command: tuple[str, ...]) -> None:
    """Of a user who may not list the pods of the own namespace; tests/cli/test_own_namespace.py has those who may."""
    busy.api.rule(lambda r: no_right("pods") if r.path.endswith(("/nodes", "/pods")) else None)
    if command == ("explain", "big"):
        assert "big waits for 12 replicas" not in busy(*command).out
    result = busy(*command)
    assert result.code == 5
    assert result.err.startswith("error: the user 'jane' lacks the right to list pods in the ")
    assert result.err.endswith(": ask the cluster's administrator for it (`diflow doctor` lists all that is needed)\n")


def test_one_look_lists_each_kind_once_gangs_that_wait_apart_and_writes_nothing(busy: Cli) -> None:
    busy("queue")
    lists = [r.path.rsplit("/", 1)[1] for r in busy.api.requests if "resourceVersion" not in r.query]
    assert sorted(lists) == ["diflow-allocator", "diflow-allocator", "diflow-queues", "nodes", "pods", "workflows"] or (
        sorted(set(lists)) == ["diflow-allocator", "diflow-queues", "nodes", "pods", "workflows"]
    )
    assert {r.method for r in busy.api.requests} == {"GET"}
    assert [lists.count(kind) for kind in ("nodes", "pods", "workflows")] == [1, 1, 2]


@pytest.mark.parametrize(
    ("holder", "renewed", "paused", "text"),
    [
        ("", "", "", "warning: no allocator runs: nothing is decided"),
        ("old", "2020-01-01T00:00:00Z", "", "warning: no allocator runs (old was last heard of "),
        ("one", "", "jane at noon: rack 3", "warning: PAUSED by jane at noon: rack 3 (the allocator runs (one))"),
    ],
)
def test_everybody_is_told_when_nobody_decides(busy: Cli, holder: str, renewed: str, paused: str, text: str) -> None:
    lease(busy, holder=holder, renewed=renewed, paused=paused)
    assert text in busy("queue").err
    assert text.removeprefix("warning: ") in " ".join(busy("top").out.split())
    assert text.removeprefix("warning: ") in busy("explain", "big").out


def test_whether_an_allocator_runs_is_not_known_to_who_may_not_read_its_lease(busy: Cli) -> None:
    busy.api.rule(lambda r: no_right("leases") if "/leases/" in r.path else None)
    result = busy("queue")
    assert result.code == 0
    assert "whether an allocator runs is not known: the user 'jane' lacks the right to list leases" in result.err


def test_top_shows_who_holds_what_where_and_how_many_replicas_run(busy: Cli) -> None:
    pending = busy.api.objects[POD.path("default")]["runs-worker-2"]
    busy.api.add(POD, {**pending, "status": {"phase": "Pending"}})
    data = json.loads(busy("top", "-o", "json").out)
    nodes = {row["name"]: row for row in data["nodes"]}
    assert nodes["a"]["jobs"] == {"default/runs": 3}
    assert nodes["b"]["jobs"] == {"default/runs": 1}
    assert nodes["c"]["state"] == "cordoned"
    assert (nodes["a"]["used"]["cpu"], nodes["b"]["used"]["cpu"]) == (6000, 4000)
    assert data["used"]["cpu"] == 10_000
    jobs = {row["name"]: row for row in data["jobs"]}
    runs = jobs["runs"]
    assert [runs[k] for k in ("low", "high", "desired", "granted", "observed", "pending")] == [2, 7, 4, 4, 3, 1]
    assert (runs["speed"], round(runs["share"], 3), runs["state"]) == (1234.5, round(8 / 14, 3), "starting")
    assert (jobs["big"]["state"], jobs["big"]["granted"]) == ("waiting", 0)
    assert "alone" not in jobs


def test_top_does_not_say_of_a_job_that_has_started_that_it_starts(busy: Cli) -> None:
    """After a node was lost: one job continues with fewer replicas, another has lost its place."""
    starts = ("admit", "starts: it gets 4 of the 8 replicas it asks for")
    less = dijob("less", {"worker": (2, 4, 8)}, preemptible=True)
    put(busy, less, at={"worker": ["a", "b"]}, decided=starts)
    put(busy, dijob("gone", {"worker": (2, 4, 8)}, preemptible=True), decided=starts)
    reasons = {row["name"]: row["why"] for row in json.loads(busy("top", "-o", "json").out)["jobs"]}
    assert (reasons["less"], reasons["gone"]) == ("", "waits for a new place")
    pending = busy.api.objects[POD.path("default")]["less-worker-1"]
    busy.api.add(POD, {**pending, "status": {"phase": "Pending"}})
    reasons = {row["name"]: row["why"] for row in json.loads(busy("top", "-o", "json").out)["jobs"]}
    assert reasons["less"] == starts[1], "until all of it runs"


def test_a_held_job_whose_pods_run_holds_room_and_does_not_wait(busy: Cli) -> None:
    made = put(busy, dijob("broken", {"worker": 1}), at={"worker": ["a"]})
    assert "2 jobs placed, 2 wait" in _drawn(busy, 160)
    for parameter in made["spec"]["arguments"]["parameters"]:
        if parameter["name"] == "granted":
            parameter["value"] = "nonsense"
    busy.api.add(WORKFLOW, made)
    assert "2 jobs placed, 2 wait" in _drawn(busy, 160)


def test_describe_says_why_a_job_is_held_and_not_what_was_decided_before(busy: Cli) -> None:
    made = put(
        busy, dijob("broken", {"worker": 1}), decided=("wait", "waits for capacity: 12 at once"), created=ago(20)
    )
    assert "Message:     waits for capacity: 12 at once\n" in busy("describe", "broken").out
    for parameter in made["spec"]["arguments"]["parameters"]:
        if parameter["name"] == "rounds":
            parameter["value"] = "nonsense"
    busy.api.add(WORKFLOW, made)
    text = busy("describe", "broken").out
    assert "Message:     held: the parameter rounds is not what diflow wrote" in text
    assert "waits for capacity" not in text


def _drawn(diflow: Cli, width: int, **options: Any) -> str:
    out = io.StringIO()
    Console(width=width, file=out, **options).print(picture(look(diflow.api.cluster()), width=width))
    return out.getvalue()


@pytest.mark.parametrize("width", [80, 160])
def test_the_picture_fits_into_its_width_and_loses_neither_jobs_nor_reasons(busy: Cli, width: int) -> None:
    text = _drawn(busy, width)
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width
    assert "runs ×3" in text
    assert re.search(r"runs +.*running +2-7 +4 +4 +- +57% +1.23k/s", text)
    assert re.search(r"big +.*waiting +12 +0 +0", text)
    assert "waits for capacity: 12 at once" in text
    assert "c (cordoned)" in text
    assert ("━" in text) is (width == 160)


def test_colours_are_left_out_where_nobody_wants_them(busy: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b[" in _drawn(busy, 100, force_terminal=True)
    monkeypatch.setenv("NO_COLOR", "1")
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", _drawn(busy, 100, force_terminal=True))
    assert "\x1b" not in busy("top").out


def test_many_idle_nodes_are_one_line(diflow: Cli) -> None:
    for i in range(50):
        node(diflow, f"idle-{i:02}")
    put(diflow, dijob("job", {"worker": 1}), at={"worker": ["idle-07"]})
    text = _drawn(diflow, 100)
    assert re.search(r"49 more +0/392 +0Mi/1.53Ti +no jobs", text)
    assert len(text.splitlines()) < 12


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_top_on_a_terminal_follows_the_cluster_until_ctrl_c(busy: Cli) -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": str(_ROOT), "COLUMNS": "120", "LINES": "40", "TERM": "xterm"}
    process = subprocess.Popen(
        [sys.executable, "-m", "diflow", "top", "--kubeconfig", str(busy.kubeconfig)],
        stdin=theirs, stdout=theirs, stderr=theirs, env=environment, cwd=busy.folder,
        # A shell that starts the tests in the background has them ignore Ctrl-C, and their children with them.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )  # fmt: skip
    os.close(theirs)
    shown = b""

    def until_it_shows(text: bytes) -> None:
        nonlocal shown
        deadline = time.monotonic() + 100
        while text not in shown:
            assert time.monotonic() < deadline, shown[-2000:].decode(errors="replace")
            if select.select([ours], [], [], 0.2)[0]:
                shown += os.read(ours, 65536)

    try:
        until_it_shows("runs ×3".encode())
        put(busy, dijob("late", {"worker": 1}), at={"worker": ["b"]})
        until_it_shows("late ×1".encode())
        assert len(busy.api.seen("GET", "/workflows")) <= 5, "it watches, and does not list again and again"
        process.send_signal(signal.SIGINT)
        deadline = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline:
            if select.select([ours], [], [], 0.1)[0]:
                with suppress(OSError):  # the other end is closed
                    os.read(ours, 65536)
        assert process.returncode == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def test_explain_tells_what_was_decided_what_would_be_now_and_who_waits_before(busy: Cli) -> None:
    lines = busy("explain", "big").out.splitlines()
    assert lines[0] == "default/big waits for 12 replicas; priority normal, queue default, not preemptible"
    assert re.fullmatch(r"decided \d+s ago: it waits for capacity: 12 at once", lines[1])
    assert lines[2] == "the allocator runs (somebody)"
    assert lines[3].startswith("now, policy fit would decide: it waits for capacity: ")
    assert any("1 cpu each" in line for line in lines)
    assert lines[-1] == "  1 job waits before it: default/high"
    assert busy("explain", "runs").out.startswith("default/runs has 4 of 2-7 replicas; ")


def test_explain_names_the_pods_that_are_in_the_way_and_says_never_only_of_what_no_empty_node_holds(busy: Cli) -> None:
    """Those of jobs that have ended or are held, of jobs that Argo alone runs, and of others."""
    over = put(busy, dijob("over", {"worker": 1}, cpu="5"), at={"worker": ["b"]})
    busy.api.add(WORKFLOW, {**over, "status": {**over["status"], "phase": "Failed", "finishedAt": ago(1)}})
    foreign = {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}], "nodeName": "b"}
    pod = {"metadata": {"name": "theirs", "uid": "theirs"}, "spec": foreign, "status": {"phase": "Running"}}
    busy.api.add(POD, pod, namespace="others")
    put(busy, dijob("wants", {"worker": 3}, cpu="6"))
    put(busy, dijob("huge", {"worker": 4}, cpu="6"))
    lines = busy("explain", "wants").out.splitlines()
    (now,) = [line for line in lines if line.startswith("now, policy fit would decide: ")]
    assert now.endswith(
        "it cannot start now: its gang needs 3 × worker, each 6 cpu, 1Gi memory, and 1 fit; b: other pods hold 8 cpu, "
        "c: it is closed"
    )
    (names,) = [line for line in lines if line.startswith("  in its way: ")]
    assert names == (
        "  in its way: default/over-worker-0 on b (of default/over, which has ended or is not the allocator's), "
        + "".join(
            f"default/alone-worker-{i} on b (of default/alone, which has ended or is not the allocator's), "
            for i in (0, 1)
        )
        + "others/theirs on b"
    )
    assert "cannot start on the nodes that are there: its gang needs 4 × worker" in busy("explain", "huge").out


def test_explain_names_the_nodes_that_are_left_out_for_the_job(busy: Cli) -> None:
    made = put(busy, dijob("away", {"worker": 1}))
    left_out = Exclusions().without("a", reason="worker-0: \x1b[2J", source="failure", now=time.time())
    made["metadata"]["annotations"][keys.EXCLUDED] = left_out.to_json()
    busy.api.add(WORKFLOW, made)
    out = busy("explain", "away").out
    assert "nodes left out for this job for up to 60 minutes: a (worker-0: " in out
    assert "\x1b" not in out
    assert "left out for this job" not in busy("explain", "big").out


def test_explain_claims_no_more_of_places_than_it_knows(busy: Cli) -> None:
    """Without a key, anyone with write access to a Workflow can write an allocation, and only pods prove it."""
    said = "its places are those in its Workflow; only the allocator can verify their signature"
    put(busy, dijob("forged", {"worker": 2}), at={"worker": ["a", "b"]})
    for name in [name for name in busy.api.objects[POD.path("default")] if name.startswith("forged")]:
        busy.api.remove(POD, name)
    assert busy("explain", "forged").out.splitlines()[1] == said
    assert said not in busy("explain", "runs").out
    assert said not in busy("explain", "big").out


def test_explain_says_what_the_pods_of_a_placed_job_wait_for(busy: Cli) -> None:
    made = put(busy, dijob("starts", {"worker": 2}), at={"worker": ["a", "b"]})
    made["status"] = {"phase": "Running", "nodes": {}}
    busy.api.add(WORKFLOW, made)
    for name in [name for name in busy.api.objects[POD.path("default")] if name.startswith("starts")]:
        busy.api.remove(POD, name)
    line = busy("explain", "starts").out.splitlines()[1]
    assert line.startswith(("Pending: ", "Starting: ")), line


def test_explain_of_jobs_about_which_nothing_is_decided(busy: Cli) -> None:
    assert "default/alone has scheduling: none: Argo alone runs it" in busy("explain", "alone").out
    made = put(busy, dijob("over", {"worker": 1}))
    busy.api.add(WORKFLOW, {**made, "status": {"phase": "Succeeded", "finishedAt": ago(1)}})
    assert busy("explain", "over").out == "default/over has ended (Succeeded): the job succeeded\n"
    assert busy("explain", "nobody").code == 3


def test_explain_of_jobs_that_stop_or_sleep(busy: Cli) -> None:
    put(busy, dijob("stops", {"worker": 1}), at={"worker": ["b"]}, shutdown="Terminate")
    assert "it is being stopped: a user asked for it" in busy("explain", "stops").out.splitlines()
    put(busy, dijob("asleep", {"worker": 1}), suspend=True)
    assert busy("explain", "asleep").out.splitlines()[-1] == "it is suspended (`diflow resume asleep` resumes it)"


class RaisesFor(FitPolicy):
    """Fails if the snapshot has this job, or for each snapshot."""

    def __init__(self, job: str = "") -> None:
        super().__init__(policy_settings())
        self.job = job

    def optimize(self, snapshot: Snapshot) -> Plan:
        if not self.job or self.job in snapshot.job_names:
            raise RuntimeError("as a test wants it")
        return super().optimize(snapshot)


def test_a_job_for_which_the_policy_fails_is_the_only_one_that_is_not_explained(
    busy: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observer, "load_policy", lambda _: RaisesFor("default/big"))
    (said,) = [line for line in busy("explain", "big").out.splitlines() if line.startswith("it is held: ")]
    assert "as a test wants it" in said
    assert "now, policy fit would decide: " in busy("explain", "high").out
    (line,) = [line for line in busy("plan").out.splitlines() if line.startswith("default/big: ")]
    assert line.startswith("default/big: held: ")
    assert "as a test wants it" in line
    assert list(json.loads(busy("plan", "-o", "json").out)["held"]) == ["default/big"]


def test_nothing_is_said_to_be_decided_if_the_policy_fails_whatever_the_jobs_are(
    busy: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observer, "load_policy", lambda _: RaisesFor())
    last = busy("explain", "big").out.splitlines()[-1]
    assert last.startswith("what would be decided now is not known: policy fit failed ")
    result = busy("plan")
    assert (result.code, "policy fit failed" in result.err) == (2, True)


def test_the_policy_is_that_of_the_clusters_allocator_unless_another_is_named(busy: Cli) -> None:
    said = {"metadata": {"name": "diflow-allocator"}, "data": {"policy": "fair", "scheduling": "gang"}}
    busy.api.add(CONFIG_MAP, said, namespace="kube-public")
    assert "now, policy fair would decide: " in busy("explain", "big").out
    assert "now, policy fit would decide: " in busy("explain", "big", "--policy", "fit").out
    assert busy("plan").out.startswith("policy fair: 3 jobs on 3 nodes")
    assert busy("plan", "--policy", "nope").code == 2


def test_who_leads_says_by_which_policy_it_decides(busy: Cli) -> None:
    """Whatever stands where everybody may read it: that is another file, which nobody may have changed with it."""
    said = {"metadata": {"name": "diflow-allocator"}, "data": {"policy": "fair", "scheduling": "gang"}}
    busy.api.add(CONFIG_MAP, said, namespace="kube-public")
    lease(busy)
    leader = candidate(busy.api.cluster(), AllocatorSettings(policy="goodput"))
    assert leader.try_acquire()
    assert "policy goodput)" in busy("explain", "big").out
    assert busy("plan").out.startswith("policy goodput: 3 jobs on 3 nodes")
    assert lease_annotations(busy)["diflow/policy"] == "goodput"
    leader.release()
    assert busy("plan").out.startswith("policy fair: 3 jobs on 3 nodes")


def test_who_leads_says_how_fast_its_pools_are(diflow: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `plan` is asked where the daemon's settings are not known; where none leads, those of here count."""
    monkeypatch.setenv("DIFLOW_ALLOCATOR_POLICY", "goodput")
    monkeypatch.setenv("DIFLOW_ALLOCATOR_POOL_LABEL", "kubernetes.io/hostname")
    monkeypatch.setenv("DIFLOW_ALLOCATOR_POOL_SPEED", '{"a": 5}')
    for name in ("a", "b", "c"):
        node(diflow, name)
    put(diflow, dijob("small", {"worker": (2, 2, 2)}, preemptible=True))

    def where() -> dict[str, dict[str, int]]:
        found: dict[str, dict[str, int]] = json.loads(diflow("plan", "-o", "json").out)["jobs"]["default/small"][
            "allocation"
        ]
        return found

    lease(diflow)
    assert where() == {"worker": {"a": 2}}
    speeds = {"c": 3.0, "a": 0.5}
    settings = AllocatorSettings(policy="goodput", pool_label="kubernetes.io/hostname", pool_speed=speeds)
    leader = candidate(diflow.api.cluster(), settings)
    assert leader.try_acquire()
    assert where() == {"worker": {"c": 2}}
    leader.release()
    assert where() == {"worker": {"a": 2}}


def test_a_job_that_fits_would_start_in_room_that_another_would_have_taken(busy: Cli) -> None:
    file = busy.file("job.yaml", dijob("small", {"worker": 2}, scheduling=None).to_manifest())
    result = busy("plan", "--simulate", file)
    assert (result.code, result.err) == (0, "")
    first, where, other = result.out.splitlines()
    assert first == "default/small would start: it gets 2 of the 2 replicas it asks for"
    assert re.fullmatch(r"  worker: 2 on [ab]", where)
    assert other.startswith("default/runs would grow from 4 to 6 instead of 7 replicas: ")
    assert {r.method for r in busy.api.requests} == {"GET"}


def test_a_job_of_high_priority_would_shrink_another(busy: Cli) -> None:
    busy.api.remove(WORKFLOW, "high")
    file = busy.file("job.yaml", dijob("urgent", {"worker": 3}, cpu="3", priority="high").to_manifest())
    data = json.loads(busy("plan", "--simulate", file, "-o", "json").out)
    assert data["policy"] == "fit"
    assert data["job"]["what"].startswith("would start")
    assert sum(data["job"]["allocation"]["worker"].values()) == 3
    (other,) = data["others"]
    assert (other["job"], other["holds"]) == ("default/runs", 4)
    assert other["after"] < 4
    assert f"default/runs would shrink from 4 to {other['after']} replicas: " in busy("plan", "--simulate", file).out


def test_a_job_that_is_too_large_would_wait_and_one_that_is_there_already_is_refused(busy: Cli) -> None:
    file = busy.file("job.yaml", dijob("big", {"worker": 100}).to_manifest())
    result = busy("plan", "--simulate", file)
    assert result.code == 4
    assert "there is a job default/big already: give this one another name with --name" in result.err
    assert "default/bigger would wait: " in busy("plan", "--simulate", file, "--name", "bigger").out


def test_a_plan_of_an_empty_cluster(diflow: Cli) -> None:
    node(diflow, "a")
    assert diflow("plan").out == "policy fit: 0 jobs on 1 node\n"
    file = diflow.file("job.yaml", dijob("job", {"worker": 2}).to_manifest())
    assert diflow("plan", "--simulate", file).out.splitlines()[-1] == "no other job changes"
    assert json.loads(diflow("plan", "-o", "json").out)["jobs"] == {}


def test_replay_shows_where_a_policy_would_decide_otherwise(diflow: Cli) -> None:
    from diflow.allocator.model.plan import keep_plan
    from diflow.allocator.run.journal import line

    node(diflow, "a")
    put(diflow, dijob("job", {"worker": 2}))
    snapshot = look(diflow.api.cluster()).picture.snapshot
    journal = diflow.folder / "journal"
    journal.write_text(f"{line(snapshot, keep_plan(snapshot, 'fit'))}\n")

    result = run("replay", str(journal))
    assert result.code == 0
    assert rows(result.out)[1][1:] == ["default/job", "wait with 0 replicas", "admit with 2 replicas"]
    assert result.err == "1 decision differs in 1 cycle under fit\n"
    data = json.loads(run("replay", str(journal), "--policy", "fair", "-o", "json").out)
    assert [(row["job"], row["policy"]) for row in data] == [("default/job", "fair")]
    assert run("replay", str(diflow.folder / "none")).code == 2
    journal.write_text("")
    assert run("replay", str(journal)).code == 2
    explained = run("simulate", "explain", "default/job", "--journal", str(journal.with_name("kubeconfig")))
    assert explained.code == 2


def test_simulate_hands_over_to_the_simulator() -> None:

    missing = run("simulate", "--policy", "fit")
    assert missing.code == 2
    assert "a simulation needs --workload CSV and --profiles DIR" in missing.err
    assert "--restart-seconds" in run("simulate", "--help").out
    for words in (["simulate"], ["simulate", "queue"], ["simulate", "explain"]):
        told = run(*words, "--help").out
        assert f"Usage: diflow {' '.join(words)} [OPTIONS]" in " ".join(told.split())
    assert "diflow simulate simulate" not in run("simulate", "--nodes", "many").err


@pytest.mark.parametrize(
    ("resource", "amount", "text"),
    [
        ("cpu", 1500, "1.5"), ("cpu", 250, "0.25"), ("cpu", 128_000, "128"), ("memory", 512, "512Mi"),
        ("memory", 1536, "1.5Gi"), ("memory", 262_144, "256Gi"), ("memory", 3 * 1024 * 1024, "3Ti"),
        ("nvidia.com/gpu", 8, "8"), ("cpu", 0, "0"),
    ],
)  # fmt: skip
def test_quantities_are_as_people_write_them(resource: str, amount: float, text: str) -> None:
    assert quantity(resource, amount) == text


def test_resources_that_nobody_asks_for_are_not_shown() -> None:
    there = ["ephemeral-storage", "hugepages-2Mi", "memory", "nvidia.com/gpu", "pods", "cpu", "hostport/80"]
    assert shown(there, asked={"nvidia.com/gpu": 1, "cpu": 2, "pods": 3}) == ["cpu", "nvidia.com/gpu"]
    assert amounts({"cpu": 2000, "nvidia.com/gpu": 0}, ["cpu", "nvidia.com/gpu"]) == "cpu 2"
    assert amounts({}, ["cpu"]) == "-"


def test_explain_asks_what_admission_makes_of_the_pods_of_a_job_that_waits(busy: Cli) -> None:
    words = 'violates PodSecurity "restricted:latest": seccompProfile'

    def secured(request: Request) -> Any:
        is_try = request.method == "POST" and request.path.endswith("/pods") and request.query.get("dryRun")
        return status(403, f'pods "x" is forbidden: {words}', reason="Forbidden") if is_try else None

    busy.api.rule(secured)
    put(busy, dijob("small", {"worker": 1}), created=ago(10))
    explained = " ".join(busy("explain", "small").out.split())
    assert f'would decide: it waits: the API server refuses its pods: "{words}"; set the fields' in explained
