"""Commands that show jobs: get, list, describe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from diflow.cli.console import note, say
from diflow.cli.options import (
    Context,
    JobName,
    Kubeconfig,
    Namespace,
    Output,
    OutputForm,
    complete_job,
    connect,
    resolve,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from diflow.jobs.lookup import Job


def get(
    names: Annotated[
        list[str],
        typer.Argument(metavar="JOB...", help="Jobs by name; @latest is the newest one.", autocompletion=complete_job),
    ],
    *,
    output: OutputForm = None,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Show jobs by name. With -o json or yaml: as DIJob objects with their status and all phases so far."""
    from diflow.jobs import lookup  # noqa: PLC0415

    cluster = connect(kubeconfig=kubeconfig, context=context, namespace=namespace)
    found = [lookup.get(resolve(name, cluster), cluster=cluster) for name in names]
    _print(found, output, single=len(names) == 1)


def list_(
    *,
    all_namespaces: Annotated[bool, typer.Option("--all-namespaces", "-A", help="Jobs of all namespaces.")] = False,
    selector: Annotated[
        str, typer.Option("--selector", "-l", help="Only jobs with these labels, such as diflow/priority=high.")
    ] = "",
    output: OutputForm = None,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """List jobs, the newest first.

    If there are more than 200, RESTARTS and RESCHEDULES of jobs that have ended are not read and shown as -; -o wide,
    json and yaml read everything.
    """
    from diflow.jobs import lookup  # noqa: PLC0415

    cluster = connect(kubeconfig=kubeconfig, context=context, namespace=namespace)
    brief = output in (None, Output.NAME)
    found = lookup.list_jobs(everywhere=all_namespaces, labels=selector, brief=brief, cluster=cluster)
    if not found and output in (None, Output.WIDE):
        where = "in this cluster" if all_namespaces else f"in the namespace {cluster.namespace!r} (-A shows all)"
        note(f"there are no jobs {where}")
        return
    _print(found, output, single=False, namespaces=all_namespaces)


def _print(found: Sequence[Job], output: Output | None, *, single: bool, namespaces: bool = False) -> None:
    from diflow.cli.jobs_table import jobs_table  # noqa: PLC0415
    from diflow.cli.output import manifest, print_data, utc_now  # noqa: PLC0415

    if output is Output.NAME:
        for job in found:
            say(job.name)
    elif output in (Output.JSON, Output.YAML):
        items = [manifest(job) for job in found]
        data = items[0] if single else {"apiVersion": "v1", "kind": "List", "items": items}
        print_data(data, form=output.value)
    else:
        say(jobs_table(found, now=utc_now(), wide=output is Output.WIDE, namespaces=namespaces))


def describe(
    job: JobName, *, namespace: Namespace = None, context: Context = None, kubeconfig: Kubeconfig = None
) -> None:
    """Describe one job: its phases over time, each replica, and events."""
    from diflow.cli.description import description  # noqa: PLC0415
    from diflow.cli.output import utc_now  # noqa: PLC0415
    from diflow.jobs import events, lookup  # noqa: PLC0415

    cluster = connect(kubeconfig=kubeconfig, context=context, namespace=namespace)
    found = lookup.get(resolve(job, cluster), cluster=cluster)
    happened = events.job_events(found.name, cluster=cluster)
    allocators = events.allocator_events(found.name, cluster=cluster)
    say(description(found, happened, allocators, now=utc_now()))
