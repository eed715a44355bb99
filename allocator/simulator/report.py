"""What a comparison of policies leaves behind: a table as text, CSV and JSON, and pictures."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from diflow.allocator.simulator.metrics import Metrics
from diflow.allocator.simulator.replay import Replay
from diflow.errors import InvalidError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
)


def as_text(rows: Sequence[Metrics]) -> str:
    """The table, aligned; times in seconds."""
    cells = [[head for head, _, _ in _COLUMNS]]
    cells += [[form.format(getattr(row, name)) for _, name, form in _COLUMNS] for row in rows]
    width = [max(len(line[i]) for line in cells) for i in range(len(_COLUMNS))]
    return "\n".join(
        "  ".join(
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(line, width, strict=True))
        )
        for line in cells
    )


def as_json(rows: Sequence[Metrics]) -> str:
    return json.dumps([row.as_dict() for row in rows], indent=2) + "\n"


def write(folder: Path, results: Sequence[Replay], rows: Sequence[Metrics], *, gpus: int, nodes: int) -> list[Path]:
    """All tables and pictures. Returns what was written."""
    return write_tables(folder, results, rows) + pictures(folder, results, gpus=gpus, nodes=nodes)


def write_tables(folder: Path, results: Sequence[Replay], rows: Sequence[Metrics]) -> list[Path]:
    """summary.csv, summary.json, and a CSV of every policy's jobs. Returns what was written."""
    folder.mkdir(parents=True, exist_ok=True)
    out = [folder / "summary.json", folder / "summary.csv"]
    out[0].write_text(as_json(rows))
    _csv(out[1], [row.as_dict() for row in rows])
    for result in results:
        name = result.policy.replace("+", "-")
        path = folder / f"jobs-{name}.csv"
        _csv(path, [{**asdict(o), "completion": o.completion} for o in result.outcomes])
        out.append(path)
    return out


def _csv(path: Path, rows: Sequence[dict[str, object]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]) if rows else ["policy"])
        writer.writeheader()
        writer.writerows(rows)


def pictures(folder: Path, results: Sequence[Replay], *, gpus: int, nodes: int) -> list[Path]:
    """utilisation.png, completion.png, and a Gantt chart for each policy."""
    try:
        import matplotlib  # noqa: PLC0415
    except ImportError:
        raise InvalidError("pictures need matplotlib: install diflow[plot], or say --no-pictures") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot  # noqa: PLC0415

    out = []
    figure, axes = pyplot.subplots(figsize=(10, 4), layout="constrained")
    for result in results:
        table = np.array(result.utilisation)
        axes.plot(table[:, 0] / 3600, table[:, 1] / (gpus * nodes) * 100, label=result.policy, linewidth=0.9)
    axes.set(xlabel="hours", ylabel="GPUs held, %", ylim=(0, 103), title="Utilisation")
    axes.legend(loc="lower left")
    out.append(folder / "utilisation.png")
    figure.savefig(out[-1], dpi=120)
    pyplot.close(figure)
    figure, axes = pyplot.subplots(figsize=(8, 4), layout="constrained")
    for result in results:
        times = np.sort([o.completion for o in result.outcomes])
        axes.step(times / 3600, np.arange(1, len(times) + 1) / len(times) * 100, where="post", label=result.policy)
    axes.set(xscale="log", xlabel="completion time, hours", ylabel="jobs done within, %", title="Completion times")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    out.append(folder / "completion.png")
    figure.savefig(out[-1], dpi=120)
    pyplot.close(figure)
    for result in results:
        figure, axes = pyplot.subplots(figsize=(12, 6), layout="constrained")
        _gantt(axes, result, gpus=gpus, nodes=nodes)
        out.append(folder / f"gantt-{result.policy.replace('+', '-')}.png")
        figure.savefig(out[-1], dpi=110)
        pyplot.close(figure)
    return out


def _gantt(axes: Axes, result: Replay, *, gpus: int, nodes: int) -> None:
    """Time against GPUs; a job keeps its colour (that of its application), nodes are told apart by lines."""
    from matplotlib import colormaps  # noqa: PLC0415
    from matplotlib.patches import Patch  # noqa: PLC0415

    kinds = sorted({o.application for o in result.outcomes})
    kind_of = {o.name: o.application for o in result.outcomes}
    palette = colormaps["tab10"]
    busy: list[list[tuple[float, int]]] = [[] for _ in range(nodes)]
    rows: dict[str, tuple[list[float], list[float], list[float], list[float]]] = {k: ([], [], [], []) for k in kinds}
    for span in sorted(result.spans, key=lambda s: (s.begin, s.job)):
        taken = {slot for end, slot in busy[span.node] if end > span.begin + 1e-6}
        busy[span.node] = [(end, slot) for end, slot in busy[span.node] if end > span.begin + 1e-6]
        free = [slot for slot in range(gpus) if slot not in taken][: span.gpus]
        for slot in free:
            busy[span.node].append((span.end, slot))
            lefts, widths, bottoms, heights = rows[kind_of[span.job]]
            lefts.append(span.begin / 3600)
            widths.append((span.end - span.begin) / 3600)
            bottoms.append(span.node * gpus + slot)
            heights.append(0.92)
    for i, kind in enumerate(kinds):
        lefts, widths, bottoms, heights = rows[kind]
        axes.bar(lefts, heights, widths, bottoms, align="edge", color=palette(i % 10), linewidth=0.2, edgecolor="white")
    for node in range(nodes + 1):
        axes.axhline(node * gpus, color="black", linewidth=0.3, alpha=0.5)
    axes.set(
        xlabel="hours", ylabel=f"GPU ({gpus} a node)", ylim=(0, gpus * nodes), title=f"Who held what: {result.policy}"
    )
    axes.margins(x=0)
    axes.legend(handles=[Patch(color=palette(i % 10), label=kind) for i, kind in enumerate(kinds)], loc="upper right")
