"""Where the golden Workflows of the examples, and the generated manifests, are, and how they are regenerated."""

from __future__ import annotations

import json
import re
import sys
import textwrap
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from diflow.dijob.yamltext import dump_yaml
from tests.workflows import tables

_ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = _ROOT / "examples"
REOPTIMISE = _ROOT / "manifests" / "allocator" / "reoptimise.yaml"
CRD = _ROOT / "manifests" / "crds" / "dijobs.yaml"
STEP = _ROOT / "manifests" / "pipelines" / "template.yaml"
PIPELINE = EXAMPLES / "pipeline" / "pipeline.workflow.yaml"
AGGREGATOR_CRD = _ROOT / "manifests" / "crds" / "aggregatorconfigs.yaml"
# A word in JSON that YAML reads as text without its quotes.
_WORD: Final = re.compile(r'(?<!\\)"(?!(?i:y|n|yes|no|on|off|true|false|null)")([A-Za-z][A-Za-z0-9-]*)"')
_SHARED: Final = re.compile(r"( *)(\w+): <(\d+)>")
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


def crds() -> dict[Path, str]:
    """The expected CustomResourceDefinitions, by file."""
    from diflow.contrib.di_orchestrator.crd import aggregator
    from diflow.controller.crd import crd

    head = "# Generated from the models (`make golden`).\n"
    return {path: head + _written(made()) for path, made in ((CRD, crd), (AGGREGATOR_CRD, aggregator))}


def _written(made: dict[str, Any]) -> str:
    """A CustomResourceDefinition as YAML, in which fields of Kubernetes and of the older version share lines."""
    shared: list[str] = []

    def block(value: Any, name: str = "") -> Any:
        if isinstance(value, dict) and name in ("template", "volumes", "schema"):
            shared.append(_WORD.sub(r"\1", json.dumps(value)))
            return f"<{len(shared) - 1}>"
        if isinstance(value, dict):
            is_stored = value.get("storage", True)
            return {key: block(inner, "" if key == "schema" and is_stored else key) for key, inner in value.items()}
        return [block(inner) for inner in value] if isinstance(value, list) else value

    lines = []
    for line in dump_yaml(block(made)).splitlines():
        if found := _SHARED.fullmatch(line):
            margin, key, number = found.groups()
            wrapper = textwrap.TextWrapper(
                120, f"{margin}  ", f"{margin}  ", break_long_words=False, break_on_hyphens=False
            )
            lines += [f"{margin}{key}:", *wrapper.wrap(shared[int(number)])]
        else:
            lines.append(line)
    return "\n".join(lines) + "\n"


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
    from diflow.workflows import to_yaml

    REOPTIMISE.parent.mkdir(exist_ok=True)
    REOPTIMISE.write_text(reoptimise(), encoding="utf-8")
    STEP.write_text(template(), encoding="utf-8")
    PIPELINE.write_text(pipeline(), encoding="utf-8")
    for path, text in (*crds().items(), *tables.pages().items()):
        path.write_text(text, encoding="utf-8")
    for path in jobs():
        golden_of(path).write_text(to_yaml(DIJob.from_yaml(path)), encoding="utf-8")


if __name__ == "__main__":
    main()
