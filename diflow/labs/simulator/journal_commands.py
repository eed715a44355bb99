"""The commands of a journal of the allocator: its queues, its decisions, and where policies would decide otherwise."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from diflow.allocator.model.snapshot import UNLIMITED, Snapshot
from diflow.allocator.policies.base import load_policy
from diflow.allocator.policies.fair.policy import deserved_table
from diflow.allocator.policies.fair.shares import queue_demand
from diflow.allocator.reasons import reason_texts as explaining
from diflow.allocator.run import journal as journals
from diflow.common.errors import InvalidError, NotFoundError
from diflow.common.tables import table
from diflow.common.words import counted
from diflow.labs.simulator.options import Output, check_output

Journal = Annotated[Path, typer.Option("--journal", help="The journal of the allocator, a file of JSON lines.")]


def queue(journal: Journal, output: Output = "text") -> None:
    """Show what each queue deserves, holds and is guaranteed, and why, at the last snapshot of a journal."""
    check_output(output)
    rows = queue_rows(_last(journal).snapshot)
    if output == "json":
        typer.echo(json.dumps(rows, indent=2))
        return
    head = ["QUEUE", "RESOURCE", "WEIGHT", "DESERVED", "ALLOCATED", "GUARANTEED", "CAP", "WHY"]
    typer.echo(table(head, [[str(row[name.lower()]) for name in head] for row in rows]))


def explain(
    job: Annotated[
        str, typer.Argument(help="The job, such as default/cartpole (default: all jobs).", show_default=False)
    ] = "",
    *,
    journal: Journal,
    policy: Annotated[
        str, typer.Option(help="Use this policy (default: the one that decided).", show_default=False)
    ] = "",
) -> None:
    """Explain the decision about a job at the last snapshot of a journal, in the terms of the policy."""
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


def replay_journal(path: Path, names: list[str], output: str) -> None:
    found = journals.compare(path, names).differences
    for name, differences in found.items():
        if output == "text":
            for one in differences:
                typer.echo(f"{one.now_seconds:12.0f} s  {one.job}: then {one.then}, now {one.now}")
        typer.echo(f"{counted(len(differences), 'decision differs', plural='decisions differ')} under {name}", err=True)
    if output == "json":
        typer.echo(json.dumps([asdict(one) for differences in found.values() for one in differences], indent=2))
