"""Types of values in the records that diflow keeps in a Workflow, with their bounds (`common.jsontext.reader`)."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from diflow.common.limits import MOST_MOVES, MOST_REPLICAS

LATEST_SECONDS: Final = 1e11
"""Since 1970: the year 5138."""
Round = Annotated[str, Meta(pattern=r"^[1-9][0-9]{0,8}\Z")]
"""The name of a round."""
Moment = Annotated[float, Meta(ge=0, le=LATEST_SECONDS)]
"""Seconds since 1970."""
Count = Annotated[int, Meta(ge=1, le=MOST_REPLICAS)]
"""Replicas."""
Moves = Annotated[int, Meta(ge=0, le=MOST_MOVES)]
"""How often a job was moved."""
Resource = Annotated[str, Meta(max_length=400)]
"""The name of a resource."""
Amount = Annotated[int, Meta(ge=0, le=2**62)]
"""Of a resource, in its base unit."""
Node = Annotated[str, Meta(max_length=253)]
"""The name of a node; "" for none."""
