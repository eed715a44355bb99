"""A small stand-in for Argo, kube-scheduler and the kubelets, over the fake API server, in steps of simulated time.

It runs the Workflows that diflow renders, by the facts in docs/conformance.md: the names of a group's members contain
index and value; a member that is dropped before its end is never evaluated again; a group that shrinks to 0 ends the
Workflow in Error; a retry depends on whether the replica is wanted and whether its end counts; a pod that was stopped
on purpose counts as Succeeded. So an error of the allocator shows as a Workflow that hangs, or ends in Failed or Error.

Argo's state is kept here and written into the Workflow's status; the pods are kept by the server alone.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from diflow.common import keys, quantities
from diflow.dijob.model import DIJob
from diflow.kube.kinds import NODE, POD, WORKFLOW, Kind
from diflow.record.argo.failures import STOPPED_MESSAGE, UNCOUNTED_MESSAGES
from diflow.record.roster import roster
from diflow.workflows import render
from tests.allocator.faults import Time
from tests.kube.fakeapi import FakeApi

Json = dict[str, Any]

EPOCH = 1_767_225_600.0
"""The zero of the simulated clock, in seconds since 1970."""
DEADLINE = "Pod was active on the node longer than the specified deadline"
SHUTDOWN = "workflow shutdown with strategy:  Stop"
MOUNT_SECONDS = 120.0  # how long a kubelet waits for volumes before it syncs the pod again
FOR_EVER = 10.0**9
_HOST = "kubernetes.io/hostname"
_WORKFLOW_LABEL = "workflows.argoproj.io/workflow"
_NODE_NAME = "workflows.argoproj.io/node-name"
_NODE_ID = "workflows.argoproj.io/node-id"
_UNCOUNTED = re.compile("|".join(UNCOUNTED_MESSAGES))
_STOPPED = re.compile(STOPPED_MESSAGE)
_UNCOUNTED_LIMIT = 1000
_DONE = frozenset({"Succeeded", "Failed", "Error", "Skipped"})

Runs = Callable[[Json], tuple[float, int]]
"""(how long the pod runs, in seconds; its exit code)."""


@dataclass
class _PodNode:
    """An attempt, which is a pod."""

    name: str
    pod: str
    created: float
    phase: str = "Pending"
    message: str = ""
    code: int | None = None
    host: str = ""
    finished: float = 0.0
    memory: str = ""
    """The argument `memory` of the attempt, "" if its template has none."""


@dataclass
class _Try:
    name: str
    pods: list[_PodNode] = field(default_factory=list)
    retry_phase: str = "Running"
    phase: str = "Running"


@dataclass
class _Member:
    name: str
    task: str
    index: int
    text: str
    tries: list[_Try] = field(default_factory=list)
    phase: str = "Running"


@dataclass
class _Group:
    name: str
    members: dict[tuple[int, str], _Member] = field(default_factory=dict)
    phase: str = "Running"


@dataclass
class _Attempt:
    name: str
    groups: dict[str, _Group] = field(default_factory=dict)
    phase: str = "Running"
    is_blocked: bool = False
    """Its leaf has ended, and Argo looks no further: `argo retry` has kept it."""


@dataclass
class _Round:
    name: str
    of: str
    attempts: list[_Attempt] = field(default_factory=list)
    phase: str = "Running"


@dataclass
class _Tree:
    uid: str
    started: float
    rounds: dict[tuple[int, str], _Round] = field(default_factory=dict)
    gave_up: bool = False
    retried: str = ""


@dataclass(frozen=True)
class _Live:
    """The current content of the Workflow."""

    name: str
    namespace: str
    uid: str
    tasks: tuple[str, ...]
    templates: Mapping[str, Json]
    rounds: tuple[str, ...]
    current: str
    granted: Mapping[str, Mapping[str, int]]
    incarnations: Mapping[str, str]
    released: str
    places: Mapping[str, Any]
    round_limit: int | None
    replica_limit: int | None
    backoff_limit: int
    is_stopping: bool
    memory: Mapping[str, int]
    gives_up: bool

    def is_wanted(self, round_: str, member: _Member) -> bool:
        return round_ == self.current and f'"{round_}/{member.task}/{member.text}"' not in self.released

    def members(self, round_: str, task: str) -> list[str]:
        count = int((self.granted.get(round_) or {}).get(task, 1))
        return [f"{i}{self.incarnations.get(f'{round_}/{task}/{i}', '')}" for i in range(count)]


class _BrokenError(Exception):
    """Argo ends the Workflow in Error."""


@dataclass
class _Kubelet:
    """The state of a pod on its machine."""

    started: float
    ends: float
    code: int
    stops: float = FOR_EVER
    stop_code: int = 143
    stop_message: str = ""
    container: str = "main"
    reason: str = "Error"


class FakeCluster:
    """Nodes, Argo, scheduler and kubelets. `step` advances the simulated time by `seconds`.

    `runs`: how long each pod runs. `grace_seconds`: from the request to end a pod to its end. `wait_request`: the
    requests of Argo's own containers. `frozen`: Argo's controller is down. `lag_seconds`: the age of Argo's copies of
    the Workflows; it sees the pods without delay, as its two watches are independent. `set_back_seconds`: how far the
    clock of the allocator's machine is behind all others. `quota`: the most pods of a job, by its name. `refuses`:
    nodes to which kube-scheduler binds nothing, for reasons that their objects do not show. `uses`: the MiB that a
    replica of a task needs; one that has less is OOMKilled after some seconds.
    """

    def __init__(
        self,
        api: FakeApi,
        time: Time,
        *,
        runs: Runs = lambda _: (FOR_EVER, 0),
        grace_seconds: float = 3.0,
        wait_request: Mapping[str, str] | None = None,
        namespaces: Sequence[str] = ("default",),
    ) -> None:
        self.api, self.time = api, time
        self.namespaces = namespaces
        """Where Argo and kube-scheduler are. Names are unique in all of them."""
        self.runs = runs
        self.grace_seconds = grace_seconds
        self.wait_request = dict(wait_request or {})
        self.frozen = False
        self.set_back_seconds = 0.0
        self.lag_seconds = 0.0
        self.refuses: set[str] = set()
        self.uses: dict[str, int] = {}
        self.mounts = True
        """Whether volumes can be mounted. A pod that is bound while they cannot never starts, and its kubelet, which
        waits for them, enforces a deadline only after MOUNT_SECONDS."""
        self.deaf: set[str] = set()
        """Jobs whose programs ignore SIGTERM. Argo counts their pods as ended when it stops the job, and goes."""
        self.broken: set[str] = set()
        """The machines on which they cannot."""
        self._hung: dict[str, float] = {}
        self.quota: dict[str, int] = {}
        """The most live pods of a job that the API server accepts."""
        self._trees: dict[str, _Tree] = {}
        self._copies: dict[str, list[tuple[float, Json]]] = {}
        self._torn: dict[str, Json] = {}
        """Nodes that Argo has merged into a Workflow, by its uid, until somebody removes them."""
        self._kubelet: dict[str, _Kubelet] = {}
        self._uids = 0
        self.problems: list[str] = []
        """What must never happen: an overcommitted machine, a member dropped too early, a Workflow in Error."""

    # --- what tests do ------------------------------------------------------------------------------------------------

    def wall(self) -> float:
        """The time on the clock of the allocator's machine."""
        return EPOCH + self.time.now() - self.set_back_seconds

    def node(self, name: str, **allocatable: Any) -> None:
        """A machine; amounts as Kubernetes writes them (cpu="4", gpu="8")."""
        given = {"cpu": "8", "memory": "64Gi", "pods": "110", **{k: str(v) for k, v in allocatable.items()}}
        if "gpu" in given:
            given["nvidia.com/gpu"] = given.pop("gpu")
        body = {
            "metadata": {"name": name, "labels": {_HOST: name}, "uid": self._uid(name)},
            "spec": {},
            "status": {"allocatable": given, "conditions": [self._ready(is_ready=True)]},
        }
        self.api.add(NODE, body)

    def remove_node(self, name: str) -> None:
        """Remove the machine; its pods' objects stay as they are."""
        self.api.remove(NODE, name)

    def cordon(self, name: str, *, on: bool = True) -> None:
        self._change_node(name, lambda node: {**node, "spec": {"unschedulable": True} if on else {}})

    def silence(self, name: str, *, on: bool = True) -> None:
        """The machine's kubelet stops reporting (or resumes)."""
        ready = self._ready(is_ready=not on)
        self._change_node(name, lambda node: {**node, "status": {**node["status"], "conditions": [ready]}})

    def beat(self, name: str) -> None:
        """The heartbeat of the machine's kubelet, sent every few minutes."""
        ready = {**self._ready(is_ready=True), "lastHeartbeatTime": self._time()}
        self._change_node(name, lambda node: {**node, "status": {**node["status"], "conditions": [ready]}})

    def submit(self, job: DIJob, *, namespace: str = "default") -> None:
        """As `diflow submit` does it."""
        body = render(job)
        metadata = {**body["metadata"], "uid": self._uid(job.name), "creationTimestamp": self._time()}
        self.api.add(WORKFLOW, {**body, "metadata": metadata}, namespace=namespace)

    def scale(self, name: str, **replicas: int) -> None:
        """As `diflow scale` does it."""
        wanted = json.loads(self.parameters(name)["replicas"])
        self.edit(name, replicas=json.dumps({**wanted, **replicas}))

    def resume(self, name: str) -> None:
        """As `argo resume` does it: of a job that waits for its admission, pods with gates are created."""
        self._change_workflow(name, lambda obj: {**obj, "spec": {**obj["spec"], "suspend": None}})

    def suspend(self, name: str) -> None:
        """As `diflow suspend` does it for a job that runs."""
        self.annotate(name, held="true")
        self._change_workflow(name, lambda obj: {**obj, "spec": {**obj["spec"], "suspend": True}})

    def edit(self, name: str, **parameters: str) -> None:
        """Edit parameters of a job."""

        def change(obj: Json) -> Json:
            given = [
                {**p, "value": parameters.get(p["name"], p["value"])} for p in obj["spec"]["arguments"]["parameters"]
            ]
            return {**obj, "spec": {**obj["spec"], "arguments": {"parameters": given}}}

        self._change_workflow(name, change)

    def annotate(self, name: str, **annotations: str) -> None:
        """Edit annotations (`diflow/...`) of a job."""
        given = {f"diflow/{key}": value for key, value in annotations.items()}

        def change(obj: Json) -> Json:
            metadata = obj["metadata"]
            return {**obj, "metadata": {**metadata, "annotations": {**metadata["annotations"], **given}}}

        self._change_workflow(name, change)

    def retry_as_argo_does(self, name: str, *, ahead: float = 0.0) -> None:
        """`argo retry`: of all that did not succeed, Argo 4.0 sets every attempt to Running and deletes the pods. Its
        clock is `ahead` by these seconds."""
        workflow = self.workflow(name)
        tree = self._trees[workflow["metadata"]["uid"]]
        tree.gave_up = False
        for round_ in tree.rounds.values():
            round_.phase = "Running"
            for attempt in round_.attempts:
                attempt.is_blocked = attempt.phase in _DONE
                attempt.phase = "Running"
            for group in (group for attempt in round_.attempts for group in attempt.groups.values()):
                for member in (member for member in group.members.values() if member.phase != "Succeeded"):
                    group.phase = member.phase = "Running"
                    for one in member.tries:
                        for pod in one.pods:
                            self._remove(POD, pod.pod)
                        one.pods, one.phase, one.retry_phase = [], "Running", "Running"
        now = _text(self.time.now() + ahead)
        tree.retried = now
        status = {"phase": "Running", "startedAt": now, "nodes": dict(_nodes(name, tree))}
        spec = {key: value for key, value in workflow["spec"].items() if key != "shutdown"}
        self._put(WORKFLOW, {**workflow, "spec": spec, "status": status})

    def make_pods_while_repaired(self, name: str, *, is_recorded: bool, attempt: int = 1) -> list[str]:
        """Argo looks at an old copy of a job that was repaired: it creates pods of this attempt of each replica, or of
        the round. Unless it is killed before, it merges what has changed of their nodes into the repaired ones.
        Returns the names of the pods."""
        obj = self.workflow(name)
        live, torn = _read(obj), dict[str, Json]()
        round_ = _Round(f"{name}.round({len(live.rounds) - 1}:{live.current})", live.current)
        again = f"{round_.name}({attempt})" if live.round_limit is not None else round_.name
        made: list[str] = []
        for task in live.tasks:
            for position, text in enumerate(live.members(live.current, task)):
                member = _Member(f"{again}.{task}({position}:{text})", task, position, text)
                latest = _Try(f"{member.name}({attempt})" if live.replica_limit is not None else member.name)
                member.tries = [latest] * (attempt + 1)
                round_.attempts = [_Attempt(again)] * (attempt + 1)
                self._make_pod(live, round_, member, latest)
                pod = latest.pods[0]
                made.append(pod.pod)
                torn[f"{latest.name}.{task}"] = {"children": [pod.name]}
                torn[pod.name] = {"id": pod.name, "name": pod.name, "type": "Pod", "phase": "Pending"}
        if is_recorded:
            self._torn[live.uid] = torn
            status = {**obj["status"], "nodes": {**obj["status"]["nodes"], **torn}}
            self._change_workflow(name, lambda obj: {**obj, "status": status})
        return made

    def stop(self, name: str) -> None:
        """As `argo stop`."""
        self._change_workflow(name, lambda obj: {**obj, "spec": {**obj["spec"], "shutdown": "Stop"}})

    def delete(self, name: str) -> None:
        """Delete the Workflow; the garbage collector deletes its pods."""
        uid = self.workflow(name)["metadata"]["uid"]
        self._remove(WORKFLOW, name)
        for pod in self.pods():
            if pod["metadata"].get("ownerReferences", [{}])[0].get("uid") == uid:
                self.evict(pod["metadata"]["name"])

    def evict(self, name: str) -> None:
        """Delete the pod: at once if it is not bound, else after its grace period."""
        pod = self.pod(name)
        if not pod["spec"].get("nodeName") or pod["status"]["phase"] in ("Succeeded", "Failed"):
            self._remove(POD, name)
        elif "deletionTimestamp" not in pod["metadata"]:
            metadata = {**pod["metadata"], "deletionTimestamp": self._time()}
            self._put(POD, {**pod, "metadata": metadata})
            if (known := self._kubelet.get(pod["metadata"]["uid"])) is not None:
                known.stops = min(known.stops, self.time.now() + self.grace_seconds)

    def finish(self, name: str, *, code: int = 0, container: str = "main") -> None:
        """The pod's program exits now, or another container of it."""
        known = self._kubelet[self.pod(name)["metadata"]["uid"]]
        known.ends, known.code, known.container = self.time.now(), code, container

    def foreign(self, name: str, node: str, **request: Any) -> None:
        """Create a foreign pod."""
        self.api.add(
            POD,
            {
                "metadata": {"name": name, "uid": self._uid(name)},
                "spec": {
                    "nodeName": node,
                    "containers": [{"resources": {"requests": {k: str(v) for k, v in request.items()}}}],
                },
                "status": {"phase": "Running"},
            },
        )

    # --- what tests look at -------------------------------------------------------------------------------------------

    def workflow(self, name: str) -> Json:
        with self.api.changed:
            return self._objects(WORKFLOW)[name]

    def parameters(self, name: str) -> dict[str, str]:
        return {p["name"]: p["value"] for p in self.workflow(name)["spec"]["arguments"]["parameters"]}

    def phase(self, name: str) -> str:
        return str((self.workflow(name).get("status") or {}).get("phase") or "Pending")

    def pods(self) -> list[Json]:
        """All pods that have not ended."""
        with self.api.changed:
            every = list(self._objects(POD).values())
        return [pod for pod in every if pod["status"]["phase"] not in ("Succeeded", "Failed")]

    def pod(self, name: str) -> Json:
        with self.api.changed:
            return self._objects(POD)[name]

    def of(self, job: str) -> dict[str, Json]:
        """The live pods of a job, by "task-index"; a second pod of an index, an error, has a key of its own."""
        out: dict[str, Json] = {}
        for pod in self.pods():
            labels = pod["metadata"].get("labels") or {}
            if labels.get(_WORKFLOW_LABEL) == job:
                name = f"{labels[keys.TASK_NAME]}-{pod['metadata']['annotations'][keys.TASK_RANK]}"
                out[name if name not in out else f"{name}'"] = pod
        return out

    def running(self, job: str) -> dict[str, str]:
        """ "task-index" → node of the pods that run."""
        return {name: pod["spec"]["nodeName"] for name, pod in self.of(job).items() if is_running(pod)}

    def nodes(self) -> list[str]:
        """The existing machines."""
        with self.api.changed:
            return sorted(self.api.objects.get(NODE.path(None), {}))

    def open_nodes(self) -> list[str]:
        """The machines that are ready and schedulable."""
        with self.api.changed:
            return sorted(name for name, node in self.api.objects.get(NODE.path(None), {}).items() if _is_open(node))

    def free_cpu(self) -> dict[str, int]:
        """Free millicores beside bound pods, by machine."""
        return {name: left.get("cpu", 0) for name, left in self._free()[1].items()}

    def tasks(self, job: str) -> list[str]:
        return list(json.loads(self.parameters(job)["replicas"]))

    def known_to_kubelets(self) -> set[str]:
        """The uids of the pods that some kubelet has started."""
        return set(self._kubelet)

    def hurry(self) -> None:
        """End all pods that run now."""
        for known in self._kubelet.values():
            known.ends = min(known.ends, self.time.now() + 3.0)

    def ended(self) -> list[Json]:
        """All pods that have ended, in the order of their creation."""
        with self.api.changed:
            every = list(self._objects(POD).values())
        return [pod for pod in every if pod["status"]["phase"] in ("Succeeded", "Failed")]

    def restarts(self, job: str) -> int:
        """Failures that count against backoffLimit, by Argo's tree."""
        tree = self._trees.get(self.workflow(job)["metadata"]["uid"])
        if tree is None:
            return 0
        rounds = sum(len(r.attempts) - 1 for r in tree.rounds.values())
        return rounds + sum(len(m.tries) - 1 for m in _members(tree) if m.tries)

    # --- time ---------------------------------------------------------------------------------------------------------

    def step(self, seconds: float = 1.0) -> None:
        """Let time pass, and let all components but the allocator work."""
        self.time.move(seconds)
        self._run_pods()
        if not self.frozen:
            with self.api.changed:
                workflows = list(self._objects(WORKFLOW).values())
            for obj in workflows:
                self._reconcile(obj)
        self._schedule()
        self._look_at_nodes()

    # --- Argo ---------------------------------------------------------------------------------------------------------

    def _reconcile(self, obj: Json) -> None:
        metadata = obj["metadata"]
        is_suspended = bool(obj["spec"].get("suspend"))
        if (obj.get("status") or {}).get("phase") in _DONE or (is_suspended and metadata["uid"] not in self._trees):
            return
        tree = self._trees.setdefault(metadata["uid"], _Tree(metadata["uid"], self.time.now()))
        phase, message = "Running", ""
        try:
            live = _read(self._copy(obj))
            there = (obj.get("status") or {}).get("nodes") or {}
            torn = {node_id: node for node_id, node in self._torn.pop(live.uid, {}).items() if node_id in there}
            _drop_removed(tree, there)
            if torn:
                self._torn[live.uid] = torn
                return
            if is_suspended:
                self._note_pods(live, tree)  # the ends of pods are recorded, and nothing follows from them
            else:
                self._walk(live, tree)
            if tree.gave_up and not live.is_stopping:
                self.stop(live.name)
            if all(r.phase in _DONE for r in tree.rounds.values()):
                failed = live.is_stopping or any(r.phase != "Succeeded" for r in tree.rounds.values())
                phase = "Failed" if failed else "Succeeded"
                message = "Stopped with strategy 'Stop'" if live.is_stopping else ""
        except _BrokenError as error:
            phase, message = "Error", str(error)
            self.problems.append(f"{metadata['name']}: {error}")
        status: Json = {"phase": phase, "startedAt": _text(tree.started), "nodes": dict(_nodes(metadata["name"], tree))}
        if message:
            status["message"] = message
        if phase in _DONE:
            status["finishedAt"] = self._time()
        if status != obj.get("status"):
            with self.api.changed:
                now = self._objects(WORKFLOW).get(metadata["name"])
                if now is not None and now["metadata"]["uid"] == metadata["uid"]:
                    self._put(WORKFLOW, {**now, "status": status})

    def _copy(self, obj: Json) -> Json:
        """The Workflow as Argo has it: as it was `lag_seconds` ago."""
        now = self.time.now()
        copies = self._copies.setdefault(obj["metadata"]["uid"], [])
        copies.append((now, obj))
        while len(copies) > 1 and copies[1][0] <= now - self.lag_seconds:
            copies.pop(0)
        return copies[0][1]

    def _walk(self, live: _Live, tree: _Tree) -> None:
        self._note_pods(live, tree)
        for position, name in enumerate(live.rounds):
            round_ = tree.rounds.get((position, name))
            if round_ is None:
                if live.is_stopping:
                    continue
                round_ = tree.rounds[position, name] = _Round(f"{live.name}.round({position}:{name})", name)
            if round_.phase not in _DONE:
                self._walk_round(live, tree, round_)

    def _walk_round(self, live: _Live, tree: _Tree, round_: _Round) -> None:
        if not round_.attempts:
            round_.attempts.append(_Attempt(round_.name if live.round_limit is None else f"{round_.name}(0)"))
        attempt = round_.attempts[-1]
        if _is_stuck(round_.attempts) or attempt.is_blocked:
            return
        for task in live.tasks:
            group = attempt.groups.setdefault(task, _Group(f"{attempt.name}.{task}"))
            if group.phase not in _DONE:
                self._walk_group(live, tree, round_, group, task)
        # A dropped member that has not ended blocks for ever: Argo never evaluates it again.
        every = [member for group in attempt.groups.values() for member in group.members.values()]
        if not all(g.phase in _DONE for g in attempt.groups.values()) or not all(m.phase in _DONE for m in every):
            return
        failed = any(member.phase in ("Failed", "Error") for member in every)
        attempt.phase = "Failed" if failed and round_.of == live.current else "Succeeded"
        if (
            attempt.phase == "Failed"
            and live.round_limit is not None
            and len(round_.attempts) <= live.round_limit
            and not live.is_stopping
        ):
            round_.attempts.append(_Attempt(f"{round_.name}({len(round_.attempts)})"))
            self._walk_round(live, tree, round_)
        else:
            round_.phase = attempt.phase

    def _walk_group(self, live: _Live, tree: _Tree, round_: _Round, group: _Group, task: str) -> None:
        texts = live.members(round_.of, task)
        if not texts:
            if group.members:
                raise _BrokenError(f"node {group.name} already initialized")
            group.phase = "Skipped"
            return
        for (position, text), member in group.members.items():
            if member.phase not in _DONE and (position >= len(texts) or texts[position] != text):
                self._note(f"{member.name} was dropped before its end")
        present = []
        for position, text in enumerate(texts):
            found = group.members.get((position, text))
            if found is not None:
                member = found
            elif live.is_stopping:
                continue
            else:
                index = int(text.split(".")[0])
                member = _Member(f"{group.name}({position}:{text})", task, index, text)
                group.members[position, text] = member
            present.append(member)
            if member.phase not in _DONE:
                self._walk_member(live, tree, round_, member)
        if all(member.phase in _DONE for member in present):
            bad = any(member.phase in ("Failed", "Error") for member in present)
            group.phase = "Failed" if bad else "Succeeded"

    def _walk_member(self, live: _Live, tree: _Tree, round_: _Round, member: _Member) -> None:
        limit = live.replica_limit
        if not member.tries:
            member.tries.append(_Try(member.name if limit is None else f"{member.name}(0)"))
        latest = member.tries[-1]
        if _is_stuck(member.tries):
            return
        self._walk_try(live, round_, member, latest)
        if latest.retry_phase not in _DONE:
            return
        wanted = live.is_wanted(round_.of, member)
        latest.phase = latest.retry_phase if wanted else "Succeeded"
        if latest.phase != "Succeeded":
            last = len(member.tries) > limit if limit is not None else len(round_.attempts) > (live.round_limit or 0)
            if wanted and last and not live.is_stopping and live.gives_up:
                tree.gave_up = True
            if wanted and limit is not None and len(member.tries) <= limit and not live.is_stopping:
                member.tries.append(_Try(f"{member.name}({len(member.tries)})"))
                self._walk_try(live, round_, member, member.tries[-1])
                return
        member.phase = latest.phase

    def _walk_try(self, live: _Live, round_: _Round, member: _Member, latest: _Try) -> None:
        if latest.retry_phase in _DONE:
            return
        if not latest.pods:
            if live.is_stopping:
                latest.retry_phase = "Failed"
            elif len(self.of(live.name)) < self.quota.get(live.name, 10**9):
                self._make_pod(live, round_, member, latest)
            return
        node = latest.pods[-1]
        if node.phase not in _DONE:
            return
        if node.phase == "Succeeded" or live.is_stopping or len(latest.pods) > _UNCOUNTED_LIMIT:
            latest.retry_phase = "Succeeded" if node.phase == "Succeeded" else "Failed"
        elif self.time.now() >= node.finished + min(60.0, 2.0 ** (len(latest.pods) - 1)):
            # Argo evaluates the retry after the back-off, which a pod without a terminated container does not have.
            if live.is_wanted(round_.of, member) and _is_uncounted(live, round_, member.task, node.message):
                if len(self.of(live.name)) < self.quota.get(live.name, 10**9):
                    self._make_pod(live, round_, member, latest)
            else:
                latest.retry_phase = "Failed"

    def _note_pods(self, live: _Live, tree: _Tree) -> None:
        """Update the tree from the pods, and stop these if the Workflow should stop."""
        with self.api.changed:
            pods = dict(self._objects(POD))
        for member in _members(tree):
            for node in (node for one in member.tries for node in one.pods if node.phase not in _DONE):
                pod = pods.get(node.pod)
                if pod is None:
                    node.phase, node.message, node.finished = "Error", "pod deleted", self.time.now()
                    continue
                status = pod["status"]
                node.phase, node.host = status["phase"], pod["spec"].get("nodeName") or ""
                if node.phase in _DONE:
                    node.finished = self.time.now() if node.host else -FOR_EVER
                    node.code = status.get("exitCode")
                    where = status.get("exitContainer", "main")
                    said = f"{where}: {status.get('exitReason', 'Error')} (exit code {node.code})" if node.code else ""
                    node.message = status.get("message") or said
                elif live.is_stopping and live.name in self.deaf:
                    node.phase, node.message, node.finished = "Failed", SHUTDOWN, self.time.now()
                    labels = {**pod["metadata"]["labels"], keys.ARGO_COMPLETED: "true"}
                    self._put(POD, {**pod, "metadata": {**pod["metadata"], "labels": labels}})
                elif live.is_stopping and (known := self._kubelet.get(pod["metadata"]["uid"])) is not None:
                    known.stops = min(known.stops, self.time.now() + self.grace_seconds)

    def _make_pod(self, live: _Live, round_: _Round, member: _Member, latest: _Try) -> None:
        name = f"{latest.name}.{member.task}({len(latest.pods)})"
        digest = hashlib.sha256(f"{live.uid}{name}".encode()).hexdigest()[:10]
        node = _PodNode(name, f"{live.name}-{member.task}-{digest}", self.time.now())
        latest.pods.append(node)
        with self.api.changed:
            if node.pod in self.api.objects.get(POD.path(live.namespace), {}):
                return  # Argo takes a pod of this name for its own, even one that has ended
        values = {
            "workflow.name": live.name,
            "workflow.namespace": live.namespace,
            "inputs.parameters.round": round_.of,
            "inputs.parameters.index": str(member.index),
            "inputs.parameters.member": member.text,
        }
        if member.task in live.memory:
            node.memory = values["inputs.parameters.memory"] = str(live.memory[member.task])
        template = live.templates[member.task]
        given = json.loads(_fill(json.dumps(template["metadata"]), values))
        patch = self._gate_or_node(json.loads(_fill(template["podSpecPatch"], values)), live, round_, member, latest)
        if keys.NODE in given["annotations"]:  # by the same expression as the node of the patch
            sent = patch.get("nodeSelector", {}).get(keys.HOSTNAME, "")
            given["annotations"][keys.NODE] = "" if patch.get("schedulingGates") else sent
        counts = {task: len(live.members(round_.of, task)) for task in live.tasks}
        people = roster(live.name, live.namespace, counts)
        refused = self._create(
            {
                "metadata": {
                    "name": node.pod,
                    "uid": self._uid(node.pod),
                    "creationTimestamp": self._time(),
                    "ownerReferences": [{"kind": "Workflow", "name": live.name, "uid": live.uid}],
                    "labels": {**given["labels"], _WORKFLOW_LABEL: live.name},
                    "annotations": {
                        **given["annotations"],
                        _NODE_NAME: name,
                        _NODE_ID: name,
                        keys.NODES: people.nodes,
                        keys.REPLICAS: str(len(people.hosts)),
                        keys.RANK: str(people.rank_of(member.task, member.index)),
                    },
                },
                "spec": {
                    "containers": [
                        {"name": "main", "resources": _resources(template, patch)},
                        {"name": "wait", "resources": {"requests": self.wait_request}},
                    ],
                    "hostname": patch["hostname"],
                    "schedulingGates": patch.get("schedulingGates") or [],
                    "nodeSelector": {**(template.get("nodeSelector") or {}), **patch.get("nodeSelector", {})},
                },
                "status": {"phase": "Pending"},
            },
            live.namespace,
            template,
            patch,
        )
        if "exceeded quota" in refused:
            latest.pods.remove(node)  # Argo tries it again
        elif refused:
            node.phase, node.message, node.finished = "Error", refused, -FOR_EVER

    def _create(self, pod: Json, namespace: str, _template: Json, _patch: Json) -> str:
        """Create a pod; returns why the API server refuses it, or "". Labs whose kube-scheduler and admission read more
        of it add what the template and the patch say."""
        self.api.add(POD, pod, namespace=namespace)
        return ""

    def _gate_or_node(self, patch: Json, live: _Live, round_: _Round, member: _Member, latest: _Try) -> Json:
        """The patch with its expression of a gate or a node evaluated, as Argo does for a pod of a gang."""
        expression = next((key for key in patch if key.startswith("{{=let p")), None)
        if expression is None:
            return patch
        counted = len(member.tries) if live.replica_limit is not None else len(round_.attempts)
        key = f"{round_.of}/{member.task}/{member.text}/{counted - 1}/{len(latest.pods) - 1}"
        holds = self.time.now() < live.places.get("until", 0) and live.places.get("uid") == live.uid
        node = live.places.get(key, "") if holds else ""
        if node:
            return {**patch, "nodeSelector": {keys.HOSTNAME: node}}
        gates = re.findall(r"{'name': '([^']*)'}", expression)
        assert keys.GATE in gates, expression
        return {**patch, "schedulingGates": [{"name": gate} for gate in gates]}

    # --- scheduler and kubelets ---------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        nodes, free = self._free()
        for pod in self.pods():
            spec = pod["spec"]
            if spec.get("nodeName") or spec.get("schedulingGates") or "deletionTimestamp" in pod["metadata"]:
                continue
            if spec.get("schedulerName") == keys.DEMAND_SCHEDULER:
                continue
            request = quantities.of_pod(spec)
            selector = (spec.get("nodeSelector") or {}).items()
            for name, node in nodes.items():
                if (
                    name not in self.refuses
                    and selector <= node["metadata"]["labels"].items()
                    and _is_open(node)
                    and all(free[name].get(resource, 0) >= amount for resource, amount in request.items())
                ):
                    quantities.add(free[name], {resource: -amount for resource, amount in request.items()})
                    self._bind(pod, name)
                    break
            else:
                refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
                if pod["status"].get("conditions") != [refused]:
                    self._change_pod(pod, {**pod["status"], "conditions": [refused]})

    def _bind(self, pod: Json, node: str) -> None:
        with self.api.changed:
            now = self._objects(POD).get(pod["metadata"]["name"])
            if now is None or now["metadata"]["resourceVersion"] != pod["metadata"]["resourceVersion"]:
                return
            self._put(POD, {**now, "spec": {**now["spec"], "nodeName": node}})

    def _run_pods(self) -> None:
        now = self.time.now()
        with self.api.changed:
            nodes = dict(self.api.objects.get(NODE.path(None), {}))
        for pod in self.pods():
            uid, spec = pod["metadata"]["uid"], pod["spec"]
            node = nodes.get(spec.get("nodeName") or "")
            if node is None or not _is_ready(node) or _WORKFLOW_LABEL not in (pod["metadata"].get("labels") or {}):
                continue
            known = self._kubelet.get(uid)
            if known is None and (uid in self._hung or not self._mounts(pod)):
                self._wait_for_volumes(pod)
                continue
            if known is None:
                known = self._kubelet[uid] = self._starts(pod)
                if "deletionTimestamp" in pod["metadata"]:
                    known.stops = now + self.grace_seconds
                else:
                    main = {"name": "main", "image": "x", "state": {"running": {"startedAt": self._time()}}}
                    self._change_pod(pod, {"phase": "Running", "containerStatuses": [main]})
                    continue
            if spec.get("activeDeadlineSeconds") == 1 and known.stops == FOR_EVER:
                known.stops, known.stop_message = now + self.grace_seconds, DEADLINE
            if now < min(known.ends, known.stops):
                continue
            if "deletionTimestamp" in pod["metadata"]:
                self._remove(POD, pod["metadata"]["name"])
            elif known.ends <= known.stops:
                phase = "Failed" if known.code else "Succeeded"
                self._change_pod(
                    pod,
                    {
                        "phase": phase,
                        "exitCode": known.code,
                        "exitReason": known.reason,
                        "exitContainer": known.container,
                    },
                )
            elif known.stop_message:
                self._change_pod(pod, {"phase": "Failed", "reason": "DeadlineExceeded", "message": known.stop_message})
            else:
                self._change_pod(pod, {"phase": "Failed", "exitCode": known.stop_code})

    def _mounts(self, pod: Json) -> bool:
        """Whether the kubelet can mount the volumes of a bound pod."""
        return self.mounts and pod["spec"]["nodeName"] not in self.broken

    def _starts(self, pod: Json) -> _Kubelet:
        now = self.time.now()
        seconds, code = self.runs(pod)
        if self._lacks_memory(pod):
            return _Kubelet(now, now + 4.0, 137, reason="OOMKilled")
        return _Kubelet(now, now + seconds, code)

    def _lacks_memory(self, pod: Json) -> bool:
        needed = self.uses.get(pod["metadata"]["labels"][keys.TASK_NAME], 0)
        resources = pod["spec"]["containers"][0]["resources"]
        given = quantities.read(resources.get("limits") or resources.get("requests")).get("memory", 0)
        return needed > given > 0

    def _wait_for_volumes(self, pod: Json) -> None:
        uid, now = pod["metadata"]["uid"], self.time.now()
        if uid not in self._hung:
            self._hung[uid] = FOR_EVER
            waiting = {"image": "x", "state": {"waiting": {"reason": "ContainerCreating"}}}
            names = [container["name"] for container in pod["spec"]["containers"]]
            self._change_pod(pod, {"phase": "Pending", "containerStatuses": [{"name": n, **waiting} for n in names]})
        elif pod["spec"].get("activeDeadlineSeconds") == 1 or "deletionTimestamp" in pod["metadata"]:
            self._hung[uid] = ends = min(self._hung[uid], now + MOUNT_SECONDS)
            if now >= ends and "deletionTimestamp" in pod["metadata"]:
                self._remove(POD, pod["metadata"]["name"])
            elif now >= ends:
                self._change_pod(pod, {"phase": "Failed", "reason": "DeadlineExceeded", "message": DEADLINE})

    def _look_at_nodes(self) -> None:
        """Report an overcommitted machine, which kube-scheduler would never cause."""
        _, free = self._free()
        for name, left in free.items():
            for resource, amount in left.items():
                if amount < 0:
                    self._note(f"node {name} is over: {amount} {resource}")

    def _note(self, problem: str) -> None:
        if problem not in self.problems:
            self.problems.append(problem)

    def _free(self) -> tuple[dict[str, Json], dict[str, quantities.Amounts]]:
        with self.api.changed:
            nodes = dict(self.api.objects.get(NODE.path(None), {}))
        free = {name: quantities.read(node["status"]["allocatable"]) for name, node in nodes.items()}
        for pod in self.pods():
            host = pod["spec"].get("nodeName")
            if host in free:
                quantities.add(free[host], {name: -amount for name, amount in quantities.of_pod(pod["spec"]).items()})
        return nodes, free

    def _objects(self, kind: Kind) -> dict[str, Json]:
        every = [self.api.objects.get(kind.path(namespace), {}) for namespace in self.namespaces]
        return {name: obj for objects in every for name, obj in objects.items()} if len(every) > 1 else every[0]

    def _put(self, kind: Kind, obj: Json) -> None:
        self.api.add(kind, obj, namespace=obj["metadata"].get("namespace", "default"))

    def _remove(self, kind: Kind, name: str) -> None:
        self.api.remove(kind, name, namespace=self._objects(kind)[name]["metadata"]["namespace"])

    # --- small things -------------------------------------------------------------------------------------------------

    def _uid(self, name: str) -> str:
        self._uids += 1
        return f"uid-{self._uids}-{name}"

    def _time(self) -> str:
        return _text(self.time.now())

    def _ready(self, *, is_ready: bool) -> Json:
        return {"type": "Ready", "status": "True" if is_ready else "Unknown", "lastTransitionTime": self._time()}

    def _change_pod(self, pod: Json, status: Json) -> None:
        with self.api.changed:
            now = self._objects(POD).get(pod["metadata"]["name"])
            if now is not None and now["status"]["phase"] not in ("Succeeded", "Failed"):
                self._put(POD, {**now, "status": status})

    def _change_node(self, name: str, change: Callable[[Json], Json]) -> None:
        with self.api.changed:
            self.api.add(NODE, change(self.api.objects[NODE.path(None)][name]))

    def _change_workflow(self, name: str, change: Callable[[Json], Json]) -> None:
        with self.api.changed:
            self._put(WORKFLOW, change(self._objects(WORKFLOW)[name]))


