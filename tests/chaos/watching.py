"""What must hold while jobs are disturbed, and when they have ended."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from diflow.common import keys
from diflow.common.errors import DiflowError
from diflow.jobs import lookup
from diflow.kube.kinds import POD, WORKFLOW
from tests.chaos.known import GPUS, Known
from tests.chaos.second import SecondNode
from tests.e2e.live import Live, pod_name

PARTIAL_SECONDS = 60.0
"""How long replicas of a gang may run while others do not."""
LEFT_SECONDS = 60.0
"""How long pods of a deleted job may stay."""
GONE_SECONDS = 90.0
"""How long a submitted job may be without a Workflow: the controller makes it of a DIJob object, and a new controller
after a kill waits until the Lease of the former one has run out."""
Json = dict[str, Any]


class Watcher:
    """Looks at all pods each three seconds. Each fault of a job is reported once."""

    def __init__(
        self,
        live: Live,
        jobs: Mapping[str, Known],
        now: Callable[[], float],
        complain: Callable[[str], None],
        second: SecondNode | None = None,
    ) -> None:
        self._live, self._jobs, self._now, self._complain = live, jobs, now, complain
        self._second = second
        self._partial: dict[str, float] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(3.0):
            try:
                self._look()
            except DiflowError as error:
                self._complain(f"the cluster cannot be read: {error}")

    def _look(self) -> None:
        space = self._live.namespace
        workflows = self._live.api.list_all(WORKFLOW, namespace=space, metadata_only=True)
        names = {workflow["metadata"]["name"] for workflow in workflows}
        pods: dict[str, list[Json]] = defaultdict(list)
        for pod in self._live.api.list_all(POD, namespace=space, labels=keys.JOB):
            pods[pod["metadata"]["labels"][keys.JOB]].append(pod)
        running = Counter(
            pod["spec"].get("nodeName")
            for of_job in pods.values()
            for pod in of_job
            if pod["status"].get("phase") == "Running"
        )
        most = GPUS if self._second is None else GPUS // 2
        for node, count in running.items():
            if count > most:
                self._complain(f"{count} pods run on {most} GPUs of {node}")
        now = self._now()
        for name, job in list(self._jobs.items()):
            self._gang(name, job, pods.get(name, []), now)
            left = [pod_name(pod) for pod in pods.get(name, [])]
            if job.deleted and now - self._since(job.deleted, now) > LEFT_SECONDS and left:
                self._once(job, f"{name} was deleted, and its pods are left: {left}")
            if not job.deleted and now - self._since(job.submitted, now) > GONE_SECONDS and name not in names:
                self._once(job, f"{name} has no Workflow")

    def _since(self, then: float, now: float) -> float:
        return then if self._second is None else self._second.since(then, now)

    def _is_excused(self, pod: Json, now: float) -> bool:
        second = self._second
        return second is not None and pod["spec"].get("nodeName") == second.name and second.excuses_pods(now)

    def _gang(self, name: str, job: Known, pods: list[Json], now: float) -> None:
        live = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
        phases = {pod["status"].get("phase") for pod in live}
        unheard = [pod for pod in live if pod["status"].get("phase") in ("Running", "Pending")]
        if not job.is_gang or not {"Running", "Pending"} <= phases or any(self._is_excused(p, now) for p in unheard):
            self._partial.pop(name, None)
        elif now - self._partial.setdefault(name, now) > PARTIAL_SECONDS:
            self._once(job, f"{name} is a gang of which only some replicas have run for {PARTIAL_SECONDS:.0f} s")

    def _once(self, job: Known, text: str) -> None:
        if text not in job.complaints:
            job.complaints.add(text)
            self._complain(text)


def judge(live: Live, jobs: Mapping[str, Known], complain: Callable[[str], None]) -> None:
    """When all have ended: each job that nobody stopped or made to fail has succeeded, only its own failures count
    against `backoffLimit`, and no pods are left."""
    for name, job in jobs.items():
        if job.deleted:
            continue
        status = lookup.get(name, namespace=live.namespace, cluster=live.api).status
        if status.phase != "Succeeded" and not job.stopped and not job.failures:
            complain(f"{name} ended {status.phase} without a cause: {status.message}")
        if (status.restarts or 0) > job.failures:
            complain(f"{name} has {status.restarts} restarts for {job.failures} failures")
    for pod in live.api.list_all(POD, namespace=live.namespace, labels=keys.JOB):
        if pod["status"].get("phase") in ("Pending", "Running"):
            complain(f"the pod {pod_name(pod)} is left")
