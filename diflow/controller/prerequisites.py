"""The checks of `prerequisites.check_ready`, kept for some seconds for jobs that are applied together."""

from __future__ import annotations

import math
from typing import Final

from diflow.common.clock import Clock
from diflow.common.errors import DiflowError, NotFoundError, UnavailableError
from diflow.jobs.checks import prerequisites
from diflow.kube.api import Cluster

_KEEP_SECONDS: Final = 10.0
_MOST_KEPT: Final = 10_000


class Prerequisites:
    """What was found, or found missing, by namespace and priority."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: dict[tuple[str, str], tuple[float, DiflowError | None]] = {}

    def check(self, cluster: Cluster, *, namespace: str, priority: str) -> None:
        """As `check_ready`, whose five requests are half of those of a job."""
        known = (namespace, priority)
        when, missing = self._known.get(known, (-math.inf, None))
        if when + _KEEP_SECONDS <= self._clock.monotonic():
            missing = None
            try:
                prerequisites.check_ready(cluster, namespace=namespace, priority=priority)
            except (NotFoundError, UnavailableError) as error:
                missing = error
            if len(self._known) >= _MOST_KEPT:
                self._known.clear()
            self._known[known] = self._clock.monotonic(), missing
        if missing is not None:
            raise missing
