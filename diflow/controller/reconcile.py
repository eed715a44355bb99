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

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

import structlog

from diflow.common import contribs, keys
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
from diflow.controller.caches import Caches, Seen
from diflow.controller.forms import Form, form_of
from diflow.controller.settings import ControllerSettings
from diflow.controller.workqueue import Key
from diflow.controller.writes import Writer
from diflow.dijob.model import DIJob
from diflow.dijob.rules.fields import without_effect
from diflow.jobs import dijobs, earlier_pods, submit
from diflow.jobs.checks import templates
from diflow.jobs.checks.prerequisites import Prerequisites
from diflow.jobs.dijobs import DIJOB
from diflow.kube.api import Cluster
from diflow.kube.kinds import POD, WORKFLOW
from diflow.kube.leader_election import Elector
from diflow.record import overstay, untrusted
from diflow.record.dijob import DIJobRecord, disowned, owner_of, owner_reference, step_pod_of
from diflow.record.identity import Identity
from diflow.record.status.status import is_job

Json = dict[str, Any]

_BACKOFF_SECONDS: Final = (0.5, 60.0)
# After a conflict the cache has the newer object within this time.
_CONFLICT_SECONDS: Final = (0.2, 30.0)
# A Workflow that was created is in the cache long before.
_CREATED_SECONDS: Final = 5.0
_LONGEST_SLEEP_SECONDS: Final = 3600.0
# Pods of one job that are stopped in one look, while all other jobs wait; and until the next look.
_MOST_LATE_PODS: Final = 32
_MORE_PODS_SECONDS: Final = 0.2
_MOST_TOLD: Final = 3

log = structlog.get_logger("diflow.controller")


@dataclass(frozen=True, slots=True)
class Next:
    """When to look at a job again: in `again_seconds` (None: when something changes), but not within `rest_seconds`,
    whatever changes."""

    again_seconds: float | None = None
    rest_seconds: float = 0.0


