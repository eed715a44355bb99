"""Converts the values that a training process reports to the server's format.

The names are those of AdaptDL's hints if it has them, in Python's spelling: `max_batch_size` becomes `maxBatchSize`.
Invalid values are left out, as the server would reject the whole report. Numbers of numpy and torch are accepted.

A report is about the replica that sends it, identified by its rank. A report with `replicas` is about that many
replicas together, and has no rank.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from diflow.client.place import Membership

_HIGHEST: Final = 1e15
_HIGHEST_COUNT: Final = 10**9
_HIGHEST_WHOLE: Final = 10**15
_SHORTEST_SECONDS, _LONGEST_SECONDS = 1e-7, 1e6
_MOST_KINDS: Final = 16  # of configurations of one process, which sees few


class Readings:
    """The newest value of each name, and the mean times of a step in each configuration."""

    def __init__(self) -> None:
        self._said: dict[str, Any] = {}
        self._observed: dict[tuple[int, int, int], list[float]] = {}

    def take(self, given: Mapping[str, Any], *, replicas: int | None) -> list[str]:
        """Record the given values (None is ignored), for `replicas` replicas. Returns the names of invalid ones."""
        good: dict[str, Any] = {}
        wrong: list[str] = []
        for name, value in given.items():
            if value is None:
                continue
            try:
                good[name] = _CHECKS[name](value)
            except Exception:  # the conversion of any user type may raise anything
                wrong.append(name)
        compute = good.pop("compute_seconds", None)
        step = good.get("step_seconds")
        self._said |= good
        if step is not None:
            self._said.pop("sync_seconds", None)
            if compute is not None:
                self._said["sync_seconds"] = max(0.0, step - compute)
        count = self._said.get("replicas", replicas)
        batch = self._said.get("batch")
        if step is not None and count is not None and batch is not None:
            nodes = min(self._said.get("nodes", 1), count)
            self._observe((nodes, count, batch), step if compute is None else min(compute, step), step)
        return wrong

    def body(self, now: Membership) -> dict[str, Any]:
        """The report of all recorded values, from a replica with this membership."""
        is_whole = "replicas" in self._said
        place = {"rank": None if is_whole else now.rank, "round": now.round, "replicas": now.replicas}
        out: dict[str, Any] = {name: value for name, value in place.items() if value is not None}
        out |= {_OUTSIDE.get(name, name): value for name, value in self._said.items()}
        noise = {name: out.pop(f"grad_{name}") for name in ("norm", "var") if f"grad_{name}" in out}
        if len(noise) == 2:  # both are needed
            out["gradParams"] = noise
        if out.get("nodes", 1) > out.get("replicas", 1):
            del out["nodes"]
        # The server knows the nodes of replicas with ranks. A report about several must include their number.
        if self._observed and ("nodes" in out or not is_whole):
            out["observed"] = [[*kind, alone, whole] for kind, (_, alone, whole) in self._observed.items()]
        return out

    def _observe(self, kind: tuple[int, int, int], alone: float, whole: float) -> None:
        """Update the mean over about the last hundred steps. The oldest configuration is dropped."""
        steps, mean_alone, mean_whole = self._observed.pop(kind, [0.0, 0.0, 0.0])
        steps = min(steps + 1, 100)
        mean_alone += (alone - mean_alone) / steps
        mean_whole += (whole - mean_whole) / steps
        self._observed[kind] = [steps, mean_alone, mean_whole]
        if len(self._observed) > _MOST_KINDS:
            del self._observed[next(iter(self._observed))]


def _amount(value: Any) -> float:
    """0 or more."""
    number = float(value)
    if not 0 <= number <= _HIGHEST:  # NaN is not
        raise ValueError
    return number


def _positive(value: Any) -> float:
    number = _amount(value)
    if number == 0:
        raise ValueError
    return number


def _seconds(value: Any) -> float:
    number = _amount(value)
    if not _SHORTEST_SECONDS < number < _LONGEST_SECONDS:
        raise ValueError
    return number


def _fraction(value: Any) -> float:
    number = _amount(value)
    if number > 1:
        raise ValueError
    return number


def _count(value: Any) -> int:
    """A whole number, 1 or more."""
    number = _whole(value)
    if not 1 <= number <= _HIGHEST_COUNT:
        raise ValueError
    return number


def _whole(value: Any) -> int:
    number = float(value)
    if not (math.isfinite(number) and number == int(number) and 0 <= number <= _HIGHEST_WHOLE):
        raise ValueError
    return int(number)


def _bounds(value: Any) -> list[int | None]:
    low, high = (None if each is None else _count(each) for each in value)
    if low is not None and high is not None and low > high:
        raise ValueError
    return [low, high]


_CHECKS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "speed": _positive,
    "step": _whole,
    "batch": _count,
    "progress": _fraction,
    "step_seconds": _seconds,
    "compute_seconds": _seconds,
    "memory_bytes": _whole,
    "grad_norm": _amount,
    "grad_var": _amount,
    "init_batch_size": _count,
    "max_batch_size": _count,
    "local_batch_bounds": _bounds,
    "gradient_accumulation": bool,
    "replicas": _count,
    "nodes": _count,
}
_OUTSIDE: Final = {
    "step_seconds": "stepSeconds",
    "sync_seconds": "syncSeconds",
    "memory_bytes": "memoryBytes",
    "init_batch_size": "initBatchSize",
    "max_batch_size": "maxBatchSize",
    "local_batch_bounds": "localBszBounds",
    "gradient_accumulation": "gradientAccumulation",
}
