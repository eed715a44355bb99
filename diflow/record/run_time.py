"""How long a job and its tasks have run, of a job that may run for so long only (`activeDeadlineSeconds`).

What counts is the time in which a replica runs: the container of its work has started, and its pod has not ended. A job
waits, moves and goes on in other Workflows in between, so the allocator notes when it begins and ceases to run, in the
annotation `diflow/run-time`, which each next Workflow of the job takes over. Nothing is written while that does not
change. Of a job without the allocator Argo counts, from its start of the Workflow.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from diflow.common import limits
from diflow.common.jsontext import canonical_json
from diflow.dijob.stored import StoredSpec
from diflow.record import untrusted

DEADLINE_EXCEEDED: Final = "DeadlineExceeded"
"""The reason of a job that has run for longer than it may; its sentence begins with this word."""
_LONGEST: Final = 16_384
"""Of the annotation: 40 tasks take less than 6 KiB."""
_LATEST: Final = 1e11


@dataclass(frozen=True, slots=True)
class RunTime:
    """Seconds that the job ("") and each task with a limit have run in the past, and since when they run now, in
    seconds since 1970. A name in `since` runs; one in neither has never run."""

    past: Mapping[str, float] = field(default_factory=dict)
    since: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: Any, *, of: float) -> RunTime:
        """As the annotation has it; nothing of what is invalid, or of another job: a copy of the Workflow (`argo
        resubmit`) was submitted at another time (`of`, in seconds since 1970)."""
        given = untrusted.mapping(text) if isinstance(text, str) and len(text) <= _LONGEST else {}
        if given.get("of") != int(of):
            return cls()
        past, since = (
            {
                name: float(value)
                for name, value in untrusted.sub(given, part).items()
                if type(value) in (int, float) and 0 <= value < most
            }
            for part, most in (("past", float(limits.MOST_RUN_SECONDS)), ("since", _LATEST))
        )
        return cls(past, since)

    def text(self, *, of: float) -> str:
        """The annotation."""
        past = {name: round(seconds, 1) for name, seconds in self.past.items() if seconds}
        since = {name: round(at, 1) for name, at in self.since.items()}
        return canonical_json({"past": past, "since": since, "of": int(of)})

    def after(self, running: Mapping[str, float], limited: Mapping[str, int], *, ended: float, now: float) -> RunTime:
        """With what runs now: `running` has since when each task does. `limited`: the names with a limit. `ended`: when
        a pod of the job last ended, if that is known, else 0; what has ceased to run has not ceased later."""
        runs = dict(running)
        if running:
            runs[""] = min(running.values())
        past, since = dict(self.past), dict(self.since)
        for name in limited:
            if name in runs:
                since.setdefault(name, min(runs[name], now))
            elif name in since:
                until = min(ended, now) if ended >= since[name] else now
                past[name] = past.get(name, 0.0) + max(0.0, until - since.pop(name))
        return RunTime(past, since)

    def seconds(self, name: str, *, now: float) -> float:
        """How long the job ("") or a task has run."""
        since = self.since.get(name)
        return self.past.get(name, 0.0) + (max(0.0, now - since) if since is not None else 0.0)

    def left(self, spec: StoredSpec, *, now: float) -> float:
        """Seconds until the first limit of a job is reached if what runs goes on; infinite if nothing runs."""
        each = (most - self.seconds(name, now=now) for name, most in spec.run_times.items() if name in self.since)
        return min(each, default=math.inf)

    def excess(self, spec: StoredSpec, *, now: float) -> str:
        """Which limit is reached, as the sentence of a job that ends for that; "" if none is."""
        for name, most in spec.run_times.items():
            if self.seconds(name, now=now) >= most:
                what = f"its task {name}" if name else "it"
                return exceeded(what, most)
        return ""


def exceeded(what: str, most: int) -> str:
    """The sentence of a job that ends because it, or a task of it, has run for `most` seconds."""
    return f"{DEADLINE_EXCEEDED}: {what} has run for {most} s, its activeDeadlineSeconds"
