"""What a training looked like, second by second, and what happened to it. Times are seconds since the film began."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from diflow import DiflowError
from diflow.common import keys
from diflow.kube.api import Cluster
from diflow.kube.kinds import POD

EVERY_SECONDS = 1.0
_OURS = f"{keys.OPERATOR}={keys.OPERATOR_VALUE}"


@dataclass(frozen=True, slots=True)
class Step:
    """A line of the history: a step of all ranks, or, without a loss, that they begin at a step."""

    at: float
    step: int
    loss: float | None
    world: int
    seen: int


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened. `is_done_here`: the demo did it; else diflow found it, or did it."""

    at: float
    text: str
    is_done_here: bool


@dataclass
class Film:
    """All that was seen."""

    began: float = field(default_factory=time.time)
    replicas: list[tuple[float, int]] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """How long it is."""
        return max([at for at, _ in self.replicas[-1:]] + [step.at for step in self.steps[-1:]], default=0.0)

    @property
    def parts(self) -> list[list[Step]]:
        """The history, cut where the ranks began."""
        out: list[list[Step]] = []
        for step in self.steps:
            if step.loss is None or not out:
                out.append([])
            out[-1].append(step)
        return out

    def mark(self, text: str, *, done_here: bool, at: float | None = None) -> None:
        """Something happened, now or then."""
        self.marks.append(Mark(time.time() - self.began if at is None else at, text, done_here))

    def when(self, moment: str) -> float:
        """A moment of Kubernetes (RFC 3339) in the film."""
        return datetime.fromisoformat(moment).timestamp() - self.began


def read_history(path: Path, *, began: float) -> list[Step]:
    """The lines that rank 0 wrote. The last one may be half written."""
    out = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            row: dict[str, Any] = json.loads(line)
        except ValueError:
            continue
        out.append(Step(row["time"] - began, row["step"], row["loss"], row["world"], row["seen"]))
    return out


class Recorder:
    """Counts the running replicas once a second, in a thread, until `stop`; nothing while the API server is away."""

    def __init__(self, cluster: Cluster, film: Film, *, namespace: str) -> None:
        self._cluster, self._film, self._namespace = cluster, film, namespace
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(30)

    def _run(self) -> None:
        while not self._stopping.wait(EVERY_SECONDS):
            at = time.time() - self._film.began
            try:
                pods = self._cluster.list_all(POD, namespace=self._namespace, labels=_OURS)
            except DiflowError:
                continue
            self._film.replicas.append((at, sum(map(_runs, pods))))


def _runs(pod: dict[str, Any]) -> bool:
    """The program runs: the pod is not ending, and its containers are past those for its start."""
    if keys.TASK_NAME not in pod["metadata"]["labels"]:
        return False
    if pod["status"].get("phase") != "Running" or pod["spec"].get("activeDeadlineSeconds") == 1:
        return False
    return "deletionTimestamp" not in pod["metadata"]


def jumps(parts: Iterable[list[Step]]) -> list[int]:
    """By how many steps the training went back at each of its starts but the first."""
    out, last = [], None
    for part in parts:
        if last is not None:
            out.append(last - part[0].step)
        last = part[-1].step
    return out
