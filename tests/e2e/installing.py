"""Installs `manifests/` on a shared cluster without conflicts with other tests.

Objects of a namespace go into one of the test's own, which stands for diflow-system and for kube-public alike; those of
the whole cluster get a name of their own; and the pods are configured for the jobs of one namespace.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import yaml

from diflow.common import keys
from diflow.jobs.checks import fence
from diflow.kube.api import Cluster
from diflow.kube.kinds import LEASE
from tests.clusters import ROOT, TestCluster, wait_until
from tests.e2e.live import Live

_POLICY = "ValidatingAdmissionPolicy"


@contextmanager
def installed(cluster: TestCluster, folder: str, *, home: str, watched: str, setting: str) -> Iterator[None]:
    """`kubectl apply -k manifests/<folder>` with its objects in `home`. `setting` is the environment variable that
    names the watched namespace."""
    objects = list(yaml.safe_load_all(cluster.kubectl("kustomize", str(ROOT / "manifests" / folder))))
    for obj in objects:
        _move(obj, home=home, watched=watched, setting=setting)
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    try:
        cluster.kubectl("apply", "--validate=strict", "-f", "-", stdin=text)
        yield
    finally:
        ours = [obj for obj in objects if not _is_fence(obj)]
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": ours})
        cluster.kubectl("delete", "--ignore-not-found", "--wait=false", "-f", "-", stdin=text, check=False)


@contextmanager
def served_namespace(cluster: TestCluster, prefix: str, *granted: str) -> Iterator[Live]:
    """A namespace for jobs with a server of its own, whose address the jobs of this process get. `granted`: folders of
    manifests with further rights of the server in that namespace."""
    with cluster.namespace(prefix) as namespace, pytest.MonkeyPatch.context() as patch:
        home = Live(cluster, f"{namespace}-system")
        setting = "DIFLOW_SERVER_WATCHED_NAMESPACE"
        with installed(cluster, "server", home=home.namespace, watched=namespace, setting=setting):
            for folder in granted:
                grant(cluster, folder, home=home.namespace, watched=namespace)
            home.kubectl("rollout", "status", "deployment/diflow-server", "--timeout=280s")
            patch.setenv("DIFLOW_SERVER_URL", f"http://diflow-server.{home.namespace}.svc.cluster.local:8081")
            yield Live(cluster, namespace)


def grant(cluster: TestCluster, folder: str, *, home: str, watched: str) -> None:
    """`kubectl apply -n <watched> -k manifests/<folder>`, for accounts in `home`."""
    objects = list(yaml.safe_load_all(cluster.kubectl("kustomize", str(ROOT / "manifests" / folder))))
    for obj in objects:
        for subject in obj.get("subjects", []):
            subject["namespace"] = home
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    cluster.kubectl("apply", "-n", watched, "-f", "-", stdin=text)


def install_fence(cluster: TestCluster, *, home: str) -> None:
    """Install the policy for the Lease in `home`, and wait until it is in force."""
    found = list(yaml.safe_load_all((ROOT / "manifests" / "allocator" / "fence.yaml").read_text()))
    for obj in found:
        move_fence(obj, home=home)
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": found}))
    api = Cluster.connect(kubeconfig=str(cluster.kubeconfig))
    lease = api.get(LEASE, keys.ALLOCATOR, namespace=home)
    nobody = f"{keys.ALLOCATOR}/{home}/{lease['metadata']['uid']}/0"
    wait_until("it is in force", lambda: fence.is_refused(api, nobody, namespace=home))


def move_fence(obj: dict[str, Any], *, home: str) -> None:
    """Make it the policy, or a binding, for the Lease in `home`. It must stay when the test ends: the API server stops
    its watch of Leases when no binding names one, and does not begin again (docs/decisions/0015). Without its Lease the
    policy refuses nothing."""
    spec = obj["spec"]
    obj["metadata"]["name"] += f"-{home}"
    if "policyName" in spec:
        spec["policyName"] += f"-{home}"
        spec["paramRef"]["namespace"] = home
    else:
        (condition,) = spec["matchConditions"]
        condition["expression"] = condition["expression"].replace("/diflow-system/", f"/{home}/")


def _is_fence(obj: dict[str, Any]) -> bool:
    return obj["kind"].startswith(_POLICY) and bool(obj["spec"].keys() & {"paramKind", "paramRef"})


def _move_policy(obj: dict[str, Any], *, home: str) -> None:
    """Make it the policy, or a binding, of an account in `home`."""
    spec = obj["spec"]
    obj["metadata"]["name"] += f"-{home}"
    if "policyName" in spec:
        spec["policyName"] += f"-{home}"
        return
    (condition,) = spec["matchConditions"]
    condition["expression"] = condition["expression"].replace(":diflow-system:", f":{home}:")


def _move(obj: dict[str, Any], *, home: str, watched: str, setting: str) -> None:
    kind, metadata = obj["kind"], obj["metadata"]
    if kind == "Namespace":
        metadata["name"] = home
    elif _is_fence(obj):
        move_fence(obj, home=home)
    elif kind.startswith(_POLICY):
        _move_policy(obj, home=home)
    elif kind.startswith("Cluster"):
        metadata["name"] += f"-{watched}"
    else:
        metadata["namespace"] = home
    for subject in obj.get("subjects", []):
        subject.update({"namespace": home} if subject["kind"] == "ServiceAccount" else {})
    if obj.get("roleRef", {}).get("kind") == "ClusterRole" and not obj["roleRef"]["name"].startswith("system:"):
        obj["roleRef"]["name"] += f"-{watched}"
    only = {"name": setting, "value": watched}
    if kind == "Deployment":
        container = obj["spec"]["template"]["spec"]["containers"][0]
        container.setdefault("env", []).append(only)
        # A small request: pods of other tests use the capacity of the node, too.
        container["resources"]["requests"]["cpu"] = "10m"
    if kind == "CronWorkflow":
        obj["spec"]["workflowSpec"]["templates"][0]["container"]["env"].append(only)
    if kind == "ConfigMap" and "namespace" in obj.get("data", {}):
        obj["data"]["namespace"] = home
