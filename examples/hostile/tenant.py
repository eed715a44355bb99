"""Somebody with a namespace of its own, and what an attack is.

Each attack is one function, which returns the names of the Workflows that it made. They are tried on a real cluster by
`make demo-hostile`, and on a simulated one by tests/examples/test_hostile.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from diflow import DiflowError, DIJob, Task
from diflow.kube.api import Cluster
from diflow.kube.kinds import POD, WORKFLOW
from diflow.workflows import render

Json = dict[str, Any]


@dataclass
class Tenant:
    """Somebody with a namespace, and the template of a pod that fits in the cluster.

    `nodes`: the names of the cluster's nodes, which pods can name. `server`: the URL of diflow's server, "" without it.
    """

    cluster: Cluster
    namespace: str
    template: Json
    nodes: Sequence[str] = ()
    server: str = ""
    stop: threading.Event = field(default_factory=threading.Event)

    def job(self, name: str, **fields: Any) -> DIJob:
        tasks = fields.pop("tasks", None) or (self.task(replicas=fields.pop("replicas", 1)),)
        return DIJob(name=name, namespace=self.namespace, tasks=tasks, scheduling="gang", **fields)

    def task(self, name: str = "worker", *, template: Json | None = None, **fields: Any) -> Task:
        return Task(name=name, template=template or self.template, **fields)

    def asks(self, resources: Mapping[str, str], *, annotations: Mapping[str, str] | None = None) -> Json:
        """The template with another request, and further annotations."""
        metadata, spec = self.template.get("metadata", {}), self.template["spec"]
        devices = {name: amount for name, amount in resources.items() if "/" in name}
        main = {**spec["containers"][0], "resources": {"requests": dict(resources), "limits": devices}}
        given = {**metadata.get("annotations", {}), **(annotations or {})}
        return {"metadata": {**metadata, "annotations": given}, "spec": {**spec, "containers": [main]}}

    def create(self, name: str, **fields: Any) -> Json:
        """Create the Workflow of a job, as `diflow submit` does it."""
        return self.send(render(self.job(name, **fields)))

    def send(self, body: Json) -> Json:
        return self.cluster.create(WORKFLOW, body, namespace=self.namespace)

    def annotate(self, name: str, annotations: Mapping[str, str], labels: Mapping[str, str] | None = None) -> None:
        self.patch(name, {"metadata": {"annotations": dict(annotations), "labels": dict(labels or {})}})

    def patch(self, name: str, body: Json) -> None:
        self.cluster.patch(WORKFLOW, name, body, namespace=self.namespace)

    def set(self, made: Json, **values: str) -> None:
        """Change parameters of a Workflow by hand."""
        name = made["metadata"]["name"]
        given = [{**p, "value": values.get(p["name"], p["value"])} for p in made["spec"]["arguments"]["parameters"]]
        self.patch(name, {"spec": {"arguments": {"parameters": given}}})

    def pod(self, name: str, template: Json, *, labels: Mapping[str, str] | None = None, **spec: Any) -> None:
        """Create a bare pod."""
        metadata = {**template.get("metadata", {}), "name": name, "labels": dict(labels or {})}
        body = {"metadata": metadata, "spec": {"restartPolicy": "Never", **template["spec"], **spec}}
        self.cluster.create(POD, body, namespace=self.namespace)

    def again(self, seconds: float, do: Callable[[int], object]) -> None:
        """Do it every so many seconds, in a thread of its own, until the attack is stopped; a refusal ends nothing."""

        def run() -> None:
            number = 0
            while not self.stop.wait(seconds):
                number += 1
                with suppress(DiflowError):
                    do(number)

        threading.Thread(target=run, name=f"{self.namespace}-again", daemon=True).start()


@dataclass(frozen=True)
class Attack:
    """`item`: of the list of faults that it was found under. `goes_on`: something is done until it is stopped.

    `policies`: those that it is meant for; none: for all. `is_real`: what it harms is on a real cluster alone.
    """

    item: str
    what: str
    do: Callable[[Tenant], list[str]]
    goes_on: bool = False
    policies: tuple[str, ...] = ()
    is_real: bool = False
