"""Results of the node check: the annotation `diflow/node-check` of a job's Workflow, and which nodes it finds faulty.

    {"round": "2", "since": seconds since 1970, "ranks": {"0": ["1a2b3c4d", 0.012, 0.08, null, ...], ...},
     "failed": {"3": "the matrix product is wrong"}, "unmet": {"0": [3], "3": [0]}}

An entry has the first characters of its pod's uid, and the figures in the order of FIGURES. The server writes the
record and the allocator acts on it; both judge it by the same rule. The record is replaced with each round. Pure.
"""

from __future__ import annotations

import json
import statistics
from bisect import bisect_left
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final, Self

from msgspec import Meta, Struct

from diflow.common.jsontext import lenient, parsed
from diflow.common.limits import LONGEST_FAILURE, MOST_PEERS, MOST_REPLICAS
from diflow.common.memo import MIB, remembered
from diflow.record import untrusted
from diflow.record.exclusions import Exclusion, Exclusions
from diflow.record.types import LATEST_SECONDS, Round

FIGURES: Final[Mapping[str, tuple[str, float]]] = {
    "product": ("seconds for a matrix product", 0.0),
    "memory": ("seconds to copy 1 GiB of memory", 0.05),
    "disk": ("seconds to write 1 MiB to disk", 0.01),
    "latency": ("seconds for a message to a peer and back", 0.002),
    "transfer": ("seconds to send 1 MiB to a peer", 0.005),
    "allreduce": ("seconds for an all-reduce", 0.02),
    "gpu": ("seconds for a matrix product on the GPU", 0.0),
}
"""By the name of a figure: what it is, and the least difference from the median that counts. Less is better in all of
them. Below that difference a figure is noise: twice a latency of 0.1 ms slows no training down."""
BETWEEN_PEERS: Final = frozenset({"latency", "transfer", "allreduce"})
"""These figures are compared over all tasks of a job, the others within a task, whose containers have equal limits."""
SLOW: Final = 2.0
"""A node is slow above this multiple of the median of the other nodes."""
UID_CHARACTERS: Final = 8
MOST_FAILED: Final = 64
"""Texts of failures in one record."""
LONGEST: Final = 96 * 1024
"""Bytes of the record: 2,000 replicas with all figures take about 90 kB. Annotations have 256 KiB together."""
PARTIAL_SHARE: Final = 0.75
"""After this share of the time of the first check, the results that exist are judged without those that are missing. A
check that misses its peers reports before that (`diflow.inpod.check`), and ends later."""
SOURCE: Final = "node-check"
"""What exclusions because of a check name as their source."""
_HIGHEST: Final = 1e6
_NAMED: Final = 3


