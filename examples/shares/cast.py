"""Two teams with two users each, their jobs, and the moments at which something changes.

What each user deserves is written here by hand, with its reason: the demo holds the cluster to it, and what `diflow
queue` says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from diflow import DIJob
from fakestage import fake_job

NAMESPACE = "demo-queues"
NODES = ("fake-00000", "fake-00001", "fake-00002")
GPUS = 8
"""Of each node. Every replica asks for one, so replicas and GPUs are the same number."""
GPU = "nvidia.com/gpu"
RETRIES = 1
"""The backoffLimit of each job. Being stopped for others must not use any of it."""

TEAMS: Mapping[str, tuple[str, ...]] = {"vision": ("ann", "bob"), "speech": ("cleo", "dan")}
USERS = tuple(user for users in TEAMS.values() for user in users)
GUARANTEED: Mapping[str, int] = {"bob": 8}
CAPPED: Mapping[str, int] = {"cleo": 4}


def queues() -> str:
    """The text `queues.yaml`: all weights are 1."""
    lines = ["queues:"]
    for team, users in TEAMS.items():
        lines.append(f"  - {{name: {team}}}")
        for user in users:
            limits = [
                f", {name}: {{{GPU}: {given[user]}}}"
                for name, given in (("guarantee", GUARANTEED), ("cap", CAPPED))
                if user in given
            ]
            lines.append(f"  - {{name: {user}, parent: {team}{''.join(limits)}}}")
    return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class Part:
    """A preemptible job: `low` to `high` replicas. With both the same it is a gang of fixed size."""

    name: str
    low: int
    high: int

    @property
    def user(self) -> str:
        """Whose it is: the queue, with which its name begins."""
        return self.name.partition("-")[0]

    def job(self, **fields: Any) -> DIJob:
        """The job of fake pods; `fields` of its task may say otherwise."""
        task = {"replicas": self.high, "min_replicas": self.low, "max_replicas": self.high, **fields}
        return fake_job(self.name, NAMESPACE, task, queue=self.user, preemptible=True, backoff_limit=RETRIES)


@dataclass(frozen=True, slots=True)
class Moment:
    """Jobs come, or their work ends. `deserved`: GPUs by user from then on, which all of them ask for; `why`: so."""

    title: str
    deserved: Mapping[str, int]
    why: str
    comes: tuple[Part, ...] = ()
    ends: tuple[str, ...] = ()


MOMENTS = (
    Moment(
        "ann comes",
        {"ann": 24, "bob": 0, "cleo": 0, "dan": 0},
        "nobody else asks",
        comes=(
            Part("ann-sweep", 2, 12),
            Part("ann-gang-1", 4, 4),
            Part("ann-gang-2", 4, 4),
            Part("ann-gang-3", 4, 4),
        ),
    ),
    Moment(
        "bob comes",
        {"ann": 16, "bob": 8, "cleo": 0, "dan": 0},
        "bob asks for 8, less than half of vision's 24",
        comes=(Part("bob-train", 2, 8),),
    ),
    Moment(
        "cleo comes",
        {"ann": 12, "bob": 8, "cleo": 4, "dan": 0},
        "cleo is capped at 4; ann and bob would have 10 each, and bob asks for 8",
        comes=(Part("cleo-gang", 4, 4), Part("cleo-late", 2, 2)),
    ),
    Moment(
        "dan comes",
        {"ann": 4, "bob": 8, "cleo": 4, "dan": 8},
        "12 for each team; of vision's, bob is guaranteed 8",
        comes=(Part("dan-train", 2, 12),),
    ),
    Moment(
        "cleo's gang ends",
        {"ann": 4, "bob": 8, "cleo": 2, "dan": 10},
        "cleo asks for 2, so dan has 10 of speech's 12",
        ends=("cleo-gang",),
    ),
    Moment(
        "dan's job ends",
        {"ann": 14, "bob": 8, "cleo": 2, "dan": 0},
        "what speech leaves goes back to vision",
        ends=("dan-train",),
    ),
)
PARTS: Mapping[str, Part] = {part.name: part for moment in MOMENTS for part in moment.comes}


def present(moment: Moment) -> tuple[Part, ...]:
    """The jobs that are there from this moment on."""
    until = MOMENTS[: MOMENTS.index(moment) + 1]
    ended = {name for one in until for name in one.ends}
    return tuple(part for one in until for part in one.comes if part.name not in ended)


def held(running: Mapping[str, int]) -> dict[str, int]:
    """GPUs by user, of running replicas by job."""
    return {user: sum(n for name, n in running.items() if PARTS[name].user == user) for user in USERS}


def is_reached(moment: Moment, running: Mapping[str, int]) -> bool:
    """Whether every user holds what the queue deserves."""
    now = held(running)
    return all(now[user] >= deserved for user, deserved in moment.deserved.items())
