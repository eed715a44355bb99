"""The commands `simulate`, `queue` and `explain`, for the CLI and for `python -m diflow.allocator.simulator`."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from diflow.allocator.engine import journal as journals
from diflow.allocator.messages import reason_texts as explaining
from diflow.allocator.model.snapshot import UNLIMITED, Snapshot
from diflow.allocator.policies.base import load_policy
from diflow.allocator.policies.fair.policy import deserved_table
from diflow.allocator.policies.fair.shares import queue_demand
from diflow.allocator.policies.settings import PolicySettings, policy_settings
from diflow.allocator.simulator import report
from diflow.allocator.simulator.memory import Memory, poisoned
from diflow.allocator.simulator.metrics import metrics
from diflow.allocator.simulator.replay import Pool, Scenario, replay
from diflow.allocator.simulator.truth import Application, load, load_pools, read_workload
from diflow.errors import InvalidError, NotFoundError
from diflow.figures import counted
from diflow.state import untrusted
from diflow.state.applications import Application as Record
from diflow.tables import table

app = typer.Typer(
    help="Try policies without a cluster: `simulate` (the default) replays, `queue` and `explain` read a journal.",
    no_args_is_help=True,
    add_completion=False,
)

Journal = Annotated[Path, typer.Option("--journal", help="Journal of the allocator (JSON Lines).")]
Output = Annotated[str, typer.Option("--output", "-o", help="text or json")]

_POOL = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
"""The values of labels."""
MOST_SECONDS = 86400.0
"""Longest period and restart."""


def _number(low: float, high: float = math.inf) -> Callable[[str | float], float]:
    """A parser of an option: a number from `low` to `high`."""

    def parse(text: str | float) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high:  # false for NaN
            span = f"of at least {low:g}" if math.isinf(high) else f"from {low:g} to {high:g}"
            raise typer.BadParameter(f"must be a number {span}, not {str(text)[:40]!r}")
        return value

    return parse


_ANY, _PART = _number(0), _number(0, 0.9)


@app.command()
def simulate(  # noqa: PLR0912, PLR0917 - typer's options
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
        float, typer.Option(parser=_number(1), metavar="SECONDS", help="Time from one call of the policy to the next.")
    ] = 60.0,
    load_factor: Annotated[
        float, typer.Option("--load", parser=_number(0.01), metavar="FACTOR", help="2: twice the jobs an hour.")
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
        float, typer.Option(parser=_number(0, 1), metavar="PART", help="Part of the jobs that report their progress.")
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
        typer.Option(parser=_number(0, 3), metavar="SIGMA", help="Multiply all of that memory by lognormal factors."),
    ] = 0.0,
    growth: Annotated[
        float | None,
        typer.Option(
            parser=_number(1),
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
    _check_output(output)
    names = list(dict.fromkeys(policy or ["goodput"]))
    if journal is not None:
        if workload is not None or profiles is not None or out is not None:
            raise InvalidError("--journal goes with --policy and -o: it has no --workload, --profiles and --out")
        _replay_journal(journal, names, output)
        return
    if poison and past is None:
        raise InvalidError("--poison changes what the jobs of --past have left: give one")
    if workload is None or profiles is None:
        raise InvalidError("a simulation needs --workload CSV and --profiles DIR (or --journal FILE)")
    assumed = restart_seconds if assumed_restart_seconds is None else assumed_restart_seconds
    for option, value in (("restart", restart_seconds), ("period", period_seconds), ("assumed-restart", assumed)):
        if not value <= MOST_SECONDS:
            raise InvalidError(f"--{option}-seconds must be at most {MOST_SECONDS:g}, not {value:g}")
    if not math.isfinite(load_factor):
        raise InvalidError(f"--load must be a number, not {load_factor:g}")
    settings = _settings(
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
    pools, speeds, costs = (
        _pools(pool or []),
        _numbers("--pool-speed", pool_speed),
        _numbers("--restart-of", restart_of),
    )
    _check_pools(pools, speeds, only_with_pools=profiled or bool(most_local), topology=bool(rack_nodes or required))
    arrivals = read_workload(workload)
    apps = load_pools(profiles, [one.name for one in pools], _locals(most_local)) if pools else load(profiles)
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
        for path in (
            report.write(
                out,
                results,
                rows,
                gpus=max(scenario.node_gpus),
                nodes=len(scenario.node_gpus),
                total=sum(scenario.node_gpus),
            )
            if pictures
            else report.write_tables(out, results, rows)
        ):
            typer.echo(f"wrote {path}", err=True)


@app.command()
def queue(journal: Journal, output: Output = "text") -> None:
    """What each queue deserves, holds and is guaranteed, and why, at the journal's last snapshot."""
    _check_output(output)
    rows = queue_rows(_last(journal).snapshot)
    if output == "json":
        typer.echo(json.dumps(rows, indent=2))
        return
    head = ["QUEUE", "RESOURCE", "WEIGHT", "DESERVED", "ALLOCATED", "GUARANTEED", "CAP", "WHY"]
    typer.echo(table(head, [[str(row[name.lower()]) for name in head] for row in rows]))


@app.command()
def explain(
    job: Annotated[str, typer.Argument(help="Name of the job; all of them if it is left out.")] = "",
    *,
    journal: Journal,
    policy: Annotated[str, typer.Option(help="Ask this policy anew instead of the one that decided.")] = "",
) -> None:
    """Why the allocator decided about a job as it did, in the policy's own terms."""
    entry = _last(journal)
    snapshot = entry.snapshot
    plan = load_policy(policy or entry.policy).optimize(snapshot)
    if job and job not in snapshot.job_names:
        raise NotFoundError(f"there is no job {job!r} at the journal's last snapshot")
    for index, name in enumerate(snapshot.job_names):
        if job in ("", name):
            typer.echo(explaining.text(snapshot, plan, index))


