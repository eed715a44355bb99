"""The record of the jobs of a namespace that have ended: it lists them after Argo has deleted their Workflows.

The allocator writes it as one text into a ConfigMap of the namespace, with a line of JSON for each job, the one that
ended first at the top. The line has what `diflow list --ended` and the status page show of a job. The users of the
namespace can edit it, so a line that is no such record is ignored.

Pure; it imports neither Hera nor pydantic.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, Final

from msgspec import Meta

from diflow.common import keys
from diflow.common.jsontext import lenient
from diflow.common.limits import MOST_ENDED_BYTES, MOST_ENDED_JOBS
from diflow.common.words import shortened
from diflow.record import chain, untrusted
from diflow.record.namespace import lines
from diflow.record.status.status import ENDED, derive

JOBS_KEY: Final = "jobs"
"""The key of the ConfigMap's data with the text."""

_LONGEST_MESSAGE: Final = 240
_LONGEST: Final = {"name": 253, "uid": 253, "queue": 253, "message": _LONGEST_MESSAGE, "version": 32}
_LONGEST_LINE: Final = 4096
_CLOCKS_DIFFER_SECONDS: Final = 3600.0

_Count = Annotated[int, Meta(ge=0, le=10**9)]


@dataclass(frozen=True, slots=True)
class EndedJob:
    """A job that has ended, as its line has it; the namespace is that of the ConfigMap. Times are RFC 3339 text, "" if
    there is none; `ended` always has one. Long texts are truncated.

    `uid`, `version`: of its last Workflow, as it was read. `restarts` and `reschedules` are None if unknown.
    """

    name: Annotated[str, Meta(min_length=1)]
    phase: Annotated[str, Meta(pattern=rf"^({'|'.join(sorted(ENDED))})\Z")]
    ended: str
    uid: str = ""
    submitted: str = ""
    started: str = ""
    queue: str = ""
    replicas: _Count = 0
    restarts: _Count | None = None
    reschedules: _Count | None = None
    message: str = ""
    version: str = ""
    namespace: str = ""

    def __post_init__(self) -> None:
        if not untrusted.time(self.ended):
            raise ValueError("without the time of its end")
        for name, most in _LONGEST.items():
            object.__setattr__(self, name, getattr(self, name)[:most])
        for name in ("submitted", "started"):
            object.__setattr__(self, name, untrusted.time(getattr(self, name)))

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
        uid=untrusted.string(metadata.get("uid")),
        phase=status.phase,
        ended=ended,
        submitted=chain.submitted(workflow),
        started=status.start_time,
        queue=untrusted.string(untrusted.sub(metadata, "labels").get(keys.QUEUE)),
        replicas=status.replicas,
        restarts=status.restarts,
        reschedules=status.reschedules,
        message=shortened(" ".join(status.message.split()), _LONGEST_MESSAGE),
        version=untrusted.string(metadata.get("resourceVersion")),
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
    read = lines.records(text, _read, most=most, most_bytes=MOST_ENDED_BYTES)
    latest = now_seconds + _CLOCKS_DIFFER_SECONDS
    return merged((replace(job, namespace=namespace) for job in read if untrusted.seconds(job.ended) <= latest), ())


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
    last = ({**asdict(job), "namespace": ""} for job in reversed(list(jobs)[-MOST_ENDED_JOBS:]))
    return lines.joined(last, most_bytes=MOST_ENDED_BYTES)


_read: Final = lenient(EndedJob, most_characters=_LONGEST_LINE)
