"""Run a stream under a policy, cycle by cycle, and measure shares and waits.

In each period the policy is called once, and its plan is validated and carried out at once: pods end within the cycle.
Times and restarts of jobs follow the rules of `plan.carry_out`. Deterministic.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from benchmarks.queue_streams.streams import GPU, REQUEST, Stream, StreamJob
from diflow.allocator.model.arrays import FloatArray, IntArray
from diflow.allocator.model.plan import ADMIT, KEEP, PREEMPT, WAIT, Plan
from diflow.allocator.model.profile import Profile
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.model.validate import faults
from diflow.allocator.model.views import JobView, RoleView, build
from diflow.allocator.policies.fair.shares import deserved_by
from diflow.common.errors import InvalidError

ROLE = "worker"
IDLE_SECONDS = 1800.0
"""How long capacity that a waiting job could use may stay reserved for another: `reserve_for_seconds` of `fair`."""
_DONE = 1e-6
"""Seconds of work that count as zero: sums of floats."""


class Plans(Protocol):
    """The part of a policy that is used here."""

    name: str

    def optimize(self, snapshot: Snapshot) -> Plan: ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """The figures of one job. Times are seconds from the start of the stream; -1: not before its end."""

    job: StreamJob
    started_seconds: float
    ended_seconds: float
    done_seconds: float
    """Work done, in seconds with all its GPUs."""
    stops: int
    """How often it was stopped, or moved without shrinking."""
    restarts: int
    """How often it was started again, moved or resized."""
    waited_seconds: float
    """From its creation to its first start, or to the end of the stream."""
    longest_wait_seconds: float
    """The longest time without a pod, before its first start or after a stop."""
    longest_open_wait_seconds: float
    """The same, counting only cycles in which its gang fits in idle capacity plus what preemptible jobs of other queues
    hold above their queues' shares: it would take nothing to which others are entitled."""
    fits: bool
    """Whether its gang fits on the empty cluster and in its queue's cap."""


@dataclass(frozen=True, slots=True)
class StreamResult:
    """The figures of a stream under a policy."""

    policy: str
    outcomes: tuple[Outcome, ...]
    met: tuple[float, ...]
    """For each queue Σ min(held, deserved) / Σ deserved over all cycles, in GPUs; 1 for a queue without demand."""
    utilisation: float
    """Σ held / Σ possible. The possible GPUs of a cycle are the most that whole gangs of the present jobs can hold
    together, including running jobs that are not preemptible. That is exact, because each replica is one GPU and may
    run anywhere, and does not count capacity in which no gang fits. Restarts on the way there are ignored, so it is an
    upper bound."""
    busy: float
    """Σ held / Σ capacity."""
    mean_wait_seconds: float
    """Mean wait for the first start, of the jobs that were started."""
    mean_wait_of_all_seconds: float
    """The same of all jobs; a job that was not started waited to the end of the stream. Above the cluster's capacity it
    grows with the length of the stream under any policy."""
    never_started: int
    longest_wait_seconds: float
    """The longest `Outcome.longest_wait_seconds` of a job that fits."""
    longest_open_wait_seconds: float
    """The longest `Outcome.longest_open_wait_seconds` of a job that fits. Any other wait could only be ended by
    stopping a job that is entitled to its place."""
    quiet_evictions: int
    """Jobs that lost replicas in a cycle before which no job was created or ended."""
    most_stops: int
    """The most stops of any job."""
    stops: int
    restarts: int
    idle_cycles: int
    """Cycles with idle capacity that a waiting job could have used."""
    late_idle_cycles: int
    """Those of them after more than IDLE_SECONDS of such cycles, for whichever waiting jobs."""
    ended: int
    """Jobs that ended."""
    decision_seconds: tuple[float, ...] = field(compare=False, repr=False)
    """Time of each call of the policy: the only field that is not deterministic."""


