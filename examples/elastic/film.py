"""What the cluster looked like, second by second: which pods of which job were on which node.

Times are seconds since the film began.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from diflow import DiflowError
from diflow.common import keys
from diflow.kube.api import Cluster
from diflow.kube.kinds import NODE, POD

EVERY_SECONDS = 1.0
_ENDED = ("Succeeded", "Failed")
_OURS = f"{keys.OPERATOR}={keys.OPERATOR_VALUE}"


@dataclass(frozen=True, slots=True)
class Seen:
    """One pod at one moment. It holds its place on the node until it has ended."""

    uid: str
    job: str
    node: str
    runs: bool


@dataclass(frozen=True, slots=True)
class Frame:
    """One moment: all pods that hold a place on a node, and the nodes that are there."""

    at: float
    pods: tuple[Seen, ...]
    nodes: frozenset[str]

    def running(self, job: str) -> int:
        """How many replicas of the job run."""
        return sum(pod.job == job and pod.runs for pod in self.pods)

    def on(self, node: str, job: str) -> int:
        """How many replicas of the job run on a node."""
        return sum((pod.job, pod.node) == (job, node) and pod.runs for pod in self.pods)


@dataclass(frozen=True, slots=True)
class Told:
    """An Event of the allocator on a job."""

    at: float
    job: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Bar:
    """A pod that held a place: `slot` counts the places of its node from 0."""

    job: str
    node: str
    slot: int
    start: float
    end: float


@dataclass
class Film:
    """All that was seen. Jobs and nodes are in the order in which they are drawn."""

    jobs: Sequence[str]
    nodes: Sequence[str]
    slots: int
    frames: list[Frame] = field(default_factory=list)
    told: list[Told] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """How long it is."""
        return self.frames[-1].at if self.frames else 0.0

    def replica_seconds(self, job: str) -> float:
        """How much work was done: replicas × seconds."""
        pairs = zip(self.frames, self.frames[1:], strict=False)
        return sum(now.running(job) * (then.at - now.at) for now, then in pairs)

    def bars(self) -> list[Bar]:
        """Each pod's time on its node, in a place that nobody else has at that time."""
        spans: dict[str, tuple[Seen, float, float]] = {}
        for position, frame in enumerate(self.frames):
            is_last = position + 1 == len(self.frames)
            end = frame.at + EVERY_SECONDS if is_last else self.frames[position + 1].at
            for pod in frame.pods:
                start = spans[pod.uid][1] if pod.uid in spans else frame.at
                spans[pod.uid] = (pod, start, end)
        busy: dict[str, list[float]] = {node: [] for node in self.nodes}
        out = []
        for pod, start, end in sorted(spans.values(), key=lambda s: (s[1], self.jobs.index(s[0].job), s[0].uid)):
            until = busy[pod.node]
            slot = next((i for i, free_at in enumerate(until) if free_at <= start), len(until))
            until[slot : slot + 1] = [end]
            out.append(Bar(pod.job, pod.node, slot, start, end))
        return out

    def absences(self) -> list[tuple[str, float, float]]:
        """(node, from, to): when a node was away."""
        out = []
        for node in self.nodes:
            gone: float | None = None
            for frame in self.frames:
                if node not in frame.nodes and gone is None:
                    gone = frame.at
                elif node in frame.nodes and gone is not None:
                    out.append((node, gone, frame.at))
                    gone = None
            if gone is not None:
                out.append((node, gone, self.seconds))
        return out


class Recorder:
    """Looks at the cluster once a second, in a thread, until `stop`. A look that fails is left out."""

    def __init__(self, cluster: Cluster, film: Film, *, namespace: str) -> None:
        self._cluster, self.film, self._namespace = cluster, film, namespace
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
        self.began = time.time()
        self._clock = time.monotonic()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(10)

    @property
    def now(self) -> float:
        """Seconds since the film began."""
        return time.monotonic() - self._clock

    def add_events(self, job: str, events: Iterable[Mapping[str, Any]]) -> None:
        """Put the allocator's Events of a job into the film."""
        for event in events:
            self.tell(job, str(event["lastTimestamp"]), str(event["reason"]), str(event["message"]))

    def tell(self, job: str, moment: str, reason: str, message: str = "") -> None:
        """Put into the film what happened at a moment (RFC 3339, whole seconds); what is older is left out."""
        at = datetime.fromisoformat(moment).timestamp() - self.began
        if at > -1.0:
            self.film.told.append(Told(max(0.0, at), job, reason, message))

    def _run(self) -> None:
        due = 0.0
        while not self._stopping.wait(max(0.0, due - self.now)):
            due = self.now + EVERY_SECONDS
            try:
                self.film.frames.append(self._look())
            except DiflowError:
                continue

    def _look(self) -> Frame:
        at = self.now
        pods = self._cluster.list_all(POD, namespace=self._namespace, labels=_OURS)
        nodes = {node["metadata"]["name"] for node in self._cluster.list_all(NODE, everywhere=True)}
        return Frame(at, tuple(seen(pods, self.film)), frozenset(nodes & set(self.film.nodes)))


def seen(pods: Iterable[Mapping[str, Any]], film: Film) -> Iterable[Seen]:
    """The pods of the film's jobs that hold a place on one of its nodes."""
    for pod in pods:
        metadata, node, phase = pod["metadata"], pod["spec"].get("nodeName"), pod["status"].get("phase")
        job = metadata["labels"][keys.JOB]
        if job in film.jobs and node in film.nodes and phase not in _ENDED:
            ends = "deletionTimestamp" in metadata or pod["spec"].get("activeDeadlineSeconds") == 1
            yield Seen(metadata["uid"], job, node, phase == "Running" and not ends)
