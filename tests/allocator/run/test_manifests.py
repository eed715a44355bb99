"""The objects of `kubectl apply -k manifests/allocator` match the code."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from diflow.allocator.run.control_channel import NAMESPACE, read_status
from diflow.allocator.settings import AllocatorSettings
from diflow.allocator.watch.queues import read_file
from diflow.cli.allocating import run as run_allocator
from diflow.common import keys
from diflow.jobs.checks import fence
from diflow.jobs.submit import TTL
from diflow.kube.api import Cluster
from diflow.kube.kinds import CONFIG_MAP, WORKFLOW
from diflow.kube.leader_election import Elector
from diflow.kube.refusals import Target
from diflow.version import __version__
from diflow.workflows.reoptimise import DEFAULT_IMAGE, render_cron
from tests.allocator.manifests import FOLDER, objects, one
from tests.cli.runner import Cli, cli

_APART = {"kustomization.yaml", "queues.yaml"}  # the queues are an example, which administrators change


@pytest.fixture
def diflow(tmp_path: Path) -> Iterator[Cli]:
    with cli(tmp_path) as found:
        yield found


@pytest.fixture(name="pod")
def _pod() -> Any:
    return one("Deployment", keys.ALLOCATOR)["spec"]["template"]["spec"]


def test_the_kustomization_names_each_file() -> None:
    named = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())["resources"]
    assert sorted(named) == sorted({path.name for path in FOLDER.glob("*.yaml")} - _APART)


def test_all_that_has_a_namespace_says_so_and_only_one_is_public() -> None:
    wide = ("Cluster", "ValidatingAdmission")
    spaces = {(o["kind"], o["metadata"].get("namespace")) for o in objects() if not o["kind"].startswith(wide)}
    assert {space for kind, space in spaces if kind != "Namespace"} == {NAMESPACE, keys.PUBLIC_NAMESPACE}
    assert {kind for kind, space in spaces if space == keys.PUBLIC_NAMESPACE} == {"ConfigMap", "Role", "RoleBinding"}


def test_the_fence_compares_the_allocators_field_manager_with_its_lease() -> None:
    policy = one("ValidatingAdmissionPolicy", keys.ALLOCATOR)["spec"]
    elector = Elector(Cluster(Target(""), transport=None), name=keys.ALLOCATOR, namespace=NAMESPACE, identity="a")
    mine = f"{keys.ALLOCATOR}/{NAMESPACE}/"
    assert elector.writes_as(7).startswith(mine)
    assert f"startsWith('{mine}')" in policy["matchConditions"][0]["expression"]
    assert policy["failurePolicy"] == "Ignore", "or a Lease that cannot be read would stop the writes of all others"
    (rule,) = policy["validations"]
    assert elector.writes_as(7).split("/")[2:] == [elector._uid, "7"], "as the variable `term` reads it"
    assert rule["message"] == fence.MESSAGE
    assert rule["reason"] == "Invalid", "the client then raises InvalidError"
    every = (o["spec"] for o in objects() if o["kind"] == "ValidatingAdmissionPolicyBinding")
    bindings = [binding for binding in every if binding["policyName"] == keys.ALLOCATOR]
    labels = [binding["matchResources"]["objectSelector"]["matchLabels"] for binding in bindings]
    assert labels == [{keys.MANAGED_BY: keys.MANAGED_BY_VALUE}, {keys.OPERATOR: keys.OPERATOR_VALUE}]
    for binding in bindings:
        assert binding["policyName"] == keys.ALLOCATOR
        assert binding["paramRef"] == {
            "name": elector.name, "namespace": NAMESPACE, "parameterNotFoundAction": "Allow"
        }  # fmt: skip


def test_the_longest_field_manager_is_as_long_as_one_may_be() -> None:
    elector = Elector(Cluster(Target(""), transport=None), name=keys.ALLOCATOR, namespace="n" * 63, identity="a")
    elector._uid = "u" * 36
    assert len(elector.writes_as(2**31 - 1)) == 128


def test_the_image_is_that_of_this_version(pod: Any) -> None:
    (container,) = pod["containers"]
    assert container["image"] == DEFAULT_IMAGE == f"docker.io/diflow/diflow:{__version__}"
    assert one("CronWorkflow", "diflow-reoptimise") == render_cron()


def test_each_setting_in_the_deployment_is_one(pod: Any) -> None:
    names = [entry["name"] for entry in pod["containers"][0]["env"]]
    fields = {f"DIFLOW_ALLOCATOR_{name.upper()}" for name in AllocatorSettings.model_fields}
    known = fields | {"DIFLOW_ALLOCATOR_METRICS_PORT", "OMP_NUM_THREADS"}
    assert set(names) <= known
    assert pod["containers"][0]["command"][:3] == ["diflow", "allocator", run_allocator.__name__]


def test_the_kubelet_asks_pages_that_are_there(pod: Any) -> None:
    container = pod["containers"][0]
    asked = {container[probe]["httpGet"]["path"] for probe in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert asked == {"/healthz", "/readyz"}
    port = next(entry["value"] for entry in container["env"] if entry["name"].endswith("METRICS_PORT"))
    assert container["ports"] == [{"name": "metrics", "containerPort": int(port)}]


def test_the_pods_are_restricted(pod: Any) -> None:
    assert one("Namespace", NAMESPACE)["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    assert pod["securityContext"]["runAsNonRoot"] is True
    context = pod["containers"][0]["securityContext"]
    assert (context["allowPrivilegeEscalation"], context["readOnlyRootFilesystem"]) == (False, True)


def test_a_job_that_says_nothing_of_scheduling_becomes_a_gang_where_it_is_installed(diflow: Cli) -> None:
    diflow.prepare()
    given = {
        "apiVersion": keys.API_VERSION,
        "kind": keys.KIND,
        "metadata": {"name": "quiet"},
        "spec": {"tasks": [{"name": "w", "template": {"spec": {"containers": [{"image": "x", "command": ["x"]}]}}}]},
    }
    path = diflow.file("job.yaml", given)
    public = one("ConfigMap", keys.ALLOCATOR)
    for name, scheduling in (("before", "none"), ("after", "gang")):
        if scheduling == "gang":
            diflow.api.add(CONFIG_MAP, public, namespace=public["metadata"]["namespace"])
        done = diflow("submit", path, "--name", name)
        assert done.code == 0, done.err
        made = diflow.api.objects["/apis/argoproj.io/v1alpha1/namespaces/default/workflows"][name]
        assert made["metadata"]["labels"][keys.SCHEDULING] == scheduling


@pytest.mark.parametrize(
    ("set_to", "seconds"), [(None, None), ("", None), ("604800", 604_800), ("60", 60), ("2147483647", 2**31 - 1)]
)
def test_an_ended_job_is_kept_as_long_as_the_administrator_says_and_by_default_for_ever(
    diflow: Cli, set_to: str | None, seconds: int | None
) -> None:
    diflow.prepare()
    public = one("ConfigMap", keys.ALLOCATOR)
    data = {**public["data"], **({} if set_to is None else {TTL: set_to})}
    diflow.api.add(CONFIG_MAP, {**public, "data": data}, namespace=keys.PUBLIC_NAMESPACE)
    spec = {"tasks": [{"name": "w", "template": {"spec": {"containers": [{"image": "x", "command": ["x"]}]}}}]}
    given = {"apiVersion": keys.API_VERSION, "kind": keys.KIND, "metadata": {"name": "short"}, "spec": spec}
    assert diflow("submit", diflow.file("job.yaml", given)).code == 0
    assert _kept(diflow, "short") == seconds
    own = {**given, "metadata": {"name": "own"}, "spec": {**spec, TTL: 90}}
    assert diflow("submit", diflow.file("own.yaml", own)).code == 0
    assert _kept(diflow, "own") == 90


@pytest.mark.parametrize("wrong", ["59", "2147483648", "-1", "1 week", "1e5", "9" * 5000])
def test_a_time_that_the_administrator_has_set_wrong_is_named(diflow: Cli, wrong: str) -> None:
    diflow.prepare()
    public = one("ConfigMap", keys.ALLOCATOR)
    said = {**public, "data": {**public["data"], TTL: wrong}}
    diflow.api.add(CONFIG_MAP, said, namespace=keys.PUBLIC_NAMESPACE)
    spec = {"tasks": [{"name": "w", "template": {"spec": {"containers": [{"image": "x", "command": ["x"]}]}}}]}
    given = {"apiVersion": keys.API_VERSION, "kind": keys.KIND, "metadata": {"name": "short"}, "spec": spec}
    done = diflow("submit", diflow.file("job.yaml", given))
    assert done.code == 5, "it is a fault of the cluster"
    assert "the ConfigMap kube-public/diflow-allocator has ttlSecondsAfterFinished" in done.err
    assert len(done.err) < 1000


def _kept(diflow: Cli, name: str) -> int | None:
    made = diflow.api.objects[WORKFLOW.path("default")][name]
    found = made["spec"].get("ttlStrategy")
    return found["secondsAfterCompletion"] if found else None


def test_users_learn_where_the_allocator_is_and_its_policy(diflow: Cli) -> None:
    public = one("ConfigMap", keys.ALLOCATOR)
    diflow.api.add(CONFIG_MAP, public, namespace=public["metadata"]["namespace"])
    seen = read_status(diflow.api.cluster(), now=0.0)
    assert (seen.namespace, seen.policy) == (NAMESPACE, AllocatorSettings().policy)


def test_the_example_of_queues_can_be_read() -> None:
    example = yaml.safe_load((FOLDER / "queues.yaml").read_text())
    assert example["metadata"]["name"] == AllocatorSettings().queues_config
    queues = read_file(example["data"][keys.QUEUES_FILE]).queues
    assert {queue.name for queue in queues} == {"default", "vision", "language", "evaluation"}


def test_what_applies_to_the_allocators_pods_chooses_them() -> None:
    labels = one("Deployment", keys.ALLOCATOR)["spec"]["template"]["metadata"]["labels"]
    chosen = [
        one("Deployment", keys.ALLOCATOR)["spec"]["selector"]["matchLabels"],
        one("PodDisruptionBudget", keys.ALLOCATOR)["spec"]["selector"]["matchLabels"],
        one("NetworkPolicy", keys.ALLOCATOR)["spec"]["podSelector"]["matchLabels"],
    ]
    assert all(selector.items() <= labels.items() and selector for selector in chosen)
