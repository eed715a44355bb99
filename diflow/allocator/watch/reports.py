"""Parses the report of a job (the parameter `profilings`) into a Profile for the policies.

    {"observed": [[nodes, replicas, samples a replica, seconds without sync, seconds a step], ...],
     "speed": samples a second, "replicas": 4, "nodes": 2, "batch": samples a replica,
     "initBatchSize": 128, "maxBatchSize": 1024, "localBszBounds": [32, 256], "gradientAccumulation": true,
     "gradParams": {"norm": 1.0, "var": 2.0}, "perfParams": {"alpha_c": ..., ..., "gamma": 1.5},
     "maxProfiledReplicas": 4, "progress": 0.4}

The names are those of AdaptDL's hints where it has them. Users' programs write it, so every field may be missing, and
impossible values are ignored.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from diflow.allocator.model.arrays import FloatArray, frozen
from diflow.allocator.model.profile import COLUMNS, MOST_OBSERVATIONS, Profile, clean
from diflow.allocator.policies.goodput.model import TINY, step_seconds
from diflow.common.memo import MIB, remembered
from diflow.record import perfmodel, reports, signals, untrusted

_LONGEST = 262_144


@remembered(most_bytes=32 * MIB)
def profile(text: str) -> Profile | None:
    """The profile in this text, None if nothing of it is usable."""
    data = _mapping(text)
    if not data:
        return None
    rows = clean(_rows(data))
    sqr, var = _noise(data)
    given = data.get("localBszBounds")
    low, high = _pair(given)
    is_open = (
        isinstance(given, list) and len(given) == 2 and given[1] is None
    )  # then the whole batch is the upper bound
    initial = _whole(data.get("initBatchSize")) or max(1, low or 1)
    largest = _whole(data.get("maxBatchSize")) or max(initial, (high or 1) * 1024)
    progress = untrusted.number(data.get("progress"))
    model = perfmodel.parameters(data.get("perfParams"))
    if not len(rows) and sqr is None and progress is None and model is None:
        return None
    return Profile(
        version=zlib.crc32(text.encode()),
        observations_version=zlib.crc32(rows.tobytes()),
        observations=rows,
        parameters=None if model is None else frozen(np.maximum(np.array(model), TINY)),
        profiled_replicas=_whole(data.get("maxProfiledReplicas")) or 0,
        grad_sqr=sqr,
        grad_var=var,
        initial_batch=initial,
        max_batch=max(initial, largest),
        min_local_batch=max(1, low or 1),
        max_local_batch=max(1, low or 1, high or (max(initial, largest) if is_open else initial)),
        accumulation=bool(data.get("gradientAccumulation", True)),
        fraction_done=progress if progress is not None and 0 <= progress <= 1 else None,
    )


@remembered(most_bytes=32 * MIB)
def speed(text: str) -> float | None:
    """The job's current speed in samples a second, None if not reported (`diflow.record.reports`)."""
    return reports.speed(_mapping(text))


def is_news(before: str, after: str, *, fraction: float) -> bool:
    """Whether a new report changes the job's known speed by more than this fraction."""
    if before == after:
        return False
    old, new = speed(before), speed(after)
    if (old is None) != (new is None):
        return True
    if old is not None and new is not None and abs(new - old) > fraction * old:
        return True
    one, other = profile(before), profile(after)
    if one is None or other is None:
        return one is not other
    return len(one.observations) != len(other.observations) or _is_other_model(one, other, fraction=fraction)


def _is_other_model(one: Profile, other: Profile, *, fraction: float) -> bool:
    if one.parameters is None or other.parameters is None:
        return one.parameters is not other.parameters
    before, after = _steps_of(one), _steps_of(other)
    return bool((np.abs(after - before) > fraction * before).any())


def _steps_of(profile: Profile) -> FloatArray:
    """The seconds of a step that a job's own model predicts, at configurations that distinguish two models."""
    replicas, several = np.array([1.0, 2.0, 8.0, 2.0, 8.0]), np.array([False, False, False, True, True])
    batch = np.full(len(replicas), float(profile.min_local_batch))
    return step_seconds(np.asarray(profile.parameters), several, replicas, batch, np.zeros(len(replicas)))


def complaint(text: str) -> str:
    """Why a report is unusable; "" if some of it is usable, or there is none.

    Steps and signs of life are of use to those who look for silent replicas, though they say nothing of the speed.
    """
    if text in ("", "{}"):
        return ""
    data = _mapping(text)
    if data.keys() <= {"round", "at", "ranks", "observed", signals.NAME} and (
        signals.of(data) is not None or (signals.NAME not in data and _is_of_replicas(data.get("ranks")))
    ):
        return ""
    return "" if profile(text) is not None else "nothing in the parameter profilings can be used"


def _is_of_replicas(ranks: Any) -> bool:
    """Whether these are reports of replicas, such as a step from which no speed follows yet."""
    entries = ranks.values() if isinstance(ranks, dict) else ()
    return bool(entries) and all(isinstance(entry, dict) and isinstance(entry.get("task"), str) for entry in entries)


def _rows(data: Mapping[str, Any]) -> Any:
    rows: list[list[float]] = []
    observed = data.get("observed")
    for item in observed[-MOST_OBSERVATIONS:] if isinstance(observed, list) else []:
        if isinstance(item, list) and len(item) in (COLUMNS - 1, COLUMNS):
            numbers = [untrusted.number(value) for value in item]
            if all(number is not None for number in numbers):
                rows.append([float(n) for n in numbers if n is not None] + [0.0] * (COLUMNS - len(item)))
    said, replicas = untrusted.number(data.get("speed")), _whole(data.get("replicas"))
    if not rows and said is not None and said > 0 and replicas:
        batch = untrusted.number(data.get("batch")) or 1.0
        step = replicas * batch / said
        rows.append([float(_whole(data.get("nodes")) or 1), float(replicas), batch, step, step, 0.0])
    return frozen(np.array(rows, dtype=np.float64).reshape(len(rows), COLUMNS))


def _noise(data: Mapping[str, Any]) -> tuple[float | None, float | None]:
    given = data.get("gradParams")
    if not isinstance(given, Mapping):
        return None, None
    return untrusted.number(given.get("norm")), untrusted.number(given.get("var"))


def _pair(value: Any) -> tuple[int | None, int | None]:
    if isinstance(value, list) and len(value) == 2:
        return _whole(value[0]), _whole(value[1])
    return None, None


def _mapping(text: str) -> Mapping[str, Any]:
    is_empty = text in ("", "{}")  # as of each job that waits
    return {} if is_empty or len(text) > _LONGEST else untrusted.mapping(text)


def _whole(value: Any) -> int | None:
    number = untrusted.number(value)
    return int(number) if number is not None and 1 <= number <= 1e9 else None
