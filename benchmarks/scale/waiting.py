"""Jobs that wait for full nodes: when all are in a plan, what cycles, commands and the status page take.

The allocator leads before the first job is submitted, as it would. Argo's controller is stopped: a waiting gang has no
pods, and `diflow submit` hides it from Argo until the first decision.
"""

from __future__ import annotations

import json
import os
import statistics
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

from benchmarks import allocating, live
from benchmarks.allocating import quiet_argo
from benchmarks.figures import Figure
from benchmarks.scale.common import (
    Json,
    allocator,
    command_seconds,
    fake_nodes,
    fake_template,
    fill,
    plans,
    say,
    server,
)
from benchmarks.watching import Watch
from diflow import DIJob, Task
from diflow.common import keys
from diflow.kube.api import Cluster
from diflow.kube.kinds import POD, WORKFLOW
from diflow.workflows import render
from tests.clusters import TestCluster, wait_until

REPLICAS = 5
COMMANDS = ("queue", "list", "explain {job}")
CHANGES = 30
"""Jobs submitted one by one when all others wait: each is a cycle of its own."""
ACCOUNT = "visitor"


def measure(*, jobs: int = 10_000, nodes: int = 200) -> list[Figure]:
    """The figures of this part: `jobs` gangs of five replicas, on `nodes` full fake nodes."""
    with live.namespace("waiting") as (found, cluster, namespace), quiet_argo(found, namespace) as silence:
        silence()
        fake_nodes(found, nodes)
        fill(cluster, namespace)
        daemon = allocator(found, namespace)
        daemon.start()
        try:
            daemon.until_leading()
            with ThreadPoolExecutor(16) as pool:
                began = time.monotonic()
                for _ in pool.map(lambda i: _submit(cluster, namespace, i), range(jobs)):
                    pass
            submitted = time.monotonic()
            say(submitted=jobs, seconds=round(submitted - began, 1))
            wait_until(
                "all are in a plan", lambda: any(p["jobs"] >= jobs for p in plans(daemon)), timeout=600, every=0.2
            )
            seen = time.monotonic() - submitted
            say(all_in_a_plan_after_seconds=round(seen, 1))
            explained = _until_explained(cluster, namespace, jobs) - submitted
            say(all_reasons_written_after_seconds=round(explained, 1))
            cycles = _cycles(cluster, namespace, jobs)
            assert daemon.process is not None
            resident, peak = allocating.memory(daemon.process.pid)
            commands = {
                text.partition(" ")[0]: statistics.median(
                    command_seconds(found, namespace, *text.format(job=_name(jobs // 2)).split()) for _ in range(3)
                )
                for text in COMMANDS
            }
            page = _page_seconds(found, namespace)
            policy = max(p["seconds"] for p in plans(daemon) if p["jobs"] >= jobs)
        finally:
            daemon.stop()
        pods = cluster.list_all(POD, namespace=namespace, labels=keys.JOB, metadata_only=True)
    note = f"{jobs} gangs of {REPLICAS} on {nodes} nodes; load {os.getloadavg()[0]:.1f}"
    middle, late = allocating.percentiles(cycles)
    return [
        Figure("waiting", "submitting them", submitted - began, "s", None, f"16 clients; {note}"),
        Figure("waiting", "last submission → all in a plan", seen, "s", 60, note),
        Figure("waiting", "last submission → all have their reason", explained, "s", None, "as an annotation"),
        Figure("waiting", "longest plan", policy, "s", 1.0, "the policy fit"),
        Figure("waiting", "one more job → its reason, p50", middle, "s", None, f"{CHANGES} jobs, one by one"),
        Figure("waiting", "one more job → its reason, p95", late, "s", 1.5, "a cycle, with its writes"),
        Figure("waiting", "memory of the allocator", resident, "MiB", 500, f"at most {peak:.0f}"),
        Figure("waiting", "pods of waiting jobs", len(pods), "", 0),
        *(Figure("waiting", f"diflow {name}", took, "s", 2.0, "median of 3") for name, took in commands.items()),
        Figure("waiting", "status page", page, "s", 1.0, "median of 5"),
    ]


def _name(number: int) -> str:
    return f"wait-{number:05}"


_MODEL = json.dumps(
    render(
        DIJob(
            name=_name(0),
            tasks=(Task(name="worker", replicas=REPLICAS, template=fake_template(3600, cpu="2")),),
            scheduling="gang",
        )
    )
)


def _submit(cluster: Cluster, namespace: str, number: int) -> None:
    cluster.create(WORKFLOW, json.loads(_MODEL.replace(_name(0), _name(number))), namespace=namespace)


def _reason(workflow: Json) -> str:
    return "yes" if (workflow["metadata"].get("annotations") or {}).get(keys.DECISION) else ""


def _until_explained(cluster: Cluster, namespace: str, jobs: int) -> float:
    with Watch(cluster, namespace, WORKFLOW, _reason) as reasons:
        wait_until("all have their reason", lambda: len(reasons.when(bool)) >= jobs, timeout=900, every=1.0)
        return time.monotonic()


def _cycles(cluster: Cluster, namespace: str, jobs: int) -> list[float]:
    """Seconds from the answer to a submission until a watch shows the reason why the job waits."""
    out = []
    with Watch(cluster, namespace, WORKFLOW, _reason) as reasons:
        for number in range(jobs, jobs + CHANGES):
            name = _name(number)
            _submit(cluster, namespace, number)
            began = time.monotonic()
            ended = reasons.until(f"{name} has its reason", lambda seen, name=name: bool(seen.get(name)))  # type: ignore[misc]
            out.append(ended - began)
            time.sleep(0.5)
    return out


def _page_seconds(found: TestCluster, namespace: str) -> float:
    """How long the status page takes, for a visitor who may see all jobs of the namespace."""
    found.kubectl("create", "serviceaccount", ACCOUNT, "-n", namespace)
    found.kubectl(
        "create", "rolebinding", ACCOUNT, "-n", namespace, "--clusterrole=admin",
        f"--serviceaccount={namespace}:{ACCOUNT}",
    )  # fmt: skip
    token = found.kubectl("create", "token", ACCOUNT, "-n", namespace).strip()
    with server(found, namespace) as (port, _):
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/?namespace={namespace}", headers={"Authorization": f"Bearer {token}"}
        )

        def shown() -> float:
            began = time.monotonic()
            with urllib.request.urlopen(request, timeout=60) as answer:
                text = answer.read().decode()
            if _name(0)[:7] not in text:
                raise ValueError("the page shows no job")
            return time.monotonic() - began

        def is_shown() -> bool:
            try:
                return bool(shown())
            except (OSError, ValueError):  # it lists the jobs still
                return False

        wait_until("the page shows the jobs", is_shown, timeout=120)
        return statistics.median(shown() for _ in range(5))
