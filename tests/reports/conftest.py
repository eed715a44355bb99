"""The reports about commands use the fake API server of the command line's tests."""

from __future__ import annotations

from tests.cli.conftest import diflow

__all__ = ["diflow"]
