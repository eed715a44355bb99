"""The command that shows what jobs have seen of the nodes of the cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from diflow.cli.console import note, say
from diflow.cli.options import Context, Kubeconfig, Namespace, Output, OutputForm, connect

if TYPE_CHECKING:
    from diflow.jobs.nodes import Seen


def nodes(
    *,
    all_namespaces: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="What the jobs of all namespaces have seen.")
    ] = False,
    output: OutputForm = None,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """List what node checks and failures show about each node, the most suspicious node first.

    CHECKED is the number of jobs whose last node check had a result there, and SLOWEST its figure that was the furthest
    above the median of the other nodes. FAILURES are the attempts of replicas that failed there, by reason: what the
    exit code is known to mean, such as hardware, or else the exit code itself. LEFT OUT BY is the number of jobs that
    get no new places there now, with the reason of one. The command reads the Workflows that exist.
    """
    from diflow.jobs.nodes import list_nodes  # noqa: PLC0415

    cluster = connect(kubeconfig=kubeconfig, context=context, namespace=namespace)
    found = list_nodes(everywhere=all_namespaces, cluster=cluster)
    from diflow.cli.output import print_as  # noqa: PLC0415

    if print_as(output, lambda: [one.to_dict() for one in found], names=(one.node for one in found)):
        return
    if found:
        say(_table(found, wide=output is Output.WIDE))
    else:
        note("no results: no job has a node check, or a replica that failed")


def _table(found: list[Seen], *, wide: bool) -> str:
    from diflow.cli.output import printable  # noqa: PLC0415
    from diflow.common.tables import table  # noqa: PLC0415
    from diflow.common.words import shortened  # noqa: PLC0415
    from diflow.jobs.nodes import MOST_REASONS  # noqa: PLC0415

    rows = []
    for one in found:
        worst = one.worst
        slowest = "-" if worst is None else f"{worst.figure} {worst.value / worst.median:.2g}x"
        failures = [f"{count} × {reason}" for reason, count in one.failures.most_common(MOST_REASONS)]
        left_out = "-"
        if one.left_out:
            job, why = min(one.left_out.items())
            left_out = f"{len(one.left_out)} ({job}: {why if wide else shortened(why, 60)})"
        rows.append((printable(one.node), str(one.checked), slowest, ", ".join(failures) or "-", printable(left_out)))
    return table(("NODE", "CHECKED", "SLOWEST", "FAILURES", "LEFT OUT BY"), rows)
