"""Who has which shard of a job's data sets, and what is done: the state machine, its text, and its bounds.

Of each data set the ledger has `next`, the first unit that was never leased, and the leases. A unit below `next`
without a lease is done: the leases are the holes in one range of done units, so the ledger is as long as there are
leases, whatever the size of the data set.

A request says what its worker has done and how many leases it wants in all, and the answer names all its leases. So a
request that is sent again has the same effect, and leases in an answer that was lost are in the next one.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import nsmallest
from math import ceil
from typing import Any, Final, TypeGuard

from diflow.common.errors import ConflictError, InvalidError, UnavailableError
from diflow.shards.dataset import MOST_UNITS, Dataset, Span, is_name

MOST_DATASETS: Final = 16
MOST_WORKER: Final = 120
"""Characters of a worker's name: the pod's uid, `/`, and what the process calls itself."""
MOST_WANTED: Final = 64
"""Leases of one worker in one data set."""
MOST_WORKERS: Final = 4096
"""With leases in one data set: each request looks at them all. With names of their usual length, fewer fit."""
MOST_BYTES: Final = 256 * 1024
"""Of the text. Beyond it, units of lost workers are leased, and no others, until leases have ended."""
GRACE_SECONDS: Final = 5.0
"""A lease is given to another worker so long after its end: the clocks of two servers may differ."""

_FORMAT: Final = 1
_TABLE_BYTES: Final = 256
_HOLDER_BYTES: Final = 40  # quotes, two times, brackets
_LATEST: Final = 10**11  # seconds since 1970


@dataclass(frozen=True, slots=True)
class Ask:
    """A request of a worker: `done` units, the number of leases it `wants` in all, and for how many seconds.

    `done` may name units of workers that are lost: those of which the checkpoint that it went on from has the samples.
    `leaves`: the worker ends, and gives its leases back.
    """

    name: str
    dataset: Dataset
    worker: str
    done: tuple[int, ...] = ()
    wants: int = 0
    seconds: float = 300.0
    leaves: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """All leases of the worker, for `seconds` from now; `refused`: units in `done` that others have.

    `is_finished`: all units of all epochs are done.
    """

    leases: tuple[Span, ...]
    refused: tuple[int, ...]
    seconds: float
    is_finished: bool


@dataclass(frozen=True, slots=True)
class Living:
    """The pods (uids) that existed at `as_of` (seconds since 1970). None: it is not known."""

    uids: Collection[str] | None = None
    as_of: float = 0.0

    def lacks(self, worker: str, seen: float) -> bool:
        """Whether the worker's pod is gone. One that was seen later than `as_of` may only be unknown here."""
        return self.uids is not None and seen < self.as_of and worker.partition("/")[0] not in self.uids


@dataclass(slots=True)
class Holder:
    """A worker's leases: when it was last `seen`, from when on others may get them (seconds since 1970; the worker
    knows an end that is GRACE_SECONDS earlier), and the units in order."""

    seen: float
    ends: float
    units: list[int]


@dataclass(slots=True)
class Table:
    """A data set, the first unit that was never leased, and the leases by worker."""

    dataset: Dataset
    next: int = 0
    held: dict[str, Holder] = field(default_factory=dict)
    owners: dict[int, str] = field(default_factory=dict)
    """The worker of each leased unit."""
    _lost: tuple[float, Living, set[str]] | None = None

    def lost(self, now: float, living: Living) -> set[str]:
        """The lost workers. Of many requests at one time, they are looked for at the first one alone."""
        if self._lost is None or self._lost[0] != now or self._lost[1] is not living:
            found = {worker for worker, holder in self.held.items() if _is_lost(worker, holder, now, living)}
            self._lost = now, living, found
        return self._lost[2]

    def changed(self, worker: str) -> None:
        """The worker's lease ends at another time, or it has none any more."""
        if self._lost is not None:
            now, living, found = self._lost
            holder = self.held.get(worker)
            (found.add if holder is not None and _is_lost(worker, holder, now, living) else found.discard)(worker)

    @property
    def is_finished(self) -> bool:
        """Whether all units are done."""
        return self.next == self.dataset.units and not self.held

    def done(self) -> Iterator[tuple[int, int]]:
        """The done units as ranges (first, last + 1), in order."""
        at = 0
        for unit in sorted(unit for holder in self.held.values() for unit in holder.units):
            if unit > at:
                yield at, unit
            at = unit + 1
        if self.next > at:
            yield at, self.next


