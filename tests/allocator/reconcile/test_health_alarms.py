"""False alarms and missed hangs, on simulated jobs, by the code that the daemon runs.

The server folds the reports into the parameter (`server.api.folding`), the allocator parses it and looks at all jobs
(`HealthWatch`). Only the API server between the two is left out: a write is an alarm. The numbers are those of
docs/health.md: `make laws` (DIFLOW_HEALTH_RUNS=10) simulates 10,000 job hours and 1,000 slow nodes. `make test` has 240
job hours, four jobs of each kind, and 100 slow nodes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from diflow.allocator.reconcile.health import LOOK_SECONDS, HealthWatch
from diflow.allocator.watch.cluster_state import ClusterState
from diflow.allocator.watch.job import Job
from diflow.allocator.write.patches import Write
from diflow.common import keys
from diflow.common.clock import Clock
from diflow.common.predicates import Where
from diflow.dijob.stored import NOTHING, Health, StoredSpec, StoredTask
from diflow.record import signals
from diflow.record.allocation import Allocation
from diflow.record.argo.node_names import NodeName
from diflow.record.health import HealthState
from diflow.record.identity import Identity
from diflow.record.job import Argo, JobRecord, Needs, Notes, Role
from diflow.record.live import Live
from diflow.record.pod import PodRecord
from diflow.server.api.folding import Report, Shape, fold
from diflow.server.api.models import Profiling
from tests.allocator.fakeargo import EPOCH
from tests.allocator.values import changed

RUNS = int(os.environ.get("DIFLOW_HEALTH_RUNS") or 0)
"""Of 1,000 job hours, and of 100 slow nodes; 0 simulates four jobs of each kind for ten hours, and one run of nodes."""
KINDS = 6
RANKS = 8
TICK_SECONDS = 30
"""Between two writes of the server. The allocator looks at every second one."""
HEALTH = Health(action="restart")
JITTER = 0.2
STEP_SECONDS = (0.5, 5.0, 60.0)


class Executor:
    """Keeps what would be written."""

    def __init__(self) -> None:
        self.made = 0
        self.writes: list[Write] = []
        self.told: list[str] = []

    def is_backing_off(self, _: str) -> bool:
        return False

    def apply(self, writes: Sequence[Write], _: Any) -> list[Write]:
        self.made += len(writes)
        self.writes += writes
        return []

    def record_own_events(self, events: Sequence[tuple[Any, str]]) -> None:
        self.told += [f"{note.message} {salt}" for note, salt in events]


@dataclass
class Training:
    """One job of eight replicas, each on a node of its own. `rates`: steps per second of each; `is_together`: it is a
    collective, whose replicas make each step together. All save for ten minutes each hour, during which the clients'
    heartbeats go on; rank 0 evaluates for two minutes each twenty."""

    name: str
    chance: np.random.Generator
    noise: float = JITTER
    rates: np.ndarray[Any, Any] = field(default_factory=lambda: np.ones(RANKS))
    is_together: bool = False
    pauses: bool = True
    text: str = "{}"
    done: np.ndarray[Any, Any] = field(default_factory=lambda: np.zeros(RANKS))
    hung: bool = False
    health: Health = HEALTH

    def __post_init__(self) -> None:
        self._saves, self._evaluates = self.chance.integers(3600), self.chance.integers(1200)
        allocation = Allocation("1", {"worker": tuple(f"n{rank}" for rank in range(RANKS))}, EPOCH, EPOCH, 0)
        role = Role("worker", {}, Where(), (), RANKS, RANKS, RANKS, RANKS)
        self.read = JobRecord(
            Identity("default", self.name, f"uid-{self.name}", "1"),
            submitted=replace(
                NOTHING, spec=StoredSpec((StoredTask(name="worker", replicas=RANKS),), health=self.health)
            ),
            live=Live(granted={"1": {"worker": RANKS}}),
            notes=Notes(allocation=allocation),
            argo=Argo(created_seconds=EPOCH),
            needs=Needs(roles=(role,)),
        )
        self.pods = [_pod(self.name, rank) for rank in range(RANKS)]
        self.shape = Shape("1", "worker", RANKS, {"worker": RANKS}, has_health=True)

    def pass_time(self, begin: float, seconds: float) -> None:
        """Make steps."""
        if self.hung or (self.pauses and (begin + self._saves) % 3600 < 600):
            return
        # A sum of steps whose times vary by the noise.
        steps = self.chance.gamma(seconds * self.rates / self.noise**2) * self.noise**2
        if self.is_together:
            steps[:] = steps[0]
        if self.pauses and (begin + self._evaluates) % 1200 < 120:
            steps[:1] = 0
            steps *= not self.is_together
        self.done += steps

    def report(self, now: float, *, silent: frozenset[int] = frozenset()) -> None:
        """What the server writes: the newest report of each rank, or its heartbeat."""
        at = EPOCH + now
        reports = {
            rank: Report("worker", Profiling(step=int(step)), rank, at)
            for rank, step in enumerate(self.done.tolist())
            if rank not in silent
        }
        self.text = fold(self.text, reports, self.shape, now=at, listening=EPOCH)

    def is_due(self) -> float:
        """When the server says that it listens, if nothing is reported."""
        found = signals.of(self.text)
        return signals.next_write(found, self.health.deadlines, round_="1", began=[pod.created for pod in self.pods])

    def job(self) -> Job:
        """As the allocator's cache has it."""
        return Job(changed(self.read, profilings=self.text), self.pods)


