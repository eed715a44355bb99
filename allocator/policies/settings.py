"""Settings of the policies: each with its meaning, its unit and the reason for its default."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from diflow.environment import from_environment

JobOrder = Literal["priority", "gang", "drf", "created"]
QueueOrder = Literal["proportion", "created"]
NodeOrder = Literal["most_requested", "least_requested", "balanced", "affinity"]
VictimRule = Literal["drf"]
Step = Literal["allocate", "backfill", "preempt", "reclaim"]


class PolicySettings(BaseSettings):
    """What an administrator may change about the policies (environment: DIFLOW_POLICY_...)."""

    model_config = SettingsConfigDict(env_prefix="DIFLOW_POLICY_", frozen=True, extra="ignore", allow_inf_nan=False)

    reserve_after_seconds: float = Field(300.0, ge=0)
    """How long the first waiting gang is passed by smaller jobs before room is kept for it. Five periods of a minute:
    long enough that ordinary churn places most gangs, short beside any training job."""

    reserve_for_seconds: float = Field(1800.0, ge=0)
    """How long room is kept for that gang at first; after a pause of `reserve_after_seconds` twice as long, and so on,
    so that whatever runs ends within one of them. Half an hour is long beside most small jobs and short beside the
    idle room that a job of days would cause. With `fair` preemptible jobs borrow the room meanwhile. 0 keeps none."""

    most_stops: int = Field(3, ge=0)
    """How often `fair` moves a job so that others get their shares; then it keeps its minimum until it ends. Higher
    priorities and guarantees still stop it. Each stop costs a restart and the work since the last checkpoint."""

    ageing_seconds: float = Field(0.0, ge=0)
    """`fair` raises a waiting job's priority by one for each so many seconds of waiting, up to the highest of any job;
    0 does not. With it no job waits behind a steady flow of higher priorities for longer than this times the
    priorities between, and then as the oldest of its priority."""

    least_seconds_between_resizes: float = Field(120.0, ge=0)
    """How long `fit` leaves a preemptible job alone before it grows into room that came free. A resize restarts all its
    pods: with a restart of 30 s, 120 s keep a job that grows step by step at work four fifths of its time. What others
    need, and what a lost node took, does not wait for it."""

    least_growth: float = Field(0.25, ge=0)
    """`fit` restarts a job to grow only for so many replicas more, as a part of what it has, or to reach its maximum:
    a quarter more makes good for a restart of 30 s in two minutes."""

    steps: tuple[Step, ...] = ("allocate", "backfill", "preempt", "reclaim")
    """What the fair policy does, in this order (kube-batch's actions). A step left out is not done."""

    job_order: tuple[JobOrder, ...] = ("priority", "gang", "drf", "created")
    """Which job of a queue comes first: the first function that tells two jobs apart decides (kube-batch's tiers)."""

    queue_order: tuple[QueueOrder, ...] = ("proportion", "created")
    """Which queue comes first; `proportion`: the smallest allocated share of what it deserves."""

    victims: tuple[VictimRule, ...] = ()
    """What else must agree to a preemption inside a queue (kube-batch's tiers); that victims are of strictly lower
    priority, and gangs keep their minimum or nothing, always holds. `drf`: a victim's dominant share may not fall below
    the preemptor's with all that it asks for. Not by default: a priority would then never stop a whole gang."""

    node_order: tuple[tuple[NodeOrder, float], ...] = (("most_requested", 1.0),)
    """Weights of the scores (0..1) that choose between nodes. Packing keeps whole nodes for gangs; `affinity`, what a
    pod template prefers, breaks its ties whether it is named or not."""

    restart_seconds: float = Field(30.0, ge=0)
    """What a move costs a job, in seconds of standing still. Pollux measured about 30 s for its applications."""

    period_seconds: float = Field(60.0, gt=0)
    """Time between two cycles; the optimiser plans no finer than this."""

    between_nodes: float = Field(1.0, ge=1)
    """How many times slower synchronisation over several nodes is taken to be than inside one, until a job has been on
    several. The applications measured on 4-GPU nodes show 5 to 30; 1 all the same, because a job that is thought slow
    there never goes and never shows that it is not: 3 and more cost 5 % of the mean completion time."""

    queue_ahead: float = Field(2.2, ge=1, le=10)
    """How much a job's weight counts the jobs that wait behind it: 1 not at all. For speedups k^p the optimum of the
    mean completion time (heSRPT, Berg et al. 2020) is 1/(1-p); it also breaks ties between jobs of one size,
    which otherwise share the cluster and all end late."""

    concavity: float = Field(1.0, gt=0, le=1)
    """Exponent of the speedup in the value of an allocation: 1 adds up what is done in a second, which is what the mean
    completion time asks for; near 0 it is shared out evenly."""

    horizon_seconds: float = Field(250.0, gt=0)
    """A move must pay off within this time, or the time that the job was left alone if that is longer, and within what
    is left of the job."""

    patience: float = Field(0.1, ge=0)
    """Ageing: the weight of a job doubles each time its slow-down so far grows by 1/patience. 0 switches it off."""

    priority_factor: float = Field(4.0, ge=1)
    """A job of one priority more weighs this many times as much."""

    largest_growth: float = Field(2.0, ge=1)
    """A job may grow to this many times the largest replica count it has reported: nothing is known beyond (Pollux)."""

    most_replicas: int = Field(64, ge=1)
    """No job is given more replicas than this, whatever it asks; the tables of goodput end here."""


def policy_settings(**given: object) -> PolicySettings:
    """Settings from the environment and `given`. Raises InvalidError that names the field."""
    return from_environment(PolicySettings, given)
