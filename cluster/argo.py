"""Installs Argo Workflows as its users do: upstream's manifests with the full CRDs, through kustomize.

The manifests are those of Argo's Go module. Only our own clusters get five changes: the server uses plain HTTP with
its own rights, it is reachable from the host, its readiness is probed early, and the controller looks at a changed
Workflow after one second instead of ten, may send five times as many requests, and collects its garbage rarely.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cluster import build
from cluster.errors import ClusterError
from cluster.kube import Kubectl
from cluster.parts import ARGO
from cluster.paths import cache_root
from cluster.plan import ARGO_SERVER_NODE_PORT
from cluster.progress import Progress

NAMESPACE = "argo"
_IMAGES = ("argocli", "workflow-controller")
_DEPLOYMENTS = ("workflow-controller", "argo-server")


def kustomization(version: str, manifests: str, *, ours: bool) -> dict[str, object]:
    """All manifests of one version except the CRDs; `manifests` is upstream's folder, relative to the kustomization."""
    whole: dict[str, object] = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": ["namespace.yaml", f"{manifests}/cluster-install-no-crds"],
        "images": [{"name": f"quay.io/argoproj/{i}", "newTag": f"v{version}"} for i in _IMAGES],
    }
    if ours:
        whole["patches"] = [
            _patch("Deployment", "workflow-controller", _QUICK_CONTROLLER),
            _patch("Deployment", "argo-server", _OPEN_SERVER),
            _patch("Service", "argo-server", _NODE_PORT),
            *(
                _added(file)
                for file in sorted(_SETTINGS.glob("workflow-controller-configmap*.yaml"))
                if _LARGE not in file.name
            ),
        ]
    return whole


# What diflow recommends for the Argo UI, so that each test cluster shows that Argo accepts it.
_SETTINGS = Path(__file__).resolve().parents[1] / "manifests" / "argo"
_LARGE = "-large"
_CONFIG_MAP = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "workflow-controller-configmap"}}
_CONTAINER = "/spec/template/spec/containers/0"
_OPEN_SERVER: list[dict[str, object]] = [
    {"op": "replace", "path": f"{_CONTAINER}/args", "value": ["server", "--auth-mode=server", "--secure=false"]},
    {"op": "replace", "path": f"{_CONTAINER}/readinessProbe/httpGet/scheme", "value": "HTTP"},
    {"op": "replace", "path": f"{_CONTAINER}/readinessProbe/initialDelaySeconds", "value": 1},
    {"op": "replace", "path": f"{_CONTAINER}/readinessProbe/periodSeconds", "value": 2},
]
# Argo looks again at a Workflow that has changed after this time, and shares these requests a second among the pods and
# three Events for each replica; manifests/argo says what a larger cluster bears.
_QUICK_CONTROLLER: list[dict[str, object]] = [
    {"op": "replace", "path": f"{_CONTAINER}/args", "value": ["--qps=100", "--burst=200"]},
    {"op": "add", "path": f"{_CONTAINER}/env/-", "value": {"name": "DEFAULT_REQUEUE_TIME", "value": "1s"}},
    # As for Kubernetes' own servers: see components.py.
    {"op": "add", "path": f"{_CONTAINER}/env/-", "value": {"name": "GOGC", "value": "400"}},
]
_NODE_PORT: list[dict[str, object]] = [
    {"op": "add", "path": "/spec/type", "value": "NodePort"},
    {"op": "add", "path": "/spec/ports/0/nodePort", "value": ARGO_SERVER_NODE_PORT},
]


def _apply(kubectl: Kubectl, *what: str) -> None:
    kubectl("apply", "--server-side", "--force-conflicts", *what, timeout_seconds=180)


def _patch(kind: str, name: str, operations: list[dict[str, object]]) -> dict[str, object]:
    return {"target": {"kind": kind, "name": name}, "patch": json.dumps(operations)}


def _added(file: Path) -> dict[str, object]:
    """A patch file of the controller's ConfigMap, as a patch of kustomize."""
    head = "".join(f"{key}: {json.dumps(value)}\n" for key, value in _CONFIG_MAP.items())
    return {"patch": head + file.read_text()}


