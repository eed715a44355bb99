"""The command that prints the scheduled re-optimisation."""

from __future__ import annotations

from typing import Annotated

import typer


def cron(
    *,
    schedule: Annotated[str, typer.Option(help="When it runs: a cron expression of five fields.")] = "0 * * * *",
    timezone: Annotated[str, typer.Option(help="The time zone of the schedule, such as Europe/Berlin.")] = "UTC",
    image: Annotated[
        str | None, typer.Option(help="The image that has diflow (default: this version's).", show_default=False)
    ] = None,
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", help="The namespace that the allocator is in.")
    ] = "diflow-system",
) -> None:
    """Print the scheduled re-optimisation as a CronWorkflow, for `kubectl apply -f -`. Needs no cluster.

    Each run plans the whole cluster once, and its plan is the output of its step in the Argo UI.
    """
    import sys  # noqa: PLC0415

    from diflow.workflows.reoptimise import DEFAULT_IMAGE, cron_yaml  # noqa: PLC0415

    text = cron_yaml(schedule=schedule, timezone=timezone, image=image or DEFAULT_IMAGE, namespace=namespace)
    sys.stdout.write(text)
