"""Long random walks of a cluster: the invariants hold whatever happens, and whenever the allocator is killed.

DIFLOW_WALK_STEPS: the simulated seconds of each walk; DIFLOW_WALKS: the number of walks.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import pytest

from diflow.allocator.settings import AllocatorSettings
from diflow.kube.kinds import POD, WORKFLOW
from tests.allocator.fakeargo import is_gated, is_running
from tests.allocator.lab import Killed, Lab, job, lab, task
from tests.kube.fakeapi import Answer, Request, status

STEPS = int(os.environ.get("DIFLOW_WALK_STEPS", "250"))
WALKS = int(os.environ.get("DIFLOW_WALKS", "6"))
pytestmark = pytest.mark.usefixtures("from_memory_as_afresh")

PATIENCE_SECONDS = 150
"""How long a gang may be incomplete: a period, the time until a node is lost, and Argo's back-off."""


class Walk:
    """One random walk of a cluster."""

    def __init__(self, at: Lab, seed: int) -> None:
        self.at, self.chance = at, random.Random(seed)
        self.failures: dict[str, int] = {}
        self.preemptible: dict[str, bool] = {}
        self.ended_by_us: set[str] = set()
        self.jobs = self.nodes = self.others = 0
        self.partly: dict[str, int] = {}
        self.said: list[str] = []
        self.calm = False
        self.stormy = 0
        at.cluster.runs = self.runs
        at.api.rule(self.blow)
        for _ in range(3):
            self.node()

    def runs(self, _: Any) -> tuple[float, int]:
        return (3.0, 0) if self.calm else (self.chance.choice([15.0, 60.0, 300.0]), 0)

    # --- what happens -------------------------------------------------------------------------------------------------

    def submit(self) -> None:
        if len(self.live()) >= 6:
            return
        self.jobs += 1
        name = f"job-{self.jobs}"
        preemptible = self.chance.random() < 0.6
        tasks = []
        for i in range(self.chance.choice([1, 1, 2])):
            replicas = self.chance.randint(1, 5)
            low = self.chance.randint(1, replicas) if preemptible and self.chance.random() < 0.6 else None
            fields = {"min_replicas": low, "max_replicas": replicas + self.chance.randint(0, 3)} if low else {}
            tasks.append(task(f"t{i}", replicas=replicas, cpu=self.chance.choice(["500m", "1", "2"]), **fields))
        limit = self.chance.choice([0, 1, 3])
        self.preemptible[name], self.failures[name] = preemptible, 0
        priority = self.chance.choice(["normal", "normal", "high"])
        self.at.cluster.submit(job(name, *tasks, preemptible=preemptible, backoff_limit=limit, priority=priority))
        self.say(
            f"submit {name} {[(t.name, t.replicas, t.min_replicas, t.max_replicas) for t in tasks]} {preemptible=}"
        )

    def scale(self) -> None:
        if (name := self.some(self.live())) is not None:
            wanted = {f"t{i}": self.chance.randint(1, 6) for i in range(len(self.at.cluster.tasks(name)))}
            self.at.cluster.scale(name, **wanted)
            self.say(f"scale {name} {wanted}")

    def finish(self) -> None:
        self.end_a_pod(code=0)

    def fail(self) -> None:
        self.end_a_pod(code=1)

    def end_a_pod(self, *, code: int) -> None:
        name = self.some(self.live())
        pods = [p for p in self.at.cluster.of(name).values() if is_running(p)] if name else []
        pods = [p for p in pods if p["metadata"]["uid"] in self.at.cluster.known_to_kubelets()]
        if name and pods:
            pod = self.chance.choice(pods)
            self.at.cluster.finish(pod["metadata"]["name"], code=code)
            self.failures[name] += 1 if code else 0
            self.say(f"{pod['metadata']['annotations']['workflows.argoproj.io/node-name']} ends with {code}")

    def evict(self) -> None:
        pods = [p for p in self.at.cluster.pods() if p["metadata"].get("labels")]
        if pods:
            pod = self.chance.choice(pods)
            self.at.cluster.evict(pod["metadata"]["name"])
            self.say(f"evict {pod['metadata']['annotations']['workflows.argoproj.io/node-name']}")

    def node(self) -> None:
        if len(self.at.cluster.nodes()) < 5:
            self.nodes += 1
            self.at.cluster.node(f"n{self.nodes}", cpu=self.chance.choice([3, 4, 6]))
            self.say(f"node n{self.nodes}")

    def lose(self) -> None:
        nodes = self.at.cluster.nodes()
        if len(nodes) > 2:
            name = self.chance.choice(nodes)
            self.at.cluster.remove_node(name)
            self.say(f"{name} is gone")

    def cordon(self) -> None:
        if (name := self.some(self.at.cluster.nodes())) is not None:
            on = self.chance.random() < 0.5
            self.at.cluster.cordon(name, on=on)
            self.say(f"cordon {name} {on=}")

    def silence(self) -> None:
        if (name := self.some(self.at.cluster.nodes())) is not None:
            on = self.chance.random() < 0.5
            self.at.cluster.silence(name, on=on)
            self.say(f"silence {name} {on=}")

    def foreign(self) -> None:
        free = self.at.cluster.free_cpu()
        if (name := self.some([n for n, left in free.items() if left >= 1000])) is not None:
            self.others += 1
            self.at.cluster.foreign(f"other-{self.others}", name, cpu=1)
            self.say(f"other-{self.others} on {name}")

    def foreign_ends(self) -> None:
        theirs = [p["metadata"]["name"] for p in self.at.cluster.pods() if not p["metadata"].get("labels")]
        if (name := self.some(theirs)) is not None:
            self.at.api.remove(POD, name)
            self.say(f"{name} is gone")

    def delete(self) -> None:
        if (name := self.some(self.live())) is not None:
            self.at.cluster.delete(name)
            self.say(f"delete {name}")

    def stop(self) -> None:
        if (name := self.some(self.live())) is not None:
            self.ended_by_us.add(name)
            self.at.cluster.stop(name)
            self.say(f"stop {name}")

    def freeze(self) -> None:
        self.at.cluster.frozen = not self.at.cluster.frozen
        self.say(f"argo frozen: {self.at.cluster.frozen}")

    def lag(self) -> None:
        self.at.cluster.lag_seconds = self.chance.choice([0.0, 2.0, 9.0])
        self.say(f"argo's copies are {self.at.cluster.lag_seconds:g} s old")

    def forget(self) -> None:
        if (name := self.some(self.live())) is not None:
            self.at.cluster.annotate(name, allocation=self.chance.choice(["", "nonsense"]))
            self.say(f"{name}'s allocation is deleted")

    def refuse(self) -> None:
        cluster = self.at.cluster
        cluster.refuses = set() if cluster.refuses else {self.chance.choice(cluster.nodes())}
        self.say(f"kube-scheduler binds nothing to {cluster.refuses or 'none'}")

    def storm(self) -> None:
        self.stormy = 0 if self.stormy else self.chance.randint(3, 20)
        self.say(f"a storm of {self.stormy} s")

    def blow(self, request: Request) -> Answer | None:
        if not self.stormy or request.method != "PATCH" or self.chance.random() < 0.4:
            return None
        code = self.chance.choice([409, 422, 429, 500])
        return status(code, "no") if self.chance.random() < 0.9 else Answer(body={}, cut=True)

    def kill(self) -> None:
        assert self.at.daemon is not None
        left = [self.chance.randint(1, 4)]
        is_sent = self.chance.random() < 0.5

        def strike(method: str, path: str) -> None:
            left[0] -= method != "GET" and "leases" not in path
            if left[0] <= 0:
                raise Killed

        if is_sent:
            self.at.daemon.line.after = strike
        else:
            self.at.daemon.line.before = strike
        self.say(f"the allocator dies at write {left[0]}, {is_sent=}")

    EVENTS: tuple[tuple[Callable[[Walk], None], int], ...] = ()

    # --- what must hold -----------------------------------------------------------------------------------------------

    def check(self) -> None:
        cluster = self.at.cluster
        assert not cluster.problems, self.story(cluster.problems[0])
        for name in self.live():
            assert cluster.restarts(name) <= self.failures[name], self.story(f"{name}: more restarts than failures")
            pods = [p for p in cluster.of(name).values() if "deletionTimestamp" not in p["metadata"]]
            here = [p for p in pods if p["metadata"]["labels"]["diflow/round"] == cluster.parameters(name)["current"]]
            partly = any(is_gated(p) for p in here) and any(not is_gated(p) for p in here)
            # A replica that lost its node waits for free capacity; a gang that moves as a whole never waits in part.
            waits = not self.preemptible[name] and not self.has_room()
            bad = partly and not waits and not cluster.frozen and not cluster.refuses
            self.partly[name] = self.partly.get(name, 0) + 1 if bad else 0
            assert self.partly[name] < PATIENCE_SECONDS, self.story(f"{name} is there in part")

    def has_room(self) -> bool:
        """Some node has enough free capacity for any replica."""
        free = self.at.cluster.free_cpu()
        return any(free[name] >= 2000 for name in self.at.cluster.open_nodes())

    def step(self) -> None:
        self.stormy = max(0, self.stormy - 1)
        try:
            self.at.step()
        except Killed:
            self.at.end()
            self.at.begin()
        self.check()

    def walk(self, steps: int) -> None:
        events, weights = zip(*self.EVENTS, strict=True)
        for _ in range(steps):
            if self.chance.random() < 0.35:
                self.chance.choices(events, weights)[0](self)
            self.step()

    def settle(self) -> None:
        """On a healthy cluster without further events, all jobs end."""
        cluster = self.at.cluster
        self.say("calm")
        self.calm, cluster.frozen, cluster.lag_seconds, cluster.refuses = True, False, 0.0, set()
        for name in cluster.nodes():
            cluster.cordon(name, on=False)
            cluster.silence(name, on=False)
        for name in ("last-1", "last-2", "last-3"):
            cluster.node(name, cpu=32)
        cluster.hurry()
        for _ in range(600):
            if not self.live():
                break
            self.step()
        assert self.live() == [], self.story("not all end")
        for name, obj in self.at.api.objects.get(WORKFLOW.path("default"), {}).items():
            phase = obj["status"]["phase"]
            fine = phase == "Succeeded" or (phase == "Failed" and (name in self.ended_by_us or self.failures[name] > 0))
            assert fine, self.story(f"{name} is {phase}")
            assert cluster.of(name) == {}, self.story(f"{name} has left pods behind")

    # --- small things -------------------------------------------------------------------------------------------------

    def live(self) -> list[str]:
        found = self.at.api.objects.get(WORKFLOW.path("default"), {})
        return sorted(n for n in found if self.at.cluster.phase(n) in ("Pending", "Running"))

    def some(self, names: list[str]) -> str | None:
        return self.chance.choice(names) if names else None

    def say(self, text: str) -> None:
        self.said.append(f"{self.at.time.now():g}: {text}")

    def story(self, what: str) -> str:
        return "\n".join([what, *self.said[-40:], self.at.story()])


Walk.EVENTS = (
    (Walk.submit, 14), (Walk.scale, 14), (Walk.finish, 6), (Walk.fail, 8), (Walk.evict, 8), (Walk.node, 8),
    (Walk.lose, 4), (Walk.cordon, 5), (Walk.silence, 5), (Walk.foreign, 5), (Walk.foreign_ends, 5), (Walk.delete, 2),
    (Walk.stop, 2), (Walk.freeze, 4), (Walk.lag, 4), (Walk.forget, 1), (Walk.kill, 5), (Walk.refuse, 2),
    (Walk.storm, 2),
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(max(120, STEPS))
@pytest.mark.parametrize("seed", range(WALKS))
def test_whatever_happens_the_invariants_hold_and_all_jobs_end(seed: int) -> None:
    # Each job in one Workflow: test_successor tests continuation in another.
    with lab(settings=AllocatorSettings(writers=1, debounce_seconds=0.0, most_nodes=10_000)) as at:
        walk = Walk(at, seed)
        walk.walk(STEPS)
        walk.settle()
