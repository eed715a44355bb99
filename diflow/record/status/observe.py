"""Reads each attempt of each replica of a job from Argo's nodes and the pods.

Pure; it imports neither Hera nor pydantic, because `diflow list` runs it on a thousand Workflows. Times stay text as
Kubernetes writes it (`2026-11-21T09:40:44Z`), whose alphabetical order is chronological.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from diflow.common import keys
from diflow.record import untrusted
from diflow.record.argo import failures, nodes
from diflow.record.argo.failures import Rules, Verdict
from diflow.record.argo.node_names import NodeName
from diflow.record.argo.nodes import Node
from diflow.record.argo.tree import is_never_made
from diflow.record.job import JobRecord, argo_with_tree, record_of
from diflow.record.live import Live
from diflow.record.patches import FIRST_ROUND
from diflow.record.stage import Stage, is_planned
from diflow.record.status.advice import with_advice
from diflow.record.status.row import Count, Replicas, count_of, on_nodes

Object = Mapping[str, Any]

_STOP = "stop"  # the action of the allocator's decision to end a job
_GATED = "SchedulingGated"
_LONGEST_RESULT = 4096  # as Kubernetes truncates termination messages
_OF_CONTAINER = ("name", "ready", "started", "restartCount", "state", "lastState")
_GIVE_UP = f".hooks.{keys.TEMPLATE_GIVE_UP}"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One pod of one replica. `restart` and `counted` count against the backoffLimit, `uncounted` does not."""

    round: str
    round_index: int
    restart: int
    task: str
    index: int
    member: str  # its index, or "2.1" for one that was dropped from its round and came back
    incarnation: int  # how often it came back
    counted: int
    uncounted: int
    node_id: str
    phase: str  # as of a pod: Pending, Running, Succeeded, Failed or Unknown
    message: str
    waiting: str  # why it does not start or is not ready, or ""
    exit_code: int | None
    host: str
    created: str
    placed: str  # when it was bound to a node, or ""
    ready: str  # when it became ready, or ""
    is_ready: bool
    is_ending: bool  # the main container has ended, and Argo still saves its outputs
    finished: str
    is_lost: bool = False  # its pod is being deleted or is gone, and Argo has not noted that yet
    verdict: Verdict | None = None  # why it failed, and what follows by the rules of its job; None if it did not
    memory: int = 0  # MiB of its main container, 0 if Argo does not record it
    result: str = ""  # what its program has written to /dev/termination-log

    @property
    def replica(self) -> str:
        """The replica's name within its job."""
        return f"{self.task}-{self.index}"

    @property
    def order(self) -> tuple[int, int, int, int, int]:
        """Sort key: of two attempts of one replica, the later one is greater."""
        return (self.round_index, self.restart, self.incarnation, self.counted, self.uncounted)

    @property
    def key(self) -> str:
        """Its name in the parameter `released`."""
        return f"{self.round}/{self.task}/{self.member}"

    @property
    def tries(self) -> int:
        """How much of the backoffLimit was used before it."""
        return self.counted + self.restart

    @property
    def was_stopped(self) -> bool:
        """Argo ended it because the Workflow was stopped."""
        return "shutdown with strategy" in self.message

    @property
    def was_taken_away(self) -> bool:
        """It ended by eviction, preemption, a lost node or the like, or as the failure policy of its job does not
        count, by the rules of Argo's expressions. A program's own message has no influence."""
        return self.phase == "Failed" and self.verdict is not None and not self.verdict.is_counted

    @property
    def ends_the_job(self) -> bool:
        """It failed in a way that ends the job, by its failure policy."""
        return self.phase == "Failed" and self.verdict is not None and self.verdict.action == "FailJob"


