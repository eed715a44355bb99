"""What the parts of a cycle share: the ledger, the shares and orders of its snapshot, and what follows from both."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from diflow.allocator.model.arrays import BoolArray, IntArray
from diflow.allocator.model.ledger import Ledger
from diflow.allocator.model.reasons import Fits, Grown, Reason
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.policies.fair.claims import Entitlements
from diflow.allocator.policies.fair.measure import Measure
from diflow.allocator.policies.fair.orders import node_scores, ordered_jobs
from diflow.allocator.policies.fair.shares import shares_by, usable_capacity
from diflow.allocator.policies.settings import PolicySettings
from diflow.allocator.policies.waiting import Feasibility, first_reasons, minimum_gang

T = TypeVar("T")


class State:
    """The state of a cycle.

    `considered` (J): the only jobs that may get anything. `measured_from` (G): the replicas with which the measure
    compares plans, if they are not the snapshot's. `wanted` (G): replicas from which shares are computed,
    instead of the desired ones. `grows`: whether running jobs get more than their minimum.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        settings: PolicySettings,
        considered: BoolArray | None = None,
        *,
        measured_from: IntArray | None = None,
        wanted: IntArray | None = None,
        grows: bool = True,
    ) -> None:
        self.snapshot, self.settings, self.measured_from = snapshot, settings, measured_from
        self.ledger = Ledger(snapshot)
        self.ledger.scores = node_scores(snapshot, settings.node_order)
        self.facts = self.ledger.facts
        self._aim = snapshot.role_desired if grows else snapshot.role_min
        self.aim: list[int] = self.facts.role_desired if grows else self.facts.role_min
        """Replicas of each role that its job may get (G)."""
        self.feasible = Feasibility(snapshot)
        self.possible = self.feasible.possible()
        self.allowed = self.possible if considered is None else self.possible & considered
        """Jobs that may get something (J)."""
        self.shares = shares_by(snapshot, self.possible, wanted=wanted)
        self.entitlements = Entitlements(self.ledger, self.shares)
        self.total: list[int] = np.maximum(usable_capacity(snapshot), 1).tolist()
        self.reasons: list[Reason] = first_reasons(snapshot)
        self._cached: dict[Hashable, Any] = {}
        self._cached_at = -1
        self.ran = self.holders()
        """Jobs that held something when the cycle began (J)."""

    @cached_property
    def measure(self) -> Measure:
        """The measure of plans for the snapshot."""
        return Measure(self.snapshot, self.shares, self.possible, self.measured_from)

    # -- cache --

    def cached(self, what: Hashable, make: Callable[[], T]) -> T:
        """The result of `make`, cached until the ledger changes."""
        if self._cached_at != self.ledger.changes:
            self._cached, self._cached_at = {}, self.ledger.changes
        if what not in self._cached:
            self._cached[what] = make()
        found: T = self._cached[what]
        return found

    def all_was_undone(self) -> None:
        """Keep the cache: the ledger is again as it was when the cache was last used."""
        self._cached_at = self.ledger.changes

    def remembered(self) -> Callable[[], None]:
        """A function that puts back the reasons and the cache, once all changes of the ledger since now were undone."""
        reasons, cached, is_fresh = list(self.reasons), self._cached, self._cached_at == self.ledger.changes

        def undo() -> None:
            self.reasons[:] = reasons
            self._cached, self._cached_at = cached, self.ledger.changes if is_fresh else -1

        return undo

    # -- sets of jobs, in order --

    def holders(self) -> BoolArray:
        """Jobs that hold something (J). Read-only."""
        return self.cached("holders", lambda: self.snapshot.jobs_of(self.ledger.replicas > 0))

    def short(self) -> BoolArray:
        """Jobs that hold less than they may get (J). Read-only."""
        return self.cached("short", lambda: self.snapshot.jobs_of(self.ledger.replicas < self._aim))

    def with_surplus(self) -> BoolArray:
        """Jobs that can shrink (J). Read-only."""
        s = self.snapshot
        return self.cached(
            "with surplus",
            lambda: s.job_preemptible & s.jobs_of(self.ledger.replicas > s.role_min) & self.holders(),
        )

    def order(self) -> IntArray:
        """All jobs in job order. Read-only."""
        return self.cached("order", lambda: ordered_jobs(self.snapshot, self.ledger, self.settings.job_order))

    def in_order(self, chosen: BoolArray) -> list[int]:
        """These jobs in job order."""
        if not chosen.any():
            return []
        order = self.order()
        out: list[int] = order[chosen[order]].tolist()
        return out

    def wanting(self) -> list[int]:
        """Jobs that wait or hold less than they may get, in job order."""
        return self.in_order(self.short() & self.allowed)

    def queue_rank(self, queue: int) -> tuple[float, ...]:
        """Sort key of queues: by held over deserved share, the smallest first (kube-batch's proportion)."""
        out: list[float] = []
        every = tuple(range(len(self.total)))
        # A queue in a full parent waits with it: the parent's share counts first. Of equal ratios the queue that
        # deserves more comes first: after one more replica it has the smaller ratio.
        for q in reversed(self.facts.chains[queue]):
            out += self.entitlements.rank(q, self.entitlements.counted(q, every))
        return tuple(out)

    # -- single jobs --

    def replicas(self, job: int) -> int:
        """Replicas of all roles that the job holds."""
        return sum(self.ledger.count[r] for r in self.facts.roles_of[job])

    def grows(self, job: int) -> bool:
        """Whether the job runs as a whole gang."""
        return self.ledger.holds(job) and self.ledger.within_limits(job)

    def has_surplus(self, job: int) -> bool:
        """Whether the job holds more than its minimum."""
        facts, count = self.facts, self.ledger.count
        return any(count[r] > facts.role_min[r] for r in facts.roles_of[job])

    def missing(self, job: int) -> dict[int, int] | None:
        """What a gang below its minimum lacks; None if a role is above its maximum, which it could not give up."""
        facts, count = self.facts, self.ledger.count
        if any(count[r] > facts.role_max[r] for r in facts.roles_of[job]):
            return None
        return {r: max(0, facts.role_min[r] - count[r]) for r in facts.roles_of[job]}

    def requests(self, job: int) -> list[dict[int, int]]:
        """The requests for which others may be evicted, largest first: a gang, or more replicas of a running job."""
        facts, ledger, count = self.facts, self.ledger, self.ledger.count
        if not ledger.holds(job):
            return [minimum_gang(ledger, job)]
        if not ledger.within_limits(job):
            # Below its minimum (it was raised, or pods were lost): all that is missing or nothing.
            missing = self.missing(job)
            return [missing] if missing is not None else []
        out: list[dict[int, int]] = []
        for role in facts.roles_of[job]:
            more = self.aim[role] - count[role]
            while more > 0 and count[role] >= facts.role_min[role]:
                out.append({role: more})
                more //= 2
        return out

    def mark(self, job: int, *, is_new: bool = True) -> None:
        """Record that a job got something: that it starts if it `is_new`, else that it grows."""
        wanted = sum(self.facts.role_desired[r] for r in self.facts.roles_of[job])
        self.reasons[job] = Fits(self.replicas(job), wanted) if is_new else Grown(self.replicas(job))
