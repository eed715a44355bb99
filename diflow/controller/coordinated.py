"""A look at a v1alpha1 job: the pods that its coordinator does not want any more are taken away, some in each look."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from diflow.common.clock import Clock
from diflow.common.durations import timestamp
from diflow.controller import modules as pods_of_modules
from diflow.controller.objects import DIJobRead
from diflow.controller.workqueue import Key
from diflow.controller.writes import Writer
from diflow.record import modules, untrusted

Json = dict[str, Any]

# A coordinator asks each second which replicas it has, and disconnects from those that it has no more. DI-engine's
# never asks again if one does not answer.
_GOODBYE_SECONDS: Final = 3.0
# Pods of one job that are taken away in one look, while all other jobs wait; and until the next look, by which the
# cache has seen these.
_MOST_ENDED_PODS: Final = 32
_MORE_PODS_SECONDS: Final = 0.2


class Coordinated:
    """Takes pods away. What it keeps is since when pods are not wanted any more, which may be lost."""

    def __init__(self, writer: Writer, *, clock: Clock) -> None:
        self._writer, self._clock = writer, clock
        self._unwanted: dict[Key, dict[str, float]] = {}

    def forget(self, key: Key) -> None:
        """The object is gone."""
        self._unwanted.pop(key, None)

    def clean(
        self, key: Key, obj: DIJobRead, workflow: Json, known: modules.Modules, pods: Sequence[Json]
    ) -> float | None:
        """Make the next writes of a job that has not ended. Returns after how many seconds there is more to do."""
        policy = untrusted.string(untrusted.sub(obj.job, "spec").get("cleanPodPolicy")) or "Running"
        todo = pods_of_modules.todo(workflow, known, pods, policy=policy)
        if todo.patch is not None:
            self._writer.patch_workflow(workflow, todo.patch, what="request")
        gone, left = self._after_goodbye(key, todo.delete, known)
        now = timestamp(self._clock.wall())
        ends: list[tuple[Json, Json | None, str]] = [
            *((pod, None, "") for pod in gone),
            *((pod, pods_of_modules.stopped(), "") for pod in todo.stop),
            *((pod, pods_of_modules.failed(pod, now=now), "status") for pod in todo.fail),
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
