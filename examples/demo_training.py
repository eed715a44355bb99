"""`make demo-training`: a training on four replicas that everything happens to, and a picture of it.

examples/ddp runs on two real nodes of the one-machine cluster, with diflow's server and allocator.

1. Two of the four replicas are placed on a slow node. The node check finds it, and the gang is placed again without it.
2. A rank needs more memory than it has: it is OOMKilled, and comes back with more.
3. A rank hangs, and the others wait for it in a collective. It is found and named, and all begin again.
4. The job is resized from 4 to 2 replicas, and back to 4. In between the API server, the server and the allocator are
   killed once.

At the end the job has succeeded with all its retries left, no step was lost beyond the last checkpoint, and the model
has learned each sample exactly once an epoch; else the exit code is 1.

What is played: the second node has the processors of the first one, and is slow because each of its containers gets
8 % of one processor (its control group says so). Memory is taken by a thread of the rank when a file appears, the hang
is a SIGSTOP, and the kills are SIGKILL. All else is real: the kernel's out-of-memory killer, Kubernetes, Argo, torch.

It uses the cluster of the present kubeconfig if `python3 -m cluster` made it, and asks before it changes anything there
(YES=1 answers). Otherwise it starts the one-machine cluster of `cluster/`, which needs root.
"""

from __future__ import annotations

import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from diflow import DiflowError, DIJob
from diflow.common.tables import table
from diflow.jobs import events, lookup, submit
from diflow.jobs.scale import scale
from diflow.kube.api import Cluster
from diflow.kube.kinds import NODE, POD
from fakestage import SYSTEM, prepare, set_in_allocator
from stage import (
    ROOT,
    DemoError,
    Target,
    apply,
    ask,
    cluster,
    exit_code,
    made_here,
    our_own,
    present,
    present_kubeconfig,
    say,
)
from training.film import Film, Recorder, jumps, read_history
from training.picture import draw
from training.trouble import processes, send, slowed_node

NAMESPACE = "demo-training"
NAME = "training"
DATA = Path("/var/lib/diflow-ddp")  # the volume of examples/ddp/job.yaml
PICTURE = ROOT / "out" / "training.png"

RANKS, FEWER = 4, 2
BATCH, UNITS, EPOCHS, CHECKPOINT_STEPS = 16, 350, 2, 10
SAMPLES = BATCH * UNITS
RANK_OUT_OF_MEMORY, RANK_THAT_HANGS = 1, 2
MEMORY_MIB, MORE_MIB = 500, 400  # the limit of a replica, and what a rank takes beside its training
CPU_MILLI = 200
SHARE = 0.08  # of a processor, for a container on the slow node

# Nobody would watch a job that is left alone for two minutes after each resize.
_QUICK = {
    "DIFLOW_POLICY_LEAST_SECONDS_BETWEEN_RESIZES": "5",
    "DIFLOW_POLICY_LEAST_GROWTH": "0",
    "DIFLOW_ALLOCATOR_PERIOD_SECONDS": "5",
}
_TOLD = {
    "NodeLeftOut": "",
    "OutOfMemory": "out of memory: ",
    "Unhealthy": "",
    "Restarted": "all begin again: ",
    "Resized": "resized ",
}
"""The allocator's Events that are in the picture, and how their texts begin there."""
_PATIENCE_SECONDS = 240.0


def main() -> int:
    """Run the demo; returns 0 if all that it promises is so."""
    return exit_code(_run, left=f"the job stays where it is: diflow describe {NAME} -n {NAMESPACE}")


def _run() -> int:
    started = time.monotonic()
    target = _target()
    with _no_second_node_after(target):
        second = cluster("second-node", "--name", target.name).strip()
        cluster("load-image", "--name", target.name, "--training")
        prepare(target, NAMESPACE)
        for folder in ("manifests/server", "manifests/shards"):
            where = () if folder.endswith("server") else ("-n", NAMESPACE)
            apply(target, folder, *where)
        shutil.rmtree(DATA / f"{NAMESPACE}.{NAME}", ignore_errors=True)
        DATA.mkdir(parents=True, exist_ok=True)
        DATA.chmod(0o1777)  # the pods are not root
        with set_in_allocator(target, _QUICK):
            for part in ("allocator", "server"):
                target.run_kubectl("rollout", "status", "-n", SYSTEM, f"deployment/diflow-{part}", "--timeout=180s")
            play = Play(target, Cluster.connect(), second)
            say(f"ready after {time.monotonic() - started:.0f} s; the film begins")
            play.run()
            return play.tell()


