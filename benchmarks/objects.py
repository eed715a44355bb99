"""DIJob objects beside bare Workflows: how long their pods take, 1,000 at once, their status, and what the rules of the
CRD cost the API server.

The controller is a process of this machine. In turns with it, the Workflow that it would make is created by hand, so
the difference is the controller's: seeing the object, and creating the Workflow.
"""

from __future__ import annotations

import copy
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

from benchmarks import allocating, live, starting
from benchmarks.figures import Figure
from benchmarks.watching import Watch
from diflow import DIJob, Task
from diflow.common import keys
from diflow.jobs.dijobs import DIJOB
from diflow.kube.api import Cluster
from diflow.kube.kinds import CRD, POD, WORKFLOW
from diflow.workflows import render
from tests.clusters import ROOT, TestCluster, wait_until

Json = dict[str, Any]

JOBS = 1000
CLIENTS = 8
IDLE_SECONDS = 30.0
RESTING_SECONDS = 330.0
"""With jobs: a watch of each kind ends meanwhile, and its objects may be listed again."""
QUIET_SECONDS = 20.0
_WRITES = "the status of both objects is written meanwhile as well, so as many writes again"
RULED = 500
"""Objects of each of the four runs with and without the rules; nothing of them is stored (`dryRun`)."""
CRD_NAME = f"dijobs.{keys.API_GROUP}"
_RULES = "x-kubernetes-validations"


def measure(*, rounds: int) -> list[Figure]:
    """The figures of this part; `rounds` of each kind after a warm-up."""
    with live.namespace("objects") as (found, cluster, namespace):
        found.kubectl("apply", "-k", str(ROOT / "manifests" / "crds"))
        wait_until("DIJobs are served", lambda: cluster.list_all(DIJOB, namespace=namespace) == [], timeout=60)
        figures = _rules(found, cluster, namespace)
        with _controller(found, namespace) as pid:
            figures += _starts(cluster, namespace, rounds)
            figures += _many(cluster, namespace, pid)
    return figures


def _starts(cluster: Cluster, namespace: str, rounds: int) -> list[Figure]:
    """Applied → all pods run, in turns; and how far the status of the object is behind the pods."""
    seconds: dict[str, list[float]] = {"DIJob": [], "Workflow": []}
    behind: list[float] = []
    with Watch(cluster, namespace, POD, _phase) as pods, Watch(cluster, namespace, DIJOB, _ready) as objects:
        for i in range(rounds + 1):
            for kind in ("DIJob", "Workflow") if i % 2 else ("Workflow", "DIJob"):
                name = f"{kind.lower()}-{i}"
                began = time.monotonic()
                if kind == "DIJob":
                    cluster.create(DIJOB, _object(_job(name)), namespace=namespace)
                else:
                    cluster.create(WORKFLOW, render(_job(name)), namespace=namespace)
                ran = pods.until(f"{name} runs", partial(_all_run, name))
                if kind == "DIJob":
                    shown = objects.until(f"{name} is shown", partial(_is_shown, name))
                    behind += [shown - ran] if i else []
                seconds[kind] += [ran - began] if i else []
                cluster.delete(DIJOB if kind == "DIJob" else WORKFLOW, name, namespace=namespace)
                pods.until(f"{name} is gone", partial(_is_gone, name))
                time.sleep(1)  # let the kubelet clean up, or it would slow down the next measurement
    ours, bare = (statistics.median(values) for values in seconds.values())
    more = statistics.median(a - b for a, b in zip(*seconds.values(), strict=True))
    spread = "; ".join(f"{kind} {min(values):.2f}–{max(values):.2f} s" for kind, values in seconds.items())
    late = allocating.percentiles(behind)[1]
    return [
        Figure("objects", f"Workflow created → {starting.PODS} pods Running", bare, "s", None, f"median of {rounds}"),
        Figure("objects", f"DIJob created → {starting.PODS} pods Running", ours, "s", None, spread),
        Figure("objects", "DIJob – Workflow", more, "s", 0.5, "median of the differences of neighbours"),
        Figure("objects", "DIJob : Workflow", ours / bare, "×", 1.25),
        Figure("objects", "status behind the pods, p95", late, "s", 2.0, f"of {len(behind)} jobs"),
    ]


