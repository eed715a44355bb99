"""The coverage of processes that tests start.

coverage.py measures every process that inherits its variable. Most tests start processes for what happens outside of
them, and hundreds of commands would each spend a second on being measured, so the variable is taken away at the start.
Tests of a program that runs nowhere else give it back to that program.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pkgutil

import diflow

_VARIABLE = "COVERAGE_PROCESS_CONFIG"
_configuration: str | None = None


def keep_to_this_process() -> None:
    """Measure no process that is started from now on, unless it gets `variables`."""
    global _configuration  # noqa: PLW0603 - the state of a process
    _configuration = os.environ.pop(_VARIABLE, _configuration)


def variables() -> dict[str, str]:
    """The variables of a process that is to be measured; empty if nothing is."""
    return {} if _configuration is None else {_VARIABLE: _configuration}


def import_rooms() -> None:
    """Import each module of the product, so that the statements that an import runs are measured.

    Tests that are not measured share their process with those that are. A module that one of the former imports first
    has run its definitions by the time that it is measured, and they would count as never run.
    """
    for module in pkgutil.walk_packages(diflow.__path__, f"{diflow.__name__}."):
        if module.name.rpartition(".")[2] == "__main__":
            continue
        with contextlib.suppress(ModuleNotFoundError):  # of an optional package such as torch
            importlib.import_module(module.name)
