"""`kubectl apply -k manifests/allocator`: the allocator in pods, under its own RBAC, and the scheduled
re-optimisation."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from diflow import DIJob
from diflow.common import keys
from diflow.kube.api import Cluster
from tests.builders import job, task
from tests.clusters import TestCluster, wait_until
from tests.e2e import installing
from tests.e2e.allocators import events
from tests.e2e.live import Live, pod_name

pytestmark = pytest.mark.xdist_group("installed")

_PODS = "app.kubernetes.io/name=diflow-allocator"


@dataclass(frozen=True)
class Installed:
    """The allocator in the namespace `home`, for the jobs of the namespace `jobs`."""

    home: Live
    jobs: Live

    def pods(self) -> list[dict[str, Any]]:
        """Its pods that are not terminating."""
        items = self.home.get("pods", labels=_PODS)["items"]
        return [pod for pod in items if "deletionTimestamp" not in pod["metadata"]]

    def leader(self) -> str:
        """The leading pod, or ""."""
        found = self.home.kubectl("get", "lease", keys.ALLOCATOR, "-o", "jsonpath={.spec.holderIdentity}", check=False)
        return next((pod_name(pod) for pod in self.pods() if found.startswith(pod_name(pod))), "")

    def ready(self) -> None:
        self.home.kubectl("rollout", "status", "deployment/diflow-allocator", "--timeout=280s")

    def log(self) -> list[dict[str, Any]]:
        """The logs of its pods."""
        lines = self.home.kubectl("logs", "-l", _PODS, "--tail=-1").splitlines()
        return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def installed(argo40: TestCluster) -> Iterator[Installed]:
    with argo40.namespace("pod") as namespace:
        home = f"{namespace}-system"
        with installing.installed(
            argo40, "allocator", home=home, watched=namespace, setting="DIFLOW_ALLOCATOR_WATCHED_NAMESPACE"
        ):
            found = Installed(Live(argo40, home), Live(argo40, namespace))
            found.ready()
            wait_until("one of its pods leads", found.leader)
            yield found


def gang(installed: Installed, monkeypatch: pytest.MonkeyPatch, command: str = "sleep 1") -> str:
    """Submit a job of two replicas without `scheduling`. Returns its name."""
    monkeypatch.setattr(keys, "PUBLIC_NAMESPACE", installed.home.namespace)
    made: DIJob = job(
        task("none", command, name="worker", replicas=2, terminationGracePeriodSeconds=1),
        name=f"gang-{uuid.uuid4().hex[:5]}",
    )
    assert made.scheduling is None
    cluster = Cluster.connect(kubeconfig=str(installed.jobs.cluster.kubeconfig), namespace=installed.jobs.namespace)
    made.submit(cluster=cluster)
    return made.name


def test_it_is_ready_and_a_job_that_says_nothing_of_scheduling_is_admitted_as_a_gang(
    installed: Installed, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = installed.jobs
    assert len(installed.pods()) == 2
    name = gang(installed, monkeypatch)
    assert jobs.workflow(name)["metadata"]["labels"][keys.SCHEDULING] == "gang"
    jobs.ends(name, "Succeeded")
    assert "Admitted" in [reason for reason, _ in events(jobs, name)]
    assert all(pod["spec"]["nodeSelector"]["kubernetes.io/hostname"] for pod in jobs.pods(name))
    log = installed.log()
    assert any(line["event"] == "plan" for line in log)
    assert [line for line in log if line["level"] in ("warning", "error") and "not allowed" in str(line)] == []


def test_when_the_pod_that_leads_is_killed_the_other_goes_on(
    installed: Installed, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = wait_until("one of its pods leads", installed.leader)
    installed.home.kubectl("delete", "pod", first, "--grace-period=0", "--force")
    wait_until("another pod leads", lambda: installed.leader() not in ("", first))
    name = gang(installed, monkeypatch)
    installed.jobs.ends(name, "Succeeded")


def test_a_scheduled_reoptimisation_shows_its_plan_as_the_output_of_its_step(
    installed: Installed, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = gang(installed, monkeypatch, command="trap 'exit 143' TERM; while true; do sleep 0.5; done")
    try:
        installed.jobs.running(name, 2)
        made = installed.home.argo("submit", "--from", "cronwf/diflow-reoptimise", "-o", "name").strip()
        installed.home.ends(made, "Succeeded")
        plans = [
            parameter["value"]
            for node in installed.home.nodes(made)
            if node["type"] == "Pod"
            for parameter in node["outputs"]["parameters"]
            if parameter["name"] == "plan"
        ]
        assert len(plans) == 1
        assert plans[0].startswith("policy fit: ")
        assert f"{installed.jobs.namespace}/{name}: " in plans[0]
    finally:
        installed.jobs.delete(name)
