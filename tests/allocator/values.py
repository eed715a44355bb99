"""Builders of records of jobs, pods and nodes, for tests of pure functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import structs

from diflow.allocator.watch.free_capacity import FreeCapacity
from diflow.allocator.watch.job import Job
from diflow.common import keys
from diflow.common.predicates import Where
from diflow.dijob.stored import FailurePolicy, StoredTask
from diflow.record.allocation import Allocation
from diflow.record.argo.node_names import parse
from diflow.record.argo.tree import Tree
from diflow.record.chain import Chain
from diflow.record.identity import Identity
from diflow.record.job import Argo, JobRecord, Needs, Notes, Role, Terms, Texts, Wishes
from diflow.record.live import Live
from diflow.record.node import NodeRecord
from diflow.record.pod import PodRecord

NOW = 1_000_000.0
CPU = {"cpu": 1000, "pods": 1}


def role(name: str = "w", replicas: int = 2, *, low: int | None = None, desired: int | None = None) -> Role:
    asked = replicas if desired is None else desired
    low = asked if low is None else low
    return Role(name, CPU, Where(), (), submitted=replicas, low=low, high=asked, desired=asked)


_LIVE = {field.name for field in dataclasses.fields(Live)}


def read(*roles: Role, nodes: Mapping[str, tuple[str, ...]] | None = None, **fields: Any) -> JobRecord:
    """A job whose current round is `current`, placed on `nodes` (None: it was never placed)."""
    roles = roles or (role(),)
    current = fields.get("current", "1")
    state = {
        "rounds": tuple(str(i + 1) for i in range(int(current))),
        "current": current,
        "granted": {current: {r.name: r.submitted for r in roles}},
    }
    state |= {name: fields.pop(name) for name in _LIVE & fields.keys()}
    given: dict[str, Any] = {
        "roles": roles,
        "tasks": tuple(StoredTask(name=r.name, replicas=r.submitted) for r in roles),
        "live": Live(**state),
        "allocation": None if nodes is None else Allocation(current, nodes, since=NOW - 1000, first=NOW - 1000),
        "parameters": (
            ("rounds", '["1"]'),
            ("current", "1"),
            ("granted", "{}"),
            ("released", "[]"),
            ("incarnations", "{}"),
        ),
    }
    plain = JobRecord(Identity("ns", "job", "uid-job", "7"), argo=Argo(created_seconds=NOW - 2000))
    return changed(plain, **{**given, **fields})


_GROUPS = {
    field.name: group
    for group, kind in (
        ("chain", Chain), ("terms", Terms), ("wishes", Wishes), ("notes", Notes), ("argo", Argo), ("needs", Needs),
        ("texts", Texts),
    )
    for field in dataclasses.fields(kind)
}  # fmt: skip
_OF_SPEC = frozenset({"tasks", "backoff_limit", "node_check", "start_deadline_seconds", "failure_policy"})


def changed(record: JobRecord, **fields: Any) -> JobRecord:
    """The record with these fields of its groups, of its spec, or of its own. `has_ended` and `is_stopping` are what
    Argo says then, and `health_state` is the note; `name` is the job's."""
    for given, value in fields.items():
        name, value = _ALIASES.get(given, lambda found: (given, found))(value)  # noqa: B023, PLW2901
        group = _GROUPS.get(name)
        if name in _OF_SPEC:
            spec = structs.replace(record.spec, **{name: value})
            record = dataclasses.replace(record, submitted=dataclasses.replace(record.submitted, spec=spec))
        else:
            part = value if group is None else dataclasses.replace(getattr(record, group), **{name: value})
            record = dataclasses.replace(record, **{group or name: part})
    return record


_ALIASES: Mapping[str, Callable[[Any], tuple[str, Any]]] = {
    "has_ended": lambda value: ("phase", "Succeeded" if value else ""),
    "is_stopping": lambda value: ("shutdown", "Stop" if value else ""),
    "has_policy": lambda value: ("failure_policy", FailurePolicy() if value else None),
    "health_state": lambda value: ("health", value),
    "name": lambda value: ("job", value),
}


def pod(replica: str = "w-0", *, on: str = "", pinned: str = "", gated: bool | None = None, **fields: Any) -> PodRecord:
    """A pod of the job: `on` a node, or `pinned` to one and not bound yet, else gated.

    `round`, `restart`, `member` and `made` (how often it was created again) are its place in Argo's tree.
    """
    task, _, index = replica.rpartition("-")
    member = fields.pop("member", index)
    restart = f"({fields.pop('restart')})" if "restart" in fields else ""
    path = f"job.round(0:{fields.pop('round', '1')}){restart}.{task}({index}:{member}).{task}({fields.pop('made', 0)})"
    place = parse("job", path)
    assert place is not None
    gates = (keys.GATE,) if (not on and not pinned if gated is None else gated) else ()
    given: dict[str, Any] = {
        "phase": "Running" if on else "Pending",
        "is_terminating": False,
        "is_stopping": False,
        "request": CPU,
        "hosts": "",
        "rank": "",
        "replicas": "",
    }
    name = f"p-{path}"
    return PodRecord(
        identity=Identity("ns", name, f"uid-{name}", "3"),
        job="ns/job",
        owner="uid-job",
        place=place,
        host=on,
        pinned=pinned or on,
        gates=gates,
        **{**given, **fields},
    )


def node(
    name: str, *, cpu: int = 8000, is_schedulable: bool = True, not_ready_since: float | None = None
) -> NodeRecord:
    return NodeRecord(name, {"cpu": cpu, "pods": 110}, is_schedulable, not_ready_since, {}, ())


def capacity(*nodes: NodeRecord, pods: tuple[PodRecord, ...] = (), lost_after_seconds: float = 60.0) -> FreeCapacity:
    known = {n.name: n for n in nodes or (node("a"), node("b"))}
    return FreeCapacity.of(known, pods, now_seconds=NOW, lost_after_seconds=lost_after_seconds)


def tree(restarts: int = 0, restart: int = 0, recreated: tuple[str, ...] = (), **phases: str) -> Tree:
    """Argo's tree of round 1: w_0="Succeeded" is replica 0 of task w."""
    members = {f"1/{name.replace('_', '/')}": phase for name, phase in phases.items()}
    return Tree(members, {"1": restart}, {"1": "Running"}, frozenset(recreated), restarts)


def job(job_read: JobRecord, *pods: PodRecord) -> Job:
    return Job(job_read, pods)
