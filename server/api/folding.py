"""Folds what the replicas of a job report into the one text that stands in its Workflow (the parameter `profilings`).

    {"round": "3", "at": seconds since 1970, "ranks": {"0": {"task": "worker", "speed": 100.0, "step": 7}, ...},
     "speed": 400.0, "replicas": 4, "nodes": 2, "batch": 32.0,
     "observed": [[nodes, replicas, samples a replica, seconds without sync, seconds a step], ...],
     "initBatchSize": 128, "gradParams": {"norm": 1.0, "var": 2.0}, "progress": 0.4, ...}

The allocator reads `speed`, `replicas`, `nodes`, `batch`, `observed` and the hints. The text is its own memory: what
was folded before is read from it, so that a server that was just started goes on where another one was. It is bounded:
the ranks, the rows and so the whole. It is pure.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from diflow.server.api.models import Hints, Profiling, validate
from diflow.state import untrusted

Json = dict[str, Any]

ROWS_KEPT: Final = 64
RANKS_KEPT: Final = 128
LONGEST: Final = 32_768
WHOLE: Final = -1
"""In the place of a rank: a report about several replicas together."""
HINTS: Final = -2
"""The same: hints of AdaptDL, beside what that replica reports otherwise."""
_LONGEST_NAME: Final = 63
_HIGHEST: Final = 1e18  # of anything that a replica reports (bytes of memory): see models.py
_HIGHEST_OF_ROW: Final = 1e9
_OF_RANK: Final = ("speed", "step", "batch", "stepSeconds", "syncSeconds", "memoryBytes")
_HINTS: Final = tuple(field.alias or name for name, field in Hints.model_fields.items())


@dataclass(frozen=True, slots=True)
class Shape:
    """How the job runs now: its round, and of its elastic task the number of replicas and of the nodes they are on.

    `replicas_of` has the number for every task.
    """

    round: str
    elastic: str
    nodes: int
    replicas_of: Mapping[str, int]

    @property
    def replicas(self) -> int:
        """Of the elastic task."""
        return max(1, self.replicas_of.get(self.elastic, 1))


@dataclass(frozen=True, slots=True)
class Report:
    """What one replica said last. `task` is its task; "" if somebody speaks for the whole job."""

    task: str
    body: Profiling | Hints


def fold(before: str, reports: Mapping[int, Report], shape: Shape, *, now: float) -> str:
    """The text after these reports (by rank, or WHOLE or HINTS), where `before` is what stands there.

    `now` is seconds since 1970.
    """
    said = untrusted.mapping(before)
    ranks = _known_ranks(said, shape)
    out = _known_hints(said)
    rows = _known_rows(said)
    fresh: set[tuple[float, ...]] = set()
    whole: Profiling | None = None
    for rank, report in sorted(reports.items()):
        body = report.body
        dumped = body.model_dump(by_alias=True, exclude_none=True)
        out |= {name: dumped[name] for name in _HINTS if name in dumped}
        if not isinstance(body, Profiling):
            continue
        for row in body.observed or []:
            told = [_short(number) for number in (row if body.is_whole else _of_elastic(row, body, shape))]
            _add_row(rows, told)
            fresh.add(_configuration(told))
        out |= {name: _short(dumped[name]) for name in ("progress",) if name in dumped}
        if body.is_whole:
            whole = whole or body
        elif mine := _of_rank(report.task, body):
            ranks[str(rank)] = {**ranks.get(str(rank), {}), **mine}
    if "progress" not in out and _within(said.get("progress"), 1):
        out["progress"] = said["progress"]
    out |= _whole(whole, shape) if whole is not None else _together(ranks, shape)
    if "perfParams" in out:  # which tell a speed only with the place that the job has
        out = {"replicas": shape.replicas, "nodes": min(shape.nodes, shape.replicas), **out}
    measured = _row(out, whole, ranks, shape)
    if measured is not None and _configuration(measured) not in fresh:
        _add_row(rows, measured)
    ranks = dict(sorted(ranks.items(), key=lambda item: int(item[0]))[:RANKS_KEPT])
    out = {"round": shape.round, "at": round(now, 3), "ranks": ranks, **out, "observed": rows[-ROWS_KEPT:]}
    text = _dump(out)
    while len(text) > LONGEST and (out["ranks"] or out["observed"]):
        out["observed"] = out["observed"][len(out["observed"]) // 2 + 1 :]
        out["ranks"] = dict(list(out["ranks"].items())[: len(out["ranks"]) // 2])
        text = _dump(out)
    return text


def written_at(text: str) -> float:
    """When the text was folded (seconds since 1970), 0 if it does not say."""
    at: Any = untrusted.mapping(text).get("at")
    return float(at) if _is_number(at) else 0.0


def _of_rank(task: str, body: Profiling) -> Json:
    """What is kept of one replica."""
    given = {
        "speed": body.speed,
        "step": body.step,
        "batch": body.batch,
        "stepSeconds": body.step_seconds,
        "syncSeconds": body.sync_seconds,
        "memoryBytes": body.memory_bytes,
    }
    kept = {name: _short(value) for name, value in given.items() if value is not None}
    return {"task": task, **kept} if kept else {}


def _whole(body: Profiling, shape: Shape) -> Json:
    """What somebody says of many replicas together."""
    replicas = body.replicas or shape.replicas
    out: Json = {"replicas": replicas, "nodes": min(body.nodes or shape.nodes, replicas)}
    if body.speed is not None:
        out["speed"] = _short(body.speed)
    elif body.step_seconds is not None and body.batch is not None:
        out["speed"] = _short(replicas * body.batch / body.step_seconds)
    if body.batch is not None:
        out["batch"] = _short(body.batch)
    return out


def _together(ranks: Mapping[str, Json], shape: Shape) -> Json:
    """The job's speed from those of its replicas: the sum over the task that speaks, as if all of it spoke.

    It is the elastic task, or if that says nothing the one of the lowest rank that does.
    """
    speaking = {int(rank): told for rank, told in ranks.items() if _speed(told) is not None}
    if not speaking:
        return {}
    tasks = {str(told.get("task") or "") for told in speaking.values()}
    task = shape.elastic if shape.elastic in tasks else str(speaking[min(speaking)].get("task") or "")
    mine = [told for told in speaking.values() if str(told.get("task") or "") == task]
    speeds = [speed for told in mine if (speed := _speed(told)) is not None]
    count = shape.replicas_of.get(task, 1)
    out: Json = {
        "speed": _short(math.fsum(speeds) / len(speeds) * max(1, count)),
        "replicas": shape.replicas,
        "nodes": min(shape.nodes, shape.replicas),
    }
    if batches := [float(told["batch"]) for told in mine if _is_number(told.get("batch"))]:
        # Samples a replica of the elastic task in a step, whoever measured it.
        out["batch"] = _short(math.fsum(batches) / len(batches) * max(1, count) / shape.replicas)
    return out


def _row(out: Json, whole: Profiling | None, ranks: Mapping[str, Json], shape: Shape) -> list[float] | None:
    """The measurement in a report, if there is one, as a row of `observed`."""
    speed = out.get("speed")
    if speed is None:
        return None
    batch = out.get("batch", 1.0)
    step = out["replicas"] * batch / speed
    if whole is not None:
        sync = whole.sync_seconds or 0.0
    else:
        told = [t for t in ranks.values() if t.get("task") == shape.elastic or len(ranks) == 1]
        syncs = [float(t["syncSeconds"]) for t in told if _is_number(t.get("syncSeconds"))]
        sync = math.fsum(syncs) / len(syncs) if syncs else 0.0
    if not 1e-7 < step < 1e6:
        return None
    return [out["nodes"], out["replicas"], batch, _short(max(1e-7, step - sync)), _short(step)]


def _of_elastic(row: list[float], body: Profiling, shape: Shape) -> list[float]:
    """A row that a replica measured, in which it counts all replicas of its job: those of the elastic task alone.

    How many nodes they are on, a replica does not know by itself; of the present number of replicas it is known here.
    """
    others = sum(shape.replicas_of.values()) - shape.replicas
    replicas = row[1] - others if row[1] > others else row[1]
    nodes = shape.nodes if body.nodes is None and replicas == shape.replicas else row[0]
    return [min(nodes, replicas), replicas, *row[2:]]


def _add_row(rows: list[list[float]], row: list[float]) -> None:
    """Put the newest measurement of a configuration in the place of the one before it."""
    same = _configuration(row)
    rows[:] = [known for known in rows if _configuration(known) != same]
    rows.append(row)


def _configuration(row: list[float]) -> tuple[float, ...]:
    """Nodes, replicas, samples a replica, and the pool of nodes."""
    return (row[0], row[1], row[2], row[5] if len(row) > 5 else 0)


def _known_ranks(said: Mapping[str, Any], shape: Shape) -> dict[str, Json]:
    """What the ranks of this round said before; of an earlier round they are others."""
    given = said.get("ranks")
    if said.get("round") != shape.round or not isinstance(given, dict):
        return {}
    known = {rank: _known_rank(told) for rank, told in given.items() if untrusted.whole(rank, digits=6) is not None}
    return {rank: told for rank, told in known.items() if told}


def _known_rank(told: Any) -> Json:
    """What a rank said before, as far as this server may have written it: others may write here, too."""
    if not isinstance(told, dict) or not isinstance(told.get("task"), str) or len(told["task"]) > _LONGEST_NAME:
        return {}
    return {"task": told["task"], **{name: told[name] for name in _OF_RANK if _within(told.get(name), _HIGHEST)}}


def _known_hints(said: Mapping[str, Any]) -> Json:
    """The hints that were said before and still may be."""
    out: Json = {}
    for name in _HINTS:
        if said.get(name) is not None:
            hint, _ = validate(Hints, {name: said[name]})
            out |= hint.model_dump(by_alias=True, exclude_none=True) if hint is not None else {}
    return out


def _known_rows(said: Mapping[str, Any]) -> list[list[float]]:
    given = said.get("observed")
    rows = [r for r in given if isinstance(r, list)] if isinstance(given, list) else []
    return [row for row in rows if len(row) in (5, 6) and all(_within(n, _HIGHEST_OF_ROW) for n in row)][-ROWS_KEPT:]


def _speed(told: Mapping[str, Any]) -> float | None:
    if _is_number(told.get("speed")) and told["speed"] > 0:
        return float(told["speed"])
    batch, step = untrusted.number(told.get("batch")), untrusted.number(told.get("stepSeconds"))
    speed = batch / step if batch is not None and step else math.inf
    return speed if 0 < speed < _HIGHEST else None


def _short(number: float) -> float:
    """Six digits: as exact as such measurements are, and short as text. Whole numbers have no decimal point."""
    short = number if isinstance(number, int) else float(f"{number:.6g}")
    return int(short) if abs(short) < 1e15 and short == int(short) else short


def _within(value: Any, highest: float) -> bool:
    number = untrusted.number(value)
    return number is not None and 0 <= number <= highest


def _is_number(value: Any) -> bool:
    return untrusted.number(value) is not None


def _dump(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
