"""Settings of Argo's controller beside each other: `python -m benchmarks.scale.argo`.

For each variant: a short pod from its submission to its end, one replica more, a new round (real pods, diflow's jobs);
a Workflow of many fake pods; and the processor and memory of the controller beside 1,000 running jobs that report.
The controller is started again with each variant; the first variant is put back at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks import live, resizing
from benchmarks.scale.common import PHASE, Json, controller_restarts, fake_nodes, fake_template, say
from benchmarks.watching import Watch
from diflow import DIJob, Task
from diflow.common import keys
from diflow.common.tables import table
from diflow.kube.api import Cluster
from diflow.kube.kinds import POD, WORKFLOW
from diflow.workflows import render
from tests.builders import template
from tests.clusters import TestCluster, wait_until
from tests.e2e.allocators import Daemon

REPORTS_PER_SECOND = 10
CPU_SECONDS = 60.0
WIDE = 200


@dataclass(frozen=True)
class Variant:
    """Settings of the controller."""

    name: str
    requeue: str = "10s"
    arguments: tuple[str, ...] = ()


QUICK_CLIENT = ("--qps=100", "--burst=200")
VARIANTS = (
    Variant("as Argo comes"),
    Variant("5 s", "5s"),
    Variant("2 s", "2s"),
    Variant("1 s", "1s"),
    Variant("1 s, qps 100", "1s", QUICK_CLIENT),
    Variant("1 s, qps 100, 8 workers", "1s", (*QUICK_CLIENT, "--workflow-workers=8")),
)
HEAD = (
    "settings", "submit → Running", "→ Succeeded", "one replica more, by hand", "diflow",
    "new round, by hand", "diflow",
    f"{WIDE} pods created", "CPU", "MiB", "reports/s", "load",
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale.argo", description="Settings of Argo, measured.")
    parser.add_argument("--jobs", type=int, default=1000, help="running jobs of one pod (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="repetitions (default: %(default)s)")
    parser.add_argument("--only", default="", help="names of variants, separated by semicolons")
    options = parser.parse_args()
    chosen = [one for one in VARIANTS if not options.only or one.name in options.only.split(";")]
    rows: list[Sequence[str]] = []
    with (
        live.one_cluster() as found,
        live.namespace("argo") as (_, api, namespace),
        _running(found, api, namespace, options.jobs),
    ):
        try:
            for variant in chosen:
                _set(found, variant)
                rows.append(_measured(found, api, namespace, variant, options.rounds))
                print(table(HEAD, rows), flush=True)
        finally:
            _set(found, Variant("", "1s"))
    return 0


def _measured(found: TestCluster, api: Cluster, namespace: str, variant: Variant, rounds: int) -> Sequence[str]:
    with live.namespace("argo-live") as (_, _, other):
        short = [_short(api, other, f"short-{i}") for i in range(rounds)]
        say(variant=variant.name, short=short)
    grown, moved = _resized(rounds)
    wide = _wide(api, namespace)
    cores, mib, reports = _controller(found, api, namespace)
    running, ended = (statistics.median(values) for values in zip(*short, strict=True))
    seconds = [
        f"{statistics.median(one.running for one in took[kind]):.1f} s"
        for took in (grown, moved)
        for kind in (resizing.HAND, resizing.OURS)
    ]
    return (
        variant.name, f"{running:.1f} s", f"{ended:.1f} s", *seconds, f"{wide:.1f} s",
        f"{cores:.2f}", f"{mib:.0f}", f"{reports:.0f}", f"{os.getloadavg()[0]:.1f}",
    )  # fmt: skip


# --- the controller ---------------------------------------------------------------------------------------------------


def _set(found: TestCluster, variant: Variant) -> None:
    patch = {
        "name": "workflow-controller",
        "args": list(variant.arguments),
        "env": [{"name": "DEFAULT_REQUEUE_TIME", "value": variant.requeue}],
    }
    body = {"spec": {"template": {"spec": {"containers": [patch]}}}}
    found.kubectl("patch", "deployment/workflow-controller", "-n", "argo", "--type=strategic", "-p", json.dumps(body))
    controller_restarts(found)


def _controller(found: TestCluster, api: Cluster, namespace: str) -> tuple[float, float, float]:
    """(cores, MiB) of the controller, and reports a second that were written, while the running jobs report."""
    stop = threading.Event()
    count = [0]

    def report() -> None:
        number = 0
        while not stop.is_set():
            began = time.monotonic()
            value = json.dumps({"worker": {"step": number}})
            patch = {"metadata": {"annotations": {"diflow-bench/report": value}}}
            api.patch(WORKFLOW, _name(number % 500), patch, namespace=namespace)
            number += 1
            count[0] += 1
            stop.wait(max(0.0, 1 / REPORTS_PER_SECOND - (time.monotonic() - began)))

    thread = threading.Thread(target=report)
    thread.start()
    try:
        time.sleep(15)
        (before, _), began, counted = _usage(found), time.monotonic(), count[0]
        time.sleep(CPU_SECONDS)
        (after, mib), took = _usage(found), time.monotonic() - began
        return (after - before) / took, mib, (count[0] - counted) / took
    finally:
        stop.set()
        thread.join()


def _usage(found: TestCluster) -> tuple[float, float]:
    """(CPU seconds so far, MiB in use) of the controller's container, from the kubelet."""
    names = found.kubectl("get", "pods", "-n", "argo", "-l", "app=workflow-controller", "-o", "name").split()
    name = names[-1].removeprefix("pod/")
    node = found.kubectl("get", "pod", name, "-n", "argo", "-o", "jsonpath={.spec.nodeName}")
    summary = json.loads(found.kubectl("get", "--raw", f"/api/v1/nodes/{node}/proxy/stats/summary"))
    pod = next(one for one in summary["pods"] if one["podRef"]["name"] == name)
    (container,) = pod["containers"]
    return container["cpu"]["usageCoreNanoSeconds"] / 1e9, container["memory"]["workingSetBytes"] / 2**20


