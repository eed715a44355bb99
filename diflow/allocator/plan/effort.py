"""What planning the jobs of each namespace may cost over time.

A plan has a bound of operations (`model/work.py`), with which it may take a second. Jobs of one namespace that wait,
and for which much is searched in vain, would make each plan that slow, and a new job of others waits for two. So a
namespace may cost a quarter of a processor: in the plans after it has cost more, nothing is searched for it. If no
other namespace has jobs, there is no such bound.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from diflow.allocator.model.snapshot import Snapshot, namespace_of
from diflow.common.clock import Clock
from diflow.kube.sparing import Shares

SHARE: Final = 0.25
"""Of a processor."""
_BURST_SECONDS: Final = 0.5
_FEW_OPERATIONS: Final = 1000


class Effort:
    """The processor time that plans have used for the jobs of each namespace."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._shares = Shares(share=SHARE, burst=_BURST_SECONDS, clock=clock)
        self._due = math.inf

    def due(self) -> float:
        """When the jobs of a namespace that were left aside may be planned again, on the clock; infinite for none."""
        return self._due

    def begin(self, snapshot: Snapshot) -> None:
        """Before a plan: nothing is searched for namespaces that have used their share."""
        names = _namespaces(snapshot)
        aside = {number: name for number, name in enumerate(names) if len(names) > 1 and not self._shares.may(name)}
        snapshot.work.leave_aside(aside)
        left = [self._shares.left_seconds(name) for name in aside.values()]
        self._due = self._clock.monotonic() + min(left) if left else math.inf

    def note(self, snapshot: Snapshot, seconds: float) -> None:
        """After a plan that has used so many seconds of a processor: each namespace pays by its operations."""
        done = snapshot.work.of_owner
        total = sum(done)
        for number, name in enumerate(_namespaces(snapshot)):
            if done[number] > _FEW_OPERATIONS:
                self._shares.charge(name, seconds * done[number] / total)


def _namespaces(snapshot: Snapshot) -> list[str]:
    """The namespaces by their numbers in `snapshot.owners`."""
    _, first = np.unique(snapshot.owners, return_index=True)
    return [namespace_of(snapshot.job_names[j]) for j in first.tolist()]
