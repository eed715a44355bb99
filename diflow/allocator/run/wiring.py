"""Makes the parts of an allocator, and connects them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from diflow.allocator.model.plan import Plan
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.plan.planner import Calls, Planner
from diflow.allocator.policies.base import Policy
from diflow.allocator.reconcile.all_jobs import Reconciler
from diflow.allocator.reconcile.cordons import Cordons
from diflow.allocator.reconcile.cycle_view import ClusterView
from diflow.allocator.reconcile.health import HealthWatch
from diflow.allocator.reconcile.problems import Problems
from diflow.allocator.remember.applications import Applications
from diflow.allocator.remember.ended_jobs import EndedJobs
from diflow.allocator.remember.priors import Priors
from diflow.allocator.run.lease_requests import LeaseRequests
from diflow.allocator.run.timers import Timers
from diflow.allocator.settings import AllocatorSettings
from diflow.allocator.watch.cluster_state import Caches, OnChange
from diflow.allocator.watch.node_pools import NodePools
from diflow.allocator.watch.signature import Seal
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


@dataclass(frozen=True, slots=True)
class Parts:
    """What a cycle uses, in the order in which it is made."""

    seal: Seal
    caches: Caches
    executor: Executor
    view: ClusterView
    reconciler: Reconciler
    ended_jobs: EndedJobs
    applications: Applications
    planner: Planner
    takeover: Takeover
    problems: Problems
    requests: LeaseRequests
    health: HealthWatch
    cordons: Cordons
    timers: Timers


def wired(
    cluster: Cluster,
    settings: AllocatorSettings,
    policy: Policy,
    elector: Elector,
    *,
    loop: Loop,
    clock: Clock,
    pace: Pace,
) -> Parts:
    """The parts of one allocator."""
    namespace = settings.watched_namespace
    seal = Seal(cluster, namespace=settings.namespace)
    caches = Caches(cluster, settings, on_change=loop.on_change, seal=seal, clock=clock, pace=pace)
    pools = NodePools(caches.nodes, settings.pools.label)
    executor = Executor(
        cluster,
        elector,
        on_response=caches.apply_write_response,
        progress=loop.on_progress,
        sign=seal.sign,
        mark=pools.mark,
        workers=settings.writers,
        clock=clock,
    )
    view = ClusterView(caches, lost_after_seconds=settings.lost_after_seconds, clock=clock)
    reconciler = Reconciler(executor, view, settings, clock=clock)
    ended_jobs = EndedJobs(cluster, elector, namespace=namespace, clock=clock, pace=pace)
    applications = Applications(
        cluster,
        elector,
        jobs=caches.workflows,
        ended=ended_jobs.workflows,
        pools=pools,
        namespace=namespace,
        clock=clock,
        pace=pace,
    )
    inherit = Priors(applications.config_maps, pools, clock=clock).profile
    calls = Calls(record=loop.record, on_progress=loop.on_progress, on_due=loop.ask, inherit=inherit)
    planner = Planner(policy, settings, elector, executor, view, avoided=reconciler.avoided, calls=calls, clock=clock)
    health = HealthWatch(executor, clock=clock)
    return Parts(
        seal=seal,
        caches=caches,
        executor=executor,
        view=view,
        reconciler=reconciler,
        ended_jobs=ended_jobs,
        applications=applications,
        planner=planner,
        takeover=Takeover(cluster, elector, executor, clock=clock),
        problems=Problems(executor),
        requests=LeaseRequests(cluster, elector, namespace=settings.namespace),
        health=health,
        cordons=Cordons(cluster, elector, after_namespaces=settings.cordon_after_namespaces, clock=clock),
        timers=Timers(settings, executor, planner, reconciler.unbound, clock, look_due=health.due),
    )
