"""What came of each moment, as a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from diflow.common.tables import table
from diflow.common.words import shortened
from shares.cast import USERS, Moment, held, present

IN_TIME_SECONDS = 30.0
"""From the first request of a moment until every queue holds what it deserves."""
_LONGEST = 132


@dataclass(frozen=True, slots=True)
class Row:
    """One moment. `at`: seconds of the film; `seconds`: until every queue held what it deserves, None if never.

    `before` and `after`: running replicas by job. `said`: why, by job, in the words of `diflow explain`. `wrong`: what
    the commands said and was not so.
    """

    moment: Moment
    at: float
    seconds: float | None
    before: Mapping[str, int]
    after: Mapping[str, int]
    said: Mapping[str, str]
    wrong: tuple[str, ...] = ()

    @property
    def is_good(self) -> bool:
        return self.seconds is not None and self.seconds <= IN_TIME_SECONDS and not self.wrong

    def changes(self) -> list[tuple[str, int, int]]:
        """(job, replicas before, after) of the jobs that are there and have another number than before."""
        pairs = ((p.name, self.before.get(p.name, 0), self.after.get(p.name, 0)) for p in present(self.moment))
        return [(name, before, after) for name, before, after in pairs if before != after]

    def shrank(self) -> list[str]:
        return [f"{name} {before}→{after}" for name, before, after in self.changes() if 0 < after < before]

    def stopped(self) -> list[str]:
        return [f"{name} ({before})" for name, before, after in self.changes() if not after]

    def gained(self) -> list[str]:
        return [
            f"{name} {before}→{after}" if before else f"{name} ({after})"
            for name, before, after in self.changes()
            if after > before
        ]


@dataclass(frozen=True, slots=True)
class Retries:
    """What the Workflow of a job says at the end: restarts that count, and its backoffLimit beside that submitted."""

    job: str
    used: int
    limit: int
    submitted: int
    rounds: int

    @property
    def is_good(self) -> bool:
        return self.used == 0 and self.limit == self.submitted


def moments_table(rows: Sequence[Row]) -> str:
    """The rows for people: who holds how much of what the queue deserves, how soon, and who gave it up."""
    head = ["MOMENT", "IN", *(user.upper() for user in USERS), "SHRANK", "STOPPED", "STARTED OR GREW"]
    lines = []
    for row in rows:
        now = held(row.after)
        within = "NEVER" if row.seconds is None else f"{row.seconds:.1f} s"
        if row.seconds is not None and row.seconds > IN_TIME_SECONDS:
            within += " LATE"
        shares = [f"{now[user]}/{row.moment.deserved[user]}" for user in USERS]
        gave = [", ".join(names) or "-" for names in (row.shrank(), row.stopped(), row.gained())]
        lines.append([row.moment.title, within, *shares, *gave])
    first, *texts = table(head, lines).splitlines()
    out = [first]
    for row, text in zip(rows, texts, strict=True):
        out.append(text)
        out.append(f"  deserved: {row.moment.why}")
        out += [f"  explain {job}: {shortened(why, _LONGEST)}" for job, why in row.said.items()]
        out += [f"  WRONG: {wrong}" for wrong in row.wrong]
    return "\n".join(out)


def retries_table(retries: Iterable[Retries]) -> str:
    """One line: it is the same for all jobs, or it is a fault that is named."""
    every = list(retries)
    bad = [
        f"{one.job} used {one.used} of {one.limit} retries (submitted with {one.submitted})"
        for one in every
        if not one.is_good
    ]
    rounds = sum(one.rounds for one in every)
    return (
        "; ".join(bad) or f"no retry used by any of {len(every)} jobs in {rounds} rounds; each backoffLimit unchanged"
    )
