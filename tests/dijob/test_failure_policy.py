"""The failure policy and the maximum of memory of a job, as its manifest has them."""

from __future__ import annotations

from typing import Any

import pytest

from diflow import DIJob, Task
from diflow.common.errors import InvalidError
from diflow.dijob import stored
from diflow.dijob.rules.failurerules import FailurePolicy, FailureRule, OnExitCodes
from diflow.workflows import render
from tests.builders import job, task


def manifest(policy: Any, *, memory: str = "2Gi", **fields: Any) -> dict[str, Any]:
    container = {"name": "work", "image": "x", "resources": {"limits": {"memory": memory}}}
    template = {"spec": {"containers": [container, {"name": "helper", "image": "x"}]}}
    spec = {"failurePolicy": policy, "tasks": [{"name": "w", "template": template, **fields}]}
    head = {"apiVersion": "diengine.opendilab.org/v2alpha1", "kind": "DIJob"}
    return {**head, "metadata": {"name": "j"}, "spec": spec}


def refused(policy: Any, **fields: Any) -> str:
    with pytest.raises(InvalidError) as error:
        DIJob.from_manifest(manifest(policy, **fields))
    return str(error.value)


IN_ONE = {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [1]}}


def test_a_policy_comes_back_from_its_own_manifest() -> None:
    for policy in ({}, {"rules": [IN_ONE, {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]}):
        made = DIJob.from_manifest(manifest(policy, maxMemory="8Gi"))
        assert made.to_manifest()["spec"]["failurePolicy"] == policy
        assert DIJob.from_manifest(made.to_manifest()) == made


def test_it_can_be_made_of_models() -> None:
    rule = FailureRule(action="Count", on_exit_codes=OnExitCodes(operator="In", values=(3,)))
    policy = FailurePolicy(rules=(rule,))
    assert policy.stored().rules == (stored.FailureRule("Count", stored.OnExitCodes("In", (3,))),)
    assert job(task(), failure_policy=policy).failure_policy == policy
    with pytest.raises(InvalidError, match="0 is no failure"):
        FailurePolicy(rules=(FailureRule(action="Count", on_exit_codes=OnExitCodes(operator="In", values=(0,))),))


def test_an_invalid_one_is_refused_with_the_path_of_the_manifest() -> None:
    assert refused(3).startswith("spec.failurePolicy: must be a mapping")
    assert refused({"rule": []}).startswith("spec.failurePolicy: rule is not a field of it")
    assert refused({"rules": [{"action": "Retry"}]}).startswith(
        "spec.failurePolicy.rules[0].action: must be one of Count"
    )


def test_a_rule_names_a_container_of_the_job() -> None:
    named = {**IN_ONE, "onExitCodes": {**IN_ONE["onExitCodes"], "containerName": "work"}}  # type: ignore[dict-item]
    DIJob.from_manifest(manifest({"rules": [named]}))
    other = {**IN_ONE, "onExitCodes": {**IN_ONE["onExitCodes"], "containerName": "other"}}  # type: ignore[dict-item]
    where = "spec.failurePolicy.rules[0].onExitCodes.containerName"
    assert refused({"rules": [other]}) == f"{where}: no task has a container of this name"
    helper = {"action": "MoreMemory", "onExitCodes": {"operator": "In", "values": [9], "containerName": "helper"}}
    assert refused({"rules": [helper]}) == f"{where}: only the main container of a task gets more memory"


@pytest.mark.parametrize("amount", ["1Gi", "x", "-3", "", "1" * 65, "0"])
def test_the_maximum_of_memory_is_an_amount_of_at_least_what_the_task_has(amount: str) -> None:
    assert refused({}, maxMemory=amount).startswith("spec.tasks[0].maxMemory: ")
    DIJob.from_manifest(manifest({}, maxMemory="2Gi"))
    assert refused({}, maxMemory="6e30") == "spec.tasks[0].maxMemory: 6e30 is more than any node has"


def test_the_maximum_of_memory_needs_a_policy() -> None:
    given = manifest({}, maxMemory="8Gi")
    del given["spec"]["failurePolicy"]
    with pytest.raises(InvalidError, match=r"spec.tasks\[0\].maxMemory: has no effect without spec.failurePolicy"):
        DIJob.from_manifest(given)


# --- the Workflow -----------------------------------------------------------------------------------------------------


def rendered(policy: Any = None, **fields: Any) -> dict[str, Any]:
    amounts = {"requests": {"memory": "1Gi"}, "limits": {"memory": "2Gi"}}
    template = {"spec": {"containers": [{"name": "di-container", "image": "x", "resources": amounts}]}}
    given = {} if policy is None else {"failure_policy": policy}
    one = Task(name="w", template=template)
    return render(DIJob(name="j", tasks=(one,), **{"scheduling": "gang", **given, **fields}))


def templates(workflow: dict[str, Any]) -> dict[str, Any]:
    return {one["name"]: one for one in workflow["spec"]["templates"]}


def test_the_memory_of_a_pod_is_an_argument_of_its_template() -> None:
    made = rendered({})
    parameters = {p["name"]: p["value"] for p in made["spec"]["arguments"]["parameters"]}
    assert parameters["memory"] == '{"w":2048}'
    pod = templates(made)["w"]
    assert pod["inputs"]["parameters"][-1] == {"name": "memory"}, "Argo's nodes are read so"
    assert pod["metadata"]["annotations"]["diflow/memory"] == "{{inputs.parameters.memory}}"
    assert (
        '"resources":{"limits":{"memory":"{{inputs.parameters.memory}}Mi"},'
        '"requests":{"memory":"{{=int(inputs.parameters.memory) - 1024}}Mi"}}' in pod["podSpecPatch"]
    )
    assert templates(made)["replicaOf-w"]["dag"]["tasks"][0]["arguments"]["parameters"][-1] == {
        "name": "memory",
        "value": "{{=string(int(fromJSON(workflow.parameters.memory)['w']))}}",
    }


def test_a_job_without_the_allocator_or_without_a_policy_has_none_of_it() -> None:
    for made in (rendered(), rendered({}, scheduling="none"), rendered(scheduling="none")):
        assert "diflow/memory" not in str(made)
        assert "parameters.memory" not in str(made)


def test_without_the_allocator_the_job_is_ended_by_argo_alone() -> None:
    made = templates(rendered({"rules": [IN_ONE]}, scheduling="none"))["replicaOf-w"]["dag"]["tasks"][-1]
    hook = made["hooks"]["give-up"]["expression"]
    assert hook.startswith("('{{retries}}' == '3' || ((tasks['w']?.exitCode ?? '') in ['1'] ? true : false)) && ")


def test_of_a_preemptible_job_the_allocator_decides_which_failure_is_final() -> None:
    def has_hook(**fields: Any) -> bool:
        return "hooks" in templates(rendered(**fields))["replicaOf-w"]["dag"]["tasks"][-1]

    assert not has_hook(policy={}, preemptible=True)
    assert has_hook(policy={}, preemptible=True, scheduling="none")
    assert has_hook(policy={})
    assert has_hook(preemptible=True)
