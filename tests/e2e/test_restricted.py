"""A namespace that enforces the `restricted` standard for pods, with Argo's default settings."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.builders import IMAGE, job, task
from tests.clusters import TestCluster
from tests.e2e.live import Live, pod_name

CONFINED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
NON_ROOT = {"runAsNonRoot": True, "runAsUser": 1234, "seccompProfile": {"type": "RuntimeDefault"}}


@pytest.fixture
def restricted(argo40: TestCluster) -> Iterator[Live]:
    with argo40.namespace("restricted") as namespace:
        argo40.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
        yield Live(argo40, namespace)


def test_a_job_runs_where_only_restricted_pods_may(restricted: Live) -> None:
    loose = restricted.kubectl("run", "loose", f"--image={IMAGE}", "--restart=Never", check=False)
    assert not loose, "the namespace enforces it"
    own = {"name": "own", "image": IMAGE, "command": ["true"], "securityContext": CONFINED}
    said = task("collector", "id -u", securityContext=NON_ROOT, container={"securityContext": CONFINED},
                initContainers=[own])  # fmt: skip
    name = restricted.submit(job(task("learner", "id -u"), said, name="confined", backoff_limit=0))
    restricted.ends(name, "Succeeded")
    partly = task("learner", "true", securityContext={"fsGroup": 2000},
                  container={"securityContext": {"readOnlyRootFilesystem": True}})  # fmt: skip
    restricted.ends(restricted.submit(job(partly, name="partly", backoff_limit=0)), "Succeeded")
    (pod,) = restricted.pods(name, "collector")
    assert "1234" in restricted.logs(pod_name(pod)).splitlines()
