"""`make demo-elastic`: two preemptible jobs and one of high priority on three nodes, and a picture of their lives.

The nodes are fake (kwok answers for them, and runs nothing), all else is real: Kubernetes, Argo, the allocator in its
pods. The jobs' programs are played from here: a pod runs until its job's work is done.

It uses the cluster of the present kubeconfig if `python3 -m cluster` made it, and asks before it changes anything there
(YES=1 answers). Otherwise it starts the one-machine cluster of `cluster/`, which needs root.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from diflow import DiflowError, DIJob
from diflow.common.tables import table
from diflow.jobs import events, lookup, submit
from diflow.kube.api import Cluster
from diflow.record.job import record_of
from elastic.film import EVERY_SECONDS, Film, Frame, Recorder
from elastic.picture import draw
from fakestage import (
    ALLOCATOR,
    SYSTEM,
    empty_nodes,
    end_work,
    fake_job,
    fake_pod,
    prepare,
    set_in_allocator,
    with_fake_nodes,
)
from stage import ROOT, DemoError, Target, exit_code, say

NAMESPACE = "demo-elastic"
NODES = ("fake-00000", "fake-00001", "fake-00002")
GPUS = 4
JOBS = ("vision", "language", "urgent")
PICTURE = ROOT / "out" / "elastic.png"

# A resize of a real job costs it a restart, so the allocator leaves it alone for two minutes; nobody would watch that.
_QUICK = {
    "DIFLOW_POLICY_LEAST_SECONDS_BETWEEN_RESIZES": "5",
    "DIFLOW_ALLOCATOR_PERIOD_SECONDS": "10",
    "DIFLOW_ALLOCATOR_LOST_AFTER_SECONDS": "5",  # a minute by default, for a node that is removed, too
}
_PATIENCE_SECONDS = 180.0
_PLATEAU_SECONDS = 8.0


def main() -> int:
    """Run the demo; returns 0 if all jobs succeeded and none used a restart up."""
    return exit_code(_run, left=f"the jobs stay where they are: diflow list -n {NAMESPACE}")


def _run() -> int:
    started = time.monotonic()
    target = with_fake_nodes(
        question="install manifests/ and manifests/allocator there, and make its fake nodes anew",
        otherwise="this demo removes nodes, and brings its own fake ones",
    )
    prepare(target, NAMESPACE)
    with set_in_allocator(target, _QUICK):
        empty_nodes(target, count=len(NODES), gpus=GPUS)
        play = Play(target, Cluster.connect())
        say(f"ready after {time.monotonic() - started:.0f} s; the film begins")
        play.run()
    return play.tell()


# --- what -----------------------------------------------------------------------------------------------------------


def job(name: str, *, replicas: int, low: int | None = None, high: int | None = None, seconds: str = "1h") -> DIJob:
    """A job of fake pods with a GPU each, which run so long. With bounds it is preemptible, else of high priority."""
    task: dict[str, Any] = {"replicas": replicas, "template": fake_pod(seconds)}
    if low is None:
        return fake_job(name, NAMESPACE, task, backoff_limit=0, priority="high")
    task |= {"min_replicas": low, "max_replicas": high}
    return fake_job(name, NAMESPACE, task, backoff_limit=0, preemptible=True)


@dataclass
class Play:
    """The acts, each of which waits until the allocator has done what it should."""

    target: Target
    cluster: Cluster

    def __post_init__(self) -> None:
        self.recorder = Recorder(self.cluster, Film(JOBS, NODES, GPUS), namespace=NAMESPACE)

    def run(self) -> None:
        """All acts; the picture is drawn even if one of them fails."""
        self.recorder.start()
        try:
            self._acts()
        finally:
            self.recorder.stop()
            for name in JOBS:
                with suppress(DiflowError):
                    told = events.allocator_events(name, namespace=NAMESPACE, cluster=self.cluster)
                    self.recorder.add_events(name, told or [])
                    status = lookup.get(name, namespace=NAMESPACE, cluster=self.cluster).status
                    if status.completion_timestamp:
                        self.recorder.tell(name, status.completion_timestamp, status.phase)
            PICTURE.parent.mkdir(exist_ok=True)
            draw(self.recorder.film, PICTURE, title="Three jobs on three nodes: growth, preemption, a lost node")

    def _acts(self) -> None:
        time.sleep(3 * EVERY_SECONDS)
        self._submit(job("vision", replicas=2, low=2, high=8))
        self._until("vision has all that it may have", lambda f: f.running("vision") == 8)
        self._submit(job("language", replicas=3, low=3, high=10))
        self._until("language has the rest", lambda f: f.running("language") == 4)
        self._submit(job("urgent", replicas=8, seconds="20s"))
        self._until(
            "urgent runs; language is stopped for it, vision has shrunk",
            lambda f: f.running("urgent") == 8 and f.running("language") == 0 and f.running("vision") == 4,
        )
        self._until("urgent has ended, language is back, vision has grown", lambda f: self._are_full(f, 12))
        lost = max(NODES, key=lambda node: self.recorder.film.frames[-1].on(node, "vision"))
        node = json.loads(self.target.run_kubectl("get", "node", lost, "-o", "json"))
        self._say(f"{lost} is removed")
        self.target.run_kubectl("delete", "node", lost, "--wait=false")
        self._until(
            "both have moved to what is left",
            lambda f: lost not in f.nodes and f.on(lost, "vision") == 0 and self._are_full(f, 8),
        )
        self._say(f"{lost} is back")
        self._bring_back(node)
        self._until("they have grown again", lambda f: self._are_full(f, 12))
        self._finish("vision")
        self._until("language has all that it may have", lambda f: f.running("language") == 10)
        self._finish("language")

    def _are_full(self, frame: Frame, gpus: int) -> bool:
        both = [frame.running(name) for name in ("vision", "language")]
        return sum(both) == gpus and min(both) >= 2

    def _submit(self, made: DIJob) -> None:
        submit.submit(made, cluster=self.cluster)
        self._say(f"{made.name} is submitted")

    def _until(self, what: str, true: Callable[[Frame], bool]) -> None:
        """Wait until it is so, then let it be for a while."""
        ends = time.monotonic() + _PATIENCE_SECONDS
        while not (self.recorder.film.frames and true(self.recorder.film.frames[-1])):
            if time.monotonic() > ends:
                raise DemoError(
                    f"not within {_PATIENCE_SECONDS:.0f} s: {what}. See: diflow list -n {NAMESPACE}; "
                    f"diflow explain JOB -n {NAMESPACE}; kubectl logs -n {SYSTEM} {ALLOCATOR}"
                )
            time.sleep(0.2)
        self._say(what)
        time.sleep(_PLATEAU_SECONDS)

    def _bring_back(self, node: dict[str, Any]) -> None:
        metadata = {name: node["metadata"][name] for name in ("name", "labels")}
        status = {name: node["status"][name] for name in ("capacity", "allocatable")}
        taints = [taint for taint in node["spec"]["taints"] if taint["key"] == "kwok.x-k8s.io/node"]
        body = {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {"taints": taints}, "status": status}
        self.target.run_kubectl("create", "-f", "-", stdin=json.dumps(body))

    def _finish(self, name: str) -> None:
        found = end_work(self.cluster, name, namespace=NAMESPACE, patience_seconds=_PATIENCE_SECONDS)
        self._say(f"{name} has ended: {found.status.phase}")

    def _say(self, text: str) -> None:
        say(f"[{self.recorder.now:5.0f} s] {text}")

    def tell(self) -> int:
        """Print what came of it. Returns 0 if all is well."""
        film = self.recorder.film
        good = True
        head = ("JOB", "PHASE", "RESTARTS", "ROUNDS", "REPLICAS", "GPU-SECONDS")
        rows = []
        for name in JOBS:
            found = lookup.get(name, namespace=NAMESPACE, cluster=self.cluster)
            rounds = str(len(record_of(found.workflow).live.rounds))
            counts = [frame.running(name) for frame in film.frames if frame.running(name)]
            spread = f"{min(counts, default=0)}-{max(counts, default=0)}"
            seconds = f"{film.replica_seconds(name):.0f}"
            rows.append((name, found.status.phase, str(found.status.restarts), rounds, spread, seconds))
            good = good and found.status.phase == "Succeeded" and found.status.restarts == 0
        print(table(head, rows, right=head[2:]))
        print(f"picture    {PICTURE}")
        return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
