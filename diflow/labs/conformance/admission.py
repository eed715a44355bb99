"""Facts 17 and 20: how a gang waits without pods, and how one patch admits it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from diflow.common import keys
from diflow.kube.kinds import WORKFLOW
from diflow.labs.conformance import reading, shapes
from diflow.labs.conformance.finding import FactFailedError
from diflow.labs.conformance.lab import Lab, Run
from diflow.labs.conformance.outcome import Outcome
from diflow.record.allocation import Allocation
from diflow.record.parameters import parameters as given_parameters
from diflow.record.patches import live, merged

_REPLICAS: Final = 2
# The pods stay pending: a probe does not know the nodes, and need not run anything to see where pods would go.
_NODE: Final = "diflow-probe-has-no-such-node"
_VALID_SECONDS: Final = 3600


def admitted(lab: Lab) -> Iterator[Outcome]:
    """A gang that Argo does not see, then sees as suspended, then is admitted; and one whose places are out of date."""
    with lab.run(_gang(lab, "hidden")) as run:
        with lab.run(shapes.named_group(lab.name("seen"))) as other:
            other.until_node("Argo look at a Workflow that came later", lambda found: reading.phase(found) or None)
        if reading.phase(run.workflow()):
            raise FactFailedError("Argo looked at a Workflow of another instance")
        began = lab.clock.monotonic()
        _patch(lab, run, metadata={"labels": {keys.INSTANCE: None}})
        run.until_node("Argo look at the Workflow", lambda found: reading.phase(found) or None)
        first_look = lab.clock.monotonic() - began
        if run.pods():
            raise FactFailedError("Argo created pods of a suspended Workflow")
        began = lab.clock.monotonic()
        _admit(lab, run, until=time.time() + _VALID_SECONDS)
        pods = run.until("the pods of the gang", lambda: pods if len(pods := run.pods()) == _REPLICAS else None)
        after_patch = lab.clock.monotonic() - began
        for pod in pods:
            selector = pod["spec"].get("nodeSelector") or {}
            if reading.gates(pod) or selector.get(keys.HOSTNAME) != _NODE:
                raise FactFailedError(f"a pod with a place has the gates {reading.gates(pod)} and the nodes {selector}")
    with lab.run(_gang(lab, "late")) as run:
        _admit(lab, run, until=1)
        pods = run.until("the pods of the gang", lambda: pods if len(pods := run.pods()) == _REPLICAS else None)
        for pod in pods:
            if reading.gates(pod) != [keys.GATE] or keys.HOSTNAME in (pod["spec"].get("nodeSelector") or {}):
                raise FactFailedError(f"a pod whose place is out of date has the gates {reading.gates(pod)}")
    yield Outcome(
        17,
        f"a suspended Workflow had no pods; one patch created {_REPLICAS} on their nodes, without gates, after "
        f"{after_patch:.1f} s; those whose places were out of date had gates",
        {"seconds_to_pods": round(after_patch, 1)},
    )
    yield Outcome(
        20,
        f"a Workflow of another instance was not looked at, and {first_look:.1f} s after it was shown to Argo it was",
        {"seconds_to_first_look": round(first_look, 1)},
    )


def _gang(lab: Lab, scenario: str) -> reading.Json:
    """A gang that the cluster's allocator does not see: it is not marked as diflow's."""
    from diflow.workflows import render  # noqa: PLC0415 (Hera takes half a second to import)

    job = shapes.job(lab.name(scenario), lab.image, "exit 0", replicas=_REPLICAS)
    workflow = render(job.model_copy(update={"scheduling": "gang"}))
    labels = workflow["metadata"]["labels"]
    del labels[keys.MANAGED_BY]
    labels[keys.INSTANCE] = keys.INSTANCE_VALUE
    return workflow


def _admit(lab: Lab, run: Run, *, until: float) -> None:
    """Admit the gang by one patch, as the allocator does."""
    workflow = run.workflow()
    allocation = Allocation("1", {shapes.TASK: (_NODE,) * _REPLICAS})
    places = allocation.places(uid=workflow["metadata"]["uid"], until=until)
    parameters = merged(given_parameters(workflow), live(places=places))
    _patch(
        lab,
        run,
        metadata={"labels": {keys.INSTANCE: None}},
        spec={"suspend": None, "arguments": {"parameters": parameters}},
    )


def _patch(lab: Lab, run: Run, **body: reading.Json) -> None:
    lab.cluster.patch(WORKFLOW, run.name, body, namespace=lab.namespace)
    run.changes[:] = list(body)
