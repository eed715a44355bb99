"""Output formats: times, phases, JSON and YAML. Tables are in `diflow.common.tables`."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from diflow.cli.console import colours, encodes, paint, phase_colour, say
from diflow.cli.options import Output
from diflow.common import keys

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from diflow.jobs.lookup import Job


def printable(text: str) -> str:
    """Escape the control characters in text of a job or user, which a terminal would execute."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def clock(time: str) -> str:
    """A time of day in the local time zone."""
    return datetime.fromisoformat(time).astimezone().strftime("%H:%M:%S") if time else "-"


def moment(time: str) -> str:
    """A date and time in the local time zone."""
    return datetime.fromisoformat(time).astimezone().strftime("%Y-%m-%d %H:%M:%S %z") if time else "-"


def utc_now() -> datetime:
    """The current time."""
    return datetime.now(UTC)


def coloured_phase(phase: str) -> str:
    """A phase in its colour, if stdout shows colours."""
    return paint(phase, phase_colour(phase), on=colours(sys.stdout))


def manifest(job: Job) -> dict[str, Any]:
    """The job as a DIJob object: the submitted manifest and the status."""
    identity, given = job.record.identity, job.dijob
    kept = {"uid": identity.uid, "resourceVersion": identity.version}
    return {
        "apiVersion": given.get("apiVersion") or keys.API_VERSION,
        "kind": given.get("kind") or keys.KIND,
        "metadata": {
            **(given.get("metadata") or {}),
            "name": job.name,
            "namespace": job.namespace,
            "creationTimestamp": job.created,
            **{key: value for key, value in kept.items() if value},
        },
        "spec": given.get("spec") or {},
        "status": job.status.to_dict(),
    }


def print_as(output: Output | None, data: Callable[[], Any], *, names: Iterable[str]) -> bool:
    """Print a list as `-o` says: as data, or as names. False if it is to be a table."""
    if output is Output.NAME:
        for name in names:
            say(printable(name))
    elif output in (Output.JSON, Output.YAML):
        print_data(data(), form=output.value)
    else:
        return False
    return True


def print_data(data: Any, *, form: str) -> None:
    """Print plain data as JSON or YAML."""
    if form == "json":
        text = json.dumps(data, indent=2, ensure_ascii=False)
        sys.stdout.write(f"{text if encodes(sys.stdout, text) else json.dumps(data, indent=2)}\n")
        return
    from diflow.dijob.yamltext import dump_yaml  # noqa: PLC0415 (YAML takes a while to import)

    text = dump_yaml(data)
    sys.stdout.write(text if encodes(sys.stdout, text) else dump_yaml(data, ascii_only=True))
