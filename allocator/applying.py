"""Makes writes happen: the only part of the allocator that changes anything in the cluster."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import structlog

from diflow import chain, keys
from diflow.allocator.carrying import Job, timestamp
from diflow.allocator.elector import Elector
from diflow.allocator.reading import read_workflow
from diflow.allocator.writes import NextPart, Note, Write
from diflow.errors import ConflictError, DiflowError, InvalidError, LostLeadershipError, NotFoundError, UnavailableError
from diflow.kube.api import Cluster
from diflow.kube.kinds import EVENT, LEASE, WORKFLOW, Kind
from diflow.kube.reflector import Json
from diflow.successor import successor

COMPONENT = "diflow-allocator"
# A message of an Event may have 1024 bytes.
_LONGEST_MESSAGE = 1000
_BACKOFF_SECONDS = (0.5, 60.0)

log = structlog.get_logger("diflow.allocator")


class Applier:
    """Sends writes, several at a time, each only while this process leads; tells of them in Events.

    A write that is refused because its object has changed is dropped: the caches will show why, and the next cycle
    derives it anew. A job of which writes are refused for other reasons is left alone for a while, longer each time.
    """

    def __init__(
        self,
        cluster: Cluster,
        elector: Elector,
        *,
        observed: Callable[[Kind, Json], None],
        workers: int = 16,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._cluster = cluster.asked_once()
        self._elector = elector
        self._observed = observed
        self._clock, self._wall = clock, wall
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="write")
        self._held: dict[str, float] = {}
        self._tries: dict[str, tuple[int, float]] = {}
        self.refusals: dict[str, str] = {}
        """Why the last write for a job was refused, for those that are held."""
        self.made = 0

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def is_held(self, job: str) -> bool:
        """The job is left alone for now, because writes for it were refused."""
        return self._clock() < self._held.get(job, -math.inf)

    def held(self) -> frozenset[str]:
        """The jobs that are left alone for now."""
        return frozenset(self._held)

    def next_release(self) -> float | None:
        """When the first held job may be tried again, on the clock; None if there is none."""
        return min(self._held.values(), default=None)

    def release(self) -> list[str]:
        """Take the jobs that may be tried again off the list: there may be nothing left to write for them."""
        now = self._clock()
        out = [job for job, until in self._held.items() if until <= now]
        for job in out:
            del self._held[job]
            self.refusals.pop(job, None)
        return out

    def apply(self, writes: Sequence[Write], jobs: Mapping[str, Job]) -> bool:
        """Make these writes. True if all were made. Raises LostLeadershipError, and then makes no more."""
        results = [self._pool.submit(self._one, write, jobs.get(write.job)) for write in writes]
        made = True
        lost: LostLeadershipError | None = None
        for result in results:
            try:
                made = result.result() and made
            except LostLeadershipError as error:
                lost = error
        if lost is not None:
            raise lost
        return made

    def _one(self, write: Write, job: Job | None) -> bool:
        epoch = self._elector.check()
        try:
            answer = self._send(write, str(epoch))
        except (ConflictError, NotFoundError) as error:
            log.debug("changed meanwhile", job=write.job, object=write.target.name, why=str(error))
            return False
        except InvalidError as error:
            # Merge patches name the uid: another object of that name makes the server call the patch invalid.
            self.hold(write.job, error)
            return False
        except UnavailableError as error:
            self.hold(write.job, error)
            return False
        self._tries.pop(write.job, None)
        self.made += 1
        self._observed(write.kind, answer)
        if write.note is not None:
            log.info(write.note.reason.lower(), job=write.job, message=write.note.message)
            if job is not None:
                self.tell(job, write.note, salt=write.target.version)
        return True

    def _send(self, write: Write, epoch: str) -> Json:
        if write.part is not None:
            return self._begin_part(write, write.part, epoch)
        return self._cluster.patch(
            write.kind,
            write.target.name,
            write.patch(epoch),
            namespace=write.target.namespace,
            subresource=write.subresource,
        )

    def _begin_part(self, write: Write, part: NextPart, epoch: str) -> Json:
        """Make the Workflow in which a job is to go on, of the one that it has now. If it is there already, that is it.

        Raises ConflictError if the job is not what it was when this was decided, InvalidError if all names are taken.
        """
        target = write.target
        workflow = self._cluster.get(WORKFLOW, target.name, namespace=target.namespace)
        now = read_workflow(workflow)
        if now.identity.uid != target.uid or now.has_ended or now.is_stopping or now.continued_in or now.problem:
            raise ConflictError(f"{target.key} has changed meanwhile")
        annotations = {**part.annotations, keys.EPOCH: epoch}
        for name in part.names:
            body = successor(workflow, name=name, parameters=part.parameters, annotations=annotations)
            try:
                self._elector.check()
                return self._cluster.create(WORKFLOW, body, namespace=target.namespace)
            except ConflictError:
                there = self._cluster.get(WORKFLOW, name, namespace=target.namespace)
                if chain.continues(there) == (target.name, target.uid):
                    return there
        raise InvalidError(f"the names {' and '.join(part.names)} are taken: the job cannot go on in another Workflow")

    def tell(self, job: Job, note: Note, *, salt: str) -> None:
        """Make an Event on the job's Workflow. A second one of the same name is the same Event: no harm."""
        identity = job.read.identity
        on = {"apiVersion": "argoproj.io/v1alpha1", "kind": WORKFLOW.name, "uid": identity.uid}
        self._tell({**on, "namespace": identity.namespace, "name": identity.name}, note, salt=salt)

    def tell_all(self, note: Note, *, salt: str) -> None:
        """Make an Event that concerns no job but the allocator, on its Lease."""
        elector = self._elector
        on = {"apiVersion": "coordination.k8s.io/v1", "kind": LEASE.name}
        self._tell({**on, "namespace": elector.namespace, "name": elector.name}, note, salt=salt)

    def _tell(self, on: dict[str, str], note: Note, *, salt: str) -> None:
        digest = hashlib.sha256(f"{on.get('uid', '')} {salt} {note.reason} {note.message}".encode()).hexdigest()[:16]
        now = timestamp(self._wall())
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{on['name']}.{digest}", "namespace": on["namespace"]},
            "involvedObject": on,
            "reason": note.reason,
            "message": note.message[:_LONGEST_MESSAGE],
            "type": "Warning" if note.is_warning else "Normal",
            "source": {"component": COMPONENT},
            "reportingComponent": COMPONENT,
            "reportingInstance": self._elector.identity[:128],
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        try:
            self._elector.check()
            self._cluster.create(EVENT, event, namespace=on["namespace"])
        except DiflowError as error:  # a story that is not told must not stop what it is about
            log.debug("no event", on=on["name"], why=str(error))

    def hold(self, job: str, error: Exception) -> None:
        """Leave a job alone for a while, longer each time."""
        low, high = _BACKOFF_SECONDS
        now = self._clock()
        before, at = self._tries.get(job, (0, now))
        tries = before + 1 if now - at < 2 * high else 1
        pause = min(high, low * 2.0 ** min(tries - 1, 10))
        if isinstance(error, UnavailableError) and error.retry_after_seconds:
            pause = max(pause, min(error.retry_after_seconds, high))
        self._tries[job] = (tries, now)
        self._held[job] = max(self._held.get(job, 0.0), now + pause)
        self.refusals[job] = str(error)
        log.warning("refused", job=job, why=str(error), again_seconds=round(pause, 1))
