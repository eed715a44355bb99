"""What the API server says of pod templates, by a dry run: the rules that `diflow lint` does not know alone
(docs/lint.md), in its own words and with the paths of the DIJob."""

from __future__ import annotations

from typing import Any

import pytest

from diflow import DIJob, InvalidError
from diflow.jobs.checks import templates
from diflow.kube.kinds import POD_TEMPLATE
from tests.builders import job, manifest, task, template
from tests.dijob.test_pod_rules import WHOLE
from tests.e2e.live import Live

IN_SPEC = "spec.tasks[1].template.spec"
IN_CONTAINER = f"{IN_SPEC}.containers[0]"
DATA = [{"name": "data", "emptyDir": {}}]


def refused(live: Live, pod: dict[str, Any]) -> InvalidError:
    """What the API server says of a job whose second task has this template; diflow's own rules accept it."""
    tasks = [{"type": "learner", "template": template()}, {"type": "collector", "template": pod}]
    made = DIJob.from_manifest(manifest(tasks=tasks))
    with pytest.raises(InvalidError, match="the cluster refuses PodTemplate collector: ") as caught:
        templates.check(live.api, made, namespace=live.namespace, tell=pytest.fail)
    return caught.value


@pytest.mark.parametrize(
    ("container", "path"),
    [
        ({"imagePullPolicy": "Sometimes"}, "imagePullPolicy"),
        ({"terminationMessagePolicy": "Pipe"}, "terminationMessagePolicy"),
        ({"env": [{"name": "A", "valueFrom": {}}]}, "env[0].valueFrom"),
        ({"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.nothing"}}}]},
         "env[0].valueFrom.fieldRef.fieldPath"),
        ({"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "S", "key": "k"}}}]},
         "env[0].valueFrom.secretKeyRef.name"),
        ({"env": [{"name": "A", "valueFrom": {"resourceFieldRef": {"resource": "limits.disk"}}}]},
         "env[0].valueFrom.resourceFieldRef.resource"),
        ({"envFrom": [{}]}, "envFrom"),
        ({"resources": {"limits": {"hugepages-2Mi": "3Mi", "cpu": 1}}}, "resources.limits.hugepages-2Mi"),
        ({"resources": {"claims": [{"name": "gpu"}]}}, "resources.claims[0]"),
        ({"volumeMounts": [{"name": "data", "mountPath": "/x", "subPath": "../y"}]}, "volumeMounts.subPath"),
        ({"volumeMounts": [{"name": "data", "mountPath": "/x", "mountPropagation": "Bidirectional"}]},
         "volumeMounts.mountPropagation"),
        ({"volumeDevices": [{"name": "data", "devicePath": "/dev/x"}]}, "volumeDevices[0].name"),
        ({"livenessProbe": {}}, "livenessProbe"),
        ({"livenessProbe": {"exec": {"command": []}}}, "livenessProbe.exec.command"),
        ({"livenessProbe": {"tcpSocket": {"port": 0}}}, "livenessProbe.tcpSocket.port"),
        ({"livenessProbe": {"tcpSocket": {"port": 1}, "successThreshold": 2}}, "livenessProbe.successThreshold"),
        ({"livenessProbe": {"httpGet": {"port": "Not A Port"}}}, "livenessProbe.httpGet.port"),
        ({"lifecycle": {"preStop": {"sleep": {"seconds": 31}}}}, "lifecycle.preStop.sleep"),
        ({"securityContext": {"runAsUser": -1}}, "securityContext.runAsUser"),
        ({"securityContext": {"privileged": True, "allowPrivilegeEscalation": False}},
         "securityContext"),
        ({"securityContext": {"seccompProfile": {"type": "Localhost"}}},
         "securityContext.seccompProfile.localhostProfile"),
    ],
)  # fmt: skip
def test_a_container_that_could_not_run_is_refused_by_its_path(
    live: Live, container: dict[str, Any], path: str
) -> None:
    assert refused(live, template(container=container, volumes=DATA)).path == f"{IN_CONTAINER}.{path}"


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "a", "whenUnsatisfiable": "Later"}]},
         "topologySpreadConstraints[0].whenUnsatisfiable"),
        ({"volumes": [{"name": "data", "secret": {"secretName": "s", "defaultMode": 512}}]},
         "volumes[0].secret.defaultMode"),
        ({"volumes": [{"name": "data", "nfs": {"server": "s", "path": "relative"}}]}, "volumes[0].nfs.path"),
        ({"initContainers": [{"name": "a", "image": "x", "livenessProbe": {"tcpSocket": {"port": 1}}}]},
         "initContainers[0].livenessProbe"),
        ({"tolerations": [{"key": "a", "operator": "Is"}]}, "tolerations[0].operator"),
        ({"hostAliases": [{"ip": "1.2.3"}]}, "hostAliases[0].ip"),
        ({"dnsPolicy": "None"}, "dnsConfig"),
        ({"dnsPolicy": "Mine"}, "dnsPolicy"),
        ({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}}},
         "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"),
        ({"securityContext": {"fsGroup": 2**31}}, "securityContext.fsGroup"),
        ({"hostNetwork": True, "securityContext": {"sysctls": [{"name": "net/ipv4/ip_forward", "value": "1"}]}},
         "securityContext.sysctls[0].name"),
        ({"hostUsers": False, "hostNetwork": True}, "hostNetwork"),
    ],
)  # fmt: skip
def test_a_pod_that_could_not_run_is_refused_by_its_path(live: Live, spec: dict[str, Any], path: str) -> None:
    assert refused(live, template(**spec)).path == f"{IN_SPEC}.{path}"


def test_a_volume_of_the_job_is_refused_by_the_path_that_it_has_there(live: Live) -> None:
    volumes = ({"name": "a", "emptyDir": {}}, {"name": "b", "hostPath": {"path": "/a/../b"}})
    with pytest.raises(InvalidError, match=r"must not contain '\.\.'") as caught:
        templates.check(live.api, job(volumes=volumes), namespace=live.namespace)
    assert caught.value.path == "spec.volumes[1].hostPath.path"


def test_a_template_with_much_in_it_is_taken_and_nothing_is_stored(live: Live) -> None:
    templates.check(live.api, job(task(**WHOLE)), namespace=live.namespace, tell=pytest.fail)
    assert live.api.list_all(POD_TEMPLATE, namespace=live.namespace) == []


def test_a_job_that_is_refused_is_not_created(live: Live, tmp_path: Any) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(job(task(dnsPolicy="Mine"), name="strange").to_yaml())
    for command in (("submit",), ("submit", "--dry-run=server"), ("submit", "--as", "dijob"), ("lint", "--cluster")):
        said = live.diflow(*command, str(file))
        assert said.code == 2
        assert "spec.tasks[0].template.spec.dnsPolicy: the cluster refuses PodTemplate learner: Unsupported value" in (
            said.err
        )
    assert live.get("workflows")["items"] == []
