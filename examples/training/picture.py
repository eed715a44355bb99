"""The picture of a training: the loss and the replicas over time, and what happened, by numbers."""

from __future__ import annotations

import math
import textwrap
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from elastic.picture import COLOURS, GREY, INK, LIGHT, quiet, sheet, write
from training.film import Film, Mark, Step

_HERE, _BY_DIFLOW = COLOURS[2], COLOURS[3]
_SAME_SECONDS = 2.0
_STILL_SECONDS = 4.0
_MEAN_OF = 10
_DASHES = (0, (2, 1.5))
_LINE = 150  # characters of a line below the picture
_POINTS = 12.5  # of such a line


def draw(film: Film, path: Path, *, title: str) -> None:
    """Write a PNG to `path`, whole or not at all."""
    marks = _distinct(sorted(film.marks, key=lambda mark: mark.at))
    lines = [textwrap.wrap(f"{mark.at:.0f} s  {mark.text}", _LINE) for mark in marks]
    height = sum(map(len, lines)) * _POINTS / 72 + 0.4
    figure = sheet(12.0, 6.4 + height)
    loss, replicas, below = figure.subplots(3, 1, height_ratios=(3.6, 1.6, height))
    seconds = max(film.seconds, 1.0)
    _loss(loss, film)
    _replicas(replicas, film)
    for mark in marks:
        colour = _colour(mark)
        for axes in (loss, replicas):
            axes.axvline(mark.at, color=colour, linewidth=0.9, alpha=0.7, zorder=0.5)
    _numbers(loss, marks, seconds)
    loss.set_title(title, loc="left", fontsize=13, color=INK, pad=34)
    replicas.set_xlabel("seconds", color=GREY)
    for axes in (loss, replicas):
        quiet(axes)
        axes.set_xlim(0, seconds)
        axes.set_axisbelow(True)
        axes.grid(axis="y", color=LIGHT, linewidth=0.8)
    loss.tick_params(labelbottom=False)
    _text(below, marks, lines)
    figure.align_ylabels([loss, replicas])
    write(figure, path)


def _loss(axes: Any, film: Film) -> None:
    """The loss of each step; in grey those that a kill lost, which were made again."""
    parts = film.parts
    kept: list[Step] = []
    for number, part in enumerate(parts):
        lost_from = min((other[0].step for other in parts[number + 1 :]), default=math.inf)
        lost = [step for step in part if step.step >= lost_from]
        kept += [step for step in part if step.step <= lost_from]
        axes.plot(*_curve(lost, [step.loss for step in lost]), color=GREY, linewidth=1.0, linestyle=_DASHES)
    axes.plot(*_curve(kept, [step.loss for step in kept]), color=COLOURS[0], linewidth=0.8, alpha=0.45)
    axes.plot(*_curve(kept, _means(kept)), color=COLOURS[0], linewidth=2.0)
    axes.plot([], [], color=COLOURS[0], linewidth=0.8, alpha=0.45, label="loss of a step")
    axes.plot([], [], color=COLOURS[0], linewidth=2.0, label=f"mean of {_MEAN_OF} steps")
    axes.plot([], [], color=GREY, linewidth=1.0, linestyle=_DASHES, label="made again from the checkpoint")
    axes.legend(loc="upper right", frameon=True, framealpha=0.9, edgecolor="none", fontsize=9, labelcolor=INK)
    axes.set_ylabel("loss", color=GREY)


def _curve(steps: Sequence[Step], values: Sequence[float | None]) -> tuple[list[float], list[float]]:
    """The times and the values, with a gap where the training stood still or began again."""
    times: list[float] = []
    found: list[float] = []
    for step, value in zip(steps, values, strict=True):
        if times and (value is None or step.at - times[-1] > _STILL_SECONDS):
            times.append((times[-1] + step.at) / 2)
            found.append(math.nan)
        if value is not None:
            times.append(step.at)
            found.append(value)
    return times, found


def _means(steps: Sequence[Step]) -> list[float | None]:
    """The mean loss of the samples of each step and of those before it; None at a start."""
    out: list[float | None] = []
    last: deque[tuple[float, int]] = deque(maxlen=_MEAN_OF)
    seen = 0
    for step in steps:
        if step.loss is not None:
            last.append((step.loss, max(1, step.seen - seen)))
        seen = step.seen
        samples = sum(count for _, count in last)
        out.append(None if step.loss is None else sum(loss * count for loss, count in last) / samples)
    return out


def _replicas(axes: Any, film: Film) -> None:
    times, counts = [at for at, _ in film.replicas], [count for _, count in film.replicas]
    axes.fill_between(times, counts, step="post", color=COLOURS[0], alpha=0.25, linewidth=0)
    axes.step(times, counts, where="post", color=COLOURS[0], linewidth=1.6)
    axes.set_ylim(0, max(counts, default=1) + 0.5)
    axes.yaxis.get_major_locator().set_params(integer=True)
    axes.set_ylabel("pods that run", color=GREY)


def _numbers(axes: Any, marks: Sequence[Mark], seconds: float) -> None:
    """The numbers of the marks above the picture, in a second row where they would touch."""
    last = [-1e9, -1e9]
    for number, mark in enumerate(marks, 1):
        row = 0 if mark.at - last[0] > 0.022 * seconds else 1
        last[row] = mark.at
        axes.annotate(
            str(number), (mark.at, 1.0), xycoords=("data", "axes fraction"), xytext=(0, 4 + 13 * row),
            textcoords="offset points", ha="center", va="bottom", fontsize=8.5, color=_colour(mark), weight="bold",
        )  # fmt: skip


def _text(axes: Any, marks: Sequence[Mark], lines: Sequence[Sequence[str]]) -> None:
    axes.axis("off")
    total = sum(map(len, lines)) + 1.2
    axes.set_ylim(total, 0)
    axes.set_xlim(0, 1)
    axes.text(0.0, 0.4, "done by the demo", color=_HERE, fontsize=9, weight="bold", va="center")
    axes.text(0.16, 0.4, "found and done by diflow", color=_BY_DIFLOW, fontsize=9, weight="bold", va="center")
    row = 1.7
    for number, (mark, text) in enumerate(zip(marks, lines, strict=True), 1):
        axes.text(0.018, row, str(number), color=_colour(mark), fontsize=9, weight="bold", va="center", ha="right")
        for line in text:
            axes.text(0.03, row, line, color=INK, fontsize=9, va="center")
            row += 1


def _colour(mark: Mark) -> str:
    return _HERE if mark.is_done_here else _BY_DIFLOW


def _distinct(marks: Sequence[Mark]) -> list[Mark]:
    """Without what was said twice within a moment."""
    out: list[Mark] = []
    for mark in marks:
        if not any(mark.text == other.text and mark.at - other.at < _SAME_SECONDS for other in out):
            out.append(mark)
    return out
