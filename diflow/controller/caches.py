"""The watches of the controller: DIJob objects, the Workflows that they own, the pods of these, and the pods of steps
of other Workflows that wait for a DIJob.

Workflows are kept compressed, as those of a thousand jobs would take hundreds of megabytes as Python objects.
"""

from __future__ import annotations

import itertools
import json
import threading
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from diflow.common import keys
from diflow.common.clock import SYSTEM, Clock
from diflow.controller.objects import DIJobRead, read
from diflow.jobs import dijobs
from diflow.jobs.dijobs import DIJOB
from diflow.kube.api import Cluster, within
from diflow.kube.kinds import POD, WORKFLOW
from diflow.kube.reflector import PACE, Json, Key, Pace, Reflector, drop
from diflow.kube.reflectors import Reflectors
from diflow.record import chain, untrusted
from diflow.record.argo.nodes import owner_of

PODS: Final = f"{keys.OPERATOR}={keys.OPERATOR_VALUE}"
STEPS: Final = f"{keys.STEP}=true"
MOST_COPIES: Final = 8
"""Of a DIJob's Workflows, in one look at it."""
_OF_NODE: Final = (keys.ARGO_NODE_ID, keys.ARGO_NODE_NAME)
_OF_SPEC: Final = ("arguments", "suspend", "shutdown", "ttlStrategy")
_OF_POD: Final = ("phase", "reason", "message", "conditions")
_CONTAINERS: Final = ("containerStatuses", "initContainerStatuses")
_OF_CONTAINER: Final = ("name", "ready", "started", "restartCount", "state", "lastState")


@dataclass(frozen=True, slots=True)
class OwnedWorkflow:
    """A Workflow that a DIJob owns. `packed` has what its status is derived from, `link` what `chain` reads."""

    job: Key
    owner: str
    link: chain.Object
    packed: bytes = field(repr=False)

    def unpack(self) -> Json:
        """The Workflow without its templates."""
        found: Json = json.loads(zlib.decompress(self.packed))
        return found


@dataclass(frozen=True, slots=True)
class StepPod:
    """A pod of a step that waits for a DIJob. `created` is RFC 3339 text.

    One without the label of a step counts as ended: the cache would not follow it.
    """

    created: str
    has_ended: bool

    @classmethod
    def read(cls, obj: Json) -> StepPod:
        """Read a pod. One that is being deleted has ended."""
        metadata, phase = untrusted.sub(obj, "metadata"), untrusted.sub(obj, "status").get("phase")
        is_step = untrusted.sub(metadata, "labels").get(keys.STEP) == "true"
        waits = is_step and phase not in ("Succeeded", "Failed") and not metadata.get("deletionTimestamp")
        return cls(untrusted.time(metadata.get("creationTimestamp")), not waits)


