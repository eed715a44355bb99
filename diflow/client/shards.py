"""The shards of a data set for one process: leased from the job's server, or alone, in order.

A thread leases shards ahead, reports those that are done, and renews the leases, so the training waits only when it has
no shard left. A shard is done when the loop asks for the next one, or with `Shard.done()`.

A training that goes on from checkpoints is `checkpointed`: what is done is reported when a checkpoint has it
(`commit`). So the model has each sample once, wherever the job is killed.
"""

from __future__ import annotations

import logging
import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from diflow.client.place import Place
from diflow.client.wire import Wire
from diflow.common.clock import SYSTEM, Clock
from diflow.common.errors import ConflictError, DiflowError, InvalidError, NotFoundError, UnavailableError
from diflow.shards.dataset import Dataset, Span, is_name

log = logging.getLogger("diflow.client")

_ANSWER_SECONDS: Final = 15.0
_FIRST_PAUSE_SECONDS: Final = 0.5
_LONGEST_PAUSE_SECONDS: Final = 15.0
_IDLE_SECONDS: Final = 5.0  # between two requests of a worker that gets no shard until other workers are done
_MOST_DONE: Final = 256  # units that one request reports as done
_MOST_HELD: Final = 64  # leases of one worker that the server allows
_REFUSED_PAUSE_SECONDS: Final = 1.0


@dataclass(eq=False)
class Shard:
    """The indices `start` to `stop` - 1 of epoch `epoch`. Iterating gives them one by one."""

    span: Span
    finish: Callable[[int], None] = field(repr=False)

    @property
    def epoch(self) -> int:
        """The epoch, from 0."""
        return self.span.epoch

    @property
    def start(self) -> int:
        """The first index."""
        return self.span.start

    @property
    def stop(self) -> int:
        """One more than the last index."""
        return self.span.stop

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.span.start, self.span.stop))

    def __len__(self) -> int:
        return self.span.stop - self.span.start

    def done(self) -> None:
        """The samples are used: no one gets them again in this epoch. A second call has no effect.

        In a checkpointed training this is so from the next `Shards.commit` on.
        """
        self.finish(self.span.unit)


