"""Commands that show how the cluster is shared: queue, top, explain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from diflow.cli.console import note, say, warn
from diflow.cli.options import Context, JobName, Kubeconfig, Namespace, Output, OutputForm, connect, needs, resolve

if TYPE_CHECKING:
    from diflow.allocator.inspect.observer import Seen
    from diflow.allocator.inspect.rows import MissingQueueRow, PlanRow, QueueRow


def queue(
    *,
    output: OutputForm = None,
    namespace: Annotated[
        str | None,
        typer.Option("--namespace", "-n", help="Only waiting jobs of this namespace.", show_default=False),
    ] = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Show the queues, and the waiting jobs in scheduling order, each with its reason.

    Deserved is a queue's part of the cluster by weights, guarantees and caps; pending is what its jobs could use in
    addition to their allocation. WAITING counts the jobs of the second table, RUNNING those that hold places. A job
    that runs without some of its replicas, because a node check, for example, has left out their node, or that runs and
    is held, has a line of its own below the queues. Without the right to list nodes, pods and Workflows of the whole
    cluster: the jobs of the namespace, and what they hold of their queues; what is not shown is said.
    """
    needs("allocator")
    from diflow.allocator.inspect.lists import begin  # noqa: PLC0415

    cluster = connect(kubeconfig=kubeconfig, context=context, namespace=namespace)
    lists = begin(cluster)  # read while these are imported
    from diflow.allocator.inspect.observer import look  # noqa: PLC0415
    from diflow.allocator.inspect.rows import job_rows, missing_queue_rows, queue_rows, without_effect  # noqa: PLC0415
    from diflow.cli.output import print_data, printable  # noqa: PLC0415
    from diflow.kube.kinds import NAMESPACE  # noqa: PLC0415

    seen = look(cluster, lists=lists)
    rows = job_rows(seen)
    waits = (row for row in rows if row.is_queued)
    waiting = [(place, row) for place, row in enumerate(waits, 1) if namespace in (None, row.namespace)]
    if output is Output.NAME:
        for _, row in waiting:
            say(row.key)
        return
    incomplete = [row for row in rows if row.incomplete_text() and namespace in (None, row.namespace)]
    queues, missing = queue_rows(seen, rows), missing_queue_rows(seen, rows)
    if output in (Output.JSON, Output.YAML):
        print_data(_queue_data(seen, queues, missing, waiting, incomplete), form=output.value)
        return
    tell_of_allocator(seen)
    if seen.limited is not None:
        note(seen.not_shown)
    say(_queue_table(queues) if seen.limited is None else _own_table(queues))
    for absent in missing:
        say(absent.text())
    if said := without_effect(seen, rows):
        say(printable(said))
    for row in incomplete:
        say(printable(row.incomplete_text()))
    say()
    if not waiting:
        say(f"no job of namespace {namespace} waits" if namespace else "no job waits")
        if namespace and cluster.lacks(NAMESPACE, namespace):
            warn(f"there is no namespace {namespace}")
        return
    say(_waiting_table(waiting, wide=output is Output.WIDE, now=seen.now))


def _queue_data(
    seen: Seen,
    queues: list[QueueRow],
    missing: list[MissingQueueRow],
    waiting: list[tuple[int, PlanRow]],
    incomplete: list[PlanRow],
) -> dict[str, Any]:
    from dataclasses import asdict  # noqa: PLC0415

    return {
        "allocator": seen.allocator.to_dict(),
        **({"not_shown": seen.not_shown} if seen.limited is not None else {}),
        "queues": [asdict(row) if seen.limited is None else _own(row) for row in queues],
        "missing_queues": [asdict(row) for row in missing],
        "waiting": [{"position": place, **row.to_dict()} for place, row in waiting],
        "incomplete": [row.to_dict() for row in incomplete],
    }


def _own(row: QueueRow) -> dict[str, Any]:
    """What is known of a queue to a user who sees the jobs of one namespace."""
    return {"name": row.name, "allocated": row.allocated, "running": row.running, "waiting": row.waiting}


def _own_table(queues: list[QueueRow]) -> str:
    from diflow.cli.views.resources import amounts, shown  # noqa: PLC0415
    from diflow.common.tables import table  # noqa: PLC0415

    resources = shown(sorted({name for row in queues for name in row.allocated}))
    lines = [[row.name, str(row.running), str(row.waiting), amounts(row.allocated, resources)] for row in queues]
    return table(["QUEUE", "RUNNING", "WAITING", "ALLOCATED"], lines)


