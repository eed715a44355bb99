"""Merges the reports of a job's replicas into one text, the parameter `profilings` of its Workflow.

    {"round": "3", "at": seconds since 1970, "ranks": {"0": {"task": "worker", "speed": 100.0, "step": 7}, ...},
     "speed": 400.0, "replicas": 4, "nodes": 2, "batch": 32.0,
     "observed": [[nodes, replicas, samples a replica, seconds without sync, seconds a step, pool], ...],
     "initBatchSize": 128, "gradParams": {"norm": 1.0, "var": 2.0}, "progress": 0.4, ...}

The allocator reads `speed`, `replicas`, `nodes`, `batch`, `observed` and the hints. The text is the only state: earlier
reports are read from it, so any server can continue. It is bounded, by limits on ranks, rows and the whole. Pure.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from diflow.common.names import UNKNOWN_POOL
from diflow.record import signals, untrusted
from diflow.record.signals import Sign
from diflow.server.api.models import Hints, Profiling, validate

Json = dict[str, Any]

ROWS_KEPT: Final = 64
RANKS_KEPT: Final = 128
LONGEST: Final = 32_768
WHOLE: Final = -1
"""Instead of a rank: a report about several replicas together."""
HINTS: Final = -2
"""Instead of a rank: AdaptDL's hints, which do not replace that replica's report."""
_LONGEST_WRITTEN: Final = LONGEST + signals.LONGEST + 1024
_LONGEST_NAME: Final = 63
_HIGHEST: Final = 1e18  # the highest value of a report's fields (bytes of memory): see models.py
_HIGHEST_OF_ROW: Final = 1e9
_OF_RANK: Final = ("speed", "step", "batch", "stepSeconds", "syncSeconds", "memoryBytes", "gpuUtilization")
_HINTS: Final = tuple(field.alias or name for name, field in Hints.model_fields.items())


@dataclass(frozen=True, slots=True)
class Shape:
    """A job's current allocation: its round, its elastic task and the nodes of that task.

    `replicas_of` has the number of replicas of every task. `has_health`: the signs of life are kept too
    (`diflow.record.signals`). `pool`: the number of the pool of its nodes, or UNKNOWN_POOL.
    """

    round: str
    elastic: str
    nodes: int
    replicas_of: Mapping[str, int]
    has_health: bool = False
    pool: int = UNKNOWN_POOL

    @property
    def replicas(self) -> int:
        """Replicas of the elastic task."""
        return max(1, self.replicas_of.get(self.elastic, 1))


@dataclass(frozen=True, slots=True)
class Report:
    """The newest report of one replica. `task` is its task; "" for a report about the whole job.

    `sender`: the rank of the pod that sent it, None for a user's. `at`: when it came, in seconds since 1970.
    `is_alive`: the replica has shown a sign of life.
    """

    task: str
    body: Profiling | Hints
    sender: int | None = None
    at: float = 0.0
    is_alive: bool = True


def fold(
    before: str, reports: Mapping[int, Report], shape: Shape, *, now: float, listening: float | None = None
) -> str:
    """The new text: `before` with these reports (by rank, WHOLE or HINTS). `now` is seconds since 1970, and so is
    `listening`, since when this server has listened without a break."""
    earlier = untrusted.mapping(before)
    ranks = _known_ranks(earlier, shape)
    out = _known_hints(earlier)
    rows = _known_rows(earlier)
    fresh: set[tuple[float, ...]] = set()
    whole: Profiling | None = None
    for rank, report in sorted(reports.items()):
        body = report.body
        dumped = body.model_dump(by_alias=True, exclude_none=True)
        out |= {name: dumped[name] for name in _HINTS if name in dumped}
        if not isinstance(body, Profiling):
            continue
        for row in body.observed or []:
            reported = [_rounded(number) for number in (row if body.is_whole else _of_elastic(row, body, shape))]
            reported = _of_pool(reported, shape)
            _add_row(rows, reported)
            fresh.add(_configuration(reported))
        if body.progress is not None:
            out["progress"] = _rounded(body.progress)
        if body.is_whole:
            whole = whole or body
        elif mine := _of_rank(report.task, dumped):
            ranks[str(rank)] = {**ranks.get(str(rank), {}), **mine}
    if "progress" not in out and _within(earlier.get("progress"), 1):
        out["progress"] = earlier["progress"]
    out |= _whole(whole, shape) if whole is not None else _together(ranks, shape)
    if "perfParams" in out:  # they give a speed only together with replicas and nodes
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
    if not shape.has_health:
        return text
    return _dump({**out, signals.NAME: _signals(before, reports, shape, now, listening)})


def _signals(before: str, reports: Mapping[int, Report], shape: Shape, now: float, listening: float | None) -> Json:
    signs: dict[int, Sign] = {}
    for rank, report in reports.items():
        about = report.sender if rank < 0 or report.sender is not None else rank
        if about is None:
            continue
        body = report.body
        step = work = None
        if isinstance(body, Profiling):
            step = body.step
            if body.step_seconds is not None and body.sync_seconds is not None:
                work = max(0.0, body.step_seconds - body.sync_seconds)
        known = signs.get(about)
        signs[about] = Sign(
            at=max(report.at or now, known.at if known is not None else 0.0),
            step=step if step is not None or known is None else known.step,
            work=work if work is not None or known is None else known.work,
            is_alive=report.is_alive or (known is not None and known.is_alive),
        )
    replicas = sum(shape.replicas_of.values())
    found = signals.folded(
        signals.of(before), signs, round_=shape.round, replicas=replicas, now=now, listening=listening
    )
    return found.text()


def written_at(text: str) -> float:
    """When the text was made (seconds since 1970), 0 if it does not say."""
    if len(text) > _LONGEST_WRITTEN:
        return 0.0  # none of a server's, and this is asked in the event loop for each job, every few seconds
    at: Any = untrusted.mapping(text).get("at")
    return float(at) if _is_number(at) else 0.0


def _of_rank(task: str, dumped: Mapping[str, Any]) -> Json:
    """What to keep of one replica's report."""
    kept = {name: _rounded(dumped[name]) for name in _OF_RANK if name in dumped}
    return {"task": task, **kept} if kept else {}


