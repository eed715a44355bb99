"""Sends the writes: the only part of the allocator that changes objects in the cluster."""

from __future__ import annotations

import threading
import traceback
from collections import Counter, deque
from collections.abc import Callable, Container, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Protocol

import structlog

from diflow.allocator.watch.job import Job
from diflow.allocator.write.backoffs import Backoffs
from diflow.allocator.write.patches import NextPart, Note, Write, rebased
from diflow.allocator.write.round_robin import in_turns
from diflow.common import keys
from diflow.common.clock import Clock
from diflow.common.durations import timestamp
from diflow.common.errors import (
    ConflictError,
    DiflowError,
    InvalidError,
    LostLeadershipError,
    NotFoundError,
    TooLargeError,
)
from diflow.jobs.retry import repair
from diflow.kube.api import Cluster
from diflow.kube.events import event
from diflow.kube.kinds import EVENT, LEASE, POD, WORKFLOW, Kind
from diflow.kube.leader_election import Elector
from diflow.kube.reflector import Json
from diflow.record import chain
from diflow.record.allocation import signed
from diflow.record.identity import Identity
from diflow.record.job import JobRecord
from diflow.workflows.successor import successor

COMPONENT = "diflow-allocator"
# Objects known to be at their size limit, by uid and version; a forgotten one costs one more refused request.
_MOST_FULL = 10_000
# How often a write to a Workflow that has changed meanwhile is rebased on the newest version and retried.
_REBASES = 2
# Texts of decisions that are written in a cycle. The API server takes about a hundred writes a second: with the texts
# of thousands of new jobs, the next decisions would be late.
_MOST_TEXTS = 200
_TEXTS_AT_ONCE = 4
# How long writes may take while jobs of other namespaces wait for the next plan, if all before them took less.
_ALONE_SECONDS = 0.5

log = structlog.get_logger("diflow.allocator")


class LeftError(DiflowError):
    """The write was not sent: the next cycle derives it again."""


class Objects(Protocol):
    """What the process knows of the cluster's objects: `Caches`."""

    def apply_write_response(self, kind: Kind, obj: Json) -> None:
        """Know an object as the answer to a write shows it."""

    def read(self, obj: Json) -> JobRecord:
        """The record of a Workflow that was requested, whose namespace pays for reading it."""

    def may_read(self, namespace: str) -> bool:
        """Whether the namespace has a part of its share left."""

    def paid_by(self, namespace: str) -> AbstractContextManager[None]:
        """What this thread does in the block is paid by the namespace."""


