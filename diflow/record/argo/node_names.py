"""Parses the names that Argo gives to the nodes of a diflow Workflow.

<job>.round(0:1)(2).collector(3:3.1)(0).collector(5)
       round 1 ──┘   │            │   │           └ made again 5 times, not counted
       restarted twice┘  member ──┘   └ counted attempt
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Final

from diflow.common.memo import same_text

# Operators and literals of Argo's expression language (expr-lang) that are also valid task names.
_WORDS = frozenset({"and", "contains", "else", "false", "if", "in", "let", "matches", "nil", "not", "or", "true"})
# At most nine ASCII digits each: `\d` matches the digits of every script, and int() rejects very long texts.
_NUMBER = "[0-9]{1,9}"
_LONGEST_REMEMBERED: Final = 128
_LEVEL: Final = re.compile(r"[.(]")
_MOST_LEVELS: Final = 32
"""Three times those of a pod. Of a forged name of a thousand dots, each level would be looked up."""
_NAME = re.compile(
    rf"(?P<round_index>{_NUMBER}):(?P<round>[^()]*)\)(?:\((?P<restart>{_NUMBER})\))?"
    rf"(?:\.(?P<task>[a-z0-9-]+)\({_NUMBER}:(?P<member>(?P<index>{_NUMBER})(?:\.(?P<incarnation>{_NUMBER}))?)\)"
    rf"(?:\((?P<counted>{_NUMBER})\))?"
    rf"(?P<pod>\.(?P=task)(?:\((?P<uncounted>{_NUMBER})\))?)?)?"
)


@dataclass(frozen=True, slots=True)
class NodeName:
    """One node of the tree: a round, a member of a task's fan-out, an attempt of a member, or a pod of an attempt."""

    round: str
    round_index: int
    restart: int
    is_attempt_of_round: bool
    task: str
    member: str
    index: int
    incarnation: int
    counted: int
    is_counted_attempt: bool
    is_pod: bool
    uncounted: int

    @property
    def is_member(self) -> bool:
        """The node of the member itself, above its attempts."""
        return bool(self.task) and not self.is_pod and not self.is_counted_attempt

    @property
    def is_repeated(self) -> bool:
        """It follows an earlier attempt of its replica, or of its round."""
        return bool(self.restart or self.counted or self.uncounted)

    @property
    def order(self) -> tuple[int, int, int, int]:
        """Sort key: of two pods of one index and round, the later one is greater."""
        return (self.restart, self.incarnation, self.counted, self.uncounted)


def dag_task(task: str) -> str:
    """The name of a task of the job in Argo's DAGs.

    The `depends` of a DAG task names others without quotes, and Argo evaluates it as an expression when they end.
    A name that is a keyword of that language gets a trailing dash, which users' task names cannot have.
    """
    return f"{task}-" if task in _WORDS else task


def above(name: str) -> Iterator[str]:
    """The names of the nodes above the one of this name, from the root, of at most `_MOST_LEVELS` levels."""
    return (found.string[: found.start()] for found in islice(_LEVEL.finditer(name, 1), _MOST_LEVELS))


def parse(job: str, name: str) -> NodeName | None:
    """The parts of a node's name; None if the node is not part of a round."""
    prefix = f"{job}.round("
    if not name.startswith(prefix):
        return None
    rest = name[len(prefix) :]
    return _remembered(rest) if len(rest) <= _LONGEST_REMEMBERED else _parsed(rest)


def _parsed(rest: str) -> NodeName | None:
    """Of a name without the job and `.round(`."""
    found = _NAME.fullmatch(rest)
    if found is None:
        return None
    part = found.groupdict()
    return NodeName(
        round=same_text(part["round"]),
        round_index=int(part["round_index"]),
        restart=int(part["restart"] or 0),
        is_attempt_of_round=part["restart"] is not None,
        task=same_text((part["task"] or "").removesuffix("-")),
        member=same_text(part["member"] or ""),
        index=int(part["index"] or 0),
        incarnation=int(part["incarnation"] or 0),
        counted=int(part["counted"] or 0),
        is_counted_attempt=part["counted"] is not None,
        is_pod=part["pod"] is not None,
        uncounted=int(part["uncounted"] or 0),
    )


_remembered: Final = lru_cache(maxsize=16_384)(_parsed)
"""Each change of a Workflow repeats the names of all its nodes: those of a gang of a thousand are three thousand."""
