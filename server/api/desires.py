"""What jobs and people ask for: more or fewer replicas. An answer of 200 means that it stands in the cluster.

Only the parameter `replicas` (and the bounds beside it) is written, with a patch that names the version it was thought
out for; the allocator acts on it. With an Idempotency-Key a request is carried out once, however often it is sent and
to whichever server: the keys stand in an annotation that is written with the number itself.
"""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from diflow import keys
from diflow.bounds import MOST_REPLICAS
from diflow.errors import ConflictError, DiflowError, InvalidError, NotFoundError, UnavailableError
from diflow.jobs.replica_ranges import Bounds, check_size, scales, submitted_range, with_number
from diflow.jobs.scale_requests import Standing, standing
from diflow.kube.api import Cluster
from diflow.kube.kinds import WORKFLOW
from diflow.server.api.cache import Cache
from diflow.server.api.reading import WorkflowRead, elastic, read_workflow
from diflow.server.http.errors import (
    ApiError,
    bad_request,
    conflict,
    from_diflow,
    not_found,
    unavailable,
    unprocessable,
)
from diflow.state import chain
from diflow.state.notes import Noted, Notes
from diflow.state.parameters import TaskState

MANAGER: Final = "diflow-server"
_TRIES: Final = 8
_PAUSE_SECONDS: Final = 0.05
_LONGEST_SECONDS: Final = 8.0
_MOST_PARTS: Final = 100


@dataclass(frozen=True, slots=True)
class Ask:
    """A request: `by` replicas more (or fewer, below 0) of `task` ("": the elastic one).

    `generation` is the round that the caller knows of, None if he did not say. `key` is his Idempotency-Key, or "".
    """

    namespace: str
    job: str
    by: int
    task: str = ""
    generation: str | None = None
    key: str = ""

    @property
    def digest(self) -> str:
        """What the key is remembered by."""
        return hashlib.sha256(self.key.encode()).hexdigest()[:16] if self.key else ""

    @property
    def print(self) -> str:
        """What was asked for under the key."""
        return hashlib.sha256(f"{self.by} {self.task}".encode(errors="surrogatepass")).hexdigest()[:8]


def step(
    stands: Standing, ask: Ask, notes: Notes, *, running: Mapping[str, int]
) -> tuple[dict[str, int], Bounds, Notes]:
    """What is to stand there after a request: (wanted, bounds, notes).

    A job that is not preemptible has the number that was asked for. That of a preemptible one is a bound for the
    allocator; until somebody asked for a number, it is counted from what `running` says that the job has.
    Raises ApiError: 400 for a task that is not there, 409 below the minimum, 422 above the maximum.
    """
    job = stands.job
    plain = [TaskState(task.name, task.replicas, task.min_replicas, task.max_replicas) for task in job.tasks]
    name = ask.task or elastic(plain, bounds=stands.bounds)
    index = next((i for i, task in enumerate(job.tasks) if task.name == name), None)
    if index is None:
        raise bad_request(f"the job has no task {name}; it has {', '.join(task.name for task in job.tasks)}")
    task = job.tasks[index]
    wanted = stands.wanted.get(name, task.replicas)
    if not job.preemptible:
        low, high, base = task.min_replicas or 1, task.max_replicas or MOST_REPLICAS, wanted
    else:
        bounds = stands.bounds.get(name)
        # A number that is the submitted one is not read as a bound, so it was made one; the job's own range is noted.
        own = notes.range_of(name, bounds)
        low, high = own or bounds or submitted_range(job, index, scaling=scales(job, stands.bounds))
        base = wanted if wanted != task.replicas or own else running.get(name, wanted)
    target = base + ask.by
    if ask.by < 0 and target < low:
        raise conflict(f"task {name} has {base} replicas and its minimum is {low}: {-ask.by:,} cannot be removed")
    if ask.by > 0 and target > high and high < MOST_REPLICAS:
        raise unprocessable(f"task {name} has {base} replicas and its maximum is {high}: {ask.by:,} cannot be added")
    if ask.by == 0:
        return dict(stands.wanted), stands.bounds, notes
    if target > MOST_REPLICAS:
        raise unprocessable(
            f"task {name} has {base} replicas: {ask.by:,} cannot be added, as at most {MOST_REPLICAS:,} replicas are "
            "allowed of a job in all"
        )
    try:
        stands.check_hostnames(index, target, path="replicas")
    except InvalidError as error:
        raise unprocessable(str(error)) from None
    new_wanted, new_bounds = with_number(job, index, target, wanted=stands.wanted, bounds=stands.bounds)
    try:
        check_size(job, wanted=new_wanted, bounds=new_bounds, namespace=ask.namespace, path="replicas")
    except InvalidError as error:
        raise unprocessable(str(error)) from None
    if new_bounds != stands.bounds:
        notes = Notes(notes.done, {**notes.ranges, name: Noted((low, high), new_bounds[name])})
    return new_wanted, new_bounds, notes


