"""The commands `simulate`, `queue` and `explain`, for the CLI and for `python -m diflow.labs.simulator`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from diflow.allocator.policies.base import load_policy
from diflow.allocator.policies.settings import PolicySettings
from diflow.common.errors import InvalidError
from diflow.labs.simulator import report
from diflow.labs.simulator.journal_commands import explain, queue, replay_journal
from diflow.labs.simulator.memory import Memory, poisoned
from diflow.labs.simulator.metrics import metrics
from diflow.labs.simulator.options import (
    Output,
    check_output,
    check_pools,
    check_times,
    local_batches_of,
    number,
    numbers_of,
    pools_of,
    settings_of,
)
from diflow.labs.simulator.replay import Scenario, replay
from diflow.labs.simulator.truth import Application, load, load_pools, read_workload
from diflow.record.namespace.applications import Application as Record

_ANY, _PART = number(0), number(0, 0.9)

app = typer.Typer(
    help="Try policies without a cluster: `simulate` (the default) replays, `queue` and `explain` read a journal.",
    no_args_is_help=True,
    add_completion=False,
)


@app.command()
def simulate(  # noqa: PLR0917 - typer's options
    workload: Annotated[
        Path | None,
        typer.Option(
            help="The workload, a CSV file with the columns name, time, application, num_replicas and batch_size."
        ),
    ] = None,
    profiles: Annotated[Path | None, typer.Option(help="The folder with the measured applications.")] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help="The policy, such as fit or goodput (default: goodput); repeatable, to compare policies side by side.",
            show_default=False,
        ),
    ] = None,
    nodes: Annotated[int, typer.Option(min=1, help="The number of nodes in the cluster.")] = 16,
    gpus: Annotated[int, typer.Option(min=1, help="The number of GPUs of each node.")] = 4,
    pool: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=NODESxGPUS",
            help="A pool of nodes with so many GPUs each, such as a100=2x8, instead of --nodes and --gpus; repeatable. "
            "--profiles then has a folder with the measured applications for each pool.",
        ),
    ] = None,
    pool_speed: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=SPEED", help="The relative speed that the policy assumes of a pool (default: 1); repeatable."
        ),
    ] = None,
    profiled: Annotated[
        bool, typer.Option("--profiled", help="Give each job its step times on one GPU of each pool at its start.")
    ] = False,
    most_local: Annotated[
        list[str] | None,
        typer.Option(
            metavar="POOL/APP=SAMPLES",
            help="The largest batch, in samples, of a replica of an application in a pool; repeatable.",
        ),
    ] = None,
    restart_of: Annotated[
        list[str] | None,
        typer.Option(metavar="APP=SECONDS", help="The --restart-seconds of an application; repeatable."),
    ] = None,
    restart_seconds: Annotated[
        float,
        typer.Option(
            parser=_ANY, metavar="SECONDS", help="Seconds for which a job stands still after a move or a resize."
        ),
    ] = 30.0,
    period_seconds: Annotated[
        float,
        typer.Option(parser=number(1), metavar="SECONDS", help="Seconds from one call of the policy to the next."),
    ] = 60.0,
    load_factor: Annotated[
        float,
        typer.Option(
            "--load",
            parser=number(0.01),
            metavar="FACTOR",
            help="The factor of the rate at which jobs arrive: 2 is twice as many an hour.",
        ),
    ] = 1.0,
    noise: Annotated[
        float,
        typer.Option(
            parser=_PART, metavar="PART", help="The largest relative error of the reported times, from 0 to 0.9."
        ),
    ] = 0.0,
    interference: Annotated[
        float,
        typer.Option(
            parser=_PART,
            metavar="PART",
            help="The part of its speed that a job on several nodes loses while another one shares a node of it, "
            "from 0 to 0.9.",
        ),
    ] = 0.0,
    report_progress: Annotated[
        bool, typer.Option("--progress/--no-progress", help="Let the jobs report their progress.")
    ] = True,
    progress_share: Annotated[
        float,
        typer.Option(
            parser=number(0, 1), metavar="PART", help="The part of the jobs that report their progress, from 0 to 1."
        ),
    ] = 1.0,
    assumed_restart_seconds: Annotated[
        float | None,
        typer.Option(
            parser=_ANY,
            metavar="SECONDS",
            help="Seconds for which the policy assumes that a job stands still (default: --restart-seconds).",
            show_default=False,
        ),
    ] = None,
    past: Annotated[
        Path | None,
        typer.Option(
            help="A workload that is replayed first. The jobs of --workload start from the memory that it leaves."
        ),
    ] = None,
    memory: Annotated[
        bool,
        typer.Option(
            "--memory/--no-memory", help="Let jobs start from what earlier jobs of their application have shown."
        ),
    ] = False,
    poison: Annotated[
        float,
        typer.Option(
            parser=number(0, 3),
            metavar="SIGMA",
            help="The sigma of the lognormal factors by which the memory of --past is multiplied, from 0 to 3.",
        ),
    ] = 0.0,
    growth: Annotated[
        float | None,
        typer.Option(
            parser=number(1),
            metavar="FACTOR",
            help="The policy setting largest_growth: a job may grow to so many times the most replicas that it has "
            "reported (default: 2).",
        ),
    ] = None,
    start: Annotated[
        int | None,
        typer.Option(
            min=1, help="The policy setting largest_start: the most replicas of a job without reports (default: 4)."
        ),
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="A policy setting, such as queue_ahead=2, with lists in JSON; repeatable.",
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, help="The seed of the random numbers: the same seed gives the same result.")
    ] = 0,
    rack_nodes: Annotated[int, typer.Option(min=0, help="The number of nodes in a rack; 0 for no topology.")] = 0,
    block_racks: Annotated[int, typer.Option(min=0, help="The number of racks in a block; 0 for no blocks.")] = 0,
    required: Annotated[
        str,
        typer.Option(
            help="The level of which each job requires one domain: rack or block (default: none).", show_default=False
        ),
    ] = "",
    out: Annotated[Path | None, typer.Option(help="The folder for tables (CSV, JSON) and pictures.")] = None,
    pictures: Annotated[bool, typer.Option(help="Draw pictures into --out, too.")] = True,
    output: Output = "text",
    journal: Annotated[
        Path | None,
        typer.Option(
            help="A journal of the allocator, instead of a workload: show where the policies decide differently."
        ),
    ] = None,
) -> None:
    """Replay a workload under one or several policies, or a journal of the real allocator.

    `diflow simulate queue` and `diflow simulate explain` show the queues and the decisions at the end of a journal.
    """
    check_output(output)
    names = list(dict.fromkeys(policy or ["goodput"]))
    if journal is not None:
        if workload is not None or profiles is not None or out is not None:
            raise InvalidError("--journal goes with --policy and -o: it has no --workload, --profiles and --out")
        replay_journal(journal, names, output)
        return
    if poison and past is None:
        raise InvalidError("--poison changes what the jobs of --past have left: give one")
    if workload is None or profiles is None:
        raise InvalidError("a simulation needs --workload CSV and --profiles DIR (or --journal FILE)")
    assumed = restart_seconds if assumed_restart_seconds is None else assumed_restart_seconds
    check_times(restart_seconds=restart_seconds, period_seconds=period_seconds, assumed_restart_seconds=assumed)
    if not math.isfinite(load_factor):
        raise InvalidError(f"--load must be a number, not {load_factor:g}")
    settings = settings_of(
        setting or [],
        restart_seconds=assumed,
        period_seconds=period_seconds,
        largest_growth=growth,
        largest_start=start,
    )
    # Report errors before the replay, which may take long.
    if out is not None:
        if out.exists() and not out.is_dir():
            raise InvalidError(f"--out {out} is a file: give a folder")
        if pictures and not report.can_draw():
            typer.echo(report.NO_PICTURES, err=True)
            pictures = False
    pools, speeds = pools_of(pool or []), numbers_of("--pool-speed", pool_speed)
    costs = numbers_of("--restart-of", restart_of)
    check_pools(pools, speeds, only_with_pools=profiled or bool(most_local), topology=bool(rack_nodes or required))
    arrivals = read_workload(workload)
    apps = load_pools(profiles, [one.name for one in pools], local_batches_of(most_local)) if pools else load(profiles)
    if strange := costs.keys() - apps.keys():
        raise InvalidError(f"--restart-of names the application {min(strange)!r}, of which there is no profile")
    scenario = Scenario(
        nodes=nodes,
        gpus=gpus,
        pools=pools,
        pool_speed=speeds,
        profiled=profiled,
        restart_by_application=costs,
        period_seconds=period_seconds,
        restart_seconds=restart_seconds,
        interference=interference,
        noise=noise,
        load=load_factor,
        report_progress=report_progress,
        progress_share=progress_share,
        seed=seed,
        rack_nodes=rack_nodes,
        block_racks=block_racks,
        required=required,
    )
    policies = [load_policy(name, settings) for name in names]
    left = _memory(past, poison, apps, scenario, settings, seed=seed) if past is not None else {}
    results = [
        replay(arrivals, apps, each, scenario, memory=Memory(dict(left)) if memory or past is not None else None)
        for each in policies
    ]
    rows = [metrics(result) for result in results]
    typer.echo(report.as_json(rows).rstrip() if output == "json" else report.as_text(rows))
    if out is not None:
        total, most = sum(scenario.node_gpus), max(scenario.node_gpus)
        written = (
            report.write(out, results, rows, gpus=most, nodes=len(scenario.node_gpus), total=total)
            if pictures
            else report.write_tables(out, results, rows)
        )
        for path in written:
            typer.echo(f"wrote {path}", err=True)


app.command()(queue)
app.command()(explain)


def _memory(
    past: Path,
    poison: float,
    apps: Mapping[str, Application],
    scenario: Scenario,
    settings: PolicySettings,
    *,
    seed: int,
) -> dict[str, Record]:
    """What the jobs of the workload `past` leave behind under goodput."""
    memory = Memory()
    replay(read_workload(past), apps, load_policy("goodput", settings), scenario, memory=memory)
    return poisoned(memory.records, poison, seed=seed) if poison else memory.records
