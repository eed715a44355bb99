"""The memory of applications in a replay: what each job that ends leaves to the later jobs of its application."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from diflow.allocator.model.arrays import FloatArray
from diflow.allocator.model.profile import Prior, clean
from diflow.allocator.policies.goodput.fitting import fit_all
from diflow.allocator.policies.goodput.memory import miss
from diflow.allocator.remember.priors import prior_of
from diflow.record.namespace.applications import Application, Lesson, learned


@dataclass
class Memory:
    """Records by application. `frozen`: nothing is learned any more."""

    records: dict[str, Application] = field(default_factory=dict)
    is_frozen: bool = False
    _priors: dict[str, tuple[Application, Prior]] = field(default_factory=dict, repr=False)

    def prior(self, application: str) -> Prior | None:
        """What is known of the application; the same object until it changes."""
        record = self.records.get(application)
        if record is None:
            return None
        known = self._priors.get(application)
        if known is None or known[0] is not record:
            known = self._priors[application] = record, prior_of(record)
        return known[1]

    def learn(self, application: str, rows: FloatArray, lesson: Lesson, *, now_seconds: float) -> None:
        """Add what a job has shown. `rows`: its observations, as in a profile."""
        if self.is_frozen:
            return
        before, seen = self.prior(application), clean(rows)
        found = math.nan
        if before is not None and len(before.observations):
            found = miss(seen, fit_all([before.observations], apart=True)[0])
        made = replace(
            lesson, shapes=tuple(map(tuple, seen[:, :5].tolist())), miss=None if math.isnan(found) else found
        )
        record = self.records.get(application) or Application(application)
        self.records[application] = learned(record, made, now_seconds=now_seconds)


def poisoned(records: Mapping[str, Application], sigma: float, *, seed: int = 0) -> dict[str, Application]:
    """These records with every number multiplied by a lognormal factor of this σ, as if of other applications.

    The model of an application has seven parameters that are off: the times of all its shapes follow from them.
    """
    rng = np.random.default_rng(seed)
    out = {}
    for name, record in sorted(records.items()):
        own, net, several, restart, work, noise = np.exp(sigma * rng.standard_normal(6))
        slope, growth = sigma * rng.standard_normal(2)
        shapes = []
        for nodes, replicas, batch, alone, step, jobs in record.shapes:
            sync = (step - alone) * net * (several if nodes > 1 else 1.0) * replicas ** (0.3 * growth)
            calm = alone * own * (batch / 64.0) ** (0.3 * slope)
            shapes.append((nodes, replicas, batch, calm, calm + sync, jobs))
        out[name] = replace(
            record,
            shapes=tuple(shapes),
            noise=tuple(None if value is None else value + math.log(noise) for value in record.noise),
            works=tuple(value * work for value in record.works),
            restart_seconds=None if record.restart_seconds is None else record.restart_seconds * restart,
        )
    return out
