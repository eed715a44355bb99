"""What `kubectl apply -k manifests/server` installs fits the code, and allows it nothing else."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from diflow.allocator.run.control_channel import NAMESPACE
from diflow.cli.server import run as run_server
from diflow.common import keys
from diflow.dijob.settings import RenderSettings
from diflow.record.namespace.shards import PREFIX
from diflow.server.settings import ServerSettings
from diflow.workflows.reoptimise import DEFAULT_IMAGE
from tests.allocator import manifests
from tests.server.processes import ROOT

FOLDER = ROOT / "manifests" / "server"
SHARDS = ROOT / "manifests" / "shards"
SERVER = "diflow-server"


def one(kind: str) -> Any:
    return manifests.one(kind, SERVER, FOLDER)


@pytest.fixture(name="pod")
def _pod() -> Any:
    return one("Deployment")["spec"]["template"]["spec"]


@pytest.fixture(name="environment")
def _environment(pod: Any) -> dict[str, str]:
    tls = yaml.safe_load((ROOT / "manifests" / "server-tls" / "tls.yaml").read_text())["spec"]["template"]["spec"]
    entries = [*pod["containers"][0]["env"], *tls["containers"][0]["env"]]
    return {entry["name"]: entry["value"] for entry in entries}


def test_the_kustomization_names_each_file() -> None:
    named = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())["resources"]
    assert sorted(named) == sorted(path.name for path in FOLDER.glob("*.yaml") if path.name != "kustomization.yaml")


def test_the_namespace_is_the_allocators_own_and_restricted() -> None:
    space = manifests.one("Namespace", NAMESPACE, FOLDER)
    assert space == manifests.one("Namespace", NAMESPACE)
    assert space["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    named = [
        o
        for o in manifests.objects(FOLDER)
        if o["kind"] != "Namespace" and not o["kind"].startswith(("Cluster", "ValidatingAdmissionPolicy"))
    ]
    public = [o for o in named if o["metadata"]["namespace"] == "kube-public"]
    assert {o["metadata"]["namespace"] for o in named if o not in public} == {NAMESPACE}
    assert {(o["kind"], o["metadata"]["name"]) for o in public} == {
        ("ConfigMap", "diflow-server"),
        ("Role", "diflow-server-reader"),
        ("RoleBinding", "diflow-server-reader"),
    }


def test_what_everybody_may_read_of_it_is_how_it_is_set(pod: Any) -> None:
    said = next(o for o in manifests.objects(FOLDER) if o["kind"] == "ConfigMap")
    (role,) = [
        o for o in manifests.objects(FOLDER) if o["kind"] == "Role" and o["metadata"]["namespace"] == "kube-public"
    ]
    set_here = {entry["name"]: entry["value"] for entry in pod["containers"][0]["env"]}
    assert said["data"] == {"unprovenPods": set_here.get("DIFLOW_SERVER_UNPROVEN_PODS", "false")}
    assert role["rules"] == [
        {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [said["metadata"]["name"]], "verbs": ["get"]}
    ]


def test_jobs_find_it_where_they_are_told(pod: Any) -> None:
    service = one("Service")
    port, old = service["spec"]["ports"]
    assert (old["port"], old["targetPort"]) == (8080, port["targetPort"]), "where DI-orchestrator's server was"
    expected = f"http://{SERVER}.{NAMESPACE}.svc.cluster.local:{port['port']}"
    assert RenderSettings.model_fields["server_url"].default == expected
    ports = {entry["name"]: entry["containerPort"] for entry in pod["containers"][0]["ports"]}
    assert ports[port["targetPort"]] == port["port"]


def test_each_setting_is_one_and_the_ports_are_those_that_are_told(pod: Any, environment: dict[str, str]) -> None:
    container = pod["containers"][0]
    fields = {name.removeprefix("DIFLOW_SERVER_").lower(): value for name, value in environment.items()}
    assert fields.keys() <= ServerSettings.model_fields.keys()
    ports = {entry["name"]: entry["containerPort"] for entry in container["ports"]}
    assert ports == {"http": int(fields["port"]), "metrics": int(fields["metrics_port"])}
    assert container["command"][:3] == ["diflow", "server", run_server.__name__]
    assert container["image"] == DEFAULT_IMAGE


def test_the_kubelet_asks_pages_that_a_flood_of_the_api_does_not_reach(pod: Any) -> None:
    container = pod["containers"][0]
    probes = [container[probe]["httpGet"] for probe in ("startupProbe", "livenessProbe", "readinessProbe")]
    assert {probe["port"] for probe in probes} == {"metrics"}
    assert [probe["path"] for probe in probes] == ["/healthz", "/healthz", "/readyz"]


def test_the_pod_is_given_more_time_to_end_than_the_server_takes(pod: Any) -> None:
    settings = ServerSettings()
    assert pod["terminationGracePeriodSeconds"] > settings.drain_seconds + settings.ending_seconds
    # Endpoints lag behind by a failed probe at most: the signal itself takes the pod out of them.
    assert settings.drain_seconds > pod["containers"][0]["readinessProbe"]["periodSeconds"]


def test_the_pods_are_restricted(pod: Any) -> None:
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    context = pod["containers"][0]["securityContext"]
    assert context == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert "hostNetwork" not in pod
    assert pod["containers"][0]["resources"]["limits"]["memory"]


def test_what_applies_to_its_pods_chooses_them_and_two_are_kept() -> None:
    deployment = one("Deployment")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    chosen = [
        deployment["spec"]["selector"]["matchLabels"],
        one("Service")["spec"]["selector"],
        one("PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        one("NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
    ]
    assert all(selector.items() <= labels.items() and selector for selector in chosen)
    assert deployment["spec"]["replicas"] == 2
    assert one("PodDisruptionBudget")["spec"]["maxUnavailable"] == 1


def test_the_network_policy_opens_nothing_but_what_is_served_and_needed() -> None:
    policy = one("NetworkPolicy")["spec"]
    assert sorted(policy["policyTypes"]) == ["Egress", "Ingress"]
    assert [port["port"] for rule in policy["ingress"] for port in rule["ports"]] == ["http", "metrics"]
    assert {port["port"] for rule in policy["egress"] for port in rule["ports"]} == {443, 6443, 53}


def test_its_account_may_not_read_secrets_nor_create_or_delete_anything_that_stays() -> None:
    rules = manifests.granted(SERVER, FOLDER)
    assert {rule.name for rule in rules if rule.resource != "configmaps"} == {manifests.ANY}
    kept = {(rule.verb, rule.name) for rule in rules if rule.resource == "configmaps"}
    assert kept == {(verb, keys.ENDED_JOBS) for verb in ("list", "watch")}
    assert {(rule.verb, rule.resource) for rule in rules if rule.verb not in ("get", "list", "watch")} == {
        ("patch", "workflows"),
        ("create", "tokenreviews"),
        ("create", "subjectaccessreviews"),
    }
    assert not any("*" in (rule.verb, rule.group, rule.resource) for rule in rules)


def test_in_a_namespace_with_shards_it_may_keep_their_ledgers() -> None:
    role, binding = manifests.objects(SHARDS)
    assert role["rules"] == [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "create", "update"]}]
    assert (role["kind"], binding["kind"]) == ("Role", "RoleBinding")
    assert not {"namespace"} & (role["metadata"].keys() | binding["metadata"].keys()), "kubectl apply -n TEAM"
    assert binding["roleRef"] | {"name": role["metadata"]["name"]} == binding["roleRef"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": SERVER, "namespace": NAMESPACE}]


def test_the_api_server_refuses_its_writes_to_all_configmaps_but_those_of_shards() -> None:
    policy = manifests.one("ValidatingAdmissionPolicy", SERVER, FOLDER)["spec"]
    (rule,) = policy["matchConstraints"]["resourceRules"]
    written = {*manifests.objects(SHARDS)[0]["rules"][0]["verbs"]} - {"get"}
    assert {operation.lower() for operation in rule["operations"]} == written
    assert policy["failurePolicy"] == "Fail"
    (condition,) = policy["matchConditions"]
    assert f"'system:serviceaccount:{NAMESPACE}:{SERVER}'" in condition["expression"]
    (validation,) = policy["validations"]
    assert f"startsWith('{PREFIX}')" in validation["expression"]
    binding = manifests.one("ValidatingAdmissionPolicyBinding", SERVER, FOLDER)["spec"]
    assert binding == {"policyName": SERVER, "validationActions": ["Deny"]}


def test_the_name_of_di_orchestrators_server_is_an_alias_of_this_one() -> None:
    folder = ROOT / "manifests" / "di-orchestrator"
    named = yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]
    assert sorted(named) == sorted(path.name for path in folder.glob("*.yaml") if path.name != "kustomization.yaml")
    alias, service = manifests.one("Service", "di-server", folder), one("Service")
    home, target = alias["metadata"]["namespace"], service["metadata"]
    assert home == manifests.one("Namespace", "di-system", folder)["metadata"]["name"]
    assert keys.AGGREGATOR_CONFIG.partition("/")[0] == home
    assert alias["spec"] == {
        "type": "ExternalName",
        "externalName": f"{target['name']}.{target['namespace']}.svc.cluster.local",
    }
    assert {port["port"] for port in service["spec"]["ports"]} == {8080, 8081}
