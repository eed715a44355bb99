"""The live view of a job on a terminal."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from diflow.cli.console import harmless, phase_colour, rich_table
from diflow.cli.output import clock, utc_now
from diflow.cli.views import replicas
from diflow.cli.views.replicas import Row, rows
from diflow.common.durations import age, timestamp
from diflow.jobs.follow import FollowedJob, follow

if TYPE_CHECKING:
    from datetime import datetime

    from rich.table import Table

    from diflow.kube.api import Cluster
    from diflow.record.status.status import JobStatus

_MARKS = {"Running": "●", "Succeeded": "✔", "Failed": "✘", "Pending": "○", "Unknown": "?"}
_LAST = 6


def show_live(cluster: Cluster, name: str, *, limit: float | None, console: Console | None = None) -> JobStatus | None:
    """Follow a job to its end. Returns its last status, or None if it was deleted."""
    console = console or Console(highlight=False, markup=False, emoji=False)
    page = Page(name)
    status: JobStatus | None = None
    with Live(page, console=console, refresh_per_second=4, transient=False) as live:
        for snapshot in follow(cluster, name, seconds=limit):
            if snapshot.workflow is None:
                return None
            status = page.show(snapshot)
            live.refresh()
            if status.ended:
                break
    return status


class Page:
    """The content of the screen, rendered with each refresh, as ages change."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.snapshot: FollowedJob | None = None
        self.happened: deque[tuple[str, str, str]] = deque(maxlen=_LAST)
        self.states: dict[str, str] = {}

    def show(self, snapshot: FollowedJob) -> JobStatus:
        """Update the view with a new state of the job."""
        self.snapshot = snapshot
        status, now = snapshot.status, utc_now()
        self._note(self.name, f"{status.phase}: {status.message}", now=now)
        for row in rows(snapshot.seen, now=now):
            self._note(row.name, f"{row.state}: {row.message}" if row.message else row.state, now=now)
        return status

    def _note(self, who: str, what: str, *, now: datetime) -> None:
        if self.states.get(who) != what:
            if who in self.states or who == self.name:
                self.happened.append((clock(now.isoformat()), who, what))
            self.states[who] = what

    def __rich__(self) -> RenderableType:
        if self.snapshot is None or self.snapshot.workflow is None:
            return Text(f"{self.name}: reading ...", style="dim")
        return page(self.snapshot, list(self.happened), now=utc_now())


def page(snapshot: FollowedJob, happened: Sequence[tuple[str, str, str]], *, now: datetime) -> RenderableType:
    """The view of one state of a job."""
    seen, status = snapshot.seen, snapshot.status
    submitted = seen.job.submitted_seconds
    took = age(timestamp(submitted) if submitted else "", now=now, until=status.completion_timestamp)
    shown = rows(seen, now=now)
    head = Text.assemble(
        (seen.job.name, "bold"),
        "  ",
        (status.phase, f"bold {phase_colour(status.phase)}"),
        f"  {_succeeded(shown) if status.ended else f'{status.ready_replicas}/{status.replicas} ready'}"
        f"  restarts {status.restarts}  reschedules {status.reschedules}  {took}",
    )
    parts: list[RenderableType] = [
        head,
        Text(harmless(status.message), style="dim"),
        Text(),
        _replicas(shown),
    ]
    if happened:
        parts.append(Text())
        parts += [_event(*item) for item in happened]
    return Group(*parts)


def _succeeded(shown: Sequence[Row]) -> str:
    return f"{replicas.succeeded(shown)}/{len(shown)} succeeded"


def _replicas(found: Sequence[Row]) -> Table:
    out = rich_table()
    cells = [[*_cells(row), Text(row.message)] for row in found]
    for i, column in enumerate(replicas.HEAD[:-1]):
        # A long message must not narrow the other columns.
        width = max([len(column), *(len(line[i]) for line in cells)])
        right = column in ("RANK", "RESTARTS", "RESCHEDULES")
        out.add_column(column, no_wrap=True, min_width=width, justify="right" if right else "left")
    out.add_column(replicas.HEAD[-1], overflow="ellipsis", no_wrap=True, style="dim")
    for row, line in zip(found, cells, strict=True):
        line[2] = Text(str(line[2]), style=phase_colour(row.phase))
        out.add_row(*line)
    return out


def _cells(row: Row) -> list[str | Text]:
    mark = "◌" if row.state == "Waiting" else _MARKS.get(row.phase, " ")
    state = f"{mark} {row.state}"
    return [row.name, str(row.rank), state, str(row.restarts), str(row.reschedules), Text(harmless(row.node)), row.age]


def _event(time: str, who: str, what: str) -> Text:
    return Text.assemble((f"{time}  ", "dim"), f"{who}  ", (harmless(what), "dim"), no_wrap=True, overflow="ellipsis")
