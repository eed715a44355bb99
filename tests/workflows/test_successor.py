"""The next Workflow of a job, as a copy of the one before. tests/allocator/reconcile/test_successor.py has its life."""

from __future__ import annotations

from typing import Any

from diflow import DIJob, Task
from diflow.workflows import render
from diflow.workflows.successor import successor


def rendered() -> dict[str, Any]:
    template = {"spec": {"containers": [{"name": "di-container", "image": "x", "command": ["x"]}]}}
    body = render(DIJob(name="long", namespace="default", tasks=(Task(name="worker", template=template),)))
    return {**body, "metadata": {**body["metadata"], "uid": "1", "creationTimestamp": "2026-01-01T00:00:00Z"}}


def test_the_next_part_finds_its_hosts_by_the_service_of_the_namespace() -> None:
    made = successor(rendered(), name="long-s2", parameters={}, annotations={})
    assert '"subdomain":"di"' in made["spec"]["podSpecPatch"]
    assert '"DI_JOB_ID","value":"{{workflow.namespace}}/long"' in made["spec"]["podSpecPatch"]