class Shards:
    """The shards of data set `name` for this process; see `Client.shards`. `place` None: alone."""

    def __init__(
        self,
        place: Place | None,
        name: str,
        dataset: Dataset,
        *,
        prefetch: int = 4,
        lease_seconds: float = 300.0,
        checkpointed: bool = False,
        clock: Clock = SYSTEM,
    ) -> None:
        if not is_name(name):
            raise InvalidError(f"is 1 to 63 letters, digits, '.', '_' or '-', not {name!r}", path="dataset")
        if not 1 <= prefetch < _MOST_HELD:
            raise InvalidError(f"is 1 to {_MOST_HELD - 1}", path="prefetch")
        if not 10 <= lease_seconds <= 86_400:
            raise InvalidError("is 10 to 86400", path="lease_seconds")
        self._place = place
        self._name = name
        self._dataset = dataset
        self._prefetch = prefetch
        self._lease_seconds = lease_seconds
        self._checkpointed = checkpointed
        self._clock = clock
        self._worker = uuid.uuid4().hex[:12]
        self._changed = threading.Condition()
        self._ready: dict[int, Span] = {}  # leased, and not given to the loop yet
        self._given: set[int] = set()  # given to the loop
        self._covered: set[int] = set()  # done, and not in a checkpoint yet
        self._saved: frozenset[int] = frozenset()  # those of `_covered` that the last saved state has
        self._done: set[int] = set()  # done, and not reported yet
        self._next = 0  # the next unit, without a server
        self._ends = 0.0
        self._asked_with = 0  # leases that were in use at the last request
        self._is_finished = False
        self._is_closing = False
        self._error: DiflowError | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Shard]:
        """The shards, until all of all epochs are done, by whichever worker.

        Raises ConflictError if others describe the data set differently, or if this round of the job has ended.
        """
        while (span := self._take()) is not None:
            shard = Shard(span, self._finish)
            yield shard
            shard.done()

    def take(self, timeout_seconds: float = 0.0) -> Shard | None:
        """The next shard, or None if there is none within this time: others still work on theirs, or all are done
        (`is_finished`).

        For synchronous trainings: a worker that waits for a shard also delays the workers that wait for it. The shard
        is done with `Shard.done`. Errors as when iterating.
        """
        span = self._take(timeout_seconds)
        return None if span is None else Shard(span, self._finish)

    @property
    def is_finished(self) -> bool:
        """Whether all shards of all epochs are done, by whichever worker."""
        with self._changed:
            if self._place is None:
                return self._next == self._dataset.units and not self._ready and not self._given
            return self._is_finished

    def commit(self) -> None:
        """A checkpoint is stored that has all shards that were done when `state_dict` was last called."""
        with self._changed:
            if self._place is not None:
                self._done |= self._saved & self._covered
            self._covered -= self._saved
            self._saved = frozenset()
            self._changed.notify_all()

    def close(self, timeout_seconds: float = 5.0) -> None:
        """Report what is done, and give the other shards back. Without it others get them when the leases end.

        While the server is away it is tried again, within `timeout_seconds` and as long as the process lives.
        """
        with self._changed:
            self._is_closing = True
            thread = self._thread
            self._changed.notify_all()
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout_seconds)

    def state_dict(self) -> dict[str, Any]:
        """What is to be saved with the model: plain data, a few hundred bytes.

        In a job the server has the position. A checkpointed training saves the states of all its workers: they name
        the shards that the checkpoint has and the server does not know of. Alone, the position.
        """
        with self._changed:
            state: dict[str, Any] = {"dataset": self._name, **_described(self._dataset)}
            self._saved = frozenset(self._covered)
            if self._place is None:
                return state | {"next": self._next, "open": sorted(self._given | self._ready.keys())}
            return state | {"done": sorted(self._saved | self._done)}  # the server may never get the report

    def load_state_dict(self, state: Mapping[str, Any], *, timeout_seconds: float = 120.0) -> None:
        """Go on from `state`. In a job, one process does so with the states of all workers of the checkpoint, before
        any takes a shard: it returns when the server has stored that their shards are done.

        Raises InvalidError if it is of another data set, ConflictError if another worker was given one of the shards
        since then, UnavailableError if the server does not answer in time.
        """
        expected = {"dataset": self._name, **_described(self._dataset)}
        wrong = next((key for key, value in expected.items() if state.get(key) != value), None)
        if wrong is not None:
            raise InvalidError(f"is {state.get(wrong)!r} in the saved state, and {expected[wrong]!r} here", path=wrong)
        if self._place is not None:
            self._recover(self._place, state.get("done", ()), timeout_seconds)
            return
        if "next" not in state:
            return
        first, unfinished = state["next"], list(state["open"])
        if not 0 <= first <= self._dataset.units or any(not 0 <= unit < first for unit in unfinished):
            raise InvalidError("is not a position in this data set", path="next")
        with self._changed:
            self._next = first
            self._given.clear()
            self._ready = {unit: self._dataset.span(unit) for unit in sorted(unfinished)}

    # --- of the loop ----------------------------------------------------------------------------------------------

    def _take(self, timeout_seconds: float | None = None) -> Span | None:
        until = None if timeout_seconds is None else self._clock.monotonic() + timeout_seconds
        with self._changed:
            if self._place is None:
                return self._take_alone()
            self._start()
            while True:
                if self._error is not None:
                    raise self._error
                if self._is_closing:
                    return None
                if self._ready and self._clock.monotonic() < self._ends:  # else another may have it
                    unit = min(self._ready)
                    self._given.add(unit)
                    self._changed.notify_all()
                    return self._ready.pop(unit)
                if self._is_finished:
                    return None
                left = 1.0 if until is None else until - self._clock.monotonic()
                if left <= 0:
                    return None
                self._changed.wait(min(1.0, left))

    def _take_alone(self) -> Span | None:
        if self._is_closing:
            return None
        if self._ready:
            span = self._ready.pop(min(self._ready))
        elif self._next < self._dataset.units:
            span = self._dataset.span(self._next)
            self._next += 1
        else:
            return None
        self._given.add(span.unit)
        return span

    def _finish(self, unit: int) -> None:
        with self._changed:
            if unit in self._given:
                self._given.remove(unit)
                if self._checkpointed:
                    self._covered.add(unit)
                elif self._place is not None:
                    self._done.add(unit)
                self._changed.notify_all()

    def _recover(self, place: Place, units: Any, timeout_seconds: float) -> None:
        """Report units that a checkpoint has as done. The server refuses them until their workers are lost."""
        left = sorted({*map(int, units)})
        until = self._clock.monotonic() + timeout_seconds
        wire = Wire(place)
        failures = 0
        try:
            while left:
                done = left[:_MOST_DONE]
                try:
                    path = f"/v2alpha1/job/{place.job}/shards"
                    data = wire.ask("POST", path, self._body(done, wants=0), key=None, timeout_seconds=_ANSWER_SECONDS)
                    refused = [unit for unit in done if unit in data["refused"]]
                    left = refused + left[len(done) :]
                    pause = _REFUSED_PAUSE_SECONDS if refused else 0.0
                    late: DiflowError = ConflictError(f"other workers have shards of the checkpoint: {refused[:10]}")
                except UnavailableError as error:
                    failures += 1
                    pause = min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2.0**failures)
                    late = error
                if left and self._clock.monotonic() + pause > until:
                    raise late
                time.sleep(pause)
        finally:
            wire.close()

    # --- of the thread --------------------------------------------------------------------------------------------

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="diflow-shards", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        assert self._place is not None
        wire = Wire(self._place)
        chance = random.Random()  # noqa: S311 (not the module's own, which trainings seed)
        failures, is_told, is_full = 0, False, False
        while True:
            with self._changed:
                done = sorted(self._done)[:_MOST_DONE]
                leaves = self._is_closing
                held = self._asked_with = len(self._given) + len(self._covered)
                if held >= _MOST_HELD and not is_full:
                    log.warning("%s shards wait for a checkpoint: no more are leased until commit() is called", held)
                is_full = held >= _MOST_HELD
                body = self._body(done, wants=min(_MOST_HELD, self._prefetch + held), leaves=leaves)
            sent = self._clock.monotonic()
            pause = _IDLE_SECONDS
            try:
                path = f"/v2alpha1/job/{self._place.job}/shards"
                data = wire.ask("POST", path, body, key=None, timeout_seconds=_ANSWER_SECONDS)
                self._answered(data, done, sent=sent)
                failures = 0
                if is_told:
                    log.info("shards are leased again")
                    is_told = False
            except UnavailableError as error:
                failures += 1
                pause = error.retry_after_seconds or min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2.0**failures)
                if not is_told and failures > 3:
                    log.warning("no shards can be leased now, and the training goes on with those it has: %s", error)
                    is_told = True
            except (ConflictError, InvalidError, NotFoundError) as error:
                self._fail(error)
                break
            except Exception as error:  # the loop waits for this thread
                self._fail(UnavailableError(f"the server's answer cannot be read: {type(error).__name__}: {error}"))
                break
            has_left = leaves and (
                failures == 0 or self._clock.monotonic() >= self._ends
            )  # others get the shards then anyway
            if has_left or self._is_finished:
                break
            self._rest(pause * (0.5 + 0.5 * chance.random()), is_failing=failures > 0, leaves=leaves)
        wire.close()

    def _body(self, done: list[int], *, wants: int, leaves: bool = False) -> dict[str, Any]:
        body: dict[str, Any] = {
            "dataset": self._name,
            **_described(self._dataset),
            "worker": self._worker,
            "done": done,
            "want": 0 if leaves else wants,
            "leaseSeconds": self._lease_seconds,
            "leave": leaves,
        }
        return body

    def _answered(self, data: Any, done: list[int], *, sent: float) -> None:
        units = [int(each["unit"]) for each in data["shards"]]
        if any(not 0 <= unit < self._dataset.units for unit in units):
            raise ValueError("a shard that there is not")
        with self._changed:
            self._done.difference_update(done)
            known = self._given | self._covered | self._done  # done while the request was under way
            self._ready = {unit: self._dataset.span(unit) for unit in units if unit not in known}
            self._ends = sent + float(data["leaseSeconds"])
            self._is_finished = data["finished"] is True
            self._changed.notify_all()
        for unit in data["refused"]:
            log.warning("shard %s was given to another, as its lease had ended: its samples are used twice", unit)

    def _fail(self, error: DiflowError) -> None:
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def _rest(self, seconds: float, *, is_failing: bool, leaves: bool) -> None:
        """Wait until there is something to ask for: half of the shards are used, the last is done, or it is time."""
        until = self._clock.monotonic() + seconds
        renew = self._clock.monotonic() + self._lease_seconds / 3
        with self._changed:
            while leaves or not self._is_closing:
                now = self._clock.monotonic()
                is_low = len(self._ready) <= self._prefetch // 2
                is_used = bool(self._done) or self._asked_with < len(self._given) + len(self._covered)
                if not is_failing and is_used and (is_low or len(self._done) >= self._prefetch):
                    return
                limit = until if is_failing or (is_low and not self._ready) else renew
                if now >= limit:
                    return
                self._changed.wait(min(1.0, limit - now))


def _described(dataset: Dataset) -> dict[str, Any]:
    return {"size": dataset.size, "shard": dataset.shard, "epochs": dataset.epochs, "seed": dataset.seed}
