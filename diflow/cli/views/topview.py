"""The view of `diflow top`: the cluster in one line, nodes with their jobs, jobs with their replicas."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from diflow.allocator.inspect import observer
from diflow.allocator.inspect.rows import NodeRow, PlanRow, job_rows, node_rows, queue_rows, totals
from diflow.allocator.run.control_channel import read_status
from diflow.allocator.watch.cluster_state import Caches
from diflow.cli.console import harmless, rich_table, turn_colour
from diflow.cli.views.resources import short, shown
from diflow.common.errors import DiflowError
from diflow.common.words import counted, quantity
from diflow.record.stage import Stage
from diflow.record.status.row import placed_and_waiting

if TYPE_CHECKING:
    from rich.table import Table

    from diflow.allocator.inspect.observer import Seen
    from diflow.kube.api import Cluster

_FRAME_SECONDS = 1.0
_LEASE_SECONDS = 5.0
# The least width for bars, queues, nodes and reasons.
_WIDE = 120
_BAR = 10
_STATES = {"running": "green", "starting": "yellow", "waiting": "yellow", "held": "red", "stopping": "red",
           "deleting": "red", "suspended": "magenta"}  # fmt: skip


def data(seen: Seen, *, namespace: str | None = None) -> dict[str, Any]:
    """The view as plain data. Amounts are in millicores, MiB and devices."""
    nodes = node_rows(seen) if seen.limited is None else []
    taken, there = totals(nodes)
    return {
        "allocator": seen.allocator.to_dict(),
        **({"not_shown": seen.not_shown} if seen.limited is not None else {}),
        "used": taken,
        "allocatable": there,
        "nodes": [row.to_dict() for row in nodes],
        "jobs": [row.to_dict() for row in job_rows(seen) if namespace in (None, row.namespace)],
    }


def print_once(seen: Seen, *, namespace: str | None) -> None:
    """Print the view once, as wide as the terminal (160 columns without one)."""
    console = _console()
    console.print(picture(seen, namespace=namespace, width=console.width))


def show_live(cluster: Cluster, seen: Seen, *, namespace: str | None) -> None:
    """Update the view on each change, until Ctrl-C, with watches."""
    console = _console()
    changed = threading.Event()
    caches = Caches(cluster, seen.settings, on_change=lambda *_: changed.set())
    caches.start()
    page = _Page(seen, namespace)
    asked = time.monotonic()
    try:
        with Live(page, console=console, refresh_per_second=2, screen=console.is_terminal) as live:
            while True:
                time.sleep(_FRAME_SECONDS)
                page.trouble = caches.trouble()
                if page.trouble:
                    continue
                if time.monotonic() - asked > _LEASE_SECONDS:
                    asked = time.monotonic()
                    page.allocator = _allocator(cluster, seen, page)
                page.seen = observer.see(caches.state(), page.allocator, seen.settings, now=time.time())
                live.refresh()
    except KeyboardInterrupt:
        pass
    finally:
        caches.stop()
    console.print(picture(page.seen, namespace=namespace, width=console.width))


class _Page:
    def __init__(self, seen: Seen, namespace: str | None) -> None:
        self.seen, self.allocator, self.namespace, self.trouble = seen, seen.allocator, namespace, ""

    def __rich_console__(self, console: Console, options: Any) -> Any:
        if self.trouble:
            yield Text(f"as of {_clock(self.seen.now)}: {self.trouble}", style="red")
        yield picture(self.seen, namespace=self.namespace, width=options.max_width)


def _allocator(cluster: Cluster, seen: Seen, page: _Page) -> Any:
    try:
        return read_status(cluster, namespace=seen.allocator.namespace, now=time.time())
    except DiflowError:
        return page.allocator


def _console() -> Console:
    width = None if os.environ.get("COLUMNS") or os.isatty(1) else 160
    return Console(highlight=False, markup=False, emoji=False, width=width)


def picture(seen: Seen, *, namespace: str | None = None, width: int = 160) -> RenderableType:
    """The view of one state of the cluster."""
    nodes = node_rows(seen) if seen.limited is None else []
    jobs = [row for row in job_rows(seen) if namespace in (None, row.namespace)]
    colours = {row.key: turn_colour(i) for i, row in enumerate(row for row in jobs if row.nodes)}
    taken, there = totals(nodes)
    resources = _resources(seen, there)
    wide = width >= _WIDE
    parts: list[RenderableType] = [_head(seen, jobs)]
    if seen.limited is None:
        parts += [_cluster(taken, there, resources, nodes, wide=wide), Text()]
        parts += [_nodes(nodes, resources, colours, wide=wide), Text()]
    else:
        parts += [Text(seen.not_shown, "yellow", overflow="fold"), Text()]
    if not jobs:
        return Group(*parts, Text("no jobs", "dim"))
    parts.append(_jobs(jobs, colours, queues=len(queue_rows(seen)) > 1, wide=wide))
    if not wide:
        parts += _reasons(jobs)
    return Group(*parts)


def _resources(seen: Seen, there: dict[str, float]) -> list[str]:
    """The resources with a column: those that pods request and nodes have."""
    asked: dict[str, float] = {}
    for pod in seen.state.pods:
        for name, amount in pod.request.items():
            asked[name] = asked.get(name, 0.0) + amount
    for job in seen.state.jobs.values():
        for role in job.read.needs.roles:
            for name, amount in role.request.items():
                asked[name] = asked.get(name, 0.0) + amount
    return shown(list(there), asked=asked)[:4]


def _head(seen: Seen, jobs: Sequence[PlanRow]) -> Text:
    who = seen.allocator
    good = who.is_running and not who.paused
    placed, waiting = placed_and_waiting(jobs)
    return Text.assemble(
        ("diflow top", "bold"),
        f"  {_clock(seen.now)}  {counted(placed, 'job')} placed, {waiting} {'waits' if waiting == 1 else 'wait'}  ",
        (who.text(), "green" if good else "yellow" if who.unknown else "bold red"),
        overflow="fold",
    )


def _cluster(
    taken: dict[str, float], there: dict[str, float], resources: Sequence[str], nodes: Sequence[NodeRow], *, wide: bool
) -> Text:
    out = Text(counted(len(nodes), "node"), no_wrap=True, overflow="ellipsis")
    for name in resources:
        out.append(f"   {short(name)} ")
        if wide:
            out.append_text(_bar(taken.get(name, 0.0), there[name]))
            out.append(" ")
        out.append(_of(name, taken.get(name, 0.0), there[name]), "bold")
    return out


def _nodes(rows: Sequence[NodeRow], resources: Sequence[str], colours: dict[str, str], *, wide: bool) -> Table:
    out = rich_table(expand=True)
    out.add_column("NODE", no_wrap=True)
    for name in resources:
        out.add_column(short(name).upper(), no_wrap=True, justify="left" if wide else "right")
    out.add_column("REPLICAS OF JOBS", ratio=1, overflow="fold")
    idle = [row for row in rows if not row.jobs and row.state == "ready"]
    kept = [row for row in rows if row not in idle] if len(idle) > 3 else list(rows)
    for row in kept:
        node = Text(row.name)
        if row.state != "ready":
            node.append(f" ({row.state})", "red")
        out.add_row(node, *(_use(row, r, wide=wide) for r in resources), _holders(row, colours))
    if len(kept) < len(rows):
        taken, there = totals(idle)
        cells = [_of(r, taken.get(r, 0.0), there.get(r, 0.0)) for r in resources]
        out.add_row(Text(f"{len(idle)} more", "dim"), *(Text(cell, "dim") for cell in cells), Text("no jobs", "dim"))
    return out


def _use(row: NodeRow, resource: str, *, wide: bool) -> Text:
    taken, there = row.used.get(resource, 0.0), row.allocatable.get(resource, 0.0)
    if not there and not taken:
        return Text("-", "dim")
    text = Text(_of(resource, taken, there))
    return Text.assemble(_bar(taken, there), " ", text) if wide else text


def _bar(taken: float, there: float) -> Text:
    part = min(1.0, taken / there) if there else 1.0
    full = round(part * _BAR)
    if taken and not full:
        full = 1
    colour = "red" if taken > there else "green" if part < 0.9 else "yellow"
    return Text.assemble(("━" * full, colour), ("─" * (_BAR - full), "dim"))


def _of(resource: str, taken: float, there: float) -> str:
    return f"{quantity(resource, taken)}/{quantity(resource, there)}"


def _holders(row: NodeRow, colours: dict[str, str]) -> Text:
    out = Text()
    for key, count in row.jobs.items():
        if out:
            out.append("  ")
        out.append(f"{_name(key)} ×{count}", colours.get(key, "dim"))
    return out or Text("-", "dim")


def _jobs(rows: Sequence[PlanRow], colours: dict[str, str], *, queues: bool, wide: bool) -> Table:
    out = rich_table(expand=wide)
    spaces = len({row.namespace for row in rows}) > 1
    head = ["JOB", "STATE", "WANT", "GRANTED", "RUN", "PENDING", "SHARE", "SPEED"]
    right = {"WANT", "GRANTED", "RUN", "PENDING", "SHARE", "SPEED"}
    if wide:
        head[1:1] = ["PRIORITY"] + (["QUEUE"] if queues else [])
        head += ["NODES"]
    for name in head:
        out.add_column(name, no_wrap=True, justify="right" if name in right else "left")
    if wide:
        out.add_column("WHY", ratio=1, no_wrap=True, overflow="ellipsis", style="dim")
    for row in rows:
        cells: list[str | Text] = [
            Text(row.key if spaces else row.name, colours.get(row.key, "")),
            Text(row.state, _STATES.get(row.state, "")),
            row.range_text,
            str(row.granted),
            str(row.ready),
            str(row.pending) if row.pending else "-",
            _share(row.share),
            _speed(row.speed),
        ]
        if wide:
            cells[1:1] = [row.priority] + ([Text(harmless(row.queue))] if queues else [])
            cells += [str(len(row.nodes)) if row.nodes else "-", Text(_why(row))]
        out.add_row(*cells)
    return out


def _why(row: PlanRow) -> str:
    """Why it has less than its maximum, or is not admitted; "" else."""
    return harmless(row.message) if row.granted < row.high or row.unplaced or row.stage is not Stage.ADMITTED else ""


def _reasons(rows: Sequence[PlanRow]) -> list[RenderableType]:
    """The reasons below the table, if it is too narrow for them."""
    reasons = [Text.assemble((f"{row.name} ", "bold"), (_why(row), "dim")) for row in rows if _why(row)]
    return [Text(), *reasons] if reasons else []


def _share(part: float) -> str:
    return "-" if not part else "<1%" if part < 0.01 else f"{part:.0%}"


def _name(key: str) -> str:
    return key.partition("/")[2]


def _speed(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}/s" if value < 1000 else f"{value / 1000:.3g}k/s"


def _clock(now: float) -> str:
    return datetime.fromtimestamp(now).astimezone().strftime("%H:%M:%S")
