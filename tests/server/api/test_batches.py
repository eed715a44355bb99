"""What comes for a job while it is written shares the next write."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from diflow.common.clock import Clock
from diflow.common.errors import ConflictError, NotFoundError
from diflow.server.api.batches import JobBatches, Pace
from tests.allocator.faults import Time
from tests.server.place import asynchronous, soon

ONE, TWO = ("default", "one"), ("default", "two")


class Book:
    """What was written, and what the next writes raise."""

    def __init__(self, **pace: Any) -> None:
        self.time = Time()
        self.pauses: list[float] = []
        self.written: list[tuple[str, list[int], int | None]] = []
        self.errors: list[Exception] = []
        self.refused = ""
        """The job of which no write succeeds."""
        self.go = asyncio.Event()
        self.go.set()
        clock = Clock(monotonic=self.time.now, pause=self._pause)
        self.batches = JobBatches(
            self._write, lambda a, b: [*a, *b], what="numbers", pace=Pace(1.0, **pace), clock=clock, most_kept=2
        )

    async def _pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        await self.go.wait()
        self.time.move(seconds)

    async def _write(self, key: tuple[str, str], batch: list[int], last: int | None) -> int:
        if key[1] == self.refused:
            raise ConflictError("no")
        if self.errors:
            raise self.errors.pop(0)
        self.written.append((key[1], batch, last))
        return sum(batch)

    async def settle(self) -> None:
        await soon(lambda: not any(key in self.batches for key in (ONE, TWO)))


@asynchronous
async def test_what_comes_within_the_pause_is_written_together_and_other_jobs_do_not_wait() -> None:
    book = Book()
    book.batches.add(ONE, [1])
    await book.settle()
    book.go.clear()
    for number in (2, 3):
        book.batches.add(ONE, [number])
    book.batches.add(TWO, [4])
    await soon(lambda: len(book.written) == 2)
    assert book.batches.waiting == {ONE: [2, 3]}
    book.go.set()
    await book.settle()
    assert book.written == [("one", [1], None), ("two", [4], None), ("one", [2, 3], 1)]
    assert book.pauses == [1.0]
    assert {key: book.batches.results.get(key) for key in book.batches.results} == {ONE: 5, TWO: 4}


@asynchronous
async def test_an_error_while_a_write_waits_its_turn_counts_as_a_failed_write() -> None:
    errors: list[Exception] = [KeyError("turn"), NotFoundError("no turn")]

    async def before(_key: tuple[str, str]) -> None:
        if errors:
            raise errors.pop(0)

    book = Book(before=before, backoff_seconds=(2.0, 5.0))
    book.batches.add(ONE, [1])
    await book.settle()
    assert book.pauses == [2.0, 4.0]
    assert book.written == [("one", [1], None)]
    assert book.batches.waiting == {}


@asynchronous
async def test_what_is_refused_is_written_again_less_and_less_often() -> None:
    book = Book(backoff_seconds=(2.0, 5.0))
    book.errors = [ConflictError("no")] * 3
    book.batches.add(ONE, [1])
    await book.settle()
    assert book.pauses == [2.0, 4.0, 5.0]
    assert book.written == [("one", [1], None)]


@pytest.mark.parametrize("error", [NotFoundError("gone"), ZeroDivisionError()])
@asynchronous
async def test_what_can_never_be_written_is_dropped_and_the_next_one_is_written(error: Exception) -> None:
    book = Book()
    book.errors = [error]
    book.batches.add(ONE, [1])
    await book.settle()
    book.batches.add(ONE, [2])
    await book.settle()
    assert book.written == [("one", [2], None)]


@asynchronous
async def test_at_the_end_nothing_waits_any_more_and_what_is_still_refused_is_left() -> None:
    book = Book()
    for key in (ONE, TWO):
        book.batches.add(key, [1])
    await book.settle()
    book.go.clear()
    for key in (ONE, TWO):
        book.batches.add(key, [2])
    await soon(lambda: len(book.pauses) == 2)
    book.refused = "one"
    await book.batches.close(seconds=60.0)
    assert book.written[2:] == [("two", [2], 1)]
    assert book.batches.waiting == {ONE: [2]}
