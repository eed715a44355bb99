"""Reconciles one DIJob: compares its object, its Workflow and its pods, and makes the next writes.

    no Workflow, and the job has not begun    all checks of `diflow submit`, then the Workflow
    no Workflow, and the job has begun        Failed: somebody has deleted it
    a Workflow of its name that is not its    Failed; the other one is left alone
    its Workflow                              requests of the object go into the Workflow, and its state into the status
    a copy of its Workflow (`argo resubmit`)  the object gives it up: it is a job of its own
    the step that waits for it has ended      it is stopped, or Failed if it has no Workflow yet

Everything is read again in each look, and each write names the version that it is based on. So the process may be
killed between any two of them, and two processes do not harm each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import structlog

from diflow.common import keys
from diflow.common.clock import Clock
from diflow.common.durations import backoff, timestamp
from diflow.common.errors import (
    ConflictError,
    DiflowError,
    InvalidError,
    LostLeadershipError,
    NotFoundError,
    UnauthorizedError,
    UnavailableError,
)
from diflow.controller import requests, statuses
from diflow.controller.caches import Caches, StepPod
from diflow.controller.coordinated import Coordinated
from diflow.controller.objects import DIJobRead
from diflow.controller.prerequisites import Prerequisites
from diflow.controller.settings import ControllerSettings
from diflow.controller.workqueue import Key
from diflow.controller.writes import Writer
from diflow.jobs import dijobs, earlier_pods, submit, v1alpha1
from diflow.jobs.dijobs import DIJOB
from diflow.kube.api import Cluster
from diflow.kube.kinds import POD, WORKFLOW
from diflow.kube.leader_election import Elector
from diflow.record import modules, patches, untrusted
from diflow.record.job import JobRecord, record_of
from diflow.record.status.observe import observe_state
from diflow.record.status.status import derive_seen, is_job, unknown

if TYPE_CHECKING:
    from diflow.dijob.model import DIJob

Json = dict[str, Any]

_BACKOFF_SECONDS: Final = (0.5, 60.0)
# After a conflict the cache has the newer object within this time.
_CONFLICT_SECONDS: Final = (0.2, 30.0)
# A Workflow that was created is in the cache long before.
_CREATED_SECONDS: Final = 5.0
_LONGEST_SLEEP_SECONDS: Final = 3600.0

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
    """

    def __init__(
        self,
        cluster: Cluster,
        caches: Caches,
        elector: Elector,
        settings: ControllerSettings,
        *,
        clock: Clock,
    ) -> None:
        self._cluster = cluster.without_retries()
        self._caches, self._elector, self._settings, self._clock = caches, elector, settings, clock
        self._writer = Writer(self._cluster, caches, elector, status_seconds=settings.status_seconds, clock=clock)
        self._prerequisites = Prerequisites(clock)
        self._coordinated = Coordinated(self._writer, clock=clock)
        self._failures: dict[Key, int] = {}
        self._conflicts: dict[Key, int] = {}
        self._kept: dict[Key, set[str]] = {}
        self.refused: dict[Key, str] = {}
        """Why the last look at a job failed, by job."""

    @property
    def made(self) -> dict[str, int]:
        """Writes so far, by what was written."""
        return self._writer.made

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
            log.debug("the object has changed", job=key, why=str(error))
            again = self._conflict_seconds(key)
        except Exception as error:
            again = self._back_off(key, error)
        else:
            self._conflicts.pop(key, None)
            if self._failures.get(key, 0) == before:
                self._failures.pop(key, None)
                self.refused.pop(key, None)
        return Next(again, self._writer.rest_seconds(key))

    def _look(self, key: Key) -> float | None:
        obj = self._caches.dijob(key)
        if obj is None:
            self._forget(key)
            return None
        self._release(key, obj)
        workflow = self._caches.workflow(key, obj.uid)
        if workflow is not None:
            return self._follow(key, obj, workflow)
        if obj.is_deleted:
            return None
        if obj.has_ended:
            return self._expire(obj)
        found = self._cluster.find(WORKFLOW, obj.name, namespace=obj.namespace)  # the cache may be behind
        return self._start(key, obj) if found is None else self._taken(key, obj, found)

    def _forget(self, key: Key) -> None:
        for table in (self._failures, self._conflicts, self._kept, self.refused):
            table.pop(key, None)
        for keeper in (self._writer, self._coordinated):
            keeper.forget(key)

    def _release(self, key: Key, obj: DIJobRead) -> None:
        """Take the owner reference to the object out of the copies of its Workflow. What fails with one of them is no
        trouble of the job."""
        for copy in self._caches.copies(key, obj.uid):
            metadata = copy["metadata"]
            if metadata["uid"] in self._kept.get(key, ()) or metadata.get("deletionTimestamp"):
                continue
            left = [one for one in untrusted.mappings(metadata.get("ownerReferences")) if one.get("uid") != obj.uid]
            expected = {name: metadata[name] for name in ("uid", "resourceVersion")}
            patch = {"metadata": {**expected, "ownerReferences": left or None}}
            try:
                self._writer.patch_workflow(copy, patch, what="release")
            except LostLeadershipError:
                raise
            except (ConflictError, NotFoundError) as error:  # the next change of it calls for a look
                log.debug("the copy has changed", job=key, workflow=metadata["name"], why=str(error))
            except DiflowError as error:
                log.warning("the copy stays the object's", job=key, workflow=metadata["name"], why=str(error))
                if isinstance(error, InvalidError | UnauthorizedError):
                    self._kept.setdefault(key, set()).add(metadata["uid"])
            else:
                log.info("copy released", job=key, workflow=metadata["name"])

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
                check_ready=self._prerequisites.check,
                check_pods=earlier_pods.check,
                rendering=v1alpha1.render if obj.has_coordinator else None,
            )
        except InvalidError as error:
            return self._fail(key, obj, statuses.refusal(error))
        except NotFoundError:  # the namespace is being deleted, and the object with it
            return self._back_off_seconds(key)
        except (ConflictError, UnavailableError) as error:
            return self._wait(key, obj, error)
        self._writer.count("workflow")
        log.info("workflow created", job=key)
        if unknown:
            self._writer.event(obj, "UnknownFields", statuses.unknown_fields(unknown), is_warning=True)
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

    def _taken(self, key: Key, obj: DIJobRead, found: Json) -> float | None:
        """There is a Workflow of this name, which is not in the cache as the job's own."""
        name, uid = dijobs.owner(found)
        if uid == obj.uid:
            if is_job(found):
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
        left = self._writer.status(key, obj, statuses.waiting(obj, str(why)))
        pause = self._back_off_seconds(key)
        return pause if left is None else min(left, pause)

    def _fail(self, key: Key, obj: DIJobRead, why: str) -> float | None:
        seconds = statuses.ttl_seconds(untrusted.sub(obj.job, "spec").get(submit.TTL))
        if seconds is None:
            seconds = submit.default_ttl(self._cluster)
        made = statuses.failed(obj, why, now=timestamp(self._clock.wall()), ttl_seconds=seconds)
        log.info("job failed", job=key, why=why)
        again = self._writer.status(key, obj, made)
        return 0.0 if again is None and made.get("expiresAt") else again

    def _expire(self, obj: DIJobRead) -> float | None:
        """Delete an object that has ended for so long as its job says."""
        expires = untrusted.time(obj.status.get("expiresAt"))
        if not expires:
            return None
        left = untrusted.seconds(expires) - self._clock.wall()
        if left > 0:
            return min(left, _LONGEST_SLEEP_SECONDS)
        self._elector.check()
        self._cluster.delete(DIJOB, obj.name, namespace=obj.namespace, uid=obj.uid)
        return None

    # --- with one -----------------------------------------------------------------------------------------------------

    def _follow(self, key: Key, obj: DIJobRead, workflow: Json) -> float | None:
        job = record_of(workflow)
        if not (job.has_ended or job.is_stopping) and (why := self._reason_to_stop(obj, job)):
            workflow = self._stop(key, obj, workflow, why)
            job = record_of(workflow)
        known = modules.read(workflow)
        if known is not None:
            return self._coordinate(key, obj, workflow, job, known)
        if obj.number("replicas") is not None and obj.number("reportedReplicas") is None:
            # Others have written the status without our record: it is repaired first, then their number counts.
            made = statuses.adopted(obj, sum(job.running.values()), requests.answered(obj, job, workflow))
            self._writer.put_status(key, obj, made)
            return 0.0
        if not obj.is_deleted:
            todo = requests.answer(obj, job, workflow)
            if todo is not None:
                workflow = self._carry_out(key, obj, workflow, todo)
                job = record_of(workflow)
        found = derive_seen(workflow, observe_state(job, workflow, self._caches.pods_of(workflow)))
        answered = requests.answered(obj, job, workflow)
        made = statuses.observed(found, requests=answered, ttl_seconds=_ttl_seconds(workflow))
        made = statuses.keep_transition(statuses.keep_result(made, obj), obj)
        return self._write(key, obj, made)

    def _coordinate(
        self, key: Key, obj: DIJobRead, workflow: Json, job: JobRecord, known: modules.Modules
    ) -> float | None:
        """Take away the pods that a v1alpha1 job does not want any more, and write its status."""
        pods = self._caches.pods_of(workflow)
        found = derive_seen(workflow, observe_state(job, workflow, pods))
        left: float | None = None
        if not found.ended and not known.problem:
            left = self._coordinated.clean(key, obj, workflow, known, pods)
        if known.problem and not found.ended:  # its pods stay: nobody knows which of them are wanted
            found = unknown(f"cannot be read: {known.problem}")
        requested = obj.number("scaleRequests") or 0
        made = statuses.coordinated(found, known, requests=requested, ttl_seconds=_ttl_seconds(workflow))
        again = self._write(key, obj, made)
        return min((seconds for seconds in (again, left) if seconds is not None), default=None)

    def _write(self, key: Key, obj: DIJobRead, made: Json) -> float | None:
        """Write the status of a job with a Workflow; delete the object when its time is over."""
        again = self._writer.status(key, obj, made)
        if again is None and made.get("expiresAt") and not obj.is_deleted:
            return self._expire(obj) if obj.has_ended else 0.0
        return again

    def _carry_out(self, key: Key, obj: DIJobRead, workflow: Json, todo: requests.Answer) -> Json:
        """Write requests into the Workflow, and report it to the user. Returns the Workflow as it is now."""
        answer = self._writer.patch_workflow(workflow, todo.patch, what="request")
        for text in todo.done:
            log.info("job scaled", job=key, what=text)
            self._writer.event(obj, "Scaled", text)
        for text in todo.refused:
            log.info("job not scaled", job=key, why=text)
            why = f"the request for other replicas was refused: {text}"
            self._writer.event(obj, "ScaleRefused", why, is_warning=True)
        if todo.ignored:
            what = " and ".join(f"spec.{name}" for name in todo.ignored)
            text = f"{what} cannot change in a job that was created, and the change has no effect: {statuses.ADVICE}"
            log.info("job not changed", job=key, what=what)
            self._writer.event(obj, "ChangeIgnored", text, is_warning=True)
        return answer

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

    def _reason_to_stop(self, obj: DIJobRead, job: JobRecord) -> str:
        """Why the job's Workflow must be stopped; "" if it must not."""
        # The pods are deleted before the Workflow, and Argo would replace each of them.
        if obj.is_deleted_in_foreground:
            return "its DIJob is being deleted"
        if job.argo.is_being_deleted:
            return "its Workflow is being deleted"
        if obj.is_deleted or not self._is_abandoned(obj):
            return ""
        return f"the step that waited for it has ended (pod {obj.waited_by})"

    def _stop(self, key: Key, obj: DIJobRead, workflow: Json, why: str) -> Json:
        """Stop the job, and report it. Returns the Workflow as it is now."""
        # With its DIJob, it changes at once and with each pod that ends, and the stop must not wait for the last one.
        known = ("uid",) if obj.is_deleted_in_foreground else ("uid", "resourceVersion")
        expected = {name: workflow["metadata"][name] for name in known}
        patch = patches.stop()
        patch["metadata"] |= {**expected, "annotations": {keys.STOPPED_BECAUSE: why}}
        answer = self._writer.patch_workflow(workflow, patch, what="stop")
        log.info("job stopped", job=key, why=why)
        self._writer.event(obj, "Stopped", why)
        return answer

    # --- errors -------------------------------------------------------------------------------------------------------

    def _back_off(self, key: Key, error: Exception) -> float:
        self.refused[key] = str(error) or type(error).__name__
        pause = self._back_off_seconds(key, error)
        known = isinstance(error, DiflowError)
        log.warning(
            "refused", job=key, why=str(error), again_seconds=round(pause, 1), exc_info=None if known else error
        )
        return pause

    def _conflict_seconds(self, key: Key) -> float:
        """The cache is behind, mostly for a moment; while its watch is lost it stays so."""
        times = self._conflicts.get(key, 0)
        self._conflicts[key] = times + 1
        return backoff(_CONFLICT_SECONDS, times)

    def _back_off_seconds(self, key: Key, error: Exception | None = None) -> float:
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        return backoff(_BACKOFF_SECONDS, failures, error)


def _ttl_seconds(workflow: Json) -> int | None:
    """How long the job is kept after its end, as its Workflow has it."""
    return statuses.ttl_seconds(untrusted.sub(workflow, "spec", "ttlStrategy").get("secondsAfterCompletion"))
