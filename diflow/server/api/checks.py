"""Results of the node checks of jobs: accepts them, and writes them into an annotation of the job's Workflow.

A pod repeats its report until it is answered that the work may begin. So a result that is lost with this process, or
that another server has overwritten, comes again, and nothing is answered from memory: the answer is of what is stored.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import structlog

from diflow.common import keys
from diflow.common.errors import DiflowError, InvalidError, NotFoundError
from diflow.kube.api import Cluster
from diflow.kube.kinds import WORKFLOW
from diflow.record import nodecheck, untrusted
from diflow.record.nodecheck import FIGURES, UID_CHARACTERS, Entry, Judge, Record
from diflow.server.api.cache import Cache, JobKey, ServedJob
from diflow.server.api.models import NodeCheckReport
from diflow.server.api.own_writes import OwnWrite, can_be_tested
from diflow.server.api.reading import ServedPod, ServedWorkflow, read_workflow
from diflow.server.http.errors import ApiError, conflict, unavailable
from diflow.server.http.pool import Pool

_TRIES: Final = 4
_MOST_JOBS: Final = 20_000
_LONGEST_PAUSE_SECONDS: Final = 30.0
_PLACE: Final = f"/metadata/annotations/{keys.NODE_CHECK.replace('/', '~1')}"

log = structlog.get_logger("diflow.server")


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the work of a replica may begin. `reason`: why not yet."""

    may_begin: bool
    reason: str
    found: int
    wanted: int


@dataclass(slots=True)
class _Waiting:
    entries: dict[int, Entry] = field(default_factory=dict)
    round: str = ""
    began: float = math.inf
    """When the first of the checks began that have reported since the last write, in seconds since 1970."""
    writer: asyncio.Task[None] | None = None
    written: OwnWrite = field(default_factory=OwnWrite)


