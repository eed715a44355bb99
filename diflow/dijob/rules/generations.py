"""Detects manifests of older versions of DI-orchestrator, which have the same kind and another meaning.

There are three generations of DIJobs. That of v1.1 is what a DIJob is here; that of v1.0 is converted; and that of
v0.x, with a coordinator, is for the controller (`diflow/contrib`), so it is refused here (docs/manifests.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from diflow.common import keys
from diflow.common.errors import InvalidError
from diflow.dijob.rules import ditask

_V1ALPHA1: Final = f"{keys.API_GROUP}/v1alpha1"
_MODULES: Final = ("coordinator", "collector", "learner")
_ONE_TEMPLATE: Final = ("template", "engineFields", "minReplicas", "maxReplicas")
ONE_TASK: Final = "worker"
"""The name of the task of a job that has one template."""
_SEE: Final = "kubectl apply runs it where the controller is installed (docs/manifests.md)"


def refuse_older(manifest: Mapping[str, Any]) -> None:
    """Raise InvalidError, with what to do, for a manifest of DI-orchestrator v0.x."""
    kind, version = manifest.get("kind"), manifest.get("apiVersion")
    if version == _V1ALPHA1 and kind == "AggregatorConfig":
        raise InvalidError(
            "an AggregatorConfig belongs to jobs with a coordinator, and is no job: create it with kubectl apply",
            path="kind",
        )
    if version == _V1ALPHA1 and kind == keys.KIND:
        raise InvalidError(
            f"v1alpha1 is the DIJob of DI-orchestrator v0.x (coordinator, collector, learner): {_SEE}",
            path="apiVersion",
        )
    spec = manifest.get("spec")
    if kind != keys.KIND or version != keys.API_VERSION or not isinstance(spec, dict) or "tasks" in spec:
        return
    if found := [name for name in _MODULES if name in spec]:  # some had v2alpha1 already
        raise InvalidError(
            f"{' and '.join(found)} in spec {'is' if len(found) == 1 else 'are'} of the DIJob of DI-orchestrator v0.x: "
            f"{_SEE}",
            path="spec",
        )


def with_tasks(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    """The manifest of a job of DI-orchestrator v1.0, which has one template, with one task instead; any other one as it
    is. Raises InvalidError."""
    spec = manifest.get("spec")
    if not isinstance(spec, dict) or "tasks" in spec or "template" not in spec:
        return manifest
    engine = ditask.from_fields(spec.get("engineFields"))
    low, high = one_range(spec)
    task = {"type": "none", "name": ONE_TASK, "template": spec["template"], "replicas": low, "minReplicas": low}
    if high is not None:
        task["maxReplicas"] = high
    kept = {name: value for name, value in spec.items() if name not in _ONE_TEMPLATE}
    metadata = manifest.get("metadata")
    own = metadata.get("annotations") if isinstance(metadata, dict) else ()
    if isinstance(metadata, dict) and (own is None or isinstance(own, dict)):  # its reader refuses anything else
        metadata = {**metadata, "annotations": {**(own or {}), keys.DITASK: engine.text()}}
    return {**manifest, "metadata": metadata, "spec": {**kept, "tasks": [task]}}


def one_range(spec: Mapping[str, Any]) -> tuple[Any, Any]:
    """(minReplicas, maxReplicas) of a manifest with one template, with the default of the first; neither is checked."""
    low, high = (spec.get(name) for name in ("minReplicas", "maxReplicas"))
    return 1 if low in (None, 0) else low, high
