"""From a scale request to running pods: the allocator against a patch by hand, alternating, with real pods.

Both jobs are the same Workflow. By hand means that the parameters are patched as the allocator would patch them, and
that the pods have no gate: the time is then Argo's and the kubelet's. All times are from one watch of the pods.

A new round waits for the old pods to end, which is not the allocator's time: only the time beyond that is compared.
Argo processes a changed Workflow after its re-queue time (10 s by default, 2 s in the test clusters): every measurement
begins after that, so that both start alike.
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
from diflow import DIJob, Task
from diflow.common import keys
from diflow.kube.api import Cluster
from diflow.kube.kinds import DEPLOYMENT, POD, WORKFLOW
from diflow.workflows import render
from tests.builders import template
from tests.e2e.allocators import Daemon

OURS, HAND = "ours", "by-hand"
# Ends at once on SIGTERM: the rest of the time is the kubelet's.
COMMAND = "trap 'exit 143' TERM; sleep 3600 & wait"
SETTINGS = {"DIFLOW_ALLOCATOR_BETWEEN_ROUNDS_SECONDS": "0", "DIFLOW_ALLOCATOR_PERIOD_SECONDS": "60"}


@dataclass(frozen=True)
class Took:
    """Seconds from the patch until the decision, until Argo had created the pods, until all ran, until the last old pod
    had ended; and of the old pods from SIGTERM to their end."""

    decided: float
    made: float
    running: float
    ended: float = 0.0
    ending: float = 0.0

    @property
    def starting(self) -> float:
        """From when the pods existed and fitted."""
        return self.running - max(self.made, self.ended)


@dataclass(frozen=True)
class _Place:
    """The cluster of the measurement, and its watches."""

    cluster: Cluster
    namespace: str
    pods: Watch
    plans: Watch
    requeue_seconds: float


def measure(*, rounds: int) -> list[Figure]:
    """The figures of this part; `rounds` of each kind after a warm-up."""
    with live.namespace("bench-resize") as (found, cluster, namespace):
        folder = Path(tempfile.mkdtemp(prefix="diflow-bench-"))
        daemon = Daemon(found, namespace, folder / "log", SETTINGS)
        daemon.start()
        try:
            daemon.until_leading()
            grown, moved = in_turns(cluster, namespace, rounds)
        finally:
            daemon.stop()
    return [*_figures("one pod more", grown), *_figures("a new round", moved)]


def in_turns(cluster: Cluster, namespace: str, rounds: int) -> tuple[dict[str, list[Took]], dict[str, list[Took]]]:
    """One replica more, and a new round, by hand and by the allocator that leads in the namespace."""
    with Watch(cluster, namespace, POD, _state) as pods, Watch(cluster, namespace, WORKFLOW, _granted) as plans:
        place = _Place(cluster, namespace, pods, plans, _requeue_seconds(cluster))
        grown = _in_turns(place, rounds, _grow, preemptible=False)
        moved = _in_turns(place, rounds, _move, preemptible=True)
    return grown, moved


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
    neighbours = list(zip(took[OURS], took[HAND], strict=True))
    over = [_over(mine, hand) for mine, hand in neighbours]
    own = [mine.decided + mine.starting - (hand.running - hand.made) for mine, hand in neighbours]
    return [
        *out,
        Figure("resizing", f"{what}: over by hand", statistics.median(over), "s", 1.0, "median of neighbours"),
        Figure("resizing", f"{what}: of it ours", statistics.median(own), "s", None, "deciding, and opening the gates"),
    ]


def _over(mine: Took, hand: Took) -> float:
    """How much longer than by hand, if the new pods also had to wait for the old ones."""
    return mine.running - (max(hand.made, mine.ending) + hand.running - hand.made)


def _in_turns(place: _Place, rounds: int, change: Callable[..., Took], *, preemptible: bool) -> dict[str, list[Took]]:
    kind = "moved" if preemptible else "grown"
    names = {one: f"{kind}-{one}" for one in (OURS, HAND)}
    for one, name in names.items():
        job = _job(name, preemptible=preemptible, scheduling="gang" if one == OURS else "none")
        place.cluster.create(WORKFLOW, render(job), namespace=place.namespace)
    for name in names.values():
        _until_running(place.pods, name, "1", 1)
    took: dict[str, list[Took]] = {OURS: [], HAND: []}
    for i in range(rounds + 1):
        for one in (OURS, HAND) if i % 2 else (HAND, OURS):
            time.sleep(place.requeue_seconds + 2.0)
            one_took = change(place, names[one], i, is_ours=one == OURS)
            if i:
                took[one].append(one_took)
    for name in names.values():
        place.cluster.delete(WORKFLOW, name, namespace=place.namespace)
    place.pods.until("all pods are gone", lambda seen: not any(state for state in seen.values()))
    return took


def _grow(place: _Place, name: str, turn: int, *, is_ours: bool) -> Took:
    """Add a replica to a job that is not preemptible."""
    count, pods = turn + 2, place.pods
    asked: dict[str, Any] = {keys.PARAM_REPLICAS: {"worker": count}}
    if not is_ours:
        asked = {keys.PARAM_GRANTED: {"1": {"worker": count}}}
    began = time.monotonic()
    _set(place, name, asked)
    index = str(count - 1)
    pods.until(f"{name}: replica {index} runs", lambda seen: _running(seen, name, "1", index) == 1)
    made, running = _times(pods, name, "1", index)
    return Took(_decided(place, name) - began, made - began, running - began)


def _move(place: _Place, name: str, turn: int, *, is_ours: bool) -> Took:
    """A new round of a preemptible job, with one replica more or less."""
    before, count, number = str(turn + 1), 2 + turn % 2, str(turn + 2)
    pods = place.pods
    granted = json.loads(_parameters(place, name)[keys.PARAM_GRANTED])
    began = time.monotonic()
    if is_ours:
        _set(place, name, {keys.PARAM_REPLICAS: {"worker": count}})
    else:
        rounds = [str(i + 1) for i in range(turn + 2)]
        new = {keys.PARAM_ROUNDS: rounds, keys.PARAM_CURRENT: number}
        _set(place, name, {**new, keys.PARAM_GRANTED: {**granted, number: {"worker": count}}})
        _stop(place, name, before)
    _until_running(pods, name, number, count)
    made, running = _times(pods, name, number)
    pods.until(f"{name}: round {before} has ended", lambda seen: _running(seen, name, before) == 0)
    told, ended = _ending(pods, name, before)
    return Took(
        decided=_decided(place, name) - began,
        made=made - began,
        running=running - began,
        ended=ended - began if is_ours else 0.0,
        ending=ended - told,
    )


def _requeue_seconds(cluster: Cluster) -> float:
    """The re-queue time of Argo's controller, in seconds."""
    controller = cluster.get(DEPLOYMENT, "workflow-controller", namespace="argo")
    for item in controller["spec"]["template"]["spec"]["containers"][0].get("env") or []:
        if item["name"] == "DEFAULT_REQUEUE_TIME" and str(item.get("value", "")).endswith("s"):
            return float(item["value"].removesuffix("s"))
    return 10.0


