"""Jobs of one pod that come and go: memory, open files and latency of the daemons, and what is left behind.

Argo creates the pods, and deletes each job a minute after its end.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks import allocating, live
from benchmarks.figures import Figure
from benchmarks.scale.common import PHASE, Json, allocator, fake_nodes, fake_template, say, server
from benchmarks.watching import Watch
from diflow import DIJob, Task
from diflow.common import keys
from diflow.common.errors import ConflictError, UnavailableError
from diflow.kube.api import Cluster
from diflow.kube.kinds import CONFIG_MAP, POD, SERVICE, WORKFLOW
from diflow.workflows import render
from tests.clusters import wait_until
from tests.e2e.allocators import kept_alive
from tests.e2e.live import ENDED

GROWTH = 1.05
"""The most that memory may grow from the second third of the soak to the last."""
SAMPLE_SECONDS = 10.0
TTL_SECONDS = 60
_TRIES = 10
_GONE = {PHASE: "Succeeded"}


@dataclass(frozen=True, slots=True)
class Sample:
    """One look: `minute` since the start, resident MiB and open files by daemon, Workflows that exist."""

    minute: float
    mib: dict[str, float]
    files: dict[str, int]
    workflows: int
    ended: int
    placed_seconds: float
    """From the creation of a job until its places are written: the median of the jobs since the last sample."""


def measure(*, jobs: int = 400, minutes: float = 6.0, at_once: int = 40) -> list[Figure]:
    """The figures of this part: `jobs` jobs spread over `minutes`, of which at most `at_once` have not ended."""
    with live.namespace("soak") as (found, cluster, namespace):
        fake_nodes(found, 4)
        before = _left(cluster, namespace)
        daemon = allocator(found, namespace)
        samples: list[Sample] = []
        with server(found, namespace) as (_, server_pid):
            daemon.start()
            try:
                daemon.until_leading()
                began = time.monotonic()
                made: dict[str, float] = {}
                ended: set[str] = set()
                told: set[str] = set()
                with (
                    kept_alive(daemon),
                    Watch(cluster, namespace, WORKFLOW, _is_placed) as placed,
                    ThreadPoolExecutor(8) as pool,
                ):
                    while time.monotonic() - began < minutes * 60 and len(ended) < jobs:
                        heads = _heads(cluster, namespace)
                        there = {one["metadata"]["name"]: one["metadata"].get("labels") or {} for one in heads}
                        ended |= {name for name in made if there.get(name, _GONE).get(PHASE) in ENDED}
                        due = min(jobs, 1 + int(jobs * (time.monotonic() - began) / (0.97 * minutes * 60)))
                        want = min(at_once - (len(made) - len(ended)), due - len(made))
                        names = [f"soak-{len(made) + i:05}" for i in range(max(0, want))]
                        made |= dict.fromkeys(names, time.monotonic())
                        list(pool.map(lambda name: _submit(cluster, namespace, name), names))
                        if time.monotonic() - began >= SAMPLE_SECONDS * len(samples):
                            times = {
                                n: t - made[n] for n, t in placed.when(bool).items() if n in made and n not in told
                            }
                            told |= times.keys()
                            pids = {"allocator": daemon.process.pid if daemon.process else 0, "server": server_pid}
                            with suppress(OSError, KeyError):  # it has ended, and is started again
                                samples.append(_look(pids, began, len(there), len(ended), list(times.values())))
                                say(**asdict(samples[-1]))
                        time.sleep(1.0)
                took = time.monotonic() - began
                _drain(cluster, namespace)
            finally:
                daemon.stop()
        after = _left(cluster, namespace)
    return _figures(samples, took, len(made), len(ended), {name: after[name] - before[name] for name in after})


def _figures(samples: Sequence[Sample], took: float, made: int, ended: int, left: dict[str, int]) -> list[Figure]:
    note = f"{ended} of {made} jobs ended in {took / 60:.1f} minutes; load {os.getloadavg()[0]:.1f}"
    out = [Figure("soak", "jobs ended a minute", 60 * ended / took, "", None, note)]
    for name, growth in _growth(samples).items():
        last = samples[-1]
        size = f"{last.mib[name]:.0f} MiB and {last.files[name]} files at the end"
        out.append(Figure("soak", f"{name}: memory, last third : second", growth["mib"], "×", GROWTH, size))
        out.append(Figure("soak", f"{name}: open files, last third : second", growth["files"], "×", 1.1))
    latency = [one.placed_seconds for one in samples if one.placed_seconds]
    third = max(1, len(latency) // 3)
    parts = [latency[third : 2 * third], latency[2 * third :]]
    if all(parts):
        second, last_third = (statistics.median(part) for part in parts)
        texts = f"{second:.2f} and {last_third:.2f} s"
        out.append(Figure("soak", "created → placed, last third : second", last_third / second, "×", 1.5, texts))
    return [*out, *(Figure("soak", f"{name} left behind", count, "", 0) for name, count in left.items())]


def _left(cluster: Cluster, namespace: str) -> dict[str, int]:
    """Objects of a namespace that jobs could leave behind; the allocator's own journal is one ConfigMap."""
    kinds = {"pods": POD, "Services": SERVICE, "ConfigMaps": CONFIG_MAP}
    found = {name: cluster.list_all(kind, namespace=namespace, metadata_only=True) for name, kind in kinds.items()}
    return {
        name: sum(not one["metadata"]["name"].startswith(keys.ALLOCATOR) for one in items)
        for name, items in found.items()
    }