def _target() -> Target:
    given = present_kubeconfig()
    if given is None or not made_here(given):
        if given is not None:
            say(f"the cluster of {given} is left alone: this demo kills its API server, and slows a node down")
        return our_own()
    target = present(given)
    ask(f"Use the cluster {target.name} of {given}: add a node, kill its API server, and install manifests/ there?")
    cluster("load-image", "--name", target.name)
    return target


@contextmanager
def _no_second_node_after(target: Target) -> Iterator[None]:
    """Whatever comes later on this cluster finds one node to use."""
    try:
        yield
    finally:
        for node in target.run_kubectl("get", "nodes", "-o", "name").split():
            if node.endswith("-node-2"):
                with suppress(DemoError):
                    target.run_kubectl("cordon", node)


# --- what -----------------------------------------------------------------------------------------------------------


def job() -> DIJob:
    """examples/ddp/job.yaml with small sizes, and all that keeps it alive."""
    made: dict[str, Any] = yaml.safe_load((ROOT / "examples" / "ddp" / "job.yaml").read_text())
    made["metadata"] = {"name": NAME, "namespace": NAMESPACE}
    spec = made["spec"]
    spec |= {
        "scheduling": "gang",
        "failurePolicy": {},
        "health": {"heartbeatSeconds": 60, "progressSeconds": 60, "action": "restart"},
        "nodeCheck": {"timeoutSeconds": 90},
    }
    (task,) = spec["tasks"]
    task["maxMemory"] = "2Gi"
    pod = task["template"]["spec"]
    pod["terminationGracePeriodSeconds"] = 10
    (container,) = pod["containers"]
    sizes = {"BATCH": BATCH, "SAMPLES": SAMPLES, "EPOCHS": EPOCHS, "CHECKPOINT_STEPS": CHECKPOINT_STEPS}
    container |= {
        "command": ["python3", "-m", "ddp.troubled"],
        "env": [{"name": key, "value": str(value)} for key, value in {**sizes, "STEP_SECONDS": 0.4}.items()],
        "resources": {
            "requests": {"cpu": f"{CPU_MILLI}m", "memory": f"{MEMORY_MIB}Mi"},
            "limits": {"cpu": "1", "memory": f"{MEMORY_MIB}Mi"},
        },
    }
    return DIJob.from_manifest(made)