@dataclass(slots=True)
class _Run:
    """A job that was created and has not ended."""

    job: StreamJob
    queue: int
    role: RoleView
    fits: bool
    placed: dict[str, int] = field(default_factory=dict)
    held: int = 0
    done_seconds: float = 0.0
    pause_seconds: float = 0.0
    started: float | None = None
    changed: float | None = None
    ended: float = -1.0
    restarts: int = 0
    stops: int = 0
    service_seconds: float = 0.0
    waiting_since: float = 0.0
    longest_wait: float = 0.0
    open_wait: float = 0.0
    longest_open_wait: float = 0.0
    view: JobView | None = None


class _Sums:
    """Sums over the cycles."""

    def __init__(self, queues: int) -> None:
        self.met, self.deserved = np.zeros(queues), np.zeros(queues)
        self.held = self.possible = self.capacity = 0
        self.quiet_evictions = self.idle_cycles = self.late_idle_cycles = 0
        self.idle_since: float | None = None
        self.decisions: list[float] = []


def run_stream(
    stream: Stream,
    policy: Plans,
    *,
    known: Profile | None = None,
    on_plan: Callable[[Snapshot, Plan], None] | None = None,
) -> StreamResult:
    """Run the stream to its last cycle. `known`: what the memory of applications says of each job. Raises InvalidError
    for an invalid plan or an unknown queue."""
    index = {queue.name: q for q, queue in enumerate(sorted(stream.queues, key=lambda queue: queue.name))}
    caps = [queue.cap.get(GPU) for queue in sorted(stream.queues, key=lambda queue: queue.name)]
    capacity = sum(node.allocatable.get(GPU, 0) for node in stream.nodes)
    coming = sorted((_arrived(job, index, caps, capacity) for job in stream.jobs), key=lambda r: r.job.created_seconds)
    sums, present, gone, at = _Sums(len(index)), list[_Run](), list[_Run](), 0
    has_ended = False
    for cycle in range(stream.cycles):
        now = cycle * stream.period_seconds
        first = at
        while at < len(coming) and coming[at].job.created_seconds <= now:
            at += 1
        is_quiet = at == first and not has_ended
        if at > first:
            # In the order of the snapshot's jobs.
            present = sorted([*present, *coming[first:at]], key=lambda run: run.job.name)
        sums.capacity += capacity
        has_ended = False
        if not present:
            sums.idle_since = None
            continue
        snapshot = build(stream.nodes, [_view(run, known) for run in present], stream.queues, now_seconds=now)
        began = time.perf_counter()
        plan = policy.optimize(snapshot)
        sums.decisions.append(time.perf_counter() - began)
        wrong = faults(snapshot, plan)
        if wrong:
            raise InvalidError(f"policy {policy.name} returned a bad plan at {now:g} s: {wrong[0]}")
        if on_plan is not None:
            on_plan(snapshot, plan)
        sums.possible += _possible(present, caps, capacity)
        evicted = _apply(snapshot, plan, present, now=now, restart_seconds=stream.restart_seconds)
        sums.quiet_evictions += evicted if is_quiet else 0
        above = _measure(sums, snapshot, present, caps, capacity=capacity)
        _count_open_waits(present, above, capacity, stream.period_seconds)
        for run in present:
            _advance(run, now, stream.period_seconds)
        ended = [run for run in present if run.ended >= 0]
        if ended:
            has_ended = True
            gone += ended
            present = [run for run in present if run.ended < 0]
    until = stream.cycles * stream.period_seconds
    # Jobs created after the last cycle were never in a snapshot.
    return _result(policy.name, [*gone, *present], sums, until)


def _arrived(job: StreamJob, index: dict[str, int], caps: Sequence[int | None], capacity: int) -> _Run:
    if job.queue not in index:
        raise InvalidError(f"job {job.name}: the stream has no queue {job.queue!r}")
    queue = index[job.queue]
    cap = caps[queue]
    return _Run(
        job=job,
        queue=queue,
        role=RoleView(ROLE, REQUEST, minimum=job.least, maximum=job.most, desired=job.most),
        fits=job.least <= (capacity if cap is None else min(cap, capacity)),
        waiting_since=job.created_seconds,
    )