@dataclass(frozen=True, slots=True)
class Observation:
    """What the replicas of a job have done: the job's record, with Argo's tree, and the attempts in the order of
    `Attempt.order`. `gave_up`: the job stopped its Workflow, as its backoffLimit is used up. Of a job that cannot be
    read there is only the record, and what is on nodes (`kept`)."""

    job: JobRecord
    attempts: tuple[Attempt, ...] = ()
    gave_up: bool = False
    kept: Replicas = field(default_factory=dict)
    """Of a job that cannot be read, its replicas that are on nodes."""

    @property
    def live(self) -> Live:
        return self.job.live

    @property
    def tasks(self) -> tuple[str, ...]:
        """Those of the job, and others that have pods."""
        names = (*(task.name for task in self.job.spec.tasks), *(attempt.task for attempt in self.attempts))
        return tuple(dict.fromkeys(names))

    @property
    def stage(self) -> Stage:
        return self.job.stage(self.job.argo.tree)

    @property
    def has_places(self) -> bool:
        return self.job.has_places(self.job.argo.tree)

    @property
    def gated(self) -> str:
        """Why the allocator does not admit the job, as far as it plans it and says so."""
        said = self.job.notes.decision
        is_about_now = not self.job.problem and is_planned(self.stage, has_places=self.has_places)
        return said.why if is_about_now and said.action != _STOP else ""

    def count(self, latest: Mapping[tuple[str, int], Attempt]) -> Count:
        """The job's replicas, as all views count them."""
        released = self.live.released
        current = {place: a.is_ready for place, a in latest.items() if a.key not in released}
        return count_of(self.job, self.stage, self.kept or current, has_places=self.has_places)

    @property
    def wanted(self) -> frozenset[tuple[str, int]]:
        """The replicas that should run now, each as (task, index): those granted, less the released tail."""
        return frozenset((task, index) for task, count in self.job.running.items() for index in range(count))

    def was_released(self, attempt: Attempt) -> bool:
        """It was stopped on purpose: it is in `released`, was dropped since, or came back as another incarnation."""
        return (
            attempt.key in self.live.released
            or attempt.member != self.live.member(attempt.round, attempt.task, attempt.index)
            or (attempt.round == self.live.current and attempt.index >= self.live.counts.get(attempt.task, 0))
        )

    @property
    def unhealthy(self) -> str:
        """Which replicas of the current round are silent, stalled or slow, or ""."""
        found = self.job.notes.health
        is_about_now = found is not None and found.is_about(self.live.current) and not self.job.is_closing
        return found.why if found is not None and is_about_now else ""

    @property
    def stopped(self) -> str:
        """Why the allocator ended the job, or ""."""
        decision = self.job.notes.decision
        return decision.why if self.job.is_closing and decision.action == _STOP else ""

    def latest(self) -> dict[tuple[str, int], Attempt]:
        """The newest attempt of each replica in the current round and in its present incarnation, by (task, index)."""
        current = [a for a in self.attempts if a.round == self.live.current]
        restart = max((a.restart for a in current), default=0)
        return {
            (a.task, a.index): a
            for a in current
            if a.restart == restart and a.member == self.live.member(a.round, a.task, a.index)
        }


def of_workflow(workflow: Object) -> dict[str, Any]:
    """What a record and an observation are made of in a Workflow, for caches that do not keep its templates."""
    metadata, spec = untrusted.sub(workflow, "metadata"), untrusted.sub(workflow, "spec")
    return {
        "metadata": {name: value for name, value in metadata.items() if name != "managedFields"},
        "spec": _some(spec, ("arguments", "suspend", "shutdown", "ttlStrategy")),
        "status": untrusted.sub(workflow, "status"),
    }


def of_pod(pod: Object) -> dict[str, Any]:
    """What an observation reads of a pod, for caches that do not keep the whole object: containers are without their
    images, mounts and resources, most of what a pod takes."""
    metadata, status = untrusted.sub(pod, "metadata"), untrusted.sub(pod, "status")
    annotations = untrusted.sub(metadata, "annotations")
    containers = {
        name: [_some(one, _OF_CONTAINER) for one in untrusted.mappings(status[name])]
        for name in ("containerStatuses", "initContainerStatuses")
        if name in status
    }
    return {
        "metadata": {
            **_some(metadata, ("name", "namespace", "uid", "creationTimestamp", "deletionTimestamp")),
            "annotations": _some(annotations, (keys.ARGO_NODE_ID, keys.ARGO_NODE_NAME)),
        },
        "spec": _some(untrusted.sub(pod, "spec"), ("nodeName", "schedulingGates", "activeDeadlineSeconds")),
        "status": {**_some(status, ("phase", "reason", "message", "conditions")), **containers},
    }


