"""The output of a comparison of policies: a table as text, CSV and JSON, and pictures."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from diflow.common.errors import DiflowError, InvalidError
from diflow.common.tables import table
from diflow.labs.simulator.metrics import Metrics
from diflow.labs.simulator.replay import Replay

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_HOUR = 3600.0
_STYLES = ("-", "--", "-.", ":")
"""Dashes distinguish curves that lie on each other."""
_TICKS = (1 / 60, 1 / 20, 1 / 6, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1200, 2880, 7200, 14400, 28800)
"""Possible ticks of an axis of durations, in minutes: round numbers of seconds, minutes, hours and days."""
_SHADES = (0.0, 0.4, 0.2, 0.55)
"""Part of white in the colours of successive jobs of one application."""

_COLUMNS = (
    ("policy", "policy", "{}"),
    ("mean s", "mean", "{:.0f}"),
    ("median s", "median", "{:.0f}"),
    ("p90 s", "p90", "{:.0f}"),
    ("p99 s", "p99", "{:.0f}"),
    ("makespan s", "makespan", "{:.0f}"),
    ("restarts/job", "restarts", "{:.2f}"),
    ("GPU h", "gpu_hours", "{:.0f}"),
    ("worst fairness", "worst_fairness", "{:.2f}"),
    ("> 1", "unfair_share", "{:.1%}"),
    ("> 2", "very_unfair_share", "{:.1%}"),
    ("call p95 ms", "decision_ms", "{:.1f}"),
    ("CPU ms", "decision_cpu_ms", "{:.1f}"),
)


def as_text(rows: Sequence[Metrics]) -> str:
    """The table as aligned text; times in seconds."""
    head = [name for name, _, _ in _COLUMNS]
    cells = [[form.format(getattr(row, name)) for _, name, form in _COLUMNS] for row in rows]
    return table(head, cells, right=head[1:])


def as_json(rows: Sequence[Metrics]) -> str:
    return json.dumps([row.as_dict() for row in rows], indent=2) + "\n"


NO_PICTURES = "pictures are left out: they need matplotlib (pip install 'diflow[examples]')"


def can_draw() -> bool:
    """Whether matplotlib is installed."""
    try:
        import matplotlib  # noqa: F401, PLC0415
    except ImportError:
        return False
    return True


def write(
    folder: Path,
    results: Sequence[Replay],
    rows: Sequence[Metrics],
    *,
    gpus: int,
    nodes: int,
    total: int | None = None,
) -> list[Path]:
    """Write all tables and pictures. Returns their paths; raises DiflowError if the folder is not writable."""
    return write_tables(folder, results, rows) + pictures(folder, results, gpus=gpus, nodes=nodes, total=total)


def write_tables(folder: Path, results: Sequence[Replay], rows: Sequence[Metrics]) -> list[Path]:
    """Write summary.csv, summary.json, and a CSV of every policy's jobs. Returns their paths; raises DiflowError if the
    folder is not writable.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        out = [folder / "summary.json", folder / "summary.csv"]
        out[0].write_text(as_json(rows))
        _csv(out[1], [row.as_dict() for row in rows])
        for result in results:
            path = folder / f"jobs-{_file_name(result.policy)}.csv"
            _csv(path, [{**asdict(o), "completion": o.completion} for o in result.outcomes])
            out.append(path)
    except OSError as error:
        raise DiflowError(f"{folder} cannot be written: {error.strerror}") from None
    return out


def _csv(path: Path, rows: Sequence[dict[str, object]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]) if rows else ["policy"])
        writer.writeheader()
        writer.writerows(rows)


def _file_name(policy: str) -> str:
    return re.sub(r"[^A-Za-z0-9._]+", "-", policy)


def pictures(folder: Path, results: Sequence[Replay], *, gpus: int, nodes: int, total: int | None = None) -> list[Path]:
    """Write utilisation.png, completion.png and a Gantt chart for each policy. Errors as `write_tables`."""
    if not can_draw():
        raise InvalidError(NO_PICTURES)
    from matplotlib.figure import Figure  # noqa: PLC0415

    drawn: list[tuple[str, Figure]] = []
    figure = Figure(figsize=(10, 1.2 + 1.4 * len(results)), layout="constrained")
    _utilisation(figure, results, total or gpus * nodes)
    drawn.append(("utilisation", figure))
    figure = Figure(figsize=(10, 4.5), layout="constrained")
    _completion(figure, results)
    drawn.append(("completion", figure))
    for result in results:
        figure = Figure(figsize=(13, min(10.0, max(3.0, 1.6 + 0.09 * gpus * nodes))), layout="constrained")
        _gantt(figure, result, gpus=gpus, nodes=nodes)
        drawn.append((f"gantt-{_file_name(result.policy)}", figure))
    out = []
    for name, figure in drawn:
        out.append(folder / f"{name}.png")
        try:
            figure.savefig(out[-1], dpi=110)
        except OSError as error:
            raise DiflowError(f"{out[-1]} cannot be written: {error.strerror}") from None
    return out


def _unit(seconds: float) -> tuple[float, str]:
    """(seconds, name) of the unit for a time axis of this length."""
    return (_HOUR, "hours") if seconds > 2 * _HOUR else (60.0, "minutes")


