"""Forms of output: tables, JSON, YAML. Plain text and quick, so that a list of a thousand jobs comes at once."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from diflow import keys
from diflow.cli.console import colours, encodes, paint, phase_colour

if TYPE_CHECKING:
    from diflow.jobs.verbs import Job

_GAP: Final = "   "
_ANSI: Final = re.compile(r"\x1b\[[0-9;]*m")
_STEPS: Final = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns of text, as wide as they must be; those of numbers need no more."""
    cells = [list(head), *[list(row) for row in rows]]
    widths = [max(_width(row[i]) for row in cells) for i in range(len(head))]
    lines = []
    for row in cells:
        padded = [cell + " " * (width - _width(cell)) for cell, width in zip(row, widths, strict=True)]
        lines.append(_GAP.join(padded).rstrip())
    return "\n".join(lines)


def printable(text: str) -> str:
    """A text that a job or a user wrote, with its control characters as escapes: a terminal would obey them."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _width(text: str) -> int:
    return len(_ANSI.sub("", text)) if "\x1b" in text else len(text)


def age(since: str, *, now: datetime, until: str = "") -> str:
    """How long ago a time was, as kubectl tells it: 45s, 12m, 3h20m, 5d."""
    if not since:
        return "-"
    end = instant(until) if until else now
    total = max(0, int((end - instant(since)).total_seconds()))
    for i, (size, unit) in enumerate(_STEPS):
        if total >= size or unit == "s":
            count, rest = divmod(total, size)
            small = _STEPS[i + 1] if i + 1 < len(_STEPS) else None
            if small and count < 10 and rest >= small[0]:
                return f"{count}{unit}{rest // small[0]}{small[1]}"
            return f"{count}{unit}"
    return "0s"


def clock(time: str) -> str:
    """A time as the user's clock shows it."""
    return instant(time).astimezone().strftime("%H:%M:%S") if time else "-"


def moment(time: str) -> str:
    """A time with its date, on the user's clock."""
    return instant(time).astimezone().strftime("%Y-%m-%d %H:%M:%S %z") if time else "-"


def utc_now() -> datetime:
    """The present time."""
    return datetime.now(UTC)


def instant(text: str) -> datetime:
    """A time that Kubernetes wrote."""
    return datetime.fromisoformat(text)


def coloured_phase(phase: str) -> str:
    """A phase in its colour, where stdout takes colours."""
    return paint(phase, phase_colour(phase), on=colours(sys.stdout))


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
            coloured_phase(status.phase),
            str(status.ready_replicas),
            str(status.replicas),
            _count(status.restarts),
            _count(status.reschedules),
            age(job.created, now=now),
        ]
        if wide or namespaces:
            row.insert(0, job.namespace)
        if wide:
            labels = job.workflow["metadata"].get("labels") or {}
            row += [
                labels.get(keys.PRIORITY, "-"),
                labels.get(keys.PREEMPTIBLE, "-"),
                job.round or "-",
                status.message,
            ]
        rows.append(row)
    return table(head, rows)


def _count(number: int | None) -> str:
    return "-" if number is None else str(number)


def manifest(job: Job) -> dict[str, Any]:
    """The job as a DIJob object: what was submitted, and its status."""
    metadata = job.workflow["metadata"]
    given = job.dijob
    kept = ("uid", "resourceVersion")
    return {
        "apiVersion": given.get("apiVersion") or keys.API_VERSION,
        "kind": given.get("kind") or keys.KIND,
        "metadata": {
            **(given.get("metadata") or {}),
            "name": job.name,
            "namespace": job.namespace,
            "creationTimestamp": job.created,
            **{key: metadata[key] for key in kept if key in metadata},
        },
        "spec": given.get("spec") or {},
        "status": job.status.to_dict(),
    }


def print_data(data: Any, *, form: str) -> None:
    """Print plain data as JSON or YAML."""
    if form == "json":
        text = json.dumps(data, indent=2, ensure_ascii=False)
        sys.stdout.write(f"{text if encodes(sys.stdout, text) else json.dumps(data, indent=2)}\n")
        return
    from diflow.job import dump_yaml  # noqa: PLC0415 (its models take a while to import)

    text = dump_yaml(data)
    sys.stdout.write(text if encodes(sys.stdout, text) else dump_yaml(data, ascii_only=True))
