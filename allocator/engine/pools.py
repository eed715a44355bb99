"""Pools of like nodes (GPU types), and how fast each is taken to be when a job is to start.

The daemon is told by its settings. Who leads says it in the Lease, so that whoever asks what would be decided is shown
the same cluster without knowing the daemon's environment.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from diflow.allocator.model.views import POOL_LABEL

MOST_POOLS = 256
"""Pools that may be given a speed: there are not so many types of GPU, and the Lease has room for them."""

PoolLabel = Annotated[str, Field(min_length=1, max_length=317)]
PoolName = Annotated[str, Field(max_length=63)]
"""A value of a label."""
Speed = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
PoolSpeed = Annotated[dict[PoolName, Speed], Field(max_length=MOST_POOLS)]


class Pools(BaseModel):
    """`label`: the node label whose value is the name of a node's pool ("" where a node has none). `speed`: how many
    times as fast as the others, which count as 1."""

    model_config = ConfigDict(frozen=True)

    label: PoolLabel = POOL_LABEL
    speed: PoolSpeed = Field(default_factory=dict)

    def said(self) -> str:
        """As one line, for `heard`."""
        return self.model_dump_json()


def heard(text: str) -> Pools | None:
    """What another process said; None for what was not said so."""
    try:
        return Pools.model_validate_json(text)
    except ValidationError:
        return None
