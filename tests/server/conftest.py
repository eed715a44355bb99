"""What the tests of the server share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.server.place import Place
from tests.unit.fakeapi import serving


@pytest.fixture
def place() -> Iterator[Place]:
    """An empty fake cluster, and a server over it."""
    with serving() as api:
        yield Place(api)
