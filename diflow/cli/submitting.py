"""Commands that begin with a job of the user's: submit, render, lint."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diflow.cli.console import note, say, warn
from diflow.cli.options import Context, Kubeconfig, Namespace, Timeout, connect, detaching, seconds

if TYPE_CHECKING:
    from diflow.job import DIJob

Source = Annotated[
    str,
    typer.Argument(
        metavar="FILE|module:name",
        help="A DIJob in YAML (- is standard input), or a Python variable that holds one.",
    ),
]
NewName = Annotated[str | None, typer.Option("--name", help="Another name for the job.", show_default=False)]


class DryRun(StrEnum):
    """How far a dry run goes."""

    CLIENT = "client"
    SERVER = "server"


def submit(
    source: Source,
    *,
    name: NewName = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Then show the job live until it ends.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Then wait until the job has ended.")] = False,
    logs: Annotated[bool, typer.Option("--logs", help="Then print all its logs until it ends.")] = False,
    dry_run: Annotated[
        DryRun | None,
        typer.Option(
            "--dry-run",
            help="Send nothing and print the Workflow; `server` lets the cluster check it.",
            show_default=False,
        ),
    ] = None,
    timeout: Timeout = None,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> int:
    """Submit a job.

    Nothing is made unless all of it is in order. Prints the job's name.
    """
    from diflow.cli.loading import load  # noqa: PLC0415

    limit = seconds(timeout, option="--timeout")
    if sum((watch, wait, logs)) > 1:
        raise typer.BadParameter("choose one of --watch, --wait and --logs")
    job = load(source, name=name, namespace=namespace)
    if dry_run is DryRun.CLIENT:
        _print_workflow(job)
        return 0
    from diflow.kube import jobs  # noqa: PLC0415

    cluster = connect(kubeconfig=kubeconfig, context=context, namespace=job.namespace)
    if dry_run is DryRun.SERVER:
        _print_workflow(jobs.submit(job, cluster=cluster, dry_run=True))
        note(f"the cluster would take job {job.name}; nothing was made")
        return 0
    placed = jobs.submit(job, cluster=cluster)
    say(placed.name)
    if not (watch or wait or logs):
        where = f"-n {placed.namespace}"
        note(f"submitted; next: diflow watch {placed.name} {where}   diflow logs -f {placed.name} {where}")
        return 0
    with detaching(placed.name, cluster):
        if watch:
            from diflow.cli.following import show  # noqa: PLC0415

            return show(cluster, placed.name, limit=limit)
        if logs:
            from diflow.cli.logs import Wanted, stream  # noqa: PLC0415

            return stream(cluster, placed.name, Wanted(), limit=limit)
        status = jobs.wait(placed.name, cluster=cluster, timeout_seconds=limit)
        note(f"{status.phase}: {status.message}")
        return 0


def render(source: Source, *, name: NewName = None, namespace: Namespace = None) -> None:
    """Print the Argo Workflow of a job as YAML, which `argo submit` takes. Needs no cluster."""
    from diflow.cli.loading import load  # noqa: PLC0415

    _print_workflow(load(source, name=name, namespace=namespace))


def lint(
    sources: Annotated[
        list[str], typer.Argument(metavar="FILE|module:name...", help="DIJobs in YAML, or Python variables.")
    ],
    *,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings count as errors.")] = False,
) -> int:
    """Check jobs without a cluster: fields and their types, names, and what Argo would stumble over.

    Ends with 2 if a job is wrong.
    """
    from diflow.cli.console import complain  # noqa: PLC0415
    from diflow.cli.loading import load  # noqa: PLC0415
    from diflow.errors import InvalidError  # noqa: PLC0415
    from diflow.workflows import render as render_workflow  # noqa: PLC0415

    bad = 0
    for source in sources:
        try:
            job = load(source, warned=(found := []))
            render_workflow(job)
        except InvalidError as error:
            text = str(error)
            complain(text if text.startswith(source) else f"{source}: {text}")
            bad += 1
            continue
        found += advice(job)
        for text in found:
            warn(f"{source}: {text}")
        if found and strict:
            bad += 1
        else:
            say(f"{source}: ok ({job.name})")
    return 2 if bad else 0


def advice(job: DIJob) -> list[str]:
    """What is not wrong in a job, but seldom meant."""
    found: list[str] = []
    for i, task in enumerate(job.tasks):
        path = f"spec.tasks[{i}]"
        containers: list[dict[str, Any]] = task.template["spec"]["containers"]
        for j, container in enumerate(containers):
            where = f"{path}.template.spec.containers[{j}]"
            if not container.get("command"):
                found.append(
                    f"{where} has no command: Argo must then ask the registry for the image's entrypoint, which fails "
                    "for images that only the nodes have"
                )
            image = str(container.get("image") or "")
            if not image:
                found.append(f"{where} has no image")
            elif image.rsplit("/", 1)[-1].partition(":")[2] in ("", "latest") and "@" not in image:
                found.append(f"{where}: the image {image} has no fixed tag, so replicas may run different code")
        if (task.min_replicas is not None or task.max_replicas is not None) and not job.preemptible:
            found.append(f"{path} has minReplicas or maxReplicas, which only a preemptible job makes full use of")
    return found


def _print_workflow(job: DIJob) -> None:
    import sys  # noqa: PLC0415

    from diflow.workflows import to_yaml  # noqa: PLC0415

    sys.stdout.write(to_yaml(job))
