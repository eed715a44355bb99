"""The picture of a film: above, how many replicas each job has; below, who holds which place on which node."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from elastic.film import Film, Frame, Told

# It reads the variable when it is imported: without a home of one's own it warns before it finds a place for its cache.
os.environ.setdefault("MPLCONFIGDIR", tempfile.mkdtemp(prefix="matplotlib-"))

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

COLOURS = ("#2f6db3", "#e08e0b", "#b8323f", "#3d8f5f")
"""Of the jobs, in order: told apart by people who see no red or green, and in print."""
INK, GREY, LIGHT, FREE = "#2b3036", "#5b6470", "#e3e6ea", "#f4f5f7"
_WORDS: Mapping[str, str] = {
    "Admitted": "admitted",
    "Resized": "resized",
    "Preempted": "preempted",
    "NodeLost": "node lost",
    "Rescheduled": "placed anew",
    "Waiting": "waits",
}
_NUMBER = re.compile(r"(\d+(?: → \d+)?) replicas?:")
_GAP = 0.9  # between two nodes, in places
_CHARACTER = 0.0058  # of the picture's width, for a letter of an event
_MOMENT_SECONDS = 3.0


def draw(film: Film, path: Path, *, title: str) -> None:
    """Write a PNG to `path`, whole or not at all."""
    figure = sheet(12.0, 8.4)
    above, lanes, below = figure.subplots(3, 1, sharex=True, height_ratios=(3.2, 0.55 * len(film.jobs), 3.6))
    colours = dict(zip(film.jobs, COLOURS, strict=False))
    _replicas(above, film, colours)
    _events(lanes, film, colours)
    _nodes(below, film, colours)
    above.set_title(title, loc="left", fontsize=13, color=INK, pad=26)
    below.set_xlabel("seconds", color=GREY)
    below.set_xlim(0, max(film.seconds, 1.0))
    for axes in (above, lanes, below):
        quiet(axes)
        for _, start, end in film.absences():
            axes.axvspan(start, end, color="#000000", alpha=0.045, linewidth=0, zorder=0)
    write(figure, path)


def sheet(width: float, height: float) -> Figure:
    """An empty figure of this size in inches, which a picture file can be made of."""
    figure = Figure(figsize=(width, height), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def quiet(axes: Any) -> None:
    """A frame on two sides, and no colour that competes with what is drawn."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY)
    axes.tick_params(colors=GREY)


def write(figure: Figure, path: Path) -> None:
    """Write the figure as a PNG, whole or not at all."""
    part = path.with_suffix(".part")
    figure.savefig(part, format="png")
    part.replace(path)


def _replicas(axes: Any, film: Film, colours: Mapping[str, str]) -> None:
    most = 1
    for order, job in enumerate(film.jobs):
        life = _life(film, job)
        # Lines of jobs with the same number lie beside each other.
        raised = (len(film.jobs) - 1 - 2 * order) * 0.04
        counts = [frame.running(job) for frame in life]
        times = [frame.at for frame in life]
        axes.step(times, [n + raised for n in counts], where="post", color=colours[job], linewidth=2.2)
        most = max(most, *counts, 1)
    axes.set_ylabel("replicas that run", color=GREY)
    axes.set_ylim(-0.25, most + 0.5)
    axes.yaxis.get_major_locator().set_params(integer=True)
    axes.grid(axis="y", color=LIGHT, linewidth=0.8)
    axes.set_axisbelow(True)
    handles = [Patch(color=colours[job], label=job) for job in film.jobs]
    axes.legend(
        handles=handles, loc="lower left", bbox_to_anchor=(-0.005, 1.0), ncols=len(handles), frameon=False, fontsize=10,
        handlelength=1.2, columnspacing=1.6, labelcolor=INK,
    )  # fmt: skip


def _life(film: Film, job: str) -> list[Frame]:
    """The frames from just before the job's first replica to just after its last."""
    present = [i for i, frame in enumerate(film.frames) if frame.running(job)]
    return film.frames[max(0, present[0] - 1) : present[-1] + 2] if present else []


def _events(axes: Any, film: Film, colours: Mapping[str, str]) -> None:
    """A lane for each job, with what the allocator told of it."""
    for lane, job in enumerate(film.jobs):
        axes.axhline(lane, color=LIGHT, linewidth=0.8, zorder=1)
        told = [t for t in film.told if t.job == job]
        axes.plot([t.at for t in told], [lane] * len(told), "o", markersize=5, color=colours[job], zorder=3)
        ends = {True: -1.0, False: -1.0}  # where the last text above the line and the last one below it end
        for at, text in texts(told):
            length = len(text) * _CHARACTER * film.seconds
            is_last = at + length > film.seconds
            start = at - length if is_last else at
            is_above = start >= ends[True]
            ends[is_above] = start + length
            axes.annotate(
                text, (at, lane), xytext=(3 if is_last else -3, 4 if is_above else -4), textcoords="offset points",
                ha="right" if is_last else "left", va="bottom" if is_above else "top", fontsize=8, color=INK,
            )  # fmt: skip
    axes.set_yticks(range(len(film.jobs)), film.jobs)
    axes.set_ylim(len(film.jobs) - 0.4, -0.7)
    axes.set_ylabel("events", color=GREY)


def texts(told: Sequence[Told]) -> list[tuple[float, str]]:
    """(when, in words): what was told within a moment is one text."""
    out: list[tuple[float, str]] = []
    for one in sorted(told, key=lambda t: (t.at, t.reason)):
        if out and one.at - out[-1][0] < _MOMENT_SECONDS:
            out[-1] = (out[-1][0], f"{out[-1][1]}, {label(one)}")
        else:
            out.append((one.at, label(one)))
    return out


def label(told: Told) -> str:
    """An event in a word or two, with the number of replicas if its message begins with one."""
    word = _WORDS.get(told.reason, told.reason.lower())
    number = _NUMBER.match(told.message)
    return f"{word} {number[1]}" if number else word


def _nodes(axes: Any, film: Film, colours: Mapping[str, str]) -> None:
    height = film.slots + _GAP
    for row in range(len(film.nodes)):
        axes.add_patch(Rectangle((0, row * height), film.seconds, film.slots, color=FREE, linewidth=0, zorder=0.5))
    for bar in film.bars():
        if bar.slot >= film.slots:
            continue  # for an instant a pod that is going and one that is coming may both be seen
        low = film.nodes.index(bar.node) * height + bar.slot
        axes.add_patch(
            Rectangle(
                (bar.start, low + 0.06), bar.end - bar.start, 0.88, facecolor=colours[bar.job], edgecolor="white",
                linewidth=0.6, zorder=2,
            )
        )  # fmt: skip
    for node, start, end in film.absences():
        low = film.nodes.index(node) * height
        axes.add_patch(
            Rectangle(
                (start, low),
                end - start,
                film.slots,
                facecolor="white",
                edgecolor=GREY,
                hatch="////",
                linewidth=0.8,
                zorder=3,
            )
        )
        axes.text(
            (start + end) / 2, low + film.slots / 2, "node removed", ha="center", va="center", fontsize=9, color=INK,
            zorder=4, bbox={"facecolor": "white", "edgecolor": "none", "pad": 2.0},
        )  # fmt: skip
    middles = [row * height + film.slots / 2 for row in range(len(film.nodes))]
    axes.set_yticks(middles, film.nodes)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(film.nodes) * height - _GAP + 0.2, -0.2)
    axes.set_ylabel(f"nodes, {film.slots} GPUs each", color=GREY)
