"""Detects manifests of older versions of DI-orchestrator, which have the same kind and another meaning.

There are three generations of DIJobs. diflow runs that of v1.1, and says how to convert the others
(docs/manifests.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from diflow import keys
from diflow.errors import InvalidError

_V1ALPHA1: Final = f"{keys.API_GROUP}/v1alpha1"
_MODULES: Final = ("coordinator", "collector", "learner")
_ONE_TEMPLATE: Final = ("template", "engineFields", "minReplicas", "maxReplicas")
_SEE: Final = "docs/manifests.md shows how"


def refuse_older(manifest: Mapping[str, Any]) -> None:
    """Raise InvalidError, with what to do, for a manifest of DI-orchestrator v0.x or v1.0."""
    kind, version = manifest.get("kind"), manifest.get("apiVersion")
    if version == _V1ALPHA1 and kind == "AggregatorConfig":
        raise InvalidError(
            "an AggregatorConfig belongs to DI-orchestrator v0.x, and diflow has no aggregators: leave it out",
            path="kind",
        )
    if version == _V1ALPHA1 and kind == keys.KIND:
        raise InvalidError(
            f"v1alpha1 is the DIJob of DI-orchestrator v0.x (coordinator, collector, learner): set {keys.API_VERSION} "
            f"and write each of them as one of spec.tasks; {_SEE}",
            path="apiVersion",
        )
    spec = manifest.get("spec")
    if kind != keys.KIND or version != keys.API_VERSION or not isinstance(spec, dict) or "tasks" in spec:
        return
    if found := [name for name in _MODULES if name in spec]:  # some had v2alpha1 already
        raise InvalidError(
            f"{' and '.join(found)} in spec {'is' if len(found) == 1 else 'are'} of the DIJob of DI-orchestrator v0.x: "
            f"write each of them as one of spec.tasks; {_SEE}",
            path="spec",
        )
    if found := [name for name in _ONE_TEMPLATE if name in spec]:
        raise InvalidError(
            f"{' and '.join(found)} in spec {'is' if len(found) == 1 else 'are'} of the DIJob of DI-orchestrator v1.0, "
            f"which has one template: make it one of spec.tasks, with replicas, minReplicas and maxReplicas; {_SEE}",
            path="spec",
        )