def _some(values: Object, names: Sequence[str]) -> dict[str, Any]:
    return {name: values[name] for name in names if name in values}


def observe(workflow: Object, pods: Sequence[Object] = ()) -> Observation:
    """Read a Workflow and, if given, its pods."""
    return observe_state(record_of(workflow), workflow, pods)


def observe_state(job: JobRecord, workflow: Object, pods: Sequence[Object] = ()) -> Observation:
    """As `observe`, for a Workflow whose record is made already."""
    known, is_offloaded = nodes.nodes(workflow, pods)
    if job.problem:
        return Observation(job, kept=_kept(_attempts(job, known, pods)))
    job, found = _of_job(job, known)
    job = replace(job, argo=argo_with_tree(job, found, is_offloaded=is_offloaded))
    seen = Observation(job, gave_up=any(map(_has_given_up, found)))
    return replace(seen, attempts=_attempts(job, found, pods, gated=seen.gated))


def observe_ending(job: JobRecord, known: Sequence[Node]) -> Observation:
    """As much as the sentence of a job says that is being stopped or deleted (`messages.ending`), by its nodes:
    attempts only if they tell which pods have not ended, or which replica failed."""
    seen = Observation(job)
    is_stop = seen.stage is Stage.STOPPING
    if job.problem or (is_stop and seen.stopped):
        return seen
    job, found = _of_job(job, known)
    gave_up = any(map(_has_given_up, found))
    return Observation(job, _attempts(job, found), gave_up) if gave_up or not is_stop else seen


def _of_job(job: JobRecord, found: Sequence[Node]) -> tuple[JobRecord, Sequence[Node]]:
    """The nodes of the job itself, and its replicas: a job whose rounds run side by side is its first one."""
    if not job.is_side_by_side:
        return job, found
    of_first = [node for node in found if node.place is None or node.place.round == FIRST_ROUND]
    return replace(job, live=replace(job.live, rounds=(FIRST_ROUND,))), of_first


def _attempts(
    job: JobRecord, found: Sequence[Node], pods: Sequence[Object] = (), *, gated: str = ""
) -> tuple[Attempt, ...]:
    """The attempts of all replicas, in their order."""
    by_node = {nodes.node_id_of(pod): pod for pod in pods}
    rules_of = cache(job.rules)  # a policy may have thousands of exit codes, which are hashed to find its rules
    attempts = [
        _attempt(node, by_node.get(node.id), place, gated=gated, sees_pods=bool(pods), rules=rules_of(place.task))
        for node in found
        if (place := node.place) is not None and node.type == "Pod" and place.task and not is_never_made(node)
    ]
    attempts.sort(key=lambda a: (a.order, a.created))
    return tuple(attempts)


def _kept(attempts: Sequence[Attempt]) -> Replicas:
    live = (a for a in attempts if a.phase in ("Pending", "Running") and not a.is_lost)
    return on_nodes((a.task, a.index, a.is_ready) for a in live if a.host or a.phase == "Running")