def _view(run: _Run, known: Profile | None) -> JobView:
    """The job's view, cached while it waits."""
    if run.view is None or run.held:
        run.view = JobView(
            name=run.job.name,
            roles=(run.role,),
            queue=run.job.queue,
            priority=run.job.priority,
            preemptible=run.job.preemptible,
            created_seconds=run.job.created_seconds,
            started_seconds=run.started,
            changed_seconds=run.changed,
            restarts=run.restarts,
            service_seconds=run.service_seconds,
            placed={ROLE: run.placed},
            profile=known,
        )
    return run.view


def _apply(snapshot: Snapshot, plan: Plan, present: Sequence[_Run], *, now: float, restart_seconds: float) -> int:
    """Carry the plan out. Returns how many jobs lost replicas, or were moved."""
    after: dict[int, dict[str, int]] = {}
    for role, node, count in zip(plan.role.tolist(), plan.node.tolist(), plan.count.tolist(), strict=True):
        # Each job has one role, so their indices are equal.
        after.setdefault(role, {})[snapshot.node_names[node]] = count
    evicted = 0
    actions = plan.action.tolist()
    for j, run in enumerate(present):
        action = actions[j]
        if action in (KEEP, WAIT):
            continue
        before, run.placed = run.placed, after.get(j, {})
        was, run.held = run.held, sum(run.placed.values())
        run.view = None
        if action == PREEMPT:
            run.stops += 1
            run.waiting_since = now
            evicted += 1
        elif action == ADMIT:
            run.longest_wait = max(run.longest_wait, now - run.waiting_since)
        elif run.held < was:
            evicted += 1
        elif any(count > run.placed.get(node, 0) for node, count in before.items()):
            run.stops += 1
            evicted += 1
        if action != PREEMPT:
            if run.started is None:
                run.started = now
            else:
                run.restarts += 1
                run.pause_seconds = restart_seconds
        run.changed = now
    return evicted


def _advance(run: _Run, now: float, period_seconds: float) -> None:
    """The job works until the next cycle, or its end."""
    if not run.held:
        return
    stands = min(run.pause_seconds, period_seconds)
    run.pause_seconds -= stands
    rate = run.held / run.job.most
    left = (run.job.work_seconds - run.done_seconds) / rate
    works = min(left, period_seconds - stands)
    run.done_seconds += works * rate
    run.service_seconds += run.held * (stands + works)
    if left - works <= _DONE:
        run.ended = now + stands + works


def _measure(
    sums: _Sums, snapshot: Snapshot, present: Sequence[_Run], caps: Sequence[int | None], *, capacity: int
) -> FloatArray:
    """Add this cycle to the sums. Returns what each queue holds above its share, in GPUs."""
    deserved = deserved_by(snapshot)[:, snapshot.resources.index(GPU)]
    held: IntArray = np.zeros(len(caps), dtype=np.int64)
    for run in present:
        held[run.queue] += run.held
    sums.met += np.minimum(held, deserved)
    sums.deserved += deserved
    used = int(held.sum())
    sums.held += used
    if _is_idle_for_somebody(present, held, caps, capacity - used):
        now = snapshot.now_seconds
        sums.idle_since = now if sums.idle_since is None else sums.idle_since
        sums.idle_cycles += 1
        sums.late_idle_cycles += now - sums.idle_since > IDLE_SECONDS
    else:
        sums.idle_since = None
    out: FloatArray = np.maximum(held - deserved, 0.0)
    return out


def _count_open_waits(present: Sequence[_Run], above: FloatArray, capacity: int, period_seconds: float) -> None:
    idle = capacity - sum(run.held for run in present)
    stoppable = np.zeros(len(above))
    for run in present:
        if run.job.preemptible:
            stoppable[run.queue] += run.held
    surplus = np.minimum(above, stoppable)
    for run in present:
        if run.held:
            run.open_wait = 0.0
        elif run.job.least <= idle + surplus.sum() - surplus[run.queue]:
            run.open_wait += period_seconds
            run.longest_open_wait = max(run.longest_open_wait, run.open_wait)