# --- jobs -------------------------------------------------------------------------------------------------------------


def _name(number: int) -> str:
    return f"runs-{number:04}"


@contextmanager
def _running(found: TestCluster, api: Cluster, namespace: str, jobs: int) -> Iterator[None]:
    """That many running jobs of one fake pod, made by Argo."""
    fake_nodes(found, jobs // 25 + 8)
    job = DIJob(
        name=_name(0), tasks=(Task(name="worker", replicas=1, template=fake_template(86400)),), scheduling="none"
    )
    model = json.dumps(render(job))
    bodies = (json.loads(model.replace(_name(0), _name(i))) for i in range(jobs))
    _set(found, Variant("", "1s", QUICK_CLIENT))
    began = time.monotonic()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda body: api.create(WORKFLOW, body, namespace=namespace), bodies))

    def count() -> int:
        pods = api.list_all(POD, namespace=namespace, fields="status.phase=Running", metadata_only=True)
        return len(pods)

    wait_until(f"{jobs} jobs run", lambda: count() >= jobs, timeout=1200, every=5.0)
    say(jobs=jobs, run_after_seconds=round(time.monotonic() - began))
    yield


def _short(api: Cluster, namespace: str, name: str) -> tuple[float, float]:
    """Seconds from the submission of a job of one real pod until it runs, and until the job has succeeded."""
    worker = Task(name="worker", replicas=1, template=template("sleep 1"))
    body = render(DIJob(name=name, tasks=(worker,), scheduling="none"))
    with (
        Watch(api, namespace, POD, lambda pod: (pod.get("status") or {}).get("phase") or "") as pods,
        Watch(api, namespace, WORKFLOW, _phase) as jobs,
    ):
        began = time.monotonic()
        api.create(WORKFLOW, body, namespace=namespace)
        jobs.until(f"{name} has succeeded", lambda seen: seen.get(name) == "Succeeded")
        ended = max(jobs.when(lambda value: value == "Succeeded").values())
        running = max(pods.when(lambda value: value == "Running").values())
    return running - began, ended - began


def _phase(workflow: Json) -> str:
    return str((workflow["metadata"].get("labels") or {}).get(PHASE) or "")


def _resized(rounds: int) -> tuple[dict[str, list[resizing.Took]], dict[str, list[resizing.Took]]]:
    """One replica more, and a new round, by hand and by diflow."""
    with live.namespace("argo-resize") as (found, api, namespace):
        daemon = Daemon(found, namespace, Path(tempfile.mkdtemp(prefix="diflow-bench-")) / "log", resizing.SETTINGS)
        daemon.start()
        try:
            daemon.until_leading()
            return resizing.in_turns(api, namespace, rounds)
        finally:
            daemon.stop()


def _wide(api: Cluster, namespace: str) -> float:
    """Seconds from the submission of a job of many fake pods until all are created. Deletes it."""
    name = f"wide-{time.monotonic_ns()}"
    worker = Task(name="worker", replicas=WIDE, template=fake_template(86400, cpu="100m"))
    body = render(DIJob(name=name, tasks=(worker,), scheduling="none"))
    with Watch(api, namespace, POD, lambda pod: (pod["metadata"].get("labels") or {}).get(keys.JOB, "")) as pods:
        began = time.monotonic()
        api.create(WORKFLOW, body, namespace=namespace)
        took = pods.until("all are created", lambda seen: list(seen.values()).count(name) >= WIDE, timeout=600) - began
    api.delete(WORKFLOW, name, namespace=namespace)
    return took


if __name__ == "__main__":
    sys.exit(main())
