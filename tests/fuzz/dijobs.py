"""Random DIJobs from a seed: most are valid or nearly valid, as users write them; some are hostile.

A job is put together from fields of a pod that fit together, and then changed in none, one or a few places: a value of
another type or form, a field too many or too few, an item twice.
"""

from __future__ import annotations

import copy
import random
from typing import Any

_ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 7, 101, 600, 70000, 2**31, 2**63, -(2**63) - 1, 1.5, 3.0, "", " ", "x", "X", "-x",
    "a_b", "a.b", "a/b", "a/b/c", "../x", "..x", "a/../b", "/abs", ".", "{{x}}", "{{=1+1}}", "$(A)", "true", "5", "-5",
    "500m", "1.5", "1e3", "1Gi", "lots", ".inf", "é", "x" * 16, "x" * 64, "x" * 254, "a\nb", " x", "x ", [], {}, ["x"],
    [None], [{}], ["x", "x"], {"x": "y"}, {"x": 1}, {"": ""}, "None", "Always", "Never", "Localhost", "10.0.0.1", "::1",
)  # fmt: skip
# For an enumeration: other values that are valid or nearly valid.
_BY_KEY: dict[str, tuple[Any, ...]] = {
    "accessModes": (["ReadWriteOnce"], ["ReadWriteOncePod", "ReadWriteOnce"], [], ["Once"]),
    "activeDeadlineSeconds": (1, 0, -1, 60, "60", 2**31 - 1, 2**31),
    "allowPrivilegeEscalation": (True, False),
    "apiVersion": ("v1", "v2", ""),
    "args": ([""], ["{{x}}"], ["a", 1], "x", []),
    "conditionType": ("ready", "example.com/ready", "a b", ""),
    "containerName": ("di-container", "none", ""),
    "containerPort": (1, 80, 65535, 65536, 0, "80"),
    "cpu": ("1", 1, 0.5, "100m", "0", "-1", "1x", "1e-3", "2.", ".5", "", "1Ki", "100u"),
    "defaultMode": (0, 0o644, 0o777, 0o1000, -1, "0644"),
    "divisor": ("1", "1m", "1Mi", "2", "0", "1Ki", "1k", ""),
    "dnsPolicy": ("ClusterFirst", "None", "Default", "", "Other"),
    "effect": ("NoSchedule", "NoExecute", "PreferNoSchedule", "", "Other"),
    "expirationSeconds": (599, 600, 2**32, 2**32 + 1, 0),
    "fieldPath": (
        "metadata.name", "metadata.labels['a']", "metadata.annotations['A.b/c']", "metadata.labels", "spec.nodeName",
        "metadata.uid", "status.podIP", "status.phase", "metadata.labels['a b']", "metadata.name['x']", "spec.x", "",
    ),
    "fsGroupChangePolicy": ("OnRootMismatch", "Always", "", "Never"),
    "hostPort": (80, 81, 0, 65536, -1),
    "image": ("x", "", " x", None, "a/b:c@d", "{{x}}"),
    "imagePullPolicy": ("Always", "Never", "IfNotPresent", "", "never"),
    "key": ("a", "a b", "metadata.name", "example.com/a", "", ".x", "..", "..x"),
    "limits": ({"cpu": "1"}, {"nvidia.com/gpu": 1}, {"gpu": 1}, {"cpu": "1", "hugepages-2Mi": "4Mi"}, {"storage": "1"},
               {"hugepages-2Mi": "4Mi"}, {"requests.example.com/x": "1"}, {"example.com/x": "1500m"}, {}),
    "localhostProfile": ("x", "/x", "../x", ""),
    "matchLabelKeys": (["a"], ["c"], ["a b"], ["c", "c"]),
    "medium": ("", "Memory", "HugePages", "Disk"),
    "minDomains": (1, 0, 2),
    "mountPath": ("/x", "x", "/x/", "/data", "", "/a:b", "{{x}}", "/var/run/argo"),
    "mountPropagation": ("None", "HostToContainer", "Bidirectional", ""),
    "name": ("a", "b", "A", "data", "scratch", "main", "wait", "di-container", "x" * 63, "x" * 64, "a.b", ""),
    "nodeAffinityPolicy": ("Honor", "Ignore", "", "Maybe"),
    "nodeName": ("node-1", "Node", ""),
    "operator": ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Equal", "", "in"),
    "path": ("p", "a/b", "/a", "../a", "..a", "", "a/..", "..", "/"),
    "port": (80, 0, 65536, "http", "HTTP", "a-", "a--b", "1", "x" * 16, ""),
    "preemptionPolicy": ("PreemptLowerPriority", "Never", "", "Other"),
    "priorityClassName": ("diflow-normal", "", "A B"),
    "procMount": ("Default", "Unmasked", ""),
    "protocol": ("TCP", "UDP", "SCTP", "", "tcp"),
    "recursiveReadOnly": ("Disabled", "Enabled", "IfPossible", ""),
    "requests": ({"cpu": "2"}, {"nvidia.com/gpu": 1}, {"memory": "1"}, {"nvidia.com/gpu": 2}, {"storage": "1"}),
    "resource": ("limits.cpu", "requests.memory", "limits.hugepages-2Mi", "cpu", "limits.gpu", ""),
    "restartPolicy": ("Always", "Never", "NotRequired", "RestartContainer", "", "OnFailure"),
    "runAsUser": (0, 1000, -1, 2**31 - 1, 2**31),
    "scheme": ("HTTP", "HTTPS", "", "http"),
    "seconds": (0, 5, 30, 31, -1),
    "serviceAccountName": ("default", "Default", ""),
    "sizeLimit": ("1Gi", "0", "-1", 5, "x"),
    "subPath": ("a", "/a", "a/../b", "..", ""),
    "subPathExpr": ("$(A)", "/a", ""),
    "successThreshold": (0, 1, 2, -1),
    "terminationGracePeriodSeconds": (0, 1, 30, -1, "30"),
    "terminationMessagePolicy": ("File", "FallbackToLogsOnError", "", "file"),
    "topologyKey": ("zone", "", "a b", "example.com/zone"),
    "type": ("RuntimeDefault", "Localhost", "Unconfined", "", "Directory", "File", "Other"),
    "value": ("x", "", "$(A)", "$(B)", "x y", "{{x}}", 1),
    "values": (["a"], [], ["a", "b"], ["a b"], ["1"]),
    "volumeMode": ("Block", "Filesystem", ""),
    "weight": (1, 100, 0, 101),
    "whenUnsatisfiable": ("DoNotSchedule", "ScheduleAnyway", "", "Never"),
}  # fmt: skip


