"""The annotation with a stored job: the time to decode it, which every reader of a Workflow pays."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from benchmarks.figures import Figure
from diflow import DIJob, Task
from diflow.dijob import stored
from diflow.dijob.model import read_annotation
from diflow.workflows.pods import dijob_annotation

BYTES = 690


def _annotation() -> str:
    """Of a job of two tasks."""

    def template(*args: str) -> dict[str, object]:
        container = {
            "name": "di-container",
            "image": "example.com/team/train:1.4",
            "command": ["python3", "-m", "train"],
            "args": [*args],
            "resources": {"limits": {"cpu": "4", "memory": "16Gi", "nvidia.com/gpu": "1"}},
        }
        return {"spec": {"containers": [container]}}

    learner = Task(type="learner", template=template("--steps", "100000"))
    collector = Task(type="collector", replicas=4, min_replicas=2, max_replicas=8, template=template("--seed", "1"))
    return dijob_annotation(DIJob(name="cartpole", tasks=(learner, collector), preemptible=True, queue="research"))


def _microseconds(read: Callable[[], object], times: int) -> float:
    """Processor time of one call: the least of five runs, as other load on the machine only adds to it."""

    def run() -> float:
        start = time.process_time()
        for _ in range(times):
            read()
        return (time.process_time() - start) / times * 1e6

    read()
    return min(run() for _ in range(5))


def measure() -> list[Figure]:
    """The figures of this part."""
    text = _annotation()
    assert abs(len(text) - BYTES) < BYTES / 10, len(text)
    plain = _microseconds(lambda: json.loads(text), 3000)
    new = _microseconds(lambda: stored.decoded(text), 3000)
    known = _microseconds(lambda: stored.read_job(text), 3000)
    whole = _microseconds(lambda: read_annotation(text), 20)
    what = f"{len(text)} bytes"
    return [
        Figure("reading", "a stored job, decoded and checked", new, "µs", 20.0, f"{what}; json.loads: {plain:.3g} µs"),
        Figure("reading", "as often as json.loads", new / plain, "×", None, f"the user's model: {whole / plain:.3g} ×"),
        Figure("reading", "a stored job of a known spec", known, "µs", None, what),
    ]
