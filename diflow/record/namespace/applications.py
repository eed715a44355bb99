"""What the jobs of an application have shown: the memory of a namespace, from which the next job of it starts.

The allocator writes it as one text into a ConfigMap of the namespace, with a line of JSON for each application and pool
of nodes, the one that was used last at the bottom. The users of the namespace can edit it, as they can write what their
jobs report, so each line is checked as a report is, and a line that is no such record is ignored. Nothing in it is
needed: a job whose application is not recorded starts as if it were the first.

Pure; it imports neither Hera nor pydantic.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from diflow.common import names
from diflow.common.jsontext import lenient, wrong
from diflow.common.limits import (
    MOST_APPLICATION_SHAPES,
    MOST_APPLICATION_WORKS,
    MOST_APPLICATIONS,
    MOST_APPLICATIONS_BYTES,
)
from diflow.record.namespace import lines
from diflow.record.types import Moment

APPLICATIONS_KEY: Final = "applications"
"""The key of the ConfigMap's data with the text."""
BINS: Final = 10
"""Parts of a job's progress for which the gradient noise is kept."""
LEAST_NOISE: Final = -30.0
MOST_NOISE: Final = 60.0
"""Of the gradient noise, as a logarithm."""
MEMORY: Final = 8
"""Of the jobs before, at most so many count: what is seen now replaces what has changed since."""

_LONGEST_IMAGE: Final = 40
_DIGITS: Final = 12
_LONGEST_POOL: Final = 63
_LONGEST_UID: Final = 64
_MOST_TAUGHT: Final = 16
_LONGEST_LINE: Final = 16_384
_MOST: Final = 10**9
_LARGEST: Final = 1e15
_SLOWEST: Final = 1e6
_LONGEST_RESTART: Final = 86_400.0

Shape = tuple[int, int, float, float, float, int]
"""Nodes, replicas, samples a replica, seconds without synchronisation, seconds of a step, jobs."""


@dataclass(frozen=True, slots=True)
class Batches:
    """The batch sizes of an application, as its last job reported them."""

    initial: int = 1
    least: int = 1
    most: int = 1
    local_least: int = 1
    local_most: int = 1
    accumulation: bool = True


@dataclass(frozen=True, slots=True)
class Application:
    """The record of an application on one pool of nodes.

    `jobs`: how many have taught it something; `used_seconds`: the end of the last of them, since 1970. `shapes`: times
    of steps. `noise`: the logarithm of gradient variance over squared norm in each tenth of the progress, None where it
    is unknown. `works`: the work of the last jobs that succeeded, in iterations of the initial batch size.
    `restart_seconds`: from SIGTERM to the first step of the next round, None if unknown. `misses`: by how much the
    record was wrong about later jobs, as a logarithm, None before the second job. `taught`: the uids of the last
    Workflows that it has learned from, so that a new process learns from none of them again.
    """

    name: str
    pool: str = ""
    jobs: int = 0
    used_seconds: float = 0.0
    shapes: tuple[Shape, ...] = ()
    noise: tuple[float | None, ...] = (None,) * BINS
    works: tuple[float, ...] = ()
    restart_seconds: float | None = None
    restarts: int = 0
    batches: Batches = Batches()
    misses: float | None = None
    taught: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, str]:
        return (self.name, self.pool)


@dataclass(frozen=True, slots=True)
class Lesson:
    """What one job has shown. `shapes`: as in the record, with 1 job each. `noise`: as in the record, of the tenths of
    its progress that were seen. `work`: None unless the job succeeded and its work is known."""

    shapes: Sequence[tuple[float, ...]] = ()
    noise: Mapping[int, float] | None = None
    work: float | None = None
    restart_seconds: float | None = None
    batches: Batches | None = None
    miss: float | None = None
    uid: str = ""


def name_of(*, namespace: str, image: str, command: Sequence[Any]) -> str:
    """The application of a job that names none: by its image without the tag and the command of its elastic task. Two
    namespaces have no application in common."""
    bare = image.partition("@")[0]
    head, colon, tag = bare.rpartition(":")
    if colon and "/" not in tag:  # and not the port of the registry
        bare = head
    digest = hashlib.sha256(json.dumps([namespace, bare, [str(word) for word in command]]).encode()).hexdigest()
    last = re.sub(r"[^A-Za-z0-9._]+", "-", bare.rpartition("/")[2])[:_LONGEST_IMAGE].strip("-._")
    return f"{last or 'image'}-{digest[:_DIGITS]}"


