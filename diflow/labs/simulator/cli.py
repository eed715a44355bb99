"""The commands `simulate`, `queue` and `explain`, for the CLI and for `python -m diflow.labs.simulator`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from diflow.allocator.policies.base import load_policy
from diflow.allocator.policies.settings import PolicySettings
from diflow.common.errors import InvalidError
from diflow.labs.simulator import report
from diflow.labs.simulator.journal_commands import explain, queue, replay_journal
from diflow.labs.simulator.memory import Memory, poisoned
from diflow.labs.simulator.metrics import metrics
from diflow.labs.simulator.options import (
    ClusterOptions,
    Inputs,
    JobOptions,
    OutputOptions,
    PolicyOptions,
    check_output,
    check_pools,
    check_times,
    local_batches_of,
    numbers_of,
    pools_of,
    settings_of,
    with_option_groups,
)
from diflow.labs.simulator.replay import Pool, Scenario, replay
from diflow.labs.simulator.truth import Application, load, load_pools, read_workload
from diflow.record.namespace.applications import Application as Record

app = typer.Typer(
    help="Try policies without a cluster: `simulate` (the default) replays, `queue` and `explain` read a journal.",
    no_args_is_help=True,
    add_completion=False,
)


@app.command()
@with_option_groups
def simulate(
    inputs: Inputs, cluster: ClusterOptions, jobs: JobOptions, policies: PolicyOptions, outputs: OutputOptions
) -> None:
    """Replay a workload under one or several policies, or a journal of the real allocator.

    `diflow simulate queue` and `diflow simulate explain` show the queues and the decisions at the end of a journal.
    """
    output, out = outputs.output, outputs.out
    check_output(output)
    names = list(dict.fromkeys(inputs.policy or ["goodput"]))
    if outputs.journal is not None:
        if inputs.workload is not None or inputs.profiles is not None or out is not None:
            raise InvalidError("--journal goes with --policy and -o: it has no --workload, --profiles and --out")
        replay_journal(outputs.journal, names, output)
        return
    if policies.poison and policies.past is None:
        raise InvalidError("--poison changes what the jobs of --past have left: give one")
    if inputs.workload is None or inputs.profiles is None:
        raise InvalidError("a simulation needs --workload CSV and --profiles DIR (or --journal FILE)")
    settings = _settings(jobs, policies)
    # Report errors before the replay, which may take long.
    pictures = outputs.pictures and _can_draw(out)
    pools, speeds = _pools(cluster, jobs)
    costs = numbers_of("--restart-of", jobs.restart_of)
    arrivals = read_workload(inputs.workload)
    local_batches = local_batches_of(jobs.most_local)
    apps = load_pools(inputs.profiles, [one.name for one in pools], local_batches) if pools else load(inputs.profiles)
    if strange := costs.keys() - apps.keys():
        raise InvalidError(f"--restart-of names the application {min(strange)!r}, of which there is no profile")
    scenario = _scenario(cluster, jobs, pools=pools, pool_speed=speeds, restart_by_application=costs)
    replayed = [load_policy(name, settings) for name in names]
    left = _memory(policies, jobs.seed, apps, scenario, settings)
    results = [
        replay(arrivals, apps, one, scenario, memory=None if left is None else Memory(dict(left))) for one in replayed
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


def _settings(jobs: JobOptions, policies: PolicyOptions) -> PolicySettings:
    restart, assumed = jobs.restart_seconds, policies.assumed_restart_seconds
    assumed = restart if assumed is None else assumed
    check_times(restart_seconds=restart, period_seconds=jobs.period_seconds, assumed_restart_seconds=assumed)
    if not math.isfinite(jobs.load_factor):
        raise InvalidError(f"--load must be a number, not {jobs.load_factor:g}")
    return settings_of(
        policies.setting or [],
        restart_seconds=assumed,
        period_seconds=jobs.period_seconds,
        largest_growth=policies.growth,
        largest_start=policies.start,
    )


def _can_draw(out: Path | None) -> bool:
    """Whether pictures can be drawn into this folder; says why not. Raises InvalidError if it is a file."""
    if out is None:
        return False
    if out.exists() and not out.is_dir():
        raise InvalidError(f"--out {out} is a file: give a folder")
    if not report.can_draw():
        typer.echo(report.NO_PICTURES, err=True)
    return report.can_draw()


def _pools(cluster: ClusterOptions, jobs: JobOptions) -> tuple[tuple[Pool, ...], dict[str, float]]:
    """The pools of nodes, and the speeds that the policy assumes of them."""
    pools, speeds = pools_of(cluster.pool or []), numbers_of("--pool-speed", cluster.pool_speed)
    check_pools(
        pools,
        speeds,
        only_with_pools=jobs.profiled or bool(jobs.most_local),
        topology=bool(cluster.rack_nodes or cluster.required),
    )
    return pools, speeds


def _scenario(cluster: ClusterOptions, jobs: JobOptions, **read: Any) -> Scenario:
    """`read`: the fields of the scenario that have been read from texts."""
    return Scenario(
        nodes=cluster.nodes,
        gpus=cluster.gpus,
        profiled=jobs.profiled,
        period_seconds=jobs.period_seconds,
        restart_seconds=jobs.restart_seconds,
        interference=jobs.interference,
        noise=jobs.noise,
        load=jobs.load_factor,
        report_progress=jobs.report_progress,
        progress_share=jobs.progress_share,
        seed=jobs.seed,
        rack_nodes=cluster.rack_nodes,
        block_racks=cluster.block_racks,
        required=cluster.required,
        **read,
    )


def _memory(
    policies: PolicyOptions, seed: int, apps: Mapping[str, Application], scenario: Scenario, settings: PolicySettings
) -> dict[str, Record] | None:
    """What the jobs of --past leave behind under goodput; None: jobs do not start from memory."""
    if policies.past is None:
        return {} if policies.memory else None
    memory, poison = Memory(), policies.poison
    replay(read_workload(policies.past), apps, load_policy("goodput", settings), scenario, memory=memory)
    return poisoned(memory.records, poison, seed=seed) if poison else memory.records
