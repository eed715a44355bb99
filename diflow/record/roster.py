"""The roster of a job: the ranks and hosts of its replicas, for given numbers of replicas.

Argo computes the same when it makes a pod (`diflow.workflows.expressions`); this module is for the updates after
the numbers have changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from diflow.common import names


@dataclass(frozen=True, slots=True)
class Roster:
    """The replicas of a job. `hosts` are their host names in the order of the ranks; `first` is each task's first rank.

    Only tasks with a known number of replicas are in it.
    """

    hosts: tuple[str, ...]
    first: Mapping[str, int]

    @property
    def nodes(self) -> str:
        """The hosts as in DI_NODES, comma-joined."""
        return ",".join(self.hosts)

    def rank_of(self, task: str, index: int) -> int:
        """The rank over the whole job of replica `index` of `task`. Raises KeyError for an unknown task."""
        return self.first[task] + index


def roster(job_name: str, namespace: str, counts: Mapping[str, int], *, short: bool = False) -> Roster:
    """The roster of a job whose tasks have `counts` replicas each, in the order of the job's tasks. `short`: without
    the domain (`DIJob.has_short_hosts`)."""
    hosts: list[str] = []
    first: dict[str, int] = {}
    for task, count in counts.items():
        first[task] = len(hosts)
        names_ = (names.hostname(job_name, task, index) for index in range(count))
        hosts += names_ if short else (f"{name}.{names.domain(namespace)}" for name in names_)
    return Roster(hosts=tuple(hosts), first=first)
