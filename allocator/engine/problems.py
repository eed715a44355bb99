"""Reports problems of jobs to their owners: why a job is held, and which part of its Workflow is ignored."""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from diflow.allocator.engine import reports
from diflow.allocator.engine.cluster_state import ClusterState
from diflow.allocator.engine.executor import Executor
from diflow.allocator.engine.job import Job
from diflow.allocator.engine.patches import Note
from diflow.allocator.engine.rounds import next_names

log = structlog.get_logger("diflow.allocator")


class Problems:
    """The problems that were reported, so that each is reported once."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._reported: dict[str, str] = {}

    def report(self, state: ClusterState, left_out: Mapping[str, str]) -> None:
        """Log new problems, and record them as Events. `left_out`: why jobs are left out of plans, by key."""
        problems = {}
        for job in state.jobs.values():
            held = job.read.problem or left_out.get(job.key, "")
            text = held or _ignored(job)
            if text and not job.read.has_ended:
                problems[job.key] = text
                if self._reported.get(job.key) != text:
                    log.warning("held" if held else "ignored", job=job.key, why=text)
                    self._executor.record_event(job, Note("Refused", text, is_warning=True), salt=text)
        self._reported = problems
        if state.queue_trouble:
            log.warning("the queues stay as they were", why=state.queue_trouble)


def _ignored(job: Job) -> str:
    """What of a job the allocator ignores or cannot do, "" if nothing."""
    read = job.read
    text = read.complaint or _complaint(read.profilings)
    if read.tree.is_offloaded and not read.has_ended:
        text = text or "Argo keeps its nodes in a database, where the allocator cannot read them"
    if job.is_full and not job.is_superseded and not next_names(job):
        text = text or "its Workflow is full, and the names of its tasks are too long for it to get a next one"
    return text


def _complaint(profilings: str) -> str:
    try:
        return reports.complaint(profilings)
    except Exception as error:  # one faulty report must not stop the others
        return f"the parameter profilings cannot be read ({type(error).__name__}: {error})"[:200]
