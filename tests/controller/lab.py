"""A controller over a fake API server and a fake Argo, in simulated time.

The controller is real: its caches and their threads, leader election, its writes. Only the clock is simulated, and the
tests let it look at one job after another, each time after the caches have caught up with the server.
"""

from __future__ import annotations

import copy
import itertools
import time as real_time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from diflow.common import keys
from diflow.common.clock import Clock
from diflow.common.errors import DiflowError
from diflow.contrib.di_orchestrator import modules
from diflow.controller.daemon import Controller
from diflow.controller.settings import ControllerSettings
from diflow.jobs.dijobs import DIJOB
from diflow.kube.api import Cluster
from diflow.kube.kinds import NAMESPACE, POD, PRIORITY_CLASS, SERVICE, SERVICE_ACCOUNT, WORKFLOW
from diflow.kube.leader_election import Elector
from diflow.kube.reflector import Pace, Reflector
from diflow.kube.refusals import Target
from diflow.record.dijob import owner_of
from tests.allocator.fakeargo import FakeCluster, Runs
from tests.allocator.faults import Time, eventually
from tests.allocator.lab import Line
from tests.builders import manifest, template
from tests.contrib.di_orchestrator import oldjobs
from tests.kube.fakeapi import FakeApi, chosen, is_inside, serving

Json = dict[str, Any]
SYSTEM = "diflow-system"


class Kubelets(FakeCluster):
    """With what the kubelets write about a running pod: the status of a job is derived from it."""

    def _change_pod(self, pod: Json, status: Json) -> None:
        if status["phase"] == "Running":
            status = {**status, **_running(self._time())}
        super()._change_pod(pod, status)


def _running(now: str) -> Json:
    """The conditions and containers of a pod that runs since then."""
    since = {"status": "True", "lastTransitionTime": now}
    state = {"name": "main", "ready": True, "state": {"running": {"startedAt": now}}}
    return {
        "conditions": [{"type": name, **since} for name in ("PodScheduled", "Ready")],
        "containerStatuses": [state],
    }


class Process:
    """One process of the controller."""

    def __init__(self, lab: Lab, name: str) -> None:
        self._lab = lab
        self.line = Line(lab.api, direct=True)
        clock = Clock(monotonic=lab.time.now, wall=lab.cluster.wall, jitter=lambda low, _: low)
        cluster = Cluster(
            Target(lab.api.url, "/home/me/kubeconfig"),
            transport=self.line,
            clock=Clock(sleep=lambda _: None, jitter=lambda low, _: low),
        )
        self.elector = Elector(
            cluster,
            name=keys.CONTROLLER,
            namespace=SYSTEM,
            identity=name,
            clock=clock,
        )
        self.controller = Controller(
            cluster,
            lab.settings,
            self.elector,
            clock=clock,
            pace=Pace(watch_seconds=(3600.0, 3600.0)),
        )
        self._led = -3.0

    def start(self) -> None:
        """Start the caches, and wait until they are synced."""
        self.controller.caches.all.start()
        eventually(lambda: self.controller.caches.all.wait_synced(0.5), "the caches are full")

    def stop(self) -> None:
        """Kill it: what it has not sent yet is never sent."""
        self.line.is_dead = True
        self.controller.caches.all.stop()

    def lead(self) -> None:
        """Try once to acquire or renew the Lease; every third second, as the elector's own thread does."""
        now = self._lab.time.now()
        if now - self._led >= 3.0:
            self._led = now
            if not self.elector.renew():
                with suppress(DiflowError):
                    self.elector.try_acquire()

    def look(self) -> bool:
        """Look at the next job that is due. Returns whether there was one. Raises LostLeadershipError."""
        key = self.controller.queue.take()
        if key is None:
            return False
        self.controller._look(key)
        return True

    def catch_up(self) -> None:
        """Wait until the caches have all that the server has."""
        caches = self.controller.caches
        for reflector in caches.all.members:
            ends = real_time.monotonic() + 30
            while _versions(reflector) != self._lab.versions(reflector):
                assert real_time.monotonic() < ends, f"the cache of {reflector.kind.plural} does not follow"
                real_time.sleep(0.0005)
            with reflector._turn:
                pass  # the handlers of the changes have run too