def queue_rows(snapshot: Snapshot) -> list[dict[str, object]]:
    """A row for each queue and resource: deserved, allocated and guaranteed amounts, and why."""
    shares, used = deserved_table(snapshot)
    asked = queue_demand(snapshot, snapshot.role_desired)
    rows: list[dict[str, object]] = []
    for q, name in enumerate(snapshot.queue_names):
        for r, resource in enumerate(snapshot.resources):
            cap = int(snapshot.queue_cap[q, r])
            deserved, held = float(shares[q, r]), int(used[q, r])
            rows.append(
                {
                    "queue": name,
                    "resource": resource,
                    "weight": float(snapshot.queue_weight[q]),
                    "deserved": round(deserved, 2),
                    "allocated": held,
                    "guaranteed": int(snapshot.queue_guarantee[q, r]),
                    "cap": "-" if cap >= UNLIMITED else cap,
                    "why": _why(snapshot, q, r, deserved=deserved, held=held, asked=int(asked[q, r])),
                }
            )
    return rows


def _why(snapshot: Snapshot, queue: int, resource: int, *, deserved: float, held: int, asked: int) -> str:
    reasons = (
        (held > deserved + 1e-9, "above its share: others left it idle capacity, which may be reclaimed"),
        (asked == 0, "asks for nothing"),
        (deserved == 0 and snapshot.queue_weight[queue] == 0, "weight 0: it gets what others leave"),
        (deserved >= snapshot.queue_cap[queue, resource], f"at its cap; it asks for {asked}"),
        (deserved >= asked - 1e-9, "all that it asks for"),
        (0 < deserved <= snapshot.queue_guarantee[queue, resource], f"its guarantee; it asks for {asked}"),
    )
    weighted = f"its weight's part of what the others do not need; it asks for {asked}"
    return next((words for holds, words in reasons if holds), weighted)


def _last(path: Path) -> journals.Entry:
    last = None
    for last in journals.read(path):  # noqa: B007
        pass
    if last is None:
        raise InvalidError(f"the journal {path} holds no whole entry")
    return last


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


def _pools(texts: list[str]) -> tuple[Pool, ...]:
    """The pools that the options name, each as `NAME=NODESxGPUS`."""
    out: dict[str, Pool] = {}
    for text in texts:
        name, equals, size = text.partition("=")
        nodes, _, gpus = size.partition("x")
        counts = [untrusted.whole(part, digits=6) for part in (nodes, gpus)]
        if not equals or not _POOL.fullmatch(name) or not all(counts):
            raise InvalidError(f"--pool takes NAME=NODESxGPUS, such as a100=2x8, not {text[:60]!r}")
        if name in out:
            raise InvalidError(f"--pool names the pool {name!r} twice")
        out[name] = Pool(name, *(count or 0 for count in counts))
    return tuple(out.values())


def _check_pools(
    pools: tuple[Pool, ...], speeds: Mapping[str, float], *, only_with_pools: bool, topology: bool
) -> None:
    if not pools and (only_with_pools or speeds):
        raise InvalidError("--profiled, --most-local and --pool-speed are about pools: give them with --pool")
    if strange := speeds.keys() - {pool.name for pool in pools}:
        raise InvalidError(f"--pool-speed names the pool {min(strange)!r}, which no --pool has")
    if pools and topology:
        raise InvalidError("--rack-nodes and --required do not go with --pool: its nodes have no topology here")


def _numbers(option: str, texts: list[str] | None) -> dict[str, float]:
    """The numbers above 0 that the options give, each as `NAME=NUMBER`, by the name."""
    out: dict[str, float] = {}
    for text in texts or []:
        name, _, number = text.rpartition("=")
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        if not name or not 0 < value <= MOST_SECONDS:
            raise InvalidError(f"{option} takes NAME=NUMBER, above 0 and at most {MOST_SECONDS:g}, not {text[:60]!r}")
        out[name] = value
    return out


def _locals(texts: list[str] | None) -> dict[tuple[str, str], int]:
    """The largest batches of a replica that the options give, each as `POOL/APP=SAMPLES`."""
    out: dict[tuple[str, str], int] = {}
    for text in texts or []:
        name, _, number = text.rpartition("=")
        pool, _, application = name.partition("/")
        value = untrusted.whole(number, digits=9)
        if not pool or not application or not value:
            raise InvalidError(f"--most-local takes POOL/APP=SAMPLES, not {text[:60]!r}")
        out[pool, application] = value
    return out


def _settings(pairs: list[str], **given: object) -> PolicySettings:
    """The settings of the policies: from the environment, from the options, and last from `NAME=VALUE`."""
    values = {name: value for name, value in given.items() if value is not None}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or name not in PolicySettings.model_fields:
            known = ", ".join(sorted(PolicySettings.model_fields))
            raise InvalidError(f"--set takes NAME=VALUE with a setting of the policies ({known}), not {pair[:60]!r}")
        try:
            values[name] = json.loads(text)
        except ValueError:
            values[name] = text
    return policy_settings(**values)


def _check_output(output: str) -> None:
    if output not in ("text", "json"):
        raise InvalidError(f"--output is text or json, not {output!r}")


def _replay_journal(path: Path, names: list[str], output: str) -> None:
    found = journals.compare(path, names).differences
    for name, differences in found.items():
        if output == "text":
            for one in differences:
                typer.echo(f"{one.now_seconds:12.0f} s  {one.job}: then {one.then}, now {one.now}")
        typer.echo(f"{counted(len(differences), 'decision differs', plural='decisions differ')} under {name}", err=True)
    if output == "json":
        typer.echo(json.dumps([asdict(one) for differences in found.values() for one in differences], indent=2))
