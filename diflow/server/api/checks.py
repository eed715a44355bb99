"""Results of the node checks of jobs: accepts them, and writes them into an annotation of the job's Workflow.

A pod repeats its report until it is answered that the work may begin. So a result that is lost with this process, or
that another server has overwritten, comes again, and nothing is answered from memory: the answer is of what is stored.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from diflow.common import keys
from diflow.common.clock import Clock
from diflow.kube.api import Cluster
from diflow.record import nodecheck
from diflow.record.job import JobRecord
from diflow.record.nodecheck import FIGURES, LONGEST, UID_CHARACTERS, Entry, Judge, Record
from diflow.record.pod import PodRecord
from diflow.server.api.batches import JobBatches, Pace
from diflow.server.api.cache import Cache, JobKey, ServedJob
from diflow.server.api.models import NodeCheckAnswer, NodeCheckReport
from diflow.server.api.own_writes import OwnWrite, can_be_tested, merged, patch
from diflow.server.http.errors import conflict
from diflow.server.http.pool import Pool
from diflow.server.http.turns import Turns

_BACKOFF_SECONDS: Final = (2.0, 30.0)
_PLACE: Final = f"/metadata/annotations/{keys.NODE_CHECK.replace('/', '~1')}"


@dataclass(slots=True)
class _Batch:
    """One job's results that are not written yet, by rank."""

    round: str
    entries: dict[int, Entry]
    began: float
    """When the first of these checks began, in seconds since 1970."""


def _merge(earlier: _Batch, later: _Batch) -> _Batch:
    if earlier.round != later.round:
        return later  # the pods that were checked before are gone
    earlier.entries.update(later.entries)
    earlier.began = min(earlier.began, later.began)
    return earlier


class Checks:
    """The results of all jobs, at whose writes the namespaces take `turns`. For one event loop."""

    def __init__(
        self, cluster: Cluster, cache: Cache, pool: Pool, *, between_seconds: float, turns: Turns, clock: Clock
    ) -> None:
        self._cluster = cluster.without_retries(read_seconds=5.0, connect_seconds=3.0)
        self._cache = cache
        self._pool = pool
        self._clock = clock
        self._judge = Judge()
        pace = Pace(between_seconds, _BACKOFF_SECONDS, before=lambda key: turns.wait(key[0]))
        self._batches = JobBatches(self._write, _merge, what="results of a node check", pace=pace, clock=clock)

    def take(self, view: ServedJob, pod: PodRecord, rank: int, body: NodeCheckReport) -> NodeCheckAnswer:
        """Accept the result of a pod, and say whether its work may begin. Raises ApiError."""
        read, limits = view.workflow, view.workflow.spec.node_check
        if limits is None:
            raise conflict("this job has no node check")
        entry = Entry(
            pod.uid[:UID_CHARACTERS],
            {name: float(f"{value:.4g}") for name, value in body.figures.items() if name in FIGURES},
            nodecheck.one_line(body.failed),
            tuple(body.unmet),
        )
        record = Record.parse(read.texts.check_text)
        if record.round != read.round or record.entries.get(rank) != entry:
            began = self._clock.wall() - min(body.elapsed_seconds, limits.timeout_seconds)
            self._batches.add((view.namespace, view.name), _Batch(read.round, {rank: entry}, began))
        return self._verdict(view, record, rank, limits.timeout_seconds)

    async def close(self) -> None:
        """Stop writing. What was not written comes again, to another server."""
        await self._batches.close(seconds=0.0)

    def _verdict(self, view: ServedJob, record: Record, rank: int, timeout_seconds: float) -> NodeCheckAnswer:
        read = view.workflow
        pods = {rank: pod for rank, pod in enumerate(view.members) if pod is not None}
        wanted = len(view.members)
        found = record.of({rank: pod.uid for rank, pod in pods.items()}) if record.round == read.round else {}
        reason = ""
        # Its own result has to be there: if it alone was started again, the results of the others are old.
        if rank not in found or not nodecheck.is_ready(
            record, len(found), wanted, now=self._clock.wall(), timeout_seconds=timeout_seconds
        ):
            reason = f"{len(found)} of {wanted} replicas have been checked"
        elif read.may_be_checked_again:
            faults = self._judge.faults(
                (view.namespace, view.name),
                record,
                {rank: (pods[rank].task, pods[rank].host, pods[rank].uid) for rank in found},
            )
            reason = f"is placed again without {nodecheck.summary(faults)}" if faults else ""
        return NodeCheckAnswer(verdict="wait" if reason else "go", reason=reason, checked=len(found), replicas=wanted)

    async def _write(self, key: JobKey, batch: _Batch, last: OwnWrite | None) -> OwnWrite | None:
        view = self._cache.job(*key)
        if view is None:
            return None
        return await self._pool.run(lambda: self._put(view, batch, last), tenant=key[0])

    def _put(self, view: ServedJob, batch: _Batch, last: OwnWrite | None) -> OwnWrite | None:
        """Merge the results into the annotation, and write it unless another server has changed it meanwhile; in a
        thread. Raises DiflowError."""
        read = view.workflow
        if last is not None and last.is_newer(read):
            read = replace(read, texts=replace(read.texts, check_text=last.text))
        pods = {rank: pod.uid for rank, pod in enumerate(view.members) if pod is not None}

        def change(read: JobRecord) -> tuple[str, list[dict[str, Any]]] | None:
            if read.has_ended or read.round != batch.round:
                return None
            before = read.texts.check_text
            text = nodecheck.fold(before or "", batch.round, batch.entries, pods, since=batch.began)
            return (text, _change(read, text)) if text != before else None

        return merged(self._cluster, read, change) or last


def _change(read: JobRecord, text: str) -> list[dict[str, Any]]:
    """The patch that replaces the results as they were read."""
    before = read.texts.check_text
    # null is only equal to what is not there: the cache may not have the first write yet.
    is_tested = before is None or (len(before) <= LONGEST and can_be_tested(before))
    return patch(read, _PLACE, text, *([(_PLACE, before)] if is_tested else []))
