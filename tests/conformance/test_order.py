"""A job's parts may end in any order."""

from __future__ import annotations

import secrets

from diflow.conformance import reading, shapes
from diflow.conformance.lab import Lab
from diflow.kube.api import Cluster
from diflow.workflows import render
from tests.builders import IMAGE
from tests.clusters import TestCluster


def test_a_job_may_end_before_its_service_is_made(argo: TestCluster, namespace: str) -> None:
    """Argo 4.0 evaluates a group's expressions once more after its end, with arguments that are not filled in."""
    cluster = Cluster.connect(kubeconfig=str(argo.kubeconfig), namespace=namespace)
    lab = Lab(cluster=cluster, namespace=namespace, image=IMAGE, id=secrets.token_hex(3), limit_seconds=120)
    workflow = render(shapes.job(lab.name("late"), IMAGE, "exit 0"))
    service = next(item for item in workflow["spec"]["templates"] if item["name"] == "make-service")
    service["podSpecPatch"] = '{"schedulingGates":[{"name":"diflow/probe"}]}'
    with lab.run(workflow) as run:
        run.until_node("the round ended", lambda wf: reading.is_fulfilled(reading.node(wf, "round")) or None)
        for pod in run.pods():
            if reading.gates(pod):
                run.patch_pod(pod["metadata"]["name"], [{"op": "remove", "path": "/spec/schedulingGates"}])
        run.until_succeeded()