def _pod(job: str, rank: int) -> PodRecord:
    place = NodeName("1", 0, 0, False, "worker", str(rank), rank, 0, 0, False, True, 0)
    identity = Identity("default", f"{job}-{rank}", f"uid-{job}-{rank}", "1")
    return PodRecord(
        identity, f"default/{job}", f"uid-{job}", place, "Running", f"n{rank}", "", (), False, False, {}, "", "", "",
        created=EPOCH - 1, began=EPOCH,
    )  # fmt: skip


class Moment(SimpleNamespace):
    now: float = 0.0


def watch() -> tuple[HealthWatch, Executor, Moment]:
    executor, clock = Executor(), Moment(now=0.0)
    made: Any = executor
    return HealthWatch(made, clock=Clock(monotonic=lambda: clock.now, wall=lambda: EPOCH + clock.now)), executor, clock


def looks(
    trainings: Sequence[Training], *, hours: float, every: float = TICK_SECONDS
) -> Iterator[tuple[float, list[Write]]]:
    """(seconds since the start, all writes so far), at each look."""
    found, executor, clock = watch()
    by_key, known = {one.read.key: one for one in trainings}, 0
    for tick in range(int(hours * 3600 / every)):
        clock.now = tick * every
        for training in trainings:
            # Each rank reports once a minute: the fewest heartbeats that a client sends.
            training.report(clock.now, silent=frozenset(range(RANKS)) if tick % 2 else frozenset())
        if not tick % 2:
            found.run(ClusterState({one.read.key: one.job() for one in trainings}, {}, ()), is_paused=False)
        for write in executor.writes[known:]:
            annotations = write.body["metadata"]["annotations"]
            of = by_key[write.job]
            of.read = changed(of.read, health_state=HealthState.parse(annotations[keys.HEALTH]))
        known = len(executor.writes)
        yield clock.now, executor.writes
        for training in trainings:
            training.pass_time(clock.now, every)


