"""Plans: asks the policy, isolates jobs with which it fails, and sends the writes of its plan in order."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np
import structlog

from diflow.allocator.model.plan import RESIZE, Action, Plan, changes
from diflow.allocator.model.profile import Profile
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.plan.demands import Demand, Demands
from diflow.allocator.plan.effort import Effort
from diflow.allocator.plan.guard import Guard, has_fault, has_raised, is_late
from diflow.allocator.plan.holding import Lapsed, Standing, Standings
from diflow.allocator.plan.inputs import Picture, Restrictions, left_in_place, picture
from diflow.allocator.plan.isolation import MOST_CULPRITS, TooLongError, culprit
from diflow.allocator.plan.pacing import Pacing
from diflow.allocator.plan.plan_writes import plan_writes, withdraw
from diflow.allocator.plan.quotas import beyond
from diflow.allocator.plan.sequence import Holdings, write_in_order
from diflow.allocator.plan.timeouts import Promises
from diflow.allocator.plan.triggers import is_news
from diflow.allocator.plan.wishes import Wishes, is_wished
from diflow.allocator.policies.base import Policy
from diflow.allocator.policies.units import in_units
from diflow.allocator.settings import AllocatorSettings
from diflow.allocator.watch.cluster_state import ClusterState
from diflow.allocator.watch.cluster_view import ClusterView
from diflow.allocator.watch.job import Job
from diflow.allocator.write.executor import Executor
from diflow.allocator.write.patches import Note, Write
from diflow.common.clock import Clock
from diflow.common.errors import DiflowError, InvalidError
from diflow.kube.leader_election import Elector
from diflow.record.job import JobRecord

# What a task that waits costs a plan beyond the operations that are counted, in operations.
_OF_A_TASK: Final = 100

_NOTHING: Final[Mapping[str, str]] = {}

log = structlog.get_logger("diflow.allocator")


@dataclass(frozen=True, slots=True)
class Calls:
    """What a planner calls."""

    record: Callable[[Snapshot, Plan], None]
    """With each snapshot and plan."""
    on_progress: Callable[[], None]
    """When a step is done."""
    on_due: Callable[[str], None]
    """With a reason when another plan is due: writes were refused, or texts are left."""
    inherit: Callable[[JobRecord, Profile | None], Profile | None]
    """Adds to a job's profile what is known of its application."""
    withdraw: Callable[[ClusterState, Mapping[str, Demand]], None]
    """Removes the pods that stand for other jobs than these, before those of gangs are made that start."""


