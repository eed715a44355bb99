"""Queues, jobs and nodes as plain rows, which `queue`, `top` and `explain` print.

It makes no requests: everything comes from one `Seen` of the observer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from diflow.allocator.inspect.observer import used
from diflow.allocator.model.ledger import ancestors
from diflow.allocator.model.snapshot import UNLIMITED
from diflow.allocator.policies.fair.shares import deserved, dominant_share, queue_demand, usable_capacity
from diflow.allocator.policies.waiting import start_order
from diflow.allocator.watch import reports
from diflow.common.words import DEFAULT_QUEUE, STARTS, counted, named
from diflow.record.parameters import Decision
from diflow.record.stage import Stage
from diflow.record.status.messages import queued
from diflow.record.status.row import JobRow, Replicas, count_of, on_nodes, placed_and_waiting

if TYPE_CHECKING:
    from diflow.allocator.inspect.observer import Seen
    from diflow.allocator.watch.job import Job

Amounts = dict[str, float]
# The most jobs that a line names; it counts the others.
_NAMED = 3


@dataclass(frozen=True, slots=True)
class QueueRow:
    """A queue. Amounts are in millicores, MiB and devices; `guarantee` and `cap` omit unlimited resources.

    Amounts include those of the queues below it; `running` and `waiting` count its own jobs that hold places and that
    stand in the queue, held and suspended ones included.
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
        do = f", {' and '.join(runs + waits)}" if runs or waits else ""
        return f"queue {self.name} does not exist: {of}{do} ({named(self.jobs, _NAMED)})"


@dataclass(frozen=True, slots=True)
class PlanRow(JobRow):
    """The row of a job, with what only those see who see the whole cluster.

    `title`: its key. `pending`: how many of its granted replicas are not ready and have not finished; `unplaced`: how
    many of them have lost their place and wait for another. `share`: its dominant share, the largest fraction of any
    resource of the cluster that it holds. `speed`: in samples a second. `nodes`: the number of pods by node. The
    `message` of an admitted job is why it has these replicas, as the allocator said.
    """

    title: str
    pending: int
    unplaced: int
    share: float
    speed: float | None
    nodes: Mapping[str, int]

    @property
    def key(self) -> str:
        return self.title

    @property
    def state(self) -> str:
        """The word of its stage, but running or starting for an admitted job."""
        if self.stage is not Stage.ADMITTED:
            return str(self.stage.value)
        return "starting" if self.pending or self.unplaced else "running"

    def incomplete_text(self) -> str:
        """One line for people on a job that holds places, and about which they should know: only some replicas have a
        place, or nothing is decided about it. "" for all others."""
        if self.stage is Stage.HELD and self.granted:
            return f"{self.key}: {counted(self.granted, 'replica')} on nodes; {self.message}"
        if not self.granted or not self.unplaced or self.stage is not Stage.ADMITTED:
            return ""
        waits = "waits" if self.unplaced == 1 else "wait"
        of = counted(self.granted, "replica")
        return f"{self.key}: {self.unplaced} of {of} {waits} for a new place: {self.message}"

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "namespace": self.namespace,
            "queue": self.queue,
            "priority": self.priority,
            "is_preemptible": self.is_preemptible,
            "low": self.low,
            "high": self.high,
            "desired": self.desired,
            "granted": self.granted,
            "observed": self.ready,
            "pending": self.pending,
            "unplaced": self.unplaced,
            "share": self.share,
            "speed": self.speed,
            "state": self.state,
            "why": self.message,
            "decided": self.decision.time,
            "created": self.submitted,
            "nodes": dict(self.nodes),
        }


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


def queue_rows(seen: Seen, rows: Sequence[PlanRow] | None = None) -> list[QueueRow]:
    """The queues by name; `default` alone if none are defined. `rows`: the `job_rows`, if they are known already."""
    s = seen.picture.snapshot
    held = s.demand_by_job(s.held_by_role())
    # The demand of a queue: under `fair` what its jobs ask for; where the policy chooses sizes, their maximum.
    shares = deserved(s, queue_demand(s, s.role_desired if seen.allocator.policy == "fair" else s.role_max))
    chains = ancestors(s.queue_parent)
    out = []
    rows = job_rows(seen) if rows is None else rows
    for q, name in enumerate(s.queue_names):
        # A parent queue holds what the queues below it hold.
        below = np.array([q in chain for chain in chains] + [False], dtype=np.bool_)[s.job_queue]
        allocated = held[below].sum(axis=0)
        asked = s.demand_by_job(np.maximum(s.role_max - s.held_by_role(), 0))[below].sum(axis=0)
        placed, waiting = placed_and_waiting(row for row in rows if not seen.state.queues or row.queue == name)
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
                running=placed,
                waiting=waiting,
            )
        )
    return out