def _whole(body: Profiling, shape: Shape) -> Json:
    """A report about several replicas together."""
    replicas = body.replicas or shape.replicas
    out: Json = {"replicas": replicas, "nodes": min(body.nodes or shape.nodes, replicas)}
    if body.speed is not None:
        out["speed"] = _rounded(body.speed)
    elif body.step_seconds is not None and body.batch is not None:
        out["speed"] = _rounded(replicas * body.batch / body.step_seconds)
    if body.batch is not None:
        out["batch"] = _rounded(body.batch)
    return out


def _together(ranks: Mapping[str, Json], shape: Shape) -> Json:
    """The job's speed: the mean speed of one task's replicas that report, times the task's replicas.

    It is the elastic task, or the task of the lowest rank that reports if the elastic one does not.
    """
    reporting = {int(rank): report for rank, report in ranks.items() if _speed(report) is not None}
    if not reporting:
        return {}
    tasks = {str(report.get("task") or "") for report in reporting.values()}
    task = shape.elastic if shape.elastic in tasks else str(reporting[min(reporting)].get("task") or "")
    mine = [report for report in reporting.values() if str(report.get("task") or "") == task]
    speeds = [speed for report in mine if (speed := _speed(report)) is not None]
    count = shape.replicas_of.get(task, 1)
    out: Json = {
        "speed": _rounded(math.fsum(speeds) / len(speeds) * max(1, count)),
        "replicas": shape.replicas,
        "nodes": min(shape.nodes, shape.replicas),
    }
    if batches := [float(report["batch"]) for report in mine if _is_number(report.get("batch"))]:
        # Samples per step and replica of the elastic task, whichever task measured it.
        out["batch"] = _rounded(math.fsum(batches) / len(batches) * max(1, count) / shape.replicas)
    return out


