"""Scale requests: more or fewer replicas of a job. Status 200 means that the request is stored in the cluster.

Only the parameter `replicas` and the bounds are written, with a patch that names the resourceVersion that was read; the
allocator acts on them. A request with an Idempotency-Key is carried out once, however often and to whichever server it
is sent: the same patch writes the keys into an annotation.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from diflow.common import keys
from diflow.common.clock import SYSTEM, Clock
from diflow.common.errors import ConflictError, DiflowError, InvalidError, NotFoundError, UnavailableError
from diflow.common.limits import MOST_REPLICAS
from diflow.jobs import parts
from diflow.kube.api import Cluster
from diflow.kube.kinds import WORKFLOW
from diflow.record import chain
from diflow.record.job import JobRecord, record_of
from diflow.record.requests.changes import Draft, check_scalable
from diflow.record.requests.notes import Noted, Notes
from diflow.record.requests.ranges import elastic, scales, submitted_range
from diflow.server.api.cache import Cache
from diflow.server.http.errors import (
    ApiError,
    bad_request,
    conflict,
    from_diflow,
    not_found,
    unavailable,
    unprocessable,
)

_TRIES: Final = 8
_PAUSE_SECONDS: Final = 0.05
_LONGEST_SECONDS: Final = 8.0
_MOST_BEHIND: Final = 2
"""Parts of a job that the cache may be behind. Users can link any number of Workflows, and each is a request."""

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class ScaleRequest:
    """A request for `by` more replicas (fewer if negative) of `task` ("": the elastic task).

    `generation` is the round that the caller named, or None. `key` is the Idempotency-Key, or "".
    """

    namespace: str
    job: str
    by: int
    task: str = ""
    generation: str | None = None
    key: str = ""

    @property
    def digest(self) -> str:
        """The digest under which the key is stored."""
        return hashlib.sha256(self.key.encode()).hexdigest()[:16] if self.key else ""

    @property
    def fingerprint(self) -> str:
        """A digest of the request: a key may not be reused for another request."""
        return hashlib.sha256(f"{self.by} {self.task}".encode(errors="surrogatepass")).hexdigest()[:8]


def step(now: Draft, asked: ScaleRequest, *, running: Mapping[str, int]) -> Draft:
    """What to write for a request. `now`: the requests so far.

    A job that is not preemptible gets the desired number. For a preemptible job it is a bound for the allocator, and
    the first request counts from the job's current replicas (`running`).
    Raises ApiError: 400 for an unknown task, 409 below the minimum, 422 above the maximum.
    """
    job = now.job.spec
    name = asked.task or elastic(job.tasks, bounds=now.bounds)
    index = next((i for i, task in enumerate(job.tasks) if task.name == name), None)
    if index is None:
        raise bad_request(f"the job has no task {name}; it has {', '.join(task.name for task in job.tasks)}")
    task = job.tasks[index]
    desired = now.desired.get(name, task.replicas)
    if not job.is_preemptible:
        low, high, base = task.min_replicas or 1, task.max_replicas or MOST_REPLICAS, desired
    else:
        bounds = now.bounds.get(name)
        # A desired number equal to the submitted one is not read as a bound, so bounds were written; the notes keep the
        # range as submitted.
        own = now.notes.range_of(name, bounds)
        low, high = own or bounds or submitted_range(job, index, scaling=scales(job, now.bounds))
        base = desired if desired != task.replicas or own else running.get(name, desired)
    target = base + asked.by
    if asked.by < 0 and target < low:
        raise conflict(f"task {name} has {base} replicas and its minimum is {low}: {-asked.by:,} cannot be removed")
    if asked.by > 0 and target > high and high < MOST_REPLICAS:
        raise unprocessable(f"task {name} has {base} replicas and its maximum is {high}: {asked.by:,} cannot be added")
    if asked.by == 0:
        return now
    if target > MOST_REPLICAS:
        raise unprocessable(
            f"task {name} has {base} replicas: {asked.by:,} cannot be added, as at most {MOST_REPLICAS:,} replicas are "
            "allowed of a job in all"
        )
    try:
        new = now.with_number(index, target)
        new.check(index, path="replicas")
    except InvalidError as error:
        raise unprocessable(str(error)) from None
    if new.bounds == now.bounds:
        return new
    ranges = {**now.notes.ranges, name: Noted((low, high), new.bounds[name])}
    return replace(new, notes=Notes(now.notes.done, ranges))


class ScaleRequests:
    """Writes scale requests. `write` blocks: call it in a thread.

    No attempt starts after `_LONGEST_SECONDS`: by then the caller is gone, and others wait for the thread.
    """

    def __init__(self, cluster: Cluster, cache: Cache, *, clock: Clock = SYSTEM) -> None:
        self._cluster = cluster.without_retries(read_seconds=5.0, connect_seconds=3.0)
        self._cache = cache
        self._clock = clock

    def write(self, asked: ScaleRequest) -> bool:
        """Carry out a request. Returns whether anything was written: not for 0 replicas, nor for a repeated key.

        Raises ApiError.
        """
        return self.retried(lambda: self._try(asked), job=f"{asked.namespace}.{asked.job}", has_key=bool(asked.key))

    def retried(self, call: Callable[[], Result], *, job: str, has_key: bool = False) -> Result:
        """Call it until no other writer comes between its read and its write. Raises ApiError."""
        ends = self._clock.monotonic() + _LONGEST_SECONDS
        for attempt in range(_TRIES):
            try:
                return call()
            except (ConflictError, UnavailableError) as error:
                # If the response to a write was lost, only the key shows whether the write took effect.
                lost = isinstance(error, UnavailableError) and not has_key
                pause = self._clock.jitter(0.0, _PAUSE_SECONDS * 2 ** min(attempt, 4))
                if lost or attempt + 1 == _TRIES or self._clock.monotonic() + pause > ends:
                    raise self._final_error(error) from None
                self._clock.sleep(pause)
            except NotFoundError:
                raise not_found(f"there is no job {job} any more") from None
            except DiflowError as error:
                raise from_diflow(error) from None
        raise AssertionError("unreachable")

    def _final_error(self, error: DiflowError) -> ApiError:
        if isinstance(error, ConflictError):
            return unavailable("the job is being changed by others")
        return from_diflow(error)

    def _try(self, asked: ScaleRequest) -> bool:
        current = record_of(self._read(asked))
        check_generation(current, asked.generation)
        if not current.terms.is_gang:
            raise conflict("the job has scheduling none: Argo alone runs it, and no allocator acts on the number")
        check_readable(current)
        try:
            check_scalable(current)
        except (ConflictError, InvalidError) as error:
            raise conflict(str(error)) from None
        now = Draft.of(current)
        done = now.notes.done
        if asked.key and asked.digest in done:
            if done[asked.digest] != asked.fingerprint:
                raise unprocessable("this Idempotency-Key was used for another request")
            return False
        new = step(now, asked, running=current.running)
        if asked.by == 0:
            return False
        if asked.key:
            new = replace(new, notes=Notes({**done, asked.digest: asked.fingerprint}, new.notes.ranges))
        try:
            answer = self._cluster.patch(
                WORKFLOW, current.identity.name, new.patch(), namespace=asked.namespace, manager=keys.SERVER
            )
        except InvalidError as error:  # the uid in the patch does not match: another object has this name now
            raise ConflictError(str(error)) from None
        self._cache.observed(answer)
        return True

    def _read(self, asked: ScaleRequest) -> dict[str, Any]:
        """The job's current Workflow, read from the API server."""
        view = self._cache.job(asked.namespace, asked.job)
        name = view.workflow.identity.name if view is not None else asked.job
        found = self._cluster.get(WORKFLOW, name, namespace=asked.namespace)
        for behind, after in enumerate(parts.later(self._cluster, found, namespace=asked.namespace)):
            if behind == _MOST_BEHIND:
                raise unavailable("the job continues in Workflows that the server has not seen yet")
            found = after
        if chain.job_name(found) != asked.job:
            raise NotFoundError("the Workflow belongs to another job")
        return found


def check_readable(read: JobRecord) -> None:
    """Raises ApiError (409) if the job's Workflow cannot be read."""
    if read.problem:
        raise conflict(f"job {read.identity.namespace}.{read.name} cannot be read: {read.problem}")


def check_generation(read: JobRecord, generation: str | None) -> None:
    """Raises ApiError (409) if the caller names another round than the current one."""
    if generation is not None and generation != read.round:
        raise conflict(f"generation {generation} is not the current one, which is {read.round or 'not known'}")