def noisy(seed: int, *, health: Health = HEALTH) -> Training:
    """A job that is well, in one of `KINDS` kinds."""
    chance = np.random.default_rng(seed)
    step = STEP_SECONDS[seed % 3]
    rates = np.full(RANKS, 1 / step)
    return Training(f"job-{seed}", chance, rates=rates, is_together=bool(seed // 3 % 2), health=health)


def false_alarms(*, jobs: int, hours: float, first: int = 0, health: Health = HEALTH) -> list[str]:
    alarms: list[Write] = []
    made = [noisy(seed, health=health) for seed in range(first, first + jobs)]
    for _, writes in looks(made, hours=hours):
        alarms = writes
    return [f"{write.job}: {write.note.message if write.note else write.why}" for write in alarms]


def test_many_unhealthy_jobs_are_reported_a_few_at_a_time_those_of_the_namespaces_in_turns() -> None:
    found, executor, clock = watch()
    trainings = []
    for number in range(41):
        one = noisy(number, health=Health(action="report"))
        one.name, space = f"job-{number:02}", "good" if number == 40 else "evil"
        one.read = changed(one.read, identity=Identity(space, one.name, f"uid-{number}", "1"))
        one.hung = True
        trainings.append(one)
    by_key, looked = {one.read.key: one for one in trainings}, list[list[str]]()
    for now in (0.0, 7200.0, 7205.0, 7210.0, 7215.0):
        clock.now = now
        for one in trainings:
            one.report(now)
        before = len(executor.writes)
        found.run(ClusterState({one.read.key: one.job() for one in trainings}, {}, ()), is_paused=False)
        looked.append([write.job for write in executor.writes[before:]])
        for write in executor.writes[before:]:
            text = write.body["metadata"]["annotations"][keys.HEALTH]
            by_key[write.job].read = changed(by_key[write.job].read, health_state=HealthState.parse(text))
    assert [len(look) for look in looked] == [0, 16, 16, 9, 0]
    assert "good/job-40" in looked[1]
    assert sorted(key for look in looked for key in look) == sorted(by_key), "each is written once"
    assert found.counts == {"stalled": 41}, "all are known from the first look on"


@pytest.mark.slow
def test_noisy_jobs_that_save_and_evaluate_raise_no_alarm() -> None:
    assert false_alarms(jobs=12, hours=6) == []


@pytest.mark.slow
def test_the_ten_minutes_of_dlrover_would_raise_some() -> None:
    """Between two steps there are the ten minutes of a checkpoint, and the rest of a step or of the time to the next
    report."""
    alarms = false_alarms(jobs=12, hours=3, health=Health(progress_seconds=600))
    assert any("no step for 10m" in alarm for alarm in alarms)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(max(1, RUNS)))
def test_no_alarm_in_thousands_of_hours(part: int) -> None:
    assert false_alarms(jobs=100 if RUNS else 4 * KINDS, hours=10, first=1000 + 100 * part) == []


@pytest.mark.slow
def test_a_node_that_is_three_times_slower_is_found_with_each_seed_and_no_other_is() -> None:
    trainings = []
    nodes = 100 * max(1, RUNS)
    for seed in range(nodes):
        rates = np.ones(RANKS)
        rates[seed % RANKS] /= 3
        trainings.append(Training(f"job-{seed}", np.random.default_rng(seed), noise=0.1, rates=rates, pauses=False))
    last: list[Write] = []
    for _, writes in looks(trainings, hours=0.6):
        last = writes
    found = {write.job: write.note.message for write in last if write.note is not None}
    assert len(last) == len(found) == nodes, "each once"
    for seed, training in enumerate(trainings):
        rank = seed % RANKS
        assert found[f"default/{training.name}"].startswith(f"worker-{rank} on n{rank} is ")
        assert " more" not in found[f"default/{training.name}"]


def late(seed: int, *, silent: bool) -> float:
    """Seconds beyond its deadline at which a hang is found, in the rhythm of the processes: the server says when it is
    due that it listens, or up to 8 s later, and the allocator looks every `LOOK_SECONDS`. Clients send a heartbeat each
    minute."""
    chance = np.random.default_rng(seed)
    training = noisy(seed)
    training.pauses = False
    found, executor, clock = watch()
    hangs = 1000 + float(chance.uniform(0, 60))
    beat, look, later = chance.uniform(0, 60), chance.uniform(0, LOOK_SECONDS), chance.uniform(0, 8)
    dead = frozenset({int(chance.integers(RANKS))})
    moved = np.zeros(RANKS)
    for second in range(4000):
        clock.now = float(second)
        training.hung = second >= hangs
        before = training.done.astype(int).copy()
        if second:
            training.pass_time(second - 1.0, 1.0)
        moved[training.done.astype(int) != before] = clock.now
        if second < hangs + 5 and second % 5 == 0:
            training.report(clock.now)
        elif (second - int(beat)) % 60 == 0:
            training.report(clock.now, silent=dead if silent else frozenset())
        elif EPOCH + clock.now >= training.is_due() + later:
            training.report(clock.now, silent=frozenset(range(RANKS)))
        if (second - int(look)) % int(LOOK_SECONDS) == 0:
            found.run(ClusterState({training.read.key: training.job()}, {}, ()), is_paused=False)
            if executor.writes:
                deadline = HEALTH.heartbeat_seconds if silent else HEALTH.progress_seconds
                return clock.now - deadline - (hangs if silent else float(moved.min()))
    raise AssertionError("it was not found")


@pytest.mark.slow
@pytest.mark.parametrize("silent", [True, False], ids=["silent", "stalled"])
def test_a_hang_is_found_within_30_s_of_its_deadline_and_not_before(silent: bool) -> None:
    delays = [late(seed, silent=silent) for seed in range(12)]
    assert max(delays) <= 30
    assert min(delays) >= -10, "from the last report that the server has written"
