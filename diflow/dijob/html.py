"""A job as a small table for notebooks. Colours are inherited, so it is readable on light and on dark pages."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from diflow.common import keys
from diflow.common.words import shortened

if TYPE_CHECKING:
    from diflow.dijob.model import DIJob

_CELL = "padding:2px 12px 2px 0;text-align:left;vertical-align:top"
_SHOWN_COMMAND = 80


def job_card(job: DIJob) -> str:
    """The job's name, settings and tasks, as HTML. All text from the user is escaped."""
    facts = [
        f"{job.priority} priority",
        "preemptible" if job.preemptible else "not preemptible",
        f"backoffLimit {job.backoff_limit}",
        f"cleanPodPolicy {job.clean_pod_policy}",
    ]
    if job.queue:
        facts.append(f"queue {job.queue}")
    if job.scheduling:
        facts.append(f"scheduling {job.scheduling}")
    where = f" in {escape(job.namespace)}" if job.namespace else ""
    rows = [_row("th", "task", "type", "replicas", "image", "command")]
    for task in job.tasks:
        low, high = task.min_replicas, task.max_replicas
        bounds = f" ({low or task.replicas}-{high or task.replicas})" if low or high else ""
        work = task.work_container
        rows.append(
            _row("td", task.name, task.type, f"{task.replicas}{bounds}", str(work.get("image") or ""), _command(work))
        )
    return (
        f"<div><b>{keys.KIND} {escape(job.name)}</b>{where}<br>"
        f'<span style="opacity:.7">{escape(" · ".join(facts))}</span>'
        f'<table style="border-collapse:collapse;background:none;color:inherit">{"".join(rows)}</table></div>'
    )


def _row(cell: str, *texts: str) -> str:
    return "<tr>" + "".join(f'<{cell} style="{_CELL}">{escape(text)}</{cell}>' for text in texts) + "</tr>"


def _command(container: dict[str, Any]) -> str:
    text = " ".join([*(container.get("command") or []), *(container.get("args") or [])])
    return shortened(" ".join(text.split()), _SHOWN_COMMAND)
