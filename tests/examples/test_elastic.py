"""The film of `make demo-elastic`, and its picture."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from diflow.kube.kinds import NODE, POD
from elastic.film import Film, Frame, Recorder, Seen, Told, seen
from elastic.picture import draw, label, texts
from tests.allocator.faults import eventually
from tests.kube.fakeapi import serving, status

JOBS, NODES = ("a", "b"), ("one", "two")


def frame(at: float, pods: str, nodes: frozenset[str] = frozenset(NODES)) -> Frame:
    """`pods`: words such as a1@one, with a ! after those that do not run."""
    made = []
    for word in pods.split():
        uid, _, node = word.rstrip("!").partition("@")
        made.append(Seen(uid, uid[0], node, not word.endswith("!")))
    return Frame(at, tuple(made), nodes)


def film(*frames: Frame) -> Film:
    return Film(JOBS, NODES, 2, list(frames))


def pod(name: str, *, job: str = "a", node: str = "one", phase: str = "Running", **changes: Any) -> dict[str, Any]:
    metadata = {
        "name": name,
        "uid": name,
        "labels": {"diengine/job": job, "diengine/operator": "diflow"},
        **changes.pop("metadata", {}),
    }
    return {"metadata": metadata, "spec": {"nodeName": node, **changes}, "status": {"phase": phase}}


def test_two_pods_never_share_a_place_and_a_place_that_is_free_is_used_again() -> None:
    bars = film(frame(0, "a1@one"), frame(1, "a1@one b1@one"), frame(2, "b1@one"), frame(3, "b1@one a2@one")).bars()
    assert [(bar.job, bar.slot, bar.start, bar.end) for bar in bars] == [
        ("a", 0, 0, 2.0), ("b", 1, 1, 4.0), ("a", 0, 3, 4.0),
    ]  # fmt: skip


def test_what_holds_a_place_counts_as_running_only_while_it_does() -> None:
    made = frame(0, "a1@one a2@one! a3@two")
    assert (made.running("a"), made.on("one", "a"), made.running("b")) == (2, 1, 0)


def test_work_is_replicas_times_seconds() -> None:
    assert film(frame(0, ""), frame(1, "a1@one a2@two"), frame(3, "a1@one"), frame(4, "")).replica_seconds("a") == 5.0


def test_a_node_that_is_away_is_noted_from_then_until_it_is_back() -> None:
    only = frozenset({"one"})
    made = film(
        frame(0, ""),
        frame(1, "", only),
        frame(3, ""),
        frame(4, "", frozenset({"two"})),
        frame(6, "", frozenset({"two"})),
    )
    assert made.absences() == [("one", 4, 6), ("two", 1, 3)]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (pod("p"), (True,)),
        (pod("p", phase="Pending"), (False,)),
        (pod("p", activeDeadlineSeconds=1), (False,)),
        (pod("p", metadata={"deletionTimestamp": "x"}), (False,)),
        (pod("p", phase="Succeeded"), ()),
        (pod("p", node="elsewhere"), ()),
        (pod("p", job="other"), ()),
    ],
)
def test_which_pods_are_seen_and_which_run(given: dict[str, Any], expected: tuple[bool, ...]) -> None:
    assert tuple(one.runs for one in seen([given], film())) == expected


def test_events_of_one_moment_are_one_text_with_the_numbers_of_their_messages() -> None:
    told = [
        Told(9.0, "a", "Resized", "8 → 4 replicas: 4 × worker; others need capacity"),
        Told(1.0, "a", "Admitted", "1 replica: 1 × worker"),
        Told(2.0, "a", "NodeLost", "4 of its pods were on one"),
        Told(60.0, "a", "Strange", ""),
    ]
    assert texts(told) == [(1.0, "admitted 1, node lost"), (9.0, "resized 8 → 4"), (60.0, "strange")]
    assert label(told[2]) == "node lost"


def test_the_recorder_looks_until_it_is_stopped_and_a_look_that_fails_is_left_out() -> None:
    with serving() as api:
        api.add(NODE, {"metadata": {"name": "one"}})
        api.add(POD, pod("p"))
        api.fail(status(403, "no"), path="pods")
        recorder = Recorder(api.cluster(), Film(JOBS, NODES, 2), namespace="default")
        recorder.start()
        eventually(lambda: recorder.film.frames, "a frame")
        recorder.stop()
        first = recorder.film.frames[0]
        assert (first.running("a"), first.nodes) == (1, frozenset({"one"}))
        now = datetime.fromtimestamp(recorder.began, UTC)
        recorder.tell("a", now.strftime("%Y-%m-%dT%H:%M:%SZ"), "Admitted")
        recorder.tell("a", "2020-01-01T00:00:00Z", "Admitted")
        assert [(one.job, one.at) for one in recorder.film.told] == [("a", 0.0)], "what is of another film is left out"


def test_a_picture_is_drawn_of_any_film_even_of_an_empty_one(tmp_path: Path) -> None:
    whole = film(
        frame(0, "a1@one"),
        frame(1, "a1@one a2@one a3@one a4@two b1@two!"),
        frame(2, "b1@two", frozenset({"two"})),
        frame(9, "b1@two"),
    )
    whole.told = [Told(at, "a", "Admitted", "8 replicas: x") for at in (0.0, 1.0, 4.0, 8.9)]
    for name, made in (("whole", whole), ("empty", film())):
        draw(made, tmp_path / f"{name}.png", title="A film")
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert not list(tmp_path.glob("*.part"))
