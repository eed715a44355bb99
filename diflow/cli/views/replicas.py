"""The replicas of a job as rows of a table, for `watch` and `describe`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from diflow.cli.output import printable
from diflow.common.durations import age

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from diflow.record.status.observe import Attempt, Observation


@dataclass(frozen=True, slots=True)
class Row:
    """One replica. `state` is its pod's phase, or the reason why it waits."""

    name: str
    rank: int
    state: str
    phase: str
    ready: bool
    restarts: int
    reschedules: int
    node: str
    age: str
    message: str


HEAD = ("REPLICA", "RANK", "STATE", "RESTARTS", "RESCHEDULES", "NODE", "AGE", "MESSAGE")


def rows(seen: Observation, *, now: datetime) -> list[Row]:
    """A row for each replica that should run, in the order of the ranks."""
    latest = seen.latest()
    moves: dict[tuple[str, int], int] = {}
    for past in seen.attempts:
        # As the sum of the job: one that never had a node is no reschedule.
        if past.round == seen.live.current and past.uncounted and (past.host or past.placed):
            key = (past.task, past.index)
            moves[key] = moves.get(key, 0) + 1
    out = []
    rank = 0
    for task in seen.tasks:
        for index in range(seen.live.counts.get(task, 0)):
            attempt = latest.get((task, index))
            out.append(_row(f"{task}-{index}", rank, attempt, moves.get((task, index), 0), now=now))
            rank += 1
    return out


def succeeded(found: Sequence[Row]) -> int:
    """The replicas that have succeeded."""
    return sum(row.phase == "Succeeded" for row in found)


def _row(name: str, rank: int, attempt: Attempt | None, moves: int, *, now: datetime) -> Row:
    if attempt is None:
        return Row(name, rank, "Waiting", "Pending", False, 0, moves, "-", "-", "its pod is not created yet")
    state = attempt.phase
    if attempt.waiting:
        state = "Waiting"
    elif attempt.is_lost:
        state = "Deleted"
    elif attempt.is_ending:
        state = "Ending"
    elif attempt.phase == "Running" and not attempt.is_ready:
        state = "NotReady"
    message = attempt.waiting or (attempt.message if attempt.phase in ("Failed", "Unknown") else "")
    return Row(
        name=name,
        rank=rank,
        state=state,
        phase=attempt.phase,
        ready=attempt.is_ready,
        restarts=attempt.tries,
        reschedules=moves,
        node=printable(attempt.host) or "-",
        age=age(attempt.created, now=now, until=attempt.finished),
        message=printable(" ".join(message.split())),
    )
