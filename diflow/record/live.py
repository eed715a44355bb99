"""The parameters of a Workflow that change while its job lives, and that only the allocator writes: how many replicas
each round has, and which of them were released."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Live:
    """`granted` has the replicas that may run by round and task, `released` members that were stopped on purpose as
    "round/task/member", and `incarnations` the suffixes of replicas that came back by "round/task/index". `memory`: the
    MiB of the next pods of the tasks that may get more. `current` is one of `rounds`, or "" after the job has left this
    Workflow."""

    rounds: tuple[str, ...] = ("1",)
    current: str = "1"
    granted: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    released: frozenset[str] = frozenset()
    incarnations: Mapping[str, str] = field(default_factory=dict)
    memory: Mapping[str, int] = field(default_factory=dict)

    def member(self, round_: str, task: str, index: int) -> str:
        """A replica's newest incarnation in this round: its index, or "2.1" after it was released and added again."""
        return f"{index}{self.incarnations.get(f'{round_}/{task}/{index}', '')}"

    def key(self, task: str, index: int) -> str:
        """The newest incarnation of a replica of the current round, as it is named in `released`."""
        return f"{self.current}/{task}/{self.member(self.current, task, index)}"

    @property
    def counts(self) -> Mapping[str, int]:
        """How many replicas of each task the current round has in Argo, with those that were released."""
        return self.granted.get(self.current, {})

    def running(self, task: str) -> int:
        """How many replicas of the current round should run: those granted, less the released tail."""
        count = self.counts.get(task, 0)
        while self.released and count > 0 and self.key(task, count - 1) in self.released:
            count -= 1
        return count

    def has_tail(self, task: str) -> bool:
        """Whether released replicas at the end are still among those that Argo has."""
        return self.running(task) < self.counts.get(task, 0)
