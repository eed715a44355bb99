"""What a job reports (the parameter `profilings`), for all readers.

    {"observed": [[nodes, replicas, samples a replica, seconds without sync, seconds a step, number of the pool], ...],
     "speed": samples a second, "replicas": 4, "nodes": 2, "batch": samples a replica,
     "initBatchSize": 128, "maxBatchSize": 1024, "localBszBounds": [32, 256], "gradientAccumulation": true,
     "gradParams": {"norm": 1.0, "var": 2.0}, "perfParams": {"alpha_c": ..., ..., "gamma": 1.5},
     "maxProfiledReplicas": 4, "progress": 0.4, "ranks": {"0": {"speed": samples a second, ...}, ...}, "signals": ...}

The names are those of AdaptDL's hints where it has them. Users' programs write it, so every field may be missing, and
impossible values are ignored.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Final

from msgspec import Meta, Struct, field

from diflow.common.jsontext import lenient, parsed
from diflow.record.perfmodel import Model

_LONGEST: Final = 262_144
_MOST_REPLICAS: Final = 1e6
_LARGEST_BATCH: Final = 1e9
_FASTEST_SECONDS: Final = 1e-7
_SLOWEST_SECONDS: Final = 1e6

_Positive = Annotated[float, Meta(gt=0)]
_Count = Annotated[float, Meta(ge=1, le=_LARGEST_BATCH)]


class Row(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A step that was measured, in seconds: of so many replicas, on nodes of this pool, with so many samples each."""

    nodes: float
    replicas: float
    batch: float
    own: float
    step: float
    pool: float = 0.0

    @property
    def speed(self) -> float | None:
        """Samples per second; None of what is impossible."""
        is_possible = (
            1 <= self.nodes <= self.replicas <= _MOST_REPLICAS
            and 0 < self.batch <= _LARGEST_BATCH
            and _FASTEST_SECONDS < self.step < _SLOWEST_SECONDS
            and self.own < _SLOWEST_SECONDS
            and self.pool >= 0
        )
        return self.replicas * self.batch / self.step if is_possible else None


class Rank(Struct, frozen=True):
    """What one replica reports."""

    task: Any = None
    speed: float | None = None


class Report(Struct, frozen=True, rename="camel"):
    """A report. `grad_params`: the gradient's squared `norm` and its variance `var`."""

    own_speed: _Positive | None = field(name="speed", default=None)
    progress: Annotated[float, Meta(ge=0, le=1)] | None = None
    observed: tuple[Row, ...] = ()
    ranks: dict[str, Rank] = {}
    replicas: _Count | None = None
    nodes: _Count | None = None
    batch: float | None = None
    init_batch_size: _Count | None = None
    max_batch_size: _Count | None = None
    global_batch_size: _Count | None = None
    local_bsz_bounds: tuple[float | None, float | None] | None = None
    gradient_accumulation: bool = True
    max_profiled_replicas: _Count | None = None
    grad_params: dict[str, float] = {}
    model: Model | None = field(name="perfParams", default=None)

    @property
    def speed(self) -> float | None:
        """The job's current speed in samples per second; None if it reports no valid one. The first valid one of:

        1. `speed` of the whole job, from the job or computed by the server from its ranks;
        2. the newest row of `observed`: replicas x samples per replica / seconds per step;
        3. the sum of the speeds of the ranks;
        4. the model of AdaptDL's clients, for the replicas and nodes reported with it.
        """
        speeds = (row.speed for row in reversed(self.observed))
        return self.own_speed or next(filter(None, speeds), None) or self._of_ranks() or self._of_model()

    @property
    def is_of_replicas(self) -> bool:
        """Replicas report, such as a step from which no speed follows yet."""
        return bool(self.ranks) and all(isinstance(rank.task, str) for rank in self.ranks.values())

    @property
    def local_batches(self) -> tuple[float | None, float | None]:
        """The least and the most samples of a replica, None where they are unknown."""
        low, high = (
            bound if bound and 1 <= bound <= _LARGEST_BATCH else None for bound in self.local_bsz_bounds or (0, 0)
        )
        return low, high

    @property
    def is_unbounded(self) -> bool:
        """A replica may have the whole batch."""
        return self.local_bsz_bounds is not None and self.local_bsz_bounds[1] is None

    def _of_ranks(self) -> float | None:
        try:
            return math.fsum(max(rank.speed or 0.0, 0.0) for rank in self.ranks.values()) or None
        except OverflowError:
            return None

    def _of_model(self) -> float | None:
        """With the job's current batch size if it reports it, else its initial one."""
        model, replicas = self.model, self.replicas
        if model is None or replicas is None:
            return None
        given_low, given_high = self.local_batches
        low = given_low or 1.0
        high = max(low, given_high or math.inf)
        wanted = max(low, math.ceil((self.global_batch_size or self.init_batch_size or low * replicas) / replicas))
        steps = math.ceil(wanted / high) - 1 if wanted > high else 0
        if steps and not self.gradient_accumulation:
            wanted, steps = math.floor(high), 0
        local = max(1, math.ceil(wanted / (steps + 1)))
        return replicas * local * (steps + 1) / model.step_seconds(replicas, self.nodes or 1.0, local, steps)


_NOTHING: Final = Report()
_read: Final = lenient(Report, most_characters=_LONGEST)
_read_fields: Final = lenient(dict[str, Any], most_characters=_LONGEST)


def read(text: str) -> Report:
    """The report in this text; an empty one if it is none."""
    return _NOTHING if text in ("", "{}") else parsed(_read, text, _NOTHING)  # as of each job that waits


def fields(text: str) -> dict[str, Any]:
    """All that is in this text, as plain data."""
    return parsed(_read_fields, text, {})
