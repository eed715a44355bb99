"""What the caches keep of a Workflow, a pod and a node for the status page.

A Workflow may have a thousand nodes in Argo's sense, so what is shown of them is derived when the object arrives. Users
can edit these objects, so nothing here raises: a job that cannot be read is held, and its message says why.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from diflow.common.words import shortened
from diflow.record import reports, untrusted
from diflow.record.argo.nodes import is_overfull
from diflow.record.argo.tree import Tree
from diflow.record.identity import Identity
from diflow.record.job import Argo, JobRecord, Wishes
from diflow.record.namespace import ended
from diflow.record.namespace.ended import EndedJob
from diflow.record.node import NodeRecord, node_record_of
from diflow.record.pod import PodRecord
from diflow.record.stage import Stage
from diflow.record.status import status
from diflow.record.status.followed import Failure, failures
from diflow.record.status.observe import observe_state, waiting_reason
from diflow.record.status.row import Count, JobRow
from diflow.server.page.history import History, history

Object = Mapping[str, Any]

_LONGEST_TEXT: Final = 400
_LONGEST_CELL: Final = 100
MOST_FAILURES: Final = 8
# Of each namespace: the caches keep these in memory, of all namespaces.
MOST_RECORDED: Final = 100


@dataclass(frozen=True, slots=True)
class JobFacts(JobRow):
    """The row of a Workflow's job, with what the page alone shows. Times are seconds since 1970, 0 if there is none.

    `unhealthy`: which replicas are silent, stalled or slow. `failures`: the last ones of its replicas, the newest
    first. `is_deleted`: its Workflow was, and the job is known from the record of the ended jobs alone.
    """

    phase: str
    unhealthy: str = ""
    restarts: int = 0
    reschedules: int = 0
    finished: float = 0.0
    speed: float | None = None
    progress: float | None = None
    history: History = field(default_factory=History)
    failures: tuple[Failure, ...] = ()
    is_deleted: bool = False

    @property
    def uid(self) -> str:
        return self.record.identity.uid

    @property
    def reference(self) -> str:
        """The key. Of a deleted job also the time of its submission, as a newer job may have its name."""
        return f"{self.key}@{self.submitted:.0f}" if self.is_deleted else self.key

    @property
    def has_ended(self) -> bool:
        return self.phase in status.ENDED

    @property
    def why(self) -> str:
        """What the allocator decided last on it, while it plans the job."""
        return _line(self.decision.why)

    @property
    def decided(self) -> float:
        return untrusted.seconds(self.decision.time)


@dataclass(frozen=True, slots=True)
class PodFacts:
    """A pod that has not ended, by its record. `waiting`: why it does not start, with advice, or ""."""

    record: PodRecord
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
        return "ready" if self.record.is_ready else "starting" if phase == "Running" else phase.lower()


def job_facts(obj: Object, read: JobRecord, kept: JobRecord | None = None) -> JobFacts | None:
    """What to keep of a Workflow, by its record; None if it is not diflow's. `kept`: as much of the record as is kept,
    all by default."""
    if not read.terms.is_job:
        return None
    kept = kept or read
    try:
        if is_overfull(obj) and not read.problem:
            return _undescribed(kept, read.stage(Tree()), "its nodes are too many to be shown")
        return replace(_job(obj, read), record=kept)
    except Exception as error:
        # Users can write anything into their own Workflows; one of them must not break the page for all.
        return _undescribed(kept, Stage.HELD, f"held: it cannot be read: {type(error).__name__}")


def pod_facts(obj: Object, record: PodRecord) -> PodFacts | None:
    """What to keep of a pod; None if it has ended."""
    return PodFacts(record, _line(waiting_reason(obj))) if record.is_live else None


def trim_record(obj: Object) -> tuple[JobFacts, ...]:
    """The last jobs of a namespace's record of ended jobs, the one that ended first at the beginning."""
    namespace = str(obj["metadata"].get("namespace") or "")
    jobs = ended.parse(ended.text_of(obj), namespace=namespace, now_seconds=time.time(), most=MOST_RECORDED)
    return tuple(_recorded(job) for job in jobs)


def _recorded(job: EndedJob) -> JobFacts:
    submitted = untrusted.seconds(job.submitted)
    uid = f"ended-{job.namespace}-{job.name}-{submitted:.0f}"
    record = JobRecord(
        Identity(job.namespace, job.name, uid, ""),
        wishes=Wishes(queue=job.queue),
        argo=Argo(created_seconds=submitted, phase=job.phase),
    )
    return JobFacts.of(
        record,
        Stage.ENDED,
        _line(job.message),
        Count(),
        phase=job.phase,
        restarts=job.restarts or 0,
        reschedules=job.reschedules or 0,
        finished=untrusted.seconds(job.ended),
        is_deleted=True,
    )


def trim_node(obj: Object) -> NodeRecord:
    """What to keep of a node: its record, without what only the allocator needs."""
    found = node_record_of(obj)
    return replace(found, allocatable={name: n for name, n in found.allocatable.items() if n}, labels={}, taints=())


def _job(obj: Object, read: JobRecord) -> JobFacts:
    seen = observe_state(read, obj)
    now = status.derive_seen(seen)
    found = JobFacts.of(
        read,
        seen.stage,
        _line(now.message),
        seen.count(seen.latest()),
        phase=now.phase,
        restarts=now.restarts or 0,
        reschedules=now.reschedules or 0,
        finished=untrusted.seconds(now.completion_timestamp),
    )
    if read.problem:
        return found
    at, report = read.notes.allocation, reports.read(read.texts.profilings)
    return replace(
        found,
        unhealthy=_line(seen.unhealthy),
        speed=report.speed,
        progress=report.progress,
        history=history(
            seen.attempts,
            seen.tasks,
            begin=read.argo.created_seconds,
            first=at.first if at else 0.0,
            since=(seen.live.current, at.since if at and found.is_preemptible and seen.has_places else 0.0),
        ),
        failures=tuple(map(_short, reversed(failures(seen)[-MOST_FAILURES:]))),
    )


def _short(one: Failure) -> Failure:
    """As much of a failure as the page shows."""
    reason, rule, followed = (shortened(text, _LONGEST_CELL) for text in (one.reason, one.rule, one.followed))
    return replace(one, reason=reason, said="", rule=rule, followed=followed)


def _undescribed(read: JobRecord, stage: Stage, message: str) -> JobFacts:
    stage = Stage.ENDED if read.has_ended else stage
    phase = status.ENDS.get(read.argo.phase, "Unknown")
    return JobFacts.of(read, stage, message, Count(), phase=phase)


def _line(text: str) -> str:
    return shortened(" ".join(text.split()), _LONGEST_TEXT)
