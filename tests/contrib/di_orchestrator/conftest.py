"""Fixtures of the tests of jobs with a coordinator: those of the server's tests."""

from __future__ import annotations

from tests.server.conftest import _plain_log, place

__all__ = ["_plain_log", "place"]
