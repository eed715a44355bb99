"""How often jobs are restarted for jobs of other namespaces.

A resize restarts all pods of a preemptible job. What a job loses to a job of another namespace is a push:

* after a push it grows for an hour to what it had less what the other job needed, unless its user asks for more: what
  that one leaves soon stays free for the next one like it, which then restarts nobody. If none has come to these nodes
  for five minutes, it grows again, and that counts as a push of this namespace: for the rest of the hour it keeps what
  it got;
* a namespace pushes a job twice in an hour at most, or stops it once, as a job that is stopped starts again. Then its
  jobs wait, or take from other jobs; what their queue is guaranteed they take up to six times. What others may take of
  that job does not depend on it, so that nobody protects a job by pushing it.

Among the jobs of one namespace nothing is counted, and what a job's own user asks for is no push (`wishes.py`). The
memory is that of this process: another leader begins anew.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
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

QUIET_SECONDS: Final = 300.0
"""A job grows again so long after no job of that namespace has come to the nodes of which it lost something."""


@dataclass(slots=True)
class _Push:
    """`at`: when, on the clock; `by`: which namespace; `most`: the replicas of a job of one task that then leave what
    was needed; `nodes`: those of which it lost something; `used`: when a job of this namespace last came to one of
    them. `is_growth`: the job grew again after a push, sooner than in an hour."""

    at: float
    by: str
    most: int = 0
    nodes: Set[str] = frozenset()
    used: float = 0.0
    is_growth: bool = False


class Pacing:
    """What was taken from each job for jobs of other namespaces in the last hour."""

    def __init__(self) -> None:
        self._pushes: dict[str, list[_Push]] = {}
        self._suspected: Set[str] = frozenset()
        self._due = math.inf

    def due(self) -> float:
        """When a job that was pushed may grow again, on the clock; infinite for none."""
        return self._due

    def note(self, shown: Picture, plan: Plan, *, unwritten: Set[str], now: float) -> None:
        """Remember what this plan took from jobs for those of other namespaces, and gave back. `unwritten`: the keys of
        the jobs for which it was not carried out. `now`: on the clock."""
        moves = _Moves(shown, plan)
        if self._pushes:
            self._note_growth(shown, moves, unwritten, now)
        for j, by, most in moves.pushed():
            job = shown.standings[j].job
            if job.key in unwritten:
                continue
            push = _Push(now, by, most, moves.left(j), now)
            times = MOST_PUSHES if int(plan.action[j]) == PREEMPT else 1
            self._pushes.setdefault(job.read.identity.uid, []).extend([push] * times)

    def _note_growth(self, shown: Picture, moves: _Moves, unwritten: Set[str], now: float) -> None:
        came = moves.came({push.by for pushes in self._pushes.values() for push in pushes})
        for pushes in self._pushes.values():
            for push in pushes:
                if push.nodes & came.get(push.by, set()):
                    push.used = now
        for j in moves.grown:
            job = shown.standings[j].job
            pushes = self._pushes.get(job.read.identity.uid, [])
            if job.key not in unwritten and shown.standings[j].is_placed and not is_another_size(job):
                pushes += [
                    _Push(now, by, is_growth=True) for by in sorted({p.by for p in pushes if _counts(p, pushes)})
                ]

    def applied(
        self, standings: Iterable[Standing], *, now: float, suspected: Set[str] = frozenset()
    ) -> list[Standing]:
        """The standings with what this pace allows. `now`: on the clock. `suspected`: namespaces that take nothing now,
        so that nothing has to stay free for them."""
        self._suspected = suspected
        self._due = math.inf
        kept = {uid: [push for push in pushes if now - push.at < HOUR] for uid, pushes in self._pushes.items()}
        self._pushes = {uid: pushes for uid, pushes in kept.items() if pushes}
        return [self._paced(standing, now) for standing in standings]

    def _paced(self, standing: Standing, now: float) -> Standing:
        read = standing.job.read
        pushes = self._pushes.get(read.identity.uid, [])
        if not (pushes and standing.is_placed and read.terms.is_preemptible):
            return standing
        held = {task: len(places) for task, places in standing.places.items()}
        if not is_another_size(standing.job) and (holding := [p for p in pushes if self._holds(p, pushes, now)]):
            if len(held) == 1:
                held = {task: max(count, min(push.most for push in holding)) for task, count in held.items()}
            standing = replace(standing, most={**held, **_least(standing, held)})
        by = [push.by for push in pushes]
        spared_by = {name: by.count(name) for name in by if by.count(name) >= MOST_PUSHES}
        return replace(standing, spared_by=spared_by) if spared_by else standing

    def _holds(self, push: _Push, pushes: Sequence[_Push], now: float) -> bool:
        """Whether the job does not grow because of this push. Notes when that may end before the hour."""
        if push.by in self._suspected or not _counts(push, pushes):
            return False
        if sum(one.by == push.by for one in pushes) >= MOST_PUSHES:
            return True
        ends = push.used + QUIET_SECONDS
        if ends > now:
            self._due = min(self._due, ends)
        return ends > now


def _counts(push: _Push, pushes: Sequence[_Push]) -> bool:
    """Whether it is a push after which the job has not grown again."""
    return not push.is_growth and not any(one.is_growth and one.by == push.by and one.at >= push.at for one in pushes)


def _least(standing: Standing, held: dict[str, int]) -> dict[str, int]:
    return {task: min(most, held.get(task, most)) for task, most in (standing.most or {}).items()}


class _Moves:
    """What a plan changes, as far as namespaces lose something to each other."""

    def __init__(self, shown: Picture, plan: Plan) -> None:
        self._shown, self._plan, self._s = shown, plan, shown.snapshot
        s = self._s
        self._held = s.replicas_of_jobs(s.held_by_role())
        self._then = s.replicas_of_jobs(plan.count, plan.role)
        self.grown: list[int] = np.flatnonzero(self._then > self._held).tolist()
        """The jobs that have more."""

    def pushed(self) -> Iterator[tuple[int, str, int]]:
        """(job, the namespace for whose jobs it loses something in this plan, the replicas of a job of one task that
        leave what all jobs of that namespace gain)."""
        s, plan = self._s, self._plan
        after = np.bincount(plan.role, weights=plan.count, minlength=s.roles).astype(np.int64)
        gains = s.demand_by_job(np.maximum(after - s.held_by_role(), 0))
        gained: dict[str, IntArray] = {}
        for j in self.grown:
            name = namespace_of(s.job_names[j])
            gained[name] = gained.get(name, 0) + gains[j]
        for j in np.flatnonzero(((plan.action == RESIZE) | (plan.action == PREEMPT)) & s.job_preemptible).tolist():
            reason = plan.reasons[j]
            if is_another_size(self._shown.standings[j].job):
                continue
            gainers = set(gained) if self._then[j] < self._held[j] else set()
            by = {namespace_of(reason.job)} if isinstance(reason, Loss) else gainers
            request = s.role_request[int(s.role_starts()[j])]
            for name in sorted(by - {namespace_of(s.job_names[j])}):
                need, asked = gained.get(name, request), request > 0
                replicas = int(np.max(-(-need[asked] // request[asked]), initial=1))
                yield j, name, int(self._held[j]) - replicas

    def is_beyond(self, job: int, most: int) -> bool:
        """Whether the job has more replicas than these, which are for jobs of one task."""
        return len(self._s.facts.roles_of[job]) > 1 or int(self._then[job]) > most

    def left(self, job: int) -> Set[str]:
        """The nodes on which the job has less."""
        s, plan = self._s, self._plan
        less = np.zeros(s.nodes, dtype=np.int64)
        mine, there = s.role_job[s.held_role] == job, s.role_job[plan.role] == job
        np.add.at(less, s.held_node[mine], s.held_count[mine])
        np.subtract.at(less, plan.node[there], plan.count[there])
        return {s.node_names[node] for node in np.flatnonzero(less > 0).tolist()}

    def came(self, namespaces: Set[str]) -> dict[str, set[str]]:
        """The nodes of the jobs of each of these namespaces that have more."""
        s, plan, out = self._s, self._plan, dict[str, set[str]]()
        for j in self.grown:
            if (name := namespace_of(s.job_names[j])) in namespaces:
                nodes = plan.node[s.role_job[plan.role] == j].tolist()
                out.setdefault(name, set()).update(s.node_names[node] for node in nodes)
        return out
