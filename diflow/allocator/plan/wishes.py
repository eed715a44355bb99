"""How often jobs are resized because their own users ask for it: the last wish is carried out, and not each of them.

A wish costs all: a plan, writes, and pods that Argo creates. So a namespace has as many resizes at once as jobs with
places, 60 at least, and then one a second, for the jobs first that were tried the longest ago. Of one preemptible job,
all pods of which are restarted, four are carried out at once, and then one each half minute. What a job that is not
preemptible gives back is not counted: it asks for nothing, and ends.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from diflow.allocator.plan.holding import Standing
from diflow.allocator.watch.job import Job
from diflow.common.clock import Clock
from diflow.kube.sparing import Shares

MOST_OF_JOB: Final = 4
OF_JOB_SECONDS: Final = 120.0
"""At most so many resizes of a preemptible job in so many seconds: a restart takes half a minute."""
AT_ONCE: Final = 60
"""Resizes of a namespace at once, however few jobs it has."""
_EACH_SECOND: Final = 1.0
"""Resizes of a namespace in the long run: two or three of the 75 writes a second of a small API server are for them."""
_TURN_SECONDS: Final = 5.0
"""The least time between two plans for which nothing else is a reason."""
TOLD_SECONDS: Final = 15.0
"""After this time a user is told that a wish waits: sooner, each wish would cost a write of this text instead."""
WAITS_FOR_ITS_TURN: Final = (
    "keeps what it holds for now: it was resized often in a short time, or many jobs of its namespace were; "
    "what its user asked for last is done in its turn"
)


class Wishes:
    """Which jobs were resized lately as their users asked for it. Another leader begins anew."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._shares = Shares(share=_EACH_SECOND, burst=AT_ONCE, clock=clock)
        self._times: dict[str, list[float]] = {}
        """When each job was resized, by its name."""
        self._tried: dict[str, float] = {}
        self._waits: dict[str, float] = {}
        """When each job was last part of a plan that might resize it, and since when each one waits."""
        self._due = math.inf

    def due(self) -> float:
        """When a job may next be resized that waits, or its user is to be told, on the clock; infinite for none."""
        return self._due

    def note(self, standings: Iterable[Standing], resized: Iterable[Standing]) -> None:
        """A plan was made for these standings, which has `resized` some as their users asked for it."""
        now = self._clock.monotonic()
        self._tried.update((s.job.title, now) for s in standings if is_wished(s) and not s.waits_for_turn)
        for standing in resized:
            self._times.setdefault(standing.job.title, []).append(now)
            self._shares.charge(standing.job.read.identity.namespace, 1.0)

    def applied(self, standings: Sequence[Standing]) -> list[Standing]:
        """The standings, of which those wait for their turn that are not resized in this plan."""
        now = self._clock.monotonic()
        recent = {name: [at for at in times if now - at < OF_JOB_SECONDS] for name, times in self._times.items()}
        self._times = {name: times for name, times in recent.items() if times}
        self._due = math.inf
        wishing = {s.job.title: s for s in standings if is_wished(s)}
        if self._tried:
            there = {standing.job.title for standing in standings}
            self._tried = {name: at for name, at in self._tried.items() if name in there}
        waits = self._of_jobs(wishing) | self._of_namespaces(standings, wishing)
        self._waits = {name: self._waits.get(name, now) for name in waits}
        told = (at + TOLD_SECONDS for at in self._waits.values())
        self._due = min([self._due, *(at for at in told if at > now)])
        return [replace(s, waits_for_turn=True) if s.job.title in waits else s for s in standings]

    def _of_jobs(self, wishing: dict[str, Standing]) -> set[str]:
        """The preemptible jobs that were resized too often."""
        waits = set()
        for name, standing in wishing.items():
            times = self._times.get(name, ())
            if standing.job.read.terms.is_preemptible and len(times) >= MOST_OF_JOB:
                self._due = min(self._due, times[-MOST_OF_JOB] + OF_JOB_SECONDS)
                waits.add(name)
        return waits

    def _of_namespaces(self, standings: Iterable[Standing], wishing: dict[str, Standing]) -> set[str]:
        """The jobs for which their namespace has no resize left in this plan."""
        by_namespace: dict[str, list[str]] = {}
        for name, standing in wishing.items():
            by_namespace.setdefault(standing.job.read.identity.namespace, []).append(name)
        if not by_namespace:
            return set()
        jobs = Counter(standing.job.read.identity.namespace for standing in standings if standing.is_placed)
        waits = set[str]()
        for namespace, names in by_namespace.items():
            left = int(max(AT_ONCE, jobs[namespace]) - self._shares.spent_seconds(namespace))
            if len(names) > left:
                names.sort(key=lambda name: (self._tried.get(name, -math.inf), name))
                waits.update(names[max(0, left) :])
                self._due = min(self._due, self._clock.monotonic() + max(_TURN_SECONDS, -left / _EACH_SECOND))
        return waits


def is_wished(standing: Standing) -> bool:
    """Whether the user of a job with places has asked for another size since its last change; of a job that is not
    preemptible, for more."""
    read, at = standing.job.read, standing.job.read.notes.allocation
    if not standing.is_placed:
        return False
    if read.terms.is_preemptible:
        return is_another_size(standing.job)
    return at is not None and any(
        role.desired > read.live.running(role.name) and not read.live.has_tail(role.name) for role in read.needs.roles
    )


def is_another_size(job: Job) -> bool:
    """Whether the user of a preemptible job has asked for another size since its last change."""
    at = job.read.notes.allocation
    return at is not None and at.asked not in ("", job.read.limits)
