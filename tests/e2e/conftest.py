"""Jobs on the real cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clusters import TestCluster
from tests.e2e.live import Live

_HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests of this folder need a cluster, and the first of them has to start it."""
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.cluster)
            item.add_marker(pytest.mark.timeout(1200))


@pytest.fixture(scope="module")
def shared(argo40: TestCluster) -> Iterator[Live]:
    """A namespace of its own on the cluster, for the tests of one file."""
    with argo40.namespace("e2e") as namespace:
        yield Live(argo40, namespace)


@pytest.fixture
def live(request: pytest.FixtureRequest, argo40: TestCluster) -> Iterator[Live]:
    """The file's namespace; for a second try of the same test, one in which the first has left nothing."""
    if getattr(request.node, "execution_count", 1) > 1:
        with argo40.namespace("e2e") as namespace:
            yield Live(argo40, namespace)
    else:
        yield request.getfixturevalue("shared")
