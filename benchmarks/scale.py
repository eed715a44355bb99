"""`python -m benchmarks.scale`: a leader that is killed, jobs that wait, and jobs that come and go, on fake nodes.

    waiting --jobs 10000 --nodes 200     gangs that do not fit: when all are planned, memory, cycles, commands
    failover --pods 5000 --rounds 3      kill -9 of the leader → first decision of the next one
    soak --jobs 5000 --minutes 60        jobs of one pod come and go; memory, open files and latency of the daemons

All end by themselves. `failover` copies jobs and pods, as `benchmarks.allocating` does; `soak` leaves them to Argo.
Needs a cluster with fake nodes: that of DIFLOW_TEST_KUBECONFIG, or a new one. The last line is a summary as JSON. The
exit code is 1 if a limit is exceeded.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks import allocating, live
from benchmarks.allocating import Grown, quiet_argo
from benchmarks.watching import Watch
from diflow import DIJob, Task, keys
from diflow.kube.api import Cluster
from diflow.kube.kinds import LEASE, NODE, POD, WORKFLOW
from diflow.workflows import render
from tests.builders import template
from tests.clusters import ROOT, TestCluster, wait_until
from tests.e2e import installing
from tests.e2e.allocators import Daemon, kept_alive
from tests.e2e.live import ENDED, FAKE

Json = dict[str, Any]

LEASE_SECONDS = 15.0
BEYOND_SECONDS = 5.0
"""The aim: the first decision of the next leader, counted from the end of the Lease."""
GROWTH = 1.1
"""The most that memory and open files may grow from the second third of the soak to the last."""
SAMPLE_SECONDS = 10.0
STANDBY_SECONDS = 60.0
"""For a standby to fill its caches, before the leader is killed."""
_PHASE = "workflows.argoproj.io/phase"
_GONE = {_PHASE: "Succeeded"}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scale", description="Measure at the scale of a large team."
    )
    parts = parser.add_subparsers(dest="part", required=True)
    failing = parts.add_parser("failover")
    failing.add_argument("--pods", type=int, default=5000)
    failing.add_argument("--rounds", type=int, default=3)
    failing.add_argument("--no-fence", action="store_true", help="without the policy of the API server")
    soaking = parts.add_parser("soak")
    soaking.add_argument("--jobs", type=int, default=5000, help="at most so many")
    soaking.add_argument("--minutes", type=float, default=60.0, help="at most so long")
    soaking.add_argument("--at-once", type=int, default=40, help="so many that have not ended (default: 40)")
    waiting = parts.add_parser("waiting")
    waiting.add_argument("--jobs", type=int, default=10_000, help="gangs of five replicas that do not fit")
    waiting.add_argument("--nodes", type=int, default=200, help="full fake nodes")
    options = parser.parse_args()
    with live.namespace("scale") as (found, cluster, namespace):
        if options.part == "failover":
            return failover(found, cluster, namespace, options)
        if options.part == "waiting":
            return wait(found, cluster, namespace, options)
        return soak(found, cluster, namespace, options)


# --- a leader that is killed ------------------------------------------------------------------------------------------


def failover(found: TestCluster, cluster: Cluster, namespace: str, options: argparse.Namespace) -> int:
    folder = Path(tempfile.mkdtemp(prefix="diflow-scale-"))
    with quiet_argo(found, namespace) as silence:
        grown = Grown(found, cluster, namespace)
        grown.keep_models()
        silence()
        grown.to(options.pods)
        pair = [_daemon(found, namespace, folder, i) for i in range(2)]
        try:
            pair[0].start()
            pair[0].until_leading()
            if not options.no_fence:
                installing.install_fence(found, home=namespace)
            wait_until("all pods run", lambda: not allocating.pending(cluster, namespace), timeout=1800, every=5.0)
            pair[1].start()
            rounds = []
            for number in range(options.rounds):
                time.sleep(STANDBY_SECONDS)
                rounds.append(_fall(grown, cluster, namespace, pair, f"after-{number}"))
                say(json.dumps(rounds[-1]))
                pair[0].log.write_text("")
                pair[0].start()
                pair.reverse()
        finally:
            for one in pair:
                one.stop()
    beyond = [one["beyond_the_lease_seconds"] for one in rounds]
    summary = {
        "part": "failover", "pods": grown.pods, "jobs": len(grown.jobs), "nodes": grown.nodes,
        "fence": not options.no_fence, "rounds": rounds, "load": os.getloadavg()[0],
        "beyond_the_lease_seconds": [min(beyond), statistics.median(beyond), max(beyond)],
    }  # fmt: skip
    say(json.dumps(summary))
    return int(max(beyond) > BEYOND_SECONDS)


def _daemon(found: TestCluster, namespace: str, folder: Path, number: int) -> Daemon:
    port = {"DIFLOW_ALLOCATOR_METRICS_PORT": str(allocating.free_port())}
    return Daemon(found, namespace, folder / f"log-{number}", {**allocating.SETTINGS, **port})


def _fall(grown: Grown, cluster: Cluster, namespace: str, pair: Sequence[Daemon], name: str) -> Json:
    """Kill the first of the two, and submit a job that nobody has decided on. Times count from the kill, and from the
    end of the Lease by its last renewal."""
    holders = {line["identity"] for line in pair[0].lines() if line.get("event") == "leading"}
    lease = cluster.get(LEASE, keys.ALLOCATOR, namespace=namespace)
    assert lease["spec"]["holderIdentity"] in holders, "the one that is to be killed leads"
    with Watch(cluster, namespace, WORKFLOW, _is_placed) as placed:
        pair[0].kill()
        killed, wall = time.monotonic(), time.time()
        lease = cluster.get(LEASE, keys.ALLOCATOR, namespace=namespace)
        ends = killed + datetime.fromisoformat(lease["spec"]["renewTime"]).timestamp() - wall + LEASE_SECONDS
        grown.jobs.append(name)
        grown.copy(name, 0)
        decided = placed.until(f"{name} has its places", lambda seen: bool(seen.get(name)), timeout=300)
    wait_until("it runs", lambda: not allocating.pending(cluster, namespace), timeout=300)
    events = {
        line["event"]: round(datetime.fromisoformat(line["timestamp"]).timestamp() - wall, 2)
        for line in reversed(pair[1].lines())
        if line.get("event") in ("leading", "takes over", "the former leader is fenced", "plan")
    }
    return {
        "killed_to_decided_seconds": round(decided - killed, 2),
        "beyond_the_lease_seconds": round(decided - ends, 2),
        "after_the_kill": events,
    }


def _is_placed(workflow: Json) -> str:
    at = json.loads((workflow["metadata"].get("annotations") or {}).get(keys.ALLOCATION) or "{}")
    return "yes" if any(at.get("nodes", {}).values()) else ""


# --- jobs that wait ---------------------------------------------------------------------------------------------------


def wait(found: TestCluster, cluster: Cluster, namespace: str, options: argparse.Namespace) -> int:
    """Jobs that wait for full nodes: how soon all are in a plan, what a cycle takes, and what the commands take."""
    folder = Path(tempfile.mkdtemp(prefix="diflow-scale-"))
    subprocess.run(
        [sys.executable, "-m", "cluster", "fake-nodes", "--name", str(found.name), "--count", str(options.nodes)],
        cwd=ROOT, check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    daemon = _daemon(found, namespace, folder, 0)
    with quiet_argo(found, namespace) as silence, ThreadPoolExecutor(16) as pool:
        silence()
        for node in cluster.list_all(NODE):
            _fill(cluster, namespace, node)
        model = json.dumps(_waiting("wait-00000"))
        bodies = (json.loads(model.replace("wait-00000", f"wait-{i:05}")) for i in range(options.jobs))
        began = time.monotonic()
        for _ in pool.map(lambda body: cluster.create(WORKFLOW, body, namespace=namespace), bodies):
            pass
        submitted = time.monotonic()
        say(json.dumps({"submitted": options.jobs, "seconds": round(submitted - began, 1)}))
        daemon.start()
        try:
            daemon.until_leading()
            started = time.monotonic()

            def plans() -> list[Json]:
                return [line for line in daemon.lines() if line.get("event") == "plan"]

            wait_until(
                "all are in a plan", lambda: [p for p in plans() if p["jobs"] >= options.jobs], timeout=600, every=0.2
            )
            seen = time.monotonic() - started
            assert daemon.process is not None
            resident, peak = allocating.memory(daemon.process.pid)
            seconds = {
                command: round(_command(found, namespace, *command.split()), 2)
                for command in ("queue", f"explain wait-{options.jobs // 2:05}", "list")
            }
            policy = [p["seconds"] for p in plans() if p["jobs"] >= options.jobs]
        finally:
            daemon.stop()
        pods = cluster.list_all(POD, namespace=namespace, labels=keys.JOB, metadata_only=True)
    summary = {
        "part": "waiting", "jobs": options.jobs, "nodes": options.nodes, "seen_seconds": round(seen, 1),
        "policy_seconds": [min(policy), max(policy)], "mib": [round(resident), round(peak)], "pods": len(pods),
        "command_seconds": seconds, "load": os.getloadavg()[0],
    }  # fmt: skip
    say(json.dumps(summary))
    return int(bool(pods))


def _waiting(name: str) -> Json:
    made = template(
        "sleep 1",
        container={"resources": {"requests": {"cpu": "2", "memory": "64Mi"}}},
        nodeSelector={FAKE: "fake"},
        tolerations=[{"key": FAKE, "operator": "Exists"}],
    )
    return render(DIJob(name=name, tasks=(Task(name="worker", replicas=5, template=made),), scheduling="gang"))


def _fill(cluster: Cluster, namespace: str, node: Json) -> None:
    """A pod of somebody else's that uses all of a node's processors."""
    name = node["metadata"]["name"]
    uses = {"requests": {"cpu": node["status"]["allocatable"]["cpu"]}}
    if not any(taint["key"] == FAKE for taint in node["spec"].get("taints", ())):
        uses = {"requests": {"cpu": "1"}}
    spec = {
        "nodeName": name, "tolerations": [{"operator": "Exists"}],
        "containers": [{"name": "main", "image": "x", "resources": uses}],
    }  # fmt: skip
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"fill-{name}"}, "spec": spec}
    cluster.create(POD, body, namespace=namespace)


def _command(found: TestCluster, namespace: str, *arguments: str) -> float:
    began = time.monotonic()
    command = [sys.executable, "-m", "diflow", *arguments, "-n", namespace]
    subprocess.run(command, env=found.environment, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - began


# --- jobs that come and go --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sample:
    """One look: `minute` since the start, resident MiB and open files by daemon, Workflows that exist."""

    minute: float
    mib: dict[str, float]
    files: dict[str, int]
    workflows: int
    ended: int
    placed_seconds: float
    """From the creation of a job until its places are written: the median of the jobs since the last sample."""


def soak(found: TestCluster, cluster: Cluster, namespace: str, options: argparse.Namespace) -> int:
    folder = Path(tempfile.mkdtemp(prefix="diflow-scale-"))
    subprocess.run(
        [sys.executable, "-m", "cluster", "fake-nodes", "--name", str(found.name), "--count", "4"],
        cwd=ROOT, check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    allocator = _daemon(found, namespace, folder, 0)
    samples: list[Sample] = []
    made: dict[str, float] = {}
    with (folder / "server").open("wb") as log:
        command = [sys.executable, "-m", "diflow", "server", "run", "--log-format", "json"]
        settings = {
            "DIFLOW_SERVER_PORT": "0", "DIFLOW_SERVER_METRICS_PORT": "-1", "DIFLOW_SERVER_WATCHED_NAMESPACE": namespace
        }  # fmt: skip
        server = subprocess.Popen(command, env={**found.environment, **settings}, stdout=log, stderr=log, cwd=ROOT)
        allocator.start()
        try:
            allocator.until_leading()
            began = time.monotonic()
            with (
                kept_alive(allocator),
                Watch(cluster, namespace, WORKFLOW, _is_placed) as placed,
                ThreadPoolExecutor(8) as pool,
            ):
                ended: set[str] = set()
                told: set[str] = set()
                while time.monotonic() - began < options.minutes * 60 and len(ended) < options.jobs:
                    heads = cluster.list_all(WORKFLOW, namespace=namespace, metadata_only=True)
                    there = {one["metadata"]["name"]: one["metadata"].get("labels") or {} for one in heads}
                    over = {name for name in made if there.get(name, _GONE).get(_PHASE) in ENDED}
                    ended |= over
                    want = min(options.at_once - (len(made) - len(ended)), options.jobs - len(made))
                    names = [f"soak-{len(made) + i:05}" for i in range(max(0, want))]
                    made |= dict.fromkeys(names, time.monotonic())
                    list(pool.map(lambda name: cluster.create(WORKFLOW, _short(name), namespace=namespace), names))
                    if time.monotonic() - began >= SAMPLE_SECONDS * len(samples):
                        times = {n: at - made[n] for n, at in placed.when(bool).items() if n in made and n not in told}
                        told |= times.keys()
                        pids = {"allocator": allocator.process.pid if allocator.process else 0, "server": server.pid}
                        with suppress(OSError, KeyError):  # it has ended, and is started again
                            samples.append(_look(pids, began, len(there), len(ended), list(times.values())))
                            say(json.dumps(asdict(samples[-1])))
                    time.sleep(1.0)
        finally:
            allocator.stop()
            server.terminate()
            server.wait(60)
    growth = _growth(samples)
    latency = [one.placed_seconds for one in samples if one.placed_seconds]
    third = max(1, len(latency) // 3)
    summary = {
        "part": "soak", "minutes": round((time.monotonic() - began) / 60, 1), "jobs": len(made), "ended": len(ended),
        "growth": growth, "load": os.getloadavg()[0],
        "starts": sum(line.get("event") == "started" for line in allocator.lines()),
        "placed_seconds_by_third": [round(statistics.median(part), 2) for part in
                                    (latency[:third], latency[third : 2 * third], latency[2 * third :]) if part],
    }  # fmt: skip
    say(json.dumps(summary))
    return int(any(value > GROWTH for found in growth.values() for value in found.values()))


def _short(name: str) -> Json:
    """A job of one fake pod that runs for a second, and is deleted a minute after its end."""
    made = template(
        "sleep 1",
        container={"resources": {"requests": {"cpu": "1", "memory": "64Mi"}}},
        nodeSelector={FAKE: "fake"},
        tolerations=[{"key": FAKE, "operator": "Exists"}],
    )
    made["metadata"] = {"annotations": {"kwok.x-k8s.io/duration": "1s"}}
    job = DIJob(
        name=name, tasks=(Task(name="worker", replicas=1, template=made),), scheduling="gang",
        ttl_seconds_after_finished=60,
    )  # fmt: skip
    return render(job)


def _look(pids: dict[str, int], began: float, there: int, ended: int, placed: list[float]) -> Sample:
    return Sample(
        minute=round((time.monotonic() - began) / 60, 2),
        mib={name: round(allocating.memory(pid)[0], 1) for name, pid in pids.items()},
        files={name: len(list(Path(f"/proc/{pid}/fd").iterdir())) for name, pid in pids.items()},
        workflows=there,
        ended=ended,
        placed_seconds=round(statistics.median(placed), 2) if placed else 0.0,
    )


def _growth(samples: Sequence[Sample]) -> dict[str, dict[str, float]]:
    """The median of the last third of the samples, divided by that of the second."""
    third = max(1, len(samples) // 3)
    before, after = samples[third : 2 * third] or samples[:1], samples[2 * third :] or samples[-1:]

    def ratio(values: Sequence[float], others: Sequence[float]) -> float:
        return round(statistics.median(others) / statistics.median(values), 3)

    return {
        name: {
            "mib": ratio([one.mib[name] for one in before], [one.mib[name] for one in after]),
            "files": ratio([one.files[name] for one in before], [one.files[name] for one in after]),
        }
        for name in samples[0].mib
    }


def say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
