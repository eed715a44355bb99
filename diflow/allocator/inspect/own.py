"""What `diflow plan` tells a user who sees one namespace: the last decisions, and what would hold up a new job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from diflow.allocator.inspect import observer
from diflow.allocator.inspect.rows import job_rows
from diflow.allocator.inspect.what_if import as_submitted
from diflow.allocator.reasons import reason_texts
from diflow.common import keys
from diflow.common.errors import InvalidError
from diflow.common.queue_access import refusal
from diflow.common.words import counted, named

if TYPE_CHECKING:
    from diflow.allocator.inspect.observer import Seen
    from diflow.dijob.model import DIJob

_NAMED = 3


def last_decisions(seen: Seen) -> dict[str, dict[str, str]]:
    """By the key of each job: what was decided last about it, why, and when."""
    found = {row.key: row.decision for row in job_rows(seen)}
    return {key: {"action": said.action, "why": said.why, "time": said.time} for key, said in found.items()}


def text(seen: Seen) -> str:
    """The last decisions, a line for each job."""
    lines = [
        f"{key}: {reason_texts.sentence(said['action'], said['why']) if said['action'] else 'nothing was decided yet'}"
        for key, said in last_decisions(seen).items()
    ]
    return "\n".join(lines) or "the namespace has no job that the allocator plans"


def simulated(seen: Seen, job: DIJob, *, namespace: str) -> dict[str, Any]:
    """What is known of a new job: that its queue and priority are for it, and which jobs of its namespace wait before
    it. Raises InvalidError if it could not start, ConflictError if there is a job of that name."""
    key, workflow = as_submitted(seen, job, namespace=namespace)
    rows = job_rows(observer.with_job(seen, workflow))
    mine = next(row for row in rows if row.key == key)
    queues = {queue.name for queue in seen.state.queues}
    if queues and mine.queue not in queues:
        raise InvalidError(f"there is no queue {mine.queue!r}", path="spec.queue")
    priority = keys.WORKFLOW_PRIORITIES.get(mine.priority, 0)
    if why := refusal(seen.state.rules, namespace=mine.namespace, queue=mine.queue, priority=priority):
        raise InvalidError(why)
    before = [row.key for row in rows[: rows.index(mine)] if row.is_queued and row.queue == mine.queue]
    return {"job": key, "queue": mine.queue, "asks": mine.range_text, "before": before, "not_shown": seen.not_shown}


def simulated_text(found: dict[str, Any]) -> str:
    """As text for people."""
    before = found["before"]
    if before:
        some = counted(len(before), "job of its namespace waits", plural="jobs of its namespace wait")
        ahead = f"{some} before it in this queue: {named(before, _NAMED)}"
    else:
        ahead = "no job of its namespace waits before it"
    return f"{found['job']} asks for {counted(found['asks'], 'replica')} in queue {found['queue']}; {ahead}"