class Ledger:
    """The tables of one job. `at` is the time of the newest request: time never runs backwards."""

    def __init__(self) -> None:
        self.at = 0.0
        self.tables: dict[str, Table] = {}
        self._bytes = 0

    def ask(self, ask: Ask, *, now: float, living: Living = Living()) -> Answer:
        """Carry out a request at `now` (seconds since 1970).

        Raises ConflictError if others describe the data set differently, InvalidError for an impossible request,
        UnavailableError (with nothing changed) if the ledger is full and the worker would get nothing.
        """
        table = self._table(ask)
        self.at = now = max(now, self.at)
        refused = self._finish(table, ask, now, living)
        mine = table.held.get(ask.worker)
        if ask.leaves:
            if mine is not None:
                mine.ends = 0.0
                table.changed(ask.worker)
            return Answer((), refused, 0.0, table.is_finished)
        units = mine.units if mine is not None else []
        if len(units) < ask.wants:
            units = sorted(units + self._take(table, ask, ask.wants - len(units), now, living))
        if not units:
            return Answer((), refused, 0.0, table.is_finished)
        if mine is None:
            mine = table.held[ask.worker] = Holder(now, 0.0, units)
        mine.units = units
        ends = ceil(now + ask.seconds + GRACE_SECONDS)  # whole seconds: the text has no others
        if ends - mine.ends >= ask.seconds / 10:  # a repeated request changes nothing
            mine.seen, mine.ends = now, ends
            table.changed(ask.worker)
        spans = tuple(table.dataset.span(unit) for unit in units)
        return Answer(spans, refused, min(ask.seconds, mine.ends - GRACE_SECONDS - now), is_finished=False)

    def _table(self, ask: Ask) -> Table:
        table = self.tables.get(ask.name)
        if table is None:
            if not is_name(ask.name) or not 0 < len(ask.worker) <= MOST_WORKER:
                raise InvalidError("the name of the data set or of the worker is not valid", path="dataset")
            if len(self.tables) >= MOST_DATASETS:
                raise ConflictError(f"a job has at most {MOST_DATASETS} data sets")
            table = self.tables[ask.name] = Table(ask.dataset)
            self._bytes += _TABLE_BYTES
        if table.dataset != ask.dataset:
            raise ConflictError(
                f"data set {ask.name} has {_words(table.dataset)} in this job, and not {_words(ask.dataset)}"
            )
        if any(not 0 <= unit < table.next for unit in ask.done):
            raise InvalidError("names a shard that was never leased", path="done")
        return table

    def _finish(self, table: Table, ask: Ask, now: float, living: Living) -> tuple[int, ...]:
        """Remove the leases of done units, its own and those of lost workers. Returns the units that others have."""
        left = set(ask.done)
        mine = table.held.get(ask.worker)
        if mine is not None and not left.isdisjoint(mine.units):
            self._bytes -= sum(_digits(unit) for unit in mine.units if unit in left)
            kept = [unit for unit in mine.units if unit not in left]
            for unit in mine.units:
                if unit in left:
                    left.remove(unit)
                    del table.owners[unit]
            mine.units = kept
            if not kept:
                self._forget(table, ask.worker)
        refused = []
        for unit in sorted(left):
            worker = table.owners.get(unit)
            if worker is None or worker == ask.worker:
                continue
            if worker not in table.lost(now, living):
                refused.append(unit)
                continue
            self._bytes -= _digits(unit)
            self._remove(table, worker, unit)
        return tuple(refused)

    def _take(self, table: Table, ask: Ask, most: int, now: float, living: Living) -> list[int]:
        """Up to `most` units for the worker: those of lost workers first, in order; then those never leased."""
        is_new = ask.worker not in table.held
        lost = (unit for worker in table.lost(now, living) if worker != ask.worker for unit in table.held[worker].units)
        taken = nsmallest(most, lost)
        if is_new and most > 0 and not taken and len(table.held) >= MOST_WORKERS:
            raise UnavailableError(f"{MOST_WORKERS:,} workers have shards already: ask again when some are done")
        for unit in taken:
            self._remove(table, table.owners[unit], unit)
            table.owners[unit] = ask.worker
        if taken and is_new:
            self._bytes += _HOLDER_BYTES + len(ask.worker)
        full = False
        while len(taken) < most and table.next < table.dataset.units:
            cost = _digits(table.next) + (_HOLDER_BYTES + len(ask.worker) if is_new and not taken else 0)
            full = self._bytes + cost > MOST_BYTES
            if full:
                break
            self._bytes += cost
            taken.append(table.next)
            table.owners[table.next] = ask.worker
            table.next += 1
        if full and is_new and not taken:
            raise UnavailableError("too many shards are leased: ask again when some are done")
        return taken

    def _remove(self, table: Table, worker: str, unit: int) -> None:
        """Take a unit from its worker; its bytes stay."""
        del table.owners[unit]
        table.held[worker].units.remove(unit)
        if not table.held[worker].units:
            self._forget(table, worker)

    def _forget(self, table: Table, worker: str) -> None:
        del table.held[worker]
        table.changed(worker)
        self._bytes -= _HOLDER_BYTES + len(worker)

    # --- text ---------------------------------------------------------------------------------------------------------

    def text(self, *, at: float | None = None) -> str:
        """The ledger as JSON in ASCII. `at`: with this time instead of its own."""
        tables = {
            name: {
                "size": table.dataset.size,
                "shard": table.dataset.shard,
                "epochs": table.dataset.epochs,
                "seed": table.dataset.seed,
                "next": table.next,
                "held": {worker: [int(h.seen), int(h.ends), *h.units] for worker, h in table.held.items()},
            }
            for name, table in self.tables.items()
        }
        return json.dumps(
            {"format": _FORMAT, "at": int(self.at if at is None else at), "datasets": tables}, separators=(",", ":")
        )

    @classmethod
    def read(cls, given: Any) -> Ledger:
        """Read the parsed JSON of a text that anybody may have written. Raises ValueError with the reason."""
        if not isinstance(given, dict) or given.get("format") != _FORMAT:
            raise ValueError(f"is not of format {_FORMAT}")
        tables, at = given.get("datasets"), given.get("at")
        if not _is_count(at, most=_LATEST) or not isinstance(tables, dict):
            raise ValueError("has no data sets or no time")
        if len(tables) > MOST_DATASETS:
            raise ValueError(f"has more than {MOST_DATASETS} data sets")
        ledger = cls()
        ledger.at = float(at)
        for name, table in tables.items():
            if not is_name(name) or not isinstance(table, dict):
                raise ValueError("has a data set without a valid name")
            ledger.tables[name] = _read_table(name, table)
        ledger._bytes = sum(
            _TABLE_BYTES + sum(_HOLDER_BYTES + len(w) + sum(map(_digits, h.units)) for w, h in table.held.items())
            for table in ledger.tables.values()
        )
        return ledger


