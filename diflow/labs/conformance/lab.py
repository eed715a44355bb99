"""Runs small Workflows on a cluster, waits with timeouts, and always cleans up.

A `Lab` is one probe in one namespace; a `Run` is one of its Workflows. All objects have the probe's random id, so two
probes in one namespace do not interfere, and the Workflow of a killed probe ends and is deleted by itself.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar

from diflow import DIJob
from diflow.common import keys
from diflow.common.clock import SYSTEM, Clock
from diflow.common.errors import ConflictError, DiflowError, UnavailableError
from diflow.kube.kinds import POD, WORKFLOW, Kind
from diflow.labs.conformance import reading, shapes
from diflow.labs.conformance.finding import FactFailedError, HopelessError

Json = dict[str, Any]
T = TypeVar("T")

LABEL: Final = "diflow/probe"
_POLL_SECONDS: Final = 0.5
_CLEAN_SECONDS: Final = 45.0
# Argo 3.7 writes what it has saved back into its cache, and so misses a concurrent patch until the next change
# (INFORMER_WRITE_BACK, off since 4.0). After this long without an effect the Workflow is touched.
_NUDGE_SECONDS: Final = 12.0
_NUDGED: Final = "diflow/probe-nudged"
# Argo ends, and later deletes, the Workflow of a killed probe. Far above the duration of any probe.
_ABANDONED_SECONDS: Final = 1800


class Verbs(Protocol):
    """The operations that a probe needs; `diflow.kube.api.Cluster` has them."""

    def get(self, kind: Kind, name: str, *, namespace: str | None = None) -> Json: ...

    def find(self, kind: Kind, name: str, *, namespace: str | None = None) -> Json | None: ...

    def list_all(
        self, kind: Kind, *, namespace: str | None = None, labels: str = "", fields: str = ""
    ) -> list[Json]: ...

    def create(self, kind: Kind, body: Mapping[str, Any], *, namespace: str | None = None) -> Json: ...

    def patch(
        self, kind: Kind, name: str, body: Mapping[str, Any] | list[Any], *, namespace: str | None = None
    ) -> Json: ...

    def delete(
        self, kind: Kind, name: str, *, namespace: str | None = None, grace_seconds: int | None = None
    ) -> bool: ...

    def logs(self, pod: str, *, namespace: str | None = None, container: str = "main") -> Iterator[str]: ...


class StoppedError(Exception):
    """The probe must stop."""


@dataclass(frozen=True)
class Lab:
    """One probe: its namespace and limits. `limit_seconds` is the timeout of each wait."""

    cluster: Verbs
    namespace: str
    image: str
    id: str
    limit_seconds: float
    texts: tuple[str, ...] = ()
    stop: threading.Event = field(default_factory=threading.Event)
    clock: Clock = SYSTEM

    def name(self, scenario: str) -> str:
        """The name of a scenario's Workflow."""
        return f"probe-{scenario}-{self.id}"

    @contextmanager
    def run(self, workflow: Json) -> Iterator[Run]:
        """Create the Workflow; at the end of the block it is deleted with its pods."""
        name = workflow["metadata"]["name"]
        labels = workflow["metadata"].setdefault("labels", {})
        labels[LABEL] = self.id
        spec = workflow["spec"]
        spec["ttlStrategy"] = {"secondsAfterCompletion": _ABANDONED_SECONDS}
        spec.setdefault("serviceAccountName", keys.WORKER_ACCOUNT)
        mine = True
        try:
            try:
                # Inside the block: an interrupted creation may have succeeded.
                self.cluster.create(WORKFLOW, workflow, namespace=self.namespace)
            except ConflictError:
                mine = False
                raise
            yield Run(self, name)
        finally:
            if mine:
                self._clear(name)

    def run_job(self, job: DIJob, *, witness: bool = False, late: bool = False) -> AbstractContextManager[Run]:
        """Create a job's Workflow as diflow renders it; with a witness for `Run.set_and_see`, and with an annotation of
        the pods whose value is to exist only in the pods (`shapes.LATE`)."""
        from diflow.workflows import expressions, render  # noqa: PLC0415 (Hera takes half a second to import)

        workflow = render(job)
        if late:
            value = expressions.template(expressions.at_creation(shapes.LATE_EXPRESSION))
            workflow = shapes.annotated(workflow, shapes.LATE, value)
        return self.run(shapes.witnessed(workflow) if witness else workflow)

    def until(self, what: str, look: Callable[[], T | None], *, explain: Callable[[], str] = str) -> T:
        """Call `look` until it returns a value. Raises FactFailedError after the limit, StoppedError on a stop.

        Transient errors of the cluster are retried.
        """
        end = self.clock.monotonic() + self.limit_seconds
        while True:
            if self.stop.is_set():
                raise StoppedError
            try:
                found = look()
            except UnavailableError:
                if self.clock.monotonic() >= end:
                    raise
                found = None
            if found is not None:
                return found
            if self.clock.monotonic() >= end:
                reason = explain()
                raise FactFailedError(
                    f"{self.limit_seconds:.0f} s were not enough to see {what}" + (f" ({reason})" if reason else "")
                )
            self.stop.wait(_POLL_SECONDS)

    def _clear(self, name: str) -> None:
        """Delete a Workflow and its pods, and wait until they are gone. Errors of the cluster are ignored."""
        end = time.monotonic() + _CLEAN_SECONDS
        deleted = False
        while time.monotonic() < end:
            try:
                if not deleted:
                    self.cluster.delete(WORKFLOW, name, namespace=self.namespace)
                    deleted = True
                pods = self.cluster.list_all(POD, namespace=self.namespace, labels=f"{keys.ARGO_WORKFLOW}={name}")
                for pod in pods:
                    if (
                        "deletionTimestamp" not in pod["metadata"]
                        or pod["metadata"].get("deletionGracePeriodSeconds", 0) > 1
                    ):
                        self.cluster.delete(POD, pod["metadata"]["name"], namespace=self.namespace, grace_seconds=1)
                if not pods:
                    return
            except UnavailableError:
                if self.stop.is_set():
                    return
            except DiflowError:
                return
            time.sleep(_POLL_SECONDS)


