"""The watches of the controller: DIJob objects, the Workflows that they own, the pods of these, and the pods of steps
of other Workflows that wait for a DIJob; and what one look at a job reads of them.

Workflows are kept compressed, as those of a thousand jobs would take hundreds of megabytes as Python objects.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import threading
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import attrgetter
from typing import Any, Final

from diflow.common import keys
from diflow.common.clock import SYSTEM, Clock
from diflow.common.jsontext import canonical_json
from diflow.common.kept import KeptBytes
from diflow.common.memo import MIB
from diflow.controller.requests import CarriedOut
from diflow.controller.settings import ControllerSettings
from diflow.controller.statuses import ttl_seconds
from diflow.jobs.dijobs import DIJOB
from diflow.kube.api import Cluster, within
from diflow.kube.kinds import POD, WORKFLOW
from diflow.kube.reflector import PACE, Json, Key, Pace, Reflector, drop, make_room
from diflow.kube.reflectors import Reflectors
from diflow.kube.sparing import Shares
from diflow.record import chain, untrusted
from diflow.record.argo import nodes
from diflow.record.dijob import DIJobRecord, StepPod, dijob_record_of, owner_of, packed, step_pod_of, unpacked
from diflow.record.identity import Identity
from diflow.record.job import JobRecord, record_of
from diflow.record.overstay import patience_seconds
from diflow.record.pod import pod_record_of
from diflow.record.status import observe
from diflow.record.status.status import JobStatus, derive_seen

PODS: Final = f"{keys.OPERATOR}={keys.OPERATOR_VALUE}"
STEPS: Final = f"{keys.STEP}=true"
_BURST_SECONDS: Final = 0.5
"""Of a processor, that the changes of one namespace may cost at once."""
MOST_COPIES: Final = 8
"""Of a DIJob's Workflows, in one look at it."""


@dataclass(frozen=True)
class Seen:
    """What one look has read of a job that has a Workflow: its object, the Workflow without its templates, and the pods
    of that."""

    obj: DIJobRecord
    workflow: Json
    pods: tuple[Json, ...]

    @cached_property
    def job(self) -> JobRecord:
        """The record of the Workflow."""
        return record_of(self.workflow)

    @cached_property
    def status(self) -> JobStatus:
        """The status of the job, from the Workflow and the pods."""
        return derive_seen(observe.observe_state(self.job, self.workflow, self.pods))

    @cached_property
    def carried_out(self) -> CarriedOut:
        """The requests of the object that were carried out already."""
        return CarriedOut.read(self.job, self.workflow)

    @property
    def ttl_seconds(self) -> int | None:
        """How long the job is kept after its end, as its Workflow has it."""
        return ttl_seconds(untrusted.sub(self.workflow, "spec", "ttlStrategy").get("secondsAfterCompletion"))


@dataclass(frozen=True, slots=True)
class OwnedWorkflow:
    """A Workflow that a DIJob owns. `packed` has what its status is derived from. `is_copy`: as `chain` has it."""

    job: Key
    owner: str
    part: chain.Part
    is_copy: bool
    packed: bytes = field(repr=False)
    held: str = ""
    """Why it is not kept, "" if it is."""

    def unpack(self) -> Json:
        """The Workflow without its templates."""
        found: Json = json.loads(zlib.decompress(self.packed))
        return found


@dataclass(frozen=True, slots=True)
class KeptDIJob:
    """A DIJob object as it is kept. `status` and `rest`: digests of its status and of all else but its version. `held`:
    why it is not kept, "" if it is."""

    uid: str
    waited_by: str
    status: bytes
    rest: bytes
    packed: bytes = field(repr=False)
    held: str = ""


