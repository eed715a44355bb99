"""Cordons nodes that the jobs of several namespaces leave out, if the administrator has asked for it.

Nodes are left out because of what users write: their pods report the figures, and choose the exit codes. So a namespace
counts once, however many jobs it has, and only a part of the nodes is ever cordoned in this way. A node that an
administrator uncordons stays so until a further job leaves it out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import structlog

from diflow.allocator.watch.job import Job
from diflow.common import keys
from diflow.common.clock import Clock
from diflow.common.errors import DiflowError, LostLeadershipError
from diflow.common.jsontext import canonical_json
from diflow.kube.api import Cluster
from diflow.kube.kinds import NODE
from diflow.kube.leader_election import Elector
from diflow.record.identity import Identity
from diflow.record.node import NodeRecord, cordoned_since

MOST_SHARE: Final = 0.1
"""diflow cordons no node while this share of the nodes is cordoned, by diflow or by others."""
_BACKOFF_SECONDS: Final = 300.0
_SKEW_SECONDS: Final = 60.0  # of the clocks of two leaders
_LONGEST_REASON: Final = 500

log = structlog.get_logger("diflow.allocator")


@dataclass(frozen=True, slots=True)
class Finding:
    """A node that is left out by jobs of `namespaces`; `since`: by the last one, in seconds since 1970."""

    node: str
    namespaces: frozenset[str]
    since: float
    reason: str


def findings(jobs: Iterable[Job], *, least: int, now: float) -> list[Finding]:
    """The nodes that are left out by jobs of at least so many namespaces, the most namespaces first."""
    found: dict[str, tuple[set[str], float, str]] = {}
    for job in jobs:
        read = job.read
        for entry in read.notes.excluded.active(now):
            if entry.since > now + _SKEW_SECONDS:
                continue  # edited: as the last cause of a cordon, it would keep the node from being cordoned again
            namespaces, since, reason = found.get(entry.node, (set(), 0.0, ""))
            if entry.since >= since:
                since, reason = entry.since, f"{read.identity.namespace}/{read.name}: {entry.reason}"
            found[entry.node] = (namespaces | {read.identity.namespace}, since, reason)
    out = [Finding(node, frozenset(spaces), since, why) for node, (spaces, since, why) in found.items()]
    return sorted((one for one in out if len(one.namespaces) >= least), key=lambda f: (-len(f.namespaces), f.node))


class Cordons:
    """`after_namespaces`: 0 cordons nothing. Its state is in the nodes; what is kept here saves requests alone."""

    def __init__(
        self,
        cluster: Cluster,
        elector: Elector,
        *,
        after_namespaces: int,
        clock: Clock,
    ) -> None:
        self._cluster = cluster.without_retries()
        self._elector = elector
        self._after_namespaces = after_namespaces
        self._clock = clock
        self._done: dict[str, float] = {}
        self._pause_until = -math.inf

    def run(self, jobs: Mapping[str, Job], nodes: Mapping[str, NodeRecord]) -> None:
        """Cordon what there is to cordon. Raises LostLeadershipError."""
        if not self._after_namespaces or self._clock.monotonic() < self._pause_until:
            return
        closed = sum(not node.is_schedulable for node in nodes.values())
        self._done = {name: since for name, since in self._done.items() if name in nodes}
        for finding in findings(jobs.values(), least=self._after_namespaces, now=self._clock.wall()):
            node = nodes.get(finding.node)
            is_known = self._done.get(finding.node, -math.inf) >= finding.since
            if node is None or node.is_missing or not node.is_schedulable or is_known:
                continue
            if closed + 1 > max(1, int(MOST_SHARE * len(nodes))):
                return
            try:
                closed += self._cordon(finding)
                self._done[finding.node] = finding.since
            except LostLeadershipError:
                raise
            except DiflowError as error:
                log.warning("a node cannot be cordoned", node=finding.node, why=str(error))
                self._pause_until = self._clock.monotonic() + _BACKOFF_SECONDS
                return

    def _cordon(self, finding: Finding) -> bool:
        """Whether the node was cordoned, and not before for the same reason."""
        found = self._cluster.get(NODE, finding.node)
        if cordoned_since(found) >= round(finding.since, 3):
            return False  # it was uncordoned since
        why = f"left out by jobs of {len(finding.namespaces)} namespaces, last by {finding.reason}"[:_LONGEST_REASON]
        text = canonical_json({"since": round(finding.since, 3), "why": why})
        body = {
            "metadata": {"uid": Identity.of(found).uid, "annotations": {keys.CORDONED: text}},
            "spec": {"unschedulable": True},
        }
        epoch = str(self._elector.check())
        self._cluster.patch(NODE, finding.node, body, manager=self._elector.writes_as(epoch))
        log.warning("node cordoned", node=finding.node, why=why)
        return True
