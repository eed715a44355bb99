"""Runs `diflow` in tests: in this process, against a fake API server, with its output captured."""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from diflow.cli.main import code_of
from diflow.kube.kinds import CRD, DEPLOYMENT, NAMESPACE, POD, PRIORITY_CLASS, SERVICE, SERVICE_ACCOUNT, WORKFLOW
from tests.kube.fakeapi import FakeApi, Request, serving
from tests.record.seen import SeenJob

_SERVICE = Path(__file__).resolve().parents[2] / "manifests" / "jobs" / "service.yaml"


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a command."""

    code: int
    out: str
    err: str


class Cli:
    """`diflow`, and the server that it talks to."""

    def __init__(self, api: FakeApi, folder: Path) -> None:
        self.api = api
        self.folder = folder
        self.kubeconfig = folder / "kubeconfig"
        self.kubeconfig.write_text(kubeconfig(api.url))

    def __call__(self, *args: str) -> Result:
        """Run a command with this server's kubeconfig."""
        given = list(args)
        if given and given[0] not in ("render", "lint", "completion", "--help"):
            given += ["--kubeconfig", str(self.kubeconfig)]
        return run(*given)

    def file(self, name: str, content: str | dict[str, Any]) -> str:
        """Write a file; a mapping is written as YAML."""
        path = self.folder / name
        path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
        return str(path)

    def has(self, *jobs: SeenJob) -> None:
        """Add jobs with their pods to the cluster."""
        for job in jobs:
            self.api.add(WORKFLOW, job.workflow())
            for pod in job.all_pods():
                pod["metadata"].setdefault("labels", {})["workflows.argoproj.io/workflow"] = job.name
                self.api.add(POD, pod)

    def prepare(self, *, argo: str = "v4.0.7") -> None:
        """Add what a job needs: accounts, the Service, priority classes, Argo."""
        self.api.add(NAMESPACE, {"metadata": {"name": "default"}})
        self.api.add(SERVICE, the_service())
        for account in ("diflow-worker", "diflow-steps"):
            self.api.add(SERVICE_ACCOUNT, {"metadata": {"name": account}})
        self.api.add(PRIORITY_CLASS, {"metadata": {"name": "diflow-normal"}})
        self.api.add(PRIORITY_CLASS, {"metadata": {"name": "diflow-high"}, "preemptionPolicy": "Never"})
        containers = [{"image": f"quay.io/argoproj/workflow-controller:{argo}"}]
        controller = {"spec": {"template": {"spec": {"containers": containers}}}}
        self.api.add(DEPLOYMENT, {"metadata": {"name": "workflow-controller"}, **controller})
        collection = DEPLOYMENT.path("default")
        self.api.objects[DEPLOYMENT.path(None)] = self.api.objects[collection]
        full = {"openAPIV3Schema": {"properties": {"spec": {"properties": {"entrypoint": {"type": "string"}}}}}}
        for plural in ("workflows", "workflowtemplates", "cronworkflows", "workflowtaskresults"):
            self.api.add(CRD, {"metadata": {"name": f"{plural}.argoproj.io"}, "spec": {"versions": [{"schema": full}]}})


def kubeconfig(server: str, *, namespace: str = "default") -> str:
    """A kubeconfig for a server without TLS."""
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": server}}],
            "users": [{"name": "u", "user": {"token": "secret-token"}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": namespace}}],
            "current-context": "x",
        }
    )


def run(*args: str) -> Result:
    """Run a command and catch what it writes."""
    out, err = io.StringIO(), io.StringIO()
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = out, err
    try:
        code = code_of(args)
    finally:
        sys.stdout, sys.stderr = before
    return Result(code, out.getvalue(), err.getvalue())


def play(diflow: Cli, *steps: Callable[[], object], pause_seconds: float = 0.25) -> threading.Thread:
    """Apply these changes to the cluster in order, once a watch is open."""
    begun = threading.Event()

    def rule(request: Request) -> None:
        if request.query.get("watch"):
            begun.set()

    def run() -> None:
        begun.wait(100)
        for step in steps:
            threading.Event().wait(pause_seconds)
            step()

    diflow.api.rule(rule)
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def the_service() -> dict[str, Any]:
    """The Service of manifests/jobs, which resolves the host names of jobs."""
    return dict(yaml.safe_load(_SERVICE.read_text()))


@contextmanager
def cli(folder: Path) -> Iterator[Cli]:
    """`diflow` with a fake API server behind it."""
    with serving() as api:
        yield Cli(api, folder)