def _many(cluster: Cluster, namespace: str, pid: int) -> list[Figure]:
    """All objects at once: when all have their Workflows. Gangs, so that nothing of them runs."""
    idle_before = _idle(pid, IDLE_SECONDS)
    with Watch(cluster, namespace, WORKFLOW, lambda _: "yes") as workflows:
        alone = time.monotonic()
        _create(cluster, namespace, [render(_gang(f"bare-{i:04}")) for i in range(JOBS)])
        bare = time.monotonic() - alone
        before = allocating.cpu_seconds(pid)
        began = time.monotonic()
        _create(cluster, namespace, [_object(_gang(f"many-{i:04}")) for i in range(JOBS)])
        created = time.monotonic() - began
        wait_until("all have Workflows", lambda: _count(workflows, "many-") >= JOBS, timeout=600, every=0.1)
        took = max(at for name, at in workflows.when(bool).items() if name.startswith("many-")) - began
        work = allocating.cpu_seconds(pid) - before
    wait_until("all have a status", lambda: _told(cluster, namespace) >= JOBS, timeout=300, every=2.0)
    _until_quiet(cluster, namespace)
    resident, peak = allocating.memory(pid)
    idle = _idle(pid, RESTING_SECONDS)
    note = f"{CLIENTS} clients; load {os.getloadavg()[0]:.1f}"
    return [
        Figure("objects", f"{JOBS} Workflows created", bare, "s", None, note),
        Figure("objects", f"{JOBS} DIJobs created", created, "s", None, note),
        Figure("objects", f"first of {JOBS} DIJobs → all have Workflows", took, "s", 60, "gangs, which wait"),
        Figure("objects", "the same : creating Workflows and DIJobs", took / (bare + created), "×", 2.5, _WRITES),
        Figure("objects", "the controller's processor time for it", work, "s"),
        Figure("objects", "memory of the controller", resident, "MiB", 200, f"at most {peak:.0f}"),
        Figure("objects", "idle controller, no jobs", 100 * idle_before, "% of a core", 1.0, f"{IDLE_SECONDS:g} s"),
        Figure("objects", f"idle controller, {JOBS} jobs", 100 * idle, "% of a core", 1.0, f"{RESTING_SECONDS:g} s"),
    ]


def _rules(found: TestCluster, cluster: Cluster, namespace: str) -> list[Figure]:
    """The API server's processor time for an object, with the CRD as it is and with its rules taken out, in turns."""
    whole = cluster.get(CRD, CRD_NAME)
    spent: dict[bool, list[float]] = {True: [], False: []}
    try:
        for ruled in (True, False, False, True):
            _set_rules(cluster, whole["spec"] if ruled else _without_rules(whole["spec"]))
            wait_until("the rules are as wanted", lambda ruled=ruled: _refuses(cluster, namespace) is ruled, timeout=60)  # type: ignore[misc]
            time.sleep(3)  # the schema is compiled, and published, once more
            objects = [_object(_job(f"rule-{i:04}")) for i in range(RULED)]
            before = allocating.server_seconds(found)
            _create(cluster, namespace, objects, dry_run=True)
            spent[ruled].append(1000 * (allocating.server_seconds(found) - before) / RULED)
    finally:
        _set_rules(cluster, whole["spec"])
    with_, without = (statistics.mean(values) for values in spent.values())
    texts = "; ".join(", ".join(f"{one:.1f}" for one in values) for values in spent.values())
    note = f"of two runs of {RULED} dry runs: {texts}"
    return [
        Figure("objects", "API server: a DIJob checked", with_, "ms", None, note),
        Figure("objects", "API server: without the rules", without, "ms"),
        Figure("objects", "with the rules : without", with_ / without, "×"),
    ]


def _set_rules(cluster: Cluster, spec: Json) -> None:
    cluster.patch(CRD, CRD_NAME, [{"op": "replace", "path": "/spec/versions", "value": spec["versions"]}])


