"""The roster of a job: the ranks and hosts of its replicas, for given numbers of replicas.

Argo computes the same when it makes a pod (`diflow.workflows.expressions`); this module is for the updates after
the numbers have changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from diflow import keys, names
from diflow.state import untrusted


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


def service_of(workflow: Mapping[str, Any]) -> str:
    """The headless Service that resolves a job's hosts: that of all jobs of the namespace. A Workflow from before 0.2.0
    has a Service of its own, which one of its steps has made."""
    templates = untrusted.mappings(untrusted.sub(workflow, "spec").get("templates"))
    if any(template.get("name") == keys.TEMPLATE_SERVICE for template in templates):
        return f"{keys.SERVICE_PREFIX}{untrusted.string(untrusted.sub(workflow, 'metadata').get('name'))}"
    return keys.SERVICE


def roster(
    job_name: str, namespace: str, counts: Mapping[str, int], *, service: str = keys.SERVICE, short: bool = False
) -> Roster:
    """The roster of a job whose tasks have `counts` replicas each, in the order of the job's tasks. `service`: as from
    `service_of`; `short`: without the domain (`DIJob.has_short_hosts`)."""
    hosts: list[str] = []
    first: dict[str, int] = {}
    for task, count in counts.items():
        first[task] = len(hosts)
        names_ = (names.hostname(job_name, task, index) for index in range(count))
        hosts += names_ if short else (f"{name}.{names.domain(namespace, service=service)}" for name in names_)
    return Roster(hosts=tuple(hosts), first=first)
