"""A model of a job in each pool of nodes, from the observations of the job and of its application.

A job reports from one pool at a time, so for most pools the model uses observations from other pools. For a pool, the
observations count in this order, each at the numbers of replicas that those before it lack:

1. the job's own there;
2. those of the record of its application there, in the job's own time (`memory.py`);
3. its own in other pools, and then the records', multiplied by the ratio of the speeds: that of the job's own times on
   one replica, or else that of the records', or else that of the setting.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from diflow.allocator.model.arrays import FloatArray
from diflow.allocator.model.profile import (
    ACCUMULATION_SECONDS,
    LOCAL_BATCH,
    NODES,
    POOL,
    REPLICAS,
    STEP_SECONDS,
    Prior,
    Profile,
    clean,
)
from diflow.allocator.policies.goodput.memory import inherited, is_trusted, residuals
from diflow.common.names import UNKNOWN_POOL

_TIMES = [ACCUMULATION_SECONDS, STEP_SECONDS]
MOST_STRANGE = 4
"""Pools that the cluster does not have, from which a job's observations are used."""
_SHORTEST, _LONGEST = 1e-7, 1e6
"""Of a step, in seconds, as in what `clean` lets through."""
_NO_ROWS: FloatArray = np.zeros((0, 6))


@dataclass(frozen=True, slots=True)
class PoolSeen:
    """What is known of a job in one pool: `rows`, to which its model is fitted. `reach`: the most replicas that were
    seen, in any pool. `prior`: the record of its application there, or None. `inherits`: whether the job has run there,
    and the record adds to what it has seen."""

    rows: FloatArray
    reach: float
    prior: Prior | None
    inherits: bool = False


def in_pools(
    profile: Profile, numbers: Sequence[int], speeds: Sequence[float], models: dict[int, FloatArray]
) -> list[PoolSeen]:
    """What is known of the job in each pool. `numbers`, `speeds`: of the pools; `models`: of the priors, by version.

    Where the job runs does not matter: a plan that stops or moves it would change what the next one knows, and two
    plans could replace each other for ever. Times without a pool are those of a pool of speed 1. If pools are not
    distinguished (the only number is UNKNOWN_POOL), all times are the job's own in the one pool."""
    rows = clean(profile.observations)
    # The newest first. The observations may name pools that were removed, or that a user has made up.
    of_row = np.minimum(rows[:, POOL], 2.0**53).astype(np.int64)
    if _are_one(numbers):
        of_row[:] = UNKNOWN_POOL
    found: list[int] = list(dict.fromkeys(of_row[::-1].tolist()))
    strange = [number for number in found if number not in numbers][:MOST_STRANGE]
    own = {number: rows[of_row == number] for number in found if number in numbers or number in strange}
    records = {
        number: prior
        for number, prior in _priors(profile, numbers).items()
        if len(prior.observations) and is_trusted(prior) and np.isfinite(models[prior.version]).all()
    }
    speed_of = dict(zip(numbers, speeds, strict=True))
    pace = _pace(own, records, models)
    reach = float(rows[:, REPLICAS].max(initial=0))
    out = []
    for number in numbers:
        mine, record = own.get(number, _NO_ROWS), records.get(number)
        parts, inherits = [mine], False
        if record is not None:
            if not len(mine):
                parts.append(_scaled(record.observations, math.exp(pace)))
            elif (more := inherited(mine, record, models[record.version])) is not None:
                parts.append(more)
                inherits = len(more) > 0
        known = mine if len(mine) else parts[-1]
        for other in sorted((n for n in own if n != number), key=lambda n: (-own[n][:, REPLICAS].max(), n)):
            parts.append(_moved(own[other], known, _by_speed(other, number, records, models, speed_of)))
        for other in sorted(n for n in records if n != number and record is None):
            there = _scaled(records[other].observations, math.exp(pace))
            parts.append(_moved(there, known, _by_speed(other, number, records, models, speed_of)))
        made = _without_repeats(parts)
        out.append(PoolSeen(made, max(reach, float(made[:, REPLICAS].max(initial=0))), record, inherits))
    return out


def _priors(profile: Profile, numbers: Sequence[int]) -> dict[int, Prior]:
    """The records of the application, by the number of the pool."""
    if profile.prior is None or (profile.priors and not _are_one(numbers)):
        return {number: prior for number, prior in profile.priors.items() if number in numbers}
    return {UNKNOWN_POOL: profile.prior}


def _are_one(numbers: Sequence[int]) -> bool:
    return tuple(numbers) == (UNKNOWN_POOL,)


def _pace(own: dict[int, FloatArray], records: dict[int, Prior], models: dict[int, FloatArray]) -> float:
    """How much longer the job's steps take than the records say, as a logarithm, from the pools that have both."""
    found = [
        float(np.median(residuals(own[number], models[records[number].version])))
        for number in sorted(records)
        if number in own
    ]
    return float(np.mean(found)) if found else 0.0


def _by_speed(
    here: int, there: int, records: dict[int, Prior], models: dict[int, FloatArray], speed_of: dict[int, float]
) -> float:
    """By how much times are multiplied from one pool to another, without a measurement of the job in both."""
    if here in records and there in records:
        rows = records[here].observations
        off = residuals(rows, models[records[there].version])[: len(rows)]
        return math.exp(-float(np.median(off)))
    return speed_of.get(here, 1.0) / speed_of.get(there, 1.0)


def _moved(rows: FloatArray, known: FloatArray, by_speed: float) -> FloatArray:
    """Observations from another pool, scaled to the pool in which `known` was observed."""
    here, there = _alone(rows), _alone(known)
    if not len(here) or not len(there):
        return _scaled(rows, by_speed)
    batch = np.log(rows[:, LOCAL_BATCH])
    low, high = max(here[0, 0], there[0, 0]), min(here[-1, 0], there[-1, 0])
    at = np.clip(batch, min(low, high), max(low, high))
    ratio = np.exp(np.interp(at, there[:, 0], there[:, 1]) - np.interp(at, here[:, 0], here[:, 1]))
    return _scaled(rows, ratio[:, None])


def _alone(rows: FloatArray) -> FloatArray:
    """(logarithm of the local batch, logarithm of the seconds without synchronisation), ascending (K×2)."""
    if not len(rows):
        return np.zeros((0, 2))
    table = np.log(rows[:, [LOCAL_BATCH, ACCUMULATION_SECONDS]])
    at, first = np.unique(table[:, 0], return_index=True)
    return np.column_stack([at, table[first, 1]])


def _scaled(rows: FloatArray, factor: float | FloatArray) -> FloatArray:
    out = rows.copy()
    out[:, _TIMES] = np.clip(out[:, _TIMES] * factor, _SHORTEST, _LONGEST)
    return out


def _without_repeats(parts: Sequence[FloatArray]) -> FloatArray:
    """The parts joined, each without the numbers of replicas of those before it; the first part is last, as the newest
    rows count."""
    seen: set[tuple[bool, int]] = set()
    out: list[FloatArray] = []
    for part in parts:
        if not len(part):
            continue
        keys = [(nodes > 1, int(replicas)) for nodes, replicas in part[:, [NODES, REPLICAS]].tolist()]
        fresh = np.array([key not in seen for key in keys], dtype=np.bool_)
        out.append(part[fresh])
        seen.update(keys)
    return np.concatenate(out[::-1]) if out else _NO_ROWS
