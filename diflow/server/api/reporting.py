"""Accepts jobs' reports and writes them: the newest of each rank, in one write per second and job.

A report is answered when it has been validated and accepted; the write follows within about a second, or later if many
jobs report: all share a rate of writes (`turns.py`). It is lost if this process is killed before: it is a measurement,
and the next one follows. At shutdown, `close` writes all accepted reports.

Of a job with `health`, a server also writes that it listens: after each deadline of a replica, and once a minute if
there is nothing else to write. Only then is it known that a replica is silent, and not the server away
(`diflow.record.signals`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

import structlog

from diflow.common import keys
from diflow.common.clock import Clock
from diflow.common.deadlines import Deadlines
from diflow.kube.api import Cluster
from diflow.record import signals
from diflow.record.job import JobRecord
from diflow.record.signals import BEAT_SECONDS, BREAK_SECONDS
from diflow.server.api.batches import JobBatches, Pace
from diflow.server.api.cache import Cache, JobKey, ServedJob
from diflow.server.api.folding import Report, Shape, fold, written_at
from diflow.server.api.models import Profiling
from diflow.server.api.own_writes import OwnWrite, can_be_tested, merged, patch
from diflow.server.http.errors import ApiError
from diflow.server.http.pool import Pool
from diflow.server.http.turns import Turns

_LISTEN_SECONDS: Final = 1.0
# How much later than it is due, for the server that wrote last, and for the others.
_MINE_SECONDS: Final = (0.0, 2.0)
_OTHERS_SECONDS: Final = (4.0, 8.0)
_LATEST_SECONDS: Final = 5.0
_MOST_JOBS: Final = 20_000
# The share of one CPU below which a container counts as idle: a process that only waits uses a little for its timers.
_IDLE: Final = 0.01

log = structlog.get_logger("diflow.server")


@dataclass(frozen=True, slots=True)
class _Vitals:
    """What a monitor has reported of a pod: its CPU seconds, and the bytes of its log."""

    pod: str
    at: float
    cpu: float
    log: int

    def has_moved(self, before: _Vitals | None) -> bool:
        """Whether the pod has done something since."""
        if before is None or before.pod != self.pod:
            return True
        return self.cpu - before.cpu > _IDLE * max(0.0, self.at - before.at) or self.log > before.log


@dataclass(slots=True)
class _Batch:
    """One job's reports that are not written yet, by rank."""

    round: str
    reports: dict[int, Report] = field(default_factory=dict)
    """Empty: it is only to be written that a server listens."""


def _merge(earlier: _Batch, later: _Batch) -> _Batch:
    if earlier.round != later.round:
        return later  # the replicas that reported before are gone
    earlier.reports.update(later.reports)
    return earlier


