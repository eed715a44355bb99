"""The speed and progress that a job reports (the parameter `profilings`), for all readers.

The speed is the first valid one of:

1. `speed`, samples per second of the whole job, from the job or computed by the server from its ranks;
2. the newest row of `observed`: replicas x samples per replica / seconds per step;
3. the sum of the speeds of the ranks;
4. the model of AdaptDL's clients (`diflow.record.perfmodel`), for the replicas and nodes reported with it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

from diflow.record import perfmodel, untrusted

_REPLICAS: Final = (1.0, 1e6)
_BATCH: Final = (0.0, 1e9)
_STEP_SECONDS: Final = (1e-7, 1e6)


def speed(profilings: Mapping[str, Any]) -> float | None:
    """The job's current speed in samples per second; None if it reports no valid one."""
    return (
        _positive(profilings.get("speed"))
        or _of_rows(profilings.get("observed"))
        or _of_ranks(profilings.get("ranks"))
        or perfmodel.speed(profilings)
    )


def progress(profilings: Mapping[str, Any]) -> float | None:
    """The completed fraction of the job's work, from 0 to 1; None if it does not report it."""
    said = untrusted.number(profilings.get("progress"))
    return said if said is not None and 0 <= said <= 1 else None


def _of_rows(rows: Any) -> float | None:
    return next(_believable(rows), None) if isinstance(rows, list) else None


def _believable(rows: list[Any]) -> Iterator[float]:
    """The speeds of the valid rows, the newest first."""
    for row in reversed(rows):
        numbers = [untrusted.number(value) for value in row] if isinstance(row, list) and len(row) in (5, 6) else []
        if not numbers or any(number is None for number in numbers):
            continue
        nodes, replicas, batch, own, step = (float(number or 0.0) for number in numbers[:5])
        pool = numbers[5] if len(numbers) > 5 else 0.0
        if (
            1 <= nodes <= replicas <= _REPLICAS[1]
            and _BATCH[0] < batch <= _BATCH[1]
            and _STEP_SECONDS[0] < step < _STEP_SECONDS[1]
            and own < _STEP_SECONDS[1]
            and (pool or 0.0) >= 0
        ):
            yield replicas * batch / step


def _of_ranks(ranks: Any) -> float | None:
    reported = ranks.values() if isinstance(ranks, Mapping) else ()
    each = [_positive(rank.get("speed")) for rank in reported if isinstance(rank, Mapping)]
    try:
        total = math.fsum(speed for speed in each if speed is not None)
    except OverflowError:
        return None
    return _positive(total)


def _positive(value: Any) -> float | None:
    number = untrusted.number(value)
    return number if number is not None and number > 0 else None
