"""Commands that show jobs: get, list, describe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

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
    seconds,
)
from diflow.record import untrusted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from diflow.jobs.lookup import Job
    from diflow.kube.api import Cluster


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
    for job in found:
        _tell_of_others(job, cluster)
    _print(found, output, single=len(names) == 1)


def list_(
    *,
    all_namespaces: Annotated[bool, typer.Option("--all-namespaces", "-A", help="Jobs of all namespaces.")] = False,
    selector: Annotated[
        str, typer.Option("--selector", "-l", help="Only jobs with these labels, such as diflow/priority=high.")
    ] = "",
    ended: Annotated[
        bool, typer.Option("--ended", help="The jobs that have ended, also those whose Workflows were deleted.")
    ] = False,
    since: Annotated[
        str | None,
        typer.Option("--since", help="With --ended: only of the last 90s, 10m, 2h, 7d, ...", show_default=False),
    ] = None,
    output: OutputForm = None,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """List jobs, the newest first.

    PHASE shows "Suspended" after the phase of a job that its user has suspended, with diflow or argo; and "Held",
    "Stopping" or "Deleting" of one that cannot be read, or that is being stopped or deleted.

    If there are more than 200, RESTARTS and RESCHEDULES of jobs that have ended are not read and shown as -; -o wide,
    json and yaml read everything.

    With --ended: the jobs that have ended, the last one first. A job is listed after its Workflow was deleted, by
    `ttlSecondsAfterFinished` or by a user, if the namespace has the ConfigMap diflow-ended (manifests/jobs) and an
    allocator runs, which records there how the last thousand jobs of the namespace ended. -o json and yaml have no
    tasks.
    """
    from diflow.jobs import lookup  # noqa: PLC0415

    if since is not None and not ended:
        raise typer.BadParameter("--since selects ended jobs: use it with --ended")
    if ended and selector:
        raise typer.BadParameter("--selector cannot be used with --ended: a deleted Workflow has no labels")
    past = seconds(since, option="--since")
    cluster = connect(kubeconfig=kubeconfig, context=context, namespace=namespace)
    if ended:
        _print_ended(cluster, past, output, everywhere=all_namespaces)
        return
    brief = output in (None, Output.NAME)
    found = lookup.list_jobs(everywhere=all_namespaces, labels=selector, brief=brief, cluster=cluster)
    if not found and output in (None, Output.WIDE):
        note(f"there are no jobs {_where(cluster, everywhere=all_namespaces)}")
        return
    _print(found, output, single=False, namespaces=all_namespaces)


def _print_ended(cluster: Cluster, past_seconds: float | None, output: Output | None, *, everywhere: bool) -> None:
    from diflow.cli.output import print_as, utc_now  # noqa: PLC0415
    from diflow.cli.views.jobs_table import ended_table  # noqa: PLC0415
    from diflow.jobs.ended import list_ended  # noqa: PLC0415

    now = utc_now()
    listed = list_ended(cluster=cluster, everywhere=everywhere)
    if listed.trouble:
        note(f"only jobs whose Workflows still exist: {listed.trouble}")
    jobs = [
        job
        for job in listed.jobs
        if past_seconds is None or now.timestamp() - untrusted.seconds(job.ended) <= past_seconds
    ]
    if print_as(output, lambda: _list([job.to_dict() for job in jobs]), names=(job.name for job in jobs)):
        return
    if jobs:
        say(ended_table(jobs, now=now, wide=output is Output.WIDE, namespaces=everywhere))
    else:
        note(f"there are no jobs that have ended {_where(cluster, everywhere=everywhere)}")


def _where(cluster: Cluster, *, everywhere: bool) -> str:
    return "in this cluster" if everywhere else f"in the namespace {cluster.namespace!r} (-A shows all)"


def _print(found: Sequence[Job], output: Output | None, *, single: bool, namespaces: bool = False) -> None:
    from diflow.cli.output import manifest, print_as, utc_now  # noqa: PLC0415
    from diflow.cli.views.jobs_table import jobs_table  # noqa: PLC0415

    def data() -> Any:
        items = [manifest(job) for job in found]
        return items[0] if single else _list(items)

    if not print_as(output, data, names=(job.name for job in found)):
        say(jobs_table(found, now=utc_now(), wide=output is Output.WIDE, namespaces=namespaces))


def _list(items: list[dict[str, Any]]) -> dict[str, Any]:
    """As `kubectl get -o json` gives several objects."""
    return {"apiVersion": "v1", "kind": "List", "items": items}


def _tell_of_others(job: Job, cluster: Cluster) -> None:
    from diflow.cli.output import printable  # noqa: PLC0415
    from diflow.jobs import lookup  # noqa: PLC0415

    other = lookup.beside(job, cluster=cluster)
    if other is not None:
        why = printable(other.status.message)
        note(f"this is the Workflow {job.name}; there is a DIJob {job.name}, too ({other.status.phase}): {why}")


def describe(
    job: JobName, *, namespace: Namespace = None, context: Context = None, kubeconfig: Kubeconfig = None
) -> None:
    """Describe one job: its phases, each with the time at which it last began, its replicas, and events.

    A text that is the same as the job's message is not repeated, and neither are equal events.
    """
    from diflow.cli.output import utc_now  # noqa: PLC0415
    from diflow.cli.views.description import description  # noqa: PLC0415
    from diflow.jobs import events, lookup, parts  # noqa: PLC0415

    cluster = connect(kubeconfig=kubeconfig, context=context, namespace=namespace)
    found = lookup.get(resolve(job, cluster), cluster=cluster)
    _tell_of_others(found, cluster)
    happened = events.job_events(found.name, cluster=cluster)
    allocators = events.allocator_events(found.name, cluster=cluster)
    earlier = parts.earlier(cluster, found.workflow)
    say(description(found, happened, allocators, now=utc_now(), earlier=earlier))