class Desires:
    """Writes what is asked for. `write` blocks: it is called in a thread.

    No try begins after `longest_seconds`: then the caller has gone, and others wait for the thread. `sleep` is given
    seconds, `clock` gives monotonic ones.
    """

    def __init__(
        self,
        cluster: Cluster,
        cache: Cache,
        *,
        tries: int = _TRIES,
        longest_seconds: float = _LONGEST_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
        jitter: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._cluster = cluster.without_retries(read_seconds=5.0, connect_seconds=3.0)
        self._cache = cache
        self._tries = tries
        self._longest_seconds = longest_seconds
        self._clock = clock
        self._sleep = sleep
        self._jitter = jitter

    def write(self, ask: Ask) -> bool:
        """Carry a request out. Returns whether anything was written (not for 0 replicas, nor for a key that was used).

        Raises ApiError.
        """
        ends = self._clock() + self._longest_seconds
        for attempt in range(self._tries):
            try:
                return self._try(ask)
            except (ConflictError, UnavailableError) as error:
                # What came of a write whose answer was lost, only the key can tell.
                lost = isinstance(error, UnavailableError) and not ask.key
                pause = self._jitter(0.0, _PAUSE_SECONDS * 2 ** min(attempt, 4))
                if lost or attempt + 1 == self._tries or self._clock() + pause > ends:
                    raise self._given_up(error) from None
                self._sleep(pause)
            except NotFoundError:
                raise not_found(f"there is no job {ask.namespace}.{ask.job} any more") from None
            except DiflowError as error:
                raise from_diflow(error) from None
        raise AssertionError("unreachable")

    def _given_up(self, error: DiflowError) -> ApiError:
        if isinstance(error, ConflictError):
            return unavailable("the job is changed by others all the time")
        return from_diflow(error)

    def _try(self, ask: Ask) -> bool:
        workflow = self._read(ask)
        read = read_workflow(workflow)
        self._check(read, ask)
        check_readable(read)
        try:
            stands = standing(workflow)
        except (ConflictError, InvalidError) as error:
            raise conflict(str(error)) from None
        notes = Notes.read(stands.annotations.get(keys.REQUESTS) or "")
        if ask.key and ask.digest in notes.done:
            if notes.done[ask.digest] != ask.print:
                raise unprocessable("this Idempotency-Key was used for another request")
            return False
        wanted, bounds, noted = step(stands, ask, notes, running=read.counts)
        if ask.by == 0:
            return False
        if ask.key:
            noted = Notes({**noted.done, ask.digest: ask.print}, noted.ranges)
        noting = {keys.REQUESTS: noted.text()} if noted != notes else {}
        change = stands.change(wanted, bounds, annotations=noting)
        try:
            answer = self._cluster.patch(WORKFLOW, stands.workflow, change, namespace=ask.namespace, manager=MANAGER)
        except InvalidError as error:  # of another object of that name
            raise ConflictError(str(error)) from None
        self._cache.observed(answer)
        return True

    def _read(self, ask: Ask) -> dict[str, Any]:
        """The Workflow in which the job is, as the API server has it now."""
        view = self._cache.job(ask.namespace, ask.job)
        name = view.workflow.name if view is not None else ask.job
        found = self._cluster.get(WORKFLOW, name, namespace=ask.namespace)
        for _ in range(_MOST_PARTS):
            after = chain.continued_in(found)
            next_ = self._cluster.find(WORKFLOW, after, namespace=ask.namespace) if after else None
            if next_ is None or chain.continues(next_)[1] != found["metadata"].get("uid"):
                break
            found = next_
        if chain.job_name(found) != ask.job:
            raise NotFoundError("it belongs to another job")
        return found

    def _check(self, read: WorkflowRead, ask: Ask) -> None:
        check_generation(read, ask.generation)
        if not read.is_gang:
            raise conflict("the job has scheduling none: Argo alone runs it, and nothing acts on other numbers")


def check_readable(read: WorkflowRead) -> None:
    """Raises ApiError (409) if what stands in the job's Workflow cannot be understood."""
    if read.problem:
        raise conflict(f"job {read.namespace}.{read.job} cannot be read: {read.problem}")


def check_generation(read: WorkflowRead, generation: str | None) -> None:
    """Raises ApiError (409) if the caller speaks of another round than the current one."""
    if generation is not None and generation != read.current:
        raise conflict(f"generation {generation} is not the current one, which is {read.current or 'not known'}")
