"""One look at one job: what its DIJob object, its Workflow and its pods are now, and the next writes.

    no Workflow, and the job has not begun    all checks of `diflow submit`, then the Workflow
    no Workflow, and the job has begun        Failed: somebody has deleted it
    a Workflow of its name that is not its    Failed; the other one is left alone
    its Workflow                              requests of the object go into the Workflow, and its state into the status
    the step that waits for it has ended      it is stopped, or Failed if it has no Workflow yet

Everything is read again in each look, and each write names the version that it is based on. So the process may be
killed between any two of them, and two processes do not harm each other.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import structlog

from diflow import keys
from diflow.controller import modules as pods_of_modules
from diflow.controller import requests, statuses
from diflow.controller.caches import Caches, StepPod
from diflow.controller.objects import DIJobRead
from diflow.controller.settings import ControllerSettings
from diflow.controller.workqueue import Key
from diflow.durations import timestamp
from diflow.errors import (
    ConflictError,
    DiflowError,
    InvalidError,
    LostLeadershipError,
    NotFoundError,
    UnavailableError,
)
from diflow.jobs import dijobs, prerequisites, submit, v1alpha1
from diflow.jobs.dijobs import DIJOB
from diflow.kube.api import Cluster
from diflow.kube.events import event
from diflow.kube.kinds import EVENT, POD, WORKFLOW
from diflow.kube.leader_election import Elector
from diflow.state import modules, status, untrusted
from diflow.state.parameters import STOPS
from diflow.state.patches import canonical_json
from diflow.state.status import ENDED

if TYPE_CHECKING:
    from diflow.job import DIJob

Json = dict[str, Any]

_BACKOFF_SECONDS: Final = (0.5, 60.0)
# After a conflict the cache has the newer object within this time.
_CONFLICT_SECONDS: Final = (0.2, 30.0)
# A Workflow that was created is in the cache long before.
_CREATED_SECONDS: Final = 5.0
_LONGEST_SLEEP_SECONDS: Final = 3600.0
_READY_SECONDS: Final = 10.0
# A coordinator asks each second which replicas it has, and disconnects from those that it has no more. DI-engine's
# never asks again if one does not answer.
_GOODBYE_SECONDS: Final = 3.0
_MOST_READY: Final = 10_000
# Pods of one job that are taken away in one look, while all other jobs wait; and until the next look, by which the
# cache has seen these.
_MOST_ENDED_PODS: Final = 32
_MORE_PODS_SECONDS: Final = 0.2

log = structlog.get_logger("diflow.controller")


@dataclass(frozen=True, slots=True)
class Next:
    """When to look at a job again: in `again_seconds` (None: when something changes), but not within `rest_seconds`,
    whatever changes."""

    again_seconds: float | None = None
    rest_seconds: float = 0.0


class Reconciler:
    """Looks at jobs. The methods for one state of a job return after how many seconds to look at it again (None: when
    something changes).

    `clock` gives monotonic seconds, `wall` the Unix time.
    """

    def __init__(
        self,
        cluster: Cluster,
        caches: Caches,
        elector: Elector,
        settings: ControllerSettings,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._cluster = cluster.without_retries()
        self._caches, self._elector, self._settings = caches, elector, settings
        self._clock, self._wall = clock, wall
        self._failures: dict[Key, int] = {}
        self._conflicts: dict[Key, int] = {}
        self._written: dict[Key, float] = {}
        self._sent: dict[Key, tuple[str, str]] = {}
        self._unwanted: dict[Key, dict[str, float]] = {}
        self._ready: dict[tuple[str, str], tuple[float, DiflowError | None]] = {}
        self.made: dict[str, int] = {"workflow": 0, "status": 0, "request": 0, "stop": 0, "pod": 0}
        """Writes so far, by what was written."""
        self.refused: dict[Key, str] = {}
        """Why the last look at a job failed, by job."""

    def look(self, key: Key) -> Next:
        """Look at one job, and make its writes. Only LostLeadershipError is raised: other errors are this job's, which
        is tried again."""
        again: float | None
        before = self._failures.get(key, 0)
        try:
            again = self._look(key)
        except LostLeadershipError:
            raise
        except ConflictError as error:
            log.debug("changed meanwhile", job=key, why=str(error))
            again = self._conflict_seconds(key)
        except Exception as error:
            again = self._back_off(key, error)
        else:
            self._conflicts.pop(key, None)
            if self._failures.get(key, 0) == before:
                self._failures.pop(key, None)
                self.refused.pop(key, None)
        rest = self._written.get(key, -math.inf) + self._settings.status_seconds - self._clock()
        return Next(again, max(0.0, rest))

    def _look(self, key: Key) -> float | None:
        obj = self._caches.dijob(key)
        if obj is None:
            for table in (
                self._failures, self._conflicts, self._written, self._sent, self._unwanted, self.refused,
            ):  # fmt: skip
                table.pop(key, None)
            return None
        workflow = self._caches.workflow(key, obj.uid)
        if workflow is not None:
            return self._follow(key, obj, workflow)
        if obj.is_deleted:
            return None
        if obj.has_ended:
            return self._expire(obj)
        found = self._cluster.find(WORKFLOW, obj.name, namespace=obj.namespace)  # the cache may be behind
        return self._start(key, obj) if found is None else self._taken(key, obj, found)

    # --- without a Workflow -------------------------------------------------------------------------------------------

    def _start(self, key: Key, obj: DIJobRead) -> float | None:
        if self._is_abandoned(obj):
            return self._fail(key, obj, f"the step that waited for it has ended before it began (pod {obj.waited_by})")
        if obj.begun:
            why = (
                f"its Workflow {obj.name} was deleted before the end of the job was seen, and the job had begun: it is "
                "not started again"
            )
            return self._fail(key, obj, why)
        unknown: tuple[str, ...] = ()
        try:
            if obj.has_coordinator:
                job = self._with_coordinator(obj)
            else:
                job, unknown = obj.read()
            submit.submit(
                job,
                cluster=self._cluster,
                owner=dijobs.owner_reference(obj.name, obj.uid),
                before_create=self._elector.check,
                check_ready=self._check_ready,
                rendering=v1alpha1.render if obj.has_coordinator else None,
            )
        except InvalidError as error:
            return self._fail(key, obj, statuses.refusal(error))
        except NotFoundError:  # the namespace is being deleted, and the object with it
            return self._back_off_seconds(key)
        except (ConflictError, UnavailableError) as error:
            return self._wait(key, obj, error)
        self.made["workflow"] += 1
        log.info("workflow created", job=key)
        if unknown:
            self._tell(obj, "UnknownFields", statuses.unknown_fields(unknown), is_warning=True)
        return _CREATED_SECONDS

    def _with_coordinator(self, obj: DIJobRead) -> DIJob:
        """The job of an object of v1alpha1. Raises InvalidError."""
        file = self._settings.aggregator_file
        found = (
            v1alpha1.aggregator_of(self._cluster, self._settings.aggregator_config)
            if file is None
            else v1alpha1.aggregator_in(file)
        )
        return v1alpha1.job_of(obj.job, aggregator=found)

    def _check_ready(self, cluster: Cluster, *, namespace: str, priority: str) -> None:
        """As `prerequisites.check_ready`, whose five requests are half of those of a job: what was found, or
        found missing, is not read again for some seconds, for jobs that are applied together."""
        known = (namespace, priority)
        when, missing = self._ready.get(known, (-math.inf, None))
        if when + _READY_SECONDS <= self._clock():
            missing = None
            try:
                prerequisites.check_ready(cluster, namespace=namespace, priority=priority)
            except (NotFoundError, UnavailableError) as error:
                missing = error
            if len(self._ready) >= _MOST_READY:
                self._ready.clear()
            self._ready[known] = self._clock(), missing
        if missing is not None:
            raise missing

    def _taken(self, key: Key, obj: DIJobRead, found: Json) -> float | None:
        """There is a Workflow of this name, which is not in the cache as the job's own."""
        name, uid = dijobs.owner(found)
        if uid == obj.uid:
            if status.is_job(found):
                raise ConflictError("the cache does not have its Workflow yet")
            why = f"its Workflow {obj.name} has lost the label {keys.MANAGED_BY}: set it to {keys.MANAGED_BY_VALUE}"
            return self._wait(key, obj, why)
        if name == obj.name:
            return self._wait(key, obj, f"the Workflow of an earlier DIJob {obj.name} is being deleted")
        why = (
            f"there is a Workflow {obj.name} in the namespace {obj.namespace!r} that is not of this DIJob: it was left "
            "alone. Delete this DIJob, and give it another name"
        )
        return self._fail(key, obj, why)

    def _wait(self, key: Key, obj: DIJobRead, why: object) -> float:
        """The job has to wait for something that others must do; it is looked at again, less and less often."""
        self.refused[key] = str(why)
        left = self._write(key, obj, statuses.waiting(obj, str(why)))
        pause = self._back_off_seconds(key)
        return pause if left is None else min(left, pause)

    def _fail(self, key: Key, obj: DIJobRead, why: str) -> float | None:
        seconds = statuses.ttl_seconds(untrusted.sub(obj.job, "spec").get(submit.TTL))
        if seconds is None:
            seconds = submit.default_ttl(self._cluster)
        made = statuses.failed(obj, why, now=timestamp(self._wall()), ttl_seconds=seconds)
        log.info("failed", job=key, why=why)
        again = self._write(key, obj, made)
        return 0.0 if again is None and made.get("expiresAt") else again

    def _expire(self, obj: DIJobRead) -> float | None:
        """Delete an object that has ended for so long as its job says."""
        expires = untrusted.time(obj.status.get("expiresAt"))
        if not expires:
            return None
        left = untrusted.seconds(expires) - self._wall()
        if left > 0:
            return min(left, _LONGEST_SLEEP_SECONDS)
        self._elector.check()
        self._cluster.delete(DIJOB, obj.name, namespace=obj.namespace, uid=obj.uid)
        return None

    # --- with one -----------------------------------------------------------------------------------------------------

    def _follow(self, key: Key, obj: DIJobRead, workflow: Json) -> float | None:
        found = status.derive(workflow, self._caches.pods_of(workflow))
        stopping = untrusted.sub(workflow, "spec").get("shutdown") in STOPS
        if not (found.ended or obj.is_deleted or stopping) and self._is_abandoned(obj):
            workflow = self._stop(key, obj, workflow)
            found = status.derive(workflow, self._caches.pods_of(workflow))
        known = modules.read(workflow)
        if known is not None:
            return self._coordinate(key, obj, workflow, known, found)
        if obj.number("replicas") is not None and obj.number("reportedReplicas") is None:
            # Others have written the status without our record: it is repaired first, then their number counts.
            made = statuses.adopted(obj, found.replicas, requests.answered(obj, workflow))
            self._put(key, obj, made)
            return 0.0
        if not obj.is_deleted:
            todo = requests.answer(obj, workflow)
            if todo is not None:
                workflow = self._carry_out(key, obj, workflow, todo)
                found = status.derive(workflow, self._caches.pods_of(workflow))
        seconds = statuses.ttl_seconds(untrusted.sub(workflow, "spec", "ttlStrategy").get("secondsAfterCompletion"))
        made = statuses.observed(found, requests=requests.answered(obj, workflow), ttl_seconds=seconds)
        made = statuses.keep_transition(statuses.keep_result(made, obj), obj)
        again = self._write(key, obj, made)
        if again is None and made.get("expiresAt") and not obj.is_deleted:
            return self._expire(obj) if obj.has_ended else 0.0
        return again

    # --- a step of another Workflow -----------------------------------------------------------------------------------

    def _is_abandoned(self, obj: DIJobRead) -> bool:
        """Whether a step was to wait for the job, and its pod has ended: its Workflow was stopped or terminated, or the
        step has exceeded its deadline or lost its node, and may be tried again with a job of its own.

        A pod that is younger than the job is another one of this name, as after `argo retry`.
        """
        if not obj.waited_by:
            return False
        pod = self._caches.step((obj.namespace, obj.waited_by))
        if pod is None:  # gone, or the cache is behind
            found = self._cluster.find(POD, obj.waited_by, namespace=obj.namespace)
            pod = StepPod.read(found) if found is not None else None
        return pod is None or pod.has_ended or pod.created > obj.created

    def _stop(self, key: Key, obj: DIJobRead, workflow: Json) -> Json:
        """Stop the job as `diflow.jobs.suspend.stop` does, and tell the user. Returns the Workflow as it is now."""
        expected = {name: workflow["metadata"][name] for name in ("uid", "resourceVersion")}
        why = f"the step that waited for it has ended (pod {obj.waited_by})"
        patch = {
            "metadata": {**expected, "labels": {keys.INSTANCE: None}, "annotations": {keys.STOPPED_BECAUSE: why}},
            "spec": {"shutdown": "Stop", "suspend": None},
        }
        self._elector.check()
        answer = self._cluster.patch(
            WORKFLOW, workflow["metadata"]["name"], patch, namespace=obj.namespace, manager=keys.CONTROLLER
        )
        self._caches.workflows.apply_write(answer)
        self.made["stop"] += 1
        log.info("stopped", job=key, step=obj.waited_by)
        self._tell(obj, "Stopped", why)
        return answer

    def _coordinate(
        self, key: Key, obj: DIJobRead, workflow: Json, known: modules.Modules, found: status.JobStatus
    ) -> float | None:
        """Take away the pods that a v1alpha1 job does not want any more, some in each look, and write its status."""
        pods = self._caches.pods_of(workflow)
        left: float | None = None
        if not found.ended and not known.problem:
            policy = untrusted.string(untrusted.sub(obj.job, "spec").get("cleanPodPolicy")) or "Running"
            todo = pods_of_modules.todo(workflow, known, pods, policy=policy)
            if todo.patch is not None:
                self._elector.check()
                name = workflow["metadata"]["name"]
                answer = self._cluster.patch(
                    WORKFLOW, name, todo.patch, namespace=obj.namespace, manager=keys.CONTROLLER
                )
                self._caches.workflows.apply_write(answer)
                self.made["request"] += 1
            gone, left = self._after_goodbye(key, todo.delete, known)
            now = timestamp(self._wall())
            ends: list[tuple[Json, Json | None, str]] = [
                *((pod, None, "") for pod in gone),
                *((pod, pods_of_modules.stopped(), "") for pod in todo.stop),
                *((pod, pods_of_modules.failed(pod, now=now), "status") for pod in todo.fail),
            ]
            for pod, patch, subresource in ends[:_MOST_ENDED_PODS]:
                self._end_pod(pod, patch, subresource=subresource)
            if len(ends) > _MOST_ENDED_PODS:
                left = _MORE_PODS_SECONDS
        if known.problem and not found.ended:  # its pods stay: nobody knows which of them are wanted
            found = status.unknown(f"cannot be read: {known.problem}")
        seconds = statuses.ttl_seconds(untrusted.sub(workflow, "spec", "ttlStrategy").get("secondsAfterCompletion"))
        made = statuses.coordinated(found, known, requests=obj.number("scaleRequests") or 0, ttl_seconds=seconds)
        again = self._write(key, obj, made)
        if again is None and made.get("expiresAt") and not obj.is_deleted:
            return self._expire(obj) if obj.has_ended else 0.0
        return min((seconds for seconds in (again, left) if seconds is not None), default=None)

    def _after_goodbye(self, key: Key, pods: Sequence[Json], known: modules.Modules) -> tuple[list[Json], float | None]:
        """Those of the pods that can be deleted now, and after how many seconds more can be: while the coordinator
        runs, it has time to disconnect from one that runs."""
        now, before = self._clock(), self._unwanted.pop(key, {})
        gone: list[Json] = []
        waits: list[float] = []
        since: dict[str, float] = {}
        for pod in pods:
            uid = pod["metadata"]["uid"]
            since[uid] = before.get(uid, now)
            left = since[uid] + _GOODBYE_SECONDS - now
            if known.has_ended or pod["status"].get("phase") != "Running" or left <= 0:
                gone.append(pod)
            else:
                waits.append(left)
        if since:
            self._unwanted[key] = since
        return gone, min(waits, default=None)

    def _end_pod(self, pod: Json, patch: Json | None, *, subresource: str = "") -> None:
        """Delete a pod, or patch it. One that is gone is no error."""
        metadata = pod["metadata"]
        where: dict[str, Any] = {"namespace": metadata["namespace"]}
        self._elector.check()
        try:
            if patch is None:
                self._cluster.delete(POD, metadata["name"], uid=metadata["uid"], **where)
            else:
                body = {**patch, "metadata": {"uid": metadata["uid"]}}
                self._caches.pods.apply_write(
                    self._cluster.patch(
                        POD, metadata["name"], body, manager=keys.CONTROLLER, subresource=subresource, **where
                    )
                )
        except NotFoundError:
            return
        self.made["pod"] += 1

    def _carry_out(self, key: Key, obj: DIJobRead, workflow: Json, todo: requests.Answer) -> Json:
        """Write requests into the Workflow, and tell the user. Returns the Workflow as it is now."""
        name = workflow["metadata"]["name"]
        self._elector.check()
        answer = self._cluster.patch(WORKFLOW, name, todo.patch, namespace=obj.namespace, manager=keys.CONTROLLER)
        self._caches.workflows.apply_write(answer)
        self.made["request"] += 1
        for text in todo.done:
            log.info("scaled", job=key, what=text)
            self._tell(obj, "Scaled", text)
        for text in todo.refused:
            log.info("not scaled", job=key, why=text)
            self._tell(obj, "ScaleRefused", f"the request for other replicas was refused: {text}", is_warning=True)
        if todo.ignored:
            what = " and ".join(f"spec.{name}" for name in todo.ignored)
            text = f"{what} cannot change in a job that was created, and the change has no effect: {statuses.ADVICE}"
            log.info("not changed", job=key, what=what)
            self._tell(obj, "ChangeIgnored", text, is_warning=True)
        return answer

    # --- writes -------------------------------------------------------------------------------------------------------

    def _write(self, key: Key, obj: DIJobRead, made: Json) -> float | None:
        """Write the status, unless it is that already. Returns the seconds to wait if the last write was just now."""
        if obj.has_coordinator:
            made = statuses.with_old_phases(made)
        made = statuses.observing(made, obj)
        if obj.status == made or self._sent.get(key) == (obj.version, _digest(made)):
            return None
        left = self._written.get(key, -math.inf) + self._settings.status_seconds - self._clock()
        if left > 0:
            return left
        try:
            self._put(key, obj, made)
        except InvalidError as error:
            log.warning("the status is refused", job=key, why=str(error))
            self._put(key, obj, statuses.without_reports(made))
        if made["phase"] in ENDED and made["phase"] != obj.phase:
            self._tell(obj, made["reason"], made["message"], is_warning=made["phase"] == "Failed")
        return None

    def _put(self, key: Key, obj: DIJobRead, made: Json) -> None:
        body = {
            "apiVersion": keys.API_VERSION,
            "kind": keys.KIND,
            "metadata": {
                "name": obj.name, "namespace": obj.namespace, "uid": obj.uid, "resourceVersion": obj.version,
            },
            "status": made,
        }  # fmt: skip
        self._elector.check()
        self._caches.expect_status(key, made)
        try:
            answer = self._cluster.replace(
                DIJOB, obj.name, body, namespace=obj.namespace, subresource="status", manager=keys.CONTROLLER
            )
        except NotFoundError:
            return  # it was deleted meanwhile
        self._written[key] = self._clock()
        self._sent[key] = (str(answer["metadata"]["resourceVersion"]), _digest(made))
        self.made["status"] += 1
        self._caches.dijobs.apply_write(answer)

    def _tell(self, obj: DIJobRead, reason: str, message: str, *, is_warning: bool = False) -> None:
        on = {
            "apiVersion": keys.API_VERSION, "kind": keys.KIND, "uid": obj.uid,
            "namespace": obj.namespace, "name": obj.name,
        }  # fmt: skip
        body = event(
            on,
            reason=reason,
            message=message,
            is_warning=is_warning,
            component=keys.CONTROLLER,
            instance=self._elector.identity,
            salt=obj.version,
            now=timestamp(self._wall()),
        )
        try:
            self._elector.check()
            self._cluster.create(EVENT, body, namespace=obj.namespace)
        except LostLeadershipError:
            raise
        except DiflowError as error:  # a missing Event must not stop the work
            log.debug("no event", job=f"{obj.namespace}/{obj.name}", why=str(error))

    # --- errors -------------------------------------------------------------------------------------------------------

    def _back_off(self, key: Key, error: Exception) -> float:
        self.refused[key] = str(error) or type(error).__name__
        pause = self._back_off_seconds(key)
        if isinstance(error, UnavailableError) and error.retry_after_seconds:
            pause = max(pause, min(error.retry_after_seconds, _BACKOFF_SECONDS[1]))
        known = isinstance(error, DiflowError)
        log.warning(
            "refused", job=key, why=str(error), again_seconds=round(pause, 1), exc_info=None if known else error
        )
        return pause

    def _conflict_seconds(self, key: Key) -> float:
        """The cache is behind, mostly for a moment; while its watch is lost it stays so."""
        times = self._conflicts.get(key, 0)
        self._conflicts[key] = times + 1
        low, high = _CONFLICT_SECONDS
        return float(min(high, low * 2.0 ** min(times, 10)))

    def _back_off_seconds(self, key: Key) -> float:
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        low, high = _BACKOFF_SECONDS
        return float(min(high, low * 2.0 ** min(failures, 10)))


def _digest(made: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical_json(made).encode(errors="replace")).hexdigest()
