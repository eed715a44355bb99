"""The other side: the jobs of an honest namespace, and what an attack took from them."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from diflow import DiflowError, DIJob
from diflow.common import keys
from diflow.jobs import delete, lookup, submit
from diflow.kube.api import Cluster
from diflow.kube.kinds import WORKFLOW
from diflow.record.job import record_of
from fakestage import fake_job
from stage import DemoError, say

Json = dict[str, Any]
QUEUE = "honest"
STEADY, FIXED = "steady", "fixed"
STEADY_LOW, STEADY_HIGH, FIXED_REPLICAS, NEW_REPLICAS = 4, 42, 2, 2
PATIENCE_SECONDS = 30.0
_LOOK_SECONDS = 0.1


@dataclass
class Honest:
    """An elastic job that holds most of the cluster, a fixed one, and small new ones, each with one GPU a replica."""

    cluster: Cluster
    namespace: str
    _pods: frozenset[str] = frozenset()
    _count: int = field(default=0)
    idle: int = 0
    """New jobs that had a place and whose pods did not run, since somebody has set it to 0."""

    def begin(self) -> None:
        """Start the two jobs that stay."""
        elastic = {"replicas": STEADY_HIGH, "min_replicas": STEADY_LOW, "max_replicas": STEADY_HIGH}
        self._submit(self._job(FIXED, {"replicas": FIXED_REPLICAS}))
        self._submit(self._job(STEADY, elastic, preemptible=True))
        self._wait(lambda: len(self.running(FIXED)) == FIXED_REPLICAS, f"{FIXED} runs")
        self._wait(lambda: len(self.running(STEADY)) >= STEADY_LOW, f"{STEADY} runs")
        self._pods = self.running(FIXED)

    def end(self) -> None:
        for name in (STEADY, FIXED):
            with suppress(DiflowError):
                delete.delete(name, namespace=self.namespace, cluster=self.cluster)

    def place(self, count: int = 1) -> float | None:
        """Submit new jobs, one after the other, and end each. Returns the median of the seconds until a job has its
        place; None if one has not got it. `idle` counts those that did not run with it."""
        found = [self._place_one() for _ in range(count)]
        given = [seconds for seconds in found if seconds is not None]
        return statistics.median(given) if len(given) == len(found) else None

    def _place_one(self) -> float | None:
        self._count += 1
        name = f"new-{self._count}"
        began = time.monotonic()
        self._submit(self._job(name, {"replicas": NEW_REPLICAS}))
        placed = None
        with suppress(DemoError):
            self._wait(lambda: self._has_place(name), f"{name} is placed")
            placed = time.monotonic() - began
            self._wait(lambda: len(self.running(name)) == NEW_REPLICAS, f"{name} runs")
        self.idle += placed is not None and len(self.running(name)) < NEW_REPLICAS
        delete.delete(name, namespace=self.namespace, cluster=self.cluster)
        say(f"   {name} " + (f"is placed after {placed:.1f} s" if placed is not None else "is not placed"))
        return placed

    def _has_place(self, name: str) -> bool:
        found = self.cluster.get(WORKFLOW, name, namespace=self.namespace)["metadata"]["annotations"]
        return bool(json.loads(found.get(keys.ALLOCATION) or "{}").get("nodes"))

    def running(self, name: str) -> frozenset[str]:
        """The uids of a job's pods that run and are not being deleted."""
        pods = lookup.get(name, namespace=self.namespace, cluster=self.cluster).pods
        return frozenset(
            pod["metadata"]["uid"]
            for pod in pods
            if pod["status"].get("phase") == "Running" and not pod["metadata"].get("deletionTimestamp")
        )

    def left(self, least: int) -> int:
        """How many replicas of the elastic job run; one that has just been restarted has time to have so many."""
        with suppress(DemoError):
            self._wait(lambda: len(self.running(STEADY)) >= least, f"{least} replicas of {STEADY} run")
        return len(self.running(STEADY))

    def round(self) -> int:
        """Of the elastic job: it starts again with each."""
        found = lookup.get(STEADY, namespace=self.namespace, cluster=self.cluster)
        return int(record_of(found.workflow).live.current)

    def lost(self) -> int:
        """Pods of the fixed job that are gone since the last look."""
        before, self._pods = self._pods, self.running(FIXED)
        return len(before - self._pods)

    def _job(self, name: str, task: Json, **fields: Any) -> DIJob:
        return fake_job(name, self.namespace, task, queue=QUEUE, scheduling="gang", **fields)

    def _submit(self, job: DIJob) -> None:
        submit.submit(job, cluster=self.cluster)

    def _wait(self, true: Any, what: str) -> None:
        ends = time.monotonic() + PATIENCE_SECONDS
        while not true():
            if time.monotonic() > ends:
                raise DemoError(f"not within {PATIENCE_SECONDS:.0f} s: {what}; kubectl get wf -n {self.namespace}")
            time.sleep(_LOOK_SECONDS)


def queues(gpus: int) -> str:
    """The text `queues.yaml`: two queues of equal weight, one with a guarantee of so many GPUs."""
    lines: Iterable[str] = (
        "queues:",
        "  - {name: default}",
        f"  - {{name: {QUEUE}, guarantee: {{nvidia.com/gpu: {gpus}}}}}",
    )
    return "\n".join(lines) + "\n"
