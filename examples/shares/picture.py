"""The picture of the shares: who holds how many GPUs over time, beside what each queue deserves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.colors import to_rgb
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from elastic.film import Film
from elastic.picture import COLOURS, GREY, INK, LIGHT, quiet, sheet, write
from shares.cast import CAPPED, GPUS, GUARANTEED, NODES, PARTS, TEAMS, USERS
from shares.telling import Row

_TOTAL = len(NODES) * GPUS
_LEAST_SECONDS = 5.0
_NAMED_SECONDS = 6.0
"""A job is named in its area where that is wide enough for the name."""
_TEXT_WIDTH = 0.12
"""Width of a text beside a moment, as a part of the picture's."""
_DASHES = (0, (4, 2))


def draw(film: Film, rows: Sequence[Row], path: Path) -> None:
    """Write a PNG to `path`, whole or not at all."""
    figure = sheet(13.0, 11.0)
    highest = [max((row.moment.deserved[user] for row in rows), default=1) for user in USERS]
    panels = figure.subplots(
        1 + len(USERS), 1, sharex=True, height_ratios=[13, *(max(7, top * 0.6) for top in highest)]
    )
    colours = dict(zip(USERS, COLOURS, strict=True))
    end = max(film.seconds, _LEAST_SECONDS)
    _all_users(panels[0], film, rows, colours)
    for axes, user in zip(panels[1:], USERS, strict=True):
        _one_user(axes, film, rows, user=user, colour=colours[user])
    for axes in panels:
        quiet(axes)
        axes.set_xlim(0, end)
        axes.set_axisbelow(True)
        axes.grid(axis="y", color=LIGHT, linewidth=0.8)
        for row in rows:
            axes.axvline(row.at, color=GREY, linewidth=0.8, zorder=0.5)
    panels[-1].set_xlabel("seconds", color=GREY)
    figure.align_ylabels(panels)
    write(figure, path)


def _all_users(axes: Any, film: Film, rows: Sequence[Row], colours: Mapping[str, str]) -> None:
    times = [frame.at for frame in film.frames]
    by_user = [[sum(frame.running(job) for job in _jobs(user)) for frame in film.frames] for user in USERS]
    if times:
        axes.stackplot(times, by_user, step="post", colors=[colours[user] for user in USERS], linewidth=0)
    axes.set_ylim(0, _TOTAL * 1.02)
    axes.set_yticks(range(0, _TOTAL + 1, GPUS))
    axes.set_ylabel(f"GPUs of {_TOTAL}", color=GREY)
    axes.set_title("Four queues of two teams share 24 GPUs", loc="left", fontsize=13, color=INK, pad=52)
    for row in rows:
        reached = "not reached" if row.seconds is None else f"shares held\nafter {row.seconds:.0f} s"
        axes.annotate(
            f"{row.moment.title}\n{reached}", (row.at, _TOTAL * 1.02), xytext=(0, 4), textcoords="offset points",
            fontsize=8, color=INK, va="bottom",
        )  # fmt: skip
    handles: list[Any] = [Patch(color=colours[user], label=user) for user in USERS]
    handles.append(Line2D([], [], color=INK, linestyle=_DASHES, linewidth=1.4, label="deserved"))
    axes.legend(
        handles=handles, loc="lower right", bbox_to_anchor=(1.005, 1.18), ncols=len(handles), frameon=False,
        fontsize=10, handlelength=1.6, columnspacing=1.6, labelcolor=INK,
    )  # fmt: skip


def _one_user(axes: Any, film: Film, rows: Sequence[Row], *, user: str, colour: str) -> None:
    """Each job of the user in a shade of its own, what the queue deserves as a dashed line, and what happened."""
    jobs = _jobs(user)
    times = [frame.at for frame in film.frames]
    if times:
        counts = [[frame.running(job) for frame in film.frames] for job in jobs]
        axes.stackplot(times, counts, step="post", colors=_shades(colour, len(jobs)), linewidth=0)
        for position, job in enumerate(jobs):
            areas = [(sum(below[:position]), below[position]) for below in zip(*counts, strict=True)]
            first, last = longest(areas)
            if times[last] - times[first] >= _NAMED_SECONDS:
                low, height = areas[first]
                axes.text(
                    (times[first] + times[last]) / 2, low + height / 2, job, ha="center", va="center", fontsize=8,
                    color="white" if position < (len(jobs) + 1) // 2 else INK, zorder=3,
                )  # fmt: skip
    edges = [row.at for row in rows] + [max(film.seconds, _LEAST_SECONDS)]
    deserved = [row.moment.deserved[user] for row in rows]
    if rows:
        axes.stairs(deserved, edges, baseline=None, color=INK, linestyle=_DASHES, linewidth=1.4, zorder=4)
    highest = max([*deserved, 1])
    axes.set_ylim(0, highest * 1.25 + 0.5)
    axes.set_yticks(range(0, highest + 1, 8 if highest > 12 else 4 if highest > 4 else 2))
    axes.set_ylabel(_label(user), color=GREY)
    before, lines = -edges[-1], 0
    for row in rows:
        if texts := _happened(row, user):
            # Below the text of the moment before, where that would reach into this one.
            lines = lines if row.at - before < edges[-1] * _TEXT_WIDTH else 0
            axes.annotate(
                "\n".join(texts), (row.at, 1.0), xycoords=("data", "axes fraction"), xytext=(4, -1 - 10 * lines),
                textcoords="offset points", fontsize=7.5, color=INK, va="top", zorder=5,
                bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 1.0},
            )  # fmt: skip
            before, lines = row.at, lines + len(texts)


def longest(areas: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """(first, last) position of the longest run of one (low, height), of a height above 0; (0, 0) if there is none."""
    best, start = (0, 0), 0
    for position, area in enumerate(areas):
        if area != areas[start]:
            start = position
        if area[1] and position - start > best[1] - best[0]:
            best = start, position
    return best


def _happened(row: Row, user: str) -> list[str]:
    """What became of the user's jobs at a moment, each in a line."""
    out = [f"{name} ends" for name in row.moment.ends if PARTS[name].user == user]
    for name, before, after in row.changes():
        if PARTS[name].user == user:
            word = "stopped" if not after else f"starts with {after}" if not before else f"{before} → {after}"
            out.append(f"{name} {word}")
    new = {part.name for part in row.moment.comes if part.user == user and not row.after.get(part.name, 0)}
    return out + [f"{name} waits" for name in sorted(new)]


def _label(user: str) -> str:
    team = next(team for team, users in TEAMS.items() if user in users)
    limits = [f"{word} {given[user]}" for word, given in (("guarantee", GUARANTEED), ("cap", CAPPED)) if user in given]
    return "\n".join([f"{team} / {user}", *limits])


def _jobs(user: str) -> list[str]:
    return [name for name, part in PARTS.items() if part.user == user]


def _shades(colour: str, count: int) -> list[tuple[float, float, float]]:
    """The colour and lighter ones of it."""
    red, green, blue = to_rgb(colour)
    out = []
    for step in range(count):
        light = 0.5 * step / max(1, count - 1) if count > 1 else 0.0
        out.append((red + (1 - red) * light, green + (1 - green) * light, blue + (1 - blue) * light))
    return out
