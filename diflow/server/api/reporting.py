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
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

import structlog

from diflow.common import keys
from diflow.common.deadlines import Deadlines
from diflow.common.durations import backoff
from diflow.common.errors import DiflowError, InvalidError, NotFoundError
from diflow.kube.api import Cluster
from diflow.kube.kinds import WORKFLOW
from diflow.record import signals, untrusted
from diflow.record.signals import BEAT_SECONDS, BREAK_SECONDS
from diflow.server.api.cache import Cache, JobKey, ServedJob
from diflow.server.api.folding import Report, Shape, fold, written_at
from diflow.server.api.models import Profiling
from diflow.server.api.own_writes import OwnWrite, can_be_tested
from diflow.server.api.reading import ServedWorkflow, read_workflow
from diflow.server.api.turns import Turns
from diflow.server.http.errors import ApiError, unavailable
from diflow.server.http.pool import Pool

_TRIES: Final = 4
_MOST_JOBS: Final = 20_000
_BACKOFF_SECONDS: Final = (1.0, 30.0)
_LISTEN_SECONDS: Final = 1.0
# How much later than it is due, for the server that wrote last, and for the others.
_MINE_SECONDS: Final = (0.0, 2.0)
_OTHERS_SECONDS: Final = (4.0, 8.0)
_LATEST_SECONDS: Final = 5.0
# So many seconds of the common rate may be used at once after a pause.
_BURST_SECONDS: Final = 2.0
# Below so many jobs, nothing is removed from memory.
_TIDY_AT: Final = 256
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
class _Waiting:
    """One job's reports that are not written yet, by rank, and the task that writes them."""

    reports: dict[int, Report] = field(default_factory=dict)
    round: str = ""
    is_asked: bool = False
    """It is to be written that a server listens."""
    vitals: dict[int, _Vitals] = field(default_factory=dict)
    """Of ranks with a monitor: its last report."""
    writer: asyncio.Task[None] | None = None
    pause: asyncio.Future[Any] | None = None
    last: float = float("-inf")
    failures: int = 0


