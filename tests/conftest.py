"""Shared by all tests: the real clusters, and the distribution of a run over processes.

`make test` runs what a change needs at once: the short tests, and the main paths on a cluster with one version of Argo.
What is `slow`, `extended` or on the other version is left to `make test-all`.

Tests on a real cluster (marked `cluster`) wait most of their time, so both run some of them side by side, in
processes of pytest-xdist which share one cluster for each version of Argo. Tests of one `xdist_group` run one after the
other: those that need much of the node's processors are the group "node", and those that share a fixture that is slow
to make, such as an allocator, are a group for each such fixture. The long groups start first, so that none is left
alone at the end (`_GROUPS`; xdist's own order, by the number of tests, is turned off in the Makefile). For the same
reason the slow tests are the first of those that need no cluster. Of these, tests that share a fixture of their file
are a group of that file: each process would make the fixture once more, such as an installed package or a server.

A test on a real cluster that fails is run once more, with a fresh namespace, and counts as passed if it holds then. The
clusters share their machine with whatever else runs there, and a machine that stands still for a while is no fault of
diflow's. The summary shows what went wrong at the first try, so that a test that often needs two is noticed.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings

from tests import clusters, measuring
from tests.clusters import TestCluster, cluster_of_run

_VERSIONS = {"argo40": "4.0.7", "argo37": "3.7.3"}
# The longest first; those of two minutes or less in any order.
_GROUPS = (
    "allocator", "allocator-fake", "node", "server", "ddp", "health", "argo40", "argo37", "installed", "successor",
    "image", "roles", "browser", "dingine", "node_check", "monitor", "stopping",
)  # fmt: skip


_COLLECT_AFTER_OBJECTS = 200_000
_COMPILED_SECONDS = 180.0


def pytest_configure(config: pytest.Config) -> None:
    """Name the run, by which its processes find its clusters; no deadlines for Hypothesis on a slow machine."""
    # With the default threshold, the collector takes a third of the time in which tests are read.
    gc.set_threshold(_COLLECT_AFTER_OBJECTS, 50, 50)
    settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("patient")
    if _is_main(config):
        clusters.begin_run()
        clusters.start_early(_known())  # one process reads the tests, so a processor is free


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """In a new checkout, one process of a parallel run compiles the tests, and the others read what it has compiled.

    Pytest takes longer to rewrite the assertions of a test file than to do all the rest with it, and the processes
    would all do so at the same time.
    """
    if _is_main(session.config) or sys.dont_write_bytecode:
        return (yield)
    compiled = clusters.compiled_file()
    if session.config.workerinput["workerid"] == "gw0":  # type: ignore[attr-defined]
        try:
            return (yield)
        finally:
            compiled.touch()
    ends = time.monotonic() + _COMPILED_SECONDS
    while not compiled.exists() and time.monotonic() < ends:
        time.sleep(0.1)
    return (yield)


@pytest.hookimpl(specname="pytest_collection_modifyitems", tryfirst=True)
def pytest_keep_fixtures_in_one_process(items: list[pytest.Item]) -> None:
    """Make a group of the tests of a file that share its fixtures, before pytest-xdist looks at the groups; and mark
    those on the other version of Argo, before pytest chooses by marks."""
    for item in items:
        if _VERSIONS["argo37"] in _needs(item):
            item.add_marker(pytest.mark.extended)
        if item.get_closest_marker("xdist_group") is None and _shares_a_fixture(item):
            item.add_marker(pytest.mark.xdist_group(str(item.path.relative_to(clusters.ROOT))))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Retry tests on a cluster once, measure no slow test, and let no process wait for a cluster needlessly."""
    for item in items:
        # One probe serves all tests of its findings, and has a retry of its own.
        runs_jobs = _is_live(item) and not _probes(item)
        if runs_jobs:
            item.add_marker(pytest.mark.flaky(reruns=1))
        # Measuring coverage doubles the processor time of what is measured. The short tests without a cluster reach the
        # lines that all tests reach, but for a few and for the probe of Argo: the coverage is at least what they show.
        if _is_slow(item) or runs_jobs:
            item.add_marker(pytest.mark.no_cover)
    places = {item: _place(item) for item in items}  # also here, as xdist does not show an error of its processes
    # In parallel, the short tests run last, and keep all processes busy; in one process, while clusters start.
    if _is_main(config):
        items.sort(key=_is_live)
    else:
        items.sort(key=lambda item: (places[item], not _is_live(item), not _is_slow(item)))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Start the clusters that the tests need, in the background."""
    config = session.config
    if config.pluginmanager.hasplugin("_cov"):
        measuring.import_rooms()
    # The tests and all modules live until the end: no later collection visits them again.
    gc.collect()
    gc.freeze()
    if config.getoption("loadgroup", default=False):
        for item in session.items:
            if item.get_closest_marker("xdist_group") and "@" not in item.nodeid:
                raise pytest.UsageError(f"pytest-xdist does not know the group of {item.nodeid}: see pyproject.toml")
    first = _is_main(config) or config.workerinput["workerid"] == "gw0"  # type: ignore[attr-defined]
    if first and not config.getoption("collectonly"):
        clusters.start_early({version for item in session.items for version in _needs(item)} - _known())


def pytest_runtest_setup() -> None:
    """Measure only what tests run in this process; pytest-cov has begun by now."""
    measuring.keep_to_this_process()


def pytest_sessionfinish() -> None:
    """Stop the clusters that are still starting."""
    clusters.stop_starting()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Delete the clusters when all processes have ended."""
    if _is_main(config):
        clusters.end_run()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show the first failure of tests that were retried."""
    reports = terminalreporter.stats.get("rerun", [])
    if reports:
        terminalreporter.section("run a second time")
        for report in reports:
            terminalreporter.write_line(f"{report.nodeid} ({report.when}):", yellow=True)
            terminalreporter.write_line(report.longreprtext)


@pytest.fixture(scope="session")
def argo40() -> TestCluster:
    """A real cluster with Argo Workflows 4.0.7."""
    return cluster_of_run(_VERSIONS["argo40"])


@pytest.fixture(scope="session")
def argo37() -> TestCluster:
    """A real cluster with Argo Workflows 3.7.3."""
    return cluster_of_run(_VERSIONS["argo37"])


def _is_main(config: pytest.Config) -> bool:
    return not hasattr(config, "workerinput")


def _known() -> set[str]:
    """The versions of Argo of which it is known, before the tests have been read, that some need their cluster."""
    return {_VERSIONS[name] for name in os.environ.get("DIFLOW_TEST_CLUSTERS", "").split()}


def _place(item: pytest.Item) -> int:
    """The position of a test's group among the groups that start first."""
    marker = item.get_closest_marker("xdist_group")
    if marker is None:
        return len(_GROUPS)
    (group,) = marker.args
    if group not in _GROUPS and _shares_a_fixture(item):
        return len(_GROUPS)
    if group not in _GROUPS:
        raise pytest.UsageError(f"{item.nodeid}: tests/conftest.py does not say when the group {group!r} starts")
    return _GROUPS.index(group)


def _is_live(item: pytest.Item) -> bool:
    return item.get_closest_marker("cluster") is not None


def _probes(item: pytest.Item) -> bool:
    """Whether it is about what the conformance probe finds."""
    return "findings" in item.fixturenames  # type: ignore[attr-defined]


def _is_slow(item: pytest.Item) -> bool:
    return item.get_closest_marker("slow") is not None


def _shares_a_fixture(item: pytest.Item) -> bool:
    """Whether it needs no cluster, and uses a fixture that is made once for its file."""
    if _is_live(item) or not isinstance(item, pytest.Function):
        return False
    used = item._fixtureinfo.name2fixturedefs.values()
    return any(definition.scope == "module" for found in used for definition in found)


def _needs(item: pytest.Item) -> set[str]:
    """The versions of Argo whose clusters a test uses."""
    asked = set(getattr(item, "fixturenames", ()))
    if hasattr(item, "callspec"):
        asked.add(str(item.callspec.params.get("argo")))
    return {version for fixture, version in _VERSIONS.items() if fixture in asked}
