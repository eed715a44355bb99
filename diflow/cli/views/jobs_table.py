"""The columns of `diflow list` and `diflow list --ended`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final

from diflow.cli.output import coloured_phase, printable
from diflow.common.durations import age, span
from diflow.common.tables import table
from diflow.common.words import shortened
from diflow.record.stage import Stage

if TYPE_CHECKING:
    from diflow.jobs.lookup import Job
    from diflow.record.namespace.ended import EndedJob

_SAID: Final = frozenset({Stage.SUSPENDED, Stage.HELD, Stage.STOPPING, Stage.DELETING})
"""Stages that the phase does not tell."""
_REASON_CHARACTERS: Final = 60


def jobs_table(jobs: Sequence[Job], *, now: datetime, wide: bool = False, namespaces: bool = False) -> str:
    """The jobs as a table: the columns that DI-orchestrator prints, and more when it is `wide`."""
    head = ["NAME", "PHASE", "READY", "REPLICAS", "RESTARTS", "RESCHEDULES", "AGE"]
    if wide or namespaces:
        head.insert(0, "NAMESPACE")
    if wide:
        head += ["PRIORITY", "PREEMPTIBLE", "ROUND", "MESSAGE"]
    rows = []
    for job in jobs:
        status = job.status
        row = [
            job.name,
            f"{coloured_phase(status.phase)}{f',{status.stage.value.capitalize()}' if status.stage in _SAID else ''}",
            str(status.ready_replicas),
            str(status.replicas),
            _count(status.restarts),
            _count(status.reschedules),
            age(job.created, now=now),
        ]
        if wide or namespaces:
            row.insert(0, job.namespace)
        if wide:
            terms = job.record.terms
            row += [
                terms.priority,
                "true" if terms.is_preemptible else "false",
                job.round or "-",
                status.message,
            ]
        rows.append(row)
    return table(head, rows)


def ended_table(jobs: Sequence[EndedJob], *, now: datetime, wide: bool = False, namespaces: bool = False) -> str:
    """The jobs that have ended as a table. REASON is shortened unless it is `wide`."""
    head = ["NAME", "PHASE", "QUEUE", "STARTED", "ENDED", "DURATION", "RESTARTS", "RESCHEDULES", "REASON"]
    if wide or namespaces:
        head.insert(0, "NAMESPACE")
    rows = []
    for job in jobs:
        row = [
            printable(job.name),
            coloured_phase(job.phase),
            printable(job.queue) or "-",
            age(job.started, now=now),
            age(job.ended, now=now),
            "-" if job.seconds is None else span(job.seconds),
            _count(job.restarts),
            _count(job.reschedules),
            printable(job.message if wide else shortened(job.message, _REASON_CHARACTERS)) or "-",
        ]
        if wide or namespaces:
            row.insert(0, printable(job.namespace))
        rows.append(row)
    return table(head, rows)


def _count(number: int | None) -> str:
    return "-" if number is None else str(number)
