"""Pools of nodes of one GPU type, with the relative speed that each is assumed to have when a job starts, and the
levels of the topology.

They come from the daemon's settings. The leader publishes them in the Lease, so that read-only commands plan with the
same ones without knowing the daemon's environment.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from diflow.allocator.model.topology import Level, parse_levels
from diflow.allocator.model.views import POOL_LABEL
from diflow.common.errors import InvalidError

MOST_POOLS = 256
"""The most pools with a speed: more than there are types of GPU, and few enough for an annotation of the Lease."""

PoolLabel = Annotated[str, Field(min_length=1, max_length=317)]
PoolName = Annotated[str, Field(max_length=63)]
"""The value of a label."""
Speed = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
PoolSpeed = Annotated[dict[PoolName, Speed], Field(max_length=MOST_POOLS)]


def _checked(text: str) -> str:
    try:
        parse_levels(text)
    except InvalidError as error:
        raise ValueError(str(error)) from None
    return text


TopologyText = Annotated[str, AfterValidator(_checked)]
"""Levels as `parse_levels` reads them."""


class Pools(BaseModel):
    """`label`: the node label whose value is the pool's name ("" for a node without it). `speed`: by pool, relative to
    the pools not listed, which have 1. `topology`: its levels, as text."""

    model_config = ConfigDict(frozen=True)

    label: PoolLabel = POOL_LABEL
    speed: PoolSpeed = Field(default_factory=dict)
    topology: TopologyText = ""

    @property
    def levels(self) -> tuple[Level, ...]:
        """The levels of the topology, the widest first."""
        return parse_levels(self.topology)

    def to_json(self) -> str:
        """As one line, for `parse_pools`."""
        return self.model_dump_json()


def parse_pools(text: str) -> Pools | None:
    """The pools in this text, None if it is not valid."""
    try:
        return Pools.model_validate_json(text)
    except ValidationError:
        return None
