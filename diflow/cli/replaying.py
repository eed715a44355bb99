"""A policy over a journal of the allocator: where it decides otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from diflow.allocator.journal import Entry, differences, read
from diflow.allocator.policy import load_policy
from diflow.errors import NotFoundError


def replay_journal(path: Path, policy: str) -> tuple[list[dict[str, Any]], int, str]:
    """(a row for each decision that differs, how many cycles there were, the policy's name).

    Without a policy each entry is decided again by the one that decided it. Raises NotFoundError for a journal that
    cannot be read or holds no whole entry, InvalidError for a line that is no entry.
    """
    rows: list[dict[str, Any]] = []
    names: list[str] = []
    cycles = 0
    loaded = {policy: load_policy(policy)} if policy else {}
    for entry in read(path):
        cycles += 1
        name = policy or entry.policy
        if name not in loaded:
            loaded[name] = load_policy(name)
        if name not in names:
            names.append(name)
        for found in differences(_only(entry), loaded[name]):
            moment = datetime.fromtimestamp(found.now_seconds, UTC).isoformat(timespec="seconds")
            rows.append({"time": moment, "job": found.job, "then": found.then, "now": found.now, "policy": name})
    if not cycles:
        raise NotFoundError(f"the journal {path} holds no whole entry")
    return rows, cycles, ", ".join(names)


def _only(entry: Entry) -> Iterator[Entry]:
    yield entry
