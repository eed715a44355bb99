"""The replay: jobs of a workload arrive, a policy is called each period, and the applications behave as measured.

Deterministic for the same workload, profiles, policy and seed. A plan that the validator rejects, or that overcommits a
node by the replay's own count, is an error.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from diflow.allocator.model.arrays import FloatArray
from diflow.allocator.model.plan import Action, Plan
from diflow.allocator.model.profile import COLUMNS, POOL, Profile, clean
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.model.topology import Level
from diflow.allocator.model.validate import faults
from diflow.allocator.model.views import POOL_LABEL, JobView, NodeView, QueueView, RoleView, build
from diflow.allocator.policies.base import Policy
from diflow.allocator.policies.goodput.fitting import fit_all
from diflow.allocator.policies.goodput.model import BATCHES, Limits, best_batches
from diflow.allocator.policies.goodput.pooled import in_pools
from diflow.common.errors import DiflowError, InvalidError
from diflow.common.names import pool_number
from diflow.labs.simulator.memory import Memory
from diflow.labs.simulator.truth import Application, Arrival
from diflow.record.namespace.applications import BINS, Batches, Lesson

GPU = "nvidia.com/gpu"
ROLE = "worker"

_GIVEN = 5
"""Steps from the smallest to the largest batch size at which a job is given its times on one GPU."""

Mode = Literal["rigid", "elastic", "adaptive"]
"""What a policy may change: nothing (replicas and batch size as the user set them), the replicas, or both."""

MODES: Mapping[str, Mode] = {"fit": "rigid", "fair": "rigid", "tiresias": "rigid", "optimus": "elastic"}
"""The mode that each policy was made for; adaptive for all others."""


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool of nodes with one type of GPU: its name, its nodes, and the GPUs of each."""

    name: str
    nodes: int
    gpus: int


@dataclass(frozen=True, slots=True)
class Scenario:
    """The cluster and the rules of a replay."""

    nodes: int = 16
    gpus: int = 4
    """GPUs of a node. Both count for clusters without pools."""
    pools: tuple[Pool, ...] = ()
    """The pools of a cluster with several types of GPU, in the order of their nodes; (): all nodes are alike."""
    pool_speed: Mapping[str, float] = field(default_factory=dict)
    """The assumed relative speeds of pools, as the setting of the allocator."""
    profiled: bool = False
    """Whether each job starts with its times on one GPU of each pool, as Sia's jobs do."""
    period_seconds: float = 60.0
    restart_seconds: float = 30.0
    restart_by_application: Mapping[str, float] = field(default_factory=dict)
    """Restart costs of applications that differ from `restart_seconds`."""
    interference: float = 0.0
    """Slow-down of a job on several nodes while another such job shares one of them (Pollux's experiment: 0.5)."""
    noise: float = 0.0
    """Reported times are multiplied by a factor drawn uniformly from 1 ± noise."""
    load: float = 1.0
    """Times between arrivals are divided by this."""
    report_progress: bool = True
    """Whether jobs report progress; otherwise the work left is unknown."""
    progress_share: float = 1.0
    """Part of the jobs that do so, spread evenly over the arrivals."""
    seed: int = 0
    rack_nodes: int = 0
    """Nodes of a rack; 0: the cluster has no topology."""
    block_racks: int = 0
    """Racks of a block; 0: there are no blocks."""
    required: str = ""
    """The level of the topology that all jobs require: "rack" or "block"; "": none."""
    longest_seconds: float = 30 * 86400.0
    """A replay that takes longer than this after the last arrival is an error."""

    @property
    def levels(self) -> tuple[Level, ...]:
        """The levels of the topology, the widest first."""
        names = [name for name, size in (("block", self.block_racks), ("rack", self.rack_nodes)) if size]
        return tuple(Level(name, name) for name in names)

    def node(self, index: int) -> NodeView:
        """The node of this index, with its rack and block as labels."""
        labels = {}
        if self.rack_nodes:
            labels["rack"] = f"r{index // self.rack_nodes:03d}"
        if self.block_racks:
            labels["block"] = f"b{index // (self.rack_nodes * self.block_racks):03d}"
        pool = self.pool_of(index)
        if pool is not None:
            labels[POOL_LABEL] = pool.name
        return NodeView(f"node-{index:03d}", {GPU: pool.gpus if pool is not None else self.gpus}, labels=labels)

    def pool_of(self, index: int) -> Pool | None:
        """The pool of the node of this index; None if the cluster has no pools."""
        for pool in self.pools:
            if index < pool.nodes:
                return pool
            index -= pool.nodes
        return None

    @property
    def node_gpus(self) -> list[int]:
        """GPUs of each node."""
        return [pool.gpus for pool in self.pools for _ in range(pool.nodes)] or [self.gpus] * self.nodes

    def restart_of(self, application: str) -> float:
        """Seconds that a job of this application stands still after it was moved or resized."""
        return self.restart_by_application.get(application, self.restart_seconds)

    @property
    def largest(self) -> int:
        """GPUs of the largest domain or pool that one job may use."""
        if self.pools:
            return max(pool.nodes * pool.gpus for pool in self.pools)
        nodes = {"rack": self.rack_nodes, "block": self.rack_nodes * self.block_racks}.get(self.required, self.nodes)
        return min(nodes, self.nodes) * self.gpus


