"""Where the golden Workflows of the examples are, and how they are written anew."""

from __future__ import annotations

from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def jobs() -> list[Path]:
    """The DIJob manifests under examples/."""
    return sorted(path for path in EXAMPLES.rglob("*.yaml") if not path.name.endswith(".workflow.yaml"))


def golden_of(path: Path) -> Path:
    """The golden Workflow beside a manifest: job.yaml → job.workflow.yaml."""
    return path.with_suffix(".workflow.yaml")


def main() -> None:
    from diflow import DIJob
    from diflow.workflows import to_yaml

    for path in jobs():
        golden_of(path).write_text(to_yaml(DIJob.from_yaml(path)), encoding="utf-8")


if __name__ == "__main__":
    main()
