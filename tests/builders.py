"""Small builders for jobs, so that a test says only what it is about."""

from __future__ import annotations

from typing import Any

from diflow import DIJob, Task
from diflow.dijob.stored import StoredJob, read_job
from diflow.workflows.pods import dijob_annotation

IMAGE = "docker.io/library/busybox:local"


def template(command: str = "true", **spec: Any) -> dict[str, Any]:
    """A pod template of one container that runs a shell command."""
    container = {
        "name": "di-container",
        "image": IMAGE,
        "command": ["sh", "-c", command],
        "resources": {"requests": {"cpu": "20m", "memory": "16Mi"}},
        **spec.pop("container", {}),
    }
    return {"spec": {"containers": [container], **spec}}


def task(kind: str = "learner", command: str = "true", *, replicas: int = 1, name: str = "", **spec: Any) -> Task:
    """A task of one role."""
    return Task(type=kind, name=name, replicas=replicas, template=template(command, **spec))


def job(*tasks: Task, name: str = "job", **fields: Any) -> DIJob:
    """A job; with no tasks given, of one learner."""
    return DIJob(name=name, tasks=tasks or (task(),), **fields)


def stored(made: DIJob) -> StoredJob:
    """The job as the readers of its Workflow have it."""
    return read_job(dijob_annotation(made))


def manifest(**spec: Any) -> dict[str, Any]:
    """A DIJob manifest as plain data."""
    return {
        "apiVersion": "diengine.opendilab.org/v2alpha1",
        "kind": "DIJob",
        "metadata": {"name": "job"},
        "spec": {"tasks": [{"type": "learner", "template": template()}], **spec},
    }