class Caches:
    """The watches. `on_change` is called with the key of each job that has changed."""

    def __init__(
        self,
        cluster: Cluster,
        settings: ControllerSettings,
        *,
        on_change: Callable[[Key], None],
        clock: Clock = SYSTEM,
        pace: Pace = PACE,
    ) -> None:
        shares = Shares(share=settings.reading_share, burst=_BURST_SECONDS)
        given: dict[str, Any] = {"clock": clock, "pace": pace, "shares": shares, **within(settings.watched_namespace)}
        self._most_mib = settings.kept_mib
        # Of DIJob objects and of Workflows.
        self._kept = KeptBytes(settings.kept_mib * MIB), KeptBytes(settings.kept_mib * MIB)
        self._tell = on_change
        self._lock = threading.Lock()
        self._workflows: dict[Key, dict[str, OwnedWorkflow]] = {}
        self._job_of: dict[Key, Key] = {}
        self._pods: dict[Key, dict[str, Json]] = {}
        self._waiting: dict[Key, set[Key]] = {}
        self._sent: dict[Key, bytes] = {}
        forget = [kept.forget for kept in self._kept]
        self.dijobs = Reflector(
            cluster, DIJOB, trim=self._trim_dijob, on_change=self._on_dijob, on_gone=forget[0], **given
        )
        self.workflows = Reflector(
            cluster,
            WORKFLOW,
            labels=keys.MANAGED,
            trim=self._trim_workflow,
            on_change=self._on_workflow,
            on_gone=forget[1],
            **given,
        )
        self.pods = Reflector(cluster, POD, labels=PODS, trim=_trim_pod, on_change=self._on_pod, **given)
        self.steps = Reflector(cluster, POD, labels=STEPS, trim=_trim_step, on_change=self._on_step, **given)
        self.all = Reflectors((self.dijobs, self.workflows, self.pods, self.steps))

    def dijob(self, key: Key) -> DIJobRecord | None:
        """The DIJob object of a job."""
        found = self.dijobs.get(*key)
        return unpacked(found["read"].packed) if found is not None and not found["read"].held else None

    def held(self, key: Key) -> DIJobRecord | None:
        """What is known of a DIJob object that is not looked at, as there is no room for it or for its Workflow: its
        `problem` says so. None of one that is looked at."""
        found = self.dijobs.get(*key)
        if found is None:
            return None
        kept: KeptDIJob = found["read"]
        with self._lock:
            parts = self._workflows.get(key, {}).values()
            why = kept.held or next((one.held for one in parts if one.held and one.owner == kept.uid), "")
        return DIJobRecord(Identity(*key, kept.uid, ""), problem=why) if why else None

    def full(self) -> dict[str, int]:
        """How many objects of each namespace are held."""
        return dict(sum((Counter(kept.full()) for kept in self._kept), Counter()))

    def seen(self, obj: DIJobRecord) -> Seen | None:
        """The Workflow in which the job of an object is now, with its pods; None if there is none."""
        parts = self._owned(obj)
        current = chain.current(obj.identity.name, parts.values(), part=attrgetter("part"))
        if current is None:
            return None
        _, name, uid, *_ = current.part
        with self._lock:
            pods = list(self._pods.get((obj.identity.namespace, name), {}).values())
        return Seen(obj, current.unpack(), tuple(pod for pod in pods if pod["owner"] == uid))

    def copies(self, obj: DIJobRecord) -> list[Json]:
        """The Workflows that the object owns because `argo resubmit` has copied its own; at most `MOST_COPIES` of
        them."""
        owned = self._owned(obj)
        owned.pop(obj.identity.name, None)  # whatever its labels say
        copied = (part for part in owned.values() if part.is_copy)
        return [part.unpack() for part in itertools.islice(copied, MOST_COPIES)]

    def _owned(self, obj: DIJobRecord) -> dict[str, OwnedWorkflow]:
        with self._lock:
            return {
                name: one for name, one in self._workflows.get(obj.key, {}).items() if one.owner == obj.identity.uid
            }

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
        self._sent[key] = _digest(status)

    def expect_none(self, key: Key) -> None:
        """The object is gone: the cache may have seen that before the status was expected."""
        self._sent.pop(key, None)

    def _is_own(self, key: Key, old: Json | None, new: Json | None) -> bool:
        if new is None:
            self.expect_none(key)
            return False
        if old is None or new["read"].status != self._sent.get(key):
            return False
        before: KeptDIJob = old["read"]
        after: KeptDIJob = new["read"]
        return (before.uid, before.rest, before.held) == (after.uid, after.rest, after.held)

    def _trim_dijob(self, obj: Json) -> Json:
        record = dijob_record_of(obj)
        identity = record.identity
        rest = replace(record, identity=replace(identity, version=""), begun=False, status={})
        found = KeptDIJob(identity.uid, record.waited_by, _digest(record.status), _sum(packed(rest)), packed(record))
        if not self._kept[0].admits(record.key, found):
            found = replace(found, packed=b"", held=self._full("DIJob objects", identity.namespace))
        return {"read": found}

    def _trim_workflow(self, obj: Json) -> Json | None:
        name, uid = owner_of(obj)
        if not uid:
            return None
        namespace = obj["metadata"]["namespace"]
        compressed = zlib.compress(json.dumps(observe.of_workflow(obj)).encode(), 1)
        found = OwnedWorkflow((namespace, name), uid, chain.part_of(obj), chain.is_copy(obj), compressed)
        if not self._kept[1].admits((namespace, obj["metadata"]["name"]), found):
            found = replace(found, packed=b"", held=self._full("Workflows", namespace))
        return {"read": found}

    def _full(self, what: str, namespace: str) -> str:
        return (
            f"the {what} of namespace {namespace} fill the {self._most_mib} MiB of memory that the controller keeps "
            "for one namespace: this one is held until others of them are deleted or smaller"
        )

    def _on_dijob(self, _: str, key: Key, old: Json | None, new: Json | None) -> None:
        make_room(self._kept[0], self.dijobs, key, new)
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
        make_room(self._kept[1], self.workflows, key, new)
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
        if new is None and old is not None and self.dijobs.get(*(named := (key[0], old["workflow"]))) is not None:
            changed.add(named)  # it may wait until the pods of an earlier Workflow are gone
        for job in changed:
            self._tell(job)


def _digest(value: Json) -> bytes:
    return _sum(canonical_json(value).encode(errors="replace"))


def _sum(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


def _trim_pod(obj: Json) -> Json:
    record = pod_record_of(obj)
    return {
        "workflow": nodes.workflow_of(obj),
        "owner": nodes.owner_of(obj),
        # Only the kubelet of its node stops a pod.
        "patience_seconds": patience_seconds(record) if record.goes_on and record.host else None,
        **observe.of_pod(obj),
    }


def _trim_step(obj: Json) -> Json:
    return {"step": step_pod_of(obj)}