class Looks(Protocol):
    """Looks at the jobs of another form that have a Workflow."""

    def has(self, workflow: Json) -> bool:
        """Whether this is the Workflow of such a job."""
        ...

    def look(self, key: Key, seen: Seen) -> tuple[Json, float | None]:
        """Make the next writes but that of the status. Returns the status, and after how many seconds to look again
        (None: when something changes)."""
        ...

    def forget(self, key: Key) -> None:
        """The object is gone."""
        ...


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
        others: tuple[Callable[[Writer, Clock], Looks], ...] = contribs.found("controller.looks")
        self._others = [made(self._writer, clock) for made in others]
        self._failures: dict[Key, int] = {}
        self._conflicts: dict[Key, int] = {}
        self._kept: dict[Key, set[str]] = {}
        self._accepted: dict[Key, set[bytes]] = {}
        """What the API server has accepted of each job that waits, by dry runs."""
        self._unasked = ""
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
        held = self._caches.held(key)
        if held is not None:
            self._hold(key, held)
            return None
        obj = self._caches.dijob(key)
        if obj is None:
            self._forget(key)
            return None
        self._release(key, obj)
        seen = self._caches.seen(obj)
        if seen is not None:
            return self._follow(key, seen)
        if obj.is_deleted:
            return None
        if obj.has_ended:
            return self._expire(obj)
        found = self._cluster.find(WORKFLOW, key[1], namespace=key[0])  # the cache may be behind
        return self._start(key, obj) if found is None else self._taken(key, obj, found)

    def _hold(self, key: Key, held: DIJobRecord) -> None:
        """Say once that nothing is done for a job now, as its namespace has no room for it."""
        if self.refused.get(key) != held.problem:
            self.refused[key] = held.problem
            log.warning("job held", job=key, why=held.problem)
            self._writer.event(held, "Refused", held.problem, is_warning=True)

    def _forget(self, key: Key) -> None:
        for table in (self._failures, self._conflicts, self._kept, self._accepted, self.refused):
            table.pop(key, None)
        self._writer.forget(key)
        for other in self._others:
            other.forget(key)

    def _release(self, key: Key, obj: DIJobRecord) -> None:
        """Take the owner reference to the object out of the copies of its Workflow. What fails with one of them is no
        trouble of the job."""
        for copy in self._caches.copies(obj):
            its = Identity.of(copy)
            if its.uid in self._kept.get(key, ()) or untrusted.sub(copy, "metadata").get("deletionTimestamp"):
                continue
            try:
                self._writer.patch_workflow(its, disowned(copy, obj.identity.uid), what="release")
            except LostLeadershipError:
                raise
            except (ConflictError, NotFoundError) as error:  # the next change of it calls for a look
                log.debug("the copy has changed", job=key, workflow=its.name, why=str(error))
            except DiflowError as error:
                log.warning("the copy stays the object's", job=key, workflow=its.name, why=str(error))
                if isinstance(error, InvalidError | UnauthorizedError):
                    self._kept.setdefault(key, set()).add(its.uid)
            else:
                log.info("copy released", job=key, workflow=its.name)

    # --- without a Workflow -------------------------------------------------------------------------------------------

    def _start(self, key: Key, obj: DIJobRecord) -> float | None:
        if self._is_abandoned(obj):
            return self._fail(key, obj, f"the step that waited for it has ended before it began (pod {obj.waited_by})")
        if obj.begun:
            why = (
                f"its Workflow {key[1]} was deleted before the end of the job was seen, and the job had begun: it is "
                "not started again"
            )
            return self._fail(key, obj, why)
        ineffective: tuple[tuple[str, str], ...] = ()
        try:
            form = form_of(obj.job)
            if form is not None:
                job = form.job_of(obj.job, self._cluster)
            else:
                job, unknown = dijobs.read(obj)
                if unknown:
                    raise InvalidError(statuses.unknown_fields(unknown))
                ineffective = tuple(without_effect(task.template for task in job.tasks))
            submit.submit(
                job,
                cluster=self._cluster,
                owner=owner_reference(obj.identity),
                before_create=self._elector.check,
                checks=submit.Checks(
                    queue=_waits_for_its_queue,
                    ready=self._prerequisites.check,
                    templates=partial(self._check_templates, form=form),
                    pods=earlier_pods.check,
                    accepted=self._accepted.setdefault(key, set()),
                ),
                rendering=form.render if form is not None else None,
            )
        except InvalidError as error:
            return self._fail(key, obj, statuses.refusal(error))
        except NotFoundError:  # the namespace is being deleted, and the object with it
            return self._back_off_seconds(key)
        except (ConflictError, UnavailableError) as error:
            return self._wait(key, obj, error)
        self._accepted.pop(key, None)
        self._writer.count("workflow")
        log.info("workflow created", job=key)
        for path, text in ineffective[:_MOST_TOLD]:
            self._writer.event(obj, "NoEffect", f"{path} {text}", is_warning=True)
        return _CREATED_SECONDS

    def _check_templates(self, cluster: Cluster, job: DIJob, *, namespace: str, form: Form | None) -> None:
        try:
            templates.check(cluster, job, namespace=namespace, tell=self._tell)
        except InvalidError as error:
            raise InvalidError(error.message, path=form.path(error.path, job)) if form is not None else error from None

    def _tell(self, why: str) -> None:
        """Log, once, why pod templates are not checked by the API server."""
        if why != self._unasked:
            self._unasked = why
            log.warning("pod templates are not checked by the API server", why=why)

    def _taken(self, key: Key, obj: DIJobRecord, found: Json) -> float | None:
        """There is a Workflow of this name, which is not in the cache as the job's own."""
        namespace, own = key
        name, uid = owner_of(found)
        if uid == obj.identity.uid:
            if is_job(found):
                raise ConflictError("the cache does not have its Workflow yet")
            why = f"its Workflow {own} has lost the label {keys.MANAGED_BY}: set it to {keys.MANAGED_BY_VALUE}"
            return self._wait(key, obj, why)
        if name == own:
            return self._wait(key, obj, f"the Workflow of an earlier DIJob {own} is being deleted")
        why = (
            f"there is a Workflow {own} in the namespace {namespace!r} that is not of this DIJob: it was left alone. "
            "Delete this DIJob, and give it another name"
        )
        return self._fail(key, obj, why)

    def _wait(self, key: Key, obj: DIJobRecord, why: object) -> float:
        """The job has to wait for something that others must do; it is looked at again, less and less often."""
        self.refused[key] = str(why)
        left = self._writer.status(key, obj, statuses.waiting(obj, str(why)))
        pause = self._back_off_seconds(key)
        return pause if left is None else min(left, pause)

    def _fail(self, key: Key, obj: DIJobRecord, why: str) -> float | None:
        seconds = statuses.ttl_seconds(obj.fields.get(submit.TTL))
        if seconds is None:
            seconds = submit.default_ttl(self._cluster)
        made = statuses.failed(obj, why, now=timestamp(self._clock.wall()), ttl_seconds=seconds)
        log.info("job failed", job=key, why=why)
        again = self._writer.status(key, obj, made)
        return 0.0 if again is None and made.get("expiresAt") else again

    def _expire(self, obj: DIJobRecord) -> float | None:
        """Delete an object that has ended for so long as its job says."""
        expires = untrusted.time(obj.status.get("expiresAt"))
        if not expires:
            return None
        left = untrusted.seconds(expires) - self._clock.wall()
        if left > 0:
            return min(left, _LONGEST_SLEEP_SECONDS)
        self._elector.check()
        self._cluster.delete(DIJOB, obj.identity.name, namespace=obj.identity.namespace, uid=obj.identity.uid)
        return None

    # --- with one -----------------------------------------------------------------------------------------------------

    def _follow(self, key: Key, seen: Seen) -> float | None:
        other = next((other for other in self._others if other.has(seen.workflow)), None)
        change = self._change_of(seen, may_answer=other is None)
        if change is not None:
            self._writer.change(key, seen.obj, seen.job.identity, change)
            now = self._caches.seen(seen.obj)  # with the answer to the write
            if now is None:
                return 0.0
            seen = now
        return self._report(key, seen, other)

    def _change_of(self, seen: Seen, *, may_answer: bool) -> requests.Change | None:
        """What is to be changed in the Workflow; None if nothing is. `may_answer`: requests of the object, too."""
        obj, job = seen.obj, seen.job
        if not (job.has_ended or job.is_stopping) and (why := self._reason_to_stop(seen)):
            return requests.stop(obj, job, why)
        if obj.is_deleted or not may_answer or statuses.is_foreign(obj):
            return None
        return requests.answer(obj, job, seen.carried_out, now=self._clock.wall())

    def _report(self, key: Key, seen: Seen, other: Looks | None) -> float | None:
        """Write the status of the job as it was seen. `other`: what looks at a job of another form."""
        obj, left = seen.obj, None
        if other is not None:
            made, left = other.look(key, seen)
        else:
            answered = requests.answered(obj, seen.carried_out)
            if statuses.is_foreign(obj):
                self._writer.put_status(key, obj, statuses.adopted(obj, sum(seen.job.running.values()), answered))
                return 0.0
            made = statuses.observed(seen.status, requests=answered, ttl_seconds=seen.ttl_seconds)
            made = statuses.keep_transition(statuses.keep_result(made, obj), obj)
        again = self._writer.status(key, obj, made)
        if again is None and made.get("expiresAt") and not obj.is_deleted:
            again = self._expire(obj) if obj.has_ended else 0.0  # its time is over
        each = (again, left, self._stop_late(key, seen))
        return min((seconds for seconds in each if seconds is not None), default=None)

    def _stop_late(self, key: Key, seen: Seen) -> float | None:
        """Have the kubelets stop the pods that go on after the job has ended, when their grace period is over. Returns
        after how many seconds there is more to do."""
        if not seen.job.has_ended:
            return None
        since = self._clock.wall() - untrusted.seconds(untrusted.sub(seen.workflow, "status").get("finishedAt"))
        going = [(pod["patience_seconds"] - since, pod) for pod in seen.pods if pod["patience_seconds"] is not None]
        late = [pod for left, pod in going if left <= 0]
        for pod in late[:_MOST_LATE_PODS]:
            log.info("pod stopped", job=key, pod=pod["metadata"]["name"], why="its grace period is over")
            self._writer.end_pod(pod, overstay.STOP_NOW)
        later = [left for left, _ in going if left > 0]
        return _MORE_PODS_SECONDS if len(late) > _MOST_LATE_PODS else min(later, default=None)

    # --- a step of another Workflow -----------------------------------------------------------------------------------

    def _is_abandoned(self, obj: DIJobRecord) -> bool:
        """Whether a step was to wait for the job, and its pod has ended: its Workflow was stopped or terminated, or the
        step has exceeded its deadline or lost its node, and may be tried again with a job of its own.

        A pod that is younger than the job is another one of this name, as after `argo retry`.
        """
        if not obj.waited_by:
            return False
        namespace = obj.identity.namespace
        pod = self._caches.step((namespace, obj.waited_by))
        if pod is None:  # gone, or the cache is behind
            found = self._cluster.find(POD, obj.waited_by, namespace=namespace)
            pod = step_pod_of(found) if found is not None else None
        return pod is None or pod.has_ended or pod.created > obj.created

    def _reason_to_stop(self, seen: Seen) -> str:
        """Why the job's Workflow must be stopped; "" if it must not."""
        # The pods are deleted before the Workflow, and Argo would replace each of them.
        if seen.obj.is_deleted_in_foreground:
            return "its DIJob is being deleted"
        if seen.job.argo.is_being_deleted:
            return "its Workflow is being deleted"
        if seen.obj.is_deleted or not self._is_abandoned(seen.obj):
            return ""
        return f"the step that waited for it has ended (pod {seen.obj.waited_by})"

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


def _waits_for_its_queue(*_: object, **__: object) -> None:
    """An object may be created before its queue: the allocator says what it waits for."""
