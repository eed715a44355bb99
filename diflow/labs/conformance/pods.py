"""Facts 5 and 13: the fields of a rendered pod, and its admission by one patch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from diflow.common import keys, names
from diflow.labs.conformance import reading, shapes
from diflow.labs.conformance.finding import FactFailedError
from diflow.labs.conformance.lab import Lab, Run
from diflow.labs.conformance.outcome import Outcome

GRACE_SECONDS: Final = 7
# Every node has this label, and using it needs no right to read nodes.
PIN: Final = {"kubernetes.io/os": "linux"}


def gated(lab: Lab) -> Iterator[Outcome]:
    """Facts 5 and 13: a gated pod, admitted by one patch, and run to its end."""
    job = shapes.job(
        lab.name("gated"),
        lab.image,
        "hostname",
        schedulingGates=[{"name": shapes.GATE}],
        terminationGracePeriodSeconds=GRACE_SECONDS,
    )
    with lab.run_job(job) as run:
        pod = run.until("the gated pod", lambda: run.worker(0))
        _expect(pod, run)
        admitted = admit(run, pod)
        if reading.gates(admitted) or not PIN.items() <= admitted["spec"].get("nodeSelector", {}).items():
            raise FactFailedError("the API server accepted the patch that admits a pod, but did not apply it")
        pod = run.until_ended(0)
        run.until_succeeded()
        said = run.logs(pod)
    host = names.hostname(run.name, shapes.TASK, 0)
    if host not in said:  # Argo's executor writes lines of its own
        raise FactFailedError(f"inside the pod, the host name is not {host}: the pod wrote {said[:3]}")
    containers = [item["name"] for item in pod["spec"]["containers"]]
    inits = [item["name"] for item in pod["spec"].get("initContainers") or []]
    if "wait" not in containers or "init" not in inits:
        raise FactFailedError(
            f"a worker's pod has the containers {inits} and {containers}, without Argo's init and wait"
        )
    yield Outcome(
        5,
        "gate, host name, subdomain and grace period are set; one JSON patch removed the gate and added a selector",
        {"scheduler_said": reading.scheduled_reason(admitted) or ""},
    )
    yield Outcome(
        13, f"init containers {inits}, containers {containers}", {"containers": ",".join([*inits, *containers])}
    )


def admit(run: Run, pod: reading.Json) -> reading.Json:
    """Remove the probe's gate and pin the pod, in one patch, as diflow admits a gang."""
    index = reading.gates(pod).index(shapes.GATE)
    patch: list[reading.Json] = [
        {"op": "test", "path": f"/spec/schedulingGates/{index}/name", "value": shapes.GATE},
        {"op": "remove", "path": f"/spec/schedulingGates/{index}"},
    ]
    if pod["spec"].get("nodeSelector"):
        patch += [
            {"op": "add", "path": f"/spec/nodeSelector/{key.replace('/', '~1')}", "value": value}
            for key, value in PIN.items()
        ]
    else:
        patch.append({"op": "add", "path": "/spec/nodeSelector", "value": PIN})
    return run.patch_pod(pod["metadata"]["name"], patch)


def _expect(pod: reading.Json, run: Run) -> None:
    spec = pod["spec"]
    wanted = {
        "hostname": names.hostname(run.name, shapes.TASK, 0),
        "subdomain": keys.SERVICE,
        "terminationGracePeriodSeconds": GRACE_SECONDS,
    }
    wrong = {key: spec.get(key) for key, value in wanted.items() if spec.get(key) != value}
    if wrong:
        raise FactFailedError(f"podSpecPatch did not set {wanted}: the pod has {wrong}")
    if shapes.GATE not in reading.gates(pod):
        raise FactFailedError(f"podSpecPatch did not set the scheduling gate: the pod has {reading.gates(pod)}")
    if spec.get("nodeName"):
        raise FactFailedError("a pod with a scheduling gate was bound to a node")
