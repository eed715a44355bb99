"""Settings of the allocator's daemon: each with its meaning, its unit and the reason for its default."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from diflow.allocator.gpu_pools import PoolLabel, Pools, PoolSpeed, TopologyText
from diflow.allocator.model.views import POOL_LABEL
from diflow.common import keys, quantities
from diflow.common.limits import LEAST_PENDING_SECONDS, LONGEST_QUANTITY, MOST_START_SECONDS
from diflow.daemon.environment import from_environment


def _memory(text: str) -> str:
    if text and (
        len(text) > LONGEST_QUANTITY or not 1 <= quantities.amount("memory", text, "max_memory") <= quantities.MOST
    ):
        raise ValueError("must be an amount of memory such as 128Gi")
    return text


Memory = Annotated[str, AfterValidator(_memory)]


def _pending_seconds(seconds: float) -> float:
    if seconds and not LEAST_PENDING_SECONDS <= seconds <= MOST_START_SECONDS:
        raise ValueError(f"must be 0, or {LEAST_PENDING_SECONDS} to {MOST_START_SECONDS}")
    return seconds


PendingSeconds = Annotated[float, AfterValidator(_pending_seconds)]


class AllocatorSettings(BaseSettings):
    """What an administrator may change about the daemon (environment: DIFLOW_ALLOCATOR_...)."""

    model_config = SettingsConfigDict(env_prefix="DIFLOW_ALLOCATOR_", frozen=True, extra="ignore", allow_inf_nan=False)

    policy: str = "fit"
    """The policy, by name: one of diflow's or of the entry-point group `diflow.policies`. `fit` is the simplest."""

    namespace: str = "diflow-system"
    """Where the Lease and the ConfigMap of the queues are."""

    watched_namespace: str = ""
    """Only jobs of this namespace are allocated; empty: of all. The pods of all namespaces use capacity."""

    queues_config: str = keys.QUEUES
    """The ConfigMap whose key `queues.yaml` defines the queues. Without it there is one queue."""

    pool_label: PoolLabel = POOL_LABEL
    """The node label whose value is the node's pool: the goodput policies choose one for each job. The default is set
    by NVIDIA's GPU feature discovery; nodes without it form a pool named ""."""

    pool_speed: PoolSpeed = {}
    """The assumed relative speed of each pool, as JSON: {"NVIDIA-A100-SXM4-40GB": 2, "Tesla-T4": 0.5}. Others have 1.
    Only the ratios matter, and only for applications that have not run in both of two pools."""

    topology: TopologyText = ""
    """The levels of the topology, the widest first: "block=cloud.google.com/gce-topology-block,rack". A name without a
    label stands for the label of that name, `zone` and `region` for Kubernetes' own. Gangs are placed in the smallest
    domain that holds them, and jobs may require one domain of a level. Empty: nodes have no order."""

    period_seconds: float = Field(60.0, gt=0, le=3600)
    """The longest time between two plans. Events trigger plans earlier; this is for what changes only with time, such
    as ageing."""

    policy_seconds: float = Field(10.0, gt=0)
    """A plan that takes longer is discarded. The largest measured clusters take 1 s."""

    stale_seconds: float = Field(90.0, gt=0)
    """No decision is made on caches older than this: bookmarks come each minute, plus half a minute for delays."""

    lost_after_seconds: float = Field(60.0, ge=0)
    """A node that is not ready for this time counts as lost, and its pods are written off. Kubernetes sets NotReady
    after 40 to 50 s; a kubelet that comes back later ends the pods that were written off."""

    between_rounds_seconds: float = Field(10.0, ge=0)
    """The least age of a round that is replaced because it lost a replica: evictions come in bursts."""

    speed_change: float = Field(0.1, gt=0)
    """A report that changes a job's speed by more than this fraction triggers a plan."""

    debounce_seconds: float = Field(0.02, ge=0)
    """How long changes are gathered before a cycle if the last cycle ended less than 0.5 s ago, as the pods of a gang
    come in a burst; after a slow cycle as long as that took, up to 0.1 s. A change after a quiet time starts a cycle at
    once. 0: nothing is gathered."""

    bind_seconds: float = Field(60.0, gt=0)
    """A gang of which kube-scheduler has refused a pod, and not bound all for this time after their admission, goes
    back to waiting as a whole. Nodes that an autoscaler adds for unbound pods take longer: they are no reason to hold
    the others' places meanwhile."""

    ending_conditions: tuple[str, ...] = ()
    """Conditions of nodes which, while they are true, announce that the node ends, as JSON: ["PreemptScheduled"]. Jobs
    leave such a node before it ends, as one with the taint of an autoscaler or of a node-termination handler."""

    longest_pause_seconds: float = Field(1800.0, ge=60)
    """The longest pause of a gang between two tries that kube-scheduler refuses, and of a preemptible job between
    rounds that end soon; each is twice as long as the one before. Others do not wait for it meanwhile."""

    incomplete_seconds: float = Field(600.0, ge=0)
    """A gang of a fixed size that has lacked places for some of its replicas for this time gives back all that it
    holds, and waits as a whole: its replicas wait for each other. Node pools that replace a lost node need some
    minutes. 0: it keeps what it holds for ever."""

    promise_seconds: float = Field(300.0, ge=10)
    """A place that a job has not used for this time is taken back: its pods were not created, or the pods that should
    leave do not. A place also waits this long for terminating pods, most of which save a checkpoint in less."""

    max_memory: Memory = ""
    """The most memory that a replica may get after it ran out of memory, such as 128Gi: a job that needs more fails.
    Empty: what the formula allows, which is 64Gi or what the user asked for."""

    pending_seconds: PendingSeconds = 900.0
    """A pod of a preemptible job that has had a node for this time and has not started is given up: the job goes on
    with the others, or elsewhere. For jobs that do not set `pendingSeconds`; 0: they wait. DLRover's masters wait as
    long. A large image may take longer to pull."""

    placement_limit_seconds: float = Field(300.0, gt=0)
    """A gang that waits longer gets an Event of type Warning."""

    reading_share: float = Field(0.25, gt=0, le=100)
    """Seconds of a processor, in each second, that reading the changes of one namespace's objects may cost. Workflows
    of a namespace that needs more are read later; those of others are not."""

    kept_mib: int = Field(256, ge=16)
    """MiB of memory that the jobs of one namespace may take. Further ones are held until there is room. The limit of
    the container has to allow for the namespaces whose users might fill theirs."""

    most_nodes: int = Field(400, ge=0)
    """A preemptible job whose Workflow has this many of Argo's nodes begins its next round in a new one; 0: never. Argo
    fails a Workflow at about 14,700, but each of its about 20 writes a round costs the API server the whole object: a
    round takes four times as long at 700 nodes as at 30 (docs/decisions/0006)."""

    cordon_after_namespaces: int = Field(0, ge=0, le=1000)
    """A node that jobs of so many namespaces leave out at the same time is cordoned; 0: never. Users report what leaves
    a node out, so 1 lets each of them cordon nodes. Needs the rights in manifests/cordon."""

    writers: int = Field(16, ge=1, le=64)
    """Concurrent write requests. The API server's limit for one client is higher."""

    journal: str = ""
    """The file to which each snapshot and plan is appended; empty: none."""

    journal_bytes: int = Field(64 * 1024 * 1024, ge=4096)
    """The size in bytes at which the journal is rotated; one older file is kept."""

    @property
    def most_memory_mib(self) -> int | None:
        """`max_memory` in MiB, None without a limit."""
        return quantities.amount("memory", self.max_memory, "max_memory") if self.max_memory else None

    @property
    def pools(self) -> Pools:
        """The pools of nodes and the topology, for the policies and for the Lease."""
        return Pools(label=self.pool_label, speed=self.pool_speed, topology=self.topology)


def allocator_settings(**given: object) -> AllocatorSettings:
    """Settings from the environment and `given`. Raises InvalidError that names the variable."""
    return from_environment(AllocatorSettings, given)
