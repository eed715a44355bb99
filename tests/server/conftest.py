"""Fixtures of the server's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from tests.kube.fakeapi import serving
from tests.server.place import Place

_HERE = Path(__file__).parent
# Servers and browsers are separate processes, which a busy machine may slow down, as on a cluster.
_LIVE = ("test_serving_", "test_browser")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A second try, as for tests on a cluster: the summary shows what went wrong at the first (tests/conftest.py)."""
    for item in items:
        if _HERE in item.path.parents and item.path.name.startswith(_LIVE):
            item.add_marker(pytest.mark.flaky(reruns=1))


@pytest.fixture(autouse=True)
def _plain_log() -> Iterator[None]:
    """Other tests in the same process may have configured logging."""
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()


@pytest.fixture
def place() -> Iterator[Place]:
    """An empty fake cluster, and a server over it."""
    with serving() as api:
        yield Place(api)