class Reporter:
    """Accepts and writes reports. `between_seconds` is the shortest time between two writes of one job; the namespaces
    take `turns` at writes. For one event loop."""

    def __init__(
        self, cluster: Cluster, cache: Cache, pool: Pool, *, between_seconds: float, turns: Turns, clock: Clock
    ) -> None:
        self._cluster = cluster.without_retries(read_seconds=5.0, connect_seconds=3.0)
        self._cache = cache
        self._pool = pool
        self._between_seconds = between_seconds
        self._clock = clock
        self._turns = turns
        self._vitals: dict[JobKey, dict[int, _Vitals]] = {}
        self._beats: dict[JobKey, tuple[str, float]] = {}
        self._listening: float | None = None
        self._looked = float("-inf")
        self.batches = JobBatches(
            self._write,
            _merge,
            what="reports",
            pace=Pace(between_seconds, before=self._wait),
            clock=clock,
            most_kept=_MOST_JOBS,
        )

    @property
    def waiting(self) -> int:
        """The number of accepted reports that are not written yet."""
        return sum(len(batch.reports) for batch in self.batches.waiting.values())

    @property
    def jobs(self) -> int:
        """The number of jobs of which something is remembered."""
        return len(self._vitals.keys() | self._beats.keys() | set(self.batches.results))

    def take(self, view: ServedJob, rank: int, report: Report) -> None:
        """Accept a report; it replaces an older one of that rank. Raises ApiError (503) for too many jobs."""
        if view.workflow.spec.deadlines is not None:
            report = self._with_signs(view, rank, replace(report, at=self._clock.wall()))
        self.batches.add((view.namespace, view.name), _Batch(view.workflow.round, {rank: report}))

    async def close(self) -> None:
        """Write all accepted reports now, within a few seconds."""
        self._turns.open()
        await self.batches.close(seconds=_LATEST_SECONDS)
        if self.waiting:
            log.warning("reports were lost", reports=self.waiting)

    # --- signs of life ------------------------------------------------------------------------------------------------

    async def listen(self, is_ready: Callable[[], bool]) -> None:
        """Write, while this server is ready, that it listens to the jobs with `health`; until cancelled."""
        while True:
            await asyncio.sleep(_LISTEN_SECONDS)
            if is_ready() and self._cache.is_fresh():
                self.beat()
            else:
                self._listening = None

    def beat(self) -> None:
        """Have it written of each job with `health` that a server listens, where that is due, and forget jobs that are
        gone. To be called every few seconds while this server is ready: after a longer pause, or when its clock was
        set, it begins to listen."""
        now = self._clock.wall()
        if self._listening is None or not 0 <= now - self._looked <= BREAK_SECONDS:
            self._listening = now
        self._looked = now
        beats: dict[JobKey, tuple[str, float]] = {}
        gone = set(self.batches.results)
        for view in self._cache.jobs():
            if view.workflow.has_ended:
                continue
            key = (view.namespace, view.name)
            gone.discard(key)
            if view.workflow.spec.deadlines is None or not any(view.members):
                continue
            beats[key] = self._next_beat(key, view, view.workflow.spec.deadlines, now)
            if now >= beats[key][1]:
                with suppress(ApiError):  # too many jobs
                    self.batches.add(key, _Batch(view.workflow.round))
        self._beats = beats
        self._vitals = {key: vitals for key, vitals in self._vitals.items() if key in beats}
        for key in gone:
            self.batches.results.pop(key)

    def _next_beat(self, key: JobKey, view: ServedJob, deadlines: Deadlines, now: float) -> tuple[str, float]:
        """(the stored text, when this server writes after it that it listens).

        Not at the same time as another server: each second write would conflict, and be followed by a read. The one
        that wrote the last time goes on, and another one only if that one is late.
        """
        text = view.workflow.texts.report or ""
        last = self._beats.get(key)
        if last is None or last[0] != text:
            last = text, (written_at(text) or now - BEAT_SECONDS) + BEAT_SECONDS + self._later(key, text)
        if now >= last[1] and now < (due := _due(view, deadlines)):
            last = text, due + self._later(key, text)
        return last

    def _later(self, key: JobKey, text: str) -> float:
        """How much later than it is due this server writes that it listens."""
        last = self.batches.results.get(key)
        return self._clock.jitter(*(_MINE_SECONDS if last is not None and last.text == text else _OTHERS_SECONDS))

    def _with_signs(self, view: ServedJob, rank: int, report: Report) -> Report:
        """The report with whether its replica is alive, and with the values of an earlier one that still waits: a
        monitor and the program of a replica report in turns."""
        body, key = report.body, (view.namespace, view.name)
        if rank < 0 or not isinstance(body, Profiling):
            return report
        is_alive = True
        if body.cpu_seconds is not None or body.log_bytes is not None:
            pod = view.members[rank] if rank < len(view.members) else None
            now = _Vitals(pod.uid if pod is not None else "", report.at, body.cpu_seconds or 0.0, body.log_bytes or 0)
            vitals = self._vitals.setdefault(key, {})
            is_alive = now.has_moved(vitals.get(rank))
            vitals[rank] = now
        batch = self.batches.waiting.get(key)
        before = batch.reports.get(rank) if batch is not None and batch.round == view.workflow.round else None
        if before is None or not isinstance(before.body, Profiling):
            return replace(report, is_alive=is_alive)
        given = {name: getattr(body, name) for name in body.model_fields_set}
        return replace(report, body=before.body.model_copy(update=given), is_alive=is_alive or before.is_alive)

    # --- writing ------------------------------------------------------------------------------------------------------

    async def _wait(self, key: JobKey) -> None:
        """Wait for as long as another server has written a moment ago, and for a turn."""
        view = self._cache.job(*key)
        if view is not None and view.workflow.texts.report:
            since = self._clock.wall() - written_at(view.workflow.texts.report)
            if 0 <= since < self._between_seconds:
                await self.batches.pause(self._between_seconds - since)
        await self._turns.wait(key[0])

    async def _write(self, key: JobKey, batch: _Batch, last: OwnWrite | None) -> OwnWrite | None:
        if self.batches.is_closing and not batch.reports:
            return last
        view = self._cache.job(*key)
        if view is None or view.workflow.has_ended or view.workflow.round != batch.round:
            return last  # the replicas that reported are gone
        return await self._pool.run(lambda: self._put(view, batch, last), tenant=key[0])

    def _put(self, view: ServedJob, batch: _Batch, last: OwnWrite | None) -> OwnWrite | None:
        """Merge the reports into the parameter, and write it unless another server has changed it meanwhile; in a
        thread.

        The patch changes this parameter alone and tests its old value, not the resourceVersion, which Argo changes all
        the time. Raises DiflowError.
        """
        read = view.workflow
        if last is not None and last.is_newer(read):
            read = replace(read, texts=replace(read.texts, report=last.text))

        def change(read: JobRecord) -> tuple[str, list[dict[str, Any]]] | None:
            now = self._clock.wall()
            if read.has_ended or read.round != batch.round:
                return None
            if not batch.reports and now - written_at(read.texts.report or "") < BEAT_SECONDS / 2:
                return None  # another server has written that it listens
            text = fold(read.texts.report or "", batch.reports, shape(view, read), now=now, listening=self._listening)
            return text, _change(read, text)

        return merged(self._cluster, read, change) or last


def shape(view: ServedJob, read: JobRecord | None = None) -> Shape:
    """The job's current allocation, for `fold`."""
    read = read or view.workflow
    elastic = read.elastic
    nodes = {pod.host for pod in view.members if pod is not None and pod.task == elastic and pod.host}
    return Shape(
        read.round, elastic, max(1, len(nodes)), read.running, read.spec.deadlines is not None, read.notes.pool
    )


def _due(view: ServedJob, deadlines: Deadlines) -> float:
    """When it has to be written of this job that a server listens."""
    found = signals.of(view.workflow.texts.report or "")
    began = (pod.created for pod in view.members if pod is not None)
    return signals.next_write(found, deadlines, round_=view.workflow.round, began=began)


def _change(read: JobRecord, text: str) -> list[dict[str, Any]]:
    parameters, report = "/spec/arguments/parameters", read.texts.report
    if read.texts.report_at is None:
        return patch(read, f"{parameters}/-", {"name": keys.PARAM_PROFILINGS, "value": text})
    place = f"{parameters}/{read.texts.report_at}"
    tests = [(f"{place}/name", keys.PARAM_PROFILINGS)]
    if report is not None and can_be_tested(report):
        tests.append((f"{place}/value", report))
    return patch(read, f"{place}/value", text, *tests)
