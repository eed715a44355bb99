"""The command that shows what the allocator knows of applications."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from diflow.cli.console import note, say
from diflow.cli.options import Context, Kubeconfig, Namespace, OutputForm, connect

if TYPE_CHECKING:
    from diflow.jobs.applications import Listed


def applications(
    *,
    forget: Annotated[
        list[str] | None,
        typer.Option(
            "--forget", metavar="APPLICATION", help="Delete the record of this application; again for another one."
        ),
    ] = None,
    all_namespaces: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="Applications of all namespaces.")
    ] = False,
    output: OutputForm = None,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """List what jobs have shown of their applications, the one that was used last first.

    A job names its application in the annotation diflow/application. The allocator records how its preemptible jobs
    scale, how much work they have and how long their restarts take, in the ConfigMap diflow-applications of the
    namespace (manifests/jobs), and the policy goodput plans the next jobs of the application with it. MISS is by
    how much the record was wrong about later jobs. With --forget the next job starts as if it were the first.
    """
    from diflow.jobs import applications as jobs  # noqa: PLC0415

    if forget and all_namespaces:
        raise typer.BadParameter("--forget deletes records of one namespace: choose it with --namespace")
    cluster = connect(kubeconfig=kubeconfig, context=context, namespace=namespace)
    if forget:
        jobs.forget(forget, cluster=cluster)
        for name in dict.fromkeys(forget):
            say(f"{name} is forgotten")
        return
    found, is_kept = jobs.list_applications(everywhere=all_namespaces, cluster=cluster)
    from diflow.cli.output import print_as  # noqa: PLC0415

    names = dict.fromkeys(one.application.name for one in found)
    if print_as(output, lambda: [one.to_dict() for one in found], names=names):
        return
    if found:
        say(_table(found, namespaces=all_namespaces))
    elif is_kept or all_namespaces:
        note("nothing is recorded of any application yet")
    else:
        note(
            f"the namespace {cluster.namespace!r} has no ConfigMap diflow-applications, so nothing is recorded: "
            "kubectl apply -k manifests/jobs"
        )


def _table(found: list[Listed], *, namespaces: bool) -> str:
    from diflow.cli.output import moment, printable  # noqa: PLC0415
    from diflow.common.durations import timestamp  # noqa: PLC0415
    from diflow.common.tables import table  # noqa: PLC0415

    head = ["APPLICATION", "POOL", "JOBS", "REPLICAS", "RESTART", "MISS", "USED"]
    rows = []
    for one in found:
        record = one.application
        restart = "-" if record.restart_seconds is None else f"{record.restart_seconds:.0f}s"
        miss = "-" if record.misses is None else f"{record.misses:.0%}"
        most = max((shape[1] for shape in record.shapes), default=0)
        cells = [record.name, printable(record.pool) or "-", str(record.jobs), f"1-{most}" if most > 1 else str(most)]
        used = moment(timestamp(record.used_seconds) if record.used_seconds else "")
        rows.append([*([one.namespace] if namespaces else []), *cells, restart, miss, used])
    return table([*(["NAMESPACE"] if namespaces else []), *head], rows)
