"""The work of a plan, counted by the job that causes it, so that no namespace takes the time of all others.

A policy is given a snapshot and a limit of time, and has no clock. What takes long are searches: for places of gangs,
and for jobs that give way to them. These count what they do, in operations of about a microsecond, for the job that
they are made for. A namespace has an equal part of one half of a plan's operations. The other half is for all, the
first in the order of the policy first. A search beyond both is given up with nothing changed: its job waits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from diflow.common.errors import DiflowError

MOST_OPERATIONS: Final = 4_000_000
"""Operations of one plan, of a microsecond each at most; `fit` needs half of them for 10,000 jobs on 2,000 nodes. The
allocator gives a policy 10 s: other machines are slower, and some work is not counted."""
CELLS: Final = 500
"""Elements of an array that one operation can read or write."""


class SpentError(DiflowError):
    """The namespace of the job has no operations left in this plan."""


class LateError(DiflowError):
    """Nobody waits for this plan any more."""


class Work:
    """The operations of one plan. `owners`: the number of each job's namespace."""

    def __init__(self, owners: Sequence[int]) -> None:
        self._owners = owners
        self._count = max(owners, default=-1) + 1
        self._is_late = self._may_fail = self._goes_on = False
        self._aside: Collection[int] = ()
        self.of_owner: list[int] = []
        """Operations of each namespace."""
        self.begin()

    def begin(self) -> None:
        """Begin a plan: nothing has been done yet."""
        if self._goes_on:
            return
        self.of_owner = [0] * self._count
        self._part = MOST_OPERATIONS // (2 * max(1, self._count))
        self._common = MOST_OPERATIONS // 2
        self._owner = -1

    def leave_aside(self, owners: Collection[int]) -> None:
        """Search nothing for the jobs of these namespaces."""
        self._aside = owners

    @contextmanager
    def one_plan(self) -> Iterator[None]:
        """All that begins meanwhile is one plan."""
        self.begin()
        self._goes_on = True
        try:
            yield
        finally:
            self._goes_on = False

    def stop(self) -> None:
        """Make every search raise LateError from now on. May be called in another thread."""
        self._is_late = True

    @contextmanager
    def of(self, job: int, *, may_fail: bool = False) -> Iterator[None]:
        """What is done meanwhile is for this job; `may_fail`: `charge` may raise SpentError."""
        before = self._owner, self._may_fail
        self._owner, self._may_fail = self._owners[job], may_fail or self._may_fail
        try:
            yield
        finally:
            self._owner, self._may_fail = before

    def charge(self, operations: int) -> None:
        """Count operations for the present job; without one they are nobody's. Raises LateError; in a search also
        SpentError."""
        if self._is_late:
            raise LateError("the plan is late")
        owner = self._owner
        if owner < 0:
            return
        done = self.of_owner[owner] = self.of_owner[owner] + operations
        if done > self._part:
            self._common -= min(operations, done - self._part)
            if self._may_fail and self._common <= 0:
                raise SpentError("the jobs of its namespace took their part of the plan")

    def is_spent(self, job: int) -> bool:
        """Whether nothing more is searched for this job in this plan."""
        owner = self._owners[job]
        return owner in self._aside or (self._common <= 0 and self.of_owner[owner] > self._part)