@dataclass
class Play:
    """The acts, each of which waits until diflow has done what it should. `second`: the slow node."""

    target: Target
    cluster: Cluster
    second: str

    def __post_init__(self) -> None:
        self.film = Film()
        self.recorder = Recorder(self.cluster, self.film, namespace=NAMESPACE)
        self.folder = DATA / f"{NAMESPACE}.{NAME}"
        self.first = self.second.removesuffix("-2")

    def run(self) -> None:
        """All acts; the picture is drawn even if one of them fails."""
        self.recorder.start()
        try:
            with slowed_node(self.target.name, share=SHARE):
                self._on_a_slow_node()
            self._out_of_memory()
            self._hang()
            self._resize_and_kill()
            self._until("it has ended", lambda: self._found().status.ended)
        finally:
            self.recorder.stop()
            self._read()
            for event in self._events():
                self.film.mark(
                    f"{_TOLD[event['reason']]}{event['message']}",
                    done_here=False,
                    at=self.film.when(events.event_time(event)),
                )
            PICTURE.parent.mkdir(exist_ok=True)
            draw(self.film, PICTURE, title="A training that lasts: examples/ddp on four replicas")

    def _on_a_slow_node(self) -> None:
        self._fill_nodes()
        submit.submit(job(), cluster=self.cluster)
        self._say(f"submitted; each node has room for two replicas, and {self.second} is slow")
        self._until(f"two replicas are on {self.second}", lambda: len(self._pods(self.second)) == 2)
        for node in (self.first, self.second):
            self.cluster.delete(POD, f"other-{node}", namespace=NAMESPACE)
        self._until(f"the node check has left {self.second} out", lambda: "NodeLeftOut" in self._reasons())
        self._until("four ranks train, none of them there", lambda: self._trains(RANKS) and not self._pods(self.second))

    def _out_of_memory(self) -> None:
        parts = self._parts()
        (self.folder / f"memory-{RANK_OUT_OF_MEMORY}").write_text(str(MORE_MIB))
        self._say(f"rank {RANK_OUT_OF_MEMORY} takes {MORE_MIB} MiB more than it has room for")
        self._until("it is back with more memory, and trains", lambda: self._trains(RANKS, parts=parts + 1))

    def _hang(self) -> None:
        parts = self._parts()
        pids = processes(self.target.name, "python3", "ddp.troubled", variable=f"DI_RANK={RANK_THAT_HANGS}")
        if not send(signal.SIGSTOP, pids):
            raise DemoError(f"no process of rank {RANK_THAT_HANGS} was found")
        self._say(f"rank {RANK_THAT_HANGS} hangs")
        self._until("it was found, and all train again", lambda: self._trains(RANKS, parts=parts + 1))

    def _resize_and_kill(self) -> None:
        self._say(f"at most {FEWER} replicas are requested")
        scale(NAME, high=FEWER, namespace=NAMESPACE, cluster=self.cluster)
        self._until(f"{FEWER} ranks train", lambda: self._trains(FEWER))
        killed = {
            "the API server": processes(self.target.name, "kube-apiserver"),
            "the server": processes(self.target.name, "server", "run"),
            "the allocator": processes(self.target.name, "allocator", "run"),
        }
        for name, pids in killed.items():
            if not send(signal.SIGKILL, pids):
                raise DemoError(f"no process of {name} was found")
        self._say(f"{', '.join(killed)} are killed")
        steps = self._steps()
        self._until("the ranks train on", lambda: self._steps() > steps + 10)
        self._until("the API server answers", lambda: bool(self._found()))
        self._say(f"at most {RANKS} replicas are requested")
        scale(NAME, high=RANKS, namespace=NAMESPACE, cluster=self.cluster)
        self._until(f"{RANKS} ranks train", lambda: self._trains(RANKS))

    def _fill_nodes(self) -> None:
        """Pods of another user leave room for two replicas on each node, and go when those are there."""
        for node in self.cluster.list_all(NODE):
            name = node["metadata"]["name"]
            if name not in (self.first, self.second):
                continue
            pods = self.cluster.list_all(POD, everywhere=True, fields=f"spec.nodeName={name}")
            room = 2 * CPU_MILLI + CPU_MILLI // 2
            free = _amount(node["status"]["allocatable"]["cpu"]) - sum(map(_milli, pods)) - room
            container = {
                "name": "main", "image": "docker.io/diflow/pause:1", "imagePullPolicy": "Never",
                "resources": {"requests": {"cpu": f"{max(1, free)}m"}},
            }  # fmt: skip
            spec = {"nodeName": name, "terminationGracePeriodSeconds": 0, "containers": [container]}
            body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"other-{name}"}, "spec": spec}
            self.cluster.create(POD, body, namespace=NAMESPACE)

    # --- what is seen ---------------------------------------------------------------------------------------------

    def _until(self, what: str, true: Callable[[], bool]) -> None:
        ends = time.monotonic() + _PATIENCE_SECONDS
        while True:
            with suppress(DiflowError):  # the API server may be away
                if true():
                    break
                if self._found_ended_too_soon(what):
                    raise DemoError(f"the job ended before {what}: diflow describe {NAME} -n {NAMESPACE}")
            if time.monotonic() > ends:
                raise DemoError(
                    f"not within {_PATIENCE_SECONDS:.0f} s: {what}. See: diflow describe {NAME} -n {NAMESPACE}; "
                    f"diflow explain {NAME} -n {NAMESPACE}; kubectl logs -n {SYSTEM} deployment/diflow-allocator"
                )
            time.sleep(0.5)
        say(f"[{time.time() - self.film.began:5.0f} s] {what}")

    def _found_ended_too_soon(self, what: str) -> bool:
        return "ended" not in what and self._found().status.ended

    def _say(self, text: str) -> None:
        self.film.mark(text, done_here=True)
        say(f"[{time.time() - self.film.began:5.0f} s] {text}")

    def _found(self) -> lookup.Job:
        return lookup.get(NAME, namespace=NAMESPACE, cluster=self.cluster)

    def _pods(self, node: str) -> list[dict[str, Any]]:
        pods = self.cluster.list_all(POD, namespace=NAMESPACE, labels="diengine/task-name")
        return [
            p for p in pods if p["spec"].get("nodeName") == node and p["status"].get("phase") in ("Pending", "Running")
        ]

    def _events(self) -> list[dict[str, Any]]:
        found = events.allocator_events(NAME, namespace=NAMESPACE, cluster=self.cluster)
        return [event for event in found or [] if event["reason"] in _TOLD]

    def _reasons(self) -> set[str]:
        return {event["reason"] for event in self._events()}

    def _read(self) -> None:
        self.film.steps = read_history(self.folder / "history.jsonl", began=self.film.began)

    def _parts(self) -> int:
        self._read()
        return len(self.film.parts)

    def _steps(self) -> int:
        self._read()
        return max((step.step for step in self.film.steps), default=0)

    def _trains(self, world: int, *, parts: int = 0) -> bool:
        """So many ranks have made some steps since they began, for the `parts`th time or later."""
        self._read()
        found = self.film.parts
        return bool(found) and found[-1][0].world == world and len(found[-1]) > 15 and len(found) >= parts

    def tell(self) -> int:
        """Print what came of it. Returns 0 if all is well."""
        found, film = self._found(), self.film
        back = jumps(film.parts)
        last = film.steps[-1]
        said = [
            line
            for pod in found.pods
            if pod["status"].get("phase") == "Succeeded"  # others may have no log
            for line in self.cluster.logs(pod["metadata"]["name"], namespace=NAMESPACE)
            if "shards learned" in line
        ]
        reasons = self._reasons()
        rows = [
            ("phase", found.status.phase, found.status.phase == "Succeeded"),
            ("retries used", f"{found.status.restarts} of 3", found.status.restarts == 0),
            ("node left out by the check", self.second, "NodeLeftOut" in reasons),
            ("out of memory, back with more", f"rank {RANK_OUT_OF_MEMORY}", "OutOfMemory" in reasons),
            ("hang found", f"rank {RANK_THAT_HANGS}", self._named()),
            ("ranks of each part", " → ".join(str(part[0].world) for part in film.parts), True),
            ("steps lost at each start", ", ".join(map(str, back)), max(back) <= CHECKPOINT_STEPS and min(back) >= 0),
            ("samples learned", f"{last.seen} of {SAMPLES * EPOCHS}", last.seen == SAMPLES * EPOCHS),
            ("not exactly once an epoch", "none", bool(said) and all("once: none" in line for line in said)),
        ]  # fmt: skip
        print(table(("WHAT", "HOW", ""), [(what, how, "ok" if good else "WRONG") for what, how, good in rows]))
        print(f"picture    {PICTURE}")
        return 0 if all(good for _, _, good in rows) else 1

    def _named(self) -> bool:
        """An Event about the restart names the rank that hangs."""
        name = f"worker-{RANK_THAT_HANGS}"
        return any(e["reason"] in ("Restarted", "Unhealthy") and name in e["message"] for e in self._events())


def _milli(pod: dict[str, Any]) -> int:
    if pod["status"].get("phase") in ("Succeeded", "Failed"):
        return 0
    spec = pod["spec"]
    return sum(_amount((c.get("resources", {}).get("requests") or {}).get("cpu", "0")) for c in spec["containers"])


def _amount(cpu: str) -> int:
    return int(cpu[:-1]) if cpu.endswith("m") else int(float(cpu) * 1000)


if __name__ == "__main__":
    sys.exit(main())
