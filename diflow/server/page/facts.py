"""What the caches keep of a Workflow, a pod and a node for the status page.

A Workflow may have a thousand nodes in Argo's sense, so what is shown of them is derived when the object arrives. Users
can edit these objects, so nothing here raises: a job that cannot be read is held, and its message says why.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from diflow.common.words import shortened
from diflow.record import chain, reports, untrusted
from diflow.record.argo.nodes import is_overfull
from diflow.record.argo.tree import Tree
from diflow.record.job import JobRecord
from diflow.record.namespace import ended
from diflow.record.namespace.ended import EndedJob
from diflow.record.node import NodeRecord, node_record_of
from diflow.record.parameters import Decision
from diflow.record.pod import PodRecord
from diflow.record.stage import Stage, is_planned, is_queued
from diflow.record.status import status
from diflow.record.status.followed import failures
from diflow.record.status.observe import Observation, observe_state, waiting_reason
from diflow.record.status.status import JobStatus
from diflow.server.page.history import History, history, seconds

Object = Mapping[str, Any]

_LONGEST_TEXT: Final = 400
_LONGEST_CELL: Final = 100
MOST_FAILURES: Final = 8
# Of each namespace: the caches keep these in memory, of all namespaces.
MOST_RECORDED: Final = 100
# The queue of jobs that name none.
DEFAULT_QUEUE: Final = "default"


@dataclass(frozen=True, slots=True)
class TaskFacts:
    """One task: `low` to `high` replicas are allowed, `desired` requested, `granted` allocated, `observed` running."""

    name: str
    low: int
    high: int
    desired: int
    granted: int
    observed: int

    @property
    def range_text(self) -> str:
        """Such as `3` or `1–4`."""
        return str(self.high) if self.low == self.high else f"{self.low}–{self.high}"


@dataclass(frozen=True, slots=True)
class FailureFacts:
    """One failed attempt of a replica: why, the rule that decided, and what followed. `at`: seconds since 1970."""

    replica: str
    at: float
    node: str
    reason: str
    rule: str
    followed: str


@dataclass(frozen=True, slots=True)
class JobFacts:
    """A Workflow of a job. Times are seconds since 1970, 0 if there is none.

    `name` is the job's name, `workflow` the Workflow's. `stage`: where it is in its life, None for a deleted job.
    `why` is the allocator's last decision on it, while it plans the job. `unhealthy`: which replicas are silent,
    stalled or slow.
    `link` has the links to the job's other Workflows (`record.chain`).
    """

    namespace: str
    name: str
    workflow: str
    uid: str
    queue: str
    priority: str
    is_preemptible: bool
    is_gang: bool
    submitted: float
    phase: str
    message: str = ""
    tasks: tuple[TaskFacts, ...] = ()
    stage: Stage | None = None
    why: str = ""
    decided: float = 0.0
    unhealthy: str = ""
    restarts: int = 0
    reschedules: int = 0
    backoff_limit: int = 0
    round: str = ""
    started: float = 0.0
    finished: float = 0.0
    speed: float | None = None
    progress: float | None = None
    history: History = field(default_factory=History)
    phases: tuple[tuple[str, float], ...] = ()
    link: Mapping[str, Any] = field(default_factory=dict)
    failures: tuple[FailureFacts, ...] = ()
    """The last failures of its replicas, the newest first."""
    is_deleted: bool = False
    """Its Workflow was deleted: the job is known from the record of the ended jobs alone."""

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def reference(self) -> str:
        """The key. Of a deleted job also the time of its submission, as a newer job may have its name."""
        return f"{self.key}@{self.submitted:.0f}" if self.is_deleted else self.key

    @property
    def has_ended(self) -> bool:
        return self.phase in status.ENDED

    @property
    def is_queued(self) -> bool:
        """The job needs the allocator, and has no place."""
        granted = any(task.granted for task in self.tasks)
        return self.is_gang and self.stage is not None and is_queued(self.stage, has_places=granted)


@dataclass(frozen=True, slots=True)
class PodFacts:
    """A pod that has not ended, by its record. `waiting`: why it does not start, with advice, or ""."""

    record: PodRecord
    is_ready: bool = False
    waiting: str = ""

    @property
    def replica(self) -> str:
        """Such as `worker-0`."""
        return f"{self.record.task}-{self.record.index}"

    @property
    def is_ending(self) -> bool:
        """It is being deleted, or stops by its deadline."""
        return self.record.is_terminating or self.record.is_stopping

    @property
    def state(self) -> str:
        """For people: stopping, ready, starting, or the phase."""
        if self.is_ending:
            return "stopping"
        phase = self.record.phase
        return "ready" if self.is_ready else "starting" if phase == "Running" else phase.lower()


def job_facts(obj: Object, state: JobRecord) -> JobFacts | None:
    """What to keep of a Workflow, by its record; None if it is not diflow's."""
    if not state.terms.is_job:
        return None
    try:
        return _job(obj, state)
    except Exception as error:
        # Users can write anything into their own Workflows; one of them must not break the page for all.
        return _undescribed(obj, state, Stage.HELD, f"held: it cannot be read: {type(error).__name__}")


