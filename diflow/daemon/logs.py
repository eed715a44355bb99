"""The log format of diflow's daemons: one line each on stderr, as JSON or as text. Needs structlog."""

from __future__ import annotations

import sys
from typing import Any, Literal

import structlog

LogFormat = Literal["text", "json"]


def configure_log(form: LogFormat | None, *, level: str = "info") -> None:
    """Write log lines to stderr: JSON, one object per line, or text; by default text only on a terminal."""
    text = form == "text" or (form is None and sys.stderr.isatty())
    shown: list[Any] = (
        [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
        if text
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(ensure_ascii=False)]
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *shown,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
    )
