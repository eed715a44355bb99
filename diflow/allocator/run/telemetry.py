"""The daemon's observability: log lines, metrics for Prometheus, and probes for the kubelet.

    /metrics   counters and times, in Prometheus' text form
    /healthz   200 while the loop makes progress; 503 if it hangs: restart the process
    /readyz    200 while the daemon leads with fresh caches and its last plan succeeded, or is on standby; else 503 with
               the reason

A slow client never delays the loop.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, make_wsgi_app

from diflow.allocator.model.plan import Action
from diflow.allocator.reconcile.health import STATES
from diflow.allocator.run.throttled import LATE_SECONDS
from diflow.common.clock import SYSTEM, Clock
from diflow.daemon import probes

if TYPE_CHECKING:
    from diflow.allocator.run.daemon import Allocator, Cycle
    from diflow.kube.leader_election import Elector

# A loop without progress for this time, beyond the policy's time limit, hangs. Each response to a write is progress, so
# this has to cover one request.
STILL_SECONDS: Final = 30.0
# A call of the policy that has not returned for this time never will; only a new process ends its thread.
STUCK_SECONDS: Final = 60.0
LEFT_OUT: Final = ("cordoned", "gone", "not_ready")
"""Why nodes get no new pods."""
_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Telemetry:
    """Metrics and health of an allocator. Pass `cycle` to the Allocator as its `on_cycle`."""

    def __init__(self, elector: Elector, *, clock: Clock = SYSTEM) -> None:
        self._elector = elector
        self._clock = clock
        self._allocator: Allocator | None = None
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        here: dict[str, Any] = {"namespace": "diflow", "subsystem": "allocator", "registry": self.registry}
        self._cycles = Counter("cycles", "Cycles, by whether they planned or only carried out.", ["planned"], **here)
        self._seconds = Histogram(
            "cycle_seconds", "How long a cycle took, its writes included.", buckets=_BUCKETS, **here
        )
        self._policy = Histogram("policy_seconds", "How long the policy took to plan.", buckets=_BUCKETS, **here)
        self._writes = Counter("writes", "Writes that the API server accepted.", **here)
        self._troubled = Counter("blind_cycles", "Cycles in which nothing was decided, as the caches were old.", **here)
        self._failed = Counter("policy_failures", "Plans that changed nothing: the policy failed or was late.", **here)
        self._jobs = Gauge("jobs", "Jobs under the allocator that have not ended.", **here)
        self._waiting = Gauge("waiting_jobs", "Jobs that waited for capacity after the last plan.", **here)
        self._refused = Gauge("refused_jobs", "Jobs left alone for now, as writes for them were refused.", **here)
        self._wait = Gauge("longest_wait_seconds", "For how long a job waits for capacity, of all the longest.", **here)
        self._left_out = Gauge("left_out_nodes", "Nodes that get no new pods, by the reason.", ["reason"], **here)
        self._unhealthy = Gauge(
            "unhealthy_jobs", "Jobs with replicas that are silent, stalled or slow.", ["state"], **here
        )
        self._slow_nodes = Gauge("slow_nodes", "Nodes on which several jobs have slow replicas.", **here)
        self._health_restarts = Counter("health_restarts", "Restarts of silent or stalled replicas.", **here)
        self._health_restarts_seen = 0
        self._longest_wait: tuple[float, float] | None = None
        self._wait.set_function(self._longest_wait_seconds)
        self._leader = Gauge("leader", "1 while this process leads.", **here)
        self._paused = Gauge("paused", "1 while the allocator is paused.", **here)
        self._failing = Gauge(
            "failing_seconds", "How long no plan has succeeded, though one was asked for; 0 while all is well.", **here
        )
        self._failing.set_function(lambda: self._allocator.failing_seconds if self._allocator is not None else 0.0)
        self._leader.set_function(lambda: float(elector.is_leader()))
        self._paused.set_function(lambda: float(self._allocator is not None and bool(self._allocator.paused())))
        self._refused.set_function(lambda: float(len(self._allocator.executor.refusals())) if self._allocator else 0.0)
        age = Gauge("cache_age_seconds", "How old what is known of the cluster is.", **here)
        age.set_function(lambda: self._allocator.caches.age_seconds if self._allocator is not None else math.inf)
        late = Gauge(
            "late_seconds", "How long a change has waited whose namespace costs more than its part to read.", **here
        )
        late.set_function(self._late_seconds)
        for planned in ("yes", "no"):
            self._cycles.labels(planned)
        for reason in LEFT_OUT:
            self._left_out.labels(reason)
        for state in STATES:
            self._unhealthy.labels(state)

    def watch(self, allocator: Allocator) -> None:
        """Set the allocator to observe."""
        self._allocator = allocator

    def cycle(self, cycle: Cycle) -> None:
        """Count a cycle."""
        self._cycles.labels("yes" if cycle.planned else "no").inc()
        self._seconds.observe(cycle.seconds)
        self._writes.inc(cycle.writes)
        if cycle.trouble:
            self._troubled.inc()
            return
        self._jobs.set(cycle.jobs)
        for reason in LEFT_OUT:
            self._left_out.labels(reason).set(cycle.left_out_nodes.get(reason, 0))
        self._count_unhealthy()
        if cycle.policy_trouble:
            self._failed.inc()
        if cycle.planned:
            self._policy.observe(cycle.policy_seconds)
            self._count_waiting()

    def _count_unhealthy(self) -> None:
        if self._allocator is None:
            return
        health = self._allocator.health
        for state in STATES:
            self._unhealthy.labels(state).set(health.counts.get(state, 0))
        self._slow_nodes.set(len(health.slow_nodes))
        self._health_restarts.inc(health.restarts - self._health_restarts_seen)
        self._health_restarts_seen = health.restarts

    def _count_waiting(self) -> None:
        last = self._allocator.last if self._allocator is not None else None
        self._longest_wait = None
        if last is None:
            self._waiting.set(0)
            return
        snapshot, waits = last[0].snapshot, last[1].action == int(Action.WAIT)
        self._waiting.set(int(waits.sum()))
        if waits.any():
            # A job that had run and was preempted waits since then.
            since = np.maximum(snapshot.job_created_seconds, snapshot.job_changed_seconds)[waits].min()
            self._longest_wait = max(0.0, snapshot.now_seconds - float(since)), self._clock.monotonic()

    def _longest_wait_seconds(self) -> float:
        found = self._longest_wait
        return found[0] + self._clock.monotonic() - found[1] if found is not None else 0.0

    def _late_seconds(self) -> float:
        late = self._allocator.caches.late() if self._allocator is not None else {}
        return max(late.values(), default=0.0)

    def health(self) -> str:
        """Why this process should be restarted, or ""."""
        if self._allocator is None or not self._elector.is_leader():
            return ""  # a standby process does nothing
        # The loop of a standby process stands still until it leads.
        still = min(self._clock.monotonic() - self._allocator.woke, self._elector.leading_seconds)
        if still > STILL_SECONDS + self._allocator.settings.policy_seconds:
            return f"the loop has stood still for {still:.0f} s"
        stuck = self._allocator.stuck_seconds
        return f"the policy has not returned for {stuck:.0f} s" if stuck > STUCK_SECONDS else ""

    def readiness(self) -> tuple[bool, str]:
        """(whether it is ready, the state or reason as text)."""
        if not self._elector.is_leader():
            trouble = self._elector.trouble
            return not trouble, trouble or f"standing by; {self._elector.holder or 'nobody'} leads"
        if self._allocator is None:
            return False, "starting"
        trouble = self.health() or self._allocator.caches.trouble() or self._allocator.last_trouble
        late = self._late_seconds()
        behind = f"; changes of a namespace are read {late:.0f} s late" if late >= LATE_SECONDS else ""
        return not trouble, trouble or f"leading{behind}"

    # --- over HTTP ----------------------------------------------------------------------------------------------------

    def app(self) -> probes.App:
        """The WSGI application that serves all three pages."""
        return probes.probes(make_wsgi_app(self.registry), health=self.health, readiness=self.readiness)