@dataclass
class _Job:
    """A job in the replay: its true state and what it reported."""

    arrival: Arrival
    app: Application
    mode: Mode
    created: float
    tells_progress: bool = True
    placement: tuple[tuple[int, int], ...] = ()
    local: int = 0
    steps: int = 0
    epoch: int = 0
    progress: float = 0.0
    pause: float = 0.0
    restarts: int = -1
    started: float | None = None
    changed: float | None = None
    finished: float | None = None
    service: float = 0.0
    pool: int = 0
    """The number of the pool of its nodes; 0 if there is only one."""
    observed: dict[tuple[int, int, int, int], tuple[float, float]] = field(default_factory=dict)
    """(Nodes, replicas, local batch, pool) → seconds of a step without synchronisation, and with it."""
    params: FloatArray | None = None
    noise: tuple[float, float] | None = None
    version: int = 0
    observations_version: int = 0
    stale: bool = False
    profile: Profile | None = None
    contention: float = 0.0
    cycles: int = 0
    noise_by_part: dict[int, float] = field(default_factory=dict)
    """Logarithm of the gradient noise by tenths of the progress."""
    inherited: tuple[Profile | None, Profile] | None = None
    """The last report, and the profile that was made of it and of the memory."""
    curve: FloatArray | None = None
    """Of an elastic job: rows of a profile, one for each number of replicas."""
    iterations: FloatArray | None = None
    """Of an elastic job: iterations at its batch size until each epoch."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One job's figures. Times in seconds from the start of the replay."""

    name: str
    application: str
    created: float
    started: float
    finished: float
    restarts: int
    gpu_seconds: float
    fairness: float

    @property
    def completion(self) -> float:
        return self.finished - self.created


@dataclass(frozen=True, slots=True)
class Span:
    """GPUs that one job held on one node from `begin` to `end`, for the Gantt chart."""

    job: str
    node: int
    gpus: int
    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class Replay:
    """The result of one run."""

    policy: str
    outcomes: tuple[Outcome, ...]
    spans: tuple[Span, ...]
    utilisation: tuple[tuple[float, int, int], ...]
    """(time, GPUs held, jobs present) at each cycle."""
    decision_seconds: tuple[float, ...]
    """Wall time of each policy call; not part of the deterministic result."""
    decision_cpu_seconds: tuple[float, ...] = ()
    """CPU time of each policy call, which other processes on the machine do not change."""


