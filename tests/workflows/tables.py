"""The tables of fields in the documentation, which are made from the models."""

from __future__ import annotations

import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel

from diflow.controller.crd import IN_METADATA
from diflow.dijob import model as model_module

_DOCS: Final = Path(__file__).resolve().parents[2] / "docs"
_PAGES: Final = (_DOCS / "jobs.md", _DOCS / "health.md")
_TABLE: Final = re.compile(r"(<!-- fields of (\w+) \(`make golden`\) -->\n).*?(<!-- end of fields -->)", re.DOTALL)
_ELSEWHERE: Final = {
    "spec.tasks[].maxMemory": "#failure-policies",
    "spec.backoffLimit": "#what-counts-as-a-failure",
    "spec.queue": "policies.md#how-fair-decides",
    "spec.topology": "#jobs-in-one-rack",
    "spec.nodeCheck": "#a-check-of-the-nodes",
    "spec.monitor": "#reports-without-a-line-of-code",
    "spec.failurePolicy": "#failure-policies",
    "spec.health": "health.md",
    "spec.pendingSeconds": "#pods-that-do-not-start",
}
"""Where more is said of a field."""
_OWN_PAGE: Final = ("Health",)
"""Models whose fields are in a table of their own."""


def pages() -> dict[Path, str]:
    """The expected pages, by file."""

    def table(found: re.Match[str]) -> str:
        rows = "".join(_rows(getattr(model_module, found[2])))
        return f"{found[1]}| Field | Default | Meaning |\n|---|---|---|\n{rows}{found[3]}"

    return {path: _TABLE.sub(table, path.read_text(encoding="utf-8")) for path in _PAGES}


def _rows(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for field in model.model_fields.values():
        path = f"{prefix}{field.alias}"
        if model is model_module.DIJob:
            path = f"metadata.{path}" if path in IN_METADATA else f"spec.{path}"
        name = f"[`{path}`]({_ELSEWHERE[path]})" if path in _ELSEWHERE else f"`{path}`"
        if field.description is not None:
            yield f"| {name} |{_default(field.default)} | {field.description} |\n"
        for inner in typing.get_args(field.annotation):
            if isinstance(inner, type) and issubclass(inner, BaseModel) and inner.__name__ not in _OWN_PAGE:
                yield from _rows(inner, f"{path}[]." if inner is model_module.Task else f"{path}.")


def _default(value: Any) -> str:
    if isinstance(value, bool):
        return f" `{str(value).lower()}`"
    if isinstance(value, int):
        return f" {value}"
    return f" `{value}`" if isinstance(value, str) and value else ""
