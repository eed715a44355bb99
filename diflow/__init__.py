"""diflow: elastic, multi-role training jobs (DIJob) on Argo Workflows.

This module has the whole public API. Names are imported on first use, so that commands that need none of them start
fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from diflow.common.errors import (
        ConflictError,
        DiflowError,
        InvalidError,
        JobFailedError,
        NotFoundError,
        UnauthorizedError,
        UnavailableError,
    )
    from diflow.dijob.model import Task, UnknownFieldWarning
    from diflow.jobs.verbs import DIJob

_HOME = {
    "ConflictError": "diflow.common.errors",
    "DIJob": "diflow.jobs.verbs",
    "DiflowError": "diflow.common.errors",
    "InvalidError": "diflow.common.errors",
    "JobFailedError": "diflow.common.errors",
    "NotFoundError": "diflow.common.errors",
    "Task": "diflow.dijob.model",
    "UnauthorizedError": "diflow.common.errors",
    "UnavailableError": "diflow.common.errors",
    "UnknownFieldWarning": "diflow.dijob.model",
}

__all__ = [
    "ConflictError",
    "DIJob",
    "DiflowError",
    "InvalidError",
    "JobFailedError",
    "NotFoundError",
    "Task",
    "UnauthorizedError",
    "UnavailableError",
    "UnknownFieldWarning",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'diflow' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
