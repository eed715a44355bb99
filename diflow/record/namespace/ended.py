"""The record of the jobs of a namespace that have ended: it lists them after Argo has deleted their Workflows.

The allocator writes it as one text into a ConfigMap of the namespace, with a line of JSON for each job, the one that
ended first at the top. The line has what `diflow list --ended` and the status page show of a job. The users of the
namespace can edit it, so a line that is no such record is ignored.

Pure; it imports neither Hera nor pydantic.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from diflow.common import keys
from diflow.common.limits import MOST_ENDED_BYTES, MOST_ENDED_JOBS
from diflow.common.words import shortened
from diflow.record import chain, untrusted
from diflow.record.namespace import lines
from diflow.record.status.status import ENDED, derive

JOBS_KEY: Final = "jobs"
"""The key of the ConfigMap's data with the text."""

_LONGEST_NAME: Final = 253
_LONGEST_VERSION: Final = 32
_LONGEST_MESSAGE: Final = 240
_LONGEST_LINE: Final = 4096
_MOST_RESTARTS: Final = 10**9
_CLOCKS_DIFFER_SECONDS: Final = 3600.0


@dataclass(frozen=True, slots=True)
class EndedJob:
    """A job that has ended. Times are RFC 3339 text, "" if there is none; `ended` always has one.

    `uid`, `version`: of its last Workflow, as it was read. `restarts` and `reschedules` are None if unknown.
    """

    namespace: str
    name: str
    uid: str
    phase: str
    ended: str
    submitted: str = ""
    started: str = ""
    queue: str = ""
    replicas: int = 0
    restarts: int | None = None
    reschedules: int | None = None
    message: str = ""
    version: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        """(namespace, name, time of the submission): what identifies a job, also one with several Workflows."""
        return (self.namespace, self.name, self.submitted)

    @property
    def seconds(self) -> float | None:
        """From its start to its end; None if it was never started."""
        return max(0.0, untrusted.seconds(self.ended) - untrusted.seconds(self.started)) if self.started else None

    def to_dict(self) -> dict[str, Any]:
        """The job as a DIJob object, with the parts of its status that are recorded."""
        status: dict[str, Any] = {
            "phase": self.phase,
            "reason": f"Job{self.phase}",
            "message": self.message,
            "replicas": self.replicas,
            "restarts": self.restarts,
            "reschedules": self.reschedules,
            "completionTimestamp": self.ended,
        }
        if self.started:
            status["startTime"] = self.started
        return {
            "apiVersion": keys.API_VERSION,
            "kind": keys.KIND,
            "metadata": {
                "name": self.name,
                "namespace": self.namespace,
                "uid": self.uid,
                "creationTimestamp": self.submitted,
            },
            "spec": {"queue": self.queue} if self.queue else {},
            "status": status,
        }


def of_workflow(workflow: Mapping[str, Any]) -> EndedJob | None:
    """The record of a job by its Workflow; None if the job has not ended, or continues in another Workflow."""
    if chain.continued_in(workflow):
        return None
    metadata = untrusted.sub(workflow, "metadata")
    status = derive(workflow)
    ended = status.completion_timestamp or untrusted.time(metadata.get("creationTimestamp"))
    if not status.ended or not ended:
        return None
    return EndedJob(
        namespace=untrusted.string(metadata.get("namespace")),
        name=chain.job_name(workflow),
        uid=untrusted.string(metadata.get("uid"), most=_LONGEST_NAME),
        phase=status.phase,
        ended=ended,
        submitted=chain.submitted(workflow),
        started=status.start_time,
        queue=untrusted.string(untrusted.sub(metadata, "labels").get(keys.QUEUE), most=_LONGEST_NAME),
        replicas=status.replicas,
        restarts=status.restarts,
        reschedules=status.reschedules,
        message=shortened(" ".join(status.message.split()), _LONGEST_MESSAGE),
        version=untrusted.string(metadata.get("resourceVersion"), most=_LONGEST_VERSION),
    )


def text_of(config_map: Mapping[str, Any] | None) -> str:
    """The record in a ConfigMap, "" if it has none."""
    return lines.text_of(config_map, JOBS_KEY)


def parse(text: str, *, namespace: str, now_seconds: float = math.inf, most: int = MOST_ENDED_JOBS) -> list[EndedJob]:
    """The last `most` jobs of a record, the one that ended first at the beginning; each job once.

    Only as much of the text is read as the allocator would write. `now_seconds`: a line of a job that ends after this
    Unix time is ignored, as it would stand before the jobs of all other namespaces. The writer has no such limit: its
    clock may be slow, and a line that it leaves out is lost.
    """
    given = lines.split(text, most=most, most_bytes=MOST_ENDED_BYTES, longest=_LONGEST_LINE)
    read = (_read(record, namespace) for record in given)
    latest = now_seconds + _CLOCKS_DIFFER_SECONDS
    return merged((job for job in read if job is not None and untrusted.seconds(job.ended) <= latest), ())


def merged(recorded: Iterable[EndedJob], more: Iterable[EndedJob]) -> list[EndedJob]:
    """The jobs in the order in which they ended, each once: of two with one key the one that ended last."""
    last: dict[tuple[str, str, str], EndedJob] = {}
    for job in (*recorded, *more):
        known = last.get(job.key)
        if known is None or known.ended <= job.ended:
            last[job.key] = job
    return sorted(last.values(), key=lambda job: (job.ended, job.submitted, job.name))


def text(jobs: Iterable[EndedJob]) -> str:
    """The record of these jobs, which are in the order in which they ended; of too many the last ones."""
    return lines.joined(map(_record, reversed(list(jobs)[-MOST_ENDED_JOBS:])), most_bytes=MOST_ENDED_BYTES)


def _record(job: EndedJob) -> dict[str, Any]:
    """A job as its line has it. The namespace is that of the ConfigMap."""
    return {
        "name": job.name,
        "uid": job.uid,
        "version": job.version,
        "phase": job.phase,
        "submitted": job.submitted,
        "started": job.started,
        "ended": job.ended,
        "queue": job.queue,
        "replicas": job.replicas,
        "restarts": job.restarts,
        "reschedules": job.reschedules,
        "message": job.message,
    }


def _read(given: Mapping[str, Any], namespace: str) -> EndedJob | None:
    name, phase = lines.plain(given.get("name"), _LONGEST_NAME), given.get("phase")
    ended = untrusted.time(given.get("ended"))
    if not name or not isinstance(phase, str) or phase not in ENDED or not ended:
        return None
    return EndedJob(
        namespace=namespace,
        name=name,
        uid=lines.plain(given.get("uid"), _LONGEST_NAME),
        phase=phase,
        ended=ended,
        submitted=untrusted.time(given.get("submitted")),
        started=untrusted.time(given.get("started")),
        queue=lines.plain(given.get("queue"), _LONGEST_NAME),
        replicas=_count(given.get("replicas")) or 0,
        restarts=_count(given.get("restarts")),
        reschedules=_count(given.get("reschedules")),
        message=lines.plain(given.get("message"), _LONGEST_MESSAGE),
        version=lines.plain(given.get("version"), _LONGEST_VERSION),
    )


def _count(value: Any) -> int | None:
    return value if untrusted.is_count(value, least=0, most=_MOST_RESTARTS) else None
