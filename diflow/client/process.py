"""The client of one training process: requests, reports, and graceful stops."""

from __future__ import annotations

import logging
import operator
import os
import random
import threading
import uuid
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Final, Self

from diflow.client.courier import Courier
from diflow.client.place import Membership, Place, find
from diflow.client.readings import Readings
from diflow.client.shards import Shards
from diflow.client.stop import Stop
from diflow.client.wire import Wire
from diflow.common.clock import SYSTEM, Clock
from diflow.common.errors import InvalidError, UnavailableError
from diflow.shards.dataset import Dataset

log = logging.getLogger("diflow.client")

TIMEOUT_SECONDS: Final = 15.0
"""For a response: one attempt up to the server's own limit, and time for another."""

_MEMBERSHIP_SECONDS: Final = 1.0  # how long a rank is cached; the kubelet updates more slowly

_all: weakref.WeakSet[Client] = weakref.WeakSet()


@dataclass(frozen=True, slots=True)
class _Line:
    place: Place
    courier: Courier


class Client:
    """A training process's connection to diflow's server.

    It takes the job, the server and the pod's token from `environ` (by default this process's). Outside a job, reports
    are discarded, and requests raise UnavailableError. It may be used from any thread, and in forked and spawned
    processes, which get their own connection, without pending reports.
    """

    def __init__(
        self,
        environ: Mapping[str, str] | None = None,
        *,
        clock: Clock = SYSTEM,
        threaded: bool = True,
    ) -> None:
        self._environ = None if environ is None else dict(environ)
        self._clock = clock
        self._threaded = threaded
        self._stop = Stop()
        self._line: _Line | None = None
        self._looked = False
        self._begin()
        _all.add(self)

    def _begin(self) -> None:
        self._lock = threading.RLock()  # reentrant: a callback of on_stop may interrupt
        self._readings = Readings()
        self._wrong: set[str] = set()
        self._membership: tuple[float, Membership] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return (Client, (self._environ,))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def in_job(self) -> bool:
        """Whether this process runs in a job that has a server."""
        return self._find() is not None

    def replicas(self, *, timeout_seconds: float = TIMEOUT_SECONDS) -> list[str]:
        """The job's replicas as `address:port`, by rank; "" for one without an address yet.

        Raises UnavailableError without a response in `timeout_seconds`, UnauthorizedError if the server rejects this
        pod, NotFoundError if it does not know the job.
        """
        found = self._ask("GET", "replicas", None, key=None, timeout_seconds=timeout_seconds)
        if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
            raise UnavailableError("the server answered with something else than a list of replicas")
        return found

    def add_replicas(self, n: int, task: str | None = None, *, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        """Request `n` more replicas of `task`, by default of the job's elastic task.

        When this returns, the request is stored in the cluster; the allocator grants it when there is free capacity.
        Retries do not count twice. Raises InvalidError if the job may not have so many or has no such task,
        ConflictError if the job's state does not allow it; and the errors of `replicas`.
        """
        self._change("POST", n, task, timeout_seconds)

    def delete_replicas(self, n: int, task: str | None = None, *, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        """Request `n` fewer replicas, as `add_replicas`. Those of the highest index are stopped, with SIGTERM first."""
        self._change("DELETE", n, task, timeout_seconds)

    def report(  # noqa: PLR0913 (users name what they report)
        self,
        *,
        speed: float | None = None,
        step: int | None = None,
        batch: int | None = None,
        progress: float | None = None,
        step_seconds: float | None = None,
        compute_seconds: float | None = None,
        grad_norm: float | None = None,
        grad_var: float | None = None,
        init_batch_size: int | None = None,
        max_batch_size: int | None = None,
        local_batch_bounds: tuple[int | None, int | None] | None = None,
        gradient_accumulation: bool | None = None,
        memory_bytes: int | None = None,
        replicas: int | None = None,
        nodes: int | None = None,
    ) -> None:
        """Report the progress of the training. Never blocks and never raises; values not given keep their last report.

        `speed`: samples per second of this replica. `step`: steps done. `batch`: samples per replica and step.
        `progress`: 0 to 1. `step_seconds`: the time of a whole step, `compute_seconds` that without waiting for other
        replicas; they determine the model of the job's speed with other numbers. `grad_norm` and `grad_var`: squared
        norm and variance of the gradient, as AdaptDL estimates them. `init_batch_size`, `max_batch_size` of the whole
        job, `local_batch_bounds` (lowest, highest; None: no bound) of a replica, `gradient_accumulation`: what the
        training supports. `memory_bytes`: the peak usage of this replica.

        The server sums the speeds of a task's replicas, with their mean for those without reports. With `replicas`,
        this process reports for that many together (on `nodes` nodes), and `speed` is their sum. Otherwise its rank,
        round and number of replicas are added. At most one report per second is sent.
        """
        line = self._find()
        if line is None:
            return
        given = {
            "speed": speed,
            "step": step,
            "batch": batch,
            "progress": progress,
            "step_seconds": step_seconds,
            "compute_seconds": compute_seconds,
            "grad_norm": grad_norm,
            "grad_var": grad_var,
            "init_batch_size": init_batch_size,
            "max_batch_size": max_batch_size,
            "local_batch_bounds": local_batch_bounds,
            "gradient_accumulation": gradient_accumulation,
            "memory_bytes": memory_bytes,
            "replicas": replicas,
            "nodes": nodes,
        }
        with self._lock:
            wrong = self._readings.take(given, replicas=self._now(line).replicas)
            news = [name for name in wrong if name not in self._wrong]
            self._wrong.update(news)
        for name in news:
            log.warning("%s=%.100r cannot be reported: it is left out, now and whenever it is so", name, given[name])
        line.courier.report(self._body)

    def shards(
        self,
        *,
        dataset: str,
        size: int,
        shard: int,
        epochs: int = 1,
        shuffle_seed: int | None = None,
        prefetch: int = 4,
        lease_seconds: float = 300.0,
        checkpointed: bool = False,
    ) -> Shards:
        """The shards of a data set of `size` samples, in ranges of `shard`: each once an epoch by one of the workers.

        All workers give the same numbers. With `shuffle_seed`, each epoch has another order. `prefetch`: shards that
        are leased ahead. `lease_seconds`: after this time without contact, others may get this process's shards.
        `checkpointed`: a shard is done when a checkpoint has it (`Shards.commit`). Outside a job, this process gets
        all. Raises InvalidError.
        """
        described = Dataset(size, shard, epochs, shuffle_seed)
        line = self._find()
        place = None if line is None else line.place
        return Shards(
            place, dataset, described, prefetch=prefetch, lease_seconds=lease_seconds, checkpointed=checkpointed
        )

    def on_stop(self, callback: Callable[[], object] | None = None) -> None:
        """Call `callback` on SIGTERM, in the main thread, between two of its instructions.

        Keep it short: set a flag that the training checks, or save and sys.exit(143). The signal no longer ends the
        process: the training must exit within its grace period. A previous signal handler is called as well.
        Works in or outside a job. Raises InvalidError if the first call is not from the main thread.
        """
        self._stop.add(callback)

    def stopping(self) -> bool:
        """Whether SIGTERM was received. The main thread's first call also does `on_stop()`."""
        return self._stop.noticed()

    def close(self, timeout_seconds: float = 2.0) -> None:
        """Send a pending report, within `timeout_seconds`, and close. Later reports are discarded."""
        line = self._find()
        if line is not None:
            line.courier.close(seconds=timeout_seconds)

    def _find(self) -> _Line | None:
        """The connection to the server, None outside a job. The environment is read on first use."""
        if not self._looked:
            with self._lock:
                if self._line is None:
                    self._line = self._open(find(os.environ if self._environ is None else self._environ))
                self._looked = True
        return self._line

    def _open(self, place: Place | None) -> _Line | None:
        if place is None:
            return None
        clock = self._clock
        if clock is SYSTEM:  # not the module's own generator, which trainings seed and use
            clock = replace(SYSTEM, jitter=random.Random().uniform)  # noqa: S311
        courier = Courier(
            Wire(place),
            report_path=_path(place, "profilings"),
            clock=clock,
            threaded=self._threaded,
            heartbeat_seconds=place.heartbeat_seconds,
        )
        return _Line(place, courier)

    def _forget(self) -> None:
        self._begin()
        self._stop.forget()
        if self._line is not None:
            self._line.courier.forget()

    def _body(self) -> dict[str, Any]:
        line = self._line
        assert line is not None
        with self._lock:
            return self._readings.body(line.place.membership())

    def _now(self, line: _Line) -> Membership:
        at = self._clock.monotonic()
        if self._membership is None or not 0 <= at - self._membership[0] < _MEMBERSHIP_SECONDS:
            self._membership = at, line.place.membership()
        return self._membership[1]

    def _change(self, method: str, n: int, task: str | None, timeout_seconds: float) -> None:
        try:
            number = operator.index(n)
        except TypeError:
            raise InvalidError(f"a number of replicas is whole, not {n!r}", path="replicas") from None
        if number < 0:
            raise InvalidError(f"a number of replicas is 0 or more, not {number}", path="replicas")
        body = {"replicas": number} if task is None else {"replicas": number, "task": task}
        self._ask(method, "replicas", body, key=str(uuid.uuid4()), timeout_seconds=timeout_seconds)

    def _ask(
        self, method: str, what: str, body: Mapping[str, Any] | None, *, key: str | None, timeout_seconds: float
    ) -> Any:
        line = self._find()
        if line is None:
            raise UnavailableError(
                "this process is in no job of diflow: DI_JOB_ID and DI_SERVER_URL are set in the pods of one"
            )
        call = line.courier.begin(method, _path(line.place, what), body, key=key, seconds=timeout_seconds)
        return line.courier.wait(call, seconds=timeout_seconds)


def _path(place: Place, what: str) -> str:
    return f"/v2alpha1/job/{place.job}/{what}"


def forget_all() -> None:
    """Reset all clients in a forked process."""
    for client in list(_all):
        client._forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=forget_all)