def is_running(pod: Json) -> bool:
    return bool(pod["status"]["phase"] == "Running")


def is_gated(pod: Json) -> bool:
    return bool(pod["spec"].get("schedulingGates"))


def _read(obj: Json) -> _Live:
    parameters = {p["name"]: p["value"] for p in obj["spec"]["arguments"]["parameters"]}
    templates = {t["name"]: t for t in obj["spec"]["templates"]}
    fans = [t["name"] for t in templates[keys.TEMPLATE_ROUND]["dag"]["tasks"] if t["name"] != keys.TEMPLATE_SUPERSEDED]
    try:
        rounds = json.loads(parameters["rounds"])
        granted = json.loads(parameters["granted"])
        incarnations = json.loads(parameters["incarnations"])
        if not isinstance(rounds, list) or not isinstance(granted, dict) or not isinstance(incarnations, dict):
            raise ValueError
    except ValueError:
        raise _BrokenError("failed to evaluate expression") from None
    return _Live(
        name=obj["metadata"]["name"],
        namespace=obj["metadata"]["namespace"],
        uid=obj["metadata"]["uid"],
        tasks=tuple(fans),
        templates=templates,
        rounds=tuple(rounds),
        current=parameters["current"],
        granted=granted,
        incarnations=incarnations,
        released=parameters["released"],
        places=json.loads(parameters.get("places", "{}")),
        round_limit=_limit(templates[keys.TEMPLATE_ROUND]),
        replica_limit=_limit(templates[f"replicaOf-{fans[0]}"]),
        backoff_limit=json.loads(obj["metadata"]["annotations"][keys.DIJOB])["spec"].get("backoffLimit", 3),
        is_stopping=obj["spec"].get("shutdown") in ("Stop", "Terminate"),
        memory=json.loads(parameters.get("memory", "{}")),
        gives_up="hooks" in templates[f"replicaOf-{fans[0]}"]["dag"]["tasks"][-1],
    )