@dataclass(frozen=True)
class Run:
    """One Workflow of a probe."""

    lab: Lab
    name: str
    nudges: list[str] = field(default_factory=list)
    """The conditions that were awaited when the Workflow was touched."""
    changes: list[str] = field(default_factory=list)
    """The parameters changed since the last observed effect."""

    def workflow(self) -> Json:
        """The Workflow as it is now."""
        return self.lab.cluster.get(WORKFLOW, self.name, namespace=self.lab.namespace)

    def pods(self) -> list[Json]:
        """All pods of the Workflow, including steps. Raises FactFailedError if one can never start."""
        pods = self.lab.cluster.list_all(POD, namespace=self.lab.namespace, labels=f"{keys.ARGO_WORKFLOW}={self.name}")
        why = reading.trouble(pods)
        if why:
            raise HopelessError(why)
        return pods

    def set(self, **parameters: str) -> None:
        """Change parameters of the running Workflow in one patch."""
        workflow = self.workflow()
        self.lab.cluster.patch(
            WORKFLOW,
            self.name,
            [
                {
                    "op": "replace",
                    "path": f"/spec/arguments/parameters/{reading.parameter_index(workflow, name)}/value",
                    "value": value,
                }
                for name, value in parameters.items()
            ],
            namespace=self.lab.namespace,
        )
        self.changes[:] = list(parameters)

    def set_and_see(self, **parameters: str) -> Json:
        """As `set`, and wait until Argo has acted on it. Returns the Workflow as Argo saved it then.

        The Workflow needs a witness (`shapes.witnessed`). A Workflow that has ended is returned as well.
        """
        given = self.workflow()["spec"]["arguments"]["parameters"]
        count = 1 + int(next(item["value"] for item in given if item["name"] == shapes.PARAM_WITNESSES))
        self.set(**parameters, **{shapes.PARAM_WITNESSES: str(count)})

        def look(workflow: Json) -> Json | None:
            ended = reading.phase(workflow) in ("Succeeded", "Failed", "Error")
            return workflow if ended or len(reading.members(workflow, shapes.WITNESS)) >= count else None

        return self.until_node(f"Argo act on a change of {', '.join(parameters) or 'nothing else'}", look)

    def tell(self, pod: Json) -> None:
        """Let a pod that runs `shapes.until_told` succeed."""
        self.patch_pod(pod["metadata"]["name"], {"metadata": {"annotations": {shapes.TOLD: "end"}}})

    def patch_pod(self, name: str, body: Mapping[str, Any] | list[Any]) -> Json:
        """Change a pod."""
        return self.lab.cluster.patch(POD, name, body, namespace=self.lab.namespace)

    def stop_pod(self, pod: Json) -> None:
        """Stop a running pod as diflow does: gracefully, with its exit code and logs kept."""
        self.patch_pod(pod["metadata"]["name"], {"spec": {"activeDeadlineSeconds": 1}})

    def logs(self, pod: Json) -> list[str]:
        """The log of a pod's main container."""
        return list(self.lab.cluster.logs(pod["metadata"]["name"], namespace=self.lab.namespace))

    def worker(self, index: int) -> Json | None:
        """The pod of a replica of the first round."""
        return reading.workers(self.pods(), round_="1").get(f"{self.name}-worker-{index}")

    def until_running(self, index: int) -> Json:
        """Wait until the container of a replica runs."""

        def look() -> Json | None:
            pod = self.worker(index)
            if pod is None:
                self._check_alive()
                return None
            if reading.has_ended(pod):
                raise FactFailedError(f"replica {index} ended before it was seen running: {pod['status']}")
            return pod if reading.main_is_running(pod) else None

        return self.until(f"replica {index} of round 1 running", look)

    def until_ended(self, index: int) -> Json:
        """Wait until the pod of a replica has ended."""

        def look() -> Json | None:
            pod = self.worker(index)
            return pod if pod is not None and reading.has_ended(pod) else None

        return self.until(f"the end of replica {index} of round 1", look)

    def until_node(self, what: str, accept: Callable[[Json], T | None]) -> T:
        """Wait until `accept` finds something in the Workflow."""
        return self.until(what, lambda: accept(self.workflow()))

    def until_succeeded(self) -> Json:
        """Wait until the Workflow has succeeded. Raises FactFailedError if it ends otherwise."""
        given = self.workflow()["spec"]["arguments"]["parameters"]
        if any(item["name"] == shapes.PARAM_HOLD for item in given):
            self.set(**{shapes.PARAM_HOLD: "0"})

        def look() -> Json | None:
            workflow = self.workflow()
            if reading.phase(workflow) in ("Failed", "Error"):
                raise FactFailedError(f"the Workflow ended {_end(workflow)}, not Succeeded")
            return workflow if reading.phase(workflow) == "Succeeded" else None

        return self.until("the Workflow Succeeded", look)

    def until(self, what: str, look: Callable[[], T | None]) -> T:
        """As the lab's, with the reasons of waiting pods."""

        def explain() -> str:
            return reading.waiting(self.pods()) or f"the Workflow is {_end(self.workflow())}"

        due = self.lab.clock.monotonic() + _NUDGE_SECONDS

        def look_and_nudge() -> T | None:
            nonlocal due
            found = look()
            if found is None and self.changes and self.lab.clock.monotonic() >= due:
                due = self.lab.clock.monotonic() + _NUDGE_SECONDS
                self.nudges.append(what)
                annotations = {_NUDGED: str(len(self.nudges))}
                self.lab.cluster.patch(
                    WORKFLOW, self.name, {"metadata": {"annotations": annotations}}, namespace=self.lab.namespace
                )
            return found

        try:
            found = self.lab.until(what, look_and_nudge, explain=explain)
        except FactFailedError as error:
            if not reading.phase(self.workflow()):
                raise HopelessError(str(error)) from None
            raise
        self.changes.clear()
        return found

    def _check_alive(self) -> None:
        workflow = self.workflow()
        if reading.phase(workflow) in ("Succeeded", "Failed", "Error"):
            raise FactFailedError(f"the Workflow ended {_end(workflow)} too early")


def _end(workflow: Json) -> str:
    message = (workflow.get("status") or {}).get("message") or reading.first_failure(workflow)
    phase = reading.phase(workflow) or "not looked at by Argo: is its controller up, and does it watch this namespace?"
    return f"{phase}: {message}" if message else phase
