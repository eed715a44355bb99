"""An Optimus-like baseline (EuroSys 2018): replicas go where they reduce the time left most; batch sizes stay fixed.

For comparison in the simulator. Each job first gets its minimum, the oldest first. Then one replica at a time goes to
the job whose time left it reduces most, while it reduces any. The policy knows the work left of each job and its speed
at each number of replicas, and ignores the cost of a move, as in the runs of the Pollux artifact.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, replace

import numpy as np

from diflow.allocator.model.arrays import BoolArray, FloatArray, IntArray
from diflow.allocator.model.ledger import Ledger
from diflow.allocator.model.plan import Plan
from diflow.allocator.model.profile import (
    ACCUMULATION_SECONDS,
    LOCAL_BATCH,
    REPLICAS,
    STEP_SECONDS,
    Profile,
    clean,
    gradient_noise,
)
from diflow.allocator.model.reasons import Fits, Reason
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.policies.fit.policy import FitPolicy
from diflow.allocator.policies.goodput.fitting import fit_all
from diflow.allocator.policies.goodput.gangs import Gangs, gangs_of, view_of
from diflow.allocator.policies.goodput.model import PARAMETERS, efficiency, step_seconds
from diflow.allocator.policies.goodput.reports import work_left
from diflow.allocator.policies.settings import PolicySettings
from diflow.allocator.policies.waiting import Feasibility, explain_impossible, explain_waiting, first_reasons, plan_of
from diflow.common.words import counted

UNKNOWN_SPEEDUP = 0.5
"""A job without reports is assumed to run R^0.5 times as fast on R replicas, as under `goodput`."""
LEAST_SERVICE_SECONDS = 60.0
"""A job without progress reports is assumed to need as much again as its service so far, and at least this."""


@dataclass(frozen=True, slots=True)
class Resized(Reason):
    """Replicas of the elastic role after and before; 0 after: of all roles."""

    replicas: int
    before: int

    def text(self) -> str:
        use = "the best use of the capacity" if self.replicas >= self.before else "its capacity is worth more elsewhere"
        return f"has {counted(self.replicas, 'replica')} instead of {self.before}: {use}"


class OptimusPolicy:
    """Greatest reduction of the summed time left, replica by replica."""

    name = "optimus"

    def __init__(self, settings: PolicySettings | None = None) -> None:
        self._settings = settings or PolicySettings()
        self._fit = FitPolicy(settings)
        self._curves: dict[str, _Curve] = {}

    def allocate(self, job: int, snapshot: Snapshot) -> Plan:
        return self._fit.allocate(job, snapshot)

    def measure(self, snapshot: Snapshot, plan: Plan) -> float:
        """As `FitPolicy.measure`."""
        return self._fit.measure(snapshot, plan)

    def optimize(self, snapshot: Snapshot) -> Plan:
        gangs = gangs_of(snapshot, self._settings)
        view = view_of(snapshot, gangs, None)
        ledger, reasons = Ledger(snapshot), first_reasons(snapshot)
        target = self._counts(snapshot, gangs, view.free_to_move)
        moved: list[int] = np.flatnonzero(view.free_to_move & (target != view.held)).tolist()
        for j in moved:
            ledger.release(j)
        # As in the artifact: small jobs first, each on the nodes that have the most free capacity.
        largest = np.maximum(snapshot.node_allocatable.max(axis=0, initial=1), 1)
        ledger.scores = lambda free, _: (free / largest).mean(axis=1)
        for j in sorted(moved, key=lambda j: (int(target[j]), j)):
            got = self._put(ledger, gangs, j, int(target[j]))
            if got == 0:
                continue
            before = int(view.held[j])
            reasons[j] = Resized(got, before) if view.running[j] else Fits(got, gangs.desired[j])
        ledger.scores = None
        self._explain_waiting(ledger, reasons)
        return plan_of(ledger, self.name, reasons)

    def _counts(self, snapshot: Snapshot, gangs: Gangs, movable: BoolArray) -> IntArray:
        """The replicas of each job's elastic role (J)."""
        held = snapshot.held_by_role()
        target = held[gangs.elastic].copy()
        target[movable] = 0
        stays = ~movable[snapshot.role_job[snapshot.held_role]]
        fixed = snapshot.usage(snapshot.held_role[stays], snapshot.held_node[stays], snapshot.held_count[stays])
        free = np.where(snapshot.node_open[:, None], np.maximum(snapshot.capacity() - fixed, 0), 0).sum(axis=0)
        feasible = Feasibility(snapshot)
        curves = self._read(snapshot, gangs)
        order = np.lexsort((np.arange(snapshot.jobs), snapshot.job_created_seconds, -snapshot.job_priority))
        waiting: list[tuple[float, int, int]] = []
        for place, j in enumerate(order[movable[order]].tolist()):
            if feasible.impossible(j) is not None:
                continue
            low = gangs.low_list[j]
            need = gangs.others[j] + low * gangs.request[j]
            if (need > free).any():
                continue
            free = free - need
            target[j] = low
            if snapshot.job_preemptible[j]:
                self._ask(waiting, curves[j], low, (place, j))
        while waiting:
            gain, place, j = heapq.heappop(waiting)
            if gain >= 0:
                break
            if (gangs.request[j] > free).any():
                continue
            free = free - gangs.request[j]
            target[j] += 1
            self._ask(waiting, curves[j], int(target[j]), (place, j))
        return target

    @staticmethod
    def _ask(waiting: list[tuple[float, int, int]], curve: _Curve, count: int, job: tuple[int, int]) -> None:
        """Add the reduction of the time left by one replica more than `count` to the heap, as a negative number."""
        at = count - curve.low
        if at + 1 < len(curve.seconds):
            gain = curve.left * float(curve.seconds[at] - curve.seconds[at + 1])
            heapq.heappush(waiting, (-gain, *job))

    def _read(self, snapshot: Snapshot, gangs: Gangs) -> list[_Curve]:
        """The curve of each job; only new reports are read."""
        last, self._curves = self._curves, {}
        for j, (name, profile) in enumerate(zip(snapshot.job_names, snapshot.job_profile, strict=True)):
            low, high, known = gangs.low_list[j], int(gangs.high[j]), last.get(name)
            if known is None or known.profile is not profile or (known.low, known.high) != (low, high):
                seconds = _seconds(profile, np.arange(low, high + 1), per_node=gangs.per_node_list[j])
                known = _Curve(profile, low, high, seconds, math.nan)
            left = work_left(profile) if profile is not None else math.nan
            if not math.isfinite(left):
                left = max(float(snapshot.job_service_seconds[j]), LEAST_SERVICE_SECONDS) / float(known.seconds[0])
            self._curves[name] = replace(known, left=left)
        return [self._curves[name] for name in snapshot.job_names]

    @staticmethod
    def _put(ledger: Ledger, gangs: Gangs, job: int, count: int) -> int:
        """Place `count` replicas of the elastic role, or as many fewer as fit. Returns how many were placed."""
        role, low = gangs.elastic_list[job], gangs.low_list[job]
        while count >= max(low, 1):
            if ledger.try_gang(job, {**gangs.wants[job], role: count}) is not None:
                return count
            count = min(count - 1, max(low, ledger.most(job, role))) if count > low else 0
        return 0

    @staticmethod
    def _explain_waiting(ledger: Ledger, reasons: list[Reason]) -> None:
        snapshot = ledger.snapshot
        feasible, held = Feasibility(snapshot), snapshot.held_by_role().tolist()
        for j in np.flatnonzero(~ledger.holding()).tolist():
            impossible = feasible.impossible(j)
            before = sum(held[role] for role in ledger.roles_of(j))
            if before:
                reasons[j] = Resized(0, before)
            elif impossible is not None:
                reasons[j] = explain_impossible(ledger, j, impossible)
            else:
                reasons[j] = explain_waiting(ledger, j)


