"""How long a replica of a job with `health` may be quiet."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Deadlines:
    """In seconds; `inf` is no limit. Without a sign of life, without a further step, and without a first step.

    A job that writes checkpoints for ten minutes makes no progress for ten minutes and a step: so the default of
    `progress` is 15 minutes.
    """

    heartbeat: float = 600.0
    progress: float = 900.0
    first_progress: float = 7200.0
