"""Looks at the signs of life of the jobs with `health`, and writes what it finds: silent, stalled and slow replicas.

A verdict is a pure function of what the server has written (`diflow.state.signals`) and of the pods, at the server's
time: a server that is away makes no replica silent. Only the samples of the speed are kept here, and may be lost. What
was found is in the annotation `diflow/health`, and so is the number of restarts: it is written with the restart, or
before it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import structlog
from numpy.typing import NDArray

from diflow import keys
from diflow.allocator.engine import patches
from diflow.allocator.engine.cluster_state import ClusterState
from diflow.allocator.engine.executor import Executor
from diflow.allocator.engine.job import Job
from diflow.allocator.engine.patches import Note, Write
from diflow.allocator.engine.records import JobRead, PodRead
from diflow.allocator.engine.rounds import next_round
from diflow.allocator.health.judging import Deadlines, Floats, slow_nodes
from diflow.allocator.health.verdict import Samples, Signs, Verdict, judge
from diflow.durations import span, timestamp
from diflow.figures import counted
from diflow.job import Health
from diflow.state import signals, untrusted
from diflow.state.health import HealthState, Stop
from diflow.state.memo import MIB, remembered
from diflow.state.signals import NEVER, Signals

LOOK_SECONDS: Final = 5.0
"""Between two looks at all jobs."""
STATES: Final = ("silent", "stalled", "slow")
"""By which jobs are counted: the first one that is true of a job."""
_BETWEEN_WRITES_SECONDS: Final = 30.0
_MOST_NAMED: Final = 4
_UNHEARD_SECONDS: Final = 300.0
"""A running job about which no server has written anything for longer is not judged."""
_LONGEST: Final = 262_144

log = structlog.get_logger("diflow.allocator")


@dataclass(frozen=True, slots=True)
class _Rank:
    task: str
    index: int
    pod: PodRead | None
    is_done: bool = False

    def __str__(self) -> str:
        where = f" on {self.pod.host}" if self.pod is not None and self.pod.host else ""
        return f"{self.task}-{self.index}{where}"


@dataclass
class _Track:
    """What is kept of a job between looks."""

    round: str
    samples: Samples
    members: Sequence[_Rank] = ()
    seen: tuple[object, ...] = ()
    verdict: Verdict = field(default_factory=Verdict)
    heard: float = 0.0
    """When the server wrote last, on its clock; 0 if it has written nothing of this round."""
    written: float = -math.inf


class HealthWatch:
    """Judges all jobs with `health` every few seconds. `counts`: the number of jobs by state, for metrics."""

    def __init__(self, executor: Executor, *, clock: Callable[[], float], wall: Callable[[], float]) -> None:
        self._executor = executor
        self._clock, self._wall = clock, wall
        self._tracks: dict[str, _Track] = {}
        self._looked = -math.inf
        self._has_jobs = False
        self.counts: Mapping[str, int] = {}
        self.restarts = 0
        self.slow_nodes: Mapping[str, tuple[tuple[str, str], ...]] = {}

    def due(self) -> float:
        """When the next look is due, on the clock."""
        return self._looked + LOOK_SECONDS if self._has_jobs else math.inf

    def run(self, state: ClusterState, *, is_paused: bool) -> bool:
        """Look, if it is time, and write what has changed. Returns whether something was written.

        While the allocator is paused, nothing is restarted."""
        if not any(job.read.health is not None for job in state.jobs.values()):
            self._tracks, self._has_jobs, self.counts, self.slow_nodes = {}, False, {}, {}
            return False
        if self._has_jobs and self._clock() < self.due():
            return False
        self._looked, self._has_jobs = self._clock(), True
        found = list(self._verdicts(state))
        self._say_slow_nodes(found)
        writes = [write for job, track in found for write in self._of_job(job, track, is_paused=is_paused)]
        self.counts = Counter(_worst(track.verdict) for _, track in found if _worst(track.verdict))
        if not writes:
            return False
        before = self._executor.made
        refused = self._executor.apply(writes, state.jobs)
        self.restarts += sum(
            write.note is not None and write.note.reason == "Restarted" for write in writes if write not in refused
        )
        return self._executor.made > before

    def _verdicts(self, state: ClusterState) -> Iterator[tuple[Job, _Track]]:
        kept: dict[str, _Track] = {}
        for job in state.jobs.values():
            if not _is_judged(job) or self._executor.is_backing_off(job.key):
                if job.key in self._tracks:
                    kept[job.key] = self._tracks[job.key]
                continue
            try:
                track = self._judged(job, _members(job))
            except Exception as error:  # one faulty job must not stop the others
                log.error("cannot be judged", job=job.key, why=f"{type(error).__name__}: {error}"[:200])
                continue
            kept[job.key] = track
            yield job, track
        self._tracks = {key: track for key, track in kept.items() if key in state.jobs}

    def _judged(self, job: Job, members: Sequence[_Rank]) -> _Track:
        read = job.read
        track = self._tracks.get(job.key)
        tasks = tuple(read.running(role.name) for role in read.roles)
        if track is None or track.round != read.current or track.samples.tasks != tasks:
            written = track.written if track is not None else -math.inf
            track = _Track(read.current, Samples(tasks), written=written)
        pods = tuple(member.pod for member in members)
        seen = (read.profilings, read.health, pods)
        track.members = members
        if track.seen == seen:
            return track
        track.seen = seen
        said = _signals(read.profilings)
        if said is None or said.round != read.current or read.health is None:
            track.verdict, track.heard = Verdict(), 0.0
            return track
        track.heard = float(said.at)
        began = _began(members)
        signs = _signs(said, len(members))
        track.samples.add(signs, began)
        was = read.found.slow if read.found is not None and read.found.round == read.current else {}
        track.verdict = judge(
            signs,
            began,
            tasks,
            deadlines(read.health),
            samples=track.samples,
            was_slow=frozenset(was),
            done=_done(members),
        )
        return track

    def _of_job(self, job: Job, track: _Track, *, is_paused: bool) -> list[Write]:
        try:
            return list(self._writes(job, track, is_paused=is_paused))
        except Exception as error:  # one faulty job must not stop the others
            log.error("cannot be judged", job=job.key, why=f"{type(error).__name__}: {error}"[:200])
            return []

    def _writes(self, job: Job, track: _Track, *, is_paused: bool) -> Iterator[Write]:
        read, verdict = job.read, track.verdict
        assert read.health is not None
        members = track.members
        before = read.found or HealthState(read.current)
        is_new = before.round != read.current
        known = HealthState(read.current, restarts=before.restarts) if is_new else before
        if _is_under_way(known, members):
            return
        now = self._wall()
        unheard = _is_unheard(track, now)
        why = self._text(read, verdict, members, before.restarts)
        if unheard:
            why = f"not judged: for {span(_UNHEARD_SECONDS)} no server has written what it reports: check diflow-server"
        found = replace(
            known,
            round=read.current,
            time=timestamp(now),
            why=why,
            silent=verdict.silent,
            stalled=verdict.stalled,
            behind=verdict.behind,
            slow=dict(verdict.slow),
            is_unheard=unheard,
        )
        may = read.health.action == "restart" and before.restarts < read.health.max_restarts and not is_paused
        if (
            may
            and verdict.again
            and not unheard
            and (restart := _restart(job, found, verdict, members, now=now)) is not None
        ):
            track.written = self._clock()
            yield restart
            return
        if _sets(found) == _sets(known):
            return
        if self._clock() - track.written < _BETWEEN_WRITES_SECONDS:
            return
        if not why:
            if not verdict.is_proven:
                return  # replicas that began again have not shown yet that they advance
            found = replace(found, stop=None)
        track.written = self._clock()
        note = Note("Unhealthy", why, is_warning=True) if why else Note("Healthy", "all replicas advance again")
        yield patches.change_job(read, annotations={keys.HEALTH: found.text()}, note=note)

    def _text(self, read: JobRead, verdict: Verdict, members: Sequence[_Rank], restarts: int) -> str:
        assert read.health is not None
        parts = []
        if verdict.silent:
            parts.append(
                f"no sign of life for {span(read.health.heartbeat_seconds)}: {_named(verdict.silent, members)}"
            )
        if verdict.stalled:
            seconds = read.health.first_progress_seconds if verdict.is_before_first else read.health.progress_seconds
            parts.append(f"no step for {span(seconds)}: {_named(verdict.stalled, members)}")
        if verdict.behind:
            parts.append(f"the others wait for {_named(verdict.behind, members)}")
        if verdict.slow:
            parts.append(self._slow_text(verdict, members))
        if verdict.hanging and read.health.action == "restart" and restarts >= read.health.max_restarts:
            parts.append(f"not restarted again, after {counted(restarts, 'restart')} (maxRestarts)")
        return "; ".join(parts)

    def _slow_text(self, verdict: Verdict, members: Sequence[_Rank]) -> str:
        first = sorted(verdict.slow, key=lambda rank: (-verdict.slow[rank], rank))
        out = []
        for rank in first[:_MOST_NAMED]:
            factor = verdict.slow[rank]
            times = f"{factor:.1f} times slower than" if math.isfinite(factor) else "making no step, unlike"
            member = members[rank]
            jobs = len(self.slow_nodes.get(member.pod.host if member.pod is not None else "", ()))
            out.append(
                f"{member} is {times} the median of the others" + (f" ({jobs} jobs are slow there)" if jobs else "")
            )
        more = len(first) - len(out)
        return ", ".join(out) + (f", and {more} more" if more > 0 else "")

    def _say_slow_nodes(self, found: Sequence[tuple[Job, _Track]]) -> None:
        """Find the nodes on which several jobs are slow. The Event of a node does not name the jobs."""
        slow = slow_nodes(
            {_names(job): _hosts(track.members, track.verdict.slow) for job, track in found},
            {_names(job): _hosts(track.members, track.samples.compared()) for job, track in found},
        )
        for node in slow.keys() - self.slow_nodes.keys():
            text = f"node {node} is slow: {len(slow[node])} jobs have a replica there that is slower than its others"
            log.warning("a node is slow", node=node, jobs=["/".join(job) for job in slow[node][:20]])
            self._executor.record_own_event(
                Note("SlowNode", text, is_warning=True), salt=f"{node} {self._wall() // 3600}"
            )
        self.slow_nodes = slow


def deadlines(health: Health) -> Deadlines:
    """The deadlines of a job; 0 is none."""
    return Deadlines(
        heartbeat=health.heartbeat_seconds or math.inf,
        progress=health.progress_seconds or math.inf,
        first_progress=health.first_progress_seconds or math.inf,
    )


def _is_judged(job: Job) -> bool:
    read = job.read
    return read.health is not None and not (job.is_over or read.is_suspended or read.awaits_admission)


def _names(job: Job) -> tuple[str, str]:
    """Its namespace and its name, whichever Workflow it is in."""
    namespace, _, name = job.title.partition("/")
    return namespace, name


def _hosts(members: Sequence[_Rank], ranks: Iterable[int]) -> list[str]:
    pods = (members[rank].pod for rank in ranks)
    return [pod.host for pod in pods if pod is not None and pod.host]


def _members(job: Job) -> list[_Rank]:
    """The replicas that should run, by rank, with their present pods."""
    latest = job.latest_restart()
    pods = {
        (pod.place.task, pod.place.index): pod
        for pod in job.current_pods()
        if pod.place is not None and pod.place.restart == latest
    }
    done = job.read.tree.is_done
    return [_Rank(task, index, pods.get((task, index)), done(member)) for task, index, member in job.members()]


def _done(members: Sequence[_Rank]) -> NDArray[np.bool_]:
    return np.array([member.is_done for member in members], dtype=bool)


def _sets(found: HealthState) -> tuple[object, ...]:
    """What makes another Event when it changes."""
    return found.silent, found.stalled, found.behind, set(found.slow), found.is_unheard


def _is_unheard(track: _Track, now: float) -> bool:
    """Whether nothing is known of a job that has been running for a while, as no server writes it."""
    began = [member.pod.began for member in track.members if member.pod is not None and member.pod.began]
    return bool(began) and now - max(track.heard, min(began)) > _UNHEARD_SECONDS


def _began(members: Sequence[_Rank]) -> Floats:
    """When each present pod began; `nan` for one that does not run, or is being ended."""
    return np.array(
        [
            member.pod.began
            if member.pod is not None
            and member.pod.began > 0
            and not (member.pod.is_stopping or member.pod.is_terminating)
            else math.nan
            for member in members
        ]
    )


@remembered(most_bytes=8 * MIB)
def _signals(text: str) -> Signals | None:
    return signals.of(untrusted.mapping(text)) if len(text) <= _LONGEST else None


def _is_under_way(found: HealthState, members: Sequence[_Rank]) -> bool:
    """Whether a restart that was decided has not ended all pods yet."""
    stop = found.stop
    return stop is not None and any(
        member.pod is not None and stop.has(member.task, member.index, member.pod.created) for member in members
    )


def _signs(said: Signals, ranks: int) -> Signs:
    """The signs of these ranks as arrays."""

    def floats(values: Sequence[float], missing: float) -> Floats:
        out = np.full(ranks, np.nan)
        given = np.asarray(values[:ranks], dtype=np.float64)
        out[: len(given)] = np.where(given == missing, np.nan, given)
        return out

    moved = floats(said.moved, NEVER)
    return Signs(
        at=float(said.at),
        since=float(said.since),
        heard=floats(said.heard, NEVER),
        moved=moved,
        steps=np.where(np.isfinite(moved), floats(said.steps, NEVER), np.nan),
        work=floats(said.work, 0.0),
    )


def _restart(job: Job, found: HealthState, verdict: Verdict, members: Sequence[_Rank], *, now: float) -> Write | None:
    """Start the silent and stalled replicas again, and those that wait for them; None while the job changes anyway."""
    read, at = job.read, job.read.allocation
    if at is None or at.round != read.current or not at.is_placed or read.tree.failed(read.current):
        return None
    found = replace(found, restarts=found.restarts + 1, stop=None)
    limit = read.health.max_restarts if read.health is not None else 0
    text = f"{found.why}; restarted ({found.restarts} of {limit}, not counted in backoffLimit)"
    note = Note("Restarted", text, is_warning=True)
    found = replace(found, why=text, last=text, last_time=found.time)
    if read.is_preemptible:
        if any(member.startswith(f"{read.current}/") for member in read.tree.recreated):
            return None
        counts = {role.name: read.running(role.name) for role in read.roles}
        return next_round(job, counts, at.nodes, now=now, annotations={keys.HEALTH: found.text()}, note=note)
    pods = [(members[rank], pod) for rank in verdict.again if (pod := members[rank].pod) is not None]
    if not pods:
        return None
    stopping: dict[str, set[int]] = {}
    for member, _ in pods:
        stopping.setdefault(member.task, set()).add(member.index)
    until = max(pod.created for _, pod in pods)
    stop = Stop(until, {task: frozenset(indices) for task, indices in stopping.items()})
    return patches.change_job(read, annotations={keys.HEALTH: replace(found, stop=stop).text()}, note=note)


def _named(ranks: frozenset[int], members: Sequence[_Rank]) -> str:
    if len(ranks) == len(members) > 1:
        return f"all {len(members)} replicas"
    first = [str(members[rank]) for rank in sorted(ranks)[:_MOST_NAMED]]
    more = len(ranks) - len(first)
    return ", ".join(first) + (f" and {more} more" if more > 0 else "")


def _worst(verdict: Verdict) -> str:
    return "silent" if verdict.silent else "stalled" if verdict.stalled else "slow" if verdict.slow else ""
