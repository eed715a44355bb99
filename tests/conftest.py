"""What all tests share: the real clusters, each started at most once for a run and only when a test asks for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.clusters import TestCluster, cluster


@pytest.fixture(scope="session")
def argo40() -> Iterator[TestCluster]:
    """A real cluster with Argo Workflows 4.0.2."""
    with cluster("4.0.2") as found:
        yield found


@pytest.fixture(scope="session")
def argo37() -> Iterator[TestCluster]:
    """A real cluster with Argo Workflows 3.7.3."""
    with cluster("3.7.3") as found:
        yield found
