"""What the jobs of a cluster have seen of its nodes: node checks, failures of replicas, and nodes that were left out.

From the Workflows that exist: what a deleted job has seen is forgotten. A user who can write a Workflow can write what
it says about nodes, so each statement names its job, and a job counts once for each node.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from diflow.common import keys
from diflow.kube.api import Cluster
from diflow.kube.kinds import WORKFLOW
from diflow.record import nodecheck
from diflow.record.argo.failures import MAIN, STOPPED, TAKEN_AWAY, UNKNOWN, ended_container, reason_of
from diflow.record.argo.nodes import nodes as argo_nodes
from diflow.record.job import JobRecord, record_of
from diflow.record.nodecheck import Checked, Fault, Record

MOST_NODES: Final = 5_000
"""Nodes in the list, those with the most findings first. A cluster of Kubernetes has at most as many."""
MOST_REASONS: Final = 3
_MOST_NODES_OF_JOB: Final = 2_000
_LONGEST_NAME: Final = 253
_NOT_OF_THE_NODE: Final = frozenset({"", STOPPED, TAKEN_AWAY, "done"})

_WORKFLOW_STOPPED: Final = "workflow shutdown with strategy"
"""How Argo's message for a pod begins that was ended with its Workflow, such as by `diflow stop`."""


@dataclass(slots=True)
class Seen:
    """What jobs have seen of one node.

    `checked`: the jobs whose last check had a result there; `worst`: the figure that was the furthest above the median
    of the other nodes; `failures`: failed attempts by reason, of `failed` jobs; `left_out`: by job, why it leaves the
    node out now.
    """

    node: str
    checked: int = 0
    worst: Fault | None = None
    failed: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    left_out: dict[str, str] = field(default_factory=dict)

    @property
    def order(self) -> tuple[int, int, int, str]:
        """The most suspicious node first."""
        return (-len(self.left_out), -self.failed, -self.failures.total(), self.node)

    def to_dict(self) -> dict[str, Any]:
        worst = self.worst
        return {
            "node": self.node,
            "checkedBy": self.checked,
            "worst": None
            if worst is None
            else {"figure": worst.figure, "seconds": worst.value, "medianSeconds": worst.median},
            "failedJobs": self.failed,
            "failures": dict(self.failures.most_common()),
            "leftOutBy": dict(sorted(self.left_out.items())),
        }


def list_nodes(*, everywhere: bool, cluster: Cluster) -> list[Seen]:
    """What the jobs of the namespace, or `everywhere`, have seen, the most suspicious node first."""
    found = cluster.list_all(WORKFLOW, labels=keys.MANAGED, everywhere=everywhere)
    return seen(found, now=time.time())


def seen(workflows: Iterable[Mapping[str, Any]], *, now: float) -> list[Seen]:
    """What these Workflows say of nodes. No content raises."""
    out: dict[str, Seen] = {}
    named: dict[str, set[str]] = {}
    for workflow in workflows:
        state = record_of(workflow)
        if state.problem:
            continue
        job = f"{state.identity.namespace}/{state.name}"
        of_job: dict[str, Seen] = {}
        _add_checks(of_job, state)
        _add_failures(of_job, workflow)
        for entry in state.notes.excluded.active(now):
            _of(of_job, entry.node).left_out[job] = entry.reason
        mine = named.setdefault(state.identity.namespace, set())
        for name, one in list(of_job.items())[:_MOST_NODES_OF_JOB]:
            if name in mine or len(mine) < MOST_NODES:  # a namespace with more has made them up
                mine.add(name)
                _merge(_of(out, name), one)
    return sorted(out.values(), key=lambda one: one.order)[:MOST_NODES]


def _of(found: dict[str, Seen], node: str) -> Seen:
    return found.setdefault(node, Seen(node))


def _merge(into: Seen, one: Seen) -> None:
    into.checked += one.checked
    into.failed += one.failed
    into.failures += one.failures
    into.left_out |= one.left_out
    if one.worst is not None and (into.worst is None or _ratio(one.worst) > _ratio(into.worst)):
        into.worst = one.worst


def _ratio(fault: Fault) -> float:
    return fault.value / fault.median if fault.median > 0 else 0.0


def _add_checks(found: dict[str, Seen], state: JobRecord) -> None:
    record = Record.parse(state.texts.check_text)
    at = state.notes.allocation
    if not record.entries or at is None or record.round != at.round:
        return
    places = [(task.name, node) for task in state.spec.tasks for node in at.nodes.get(task.name, ())]
    results = {
        rank: Checked(*places[rank], entry)
        for rank, entry in record.entries.items()
        if rank < len(places) and places[rank][1]
    }
    for fault in nodecheck.worst(results):
        _of(found, fault.node).worst = fault
    for result in results.values():
        _of(found, result.node).checked = 1


def _add_failures(found: dict[str, Seen], workflow: Mapping[str, Any]) -> None:
    for node in argo_nodes(workflow)[0]:
        if node.type != "Pod" or node.place is None or node.phase not in ("Failed", "Error"):
            continue
        host = node.host[:_LONGEST_NAME]
        reason = reason_of(node.message)
        if host and reason not in _NOT_OF_THE_NODE and not node.message.startswith(_WORKFLOW_STOPPED):
            one = _of(found, host)
            one.failures[_why(node.message, reason)] += 1
            one.failed = 1


def _why(message: str, reason: str) -> str:
    """Why an attempt failed, for people: an exit code without a known meaning is named."""
    if message.startswith(f"{keys.CHECK_CONTAINER}:"):
        return "node check"
    container, code = ended_container(message)
    if container not in ("", MAIN):
        return "another container"
    if reason != UNKNOWN:
        return reason
    return f"exit code {code}" if code else "unknown reason"