def _job(name: str, *, preemptible: bool, scheduling: str) -> DIJob:
    made = template(COMMAND, terminationGracePeriodSeconds=30)
    worker = Task(name="worker", replicas=1, template=made)
    return DIJob(name=name, tasks=(worker,), preemptible=preemptible, scheduling=scheduling)


def _parameters(place: _Place, name: str) -> dict[str, str]:
    workflow = place.cluster.get(WORKFLOW, name, namespace=place.namespace)
    return {item["name"]: item["value"] for item in workflow["spec"]["arguments"]["parameters"]}


def _set(place: _Place, name: str, values: Mapping[str, Any]) -> None:
    """Set some parameters of a job, in one patch."""
    names = list(_parameters(place, name))
    patch = [
        {
            "op": "replace",
            "path": f"/spec/arguments/parameters/{names.index(key)}/value",
            "value": value if isinstance(value, str) else json.dumps(value),
        }
        for key, value in values.items()
    ]
    place.cluster.patch(WORKFLOW, name, patch, namespace=place.namespace)


def _stop(place: _Place, name: str, number: str) -> None:
    cluster, namespace = place.cluster, place.namespace
    selector = f"{keys.JOB}={name},{keys.ROUND}={number}"
    for pod in cluster.list_all(POD, namespace=namespace, labels=selector, fields="status.phase=Running"):
        cluster.patch(POD, pod["metadata"]["name"], {"spec": {"activeDeadlineSeconds": 1}}, namespace=namespace)


# --- what the watch of the pods notes: "job round index state" --------------------------------------------------------


def _granted(workflow: dict[str, Any]) -> str:
    """The parameter with the granted replicas, which changes with each decision."""
    parameters = ((workflow.get("spec") or {}).get("arguments") or {}).get("parameters") or []
    value = next((item["value"] for item in parameters if item["name"] == keys.PARAM_GRANTED), "")
    return f"{workflow['metadata']['name']} {value}"


def _decided(place: _Place, name: str) -> float:
    """When the current number was granted."""
    return max(place.plans.when(lambda value: value.startswith(f"{name} "), first=False).values())


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
    """When the last of these pods was created, and when the last of them ran."""
    made = max(pods.when(lambda value: _matches(value, name, number, index, ("Pending",))).values())
    running = max(pods.when(lambda value: _matches(value, name, number, index, ("Running",))).values())
    return made, running


def _ending(pods: Watch, name: str, number: str) -> tuple[float, float]:
    """When the first pod of a round was terminating, and when the last of them had ended."""
    told = pods.when(lambda value: _matches(value, name, number, "", ("Ending",)))
    ended = pods.when(lambda value: _matches(value, name, number, "", ("Succeeded", "Failed")))
    return min(told.values()), max(ended.values())
