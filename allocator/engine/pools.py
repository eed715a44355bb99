"""Pools of nodes of one GPU type, and the relative speed that each is assumed to have when a job starts.

They come from the daemon's settings. The leader publishes them in the Lease, so that read-only commands plan with the
same pools without knowing the daemon's environment.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from diflow.allocator.model.views import POOL_LABEL

MOST_POOLS = 256
"""The most pools with a speed: more than there are types of GPU, and few enough for an annotation of the Lease."""

PoolLabel = Annotated[str, Field(min_length=1, max_length=317)]
PoolName = Annotated[str, Field(max_length=63)]
"""The value of a label."""
Speed = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
PoolSpeed = Annotated[dict[PoolName, Speed], Field(max_length=MOST_POOLS)]


class Pools(BaseModel):
    """`label`: the node label whose value is the pool's name ("" for a node without it). `speed`: by pool, relative to
    the pools not listed, which have 1."""

    model_config = ConfigDict(frozen=True)

    label: PoolLabel = POOL_LABEL
    speed: PoolSpeed = Field(default_factory=dict)

    def to_json(self) -> str:
        """As one line, for `parse_pools`."""
        return self.model_dump_json()


def parse_pools(text: str) -> Pools | None:
    """The pools in this text, None if it is not valid."""
    try:
        return Pools.model_validate_json(text)
    except ValidationError:
        return None