class Lab:
    """A fake cluster with a controller."""

    def __init__(self, api: FakeApi, *, runs: Runs = lambda _: (5.0, 0)) -> None:
        self.api = api
        self.time = Time()
        self.cluster = Kubelets(api, self.time, runs=runs)
        self.settings = ControllerSettings(reading_share=100.0)
        self.process: Process | None = None
        self._numbers = itertools.count(1)
        self._told = 0.0
        api.present = self.cluster._time
        api.uid_of = lambda name: f"{name}-{next(self._numbers)}"
        api.add(NAMESPACE, {"metadata": {"name": "default"}})
        for account in (keys.WORKER_ACCOUNT, keys.STEPS_ACCOUNT):
            api.add(SERVICE_ACCOUNT, {"metadata": {"name": account}})
        for name in keys.PRIORITY_CLASSES.values():
            api.add(PRIORITY_CLASS, {"metadata": {"name": name}})
        service = {"clusterIP": "None", "selector": {keys.OPERATOR: keys.OPERATOR_VALUE},
                   "publishNotReadyAddresses": True}  # fmt: skip
        api.add(SERVICE, {"metadata": {"name": keys.SERVICE}, "spec": service})
        self.cluster.node("a", cpu="64", pods="200")

    # --- processes ----------------------------------------------------------------------------------------------------

    def begin(self) -> Process:
        """Start a process, and wait until it leads."""
        self.process = Process(self, f"process-{next(self._numbers)}")
        self.process.start()
        for _ in range(60):
            if self.process.elector.is_leader():
                self.process.controller.look_at_all()
                return self.process
            self.pass_time()
            self.process.lead()
        raise AssertionError("it does not lead")

    def end(self) -> None:
        """Kill it."""
        if self.process is not None:
            self.process.stop()
            self.process = None

    # --- time ---------------------------------------------------------------------------------------------------------

    def pass_time(self, seconds: float = 1.0) -> None:
        """Let time pass for all others: Argo, the kubelets, and the garbage collector."""
        self.cluster.step(seconds)
        self.collect()
        if self.time.now() - self._told >= 30.0:
            self._told = self.time.now()
            self.api.bookmark()

    def step(self, seconds: float = 1.0) -> None:
        """Let a second pass, and the controller work until it has nothing to do."""
        self.pass_time(seconds)
        if self.process is not None:
            self.process.lead()
            self.process.catch_up()
            while self.process.look():
                self.process.catch_up()

    def until(self, true: Callable[[], object], what: str, *, seconds: int = 60) -> None:
        """Let time pass until the condition holds."""
        for _ in range(seconds):
            if true():
                return
            self.step()
        assert true(), f"not in {seconds} s: {what}\n{self.dijobs()}"

    def rest(self, *, seconds: int = 4, limit: int = 300) -> None:
        """Let time pass until nothing has changed for this long."""
        quiet, seen = 0, self.happenings()
        for _ in range(limit):
            self.step()
            now = self.happenings()
            quiet, seen = (quiet + 1, seen) if now == seen else (0, now)
            if quiet >= seconds:
                return
        raise AssertionError(f"no rest in {limit} s\n{self.dijobs()}")

    def happenings(self) -> int:
        """Counts the changes of objects, without renewals of the Lease and bookmarks."""
        with self.api.changed:
            return sum(1 for _, _, path, _ in self.api.events if path and not path.endswith("leases"))

    def collect(self) -> None:
        """Delete objects whose owner does not exist any more, as Kubernetes' garbage collector does."""
        with self.api.changed:
            every = [obj for objects in self.api.objects.values() for obj in objects.values()]
            there = {obj["metadata"].get("uid") for obj in every}
            for obj in every:
                owners = obj["metadata"].get("ownerReferences") or []
                if obj["kind"] in ("Workflow", "Pod") and owners and not any(o["uid"] in there for o in owners):
                    kind = WORKFLOW if obj["kind"] == "Workflow" else _kind("Pod")
                    self.api.remove(kind, obj["metadata"]["name"], namespace=obj["metadata"]["namespace"])

    # --- users --------------------------------------------------------------------------------------------------------

    def apply(self, name: str = "job", *, namespace: str = "default", **spec: Any) -> Json:
        """`kubectl apply` of a DIJob: it is created, or its spec is replaced. With the defaults of the CRD."""
        known = self.api.objects.get(DIJOB.path(namespace), {}).get(name)
        made = {"priority": "normal", "preemptible": False, "backoffLimit": 3, "cleanPodPolicy": "Running", **spec}
        made.setdefault("tasks", manifest()["spec"]["tasks"])
        made["tasks"] = [{"type": "none", "replicas": 1, "template": template(), **one} for one in made["tasks"]]
        metadata: Json = {
            "name": name,
            "uid": f"dijob-{next(self._numbers)}",
            "creationTimestamp": self.cluster._time(),
        }
        body: Json = {"apiVersion": keys.API_VERSION, "kind": keys.KIND, "metadata": metadata, "spec": made}
        if known is not None:
            body = {**known, "spec": made}
        return self.api.add(DIJOB, body, namespace=namespace)

    def apply_one(self, name: str = "job", **spec: Any) -> Json:
        """`kubectl apply` of a DIJob with one template, as DI-orchestrator v1.0 has it."""
        known = self.api.objects.get(DIJOB.path("default"), {}).get(name)
        metadata: Json = {
            "name": name,
            "uid": f"dijob-{next(self._numbers)}",
            "creationTimestamp": self.cluster._time(),
        }
        body: Json = {"apiVersion": keys.API_VERSION, "kind": keys.KIND, "metadata": metadata}
        return self.api.add(DIJOB, {**(known or body), "spec": spec})

    def apply_old(self, name: str = "old", **spec: Any) -> Json:
        """`kubectl apply` of a DIJob of v1alpha1. The fake Argo runs no such jobs: it stands still from now on."""
        self.cluster.frozen = True
        body = oldjobs.manifest(name, **spec)
        body["metadata"] |= {"uid": f"dijob-{next(self._numbers)}", "creationTimestamp": self.cluster._time()}
        return self.api.add(DIJOB, body)

    def runs(self, name: str, *places: tuple[int, str, int, int], phase: str = "Running") -> None:
        """What Argo and the kubelet make of pods of such a job, each (round, module, index, attempt)."""
        workflow = copy.deepcopy(self.workflows()[name])
        status = workflow.setdefault("status", {"phase": "Running"})
        for round_, module, index, attempt in places:
            node = f"{name}.round({round_ - 1}:{round_}).{module}({index}:{index}).{module}({attempt})"
            known = {"id": node, "name": node, "type": "Pod", "phase": phase, "startedAt": self.cluster._time()}
            status.setdefault("nodes", {})[node] = known
            pod = f"{name}-{round_}-{module}-{index}-{attempt}"
            state = {"phase": phase, **(_running(self.cluster._time()) if phase == "Running" else {})}
            metadata = {
                "name": pod,
                "uid": f"uid-{pod}",
                "labels": {keys.OPERATOR: keys.OPERATOR_VALUE, "workflows.argoproj.io/workflow": name},
                "annotations": {
                    "workflows.argoproj.io/node-name": node, "workflows.argoproj.io/node-id": node,
                },
                "ownerReferences": [{"kind": "Workflow", "name": name, "uid": workflow["metadata"]["uid"]}],
            }  # fmt: skip
            # On a machine that the fake kubelets do not know, so that they leave it alone.
            self.api.add(POD, {"metadata": metadata, "spec": {"nodeName": "elsewhere"}, "status": state})
        self.api.add(WORKFLOW, workflow)

    def ask(self, name: str, *rounds: dict[str, modules.Group], release: tuple[modules.Replica, ...] = ()) -> None:
        """What the server writes for a request of the coordinator."""
        patch, _ = modules.changed(self.workflows()[name], add=rounds, release=release)
        workflow = copy.deepcopy(self.workflows()[name])
        workflow["spec"]["arguments"] = patch["spec"]["arguments"]
        self.api.add(WORKFLOW, workflow)

    def ends(self, name: str, phase: str) -> None:
        """Argo's end of a Workflow."""
        workflow = copy.deepcopy(self.workflows()[name])
        workflow["status"] |= {"phase": phase, "finishedAt": self.cluster._time()}
        self.api.add(WORKFLOW, workflow)

    def pods(self) -> dict[str, Json]:
        """The pods, by name."""
        with self.api.changed:
            return dict(self.api.objects.get(POD.path("default"), {}))

    def write_status(self, name: str = "job", **status: Any) -> None:
        """A write of another client through the status subresource."""
        obj = self.dijob(name)
        self.api.add(DIJOB, {**obj, "status": {**(obj.get("status") or {}), **status}})

    def delete(self, name: str = "job") -> None:
        self.api.remove(DIJOB, name)

    def resubmit(self, workflow: str = "job", *, name: str = "") -> str:
        """`argo resubmit`: a copy with the labels, annotations and owner references of a Workflow."""
        known = copy.deepcopy(self.workflows()[workflow])
        metadata = known["metadata"]
        made = name or f"{workflow}-x7k2p"
        labels = {**metadata["labels"], keys.RESUBMITTED: workflow}
        of_copy = {
            "name": made,
            "uid": f"copy-{next(self._numbers)}",
            "creationTimestamp": self.cluster._time(),
            "labels": {key: value for key, value in labels.items() if not key.endswith(("/phase", "/completed"))},
            **{field: metadata[field] for field in ("annotations", "ownerReferences")},
        }
        self.api.add(WORKFLOW, {**known, "metadata": of_copy, "status": {}})
        return made

    # --- what is so ---------------------------------------------------------------------------------------------------

    def dijobs(self, namespace: str = "default") -> dict[str, Json]:
        with self.api.changed:
            return dict(self.api.objects.get(DIJOB.path(namespace), {}))

    def dijob(self, name: str = "job") -> Json:
        return self.dijobs()[name]

    def status(self, name: str = "job") -> Json:
        return dict(self.dijob(name).get("status") or {})

    def phase(self, name: str = "job") -> str:
        return str(self.status(name).get("phase", ""))

    def message(self, name: str = "job") -> str:
        return str(self.status(name).get("message", ""))

    def workflows(self, namespace: str = "default") -> dict[str, Json]:
        with self.api.changed:
            return dict(self.api.objects.get(WORKFLOW.path(namespace), {}))

    def events(self, name: str = "job") -> list[tuple[str, str]]:
        """(reason, message) of the Events of a DIJob."""
        with self.api.changed:
            found = self.api.objects.get("/api/v1/namespaces/default/events", {}).values()
            return [(e["reason"], e["message"]) for e in found if e["involvedObject"]["name"] == name]

    def versions(self, reflector: Reflector) -> dict[tuple[str, str], str]:
        wanted = reflector.kind.path(None)
        labels = reflector._selection.get("labels", "")
        with self.api.changed:
            return {
                (obj["metadata"]["namespace"], name): obj["metadata"]["resourceVersion"]
                for path, objects in self.api.objects.items()
                if is_inside(path, wanted)
                for name, obj in objects.items()
                if chosen(obj, labels, "") and (reflector.kind is not WORKFLOW or owner_of(obj)[1])
            }


def _versions(reflector: Reflector) -> dict[tuple[str, str], str]:
    with reflector._lock:
        return {key: entry.version for key, entry in reflector._entries.items()}


def _kind(name: str) -> Any:
    from diflow.kube import kinds

    return next(kind for kind in vars(kinds).values() if getattr(kind, "name", "") == name)


@contextmanager
def lab(*, begin: bool = True, **options: Any) -> Iterator[Lab]:
    """A cluster with a controller, which leads unless `begin` is False."""
    with serving() as api:
        made = Lab(api, **options)
        try:
            if begin:
                made.begin()
            yield made
        finally:
            made.end()
