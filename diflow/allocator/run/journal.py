"""The journal of the allocator, one entry for each plan, and its replay.

An entry is a line of JSON: the snapshot as plain data, the policy's name and the decisions. The daemon appends to files
of bounded size. A replay runs a policy on the snapshots and reports where its decisions differ from the recorded ones.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

import numpy as np

from diflow.allocator.model.arrays import frozen
from diflow.allocator.model.plan import Plan
from diflow.allocator.model.profile import Prior, Profile
from diflow.allocator.model.rules import NO_RULES, Rule, Rules
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.policies.base import Policy, load_policy
from diflow.allocator.policies.units import in_units
from diflow.common.errors import InvalidError
from diflow.common.words import counted

MOST_BYTES: Final = 64 * 1024 * 1024
"""Size of one file. An entry of 1,000 jobs on 200 nodes has about 250 KiB: a file holds about 250 of them."""
_BLOCK: Final = 65536
_FIELDS: Final = tuple(f for f in fields(Snapshot) if f.name not in ("memo", "conditions"))
_NOT_PLAIN: Final = frozenset({"prior", "priors", "local_batches", "restart_seconds"})
"""Fields of a profile that are written only if they are set."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the journal."""

    snapshot: Snapshot
    policy: str
    decided: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Difference:
    """A job for which a replayed policy decides differently: `then` in the journal, `now` in the replay."""

    policy: str
    now_seconds: float
    job: str
    then: str
    now: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """The differences between a journal of `cycles` entries and its replay, by policy, in the order of the journal."""

    cycles: int
    differences: Mapping[str, Sequence[Difference]]


