"""The small pictures of the page, as SVG: a job's replicas over time, and the use of a node.

Colours are classes, so that they follow the light or dark style; each picture says in words what it shows.
"""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from diflow.common.words import quantity
from diflow.server.page import resources
from diflow.server.page.board import NodeLine
from diflow.server.page.history import History, Step
from diflow.server.page.texts import displayable

_SPARK = (160.0, 36.0)
_CHART = (720.0, 150.0)
_MOST_PLACES = 16  # more devices than this on one node become a bar


def spark(history: History, *, desired: int, begin: float, end: float, words: str) -> Markup:
    """Replicas over the job's life: running ones dark, waiting ones light, and a line at the desired number."""
    width, height = _SPARK
    top = max(history.peak, desired, 1)
    steps = _steps(history, begin, end)
    pieces = [
        _area(steps, [s.total + s.waiting for _, s in steps], None, size=_SPARK, top=top, class_="wait"),
        _area(steps, [s.total for _, s in steps], None, size=_SPARK, top=top, class_="run"),
        _edge(steps, [s.total for _, s in steps], size=_SPARK, top=top),
        _level(desired, size=_SPARK, top=top, class_="want") if desired else "",
    ]
    return _svg(pieces, class_="spark", width=width, height=height, words=words)


def chart(history: History, *, desired: int, begin: float, end: float, words: str) -> Markup:
    """The same, larger, with the tasks stacked, and a mark at the start of each new round."""
    width, height = _CHART
    top = max(history.peak, desired, 1)
    steps = _steps(history, begin, end)
    pieces = [_level(n, size=_CHART, top=top, class_="grid") for n in _lines(top)]
    pieces.append(_area(steps, [s.total + s.waiting for _, s in steps], None, size=_CHART, top=top, class_="wait"))
    base = [0] * len(steps)
    for i in range(len(history.tasks)):
        upper = [low + step.running[i] for low, (_, step) in zip(base, steps, strict=True)]
        pieces.append(_area(steps, upper, base, size=_CHART, top=top, class_=f"t{i % 4}"))
        base = upper
    span = max(end - begin, 1.0)
    for at in history.rounds:
        if begin <= at <= end:
            pieces.append(_path(f"M{(at - begin) / span * width:.1f} 0V{height:g}", "round"))
    if desired:
        pieces.append(_level(desired, size=_CHART, top=top, class_="want"))
    return _svg(pieces, class_="chart", width=width, height=height, words=words)


def _lines(top: int) -> list[int]:
    step = max(1, -(-top // 4))
    return list(range(step, top + 1, step))


def bar(node: NodeLine, resource: str) -> Markup:
    """The use of one resource of a node, by job: a place for each device if there are few, else one bar."""
    allocatable, used = node.allocatable.get(resource, 0.0), node.used.get(resource, 0.0)
    words = f"{resources.short(resource)}: {quantity(resource, used)} of {quantity(resource, allocatable)} held"
    whole = max(allocatable, used, 1e-9)
    pieces = [Markup('<rect x="0" y="0" width="1000" height="12" class="free"/>')]
    at = 0.0
    for holder in node.holders:
        amount = holder.request.get(resource, 0.0)
        if amount <= 0:
            continue
        name = f"{holder.key or 'other pods'}: {quantity(resource, amount)}"
        pieces.append(
            Markup('<rect x="{:.1f}" y="0" width="{:.1f}" height="12" class="{}"><title>{}</title></rect>').format(
                at / whole * 1000, amount / whole * 1000, colour(holder.colour), displayable(name)
            )
        )
        at += amount
    if resources.is_device(resource) and 1 < whole <= _MOST_PLACES:
        pieces += [_path(f"M{i / whole * 1000:.1f} 0V12", "gap") for i in range(1, round(whole))]
    return _svg(pieces, class_="bar", width=1000, height=12, words=words)


def colour(number: int) -> str:
    """The class of a job's colour; -1: that of other pods."""
    return f"c{number}" if number >= 0 else "other"


def _svg(pieces: Sequence[str], *, class_: str, width: float, height: float, words: str) -> Markup:
    """A picture that says in words what it shows."""
    return Markup(
        '<svg class="{0}" viewBox="0 0 {1:g} {2:g}" preserveAspectRatio="none" role="img" aria-label="{3}">'
        "<title>{3}</title>{4}</svg>"
    ).format(class_, width, height, displayable(words), Markup("").join(pieces))


def _path(d: str, class_: str) -> Markup:
    return Markup('<path d="{}" class="{}"/>').format(d, class_)


def _level(value: int, *, size: tuple[float, float], top: int, class_: str) -> Markup:
    """A horizontal line at a number of replicas."""
    return _path(f"M0 {_y(value, size[1], top)}H{size[0]:g}", class_)


def _steps(history: History, begin: float, end: float) -> list[tuple[float, Step]]:
    """(position from 0 to 1, step) for each step, and the last one again at 1."""
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
) -> Markup:
    """A stepped area; empty if it is nowhere higher than its base."""
    width, height = size
    base = lower if lower is not None else [0] * len(upper)
    if all(high <= low for high, low in zip(upper, base, strict=True)):
        return Markup("")
    xs = [f"{place * width:.1f}" for place, _ in steps]
    path = [f"M{xs[0]} {_y(base[0], height, top)}V{_y(upper[0], height, top)}"]
    path += [f"H{x}V{_y(high, height, top)}" for x, high in zip(xs[1:], upper[1:], strict=True)]
    path.append(f"V{_y(base[-1], height, top)}")
    # Back along the base, whose number is constant from each step to the next.
    for i in range(len(xs) - 2, -1, -1):
        path.append(f"V{_y(base[i], height, top)}H{xs[i]}")
    return _path("".join(path) + "Z", class_)


def _edge(steps: Sequence[tuple[float, Step]], upper: Sequence[int], *, size: tuple[float, float], top: int) -> Markup:
    """The upper edge of an area; empty if it is 0 everywhere."""
    if not any(upper):
        return Markup("")
    width, height = size
    pairs = [(f"{place * width:.1f}", _y(high, height, top)) for (place, _), high in zip(steps, upper, strict=True)]
    return _path(f"M{pairs[0][0]} {pairs[0][1]}" + "".join(f"H{x}V{y}" for x, y in pairs[1:]), "edge")


def _y(value: float, height: float, top: int) -> str:
    # A line at the very top would be cut in half.
    return f"{(height - 2) * (1 - value / top) + 1.5:.1f}"