def _without_rules(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_rules(inner) for key, inner in value.items() if key != _RULES}
    return [_without_rules(inner) for inner in value] if isinstance(value, list) else value


def _refuses(cluster: Cluster, namespace: str) -> bool:
    """Whether a job with two tasks of one name is refused: by the rules alone."""
    broken = _object(_job("broken"))
    broken["spec"]["tasks"] = [copy.deepcopy(broken["spec"]["tasks"][0]) for _ in range(2)]
    try:
        cluster.create(DIJOB, broken, namespace=namespace, dry_run=True)
    except Exception:
        return True
    return False


def _create(cluster: Cluster, namespace: str, bodies: list[Json], *, dry_run: bool = False) -> None:
    def one(body: Json) -> None:
        kind = DIJOB if body["kind"] == DIJOB.name else WORKFLOW
        cluster.create(kind, body, namespace=namespace, dry_run=dry_run)

    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(one, bodies))


def _job(name: str, **fields: Any) -> DIJob:
    template = {"spec": {"containers": [starting.CONTAINER], "terminationGracePeriodSeconds": 1}}
    tasks = (
        Task(type="learner", template=template),
        Task(type="collector", replicas=starting.PODS - 1, template=template),
    )
    return DIJob(name=name, tasks=tasks, **{"scheduling": "none", **fields})


def _gang(name: str) -> DIJob:
    return _job(name, scheduling="gang")


def _object(job: DIJob) -> Json:
    return job.to_manifest()


def _phase(pod: Mapping[str, Any]) -> str:
    return "Running" if (pod.get("status") or {}).get("phase") == "Running" else "made"


_ALL_RUN = f"Running {starting.PODS}"


def _ready(obj: Mapping[str, Any]) -> str:
    status = obj.get("status") or {}
    return f"{status.get('phase')} {status.get('readyReplicas')}"


def _of(job: str, pods: Mapping[str, str]) -> list[str]:
    """The values of the job's pods that exist."""
    return [value for pod, value in pods.items() if value and pod.startswith(f"{job}-")]


def _all_run(job: str, pods: Mapping[str, str]) -> bool:
    return _of(job, pods).count("Running") == starting.PODS


def _is_gone(job: str, pods: Mapping[str, str]) -> bool:
    return not _of(job, pods)


def _is_shown(job: str, objects: Mapping[str, str]) -> bool:
    return objects.get(job) == _ALL_RUN


def _count(watch: Watch, prefix: str) -> int:
    return sum(name.startswith(prefix) for name in watch.when(bool))


def _told(cluster: Cluster, namespace: str) -> int:
    return sum(bool((one.get("status") or {}).get("phase")) for one in cluster.list_all(DIJOB, namespace=namespace))


def _until_quiet(cluster: Cluster, namespace: str) -> None:
    """Wait until no DIJob changes: for a minute after the last one was created, Argo still writes the Workflows."""
    with Watch(cluster, namespace, DIJOB, lambda obj: str(obj["metadata"]["resourceVersion"])) as objects:

        def is_quiet() -> bool:
            return time.monotonic() - max(objects.when(bool, first=False).values()) >= QUIET_SECONDS

        wait_until("no DIJob changes", is_quiet, timeout=300, every=1.0)


def _idle(pid: int, seconds: float) -> float:
    """Cores that a process uses while nothing changes."""
    before, began = allocating.cpu_seconds(pid), time.monotonic()
    time.sleep(seconds)
    return (allocating.cpu_seconds(pid) - before) / (time.monotonic() - began)


@contextmanager
def _controller(found: TestCluster, namespace: str) -> Iterator[int]:
    """A controller for one namespace, which leads; yields its process id."""
    command = [sys.executable, "-m", "diflow", "controller", "run", "--log-format", "json"]
    command += ["--namespace", namespace, "--watch-namespace", namespace]
    log = ROOT / "out" / "bench-controller.log"
    log.parent.mkdir(exist_ok=True)
    with log.open("wb") as out:
        process = subprocess.Popen(command, env=found.environment, stdout=out, stderr=out, cwd=ROOT)
    try:
        yield process.pid
    finally:
        process.terminate()
        process.wait(60)
