"""The objects of `kubectl apply -k manifests/controller` match the code, and its RBAC rules match its requests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from diflow.cli.controlling import run as run_controller
from diflow.common import keys
from diflow.contrib.di_orchestrator.modules import Group
from diflow.controller.settings import ControllerSettings
from diflow.jobs.dijobs import DIJOB
from diflow.kube.kinds import SERVICE_ACCOUNT, WORKFLOW
from diflow.version import __version__
from tests.allocator.manifests import Use, granted, needed, objects, one
from tests.allocator.run.test_rbac import idle, refused
from tests.builders import template
from tests.controller.lab import SYSTEM, Lab, lab

Json = dict[str, Any]
FOLDER = Path(__file__).parents[2] / "manifests" / "controller"
NAME = keys.CONTROLLER
PUBLIC = (keys.PUBLIC_NAMESPACE, keys.ALLOCATOR)
"""The ConfigMap of the allocator, if there is one: its manifests let all users read it."""


@pytest.fixture(scope="module")
def used() -> Iterator[set[Use]]:
    """The requests of a controller in a scenario with all its features."""
    with lab() as at:
        play(at)
        found = {needed(request) for request in at.api.requests}
        yield {use for use in found if (use.space, use.name) != PUBLIC}


def test_it_asks_for_nothing_that_it_is_not_allowed(used: set[Use]) -> None:
    assert refused(used, granted(NAME, FOLDER)) == []


def test_it_needs_each_rule(used: set[Use]) -> None:
    # Of an admission plugin of some clusters, OwnerReferencesPermissionEnforcement: no request has it.
    assert [grant.resource for grant in idle(used, granted(NAME, FOLDER))] == ["dijobs/finalizers"]


def test_it_may_not_grant_rights_nor_read_secrets_nor_delete_anything_but_its_jobs_and_their_pods() -> None:
    for grant in granted(NAME, FOLDER):
        assert "*" not in (grant.verb, grant.group, grant.resource)
        assert grant.resource.split("/")[0] not in ("secrets", "roles", "clusterroles", "rolebindings")
        assert grant.verb not in ("deletecollection", "escalate", "bind", "impersonate")
        assert grant.verb != "delete" or grant.resource in ("dijobs", "pods")


def test_the_kustomization_names_each_file() -> None:
    for folder in (FOLDER, FOLDER.parent / "crds"):
        named = yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]
        assert sorted(named) == sorted({path.name for path in folder.glob("*.yaml")} - {"kustomization.yaml"})


def test_two_pods_run_this_version_with_the_command_that_exists() -> None:
    deployment = one("Deployment", NAME, FOLDER)["spec"]
    pod = deployment["template"]["spec"]
    (container,) = pod["containers"]
    assert deployment["replicas"] == 2
    assert container["image"] == f"docker.io/diflow/diflow:{__version__}"
    assert container["command"] == ["diflow", "controller", "run", "--log-format", "json"]
    assert {"log_format", "metrics_port"} <= run_controller.__annotations__.keys()
    assert pod["serviceAccountName"] == NAME
    names = {item["name"] for item in container["env"]}
    known = {f"DIFLOW_CONTROLLER_{name.upper()}" for name in ControllerSettings.model_fields}
    assert names <= known | {"DIFLOW_CONTROLLER_METRICS_PORT"}
    assert ControllerSettings().namespace == SYSTEM


def test_the_pods_are_restricted_and_are_probed_on_the_metrics_port() -> None:
    pod = one("Deployment", NAME, FOLDER)["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["port"] == "metrics"
    policy = one("NetworkPolicy", NAME, FOLDER)["spec"]
    assert policy["podSelector"]["matchLabels"] == {"app.kubernetes.io/name": NAME}
    for obj in objects(FOLDER):
        assert obj["metadata"].get("namespace", SYSTEM) == SYSTEM


def play(at: Lab) -> None:
    """A job that waits for an account, runs, is scaled and expires; one whose namespace is gone, a taken name, and one
    with an account of its own."""
    at.api.remove(SERVICE_ACCOUNT, keys.WORKER_ACCOUNT)
    at.apply(ttlSecondsAfterFinished=60)
    at.step(2.0)
    at.api.add(SERVICE_ACCOUNT, {"metadata": {"name": keys.WORKER_ACCOUNT}})
    at.until(lambda: at.phase() == "Succeeded", "it has succeeded")
    at.apply("waits", scheduling="gang", priority="high")
    at.rest()
    at.apply("waits", scheduling="gang", priority="high", tasks=[{"type": "learner", "replicas": 3}])
    at.cluster.edit("waits", profilings=json.dumps({"speed": 1}))
    at.api.add(WORKFLOW, {"metadata": {"name": "taken"}, "spec": {"suspend": True}})
    at.apply("taken")
    at.api.add(SERVICE_ACCOUNT, {"metadata": {"name": "own"}})
    at.apply("own", tasks=[{"name": "w", "template": template(serviceAccountName="own")}])
    obj = at.apply("abandoned", scheduling="gang")
    annotations = {keys.WAITED_BY: "gone"}
    at.api.add(DIJOB, {**obj, "metadata": {**obj["metadata"], "annotations": annotations}})
    with_coordinators(at)
    for _ in range(16):
        at.step(5.0)
    assert "job" not in at.dijobs()


def with_coordinators(at: Lab) -> None:
    """Jobs of v1alpha1, whose coordinators end while a collector of each runs: one is deleted, the other stopped."""
    for name, policy in (("old", "Running"), ("older", "None")):
        at.apply_old(name, cleanPodPolicy=policy)
        at.until(partial(_has_workflow, at, name), "it has a Workflow")
        at.ask(name, {"collector": Group(("abcde",))})
        at.runs(name, (1, "coordinator", 0, 0), phase="Succeeded")
        at.runs(name, (2, "collector", 0, 0))
        at.ask(name, {"collector": Group(("fghij",))})
        at.runs(name, (3, "collector", 0, 0), phase="Pending")
        at.rest()


def _has_workflow(at: Lab, name: str) -> bool:
    return name in at.workflows()