def pod_facts(obj: Object, record: PodRecord) -> PodFacts | None:
    """What to keep of a pod; None if it has ended."""
    if not record.is_live:
        return None
    found = untrusted.mappings(untrusted.sub(obj, "status").get("conditions"))
    conditions = {one.get("type"): one.get("status") for one in found}
    is_ready = record.phase == "Running" and conditions.get("Ready") == "True"
    return PodFacts(record, is_ready, _line(waiting_reason(obj)))


def trim_record(obj: Object) -> tuple[JobFacts, ...]:
    """The last jobs of a namespace's record of ended jobs, the one that ended first at the beginning."""
    namespace = str(obj["metadata"].get("namespace") or "")
    jobs = ended.parse(ended.text_of(obj), namespace=namespace, now_seconds=time.time(), most=MOST_RECORDED)
    return tuple(_recorded(job) for job in jobs)


def _recorded(job: EndedJob) -> JobFacts:
    submitted = seconds(job.submitted)
    return JobFacts(
        namespace=job.namespace,
        name=job.name,
        workflow="",
        uid=f"ended-{job.namespace}-{job.name}-{submitted:.0f}",
        queue=job.queue or DEFAULT_QUEUE,
        priority="",
        is_preemptible=False,
        is_gang=False,
        submitted=submitted,
        phase=job.phase,
        message=_line(job.message),
        restarts=job.restarts or 0,
        reschedules=job.reschedules or 0,
        started=seconds(job.started),
        finished=seconds(job.ended),
        is_deleted=True,
    )


def trim_node(obj: Object) -> NodeRecord:
    """What to keep of a node: its record, without what only the allocator needs."""
    found = node_record_of(obj)
    return replace(found, allocatable={name: n for name, n in found.allocatable.items() if n}, labels={}, taints=())


def _job(obj: Object, state: JobRecord) -> JobFacts:
    if is_overfull(obj) and not state.problem:
        return _undescribed(obj, state, state.stage(Tree()), "its nodes are too many to be shown")
    seen = observe_state(state, obj)
    now = status.derive_seen(obj, seen)
    known = replace(
        _known(obj, state),
        phase=now.phase,
        message=_line(now.message),
        stage=now.stage,
        restarts=now.restarts or 0,
        reschedules=now.reschedules or 0,
    )
    if state.problem:
        return known
    at = state.notes.allocation
    decision = state.notes.decision.change if is_planned(seen.stage, has_places=seen.has_places) else Decision()
    past = history(
        seen.attempts,
        seen.tasks,
        begin=state.argo.created_seconds,
        first=at.first if at else 0.0,
        since=(seen.live.current, at.since if at and state.terms.is_preemptible and seen.has_places else 0.0),
    )
    return replace(
        known,
        tasks=_tasks(state, seen, now),
        why=_line(decision.why),
        decided=seconds(decision.time),
        unhealthy=_line(seen.unhealthy),
        backoff_limit=seen.backoff_limit,
        round=seen.live.current,
        started=seconds(now.start_time),
        finished=seconds(now.completion_timestamp),
        speed=reports.speed(seen.profilings),
        progress=reports.progress(seen.profilings),
        history=past,
        phases=tuple((c.type, seconds(c.last_transition_time)) for c in now.conditions),
        failures=tuple(
            FailureFacts(
                one.replica,
                seconds(one.ended),
                one.node,
                shortened(one.reason, _LONGEST_CELL),
                shortened(one.rule, _LONGEST_CELL),
                shortened(one.followed, _LONGEST_CELL),
            )
            for one in reversed(failures(seen)[-MOST_FAILURES:])
        ),
    )


def _tasks(state: JobRecord, seen: Observation, now: JobStatus) -> tuple[TaskFacts, ...]:
    wanted_now = seen.wanted
    ready = Counter(key[0] for key, attempt in seen.latest().items() if attempt.is_ready and key in wanted_now)
    out = []
    for index, name in enumerate(seen.tasks):
        found = state.range_of(index)
        out.append(
            TaskFacts(
                name,
                low=found.low,
                high=found.high,
                desired=found.desired,
                granted=state.live.running(name) if seen.has_places else 0,
                observed=0 if now.ended else ready[name],
            )
        )
    return tuple(out)


def _undescribed(obj: Object, state: JobRecord, stage: Stage, message: str) -> JobFacts:
    stage = Stage.ENDED if state.has_ended else stage
    return replace(_known(obj, state), phase=status.ENDS.get(state.argo.phase, "Unknown"), message=message, stage=stage)


def _known(obj: Object, state: JobRecord) -> JobFacts:
    """What can be said of every Workflow of a job."""
    return JobFacts(
        namespace=state.identity.namespace,
        name=state.name,
        workflow=state.identity.name,
        uid=state.identity.uid,
        queue=state.wishes.queue or DEFAULT_QUEUE,
        priority=state.terms.priority,
        is_preemptible=state.terms.is_preemptible,
        is_gang=state.terms.is_gang,
        submitted=seconds(chain.submitted(obj)),
        phase="Unknown",
        link=chain.link(obj),
    )


def _line(text: str) -> str:
    return shortened(" ".join(text.split()), _LONGEST_TEXT)
