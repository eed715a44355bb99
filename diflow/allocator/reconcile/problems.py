"""Reports problems of jobs to their owners: why a job is held, and which part of its Workflow is ignored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import structlog

from diflow.allocator.watch import reports
from diflow.allocator.watch.cluster_state import ClusterState
from diflow.allocator.watch.job import Job
from diflow.allocator.write.executor import Executor
from diflow.allocator.write.patches import Note
from diflow.allocator.write.round_robin import in_turns
from diflow.allocator.write.rounds import next_names

MOST_AT_ONCE: Final = 16
"""Problems that are reported in one cycle: each is a request, and decisions on the jobs of others wait for them. The
others are reported in the next cycles."""

log = structlog.get_logger("diflow.allocator")


@dataclass(frozen=True, slots=True)
class _Problem:
    """A problem of a job that was not reported yet. `is_held`: nothing is decided for the job because of it."""

    job: Job
    text: str
    is_held: bool


class Problems:
    """The problems that were reported, so that each is reported once."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._reported: dict[str, str] = {}

    def report(self, state: ClusterState, left_out: Mapping[str, str]) -> bool:
        """Log new problems, and record them as Events. `left_out`: why jobs are left out of plans, by key. Returns
        whether there are more than are reported at once."""
        reported, new = {}, list[_Problem]()
        for job in state.jobs.values():
            held = job.read.problem or left_out.get(job.key, "")
            text = held or _ignored(job)
            if not text or job.read.has_ended:
                continue
            if self._reported.get(job.key) == text:
                reported[job.key] = text
            else:
                new.append(_Problem(job, text, is_held=bool(held)))
        chosen = in_turns(new, lambda one: one.job.read.identity.namespace)[:MOST_AT_ONCE]
        for one in chosen:
            log.warning("job held" if one.is_held else "a value is ignored", job=one.job.key, why=one.text)
            reported[one.job.key] = one.text
        self._executor.record_events(
            [(one.job, Note("Refused", one.text, is_warning=True), one.text) for one in chosen]
        )
        self._reported = reported
        if state.queue_trouble:
            log.warning("the queues stay as they were", why=state.queue_trouble)
        return len(new) > len(chosen)


def _ignored(job: Job) -> str:
    """What of a job the allocator ignores or cannot do, "" if nothing."""
    read = job.read
    text = read.complaint or _complaint(read.texts.profilings)
    if read.argo.tree.is_offloaded and not read.has_ended:
        text = text or "Argo keeps its nodes in a database, where the allocator cannot read them"
    if job.is_full and not job.is_superseded and not next_names(job):
        text = text or "its Workflow is full, and the names of its tasks are too long for it to get a next one"
    return text


def _complaint(profilings: str) -> str:
    try:
        return reports.complaint(profilings)
    except Exception as error:  # one faulty report must not stop the others
        return f"the parameter profilings cannot be read ({type(error).__name__}: {error})"[:200]
