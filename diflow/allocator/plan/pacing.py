"""How often jobs are restarted for jobs of other namespaces.

A resize restarts all pods of a preemptible job. What a job loses to a job of another namespace is a push:

* after a push it grows for an hour to what it had less what the other job needed, unless its user asks for more: what
  that one leaves soon stays free for the next one like it, which then restarts nobody;
* a namespace pushes a job twice in an hour at most, or stops it once, as a job that is stopped starts again. Then its
  jobs wait, or take from other jobs; what their queue is guaranteed they take up to six times. What others may take of
  that job does not depend on it, so that nobody protects a job by pushing it.

Among the jobs of one namespace nothing is counted, and what a job's own user asks for is no push (`wishes.py`). The
memory is that of this process: another leader begins anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from dataclasses import replace
from typing import Final

import numpy as np

from diflow.allocator.model.arrays import IntArray
from diflow.allocator.model.plan import PREEMPT, RESIZE, Plan
from diflow.allocator.model.reasons import Loss
from diflow.allocator.model.snapshot import namespace_of
from diflow.allocator.plan.holding import Standing
from diflow.allocator.plan.inputs import Picture
from diflow.allocator.plan.wishes import is_another_size

HOUR: Final = 3600.0
"""Seconds for which a push counts, and for which a job does not grow after one."""
MOST_PUSHES: Final = 2
"""Pushes of one job by one namespace in an hour."""

_Push = tuple[float, str, int]
"""(when on the clock; by which namespace; the most replicas of a job of one task that then leave what was needed)."""


class Pacing:
    """What was taken from each job for jobs of other namespaces in the last hour."""

    def __init__(self) -> None:
        self._pushes: dict[str, list[_Push]] = {}
        self._suspected: Set[str] = frozenset()

    def note(self, shown: Picture, plan: Plan, *, unwritten: Set[str], now: float) -> None:
        """Remember what this plan took from jobs for those of other namespaces. `unwritten`: the keys of the jobs for
        which it was not carried out. `now`: on the clock."""
        jobs = [standing.job for standing in shown.standings]
        for j, by, most in _pushed(shown, plan):
            if jobs[j].key in unwritten:
                continue
            uid = jobs[j].read.identity.uid
            times = MOST_PUSHES if int(plan.action[j]) == PREEMPT else 1
            self._pushes.setdefault(uid, []).extend([(now, by, most)] * times)

    def applied(
        self, standings: Iterable[Standing], *, now: float, suspected: Set[str] = frozenset()
    ) -> list[Standing]:
        """The standings with what this pace allows. `now`: on the clock. `suspected`: namespaces that take nothing now,
        so that nothing has to stay free for them."""
        self._suspected = suspected
        self._forget(now)
        return [self._paced(standing) for standing in standings]

    def _forget(self, now: float) -> None:
        kept = {uid: [push for push in pushes if now - push[0] < HOUR] for uid, pushes in self._pushes.items()}
        self._pushes = {uid: pushes for uid, pushes in kept.items() if pushes}

    def _paced(self, standing: Standing) -> Standing:
        read = standing.job.read
        if not (standing.is_placed and read.terms.is_preemptible):
            return standing
        held = {task: len(places) for task, places in standing.places.items()}
        if is_another_size(standing.job):
            return self._spared(standing)
        pushes = [push for push in self._pushes.get(read.identity.uid, ()) if push[1] not in self._suspected]
        if pushes:
            if len(held) == 1:
                held = {task: max(count, min(push[2] for push in pushes)) for task, count in held.items()}
            standing = replace(standing, most={**held, **_least(standing, held)})
        return self._spared(standing)

    def _spared(self, standing: Standing) -> Standing:
        by = [namespace for _, namespace, _ in self._pushes.get(standing.job.read.identity.uid, ())]
        spared_by = {name: by.count(name) for name in by if by.count(name) >= MOST_PUSHES}
        return replace(standing, spared_by=spared_by) if spared_by else standing


def _least(standing: Standing, held: dict[str, int]) -> dict[str, int]:
    return {task: min(most, held.get(task, most)) for task, most in (standing.most or {}).items()}


def _pushed(shown: Picture, plan: Plan) -> Iterator[tuple[int, str, int]]:
    """(job, the namespace for whose jobs it loses something in this plan, the replicas of a job of one task that leave
    what all jobs of that namespace gain)."""
    s = shown.snapshot
    held, then = s.replicas_of_jobs(s.held_by_role()), s.replicas_of_jobs(plan.count, plan.role)
    after = np.bincount(plan.role, weights=plan.count, minlength=s.roles).astype(np.int64)
    gains = s.demand_by_job(np.maximum(after - s.held_by_role(), 0))
    gained: dict[str, IntArray] = {}
    for j in np.flatnonzero(then > held).tolist():
        name = namespace_of(s.job_names[j])
        gained[name] = gained.get(name, 0) + gains[j]
    for j in np.flatnonzero(((plan.action == RESIZE) | (plan.action == PREEMPT)) & s.job_preemptible).tolist():
        reason = plan.reasons[j]
        if is_another_size(shown.standings[j].job):
            continue
        gainers = set(gained) if then[j] < held[j] else set()
        by = {namespace_of(reason.job)} if isinstance(reason, Loss) else gainers
        request = s.role_request[int(s.role_starts()[j])]
        for name in sorted(by - {namespace_of(s.job_names[j])}):
            need, asked = gained.get(name, request), request > 0
            replicas = int(np.max(-(-need[asked] // request[asked]), initial=1))
            yield j, name, int(held[j]) - replicas