def apply(kubectl: Kubectl, version: str, progress: Progress, *, ours: bool) -> None:
    """Applies CRDs and manifests. It is idempotent."""
    manifests = _manifests(version)
    # One by one, in parallel: they have a megabyte each, which the API server accepts slowly.
    definitions = sorted((manifests / "base" / "crds" / "full").glob("argoproj.io_*.yaml"))
    with ThreadPoolExecutor(max_workers=4) as pool:
        list(pool.map(lambda file: _apply(kubectl, "-f", str(file)), definitions))
    progress(f"Argo {version}: {len(definitions)} CRDs applied")
    with tempfile.TemporaryDirectory() as folder:
        overlay = Path(folder).resolve()
        # Kustomize takes folders by a relative path only.
        relative = os.path.relpath(manifests.resolve(), overlay)
        (overlay / "kustomization.yaml").write_text(json.dumps(kustomization(version, relative, ours=ours)))
        (overlay / "namespace.yaml").write_text(
            json.dumps({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        )
        _apply(kubectl, "-k", str(overlay))
    progress(f"Argo {version}: manifests applied")


def await_ready(kubectl: Kubectl, version: str, progress: Progress, *, timeout_seconds: float) -> None:
    """Waits until controller and server are ready; an error has the reasons of their pods."""
    for deployment in _DEPLOYMENTS:
        try:
            kubectl(
                "rollout", "status", f"deployment/{deployment}", "-n", NAMESPACE, f"--timeout={timeout_seconds:.0f}s",
                timeout_seconds=timeout_seconds + 10,
            )  # fmt: skip
        except ClusterError as error:
            why = _why(kubectl, deployment) or str(error)
            raise ClusterError(f"Argo's {deployment} did not become ready: {why}") from error
        progress(f"Argo {version}: {deployment} is ready")


def restart(kubectl: Kubectl, version: str, progress: Progress, *, timeout_seconds: float) -> None:
    """Makes new pods of both Deployments, and waits: what is known of the old ones is from before their node ended."""
    kubectl("rollout", "restart", "-n", NAMESPACE, *(f"deployment/{name}" for name in _DEPLOYMENTS))
    await_ready(kubectl, version, progress, timeout_seconds=timeout_seconds)


def is_ready(kubectl: Kubectl) -> bool:
    """Whether both Deployments have a ready replica."""
    found = kubectl(
        "get",
        "deployments",
        "-n",
        NAMESPACE,
        "-o",
        "jsonpath={range .items[*]}{.metadata.name}={.status.readyReplicas} {end}",
    )
    ready = dict(item.partition("=")[::2] for item in found.split())
    return all(ready.get(name, "") not in ("", "0") for name in _DEPLOYMENTS)


def _why(kubectl: Kubectl, deployment: str) -> str:
    """The reasons that the pods give for not running."""
    try:
        text = kubectl("get", "pods", "-n", NAMESPACE, "-l", f"app={deployment}", "-o", "json")
    except ClusterError:
        return ""
    reasons = []
    for pod in json.loads(text)["items"]:
        statuses = pod.get("status", {}).get("containerStatuses", [])
        waiting = [s["state"]["waiting"] for s in statuses if "waiting" in s.get("state", {})]
        reasons += [f"{w.get('reason')}: {w.get('message', '')}".strip(": ") for w in waiting]
        reasons += [
            c["message"] for c in pod.get("status", {}).get("conditions", []) if c.get("reason") == "Unschedulable"
        ]
    return "; ".join(reasons) + (f" (kubectl -n {NAMESPACE} describe pods -l app={deployment})" if reasons else "")


def _manifests(version: str) -> Path:
    """Upstream's manifests: from the cache, else from the Go module itself."""
    part = ARGO[version]
    kept = build.part_folder(part) / "manifests"
    if kept.exists():
        return kept
    folder = cache_root() / "go" / f"argo-manifests-{version}"
    if not folder.exists():
        staged = folder.with_name(f".{folder.name}.{os.getpid()}")
        shutil.copytree(build.module_folder(part) / "manifests", staged)
        for path in (staged, *staged.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        staged.rename(folder)
    return folder
