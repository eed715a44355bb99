"""The page as HTML, from the Jinja2 templates in templates/.

Autoescape is on, so all values are text, except the pictures of `drawing` and the output of a template. An undefined
name is an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from diflow.common.durations import span
from diflow.common.words import DEFAULT_QUEUE, quantity
from diflow.record.untrusted import seconds
from diflow.server.page import drawing, resources, texts
from diflow.server.page.board import FILTERS, Board, JobLine
from diflow.version import __version__

_HERE: Final = Path(__file__).parent
_RELOAD_SECONDS: Final = 10
# A sign besides the colour, for people who cannot distinguish the colours, and for print.
_SIGNS: Final = {
    "Pending": "○", "Starting": "◔", "Running": "●", "Restarting": "↻", "Rescheduling": "⇄", "Succeeded": "✓",
    "Failed": "✕", "Unknown": "?",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Freshness:
    """The age of the caches. `trouble` is why they are not current, or "".

    `is_synced`: everything has been listed once. `is_stale`: too old to answer from (the API answers 503).
    """

    age_seconds: float = 0.0
    is_synced: bool = True
    is_stale: bool = False
    trouble: str = ""


def content(board: Board, freshness: Freshness, *, now: float, argo_url: str = "") -> Markup:
    """The part of the page that changes. `now` is seconds since 1970, `argo_url` the address of the Argo UI."""
    job = board.opened.line.facts if board.opened else None
    link = texts.argo_link(argo_url, job.namespace, job.record.identity.name) if job else ""
    return _render("board.html", board=board, freshness=freshness, now=now, link=link)


def page(content: Markup, *, tag: str, nonce: str, name: str, is_old: bool, every_seconds: float) -> str:
    """The status page. `tag` is the entity tag of `content`, `name` the visitor's name."""
    return _render(
        "page.html", title="diflow", content=content, tag=tag, nonce=nonce, name=name, is_old=is_old,
        every_seconds=every_seconds, reload_seconds=_RELOAD_SECONDS,
    )  # fmt: skip


def sign_in(*, nonce: str, problem: str = "", is_open: bool = False) -> str:
    """The sign-in page. `problem` is why the last attempt failed; `is_open`: the connection is not encrypted."""
    return _render("sign_in.html", title="diflow: sign in", nonce=nonce, problem=problem, is_open=is_open)


def message(heading: str, words: str, *, nonce: str, reload: bool = True) -> str:
    """A page with only a message. `reload`: it tries again by itself."""
    return _render(
        "message.html", title=f"diflow: {heading}", heading=heading, words=words, nonce=nonce,
        reload_seconds=_RELOAD_SECONDS if reload else 0,
    )  # fmt: skip


def _spark(line: JobLine, now: float) -> Markup:
    job = line.facts
    words = f"{job.ready} replicas run, {job.granted} granted, {texts.ranged(job)} asked for; peak {job.history.peak}"
    return drawing.spark(job.history, desired=line.line_at, begin=line.begin, end=job.finished or now, words=words)


def _chart(line: JobLine, now: float) -> Markup:
    job = line.facts
    words = f"Replicas of {job.name} over time, by task; at most {job.history.peak}"
    return drawing.chart(job.history, desired=line.line_at, begin=line.begin, end=job.finished or now, words=words)


def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader([_HERE / "templates", _HERE]),  # the second one for page.css and page.js
        autoescape=True,
        undefined=StrictUndefined,
        finalize=texts.displayable,
        auto_reload=False,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "age": span, "clock": texts.clock, "rate": texts.rate, "percent": "{:.0%}".format, "amount": quantity,
        "seconds": seconds, "ranged": texts.ranged, "short": resources.short,
        "colour": drawing.colour, "bar": drawing.bar, "spark": _spark, "chart": _chart,
    }  # fmt: skip
    made.globals |= {
        "signs": _SIGNS, "filters": FILTERS, "default_queue": DEFAULT_QUEUE, "version": __version__,
        "is_old": False, "reload_seconds": 0,
    }  # fmt: skip
    return made


_ENVIRONMENT: Final = _environment()


def _render(template: str, **values: Any) -> Markup:
    return Markup(_ENVIRONMENT.get_template(template).render(values))  # noqa: S704 (autoescape has escaped the values)
