"""DIJob → Workflow: the time for many jobs, and that it does not depend on the number of replicas; and the way back."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from benchmarks import reading
from benchmarks.figures import Figure
from diflow import DIJob, Task
from diflow.cli.main import collect_rarely
from diflow.dijob.settings import render_settings
from diflow.workflows import render, to_yaml

JOBS, TASKS = 1000, 8


def _job(name: str, *, tasks: int, replicas: int) -> DIJob:
    template = {
        "spec": {
            "containers": [
                {
                    "name": "di-container",
                    "image": "example.com/train:1",
                    "command": ["python3", "-m", "train"],
                    "args": ["--steps", "1000"],
                    "env": [{"name": "SEED", "value": "1"}],
                    "resources": {"requests": {"cpu": "1", "memory": "2Gi"}},
                }
            ],
            "volumes": [{"name": "data", "emptyDir": {}}],
        }
    }
    return DIJob(name=name, tasks=[Task(name=f"t{i}", replicas=replicas, template=template) for i in range(tasks)])


def _cpu_seconds(work: Callable[[], object]) -> float:
    """CPU seconds of this process, which other load on the machine affects little."""
    start = time.process_time()
    work()
    return time.process_time() - start


def measure() -> list[Figure]:
    """The figures of this part."""
    settings = render_settings()
    collect_rarely()  # as every command of diflow does
    jobs = [_job(f"job-{i}", tasks=TASKS, replicas=3) for i in range(JOBS)]
    render(jobs[0], settings=settings)
    whole = _cpu_seconds(lambda: [render(job, settings=settings) for job in jobs])
    yaml = _cpu_seconds(lambda: [to_yaml(job, settings=settings) for job in jobs[:100]]) * JOBS / 100
    few, many = _job("few", tasks=1, replicas=10), _job("many", tasks=1, replicas=1_000)
    samples: dict[str, list[float]] = {"few": [], "many": []}
    for _ in range(21):
        samples["few"].append(_cpu_seconds(lambda: [render(few, settings=settings) for _ in range(20)]))
        samples["many"].append(_cpu_seconds(lambda: [render(many, settings=settings) for _ in range(20)]))
    ratio = statistics.median(samples["many"]) / statistics.median(samples["few"])
    return [
        Figure("rendering", f"{JOBS} jobs of {TASKS} tasks", whole, "s", 1.0, "to the object that is sent; one core"),
        Figure(
            "rendering", "the same as YAML text", yaml, "s", 3.0, "PyYAML with the C library writes what is not simple"
        ),
        Figure("rendering", "1,000 replicas : 10", ratio, "×", 1.10, "the fan-out is a count"),
        *reading.measure(),
    ]