def _drain(cluster: Cluster, namespace: str) -> None:
    """Wait until Argo has deleted all jobs, and the garbage collector their pods."""

    def is_empty() -> bool:
        pods = cluster.list_all(POD, namespace=namespace, labels=keys.JOB, metadata_only=True)
        return not pods and not cluster.list_all(WORKFLOW, namespace=namespace, metadata_only=True)

    with suppress(AssertionError):
        wait_until("all jobs are deleted", is_empty, timeout=TTL_SECONDS + 240, every=5.0)


def _heads(cluster: Cluster, namespace: str) -> list[Json]:
    """The metadata of all Workflows. A busy API server sometimes gives no answer in time, which ends no soak."""
    for _ in range(_TRIES):
        with suppress(UnavailableError):
            return cluster.list_all(WORKFLOW, namespace=namespace, metadata_only=True)
    return cluster.list_all(WORKFLOW, namespace=namespace, metadata_only=True)


def _submit(cluster: Cluster, namespace: str, name: str) -> None:
    """Create a job, again if the API server gives no answer in time: it may have been created."""
    for attempt in range(_TRIES):
        try:
            cluster.create(WORKFLOW, _short(name), namespace=namespace)
            return
        except UnavailableError:
            if attempt == _TRIES - 1:
                raise
        except ConflictError:
            if attempt:
                return
            raise


def _is_placed(workflow: Json) -> str:
    return "yes" if (workflow["metadata"].get("annotations") or {}).get(keys.ALLOCATION) else ""


def _short(name: str) -> Json:
    """A job of one fake pod that runs for a second, and is deleted a minute after its end."""
    job = DIJob(
        name=name, tasks=(Task(name="worker", replicas=1, template=fake_template(1)),), scheduling="gang",
        ttl_seconds_after_finished=TTL_SECONDS,
    )  # fmt: skip
    return render(job)


def _look(pids: dict[str, int], began: float, there: int, ended: int, placed: list[float]) -> Sample:
    return Sample(
        minute=round((time.monotonic() - began) / 60, 2),
        mib={name: round(allocating.memory(pid)[0], 1) for name, pid in pids.items()},
        files={name: len(list(Path(f"/proc/{pid}/fd").iterdir())) for name, pid in pids.items()},
        workflows=there,
        ended=ended,
        placed_seconds=round(statistics.median(placed), 2) if placed else 0.0,
    )


def _growth(samples: Sequence[Sample]) -> dict[str, dict[str, float]]:
    """The median of the last third of the samples, divided by that of the second."""
    third = max(1, len(samples) // 3)
    before, after = samples[third : 2 * third] or samples[:1], samples[2 * third :] or samples[-1:]

    def ratio(values: Sequence[float], others: Sequence[float]) -> float:
        return round(statistics.median(others) / statistics.median(values), 3)

    return {
        name: {
            "mib": ratio([one.mib[name] for one in before], [one.mib[name] for one in after]),
            "files": ratio([one.files[name] for one in before], [one.files[name] for one in after]),
        }
        for name in samples[0].mib
    }
