"""Values as text for people: times, rates, links, and text from users that a page can show."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote, urlsplit

from markupsafe import Markup

from diflow.record.status.row import JobRow, TaskRow

_ODD: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufffe\uffff\ud800-\udfff]"
)


def displayable(value: Any) -> Any:
    """The value; in text, characters that HTML cannot contain, or that change the text's direction, are replaced."""
    return _ODD.sub("�", value) if isinstance(value, str) and not isinstance(value, Markup) else value


def clock(at: float) -> str:
    """A time (seconds since 1970) in UTC."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC") if at > 0 else "–"


def ranged(row: JobRow | TaskRow) -> str:
    """The replicas that are asked for: `3`, `2–8`."""
    return row.range_text.replace("-", "–")


def rate(value: float | None) -> str:
    """Samples per second: `340/s`, `12.5k/s`."""
    if value is None:
        return "–"
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{unit}/s" if value < 1e12 else "> 1000G/s"
    return f"{value:.3g}/s"


def argo_link(base: str, namespace: str, workflow: str) -> str:
    """The address of a Workflow in the Argo UI, "" if `base` is not an address of the web."""
    if urlsplit(base).scheme not in ("http", "https"):
        return ""
    return "/".join(
        (base.rstrip("/"), "workflows", *(quote(n, safe="", errors="replace") for n in (namespace, workflow)))
    )
