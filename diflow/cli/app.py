"""The `diflow` command with its sub-commands, which import what they need when they run, so that --help is fast."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Annotated, Any

import typer

import diflow.labs.baselines  # noqa: F401 (adds its policies)
from diflow.cli import (
    acting,
    allocating,
    applications,
    controlling,
    converting,
    cron,
    doctor,
    following,
    listing,
    logs,
    nodes,
    queueing,
    scaling,
    server,
    submitting,
)
from diflow.cli.console import say
from diflow.version import __version__

app = typer.Typer(
    name="diflow",
    help="Run DIJobs (elastic, multi-role training jobs) as Argo Workflows.",
    epilog=(
        "Exit codes: 0 done, 1 the job failed, 2 wrong usage or input, 3 not found, 4 conflict, 5 the cluster is "
        "unavailable or refuses, 124 --timeout has passed, 130 Ctrl-C. Ctrl-C detaches; it never stops a job."
    ),
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        say(f"diflow {__version__}")
        raise typer.Exit


@app.callback()
def options(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print diflow's version, and end.")
    ] = False,
) -> None:
    """Options of `diflow` itself."""


COMMANDS: tuple[Callable[..., Any], ...] = (
    submitting.submit,
    submitting.render,
    submitting.lint,
    converting.convert,
    listing.get,
    listing.list_,
    listing.describe,
    logs.logs,
    following.watch,
    following.wait,
    scaling.scale,
    acting.suspend,
    acting.resume,
    acting.stop,
    acting.retry,
    acting.delete,
    queueing.queue,
    queueing.top,
    queueing.explain,
    applications.applications,
    nodes.nodes,
    allocating.pause,
    allocating.plan,
    allocating.replay,
    allocating.simulate,
    cron.cron,
    doctor.doctor,
    doctor.version,
    doctor.completion,
)
GROUPS: dict[str, tuple[str, tuple[Callable[..., Any], ...]]] = {
    "allocator": (
        "Run the allocator, which decides where jobs run and with how many replicas.",
        (allocating.run, allocating.once),
    ),
    "controller": ("Run the controller, which runs DIJob objects of the cluster.", (controlling.run,)),
    "server": ("Run the server: the REST API of replicas and profilings, and the status page.", (server.run,)),
}

for command in COMMANDS:
    app.command(name=command.__name__.rstrip("_"), **getattr(command, "settings", {}))(command)
for group, (text, commands) in GROUPS.items():
    under = typer.Typer(name=group, help=text, no_args_is_help=True, rich_markup_mode=None)
    for command in commands:
        under.command(name=command.__name__.rstrip("_"))(command)
    app.add_typer(under)


@cache
def root() -> Callable[..., Any]:
    """`diflow` with all its commands. A process builds it once: that takes longer than most commands."""
    return typer.main.get_command(app)