class _Chart:
    """Records the spans."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.open: dict[str, tuple[float, tuple[tuple[int, int], ...]]] = {}

    def close(self, job: _Job, now: float) -> None:
        begun = self.open.pop(job.arrival.name, None)
        if begun is not None and now > begun[0]:
            self.spans.extend(Span(job.arrival.name, node, count, begun[0], now) for node, count in begun[1])


def replay(
    arrivals: Sequence[Arrival],
    apps: Mapping[str, Application],
    policy: Policy,
    scenario: Scenario | None = None,
    *,
    memory: Memory | None = None,
    on_plan: Callable[[Snapshot, Plan], None] | None = None,
) -> Replay:
    """Run a workload to its end under a policy. `memory`: what earlier jobs have left; the jobs of this run add to it.

    Raises InvalidError for an unknown application or an invalid plan, DiflowError if it takes too long.
    """
    scenario = scenario or Scenario()
    _check_topology(scenario)
    run = _Run(policy, scenario, memory, on_plan)
    waiting = _jobs_of(arrivals, apps, MODES.get(policy.name, "adaptive"), scenario)
    now = 0.0
    latest = (waiting[-1].created if waiting else 0.0) + scenario.longest_seconds
    while waiting or run.active:
        if now > latest:
            names = ", ".join(job.arrival.name for job in run.active[:5])
            raise DiflowError(
                f"policy {policy.name}: the replay did not end within {scenario.longest_seconds / 86400:g} days of the "
                f"last arrival; still there: {names}"
            )
        while waiting and waiting[0].created <= now:
            run.active.append(waiting.pop(0))
        run.period(now)
        now += scenario.period_seconds
        if not run.active and waiting:
            # Skip to the period of the next arrival.
            now = max(now, math.floor(waiting[0].created / scenario.period_seconds) * scenario.period_seconds)
    return run.result()


class _Run:
    """A run: the jobs that are in the cluster and those that have ended, and what is recorded."""

    def __init__(
        self,
        policy: Policy,
        scenario: Scenario,
        memory: Memory | None,
        on_plan: Callable[[Snapshot, Plan], None] | None,
    ) -> None:
        self._policy, self._scenario, self._memory, self._on_plan = policy, scenario, memory, on_plan
        self._rng = np.random.default_rng(scenario.seed)
        self._nodes = [scenario.node(i) for i in range(len(scenario.node_gpus))]
        self._chart = _Chart()
        self._done: list[_Job] = []
        self._utilisation: list[tuple[float, int, int]] = []
        self._seconds: list[float] = []
        self._cpu_seconds: list[float] = []
        self.active: list[_Job] = []

    def period(self, now: float) -> None:
        """Plan, and let the jobs run for a period."""
        if self.active:
            self._plan(now)
        held = sum(count for job in self.active for _, count in job.placement)
        self._utilisation.append((now, held, len(self.active)))
        shared = _crowded_nodes(self.active)
        for job in self.active:
            job.contention += len(self.active)
            job.cycles += 1
            crowded = any(node in shared for node, _ in job.placement)
            _advance(job, now, self._scenario, self._rng, crowded=crowded)
        for job in [job for job in self.active if job.finished is not None]:
            self._chart.close(job, job.finished or now)
            self.active.remove(job)
            self._done.append(job)
            if self._memory is not None:
                _teach(job, self._memory, self._scenario)

    def _plan(self, now: float) -> None:
        scenario = self._scenario
        _refit(self.active)
        snapshot = build(
            self._nodes,
            [_view(job, self._nodes, scenario, self._memory) for job in self.active],
            [QueueView("default")],
            now_seconds=now,
            levels=scenario.levels,
            pool_speed=scenario.pool_speed,
        )
        began, cpu_began = time.perf_counter(), time.process_time()
        plan = self._policy.optimize(snapshot)
        self._seconds.append(time.perf_counter() - began)
        self._cpu_seconds.append(time.process_time() - cpu_began)
        _check(snapshot, plan, scenario)
        if self._on_plan is not None:
            self._on_plan(snapshot, plan)
        _apply(snapshot, plan, self.active, scenario=scenario, now=now, chart=self._chart)

    def result(self) -> Replay:
        gpus = sum(self._scenario.node_gpus)
        outcomes = (_outcome(job, gpus, self._scenario) for job in self._done)
        return Replay(
            policy=self._policy.name,
            outcomes=tuple(sorted(outcomes, key=lambda one: (one.created, one.name))),
            spans=tuple(self._chart.spans),
            utilisation=tuple(self._utilisation),
            decision_seconds=tuple(self._seconds),
            decision_cpu_seconds=tuple(self._cpu_seconds),
        )


def _check_topology(scenario: Scenario) -> None:
    is_known = scenario.required in ("", *(level.name for level in scenario.levels))
    if not is_known or (scenario.block_racks and not scenario.rack_nodes):
        raise InvalidError("a required level needs that level in the cluster, and blocks consist of racks")


def _jobs_of(
    arrivals: Sequence[Arrival], apps: Mapping[str, Application], mode: Mode, scenario: Scenario
) -> list[_Job]:
    """The jobs of a workload, in the order of arrival."""
    for arrival in arrivals:
        if arrival.application not in apps:
            raise InvalidError(
                f"job {arrival.name}: no profile of {arrival.application!r}; there are {', '.join(apps)}"
            )
    jobs = [_Job(arrival, apps[arrival.application], mode, arrival.seconds / scenario.load) for arrival in arrivals]
    if scenario.profiled and mode == "adaptive":
        for job in jobs:
            job.observed = _alone_in_pools(job.app, scenario)
            job.version = job.observations_version = 1
    jobs.sort(key=lambda job: (job.created, job.arrival.name))
    share = scenario.progress_share if scenario.report_progress else 0.0
    for at, job in enumerate(jobs):
        job.tells_progress = math.floor((at + 1) * share) > math.floor(at * share)
    return jobs


def _alone_in_pools(app: Application, scenario: Scenario) -> dict[tuple[int, int, int, int], tuple[float, float]]:
    """What a job is given before it starts: its times on one GPU of each pool, at a few batch sizes."""
    out = {}
    for pool in scenario.pools:
        there = app.pools[pool.name]
        batches = there.local_batches.tolist()
        for batch in sorted({batches[round(i * (len(batches) - 1) / _GIVEN)] for i in range(_GIVEN + 1)}):
            step, sync = there.step_and_sync((1,), batch)
            out[1, 1, batch, pool_number(pool.name)] = step - sync, step
    return out


def _teach(job: _Job, memory: Memory, scenario: Scenario) -> None:
    """Leave to later jobs what this one has shown."""
    app, fixed = job.app, _fixed_batch(job)
    lesson = Lesson(
        noise=job.noise_by_part,
        work=job.progress,
        restart_seconds=(scenario.restart_of(app.name) or None) if job.restarts > 0 else None,
        batches=Batches(
            initial=app.initial_batch,
            least=fixed or app.initial_batch,
            most=fixed or app.max_batch,
            local_least=app.min_local if fixed is None else 1,
            local_most=app.max_local,
        ),
    )
    memory.learn(app.name, _table(job), lesson, now_seconds=job.finished or 0.0)


def _inheriting(job: _Job, profile: Profile | None, memory: Memory | None) -> Profile | None:
    """The profile with what is known of the application; the same object while neither changes."""
    prior = memory.prior(job.app.name) if memory is not None else None
    if prior is None:
        return profile
    if job.inherited is None or job.inherited[0] is not profile or job.inherited[1].prior is not prior:
        job.inherited = profile, replace(profile or Profile(), prior=prior)
    return job.inherited[1]


def _view(job: _Job, nodes: Sequence[NodeView], scenario: Scenario, memory: Memory | None) -> JobView:
    app = job.app
    if job.mode == "rigid":
        size = max(1, min(job.arrival.replicas, app.max_replicas, scenario.largest))
        role = RoleView(ROLE, {GPU: 1}, size, size, size)
    else:
        most = min(app.max_replicas, scenario.largest)
        if job.mode == "elastic":
            most = max(1, min(most, job.arrival.batch // app.min_local))
        role = RoleView(ROLE, {GPU: 1}, 1, most, min(most, max(1, job.arrival.replicas)))
    return JobView(
        name=job.arrival.name,
        roles=(role,),
        created_seconds=job.created,
        started_seconds=job.started,
        changed_seconds=job.changed,
        restarts=max(0, job.restarts),
        service_seconds=job.service,
        placed={ROLE: {nodes[node].name: count for node, count in job.placement}},
        profile=_reported(job, scenario, memory) if job.mode != "rigid" else None,
        required=scenario.required,
    )


def _reported(job: _Job, scenario: Scenario, memory: Memory | None) -> Profile | None:
    """What the policy is given: the job's report, and what its application has shown before."""
    profile = _profile(job, scenario)
    return _inheriting(job, profile, memory) if job.mode == "adaptive" else profile


