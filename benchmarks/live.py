"""The cluster of the live measurements: a new one, or that of DIFLOW_TEST_KUBECONFIG."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from diflow.kube.api import Cluster
from tests.clusters import VARIABLES, TestCluster, cluster

_ARGO = "4.0.7"
_VARIABLE = VARIABLES[_ARGO]


@contextmanager
def one_cluster() -> Iterator[TestCluster]:
    """The cluster of all `namespace`s within the block: each would start one of its own, which takes half a minute."""
    given = os.environ.get(_VARIABLE)
    with cluster(_ARGO) as found:
        os.environ[_VARIABLE] = str(found.kubeconfig)
        try:
            yield found
        finally:
            if given is None:
                del os.environ[_VARIABLE]


@contextmanager
def namespace(prefix: str) -> Iterator[tuple[TestCluster, Cluster, str]]:
    """A cluster with a new namespace on it."""
    with cluster(_ARGO) as found, found.namespace(prefix) as name:
        os.environ["KUBECONFIG"] = str(found.kubeconfig)
        yield found, Cluster.connect(), name
