"""Users can edit the annotations that chain Workflows. Whatever these contain, each Workflow is visited once."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diflow.allocator.watch import cluster_state
from diflow.allocator.watch.cluster_state import ClusterState, assemble
from diflow.allocator.watch.records import planning_record_of
from diflow.common import keys
from diflow.common.limits import MOST_PARTS
from diflow.kube.kinds import WORKFLOW
from diflow.record.identity import Identity
from diflow.record.job import JobRecord
from diflow.record.pod import PodRecord
from tests.allocator import values
from tests.allocator.lab import Lab, job, lab, task

LINES_EACH = 150
"""The most executed lines of cluster_state.py for each Workflow and pod; an honest one takes about 40."""


@contextmanager
def bounded(objects: int) -> Iterator[None]:
    """Fails when more lines of the module are executed than this number of objects allows; it needs no clock."""
    left = LINES_EACH * (objects + 10)

    def count(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename != cluster_state.__file__:
            return None
        left -= event == "line"
        assert left > 0, f"more than {LINES_EACH} lines for each of {objects} objects"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        yield
    finally:
        sys.settrace(before)


def workflow(name: str, /, *, namespace: str = "ns", **fields: Any) -> JobRecord:
    return values.changed(
        values.read(), identity=Identity(namespace, name, f"uid-{name}", "1"), **{"name": name, **fields}
    )


def follows(name: str, before: str, /, *, uid: str = "", **fields: Any) -> JobRecord:
    return workflow(name, continues=before, continues_uid=uid or f"uid-{before}", **fields)


def pod(of: str, name: str = "") -> PodRecord:
    found = values.pod(on="a")
    return replace(
        found, identity=replace(found.identity, name=name or f"p-{of}", uid=f"uid-p-{name or of}"), job=f"ns/{of}",
        owner=f"uid-{of}",
    )  # fmt: skip


def seen(workflows: Sequence[JobRecord], pods: Sequence[PodRecord]) -> ClusterState:
    with bounded(len(workflows) + len(pods)):
        return assemble(workflows, [values.node("a")], pods)


MANY = 3000

SHAPES: dict[str, Callable[[], list[JobRecord]]] = {
    "itself": lambda: [follows("w0", "w0", part=10**18)],
    "a circle": lambda: [follows(f"w{i}", f"w{(i + 1) % MANY}", part=10**18) for i in range(MANY)],
    "a circle of those that agree": lambda: [
        follows(f"w{i}", f"w{(i + 1) % MANY}", part=10**18, continued_in=f"w{(i - 1) % MANY}") for i in range(MANY)
    ],
    "a chain": lambda: [
        workflow("w0", continued_in="w1"),
        *(follows(f"w{i}", f"w{i - 1}", part=i + 1, continued_in=f"w{i + 1}") for i in range(1, MANY)),
    ],
    "a chain that is not agreed to": lambda: [follows(f"w{i}", f"w{i - 1}", part=10**18) for i in range(MANY)],
    "a tail into a circle": lambda: [
        follows("w0", "w0", part=10**18, continued_in="w1"),
        *(follows(f"w{i}", f"w{i - 1}", part=10**18, continued_in=f"w{i + 1}") for i in range(1, MANY)),
    ],
    "a fork": lambda: [workflow("w0"), *(follows(f"w{i}", "w0", part=10**18) for i in range(1, MANY))],
    "a fork of what is gone": lambda: [follows(f"w{i}", "gone", part=10**18) for i in range(MANY)],
    "all of one name": lambda: [workflow(f"w{i}", name="one") for i in range(MANY)],
}


@pytest.mark.parametrize("shape", SHAPES)
def test_each_workflow_is_visited_once_however_they_name_each_other(shape: str) -> None:
    found = SHAPES[shape]()
    pods = [pod(read.identity.name) for read in found] + [pod("gone", f"left-{i}") for i in range(100)]
    shown = seen(found, pods)
    assert len(shown.jobs) == len(found)
    assert sum(len(made.old_pods) for made in shown.jobs.values()) <= len(pods), "a pod is left behind by one job"


names = st.sampled_from([f"w{i}" for i in range(6)])
spaces = st.sampled_from(["ns", "other"])


@st.composite
def written(draw: st.DrawFn) -> list[JobRecord]:
    """Workflows whose annotations name each other at random."""
    out = {}
    for _ in range(draw(st.integers(1, 12))):
        name, space = draw(names), draw(spaces)
        continues = draw(st.one_of(st.just(""), names))
        made = workflow(
            name,
            namespace=space,
            name=draw(st.one_of(st.just(name), names)),
            part=draw(st.sampled_from([1, 2, 10**18])),
            continues=f"{draw(spaces)}/{continues}" if continues else "",
            continues_uid=draw(st.sampled_from(["", f"uid-{continues}", "uid-foreign"])),
            continued_in=draw(st.one_of(st.just(""), names)),
        )
        out[made.key] = made
    return list(out.values())


@pytest.mark.slow
@given(written(), st.lists(names))
def test_whatever_they_name_titles_are_unique_and_no_pod_counts_twice(
    found: list[JobRecord], owners: list[str]
) -> None:
    pods = [pod(owner, f"p{i}") for i, owner in enumerate(owners)]
    shown = seen(found, pods)
    planned = [made.title for made in shown.jobs.values() if not made.is_superseded]
    assert len(planned) == len(set(planned)), "a snapshot needs one of each name"
    for made in shown.jobs.values():
        assert made.before is not made.read
        assert not {p.identity.uid for p in made.old_pods} & {p.identity.uid for p in made.pods}
    left = [p.identity.uid for made in shown.jobs.values() for p in made.old_pods]
    assert len(left) == len(set(left))


def test_a_chain_that_is_agreed_to_is_followed_to_its_first_part() -> None:
    chain = [
        workflow("long", continued_in="long-s2"),
        follows("long-s2", "long", name="long", part=2, continued_in="long-s3"),
        follows("long-s3", "long-s2", name="long", part=3),
    ]
    shown = seen(chain, [pod("long"), pod("long-s2"), pod("long-s3")])
    assert [p.job for p in shown.jobs["ns/long-s3"].old_pods] == ["ns/long-s2", "ns/long"]
    assert [made.title for made in shown.jobs.values()] == ["ns/long"] * 3


def test_pods_of_a_part_that_is_gone_are_waited_for() -> None:
    shown = seen([follows("long-s2", "long", part=2)], [pod("long"), replace(pod("long", "other"), owner="uid-new")])
    assert [p.identity.name for p in shown.jobs["ns/long-s2"].old_pods] == ["p-long"]


@pytest.mark.parametrize("text", ["0", "01", "-1", "²", "١", "1e3", str(MOST_PARTS + 1), "9" * 18, "9" * 5000, ""])
def test_a_number_of_a_part_that_diflow_does_not_write_is_none(text: str) -> None:
    with lab(begin=False) as at:
        at.cluster.submit(job("one"))
        obj = at.cluster.workflow("one")
        obj["metadata"]["labels"][keys.PART] = text
        assert planning_record_of(obj).chain.part == 1
        obj["metadata"]["labels"][keys.PART] = str(MOST_PARTS)
        assert planning_record_of(obj).chain.part == MOST_PARTS


def continue_itself(at: Lab, name: str) -> None:
    """A user lets a job name itself as its predecessor."""
    metadata = at.cluster.workflow(name)["metadata"]
    change = {
        "metadata": {
            "annotations": {keys.CONTINUES: name, keys.CONTINUES_UID: metadata["uid"]},
            "labels": {keys.PART: "999999999999999999", keys.CHAIN: name},
        }
    }
    at.api.cluster().patch(WORKFLOW, name, change, namespace="default")


def test_beside_a_job_that_continues_itself_another_one_is_placed() -> None:
    with lab() as at:
        at.cluster.node("a", cpu=4)
        at.cluster.submit(job("strange", task(replicas=2), preemptible=True))
        at.until(lambda: len(at.cluster.running("strange")) == 2, "it runs")
        continue_itself(at, "strange")
        at.cluster.submit(job("one", task(replicas=2)))
        at.until(lambda: len(at.cluster.running("one")) == 2, "the other one runs", seconds=10)
