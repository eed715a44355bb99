"""The real clusters that tests run on: created by `cluster/`, or named by DIFLOW_TEST_KUBECONFIG.

DIFLOW_TEST_KUBECONFIG and DIFLOW_TEST_KUBECONFIG_ARGO37 name clusters that are already up (with Argo 4.0.7 and 3.7.3);
without them a cluster is started for the run, and taken down after it. All processes of a run share it: each asks for
it by the same name, and the first one starts it.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import yaml

from cluster import lifecycle
from diflow.common.errors import DiflowError, NotFoundError, UnavailableError
from diflow.jobs.dijobs import DIJOB
from diflow.kube import kinds
from diflow.kube.api import Cluster
from diflow.kube.kinds import NAMESPACE, POD_GROUP, WORKFLOW, Kind

ROOT = Path(__file__).resolve().parents[1]
KUBERNETES = {"4.0.7": "1.37.2", "3.7.3": "1.34.4"}
"""The versions that are tested together: the newest of both, and older ones of both."""
VARIABLES = {"4.0.7": "DIFLOW_TEST_KUBECONFIG", "3.7.3": "DIFLOW_TEST_KUBECONFIG_ARGO37"}
_RUN = "DIFLOW_TEST_RUN"
_TOLD = 3000
"""Characters of a program's output that an error quotes."""
_PATIENT_SECONDS = 120.0
_RBAC = "rbac.authorization.k8s.io"
_KINDS = {
    kind.name: kind
    for kind in (
        *(kind for kind in vars(kinds).values() if isinstance(kind, Kind)),
        DIJOB,
        Kind("Role", _RBAC, "v1", "roles"),
        Kind("RoleBinding", _RBAC, "v1", "rolebindings"),
    )
}
T = TypeVar("T")


class CommandError(AssertionError):
    """A program on the cluster failed. `wait_until` tries it again."""


@dataclass(frozen=True)
class TestCluster:
    """A cluster with Argo, as a user sees it: a kubeconfig, and kubectl and argo on the PATH."""

    __test__ = False

    argo_version: str
    kubeconfig: Path
    path: str
    name: str | None = None
    argo_server: str | None = None

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a process that works on this cluster."""
        return {**os.environ, "KUBECONFIG": str(self.kubeconfig), "PATH": self.path, "PYTHONPATH": str(ROOT)}

    def run(self, *command: str, check: bool = True, stdin: str | None = None, timeout: float = 300) -> str:
        """Run a program on this cluster and return what it printed on stdout."""
        done = subprocess.run(
            command, env=self.environment, input=stdin, capture_output=True, text=True, timeout=timeout, check=False
        )
        if check and done.returncode != 0:
            raise CommandError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
        return done.stdout

    def kubectl(self, *arguments: str, check: bool = True, stdin: str | None = None) -> str:
        """Run kubectl."""
        return self.run("kubectl", *arguments, check=check, stdin=stdin)

    @property
    def api(self) -> Cluster:
        """A client of the API: a process of kubectl for each request takes ten times as much of a processor."""
        return _client(self.kubeconfig)

    @property
    def _writes(self) -> Cluster:
        """As patient as kubectl: a write is not tried again, and the machine may stand still for a while."""
        return self.api.without_retries(read_seconds=_PATIENT_SECONDS, connect_seconds=_PATIENT_SECONDS)

    def get(
        self, kind: str, name: str = "", *, namespace: str | None = None, labels: str = "", fields: str = ""
    ) -> Any:
        """`kubectl get KIND [NAME] -o json`: an object, or `items`."""
        known = _kind(kind)
        if not name:
            found = self.api.list_all(known, namespace=namespace, labels=labels, fields=fields)
            return {"items": found}
        try:
            return self.api.get(known, name, namespace=namespace)
        except NotFoundError as error:
            raise CommandError(str(error)) from None

    def create(self, *objects: dict[str, Any], namespace: str | None = None) -> None:
        """`kubectl create`: as there, an object with an unknown field is refused."""
        # kubectl reads Argo's large schemas in each process, before it sends anything.
        for body in objects:
            kind = _KINDS[body["kind"]]
            where = body["metadata"].get("namespace", namespace)
            self._writes.create(kind, body, namespace=where, dry_run=True)  # this is where unknown fields are refused
            self._writes.create(kind, body, namespace=where)

    @contextmanager
    def namespace(self, prefix: str) -> Iterator[str]:
        """A new namespace that may run DIJobs, deleted at the end."""
        name = f"{prefix}-{uuid.uuid4().hex[:6]}"
        self._writes.create(NAMESPACE, {"metadata": {"name": name}})
        try:
            self.create(*_of_a_namespace(self), namespace=name)
            yield name
        finally:
            with suppress(DiflowError):
                for workflow in self.api.list_all(WORKFLOW, namespace=name, metadata_only=True):
                    self._writes.delete(WORKFLOW, workflow["metadata"]["name"], namespace=name)
                self._writes.delete(NAMESPACE, name)


@cache
def _of_a_namespace(cluster: TestCluster) -> tuple[dict[str, Any], ...]:
    """The objects of manifests/jobs."""
    return tuple(yaml.safe_load_all(cluster.kubectl("kustomize", str(ROOT / "manifests" / "jobs"))))


@cache
def _client(kubeconfig: Path) -> Cluster:
    return Cluster.connect(kubeconfig=str(kubeconfig))


def _kind(name: str) -> Kind:
    """A kind by its name in any case, by its plural, or as kubectl's PLURAL.VERSION.GROUP."""
    if "." in name:
        plural, version, group = name.split(".", 2)
        return Kind(plural, group, version, plural)
    wanted = name.lower()
    return next(kind for kind in _KINDS.values() if wanted in (kind.name.lower(), kind.plural))


