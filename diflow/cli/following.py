"""Commands that follow a job: watch, wait."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from diflow.cli.console import colours, note, say
from diflow.cli.options import Context, JobName, Kubeconfig, Namespace, Timeout, connect, detaching, resolve, seconds

if TYPE_CHECKING:
    from diflow.kube.api import Cluster
    from diflow.record.status.status import JobStatus


def watch(
    job: JobName,
    *,
    timeout: Timeout = None,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> int:
    """Show a job live until it ends: its phase, each replica, the last events.

    If stdout is not a terminal, print a line for each change. Exits with 1 if the job failed. Ctrl-C detaches.
    """
    limit = seconds(timeout, option="--timeout")
    cluster = connect(kubeconfig=kubeconfig, context=context, namespace=namespace)
    name = resolve(job, cluster)
    with detaching(name, cluster):
        return show(cluster, name, limit=limit)


def show(cluster: Cluster, name: str, *, limit: float | None = None) -> int:
    """Follow a job to its end, live on a terminal or line by line elsewhere. Returns the exit code."""
    if sys.stdout.isatty() and colours(sys.stdout):
        from diflow.cli.views.live import show_live  # noqa: PLC0415 (rich takes a while to import)

        status = show_live(cluster, name, limit=limit)
    else:
        status = _show_lines(cluster, name, limit=limit)
    if status is None:
        note(f"job {name} was deleted")
        return 3
    if not status.ended:
        raise TimeoutError(f"job {name} is still {status.phase} after {limit:g} s: {status.message}")
    return 0 if status.phase == "Succeeded" else 1


def _show_lines(cluster: Cluster, name: str, *, limit: float | None) -> JobStatus | None:
    from diflow.cli.output import utc_now  # noqa: PLC0415
    from diflow.cli.views.replicas import rows  # noqa: PLC0415
    from diflow.jobs.follow import follow  # noqa: PLC0415
    from diflow.jobs.lookup import get  # noqa: PLC0415

    status: JobStatus | None = get(name, cluster=cluster).status
    said = ""
    states: dict[str, str] = {}
    for snapshot in follow(cluster, name, seconds=limit):
        if snapshot.workflow is None:
            return None
        status = snapshot.status
        stamp = time.strftime("%H:%M:%S")
        for row in rows(snapshot.seen, now=utc_now()):
            text = (
                f"{row.state}{f' on {row.node}' if row.node != '-' else ''}{f': {row.message}' if row.message else ''}"
            )
            if states.get(row.name, "Waiting: its pod is not created yet") != text:
                say(f"{stamp} {row.name:<14} {text}")
            states[row.name] = text
        text = f"{status.phase}: {status.message}"
        if text != said:
            say(f"{stamp} {name:<14} {text}")
            said = text
        sys.stdout.flush()
        if status.ended:
            break
    return status


def wait(
    job: JobName,
    *,
    until: Annotated[
        str,
        typer.Option("--for", metavar="phase=PHASE|end|deleted", help="What to wait for (by default, the job's end)."),
    ] = "end",
    timeout: Timeout = None,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> int:
    """Wait until a job has ended, has reached a phase, or is deleted.

    Exits with 1 if the job failed, 124 after --timeout. `--for phase=Running` is also met by a job that was running and
    has ended since.
    """
    from diflow.jobs import wait  # noqa: PLC0415
    from diflow.record.status.status import ENDED  # noqa: PLC0415

    limit = seconds(timeout, option="--timeout")
    wanted = _wanted(until)
    cluster = connect(kubeconfig=kubeconfig, context=context, namespace=namespace)
    name = resolve(job, cluster)
    with detaching(name, cluster):
        if wanted == "deleted":
            wait.wait_deleted(name, cluster=cluster, timeout_seconds=limit)
            note(f"{name} is deleted")
            return 0
        status = wait.wait(name, cluster=cluster, timeout_seconds=limit, phase=wanted)
    note(f"{name} {status.phase}: {status.message}")
    if wanted and not wait.has_reached(status, wanted):
        note(f"{name} ended without being {wanted}")
        return 1
    return 1 if not wanted and status.phase not in ENDED else 0


def _wanted(text: str) -> str:
    """The phase to wait for; "" means the end, "deleted" the deletion."""
    from diflow.record.status.timeline import PHASES  # noqa: PLC0415

    kind, _, phase = text.partition("=")
    if text in ("end", "ended"):
        return ""
    if text in ("delete", "deleted"):
        return "deleted"
    for known in PHASES:
        if kind == "phase" and phase.lower() == known.lower():
            return known
    raise typer.BadParameter(f"--for is end, deleted, or phase= one of {', '.join(PHASES)}; not {text!r}")