class Maker:
    """Generates jobs from a seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def template(self) -> dict[str, Any]:
        """A pod template, valid or nearly valid."""
        made = {"spec": self._pod()}
        if self._maybe(0.2):
            made["metadata"] = {"labels": {"app": "x", "c": "d"}, "annotations": {"example.com/note": "any text"}}
        return self._changed(made)

    def manifest(self) -> dict[str, Any]:
        """A DIJob of one to three tasks."""
        kinds = self.random.sample(["learner", "collector", "evaluator"], self.random.choice([1, 1, 1, 2, 3]))
        tasks = [
            {"type": kind, "replicas": self.random.choice([1, 2, 5]), "template": self.template()} for kind in kinds
        ]
        spec: dict[str, Any] = {"tasks": tasks}
        if self._maybe(0.2):
            spec |= self._changed({"volumes": [{"name": "shared", "emptyDir": {}}]})
        return {
            "apiVersion": "diengine.opendilab.org/v2alpha1",
            "kind": "DIJob",
            "metadata": {"name": "job", "namespace": "lint"},
            "spec": spec,
        }

    def hostile(self) -> Any:
        """A manifest changed at any place, outside the tasks too."""
        made = self.manifest()
        made["metadata"] |= {"labels": {"a": "b"}, "annotations": {"a": "b"}}
        made["spec"] |= {
            "priority": "normal",
            "preemptible": True,
            "backoffLimit": 2,
            "scheduling": "gang",
            "queue": "q",
        }
        for _ in range(self.random.choice([1, 2, 5])):
            made = self._mutated(made)
        return made

    def _maybe(self, chance: float) -> bool:
        return self.random.random() < chance

    def _some(self, fields: dict[str, Any], chance: float) -> dict[str, Any]:
        """Some of the fields. Each value is a function, which is called only for the chosen fields."""
        return {name: make() for name, make in fields.items() if self._maybe(chance)}

    def _pod(self) -> dict[str, Any]:
        volumes = [
            self._volume(name) for name in self.random.sample(["data", "scratch", "conf"], self.random.randint(0, 3))
        ]
        names = [volume["name"] for volume in volumes]
        containers = [self._container("di-container", names)]
        if self._maybe(0.25):
            containers.append(self._container("side", names))
        pod: dict[str, Any] = {"containers": containers}
        if volumes:
            pod["volumes"] = volumes
        if self._maybe(0.25):
            pod["initContainers"] = [self._init_container(names)]
        pick = self.random.choice
        return pod | self._some(
            {
                "activeDeadlineSeconds": lambda: pick([60, 3600]),
                "affinity": self._affinity,
                "automountServiceAccountToken": lambda: pick([True, False]),
                "dnsConfig": lambda: {"nameservers": ["10.0.0.1"], "searches": ["a.b"], "options": [{"name": "ndots"}]},
                "dnsPolicy": lambda: pick(["ClusterFirst", "Default"]),
                "enableServiceLinks": lambda: pick([True, False]),
                "hostAliases": lambda: [{"ip": "10.0.0.1", "hostnames": ["a.b"]}],
                "hostNetwork": lambda: pick([True, False]),
                "hostIPC": lambda: pick([True, False]),
                "hostPID": lambda: pick([True, False]),
                "hostUsers": lambda: pick([True, False]),
                "imagePullSecrets": lambda: [{"name": "registry"}],
                "nodeSelector": lambda: {"disk": "ssd", "example.com/zone": "a"},
                "preemptionPolicy": lambda: "PreemptLowerPriority",
                "priorityClassName": lambda: "diflow-normal",
                "readinessGates": lambda: [{"conditionType": "example.com/ready"}],
                "resourceClaims": lambda: [{"name": "gpu", "resourceClaimName": "c"}],
                "schedulerName": lambda: "mine",
                "schedulingGates": lambda: [{"name": "example.com/gate"}],
                "securityContext": self._pod_security,
                "serviceAccountName": lambda: "default",
                "setHostnameAsFQDN": lambda: pick([True, False]),
                "shareProcessNamespace": lambda: pick([True, False]),
                "terminationGracePeriodSeconds": lambda: pick([0, 5, 60]),
                "tolerations": lambda: [
                    pick([
                        {"operator": "Exists"},
                        {"key": "gpu", "operator": "Equal", "value": "yes", "effect": "NoSchedule"},
                        {"key": "gpu", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5},
                    ])
                ],
                "topologySpreadConstraints": self._spread,
            },
            0.07,
        )  # fmt: skip

    def _container(self, name: str, volumes: list[str]) -> dict[str, Any]:
        pick = self.random.choice
        container: dict[str, Any] = {"name": name, "image": "busybox", "command": ["sh", "-c", "true"]}
        if volumes and self._maybe(0.7):
            container["volumeMounts"] = [
                {"name": volume, "mountPath": f"/{volume}"}
                | self._some(
                    {
                        "readOnly": lambda: True,
                        self.random.choice(["subPath", "subPathExpr"]): lambda: "a/$(A)",
                        "mountPropagation": lambda: "HostToContainer",
                        "recursiveReadOnly": lambda: "Disabled",
                    },
                    0.1,
                )
                for volume in volumes
            ]
        return container | self._some(
            {
                "args": lambda: ["a", "{{b}}"],
                "env": lambda: [{"name": "A", "value": "1"}, self._env()],
                "envFrom": lambda: [
                    pick([{"configMapRef": {"name": "c"}}, {"secretRef": {"name": "s"}, "prefix": "P_"}])
                ],
                "imagePullPolicy": lambda: pick(["Always", "IfNotPresent"]),
                "lifecycle": lambda: {"preStop": self._handler(["exec", "httpGet", "sleep"])},
                "livenessProbe": self._probe,
                "ports": lambda: [{"containerPort": 80, "name": "http"}, {"containerPort": 81, "hostPort": 81}],
                "readinessProbe": self._probe,
                "resizePolicy": lambda: [{"resourceName": "cpu", "restartPolicy": "NotRequired"}],
                "resources": self._resources,
                "securityContext": self._security,
                "startupProbe": self._probe,
                "stdin": lambda: True,
                "terminationMessagePath": lambda: "/tmp/x",
                "terminationMessagePolicy": lambda: "File",
                "tty": lambda: False,
                "workingDir": lambda: "/",
            },
            0.12,
        )  # fmt: skip

    def _init_container(self, volumes: list[str]) -> dict[str, Any]:
        made = self._container("prepare", volumes)
        if self._maybe(0.3):
            return {**made, "restartPolicy": "Always"}
        for name in ("lifecycle", "livenessProbe", "readinessProbe", "startupProbe"):
            made.pop(name, None)
        return made

    def _env(self) -> dict[str, Any]:
        return self.random.choice([
            {"name": "A", "value": "2"},
            {"name": "B", "value": "$(A)"},
            {"name": "B", "value": "{{x}}"},
            {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "B", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}}},
            {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k", "optional": True}}},
            {"name": "B", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k.x"}}},
        ])  # fmt: skip

    def _handler(self, kinds: list[str]) -> dict[str, Any]:
        handlers: dict[str, Any] = {
            "exec": {"command": ["true"]},
            "httpGet": {
                "port": self.random.choice([80, "http"]),
                "path": "/",
                "httpHeaders": [{"name": "X-A", "value": "b"}],
            },
            "tcpSocket": {"port": self.random.choice([80, "http"])},
            "grpc": {"port": 80},
            "sleep": {"seconds": 0},
        }
        kind = self.random.choice(kinds)
        return {kind: handlers[kind]}

    def _probe(self) -> dict[str, Any]:
        numbers = ("initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold")
        return self._handler(["exec", "httpGet", "tcpSocket", "grpc"]) | self._some(
            {name: lambda: 1 for name in numbers}, 0.3
        )

    def _resources(self) -> dict[str, Any]:
        return self.random.choice([
            {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"cpu": 1, "memory": "2Gi"}},
            {"limits": {"nvidia.com/gpu": 1}},
            {"requests": {"ephemeral-storage": "1Gi", "cpu": 0.5}},
            {"limits": {"hugepages-2Mi": "4Mi", "memory": "1Gi"}, "requests": {"hugepages-2Mi": "4Mi"}},
        ])  # fmt: skip

    def _security(self) -> dict[str, Any]:
        pick = self.random.choice
        return self._some(
            {
                "allowPrivilegeEscalation": lambda: pick([True, False]),
                "privileged": lambda: pick([True, False]),
                "capabilities": lambda: {"drop": ["ALL"], "add": [pick(["NET_ADMIN", "CAP_SYS_ADMIN"])]},
                "readOnlyRootFilesystem": lambda: True,
                "runAsUser": lambda: pick([0, 1000]),
                "runAsGroup": lambda: 1000,
                "runAsNonRoot": lambda: pick([True, False]),
                "seccompProfile": lambda: {"type": "RuntimeDefault"},
                "appArmorProfile": lambda: {"type": "Unconfined"},
                "seLinuxOptions": lambda: {"level": "s0:c1,c2"},
                "procMount": lambda: "Default",
            },
            0.25,
        )

    def _pod_security(self) -> dict[str, Any]:
        pick = self.random.choice
        return self._some(
            {
                "fsGroup": lambda: 1000,
                "fsGroupChangePolicy": lambda: "Always",
                "runAsUser": lambda: pick([0, 1000]),
                "runAsNonRoot": lambda: pick([True, False]),
                "supplementalGroups": lambda: [1, 2],
                "supplementalGroupsPolicy": lambda: "Merge",
                "seccompProfile": lambda: {"type": "Localhost", "localhostProfile": "a/b.json"},
                "sysctls": lambda: [{"name": "kernel.shm_rmid_forced", "value": "0"}],
            },
            0.25,
        )

    def _affinity(self) -> dict[str, Any]:
        node = {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]}
        pod = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"a": "b"}}}
        required, preferred = (
            "requiredDuringSchedulingIgnoredDuringExecution",
            "preferredDuringSchedulingIgnoredDuringExecution",
        )
        return self._some(
            {
                "nodeAffinity": lambda: {
                    required: {"nodeSelectorTerms": [node, {"matchFields": [
                        {"key": "metadata.name", "operator": "In", "values": ["node-1"]}]}]},
                    preferred: [{"weight": 5, "preference": copy.deepcopy(node)}],
                },
                "podAffinity": lambda: {required: [copy.deepcopy(pod) | {"namespaces": ["x"]}]},
                "podAntiAffinity": lambda: {preferred: [{"weight": 1, "podAffinityTerm": copy.deepcopy(pod)}]},
            },
            0.5,
        )  # fmt: skip

    def _spread(self) -> list[dict[str, Any]]:
        rule = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
        more = {
            "minDomains": lambda: 2,
            "nodeAffinityPolicy": lambda: "Honor",
            "nodeTaintsPolicy": lambda: "Ignore",
        }
        selector = {"labelSelector": {"matchLabels": {"a": "b"}}, "matchLabelKeys": ["c"]}
        return [rule | self._some(more, 0.3) | (selector if self._maybe(0.5) else {})]

    def _volume(self, name: str) -> dict[str, Any]:
        item = {"key": "k", "path": "a/b"}
        claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
        file = {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}
        return {"name": name} | self.random.choice([
            {"emptyDir": {}},
            {"emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
            {"hostPath": {"path": "/x", "type": "DirectoryOrCreate"}},
            {"configMap": {"name": "c", "items": [item], "defaultMode": 0o644}},
            {"secret": {"secretName": "s", "items": [item], "optional": True}},
            {"persistentVolumeClaim": {"claimName": "c", "readOnly": True}},
            {"nfs": {"server": "s", "path": "/x"}},
            {"csi": {"driver": "example.com", "volumeAttributes": {"a": "b"}}},
            {"ephemeral": {"volumeClaimTemplate": {"spec": claim}}},
            {"downwardAPI": {"items": [file]}},
            {"projected": {"sources": [
                {"configMap": {"name": "c", "items": [item]}},
                {"downwardAPI": {"items": [file]}},
                {"serviceAccountToken": {"path": "token", "expirationSeconds": 3600}},
            ]}},
        ])  # fmt: skip

    def _changed(self, made: dict[str, Any]) -> dict[str, Any]:
        for _ in range(self.random.choice([0, 0, 0, 1, 1, 1, 1, 2])):
            made = self._mutated(made)
        return made

    def _mutated(self, made: Any) -> Any:
        made = copy.deepcopy(made)
        places = list(_places(made))
        if not places:
            return made
        holder, key = self.random.choice(places)
        way = self.random.random()
        if way < 0.1:
            del holder[key]
        elif way < 0.2 and isinstance(holder, list):
            holder.append(copy.deepcopy(holder[key]))
        elif way < 0.3 and isinstance(holder, dict):
            other, name = self.random.choice(places)
            if isinstance(name, str):
                holder[name] = copy.deepcopy(other[name])
        elif way < 0.85 and key in _BY_KEY:
            holder[key] = copy.deepcopy(self.random.choice(_BY_KEY[key]))
        else:
            holder[key] = copy.deepcopy(self.random.choice(_ODD))
        return made


def _places(value: Any) -> Any:
    """Every place in plain data that holds a value: its mapping or list, and its key."""
    keys = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in list(keys):
        yield value, key
        yield from _places(value[key])
