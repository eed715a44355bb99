"""The performance model that clients of AdaptDL report (`perfParams`), for one job and one allocation.

The seven parameters are those of Pollux (OSDI 2021), which the policy `goodput` uses as well; its vectorised form is
`diflow.allocator.policies.goodput.model`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from diflow.record import untrusted

NAMES: Final = ("alpha_c", "beta_c", "alpha_n", "beta_n", "alpha_r", "beta_r", "gamma")
"""In the order of the policy's parameters."""
MOST_SECONDS: Final = 1e6
"""Of each parameter in seconds: a step of eleven days. Sums and powers of larger values are meaningless."""
_LEAST_SECONDS: Final = 1e-7
_GAMMA: Final = (1.0, 10.0)
_MOST_COUNT: Final = 1e9


def parameters(given: Any) -> tuple[float, ...] | None:
    """The seven parameters in the order of NAMES; None if one of them is missing or invalid."""
    if not isinstance(given, Mapping):
        return None
    found = [number for name in NAMES if (number := untrusted.number(given.get(name))) is not None]
    if len(found) < len(NAMES):
        return None
    *seconds, gamma = found
    if not all(0 <= number <= MOST_SECONDS for number in seconds) or not _GAMMA[0] <= gamma <= _GAMMA[1]:
        return None
    # A step of zero seconds is not a measurement.
    return tuple(found) if seconds[0] + seconds[1] > _LEAST_SECONDS else None


def speed(profilings: Mapping[str, Any]) -> float | None:
    """Samples per second by the reported model, for the `replicas` and `nodes` reported with it.

    The batch size is the job's current one if it reports it, else its initial one. None if a value is missing.
    """
    model = parameters(profilings.get("perfParams"))
    replicas = _count(profilings.get("replicas"))
    if model is None or replicas is None:
        return None
    nodes = _count(profilings.get("nodes")) or 1.0
    low, high = _bounds(profilings.get("localBszBounds"))
    total = _count(profilings.get("globalBatchSize")) or _count(profilings.get("initBatchSize")) or low * replicas
    wanted = max(low, math.ceil(total / replicas))
    steps = math.ceil(wanted / high) - 1 if wanted > high else 0
    if steps and profilings.get("gradientAccumulation") is False:
        wanted, steps = math.floor(high), 0
    local = max(1, math.ceil(wanted / (steps + 1)))
    return replicas * local * (steps + 1) / _step_seconds(model, replicas, nodes, local, steps)


def _step_seconds(model: tuple[float, ...], replicas: float, nodes: float, local: float, steps: int) -> float:
    alpha_c, beta_c, alpha_n, beta_n, alpha_r, beta_r, gamma = model
    own = alpha_c + beta_c * local
    extra = max(replicas - 2, 0.0)
    network = 0.0 if replicas <= 1 else alpha_n + beta_n * extra if nodes > 1 else alpha_r + beta_r * extra
    high, low = max(own, network), min(own, network)
    return steps * own + high * math.exp(math.log1p((low / high) ** gamma) / gamma)


def _bounds(value: Any) -> tuple[float, float]:
    low, high = value if isinstance(value, list) and len(value) == 2 else (None, None)
    least = _count(low) or 1.0
    return least, max(least, _count(high) or math.inf)


def _count(value: Any) -> float | None:
    number = untrusted.number(value)
    return number if number is not None and 1 <= number <= _MOST_COUNT else None
