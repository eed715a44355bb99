"""Where the golden Workflows of the examples, and the generated manifests, are, and how they are regenerated."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

_ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = _ROOT / "examples"
REOPTIMISE = _ROOT / "manifests" / "allocator" / "reoptimise.yaml"
CRD = _ROOT / "manifests" / "crds" / "dijobs.yaml"
AGGREGATOR_CRD = _ROOT / "manifests" / "crds" / "aggregatorconfigs.yaml"
STEP = _ROOT / "manifests" / "pipelines" / "template.yaml"
PIPELINE = EXAMPLES / "pipeline" / "pipeline.workflow.yaml"
_HEAD = "# The scheduled re-optimisation, as `diflow cron` prints it (`make golden` writes it anew).\n"


def jobs() -> list[Path]:
    """The DIJob manifests under examples/."""
    return sorted(path for path in EXAMPLES.rglob("*.yaml") if not path.name.endswith(".workflow.yaml"))


def golden_of(path: Path) -> Path:
    """The golden Workflow beside a manifest: job.yaml → job.workflow.yaml."""
    return path.with_suffix(".workflow.yaml")


def reoptimise() -> str:
    """The expected manifest of the re-optimisation."""
    from diflow.workflows.reoptimise import cron_yaml

    return _HEAD + cron_yaml()


def template() -> str:
    """The expected WorkflowTemplate of DIJobs as steps."""
    from diflow.workflows.steps import template_yaml

    return "# A DIJob as a step of any Workflow (`make golden`).\n" + template_yaml()


def pipeline_module() -> ModuleType:
    """The example of a pipeline, which is imported as its pods do it."""
    if str(EXAMPLES) not in sys.path:
        sys.path.insert(0, str(EXAMPLES))
    return import_module("pipeline.pipeline")


def pipeline() -> str:
    """The expected Workflow of the example of a pipeline."""
    text: str = pipeline_module().yaml()
    return text


def main() -> None:
    from diflow import DIJob
    from diflow.controller.crd import crd_yaml
    from diflow.controller.crd_v1alpha1 import aggregator_yaml
    from diflow.workflows import to_yaml

    REOPTIMISE.parent.mkdir(exist_ok=True)
    REOPTIMISE.write_text(reoptimise(), encoding="utf-8")
    CRD.write_text(crd_yaml(), encoding="utf-8")
    AGGREGATOR_CRD.write_text(aggregator_yaml(), encoding="utf-8")
    STEP.write_text(template(), encoding="utf-8")
    PIPELINE.write_text(pipeline(), encoding="utf-8")
    for path in jobs():
        golden_of(path).write_text(to_yaml(DIJob.from_yaml(path)), encoding="utf-8")


if __name__ == "__main__":
    main()
