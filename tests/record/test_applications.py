"""The memory of applications: how jobs teach it, and what of a text that anybody may have written is believed."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from diflow.common import keys, names
from diflow.common.limits import (
    MOST_APPLICATION_SHAPES,
    MOST_APPLICATION_WORKS,
    MOST_APPLICATIONS,
    MOST_APPLICATIONS_BYTES,
)
from diflow.record.job import record_of
from diflow.record.namespace import applications
from diflow.record.namespace.applications import BINS, Application, Batches, Lesson, learned

ROW = (1, 2, 32.0, 0.1, 0.15)


def taught(*lessons: Lesson, known: Application | None = None) -> Application:
    found = known or Application("resnet")
    for at, lesson in enumerate(lessons):
        found = learned(found, lesson, now_seconds=100.0 + at)
    return found


def test_what_a_job_has_shown_is_read_back_to_four_digits() -> None:
    lesson = Lesson(
        shapes=[ROW, (2, 8, 64.0, 0.2, 0.31)],
        noise={0: 2.5, 9: 7.0},
        work=123456.0,
        restart_seconds=31.5,
        batches=Batches(32, 32, 4096, 16, 256, accumulation=False),
        miss=0.1,
        uid="uid-1",
    )
    made = taught(lesson, known=Application("vision/resnet", "a100"))
    read = applications.parse(applications.text([made]))
    assert list(read) == [("vision/resnet", "a100")]
    (found,) = read.values()
    assert found.works == (123500.0,)
    assert (found.shapes, found.noise, found.restart_seconds) == (made.shapes, made.noise, 31.5)
    assert (found.batches, found.misses, found.jobs, found.taught) == (made.batches, 0.1, 1, ("uid-1",))
    assert applications.text([found]) == applications.text(read.values())


def test_times_are_means_of_the_jobs_of_which_the_last_eight_count() -> None:
    slow = taught(*[Lesson(shapes=[ROW])] * 3, Lesson(shapes=[(1, 2, 32.0, 0.1, 0.3)]))
    (shape,) = slow.shapes
    assert shape[4] == pytest.approx(0.15 * 2**0.25)
    many = taught(*[Lesson(shapes=[ROW])] * 50, *[Lesson(shapes=[(1, 2, 32.0, 0.1, 0.3)])] * 20)
    assert many.shapes[0][4] == pytest.approx(0.3, rel=0.08), "what is seen now replaces what has changed since"


def test_batch_sizes_within_a_doubling_are_one_shape() -> None:
    made = taught(
        Lesson(shapes=[(1, 2, 32.0, 0.1, 0.2)]), Lesson(shapes=[(1, 2, 63.0, 0.2, 0.4), (1, 2, 64.0, 0.2, 0.4)])
    )
    assert [round(shape[2]) for shape in made.shapes] == [45, 64]


def test_only_jobs_that_say_so_add_work_and_restarts() -> None:
    made = taught(Lesson(shapes=[ROW]), Lesson(work=-1.0, restart_seconds=0.0), Lesson(work=math.inf))
    assert (made.jobs, made.works, made.restart_seconds) == (3, (), None)


def test_a_running_job_adds_only_what_nobody_has_shown() -> None:
    made = taught(Lesson(shapes=[ROW], noise={0: 1.0}, batches=Batches(32)))
    seen = Lesson(shapes=[(1, 2, 32.0, 9.0, 9.0), (1, 4, 32.0, 0.1, 0.2)], noise={0: 9.0, 1: 2.0}, batches=Batches(64))
    more = applications.learned_while_running(made, seen, now_seconds=500.0)
    assert [shape[:2] for shape in more.shapes] == [(1, 2), (1, 4)]
    assert more.shapes[0] == made.shapes[0]
    assert more.noise[:2] == (1.0, 2.0)
    assert (more.jobs, more.batches, more.used_seconds) == (1, Batches(32), 500.0)
    assert applications.learned_while_running(more, seen, now_seconds=900.0) == more, "nothing is new: no write"


def test_a_record_is_bounded_in_every_list() -> None:
    rows = [(n, r, 2.0**b, 0.1, 0.2) for n in (1, 2) for r in range(2, 30) for b in range(6)]
    lesson = Lesson(shapes=rows, work=5.0, uid="u")
    made = taught(*[lesson] * 40)
    assert len(made.shapes) == MOST_APPLICATION_SHAPES
    assert len(made.works) == MOST_APPLICATION_WORKS
    assert len(made.taught) == 16


def test_of_too_many_applications_those_used_last_are_kept() -> None:
    rows = [(n, r, 2.0**b * 1.2345, 0.123456, 0.234567) for n in (1, 2) for r in range(2, 30) for b in range(6)]
    many = [taught(Lesson(shapes=rows), known=Application(f"app-{i:04d}", used_seconds=1000.0 + i)) for i in range(300)]
    text = applications.text(reversed(many))
    assert len(text) <= MOST_APPLICATIONS_BYTES
    found = list(applications.parse(text))
    assert 1 <= len(found) <= MOST_APPLICATIONS
    assert found == [(f"app-{i:04d}", "") for i in range(300 - len(found), 300)]


HOSTILE: list[Any] = [
    None, True, "x", -1, 0, 1e400, float("nan"), 10**400, [], {}, [[]], [None] * 20, {"a": 1}, "9" * 10_000,
    [[1, 1, 1, 1, 1, 1]] * 100, [["1", 2, 3, 4, 5, 6]], [[2, 1, 8, 0.1, 0.2, 1]], [[1, 1, 0, 0.1, 0.2, 1]],
    [[1, 1, 8, 0.1, 1e9, 1]], [[1, 1, 8, -5, 0.2, 1]], [1e16, -1, 0, "5"], [1e300] * 10, [-1e9] * BINS, "\ud800",
]  # fmt: skip


@pytest.mark.parametrize("field", ["name", "pool", "jobs", "used", "shapes", "noise", "works", "restart", "restarts",
                                   "batches", "accumulation", "misses", "taught"])  # fmt: skip
@pytest.mark.parametrize("value", HOSTILE)
def test_whatever_stands_in_a_line_the_record_is_usable_or_left_out(field: str, value: Any) -> None:
    line = json.dumps({"name": "a", "shapes": [[1, 1, 8, 0.1, 0.2, 3]], field: value})
    good = applications.text([taught(Lesson(shapes=[ROW]), known=Application("good"))])
    read = applications.parse(f"{line}\n{good}")
    assert ("good", "") in read, "one line spoils no other"
    for record in read.values():
        assert names.is_application(record.name)
        assert all(
            1 <= n <= r and b > 0 and 0 < own <= step < 1e6 and jobs >= 1 for n, r, b, own, step, jobs in record.shapes
        )
        assert all(value is None or -30 <= value <= 60 for value in record.noise)
        assert all(0 < work <= 1e15 for work in record.works)
        assert record.batches.initial >= 1
        again = taught(Lesson(shapes=[ROW], noise={3: 1.0}, work=5.0, restart_seconds=3.0, miss=0.1), known=record)
        assert applications.parse(applications.text([again]))


@pytest.mark.parametrize("text", ["", "\n\n", "{", "[]", "null", '{"name": "a"', "x" * 2_000_000, "[" * 100_000])
def test_a_text_that_is_no_memory_is_an_empty_one(text: str) -> None:
    assert applications.parse(text) == {}


def test_a_line_too_long_is_ignored() -> None:
    line = json.dumps({"name": "a", "pool": "x" * 20_000})
    assert applications.parse(line) == {}


def name(*, namespace: str = "ns", image: str = "r/rl:1", **given: Any) -> str:
    return applications.name_of(namespace=namespace, image=image, command=given.get("command", ["python3"]))


def named(value: Any) -> str:
    return record_of({"metadata": {"annotations": {keys.APPLICATION: value}}}).texts.application


def test_an_application_is_named_by_its_annotation() -> None:
    assert named("vision/resnet50") == "vision/resnet50"


@pytest.mark.parametrize("wrong", ["", " a", "a/", "-a", "ä", "a" * 101, "a\nb", 5, None])
def test_a_name_that_is_none_is_ignored(wrong: Any) -> None:
    assert named(wrong) == ""


def test_by_default_an_application_is_an_image_without_its_tag_a_command_and_a_namespace() -> None:
    assert name().startswith("rl-")
    assert name(image="r/rl:2") == name(image="r/rl@sha256:12") == name(image="r/rl") == name()
    assert name(image="r:5000/rl") == name(image="r:5000/rl:7") != name()
    assert name(namespace="other") != name()
    assert name(command=["python3", "-m", "other"]) != name()
    assert names.is_application(name(image=""))
    assert names.is_application(name(image="ä/ö:1", command=[{"a": 1}, None]))
