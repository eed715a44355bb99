"""`make demo-autoscale`: gangs whose nodes a real Karpenter adds, and a picture of nodes and replicas.

Karpenter's nodes are fake (kwok answers for them, and runs nothing), all else is real: Kubernetes, Argo, Karpenter, the
allocator in its pods. There is no node with a GPU at first. A gang of 4 replicas with 2 GPUs each is submitted, its
nodes come, it runs and ends, and the nodes go. Then a node of another job is taken away by Karpenter: the replica moves
before its node ends.

It uses the cluster of the present kubeconfig if `python3 -m cluster` made it, and asks before it changes anything there
(YES=1 answers). Otherwise it starts the one-machine cluster of `cluster/`, which needs root.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diflow import DIJob
from diflow.common import keys
from diflow.common.tables import table
from diflow.jobs import lookup, submit
from diflow.kube.api import Cluster
from diflow.kube.kinds import NODE, POD
from elastic.picture import COLOURS, GREY, INK, LIGHT, quiet, sheet, write
from fakestage import ALLOCATOR, SYSTEM, end_work, fake_job, fake_pod, prepare, set_in_allocator, with_fake_nodes
from stage import ROOT, DemoError, Target, apply, cluster, exit_code, say

NAMESPACE = "demo-autoscale"
PICTURE = ROOT / "out" / "autoscale.png"
_POOL = "karpenter.sh/nodepool=gpu"
_KEEP = {"karpenter.sh/do-not-disrupt": "true"}
_EVERY_SECONDS = 0.25
_PATIENCE_SECONDS = 240.0
_PLATEAU_SECONDS = 5.0
_SEEN_SECONDS, _COMPLETE_SECONDS = 5.0, 10.0


def main() -> int:
    """Run the demo; returns 0 if the gang started whole, in time, and no job used a restart up."""
    return exit_code(_run, left=f"the jobs stay where they are: diflow list -n {NAMESPACE}")


def _run() -> int:
    target = with_fake_nodes(
        question="install manifests/, manifests/allocator and Karpenter there, and remove its fake nodes",
        otherwise="this demo runs an autoscaler, which adds and removes nodes",
    )
    prepare(target, NAMESPACE)
    apply(target, "manifests/autoscale")
    cluster("fake-nodes", "--name", target.name, "--count", "0")
    cluster("autoscaler", "--name", target.name)
    with set_in_allocator(target, {"DIFLOW_ALLOCATOR_AUTOSCALED": "true"}):
        target.run_kubectl("rollout", "status", "-n", SYSTEM, ALLOCATOR, "--timeout=180s")
        play = Play(target, Cluster.connect())
        play.run()
    return play.tell()


def job(name: str, replicas: int) -> DIJob:
    """A gang of fake pods with 2 GPUs each. Karpenter evicts none of them from a node that it takes away."""
    pod = fake_pod()
    pod["metadata"]["annotations"] |= _KEEP
    resources = pod["spec"]["containers"][0]["resources"]
    for asked in resources.values():
        asked["nvidia.com/gpu"] = 2
    return fake_job(name, NAMESPACE, {"replicas": replicas, "template": pod}, scheduling="gang")


@dataclass(frozen=True)
class Moment:
    """What there is: the ready nodes of the pool, those that are not ready yet, the pods that stand for replicas, and
    of each job the nodes of its pods and of those that run."""

    at: float
    ready: frozenset[str]
    coming: frozenset[str]
    demands: int
    pods: dict[str, list[str]]
    running: dict[str, list[str]]


@dataclass
class Recorder:
    """Looks at the cluster several times a second, in a thread of its own."""

    cluster: Cluster
    began: float = field(default_factory=time.monotonic)
    moments: list[Moment] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    @property
    def now(self) -> float:
        return time.monotonic() - self.began

    def run(self) -> None:
        """Until `over` is set."""
        while not self.over.wait(_EVERY_SECONDS):
            nodes = self.cluster.list_all(NODE, labels=_POOL)
            pods = self.cluster.list_all(POD, namespace=NAMESPACE)
            ready = frozenset(node["metadata"]["name"] for node in nodes if _is_ready(node))
            demands = [pod for pod in pods if keys.DEMAND in pod["metadata"].get("labels", {})]
            found: dict[str, list[str]] = {}
            running: dict[str, list[str]] = {}
            for pod in pods:
                name = pod["metadata"].get("labels", {}).get(keys.ARGO_WORKFLOW)
                if name and pod["status"].get("phase") not in ("Succeeded", "Failed"):
                    node = pod["spec"].get("nodeName", "")
                    found.setdefault(name, []).append(node)
                    if pod["status"].get("phase") == "Running":
                        running.setdefault(name, []).append(node)
            names = frozenset(node["metadata"]["name"] for node in nodes)
            self.moments.append(Moment(self.now, ready, names - ready, len(demands), found, running))

    def first(self, true: Callable[[Moment], bool], *, after: float = 0.0) -> float:
        """When it was so for the first time after that; infinite if never."""
        return next((m.at for m in self.moments if m.at >= after and true(m)), float("inf"))


def _is_ready(node: dict[str, Any]) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"].get("conditions", []))


@dataclass
class Play:
    """The acts, each of which waits until what it shows has come."""

    target: Target
    cluster: Cluster
    marks: list[tuple[float, str]] = field(default_factory=list)
    figures: list[tuple[str, str, bool]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.recorder = Recorder(self.cluster)

    def run(self) -> None:
        """All acts; the picture is drawn even if one of them fails."""
        thread = threading.Thread(target=self.recorder.run, daemon=True)
        thread.start()
        try:
            self._gang()
            self._spot()
        finally:
            self.recorder.over.set()
            thread.join(timeout=30.0)
            PICTURE.parent.mkdir(exist_ok=True)
            draw(self.recorder.moments, self.marks, PICTURE)

    def _gang(self) -> None:
        self._until("there is no node of the pool", lambda m: not m.ready and not m.coming)
        submitted = self._submit(job("gang", 4))
        self._until("all 4 replicas run", lambda m: len(m.running.get("gang", [])) == 4)
        see = self.recorder.first
        whole = see(lambda m: m.demands == 4, after=submitted)
        nodes = see(lambda m: len(m.ready) == 4, after=submitted)
        first = see(lambda m: bool(m.running.get("gang")), after=submitted)
        complete = see(lambda m: len(m.running.get("gang", [])) == 4, after=submitted)
        self._note("demand of 4 pods seen after the submission", whole - submitted, _SEEN_SECONDS)
        self._note("4 nodes ready after the submission", nodes - submitted, _PATIENCE_SECONDS)
        self._note("gang complete after its last node was ready", complete - nodes, _COMPLETE_SECONDS)
        self.figures.append(("no pod of it ran before its last node was ready", "", first >= nodes))
        end_work(self.cluster, "gang", namespace=NAMESPACE, patience_seconds=_PATIENCE_SECONDS)
        self._mark("gang ends")
        ended = self.recorder.now
        self._until("the empty nodes are gone", lambda m: not m.ready and not m.coming)
        self._note("nodes gone after the gang's end", self.recorder.now - _PLATEAU_SECONDS - ended, _PATIENCE_SECONDS)

    def _spot(self) -> None:
        self._submit(job("spot", 2))
        self._until("both replicas run", lambda m: len(m.running.get("spot", [])) == 2)
        leaving = self.recorder.moments[-1].running["spot"][0]
        claims = json.loads(self.target.run_kubectl("get", "nodeclaims", "-o", "json"))["items"]
        claim = next(c["metadata"]["name"] for c in claims if c["status"].get("nodeName") == leaving)
        taken = self.recorder.now
        self._mark("a node is taken away")
        self.target.run_kubectl("delete", "nodeclaim", claim, "--wait=false")
        self._until(
            "the replica runs elsewhere, and its node is gone",
            lambda m: (
                leaving not in m.ready | m.coming and len([n for n in m.running.get("spot", []) if n != leaving]) == 2
            ),
        )
        see = self.recorder.first
        moved = see(lambda m: len([n for n in m.running.get("spot", []) if n != leaving]) == 2, after=taken)
        gone = see(lambda m: leaving not in m.ready | m.coming, after=taken)
        self._note("replica moved after its node announced its end", moved - taken, _PATIENCE_SECONDS)
        self.figures.append(("it left the node before that ended", f"{gone - taken:.1f} s", self._left(leaving) < gone))
        end_work(self.cluster, "spot", namespace=NAMESPACE, patience_seconds=_PATIENCE_SECONDS)

    def _left(self, node: str) -> float:
        """When the last pod of the job was seen on this node."""
        return max(m.at for m in self.recorder.moments if node in m.pods.get("spot", []))

    def _note(self, what: str, seconds: float, most: float) -> None:
        self.figures.append((what, f"{seconds:.1f} s", seconds <= most))

    def _submit(self, made: DIJob) -> float:
        at = self.recorder.now
        submit.submit(made, cluster=self.cluster)
        self._mark(f"{made.name} is submitted")
        return at

    def _mark(self, text: str) -> None:
        self.marks.append((self.recorder.now, text))
        say(f"[{self.recorder.now:5.0f} s] {text}")

    def _until(self, what: str, true: Callable[[Moment], bool]) -> None:
        ends = time.monotonic() + _PATIENCE_SECONDS
        while not (self.recorder.moments and true(self.recorder.moments[-1])):
            if time.monotonic() > ends:
                raise DemoError(
                    f"not within {_PATIENCE_SECONDS:.0f} s: {what}. See: diflow list -n {NAMESPACE}; "
                    f"kubectl logs -n {SYSTEM} {ALLOCATOR}; kubectl get nodeclaims"
                )
            time.sleep(0.2)
        say(f"[{self.recorder.now:5.0f} s] {what}")
        time.sleep(_PLATEAU_SECONDS)

    def tell(self) -> int:
        """Print what came of it. Returns 0 if all is well."""
        rows = [(what, said, "yes" if is_good else "NO") for what, said, is_good in self.figures]
        print(table(("WHAT", "FIGURE", "GOOD"), rows))
        found = [lookup.get(name, namespace=NAMESPACE, cluster=self.cluster).status for name in ("gang", "spot")]
        print(f"restarts   {', '.join(str(status.restarts) for status in found)}")
        print(f"picture    {PICTURE}")
        return 0 if all(good for *_, good in self.figures) and not any(status.restarts for status in found) else 1


def draw(moments: list[Moment], marks: list[tuple[float, str]], path: Path) -> None:
    """Write a PNG: above the nodes and the pods that ask for them, below the replicas that run."""
    figure = sheet(12.0, 6.6)
    above, below = figure.subplots(2, 1, sharex=True)
    times = [m.at for m in moments]
    above.step(
        times, [m.demands for m in moments], where="post", color=COLOURS[1], linewidth=2.2, label="pods that ask"
    )
    above.step(
        times, [len(m.coming) for m in moments], where="post", color=GREY, linewidth=1.4, label="nodes that come or end"
    )
    above.step(
        times, [len(m.ready) for m in moments], where="post", color=COLOURS[0], linewidth=2.2, label="ready nodes"
    )
    for name, colour in (("gang", COLOURS[2]), ("spot", COLOURS[3])):
        below.step(
            times,
            [len(m.running.get(name, [])) for m in moments],
            where="post",
            color=colour,
            linewidth=2.2,
            label=f"replicas of {name} that run",
        )
    for axes in (above, below):
        quiet(axes)
        axes.set_ylim(-0.2, 5.2)
        axes.grid(axis="y", color=LIGHT, linewidth=0.8)
        axes.legend(loc="upper right", frameon=False, fontsize=9, labelcolor=INK)
        for at, _ in marks:
            axes.axvline(at, color=GREY, linewidth=0.8, linestyle=":")
    for at, text in marks:
        below.annotate(text, (at, 4.9), xytext=(3, 0), textcoords="offset points", fontsize=8, color=INK, va="top")
    above.set_title("Nodes that Karpenter adds for gangs", loc="left", fontsize=13, color=INK)
    below.set_xlabel("seconds", color=GREY)
    write(figure, path)


if __name__ == "__main__":
    sys.exit(main())
