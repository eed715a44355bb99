"""Facts 8 and 10: a preemptible job moves to a new round with more replicas, and each pod knows its peers."""

from __future__ import annotations

import json
from collections.abc import Iterator

from diflow.common import keys, names
from diflow.common.jsontext import canonical_json
from diflow.common.limits import MOST_FULL_HOSTS
from diflow.labs.conformance import reading, shapes
from diflow.labs.conformance.finding import FactFailedError
from diflow.labs.conformance.lab import Lab, Run
from diflow.labs.conformance.outcome import Outcome
from diflow.labs.conformance.pods import admit

_OLD, _NEW = 2, 3
# The old round runs until it is stopped; the new one ends at once.
_SCRIPT = f'[ "$WORLD_SIZE" = {_NEW} ] && exit 0; {shapes.until_stopped()}'


def new_round(lab: Lab) -> Iterator[Outcome]:
    """Fact 8: 2 → 3 replicas, in the order of a live resize; and fact 10 on both rounds' pods."""
    job = shapes.job(
        lab.name("round"),
        lab.image,
        _SCRIPT,
        replicas=_OLD,
        preemptible=True,
        schedulingGates=[{"name": shapes.GATE}],
    )
    with lab.run_job(job, late=True) as run:
        old = _gated_round(run, "1", _OLD)
        _admit(run, old)
        _check_env(lab, run, old)
        for index in range(_OLD):
            run.until_running(index)
        began = lab.clock.monotonic()
        run.set(
            **{
                keys.PARAM_ROUNDS: canonical_json(["1", "2"]),
                keys.PARAM_CURRENT: "2",
                keys.PARAM_GRANTED: canonical_json({"1": {shapes.TASK: _OLD}, "2": {shapes.TASK: _NEW}}),
            }
        )
        # They show that Argo has read the patch: a pod that is stopped before would be retried.
        new = _gated_round(run, "2", _NEW)
        for pod in old.values():
            run.stop_pod(pod)
        for index in range(_OLD):
            run.until_ended(index)
        ended = lab.clock.monotonic() - began
        _admit(run, new)
        admitted = lab.clock.monotonic() - began
        _check_env(lab, run, new)
        workflow = run.until_succeeded()
        superseded = reading.phase_of(workflow, "round(0:1)")
    if superseded != "Succeeded":
        raise FactFailedError(f"the round that was replaced counts as {superseded}, not as Succeeded")
    yield Outcome(
        8,
        f"{_OLD} → {_NEW} replicas: old pods gone {ended:.1f} s after the patch, new ones admitted after "
        f"{admitted:.1f} s; the Workflow succeeded",
        {
            "seconds_to_old_pods_ended": round(ended, 1),
            "seconds_to_new_pods_admitted": round(admitted, 1),
            "succeeded_after_seconds": round(lab.clock.monotonic() - began, 1),
        },
    )
    detail = f"DI_NODES, ranks and world of {_OLD} and {_NEW} pods are right in both rounds; a late value is there once"
    yield Outcome(10, detail)


def _gated_round(run: Run, round_: str, replicas: int) -> dict[str, reading.Json]:
    """Wait for all pods of a round."""

    def look() -> dict[str, reading.Json] | None:
        pods = reading.workers(run.pods(), round_=round_)
        return pods if len(pods) == replicas else None

    return run.until(f"the {replicas} gated pods of round {round_}", look)


def _admit(run: Run, pods: dict[str, reading.Json]) -> None:
    for pod in pods.values():
        admit(run, pod)


def _check_env(lab: Lab, run: Run, pods: dict[str, reading.Json]) -> None:
    hosts = [names.hostname(run.name, shapes.TASK, i) for i in range(len(pods))]
    domain = f"{keys.SERVICE}.{lab.namespace}.svc.cluster.local"
    nodes = ",".join(f"{host}.{domain}" for host in hosts)
    for rank, host in enumerate(hosts):
        if host not in pods:
            raise FactFailedError(f"there is no pod with the host name {host}")
        given = reading.env(pods[host])
        wanted = {"DI_NODES": nodes, "DI_RANK": str(rank), "WORLD_SIZE": str(len(pods))}
        wrong = {key: given.get(key) for key, value in wanted.items() if given.get(key) != value}
        if wrong:
            raise FactFailedError(f"pod {host} has {wrong}, not {wanted}")
        _check_late(pods[host])


def _check_late(pod: reading.Json) -> None:
    """Whether Argo has evaluated an expression (`expressions.at_creation`) for the pod, and not for the copy of its
    template in the pod."""
    found = pod["metadata"]["annotations"].get(shapes.LATE)
    if found != shapes.LATE_VALUE:
        raise FactFailedError(
            f"Argo did not evaluate an expression when it created the pod, which has {found!r}: jobs of more than "
            f"{MOST_FULL_HOSTS} replicas have no list of hosts"
        )
    if shapes.LATE_VALUE in json.dumps(pod["spec"]):
        raise FactFailedError(
            "Argo evaluates expressions before it creates a pod, so that pods of large jobs are too large"
        )
