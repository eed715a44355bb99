"""One probe of all facts for each version of Argo; the tests check its findings."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from diflow.kube.api import Cluster
from diflow.labs.conformance import Finding, ProbeSettings, probe
from tests.builders import IMAGE
from tests.clusters import TestCluster

_LOG = logging.getLogger(__name__)
_HERE = Path(__file__).parent
# Everything that may stand in a Kubernetes object: no lone surrogates (invalid in UTF-8) and no NUL.
_ANY = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
_PARTS = st.sampled_from(
    ["{", "{{", "{{{", "}", "}}", "{{x}}", "{{=1+1}}", "{{item}}", "=", '"', "'", "\\", "\\u007b", "$", "$(", ")", "\n"]
)
_TEXTS = st.lists(_PARTS | _ANY, max_size=8).map("".join)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests of this folder need a cluster; the first on each starts it and waits for the probe."""
    for item in items:
        if item.path.parent == _HERE:
            item.add_marker(pytest.mark.cluster)
            item.add_marker(pytest.mark.timeout(1800))
            if isinstance(item, pytest.Function):
                # One process runs the probe of a version for all tests of its findings.
                item.add_marker(pytest.mark.xdist_group(item.callspec.params["argo"]))


@pytest.fixture(scope="session", params=["argo40", "argo37"], ids=["argo-4.0.7", "argo-3.7.3"])
def argo(request: pytest.FixtureRequest) -> TestCluster:
    """A real cluster, once with each version of Argo."""
    found: TestCluster = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="session")
def namespace(argo: TestCluster) -> Iterator[str]:
    """A namespace of its own that may run DIJobs."""
    with argo.namespace("conformance") as name:
        yield name


@pytest.fixture(scope="session")
def findings(argo: TestCluster, namespace: str) -> Mapping[int, Finding]:
    """The probe's findings on this cluster, by fact."""
    cluster = Cluster.connect(kubeconfig=str(argo.kubeconfig), namespace=namespace)
    # Two cores run two clusters and all tests: an operation of seconds may take minutes.
    found = probe(cluster, namespace, settings=ProbeSettings(image=IMAGE, limit_seconds=300, texts=_texts()))
    for finding in found:
        _LOG.info("Argo %s: %s", argo.argo_version, finding)
    return {finding.fact: finding for finding in found}


def _texts(count: int = 150) -> tuple[str, ...]:
    """Hypothesis' texts, the same in each run."""
    made: list[str] = []

    @settings(max_examples=count, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(_TEXTS)
    def collect(text: str) -> None:
        made.append(text)

    collect()
    return tuple(dict.fromkeys(made))
