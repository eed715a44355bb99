"""Makes the parts of an allocator, and connects them."""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass

from diflow.allocator.model.plan import Plan
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.plan.planner import Calls, Planner
from diflow.allocator.policies.base import Policy
from diflow.allocator.reconcile.all_jobs import Reconciler
from diflow.allocator.reconcile.cordons import Cordons
from diflow.allocator.reconcile.demand_pods import DemandPods
from diflow.allocator.reconcile.health import HealthWatch
from diflow.allocator.reconcile.problems import Problems
from diflow.allocator.reconcile.rosters import Rosters
from diflow.allocator.remember.applications import Applications
from diflow.allocator.remember.ended_jobs import EndedJobs
from diflow.allocator.remember.priors import Priors
from diflow.allocator.run.lease_requests import LeaseRequests
from diflow.allocator.run.pod_groups import PodGroups
from diflow.allocator.run.public_queues import PublicQueues
from diflow.allocator.run.throttled import Throttled
from diflow.allocator.run.timers import Timers
from diflow.allocator.settings import AllocatorSettings
from diflow.allocator.signature import Seal
from diflow.allocator.watch.cluster_state import Caches, OnChange
from diflow.allocator.watch.cluster_view import ClusterView
from diflow.allocator.watch.node_pools import NodePools
from diflow.allocator.write.executor import Executor
from diflow.allocator.write.takeover import Takeover
from diflow.common.clock import Clock
from diflow.kube.api import Cluster
from diflow.kube.leader_election import Elector
from diflow.kube.reflector import Pace


@dataclass(frozen=True, slots=True)
class Loop:
    """What the parts call of the loop that runs them."""

    on_change: OnChange
    """With each change of the caches."""
    on_progress: Callable[[], None]
    """When a step is done."""
    ask: Callable[[str], None]
    """With a reason to plan."""
    record: Callable[[Snapshot, Plan], None]
    """With each snapshot and plan."""
    others_wait: Callable[[Set[str]], bool]
    """Whether a job waits for the next plan of another namespace than these."""


class Parts:
    """What a cycle uses, in the order in which it is made."""

    def __init__(
        self,
        cluster: Cluster,
        settings: AllocatorSettings,
        policy: Policy,
        elector: Elector,
        *,
        loop: Loop,
        clock: Clock,
        pace: Pace,
    ) -> None:
        namespace = settings.watched_namespace
        self.seal = Seal(cluster, namespace=settings.namespace)
        self.caches = Caches(
            cluster, settings, on_change=loop.on_change, seal=self.seal, ask=loop.ask, clock=clock, pace=pace
        )
        pools = NodePools(self.caches.nodes, settings.pools.label)
        self.executor = Executor(
            cluster, elector, objects=self.caches, progress=loop.on_progress, sign=self.seal.sign, mark=pools.mark,
            workers=settings.writers, clock=clock,
        )  # fmt: skip
        self.executor.others_wait = loop.others_wait
        self.view = ClusterView(self.caches, lost_after_seconds=settings.lost_after_seconds, clock=clock)
        self.reconciler = Reconciler(self.executor, settings, clock=clock)
        self.ended_jobs = EndedJobs(cluster, elector, namespace=namespace, clock=clock, pace=pace)
        self.applications = Applications(
            cluster,
            elector,
            jobs=self.caches.workflows,
            ended=self.ended_jobs.workflows,
            pools=pools,
            namespace=namespace,
            clock=clock,
            pace=pace,
        )
        self.demand_pods = DemandPods(cluster, elector, self.executor, self.caches, clock=clock)
        calls = Calls(
            record=loop.record,
            on_progress=loop.on_progress,
            on_due=loop.ask,
            inherit=Priors(self.applications.config_maps, pools, clock=clock).profile,
            withdraw=self.demand_pods.withdraw,
        )
        self.planner = Planner(policy, settings, elector, self.executor, self.view, calls=calls, clock=clock)
        self.takeover = Takeover(cluster, elector, self.executor, clock=clock)
        self.problems = Problems(self.executor)
        self.requests = LeaseRequests(cluster, elector, namespace=settings.namespace)
        self.health = HealthWatch(self.executor, clock=clock)
        self.cordons = Cordons(cluster, elector, after_namespaces=settings.cordon_after_namespaces, clock=clock)
        self.public_queues = PublicQueues(cluster, elector, clock=clock)
        self.pod_groups = PodGroups(cluster, elector, clock=clock)
        self.throttled = Throttled(self.caches, settings, self.executor, clock=clock)
        self.rosters = Rosters(self.executor, clock=clock)
        look_due = self.health.due, self.rosters.due
        self.timers = Timers(settings, self.executor, self.planner, self.reconciler, clock, look_due=look_due)