def _profile(job: _Job, scenario: Scenario) -> Profile | None:
    if job.profile is not None and job.profile.version == job.version:
        return job.profile
    if job.mode == "elastic":
        job.profile = _known_profile(job, scenario)
        return job.profile
    if not job.observed:
        return None
    app = job.app
    begin = float(app.progress[job.epoch - 1]) if job.epoch else 0.0
    inside = (job.progress - begin) / (float(app.progress[job.epoch]) - begin)
    fixed = _fixed_batch(job)
    job.profile = Profile(
        version=job.version,
        observations_version=job.observations_version,
        observations=_table(job),
        parameters=job.params if not scenario.pools else None,
        grad_sqr=job.noise[0] if job.noise else None,
        grad_var=job.noise[1] if job.noise else None,
        initial_batch=app.initial_batch,
        min_batch=fixed or app.initial_batch,
        max_batch=fixed or app.max_batch,
        min_local_batch=app.min_local if fixed is None else 1,
        max_local_batch=app.max_local,
        fraction_done=(job.epoch + inside) / app.epochs if job.tells_progress else None,
        work_done=job.progress if job.tells_progress else None,
        local_batches=_local_batches(job),
        restart_seconds=scenario.restart_of(app.name) if scenario.pools and job.restarts >= 0 else None,
    )
    return job.profile