def _limit(template: Json) -> int | None:
    strategy = template.get("retryStrategy")
    return int(strategy["limit"]) if strategy else None


def _is_uncounted(live: _Live, round_: _Round, task: str, message: str) -> bool:
    """The value of the template's retry expression. Those of older versions do not know diflow's own stops."""
    expression = live.templates[task]["retryStrategy"]["expression"]
    if (
        keys.CHECK_CONTAINER in expression
        or live.memory
        or not live.gives_up
        or expression.count("lastRetry.message matches") > 2
    ):
        return _evaluated(expression, live, round_, len(round_.attempts) - 1, message)
    if _UNCOUNTED.search(message):
        return True
    mark = f'"{round_.of}/{len(round_.attempts) - 1}"'
    return STOPPED_MESSAGE in expression and _STOPPED.search(message) is not None and mark not in live.released


def _evaluated(expression: str, live: _Live, round_: _Round, attempt: int, message: str) -> bool:
    """The expression of a retry in the language of Argo, as far as diflow uses it, for a replica that is wanted."""
    text = expression.partition(" && ")[2].partition(" && ")[2]  # without the condition that it is wanted
    text = _fill(text, {"inputs.parameters.round": round_.of, "inputs.parameters.attempt": str(attempt)})
    text = text.replace("{{workflow.parameters.released}}", live.released)
    text = re.sub(r"('[^']*') contains ('[^']*')", r"(\2 in \1)", text)
    text = re.sub(r"lastRetry\.message matches ('[^']*')", r"bool(search(\1, message))", text)
    text = text.replace(" && ", " and ").replace(" || ", " or ").replace("!(", "not (")
    return bool(eval(text, {"search": re.search, "message": message}))