def missing_queue_rows(seen: Seen, rows: Sequence[PlanRow] | None = None) -> list[MissingQueueRow]:
    """The queues that jobs name and that do not exist, by name. `rows`: the `job_rows`, if they are known already."""
    s = seen.picture.snapshot
    held = s.demand_by_job(s.held_by_role())
    at = {name: j for j, name in enumerate(s.job_names)}
    found: dict[str, list[PlanRow]] = {}
    for row in job_rows(seen) if rows is None else rows:
        if seen.state.queues and row.queue not in s.queue_names:
            found.setdefault(row.queue, []).append(row)
    out = []
    for name, mine in sorted(found.items()):
        placed, waiting = placed_and_waiting(mine)
        allocated = held[[at[row.key] for row in mine if row.key in at]].sum(axis=0)
        jobs = tuple(row.key for row in mine)
        out.append(MissingQueueRow(name, _amounts(s.resources, allocated), placed, waiting, jobs))
    return out


def without_effect(seen: Seen, rows: Sequence[PlanRow]) -> str:
    """What is said of the queues that jobs name where none is defined; "" if none is named. `rows`: the `job_rows`."""
    if seen.state.queues or seen.state.queue_trouble:
        return ""
    named_by = Counter(row.queue for row in rows if row.queue != DEFAULT_QUEUE)
    each = [f"{queue!r} of {counted(count, 'job')}" for queue, count in sorted(named_by.items())]
    if not each:
        return ""
    return f"no queues are defined, and all jobs share one: spec.queue has no effect ({named(each, _NAMED)})"


def job_rows(seen: Seen) -> list[PlanRow]:
    """All jobs of the allocator that have not ended, in the order of start."""
    s = seen.picture.snapshot
    total = usable_capacity(s)
    share = dominant_share(s.demand_by_job(s.held_by_role()), np.maximum(total, 1))
    shares = dict(zip(s.job_names, share.tolist(), strict=True)) if seen.limited is None else {}
    order = {s.job_names[j]: place for place, j in enumerate(start_order(s).tolist())}
    out = seen.picture.left_out
    is_open = {name: node.is_open for name, node in seen.state.nodes.items()}
    rows = [
        _row(job, shares.get(job.title, 0.0), out.get(job.key, ""), is_open)
        for job in seen.state.jobs.values()
        if not job.is_superseded
    ]
    return sorted(rows, key=lambda row: (order.get(row.key, len(order)), row.submitted, row.key))


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


def _row(job: Job, share: float, left_out: str, is_open: Mapping[str, bool]) -> PlanRow:
    read = job.read
    tree, said, held = read.argo.tree, read.notes.decision, read.problem or left_out
    stage = read.stage(tree, is_left_out=bool(left_out))
    found = count_of(read, stage, _replicas(job), has_places=read.has_places(tree))
    done = sum(tree.finished(member) for _, _, member in job.members()) if found.granted else 0
    pending = max(0, found.granted - found.ready - done)
    unplaced = _unplaced(job, is_open) if found.granted else 0
    if stage is Stage.ADMITTED:
        message = _why_so_many(said, runs=not pending and not unplaced, unplaced=unplaced)
    else:
        message = read.texts.ending or queued(stage, read.name, held=held, decision=said, is_stuck=tree.is_stuck)
    return PlanRow.of(
        read,
        stage,
        message,
        found,
        title=job.title,
        pending=pending,
        unplaced=unplaced,
        share=share,
        speed=reports.speed(read.texts.profilings) if read.texts.profilings else None,
        nodes=_places(job),
    )


def _replicas(job: Job) -> Replicas:
    """The replicas that are on nodes: of the latest restart of the current round; all of a job that cannot be read."""
    pods, latest = (job.pods, None) if job.read.problem else (job.current_pods, job.latest_restart)
    return on_nodes(
        (pod.task, pod.index, pod.is_ready)
        for pod in pods
        if pod.place and pod.task and pod.host and not pod.is_terminating and latest in (None, pod.place.restart)
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
