"""What a text may name to its reader.

What is written into the objects of a namespace is for whoever may read these: it names no job or pod of another
namespace, and no node that the job has not got. Who may list Workflows or nodes is told their names.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from diflow.common import keys

_JOB: Final = re.compile(
    r"(['\"]?)\b([a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?)/([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)\1"
)
SOME_JOB: Final = "a job of another namespace"


@dataclass(frozen=True, slots=True)
class Reader:
    """Who reads a text: the namespaces of which they may list the jobs (None: all), and whether the nodes."""

    namespaces: frozenset[str] | None = None
    nodes: bool = True

    def may_see(self, namespace: str) -> bool:
        return self.namespaces is None or namespace in self.namespaces

    def told(self, text: str, other: Callable[[str], str | None]) -> str:
        """The text without the names of jobs that this reader may not see. `other`: what is said instead of a job's
        key; None if it is none."""
        if self.namespaces is None:
            return text

        def say(match: re.Match[str]) -> str:
            namespace, name = match[2], match[3]
            return match[0] if self.may_see(namespace) else other(f"{namespace}/{name}") or match[0]

        return _JOB.sub(say, text)

    def node(self, name: str, place: int, *, what: str = "") -> str:
        """A node, or a domain of nodes, in a list of them: by its name, if this reader may see it. `what`: the word for
        the first one."""
        if self.nodes:
            return name
        return "another" if place else f"one {what}".rstrip()


ALL: Final = Reader()
"""Whoever may list everything."""


def owner(namespace: str) -> Reader:
    """Whoever may read the objects of a namespace, and nothing else."""
    return Reader(frozenset((namespace,)), nodes=False)


def another_job(priority: int, queue: str) -> str:
    """A job of another namespace, of which this much is no secret: it is why others wait."""
    said = next((name for name, value in keys.WORKFLOW_PRIORITIES.items() if value == priority), f"{priority}")
    return f"{SOME_JOB} (priority {said}, queue {queue})"