class Journal:
    """Appends to a journal of at most `keep` files of `most_bytes` each: the current one, FILE.1, FILE.2, ...

    It never raises: an error (a full disk, a missing folder) is passed to `report` once until a write succeeds again,
    and entries are lost meanwhile. A line that was cut by a crash or a full disk is removed before the next write.
    """

    def __init__(
        self,
        path: Path,
        *,
        most_bytes: int = MOST_BYTES,
        keep: int = 2,
        report: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._path, self._most_bytes, self._keep = path, most_bytes, max(1, keep)
        self._report = report
        self._ends_well = False
        self.trouble = ""
        """Why the last entry was not written, or ""."""

    def __call__(self, snapshot: Snapshot, plan: Plan) -> None:
        """Append one entry."""
        try:
            self._append(f"{line(snapshot, plan)}\n".encode())
        except Exception as error:  # the journal is for diagnosis: it must never stop the allocator
            self._ends_well = False
            words = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
            self._report_once(f"the journal {self._path} cannot be written: {words}")
        else:
            self.trouble = ""

    def _append(self, data: bytes) -> None:
        if len(data) > self._most_bytes:
            raise InvalidError(f"an entry of {len(data)} bytes is more than a file may have ({self._most_bytes})")
        if not self._ends_well:
            _remove_cut_line(self._path)
        with suppress(FileNotFoundError):
            if self._path.stat().st_size + len(data) > self._most_bytes:
                self._rotate()
        # Unbuffered, so that a full disk raises here and not when the file is closed.
        with self._path.open("ab", buffering=0) as file:
            written = file.write(data)
        if written != len(data):
            raise OSError(f"only {written} of {len(data)} bytes were written")
        self._ends_well = True

    def _rotate(self) -> None:
        if self._keep == 1:
            self._path.unlink()
        for number in range(self._keep - 1, 0, -1):
            older = self._path if number == 1 else self._numbered(number - 1)
            with suppress(FileNotFoundError):
                older.replace(self._numbered(number))

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")

    def _report_once(self, words: str) -> None:
        if words != self.trouble:
            self.trouble = words
            self._report(words)


def _remove_cut_line(path: Path) -> None:
    """Truncate the file after its last whole line."""
    with suppress(FileNotFoundError), path.open("r+b") as file:
        end = file.seek(0, os.SEEK_END)
        kept = end
        while kept > 0:
            start = max(0, kept - _BLOCK)
            file.seek(start)
            found = file.read(kept - start).rfind(b"\n")
            if found >= 0:
                kept = start + found + 1
                break
            kept = start
        if kept < end:
            file.truncate(kept)


def line(snapshot: Snapshot, plan: Plan) -> str:
    """An entry as text, without the newline."""
    data = {f.name: _plain(getattr(snapshot, f.name)) for f in _FIELDS}
    decided = json.loads(plan.to_bytes(snapshot))
    return json.dumps({"snapshot": data, "policy": plan.policy, "decided": decided["jobs"]}, separators=(",", ":"))


def read(path: Path) -> Iterator[Entry]:
    """The entries of one file of a journal, oldest first. A cut last line is skipped.

    Raises InvalidError if the file cannot be read, with the line's number if a line is not an entry.
    """
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            for number, content in enumerate(file, 1):
                if not content.endswith("\n"):
                    return  # cut: the process ended during the write
                try:
                    data = json.loads(content)
                    entry = Entry(_snapshot(data["snapshot"]), str(data["policy"]), _decided(data["decided"]))
                except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                    raise InvalidError(f"{path}, line {number}: no entry of a journal ({error})") from None
                yield entry
    except OSError as error:
        raise InvalidError(f"the journal {path} cannot be read: {error.strerror}") from None


def _decided(data: dict[str, Any]) -> dict[str, Any]:
    """The decisions. Raises TypeError or AttributeError for one that `_short` could not format."""
    for decision in data.values():
        _short(decision)
    return data


def compare(path: Path, policies: Sequence[str] = ()) -> Comparison:
    """Run these policies on every snapshot of a journal; by default, on each the policy of its entry.

    Raises InvalidError for a journal that cannot be read or has no whole entry, for a line that is not an entry and for
    an unknown policy.
    """
    loaded = {name: load_policy(name) for name in policies}
    found: dict[str, list[Difference]] = {name: [] for name in policies}
    cycles = 0
    for entry in read(path):
        cycles += 1
        for name in policies or (entry.policy,):
            if name not in loaded:
                loaded[name] = load_policy(name)
            found.setdefault(name, []).extend(differences(entry, loaded[name]))
    if not cycles:
        raise InvalidError(f"the journal {path} holds no whole entry")
    return Comparison(cycles, found)


def differences(entry: Entry, policy: Policy) -> Iterator[Difference]:
    """Run the policy on the snapshot of one entry; yield each job for which it decides differently."""
    plan = json.loads(in_units(policy.optimize, entry.snapshot).to_bytes(entry.snapshot))["jobs"]
    for name in entry.snapshot.job_names:
        then, now = entry.decided.get(name, {}), plan[name]
        if then.get("pods", {}) != now["pods"]:
            before, after = _short(then), _short(now)
            if before == after:  # the same number of replicas on other nodes
                before, after = f"{before} on {_where(then)}", f"{after} on {_where(now)}"
            yield Difference(policy.name, entry.snapshot.now_seconds, name, before, after)


def _short(decision: dict[str, Any]) -> str:
    pods = sum(sum(nodes.values()) for nodes in decision.get("pods", {}).values())
    return f"{decision.get('action', 'unknown')} with {counted(pods, 'replica')}"


def _where(decision: dict[str, Any]) -> str:
    """Nodes with their replicas; with the task's name if there are several tasks."""
    roles = decision["pods"]
    return ", ".join(
        f"{f'{role}: ' if len(roles) > 1 else ''}{node} ({count})"
        for role, nodes in roles.items()
        for node, count in nodes.items()
    )


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return {"shape": list(value.shape), "kind": value.dtype.kind, "data": value.ravel().tolist()}
    if isinstance(value, tuple) and any(isinstance(p, Profile) for p in value):
        return [None if p is None else _profile_plain(p) for p in value]
    if isinstance(value, Rules):
        return [{f.name: _plain(getattr(rule, f.name)) for f in fields(Rule)} for rule in value.all]
    if isinstance(value, frozenset):
        return sorted(value)
    return list(value) if isinstance(value, tuple) else value


def _profile_plain(profile: Profile) -> dict[str, Any]:
    """A profile as plain data. Optional fields without a value are omitted."""
    plain = {f.name: _plain(getattr(profile, f.name)) for f in fields(Profile) if f.name not in _NOT_PLAIN}
    if profile.prior is not None:
        plain["prior"] = _prior_plain(profile.prior)
    if profile.priors:
        plain["priors"] = {str(pool): _prior_plain(prior) for pool, prior in profile.priors.items()}
    if profile.local_batches:
        plain["local_batches"] = {str(pool): most for pool, most in profile.local_batches.items()}
    if profile.restart_seconds is not None:
        plain["restart_seconds"] = profile.restart_seconds
    return plain


def _prior_plain(prior: Prior) -> dict[str, Any]:
    return {f.name: _plain(getattr(prior, f.name)) for f in fields(Prior)}


def _prior(data: dict[str, Any]) -> Prior:
    return Prior(**{name: _array(value) for name, value in data.items()})


def _profile(data: dict[str, Any]) -> Profile:
    prior, priors, local = (data.pop(name, None) for name in ("prior", "priors", "local_batches"))
    values = {name: _array(value) for name, value in data.items()}
    if prior is not None:
        values["prior"] = _prior(prior)
    if priors is not None:
        values["priors"] = {int(pool): _prior(one) for pool, one in priors.items()}
    if local is not None:
        values["local_batches"] = {int(pool): most for pool, most in local.items()}
    return Profile(**values)


def _array(value: Any) -> Any:
    if isinstance(value, dict) and {"shape", "kind", "data"} <= set(value):
        kind = {"i": np.int64, "f": np.float64, "b": np.bool_}[value["kind"]]
        return frozen(np.array(value["data"], dtype=kind).reshape(value["shape"]))
    return value


def _completed(data: dict[str, Any]) -> dict[str, Any]:
    """The fields of a snapshot, with those that older journals lack or have empty if no job has another value."""
    kinds, level_names = data["class_nodes"], data.get("level_names") or []
    out = {
        "class_preference": {**kinds, "kind": "i", "data": [0] * len(kinds["data"])},
        "domain_names": [],
        "queue_lends": {"shape": [0], "kind": "b", "data": []},
        "keeps_guarantees": False,
        "rules": [],
        **data,
        "level_names": level_names,
        "job_refusal": data.get("job_refusal") or [""] * len(data["job_names"]),
    }
    for name, count, value in (("job_required", len(data["job_names"]), -1), ("role_unit", len(data["role_names"]), 1)):
        if not (data.get(name) or {}).get("data"):
            out[name] = {"shape": [count], "kind": "i", "data": [value] * count}
    out.setdefault(
        "job_modest", {"shape": [len(data["job_names"])], "kind": "b", "data": [False] * len(data["job_names"])}
    )
    out.setdefault("spared", {"shape": [0, 3], "kind": "i", "data": []})
    if not level_names:
        out["node_domain"] = {"shape": [0, len(data["node_names"])], "kind": "i", "data": []}
    return out


def _snapshot(data: dict[str, Any]) -> Snapshot:
    data = _completed(data)
    values: dict[str, Any] = {}
    for f in _FIELDS:
        value = _array(data[f.name])
        if f.name == "job_profile":
            value = tuple(None if p is None else _profile(dict(p)) for p in value)
        if f.name == "rules":
            value = Rules.of([_rule(dict(one)) for one in value]) if value else NO_RULES
        values[f.name] = tuple(value) if isinstance(value, list) else value
    return Snapshot(**values)


def _rule(data: dict[str, Any]) -> Rule:
    values = {name: _array(value) for name, value in data.items()}
    return Rule(**{**values, "owners": frozenset(values["owners"]), "counted": frozenset(values["counted"])})
