"""Fixtures of the command line's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from tests.cli.runner import Cli, cli


@pytest.fixture
def diflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cli]:
    """`diflow` with a fake API server behind it, and no settings of the developer's own."""
    for name in ("KUBECONFIG", "NO_COLOR", "FORCE_COLOR", "DIFLOW_DEBUG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    # A daemon that a test runs beside the command shares its stdout: without its logs, that has the command's output
    # alone.
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    with cli(tmp_path) as found:
        yield found
    structlog.reset_defaults()  # a command may have said how this process logs
