"""The lab of users' reports: an allocator over a cluster as users have it, and what became of a job there."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from diflow import DIJob, Task
from tests.allocator.lab import Lab
from tests.allocator.lab import lab as allocator_lab
from tests.reports.cluster import UsersCluster

Json = dict[str, Any]


class UsersLab(Lab):
    """A lab whose cluster is a `UsersCluster`."""

    cluster: UsersCluster

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.dry_runs = True

    def watch(self, *jobs: str, seconds: int, each: Callable[[int], None] | None = None) -> dict[str, Course]:
        """Let time pass, and note what becomes of these jobs. `each`: called before each second."""
        courses = {name: Course() for name in jobs}
        began = self.time.now()
        for second in range(seconds):
            if each is not None:
                each(second)
            self.step()
            for name, course in courses.items():
                running = self.running(name)
                if not course.running or course.running[-1][1] != len(running):
                    course.running.append((self.time.now() - began, len(running)))
                course.where = running
                course.started |= self._started(name)
        for name, course in courses.items():
            parts = self.parts(name)
            course.rounds = sum(len(json.loads(self.cluster.parameters(part)["rounds"])) for part in parts)
            course.restarts = sum(self.cluster.restarts(part) for part in parts)
            course.decision = self.decision(parts[-1]).get("why", "") if parts else ""
            course.events = [event for part in parts for event in self.events(part)]
        return courses

    def parts(self, job: str) -> list[str]:
        """The Workflows of a job, in order."""
        with self.api.changed:
            every = [
                obj for path, all_ in self.api.objects.items() if path.endswith("/workflows") for obj in all_.values()
            ]
        mine = [obj for obj in every if (obj["metadata"].get("labels") or {}).get("diflow/job", "") == job]
        names = [obj["metadata"]["name"] for obj in mine]
        return [job, *(name for name in sorted(names, key=lambda name: (len(name), name)) if name != job)]

    def running(self, job: str) -> dict[str, str]:
        """ "task-index" → node of the pods of the job that run."""
        out: dict[str, str] = {}
        for part in self.parts(job):
            out |= self.cluster.running(part)
        return out

    def _started(self, job: str) -> set[str]:
        known = self.cluster.known_to_kubelets()
        return {
            pod["metadata"]["uid"]
            for part in self.parts(job)
            for pod in self.cluster.of(part).values()
            if pod["metadata"]["uid"] in known
        }

    def alone(self, job: DIJob, *, seconds: int = 60) -> float:
        """How many seconds kube-scheduler alone takes until all replicas of this job run, without a gang."""
        name = f"{job.name}-alone"
        self.cluster.submit(job.model_copy(update={"name": name, "scheduling": "none"}))
        wanted = sum(task.replicas for task in job.tasks)
        for second in range(seconds):
            self.step()
            if len(self.running(name)) == wanted:
                self.cluster.delete(name)
                self.until(lambda: not self.cluster.of(name), "its pods are gone")
                return second + 1.0
        raise AssertionError(f"kube-scheduler alone does not place it: {self.cluster.refused}")


@dataclass
class Course:
    """What became of a job. `running`: (seconds, replicas that run) at each change. `started`: the pods that a kubelet
    has started."""

    running: list[tuple[float, int]] = field(default_factory=list)
    where: Mapping[str, str] = field(default_factory=dict)
    started: set[str] = field(default_factory=set)
    rounds: int = 0
    restarts: int = 0
    decision: str = ""
    events: list[tuple[str, str]] = field(default_factory=list)

    def since(self, count: int) -> float:
        """When so many replicas ran first; infinite if they never did."""
        return next((at for at, running in self.running if running >= count), float("inf"))

    @property
    def most(self) -> int:
        return max((running for _, running in self.running), default=0)

    def begins_whole(self, count: int) -> bool:
        """Whether no fewer than `count` replicas ever ran beside none at all."""
        return all(running == 0 or running >= count for _, running in self.running)

    def says(self, *texts: str) -> bool:
        """Whether each text is in the decision or in an Event."""
        said = "\n".join([self.decision, *(message for _, message in self.events)])
        return all(text in said for text in texts)


def task(
    name: str = "worker",
    *,
    replicas: int = 1,
    labels: Mapping[str, str] | None = None,
    spec: Json | None = None,
    container: Json | None = None,
    ask: Mapping[str, str] | None = None,
    **fields: Any,
) -> Task:
    """A task whose replicas ask for these resources (1 CPU), with more of a pod's spec and of its container."""
    main = {"name": "di-container", "image": "x", "command": ["x"], "resources": {"limits": dict(ask or {"cpu": "1"})}}
    template: Json = {"spec": {**(spec or {}), "containers": [{**main, **(container or {})}]}}
    if labels:
        template["metadata"] = {"labels": dict(labels)}
    return Task(name=name, replicas=replicas, template=template, **fields)


def job(name: str, *tasks: Task, **fields: Any) -> DIJob:
    return DIJob(name=name, tasks=tasks, scheduling="gang", **fields)


@contextmanager
def lab(**options: Any) -> Iterator[UsersLab]:
    """A cluster as users have it, with an allocator that leads unless `begin` is False."""
    with allocator_lab(made=UsersLab, makes=UsersCluster, **options) as at:
        assert isinstance(at, UsersLab)
        yield at
