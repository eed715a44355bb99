"""The levels of the topology, and the domains that nodes form at each level: racks, blocks, zones.

A domain is identified by the labels of its level and of all wider levels, so rack `1` of block `a` is not rack `1` of
block `b`. A node without the label of a level is in no domain of that level or of a narrower one: two nodes that both
lack the label of their block may be far apart.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from diflow.allocator.model.arrays import IntArray, frozen, ints
from diflow.common.errors import InvalidError

MOST_LEVELS = 8
"""Levels of a topology: placement tries each of them. Data centres have three or four."""
MOST_CHARACTERS = 4096
"""Of the text that names the levels: it is part of an annotation."""
WELL_KNOWN = {"region": "topology.kubernetes.io/region", "zone": "topology.kubernetes.io/zone"}
"""Labels of levels that Kubernetes defines, by the name of the level."""
_LABEL = re.compile(
    r"(?=.{1,253}/|[^/]*$)([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
)
_SHOWN = 40


@dataclass(frozen=True, slots=True)
class Level:
    """A level of the topology: its name, by which jobs require it, and the node label whose values are its domains."""

    name: str
    label: str


def parse_levels(text: str) -> tuple[Level, ...]:
    """The levels in a text like `block=example.org/block,rack`, the widest first; () for "".

    A name without a label stands for the label of that name; `zone` and `region` for the labels of Kubernetes. Raises
    InvalidError.
    """
    if len(text) > MOST_CHARACTERS:
        raise InvalidError(f"has {len(text):,} characters, at most {MOST_CHARACTERS:,} are allowed")
    levels: list[Level] = []
    for entry in text.split(",") if text.strip() else ():
        name, separator, label = (part.strip() for part in entry.partition("="))
        level = Level(name, label if separator else WELL_KNOWN.get(name, name))
        if not (_LABEL.fullmatch(level.name) and _LABEL.fullmatch(level.label)):
            raise InvalidError(f"{entry.strip()[:_SHOWN]!r} is no level: write NAME or NAME=LABEL, with a label's key")
        for other in levels:
            if {level.name, level.label} & {other.name, other.label}:
                raise InvalidError(f"{level.name!r} and {other.name!r} have the same name or label")
        levels.append(level)
    if len(levels) > MOST_LEVELS:
        raise InvalidError(f"has {len(levels)} levels, at most {MOST_LEVELS} are allowed")
    return tuple(levels)


def level_of(required: str, levels: Sequence[Level]) -> int:
    """The index of the level with this name or this label, or -1."""
    return next((i for i, level in enumerate(levels) if required in (level.name, level.label)), -1)


def unknown_level(required: str, levels: Sequence[Level]) -> str:
    """Why a job that requires a level which the cluster does not have cannot be placed."""
    known = ", ".join(repr(level.name) for level in levels)
    return (
        f"spec.topology requires one {required[:_SHOWN]!r}, and "
        + (f"the topology of this cluster has only {known}" if known else "this cluster has no topology")
        + "; the administrator sets it with DIFLOW_ALLOCATOR_TOPOLOGY"
    )


def domains(levels: Sequence[Level], labels: Sequence[Mapping[str, str]]) -> tuple[IntArray, tuple[str, ...]]:
    """(the domain of each node at each level (L×N), -1 for none; the name of each domain (D)).

    `labels`: of each node. The domains of all levels have different indices. The name is the value of the label, with
    those of the wider levels before it if several domains of the level have that value.
    """
    paths = [
        [tuple(node.get(wider.label, "") for wider in levels[: i + 1]) for node in labels] for i in range(len(levels))
    ]
    rows: list[list[int]] = []
    names: list[str] = []
    for path_of in paths:
        known = sorted({path for path in path_of if all(path)})
        index = {path: len(names) + i for i, path in enumerate(known)}
        rows.append([index.get(path, -1) for path in path_of])
        values = Counter(path[-1] for path in known)
        names += [path[-1] if values[path[-1]] == 1 else "/".join(path) for path in known]
    return frozen(ints(rows, (len(levels), len(labels)))), tuple(names)
