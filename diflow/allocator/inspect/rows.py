"""Queues, jobs and nodes as plain rows, which `queue`, `top` and `explain` print.

It makes no requests: everything comes from one `Seen` of the observer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from diflow.allocator.inspect.observer import used
from diflow.allocator.model.ledger import ancestors
from diflow.allocator.model.snapshot import UNLIMITED
from diflow.allocator.policies.fair.shares import deserved, dominant_share, queue_demand, usable_capacity
from diflow.allocator.policies.waiting import start_order
from diflow.allocator.watch import reports
from diflow.common.words import STARTS, counted, named
from diflow.record.parameters import Decision
from diflow.record.stage import Stage, is_planned, is_queued, stage_of
from diflow.record.status.messages import queued

if TYPE_CHECKING:
    from diflow.allocator.inspect.observer import Seen
    from diflow.allocator.watch.job import Job

Amounts = dict[str, float]
# The most jobs that a line names; it counts the others.
_NAMED = 3
_ADMITTED = ("running", "starting")
"""The words for an admitted job, by its pods."""


@dataclass(frozen=True, slots=True)
class QueueRow:
    """A queue. Amounts are in millicores, MiB and devices; `guarantee` and `cap` omit unlimited resources.

    Amounts include those of the queues below it; `running` and `waiting` count its own jobs.
    """

    name: str
    parent: str
    weight: float
    guarantee: Amounts
    cap: Amounts
    deserved: Amounts
    allocated: Amounts
    pending: Amounts
    running: int
    waiting: int


@dataclass(frozen=True, slots=True)
class MissingQueueRow:
    """A queue that jobs name and that does not exist. Amounts as in QueueRow; `jobs`: keys, in the order of start."""

    name: str
    allocated: Amounts
    running: int
    waiting: int
    jobs: tuple[str, ...]

    def text(self) -> str:
        """One line for people."""
        runs = [counted(self.running, "runs", plural="run")] if self.running else []
        waits = [counted(self.waiting, "waits", plural="wait")] if self.waiting else []
        of = counted(len(self.jobs), "job names it", plural="jobs name it")
        return f"queue {self.name} does not exist: {of}, {' and '.join(runs + waits)} ({named(self.jobs, _NAMED)})"


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job. Replicas: `low` to `high` may run, `desired` are asked for, `granted` have a place, `observed` run now.

    `unplaced`: how many of the granted ones have lost their place and wait for another. `share`: its dominant share,
    the largest fraction of any resource of the cluster that it holds. `speed`: in samples a second. `state`: the word
    of its stage, but running or starting for an admitted one. `why`: of an admitted job why it has these replicas, as
    the allocator said; of all others their sentence (`record.status.messages`).
    """

    name: str
    namespace: str
    queue: str
    priority: str
    is_preemptible: bool
    low: int
    high: int
    desired: int
    granted: int
    observed: int
    pending: int
    unplaced: int
    share: float
    speed: float | None
    state: str
    why: str
    decided: str
    created: float
    nodes: Mapping[str, int] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def stage(self) -> Stage:
        return Stage.ADMITTED if self.state in _ADMITTED else Stage(self.state)

    @property
    def is_waiting(self) -> bool:
        return is_queued(self.stage, has_places=self.granted > 0)

    def incomplete_text(self) -> str:
        """One line for people on a job of which only some replicas have a place; "" for all others."""
        if not self.granted or not self.unplaced or self.stage is not Stage.ADMITTED:
            return ""
        waits = "waits" if self.unplaced == 1 else "wait"
        return f"{self.key}: {self.unplaced} of {counted(self.granted, 'replica')} {waits} for a new place: {self.why}"

    def range_text(self) -> str:
        """Such as `3` or `1-4`; `-` if its request could not be read."""
        if not self.high:
            return "-"
        return str(self.high) if self.low == self.high else f"{self.low}-{self.high}"

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "nodes": dict(self.nodes)}


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node: allocatable and used amounts, and its replicas by the job's key."""

    name: str
    state: str
    allocatable: Amounts
    used: Amounts
    jobs: Mapping[str, int]

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "jobs": dict(self.jobs)}


