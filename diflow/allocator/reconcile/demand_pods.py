"""Pods that stand for the replicas of gangs that lack nodes, so that an autoscaler sees them (decision 28).

Autoscalers add nodes for pods that a scheduler has found no node for. Such a pod asks for what a replica asks for, of
its node as well. It names the allocator as its scheduler, which never binds it: it holds no place, and nothing runs. It
belongs to the job's Workflow, and counts in the quota of its namespace.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final, Protocol, TypeVar

import structlog

from diflow.allocator.watch.cluster_state import Caches, ClusterState
from diflow.allocator.watch.job import Job
from diflow.allocator.write.executor import Executor
from diflow.allocator.write.patches import Note
from diflow.allocator.write.round_robin import in_turns
from diflow.common import keys, quantities
from diflow.common.clock import Clock
from diflow.common.durations import backoff, timestamp
from diflow.common.errors import ConflictError, DiflowError, LostLeadershipError, NotFoundError
from diflow.dijob.pods import work_container
from diflow.kube.api import Cluster
from diflow.kube.kinds import POD, WORKFLOW
from diflow.kube.leader_election import Elector
from diflow.record.identity import Identity
from diflow.record.job import JobRecord, Role, record_of
from diflow.record.pod import PodRecord
from diflow.workflows.pods import CONFINED

Json = dict[str, Any]
Item = TypeVar("Item")
MOST_AT_ONCE: Final = 100
"""Pods that are made, marked or deleted in one cycle: decisions on the jobs of others wait for them."""
_MOST_JOBS: Final = 16
"""Jobs whose Workflows are read for their templates in one cycle."""
_WORKERS: Final = 8
_PAUSE_SECONDS: Final = (60.0, 1800.0)
_LONGEST_NAME: Final = 200
_OF_NODES: Final = ("nodeSelector", "affinity", "tolerations", "topologySpreadConstraints", "runtimeClassName")
"""What a pod says of the nodes on which it may be."""

log = structlog.get_logger("diflow.allocator")


class Asked(Protocol):
    """The replicas of a job for which nodes are missing."""

    @property
    def job(self) -> Job:
        """The job."""

    @property
    def lacks(self) -> Mapping[str, int]:
        """The replicas by task."""

    @property
    def text(self) -> str:
        """The same for people."""


@dataclass(slots=True)
class _Refusal:
    """Why the pods of a job could not be made, how often, and until when they are not tried again."""

    why: str
    tries: int = 0
    until: float = -math.inf


class DemandPods:
    """Makes and removes the pods. What is there is seen in the cache of pods; kept here are refusals alone."""

    def __init__(self, cluster: Cluster, elector: Elector, executor: Executor, caches: Caches, *, clock: Clock) -> None:
        self._cluster, self._elector = cluster.without_retries(), elector
        self._executor, self._caches, self._clock = executor, caches, clock
        self._refusals: dict[str, _Refusal] = {}
        self._told: dict[str, str] = {}
        self._paused_until = -math.inf

    @property
    def refused(self) -> Mapping[str, str]:
        """By the uid of a Workflow: why its pods could not be made."""
        return {uid: refusal.why for uid, refusal in self._refusals.items()}

    def withdraw(self, state: ClusterState, wanted: Mapping[str, Asked]) -> None:
        """Delete the pods that stand for nothing any more, before the replicas are made that take their place in the
        namespace's quota. Raises LostLeadershipError."""
        now = self._clock.monotonic()
        self._refusals = {uid: refusal for uid, refusal in self._refusals.items() if uid in wanted}
        self._told = {uid: text for uid, text in self._told.items() if uid in wanted}
        needed = {name for uid, asked in wanted.items() for name in _names(asked)}
        there = {job.read.identity.uid for job in state.jobs.values()}
        extra = [
            pod for pod in _pods(state) if pod.owner in there and pod.name not in needed and not pod.is_terminating
        ]
        if extra and now >= self._paused_until:
            self._all(extra, self._delete, most=MOST_AT_ONCE)

    def run(self, state: ClusterState, wanted: Mapping[str, Asked]) -> bool:
        """Make the pods that are missing. Returns whether some are left for the next cycle. Raises
        LostLeadershipError."""
        now = self._clock.monotonic()
        if not wanted or now < self._paused_until:
            return False
        there = {(pod.owner, pod.name): pod for pod in _pods(state)}
        ready = [a for uid, a in wanted.items() if uid not in self._refusals or now >= self._refusals[uid].until]
        lacking = [
            (asked, missing)
            for asked in ready
            if (missing := [n for n in _names(asked) if not _is_marked(there.get((asked.job.read.identity.uid, n)))])
        ]
        lacking = in_turns(lacking, lambda one: one[0].job.read.identity.namespace)
        left = MOST_AT_ONCE
        for asked, missing in lacking[:_MOST_JOBS]:
            if left <= 0:
                return True
            self._make(asked, missing[:left], there)
            left -= len(missing)
        return left < 0 or len(lacking) > _MOST_JOBS

    def _make(self, asked: Asked, missing: Sequence[str], there: Mapping[tuple[str, str], PodRecord]) -> None:
        """Make these pods of a job, and say why none fits. If one is refused, those that are there are removed: half a
        gang would bring nodes on which nothing starts."""
        identity = asked.job.read.identity
        try:
            made = [name for name in missing if (identity.uid, name) not in there]
            bodies = self._bodies(asked, set(made)) if made else {}
            self._all(made, lambda name: self._create(bodies[name], identity.namespace))
            self._all(missing, lambda name: self._mark(name, identity.namespace))
        except LostLeadershipError:
            raise
        except NotFoundError:
            return  # the job is gone, or the pod was deleted: the next cycle sees it
        except Exception as error:  # the template is the user's: one faulty job must not stop the others
            self._refuse(asked, error, [pod for (owner, _), pod in there.items() if owner == identity.uid])
            return
        self._refusals.pop(identity.uid, None)
        if self._told.get(identity.uid) != asked.text:
            self._told[identity.uid] = asked.text
            note = Note("NodesWanted", f"nodes are missing for {asked.text}: pending pods show it to an autoscaler")
            self._executor.record_events([(asked.job, note, asked.text)])

    def _refuse(self, asked: Asked, error: Exception, there: Iterable[PodRecord]) -> None:
        uid, before = asked.job.read.identity.uid, self._refusals.get(asked.job.read.identity.uid)
        tries = before.tries + 1 if before else 0
        until = self._clock.monotonic() + backoff(_PAUSE_SECONDS, tries, error)
        self._refusals[uid] = _Refusal(str(error), tries, until)
        log.warning("the pods that ask for nodes cannot be made", job=asked.job.key, why=str(error))
        text = f"the pods that ask an autoscaler for nodes for {asked.text} cannot be made: {error}"
        self._executor.record_events([(asked.job, Note("Refused", text, is_warning=True), text)])
        names, space = set(_names(asked)), asked.job.read.identity.namespace
        seen = {pod.name: pod.uid for pod in there}
        self._all(names, lambda name: self._remove(name, space, seen.get(name, "")))

    def _bodies(self, asked: Asked, names: set[str]) -> Mapping[str, Json]:
        """The pods of these names, by the templates of the job's Workflow, for whose reading its namespace pays."""
        identity = asked.job.read.identity
        with self._caches.paid_by(identity.namespace):
            workflow = self._cluster.get(WORKFLOW, identity.name, namespace=identity.namespace)
            if Identity.of(workflow).uid != identity.uid:
                raise NotFoundError("the Workflow is another one now")
            found = record_of(workflow)
            return {
                name: body
                for role in asked.job.read.needs.roles
                for name in _names_of(asked, role)
                if name in names and (body := pod_of(found, role, name)) is not None
            }

    def _create(self, body: Json, namespace: str) -> None:
        try:
            self._cluster.create(POD, body, namespace=namespace, manager=self._manager())
        except ConflictError:
            return  # it is there, and not seen yet

    def _mark(self, name: str, namespace: str) -> None:
        """Say of a pod what a scheduler says that has found no node: that is what autoscalers look for."""
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "stands for a replica of a gang for which nodes are missing; it is never bound",
            "lastTransitionTime": timestamp(self._clock.wall()),
        }
        body = {"status": {"conditions": [condition]}}
        self._cluster.patch(POD, name, body, namespace=namespace, subresource="status", manager=self._manager())

    def _delete(self, pod: PodRecord) -> None:
        self._remove(pod.name, pod.namespace, pod.uid)

    def _remove(self, name: str, namespace: str, uid: str) -> None:
        try:
            self._cluster.delete(POD, name, namespace=namespace, grace_seconds=0, uid=uid)
        except ConflictError:
            return  # it is another one
        except DiflowError as error:
            log.warning("a pod that asked for nodes cannot be deleted", pod=name, why=str(error))
            self._paused_until = self._clock.monotonic() + _PAUSE_SECONDS[0]

    def _manager(self) -> str:
        return self._elector.writes_as(str(self._elector.check()))

    def _all(self, items: Iterable[Item], do: Callable[[Item], object], *, most: int | None = None) -> None:
        """Do this for each, several at a time."""
        self._elector.check()
        some = list(items)[:most]
        with ThreadPoolExecutor(min(_WORKERS, len(some)) or 1, thread_name_prefix="demand") as pool:
            for _ in pool.map(do, some):
                pass


