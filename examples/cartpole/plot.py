"""The picture that a run leaves behind: return against time."""

import os
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cartpole.history import WINDOW, History

# A pod's user has no home; without this, matplotlib warns before it finds a place for its cache. It reads the
# variable when it is imported, so this comes first.
os.environ.setdefault("MPLCONFIGDIR", tempfile.mkdtemp(prefix="matplotlib-"))

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

BLUE, ORANGE, GREY = "#1f5fa8", "#d9730d", "#5b6470"


def draw(history: History, path: Path, *, target: float) -> None:
    """Write a PNG to `path`, whole or not at all."""
    figure = Figure(figsize=(9.0, 5.0), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    if history.played:
        seconds = np.array([episode.seconds for episode in history.played])
        totals = np.array([episode.total for episode in history.played])
        axes.plot(
            seconds, totals, ".", color=BLUE, alpha=0.22, markersize=4, markeredgewidth=0, label="training episode"
        )
        axes.plot(seconds, moving_mean(totals), color=BLUE, linewidth=2, label=f"mean of the last {WINDOW}")
    if history.evaluated:
        axes.plot(
            [each.seconds for each in history.evaluated],
            [each.mean for each in history.evaluated],
            "-o",
            color=ORANGE,
            linewidth=1.4,
            markersize=4.5,
            markeredgecolor="white",
            markeredgewidth=0.6,
            label="evaluator, greedy",
        )
    axes.axhline(target, color=GREY, linewidth=1, linestyle=(0, (5, 4)))
    axes.annotate(
        f"bar: {target:g}", (0, target), xycoords=("axes fraction", "data"), xytext=(6, 3),
        textcoords="offset points", va="bottom", color=GREY, fontsize=9,
    )  # fmt: skip
    axes.set_xlabel("seconds of training")
    axes.set_ylabel("return of an episode")
    axes.set_ylim(0, 515)
    axes.set_xlim(left=0)
    axes.set_title(_title(history), loc="left", fontsize=11)
    axes.grid(visible=True, color="#e3e6ea", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if history.played or history.evaluated:
        axes.legend(
            loc="upper left", bbox_to_anchor=(0.0, 0.9), frameon=True, framealpha=0.9, edgecolor="none", fontsize=9
        )
    beside = path.with_suffix(".new")
    figure.savefig(beside, format="png")
    beside.replace(path)


def moving_mean(totals: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mean of each value and up to 99 before it: (n,) → (n,)."""
    sums = np.concatenate([[0.0], np.cumsum(totals)])
    ends = np.arange(1, len(totals) + 1)
    starts = np.maximum(ends - WINDOW, 0)
    means: NDArray[np.float64] = (sums[ends] - sums[starts]) / (ends - starts)
    return means


def _title(history: History) -> str:
    episodes = f"CartPole-v1: {len(history.played):,} training episodes, {history.steps:,} steps"
    if not history.evaluated:
        return episodes
    last = history.evaluated[-1]
    return f"{episodes}; last evaluation {last.mean:.1f} over {last.episodes} episodes"
