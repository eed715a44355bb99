"""The writes of the controller: the status of objects, patches of their Workflows, ends of pods, and Events.

Each write is made only while this process leads, names the version that it is based on, and goes into the caches.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import structlog

from diflow.common import keys
from diflow.common.clock import Clock
from diflow.common.durations import timestamp
from diflow.common.errors import DiflowError, InvalidError, LostLeadershipError, NotFoundError
from diflow.common.jsontext import canonical_json
from diflow.controller import statuses
from diflow.controller.caches import Caches
from diflow.controller.forms import form_of
from diflow.controller.requests import Change
from diflow.controller.workqueue import Key
from diflow.jobs.dijobs import DIJOB
from diflow.kube.api import Cluster
from diflow.kube.events import event
from diflow.kube.kinds import EVENT, POD, WORKFLOW
from diflow.kube.leader_election import Elector
from diflow.record.dijob import DIJobRecord
from diflow.record.identity import Identity
from diflow.record.status.status import ENDED

Json = dict[str, Any]

WHAT: Final = ("workflow", "status", "request", "stop", "release", "pod")
"""What is written, for the metrics."""
_WARNINGS: Final = frozenset({"ScaleRefused", "ChangeIgnored"})

log = structlog.get_logger("diflow.controller")


@dataclass(frozen=True, slots=True)
class _Written:
    """The last write of a status: when, on the clock, the version that it made, and a digest of it."""

    at: float
    version: str
    digest: str


class Writer:
    """Makes the writes. `status_seconds`: the least time between two writes of one status. For several
    threads, of which one at a time works on a job."""

    def __init__(
        self,
        cluster: Cluster,
        caches: Caches,
        elector: Elector,
        *,
        status_seconds: float,
        clock: Clock,
    ) -> None:
        self._cluster, self._caches, self._elector = cluster, caches, elector
        self._status_seconds, self._clock = status_seconds, clock
        self._written: dict[Key, _Written] = {}
        self._lock = threading.Lock()
        self.made: dict[str, int] = dict.fromkeys(WHAT, 0)
        """Writes so far, by what was written."""

    def count(self, what: str) -> None:
        """Count a write."""
        with self._lock:
            self.made[what] += 1

    def forget(self, key: Key) -> None:
        """The object is gone."""
        self._written.pop(key, None)
        self._caches.expect_none(key)

    def rest_seconds(self, key: Key) -> float:
        """Seconds until the status of this job may be written again, 0 if it may be now."""
        last = self._written.get(key)
        return max(0.0, last.at + self._status_seconds - self._clock.monotonic()) if last is not None else 0.0

    def change(self, key: Key, obj: DIJobRecord, job: Identity, change: Change) -> None:
        """Change the Workflow of a job, and tell its user."""
        self.patch_workflow(job, change.patch, what=change.kind)
        for reason, message in change.events:
            log.info("job changed", job=key, reason=reason, what=message)
            self.event(obj, reason, message, is_warning=reason in _WARNINGS)

    def status(self, key: Key, obj: DIJobRecord, made: Json) -> float | None:
        """Write the status, unless it is that already. Returns the seconds to wait if the last write was just now."""
        if (form := form_of(obj.job)) is not None:
            made = form.status(made)
        made = statuses.observing(made, obj)
        last = self._written.get(key)
        if obj.status == made or (
            last is not None and (last.version, last.digest) == (obj.identity.version, _digest(made))
        ):
            return None
        if left := self.rest_seconds(key):
            return left
        try:
            self.put_status(key, obj, made)
        except InvalidError as error:
            log.warning("the status is refused", job=key, why=str(error))
            self.put_status(key, obj, statuses.without_reports(made))
        if made["phase"] in ENDED and made["phase"] != obj.phase:
            self.event(obj, made["reason"], made["message"], is_warning=made["phase"] == "Failed")
        return None

    def put_status(self, key: Key, obj: DIJobRecord, made: Json) -> None:
        """Write the status now."""
        name, namespace = obj.identity.name, obj.identity.namespace
        body = {
            "apiVersion": keys.API_VERSION,
            "kind": keys.KIND,
            "metadata": {"name": name, "namespace": namespace, **obj.identity.this_version},
            "status": made,
        }
        self._elector.check()
        self._caches.expect_status(key, made)
        try:
            answer = self._cluster.replace(
                DIJOB, name, body, namespace=namespace, subresource="status", manager=keys.CONTROLLER
            )
        except NotFoundError:
            self._caches.expect_none(key)
            return
        self._written[key] = _Written(
            self._clock.monotonic(), str(answer["metadata"]["resourceVersion"]), _digest(made)
        )
        self.count("status")
        self._caches.dijobs.apply_write(answer)

    def patch_workflow(self, job: Identity, patch: Json, *, what: str) -> None:
        """Patch a Workflow."""
        self._elector.check()
        answer = self._cluster.patch(WORKFLOW, job.name, patch, namespace=job.namespace, manager=keys.CONTROLLER)
        self._caches.workflows.apply_write(answer)
        self.count(what)

    def end_pod(self, pod: Json, patch: Mapping[str, Any] | None, *, subresource: str = "") -> None:
        """Delete a pod, or patch it. One that is gone is no error."""
        metadata = pod["metadata"]
        name, where = metadata["name"], {"namespace": metadata["namespace"]}
        self._elector.check()
        try:
            if patch is None:
                self._cluster.delete(POD, name, uid=metadata["uid"], **where)
            else:
                body = {**patch, "metadata": {"uid": metadata["uid"]}}
                answer = self._cluster.patch(POD, name, body, manager=keys.CONTROLLER, subresource=subresource, **where)
                self._caches.pods.apply_write(answer)
        except NotFoundError:
            return
        self.count("pod")

    def event(self, obj: DIJobRecord, reason: str, message: str, *, is_warning: bool = False) -> None:
        """Create an Event on the object."""
        on = {
            "apiVersion": keys.API_VERSION, "kind": keys.KIND, "uid": obj.identity.uid,
            "namespace": obj.identity.namespace, "name": obj.identity.name,
        }  # fmt: skip
        body = event(
            on,
            reason=reason,
            message=message,
            is_warning=is_warning,
            component=keys.CONTROLLER,
            instance=self._elector.identity,
            salt=obj.identity.version,
            now=timestamp(self._clock.wall()),
        )
        try:
            self._elector.check()
            self._cluster.create(EVENT, body, namespace=obj.identity.namespace)
        except LostLeadershipError:
            raise
        except DiflowError as error:  # a missing Event must not stop the work
            log.debug("the Event was not created", job=obj.identity.key, why=str(error))


def _digest(made: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical_json(made).encode(errors="replace")).hexdigest()
