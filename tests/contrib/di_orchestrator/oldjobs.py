"""DIJobs of v1alpha1 for tests."""

from __future__ import annotations

from typing import Any

from diflow.common import keys
from diflow.contrib.di_orchestrator import manifest as manifests
from diflow.contrib.di_orchestrator.workflow import render
from tests.builders import template

Json = dict[str, Any]


def manifest(name: str = "old", **spec: Any) -> Json:
    """A job with a coordinator, collectors and learners."""
    modules = {module: {"template": template()} for module in ("coordinator", "collector", "learner")}
    return {
        "apiVersion": keys.API_VERSION_1,
        "kind": keys.KIND,
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"group": "team", "priorityClassName": "", "cleanPodPolicy": "Running", **modules, **spec},
    }


def workflow(name: str = "old", *, aggregator: bool = True, **spec: Any) -> Json:
    """Its Workflow."""
    return render(manifests.job_of(manifest(name, **spec), aggregator=template() if aggregator else None))
