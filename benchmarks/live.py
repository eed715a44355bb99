"""The cluster of the live measurements: a new one, or that of DIFLOW_TEST_KUBECONFIG."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from diflow.kube.api import Cluster
from tests.clusters import TestCluster, cluster


@contextmanager
def namespace(prefix: str) -> Iterator[tuple[TestCluster, Cluster, str]]:
    """A cluster with a new namespace on it."""
    with cluster("4.0.2") as found, found.namespace(prefix) as name:
        os.environ["KUBECONFIG"] = str(found.kubeconfig)
        yield found, Cluster.connect(), name