@dataclass(frozen=True, slots=True)
class Entry:
    """The result of one replica's check. `pod`: the first characters of its pod's uid."""

    pod: str
    figures: Mapping[str, float] = field(default_factory=dict)
    failed: str = ""
    unmet: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Record:
    """The results of a round by rank. `since`: when the first of these checks began, in seconds since 1970."""

    round: str = ""
    since: float = 0.0
    entries: Mapping[int, Entry] = field(default_factory=dict)

    @classmethod
    def parse(cls, given: Any) -> Self:
        """Parse the annotation. Invalid entries are dropped; a text in another form is an empty record."""
        found = _parse(given) if isinstance(given, str) and 0 < len(given) <= LONGEST else _NOTHING
        return cls(found.round, found.since, found.entries)

    def to_json(self) -> str:
        """The annotation, within LONGEST characters: results of the highest ranks are dropped beyond it."""
        ranks = sorted(self.entries)
        while len(text := self._text(ranks)) > LONGEST:
            ranks = ranks[: len(ranks) * 9 // 10]
        return text

    def _text(self, ranks: Sequence[int]) -> str:
        entries = {rank: self.entries[rank] for rank in ranks}
        failed = {str(rank): entry.failed for rank, entry in entries.items() if entry.failed}
        unmet = {str(rank): list(entry.unmet) for rank, entry in entries.items() if entry.unmet}
        data = {
            "round": self.round,
            "since": round(self.since, 3),
            "ranks": {str(rank): _row(entry) for rank, entry in entries.items()},
            **({"failed": dict(list(failed.items())[:MOST_FAILED])} if failed else {}),
            **({"unmet": unmet} if unmet else {}),
        }
        return json.dumps(data, separators=(",", ":"), ensure_ascii=True, allow_nan=False)

    def of(self, pods: Mapping[int, str]) -> Mapping[int, Entry]:
        """The results of these pods: rank → uid."""
        return {
            rank: entry
            for rank, uid in pods.items()
            if uid and (entry := self.entries.get(rank)) is not None and uid.startswith(entry.pod)
        }


_NOTHING: Final = Record()


@dataclass(frozen=True, slots=True)
class Checked:
    """One replica's result, with its task and its node."""

    task: str
    node: str
    entry: Entry


Placed = tuple[str, str, str]
"""A pod: its task, its node, its uid."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A node that the check finds faulty. Without a figure, its check has failed."""

    node: str
    text: str
    figure: str = ""
    value: float = 0.0
    median: float = 0.0


def moves(excluded: Exclusions) -> int:
    """How often the gang was placed again because of its check. Each time is an attempt of the exclusions it made."""
    return max((number for entry in excluded.entries for number in numbers(entry)), default=0)


def move(number: int) -> str:
    """The attempt of the exclusions of the gang's `number`-th move because of its check."""
    return f"{SOURCE}/{number}"


def numbers(entry: Exclusion) -> tuple[int, ...]:
    """The moves that this exclusion is the consequence of."""
    found = (attempt.removeprefix(f"{SOURCE}/") for attempt in entry.attempts if attempt.startswith(f"{SOURCE}/"))
    return tuple(number for text in found if (number := untrusted.whole(text, digits=5)) is not None)


def without_moves(excluded: Exclusions) -> Exclusions:
    """The same nodes for the same time, as if the gang had never been placed again because of its check."""
    entries = (
        replace(entry, attempts=tuple(one for one in entry.attempts if not one.startswith(f"{SOURCE}/")))
        for entry in excluded.entries
    )
    return Exclusions(tuple(entries))


def fold(before: str, round_: str, entries: Mapping[int, Entry], pods: Mapping[int, str], *, since: float) -> str:
    """The annotation `before` with these results of a round, by rank. `since`: when the first of their checks began.

    `pods`: the uids of the round's present pods by rank. Earlier results of other pods are dropped.
    """
    record = Record.parse(before)
    known = record.of(pods) if record.round == round_ else {}
    since = min(record.since, since) if known else since
    return Record(round_, since, {**known, **entries}).to_json()


def is_ready(record: Record, found: int, wanted: int, *, now: float, timeout_seconds: float) -> bool:
    """Whether `found` results of `wanted` replicas are enough to judge: all, or what came within most of the time."""
    return found > 0 and (found >= wanted or now >= partial_at(record, timeout_seconds))


def partial_at(record: Record, timeout_seconds: float) -> float:
    """From when on results are judged without those that are missing, in seconds since 1970."""
    return record.since + PARTIAL_SHARE * timeout_seconds


def judge(results: Mapping[int, Checked]) -> tuple[Fault, ...]:
    """The faulty nodes among those of these replicas (by rank), in the order of their names.

    A node is faulty if its check has failed, if the peers that reach each other do not reach it, or if one of its
    figures is more than SLOW times the median of the other nodes. If that is so for more than half of the nodes, the
    reason is not the nodes, and none is faulty.
    """
    nodes = {result.node for result in results.values() if result.node}
    found: dict[str, Fault] = {}
    for node, text in _failures(results):
        found.setdefault(node, Fault(node, text))
    for fault in _slow(results):
        found.setdefault(fault.node, fault)
    if len(found) * 2 > len(nodes):
        return ()
    return tuple(found[node] for node in sorted(found))


class Judge:
    """Judges the results of many jobs, and those of one job again only when they have changed: each of its replicas
    asks once a second, and there may be two thousand. For one thread."""

    def __init__(self, *, most_jobs: int = 256) -> None:
        self._judged: dict[Hashable, tuple[Record, Mapping[int, Placed], tuple[Fault, ...]]] = {}
        self._most_jobs = most_jobs

    def faults(self, job: Hashable, record: Record, pods: Mapping[int, Placed]) -> tuple[Fault, ...]:
        """The faulty nodes of a job, by the results of these pods: rank → (task, node, uid)."""
        known = self._judged.get(job)
        # The entries are the same object while the text is the same.
        if known is not None and known[0].entries is record.entries and known[1] == pods:
            return known[2]
        found = record.of({rank: uid for rank, (_, _, uid) in pods.items()})
        faults = judge({rank: Checked(*pods[rank][:2], entry) for rank, entry in found.items()})
        self._judged.pop(job, None)
        self._judged[job] = record, pods, faults
        if len(self._judged) > self._most_jobs:
            self._judged.pop(next(iter(self._judged)))
        return faults


def summary(faults: Sequence[Fault]) -> str:
    """The faults in one line."""
    parts = [f"node {fault.node}: {fault.text}" for fault in faults[:_NAMED]]
    return "; ".join([*parts, *([f"{len(faults) - _NAMED} more"] if len(faults) > _NAMED else [])])


def _failures(results: Mapping[int, Checked]) -> Iterable[tuple[str, str]]:
    for result in results.values():
        if result.entry.failed and result.node:
            yield result.node, result.entry.failed
    yield from _unreachable(results)


def _unreachable(results: Mapping[int, Checked]) -> Iterable[tuple[str, str]]:
    """Nodes whose replicas and more than half of their peers on other nodes miss each other. A replica that only one
    side misses had not started, or has started before the others were there."""
    missed: dict[str, set[str]] = {}
    for rank, result in results.items():
        for peer in result.entry.unmet:
            other = results.get(peer)
            if other is not None and rank in other.entry.unmet and other.node != result.node:
                missed.setdefault(result.node, set()).add(other.node)
    nodes = {result.node for result in results.values() if result.node}
    for node, others in sorted(missed.items()):
        # If only two nodes miss each other, it is unknown which one is faulty.
        if len(others) * 2 > min(len(nodes) - 1, MOST_PEERS) and len(nodes) > 2:
            yield node, f"does not reach {len(others)} of its peers' nodes"


def worst(results: Mapping[int, Checked]) -> Iterable[Fault]:
    """Of each node that can be compared, the figure that is the furthest above the median of the others."""
    return _worst(_compared(results))


def _slow(results: Mapping[int, Checked]) -> Iterable[Fault]:
    return _worst(
        fault
        for fault in _compared(results)
        if fault.value > SLOW * fault.median and fault.value - fault.median > FIGURES[fault.figure][1]
    )


def _worst(faults: Iterable[Fault]) -> Iterable[Fault]:
    found: dict[str, Fault] = {}
    for fault in faults:
        before = found.get(fault.node)
        if before is None or fault.value / fault.median > before.value / before.median:
            found[fault.node] = fault
    return found.values()


def _compared(results: Mapping[int, Checked]) -> Iterable[Fault]:
    """Each figure of each node with the median of the other nodes."""
    for figure in FIGURES:
        for values in _by_node(results, figure).values():
            if len(values) < 2:
                continue
            ordered = sorted(values.values())
            for node, value in values.items():
                median = _median_without(ordered, value)
                if not median > 0:
                    continue
                times = f"{value / median:.3g} times the others' median {_figure(median)} s"
                yield Fault(node, f"{figure} {_figure(value)} s, {times}", figure, value, median)


def _median_without(ordered: Sequence[float], value: float) -> float:
    """The median of at least two sorted values without this one of them. A median of the others for each of thousands
    of nodes would take seconds."""
    place, others = bisect_left(ordered, value), len(ordered) - 1
    low, high = ((at + (at >= place)) for at in ((others - 1) // 2, others // 2))
    return (ordered[low] + ordered[high]) / 2


def _by_node(results: Mapping[int, Checked], figure: str) -> Mapping[str, Mapping[str, float]]:
    """The figure by group and node: the median of the replicas that the group has there."""
    found: dict[str, dict[str, list[float]]] = {}
    for result in results.values():
        value = result.entry.figures.get(figure)
        if value is not None and result.node:
            group = "" if figure in BETWEEN_PEERS else result.task
            found.setdefault(group, {}).setdefault(result.node, []).append(value)
    return {
        group: {node: statistics.median(values) for node, values in nodes.items()} for group, nodes in found.items()
    }


def _figure(value: float) -> str:
    return f"{value:.3g}"


def _row(entry: Entry) -> list[Any]:
    figures = [None if (value := entry.figures.get(name)) is None else float(f"{value:.4g}") for name in FIGURES]
    while figures and figures[-1] is None:
        figures.pop()
    return [entry.pod, *figures]


def one_line(text: str | None) -> str:
    """The text of a failure, without characters that do not print."""
    given = (text or "")[:LONGEST_FAILURE]
    return "".join(character if character.isprintable() else " " for character in given)


_Figure = Annotated[float, Meta(ge=0, le=_HIGHEST)] | None
_Pod = Annotated[str, Meta(min_length=UID_CHARACTERS, max_length=UID_CHARACTERS)]


class _Row(Struct, frozen=True, array_like=True):
    """The result of a rank: its pod, and the figures in the order of FIGURES."""

    pod: _Pod
    product: _Figure = None
    memory: _Figure = None
    disk: _Figure = None
    latency: _Figure = None
    transfer: _Figure = None
    allreduce: _Figure = None
    gpu: _Figure = None


_LAST_RANK: Final = MOST_REPLICAS - 1


class _Given(Struct, frozen=True):
    """The record as it is written."""

    round: Round
    since: Annotated[float, Meta(ge=0, lt=LATEST_SECONDS)]
    ranks: dict[str, _Row] = {}
    failed: dict[str, str] = {}
    unmet: dict[str, tuple[Annotated[int, Meta(ge=0, le=_LAST_RANK)], ...]] = {}


_read: Final = lenient(_Given, most_characters=LONGEST)


@remembered(most_bytes=8 * MIB)
def _parse(text: str) -> Record:
    given = parsed(_read, text, None)
    if given is None:
        return Record()
    entries = {}
    for name, row in given.ranks.items():
        rank = untrusted.whole(name, digits=5, most=_LAST_RANK)
        if rank is not None and str(rank) == name:
            figures = {figure: value for figure in FIGURES if (value := getattr(row, figure)) is not None}
            failed, unmet = one_line(given.failed.get(name)), given.unmet.get(name, ())
            entries[rank] = Entry(row.pod, figures, failed, unmet[:MOST_PEERS])
    return Record(given.round, given.since, entries)
