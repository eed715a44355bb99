"""Settings of the policies: each with its meaning, its unit and the reason for its default."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from diflow.daemon.environment import from_environment

JobOrder = Literal["priority", "gang", "drf", "created"]
NodeOrder = Literal["most_requested", "least_requested", "balanced", "affinity"]
VictimRule = Literal["drf"]
Step = Literal["allocate", "backfill", "preempt", "reclaim"]


class PolicySettings(BaseSettings):
    """What an administrator may change about the policies (environment: DIFLOW_POLICY_...)."""

    model_config = SettingsConfigDict(env_prefix="DIFLOW_POLICY_", frozen=True, extra="ignore", allow_inf_nan=False)

    reserve_after_seconds: float = Field(300.0, ge=0)
    """How long smaller jobs may overtake the first waiting gang before capacity is reserved for it. Five periods of a
    minute: long enough that ordinary churn places most gangs, short beside any training job."""

    reserve_for_seconds: float = Field(1800.0, ge=0)
    """Length of the first reservation for that gang; after a pause of `reserve_after_seconds` the next is twice as
    long, and so on, so that any running job ends within one of them. Half an hour is longer than most small jobs and
    short beside the days of idle capacity that a long job would cause. With `fair`, preemptible jobs borrow the
    capacity meanwhile. 0: no reservation."""

    most_stops: int = Field(3, ge=0)
    """How often `fair` moves a job for the shares of others; then the job keeps its minimum until it ends. Higher
    priorities and guarantees still stop it. Each stop costs a restart and the work since the last checkpoint."""

    ageing_seconds: float = Field(0.0, ge=0)
    """`fair` raises a waiting job's priority by one each time it has waited this long, up to the highest of any job; 0
    disables ageing. A steady flow of higher priorities then delays a job by at most this times the difference in
    priority, after which it is the oldest of its priority."""

    least_seconds_between_resizes: float = Field(120.0, ge=0)
    """Time after a job's last change before `fit` grows it into free capacity, if it is preemptible. A resize restarts
    all its pods: with a restart of 30 s, a job that grows step by step works four fifths of its time. Preemption and
    the replacement of lost pods do not wait for it."""

    least_growth: float = Field(0.25, ge=0)
    """Smallest growth for which `fit` restarts a job, as a fraction of its replicas, unless it reaches its maximum: a
    quarter more makes up for a restart of 30 s in two minutes."""

    steps: tuple[Step, ...] = ("allocate", "backfill", "preempt", "reclaim")
    """The fair policy's steps in order (kube-batch's actions). A step that is left out is skipped."""

    job_order: tuple[JobOrder, ...] = ("priority", "gang", "drf", "created")
    """The order of jobs in a queue: the first function that distinguishes two jobs decides (kube-batch's tiers)."""

    victims: tuple[VictimRule, ...] = ()
    """Further victim filters for preemption inside a queue (kube-batch's tiers). Victims always have a strictly lower
    priority, and gangs keep their minimum or nothing. `drf`: a victim's dominant share may not fall below the
    preemptor's with its full request. Off by default: with it, priority would never stop a whole gang."""

    node_order: tuple[tuple[NodeOrder, float], ...] = (("most_requested", 1.0),)
    """Weights of the node scores (0..1). Packing keeps whole nodes free for gangs; `affinity`, the pod template's
    preferences, breaks its ties in any case."""

    restart_seconds: float = Field(30.0, ge=0)
    """Downtime of a job that is moved or resized. Pollux measured about 30 s for its applications."""

    period_seconds: float = Field(60.0, gt=0)
    """Time between two cycles, and the resolution of the optimiser."""

    between_nodes: float = Field(1.0, ge=1)
    """Assumed slow-down of synchronisation over several nodes against one, until a job has run on several. The
    applications measured on 4-GPU nodes show 5 to 30. The default is 1, because a job that is assumed to be slow on
    several nodes never runs there to prove otherwise: 3 and more cost 5 % of the mean completion time."""

    queue_ahead: float = Field(2.2, ge=1, le=10)
    """How much a job's weight counts the jobs that wait behind it; 1: not at all. For speedups k^p the optimum of the
    mean completion time (heSRPT, Berg et al. 2020) is 1/(1-p). It also breaks ties between jobs of equal size, which
    would otherwise share the cluster and all finish late."""

    concavity: float = Field(1.0, gt=0, le=1)
    """Exponent of the speedup in the value of an allocation. 1 maximises the sum of speedups, which minimises the mean
    completion time; near 0, GPUs are shared evenly."""

    horizon_seconds: float = Field(280.0, gt=0)
    """A move must pay off within this time, or within the time since the job's last change if that is longer, and
    before the job ends. The restart is a part of this time: after one of 30 s, 250 s are left."""

    patience: float = Field(0.1, ge=0)
    """Ageing: a job's weight is multiplied by 2^(patience · age / (age + time left)). 0 disables it."""

    priority_factor: float = Field(4.0, ge=1)
    """Factor of a job's weight for each step of priority."""

    largest_growth: float = Field(2.0, ge=1)
    """A job may grow to this many times the largest replica count it has reported (Pollux): further extrapolation is
    unreliable. With 4, jobs hold more than they use: on the busiest of Sia's traces they take a tenth longer."""

    largest_start: int = Field(4, ge=1)
    """Replicas on which a job may start before it has reported anything, if that is more than its minimum. Pollux has
    1, from where each doubling costs a restart. Until it reports, four replicas are assumed to be twice as fast as one,
    so it gets them only where other jobs do not gain more."""

    most_replicas: int = Field(64, ge=1)
    """Most replicas of any job; the tables of goodput end here."""


def policy_settings(**given: object) -> PolicySettings:
    """Settings from the environment and `given`. Raises InvalidError, which names the field."""
    return from_environment(PolicySettings, given)
