"""Commands for the allocator itself: run it, plan once, pause it, show and replay its plans."""

from __future__ import annotations

import itertools
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diflow.cli import options
from diflow.cli.console import note, say, warn
from diflow.cli.options import Context, Kubeconfig, Namespace, Output, OutputForm, Timeout, connect, needs, seconds
from diflow.cli.submitting import NewName
from diflow.common.words import counted

if TYPE_CHECKING:
    from diflow.allocator.inspect.observer import Seen
    from diflow.allocator.settings import AllocatorSettings
    from diflow.dijob.model import DIJob

# A Lease that is not renewed expires after 15 s; a running allocator reads its Lease every 3 s.
_ONCE_SECONDS = 120.0

Home = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        "-n",
        help="Where the allocator's Lease and queues are (default: diflow-system).",
        show_default=False,
    ),
]
Watched = Annotated[
    str | None,
    typer.Option("--watch-namespace", help="Allocate only jobs of this namespace.", show_default=False),
]
PolicyName = Annotated[
    str | None,
    typer.Option("--policy", help="The policy, such as fit or fair+goodput (default: fit).", show_default=False),
]


class LogFormat(StrEnum):
    """The format of log lines."""

    TEXT = "text"
    JSON = "json"


LogOption = Annotated[
    LogFormat | None,
    typer.Option("--log-format", help="How log lines look (default: text on a terminal).", show_default=False),
]


