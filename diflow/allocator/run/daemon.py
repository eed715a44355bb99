"""The allocator's loop: watches, and runs a cycle when something has changed.

    caches ──change──> wake ──> cycle: reconcile → (if there is a reason) plan → write → reconcile

A cycle reads the caches once, decides and writes. All that is kept between cycles may be lost at any time: derived
values, back-offs, and since when something lasts.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

import structlog

from diflow.allocator.model.plan import Plan
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.plan.inputs import Picture
from diflow.allocator.plan.triggers import reason_to_plan
from diflow.allocator.policies.base import Policy
from diflow.allocator.reasons import plan_text
from diflow.allocator.run.timers import TOO_LATE
from diflow.allocator.run.wiring import Loop, Parts
from diflow.allocator.settings import AllocatorSettings
from diflow.allocator.watch.cluster_state import ClusterState
from diflow.common import keys
from diflow.common.clock import SYSTEM, Clock
from diflow.common.errors import LostLeadershipError, UnavailableError
from diflow.kube.api import Cluster
from diflow.kube.kinds import POD, WORKFLOW, Kind
from diflow.kube.leader_election import Elector
from diflow.kube.reflector import PACE, Pace

# A write changes the caches, which may lead to further writes at once: so many passes at most when jobs are reconciled.
_PASSES = 3
# How often the Lease's annotations are read while nothing happens.
_LOOK_SECONDS = 5.0
# How often a new leader looks whether its caches are fresh.
_FRESH_SECONDS = 0.02
# A change that comes this long after the end of a cycle starts the next one at once; others are gathered first.
_LULL_SECONDS = 0.5
# After a slow cycle they are gathered as long as it took, at most this long: while a gang of a thousand starts, a cycle
# for each change of a pod would use a processor that the API server and Argo need.
_GATHER_SECONDS = 0.1

log = structlog.get_logger("diflow.allocator")


@dataclass
class Reasons:
    """The reasons for the next cycle. `is_dirty`: something has changed; `plan`: reasons to plan; `namespaces`: whose
    jobs are such a reason."""

    plan: set[str] = field(default_factory=set)
    namespaces: set[str] = field(default_factory=set)
    is_dirty: bool = False


@dataclass(frozen=True, slots=True)
class Cycle:
    """What one cycle did, for metrics and tests."""

    planned: str
    seconds: float
    policy_seconds: float
    writes: int
    jobs: int
    trouble: str = ""
    """Why nothing was decided: the caches are stale."""
    policy_trouble: str = ""
    """Why the plan changed nothing: the policy failed, was late, or returned an invalid plan."""
    left_out_nodes: Mapping[str, int] = field(default_factory=dict)
    """The number of nodes that get no new pods, by reason."""


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
        clock: Clock = SYSTEM,
        pace: Pace = PACE,
    ) -> None:
        self.settings, self.elector = settings, elector
        self._on_cycle, self._clock = on_cycle, clock
        self._wake = threading.Condition()
        self._reasons = Reasons()
        self._in_trouble = False
        self._took = 0.0  # seconds of the last cycle
        self._ended = clock.monotonic()  # when it ended
        self.woke = clock.monotonic()
        """When the loop last made progress, on the clock: for health checks."""
        loop = Loop(
            on_change=self._on_cache_change,
            on_progress=self._progress,
            ask=self.ask,
            record=record,
            others_wait=self._others_wait,
        )
        parts = Parts(cluster, settings, policy, elector, loop=loop, clock=clock, pace=pace)
        self.seal, self.caches, self.executor, self.health = parts.seal, parts.caches, parts.executor, parts.health
        self.ended_jobs, self.applications = parts.ended_jobs, parts.applications
        self._view, self._reconciler, self._planner = parts.view, parts.reconciler, parts.planner
        self._takeover, self._problems, self._requests = parts.takeover, parts.problems, parts.requests
        self._cordons, self._timers, self._demand_pods = parts.cordons, parts.timers, parts.demand_pods
        self._rosters, self._throttled = parts.rosters, parts.throttled
        self._public_queues, self._pod_groups = parts.public_queues, parts.pod_groups

    def run(self, stop: threading.Event) -> None:
        """Work until `stop` is set, on caches that were started. Raises LostLeadershipError when this process does not
        lead any more."""
        try:
            self.caches.reopen()
            self._wait_for_caches(stop)
            self.ask("start")
            while not stop.is_set():
                self._wait(stop)
                if not stop.is_set() and self.turn().trouble:
                    stop.wait(1.0)
        finally:
            self.executor.close()

    def has_work(self) -> bool:
        """Whether something has changed since the last turn, or is due."""
        with self._wake:
            return (
                self._read_lease_requests() or self._reasons.is_dirty or self._clock.monotonic() >= self._timers.due()
            )

    def turn(self) -> Cycle:
        """Run a cycle, with a plan if there is a reason. Raises LostLeadershipError."""
        with self._wake:
            self._read_lease_requests()
            reasons, self._reasons = self._reasons, Reasons()
        self.elector.check()
        reasons.plan |= self._timers.reasons()
        done = self.cycle(", ".join(sorted(reasons.plan)[:4]))
        if done.planned or self._requests.paused:
            self._timers.planned = self._clock.monotonic()
        if not done.trouble:
            self._requests.respond(self.account)
            self._public_queues.run(self._view.state())
        return done

    def ask(self, reason: str) -> None:
        """Request a plan in the next cycle."""
        with self._wake:
            self._reasons.plan.add(reason)
            self._reasons.is_dirty = True
            self._wake.notify()

    def cycle(self, planned: str) -> Cycle:
        """Reconcile; plan too if `planned` is a reason. On stale caches, change nothing."""
        self.woke = self._timers.cycled = began = self._clock.monotonic()
        self.executor.begin_cycle()
        made = self.executor.made
        trouble = self.caches.trouble()
        state, spent = ClusterState({}, {}, ()), 0.0
        if trouble:
            if not self._in_trouble:
                log.warning("nothing is decided", why=trouble)
            # The work remains when the caches are fresh again, even if nothing changes then.
            self.ask(planned or "the caches were old")
            planned = ""
        else:
            state, planned, spent = self._work(planned)
        self._in_trouble = bool(trouble)
        cycle = Cycle(
            planned=planned,
            seconds=self._clock.monotonic() - began,
            policy_seconds=spent,
            writes=self.executor.made - made,
            jobs=sum(not job.read.has_ended for job in state.jobs.values()),
            trouble=trouble,
            policy_trouble=self.last_trouble if planned else "",
            left_out_nodes=_left_out(state),
        )
        self._took, self._ended = cycle.seconds, self._clock.monotonic()
        self._on_cycle(cycle)
        return cycle

    def _work(self, planned: str) -> tuple[ClusterState, str, float]:
        """Reconcile, then plan if there is a reason and nobody has paused the allocator, then reconcile again.

        Returns (the cluster state before the plan, the reasons of the plan or "", the seconds that the policy took).
        """
        state = self._view.state()
        self.executor.keep(state.jobs)
        expired = self._timers.expire(state, self._view.capacity(state))
        reasons = [*filter(None, [planned]), *expired]
        if self._takeover.run(state):
            state = self._view.state()
        if self._problems.report(state, self._planner.left_out()):
            self._reasons.is_dirty = True
        state = self._reconcile(state)
        if self.health.run(state, is_paused=bool(self.paused())):
            state = self._reconcile(self._view.state())
        spent = 0.0
        if reasons and self.paused():
            reasons = []
        if reasons:
            self._cordons.run(state.jobs, state.nodes)
            spent, changed = self._planner.plan(state)
            if (left_out := self._planner.left_out()) and self._problems.report(state, left_out):
                self._reasons.is_dirty = True
            if changed or TOO_LATE in expired:
                self._reconcile(self._view.state())
        if self._ask_for_nodes() or self._takeover.is_unfinished:
            self._reasons.is_dirty = True
        if self._pod_groups.run(self._view.state()):
            self._reasons.is_dirty = True
        self._rosters.send(self._view.state())
        self._throttled.tell()
        return state, ", ".join(reasons), spent

    def _ask_for_nodes(self) -> bool:
        """Make the pods that show an autoscaler which nodes are missing. Returns whether some are left."""
        demands = self._planner.demands
        if not demands.wanted or self.paused():
            return False
        is_left = self._demand_pods.run(self._view.state(), demands.wanted)
        if self._demand_pods.refused != demands.refused:
            demands.refused = self._demand_pods.refused
            self.ask("pods that ask for nodes were refused, or are made again")
        return is_left

    def _reconcile(self, state: ClusterState) -> ClusterState:
        """Send the writes of all jobs, repeatedly while they lead to more. Returns the cluster state then."""
        for _ in range(_PASSES):
            free = self._view.unclaimed(state)
            writes = self._reconciler.writes(state, free, planned_ago=self._planner.planned_ago)
            before = self.executor.made
            self.executor.apply(writes, state.jobs)
            if self.executor.made == before:
                break
            state = self._view.state()
        return state

    @property
    def last(self) -> tuple[Picture, Plan] | None:
        """The last plan, and what it was made for; None if there was no job to plan."""
        return self._planner.last

    @property
    def last_trouble(self) -> str:
        """Why the last plan changed nothing, or ""."""
        return self._planner.last_trouble

    @property
    def failing_seconds(self) -> float:
        """Seconds since the first of the last plans, all of which failed; 0 if the last one succeeded."""
        return self._planner.failing_seconds or 0.0

    @property
    def stuck_seconds(self) -> float:
        """Seconds since the start of an abandoned call of the policy that has not returned; 0 if there is none."""
        return self._planner.stuck_seconds

    def paused(self) -> str:
        """Who paused the allocator, or ""."""
        return self.elector.lease_annotations().get(keys.PAUSED, "")

    def account(self) -> str:
        """What the last plan decided, as text."""
        if self.paused():
            return f"nothing is decided: the allocator is paused by {self.paused()}\n"
        if self.last is None:
            return "there are no jobs to decide on\n"
        shown, plan = self.last
        return plan_text.plan_text(shown.snapshot, plan, excluded=shown.excluded, trouble=self.last_trouble)

    def _progress(self) -> None:
        self.woke = self._clock.monotonic()

    def _wait_for_caches(self, stop: threading.Event) -> None:
        ends = self._clock.monotonic() + _LOOK_SECONDS  # then the cycles say what is wrong
        while not stop.is_set() and not self.caches.wait_synced(1.0):
            self._progress()
            self.elector.check()
        while not stop.is_set() and self.caches.trouble() and self._clock.monotonic() < ends:
            stop.wait(_FRESH_SECONDS)

    def _wait(self, stop: threading.Event) -> None:
        """Wait for something to do; after a recent cycle, a little longer, to gather changes that come in a burst."""
        while not stop.is_set() and not self.has_work():
            self._progress()
            with self._wake:
                if not self._reasons.is_dirty:
                    self._wake.wait(min(max(0.01, self._timers.due() - self._clock.monotonic()), _LOOK_SECONDS))
            self.elector.check()
        if self.settings.debounce_seconds and self._clock.monotonic() - self._ended < _LULL_SECONDS:
            stop.wait(max(self.settings.debounce_seconds, min(self._took, _GATHER_SECONDS)))

    def _read_lease_requests(self) -> bool:
        reasons = self._requests.read()
        self._reasons.plan |= reasons
        return bool(reasons)

    def _on_cache_change(self, kind: Kind, key: str, old: Any, new: Any) -> None:
        """Wake the loop: to plan, if the change is a reason for that."""
        if not self.elector.is_leader():
            return  # a new leader plans for all that is there
        reason = reason_to_plan(kind, key, old, new, fraction=self.settings.speed_change)
        if not reason and kind is WORKFLOW and new is not None and self._planner.reports_another_speed(key, new):
            reason = f"{key} reports another speed"
        if not reason and kind is POD and (new or old).job in self._planner.promises.barred:
            reason = f"a pod of {(new or old).job} {'is gone' if new is None else 'came'}"
        with self._wake:
            if reason:
                self._reasons.plan.add(reason)
                if kind is WORKFLOW:
                    self._reasons.namespaces.add(key.split("/", 1)[0])
            self._reasons.is_dirty = True
            self._wake.notify()

    def _others_wait(self, namespaces: Set[str]) -> bool:
        with self._wake:
            return bool(self._reasons.namespaces - namespaces)


def _left_out(state: ClusterState) -> Mapping[str, int]:
    """The number of nodes that get no new pods, by the first reason that is true of each."""
    return Counter(
        "gone" if node.is_missing
        else "not_ready" if node.not_ready_since is not None
        else "cordoned"
        for node in state.nodes.values()
        if not node.is_open
    )  # fmt: skip


def lead(allocator: Allocator, stop: threading.Event) -> None:
    """Wait to be the leader, then work. Returns when `stop` is set; raises LostLeadershipError when it was lost.

    The caches are filled while another process leads: thousands of pods take many seconds to list.
    """
    while not stop.is_set():
        try:
            allocator.caches.start()
            break
        except UnavailableError as error:
            log.warning("the caches cannot be filled yet", why=str(error))
            stop.wait(_LOOK_SECONDS)
    try:
        if not allocator.elector.acquire(stop):
            return
        log.info("leading", identity=allocator.elector.identity, epoch=allocator.elector.epoch)
        over = threading.Event()
        for name, work in (("ended-jobs", allocator.ended_jobs.run), ("applications", allocator.applications.run)):
            threading.Thread(target=work, args=(over,), name=name, daemon=True).start()
        if allocator.settings.dry_runs:
            allocator.caches.dry_runs.start(over)
        try:
            allocator.run(stop)
        except LostLeadershipError:
            log.error("another process leads now: this one ends")
            raise
        finally:
            over.set()
            allocator.elector.release()
    finally:
        allocator.caches.stop()
