"""A journal of the real allocator: each snapshot that it planned on, with what it decided, and the replay of one.

One JSON object a line (JSON Lines): the snapshot as plain data, the policy's name, and the plan's bytes. The daemon
appends; replaying asks a policy again, and tells where its answer differs from what was done.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from diflow.allocator.arrays import frozen
from diflow.allocator.plan import Plan
from diflow.allocator.policy import Policy
from diflow.allocator.profile import Profile
from diflow.allocator.snapshot import Snapshot
from diflow.errors import InvalidError, NotFoundError

_INTEGERS = ("node_pool", "queue_parent", "job_queue", "job_priority", "job_restarts")


@dataclass(frozen=True, slots=True)
class Entry:
    """One cycle of the journal."""

    snapshot: Snapshot
    policy: str
    decided: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Difference:
    """What a replayed policy decides otherwise for one job at one time."""

    now_seconds: float
    job: str
    then: str
    now: str


def line(snapshot: Snapshot, plan: Plan) -> str:
    """One line for the journal, without the newline."""
    data = {f.name: _plain(getattr(snapshot, f.name)) for f in fields(Snapshot)}
    decided = json.loads(plan.to_bytes(snapshot))
    return json.dumps({"snapshot": data, "policy": plan.policy, "decided": decided["jobs"]}, separators=(",", ":"))


def read(path: Path) -> Iterator[Entry]:
    """The entries of a journal. Raises InvalidError with the line's number; a half-written last line is left out."""
    try:
        text = path.read_text()
    except OSError as error:
        raise NotFoundError(f"the journal {path} cannot be read: {error.strerror}") from None
    lines = text.split("\n")
    for number, content in enumerate(lines, 1):
        if not content:
            continue
        try:
            data = json.loads(content)
            yield Entry(_snapshot(data["snapshot"]), str(data["policy"]), dict(data["decided"]))
        except (ValueError, KeyError, TypeError) as error:
            if number == len(lines):
                return  # the writer was stopped in the middle of it
            raise InvalidError(f"{path}, line {number}: no entry of a journal ({error})") from None


def differences(entries: Iterator[Entry], policy: Policy) -> Iterator[Difference]:
    """Ask the policy at every snapshot of the journal; yield each job that it would treat otherwise."""
    for entry in entries:
        plan = json.loads(policy.optimize(entry.snapshot).to_bytes(entry.snapshot))["jobs"]
        for name in entry.snapshot.job_names:
            then, now = entry.decided.get(name, {}), plan[name]
            if then.get("pods") != now["pods"]:
                yield Difference(entry.snapshot.now_seconds, name, _short(then), _short(now))


def _short(decision: dict[str, Any]) -> str:
    pods = sum(sum(nodes.values()) for nodes in decision.get("pods", {}).values())
    return f"{decision.get('action', 'unknown')} with {pods} replicas"


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return {"shape": list(value.shape), "kind": value.dtype.kind, "data": value.ravel().tolist()}
    if isinstance(value, tuple) and value and (value[0] is None or isinstance(value[0], Profile)):
        return [None if p is None else _profile_plain(p) for p in value]
    if isinstance(value, tuple) and any(isinstance(p, Profile) for p in value):
        return [None if p is None else _profile_plain(p) for p in value]
    return list(value) if isinstance(value, tuple) else value


def _profile_plain(profile: Profile) -> dict[str, Any]:
    return {f.name: _plain(getattr(profile, f.name)) for f in fields(Profile)}


def _array(value: Any) -> Any:
    if isinstance(value, dict) and {"shape", "kind", "data"} <= set(value):
        kind = {"i": np.int64, "f": np.float64, "b": np.bool_}[value["kind"]]
        return frozen(np.array(value["data"], dtype=kind).reshape(value["shape"]))
    return value


def _snapshot(data: dict[str, Any]) -> Snapshot:
    values: dict[str, Any] = {}
    for f in fields(Snapshot):
        value = _array(data[f.name])
        if f.name == "job_profile":
            value = tuple(None if p is None else Profile(**{k: _array(v) for k, v in p.items()}) for p in value)
        values[f.name] = tuple(value) if isinstance(value, list) else value
    return Snapshot(**values)
