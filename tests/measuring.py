"""The coverage of processes that tests start.

coverage.py measures every process that inherits its variable. Most tests start processes for what happens outside of
them, and hundreds of commands would each spend a second on being measured, so the variable is taken away at the start.
Tests of a program that runs nowhere else give it back to that program.
"""

from __future__ import annotations

import os

_VARIABLE = "COVERAGE_PROCESS_CONFIG"
_configuration: str | None = None


def keep_to_this_process() -> None:
    """Measure no process that is started from now on, unless it gets `variables`."""
    global _configuration  # noqa: PLW0603 - the state of a process
    _configuration = os.environ.pop(_VARIABLE, _configuration)


def variables() -> dict[str, str]:
    """The variables of a process that is to be measured; empty if nothing is."""
    return {} if _configuration is None else {_VARIABLE: _configuration}
