"""The commands `simulate`, `queue` and `explain`, for the CLI and for `python -m diflow.allocator.simulator`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from diflow.allocator.policies.base import load_policy
from diflow.allocator.policies.settings import PolicySettings
from diflow.allocator.simulator import report
from diflow.allocator.simulator.journal_commands import explain, queue, replay_journal
from diflow.allocator.simulator.memory import Memory, poisoned
from diflow.allocator.simulator.metrics import metrics
from diflow.allocator.simulator.options import (
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
from diflow.allocator.simulator.replay import Scenario, replay
from diflow.allocator.simulator.truth import Application, load, load_pools, read_workload
from diflow.errors import InvalidError
from diflow.state.applications import Application as Record

_ANY, _PART = number(0), number(0, 0.9)

app = typer.Typer(
    help="Try policies without a cluster: `simulate` (the default) replays, `queue` and `explain` read a journal.",
    no_args_is_help=True,
    add_completion=False,
)


@app.command()
def simulate(  # noqa: PLR0917 - typer's options
    workload: Annotated[
        Path | None, typer.Option(help="CSV: name, time, application, num_replicas, batch_size.")
    ] = None,
    profiles: Annotated[Path | None, typer.Option(help="Folder of measured applications.")] = None,
    policy: Annotated[list[str] | None, typer.Option(help="Policy; again for a comparison side by side.")] = None,
    nodes: Annotated[int, typer.Option(min=1, help="Nodes of the cluster.")] = 16,
    gpus: Annotated[int, typer.Option(min=1, help="GPUs a node.")] = 4,
    pool: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=NODESxGPUS",
            help="A pool of nodes, such as a100=2x8, instead of --nodes and --gpus; repeatable. --profiles then has a "
            "folder of applications for each.",
        ),
    ] = None,
    pool_speed: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=SPEED", help="The assumed relative speed of a pool, 1 by default; repeatable."),
    ] = None,
    profiled: Annotated[
        bool, typer.Option("--profiled", help="Each job starts with its times on one GPU of each pool.")
    ] = False,
    most_local: Annotated[
        list[str] | None,
        typer.Option(
            metavar="POOL/APP=SAMPLES", help="The largest batch of a replica of this application there; repeatable."
        ),
    ] = None,
    restart_of: Annotated[
        list[str] | None,
        typer.Option(metavar="APP=SECONDS", help="--restart-seconds of this application; repeatable."),
    ] = None,
    restart_seconds: Annotated[
        float,
        typer.Option(parser=_ANY, metavar="SECONDS", help="How long a job stands still after it was moved or resized."),
    ] = 30.0,
    period_seconds: Annotated[
        float, typer.Option(parser=number(1), metavar="SECONDS", help="Time from one call of the policy to the next.")
    ] = 60.0,
    load_factor: Annotated[
        float, typer.Option("--load", parser=number(0.01), metavar="FACTOR", help="2: twice the jobs an hour.")
    ] = 1.0,
    noise: Annotated[
        float, typer.Option(parser=_PART, metavar="PART", help="Reported times are off by up to this part.")
    ] = 0.0,
    interference: Annotated[
        float, typer.Option(parser=_PART, metavar="PART", help="Slow-down of jobs that share a network.")
    ] = 0.0,
    report_progress: Annotated[
        bool, typer.Option("--progress/--no-progress", help="Whether jobs report their progress.")
    ] = True,
    progress_share: Annotated[
        float, typer.Option(parser=number(0, 1), metavar="PART", help="Part of the jobs that report their progress.")
    ] = 1.0,
    assumed_restart_seconds: Annotated[
        float | None,
        typer.Option(
            parser=_ANY,
            metavar="SECONDS",
            help="The restart cost that the policy assumes. By default that of --restart-seconds.",
        ),
    ] = None,
    past: Annotated[
        Path | None,
        typer.Option(
            help="Workload that is replayed first: its jobs leave the memory from which those of --workload start."
        ),
    ] = None,
    memory: Annotated[
        bool, typer.Option("--memory/--no-memory", help="Jobs inherit from earlier jobs of their application.")
    ] = False,
    poison: Annotated[
        float,
        typer.Option(parser=number(0, 3), metavar="SIGMA", help="Multiply all of that memory by lognormal factors."),
    ] = 0.0,
    growth: Annotated[
        float | None,
        typer.Option(
            parser=number(1),
            metavar="FACTOR",
            help="The policy setting largest_growth: growth beyond what was observed.",
        ),
    ] = None,
    start: Annotated[
        int | None, typer.Option(min=1, help="The policy setting largest_start: replicas of a job without reports.")
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="NAME=VALUE: any policy setting, such as queue_ahead=2 (lists in JSON); repeatable."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the noise: the same seed, the same numbers.")] = 0,
    rack_nodes: Annotated[int, typer.Option(min=0, help="Nodes of a rack. 0: no topology.")] = 0,
    block_racks: Annotated[int, typer.Option(min=0, help="Racks of a block. 0: no blocks.")] = 0,
    required: Annotated[str, typer.Option(help="Each job requires one domain of this level: rack or block.")] = "",
    out: Annotated[Path | None, typer.Option(help="Folder for tables (CSV, JSON) and pictures.")] = None,
    pictures: Annotated[bool, typer.Option(help="Draw pictures too.")] = True,
    output: Output = "text",
    journal: Annotated[
        Path | None, typer.Option(help="Instead of a workload: where would the policies decide otherwise?")
    ] = None,
) -> None:
    """Replay a workload under one or several policies, or a journal of the real allocator.

    `queue` and `explain` in the place of the options show the queues and the decisions at a journal's end.
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
