"""Data shards of jobs: leases of workers, in a ConfigMap for each job (docs/decisions/0021).

An answer is sent when the ledger that it is of is stored. The requests of a job that arrive while a write is under way,
or less than `between_seconds` after it began, share the next one. A write names the version that it changes: of two
servers one conflicts, reads, and carries its requests out again.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Final

import structlog

from diflow.common import keys
from diflow.common.clock import Clock
from diflow.common.errors import (
    ConflictError,
    DiflowError,
    InvalidError,
    NotFoundError,
    UnauthorizedError,
    UnavailableError,
)
from diflow.kube.api import Cluster
from diflow.kube.kinds import CONFIG_MAP, WORKFLOW
from diflow.record import untrusted
from diflow.record.namespace.shards import KEY, StoredLedger, name_of
from diflow.record.pod import PodRecord
from diflow.server.api.batches import JobBatches, Pace
from diflow.server.api.cache import Cache, JobKey, ServedJob
from diflow.server.http.errors import ApiError, conflict, from_diflow, unavailable
from diflow.server.http.pool import Pool
from diflow.server.http.turns import Turns
from diflow.shards.ledger import GRACE_SECONDS, MOST_BYTES, Answer, Ask, Ledger, Living

_TRIES: Final = 8
_MOST_WAITING: Final = 4096
_MOST_JOBS: Final = 256  # whose ledgers are kept: at most 64 MiB
_SKEW_SECONDS: Final = GRACE_SECONDS + 1.0  # of two servers; the ledger has whole seconds

log = structlog.get_logger("diflow.server")


@dataclass(slots=True, eq=False)
class _Waiting:
    ask: Ask
    pod: PodRecord
    answered: asyncio.Future[Answer]


@dataclass(slots=True)
class _Batch:
    view: ServedJob
    waiting: list[_Waiting]


def _merge(earlier: _Batch, later: _Batch) -> _Batch:
    earlier.waiting += later.waiting
    earlier.view = later.view
    return earlier


class Shards:
    """The requests for shards of all jobs, at whose writes the namespaces take `turns`. For one event loop."""

    def __init__(
        self, cluster: Cluster, cache: Cache, pool: Pool, *, between_seconds: float, turns: Turns, clock: Clock
    ) -> None:
        self._cluster = cluster.without_retries(read_seconds=5.0, connect_seconds=3.0)
        self._cache = cache
        self._pool = pool
        self._clock = clock
        pace = Pace(between_seconds, before=lambda key: turns.wait(key[0]))
        self.batches = JobBatches(self._serve, _merge, what="shards", pace=pace, clock=clock, most_kept=_MOST_JOBS)

    async def ask(self, view: ServedJob, ask: Ask, pod: PodRecord) -> Answer:
        """Carry out a request of a pod, and return the answer when it is stored. Raises ApiError.

        A pod of an earlier round gets no more shards.

        After a 503 it may have been carried out: a request that is sent again has the same effect.
        """
        key = (view.namespace, view.name)
        batch = self.batches.waiting.get(key)
        if batch is not None and len(batch.waiting) >= _MOST_WAITING:
            raise unavailable(f"{_MOST_WAITING} requests of this job wait already")
        waiting = _Waiting(ask, pod, asyncio.get_running_loop().create_future())
        self.batches.add(key, _Batch(view, [waiting]))
        return await waiting.answered

    async def _serve(self, key: JobKey, batch: _Batch, stored: StoredLedger | None) -> StoredLedger | None:
        """Answer the requests. Returns what is stored now, None if that is not known."""
        results: list[Answer | ApiError]
        try:
            results, stored = await self._pool.run(lambda: self._write(batch, stored), tenant=key[0])
        except ApiError as error:
            results, stored = [error] * len(batch.waiting), None
        except Exception:
            log.exception("shards cannot be stored", namespace=batch.view.namespace, job=batch.view.name)
            results, stored = [unavailable("the shards cannot be stored now")] * len(batch.waiting), None
        for waiting, result in zip(batch.waiting, results, strict=True):
            if waiting.answered.done():  # its caller is gone
                continue
            if isinstance(result, ApiError):
                waiting.answered.set_exception(result)
            else:
                waiting.answered.set_result(result)
        return stored

    # --- in a thread ----------------------------------------------------------------------------------------------

    def _write(self, batch: _Batch, stored: StoredLedger | None) -> tuple[list[Answer | ApiError], StoredLedger | None]:
        """Carry out the requests on the stored ledger, and store it. Raises ApiError."""
        view = batch.view
        for _ in range(_TRIES):
            try:
                is_fresh = stored is None
                stored = stored or self._read(view)
                ledger = _parse(view, stored)
                before = ledger.at
                results = self._carry_out(view, ledger, batch.waiting)
                is_same = ledger.text(at=before) == stored.text  # but for the time
                if not is_same or view.workflow.identity.uid not in stored.owners:
                    return results, self._store(view, stored, ledger.text())
                if is_fresh:
                    return results, None
                stored = None  # the answer tells what is stored now, perhaps by another server
            except ConflictError:
                stored = None
            except UnauthorizedError as error:
                raise conflict(
                    f"the server may not keep ledgers of shards in namespace {view.namespace}: "
                    f"kubectl apply -n {view.namespace} -k manifests/shards ({error})"
                ) from None
            except InvalidError as error:  # somebody has made it immutable, or it has other data
                raise conflict(
                    f"ConfigMap {name_of(view.name)} cannot be written ({error.message}): delete it to begin again "
                    "with all shards"
                ) from None
            except DiflowError as error:  # whether it was stored is not known
                raise from_diflow(error) from None
        raise unavailable("others write the shards of this job at the same time")

    def _carry_out(self, view: ServedJob, ledger: Ledger, batch: list[_Waiting]) -> list[Answer | ApiError]:
        """Carry out the requests on the ledger. Pods of earlier rounds get no more shards."""
        living, now = self._living(view), self._clock.wall()
        latest = self._cache.job(view.namespace, view.name) or view
        asks = [replace(one.ask, wants=0) if latest.had(one.pod) else one.ask for one in batch]
        return [_one(ledger, ask, now, living) for ask in asks]

    def _read(self, view: ServedJob) -> StoredLedger:
        found = self._cluster.find(CONFIG_MAP, name_of(view.name), namespace=view.namespace)
        workflows = {view.workflow.identity.uid, *(uid for _, uid in view.earlier)}
        return StoredLedger() if found is None else StoredLedger.read(found, workflows)

    def _store(self, view: ServedJob, stored: StoredLedger, text: str) -> StoredLedger:
        workflow, name = view.workflow.identity, name_of(view.name)
        owner = workflow.owner_reference(WORKFLOW.api_version, WORKFLOW.name)
        version = {"resourceVersion": stored.version} if stored.version else {}
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "ownerReferences": [owner], **version},
            "data": {KEY: text},
        }
        if not stored.version:
            made = self._cluster.create(CONFIG_MAP, body, namespace=view.namespace, manager=keys.SERVER)
        else:
            try:
                made = self._cluster.replace(CONFIG_MAP, name, body, namespace=view.namespace, manager=keys.SERVER)
            except NotFoundError as error:
                raise ConflictError(str(error)) from None  # deleted meanwhile
        return StoredLedger.read(made, {workflow.uid})

    def _living(self, view: ServedJob) -> Living:
        """The pods that have not ended, as of when the copy of the pods was last known to be complete.

        Those of an earlier round save their checkpoints while they end, so their shards are not given to others yet.
        """
        as_of = self._clock.wall() - self._cache.pods.age_seconds - _SKEW_SECONDS
        return Living(self._cache.living(view.namespace, view.name), as_of)


def _parse(view: ServedJob, stored: StoredLedger) -> Ledger:
    if not stored.text:
        return Ledger()
    try:
        if len(stored.text) > 2 * MOST_BYTES:
            raise ValueError("is too long")
        return Ledger.read(untrusted.load(stored.text))
    except ValueError as error:
        raise conflict(f"ConfigMap {name_of(view.name)} {error}: delete it to begin again with all shards") from None


def _one(ledger: Ledger, ask: Ask, now: float, living: Living) -> Answer | ApiError:
    try:
        return ledger.ask(ask, now=now, living=living)
    except (ConflictError, InvalidError, UnavailableError) as error:
        if isinstance(error, UnavailableError):
            return unavailable(str(error), after_seconds=5.0)
        return from_diflow(error)