def run(
    *,
    policy: PolicyName = None,
    journal: Annotated[
        Path | None,
        typer.Option("--journal", help="Append each snapshot with its plan to this file.", show_default=False),
    ] = None,
    metrics_port: Annotated[int, options.metrics_port("DIFLOW_ALLOCATOR_METRICS_PORT")] = 0,
    log_format: LogOption = None,
    debug: Annotated[bool, typer.Option("--debug", help="Log each rejected write, too.")] = False,
    watch_namespace: Watched = None,
    namespace: Home = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> int:
    """Run the allocator: wait for leadership, then allocate until SIGTERM or Ctrl-C.

    Everything else is set by the environment variables DIFLOW_ALLOCATOR_... and DIFLOW_POLICY_.... Exits with 5 when
    another process has become the leader: restart it then.
    """
    needs("allocator")
    from diflow.allocator.run.process import serve  # noqa: PLC0415 (these take half a second to import)
    from diflow.daemon.logs import configure_log  # noqa: PLC0415

    settings = _settings(
        policy=policy, journal=str(journal) if journal else None, namespace=namespace, watched_namespace=watch_namespace
    )
    cluster = connect(kubeconfig=kubeconfig, context=context, namespace=settings.namespace)
    configure_log(log_format.value if log_format else None, level="debug" if debug else "info")
    return serve(cluster, settings, metrics_port=metrics_port)


def once(
    *,
    policy: PolicyName = None,
    output: Annotated[
        Path | None, typer.Option("--output", help="Write the plan into this file, too.", show_default=False)
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Write nothing: show what would be decided now.")] = False,
    timeout: Timeout = None,
    watch_namespace: Watched = None,
    namespace: Home = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Plan the whole cluster once, and print the plan.

    A running allocator does it (with its own policy), so that there are never two writers. If none runs, this process
    takes its Lease for one cycle. A change of more than one step, such as replicas that must end before others can
    start, is continued by the allocator, or by the next run.
    """
    needs("allocator")
    limit = seconds(timeout, option="--timeout")
    cluster = connect(kubeconfig=kubeconfig, context=context, namespace=namespace)
    if dry_run:
        from diflow.allocator.inspect import observer  # noqa: PLC0415
        from diflow.allocator.reasons import plan_text  # noqa: PLC0415

        shown, plan = observer.decide(observer.look(cluster, namespace=namespace), policy or "")
        text = plan_text.plan_text(shown.snapshot, plan, excluded=shown.excluded)
    else:
        from diflow.allocator.run import control_channel  # noqa: PLC0415
        from diflow.allocator.run.once import decide_once  # noqa: PLC0415

        settings = _settings(
            policy=policy,
            namespace=namespace or control_channel.home(cluster, elsewhere=False)[0],
            watched_namespace=watch_namespace,
        )
        text = decide_once(cluster, settings, seconds=limit or _ONCE_SECONDS, note=note)
    if output is not None:
        _write(output, text)
    say(text.rstrip())


def _write(path: Path, text: str) -> None:
    from diflow.allocator.run.control_channel import clipped  # noqa: PLC0415
    from diflow.common.errors import InvalidError  # noqa: PLC0415

    try:
        path.write_text(clipped(text), encoding="utf-8")
    except OSError as error:
        raise InvalidError(f"{path} cannot be written: {error.strerror}", path="--output") from None


def pause(
    *,
    reason: Annotated[str, typer.Option("--reason", help="Why; all users see it.")] = "",
    namespace: Home = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Pause the allocator: it makes no new decisions until `diflow resume`. Earlier decisions are carried out.

    Returns when the allocator has read it, after a few seconds.
    """
    import time  # noqa: PLC0415

    from diflow.allocator.run import control_channel  # noqa: PLC0415

    cluster = connect(kubeconfig=kubeconfig, context=context, namespace=None)
    place = namespace or control_channel.home(cluster)[0]
    text, before = control_channel.pause(cluster, namespace=place, reason=reason, now=time.time())
    note(f"the allocator is paused by {text}; diflow resume resumes it")
    if before:
        note(f"(it was paused already, by {before}: that is replaced, and one diflow resume ends both)")
    seen = control_channel.read_status(cluster, namespace=place, now=time.time())
    if not seen.unknown and not seen.is_running:
        note("(none runs now: one that starts will be paused)")
    elif not control_channel.await_renewal(cluster, namespace=place):
        note("(it has not read that yet: it will when it next renews its Lease, or another takes over)")


def plan(
    *,
    simulate: Annotated[
        str | None,
        typer.Option(
            "--simulate",
            metavar="FILE|module:name",
            help="Plan with this job added: a DIJob in YAML (- is standard input), or a Python variable.",
            show_default=False,
        ),
    ] = None,
    name: NewName = None,
    policy: Annotated[
        str | None,
        typer.Option("--policy", help="Use this policy (default: that of the allocator).", show_default=False),
    ] = None,
    output: OutputForm = None,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Show what the allocator would decide now, or if a job were submitted. Nothing is written.

    The policy of the cluster's allocator (else fit) runs locally, on the objects that you may read. Allocations are
    taken from the jobs' Workflows: only the allocator can verify them. Without the right to list nodes, pods and
    Workflows of the whole cluster: the last decisions about the jobs of the namespace, and of a new job whether its
    queue and priority are for it and which jobs of the namespace wait before it; what is not shown is said.
    """
    needs("allocator")
    from diflow.allocator.inspect.lists import begin  # noqa: PLC0415

    if output in (Output.NAME, Output.WIDE):
        raise typer.BadParameter("-o is json or yaml here")
    job = None
    if simulate is not None:
        from diflow.cli.loading import load  # noqa: PLC0415

        job = load(simulate, name=name, namespace=namespace)
    cluster = connect(kubeconfig=kubeconfig, context=context, namespace=job.namespace if job else namespace)
    lists = begin(cluster)  # read while these are imported
    from diflow.allocator.inspect.observer import look  # noqa: PLC0415

    seen = look(cluster, lists=lists)
    _warn_of(seen)
    if seen.limited is not None:
        _plan_of_own(seen, job, cluster.namespace, output)
        return
    if job is None:
        _plan_of_all(seen, policy or "", output)
        return
    from diflow.allocator.inspect.what_if import simulate_job  # noqa: PLC0415

    found = simulate_job(seen, job, namespace=cluster.namespace, policy=policy or "")
    if output is not None:
        _print_json(found.to_dict(), output)
    else:
        say(found.text())


def _plan_of_all(seen: Seen, policy: str, output: Output | None) -> None:
    """What `plan` tells a user who sees the whole cluster."""
    from diflow.allocator.inspect import observer  # noqa: PLC0415
    from diflow.allocator.reasons import plan_text  # noqa: PLC0415

    shown, decided = observer.decide(seen, policy)
    if output is not None:
        data = plan_text.as_data(shown.snapshot, decided, excluded=shown.excluded)
        _print_json({**data, "held": observer.held(seen, shown)}, output)
        return
    say(plan_text.plan_text(shown.snapshot, decided, excluded=shown.excluded).rstrip())
    for title, why in observer.held(seen, shown).items():
        say(f"{title}: held: {why}")


def _plan_of_own(seen: Seen, job: DIJob | None, namespace: str, output: Output | None) -> None:
    """What `plan` tells a user who sees one namespace."""
    from diflow.allocator.inspect import own  # noqa: PLC0415

    simulated = own.simulated(seen, job, namespace=namespace) if job is not None else None
    if output is not None:
        _print_json(simulated or {"not_shown": seen.not_shown, "jobs": own.last_decisions(seen)}, output)
        return
    note(seen.not_shown)
    say(own.simulated_text(simulated) if simulated is not None else own.text(seen))


def replay(
    journal: Annotated[Path, typer.Argument(metavar="FILE", help="A journal of the allocator (JSON Lines).")],
    *,
    policy: Annotated[
        str | None,
        typer.Option("--policy", help="The policy to run (default: the one that decided).", show_default=False),
    ] = None,
    output: OutputForm = None,
) -> None:
    """Run a policy on a journal of the allocator, and show where it decides differently. Needs no cluster.

    The policy has the settings of this environment: set the same DIFLOW_POLICY_... as for the allocator that wrote it.
    """
    needs("allocator")
    from diflow.allocator.run.journal import compare  # noqa: PLC0415

    if output in (Output.NAME, Output.WIDE):
        raise typer.BadParameter("-o is json or yaml here")
    found = compare(journal, [policy] if policy else [])
    rows = [
        {"time": _time(one.now_seconds), "job": one.job, "then": one.then, "now": one.now, "policy": one.policy}
        for one in sorted(itertools.chain(*found.differences.values()), key=lambda one: one.now_seconds)
    ]
    if output is not None:
        _print_json(rows, output)
    elif rows:
        from diflow.cli.output import moment  # noqa: PLC0415
        from diflow.common.tables import table  # noqa: PLC0415

        say(table(("TIME", "JOB", "THEN", "NOW"), [(moment(r["time"]), r["job"], r["then"], r["now"]) for r in rows]))
    differ = counted(len(rows), "decision differs", plural="decisions differ")
    note(f"{differ} in {counted(found.cycles, 'cycle')} under {', '.join(found.differences)}")


def _time(seconds: float) -> str:
    from datetime import UTC, datetime  # noqa: PLC0415

    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def simulate(context: typer.Context) -> None:
    """Simulate policies without a cluster: run a workload under one or several of them, side by side.

    `diflow simulate --help` lists the options, `diflow simulate queue` and `diflow simulate explain` read a journal.
    """
    needs("allocator")
    from diflow.labs.simulator.cli import app  # noqa: PLC0415 (imports numpy)

    given = list(context.args)
    if given and given[0] in ("simulate", "queue", "explain"):
        app(args=given, prog_name="diflow simulate", standalone_mode=False)
    else:  # without arguments; usage texts say "diflow simulate"
        app(args=["simulate", *given], prog_name="diflow", standalone_mode=False)


simulate.settings = {  # type: ignore[attr-defined]
    "context_settings": {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
}


def _print_json(data: Any, output: Output) -> None:
    from diflow.cli.output import print_data  # noqa: PLC0415

    print_data(data, form=output.value)


def _warn_of(seen: Seen) -> None:
    if seen.state.queue_trouble:
        warn(seen.state.queue_trouble)


def _settings(**given: Any) -> AllocatorSettings:
    from diflow.allocator.settings import allocator_settings  # noqa: PLC0415

    return allocator_settings(**{name: value for name, value in given.items() if value is not None})