def learned_while_running(known: Application, lesson: Lesson, *, now_seconds: float) -> Application:
    """The record with what a job that still runs has shown and no job before it: it teaches the rest when it ends."""
    there = {_shape_key(shape) for shape in known.shapes}
    made = (_shape([*row[:5], 1]) for row in lesson.shapes)
    fresh = {_shape_key(shape): shape for shape in made if shape is not None and _shape_key(shape) not in there}
    noise = [(lesson.noise or {}).get(at) if value is None else value for at, value in enumerate(known.noise)]
    found = replace(
        known,
        shapes=(*known.shapes, *fresh.values())[-MOST_APPLICATION_SHAPES:],
        noise=tuple(noise),
        batches=known.batches if known.jobs else lesson.batches or known.batches,
    )
    return found if found == known else replace(found, used_seconds=max(known.used_seconds, now_seconds))


def learned(known: Application, lesson: Lesson, *, now_seconds: float) -> Application:
    """The record after this job has ended."""
    weight = 1.0 / (min(known.jobs, MEMORY - 1) + 1)
    noise = list(known.noise)
    for at, value in (lesson.noise or {}).items():
        before = noise[at]
        noise[at] = value if before is None else before + weight * (value - before)
    restart, restarts = known.restart_seconds, known.restarts
    if lesson.restart_seconds is not None and 0 < lesson.restart_seconds <= _LONGEST_RESTART:
        part = 1.0 / (min(restarts, MEMORY - 1) + 1)
        restart = _mean(restart or lesson.restart_seconds, lesson.restart_seconds, part)
        restarts = min(restarts + 1, _MOST)
    misses = known.misses
    if lesson.miss is not None and math.isfinite(lesson.miss):
        misses = lesson.miss if misses is None else misses + (lesson.miss - misses) / 4
    works = (*known.works, lesson.work) if lesson.work is not None and 0 < lesson.work < _LARGEST else known.works
    return replace(
        known,
        jobs=min(known.jobs + 1, _MOST),
        used_seconds=max(known.used_seconds, now_seconds),
        shapes=_shapes(known.shapes, lesson.shapes),
        noise=tuple(noise),
        works=works[-MOST_APPLICATION_WORKS:],
        restart_seconds=restart,
        restarts=restarts,
        batches=lesson.batches or known.batches,
        misses=misses,
        taught=(*known.taught, lesson.uid)[-_MOST_TAUGHT:] if lesson.uid else known.taught,
    )


def _shapes(known: Sequence[Shape], seen: Iterable[tuple[float, ...]]) -> tuple[Shape, ...]:
    """The shapes with those of one more job. One is kept for each number of nodes and replicas and each doubling of the
    batch size; of too many those stay that were seen last."""
    out = {_shape_key(shape): shape for shape in known}
    for row in seen:
        made = _shape([*row[:5], 1])
        if made is None:
            continue
        before = out.pop(_shape_key(made), None)
        if before is not None:
            part = 1.0 / (min(before[5], MEMORY - 1) + 1)
            means = [_mean(old, new, part) for old, new in zip(before[2:5], made[2:5], strict=True)]
            made = (made[0], made[1], means[0], min(means[1], means[2]), means[2], min(before[5] + 1, _MOST))
        out[_shape_key(made)] = made
    return tuple(out.values())[-MOST_APPLICATION_SHAPES:]


def _shape_key(shape: Shape) -> tuple[int, int, int]:
    return shape[0], shape[1], math.floor(math.log2(shape[2]) + 1e-9)


def _mean(before: float, now: float, part: float) -> float:
    """The mean of the logarithms, in which `now` counts as `part`."""
    return math.exp((1 - part) * math.log(before) + part * math.log(now))


