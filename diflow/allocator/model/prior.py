"""What earlier jobs of a job's application have shown, as a policy reads it.

`diflow/record/namespace/applications.py` has the form in which it is kept, and
`diflow/allocator/remember/priors.py` makes this one of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from diflow.allocator.model.arrays import FloatArray, frozen
from diflow.allocator.model.profile import COLUMNS

PARTS = 10
"""Parts of a job's progress for which the gradient noise is kept."""


def _nothing() -> FloatArray:
    return frozen(np.zeros(0))


@dataclass(frozen=True, slots=True, eq=False)
class Prior:
    """The memory of an application. `version` changes with anything else.

    `observations`: rows as in a profile. `noise` (PARTS): gradient variance over squared norm in each part of the
    progress, NaN where it is unknown. `works`: the work of finished jobs in iterations of the initial batch size,
    ascending. `misses`: by how much the record was wrong about later jobs, as a logarithm; NaN: unknown.
    """

    version: int = 0
    observations: FloatArray = field(default_factory=lambda: frozen(np.zeros((0, COLUMNS))))
    noise: FloatArray = field(default_factory=lambda: frozen(np.full(PARTS, np.nan)))
    works: FloatArray = field(default_factory=_nothing)
    restart_seconds: float | None = None
    misses: float = float("nan")
    initial_batch: int = 1
    min_batch: int = 1
    max_batch: int = 1
    min_local_batch: int = 1
    max_local_batch: int = 1
    accumulation: bool = True