def _queue_table(queues: list[QueueRow]) -> str:
    from diflow.cli.views.resources import amounts, shown  # noqa: PLC0415
    from diflow.common.tables import table  # noqa: PLC0415

    every: dict[str, float] = {}
    for row in queues:
        for given in (row.deserved, row.allocated, row.pending, row.guarantee, row.cap):
            for name, value in given.items():
                every[name] = every.get(name, 0.0) + value
    resources = shown(list(every))
    head = ["QUEUE", "WEIGHT", "RUNNING", "WAITING", "DESERVED", "ALLOCATED", "PENDING"]
    limited = any(row.guarantee or row.cap for row in queues)
    nested = any(row.parent for row in queues)
    if limited:
        head += ["GUARANTEE", "CAP"]
    if nested:
        head.insert(1, "PARENT")
    lines = []
    for row in queues:
        line = [row.name, f"{row.weight:g}", str(row.running), str(row.waiting)]
        line += [amounts(given, resources) for given in (row.deserved, row.allocated, row.pending)]
        if limited:
            line += [amounts(row.guarantee, resources), amounts(row.cap, resources, zeros=True)]
        if nested:
            line.insert(1, row.parent or "-")
        lines.append(line)
    return table(head, lines)


def _waiting_table(waiting: list[tuple[int, PlanRow]], *, wide: bool, now: float) -> str:
    from diflow.common.durations import span  # noqa: PLC0415
    from diflow.common.tables import table  # noqa: PLC0415

    head = ["#", "JOB", "QUEUE", "PRIORITY", "REPLICAS", "WAITS", "REASON"]
    lines = []
    for place, row in waiting:
        line = [str(place), row.key, row.queue, row.priority, row.range_text, span(now - row.submitted), row.message]
        lines.append(line)
    if wide:
        head.insert(6, "PREEMPTIBLE")
        for line, (_, row) in zip(lines, waiting, strict=True):
            line.insert(6, "yes" if row.is_preemptible else "no")
    return table(head, lines)


def top(
    *,
    once: Annotated[bool, typer.Option("--once", help="Print the present state, and exit.")] = False,
    output: OutputForm = None,
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="Only jobs of this namespace.", show_default=False)
    ] = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Show live the usage of each node by jobs, and each job's replicas.

    WANT is the most replicas that a job may have, GRANTED those with a node by its Workflow (only the allocator can
    verify that), RUN those that are ready. Without a terminal it prints once. Without the right to list nodes, pods and
    Workflows of the whole cluster, it prints the jobs of the namespace once, and says what is not shown.
    """
    needs("allocator")
    import sys  # noqa: PLC0415

    if output in (Output.NAME, Output.WIDE):
        raise typer.BadParameter("-o is json or yaml here")
    from diflow.allocator.inspect.lists import begin  # noqa: PLC0415

    cluster = connect(kubeconfig=kubeconfig, context=context, namespace=namespace)
    lists = begin(cluster)  # read while this is imported
    from diflow.allocator.inspect.observer import look  # noqa: PLC0415

    seen = look(cluster, lists=lists)
    if output is not None:
        from diflow.cli.output import print_data  # noqa: PLC0415
        from diflow.cli.views.topview import data  # noqa: PLC0415

        print_data(data(seen, namespace=namespace), form=output.value)
        return
    from diflow.cli.views.topview import print_once, show_live  # noqa: PLC0415

    if once or seen.limited is not None or not sys.stdout.isatty():
        print_once(seen, namespace=namespace)
    else:
        show_live(cluster, seen, namespace=namespace)


def explain(
    job: JobName,
    *,
    policy: Annotated[
        str | None,
        typer.Option("--policy", help="Use this policy (default: that of the allocator).", show_default=False),
    ] = None,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Explain why a job waits, or its number of replicas: the last decision, and what would be decided now.

    The policy of the cluster's allocator (else fit) runs locally, on the objects that you may read. Without the right
    to list nodes, pods and Workflows of the whole cluster: the last decision, and what is not shown is said.
    """
    needs("allocator")
    from diflow.allocator.inspect.lists import begin  # noqa: PLC0415

    cluster = connect(kubeconfig=kubeconfig, context=context, namespace=namespace)
    name = resolve(job, cluster)
    lists = begin(cluster)  # read while this is imported
    from diflow.allocator.inspect.explain import explanation  # noqa: PLC0415

    for line in explanation(cluster, name, policy=policy or "", lists=lists):
        say(line)


def tell_of_allocator(seen: Seen) -> None:
    """Say on stderr if no allocator runs, or if that is unknown."""
    if seen.state.queue_trouble:
        warn(seen.state.queue_trouble)
    who = seen.allocator
    if who.unknown:
        note(who.text())
    elif who.paused or not who.is_running:
        warn(who.text())
