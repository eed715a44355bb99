"""The commands `simulate`, `queue` and `explain`: for the CLI to mount, or `python -m diflow.allocator.simulator`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from diflow.allocator import explain as explaining
from diflow.allocator import journal as journals
from diflow.allocator.policies.fair import deserved_table
from diflow.allocator.policy import load_policy
from diflow.allocator.settings import policy_settings
from diflow.allocator.simulator import report
from diflow.allocator.simulator.metrics import metrics
from diflow.allocator.simulator.replay import World, replay
from diflow.allocator.simulator.truth import load, read_workload
from diflow.allocator.snapshot import UNLIMITED, Snapshot
from diflow.errors import InvalidError, NotFoundError

app = typer.Typer(help="Try policies without a cluster.", no_args_is_help=True, add_completion=False)

Journal = Annotated[Path, typer.Option("--journal", help="Journal of the allocator (JSON Lines).")]


@app.command()
def simulate(  # noqa: PLR0917 - typer's options
    workload: Annotated[
        Path | None, typer.Option(help="CSV: name, time, application, num_replicas, batch_size.")
    ] = None,
    profiles: Annotated[Path | None, typer.Option(help="Folder of measured applications.")] = None,
    policy: Annotated[list[str] | None, typer.Option(help="Policy; again for a comparison side by side.")] = None,
    nodes: Annotated[int, typer.Option(min=1)] = 16,
    gpus: Annotated[int, typer.Option(min=1, help="GPUs a node.")] = 4,
    restart_seconds: Annotated[float, typer.Option(min=0)] = 30.0,
    period_seconds: Annotated[float, typer.Option(min=1)] = 60.0,
    load_factor: Annotated[float, typer.Option("--load", min=0.01, help="2: twice the jobs an hour.")] = 1.0,
    noise: Annotated[float, typer.Option(min=0, max=0.9, help="Reported times are off by up to this part.")] = 0.0,
    interference: Annotated[float, typer.Option(min=0, max=0.9, help="Slow-down of jobs that share a network.")] = 0.0,
    seed: Annotated[int, typer.Option()] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder for tables (CSV, JSON) and pictures.")] = None,
    pictures: Annotated[bool, typer.Option(help="Draw pictures too.")] = True,
    output: Annotated[str, typer.Option("--output", "-o", help="text or json")] = "text",
    journal: Annotated[Path | None, typer.Option(help="Replay a journal of the allocator instead.")] = None,
) -> None:
    """Replay a workload under one or several policies, or a journal of the real allocator."""
    names = policy or ["goodput"]
    if output not in ("text", "json"):
        raise InvalidError(f"--output is text or json, not {output!r}")
    if journal is not None:
        _replay_journal(journal, names[0])
        return
    if workload is None or profiles is None:
        raise InvalidError("a simulation needs --workload CSV and --profiles DIR (or --journal FILE)")
    arrivals, apps = read_workload(workload), load(profiles)
    world = World(
        nodes=nodes,
        gpus=gpus,
        period_seconds=period_seconds,
        restart_seconds=restart_seconds,
        interference=interference,
        noise=noise,
        load=load_factor,
        seed=seed,
    )
    settings = policy_settings(restart_seconds=restart_seconds, period_seconds=period_seconds)
    results = [replay(arrivals, apps, load_policy(name, settings), world) for name in names]
    rows = [metrics(result) for result in results]
    typer.echo(report.as_json(rows).rstrip() if output == "json" else report.as_text(rows))
    if out is not None:
        for path in (
            report.write(out, results, rows, gpus=gpus, nodes=nodes)
            if pictures
            else report.write_tables(out, results, rows)
        ):
            typer.echo(f"wrote {path}", err=True)


@app.command()
def queue(
    journal: Journal, output: Annotated[str, typer.Option("--output", "-o", help="text or json")] = "text"
) -> None:
    """What each queue deserves, holds and is guaranteed, and why, at the journal's last snapshot."""
    rows = queue_rows(_last(journal).snapshot)
    if output == "json":
        typer.echo(json.dumps(rows, indent=2))
        return
    head = ["QUEUE", "RESOURCE", "WEIGHT", "DESERVED", "ALLOCATED", "GUARANTEED", "CAP", "WHY"]
    cells = [head] + [[str(row[name.lower()]) for name in head] for row in rows]
    width = [max(len(line[i]) for line in cells) for i in range(len(head))]
    for line in cells:
        typer.echo("  ".join(cell.ljust(w) for cell, w in zip(line, width, strict=True)).rstrip())


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
    """A row for each queue and resource: what it deserves, holds, is guaranteed, and why."""
    shares, used = deserved_table(snapshot)
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
                    "why": _why(snapshot, q, r, deserved, held),
                }
            )
    return rows


def _why(snapshot: Snapshot, queue: int, resource: int, deserved: float, held: int) -> str:
    if held > deserved + 1e-9:
        return "above its share: others left it room, and it may be reclaimed"
    if deserved == 0:
        return "asks for nothing" if snapshot.queue_weight[queue] > 0 else "weight 0: it gets what others leave"
    if deserved >= snapshot.queue_cap[queue, resource]:
        return "at its cap"
    if 0 < deserved <= snapshot.queue_guarantee[queue, resource]:
        return "its guarantee"
    return "all that it asks for, or its weight's part of what the others do not need"


def _last(path: Path) -> journals.Entry:
    last = None
    for last in journals.read(path):  # noqa: B007
        pass
    if last is None:
        raise NotFoundError(f"the journal {path} is empty")
    return last


def _replay_journal(path: Path, name: str) -> None:
    count = 0
    for found in journals.differences(journals.read(path), load_policy(name)):
        count += 1
        typer.echo(f"{found.now_seconds:12.0f} s  {found.job}: then {found.then}, now {found.now}")
    typer.echo(f"{count} decisions differ under {name}", err=True)
