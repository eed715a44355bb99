"""The small pictures of the page, as SVG: a job's replicas over time, and what is held of a node.

Colours are classes, so that they follow the page's light or dark; each picture says in words what it shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from diflow.server.page import amounts
from diflow.server.page.board import NodeLine
from diflow.server.page.history import History, Step
from diflow.server.page.markup import Markup, el

_SPARK = (160.0, 36.0)
_CHART = (720.0, 150.0)
_MOST_PLACES = 16  # more devices than this on one node become a bar


def spark(history: History, *, wanted: int, begin: float, end: float, words: str) -> Markup:
    """Replicas over the job's whole life: dark those that ran, light those that waited, a line at what is asked for."""
    width, height = _SPARK
    top = max(history.peak, wanted, 1)
    steps = _steps(history, begin, end)
    return el(
        "svg",
        el("title", words),
        _area(steps, [s.total + s.waiting for _, s in steps], None, size=_SPARK, top=top, class_="wait"),
        _area(steps, [s.total for _, s in steps], None, size=_SPARK, top=top, class_="run"),
        _line(steps, [s.total for _, s in steps], size=_SPARK, top=top),
        el("path", d=f"M0 {_y(wanted, height, top)}H{width:g}", class_="want") if wanted else None,
        class_="spark", viewBox=f"0 0 {width:g} {height:g}", preserveAspectRatio="none", role="img", aria_label=words,
    )  # fmt: skip


def chart(history: History, *, wanted: int, begin: float, end: float, words: str) -> Markup:
    """The same, larger, with the tasks one above the other, and a mark where each new round began."""
    width, height = _CHART
    top = max(history.peak, wanted, 1)
    steps = _steps(history, begin, end)
    base = [0] * len(steps)
    areas = []
    for i in range(len(history.tasks)):
        upper = [low + step.running[i] for low, (_, step) in zip(base, steps, strict=True)]
        areas.append(_area(steps, upper, base, size=_CHART, top=top, class_=f"t{i % 4}"))
        base = upper
    span = max(end - begin, 1.0)
    marks = [
        el("path", d=f"M{(at - begin) / span * width:.1f} 0V{height:g}", class_="round")
        for at in history.rounds
        if begin <= at <= end
    ]
    return el(
        "svg",
        el("title", words),
        *(el("path", d=f"M0 {_y(n, height, top)}H{width:g}", class_="grid") for n in _lines(top)),
        _area(steps, [s.total + s.waiting for _, s in steps], None, size=_CHART, top=top, class_="wait"),
        *areas,
        *marks,
        el("path", d=f"M0 {_y(wanted, height, top)}H{width:g}", class_="want") if wanted else None,
        class_="chart", viewBox=f"0 0 {width:g} {height:g}", preserveAspectRatio="none", role="img", aria_label=words,
    )  # fmt: skip


def _lines(top: int) -> list[int]:
    step = max(1, -(-top // 4))
    return list(range(step, top + 1, step))


def bar(node: NodeLine, resource: str) -> Markup:
    """What is held of one resource of a node, and by whom: a place for each device if they are few, else one bar."""
    allocatable, used = node.allocatable.get(resource, 0.0), node.used.get(resource, 0.0)
    words = f"{amounts.short(resource)}: {amounts.text(resource, used)} of {amounts.text(resource, allocatable)} held"
    whole = max(allocatable, used, 1e-9)
    pieces: list[Markup] = []
    at = 0.0
    for holder in node.holders:
        amount = holder.request.get(resource, 0.0)
        if amount <= 0:
            continue
        name = holder.key or "other pods"
        pieces.append(
            el(
                "rect",
                el("title", f"{name}: {amounts.text(resource, amount)}"),
                x=f"{at / whole * 1000:.1f}",
                y=0,
                width=f"{amount / whole * 1000:.1f}",
                height=12,
                class_=colour(holder.colour),
            )
        )
        at += amount
    lines: list[Markup] = []
    if amounts.is_device(resource) and 1 < whole <= _MOST_PLACES:
        lines = [el("path", d=f"M{i / whole * 1000:.1f} 0V12", class_="gap") for i in range(1, round(whole))]
    return el(
        "svg", el("title", words), el("rect", x=0, y=0, width=1000, height=12, class_="free"), *pieces, *lines,
        class_="bar", viewBox="0 0 1000 12", preserveAspectRatio="none", role="img", aria_label=words,
    )  # fmt: skip


def colour(number: int) -> str:
    """The class of a job's colour; of all that has none, that of others."""
    return f"c{number}" if number >= 0 else "other"


def clock(at: float) -> str:
    """A time (seconds since 1970) for people, in UTC."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC") if at > 0 else "–"


def _steps(history: History, begin: float, end: float) -> list[tuple[float, Step]]:
    """Each step with its place from 0 to 1, and the last one again at the end."""
    span = max(end - begin, 1.0)
    out = [(min(max((step.at - begin) / span, 0.0), 1.0), step) for step in history.steps]
    return [*out, (1.0, out[-1][1])] if out else []


def _area(
    steps: Sequence[tuple[float, Step]],
    upper: Sequence[int],
    lower: Sequence[int] | None,
    *,
    size: tuple[float, float],
    top: int,
    class_: str,
) -> Markup | None:
    """A stepped area; None where it is nowhere higher than its base."""
    width, height = size
    base = lower if lower is not None else [0] * len(upper)
    if all(high <= low for high, low in zip(upper, base, strict=True)):
        return None
    xs = [f"{place * width:.1f}" for place, _ in steps]
    path = [f"M{xs[0]} {_y(base[0], height, top)}V{_y(upper[0], height, top)}"]
    path += [f"H{x}V{_y(high, height, top)}" for x, high in zip(xs[1:], upper[1:], strict=True)]
    path.append(f"V{_y(base[-1], height, top)}")
    # Back along the base, which holds its number from each step to the next.
    for i in range(len(xs) - 2, -1, -1):
        path.append(f"V{_y(base[i], height, top)}H{xs[i]}")
    return el("path", d="".join(path) + "Z", class_=class_)


def _line(
    steps: Sequence[tuple[float, Step]], upper: Sequence[int], *, size: tuple[float, float], top: int
) -> Markup | None:
    """The upper edge of an area."""
    if not any(upper):
        return None
    width, height = size
    pairs = [(f"{place * width:.1f}", _y(high, height, top)) for (place, _), high in zip(steps, upper, strict=True)]
    path = f"M{pairs[0][0]} {pairs[0][1]}" + "".join(f"H{x}V{y}" for x, y in pairs[1:])
    return el("path", d=path, class_="edge")


def _y(value: float, height: float, top: int) -> str:
    # A line at the very top would be cut in half.
    return f"{(height - 2) * (1 - value / top) + 1.5:.1f}"