def text_of(config_map: Mapping[str, Any] | None) -> str:
    """The record in a ConfigMap, "" if it has none."""
    return lines.text_of(config_map, APPLICATIONS_KEY)


def parse(text: str) -> dict[tuple[str, str], Application]:
    """The records by name and pool, the one that was used last at the end. Only as much of the text is read as the
    allocator would write."""
    read = lines.records(text, _read_line, most=MOST_APPLICATIONS, most_bytes=MOST_APPLICATIONS_BYTES)
    return {found.key: found for found in map(_application, read)}


def text(applications: Iterable[Application]) -> str:
    """The text of these records; of too many, those that were used last."""
    ordered = sorted(applications, key=lambda one: (one.used_seconds, one.key))
    return lines.joined(map(_record, reversed(ordered[-MOST_APPLICATIONS:])), most_bytes=MOST_APPLICATIONS_BYTES)


def _record(application: Application) -> dict[str, Any]:
    batches = application.batches
    return {
        "name": application.name,
        "pool": application.pool,
        "jobs": application.jobs,
        "used": round(application.used_seconds),
        "shapes": [[n, r, *(_short(value) for value in (batch, own, step)), jobs]
                   for n, r, batch, own, step, jobs in application.shapes],
        "noise": [None if value is None else round(value, 3) for value in application.noise],
        "works": [_short(work) for work in application.works],
        "restart": None if application.restart_seconds is None else _short(application.restart_seconds),
        "restarts": application.restarts or None,
        "batches": [batches.initial, batches.least, batches.most, batches.local_least, batches.local_most],
        "accumulation": batches.accumulation,
        "misses": None if application.misses is None else round(application.misses, 3),
        "taught": list(application.taught) or None,
    }  # fmt: skip


def _short(value: float) -> float:
    """Four digits: the jobs differ by more."""
    return float(f"{value:.4g}")


_Times = Annotated[int, Meta(ge=1, le=_MOST)]
_Noise = Annotated[float, Meta(ge=LEAST_NOISE, le=MOST_NOISE)]


class _Line(Struct, frozen=True):
    """A record as its line has it."""

    name: str
    pool: str = ""
    jobs: _Times = 0
    used: Moment = 0.0
    shapes: tuple[tuple[float, float, float, float, float, float], ...] = ()
    noise: Annotated[tuple[_Noise | None, ...], Meta(min_length=BINS, max_length=BINS)] = (None,) * BINS
    works: tuple[Annotated[float, Meta(gt=0, le=_LARGEST)], ...] = ()
    restart: Annotated[float, Meta(gt=0, le=_LONGEST_RESTART)] | None = None
    restarts: _Times = 0
    batches: tuple[_Times, _Times, _Times, _Times, _Times] = (1, 1, 1, 1, 1)
    accumulation: bool = True
    misses: Annotated[float, Meta(ge=0, le=30)] | None = None
    taught: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not names.is_application(self.name):
            raise wrong("name", "is none of an application")


_read_line: Final = lenient(_Line, most_characters=_LONGEST_LINE)


def _application(line: _Line) -> Application:
    return Application(
        name=line.name,
        pool=line.pool[:_LONGEST_POOL],
        jobs=line.jobs,
        used_seconds=line.used,
        shapes=tuple(filter(None, map(_shape, line.shapes[-MOST_APPLICATION_SHAPES:]))),
        noise=line.noise,
        works=line.works[-MOST_APPLICATION_WORKS:],
        restart_seconds=line.restart,
        restarts=line.restarts if line.restart is not None else 0,
        batches=Batches(*line.batches, line.accumulation),
        misses=line.misses,
        taught=tuple(uid[:_LONGEST_UID] for uid in line.taught[-_MOST_TAUGHT:]),
    )


def _shape(row: Sequence[float]) -> Shape | None:
    """A shape in which everything is possible; None for anything else."""
    nodes, replicas, batch, own, step, jobs = row
    if not (1 <= nodes <= replicas <= 1e6 and 0 < batch <= 1e9 and 1e-7 < step < _SLOWEST and own < _SLOWEST):
        return None
    return int(nodes), int(replicas), batch, min(max(own, 1e-7), step), step, int(min(max(jobs, 1), _MOST))
