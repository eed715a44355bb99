"""Hera definitions: a DIJob becomes one Argo Workflow, or a step of a larger one.

Pure: the same job and settings give the same bytes, and no request is sent. Names are imported on first use, because
Hera takes half a second to import and only `job` and `step` need it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from diflow.workflows.job import build, render, to_yaml
    from diflow.workflows.steps import step

_HOME = dict.fromkeys(("build", "render", "to_yaml"), "diflow.workflows.job") | {"step": "diflow.workflows.steps"}

__all__ = ["build", "render", "step", "to_yaml"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'diflow.workflows' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
