"""Hera definitions: a DIJob becomes one Argo Workflow.

Pure: the same job and settings give the same bytes, and no request is sent. Names are imported on first use, because
Hera takes half a second to import and only `job` needs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from diflow.workflows.job import build, render, to_yaml

__all__ = ["build", "render", "to_yaml"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'diflow.workflows' has no attribute {name!r}")
    from diflow.workflows import job  # noqa: PLC0415

    return getattr(job, name)
