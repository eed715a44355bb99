"""What the controller does for jobs with a coordinator: their Workflow, their status, and the pods that the coordinator
does not want any more, which are taken away, some in each look."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from diflow.common.clock import Clock
from diflow.common.durations import timestamp
from diflow.contrib.di_orchestrator import manifest, modules, statuses, unwanted
from diflow.contrib.di_orchestrator.settings import aggregator_settings
from diflow.controller.caches import Seen
from diflow.controller.workqueue import Key
from diflow.controller.writes import Writer
from diflow.dijob.model import DIJob
from diflow.kube.api import Cluster
from diflow.record import overstay, side_by_side, untrusted
from diflow.record.status.status import unknown

Json = dict[str, Any]

# A coordinator asks each second which replicas it has, and disconnects from those that it has no more. DI-engine's
# never asks again if one does not answer.
_GOODBYE_SECONDS: Final = 3.0
# Pods of one job that are taken away in one look, while all other jobs wait; and until the next look, by which the
# cache has seen these.
_MOST_ENDED_PODS: Final = 32
_MORE_PODS_SECONDS: Final = 0.2


class CoordinatorForm:
    """The form of v1alpha1."""

    def is_one(self, job: Mapping[str, Any]) -> bool:
        """Whether an object, of whatever version it was read as, has a coordinator."""
        return manifest.is_one(job)

    def job_of(self, job: Mapping[str, Any], cluster: Cluster) -> DIJob:
        """Its job. Raises InvalidError, and UnavailableError if the template of aggregators is invalid."""
        settings = aggregator_settings()
        file = settings.aggregator_file
        aggregator = (
            manifest.aggregator_of(cluster, settings.aggregator_config)
            if file is None
            else manifest.aggregator_in(file)
        )
        return manifest.job_of(job, aggregator=aggregator)

    def render(self, job: DIJob) -> Json:
        """The Workflow of the job. Raises InvalidError."""
        return manifest.render(job)

    def path(self, path: str, job: DIJob) -> str:
        """The path in the object of a field of its job."""
        return manifest.path_in(path, job)

    def status(self, made: Json) -> Json:
        """The status with the phases of v1alpha1."""
        return statuses.with_old_phases(made)


FORM: Final = CoordinatorForm()


class CoordinatorLooks:
    """Looks at such jobs that have a Workflow. What it keeps is since when pods are not wanted any more, which may be
    lost."""

    def __init__(self, writer: Writer, clock: Clock) -> None:
        self._writer, self._clock = writer, clock
        self._unwanted: dict[Key, dict[str, float]] = {}

    def has(self, workflow: Json) -> bool:
        """Whether this is the Workflow of such a job."""
        return side_by_side.is_one(workflow)

    def forget(self, key: Key) -> None:
        """The object is gone."""
        self._unwanted.pop(key, None)

    def look(self, key: Key, seen: Seen) -> tuple[Json, float | None]:
        """Take away the pods that the job does not want any more. Returns its status, and after how many seconds there
        is more to do."""
        known = modules.read(seen.workflow)
        assert known is not None, "`has` was asked first"
        found, left = seen.status, None
        if not found.ended and not known.problem:
            left = self._clean(key, seen, known)
        if known.problem and not found.ended:  # its pods stay: nobody knows which of them are wanted
            found = unknown(f"cannot be read: {known.problem}")
        requested = seen.obj.number("scaleRequests") or 0
        return statuses.coordinated(found, known, requests=requested, ttl_seconds=seen.ttl_seconds), left

    def _clean(self, key: Key, seen: Seen, known: modules.Modules) -> float | None:
        """Make the next writes of a job that has not ended. Returns after how many seconds there is more to do."""
        policy = untrusted.string(seen.obj.fields.get("cleanPodPolicy")) or "Running"
        todo = unwanted.todo(seen.workflow, known, seen.pods, policy=policy)
        if todo.patch is not None:
            self._writer.patch_workflow(seen.job.identity, todo.patch, what="request")
        gone, left = self._after_goodbye(key, todo.delete, known)
        now = timestamp(self._clock.wall())
        ends: list[tuple[Json, Mapping[str, Any] | None, str]] = [
            *((pod, None, "") for pod in gone),
            *((pod, overstay.STOP_NOW, "") for pod in todo.stop),
            *((pod, unwanted.failed(pod, now=now), "status") for pod in todo.fail),
        ]
        for pod, patch, subresource in ends[:_MOST_ENDED_PODS]:
            self._writer.end_pod(pod, patch, subresource=subresource)
        return _MORE_PODS_SECONDS if len(ends) > _MOST_ENDED_PODS else left

    def _after_goodbye(self, key: Key, pods: Sequence[Json], known: modules.Modules) -> tuple[list[Json], float | None]:
        """Those of the pods that can be deleted now, and after how many seconds more can be: while the coordinator
        runs, it has time to disconnect from one that runs."""
        now, before = self._clock.monotonic(), self._unwanted.pop(key, {})
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
