"""From a patch of what is asked to new pods that run: the allocator against a patch by hand, in turns, on real pods.

Both jobs are the same Workflow. By hand means that the live parameters are patched as the allocator would patch them,
and that the pods have no gate: what it then takes is Argo's and the kubelet's. Times are seen by one watch of the pods.

A new round waits for the end of the old pods, which is no time of the allocator's: what it takes beyond is compared.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import live
from benchmarks.figures import Figure
from benchmarks.watching import Watch
from diflow import DIJob, Task, keys
from diflow.client.kinds import POD, WORKFLOW
from diflow.client.kube import Cluster
from diflow.workflows import render
from tests.builders import template
from tests.e2e.allocators import Daemon

OURS, HAND = "ours", "by-hand"
# Ends at once when it is told to: the time between is the kubelet's.
COMMAND = "trap 'exit 143' TERM; sleep 3600 & wait"
SETTINGS = {"DIFLOW_ALLOCATOR_BETWEEN_ROUNDS_SECONDS": "0", "DIFLOW_ALLOCATOR_PERIOD_SECONDS": "60"}


@dataclass(frozen=True)
class Took:
    """Seconds from the patch: until the pods were made, until all run; and of the old ones from TERM to their end."""

    made: float
    running: float
    ending: float = 0.0


def measure(*, rounds: int) -> list[Figure]:
    """The figures of this part; `rounds` of each kind after one that warms up."""
    with live.namespace("bench-resize") as (found, cluster, namespace):
        folder = Path(tempfile.mkdtemp(prefix="diflow-bench-"))
        daemon = Daemon(found, namespace, folder / "log", SETTINGS)
        daemon.start()
        try:
            daemon.until_leading()
            with Watch(cluster, namespace, POD, _state) as pods:
                grown = _in_turns(cluster, namespace, pods, rounds, _grow, preemptible=False)
                moved = _in_turns(cluster, namespace, pods, rounds, _move, preemptible=True)
        finally:
            daemon.stop()
    return [*_figures("one pod more", grown), *_figures("a new round", moved)]


def _figures(what: str, took: Mapping[str, list[Took]]) -> list[Figure]:
    load = f"load average {os.getloadavg()[0]:.1f}"
    out = []
    for kind in (HAND, OURS):
        values = [one.running for one in took[kind]]
        note = f"median of {len(values)}; {min(values):.1f}–{max(values):.1f} s; {load}"
        out.append(Figure("resizing", f"{what}, {kind}", statistics.median(values), "s", None, note))
    if any(one.ending for one in took[OURS]):
        ending = statistics.median(one.ending for one in took[OURS])
        out.append(Figure("resizing", f"{what}: end of the old pods", ending, "s", None, "from TERM on; not ours"))
    over = [_over(mine, hand) for mine, hand in zip(took[OURS], took[HAND], strict=True)]
    out.append(Figure("resizing", f"{what}: over by hand", statistics.median(over), "s", 1.0, "median of neighbours"))
    return out


def _over(mine: Took, hand: Took) -> float:
    """How much longer than by hand, where the new pods had to wait for the old ones as well."""
    return mine.running - (max(hand.made, mine.ending) + hand.running - hand.made)


def _in_turns(
    cluster: Cluster,
    namespace: str,
    pods: Watch,
    rounds: int,
    change: Callable[..., Took],
    *,
    preemptible: bool,
) -> dict[str, list[Took]]:
    kind = "moved" if preemptible else "grown"
    names = {one: f"{kind}-{one}" for one in (OURS, HAND)}
    for one, name in names.items():
        job = _job(name, preemptible=preemptible, scheduling="gang" if one == OURS else "none")
        cluster.create(WORKFLOW, render(job), namespace=namespace)
    for name in names.values():
        _until_running(pods, name, "1", 1)
    took: dict[str, list[Took]] = {OURS: [], HAND: []}
    for i in range(rounds + 1):
        for one in (OURS, HAND) if i % 2 else (HAND, OURS):
            # Argo looks at a Workflow again a while after it has changed: each turn begins when it has done so.
            time.sleep(3)
            one_took = change(cluster, namespace, pods, names[one], i, is_ours=one == OURS)
            if i:
                took[one].append(one_took)
    for name in names.values():
        cluster.delete(WORKFLOW, name, namespace=namespace)
    pods.until("all pods are gone", lambda seen: not any(state for state in seen.values()))
    return took


def _grow(cluster: Cluster, namespace: str, pods: Watch, name: str, turn: int, *, is_ours: bool) -> Took:
    """One replica more of a job that is not preemptible."""
    count = turn + 2
    asked: dict[str, Any] = {keys.PARAM_REPLICAS: {"worker": count}}
    if not is_ours:
        asked = {keys.PARAM_GRANTED: {"1": {"worker": count}}}
    began = time.monotonic()
    _set(cluster, namespace, name, asked)
    index = str(count - 1)
    pods.until(f"{name}: replica {index} runs", lambda seen: _running(seen, name, "1", index) == 1)
    made, running = _times(pods, name, "1", index)
    return Took(made - began, running - began)


def _move(cluster: Cluster, namespace: str, pods: Watch, name: str, turn: int, *, is_ours: bool) -> Took:
    """A new round of a preemptible job, with one replica more or less."""
    before, count, number = str(turn + 1), 2 + turn % 2, str(turn + 2)
    began = time.monotonic()
    if is_ours:
        _set(cluster, namespace, name, {keys.PARAM_REPLICAS: {"worker": count}})
    else:
        granted = json.loads(_parameters(cluster, namespace, name)[keys.PARAM_GRANTED])
        began = time.monotonic()
        rounds = [str(i + 1) for i in range(turn + 2)]
        new = {keys.PARAM_ROUNDS: rounds, keys.PARAM_CURRENT: number}
        _set(cluster, namespace, name, {**new, keys.PARAM_GRANTED: {**granted, number: {"worker": count}}})
        _stop(cluster, namespace, name, before)
    _until_running(pods, name, number, count)
    made, running = _times(pods, name, number)
    pods.until(f"{name}: round {before} has ended", lambda seen: _running(seen, name, before) == 0)
    return Took(made - began, running - began, _ending(pods, name, before))


def _job(name: str, *, preemptible: bool, scheduling: str) -> DIJob:
    made = template(COMMAND, terminationGracePeriodSeconds=30)
    worker = Task(name="worker", replicas=1, template=made)
    return DIJob(name=name, tasks=(worker,), preemptible=preemptible, scheduling=scheduling)


def _parameters(cluster: Cluster, namespace: str, name: str) -> dict[str, str]:
    workflow = cluster.get(WORKFLOW, name, namespace=namespace)
    return {item["name"]: item["value"] for item in workflow["spec"]["arguments"]["parameters"]}


def _set(cluster: Cluster, namespace: str, name: str, values: Mapping[str, Any]) -> None:
    """Set some parameters of a job, in one patch."""
    names = list(_parameters(cluster, namespace, name))
    patch = [
        {
            "op": "replace",
            "path": f"/spec/arguments/parameters/{names.index(key)}/value",
            "value": value if isinstance(value, str) else json.dumps(value),
        }
        for key, value in values.items()
    ]
    cluster.patch(WORKFLOW, name, patch, namespace=namespace)


def _stop(cluster: Cluster, namespace: str, name: str, number: str) -> None:
    selector = f"{keys.JOB}={name},{keys.ROUND}={number}"
    for pod in cluster.list_all(POD, namespace=namespace, labels=selector, fields="status.phase=Running"):
        cluster.patch(POD, pod["metadata"]["name"], {"spec": {"activeDeadlineSeconds": 1}}, namespace=namespace)


# --- what the watch of the pods notes: "job round index state" --------------------------------------------------------


def _state(pod: dict[str, Any]) -> str:
    labels = pod["metadata"].get("labels") or {}
    if keys.TASK_NAME not in labels:
        return ""
    phase = (pod.get("status") or {}).get("phase") or "Pending"
    if phase == "Running" and (pod["spec"].get("activeDeadlineSeconds") or 2) <= 1:
        phase = "Ending"
    index = labels.get(keys.POD, "").rpartition("-")[2]
    return f"{labels.get(keys.JOB)} {labels.get(keys.ROUND)} {index} {phase}"


def _until_running(pods: Watch, name: str, number: str, count: int) -> None:
    pods.until(f"{name}: {count} pods of round {number} run", lambda seen: _running(seen, name, number) == count)


def _running(seen: Mapping[str, str], name: str, number: str, index: str = "") -> int:
    return sum(_matches(value, name, number, index, ("Running", "Ending")) for value in seen.values())


def _matches(value: str, name: str, number: str, index: str, phases: tuple[str, ...]) -> bool:
    parts = value.split()
    return len(parts) == 4 and parts[:2] == [name, number] and index in ("", parts[2]) and parts[3] in phases


def _times(pods: Watch, name: str, number: str, index: str = "") -> tuple[float, float]:
    """When the last of these pods was made, and when the last of them ran."""
    made = max(pods.when(lambda value: _matches(value, name, number, index, ("Pending",))).values())
    running = max(pods.when(lambda value: _matches(value, name, number, index, ("Running",))).values())
    return made, running


def _ending(pods: Watch, name: str, number: str) -> float:
    """Seconds from the first TERM to the last end of the pods of a round."""
    told = pods.when(lambda value: _matches(value, name, number, "", ("Ending",)))
    ended = pods.when(lambda value: _matches(value, name, number, "", ("Succeeded", "Failed")))
    return max(ended.values()) - min(told.values()) if told and ended else 0.0
