"""What the owners of jobs are told; a thousand jobs with problems hold up no decision on the jobs of others."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from diflow.allocator.reconcile.problems import MOST_AT_ONCE, Problems
from diflow.allocator.watch.cluster_state import ClusterState
from diflow.allocator.watch.job import Job
from diflow.allocator.write.patches import Note
from diflow.kube.kinds import WORKFLOW
from tests.allocator.lab import job as dijob
from tests.allocator.lab import lab, task
from tests.allocator.values import read


class Recorder:
    """Stands in for the executor: it keeps what it is to record."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    def record_events(self, events: Sequence[tuple[Job, Note, str]]) -> None:
        self.told += [(job.key, note.message) for job, note, _ in events]


def state(**problems: str) -> ClusterState:
    """Jobs by "namespace_name", with a problem each, or ""."""
    jobs = {}
    for name, problem in problems.items():
        found = read(problem=problem)
        namespace, _, own = name.partition("_")
        job = Job(replace(found, identity=replace(found.identity, namespace=namespace, name=own, uid=name)), ())
        jobs[job.key] = job
    return ClusterState(jobs, {}, ())


def test_each_problem_is_told_once_and_again_when_it_has_changed() -> None:
    recorder = Recorder()
    problems = Problems(recorder)  # type: ignore[arg-type]
    for found in ("no JSON", "no JSON", "", "no JSON", "another"):
        assert problems.report(state(a_one=found, a_two=""), {}) is False
    assert recorder.told == [("a/one", "no JSON"), ("a/one", "no JSON"), ("a/one", "another")]


def test_a_thousand_problems_are_told_a_few_at_a_time_and_those_of_other_namespaces_first() -> None:
    recorder = Recorder()
    problems = Problems(recorder)  # type: ignore[arg-type]
    many = state(**{f"evil_{i}": "no JSON" for i in range(1000)}, honest_one="its queue does not exist")
    assert problems.report(many, {}) is True
    assert len(recorder.told) == MOST_AT_ONCE
    assert ("honest/one", "its queue does not exist") in recorder.told
    cycles = 1
    while problems.report(many, {}):
        cycles += 1
    assert len(recorder.told) == len(set(recorder.told)) == 1001, "each of them is told once, in the end"
    assert cycles <= 1001 / MOST_AT_ONCE + 1


def test_the_daemon_goes_on_until_all_are_told() -> None:
    with lab() as at:
        at.cluster.node("a", cpu=4)
        for i in range(MOST_AT_ONCE + 4):
            at.cluster.submit(dijob(f"j{i}", task(replicas=1, cpu="100")))
            workflow = at.cluster.workflow(f"j{i}")
            workflow["metadata"]["annotations"]["diflow/dijob"] = json.dumps("none")
            at.api.add(WORKFLOW, workflow)
        at.until(
            lambda: all(any(reason == "Refused" for reason, _ in at.events(f"j{i}")) for i in range(MOST_AT_ONCE + 4)),
            "all are told",
        )
