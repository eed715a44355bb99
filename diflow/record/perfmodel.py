"""The performance model that clients of AdaptDL report (`perfParams`), for one job and one allocation.

The seven parameters are those of Pollux (OSDI 2021), which the policy `goodput` uses as well; its vectorised form is
`diflow.allocator.policies.goodput.model`.
"""

from __future__ import annotations

import math
from typing import Annotated, Final

from msgspec import Meta, Struct

MOST_SECONDS: Final = 1e6
"""Of each parameter in seconds: a step of eleven days. Sums and powers of larger values are meaningless."""
_LEAST_SECONDS: Final = 1e-7

_Seconds = Annotated[float, Meta(ge=0, le=MOST_SECONDS)]


class Model(Struct, frozen=True):
    """The parameters, in the order of the policy's. A step of zero seconds is not a measurement."""

    alpha_c: _Seconds
    beta_c: _Seconds
    alpha_n: _Seconds
    beta_n: _Seconds
    alpha_r: _Seconds
    beta_r: _Seconds
    gamma: Annotated[float, Meta(ge=1, le=10)]

    def __post_init__(self) -> None:
        if self.alpha_c + self.beta_c <= _LEAST_SECONDS:
            raise ValueError("a step of zero seconds")

    def step_seconds(self, replicas: float, nodes: float, local: float, steps: int) -> float:
        """Of so many replicas on so many nodes, with `local` samples each in each of `steps` + 1 parts of the batch."""
        own = self.alpha_c + self.beta_c * local
        extra = max(replicas - 2, 0.0)
        several = self.alpha_n + self.beta_n * extra if nodes > 1 else self.alpha_r + self.beta_r * extra
        network = 0.0 if replicas <= 1 else several
        high, low = max(own, network), min(own, network)
        return steps * own + high * math.exp(math.log1p((low / high) ** self.gamma) / self.gamma)


NAMES: Final = Model.__struct_fields__
