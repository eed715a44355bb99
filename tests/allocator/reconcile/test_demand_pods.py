"""Pods that stand for missing nodes: what they look like, and the rights that they need. What becomes of them is in
tests/reports/test_autoscaled.py."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from diflow.allocator.settings import AllocatorSettings
from diflow.common import keys, quantities
from tests.allocator.lab import job, lab, task
from tests.allocator.manifests import Grant, granted, objects

FOLDER = Path(__file__).parents[3] / "manifests" / "autoscale"
ON = AllocatorSettings(writers=1, debounce_seconds=0.0, autoscaled=True)


def test_its_rights_are_in_a_manifest_of_their_own() -> None:
    assert granted("diflow-allocator", FOLDER) == {Grant(verb, "", "pods", "", "") for verb in ("create", "delete")}
    # manifests/allocator/dry-runs.yaml lets it create pods in dry runs alone.
    assert not {g for g in granted("diflow-allocator") if g.resource == "pods" and g.verb == "delete"}


def test_the_admission_policy_lets_no_other_pod_pass() -> None:
    """It names what the allocator writes."""
    (policy,) = [found for found in objects(FOLDER) if found["kind"] == "ValidatingAdmissionPolicy"]
    (rule,) = policy["spec"]["matchConstraints"]["resourceRules"]
    (validation,) = policy["spec"]["validations"]
    words = set(re.findall(r"'([^']+)'", validation["expression"]))
    assert {keys.DEMAND, keys.DEMAND_SCHEDULER} <= words
    assert sorted(rule["operations"]) == ["CREATE", "DELETE"]
    assert policy["spec"]["failurePolicy"] == "Fail"


def test_the_pod_asks_for_what_the_replica_asks_for_and_fits_a_restricted_namespace() -> None:
    with lab(settings=ON) as at:
        at.cluster.submit(job("j", task(cpu="1500m", replicas=2)))
        at.until(lambda: len(at.cluster.pods()) == 2, "they are there")
        (pod, other) = at.cluster.pods()
        (role,) = at.daemon.allocator._view.state().jobs["default/j"].read.needs.roles  # type: ignore[union-attr]
    assert quantities.of_pod(pod["spec"]) == role.request
    (container,) = pod["spec"]["containers"]
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert pod["spec"]["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert keys.OPERATOR not in pod["metadata"]["labels"], "nothing takes it for a pod of the job"
    assert pod["metadata"]["name"] != other["metadata"]["name"]
    assert yaml.safe_dump(pod["metadata"]["ownerReferences"]) == yaml.safe_dump(other["metadata"]["ownerReferences"])


def test_without_the_setting_pods_that_are_left_are_removed() -> None:
    with lab(settings=ON) as at:
        at.cluster.submit(job("j", task(replicas=2)))
        at.until(lambda: len(at.cluster.pods()) == 2, "they are there")
        at.end()
        at.settings = ON.model_copy(update={"autoscaled": False})
        at.begin()
        at.until(lambda: not at.cluster.pods(), "they are gone")