def _is_lost(worker: str, holder: Holder, now: float, living: Living) -> bool:
    return holder.ends <= now or living.lacks(worker, holder.seen)


def _read_table(name: str, given: Mapping[str, Any]) -> Table:
    try:
        dataset = Dataset(given.get("size"), given.get("shard"), given.get("epochs"), given.get("seed"))  # type: ignore[arg-type]
    except InvalidError as error:
        raise ValueError(f"has an impossible data set {name}: {error}") from None
    first, held = given.get("next"), given.get("held")
    if not _is_count(first, most=dataset.units) or not isinstance(held, dict):
        raise ValueError(f"has no valid leases of data set {name}")
    if len(held) > 2 * MOST_WORKERS:  # those of lost workers may have been given to more than these
        raise ValueError(f"has too many workers of data set {name}")
    table = Table(dataset, first)
    seen: set[int] = set()
    for worker, row in held.items():
        if not 0 < len(worker) <= MOST_WORKER or not worker.isascii() or not isinstance(row, list) or len(row) < 3:
            raise ValueError(f"has an impossible worker of data set {name}")
        if not all(_is_count(each, most=MOST_UNITS) for each in row):
            raise ValueError(f"has an impossible lease of data set {name}")
        last_seen, ends, *units = row
        if len(units) > MOST_WANTED or max(last_seen, ends) > _LATEST or max(units) >= first:
            raise ValueError(f"has an impossible lease of data set {name}")
        if len(set(units)) != len(units) or not seen.isdisjoint(units):
            raise ValueError(f"leases a shard of data set {name} twice")
        seen.update(units)
        table.held[worker] = Holder(float(last_seen), float(ends), sorted(units))
        table.owners.update(dict.fromkeys(units, worker))
    return table


def _is_count(value: Any, *, most: int) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most


def _digits(unit: int) -> int:
    return len(str(unit)) + 1


def _words(dataset: Dataset) -> str:
    seed = "no seed" if dataset.seed is None else f"seed {dataset.seed}"
    return f"{dataset.size} samples in shards of {dataset.shard}, {dataset.epochs} epochs, {seed}"
