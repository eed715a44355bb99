"""Settings of the allocator's daemon: each with its meaning, its unit and the reason for its default."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from diflow.allocator.engine.pools import PoolLabel, Pools, PoolSpeed
from diflow.allocator.model.views import POOL_LABEL
from diflow.environment import from_environment


class AllocatorSettings(BaseSettings):
    """What an administrator may change about the daemon (environment: DIFLOW_ALLOCATOR_...)."""

    model_config = SettingsConfigDict(env_prefix="DIFLOW_ALLOCATOR_", frozen=True, extra="ignore", allow_inf_nan=False)

    policy: str = "fit"
    """The policy, by name: one of diflow's or of the entry-point group `diflow.policies`. `fit` surprises nobody."""

    namespace: str = "diflow-system"
    """Where the Lease and the ConfigMap of the queues are."""

    watched_namespace: str = ""
    """Only jobs of this namespace are allocated; empty: of all. Pods of all namespaces count for what they use."""

    queues_config: str = "diflow-queues"
    """The ConfigMap whose key `queues.yaml` defines the queues. Without it there is one queue."""

    pool_label: PoolLabel = POOL_LABEL
    """The node label whose value says of which pool a node is: a job is kept inside one by the goodput policies. The
    default is what NVIDIA's GPU feature discovery sets; nodes without it are one pool of their own, named ""."""

    pool_speed: PoolSpeed = {}
    """How many times as fast a pool is taken to be, by name, as JSON: {"NVIDIA-A100-SXM4-40GB": 2, "Tesla-T4": 0.5}. A
    pool that is not named counts as 1. Only the ratios matter, and only for where a job starts."""

    period_seconds: float = Field(60.0, gt=0, le=3600)
    """The longest time between two plans. Everything urgent has a trigger of its own; this is for what only time
    changes, such as ageing."""

    policy_seconds: float = Field(10.0, gt=0)
    """A policy that takes longer changes nothing. The largest clusters that diflow is measured on take 1 s."""

    stale_seconds: float = Field(90.0, gt=0)
    """On caches older than this nothing is decided: bookmarks come each minute, and half a minute is for delays."""

    lost_after_seconds: float = Field(60.0, ge=0)
    """A node silent for so long counts as lost: its pods are written off. Kubernetes itself says NotReady after 40 to
    50 s, and a kubelet that comes back later ends what was written off."""

    between_rounds_seconds: float = Field(10.0, ge=0)
    """A round that lost a replica is not replaced sooner than this after it began: evictions come in waves."""

    speed_change: float = Field(0.1, gt=0)
    """A report that changes a job's speed by more than this fraction is a reason to plan anew."""

    debounce_seconds: float = Field(0.02, ge=0)
    """How long changes in the wake of others are gathered before a cycle: a gang's pods come in one burst. One that
    comes by itself is seen to at once."""

    bind_seconds: float = Field(30.0, gt=0)
    """A pod that kube-scheduler has not bound for so long after its admission is taken back, and placed anew."""

    promise_seconds: float = Field(300.0, ge=10)
    """A place that a job was given and does not take for so long is given back: its pods were not made, or what was to
    leave does not. So long is also the grace period of others' pods that a place waits for; most save a checkpoint in
    less, and one who needs longer loses nothing by it."""

    placement_limit_seconds: float = Field(300.0, gt=0)
    """A gang that waits longer says so once more, as a warning."""

    most_nodes: int = Field(400, ge=0)
    """A preemptible job whose Workflow has so many of Argo's nodes begins its next round in another one; 0: never. Argo
    gives a Workflow up at about 14,700, but each of its some 20 writes a round costs the API server what the whole
    object costs: a round takes four times as long at 700 nodes as at 30 (docs/decisions/0006)."""

    writers: int = Field(16, ge=1, le=64)
    """Requests under way at once. The API server's own limit for one client is higher."""

    journal: str = ""
    """A file to which each snapshot and plan is appended; empty: none."""

    journal_bytes: int = Field(64 * 1024 * 1024, ge=4096)
    """The journal's size; one older file of that size is kept beside it."""

    @property
    def pools(self) -> Pools:
        """The pools of nodes, as the policies and other processes are told of them."""
        return Pools(label=self.pool_label, speed=self.pool_speed)


def allocator_settings(**given: object) -> AllocatorSettings:
    """Settings from the environment and `given`. Raises InvalidError that names the variable."""
    return from_environment(AllocatorSettings, given)
