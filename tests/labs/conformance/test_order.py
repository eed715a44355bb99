"""A job's parts may end in any order."""

from __future__ import annotations

import secrets

from diflow.kube.api import Cluster
from diflow.labs.conformance.lab import Lab
from tests.builders import IMAGE, job, task
from tests.clusters import TestCluster


def test_a_task_may_end_long_before_another(argo: TestCluster, namespace: str) -> None:
    """Argo 4.0 evaluates a group's expressions once more after its end, with arguments that are not filled in."""
    cluster = Cluster.connect(kubeconfig=str(argo.kubeconfig), namespace=namespace)
    lab = Lab(cluster=cluster, namespace=namespace, image=IMAGE, id=secrets.token_hex(3), limit_seconds=120)
    made = job(task("learner", "exit 0"), task("collector", "sleep 8", replicas=2), name=lab.name("order"))
    with lab.run_job(made) as run:
        run.until_succeeded()
