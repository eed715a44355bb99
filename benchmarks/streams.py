"""Streams of jobs under `fair` and under other policies, beside the aims.

A part of `python -m benchmarks.policies`; `--only streams` runs it alone, without data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import diflow.labs.baselines  # noqa: F401 (adds its policies)
from benchmarks.queue_streams.kube_batch import KubeBatchPolicy
from benchmarks.queue_streams.runs import Plans, StreamResult, run_stream
from benchmarks.queue_streams.streams import FULL, Kind, random_stream
from diflow.allocator.policies.base import load_policy
from diflow.common.tables import table

LOADS = (0.6, 1.0, FULL)
JUDGED = "fair"
"""The policy to which the aims apply."""
POLICIES = (JUDGED, KubeBatchPolicy.name)
PROCESSES = 2


@dataclass(frozen=True, slots=True)
class Aim:
    """A bound of a figure, from above or, if `at_least`, from below: of its mean over the streams, or of `each`.

    It applies to the streams of each of `loads`, or to those of all loads `together`.
    """

    bound: float
    at_least: bool = False
    each: bool = False
    loads: tuple[float, ...] = LOADS
    together: bool = False

    def beyond(self, values: Sequence[float]) -> int:
        """How many of the values violate the bound; 0 or 1 for their mean."""
        judged = values if self.each else [float(np.mean(values))]
        return sum(value < self.bound if self.at_least else value > self.bound for value in judged)

    def is_missed(self, values: Sequence[float]) -> bool:
        return self.beyond(values) > 0

    def __str__(self) -> str:
        whose = " of all loads" if self.together else ""
        return f"{'each' if self.each else 'mean'}{whose} {'≥' if self.at_least else '≤'} {self.bound:g}"


@dataclass(frozen=True, slots=True)
class Row:
    """A figure of a stream, and how it is printed."""

    name: str
    of: Callable[[StreamResult], float]
    digits: int = 0
    aim: Aim | None = None


def _met(queue: int) -> Callable[[StreamResult], float]:
    return lambda played: played.met[queue]


ROWS: tuple[Row, ...] = (
    *(
        Row(f"held of the deserved share, weight {weight}", _met(q), 3, Aim(0.90, at_least=True, loads=(FULL,)))
        for q, weight in enumerate(Kind().weights)
    ),
    Row("GPUs in use, of those that gangs could use", lambda p: p.utilisation, 3, Aim(0.95, at_least=True)),
    Row("GPUs in use, of all", lambda p: p.busy, 3),
    Row("mean wait until the first start, s", lambda p: p.mean_wait_seconds, 0, Aim(800, together=True)),
    Row("mean wait of all jobs, started or not, s", lambda p: p.mean_wait_of_all_seconds),
    Row("jobs never started", lambda p: p.never_started),
    Row("longest wait, s", lambda p: p.longest_wait_seconds),
    Row(
        "longest wait of a job that fits beside what other queues deserve, s",
        lambda p: p.longest_open_wait_seconds,
        0,
        Aim(3600, each=True, loads=(0.6,)),
    ),
    Row("evictions in cycles without a new or ended job", lambda p: p.quiet_evictions, 0, Aim(0, each=True)),
    Row("most stops of one job", lambda p: p.most_stops, 0, Aim(3, each=True)),
    Row("cycles with idle capacity that a waiting job could use", lambda p: p.idle_cycles),
    Row("the same, after more than half an hour of such cycles", lambda p: p.late_idle_cycles, 0, Aim(0, each=True)),
    Row("stops", lambda p: p.stops),
    Row("restarts", lambda p: p.restarts),
    Row("jobs ended", lambda p: p.ended),
    Row("a call of the policy, ms", lambda p: 1000 * float(np.mean(p.decision_seconds or [0.0])), 1),
)


def measure(
    policies: Sequence[str],
    behind: list[str],
    *,
    streams: int = 200,
    first_seed: int = 0,
    loads: Sequence[float] = LOADS,
    kind: Kind | None = None,
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Play each stream under each policy; print a table for each load, and one for all loads together.

    Aims that `fair` misses are added to `behind`; those for all loads are checked only if all of LOADS are played.
    """
    kind = kind or Kind()
    asked = [
        (name, replace(kind, load=load), seed)
        for load in loads
        for seed in range(first_seed, first_seed + streams)
        for name in policies
    ]
    with ProcessPoolExecutor(PROCESSES) as pool:
        played = list(pool.map(_one, asked, chunksize=5))
    out: dict[str, Any] = {}
    for load in (*loads, None):
        chosen = (load,) if load is not None else loads
        values = {
            name: [v for v, (other, of, _) in zip(played, asked, strict=True) if other == name and of.load in chosen]
            for name in policies
        }
        title = f"load {load:g}" if load is not None else "all loads together"
        if load is not None or set(loads) == set(LOADS):
            say(f"\n{title}, {streams * len(chosen)} streams: least, mean, most")
            say(_table(load, values, behind))
        out[title] = {
            name: {row.name: _range([v[at] for v in found]) for at, row in enumerate(ROWS)}
            for name, found in values.items()
        }
    return out


def _one(asked: tuple[str, Kind, int]) -> list[float]:
    """The figures of one stream under one policy. Runs in a worker process."""
    name, kind, seed = asked
    played = run_stream(random_stream(seed, kind), policy_of(name))
    return [float(row.of(played)) for row in ROWS]


def policy_of(name: str) -> Plans:
    """The policy of this name, or the kube-batch baseline."""
    return KubeBatchPolicy() if name == KubeBatchPolicy.name else load_policy(name)


def _table(load: float | None, values: dict[str, list[list[float]]], behind: list[str]) -> str:
    """The table of one load; `load` None: of all loads together."""
    head = ["", *[cell for name in values for cell in (name, "", "")], "aim", ""]
    lines = []
    for at, row in enumerate(ROWS):
        cells = [row.name]
        for found in values.values():
            cells += [f"{value:.{row.digits}f}" for value in _range([v[at] for v in found])]
        aim = row.aim if row.aim is not None and (row.aim.together or load in row.aim.loads) else None
        judged = [v[at] for v in values.get(JUDGED, [])]
        beyond = aim.beyond(judged) if aim is not None and judged else 0
        # An aim for all loads is also printed beside each load, for comparison only.
        counts = aim is not None and aim.together == (load is None)
        if aim is not None and beyond and counts:
            where = f"at load {load:g}" if load is not None else "at all loads together"
            behind.append(f"streams {where}: {row.name}: the aim is {aim}")
        verdict = "MISSED" if counts else "beyond it here"
        if aim is not None and aim.each:
            verdict += f" in {beyond}"
        lines.append([*cells, str(aim) if aim else "", verdict if beyond else ""])
    return table(head, lines)


def _range(values: Sequence[float]) -> tuple[float, float, float]:
    return min(values), float(np.mean(values)), max(values)