def _local_batches(job: _Job) -> dict[int, int]:
    """The largest batch of a replica in each pool that the job has seen."""
    seen = {pool for _, _, _, pool in job.observed}
    return {number: app.max_local for name, app in job.app.pools.items() if (number := pool_number(name)) in seen}


def _known_profile(job: _Job, scenario: Scenario) -> Profile:
    """What an elastic job is given from the start, as in the artifact: its true times at its batch size with every
    number of replicas, and the iterations that it still has to do."""
    app, batch = job.app, job.arrival.batch
    if job.curve is None:
        rows = []
        for count in range(1, max(1, min(app.max_replicas, scenario.largest, batch // app.min_local)) + 1):
            whole, rest = divmod(count, scenario.gpus)
            shape = (scenario.gpus,) * whole + ((rest,) if rest else ())
            local, _ = app.split(batch, count, least_steps=_least_steps(job, count))
            step, sync = app.step_and_sync(shape, local)
            rows.append((len(shape), count, local, step - sync, step, 0.0))
        job.curve = np.array(rows, dtype=np.float64)
        length = np.diff(np.concatenate([[0.0], app.progress]))
        job.iterations = np.concatenate([[0.0], np.cumsum(length / app.gains(batch))])
    assert job.iterations is not None
    begin, end = (float(app.progress[i]) if i >= 0 else 0.0 for i in (job.epoch - 1, job.epoch))
    inside = (job.progress - begin) / (end - begin)
    total = float(job.iterations[-1])
    done = max(float(np.interp(job.epoch + inside, np.arange(len(job.iterations)), job.iterations)), 1e-6 * total)
    return Profile(
        version=job.version,
        observations=job.curve,
        initial_batch=batch,
        min_batch=batch,
        max_batch=batch,
        min_local_batch=1,
        max_local_batch=app.max_local,
        fraction_done=done / total if job.tells_progress else None,
        work_done=done if job.tells_progress else None,
    )


def _least_steps(job: _Job, replicas: int) -> int:
    """In the artifact, an elastic job on one GPU accumulates at least once, to measure its gradient noise."""
    return int(job.mode == "elastic" and replicas == 1 and job.arrival.batch > job.app.initial_batch)


def _fixed_batch(job: _Job) -> int | None:
    return job.app.fixed_batch or (job.arrival.batch if job.mode == "elastic" else None)


def _table(job: _Job) -> FloatArray:
    rows = [(n, r, b, own, step, pool) for (n, r, b, pool), (own, step) in job.observed.items()]
    return np.array(rows, dtype=np.float64).reshape(-1, COLUMNS)


def _refit(active: Sequence[_Job]) -> None:
    """Fit the models of all jobs with new observations, together, each from its last fit."""
    stale = [job for job in active if job.stale]
    if stale:
        start = np.array([np.full(7, np.nan) if job.params is None or job.pool else job.params for job in stale])
        for job, params in zip(stale, fit_all([_rows_here(job) for job in stale], start), strict=True):
            job.params = params if np.isfinite(params).all() else None
            job.stale = False
            _choose_batch(job)


def _rows_here(job: _Job) -> FloatArray:
    """The observations to which the job fits the model of the pool where it runs."""
    rows = clean(_table(job))
    if not job.pool or not len(rows):
        return rows
    numbers = list(dict.fromkeys([job.pool, *map(int, rows[:, POOL])]))
    return in_pools(Profile(observations=rows), numbers, [1.0] * len(numbers), {})[0].rows


def _choose_batch(job: _Job) -> None:
    """The job chooses local batch and accumulation steps for its placement, by its own model."""
    if not job.placement:
        return
    app = job.app
    replicas = sum(count for _, count in job.placement)
    fixed = job.arrival.batch if job.mode != "adaptive" else app.fixed_batch
    if fixed is None and job.params is None:
        fixed = max(app.initial_batch, app.min_local * replicas)
    if fixed is not None:
        job.local, job.steps = app.split(fixed, replicas, least_steps=_least_steps(job, replicas))
        return
    noise = job.noise[1] / job.noise[0] if job.noise and job.noise[0] > 0 else math.inf
    one = np.ones(1)
    limits = Limits(
        initial=one * app.initial_batch,
        least=one * app.initial_batch,
        most=one * app.max_batch,
        local_least=one * app.min_local,
        local_most=one * app.max_local,
        accumulation=np.ones(1, dtype=np.bool_),
        noise=one * noise,
    )
    assert job.params is not None
    good, local_batch, steps = best_batches(
        job.params[None, :],
        limits,
        np.array([[replicas]]),
        np.array([[len(job.placement) > 1]]),
        batches=2 * BATCHES,
    )
    if good[0, 0] > 0:
        job.local, job.steps = int(local_batch[0, 0]), int(steps[0, 0])
    else:
        job.local, job.steps = app.min_local, 0


def _check(snapshot: Snapshot, plan: Plan, scenario: Scenario) -> None:
    wrong = faults(snapshot, plan)
    if wrong:
        raise InvalidError(f"policy {plan.policy} returned a bad plan at {snapshot.now_seconds:g} s: {wrong[0]}")
    use = np.zeros(snapshot.nodes, dtype=np.int64)
    np.add.at(use, plan.node, plan.count)
    over = use > np.array(scenario.node_gpus)
    if over.any():
        node = snapshot.node_names[int(over.argmax())]
        raise InvalidError(f"policy {plan.policy} overfills {node} at {snapshot.now_seconds:g} s")


def _apply(
    snapshot: Snapshot,
    plan: Plan,
    active: Sequence[_Job],
    *,
    scenario: Scenario,
    now: float,
    chart: _Chart,
) -> None:
    job_of = {job.arrival.name: job for job in active}
    bounds = np.searchsorted(snapshot.role_job[plan.role], np.arange(snapshot.jobs + 1))
    for j in np.flatnonzero((plan.action != Action.KEEP) & (plan.action != Action.WAIT)).tolist():
        job = job_of[snapshot.job_names[j]]
        part = slice(int(bounds[j]), int(bounds[j + 1]))
        chart.close(job, now)
        job.placement = tuple(zip(plan.node[part].tolist(), plan.count[part].tolist(), strict=True))
        job.changed = now
        if job.placement:
            job.started = now if job.started is None else job.started
            job.restarts += 1
            job.pause = scenario.restart_of(job.app.name)
            _enter_pool(job, scenario)
            _choose_batch(job)
            chart.open[job.arrival.name] = (now, job.placement)


def _enter_pool(job: _Job, scenario: Scenario) -> None:
    """The job behaves as in the pool of its nodes from now on."""
    pool = scenario.pool_of(job.placement[0][0])
    if pool is None:
        return
    number = pool_number(pool.name)
    if number != job.pool:
        job.app, job.pool, job.stale = job.app.pools[pool.name], number, False
        params = fit_all([_rows_here(job)])[0]
        job.params = params if np.isfinite(params).all() else None


def _crowded_nodes(active: Sequence[_Job]) -> set[int]:
    seen: set[int] = set()
    crowded: set[int] = set()
    for job in active:
        if len(job.placement) > 1:
            mine = {node for node, _ in job.placement}
            crowded |= mine & seen
            seen |= mine
    return crowded


def _advance(job: _Job, now: float, scenario: Scenario, rng: np.random.Generator, *, crowded: bool) -> None:
    """Advance a job by one period: downtime after a move, then progress at its true speed, epoch by epoch."""
    if not job.placement:
        return
    app = job.app
    left = scenario.period_seconds
    replicas = sum(count for _, count in job.placement)
    shape = tuple(count for _, count in job.placement)
    still = min(job.pause, left)
    job.pause -= still
    left -= still
    while left > 1e-9:
        step, sync = app.step_and_sync(shape, job.local)
        own = step - sync
        total = replicas * job.local * (job.steps + 1)
        _observe(job, shape, (own, step), total, scenario=scenario, rng=rng)
        rate = app.gain(total, job.epoch) / (step + job.steps * own)
        if crowded and len(shape) > 1:
            rate *= 1.0 - scenario.interference
        end = float(app.progress[job.epoch])
        if job.progress + rate * left < end:
            job.progress += rate * left
            left = 0.0
        else:
            left -= max(0.0, (end - job.progress) / rate)
            job.progress = end
            job.epoch += 1
            if job.epoch == app.epochs:
                job.finished = now + scenario.period_seconds - left
                break
            _choose_batch(job)
        job.version += 1
    job.service += replicas * (scenario.period_seconds - (left if job.finished is not None else 0.0))


def _observe(
    job: _Job,
    shape: tuple[int, ...],
    times: tuple[float, float],
    total: int,
    *,
    scenario: Scenario,
    rng: np.random.Generator,
) -> None:
    """Record an observation: the step's time without synchronisation, and the whole step's."""
    own, step = times
    key = (len(shape), sum(shape), job.local, job.pool)
    job.noise = job.app.gradient(total, job.epoch)
    job.version += 1
    if min(job.noise) > 0:
        part = int(BINS * job.epoch / job.app.epochs)
        job.noise_by_part[part] = math.log(job.noise[1] / job.noise[0])
    if scenario.noise > 0:
        own, step = own * (1 + scenario.noise * rng.uniform(-1, 1)), step * (1 + scenario.noise * rng.uniform(-1, 1))
        own = min(own, step)
    if key not in job.observed or scenario.noise > 0:
        # A clock that is off each time: the newest report of a configuration stands, as a running job would send it.
        fresh = key not in job.observed
        job.observed[key] = (own, step)
        job.observations_version += 1
        job.stale = job.stale or fresh or scenario.noise > 0


def _outcome(job: _Job, gpus: int, scenario: Scenario) -> Outcome:
    assert job.finished is not None
    assert job.started is not None
    crowd = max(1.0, job.contention / max(1, job.cycles))
    next_period = math.ceil(job.created / scenario.period_seconds) * scenario.period_seconds - job.created
    alone = _alone_seconds(job.app, max(1, int(gpus / crowd)), scenario)
    return Outcome(
        name=job.arrival.name,
        application=job.arrival.application,
        created=job.created,
        started=job.started,
        finished=job.finished,
        restarts=max(0, job.restarts),
        gpu_seconds=job.service,
        fairness=(job.finished - job.created) / (next_period + scenario.restart_of(job.app.name) + alone),
    )


def _alone_seconds(app: Application, gpus: int, scenario: Scenario) -> float:
    """`isolated_seconds`; with several pools in the one where that is least, on no more GPUs than it has."""
    if not scenario.pools:
        return isolated_seconds(app, gpus, per_node=scenario.gpus)
    return min(
        isolated_seconds(app.pools[pool.name], min(gpus, pool.nodes * pool.gpus), per_node=pool.gpus)
        for pool in scenario.pools
    )


def isolated_seconds(app: Application, gpus: int, *, per_node: int = 4) -> float:
    """Time of the application alone on `gpus`, its fair share, with the best batch size in each epoch and no restart.

    For finish-time fairness (Themis, NSDI 2020): the share is the cluster over the mean number of jobs that were
    present, at least one GPU. The caller adds what every job waits for: the next period and its first start.
    """
    share = min(gpus, app.max_replicas)
    if share not in app.alone:
        app.alone[share] = min(_alone(app, size, per_node) for size in _sizes(share, per_node))
    return app.alone[share]


def _sizes(gpus: int, per_node: int) -> list[int]:
    return [size for size in range(1, gpus + 1) if size <= per_node or size % per_node == 0]


def _alone(app: Application, size: int, per_node: int) -> float:
    shape = (size,) if size <= per_node else (per_node,) * (size // per_node)
    best = np.zeros(app.epochs)
    low, high = max(app.initial_batch, app.min_local * size), app.max_batch
    totals = [app.fixed_batch] if app.fixed_batch else np.unique(np.geomspace(low, max(low, high), 16).astype(int))
    for total in totals:
        if total > high:
            continue
        wanted = math.ceil(total / size)
        steps = max(0, math.ceil(wanted / app.max_local) - 1)
        local = math.ceil(wanted / (steps + 1))
        step, sync = app.step_and_sync(shape, max(local, app.min_local))
        seconds = step + steps * (step - sync)
        real = size * local * (steps + 1)
        best = np.maximum(best, app.gains(real) / seconds)
    if (best <= 0).any():
        return math.inf
    length = np.diff(np.concatenate([[0.0], app.progress]))
    return float((length / best).sum())
