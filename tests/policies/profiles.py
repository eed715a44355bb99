"""Profiles of jobs for tests."""

from __future__ import annotations

import numpy as np

from diflow.allocator.model.arrays import FloatArray
from diflow.allocator.model.profile import Profile


def reported(observations: FloatArray) -> Profile:
    """The profile of a job that has reported these rows, with batches of 32 to 4096 samples."""
    return Profile(
        version=1,
        observations_version=1,
        observations=np.asarray(observations),
        grad_sqr=1.0,
        grad_var=50.0,
        initial_batch=32,
        max_batch=4096,
        min_local_batch=4,
        max_local_batch=256,
    )