class Executor:
    """Sends writes, several at a time and only while this process leads, and records Events.

    If a Workflow has changed meanwhile, but in no field that the write depends on, the write is rebased on its newest
    version. Other writes that conflict are dropped: the next cycle derives them again from the updated caches. A job
    whose writes are refused for other reasons, or conflict repeatedly, is backed off, longer each time.
    """

    def __init__(
        self,
        cluster: Cluster,
        elector: Elector,
        *,
        objects: Objects,
        progress: Callable[[], None],
        sign: Callable[[str, str], str],
        mark: Callable[[str], Mapping[str, str | None]],
        workers: int,
        clock: Clock,
    ) -> None:
        self._cluster = cluster.without_retries()
        self._elector = elector
        self._objects, self._progress = objects, progress
        self._sign, self._mark = sign, mark
        self._clock = clock
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="write")
        self.backoffs, self.pod_backoffs = Backoffs(clock), Backoffs(clock)
        """Of jobs whose Workflows, and whose pods, cannot be written. A job can give its places back without a write to
        its pods, so that only the former keeps it from being planned."""
        self._full: dict[str, str] = {}
        self._unwritable: dict[str, Identity] = {}
        self._events: list[tuple[Job, Note, str]] = []
        self.others_wait: Callable[[Set[str]], bool] = lambda _: False
        """Whether a job of another namespace than these waits. Then writes that take long are left for later."""
        self._are_left = threading.Event()
        self.left: set[str] = set()
        """The jobs of which a write of this cycle was left for the next one. It was not refused."""
        self._cycled = clock.monotonic()
        self.made = 0

    def begin_cycle(self) -> None:
        """A cycle begins: its writes may take as long as what is done before them, while others wait."""
        self._cycled = self._clock.monotonic()
        self.left.clear()

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def unwritable(self, jobs: Mapping[str, Job]) -> frozenset[str]:
        """The jobs whose Workflows are too large for any write: only their pods can be ended. A Workflow that has
        changed is tried again, as it may be smaller now."""
        self._unwritable = {
            key: known for key, known in self._unwritable.items() if key in jobs and jobs[key].read.identity == known
        }
        return frozenset(self._unwritable)

    def apply(self, writes: Sequence[Write], jobs: Mapping[str, Job]) -> list[Write]:
        """Send these writes, of the namespaces in turns, then their Events. Returns those that were refused, or left
        because a job of another namespace waits. Raises LostLeadershipError, after which no write is sent.

        An Event for each write would halve how many decisions the API server carries out a second, so they follow.
        """
        results = self._results(writes, jobs)
        self._back_off(writes, results, jobs)
        events, self._events = self._events, []
        self.record_events(events)
        return [write for write, result in zip(writes, results, strict=True) if isinstance(result, Exception)]

    def _results(self, writes: Sequence[Write], jobs: Mapping[str, Job]) -> list[Exception | bool]:
        """What became of each write. Raises LostLeadershipError."""
        namespaces = [write.target.namespace for write in writes]
        order = in_turns(range(len(writes)), namespaces.__getitem__)
        began, left = self._clock.monotonic(), Counter(namespaces)
        ends = began + max(_ALONE_SECONDS, began - self._cycled)
        results: list[Exception | bool] = [False] * len(writes)
        lost: LostLeadershipError | None = None
        self._are_left.clear()
        futures = [(i, self._pool.submit(self._one, writes[i], jobs.get(writes[i].job))) for i in order]
        for i, future in futures:
            try:
                results[i] = future.result()
            except LostLeadershipError as error:
                lost = error
            left[namespaces[i]] -= 1
            late = self._clock.monotonic() > ends
            if late and not self._are_left.is_set() and self.others_wait({one for one, n in left.items() if n > 0}):
                self._are_left.set()
            self._progress()
        if lost is not None:
            self._events.clear()
            raise lost
        return results

    def apply_texts(self, writes: Sequence[Write], jobs: Mapping[str, Job]) -> bool:
        """Send writes of texts of decisions, of each namespace in turns. Returns whether some are left for a cycle that
        follows at once.

        The answer to each is read. What a namespace cannot pay for is left too, until the next plan for other reasons.
        """
        left = deque(in_turns(writes, lambda write: write.target.namespace))
        tried = 0
        while left and tried < _MOST_TEXTS:
            some = [left.popleft() for _ in range(min(_TEXTS_AT_ONCE, _MOST_TEXTS - tried, len(left)))]
            tried += len(some)
            self.apply([write for write in some if self._objects.may_read(write.target.namespace)], jobs)
        return bool(left)

    def _one(self, write: Write, job: Job | None) -> Exception | bool:
        """Send a write. Returns whether something was changed, or why it was refused."""
        if self._are_left.is_set():
            return LeftError("a job of another namespace waits")
        try:
            answer = self._send_rebased(write, job)
        except LostLeadershipError:
            raise
        except (ConflictError, NotFoundError) as error:
            log.debug("the object has changed or is gone", job=write.job, object=write.target.name, why=str(error))
            return error
        except Exception as error:  # one faulty job must not stop the others
            # Patches contain the uid: the server calls one invalid if another object has that name now.
            if not isinstance(error, DiflowError):
                log.error("the job cannot be written", job=write.job, trace=traceback.format_exc(limit=-4))
            return error
        if answer is None:
            return False
        self._unwritable.pop(write.target.key, None)
        self.made += 1
        self._objects.apply_write_response(write.kind, answer)
        if write.note is not None:
            log.info(write.note.reason.lower(), job=write.job, message=write.note.message)
            if job is not None:
                self._events.append((job, write.note, write.target.version))
        return True

    def keep(self, jobs: Container[str]) -> None:
        """Forget the refusals of all other jobs, which do not exist any more."""
        self.backoffs.keep(jobs)
        self.pod_backoffs.keep(jobs)

    def next_retry(self) -> float:
        """When the first back-off ends, on the clock; infinity if there is none."""
        return min(self.backoffs.next_end(), self.pod_backoffs.next_end())

    def end_backoffs(self) -> list[str]:
        """End the back-offs that are over. Returns their jobs."""
        return sorted({*self.backoffs.end_expired(), *self.pod_backoffs.end_expired()})

    def refusals(self) -> dict[str, str]:
        """Why the last write was refused, by job in back-off."""
        return {**self.pod_backoffs.refusals, **self.backoffs.refusals}

    def is_backing_off(self, job: str) -> bool:
        """Whether the job is not reconciled now, as writes to its Workflow or its pods were refused."""
        return self.backoffs.is_active(job) or self.pod_backoffs.is_active(job)

    def _back_off(self, writes: Sequence[Write], results: Sequence[Exception | bool], jobs: Mapping[str, Job]) -> None:
        """Count these results, once for each job's Workflow and its pods: a refusal before a conflict before a
        success."""
        refused: dict[tuple[str, Kind], Exception] = {}
        conflicted: set[tuple[str, Kind]] = set()
        changed: set[tuple[str, Kind]] = set()
        self.left.update(w.job for w, result in zip(writes, results, strict=True) if isinstance(result, LeftError))
        for write, result in zip(writes, results, strict=True):
            of = write.job, write.kind
            if isinstance(result, ConflictError):
                conflicted.add(of)
            elif isinstance(result, Exception) and not isinstance(result, NotFoundError | LeftError):
                refused[of] = result
            elif result is True and not write.is_touch:
                changed.add(of)
        for (name, kind), error in refused.items():
            text = f"its {'pods' if kind is POD else 'Workflow'} cannot be changed: {error}"
            is_repeated = self._backoffs_of(kind).start(name, error)
            if is_repeated:
                self._report(jobs.get(name), text, salt=f"refused {kind.name}")
        for name, kind in conflicted - refused.keys():
            if why := self._backoffs_of(kind).conflicted(name):
                self._report(jobs.get(name), why, salt="conflicts")
        for name, kind in changed - conflicted - refused.keys():
            self._backoffs_of(kind).succeeded(name)

    def _backoffs_of(self, kind: Kind) -> Backoffs:
        return self.pod_backoffs if kind is POD else self.backoffs

    def _send_or_minimal(self, write: Write, epoch: str, job: Job | None) -> Json | None:
        """Send the write, in its minimal form if the object is at its size limit. None if it was dropped without loss,
        as it holds only the text of a decision or a pod's roster."""
        target, less = write.target, write.minimal()
        is_known = self._full.get(target.uid) == target.version
        if not is_known:
            try:
                return self._send(write, epoch)
            except TooLargeError as error:
                log.warning("the Workflow is full", job=write.job, object=target.name, why=str(error))
                if len(self._full) >= _MOST_FULL:
                    self._full.clear()
                self._full[target.uid] = target.version
                if write.part is None:
                    text = f"no annotation can be added to {write.kind.name} {target.name}: {error}; {_smaller(write)}"
                    self._report(job, text, salt=target.uid)
        if less is None:
            if write.is_only_text:
                return None
            raise InvalidError(
                f"{write.kind.name} {target.name} is at its size limit, and cannot be changed: {_smaller(write)}"
            )
        try:
            return self._send(less, epoch)
        except TooLargeError:
            if write.kind is WORKFLOW and job is not None and job.read.identity.uid == target.uid:
                self._unwritable[target.key] = target
                text = "its Workflow is too large to be changed: its replicas are ended, and it is not placed again"
                self._report(job, text, salt=f"{target.uid} unwritable")
            raise

    def _send_rebased(self, write: Write, job: Job | None) -> Json | None:
        """Send the write; if its Workflow has changed in fields that it does not depend on, rebase it and retry, unless
        Workflows of its namespace take so long to read that others would wait for it."""
        read = job.read if job is not None else None
        for _ in range(_REBASES):
            try:
                return self._send_or_minimal(write, str(self._elector.check()), job)
            except ConflictError:
                patches = write.kind is WORKFLOW and write.part is None and bool(write.body)
                may_read = self._objects.may_read(write.target.namespace)
                if read is None or not (patches and may_read and self._elector.is_leader()):
                    raise
                now = self._objects.read(
                    self._cluster.get(WORKFLOW, write.target.name, namespace=write.target.namespace)
                )
                again = rebased(write, read, now)
                if again is None:
                    raise
                write, read = again, now
        return self._send_or_minimal(write, str(self._elector.check()), job)

    def _send(self, write: Write, epoch: str) -> Json | None:
        if write.part is not None:
            return self._begin_part(write, write.part, epoch)
        term = self._elector.term(epoch)
        if write.is_repair:
            if not self._objects.may_read(write.target.namespace):
                return None  # the next cycle derives it again
            write = self._repaired(write)
        return self._cluster.patch(
            write.kind,
            write.target.name,
            write.patch(term, self._with_allocation(write)),
            namespace=write.target.namespace,
            subresource=write.subresource,
            manager=self._elector.writes_as(epoch),
        )

    def _with_allocation(self, write: Write) -> Mapping[str, str | None]:
        """The annotations with the proof of its allocation and the pool of its nodes, if it writes one."""
        if keys.ALLOCATION not in write.annotations:
            return {}
        text = write.annotations[keys.ALLOCATION]
        if not text:
            return {keys.PROOF: None}
        return {**self._mark(text), keys.PROOF: self._sign(write.target.uid, text) or None}

    def _repaired(self, write: Write) -> Write:
        """The write with its content, for the newest version of the Workflow. Pods of the removed nodes that Argo does
        not adopt are ended by the next writes for the job (`Job.forgotten`).

        Raises ConflictError if there is nothing to repair any more.
        """
        target = write.target
        with self._objects.paid_by(target.namespace):
            workflow = self._cluster.get(WORKFLOW, target.name, namespace=target.namespace)
            now = Identity.of(workflow)
            found = repair(workflow)
        if now.uid != target.uid or found is None:
            raise ConflictError(f"{target.key} has changed meanwhile")
        return replace(write, target=now, body=found[0])

    def _begin_part(self, write: Write, part: NextPart, epoch: str) -> Json:
        """Create the next Workflow of a job from the current one. Returns an existing one if it continues this one.

        Raises ConflictError if the job has changed since the decision, InvalidError if all names are taken.
        """
        target = write.target
        workflow = self._cluster.get(WORKFLOW, target.name, namespace=target.namespace)
        now = self._objects.read(workflow)
        if now.identity.uid != target.uid or now.has_ended or now.is_stopping or now.chain.continued_in or now.problem:
            raise ConflictError(f"{target.key} has changed meanwhile")
        given = self._mark(part.annotations.get(keys.ALLOCATION) or "")
        marks = {name: value for name, value in given.items() if value is not None}
        annotations = {**part.annotations, **marks, keys.EPOCH: self._elector.term(epoch)}
        for name in part.names:
            body = successor(
                workflow, name=name, parameters=part.parameters, annotations=annotations, labels=part.labels
            )
            try:
                self._elector.check()
                manager = self._elector.writes_as(epoch)
                made = self._cluster.create(WORKFLOW, body, namespace=target.namespace, manager=manager)
                return self._prove(made, manager)
            except ConflictError:
                there = self._cluster.get(WORKFLOW, name, namespace=target.namespace)
                if chain.continues(there) == (target.name, target.uid):
                    return there
        raise InvalidError(
            f"the names {' and '.join(part.names)} are taken: the job cannot continue in another Workflow"
        )

    def _prove(self, made: Json, manager: str) -> Json:
        """Sign the allocation of a Workflow after its creation, as the uid is unknown before. If this process is killed
        in between, the job is placed again."""
        its, (text, _) = Identity.of(made), signed(made)
        proof = self._sign(its.uid, text) if text else ""
        if not proof:
            return made
        body = {"metadata": {"uid": its.uid, "annotations": {keys.PROOF: proof}}}
        try:
            return self._cluster.patch(WORKFLOW, its.name, body, namespace=its.namespace, manager=manager)
        except (ConflictError, NotFoundError, InvalidError) as error:
            log.debug("the allocation is not signed", object=its.name, why=str(error))
            return made

    def record_events(self, events: Sequence[tuple[Job, Note, str]]) -> None:
        """Create Events on the Workflows of jobs side by side: each with its job, its note and its salt. The name of an
        Event is a digest, so that repeating it creates no second one."""
        self._record([(_workflow(job), note, salt) for job, note, salt in events])

    def record_own_events(self, events: Sequence[tuple[Note, str]]) -> None:
        """Create Events that concern the allocator itself, on its Lease: each with its note and its salt."""
        elector = self._elector
        on = {"apiVersion": LEASE.api_version, "kind": LEASE.name}
        on |= {"namespace": elector.namespace, "name": elector.name}
        self._record([(on, note, salt) for note, salt in events])

    def _record(self, events: Sequence[tuple[dict[str, str], Note, str]]) -> None:
        for _ in self._pool.map(lambda event: self._record_one(*event), events):
            self._progress()

    def _report(self, job: Job | None, text: str, *, salt: str) -> None:
        """Tell the owner of a job that a write was refused."""
        if job is not None:
            self._record_one(_workflow(job), Note("Refused", text, is_warning=True), salt)

    def _record_one(self, on: dict[str, str], note: Note, salt: str) -> None:
        body = event(
            on,
            reason=note.reason,
            message=note.message,
            is_warning=note.is_warning,
            component=COMPONENT,
            instance=self._elector.identity,
            salt=salt,
            now=timestamp(self._clock.wall()),
        )
        try:
            self._elector.check()
            self._cluster.create(EVENT, body, namespace=on["namespace"])
        except DiflowError as error:  # a missing Event must not stop the write
            log.debug("the Event was not created", on=on["name"], why=str(error))


def _workflow(job: Job) -> dict[str, str]:
    """What an Event about the job is on."""
    its = job.read.identity
    on = {"apiVersion": WORKFLOW.api_version, "kind": WORKFLOW.name, "uid": its.uid}
    return {**on, "namespace": its.namespace, "name": its.name}


def _smaller(write: Write) -> str:
    """What the owner of a job can do about an object that is at its size limit."""
    where = f"{write.kind.name.lower()} {write.target.name} -n {write.target.namespace}"
    return (
        f"remove annotations that neither diflow nor Argo has written (`kubectl annotate {where} KEY-`), or delete the "
        "job and submit it with fewer replicas or a smaller manifest"
    )