def _is_idle_for_somebody(present: Sequence[_Run], held: IntArray, caps: Sequence[int | None], idle: int) -> bool:
    """Whether a waiting job fits in the idle capacity and in its queue's cap."""
    for run in present:
        if not run.held and run.job.least <= idle:
            cap = caps[run.queue]
            if cap is None or held[run.queue] + run.job.least <= cap:
                return True
    return False


def _possible(present: Sequence[_Run], caps: Sequence[int | None], capacity: int) -> int:
    """The most GPUs that these jobs can hold together; running jobs that are not preemptible stay."""
    stays, others = [0] * len(caps), [list[tuple[int, int]]() for _ in caps]
    for run in present:
        if run.held and not run.job.preemptible:
            stays[run.queue] += run.held
        else:
            others[run.queue].append((run.job.least, run.job.most))
    return largest_packing(capacity, stays, others, caps)


def largest_packing(
    capacity: int, stays: Sequence[int], gangs: Sequence[Sequence[tuple[int, int]]], caps: Sequence[int | None]
) -> int:
    """The most that whole gangs can hold together. Per queue: what `stays`, its other gangs (least, most), its cap.

    A subset-sum over bits: the sums that are possible in each queue up to its cap, then over all queues.
    """
    everybody = sum(stays) + sum(most for own in gangs for _, most in own)
    if everybody <= capacity and all(cap is None for cap in caps):
        return everybody
    total = 1
    for cap, base, own in zip(caps, stays, gangs, strict=True):
        limit = capacity if cap is None else max(base, min(cap, capacity))
        mask, sums = (1 << (limit + 1)) - 1, 1 << base
        for least, most in own:
            without = sums
            for size in range(least, min(most, limit) + 1):
                sums |= without << size
            sums &= mask
        reached, total = total, 0
        for size in range(limit + 1):
            if sums >> size & 1:
                total |= reached << size
        total &= (1 << (capacity + 1)) - 1
    return total.bit_length() - 1


def _result(policy: str, runs: Sequence[_Run], sums: _Sums, until: float) -> StreamResult:
    outcomes = tuple(_outcome(run, until) for run in sorted(runs, key=lambda run: run.job.name))
    waits = [outcome.waited_seconds for outcome in outcomes]
    started_waits = [outcome.waited_seconds for outcome in outcomes if outcome.started_seconds >= 0]
    return StreamResult(
        policy=policy,
        outcomes=outcomes,
        met=tuple(float(m / d) if d > 0 else 1.0 for m, d in zip(sums.met, sums.deserved, strict=True)),
        utilisation=sums.held / sums.possible if sums.possible else 1.0,
        busy=sums.held / sums.capacity if sums.capacity else 0.0,
        mean_wait_seconds=float(np.mean(started_waits)) if started_waits else 0.0,
        mean_wait_of_all_seconds=float(np.mean(waits)) if waits else 0.0,
        never_started=len(waits) - len(started_waits),
        longest_wait_seconds=max((o.longest_wait_seconds for o in outcomes if o.fits), default=0.0),
        longest_open_wait_seconds=max((o.longest_open_wait_seconds for o in outcomes if o.fits), default=0.0),
        quiet_evictions=sums.quiet_evictions,
        most_stops=max((o.stops for o in outcomes), default=0),
        stops=sum(o.stops for o in outcomes),
        restarts=sum(o.restarts for o in outcomes),
        idle_cycles=sums.idle_cycles,
        late_idle_cycles=sums.late_idle_cycles,
        ended=sum(o.ended_seconds >= 0 for o in outcomes),
        decision_seconds=tuple(sums.decisions),
    )


def _outcome(run: _Run, until: float) -> Outcome:
    waiting = until - run.waiting_since if run.ended < 0 and not run.held else 0.0
    return Outcome(
        job=run.job,
        started_seconds=-1.0 if run.started is None else run.started,
        ended_seconds=run.ended,
        done_seconds=run.done_seconds,
        stops=run.stops,
        restarts=run.restarts,
        waited_seconds=(until if run.started is None else run.started) - run.job.created_seconds,
        longest_wait_seconds=max(run.longest_wait, waiting),
        longest_open_wait_seconds=run.longest_open_wait,
        fits=run.fits,
    )
