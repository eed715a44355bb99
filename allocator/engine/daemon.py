"""The daemon: watches, and runs a cycle when something has changed.

    caches ──change──> wake ──> cycle: carry out → (if there is a reason) plan → write → carry out

A cycle reads the caches once, decides, writes, and forgets. Two things are remembered between cycles, and both may be
lost at any time: what is quiet (so that a thousand jobs that rest cost nothing), and how long a pod has been unbound.
"""

from __future__ import annotations

import math
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

import structlog

from diflow.allocator.engine import control_channel, planning, reports
from diflow.allocator.engine.cluster_state import Caches, ClusterState
from diflow.allocator.engine.control_channel import PAUSED, REPLAN
from diflow.allocator.engine.executor import Executor
from diflow.allocator.engine.free_capacity import FreeCapacity
from diflow.allocator.engine.guard import Guard, has_raised
from diflow.allocator.engine.isolation import MOST_CULPRITS, TooLongError, culprit
from diflow.allocator.engine.missing_nodes import MissingNodes
from diflow.allocator.engine.patches import Note, Write, touch
from diflow.allocator.engine.planning import Lapsed, Picture
from diflow.allocator.engine.promises import Promises
from diflow.allocator.engine.reconcile import Job, Pace, end_pods, next_names, reconcile
from diflow.allocator.engine.records import JobRead, NodeRead, PodRead
from diflow.allocator.engine.seal import Seal
from diflow.allocator.engine.sequence import Holdings, write_in_order
from diflow.allocator.engine.settings import AllocatorSettings
from diflow.allocator.messages import plan_text
from diflow.allocator.model.plan import Action, Plan, changes
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.policies.base import Policy
from diflow.errors import DiflowError, InvalidError, LostLeadershipError
from diflow.kube.api import Cluster
from diflow.kube.kinds import NODE, POD, WORKFLOW, Kind
from diflow.kube.leader_election import Elector

# A wake-up while nothing happens, to look at the Lease's annotations.
_LOOK_SECONDS = 5.0
# So long after a cycle a change comes by itself, not in the wake of others.
_LULL_SECONDS = 0.5
# A node to which kube-scheduler did not bind what was sent there gets nothing new for so long: longer each time.
_AVOID_SECONDS = (60.0, 1800.0)
# A pod that kube-scheduler has not even tried to bind is given so many times longer than one that it has refused.
_UNTRIED = 20
# A plan that failed is asked for again, as who leads is not ready until one succeeds.
_AGAIN_SECONDS = 15.0
# Carrying out may lead to more of it at once (a write changes the caches): so many times before planning.
_SETTLE = 3

log = structlog.get_logger("diflow.allocator")


@dataclass
class Reasons:
    """Why there is something to do, gathered until the next cycle."""

    plan: set[str] = field(default_factory=set)
    is_dirty: bool = False
    first: float = 0.0


@dataclass(frozen=True, slots=True)
class Cycle:
    """What one cycle did, for the journal, for metrics and for tests."""

    planned: str
    seconds: float
    policy_seconds: float
    writes: int
    jobs: int
    trouble: str = ""
    """Why nothing was decided: the caches are old."""
    policy_trouble: str = ""
    """Why the plan changed nothing: the policy failed, was late, or planned what cannot be."""