def _row(out: Json, whole: Profiling | None, ranks: Mapping[str, Json], shape: Shape) -> list[float] | None:
    """The measurement as a row of `observed`, None if there is none."""
    speed = out.get("speed")
    if speed is None:
        return None
    batch = out.get("batch", 1.0)
    step = out["replicas"] * batch / speed
    if whole is not None:
        sync = whole.sync_seconds or 0.0
    else:
        reports = [r for r in ranks.values() if r.get("task") == shape.elastic or len(ranks) == 1]
        syncs = [float(r["syncSeconds"]) for r in reports if _is_number(r.get("syncSeconds"))]
        sync = math.fsum(syncs) / len(syncs) if syncs else 0.0
    if not 1e-7 < step < 1e6:
        return None
    return _of_pool([out["nodes"], out["replicas"], batch, _rounded(max(1e-7, step - sync)), _rounded(step)], shape)


def _of_pool(row: list[float], shape: Shape) -> list[float]:
    """The row with the pool where it was measured, if there are several and the row does not name one."""
    return [*row, shape.pool] if shape.pool != UNKNOWN_POOL and len(row) < 6 else row


def _of_elastic(row: list[float], body: Profiling, shape: Shape) -> list[float]:
    """A replica's row, which counts all replicas of the job, with those of the elastic task alone.

    A replica does not know the number of nodes; for the current number of replicas `shape` has it.
    """
    others = sum(shape.replicas_of.values()) - shape.replicas
    replicas = row[1] - others if row[1] > others else row[1]
    nodes = shape.nodes if body.nodes is None and replicas == shape.replicas else row[0]
    return [min(nodes, replicas), replicas, *row[2:]]


def _add_row(rows: list[list[float]], row: list[float]) -> None:
    """Add a measurement; it replaces an earlier one of the same configuration."""
    same = _configuration(row)
    rows[:] = [known for known in rows if _configuration(known) != same]
    rows.append(row)


def _configuration(row: list[float]) -> tuple[float, ...]:
    """(nodes, replicas, samples per replica, node pool)."""
    return (row[0], row[1], row[2], row[5] if len(row) > 5 else 0)


def _known_ranks(earlier: Mapping[str, Any], shape: Shape) -> dict[str, Json]:
    """The earlier reports of this round's ranks; ranks of another round are other replicas."""
    given = earlier.get("ranks")
    if earlier.get("round") != shape.round or not isinstance(given, dict):
        return {}
    known = {rank: _known_rank(report) for rank, report in given.items() if untrusted.whole(rank, digits=6) is not None}
    return {rank: report for rank, report in known.items() if report}


def _known_rank(report: Any) -> Json:
    """A rank's earlier report, as far as it is valid: users can edit the text."""
    if not isinstance(report, dict) or not isinstance(report.get("task"), str) or len(report["task"]) > _LONGEST_NAME:
        return {}
    return {"task": report["task"], **{name: report[name] for name in _OF_RANK if _within(report.get(name), _HIGHEST)}}


def _known_hints(earlier: Mapping[str, Any]) -> Json:
    """The earlier hints, as far as they are valid."""
    out: Json = {}
    for name in _HINTS:
        if earlier.get(name) is not None:
            hint, _ = validate(Hints, {name: earlier[name]})
            out |= hint.model_dump(by_alias=True, exclude_none=True) if hint is not None else {}
    return out


def _known_rows(earlier: Mapping[str, Any]) -> list[list[float]]:
    given = earlier.get("observed")
    rows = [r for r in given if isinstance(r, list)] if isinstance(given, list) else []
    return [row for row in rows if len(row) in (5, 6) and all(_within(n, _HIGHEST_OF_ROW) for n in row)][-ROWS_KEPT:]


def _speed(report: Mapping[str, Any]) -> float | None:
    if _is_number(report.get("speed")) and report["speed"] > 0:
        return float(report["speed"])
    batch, step = untrusted.number(report.get("batch")), untrusted.number(report.get("stepSeconds"))
    speed = batch / step if batch is not None and step else math.inf
    return speed if 0 < speed < _HIGHEST else None


def _rounded(number: float) -> float:
    """Rounded to six significant digits, as measurements are no more precise; an int if it is whole."""
    rounded = number if isinstance(number, int) else float(f"{number:.6g}")
    return int(rounded) if abs(rounded) < 1e15 and rounded == int(rounded) else rounded


def _within(value: Any, highest: float) -> bool:
    number = untrusted.number(value)
    return number is not None and 0 <= number <= highest


def _is_number(value: Any) -> bool:
    return untrusted.number(value) is not None


def _dump(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
