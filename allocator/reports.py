"""What jobs report about themselves (the parameter `profilings`), as a Profile for the policies.

    {"observed": [[nodes, replicas, samples a replica, seconds without sync, seconds a step], ...],
     "speed": samples a second, "replicas": 4, "nodes": 2, "batch": samples a replica,
     "initBatchSize": 128, "maxBatchSize": 1024, "localBszBounds": [32, 256], "gradientAccumulation": true,
     "gradParams": {"norm": 1.0, "var": 2.0}, "progress": 0.4}

The names are those of AdaptDL's hints where it has them. Everything may be missing, and whatever cannot be true is left
out: it is users' programs that write it.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from diflow import plain
from diflow.allocator.arrays import frozen
from diflow.allocator.profile import COLUMNS, MOST_OBSERVATIONS, Profile, clean

_LONGEST = 262_144


@lru_cache(maxsize=8192)
def profile(text: str) -> Profile | None:
    """The profile in this text, None if nothing of it can be used."""
    data = _mapping(text)
    if not data:
        return None
    rows = clean(_rows(data))
    sqr, var = _noise(data)
    low, high = _pair(data.get("localBszBounds"))
    initial = _whole(data.get("initBatchSize")) or max(1, low or 1)
    largest = _whole(data.get("maxBatchSize")) or max(initial, (high or 1) * 1024)
    progress = plain.number(data.get("progress"))
    if not len(rows) and sqr is None and progress is None:
        return None
    return Profile(
        version=zlib.crc32(text.encode()),
        observations_version=zlib.crc32(rows.tobytes()),
        observations=rows,
        grad_sqr=sqr,
        grad_var=var,
        initial_batch=initial,
        max_batch=max(initial, largest),
        min_local_batch=max(1, low or 1),
        max_local_batch=max(1, low or 1, high or initial),
        accumulation=bool(data.get("gradientAccumulation", True)),
        fraction_done=progress if progress is not None and 0 <= progress <= 1 else None,
    )


@lru_cache(maxsize=8192)
def speed(text: str) -> float | None:
    """Samples a second that the job says it does now, None if it says nothing usable."""
    data = _mapping(text)
    said = plain.number(data.get("speed"))
    if said is not None and said > 0:
        return said
    rows = clean(_rows(data))
    if not len(rows):
        return None
    last = rows[-1]
    return float(last[1] * last[2] / last[4])


def is_news(before: str, after: str, *, fraction: float) -> bool:
    """Whether a new report changes what is known of the job's speed by more than this fraction."""
    if before == after:
        return False
    old, new = speed(before), speed(after)
    if old is None or new is None:
        return old is not new
    if abs(new - old) > fraction * old:
        return True
    one, other = profile(before), profile(after)
    return (one is None) != (other is None) or (
        one is not None and other is not None and len(one.observations) != len(other.observations)
    )


def complaint(text: str) -> str:
    """What is wrong with a report as a whole; "" if something of it can be used, or there is none."""
    if text in ("", "{}"):
        return ""
    return "" if profile(text) is not None else "nothing in the parameter profilings can be used"


def _rows(data: Mapping[str, Any]) -> Any:
    rows: list[list[float]] = []
    observed = data.get("observed")
    for item in observed[-MOST_OBSERVATIONS:] if isinstance(observed, list) else []:
        if isinstance(item, list) and len(item) in (COLUMNS - 1, COLUMNS):
            numbers = [plain.number(value) for value in item]
            if all(number is not None for number in numbers):
                rows.append([float(n) for n in numbers if n is not None] + [0.0] * (COLUMNS - len(item)))
    said, replicas = plain.number(data.get("speed")), _whole(data.get("replicas"))
    if not rows and said is not None and said > 0 and replicas:
        batch = plain.number(data.get("batch")) or 1.0
        step = replicas * batch / said
        rows.append([float(_whole(data.get("nodes")) or 1), float(replicas), batch, step, step, 0.0])
    return frozen(np.array(rows, dtype=np.float64).reshape(len(rows), COLUMNS))


def _noise(data: Mapping[str, Any]) -> tuple[float | None, float | None]:
    given = data.get("gradParams")
    if not isinstance(given, Mapping):
        return None, None
    return plain.number(given.get("norm")), plain.number(given.get("var"))


def _pair(value: Any) -> tuple[int | None, int | None]:
    if isinstance(value, list) and len(value) == 2:
        return _whole(value[0]), _whole(value[1])
    return None, None


def _mapping(text: str) -> Mapping[str, Any]:
    return plain.mapping(text) if len(text) <= _LONGEST else {}


def _whole(value: Any) -> int | None:
    number = plain.number(value)
    return int(number) if number is not None and 1 <= number <= 1e9 else None
