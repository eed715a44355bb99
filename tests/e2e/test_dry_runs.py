"""What admission adds to the pods of a gang, and refuses of them, on a real cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from diflow import DIJob, Task
from diflow.common import keys
from tests.builders import template
from tests.clusters import ROOT, TestCluster, wait_until
from tests.e2e.allocators import allocated, run_on, status, submit, until_running, zone
from tests.e2e.live import Live

pytestmark = [pytest.mark.extended, pytest.mark.xdist_group("allocator")]

Json = dict[str, Any]


@pytest.fixture(scope="module")
def live(argo40: TestCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A namespace with an allocator, which has all rights."""
    with allocated(argo40, "dryruns", tmp_path_factory.mktemp("allocator")) as place:
        yield place


def gang(name: str, replicas: int = 1, **spec: Any) -> DIJob:
    workers = Task(name="worker", replicas=replicas, template=template("sleep 600", **spec))
    return DIJob(name=name, tasks=(workers,), scheduling="gang")


def why(live: Live, name: str) -> str:
    text = live.workflow(name)["metadata"]["annotations"].get(keys.DECISION)
    return str(json.loads(text).get("why")) if text else ""


def test_an_ordinary_job_starts(live: Live) -> None:
    name = submit(live, gang("plain", 2))
    until_running(live, name, 2)
    assert status(live, name).restarts == 0
    live.delete(name)


def test_a_runtime_class_opens_nodes_and_its_overhead_is_counted(live: Live) -> None:
    """Two pods of 1.5 CPUs fit on a node of 4 by their template, and one with the overhead. The nodes have a taint that
    the runtime class alone tolerates."""
    runtime = f"{live.namespace}-kata"
    taint = {"key": "diflow-test/kata", "value": "yes", "effect": "NoSchedule"}
    with zone(live, "kata") as nodes:
        nodes.add("a", "b")
        for node in ("a", "b"):
            live.kubectl("taint", "node", nodes.full(node), "diflow-test/kata=yes:NoSchedule")
        body = {
            "apiVersion": "node.k8s.io/v1",
            "kind": "RuntimeClass",
            "metadata": {"name": runtime},
            "handler": "kata",
            "overhead": {"podFixed": {"cpu": "1"}},
            "scheduling": {"tolerations": [{**taint, "operator": "Equal"}]},
        }
        live.kubectl("apply", "-f", "-", stdin=json.dumps(body))
        try:
            made = nodes.job("kata", 2, cpu="1500m")
            made.tasks[0].template["spec"]["runtimeClassName"] = runtime
            name = submit(live, made)
            until_running(live, name, 2)
            assert sorted(run_on(live, name)) == [nodes.full("a"), nodes.full("b")]
            assert status(live, name).restarts == 0
            live.delete(name)
        finally:
            live.kubectl("delete", "runtimeclass", runtime, "--wait=false")


def test_what_pod_security_refuses_waits_with_its_words_and_starts_when_it_may(live: Live) -> None:
    level = "pod-security.kubernetes.io/enforce"
    live.kubectl("label", "namespace", live.namespace, f"{level}=baseline")
    try:
        volumes = [{"name": "host", "hostPath": {"path": "/tmp"}}]
        name = submit(live, gang("secured", 2, volumes=volumes))
        found = wait_until("it says why", lambda: why(live, name) if "refuses" in why(live, name) else None)
        assert 'violates PodSecurity "baseline:latest": hostPath volumes' in found
        assert live.pods(name) == []
        assert (status(live, name).restarts, status(live, name).ended) == (0, False)
    finally:
        live.kubectl("label", "namespace", live.namespace, f"{level}-")
    until_running(live, name, 2)
    assert status(live, name).restarts == 0
    live.delete(name)


def test_a_service_account_that_does_not_exist_is_named(live: Live) -> None:
    name = submit(live, gang("accounted", serviceAccountName="nobody"))
    wait_until("it says why", lambda: 'serviceaccount "nobody" not found' in why(live, name))
    assert live.pods(name) == []
    live.delete(name)


def test_a_limit_range_gives_defaults_that_count_and_refuses_what_is_too_much(live: Live) -> None:
    limits = {
        "apiVersion": "v1",
        "kind": "LimitRange",
        "metadata": {"name": "most"},
        "spec": {"limits": [{"type": "Container", "max": {"cpu": "1"}}]},
    }
    live.kubectl("apply", "-f", "-", stdin=json.dumps(limits))
    try:
        name = submit(live, gang("large", container={"resources": {"limits": {"cpu": "2", "memory": "16Mi"}}}))
        wait_until("it says why", lambda: "maximum cpu usage per Container is 1" in why(live, name))
        assert live.pods(name) == []
    finally:
        live.kubectl("delete", "limitrange", "most")
    live.delete(name)


def test_the_account_of_the_allocator_may_make_pods_in_dry_runs_alone(live: Live) -> None:
    """Those of the manifests, for another account."""
    account = f"system:serviceaccount:{live.namespace}:default"
    objects = list(yaml.safe_load_all((ROOT / "manifests" / "allocator" / "dry-runs.yaml").read_text()))
    for obj in objects:
        obj["metadata"]["name"] += f"-{live.namespace}"
        for subject in obj.get("subjects", ()):
            subject |= {"name": "default", "namespace": live.namespace}
        if "roleRef" in obj:
            obj["roleRef"]["name"] += f"-{live.namespace}"
        if "policyName" in obj.get("spec", {}):
            obj["spec"]["policyName"] += f"-{live.namespace}"
        for condition in obj.get("spec", {}).get("matchConditions", ()):
            condition["expression"] = f"request.userInfo.username == '{account}'"
    listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    live.kubectl("apply", "-f", "-", stdin=listed)
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "tried"},
        "spec": {"containers": [{"name": "main", "image": "x"}]},
    }

    def create(*options: str) -> str:
        return live.cluster.run(
            "sh", "-c", f"kubectl -n {live.namespace} create {' '.join(options)} --as {account} -f - 2>&1",
            stdin=json.dumps(pod), check=False,
        )  # fmt: skip

    try:
        wait_until("real pods are refused", lambda: "creates no pods but in dry runs" in create())
        # The right holds at once, and the policy a moment later.
        live.kubectl("delete", "pod", "tried", "--ignore-not-found", "--force", "--grace-period=0")
        assert "created (server dry run)" in create("--dry-run=server")
        assert live.kubectl("get", "pods", "--ignore-not-found", "tried") == ""
    finally:
        live.kubectl("delete", "-f", "-", "--ignore-not-found", "--wait=false", stdin=listed)