@dataclass(frozen=True, slots=True, eq=False)
class _Curve:
    """`seconds`: of a unit of the job's work with `low`.. `high` replicas. `left`: units of work left."""

    profile: Profile | None
    low: int
    high: int
    seconds: FloatArray
    left: float


def _seconds(profile: Profile | None, count: IntArray, *, per_node: int) -> FloatArray:
    """Seconds of a unit of work with each of `count` replicas, at the smallest batch size that the job may use.

    Times that were observed are used as they are, and the performance model between and beyond them.
    """
    if profile is None:
        return np.power(np.maximum(count, 1.0), -UNKNOWN_SPEEDUP)
    rows = clean(profile.observations)
    initial = max(1, profile.initial_batch)
    batch = max(initial, profile.min_batch)
    wanted = np.ceil(batch / np.maximum(count, 1))
    steps = np.maximum(np.ceil(wanted / max(1, profile.max_local_batch)) - 1, 0.0)
    local = np.ceil(wanted / (steps + 1))
    seen: dict[int, float] = {}
    for row in rows:
        replicas = int(row[REPLICAS])
        again = max(0.0, math.ceil(batch / (replicas * row[LOCAL_BATCH]) - 1e-8) - 1.0)
        seconds = float(row[STEP_SECONDS] + again * row[ACCUMULATION_SECONDS])
        seen[replicas] = min(seconds, seen.get(replicas, math.inf))
    out = np.array([seen.get(c, math.nan) for c in count.tolist()])
    if np.isnan(out).any():
        params = fit_all([rows])[0] if profile.parameters is None else np.asarray(profile.parameters, dtype=np.float64)
        if params.shape != (PARAMETERS,) or not np.isfinite(params).all():
            return _seconds(None, count, per_node=per_node)
        model = step_seconds(params, count > per_node, count.astype(np.float64), local, steps)
        out = np.where(np.isnan(out), model, out)
    noise = gradient_noise(profile)
    scale = np.array([batch / initial])
    inverse = np.array([noise[1] / noise[0] if noise is not None and noise[0] > 0 else math.inf])
    return np.maximum(out / float((scale * efficiency(scale, inverse))[0]), 1e-9)