class Reporter:
    """Accepts and writes reports. `between_seconds` is the shortest time between two writes of one job, `rate` the
    most writes a second of all jobs.

    `clock` returns monotonic seconds, `wall` seconds since 1970; `sleep` is asyncio's. For one event loop.
    """

    def __init__(
        self,
        cluster: Cluster,
        cache: Cache,
        pool: Pool,
        *,
        between_seconds: float,
        rate: float,
        clock: Callable[[], float],
        wall: Callable[[], float],
        sleep: Callable[[float], Any],
        jitter: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._jitter = jitter
        self._cluster = cluster.without_retries(read_seconds=5.0, connect_seconds=3.0)
        self._cache = cache
        self._pool = pool
        self._between_seconds = between_seconds
        self._clock = clock
        self._wall = wall
        self._sleep = sleep
        self._turns = Turns(rate=rate, burst=_BURST_SECONDS * rate, clock=clock, sleep=sleep)
        self._waiting: dict[JobKey, _Waiting] = {}
        self._written: dict[JobKey, OwnWrite] = {}
        self._beats: dict[JobKey, tuple[str, float]] = {}
        self._listening: float | None = None
        self._looked = float("-inf")
        self._tidy_at = _TIDY_AT
        self._closing = False
        self.writes = 0
        """The number of writes that the API server has accepted."""

    @property
    def waiting(self) -> int:
        """The number of accepted reports that are not written yet."""
        return sum(len(waiting.reports) for waiting in self._waiting.values())

    @property
    def jobs(self) -> int:
        """The number of jobs with state in memory."""
        return len(self._waiting.keys() | self._written.keys())

    def take(self, view: ServedJob, rank: int, report: Report) -> None:
        """Accept a report; it replaces an older one of that rank. Raises ApiError (503) for too many jobs."""
        key = (view.namespace, view.name)
        waiting = self._of(key)
        if waiting.round != view.workflow.current:
            waiting.reports.clear()  # of replicas that are gone
            waiting.vitals.clear()
            waiting.round = view.workflow.current
        if view.workflow.deadlines is not None:
            report = _with_signs(waiting, view, rank, replace(report, at=self._wall()))
        waiting.reports[rank] = report
        if waiting.writer is None:
            waiting.writer = asyncio.ensure_future(self._write(key, waiting))

    async def listen(self, is_ready: Callable[[], bool]) -> None:
        """Write, while this server is ready, that it listens to the jobs with `health`; until cancelled."""
        while True:
            await asyncio.sleep(_LISTEN_SECONDS)
            if is_ready() and self._cache.is_fresh():
                self.beat()
            else:
                self._listening = None

    def beat(self) -> None:
        """Have it written of each job with `health` that a server listens, where that is due. To be called every few
        seconds while this server is ready: after a longer pause, or when its clock was set, it begins to listen."""
        now = self._wall()
        if self._listening is None or not 0 <= now - self._looked <= BREAK_SECONDS:
            self._listening = now
        self._looked = now
        beats: dict[JobKey, tuple[str, float]] = {}
        # Not at the same time as another server: each second write would conflict, and be followed by a read. The one
        # that wrote the last time goes on, and another one only if that one is late.
        for view in self._cache.jobs():
            workflow = view.workflow
            if workflow.deadlines is None or workflow.has_ended or not any(view.members):
                continue
            key, text = (view.namespace, view.name), workflow.profilings or ""
            last = self._beats.get(key)
            if last is None or last[0] != text:
                last = text, (written_at(text) or now - BEAT_SECONDS) + BEAT_SECONDS + self._later(key, text)
            if now >= last[1] and now < (due := _due(view, workflow.deadlines)):
                last = text, due + self._later(key, text)
            beats[key] = last
            if now < last[1]:
                continue
            try:
                waiting = self._of(key)
            except ApiError:
                continue
            if waiting.round != workflow.current:
                waiting.reports.clear()
                waiting.vitals.clear()
                waiting.round = workflow.current
            waiting.is_asked = True
            if waiting.writer is None:
                waiting.writer = asyncio.ensure_future(self._write(key, waiting))
        self._beats = beats

    def _later(self, key: JobKey, text: str) -> float:
        """How much later than it is due this server writes that it listens."""
        is_mine = self._written.get(key, OwnWrite()).text == text
        return self._jitter(*(_MINE_SECONDS if is_mine else _OTHERS_SECONDS))

    def _of(self, key: JobKey) -> _Waiting:
        """What waits of this job. Raises ApiError (503) for too many jobs."""
        waiting = self._waiting.get(key)
        if waiting is None:
            if len(self._waiting) >= self._tidy_at:
                self._forget_gone()
            if len(self._waiting) >= _MOST_JOBS:
                self._tidy()
            if len(self._waiting) >= _MOST_JOBS:
                raise unavailable("too many jobs report at once")
            waiting = self._waiting[key] = _Waiting()
        return waiting

    async def close(self, *, seconds: float = _LATEST_SECONDS) -> None:
        """Write all accepted reports now, within `seconds`."""
        self._closing = True
        self._turns.open()
        writers = [waiting.writer for waiting in self._waiting.values() if waiting.writer is not None]
        for waiting in self._waiting.values():
            if waiting.pause is not None:
                waiting.pause.cancel()
        if writers:
            _, late = await asyncio.wait(writers, timeout=seconds)
            for writer in late:
                writer.cancel()
        if self.waiting:
            log.warning("reports were lost", reports=self.waiting)

    # --- writing ------------------------------------------------------------------------------------------------------

    async def _write(self, key: JobKey, waiting: _Waiting) -> None:
        """Write a job's reports until none is left, at the allowed rate."""
        try:
            while waiting.reports or (waiting.is_asked and not self._closing):
                seconds = self._due(key, waiting) - self._clock()
                if seconds > 0 and not self._closing:
                    waiting.pause = asyncio.ensure_future(self._sleep(seconds))
                    await asyncio.wait([waiting.pause])
                await self._turns.wait(key[0])
                await self._flush(key, waiting)
                if self._closing and waiting.failures:
                    return
        finally:
            waiting.pause = waiting.writer = None

    def _due(self, key: JobKey, waiting: _Waiting) -> float:
        """The earliest time of the next write, on `clock`. Another server may just have written."""
        due = waiting.last + self._between_seconds
        if waiting.failures:
            due = max(due, waiting.last + backoff(_BACKOFF_SECONDS, waiting.failures - 1))
        view = self._cache.job(*key)
        if view is not None and view.workflow.profilings:
            since = self._wall() - written_at(view.workflow.profilings)
            if 0 <= since < self._between_seconds:
                due = max(due, self._clock() + self._between_seconds - since)
        return due

    async def _flush(self, key: JobKey, waiting: _Waiting) -> None:
        taken, waiting.reports = waiting.reports, {}
        waiting.is_asked = False
        round_ = waiting.round
        waiting.last = self._clock()
        try:
            view = self._cache.job(*key)
            if view is None or view.workflow.has_ended or view.workflow.current != round_:
                return  # the replicas that reported are gone
            await self._pool.run(lambda: self._put(key, taken, round_))
            waiting.failures = 0
        except NotFoundError:
            return
        except (DiflowError, ApiError) as error:
            waiting.failures += 1
            log.warning("reports are not written yet", job="/".join(key), why=str(error), failures=waiting.failures)
            self._restore(waiting, taken, round_)
        except asyncio.CancelledError:
            self._restore(waiting, taken, round_)
            raise
        except Exception as error:
            log.error("reports cannot be written", job="/".join(key), why=f"{type(error).__name__}: {error}")

    def _restore(self, waiting: _Waiting, taken: dict[int, Report], round_: str) -> None:
        if waiting.round == round_:
            waiting.reports = {**taken, **waiting.reports}

    def _forget_gone(self) -> None:
        """Forget the jobs that have ended; called when the number of jobs has doubled since the last time."""
        for key in self._idle():
            view = self._cache.job(*key)
            if view is None or view.workflow.has_ended:
                self._forget(key)
        self._tidy_at = max(_TIDY_AT, 2 * len(self._waiting))

    def _tidy(self) -> None:
        """Forget all jobs without waiting reports."""
        for key in self._idle():
            self._forget(key)

    def _idle(self) -> list[JobKey]:
        return [key for key, waiting in self._waiting.items() if waiting.writer is None and not waiting.reports]

    def _forget(self, key: JobKey) -> None:
        del self._waiting[key]
        self._written.pop(key, None)

    # --- in a thread --------------------------------------------------------------------------------------------------

    def _put(self, key: JobKey, reports: dict[int, Report], round_: str) -> None:
        """Merge the reports into the parameter, and write it unless another server has changed it meanwhile.

        The patch changes this parameter alone and tests its old value, not the resourceVersion, which Argo changes all
        the time. Raises DiflowError.
        """
        view = self._cache.job(*key)
        if view is None:
            return
        read, last = view.workflow, self._written.get(key, OwnWrite())
        if last.is_newer(read):
            read = replace(read, profilings=last.text)
        for attempt in range(_TRIES):
            if read.has_ended or read.current != round_:
                return
            if not reports and self._wall() - written_at(read.profilings or "") < BEAT_SECONDS / 2:
                return  # another server has written that it listens
            text = fold(read.profilings or "", reports, shape(view, read), now=self._wall(), listening=self._listening)
            try:
                answer = self._cluster.patch(
                    WORKFLOW,
                    read.name,
                    _change(read, text),
                    namespace=key[0],
                    manager=keys.SERVER,
                    metadata_only=True,
                )
            except InvalidError:
                if attempt + 1 == _TRIES:
                    raise
                read = read_workflow(self._cluster.get(WORKFLOW, read.name, namespace=key[0]))
                continue
            self.writes += 1
            self._written[key] = OwnWrite.of(read, text, answer)
            return


def shape(view: ServedJob, read: ServedWorkflow | None = None) -> Shape:
    """The job's current allocation, for `fold`."""
    read = read or view.workflow
    elastic = read.elastic
    nodes = {pod.node for pod in view.members if pod is not None and pod.task == elastic and pod.node}
    return Shape(read.current, elastic, max(1, len(nodes)), read.counts, read.deadlines is not None, read.pool)


def _due(view: ServedJob, deadlines: Deadlines) -> float:
    """When it has to be written of this job that a server listens."""
    found = signals.of(untrusted.mapping(view.workflow.profilings or ""))
    began = (untrusted.seconds(pod.created) for pod in view.members if pod is not None)
    return signals.next_write(found, deadlines, round_=view.workflow.current, began=began)


def _with_signs(waiting: _Waiting, view: ServedJob, rank: int, report: Report) -> Report:
    """The report with whether its replica is alive, and with the values of an earlier one that still waits: a monitor
    and the program of a replica report in turns."""
    body = report.body
    if rank < 0 or not isinstance(body, Profiling):
        return report
    before = waiting.reports.get(rank)
    is_alive = True
    if body.cpu_seconds is not None or body.log_bytes is not None:
        pod = view.members[rank] if rank < len(view.members) else None
        now = _Vitals(pod.uid if pod is not None else "", report.at, body.cpu_seconds or 0.0, body.log_bytes or 0)
        is_alive = now.has_moved(waiting.vitals.get(rank))
        waiting.vitals[rank] = now
    if before is None or not isinstance(before.body, Profiling):
        return replace(report, is_alive=is_alive)
    given = {name: getattr(body, name) for name in body.model_fields_set}
    return replace(report, body=before.body.model_copy(update=given), is_alive=is_alive or before.is_alive)


def _change(read: ServedWorkflow, text: str) -> list[dict[str, Any]]:
    tests: list[dict[str, Any]] = [{"op": "test", "path": "/metadata/uid", "value": read.uid}]
    parameters = "/spec/arguments/parameters"
    if read.profilings_at is None:
        parameter = {"name": keys.PARAM_PROFILINGS, "value": text}
        return [*tests, {"op": "add", "path": f"{parameters}/-", "value": parameter}]
    place = f"{parameters}/{read.profilings_at}"
    tests.append({"op": "test", "path": f"{place}/name", "value": keys.PARAM_PROFILINGS})
    if read.profilings is not None and can_be_tested(read.profilings):
        tests.append({"op": "test", "path": f"{place}/value", "value": read.profilings})
    return [*tests, {"op": "add", "path": f"{place}/value", "value": text}]
