"""The client of one training process: what it asks, what it reports, and when it is to stop."""

from __future__ import annotations

import logging
import operator
import os
import random
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

from diflow.client.courier import Courier
from diflow.client.place import Place, Standing, find
from diflow.client.readings import Readings
from diflow.client.stop import Stop
from diflow.client.wire import Wire
from diflow.errors import InvalidError, UnavailableError

log = logging.getLogger("diflow.client")

TIMEOUT_SECONDS: Final = 15.0
"""For an answer: one try as long as the server itself may take, and time for another."""

_STANDING_SECONDS: Final = 1.0  # so long a rank that was read holds; the kubelet is slower anyway

_all: weakref.WeakSet[Client] = weakref.WeakSet()


@dataclass(frozen=True, slots=True)
class _Line:
    place: Place
    courier: Courier


class Client:
    """A training process's line to diflow's server.

    It finds the job, the server and the pod's token by itself (`environ`, by default this process's). Outside a job
    reports go nowhere, and questions raise UnavailableError. It may be used from any thread, and goes over into forked
    and spawned processes: these have a line of their own, and nothing of what the first one had to say.
    """

    def __init__(
        self,
        environ: Mapping[str, str] | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] | None = None,
        threaded: bool = True,
    ) -> None:
        self._environ = None if environ is None else dict(environ)
        self._clock = clock
        self._chance = chance
        self._threaded = threaded
        self._stop = Stop()
        self._line: _Line | None = None
        self._looked = False
        self._begin()
        _all.add(self)

    def _begin(self) -> None:
        self._lock = threading.RLock()  # reentrant: a callback of on_stop may come in between
        self._readings = Readings()
        self._wrong: set[str] = set()
        self._standing: tuple[float, Standing] | None = None

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
        """The job's replicas as `address:port`, by rank; "" is one that has no address yet.

        Raises UnavailableError if there is no answer within `timeout_seconds`, UnauthorizedError if the server refuses
        this pod, NotFoundError if it does not know the job.
        """
        found = self._ask("GET", "replicas", None, key=None, timeout_seconds=timeout_seconds)
        if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
            raise UnavailableError("the server answered with something else than a list of replicas")
        return found

    def add_replicas(self, n: int, task: str | None = None, *, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        """Ask for `n` replicas more, of `task` or else of the job's elastic one.

        When this returns, the wish stands in the cluster; the allocator grants it when there is room. Asked once it is
        counted once, however often it had to be sent. Raises InvalidError if the job may not have so many or has no
        such task, ConflictError if it does not stand as this process thinks; and what `replicas` raises.
        """
        self._change("POST", n, task, timeout_seconds)

    def delete_replicas(self, n: int, task: str | None = None, *, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        """Ask for `n` replicas fewer, as `add_replicas`. Those of the highest index go; they get SIGTERM first."""
        self._change("DELETE", n, task, timeout_seconds)

    def report(
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
        """Tell how the training goes. Never waits and never raises; what was told before and not anew stays.

        `speed`: samples a second of this replica. `step`: how many were done. `batch`: samples of one replica in one
        step. `progress`: 0 to 1. `step_seconds`: a whole step, of which `compute_seconds` without waiting for other
        replicas; from them comes the model of how fast the job would be with other numbers. `grad_norm` and `grad_var`:
        squared norm and variance of the gradient, as AdaptDL estimates them. `init_batch_size`, `max_batch_size` of the
        whole job, `local_batch_bounds` (lowest, highest; None: no bound) of a replica, `gradient_accumulation`:
        what the training would bear. `memory_bytes`: the most that this replica has used.

        The server adds up what the replicas of a task say, as if those that are silent were as fast. With `replicas`
        this process speaks for so many together (on so many `nodes`), and `speed` is theirs. Else its rank, its round
        and the number of replicas are filled in. At most one report a second is sent.
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

    def on_stop(self, callback: Callable[[], object] | None = None) -> None:
        """Call this when the process is told to stop (SIGTERM), in the main thread, between two of its instructions.

        Keep it short: set a flag that the training looks at, or save and sys.exit(143). From now on the signal does
        not end the process: the training does, within its grace period. A handler that was there is called as well.
        Works in or outside a job. Raises InvalidError when it is first called from another thread than the main one.
        """
        self._stop.add(callback)

    def stopping(self) -> bool:
        """Whether the process was told to stop. The main thread's first question is also an `on_stop()`."""
        return self._stop.noticed()

    def close(self, timeout_seconds: float = 2.0) -> None:
        """Send the last report if it still waits, for so long at most, and end. Later reports go nowhere."""
        line = self._find()
        if line is not None:
            line.courier.close(seconds=timeout_seconds)

    def _find(self) -> _Line | None:
        """The line to the server, None outside a job. The environment is looked at when it is first needed."""
        if not self._looked:
            with self._lock:
                if self._line is None:
                    self._line = self._open(find(os.environ if self._environ is None else self._environ))
                self._looked = True
        return self._line

    def _open(self, place: Place | None) -> _Line | None:
        if place is None:
            return None
        # Not the module's own numbers: trainings seed those, and want them for themselves.
        chance = self._chance or random.Random().random  # noqa: S311
        courier = Courier(
            Wire(place),
            report_path=_path(place, "profilings"),
            clock=self._clock,
            chance=chance,
            threaded=self._threaded,
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
            return self._readings.body(line.place.standing())

    def _now(self, line: _Line) -> Standing:
        at = self._clock()
        if self._standing is None or not 0 <= at - self._standing[0] < _STANDING_SECONDS:
            self._standing = at, line.place.standing()
        return self._standing[1]

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
    """In a process that was forked: all clients begin anew."""
    for client in list(_all):
        client._forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=forget_all)