@contextmanager
def alone(cluster: TestCluster) -> Iterator[None]:
    """A lock between the processes of a run, for creating objects that they share.

    `python3 -m cluster up` and `down` have a lock of their own.
    """
    name = cluster.name or hashlib.sha256(str(cluster.kubeconfig).encode()).hexdigest()[:12]
    with _lock(name).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


_starting: list[subprocess.Popen[bytes]] = []


def begin_run() -> None:
    """Set the name of this run, also for the processes that it starts."""
    os.environ[_RUN] = str(os.getpid())
    compiled_file().unlink(missing_ok=True)  # of a killed run


def start_early(argo_versions: Iterable[str]) -> None:
    """Start the clusters that `cluster_of_run` will return, in the background."""
    for version in sorted(argo_versions):
        if not os.environ.get(VARIABLES[version]):
            _starting.append(
                subprocess.Popen(_up(version), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            )


def compiled_file() -> Path:
    """The file that exists when one process of this run has compiled all tests."""
    return Path(tempfile.gettempdir()) / f"diflow-test-{os.environ[_RUN]}.compiled"


def stop_starting() -> None:
    """Stop the clusters that `start_early` started and no test used."""
    for process in _starting:
        process.terminate()
        process.wait()
    _starting.clear()


def end_run() -> None:
    """Delete the clusters that were started for this run.

    Their clients are forgotten: another cluster of the same name has a kubeconfig of the same path, and another key.
    """
    names = [name for name in map(_name, VARIABLES) if name in lifecycle.names()]
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda name: _cluster("down", "--name", name), names))
    for name in names:
        _lock(name).unlink(missing_ok=True)
    compiled_file().unlink(missing_ok=True)
    _client.cache_clear()


@contextmanager
def cluster(argo_version: str) -> Iterator[TestCluster]:
    """As `cluster_of_run`, for a run that ends with the block. A cluster that the environment names stays."""
    if os.environ.get(VARIABLES[argo_version]):
        yield cluster_of_run(argo_version)
        return
    begin_run()
    try:
        yield cluster_of_run(argo_version)
    finally:
        end_run()


