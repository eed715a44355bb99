"""The live view: the content of the screen, drawn into a buffer as in a terminal."""

from __future__ import annotations

import io
from datetime import datetime

from rich.console import Console, RenderableType

from diflow.cli.views.live import Page, page, show_live
from diflow.jobs.follow import FollowedJob
from diflow.kube.kinds import WORKFLOW
from tests.cli.runner import Cli, play
from tests.record.seen import SeenJob, at


def busy() -> SeenJob:
    job = SeenJob("cartpole", learner=1, collector=2)
    job.pod("learner-0").ready(5, on="node-a")
    job.pod("collector-0").ready(6, on="node-b").ends(20, code=1)
    job.pod("collector-0", created=22, counted=1).placed(23, on="node-c")
    return job


def snapshot(job: SeenJob) -> FollowedJob:
    return FollowedJob(job.workflow(), tuple(job.all_pods()))


def drawn(thing: RenderableType, *, width: int = 120) -> list[str]:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(thing)
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_the_view_has_the_job_its_replicas_and_what_happened_last() -> None:
    now = datetime.fromisoformat(at(30))
    lines = drawn(page(snapshot(busy()), [("03:04:22", "collector-0", "Pending")], now=now))
    assert lines[0] == "cartpole  Restarting  1/3 ready  restarts 1  reschedules 0  30s"
    assert lines[1] == "collector-0 failed: Error (exit code 1); it restarts (1 of 3)"
    assert lines[3].split() == ["REPLICA", "RANK", "STATE", "RESTARTS", "RESCHEDULES", "NODE", "AGE", "MESSAGE"]
    assert lines[4].split() == ["learner-0", "0", "●", "Running", "0", "0", "node-a", "30s"]
    assert lines[5].split() == ["collector-0", "1", "○", "Pending", "1", "0", "node-c", "8s"]
    assert lines[6].split()[:4] == ["collector-1", "2", "◌", "Waiting"]
    assert lines[-1] == "03:04:22  collector-0  Pending"


def test_the_view_of_a_job_that_has_ended_counts_the_replicas_that_succeeded() -> None:
    job = SeenJob("cartpole", learner=1, collector=1).all_ready()
    job.pods[0].ends(8)
    job.pods[1].ends(9, code=1)
    lines = drawn(page(snapshot(job.ended(10, "Failed")), [], now=datetime.fromisoformat(at(30))))
    assert lines[0] == "cartpole  Failed  1/2 succeeded  restarts 0  reschedules 0  10s"


def test_the_view_fits_a_narrow_terminal() -> None:
    job = busy()
    job.pod("collector-1", created=1).unschedulable("0/1 nodes are available: " + "insufficient cpu, " * 20)
    assert all(len(line) <= 80 for line in drawn(page(snapshot(job), [], now=datetime.fromisoformat(at(9))), width=80))


def test_texts_of_a_job_are_shown_as_they_are_and_steer_nothing() -> None:
    job = busy()
    job.pod("collector-1", created=1).unschedulable("[/no] :bug: \x1b]0;owned\x07")
    job.pods[0].node["hostNodeName"] = "[/no]\x1b[2J"
    assert job.pods[0].pod is not None
    job.pods[0].pod["spec"]["nodeName"] = "[/no]\x1b[2J"
    lines = "\n".join(
        drawn(page(snapshot(job), [("now", "job", "\x1b[2J")], now=datetime.fromisoformat(at(9))), width=200)
    )
    assert "[/no] :bug: " in lines
    assert not {"\x1b", "\x07"} & set(lines)


def test_only_changes_are_remembered() -> None:
    view = Page("cartpole")
    assert "reading" in drawn(view)[0]
    job = busy()
    view.show(snapshot(job))
    view.show(snapshot(job))
    assert [what for _, _, what in view.happened] == [
        "Restarting: collector-0 failed: Error (exit code 1); it restarts (1 of 3)"
    ]
    job.pods[2].ready(30)
    view.show(snapshot(job))
    assert [who for _, who, _ in view.happened] == ["cartpole", "cartpole", "collector-0"]


def test_a_live_view_ends_with_the_job(diflow: Cli) -> None:
    job = SeenJob("job", learner=1).all_ready()
    diflow.has(job)

    def end() -> None:
        job.pods[0].ends(8)
        diflow.has(job.ended(9))

    play(diflow, end)
    out = io.StringIO()
    console = Console(file=out, width=100, force_terminal=True)
    status = show_live(diflow.api.cluster(), "job", limit=20, console=console)
    assert status is not None
    assert status.phase == "Succeeded"
    assert "the job succeeded" in out.getvalue()


def test_a_live_view_ends_when_the_job_is_deleted(diflow: Cli) -> None:
    diflow.has(SeenJob("job", learner=1).all_ready())
    play(diflow, lambda: diflow.api.remove(WORKFLOW, "job"))
    console = Console(file=io.StringIO(), width=100, force_terminal=True)
    assert show_live(diflow.api.cluster(), "job", limit=20, console=console) is None