def _utilisation(figure: Figure, results: Sequence[Replay], gpus: int) -> None:
    """One panel per policy on the same time axis: curves on one panel would hide each other."""
    longest = max((float(r.utilisation[-1][0]) for r in results if r.utilisation), default=0.0)
    unit, words = _unit(longest)
    panels = figure.subplots(len(results), 1, sharex=True, squeeze=False)[:, 0]
    for i, (axes, result) in enumerate(zip(panels, results, strict=True)):
        table = np.array(result.utilisation).reshape(-1, 3)
        held = table[:, 1] / gpus * 100
        axes.fill_between(table[:, 0] / unit, held, step="post", color=f"C{i % 10}", alpha=0.8, linewidth=0)
        axes.set(ylim=(0, 100), yticks=(0, 50, 100), ylabel="%")
        axes.grid(alpha=0.3)
        mean = "nothing ran"
        if len(table):
            # Weighted by time: cycles without jobs are skipped.
            average = np.average(held[:-1], weights=np.diff(table[:, 0])) if len(table) > 1 else held[0]
            mean = f"{average:.0f} % on average over {table[-1, 0] / unit:.1f} {words}"
        axes.set_title(f"{result.policy}: {mean}", loc="left", fontsize=10)
    panels[-1].set(xlabel=words, xlim=(0, max(longest / unit, 1e-3)))
    figure.suptitle("GPUs held")


def _completion(figure: Figure, results: Sequence[Replay]) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator  # noqa: PLC0415

    axes = figure.subplots()
    for i, result in enumerate(results):
        times = np.sort([o.completion for o in result.outcomes]) / 60
        done = np.arange(len(times) + 1) / max(1, len(times)) * 100
        # Each curve begins at 0 % at its first job, so that curves that start late are visible.
        axes.step(
            np.concatenate([times[:1], times]), done[: len(times) + 1], where="post", label=result.policy,
            linestyle=_STYLES[i % len(_STYLES)], linewidth=1.6,
        )  # fmt: skip
    axes.set(xscale="log", xlabel="completion time", ylabel="jobs done within, %", ylim=(0, 102))
    minutes = [o.completion / 60 for result in results for o in result.outcomes] or [1.0]
    axes.set_xlim(0.8 * max(min(minutes), 1e-3), 1.25 * max(minutes))
    axes.set_title("Completion times")
    axes.xaxis.set_major_locator(FixedLocator(_TICKS))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda minutes, _: _duration(minutes)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper")


def _duration(minutes: float) -> str:
    if minutes < 1:
        return f"{60 * minutes:.3g} s"
    if minutes < 60:
        return f"{minutes:.3g} min"
    return f"{minutes / 60:.3g} h" if minutes < 2880 else f"{minutes / 1440:.3g} d"


def _gantt(figure: Figure, result: Replay, *, gpus: int, nodes: int) -> None:
    """GPUs over time. Colours are applications, shades distinguish jobs, lines separate nodes."""
    from matplotlib import colormaps  # noqa: PLC0415
    from matplotlib.patches import Patch  # noqa: PLC0415

    axes: Axes = figure.subplots()
    longest = max((span.end for span in result.spans), default=0.0)
    unit, words = _unit(longest)
    kinds = sorted({o.application for o in result.outcomes})
    kind_of = {o.name: o.application for o in result.outcomes}
    colour_of = {k: np.array(colormaps["tab10"](i % 10)[:3]) for i, k in enumerate(kinds)}
    shade_of: dict[str, float] = {}
    met: dict[str, int] = {}
    for outcome in sorted(result.outcomes, key=lambda o: (o.started, o.name)):
        kind = outcome.application
        shade_of[outcome.name] = _SHADES[met.get(kind, 0) % len(_SHADES)]
        met[kind] = met.get(kind, 0) + 1
    busy: list[list[tuple[float, int]]] = [[] for _ in range(nodes)]
    # One collection per GPU: a patch per bar takes ten times as long to draw.
    bars: list[tuple[list[tuple[float, float]], list[tuple[float, ...]]]] = [([], []) for _ in range(nodes * gpus)]
    for span in sorted(result.spans, key=lambda s: (s.begin, s.job)):
        taken = {slot for end, slot in busy[span.node] if end > span.begin + 1e-6}
        busy[span.node] = [(end, slot) for end, slot in busy[span.node] if end > span.begin + 1e-6]
        white = shade_of[span.job]
        for slot in [slot for slot in range(gpus) if slot not in taken][: span.gpus]:
            busy[span.node].append((span.end, slot))
            ranges, colours = bars[span.node * gpus + slot]
            ranges.append((span.begin / unit, (span.end - span.begin) / unit))
            colours.append(tuple(colour_of[kind_of[span.job]] * (1 - white) + white))
    for row, (ranges, colours) in enumerate(bars):
        axes.broken_barh(ranges, (row / gpus, 1 / gpus), facecolors=colours, linewidth=0)
    for node in range(1, nodes):
        axes.axhline(node, color="black", linewidth=0.6)
    axes.set(
        xlabel=words,
        xlim=(0, max(longest / unit, 1e-3)),
        ylabel=f"node ({gpus} GPU{'s' if gpus > 1 else ''} each)",
        ylim=(0, nodes),
    )
    axes.set_title(f"Who held what: {result.policy}")
    named = range(0, nodes, -(-nodes // 32))
    axes.set_yticks([node + 0.5 for node in named], [str(node) for node in named])
    figure.legend(
        handles=[Patch(color=tuple(colour_of[kind]), label=kind) for kind in kinds],
        title="application",
        loc="outside right upper",
    )