def _pods(state: ClusterState) -> list[PodRecord]:
    return [pod for pod in state.pods if pod.is_demand]


def _is_marked(pod: PodRecord | None) -> bool:
    return pod is not None and pod.is_refused


def _names(asked: Asked) -> list[str]:
    return [name for role in asked.job.read.needs.roles for name in _names_of(asked, role)]


def _names_of(asked: Asked, role: Role) -> list[str]:
    """The names of the pods that stand for replicas of a task: others, when these ask for something else."""
    identity = asked.job.read.identity
    said = json.dumps([identity.uid, role.name, sorted(role.request.items())])
    digest = blake2b(said.encode(), digest_size=5).hexdigest()
    prefix = f"{identity.name[:_LONGEST_NAME]}-demand-{digest}"
    return [f"{prefix}-{index}" for index in range(asked.lacks.get(role.name, 0))]


def pod_of(read: JobRecord, role: Role, name: str) -> Json | None:
    """The pod that stands for a replica of this task; None if the job has no such task."""
    task = next((task for task in read.spec.tasks if task.name == role.name), None)
    if task is None:
        return None
    given: Json = json.loads(bytes(task.template)).get("spec") or {}
    containers: Sequence[Json] = given.get("containers") or [{}]
    labels = {keys.JOB: read.name, keys.TASK_NAME: task.name, keys.TASK_TYPE: task.type}
    ports = [{"containerPort": port, "hostPort": port, "protocol": "TCP"} for port in role.host_ports]
    asked = _resources(role.request)
    owner = read.identity.owner_reference(WORKFLOW.api_version, WORKFLOW.name)
    claims = {
        str(volume.get("name")): {"name": volume["name"], "persistentVolumeClaim": volume["persistentVolumeClaim"]}
        for volume in (*(given.get("volumes") or ()), *read.spec.volumes)
        if volume.get("persistentVolumeClaim") and volume.get("name")
    }
    spec: Json = {
        **{field: given[field] for field in _OF_NODES if field in given},
        "schedulerName": keys.DEMAND_SCHEDULER,
        "priorityClassName": given.get("priorityClassName") or keys.PRIORITY_CLASSES[read.spec.priority],
        "automountServiceAccountToken": False,
        "restartPolicy": "Never",
        "securityContext": {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
        "volumes": list(claims.values()),
        "containers": [
            {
                "name": "demand",
                # It is never pulled: a rule of the cluster about images allows it if it allows the job's own.
                "image": containers[work_container(containers)].get("image") or "none",
                "command": ["true"],
                "ports": ports,
                "resources": {"requests": asked, "limits": asked},
                "securityContext": CONFINED,
            }
        ],
    }
    return {
        "metadata": {
            "name": name,
            "labels": {**dict(role.rules.labels), **labels, keys.DEMAND: task.name},
            "ownerReferences": [owner],
        },
        "spec": {field: value for field, value in spec.items() if value not in (None, [])},
    }


def _resources(request: Mapping[str, int]) -> dict[str, str]:
    """Amounts as quantities of a container."""
    units = {"cpu": "m", "memory": "Mi", "ephemeral-storage": "Mi"}
    return {
        name: f"{value}{units.get(name, '')}" for name, value in request.items() if value and name != quantities.PODS
    }