class Checks:
    """The results of all jobs. For one event loop. `wall`: seconds since 1970."""

    def __init__(
        self,
        cluster: Cluster,
        cache: Cache,
        pool: Pool,
        *,
        between_seconds: float,
        wall: Callable[[], float],
        sleep: Callable[[float], Any],
    ) -> None:
        self._cluster = cluster.without_retries(read_seconds=5.0, connect_seconds=3.0)
        self._cache = cache
        self._pool = pool
        self._between_seconds = between_seconds
        self._wall = wall
        self._sleep = sleep
        self._waiting: dict[JobKey, _Waiting] = {}
        self._judge = Judge()

    def take(self, view: ServedJob, pod: ServedPod, rank: int, body: NodeCheckReport) -> Verdict:
        """Accept the result of a pod, and say whether its work may begin. Raises ApiError."""
        read = view.workflow
        if not read.check_seconds:
            raise conflict("this job has no node check")
        entry = Entry(
            pod.uid[:UID_CHARACTERS],
            {name: float(f"{value:.4g}") for name, value in body.figures.items() if name in FIGURES},
            nodecheck.one_line(body.failed),
            tuple(body.unmet),
        )
        record = Record.parse(read.check_text)
        if record.round != read.current or record.entries.get(rank) != entry:
            self._keep(view, rank, entry, began=self._wall() - min(body.elapsed_seconds, read.check_seconds))
        return self._verdict(view, record, rank)

    async def close(self) -> None:
        """Stop writing. What was not written comes again, to another server."""
        for waiting in list(self._waiting.values()):
            if waiting.writer is not None:
                waiting.writer.cancel()

    def _verdict(self, view: ServedJob, record: Record, rank: int) -> Verdict:
        read = view.workflow
        pods = {rank: pod for rank, pod in enumerate(view.members) if pod is not None}
        wanted = len(view.members)
        found = record.of({rank: pod.uid for rank, pod in pods.items()}) if record.round == read.current else {}
        # Its own result has to be there: if it alone was started again, the results of the others are old.
        if rank not in found or not nodecheck.is_ready(
            record, len(found), wanted, now=self._wall(), timeout_seconds=read.check_seconds
        ):
            return Verdict(False, f"{len(found)} of {wanted} replicas have been checked", len(found), wanted)
        faults = self._judge.faults(
            (view.namespace, view.name),
            record,
            {rank: (pods[rank].task, pods[rank].node, pods[rank].uid) for rank in found},
        )
        if faults and read.may_move:
            return Verdict(False, f"is placed again without {nodecheck.summary(faults)}", len(found), wanted)
        return Verdict(True, "", len(found), wanted)

    def _keep(self, view: ServedJob, rank: int, entry: Entry, *, began: float) -> None:
        key = (view.namespace, view.name)
        waiting = self._waiting.get(key)
        if waiting is None:
            if len(self._waiting) >= _MOST_JOBS:
                raise unavailable("too many jobs report at once")
            waiting = self._waiting[key] = _Waiting()
        if waiting.round != view.workflow.current:
            waiting.entries.clear()  # of pods that are gone
            waiting.round, waiting.began = view.workflow.current, math.inf
        waiting.entries[rank] = entry
        waiting.began = min(waiting.began, began)
        if waiting.writer is None:
            waiting.writer = asyncio.ensure_future(self._write(key, waiting))

    async def _write(self, key: JobKey, waiting: _Waiting) -> None:
        """Write while results come, at most once in `between_seconds`, and less and less often if it is refused: the
        pods send their results again."""
        pause = self._between_seconds
        try:
            while waiting.entries:
                entries, waiting.entries = waiting.entries, {}
                began, waiting.began = waiting.began, math.inf
                round_ = waiting.round
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
                try:
                    await self._pool.run(partial(self._put, key, waiting, entries, round_, began))
                    pause = self._between_seconds
                except NotFoundError:
                    return
                except (DiflowError, ApiError) as error:
                    log.warning("results of a node check are not written", job="/".join(key), why=str(error))
                except Exception as error:
                    log.error("results cannot be written", job="/".join(key), why=f"{type(error).__name__}: {error}")
                await self._sleep(pause)
        finally:
            self._waiting.pop(key, None)

    # --- in a thread ----------------------------------------------------------------------------------------------

    def _put(self, key: JobKey, waiting: _Waiting, entries: dict[int, Entry], round_: str, began: float) -> None:
        """Merge the results into the annotation, and write it unless another server has changed it meanwhile."""
        view = self._cache.job(*key)
        if view is None:
            return
        read, last = view.workflow, waiting.written
        if last.is_newer(read):
            read = replace(read, check_text=last.text)
        pods = {rank: pod.uid for rank, pod in enumerate(view.members) if pod is not None}
        is_ours = True
        for attempt in range(_TRIES):
            if read.has_ended or read.current != round_:
                return
            text = nodecheck.fold(read.check_text, round_, entries, pods, since=began)
            if text == read.check_text:
                return
            try:
                answer = self._cluster.patch(
                    WORKFLOW,
                    read.name,
                    _change(read, text, is_ours=is_ours),
                    namespace=key[0],
                    manager=keys.SERVER,
                    metadata_only=True,
                )
            except InvalidError:
                if attempt + 1 == _TRIES:
                    raise
                found = self._cluster.get(WORKFLOW, read.name, namespace=key[0])
                read = read_workflow(found)
                there = untrusted.sub(found, "metadata", "annotations").get(keys.NODE_CHECK)
                is_ours = there == (read.check_text or None)
                continue
            waiting.written = OwnWrite.of(read, text, answer)
            return


def _change(read: ServedWorkflow, text: str, *, is_ours: bool) -> list[dict[str, Any]]:
    """The patch that replaces the results as they were read. `is_ours`: the annotation still has the value that was
    read."""
    tests: list[dict[str, Any]] = [{"op": "test", "path": "/metadata/uid", "value": read.uid}]
    if is_ours and can_be_tested(read.check_text):
        # null is only equal to what is not there: the cache may not have the first write yet.
        tests.append({"op": "test", "path": _PLACE, "value": read.check_text or None})
    return [*tests, {"op": "add", "path": _PLACE, "value": text}]