class Planner:
    """Makes one plan at a time."""

    def __init__(
        self,
        policy: Policy,
        settings: AllocatorSettings,
        elector: Elector,
        executor: Executor,
        view: ClusterView,
        *,
        calls: Calls,
        clock: Clock,
    ) -> None:
        self.policy, self._calls = policy, calls
        self._settings, self._elector, self._executor = settings, elector, executor
        self._view = view
        self._clock = clock
        self._guard = Guard(policy.name, limit_seconds=settings.policy_seconds)
        self._standings = Standings()
        self.promises = Promises(settings.promise_seconds)
        self.pacing, self.wishes = Pacing(), Wishes(clock)
        self.demands = Demands(settings)
        self.effort = Effort(clock)
        self._reports: dict[str, str] = {}
        self._failing_since: float | None = None
        self._carried_out = -math.inf
        self._is_refused = False
        self.last: tuple[Picture, Plan] | None = None
        self.last_trouble = ""
        """Why the last plan changed nothing, or ""."""

    @property
    def dues(self) -> Sequence[Callable[[], float]]:
        """What says when another plan is due with time alone, each on the clock."""
        return self.promises.due, self.pacing.due, self.wishes.due, self.effort.due, self.demands.due

    @property
    def failing_seconds(self) -> float | None:
        """Seconds since the first of the last plans, all of which failed; None if the last one succeeded."""
        return None if self._failing_since is None else self._clock.monotonic() - self._failing_since

    @property
    def planned_ago(self) -> float:
        """Seconds since the beginning of the last plan of which all writes were made, infinite without one."""
        return self._clock.monotonic() - self._carried_out

    @property
    def stuck_seconds(self) -> float:
        """Seconds since the start of an abandoned call of the policy that has not returned; 0 if there is none."""
        return self._guard.stuck_seconds

    def left_out(self) -> Mapping[str, str]:
        """Why jobs are left out of plans, or get no place now, by key."""
        return {**self.promises.texts, **self._standings.left_out.texts()}

    def reports_another_speed(self, key: str, read: JobRecord) -> bool:
        """Whether the job's report differs from that of the last plan: many small changes add up to a large one."""
        return key in self._reports and is_news(self._reports[key], read, self._settings.speed_change)

    def plan(self, state: ClusterState) -> tuple[float, bool]:
        """Plan, and write the plan. Returns (the policy's seconds, whether anything was written).

        An error in planning changes nothing. Raises errors of the API server and LostLeadershipError.
        """
        began, self._is_refused = self._clock.monotonic(), False
        try:
            spent, changed = self._plan(state)
        except Exception as error:
            if isinstance(error, DiflowError) and not isinstance(error, InvalidError):
                raise
            self.last_trouble = f"there is no plan: {type(error).__name__}: {error}"
            self._report_failure(self.last_trouble)
            log.error("there is no plan", trace=traceback.format_exc(limit=-4))
            spent, changed = 0.0, False
        if not self.last_trouble:
            self._failing_since = None
            self._carried_out = self._carried_out if self._is_refused else began
        elif self._failing_since is None:
            self._failing_since = self._clock.monotonic()
        return spent, changed

    def _plan(self, state: ClusterState) -> tuple[float, bool]:
        now = self._clock.wall()
        self._reports = {job.key: job.read.texts.profilings for job in state.jobs.values()}
        state = self._withdraw_unused(state, now)
        lapsed = self.promises.lapsed(state.jobs, self._view.capacity(state), now=self._clock.monotonic(), wall=now)
        spent = 0.0
        at_fault: list[Job] = []
        held: dict[str, str] = {}
        for turn in range(MOST_CULPRITS + 1):
            shown = self._picture(state, now, lapsed, held=held)
            if not shown.standings:
                self.last, self.last_trouble = None, ""
                self.demands.clear()
                self._calls.withdraw(state, self.demands.wanted)
                return spent, False
            plan, more, trouble = self._ask(shown.snapshot)
            spent += more
            if not trouble and left_in_place(shown, plan):
                shown = self._picture(state, now, lapsed, held=held, keep_cordoned=True)
                plan, more, trouble = self._ask(shown.snapshot)
                spent += more
            if trouble:
                worst = self._isolate(state, shown, now, lapsed, trouble=trouble, at_fault=at_fault)
                if worst is not None and turn < MOST_CULPRITS:
                    continue
                self.last, self.last_trouble = (shown, plan), trouble
                self._calls.record(shown.snapshot, plan)
                self._report_failure(trouble)
                return spent, False
            over = beyond(shown.standings, shown.snapshot, plan, state.quotas)
            if over and turn < MOST_CULPRITS:
                held |= over
                continue
            writes = self._writes_of(shown, plan, state, now)
            if writes is not None:
                break
        else:
            raise InvalidError("no plan can be written, whichever jobs are left out")
        self.last, self.last_trouble = (shown, plan), ""
        self._calls.record(shown.snapshot, plan)
        log.info(
            "plan",
            policy=plan.policy,
            jobs=shown.snapshot.jobs,
            nodes=shown.snapshot.nodes,
            changes=changes(plan),
            waiting=int((plan.action == int(Action.WAIT)).sum()),
            seconds=round(spent, 4),
        )
        self._calls.withdraw(state, self.demands.wanted)
        return spent, self._write(*writes, shown, plan, state)

    def _writes_of(
        self, shown: Picture, plan: Plan, state: ClusterState, now: float
    ) -> tuple[list[Write], list[Write]] | None:
        """(the writes of the plan that free capacity, those that use it). None if those of a job cannot be built: it is
        left out, and another plan is needed, as others may depend on the capacity that it frees."""
        failed: list[tuple[Job, Exception]] = []
        self.demands.look(shown, plan, state, now=self._clock.monotonic())
        writes = plan_writes(
            shown,
            plan,
            now=now,
            limit_seconds=self._settings.placement_limit_seconds,
            capacity=self._view.unclaimed(state),
            demands=self.demands,
            failed=lambda job, error: failed.append((job, error)),
        )
        for job, error in failed:
            self._leave_out(job, error, now)
        return None if failed else writes

    def _write(self, free: list[Write], use: list[Write], shown: Picture, plan: Plan, state: ClusterState) -> bool:
        """Send the writes of a plan, and texts of decisions last. Returns whether there were any."""
        rows = {standing.job.key: row for row, standing in enumerate(shown.standings)}
        use.sort(key=lambda write: state.jobs[write.job].order)
        free.sort(key=lambda write: state.jobs[write.job].order)
        texts = [write for write in use if write.is_only_text]
        use = [write for write in use if not write.is_only_text]
        done = write_in_order(
            free, use, Holdings(shown.snapshot, plan, rows), lambda some: self._executor.apply(some, state.jobs)
        )
        unwritten = {write.job for write in (*done.refused, *done.waiting)}
        self.pacing.note(shown, plan, unwritten=unwritten, now=self._clock.monotonic())
        resized = (shown.standings[j] for j in np.flatnonzero(plan.action == RESIZE).tolist())
        self.wishes.note(shown.standings, [s for s in resized if is_wished(s) and s.job.key not in unwritten])
        if done.refused:
            self._is_refused = True
            refused = {write.job for write in done.refused}
            left = refused & self._executor.left
            for what, some in (("were refused", refused - left), ("are left for the next cycle", left)):
                if some:
                    log.info(f"writes of the plan {what}", jobs=sorted(some)[:4], waiting=len(done.waiting))
            self._calls.on_due("conflict" if refused - left else "writes of the plan are left")
        if self._executor.apply_texts(texts, state.jobs):
            self._calls.on_due("texts of decisions are left")
        return bool(done.tried or texts)

    def _withdraw_unused(self, state: ClusterState, now: float) -> ClusterState:
        """Withdraw the places that were not used in time. Returns the cluster state then."""
        capacity = self._view.capacity(state)
        planned = self._standings.left_out.without([*state.jobs.values()], now=now)
        standings = self._standings.of(planned, capacity, now=now, keep_cordoned=False)
        expired = self.promises.expire(standings, state.pods, capacity, now=self._clock.monotonic())
        out = [withdraw(one.standing, one.why, now=now, most=one.most) for one in expired]
        writes = [write for write in out if write is not None and not self._executor.backoffs.is_active(write.job)]
        if not writes:
            return state
        self._executor.apply(writes, state.jobs)
        return self._view.state()

    def _leave_out(self, job: Job, error: Exception | str, now: float) -> None:
        log.error("the job is left out of plans", job=job.key, why=str(error))
        self._standings.left_out.add(job, error, now=now)

    def _isolate(
        self, state: ClusterState, shown: Picture, now: float, lapsed: Lapsed, *, trouble: str, at_fault: list[Job]
    ) -> Job | None:
        """Leave out the job without which the policy would not have failed with this `trouble`, and add it to those
        `at_fault` so far. None if there is none; then all of them are planned again. If the policy was late, leave out
        the waiting jobs of a namespace, and return one of them; with jobs of one namespace that would help nobody."""
        is_shared = len({standing.job.read.identity.namespace for standing in shown.standings}) > 1
        if is_shared and is_late(trouble, self.policy.name):
            return self._leave_out_slowest(shown, now)
        if not has_raised(trouble, self.policy.name) and not (is_shared and has_fault(trouble, self.policy.name)):
            self._standings.left_out.remove(at_fault)
            return None
        worst, is_known = self._culprit(state, shown, now, lapsed)
        if worst is not None:
            at_fault.append(worst)
            self._leave_out(worst, trouble, now)
        elif is_known:
            self._standings.left_out.remove(at_fault)  # the policy fails whichever jobs there are
        return worst

    def _leave_out_slowest(self, shown: Picture, now: float) -> Job | None:
        """Leave out the waiting jobs of the namespace with which planning takes longest: by the work that was counted,
        and by its waiting tasks, for the work that is not. Returns one of them; None if no job waits."""
        waiting = [(j, standing.job) for j, standing in enumerate(shown.standings) if not standing.is_placed]
        took: dict[str, int] = {}
        owners, work = shown.snapshot.owners, shown.snapshot.work.of_owner
        for j, job in waiting:
            namespace = job.read.identity.namespace
            took.setdefault(namespace, work[int(owners[j])])
            took[namespace] += _OF_A_TASK * len(job.read.needs.roles)
        if not took:
            return None
        slowest = max(sorted(took), key=took.__getitem__)
        log.error("the waiting jobs of a namespace are left out of plans, as one was late", namespace=slowest)
        self._standings.left_out.add_late(slowest, now=now)
        return next(job for _, job in waiting if job.read.identity.namespace == slowest)

    def _culprit(self, state: ClusterState, shown: Picture, now: float, lapsed: Lapsed) -> tuple[Job | None, bool]:
        """(the job without which the policy does not fail, if there is one; whether the search ended in time)."""
        ends = self._clock.monotonic() + self._settings.policy_seconds
        kept = Standings()  # of its own, as the jobs that are not in a sample must not count as gone

        def fails(some: Sequence[Job]) -> bool:
            if self._clock.monotonic() > ends:
                raise TooLongError
            part = replace(state, jobs={job.key: job for job in some})
            snapshot = self._picture(part, now, lapsed, kept=kept).snapshot
            return has_fault(self._ask(snapshot)[2], self.policy.name)

        try:
            return culprit([standing.job for standing in shown.standings], fails), True
        except TooLongError:
            return None, False

    def _report_failure(self, trouble: str) -> None:
        """Log that the plan changes nothing, and record an Event on the Lease, once for each trouble and leader."""
        log.error("the policy changes nothing", why=trouble)
        text = f"the policy {self.policy.name} changes nothing: {trouble}"
        self._executor.record_own_events([(Note("PolicyFailed", text, is_warning=True), str(self._elector.epoch))])

    def _ask(self, snapshot: Snapshot) -> tuple[Plan, float, str]:
        """(plan, seconds, trouble)."""
        began = self._clock.monotonic()
        self._calls.on_progress()
        self.effort.begin(snapshot)
        plan, trouble = self._guard.ask(partial(in_units, self.policy.optimize), snapshot)
        self.effort.note(snapshot, self._guard.processor_seconds)
        self._calls.on_progress()
        return plan, self._clock.monotonic() - began, trouble

    def _paced(self, standings: Sequence[Standing]) -> list[Standing]:
        now = self._clock.monotonic()
        return self.wishes.applied(self.pacing.applied(standings, now=now, suspected=self.promises.suspected))

    def _picture(
        self,
        state: ClusterState,
        now: float,
        lapsed: Lapsed,
        *,
        held: Mapping[str, str] = _NOTHING,
        keep_cordoned: bool = False,
        kept: Standings | None = None,
    ) -> Picture:
        restrictions = Restrictions(
            held=held,
            fixed=self._executor.backoffs.jobs(),
            ending=self._executor.unwritable(state.jobs),
            lapsed=lapsed,
            pace=self._paced,
        )
        return picture(
            state,
            self._view.capacity(state),
            now=now,
            pools=self._settings.pools,
            keep_cordoned=keep_cordoned,
            restrictions=restrictions,
            kept=kept or self._standings,
            inherit=self._calls.inherit,
        )