def queue_rows(seen: Seen, rows: Sequence[JobRow] | None = None) -> list[QueueRow]:
    """The queues by name; `default` alone if none are defined. `rows`: the `job_rows`, if they are known already."""
    s = seen.picture.snapshot
    held = s.demand_by_job(s.held_by_role())
    # The demand of a queue: under `fair` what its jobs ask for; where the policy chooses sizes, their maximum.
    shares = deserved(s, queue_demand(s, s.role_desired if seen.allocator.policy == "fair" else s.role_max))
    chains = ancestors(s.queue_parent)
    out = []
    rows = job_rows(seen) if rows is None else rows
    by_key = {row.key: row for row in rows}
    for q, name in enumerate(s.queue_names):
        mine = s.job_queue == q
        # A parent queue holds what the queues below it hold.
        below = np.array([q in chain for chain in chains] + [False], dtype=np.bool_)[s.job_queue]
        allocated = held[below].sum(axis=0)
        asked = s.demand_by_job(np.maximum(s.role_max - s.held_by_role(), 0))[below].sum(axis=0)
        names = (s.job_names[j] for j in np.flatnonzero(mine).tolist())
        jobs = [by_key[name] for name in names if name in by_key]
        out.append(
            QueueRow(
                name=name,
                parent=s.queue_names[int(s.queue_parent[q])] if s.queue_parent[q] >= 0 else "",
                weight=float(s.queue_weight[q]),
                guarantee=_amounts(s.resources, s.queue_guarantee[q]),
                cap={r: float(v) for r, v in zip(s.resources, s.queue_cap[q].tolist(), strict=True) if v < UNLIMITED},
                deserved=_amounts(s.resources, shares[q]),
                allocated=_amounts(s.resources, allocated),
                pending=_amounts(s.resources, asked),
                running=sum(row.granted > 0 for row in jobs),
                waiting=sum(row.granted == 0 for row in jobs),
            )
        )
    return out


def missing_queue_rows(seen: Seen, rows: Sequence[JobRow] | None = None) -> list[MissingQueueRow]:
    """The queues that jobs name and that do not exist, by name. `rows`: the `job_rows`, if they are known already."""
    s = seen.picture.snapshot
    held = s.demand_by_job(s.held_by_role())
    at = {name: j for j, name in enumerate(s.job_names)}
    found: dict[str, list[JobRow]] = {}
    for row in job_rows(seen) if rows is None else rows:
        if row.key in at and s.job_queue[at[row.key]] < 0 and row.queue not in s.queue_names:
            found.setdefault(row.queue, []).append(row)
    return [
        MissingQueueRow(
            name=name,
            allocated=_amounts(s.resources, held[[at[row.key] for row in rows]].sum(axis=0)),
            running=sum(row.granted > 0 for row in rows),
            waiting=sum(row.granted == 0 for row in rows),
            jobs=tuple(row.key for row in rows),
        )
        for name, rows in sorted(found.items())
    ]


def job_rows(seen: Seen) -> list[JobRow]:
    """All jobs of the allocator that have not ended, in the order of start."""
    s = seen.picture.snapshot
    total = usable_capacity(s)
    share = dominant_share(s.demand_by_job(s.held_by_role()), np.maximum(total, 1))
    shares = dict(zip(s.job_names, share.tolist(), strict=True))
    order = {s.job_names[j]: place for place, j in enumerate(start_order(s).tolist())}
    out = seen.picture.left_out
    is_open = {name: node.is_open for name, node in seen.state.nodes.items()}
    rows = [
        _job(job, shares.get(job.title, 0.0), out.get(job.key, ""), is_open)
        for job in seen.state.jobs.values()
        if not job.is_superseded
    ]
    return sorted(rows, key=lambda row: (order.get(row.key, len(order)), row.created, row.key))


def node_rows(seen: Seen) -> list[NodeRow]:
    """The nodes by name."""
    taken = used(seen.state)
    holders: dict[str, dict[str, int]] = {}
    for job in seen.state.jobs.values():
        for where, count in _places(job).items():
            at = holders.setdefault(where, {})
            at[job.title] = at.get(job.title, 0) + count
    out = []
    for name in sorted(seen.state.nodes):
        node = seen.state.nodes[name]
        out.append(
            NodeRow(
                name,
                node.state,
                {r: float(v) for r, v in node.allocatable.items()},
                {r: float(v) for r, v in taken[name].items()},
                dict(sorted(holders.get(name, {}).items())),
            )
        )
    return out