class Allocator:
    """Decides and writes for one cluster. `run` blocks; `cycle` does one round of work, for tests and for cron."""

    def __init__(
        self,
        cluster: Cluster,
        settings: AllocatorSettings,
        policy: Policy,
        elector: Elector,
        *,
        record: Callable[[Snapshot, Plan], None] = lambda _snapshot, _plan: None,
        on_cycle: Callable[[Cycle], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        reflecting: dict[str, Any] | None = None,
    ) -> None:
        self.settings = settings
        self.policy = policy
        self.elector = elector
        self._record, self._on_cycle = record, on_cycle
        self._clock, self._wall = clock, wall
        self._wake = threading.Condition()
        self._reasons = Reasons()
        self.seal = Seal(cluster, namespace=settings.namespace)
        self.caches = Caches(cluster, settings, on_change=self._on_cache_change, seal=self.seal, **(reflecting or {}))
        self.executor = Executor(
            cluster,
            elector,
            on_response=self.caches.apply_write_response,
            progress=self._progress,
            sign=self.seal.sign,
            workers=settings.writers,
            clock=clock,
            wall=wall,
        )
        self._guard = Guard(policy.name, limit_seconds=settings.policy_seconds)
        self._quiet: dict[str, Job] = {}
        self._memory = planning.Memory()
        self._missing = MissingNodes()
        self._promises = Promises(settings.promise_seconds)
        self._reported: dict[str, str] = {}
        self._unbound: dict[str, float] = {}
        self._planned = clock()
        self._later = math.inf
        self._cycled = clock()
        self._lost: frozenset[str] = frozenset()
        self._timed: ClusterState | None = None
        self._times: Set[float] = frozenset()
        self._ahead: dict[float, float] = {}
        self._counted: tuple[FreeCapacity, tuple[PodRead, ...]] = FreeCapacity({}), ()
        self._avoided: dict[str, tuple[float, float]] = {}
        self._in_trouble = False
        self._told_problems: dict[str, str] = {}
        self._epoch = 0
        self._not_ours: dict[str, str] = {}
        self._cluster = cluster.asked_once()
        self._last_replan = ""
        self._to_answer = ""
        self._pause = ""
        self.last: tuple[Picture, Plan] | None = None
        self.last_trouble = ""
        """Why the last plan changed nothing, or ""."""
        self.woke = clock()
        """When the loop last came further, on the clock: for those who watch over it."""
        self._failing: float | None = None

    # --- the loop -----------------------------------------------------------------------------------------------------

    def run(self, stop: threading.Event) -> None:
        """Work until `stop` is set, as long as this process leads, else LostLeadershipError."""
        self.caches.start()
        try:
            self._wait_for_caches(stop)
            self.ask("start")
            while not stop.is_set():
                self._wait(stop)
                if not stop.is_set() and self.turn().trouble:
                    stop.wait(1.0)
        finally:
            self.caches.stop()
            self.executor.close()

    def has_work(self) -> bool:
        """Whether something has happened since the last turn, or the time for something has come."""
        with self._wake:
            return self._read_lease_requests() or self._reasons.is_dirty or self._clock() >= self._due()

    def turn(self) -> Cycle:
        """Do what there is to do, now. Raises LostLeadershipError."""
        with self._wake:
            self._read_lease_requests()
            reasons, self._reasons = self._reasons, Reasons()
        self.elector.check()
        if self._clock() - self._planned >= self.settings.period_seconds:
            reasons.plan.add("period")
        if self._failing is not None and self._clock() - self._planned >= _AGAIN_SECONDS:
            reasons.plan.add("the last plan failed")
        done = self.cycle(", ".join(sorted(reasons.plan)[:4]))
        if done.planned or self._pause:
            self._planned = self._clock()
        if self._to_answer and not done.trouble:
            self._answer()
        return done

    def ask(self, reason: str) -> None:
        """Ask for a plan."""
        with self._wake:
            self._reasons.plan.add(reason)
            self._reasons.is_dirty = True
            self._wake.notify()

    def cycle(self, planned: str) -> Cycle:
        """Carry out what was decided; if `planned` names a reason, plan too. Changes nothing on caches that are old."""
        self.woke = self._cycled = began = self._clock()
        made = self.executor.made
        trouble = self.caches.trouble()
        state = self._state() if not trouble else ClusterState({}, {}, ())
        spent = 0.0
        if not trouble:
            self.executor.keep(state.jobs)
            planned = ", ".join([*filter(None, [planned]), *self._time_has_come(state)])
            state = self._take_over(state)
            self._say_problems(state)
            state = self._settle(state)
            if planned and self.paused():
                planned = ""
            if planned:
                spent, changed = self._plan_safely(state)
                if not self.last_trouble:
                    self._failing = None
                elif self._failing is None:
                    self._failing = self._clock()
                if self._memory.left_out.texts():
                    self._say_problems(state)
                if changed:
                    self._settle(self._state())
        else:
            if not self._in_trouble:
                log.warning("nothing is decided", why=trouble)
            # What there was to do is still to be done when the caches are good again, though nothing may change then.
            self.ask(planned or "the caches were old")
        self._in_trouble = bool(trouble)
        cycle = Cycle(
            planned=planned if not trouble else "",
            seconds=self._clock() - began,
            policy_seconds=spent,
            writes=self.executor.made - made,
            jobs=len(state.jobs),
            trouble=trouble,
            policy_trouble=self.last_trouble if planned and not trouble else "",
        )
        self._on_cycle(cycle)
        return cycle

    @property
    def failing_seconds(self) -> float:
        """How long no plan has succeeded, though one was asked for."""
        return self._clock() - self._failing if self._failing is not None else 0.0

    @property
    def stuck_seconds(self) -> float:
        """How long ago a call of the policy began that was left behind and has not come back."""
        return self._guard.stuck_seconds

    def paused(self) -> str:
        """Who paused the allocator, or ""."""
        return self.elector.lease_annotations().get(PAUSED, "")

    def _progress(self) -> None:
        self.woke = self._clock()

    def _wait_for_caches(self, stop: threading.Event) -> None:
        while not stop.is_set() and not self.caches.wait_synced(1.0):
            self.woke = self._clock()
            self.elector.check()

    def _wait(self, stop: threading.Event) -> None:
        """Wait for something to do, and a little longer for what comes with it."""
        while not stop.is_set() and not self.has_work():
            self.woke = self._clock()
            with self._wake:
                if not self._reasons.is_dirty:
                    self._wake.wait(min(max(0.01, self._due() - self._clock()), _LOOK_SECONDS))
            self.elector.check()
        # The first change after a while is seen to at once; what comes in its wake is gathered.
        if self.settings.debounce_seconds and self._clock() - self._cycled < _LULL_SECONDS:
            stop.wait(self.settings.debounce_seconds)

    def _due(self) -> float:
        """When there is something to do though nothing happens, on the clock."""
        release = self.executor.next_retry()
        return min(
            self._planned + self.settings.period_seconds,
            self._later,
            math.inf if release is None else release,
            self._cycled + 1.0 if self._unbound else math.inf,
            self._planned + _AGAIN_SECONDS if self._failing is not None else math.inf,
        )

    def _read_lease_requests(self) -> bool:
        """Note what others have written into the Lease. Returns whether there is news."""
        said = self.elector.lease_annotations()
        asked, pause = said.get(REPLAN, ""), said.get(PAUSED, "")
        news = (asked, pause) != (self._last_replan, self._pause)
        if asked != self._last_replan:
            self._last_replan = self._to_answer = asked
            self._reasons.plan.add("asked")
        if pause != self._pause:
            log.info("paused" if pause else "resumed", by=pause or self._pause)
            self._pause = pause
            self._reasons.plan.add("resumed")
        return news

    def _answer(self) -> None:
        """Tell the one who asked for a plan what came of it."""
        asked, self._to_answer = self._to_answer, ""
        try:
            self.elector.check()
            control_channel.answer(self._cluster, namespace=self.settings.namespace, asked=asked, text=self.account())
        except LostLeadershipError:
            raise
        except DiflowError as error:
            log.warning("no answer", to=asked, why=str(error))

    def account(self) -> str:
        """What the last plan decided, as text."""
        if self.paused():
            return f"nothing is decided: the allocator is paused by {self.paused()}\n"
        if self.last is None:
            return "there are no jobs to decide on\n"
        shown, plan = self.last
        return plan_text.plan_text(shown.snapshot, plan, trouble=self.last_trouble)

    def _on_cache_change(self, kind: Kind, key: str, old: Any, new: Any) -> None:
        """A cache has changed: is it a reason to plan, or only to carry out?"""
        if old == new:
            return  # a node's heartbeat, of which nothing is read: some come each second where there are hundreds
        fraction = self.settings.speed_change
        reason = _reason(kind, key, old, new, fraction=fraction)
        if not reason and kind is WORKFLOW and new is not None and key in self._reported:
            # Many small changes are a large one: what counts is what the last plan knew.
            reason = f"{key} reports another speed" if _is_news(self._reported[key], new, fraction) else ""
        if not reason and kind is POD and (new or old).job in self._promises.barred:
            reason = f"a pod of {(new or old).job} {'is gone' if new is None else 'came'}"
        with self._wake:
            if reason:
                self._reasons.plan.add(reason)
            self._reasons.is_dirty = True
            self._wake.notify()

    # --- carrying out -------------------------------------------------------------------------------------------------

    def _state(self) -> ClusterState:
        """What the caches show now. A node whose object is missing under pods of jobs counts as one that is silent."""
        state = self.caches.state()
        nodes = self._missing.among(state.nodes, state.pods, now=self._wall())
        return state if nodes is state.nodes else replace(state, nodes=nodes)

    def _capacity(self, state: ClusterState) -> FreeCapacity:
        """How the nodes are, and what is free on them beside all pods: counted anew when one of them has changed."""
        capacity, pods = self._counted
        if capacity.nodes is not state.nodes or pods is not state.pods:
            capacity = FreeCapacity.of(state.nodes, state.pods)
            self._counted = capacity, state.pods
        now = self._wall()
        return capacity.at(now, lost_after_seconds=self.settings.lost_after_seconds, ages=self._ages(state, now))

    def _ages(self, state: ClusterState, now: float) -> dict[float, float]:
        """How long ago times were that lie in the future: since they were first seen. Our clock may have been set back,
        and what writes of nodes has another one."""
        if state is not self._timed:
            self._timed = state
            known = (job.read.allocation for job in state.jobs.values())
            self._times = {
                *(node.not_ready_since for node in state.nodes.values() if node.not_ready_since is not None),
                *(time for at in known if at is not None for time in (at.since, at.first)),
            }
        clock = self._clock()
        self._ahead = {time: self._ahead.get(time, clock) for time in self._times if time > now}
        return {time: clock - seen for time, seen in self._ahead.items()}

    def _time_has_come(self, state: ClusterState) -> list[str]:
        """Reasons to plan that only the time has made, and when there will be another one."""
        capacity = self._capacity(state)
        lost = frozenset(name for name in state.nodes if capacity.is_lost(name))
        reasons = [f"node {name} is silent" for name in sorted(lost - self._lost)]
        self._lost = lost
        reasons += [f"{job} is tried again" for job in self.executor.end_backoffs()]
        if self._clock() >= self._promises.due():
            reasons.append("a place was not taken")
        silent = (
            self.settings.lost_after_seconds - capacity.age(node.not_ready_since)
            for node in state.nodes.values()
            if node.not_ready_since is not None and node.name not in lost
        )
        young = (
            self.settings.between_rounds_seconds - capacity.age(job.read.allocation.since)
            for job in state.jobs.values()
            if job.read.tree.recreated and job.read.allocation is not None
        )
        left = min((seconds for seconds in (*silent, *young) if seconds > 0), default=math.inf)
        self._later = self._clock() + left
        if self._promises.due() > self._clock():
            self._later = min(self._later, self._promises.due())
        return reasons

    def _take_over(self, state: ClusterState) -> ClusterState:
        """As a new leader, change each job once, by the epoch in it alone. What a leader before us has decided and not
        yet sent (a process may be stopped between its look at the Lease and its write) names the version that it read,
        and is refused from now on. Who was first has nobody before."""
        epoch = self.elector.epoch
        if self._epoch != epoch:
            self._epoch = epoch
            live = state.jobs.values() if epoch > 1 else ()
            self._not_ours = {job.key: job.read.identity.version for job in live if not job.read.has_ended}
        self._not_ours = {
            key: version
            for key, version in self._not_ours.items()
            if key in state.jobs and state.jobs[key].read.identity.version == version
        }
        out = [touch(state.jobs[key].read) for key in self._not_ours if not self.executor.is_backing_off(key)]
        if not out:
            return state
        log.info("takes over", jobs=len(out), epoch=epoch)
        self.executor.apply(out, state.jobs)
        return self._state()

    def _settle(self, state: ClusterState) -> ClusterState:
        """Carry out, as often as that leads to more of it. Returns what the caches show then."""
        for _ in range(_SETTLE):
            if not self._reconcile(state):
                break
            state = self._state()
        return state

    def _reconcile(self, state: ClusterState) -> bool:
        """Make the next writes of all jobs. Returns whether any was made."""
        now = self._wall()
        capacity = self._capacity(state)
        pace = Pace(self.settings.between_rounds_seconds)
        overdue = self._overdue(state)
        unwritable = self.executor.unwritable(state.jobs)
        lost = {host for host in {pod.host for pod in state.pods} if host and capacity.is_lost(host)}
        out: list[Write] = []
        quiet: dict[str, Job] = {}
        order = sorted(state.jobs.values(), key=_turn)
        for job in order:
            if job.key in unwritable:
                out += end_pods(job, capacity)
                continue
            if self._is_quiet(job, lost, overdue):
                quiet[job.key] = job
                continue
            if self.executor.is_backing_off(job.key):
                continue
            try:
                writes = reconcile(job, capacity, now=now, pace=pace, overdue=overdue)
            except Exception as error:  # whatever is wrong with one job must not stop the others
                log.error("cannot be carried out", job=job.key, trace=traceback.format_exc(limit=-4))
                self.executor.back_off(job.key, error)
                continue
            out += writes
            if not writes and not any(pod.is_gated for pod in job.pods):
                quiet[job.key] = job
        self._quiet = quiet
        if not out:
            return False
        before = self.executor.made
        self.executor.apply(out, state.jobs)
        return self.executor.made > before

    def _is_quiet(self, job: Job, lost: Set[str], overdue: Set[str]) -> bool:
        if self._quiet.get(job.key) is not job:
            return False
        # Time alone makes a silent node a lost one, a round old enough to be replaced, and a pod overdue.
        if job.read.tree.recreated:
            return False
        return not (lost or overdue) or not any(pod.identity.uid in overdue or pod.host in lost for pod in job.pods)

    def _overdue(self, state: ClusterState) -> frozenset[str]:
        """Pods that were admitted and that kube-scheduler has not bound for too long."""
        now = self._clock()
        waiting = {
            pod.identity.uid: pod
            for pod in state.pods
            if not (pod.gates or pod.host or pod.is_terminating) and pod.place is not None and pod.job in state.jobs
        }
        self._unbound = {uid: self._unbound.get(uid, now) for uid in waiting}
        # One that was not tried yet waits behind others: kube-scheduler binds some 50 a second.
        patience = {True: self.settings.bind_seconds, False: _UNTRIED * self.settings.bind_seconds}
        late = frozenset(uid for uid, since in self._unbound.items() if now - since > patience[waiting[uid].is_refused])
        self._avoided = {node: known for node, known in self._avoided.items() if node in state.nodes}
        # Whoever may create pods can make one that waits for any node: only what was sent there tells of the node.
        sent = {pod.pinned for pod in (waiting[uid] for uid in late) if _was_sent(pod, state.jobs[pod.job])}
        for node in sent & state.nodes.keys():
            until, pause = self._avoided.get(node, (-math.inf, 0.0))
            if now >= until:
                pause = pause if now - until < _AVOID_SECONDS[1] else 0.0
                pause = min(max(2 * pause, _AVOID_SECONDS[0]), _AVOID_SECONDS[1])
                self._avoided[node] = (now + pause, pause)
        return late

    def _say_problems(self, state: ClusterState) -> None:
        """Tell once why a job is held, and what of it was ignored."""
        problems = {}
        left_out = self._memory.left_out.texts()
        for job in state.jobs.values():
            read = job.read
            held = read.problem or left_out.get(job.key, "")
            text = held or read.complaint or _complaint(read.profilings)
            if read.tree.is_offloaded and not read.has_ended:
                text = text or "Argo keeps its nodes in a database, where the allocator cannot read them"
            if job.is_full and not job.is_superseded and not next_names(job):
                text = text or "its Workflow is full, and the names of its tasks leave no room for that of a next one"
            if text and not read.has_ended:
                problems[job.key] = text
                if self._told_problems.get(job.key) != text:
                    log.warning("held" if held else "ignored", job=job.key, why=text)
                    self.executor.record_event(job, Note("Refused", text, is_warning=True), salt=text)
        self._told_problems = problems
        if state.queue_trouble:
            log.warning("the queues stay as they were", why=state.queue_trouble)

    # --- planning -----------------------------------------------------------------------------------------------------

    def _plan_safely(self, state: ClusterState) -> tuple[float, bool]:
        """As `_plan`; a mistake of ours in it leaves everything as it is, and what runs runs on."""
        try:
            return self._plan(state)
        except Exception as error:
            if isinstance(error, DiflowError) and not isinstance(error, InvalidError):
                raise
            self.last_trouble = f"there is no plan: {type(error).__name__}: {error}"
            self._report_policy(self.last_trouble)
            log.error("there is no plan", trace=traceback.format_exc(limit=-4))
            return 0.0, False

    def _plan(self, state: ClusterState) -> tuple[float, bool]:
        """Ask the policy and write what it says. Returns (its seconds, whether anything was written)."""
        now = self._wall()
        self._reported = {job.key: job.read.profilings for job in state.jobs.values()}
        state = self._withdraw_unused(state, now)
        lapsed = self._promises.lapsed(state.jobs, self._capacity(state), now=self._clock())
        spent = 0.0
        at_fault: list[Job] = []
        for turn in range(MOST_CULPRITS + 1):
            shown = self._picture(state, now, lapsed)
            if not shown.standings:
                self.last, self.last_trouble = None, ""
                return spent, False
            plan, more, trouble = self._ask(shown.snapshot)
            spent += more
            if not trouble and planning.left_in_place(shown, plan):
                shown = self._picture(state, now, lapsed, keep_cordoned=True)
                plan, more, trouble = self._ask(shown.snapshot)
                spent += more
            worst, is_known = None, True
            if has_raised(trouble, self.policy.name):
                worst, is_known = self._at_fault(state, shown, now, lapsed)
            if worst is not None:
                at_fault.append(worst)
                self._leave_out(worst, trouble, now)
            elif trouble and is_known:
                self._memory.left_out.remove(at_fault)  # the policy fails whichever jobs there are
            if trouble and (worst is None or turn == MOST_CULPRITS):
                self.last, self.last_trouble = (shown, plan), trouble
                self._record(shown.snapshot, plan)
                self._report_policy(trouble)
                return spent, False
            if worst is not None:
                continue
            failed: list[tuple[Job, Exception]] = []
            free, use = planning.plan_writes(
                shown,
                plan,
                now=now,
                limit_seconds=self.settings.placement_limit_seconds,
                failed=lambda job, error: failed.append((job, error)),  # noqa: B023 (called before the next turn)
            )
            if not failed:
                break
            for job, error in failed:
                self._leave_out(job, error, now)
        else:
            raise InvalidError("no plan can be written, whichever jobs are left out")
        self.last, self.last_trouble = (shown, plan), ""
        self._record(shown.snapshot, plan)
        log.info(
            "plan",
            policy=plan.policy,
            jobs=shown.snapshot.jobs,
            nodes=shown.snapshot.nodes,
            changes=changes(plan),
            waiting=int((plan.action == int(Action.WAIT)).sum()),
            seconds=round(spent, 4),
        )
        rows = {standing.job.key: row for row, standing in enumerate(shown.standings)}
        use.sort(key=lambda write: _turn(state.jobs[write.job]))
        free.sort(key=lambda write: _turn(state.jobs[write.job]))
        done = write_in_order(
            free, use, Holdings(shown.snapshot, plan, rows), lambda some: self.executor.apply(some, state.jobs)
        )
        if done.refused:
            log.info("conflict", refused=sorted({w.job for w in done.refused})[:4], waiting=len(done.waiting))
            self.ask("conflict")
        return spent, bool(done.tried)

    def _withdraw_unused(self, state: ClusterState, now: float) -> ClusterState:
        """Take back the places that were not taken in time. Returns what the caches show then."""
        capacity = self._capacity(state)
        planned = self._memory.left_out.without([*state.jobs.values()], now=now)
        standings = self._memory.stand(planned, capacity, now=now, keep_cordoned=False)
        expired = self._promises.expire(standings, state.pods, capacity, now=self._clock())
        out = [planning.withdraw(one.standing, one.why, now=now, most=one.most) for one in expired]
        writes = [write for write in out if write is not None and not self.executor.is_backing_off(write.job)]
        if not writes:
            return state
        self.executor.apply(writes, state.jobs)
        return self._state()

    def _leave_out(self, job: Job, error: Exception | str, now: float) -> None:
        log.error("left out of plans", job=job.key, why=str(error))
        self._memory.left_out.add(job, error, now=now)

    def _at_fault(self, state: ClusterState, shown: Picture, now: float, lapsed: Lapsed) -> tuple[Job | None, bool]:
        """The job with which the policy fails and without which it does not, if there is one; and whether there was
        time enough to know that."""
        ends = self._clock() + self.settings.policy_seconds
        memory = planning.Memory()  # it is shown some of the jobs, and the others must not count as gone

        def fails(some: Sequence[Job]) -> bool:
            if self._clock() > ends:
                raise TooLongError
            part = replace(state, jobs={job.key: job for job in some})
            snapshot = self._picture(part, now, lapsed, memory=memory).snapshot
            return has_raised(self._ask(snapshot)[2], self.policy.name)

        try:
            return culprit([standing.job for standing in shown.standings], fails), True
        except TooLongError:
            return None, False

    def _report_policy(self, trouble: str) -> None:
        """Say that the last plan changes nothing, in the log and as an Event on the Lease: the same one for the same
        trouble, however often it comes."""
        log.error("the policy changes nothing", why=trouble)
        text = f"the policy {self.policy.name} changes nothing: {trouble}"
        self.executor.record_own_event(Note("PolicyFailed", text, is_warning=True), salt=str(self.elector.epoch))

    def _ask(self, snapshot: Snapshot) -> tuple[Plan, float, str]:
        began = self._clock()
        self._progress()
        plan, trouble = self._guard.ask(self.policy.optimize, snapshot)
        self._progress()
        return plan, self._clock() - began, trouble

    def _picture(
        self,
        state: ClusterState,
        now: float,
        lapsed: Lapsed,
        *,
        keep_cordoned: bool = False,
        memory: planning.Memory | None = None,
    ) -> Picture:
        return planning.picture(
            state.jobs.values(),
            state.nodes,
            state.pods,
            state.queues,
            self._capacity(state),
            now=now,
            pools=self.settings.pools,
            keep_cordoned=keep_cordoned,
            fixed=self.executor.in_backoff(),
            ending=self.executor.unwritable(state.jobs),
            avoid=frozenset(node for node, (until, _) in self._avoided.items() if self._clock() < until),
            memory=memory or self._memory,
            lapsed=lapsed,
            rules=state.rules,
        )


def _was_sent(pod: PodRead, job: Job) -> bool:
    """The job has this place, on the node that the pod waits for."""
    at, place = job.read.allocation, pod.place
    granted = pod.identity.uid not in {stray.identity.uid for stray in job.strays()}
    return granted and place is not None and at is not None and at.node(place.task, place.index) == pod.pinned


def _turn(job: Job) -> tuple[int, float, str]:
    """Whose turn it is first: the higher priority's, then the older one's."""
    return -job.read.priority, job.created_seconds, job.key


def lead(allocator: Allocator, stop: threading.Event) -> None:
    """Wait to be the leader, then work. Returns when `stop` is set; raises LostLeadershipError when it was lost."""
    if not allocator.elector.acquire(stop):
        return
    log.info("leading", identity=allocator.elector.identity, epoch=allocator.elector.epoch)
    try:
        allocator.run(stop)
    except LostLeadershipError:
        log.error("another process leads now: this one ends")
        raise
    finally:
        allocator.elector.release()


def _reason(kind: Kind, key: str, old: Any, new: Any, *, fraction: float) -> str:
    """Why this change asks for a plan; "" if it only asks for carrying out."""
    if kind is WORKFLOW:
        return _job_reason(key, old, new, fraction)
    if kind is NODE:
        return _node_reason(old, new)
    if kind is POD:
        return _pod_reason(old, new)
    return "queues"


def _job_reason(key: str, old: JobRead | None, new: JobRead | None, fraction: float) -> str:
    if old is None or new is None:
        return f"{key} {'came' if new is not None else 'is gone'}"
    if old.has_ended != new.has_ended or old.is_stopping != new.is_stopping:
        return f"{key} ended"
    if old.roles != new.roles or old.is_suspended != new.is_suspended or bool(old.problem) != bool(new.problem):
        return f"{key} asks for something else"
    if _is_news(old.profilings, new, fraction):
        return f"{key} reports another speed"
    if old.tree.members != new.tree.members and _finished(old.tree.members.values()) != _finished(
        new.tree.members.values()
    ):
        return f"a replica of {key} ended"
    return ""


def _is_news(before: str, now: JobRead, fraction: float) -> bool:
    try:
        return reports.is_news(before, now.profilings, fraction=fraction)
    except Exception:  # a report that cannot be read is no news: `_complaint` says so
        return False


def _complaint(profilings: str) -> str:
    try:
        return reports.complaint(profilings)
    except Exception as error:  # whatever a job reports must not stop the others
        return f"the parameter profilings cannot be read ({type(error).__name__}: {error})"[:200]


def _finished(phases: Iterable[str]) -> int:
    return sum(phase == "Succeeded" for phase in phases)


def _node_reason(old: NodeRead | None, new: NodeRead | None) -> str:
    if old is None or new is None:
        return f"node {(new or old).name} {'came' if new is not None else 'is gone'}"  # type: ignore[union-attr]
    same = (
        old.is_open == new.is_open
        and old.allocatable == new.allocatable
        and old.labels == new.labels
        and old.taints == new.taints
    )
    return "" if same else f"node {new.name} changed"


def _pod_reason(old: PodRead | None, new: PodRead | None) -> str:
    """Room that became free, or was taken by others."""
    if new is None:
        return f"pod {old.identity.name} is gone" if old is not None and old.where else ""
    if new.place is None and (old is None or old.where != new.where) and new.where:
        return "a pod of somebody else came"
    return ""
