"""The programs of a job and its server, as the allocator hears of them: steps by rank, folded as the server does."""

from __future__ import annotations

import json
from collections.abc import Callable

from diflow.common import keys
from diflow.server.api.folding import Report, Shape, fold
from diflow.server.api.models import Profiling
from tests.allocator.fakeargo import EPOCH, is_running
from tests.allocator.lab import Lab

_STEP_SECONDS = 5.0  # a leader renews its Lease at least every few seconds
Program = Callable[[int, float], int | None]
"""The step that a rank reports at so many seconds after its pod began; None: it reports nothing."""


class Programs:
    """Reports of one job, by the program of each replica; `server_is_away` silences all of them."""

    def __init__(self, at: Lab, job: str, program: Program, *, task: str = "worker") -> None:
        self._at, self._job, self._task = at, job, task
        self.program = program
        self.server_is_away = False
        self._began: dict[str, float] = {}

    def report(self) -> None:
        """What the server writes now."""
        if self.server_is_away:
            return
        cluster, now = self._at.cluster, self._at.time.now()
        parameters = cluster.parameters(self._job)
        current = parameters["current"]
        counts = json.loads(parameters["granted"])[current]
        reports: dict[int, Report] = {}
        for pod in cluster.of(self._job).values():
            metadata = pod["metadata"]
            if not is_running(pod) or metadata["labels"][keys.ROUND] != current:
                continue
            began = self._began.setdefault(metadata["uid"], now)
            rank = int(metadata["annotations"][keys.TASK_RANK])
            step = self.program(rank, now - began)
            if step is not None and rank < counts[self._task]:
                reports[rank] = Report(self._task, Profiling(step=step), sender=rank, at=EPOCH + now)
        shape = Shape(current, self._task, 1, counts, has_health=True)
        text = fold(parameters[keys.PARAM_PROFILINGS], reports, shape, now=EPOCH + now)
        cluster.edit(self._job, **{keys.PARAM_PROFILINGS: text})

    def run(self, seconds: float, *, every: float = 10.0) -> None:
        """Let time pass, with a report each `every` seconds."""
        ends = self._at.time.now() + seconds
        while self._at.time.now() < ends:
            self.report()
            reported = self._at.time.now()
            while self._at.time.now() < reported + every:
                self._at.step(min(every, _STEP_SECONDS))

    def until(self, true: Callable[[], object], what: str, *, seconds: float, every: float = 10.0) -> float:
        """Let time pass until the condition holds. Returns the seconds that it took."""
        began = self._at.time.now()
        while not true():
            assert self._at.time.now() - began < seconds, f"not in {seconds} s: {what}\n{self._at.story()}"
            self.run(every, every=every)
        return self._at.time.now() - began
