"""The rules for namespaces hold where pods are made: the policy of manifests/admission on a real API server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from diflow.common import keys
from diflow.common.errors import DiflowError, InvalidError, UnauthorizedError
from diflow.common.queue_access import as_lines, read_rules
from diflow.jobs.checks.rules import are_in_force
from diflow.kube.kinds import CONFIG_MAP, POD, PRIORITY_CLASS, WORKFLOW, Kind
from tests.clusters import ROOT, TestCluster, wait_until
from tests.e2e.live import Live
from tests.e2e.test_fence import workflow

Json = dict[str, Any]
CRITICAL = "system-cluster-critical"


@pytest.fixture(scope="module", name="tenant")
def _tenant(argo40: TestCluster) -> Iterator[Live]:
    """A namespace whose rule allows one queue and normal priority. The policy stays without rules when the test ends,
    as that of the fence does."""
    with argo40.namespace("rules") as namespace:
        live = Live(argo40, namespace)
        rules = read_rules([{"name": namespace, "queues": ["team", "team-*"], "priorities": ["normal"]}])
        config = {"metadata": {"name": keys.PUBLIC_QUEUES}, "data": {keys.RULES_LINES: as_lines(rules)}}
        live.api.create(CONFIG_MAP, config, namespace=namespace)
        objects = list(yaml.safe_load_all((ROOT / "manifests" / "admission" / "policy.yaml").read_text()))
        for obj in objects:
            obj["metadata"]["name"] += f"-{namespace}"
            if "policyName" in obj["spec"]:
                obj["spec"]["policyName"] += f"-{namespace}"
                obj["spec"]["paramRef"]["namespace"] = namespace
                selector = obj["spec"]["matchResources"]["namespaceSelector"]
                selector["matchLabels"] = {"kubernetes.io/metadata.name": namespace}
        argo40.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
        wait_until("it is in force", lambda: are_in_force(live.api, namespace=namespace))
        yield live


def pod(**spec: Any) -> Json:
    return {"metadata": {"name": "bare"}, "spec": {"containers": [{"name": "main", "image": "none"}], **spec}}


def of_job(**labels: str) -> Json:
    made = workflow("job")
    made["metadata"]["labels"] |= {key.replace("_", "/"): value for key, value in labels.items()}
    return made


def refusal(live: Live, kind: Kind, obj: Json) -> str:
    """Why the API server does not create it, by a dry run; "" if it does."""
    try:
        live.api.create(kind, obj, namespace=live.namespace, dry_run=True)
    except (InvalidError, UnauthorizedError) as error:
        return str(error)
    return ""


def test_pods_have_no_priority_above_the_rule(tenant: Live) -> None:
    assert refusal(tenant, POD, pod()) == ""
    assert refusal(tenant, POD, pod(priorityClassName="diflow-normal")) == ""
    assert "may not use the priority high" in refusal(tenant, POD, pod(priorityClassName="diflow-high"))
    assert "may have a priority of at most 0, not 2000000000" in refusal(tenant, POD, pod(priorityClassName=CRITICAL))


def test_a_class_of_another_name_is_judged_by_its_number(tenant: Live) -> None:
    name = f"other-{tenant.namespace}"
    for policy in ("PreemptLowerPriority", "Never"):
        tenant.api.create(PRIORITY_CLASS, {"metadata": {"name": name}, "value": 7, "preemptionPolicy": policy})
        try:
            wait_until("the class is known", lambda: "no PriorityClass" not in _tried(tenant, name))
            assert "at most 0, not 7" in refusal(tenant, POD, pod(priorityClassName=name))
        finally:
            tenant.api.delete(PRIORITY_CLASS, name)


def _tried(tenant: Live, name: str) -> str:
    try:
        return refusal(tenant, POD, pod(priorityClassName=name))
    except DiflowError as error:
        return str(error)


def test_jobs_that_the_allocator_does_not_place_name_no_other_queue_or_priority(tenant: Live) -> None:
    assert refusal(tenant, WORKFLOW, of_job()) == ""
    assert refusal(tenant, WORKFLOW, of_job(diflow_queue="team-a", diflow_priority="normal")) == ""
    assert "may not use the queue other" in refusal(tenant, WORKFLOW, of_job(diflow_queue="other"))
    assert "may not use the queue teams" in refusal(tenant, WORKFLOW, of_job(diflow_queue="teams"))
    assert "may not use the priority high" in refusal(tenant, WORKFLOW, of_job(diflow_priority="high"))


def test_a_job_that_is_there_goes_on_and_gets_no_other_queue(tenant: Live) -> None:
    """As where rules have changed: what the job said before is not held against it."""
    api, space = tenant.api, tenant.namespace
    rules = {keys.RULES_LINES: as_lines(read_rules([{"name": "*"}]))}
    before = api.get(CONFIG_MAP, keys.PUBLIC_QUEUES, namespace=space)["data"]
    api.patch(CONFIG_MAP, keys.PUBLIC_QUEUES, {"data": rules}, namespace=space)
    made = of_job(diflow_queue="other")
    made["metadata"]["name"] = "there"
    wait_until("the rules have changed", lambda: refusal(tenant, WORKFLOW, made) == "")
    api.create(WORKFLOW, made, namespace=space)
    api.patch(CONFIG_MAP, keys.PUBLIC_QUEUES, {"data": before}, namespace=space)
    wait_until("the rules are back", lambda: refusal(tenant, WORKFLOW, of_job(diflow_queue="other")) != "")
    api.patch(WORKFLOW, "there", {"metadata": {"annotations": {"a": "b"}}}, namespace=space)
    with pytest.raises((InvalidError, UnauthorizedError), match="may not use the queue third"):
        api.patch(WORKFLOW, "there", {"metadata": {"labels": {keys.QUEUE: "third"}}}, namespace=space)


def test_an_older_class_is_replaced_as_the_page_on_upgrading_says(tenant: Live) -> None:
    """preemptionPolicy cannot be changed."""
    name = f"older-{tenant.namespace}"
    older = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": 1000}
    newer = json.dumps({**older, "preemptionPolicy": "Never"})
    tenant.cluster.kubectl("apply", "-f", "-", stdin=json.dumps(older))
    try:
        with pytest.raises(AssertionError, match="preemptionPolicy"):
            tenant.cluster.kubectl("apply", "-f", "-", stdin=newer)
        tenant.cluster.kubectl("replace", "--force", "-f", "-", stdin=newer)
        assert tenant.api.get(PRIORITY_CLASS, name)["preemptionPolicy"] == "Never"
    finally:
        tenant.api.delete(PRIORITY_CLASS, name)