def cluster_of_run(argo_version: str) -> TestCluster:
    """The cluster with this version of Argo: the one that the environment names, or the one of this run."""
    given = os.environ.get(VARIABLES[argo_version])
    if given:
        found = next((c for c in _status() if c["kubeconfig"] == given), None)
        return _prepared(_described(argo_version, found) if found else _foreign(argo_version, given))
    name = _name(argo_version)
    try:
        # Waits if the cluster is starting.
        _cluster(*_up(argo_version)[3:])
    except RuntimeError:
        # The second try must not find a half-created cluster.
        _cluster("down", "--name", name)
        raise
    found = next(c for c in _status() if c["name"] == name)
    return _prepared(_described(argo_version, found))


def _lock(name: str) -> Path:
    return Path(tempfile.gettempdir()) / f"diflow-test-{name}.lock"


def _name(argo_version: str) -> str:
    return f"test-{argo_version.replace('.', '')}-{os.environ[_RUN]}"


def _up(argo_version: str) -> list[str]:
    more = ["--kubernetes", KUBERNETES[argo_version]]
    return [sys.executable, "-m", "cluster", "up", "--name", _name(argo_version), "--argo", argo_version, *more]


def wait_until(what: str, probe: Callable[[], T | None], *, timeout: float = 300, every: float = 0.5) -> T:
    """Call `probe` until its value is true, and return that. Raises AssertionError with `what` after the timeout."""
    deadline = time.monotonic() + timeout
    while True:
        trouble = ""
        try:
            found = probe()
            if found:
                return found
        except (CommandError, UnavailableError) as error:
            trouble = f" ({error})"
        if time.monotonic() > deadline:
            raise AssertionError(f"after {timeout:.0f} s still not: {what}{trouble}")
        time.sleep(every)


def _prepared(found: TestCluster) -> TestCluster:
    with alone(found):
        folder = ROOT / "manifests" / "cluster"
        policy = found.kubectl("get", "priorityclass", "diflow-high", "-o", "jsonpath={.preemptionPolicy}", check=False)
        if policy not in ("", "Never"):  # an earlier release's, which cannot be changed (docs/upgrading.md)
            found.kubectl("replace", "--force", "-f", str(folder / "priorityclasses.yaml"))
        found.kubectl("apply", "-k", str(folder))
        if found.api.serves(POD_GROUP):
            found.kubectl("apply", "-k", str(ROOT / "manifests" / "podgroups"))
            # Tests have allocators in several namespaces.
            role = ("create", "clusterrolebinding", "test-podgroups", "--clusterrole=diflow-allocator-podgroups")
            found.kubectl(*role, "--group=system:serviceaccounts", check=False)
    return found


def _described(argo_version: str, found: dict[str, Any]) -> TestCluster:
    folders = [str(Path(found["programs"][program]).parent) for program in ("kubectl", "argo")]
    return TestCluster(
        argo_version=argo_version,
        kubeconfig=Path(found["kubeconfig"]),
        path=os.pathsep.join([*folders, os.environ["PATH"]]),
        name=found["name"],
        argo_server=found["argoServer"],
    )


def _foreign(argo_version: str, kubeconfig: str) -> TestCluster:
    for program in ("kubectl", "argo"):
        if shutil.which(program) is None:
            raise RuntimeError(f"{program} is not on the PATH: the tests on {kubeconfig} need it")
    return TestCluster(argo_version=argo_version, kubeconfig=Path(kubeconfig), path=os.environ["PATH"])


def _status() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(_cluster("status", "-o", "json"))
    return found


def _cluster(*arguments: str) -> str:
    # The stderr of a process in a parallel run is not shown: a failure quotes it.
    errors = subprocess.PIPE if "PYTEST_XDIST_WORKER" in os.environ else None
    done = subprocess.run(
        [sys.executable, "-m", "cluster", *arguments],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        told = f":\n{done.stderr[-_TOLD:]}" if done.stderr else ""
        raise RuntimeError(f"python3 -m cluster {' '.join(arguments)} ended with {done.returncode}{told}")
    return done.stdout
