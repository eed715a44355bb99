"""The jobs of a run, and what was done to each."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any, Literal

from diflow import DIJob, Task
from tests.builders import template

GPU = "nvidia.com/gpu"
GPUS = 8
"""Of all nodes together: with two nodes, each has half of them."""
FAILS = "/tmp/fails"
"""A replica in which this file exists exits with 3."""
Way = Literal["argo", "kubectl", "diflow", "dijob"]
"""How a job is submitted: `argo submit`, a Workflow, `diflow submit`, or a DIJob object."""


@dataclass
class Known:
    """One job. `failures`: the replicas that were made to fail. Times are seconds of the run, 0 for never."""

    job: DIJob
    way: Way
    submitted: float
    failures: int = 0
    stopped: bool = False
    suspended: bool = False
    deleted: float = 0.0
    complaints: set[str] = field(default_factory=set)

    @property
    def is_gang(self) -> bool:
        """Its replicas start together."""
        return self.job.scheduling != "none"

    def again(self, now: float) -> None:
        """It was deleted and submitted again."""
        self.submitted, self.failures, self.stopped, self.suspended, self.deleted = now, 0, False, False, 0.0


def random_job(name: str, chance: random.Random) -> DIJob:
    """A job of one or two tasks, whose replicas run for 5 to 40 seconds and succeed."""
    seconds = chance.choice([5, 10, 20, 40])
    is_preemptible = chance.random() < 0.4
    replicas = chance.choice([1, 1, 2, 2, 3, 4])
    bounds: dict[str, Any] = {}
    if is_preemptible and chance.random() < 0.7:
        bounds = {"min_replicas": 1, "max_replicas": replicas + chance.choice([0, 1, 2])}
    tasks = [Task(type="learner", replicas=replicas, template=_pods(seconds), **bounds)]
    if chance.random() < 0.3:
        tasks.append(Task(type="collector", replicas=chance.choice([1, 2]), template=_pods(seconds)))
    return DIJob(
        name=name,
        tasks=tuple(tasks),
        preemptible=is_preemptible,
        scheduling="gang" if is_preemptible else chance.choice(["gang", "gang", "gang", "none"]),
        priority=chance.choice(["normal", "normal", "high"]),
        backoff_limit=chance.choice([0, 1, 3]),
        clean_pod_policy=chance.choice(["Running", "All", "None"]),
    )


def _pods(seconds: int) -> dict[str, Any]:
    turns = f"i=0; while [ $i -lt {seconds} ]; do sleep 1; i=$((i+1)); [ -e {FAILS} ] && exit 3; done"
    resources = {"requests": {"cpu": "10m", "memory": "8Mi", GPU: "1"}, "limits": {GPU: "1"}}
    return template(f"trap 'exit 143' TERM; {turns}; exit 0", container={"resources": resources})