def _resources(template: Json, patch: Json) -> Json:
    """The resources of the main container with those of the patch."""
    given = template["container"].get("resources") or {}
    containers: list[Json] = patch.get("containers") or []
    patched: Json = next((c for c in containers if c.get("name") == "main"), {}).get("resources") or {}
    for kind, of_kind in patched.items():
        found = re.fullmatch(r"{{=int\(inputs\.parameters\.memory\) - (\d+)}}Mi", of_kind["memory"])
        assert found is None, "the fake has no limits above requests"
        given = {**given, kind: {**given.get(kind, {}), **of_kind}}
    return dict(given)


def _fill(text: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        text = text.replace("{{" + name + "}}", value)
    return text


def _text(now: float) -> str:
    return datetime.fromtimestamp(EPOCH + now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _is_ready(node: Json) -> bool:
    return bool(node["status"]["conditions"][0]["status"] == "True")


def _is_open(node: Json) -> bool:
    return _is_ready(node) and not node["spec"].get("unschedulable")


def _members(tree: _Tree) -> Iterator[_Member]:
    for round_ in tree.rounds.values():
        for attempt in round_.attempts:
            for group in attempt.groups.values():
                yield from group.members.values()


def _is_stuck(attempts: Sequence[_Try | _Attempt]) -> bool:
    """Whether `argo retry` has set several attempts to Running: Argo makes no pods for them any more."""
    return sum(one.phase not in _DONE for one in attempts) > 1


def _drop_removed(tree: _Tree, nodes: Json) -> None:
    """Forget the attempts that `argo retry` set to Running and of which somebody has removed the Retry node."""
    for position, round_ in list(tree.rounds.items()):
        if _is_stuck(round_.attempts) and round_.name not in nodes:
            del tree.rounds[position]
        for attempt in round_.attempts:
            attempt.is_blocked = attempt.is_blocked and f"{attempt.name}.superseded" in nodes
        for group in (group for attempt in round_.attempts for group in attempt.groups.values()):
            for text, member in list(group.members.items()):
                if _is_stuck(member.tries) and member.name not in nodes:
                    del group.members[text]


def _nodes(job: str, tree: _Tree) -> Iterator[tuple[str, Json]]:
    """The nodes as Argo writes them into the Workflow's status."""

    def node(name: str, kind: str, phase: str, **more: Any) -> tuple[str, Json]:
        is_reset = tree.retried and phase == "Running" and kind != "Pod"
        times = {"startedAt": tree.retried} if is_reset else {}
        return name, {"id": name, "name": name, "type": kind, "phase": phase, **times, **more}

    yield node(job, "DAG", "Running")
    for round_ in tree.rounds.values():
        retried = bool(round_.attempts) and round_.attempts[0].name != round_.name
        yield node(round_.name, "Retry" if retried else "DAG", round_.phase)
        for attempt in round_.attempts:
            if retried:
                yield node(attempt.name, "DAG", attempt.phase)
            if attempt.is_blocked:
                yield node(f"{attempt.name}.superseded", "Skipped", "Skipped")
            for group in attempt.groups.values():
                yield node(group.name, "TaskGroup", group.phase)
                for member in group.members.values():
                    yield from _nodes_of(member, node)


def _nodes_of(member: _Member, node: Callable[..., tuple[str, Json]]) -> Iterator[tuple[str, Json]]:
    retried = bool(member.tries) and member.tries[0].name != member.name
    yield node(member.name, "Retry" if retried else "DAG", member.phase)
    for one in member.tries:
        if retried:
            yield node(one.name, "DAG", one.phase)
        yield node(f"{one.name}.{member.task}", "Retry", one.retry_phase)
        for pod in one.pods:
            more: Json = {"startedAt": _text(pod.created), "message": pod.message, "hostNodeName": pod.host}
            if pod.code is not None:
                more["outputs"] = {"exitCode": str(pod.code)}
            if pod.finished > 0:
                more["finishedAt"] = _text(pod.finished)
            if pod.memory:
                more["inputs"] = {"parameters": [{"name": "memory", "value": pod.memory}]}
            yield node(pod.name, "Pod", pod.phase, **more)
