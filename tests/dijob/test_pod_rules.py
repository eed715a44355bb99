"""What Kubernetes or Argo would refuse later is refused by the model at once, with the DIJob's own path."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from diflow import DIJob, InvalidError
from diflow.workflows import render
from tests.builders import job, manifest, task, template

IN_CONTAINER = "spec.tasks[1].template.spec.containers[0]"
IN_SPEC = "spec.tasks[1].template.spec"


def refused(pod: dict[str, Any]) -> InvalidError:
    """The complaint about a job whose second task has this template."""
    tasks = [{"type": "learner", "template": template()}, {"type": "collector", "template": pod}]
    with pytest.raises(InvalidError) as caught:
        DIJob.from_manifest(manifest(tasks=tasks))
    return caught.value


def accepted(pod: dict[str, Any]) -> DIJob:
    return DIJob.from_manifest(manifest(tasks=[{"type": "collector", "template": pod}]))


@pytest.mark.parametrize(
    ("container", "path"),
    [
        ({"image": None}, "image"),
        ({"image": ""}, "image"),
        ({"image": " x"}, "image"),
        ({"image": "{{workflow.name}}"}, "image"),
        ({"image": 3}, "image"),
        ({"name": "My_Container"}, "name"),
        ({"args": ["a\0b"]}, "args[0]"),
        ({"args": ["\ud800"]}, "args[0]"),
        ({"args": [datetime.date(2020, 1, 1)]}, "args[0]"),
        ({"args": [b"x"]}, "args[0]"),
        ({"args": [None]}, "args[0]"),
        ({"tty": "yes"}, "tty"),
        ({"tty": 1}, "tty"),
        ({"env": [{"name": "A=B", "value": "x"}]}, "env[0].name"),
        ({"env": [{"name": "", "value": "x"}]}, "env[0].name"),
        ({"env": [{"name": "{{x}}", "value": "x"}]}, "env[0].name"),
        ({"env": [{"value": "x"}]}, "env[0].name"),
        ({"env": [{"name": "A", "value": "x", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]},
         "env[0].valueFrom"),
        ({"resources": {"requests": {"cpu": "lots"}}}, "resources.requests.cpu"),
        ({"resources": {"requests": {"cpu": float("inf")}}}, "resources.requests.cpu"),
        ({"resources": {"requests": {"cpu": True}}}, "resources.requests.cpu"),
        ({"resources": {"limits": {"memory": "-1Gi"}}}, "resources.limits.memory"),
        ({"resources": {"limits": {"memory": ""}}}, "resources.limits.memory"),
        ({"resources": {"limits": {"gpu": 1}}}, "resources.limits.gpu"),
        ({"resources": {"limits": {"nvidia.com/gpu": "500m"}}}, "resources.limits.nvidia.com/gpu"),
        ({"resources": {"requests": {"nvidia.com/gpu": 1}}}, "resources.requests.nvidia.com/gpu"),
        ({"resources": {"requests": {"cpu": 2}, "limits": {"cpu": 1}}}, "resources.requests.cpu"),
        ({"ports": [{"containerPort": 0}]}, "ports[0].containerPort"),
        ({"ports": [{"containerPort": 70000}]}, "ports[0].containerPort"),
        ({"ports": [{"containerPort": 2**40}]}, "ports[0].containerPort"),
        ({"ports": [{"containerPort": 80, "protocol": "ICMP"}]}, "ports[0].protocol"),
        ({"ports": [{"containerPort": 80, "name": "A"}]}, "ports[0].name"),
        ({"ports": [{"containerPort": 80}, {"containerPort": 80}]}, "ports[1].containerPort"),
        ({"ports": [{"containerPort": 80, "hostPort": 1}, {"containerPort": 81, "hostPort": 1}]}, "ports[1].hostPort"),
        ({"volumeMounts": [{"name": "no", "mountPath": "/x"}]}, "volumeMounts[0].name"),
        ({"volumeMounts": [{"name": "data", "mountPath": ""}]}, "volumeMounts[0].mountPath"),
        ({"volumeMounts": [{"name": "data", "mountPath": "/x"}] * 2}, "volumeMounts[1].mountPath"),
        ({"volumeMounts": [{"name": "data", "mountPath": "/var/run/argo"}]}, "volumeMounts[0].mountPath"),
        ({"volumeMounts": [{"name": "data", "mountPath": "/var/run/argo/"}]}, "volumeMounts[0].mountPath"),
        ({"volumeMounts": [{"name": "data", "mountPath": "/var/run/argo/x"}]}, "volumeMounts[0].mountPath"),
        ({"livenessProbe": {"tcpSocket": {"port": 1}, "periodSeconds": "5"}}, "livenessProbe.periodSeconds"),
        ({"restartPolicy": "Always"}, "restartPolicy"),
        ({"securityContext": {"runAsUser": "1000"}}, "securityContext.runAsUser"),
    ],
)  # fmt: skip
def test_a_container_that_could_not_run_is_refused_by_its_path(container: dict[str, Any], path: str) -> None:
    pod = template(container=container, volumes=[{"name": "data", "emptyDir": {}}])
    assert refused(pod).path == f"{IN_CONTAINER}.{path}"


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"activeDeadlineSeconds": 0}, "activeDeadlineSeconds"),
        ({"activeDeadlineSeconds": -5}, "activeDeadlineSeconds"),
        ({"activeDeadlineSeconds": "60"}, "activeDeadlineSeconds"),
        ({"activeDeadlineSeconds": 2**31}, "activeDeadlineSeconds"),
        ({"terminationGracePeriodSeconds": "30"}, "terminationGracePeriodSeconds"),
        ({"terminationGracePeriodSeconds": -1}, "terminationGracePeriodSeconds"),
        ({"hostNetwork": "yes"}, "hostNetwork"),
        ({"priority": "5"}, "priority"),
        ({"priority": 5}, "priority"),
        ({"preemptionPolicy": "Never"}, "preemptionPolicy"),
        ({"overhead": {"cpu": "1"}}, "overhead"),
        ({"resources": {"limits": {"cpu": "1"}}}, "resources"),
        ({"topologySpreadConstraints": "zone"}, "topologySpreadConstraints"),
        ({"topologySpreadConstraints": [{"maxSkew": "1", "topologyKey": "a", "whenUnsatisfiable": "DoNotSchedule"}]},
         "topologySpreadConstraints[0].maxSkew"),
        ({"topologySpreadConstraints": [{"topologyKey": "a"}]}, "topologySpreadConstraints[0].maxSkew"),
        ({"readinessGates": [{"conditionType": 5}]}, "readinessGates[0].conditionType"),
        ({"readinessGates": [5]}, "readinessGates[0]"),
        ({"schedulingGates": [{"name": "a b"}]}, "schedulingGates[0].name"),
        ({"volumes": [{"name": "data", "emptyDir": {}}] * 2}, "volumes[1].name"),
        ({"volumes": [{"name": "Data", "emptyDir": {}}]}, "volumes[0].name"),
        ({"volumes": [{"name": "var-run-argo", "emptyDir": {}}]}, "volumes[0].name"),
        ({"volumes": [{"name": "data", "emptyDir": {}, "hostPath": {"path": "/"}}]}, "volumes[0]"),
        ({"volumes": [{"name": "data", "floppyDisk": {}}]}, "volumes[0]"),
        ({"volumes": [{"name": "data", "emptyDir": {"sizeLimit": "big"}}]}, "volumes[0].emptyDir.sizeLimit"),
        ({"volumes": [{"name": "data", "ephemeral": {"volumeClaimTemplate": {"spec": {
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi", "other": "s"}}}}}}]},
         "volumes[0].ephemeral.volumeClaimTemplate.spec.resources.requests.other"),
        ({"volumes": [{"name": "data", "configMap": {}}]}, "volumes[0].configMap.name"),
        ({"initContainers": [{"name": "a", "image": "x"}] * 2}, "initContainers[1].name"),
        ({"initContainers": [{"name": "di-container", "image": "x"}]}, "initContainers[0].name"),
        ({"initContainers": [{"name": "init", "image": "x"}]}, "initContainers[0].name"),
        ({"initContainers": [{"name": "a"}]}, "initContainers[0].image"),
        ({"nodeSelector": {"a": "b c"}}, "nodeSelector.a"),
        ({"nodeSelector": {"a": 1}}, "nodeSelector.a"),
        ({"tolerations": [{"operator": "Equal", "value": "x"}]}, "tolerations[0].operator"),
        ({"serviceAccountName": "No Such"}, "serviceAccountName"),
        ({"imagePullSecrets": [{}]}, "imagePullSecrets[0].name"),
        ({"securityContext": {"windowsOptions": {}}}, "securityContext.windowsOptions"),
        ({"os": {"name": "windows"}}, "os.name"),
    ],
)  # fmt: skip
def test_a_pod_that_could_not_run_is_refused_by_its_path(spec: dict[str, Any], path: str) -> None:
    assert refused(template(**spec)).path == f"{IN_SPEC}.{path}"


@pytest.mark.parametrize("name", ["wait", "main", "init", "artifact-plugin-x", "init-artifact-x"])
def test_a_sidecar_cannot_have_the_name_of_one_of_argos_containers(name: str | None) -> None:
    sidecar = {"name": name, "image": "x"}
    error = refused({"spec": {"containers": [*template()["spec"]["containers"], sidecar]}})
    assert error.path == f"{IN_SPEC}.containers[1].name"
    assert "used by Argo" in error.message


@pytest.mark.parametrize("name", ["main", "wait", "", None])
def test_the_work_itself_may_have_any_name_or_none_as_argo_calls_it_main(name: str | None) -> None:
    workflow = render(accepted(template(container={"name": name})))
    assert "name" not in next(t for t in workflow["spec"]["templates"] if t["name"] == "collector")["container"]


@pytest.mark.parametrize("sidecar", [{"image": "x"}, {"image": "x", "name": ""}])
def test_a_sidecar_needs_a_name(sidecar: dict[str, Any]) -> None:
    error = refused({"spec": {"containers": [*template()["spec"]["containers"], sidecar]}})
    assert error.path == f"{IN_SPEC}.containers[1].name"


def test_the_last_of_two_variables_of_one_name_wins() -> None:
    env = [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}, {"name": "A", "value": "3"}]
    templates = {one["name"]: one for one in render(accepted(template(container={"env": env})))["spec"]["templates"]}
    rendered = templates["collector"]["container"]["env"]
    assert [item for item in rendered if item["name"] in ("A", "B")] == [
        {"name": "B", "value": "2"},
        {"name": "A", "value": "3"},
    ]


def test_a_variable_that_is_used_between_two_values_of_it_is_named() -> None:
    env = [{"name": "A", "value": "1"}, {"name": "B", "value": "$(A)"}, {"name": "A", "value": "3"}]
    error = refused(template(container={"env": env}))
    assert error.path == f"{IN_CONTAINER}.env[1].value"
    assert "two different names" in error.message
    accepted(template(container={"env": [env[0], {"name": "B", "value": "$$(A)"}, env[2]]}))


def test_a_jobs_own_volume_may_be_mounted_by_a_task() -> None:
    mount = {"volumeMounts": [{"name": "shared", "mountPath": "/data"}]}
    made = job(task(container=mount), volumes=({"name": "shared", "emptyDir": {}},))
    assert made.volumes[0]["name"] == "shared"
    with pytest.raises(InvalidError, match="there is no volume named 'shared'"):
        job(task(container=mount))


def test_a_volume_without_a_source_is_a_folder_of_the_pods_own_as_kubernetes_has_it() -> None:
    accepted(template(volumes=[{"name": "data"}, {"name": "scratch", "emptyDir": None}]))


def test_no_volumes_may_be_written_as_an_empty_list() -> None:
    assert DIJob.from_manifest(manifest(volumes=[])).volumes == ()


@pytest.mark.parametrize(
    ("volumes", "path"),
    [
        ([{"name": "a", "emptyDir": {}}, {"name": "a", "emptyDir": {}}], "spec.volumes[1].name"),
        ([{"name": "a", "hostPath": {"path": ""}}], "spec.volumes[0].hostPath.path"),
        ([{"emptyDir": {}}], "spec.volumes[0].name"),
    ],
)
def test_the_jobs_own_volumes_are_checked_as_a_pods_are(volumes: list[dict[str, Any]], path: str) -> None:
    with pytest.raises(InvalidError) as caught:
        DIJob.from_manifest(manifest(volumes=volumes))
    assert caught.value.path == path


SYSTEM_KEYS = [
    "workflows.argoproj.io/completed",
    "workflows.argoproj.io/controller-instanceid",
    "workflows.argoproj.io/workflow-archiving-status",
    "argoproj.io/x",
    "diflow/job",
    "diflow/part",
    "diflow/priority",
    "diengine/job",
    "diengine.opendilab.org/x",
]


@pytest.mark.parametrize("key", [*SYSTEM_KEYS, "app.kubernetes.io/managed-by"])
def test_a_label_of_argos_or_diflows_own_is_refused_on_jobs_and_templates(key: str) -> None:
    with pytest.raises(InvalidError) as caught:
        DIJob.from_manifest({**manifest(), "metadata": {"name": "job", "labels": {key: "x"}}})
    assert caught.value.path == f"metadata.labels.{key}"
    error = refused({**template(), "metadata": {"labels": {key: "x"}}})
    assert error.path == f"spec.tasks[1].template.metadata.labels.{key}"


@pytest.mark.parametrize("key", [*SYSTEM_KEYS, "diflow/submitted", "diflow/allocation", "Diflow/dijob"])
def test_an_annotation_of_argos_or_diflows_own_is_refused_on_jobs_and_templates(key: str) -> None:
    with pytest.raises(InvalidError) as caught:
        DIJob.from_manifest({**manifest(), "metadata": {"name": "job", "annotations": {key: "x"}}})
    assert caught.value.path == f"metadata.annotations.{key}"
    error = refused({**template(), "metadata": {"annotations": {key: "x"}}})
    assert error.path == f"spec.tasks[1].template.metadata.annotations.{key}"


@pytest.mark.parametrize("key", ["kubernetes.io/config.mirror", "controller.kubernetes.io/pod-deletion-cost"])
def test_an_annotation_by_which_kubernetes_changes_a_pod_is_refused(key: str) -> None:
    error = refused({**template(), "metadata": {"annotations": {key: "x"}}})
    assert error.path == f"spec.tasks[1].template.metadata.annotations.{key}"


def test_the_documented_annotations_and_others_of_the_users_own_are_kept() -> None:
    mine = {
        "diflow/adaptdl": "true",
        "workflows.argoproj.io/title": "My run",
        "workflows.argoproj.io/description": "of today",
        "prometheus.io/scrape": "true",
        "mydiflow/x": "1",
    }
    assert job(annotations=mine).annotations == mine


@pytest.mark.parametrize(
    ("labels", "annotations", "path"),
    [
        ({"a b": "x"}, {}, "metadata.labels.a b"),
        ({"a": "b c"}, {}, "metadata.labels.a"),
        ({"a": "x" * 64}, {}, "metadata.labels.a"),
        ({"a/b/c": "x"}, {}, "metadata.labels.a/b/c"),
        ({"x" * 64: "x"}, {}, f"metadata.labels.{'x' * 64}"),
        ({"a": 1}, {}, "metadata.labels.a"),
        ({}, {"a b": "x"}, "metadata.annotations.a b"),
        ({}, {"": "x"}, "metadata.annotations."),
        ({}, {"a": ["x"]}, "metadata.annotations.a"),
    ],
)
def test_labels_and_annotations_have_kubernetes_syntax(
    labels: dict[str, Any], annotations: dict[str, Any], path: str
) -> None:
    with pytest.raises(InvalidError) as caught:
        DIJob.from_manifest({**manifest(), "metadata": {"name": "job", "labels": labels, "annotations": annotations}})
    assert caught.value.path == path


def test_a_template_that_contains_itself_is_refused() -> None:
    deep: dict[str, Any] = {}
    deep["x"] = deep
    assert refused(template(nodeSelector=deep)).message.endswith("levels deep")


WHOLE: dict[str, Any] = {
    "initContainers": [
        {"name": "fetch", "image": "x", "restartPolicy": "Always", "startupProbe": {"exec": {"command": ["true"]}}}
    ],
    "terminationGracePeriodSeconds": 60,
    "shareProcessNamespace": True,
    "topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "minDomains": 2,
         "labelSelector": {"matchLabels": {"a": "b"}}, "matchLabelKeys": ["c"]}
    ],
    "readinessGates": [{"conditionType": "example.com/ready"}],
    "dnsConfig": {"nameservers": ["10.0.0.1"], "searches": ["a_b.c."], "options": [{"name": "ndots", "value": "2"}]},
    "affinity": {
        "podAntiAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 5, "podAffinityTerm": {"topologyKey": "zone", "labelSelector": {}}}
            ]
        }
    },
    "volumes": [
        {"name": "data", "projected": {"sources": [{"secret": {"name": "c", "items": [{"key": "k", "path": "p"}]}}]}},
        {"name": "scratch", "emptyDir": {"sizeLimit": "1Gi", "medium": "Memory"}},
    ],
    "container": {
        "resources": {"limits": {"nvidia.com/gpu": 1, "cpu": "1.5", "memory": "1e9"}, "requests": {"cpu": "500m"}},
        "ports": [{"containerPort": 80, "name": "http"}],
        "livenessProbe": {"httpGet": {"port": "http", "path": "/"}, "periodSeconds": 5},
        "volumeMounts": [{"name": "data", "mountPath": "/data", "readOnly": True, "recursiveReadOnly": "IfPossible"}],
        "env": [{"name": "with.dots and blanks", "value": "x"}],
    },
}  # fmt: skip


def test_a_template_with_much_in_it_is_taken_whole() -> None:
    made = accepted(template(**WHOLE))
    assert made.tasks[0].template["spec"]["topologySpreadConstraints"] == WHOLE["topologySpreadConstraints"]
    assert made.tasks[0].template["spec"]["containers"][0]["livenessProbe"]["httpGet"]["port"] == "http"