class Caches:
    """The watches. `on_change` is called with the key of each job that has changed."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        namespace: str = "",
        on_change: Callable[[Key], None],
        clock: Clock = SYSTEM,
        pace: Pace = PACE,
    ) -> None:
        given: dict[str, Any] = {"clock": clock, "pace": pace, **within(namespace)}
        self._tell = on_change
        self._lock = threading.Lock()
        self._workflows: dict[Key, dict[str, OwnedWorkflow]] = {}
        self._job_of: dict[Key, Key] = {}
        self._pods: dict[Key, dict[str, Json]] = {}
        self._waiting: dict[Key, set[Key]] = {}
        self._sent: dict[Key, Json] = {}
        self.dijobs = Reflector(cluster, DIJOB, trim=lambda obj: {"read": read(obj)}, on_change=self._on_dijob, **given)
        self.workflows = Reflector(
            cluster, WORKFLOW, labels=keys.MANAGED, trim=_trim_workflow, on_change=self._on_workflow, **given
        )
        self.pods = Reflector(cluster, POD, labels=PODS, trim=_trim_pod, on_change=self._on_pod, **given)
        self.steps = Reflector(cluster, POD, labels=STEPS, trim=_trim_step, on_change=self._on_step, **given)
        self.all = Reflectors((self.dijobs, self.workflows, self.pods, self.steps))

    def dijob(self, key: Key) -> DIJobRead | None:
        """The DIJob object of a job."""
        found = self.dijobs.get(*key)
        return found["read"] if found is not None else None

    def workflow(self, key: Key, owner: str) -> Json | None:
        """The Workflow in which the job of the DIJob with the uid `owner` is now."""
        parts = self._owned(key, owner)
        current = chain.current(key[1], [part.link for part in parts.values()])
        return parts[current["metadata"]["name"]].unpack() if current is not None else None

    def copies(self, key: Key, owner: str) -> list[Json]:
        """The Workflows that the DIJob with the uid `owner` owns because `argo resubmit` has copied its own; at most
        `MOST_COPIES` of them."""
        owned = self._owned(key, owner)
        owned.pop(key[1], None)  # whatever its labels say
        copied = (part for part in owned.values() if chain.is_copy(part.link))
        return [part.unpack() for part in itertools.islice(copied, MOST_COPIES)]

    def _owned(self, key: Key, owner: str) -> dict[str, OwnedWorkflow]:
        with self._lock:
            return {name: one for name, one in self._workflows.get(key, {}).items() if one.owner == owner}

    def pods_of(self, workflow: Json) -> list[Json]:
        """The pods of a Workflow."""
        metadata = workflow["metadata"]
        with self._lock:
            found = list(self._pods.get((metadata["namespace"], metadata["name"]), {}).values())
        return [pod for pod in found if pod["owner"] == metadata["uid"]]

    def step(self, key: Key) -> StepPod | None:
        """The pod of a step, if it has the label of one."""
        found = self.steps.get(*key)
        return found["step"] if found is not None else None

    def jobs(self) -> list[Key]:
        """All jobs."""
        return list(self.dijobs.items())

    def expect_status(self, key: Key, status: Json) -> None:
        """This process is about to write this status of a job: a change to it, and of nothing else, is not reported.

        Whether the watch or the answer brings it first, it must not call for another look: a status that differs in
        each look would else defeat the pauses between them.
        """
        self._sent[key] = status

    def expect_none(self, key: Key) -> None:
        """The object is gone: the cache may have seen that before the status was expected."""
        self._sent.pop(key, None)

    def _is_own(self, key: Key, old: Json | None, new: Json | None) -> bool:
        if new is None:
            self.expect_none(key)
            return False
        if old is None or new["read"].status != self._sent.get(key):
            return False
        before: DIJobRead = old["read"]
        after: DIJobRead = new["read"]
        of_status = {name: getattr(after, name) for name in ("version", "phase", "begun", "status")}
        return replace(before, **of_status) == after

    def _on_dijob(self, _: str, key: Key, old: Json | None, new: Json | None) -> None:
        if self._is_own(key, old, new):
            return
        before, after = (found["read"].waited_by if found else "" for found in (old, new))
        if before != after:
            with self._lock:
                if before:
                    jobs = self._waiting.get((key[0], before), set())
                    jobs.discard(key)
                    if not jobs:
                        self._waiting.pop((key[0], before), None)
                if after:
                    self._waiting.setdefault((key[0], after), set()).add(key)
        self._tell(key)

    def _on_step(self, _: str, key: Key, __: Json | None, ___: Json | None) -> None:
        with self._lock:
            jobs = list(self._waiting.get(key, ()))
        for job in jobs:
            self._tell(job)

    def _on_workflow(self, _: str, key: Key, old: Json | None, new: Json | None) -> None:
        before: OwnedWorkflow | None = old["read"] if old else None
        after: OwnedWorkflow | None = new["read"] if new else None
        with self._lock:
            if before is not None:
                drop(self._workflows, before.job, key[1])
                self._job_of.pop(key, None)
            if after is not None:
                self._workflows.setdefault(after.job, {})[key[1]] = after
                self._job_of[key] = after.job
        for job in {one.job for one in (before, after) if one is not None}:
            self._tell(job)

    def _on_pod(self, _: str, key: Key, old: Json | None, new: Json | None) -> None:
        changed = set()
        with self._lock:
            if old is not None:
                drop(self._pods, (key[0], old["workflow"]), key[1])
            if new is not None:
                self._pods.setdefault((key[0], new["workflow"]), {})[key[1]] = new
            for pod in (old, new):
                job = self._job_of.get((key[0], pod["workflow"])) if pod is not None else None
                if job is not None:
                    changed.add(job)
        if new is None and old is not None and self.dijob(named := (key[0], old["workflow"])) is not None:
            changed.add(named)  # it may wait until the pods of an earlier Workflow are gone
        for job in changed:
            self._tell(job)


def _trim_workflow(obj: Json) -> Json | None:
    name, uid = dijobs.owner(obj)
    if not uid:
        return None
    metadata, spec = obj["metadata"], untrusted.sub(obj, "spec")
    kept = {
        "metadata": {name: value for name, value in metadata.items() if name != "managedFields"},
        "spec": {field: spec[field] for field in _OF_SPEC if field in spec},
        "status": untrusted.sub(obj, "status"),
    }
    packed = zlib.compress(json.dumps(kept).encode(), 1)
    return {"read": OwnedWorkflow((metadata["namespace"], name), uid, chain.link(obj), packed)}


def _trim_pod(obj: Json) -> Json:
    metadata, spec, status = obj["metadata"], untrusted.sub(obj, "spec"), untrusted.sub(obj, "status")
    annotations = untrusted.sub(metadata, "annotations")
    kept = {name: metadata[name] for name in ("name", "namespace", "uid", "creationTimestamp", "deletionTimestamp")
            if name in metadata}  # fmt: skip
    return {
        "workflow": untrusted.string(untrusted.sub(metadata, "labels").get(keys.ARGO_WORKFLOW)),
        "owner": owner_of(obj),
        "metadata": {**kept, "annotations": {name: annotations[name] for name in _OF_NODE if name in annotations}},
        "spec": {name: spec[name] for name in ("nodeName", "schedulingGates", "activeDeadlineSeconds") if name in spec},
        "status": {
            **{name: status[name] for name in _OF_POD if name in status},
            **{name: _trim_containers(status[name]) for name in _CONTAINERS if name in status},
        },
    }


def _trim_containers(given: Any) -> list[Json]:
    """The statuses of containers, without their images, mounts and resources: most of what a pod takes."""
    return [{name: one[name] for name in _OF_CONTAINER if name in one} for one in untrusted.mappings(given)]


def _trim_step(obj: Json) -> Json:
    return {"step": StepPod.read(obj)}
