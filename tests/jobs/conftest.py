"""The verbs are tested with the fake API server that the command line's tests have."""

from __future__ import annotations

from tests.cli.conftest import diflow

__all__ = ["diflow"]