def totals(rows: list[NodeRow]) -> tuple[Amounts, Amounts]:
    """(used, allocatable) over all nodes."""
    taken: Amounts = {}
    there: Amounts = {}
    for row in rows:
        for amounts, into in ((row.used, taken), (row.allocatable, there)):
            for name, value in amounts.items():
                into[name] = into.get(name, 0.0) + value
    return taken, there


def _job(job: Job, share: float, left_out: str, is_open: Mapping[str, bool]) -> JobRow:
    read, name = job.read, job.title.partition("/")[2]
    places = read.has_places(read.argo.tree)
    granted = sum(read.running.values()) if places else 0
    live = [pod for pod in job.pods if not pod.is_terminating]
    observed = sum(pod.phase == "Running" for pod in live)
    done = sum(read.argo.tree.finished(member) for _, _, member in job.members()) if granted else 0
    unplaced = _unplaced(job, is_open) if granted else 0
    stage = stage_of(
        is_gang=True,
        has_places=granted > 0,
        is_held=bool(read.problem or left_out),
        is_suspended=read.wishes.is_suspended,
        is_stopping=read.is_stopping,
        is_being_deleted=read.argo.is_being_deleted,
    )
    if stage is Stage.ADMITTED:
        runs = observed + done >= granted and not unplaced
        state, why = _ADMITTED[not runs], _why_so_many(read.notes.decision, runs=runs, unplaced=unplaced)
    else:
        said, held, is_stuck = read.notes.decision, read.problem or left_out, read.argo.tree.is_stuck
        state, why = stage.value, read.texts.ending or queued(stage, name, held=held, decision=said, is_stuck=is_stuck)
    return JobRow(
        name=name,
        namespace=read.identity.namespace,
        queue=read.wishes.queue or "default",
        priority="high" if read.terms.priority_number > 0 else "normal",
        is_preemptible=read.terms.is_preemptible,
        low=sum(role.low for role in read.needs.roles),
        high=sum(role.high for role in read.needs.roles),
        desired=sum(role.desired for role in read.needs.roles),
        granted=granted,
        observed=observed,
        pending=max(0, granted - observed - done),
        unplaced=unplaced,
        share=share,
        speed=reports.speed(read.texts.profilings) if read.texts.profilings else None,
        state=state,
        why=why,
        decided=read.notes.decision.change.time if is_planned(stage, has_places=granted > 0) else "",
        created=job.created_seconds,
        nodes=_places(job),
    )


def _why_so_many(decision: Decision, *, runs: bool, unplaced: int) -> str:
    """Why an admitted job has its replicas, from the last decision."""
    why = decision.change.why
    if why.startswith(STARTS) and (runs or unplaced):
        why = ""
    return why or ("its first place was taken back" if unplaced else "")


def _unplaced(job: Job, is_open: Mapping[str, bool]) -> int:
    """The replicas that should run and have no node in the job's allocation, or one that is closed and that their pods
    have left. `is_open`: whether a node takes new pods."""
    at, tree = job.read.notes.allocation, job.read.argo.tree
    if at is None:
        return 0
    there = {(pod.member, pod.where) for pod in job.current_pods}

    def has_place(task: str, index: int, member: str) -> bool:
        node = at.node(task, index)
        return bool(node) and (is_open.get(node, False) or (member, node) in there)

    return sum(
        not has_place(task, index, member) and not tree.finished(member) for task, index, member in job.members()
    )


def _places(job: Job) -> dict[str, int]:
    """The number of pods by node."""
    out: dict[str, int] = {}
    for pod in job.pods:
        if pod.where:
            out[pod.where] = out.get(pod.where, 0) + 1
    return dict(sorted(out.items()))


def _amounts(resources: tuple[str, ...], values: Any) -> Amounts:
    return {r: float(v) for r, v in zip(resources, values.tolist(), strict=True) if v > 0}