def waiting_reason(pod: Object, *, gated: str = "") -> str:
    """Why a pod does not start and what to do about it, or why one that runs is not ready; "" if nothing is wrong.

    `gated` is the allocator's reason for a pod that it has not admitted.
    """
    status = pod.get("status") or {}
    if status.get("phase") not in (None, "", "Pending"):
        node = (pod.get("spec") or {}).get("nodeName") or ""
        return f"its node {node} does not answer" if _is_on_silent_node(status) else ""
    statuses = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    if found := next(filter(None, map(_reason_of_container, statuses)), ""):
        return found
    for condition in status.get("conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            if condition.get("reason") == _GATED:
                gates = [g.get("name", "") for g in (pod.get("spec") or {}).get("schedulingGates") or []]
                if gated and gates == [keys.GATE]:
                    return gated
                return f"waits to be admitted (gate {', '.join(gates)})" if gates else "waits to be admitted"
            return with_advice(_sentence(condition.get("reason") or "", condition.get("message") or ""))
    return ""


def _is_on_silent_node(status: Object) -> bool:
    """Kubernetes sets the condition Ready of such a pod to False, and keeps all that its kubelet wrote."""
    conditions = {c.get("type"): c for c in status.get("conditions") or []}
    ready, containers = conditions.get("Ready") or {}, conditions.get("ContainersReady") or {}
    is_ready_but_for_it = containers.get("status") == "True" and not ready.get("reason")
    return status.get("phase") == "Running" and ready.get("status") == "False" and is_ready_but_for_it


def _reason_of_container(container: Object) -> str:
    state = container.get("state") or {}
    waiting = state.get("waiting") or {}
    reason = waiting.get("reason") or ""
    if reason and reason not in ("ContainerCreating", "PodInitializing"):
        return with_advice(_sentence(reason, waiting.get("message") or ""))
    return "its node check runs" if container.get("name") == keys.CHECK_CONTAINER and state.get("running") else ""


@dataclass(slots=True)
class _End:
    """How far an attempt has come, by Argo's node, and then by its pod. `argos`: Argo's message, with the name of the
    container."""

    phase: str
    argos: str
    message: str
    exit_code: int | None
    host: str
    finished: str
    waiting: str = ""
    placed: str = ""
    ready: str = ""
    is_ready: bool = False
    is_ending: bool = False
    result: str = ""


def _attempt(node: Node, pod: Object | None, place: NodeName, *, gated: str, sees_pods: bool, rules: Rules) -> Attempt:
    found = _by_node(node, gated)
    is_lost = sees_pods and not node.is_fulfilled
    is_lost = is_lost and (found.phase == "Running" if pod is None else _is_being_deleted(pod))
    if pod is not None:
        _add_pod(found, pod, gated, created=node.started, has_ended=node.is_fulfilled)
    phase = found.phase
    return Attempt(
        round=place.round,
        round_index=place.round_index,
        restart=place.restart,
        task=place.task,
        index=place.index,
        member=place.member,
        incarnation=place.incarnation,
        counted=place.counted,
        uncounted=place.uncounted,
        node_id=node.id,
        phase=phase if phase in ("Pending", "Running", "Succeeded", "Failed") else _other(phase),
        message=found.message,
        waiting=found.waiting,
        exit_code=found.exit_code,
        host=found.host,
        created=node.started,
        placed=found.placed,
        ready=found.ready,
        is_ready=found.is_ready and not is_lost,
        is_ending=found.is_ending,
        finished=found.finished,
        is_lost=is_lost,
        verdict=rules.judge(found.argos) if phase == "Failed" else None,
        memory=node.memory,
        result=found.result,
    )


def _by_node(node: Node, gated: str) -> _End:
    ended, message = node.is_fulfilled, node.message.removeprefix(f"{failures.MAIN}: ")
    found = _End(
        phase="Failed" if node.phase == "Error" else node.phase,
        argos=node.message,
        message=message,
        exit_code=node.exit_code,
        host=node.host,
        finished=node.finished if ended else "",
    )
    if found.phase == "Pending" and not _is_on_its_way(message):
        found.waiting = gated if gated and message.startswith(_GATED) else with_advice(message)
    # If the pod is gone, only Argo's node is left: with an exit code it has run; else it was probably taken away.
    has_code = node.exit_code is not None or "exit code" in message
    ran_and_ended = found.phase == "Succeeded" or has_code or (node.host != "" and failures.is_uncounted(node.message))
    ran = found.phase == "Running" or (ended and ran_and_ended)
    found.placed = node.started if node.host or ran else ""
    # A node check that fails ends the pod before its work begins.
    found.ready = node.started if ran and not node.message.startswith(f"{keys.CHECK_CONTAINER}: ") else ""
    found.is_ready = found.phase == "Running"
    return found


def _add_pod(found: _End, pod: Object, gated: str, *, created: str, has_ended: bool) -> None:
    """Add what the pod shows, which is ahead of Argo's node. `has_ended`: by that node."""
    status = pod.get("status") or {}
    found.host = (pod.get("spec") or {}).get("nodeName") or found.host
    conditions = {c.get("type"): c for c in status.get("conditions") or []}
    found.placed = _since(conditions.get("PodScheduled")) or found.placed
    main = _main_state(status)
    terminated = main.get("terminated") or {}
    found.result = untrusted.string(terminated.get("message"), most=_LONGEST_RESULT)
    if not has_ended:
        found.phase = status.get("phase") or found.phase
        if found.phase == "Failed" and _failed_beside_its_work(status, terminated):
            found.phase = "Running"
        is_running = found.phase == "Running"
        found.waiting = waiting_reason(pod, gated=gated)
        found.is_ending = is_running and bool(terminated)
        found.is_ready = is_running and (conditions.get("Ready") or {}).get("status") == "True"
        if found.phase in ("Succeeded", "Failed"):
            found.finished = terminated.get("finishedAt") or found.finished or created
            found.argos = found.argos or failures.message_of(status, terminated, container=failures.MAIN)
            found.message = found.message or _ending(status, terminated)
    if found.exit_code is None:
        found.exit_code = nodes.exit_code(terminated.get("exitCode"))
    found.ready = _since(conditions.get("Ready")) or _started(main) or (found.ready if has_ended else "")
    is_starting = found.phase == "Running" and not found.is_ready and not conditions.get("Ready")
    if main.get("waiting") or is_starting:
        found.ready = ""


def _failed_beside_its_work(status: Object, terminated: Object) -> bool:
    """Whether the work has succeeded, and only a container beside it was ended by Argo, such as a monitor that had not
    begun to listen for signals: the pod is Failed then, and Argo will say Succeeded."""
    return terminated.get("exitCode") == 0 and not (status.get("message") or status.get("reason"))


def _is_being_deleted(pod: Object) -> bool:
    return bool((pod.get("metadata") or {}).get("deletionTimestamp"))


def _other(phase: str) -> str:
    return "Succeeded" if phase in ("Skipped", "Omitted") else "Unknown"


def _is_on_its_way(message: str) -> bool:
    return not message or message.startswith(("ContainerCreating", "PodInitializing"))


def _has_given_up(node: Node) -> bool:
    """The step that stops a failed job was bound to a node.

    It may still end as Failed: by its own condition, or because Argo stops it with the rest. After a user's stop it
    fails, too, as Argo then starts no more pods, but it is never bound to a node.
    """
    if _GIVE_UP not in node.name or node.phase in ("Skipped", "Omitted"):
        return False
    return node.phase not in ("Failed", "Error") or bool(node.host)


def _since(condition: Object | None) -> str:
    if condition and condition.get("status") == "True":
        return condition.get("lastTransitionTime") or ""
    return ""


def _main_state(status: Object) -> Object:
    for container in status.get("containerStatuses") or []:
        if container.get("name") == failures.MAIN:
            state: Object = container.get("state") or {}
            return state
    return {}


def _started(state: Object) -> str:
    """When a container that has ended, or that runs without being ready, was started."""
    return (state.get("terminated") or {}).get("startedAt") or ""


def _ending(status: Object, terminated: Object) -> str:
    if status.get("reason"):
        return _sentence(status["reason"], status.get("message") or "")
    code = terminated.get("exitCode")
    reason = terminated.get("reason") or "Error"
    return f"{reason} (exit code {code})" if code else ""


def _sentence(reason: str, message: str) -> str:
    message = " ".join(message.split())
    if not message or message.startswith(reason):
        return message or reason
    return f"{reason}: {message}"
