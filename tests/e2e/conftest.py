"""Jobs on the real cluster."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.clusters import TestCluster
from tests.e2e.allocators import Daemon
from tests.e2e.live import Live

_HERE = Path(__file__).parent
_TOLD = 80
"""Lines of each log that a failed test shows."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests of this folder need a cluster. The first one starts it."""
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.cluster)
            item.add_marker(pytest.mark.timeout(1200))


@pytest.fixture(scope="module")
def shared(argo40: TestCluster) -> Iterator[Live]:
    """A separate namespace on the cluster for the tests of each file."""
    with argo40.namespace("e2e") as namespace:
        yield Live(argo40, namespace)


@pytest.fixture
def live(request: pytest.FixtureRequest, argo40: TestCluster) -> Iterator[Live]:
    """The file's namespace; a new one for the second try of a test."""
    if getattr(request.node, "execution_count", 1) > 1:
        with argo40.namespace("e2e") as namespace:
            yield Live(argo40, namespace)
    else:
        yield request.getfixturevalue("shared")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the allocator's log and the namespace's objects after a failure."""
    report = yield
    if report.failed and report.when == "call":
        used = getattr(item, "funcargs", {})
        running, live = used.get("running"), used.get("live")
        if isinstance(running, Daemon) and running.log.exists():
            report.sections.append(("the allocator's log", "\n".join(running.log.read_text().splitlines()[-_TOLD:])))
        if isinstance(live, Live):
            for what in ("workflows", "pods", "events"):
                found = live.kubectl("get", what, "-o", "wide", "--sort-by=.metadata.creationTimestamp", check=False)
                report.sections.append((what, "\n".join(found.splitlines()[-_TOLD:])))
    return report
