"""diflow: elastic, multi-role training jobs (DIJob) on Argo Workflows.

This module has the whole public API. Names are imported on first use, so that commands that need none of them start
fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from diflow.errors import (
        ConflictError,
        DiflowError,
        InvalidError,
        JobFailedError,
        NotFoundError,
        UnauthorizedError,
        UnavailableError,
    )
    from diflow.job import DIJob, Task, UnknownFieldWarning

_HOME = {
    "ConflictError": "diflow.errors",
    "DIJob": "diflow.job",
    "DiflowError": "diflow.errors",
    "InvalidError": "diflow.errors",
    "JobFailedError": "diflow.errors",
    "NotFoundError": "diflow.errors",
    "Task": "diflow.job",
    "UnauthorizedError": "diflow.errors",
    "UnavailableError": "diflow.errors",
    "UnknownFieldWarning": "diflow.job",
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
