"""Looks at the signs of life of the jobs with `health`, and writes what it finds: silent, stalled and slow replicas.

A verdict is a pure function of what the server has written (`diflow.record.signals`) and of the pods, at the server's
time: a server that is away makes no replica silent. Only the samples of the speed are kept here, and may be lost. What
was found is in the annotation `diflow/health`, and so is the number of restarts: it is written with the restart, or
before it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import structlog

from diflow.allocator.health.judging import slow_nodes
from diflow.allocator.health.verdict import Samples, Verdict, judge
from diflow.allocator.reconcile import health_inputs
from diflow.allocator.reconcile.health_inputs import Replica
from diflow.allocator.reconcile.health_texts import unheard_text, verdict_text
from diflow.allocator.reconcile.problems import MOST_AT_ONCE
from diflow.allocator.watch.cluster_state import ClusterState
from diflow.allocator.watch.job import Job
from diflow.allocator.write import patches
from diflow.allocator.write.executor import Executor
from diflow.allocator.write.patches import Note, Write
from diflow.allocator.write.round_robin import in_turns
from diflow.allocator.write.rounds import next_round
from diflow.common import keys
from diflow.common.clock import Clock
from diflow.common.durations import timestamp
from diflow.dijob.stored import Health
from diflow.record.health import HealthState, Stop

LOOK_SECONDS: Final = 5.0
"""Between two looks at all jobs."""
STATES: Final = ("silent", "stalled", "slow")
"""By which jobs are counted: the first one that is true of a job."""
_BETWEEN_WRITES_SECONDS: Final = 30.0
_UNHEARD_SECONDS: Final = 300.0
"""A running job about which no server has written anything for longer is not judged."""

log = structlog.get_logger("diflow.allocator")


@dataclass
class _Track:
    """What is kept of a job between looks. `inputs`: what the verdict was made from."""

    round: str
    samples: Samples
    replicas: Sequence[Replica] = ()
    inputs: tuple[object, ...] = ()
    verdict: Verdict = field(default_factory=Verdict)
    heard: float = 0.0
    """When the server wrote last, on its clock; 0 if it has written nothing of this round."""
    written: float = -math.inf
    """When the annotation was written last, on the clock of this process."""


class HealthWatch:
    """Judges all jobs with `health` every few seconds. `counts`: the number of jobs by state, for metrics."""

    def __init__(self, executor: Executor, *, clock: Clock) -> None:
        self._executor = executor
        self._clock = clock
        self._tracks: dict[str, _Track] = {}
        self._looked = -math.inf
        self._has_jobs = False
        self.counts: Mapping[str, int] = {}
        self.restarts = 0
        self.slow_nodes: Mapping[str, tuple[tuple[str, str], ...]] = {}
        self._announced: frozenset[str] = frozenset()  # the slow nodes that have their Event

    def due(self) -> float:
        """When the next look is due, on the clock."""
        return self._looked + LOOK_SECONDS if self._has_jobs else math.inf

    def run(self, state: ClusterState, *, is_paused: bool) -> bool:
        """Look, if it is time, and write what has changed. Returns whether something was written.

        While the allocator is paused, nothing is restarted."""
        if not any(job.read.spec.health is not None for job in state.jobs.values()):
            self._tracks, self._has_jobs, self.counts, self.slow_nodes, self._announced = {}, False, {}, {}, frozenset()
            return False
        if self._has_jobs and self._clock.monotonic() < self.due():
            return False
        self._looked, self._has_jobs = self._clock.monotonic(), True
        judged = list(self._verdicts(state))
        self._find_slow_nodes(judged)
        writes = self._writes(judged, is_paused=is_paused)
        self.counts = Counter(worst for _, track in judged if (worst := _worst(track.verdict)))
        if not writes:
            return False
        before = self._executor.made
        refused = self._executor.apply(writes, state.jobs)
        self.restarts += sum(_is_restart(write) for write in writes if write not in refused)
        return self._executor.made > before

    def _verdicts(self, state: ClusterState) -> Iterator[tuple[Job, _Track]]:
        kept: dict[str, _Track] = {}
        for job in state.jobs.values():
            if not _is_judged(job) or self._executor.is_backing_off(job.key):
                if job.key in self._tracks:
                    kept[job.key] = self._tracks[job.key]
                continue
            try:
                track = self._judged(job)
            except Exception as error:  # one faulty job must not stop the others
                log.error("the job cannot be judged", job=job.key, why=f"{type(error).__name__}: {error}"[:200])
                continue
            kept[job.key] = track
            yield job, track
        self._tracks = kept

    def _judged(self, job: Job) -> _Track:
        """The track of a job with its present verdict."""
        read, track = job.read, self._tracks.get(job.key)
        tasks = tuple(read.live.running(role.name) for role in read.needs.roles)
        if track is None or track.round != read.live.current or track.samples.tasks != tasks:
            written = track.written if track is not None else -math.inf
            track = _Track(read.live.current, Samples(tasks), written=written)
        track.replicas = replicas = health_inputs.replicas_of(job)
        inputs = (read.texts.profilings, read.spec.health, tuple(replica.pod for replica in replicas))
        if track.inputs == inputs:
            return track
        track.inputs = inputs
        signals = health_inputs.signals_of(read.texts.profilings)
        if signals is None or signals.round != read.live.current or read.spec.health is None:
            track.verdict, track.heard = Verdict(), 0.0
            return track
        track.heard = float(signals.at)
        began, signs = health_inputs.began(replicas), health_inputs.signs(signals, len(replicas))
        track.samples.add(signs, began)
        state = read.notes.health
        track.verdict = judge(
            signs,
            began,
            tasks,
            read.spec.health.deadlines,
            samples=track.samples,
            was_slow=frozenset(state.slow if state is not None and state.round == read.live.current else ()),
            done=health_inputs.done(replicas),
        )
        return track

    def _writes(self, judged: Sequence[tuple[Job, _Track]], *, is_paused: bool) -> list[Write]:
        """The writes of a look: all restarts, and at most 16 that only say how a job is, each with an Event: those of
        the namespaces in turns, and of jobs that were written longest ago first. The others follow in the next looks.
        """
        found = [(track, write) for job, track in judged if (write := self._write_of(job, track, is_paused=is_paused))]
        restarts = [one for one in found if _is_restart(one[1])]
        others = sorted((one for one in found if not _is_restart(one[1])), key=lambda one: one[0].written)
        chosen = [*restarts, *in_turns(others, lambda one: one[1].target.namespace)[:MOST_AT_ONCE]]
        for track, _ in chosen:
            track.written = self._clock.monotonic()
        return [write for _, write in chosen]

    def _write_of(self, job: Job, track: _Track, *, is_paused: bool) -> Write | None:
        """The next write for a job, None if there is none."""
        try:
            return self._next_write(job, track, is_paused=is_paused)
        except Exception as error:  # one faulty job must not stop the others
            log.error("the job cannot be judged", job=job.key, why=f"{type(error).__name__}: {error}"[:200])
            return None

    def _next_write(self, job: Job, track: _Track, *, is_paused: bool) -> Write | None:
        read, verdict, health = job.read, track.verdict, job.read.spec.health
        assert health is not None
        before = read.notes.health or HealthState(read.live.current)
        if before.round != read.live.current:
            before = HealthState(read.live.current, restarts=before.restarts)
        if _is_restarting(before, track.replicas):
            return None
        found = self._found(health, before, track)
        may_restart = health.action == "restart" and before.restarts < health.max_restarts and not is_paused
        if may_restart and verdict.restart and not found.is_unheard:
            restart = _restart(job, found, track, now=self._clock.wall())
            if restart is not None:
                return restart
        if _as_sets(found) == _as_sets(before) or self._clock.monotonic() - track.written < _BETWEEN_WRITES_SECONDS:
            return None
        note = Note("Unhealthy", found.why, is_warning=True)
        if not found.why:
            if not verdict.is_proven:
                return None  # replicas that began again have not shown yet that they advance
            found, note = replace(found, stop=None), Note("Healthy", "all replicas advance again")
        return patches.change_job(read, annotations={keys.HEALTH: found.text()}, note=note)

    def _found(self, health: Health, before: HealthState, track: _Track) -> HealthState:
        """What was found of a job now. `before`: what was written of its round."""
        now, verdict = self._clock.wall(), track.verdict
        is_unheard = _is_unheard(track, now)
        text = verdict_text(health, verdict, track.replicas, restarts=before.restarts, slow_nodes=self.slow_nodes)
        return replace(
            before,
            time=timestamp(now),
            why=unheard_text(_UNHEARD_SECONDS) if is_unheard else text,
            silent=verdict.silent,
            stalled=verdict.stalled,
            behind=verdict.behind,
            slow=dict(verdict.slow),
            is_unheard=is_unheard,
        )

    def _find_slow_nodes(self, judged: Sequence[tuple[Job, _Track]]) -> None:
        """Find the nodes on which several jobs are slow. The Event of a node does not name the jobs; at most 16 are
        created in a look, and the others in the next ones."""
        slow = slow_nodes(
            {_names(job): _hosts(track.replicas, track.verdict.slow) for job, track in judged},
            {_names(job): _hosts(track.replicas, track.samples.compared()) for job, track in judged},
        )
        new = sorted(slow.keys() - self._announced)
        # Users report what makes a node slow. Group by the lowest namespace, and not by the set of namespaces: a tenant
        # with k namespaces could make 2^k - 1 sets, and get a turn for each.
        chosen = in_turns(new, lambda node: min(namespace for namespace, _ in slow[node]))[:MOST_AT_ONCE]
        events = []
        for node in chosen:
            text = f"node {node} is slow: {len(slow[node])} jobs have a replica there that is slower than its others"
            log.warning("a node is slow", node=node, jobs=["/".join(job) for job in slow[node][:20]])
            events.append((Note("SlowNode", text, is_warning=True), f"{node} {self._clock.wall() // 3600}"))
        self._executor.record_own_events(events)
        self._announced = self._announced.intersection(slow).union(chosen)
        self.slow_nodes = slow


def _is_judged(job: Job) -> bool:
    read = job.read
    return read.spec.health is not None and not (job.is_over or read.wishes.is_suspended or read.argo.awaits_admission)


def _names(job: Job) -> tuple[str, str]:
    """Its namespace and its name, whichever Workflow it is in."""
    namespace, _, name = job.title.partition("/")
    return namespace, name


def _hosts(replicas: Sequence[Replica], ranks: Iterable[int]) -> list[str]:
    pods = (replicas[rank].pod for rank in ranks)
    return [pod.host for pod in pods if pod is not None and pod.host]


def _as_sets(found: HealthState) -> tuple[object, ...]:
    """What makes another Event when it changes."""
    return found.silent, found.stalled, found.behind, set(found.slow), found.is_unheard


def _is_unheard(track: _Track, now: float) -> bool:
    """Whether nothing is known of a job that has been running for a while, as no server writes it."""
    began = [replica.pod.began for replica in track.replicas if replica.pod is not None and replica.pod.began]
    return bool(began) and now - max(track.heard, min(began)) > _UNHEARD_SECONDS


def _is_restarting(found: HealthState, replicas: Sequence[Replica]) -> bool:
    """Whether a restart that was decided has not ended all pods yet."""
    stop = found.stop
    return stop is not None and any(
        replica.pod is not None and stop.has(replica.task, replica.index, replica.pod.created) for replica in replicas
    )


def _restart(job: Job, found: HealthState, track: _Track, *, now: float) -> Write | None:
    """Start the silent and stalled replicas again, and those that wait for them; None while the job changes anyway."""
    read, at = job.read, job.read.placed
    if at is None or read.argo.tree.failed(read.live.current):
        return None
    found = replace(found, restarts=found.restarts + 1, stop=None)
    limit = read.spec.health.max_restarts if read.spec.health is not None else 0
    text = f"{found.why}; restarted ({found.restarts} of {limit}, not counted in backoffLimit)"
    note = Note("Restarted", text, is_warning=True)
    found = replace(found, why=text, last=text, last_time=found.time)
    if read.terms.is_preemptible:
        if any(member.startswith(f"{read.live.current}/") for member in read.argo.tree.recreated):
            return None
        counts = read.running
        return next_round(job, counts, at.nodes, now=now, annotations={keys.HEALTH: found.text()}, note=note)
    replicas = [track.replicas[rank] for rank in track.verdict.restart]
    created = [replica.pod.created for replica in replicas if replica.pod is not None]
    if not created:
        return None
    stopping: dict[str, set[int]] = {}
    for replica in replicas:
        if replica.pod is not None:
            stopping.setdefault(replica.task, set()).add(replica.index)
    stop = Stop(max(created), {task: frozenset(indices) for task, indices in stopping.items()})
    return patches.change_job(read, annotations={keys.HEALTH: replace(found, stop=stop).text()}, note=note)


def _is_restart(write: Write) -> bool:
    return write.note is not None and write.note.reason == "Restarted"


def _worst(verdict: Verdict) -> str:
    return "silent" if verdict.silent else "stalled" if verdict.stalled else "slow" if verdict.slow else ""
