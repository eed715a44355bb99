"""Connects to a cluster. Its errors name commands and manifests of diflow, which `diflow.kube` does not know."""

from __future__ import annotations

from typing import Final

from diflow.kube.api import Cluster
from diflow.kube.refusals import Remedies

REMEDIES: Final = Remedies(
    no_argo="Install it and diflow's manifests/, then look at `diflow doctor`",
    no_right="(`diflow doctor` lists all that is needed)",
    no_kubeconfig="(`make cluster` starts a cluster on this machine)",
)


def connect(*, kubeconfig: str | None = None, context: str | None = None, namespace: str | None = None) -> Cluster:
    """The cluster of a kubeconfig, as `Cluster.connect`."""
    return Cluster.connect(kubeconfig=kubeconfig, context=context, namespace=namespace, remedies=REMEDIES)
