"""What is known of a pod template without a cluster, beyond types: what Argo and diflow do not take, and the frequent
mistakes (docs/lint.md).

The API server accepts a Workflow with invalid pods: errors appear only when Argo creates the pod, and the job waits or
fails without a visible reason. All the rules of Kubernetes are known to the API server alone, which is asked before a
job is created (`diflow.jobs.checks.templates`). A rule of Argo's or diflow's own says so in its message.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from diflow.common import keys
from diflow.common.errors import InvalidError
from diflow.common.limits import MOST_CONTAINERS
from diflow.dijob.pods import work_container
from diflow.dijob.rules import syntax
from diflow.dijob.rules.volumerules import check_volumes

_ARGO_CONTAINERS: Final = frozenset({"init", "main", "wait"})
_ARGO_PREFIXES: Final = ("artifact-plugin-", "init-artifact-")
_ARGO_FOLDER: Final = "/var/run/argo"
_CONTAINER_RESOURCES: Final = frozenset({"cpu", "memory", "ephemeral-storage"})
_HUGE: Final = "hugepages-"
_ADMITTED_BY_KUBERNETES: Final = {
    "priority": "is worked out by Kubernetes from the priority class, which is that of spec.priority",
    "resources": "is not known to the allocator: give resources to the containers",
}
_SET_BY_DIFLOW: Final = {
    "hostname": "is set by diflow: a replica is <job>-<task>-<index>, as DI_NODES has it (docs/jobs.md#host-names); "
    "leave it out",
    "subdomain": f"is set by diflow: the Service {keys.SERVICE} of the namespace resolves the names of all replicas "
    "(docs/jobs.md#host-names); leave it out",
}
_MOST_DEADLINE: Final = 2**31 - 1
_REFERENCE: Final = re.compile(r"\$\$|\$\(([^)]*)\)")


def check_pod(spec: Mapping[str, Any], path: str) -> None:
    """Check a pod's spec of valid types. Raises InvalidError with the path of the first invalid field.

    `check_mounts` checks whether the mounted volumes exist.
    """
    for name, why in (_ADMITTED_BY_KUBERNETES | _SET_BY_DIFLOW).items():
        if spec.get(name) not in (None, "", False):
            raise InvalidError(why, path=f"{path}.{name}")
    check_volumes(spec.get("volumes", ()), f"{path}.volumes")
    _check_containers(spec, path)
    _check_context(spec.get("securityContext", {}), f"{path}.securityContext")
    _check_identity(spec, path)
    _check_scheduling(spec, path)


def check_mounts(spec: Mapping[str, Any], shared: Iterable[Mapping[str, Any]], path: str) -> None:
    """Check that the mounted volumes are those of the task or of the job (`shared`)."""
    volumes = {v["name"] for v in (*shared, *spec.get("volumes", ()))}
    for kind in ("initContainers", "containers"):
        for i, container in enumerate(spec.get(kind, ())):
            for field in ("volumeMounts", "volumeDevices"):
                for j, mount in enumerate(container.get(field, ())):
                    if mount["name"] not in volumes:
                        raise InvalidError(
                            f"there is no volume named {mount['name']!r}: add it to the task's or the job's volumes",
                            path=f"{path}.{kind}[{i}].{field}[{j}].name",
                        )


def _check_containers(spec: Mapping[str, Any], path: str) -> None:
    containers, inits = spec["containers"], spec.get("initContainers", ())
    number = len(containers) + len(inits)
    if number > MOST_CONTAINERS:
        raise InvalidError(f"has {number} containers, at most {MOST_CONTAINERS} are allowed", path=path)
    work = work_container(containers)
    seen: set[str] = set()
    host_ports: set[tuple[str, str, int]] = set()
    for kind, group in (("containers", containers), ("initContainers", inits)):
        for i, container in enumerate(group):
            here = f"{path}.{kind}[{i}]"
            name = container.get("name", "")
            is_work = kind == "containers" and i == work  # Argo renames it to `main`
            if name or not is_work:
                syntax.dns_label(name, f"{here}.name")
            syntax.once(seen, name, f"there is more than one container named {name!r}", f"{here}.name")
            if not is_work and (name in _ARGO_CONTAINERS or name.startswith(_ARGO_PREFIXES)):
                raise InvalidError(f"the name {name!r} is used by Argo: choose another", path=f"{here}.name")
            _check_container(container, here)
            _check_restart(container, here, is_init=kind == "initContainers")
            _check_ports(
                container.get("ports", ()),
                f"{here}.ports",
                taken=host_ports if kind == "containers" else set(),
                on_host=bool(spec.get("hostNetwork")) and kind == "containers",
            )


def check_image(image: str, *, path: str) -> None:
    """Check the name of a container's image. Raises InvalidError."""
    if image != image.strip():
        raise InvalidError("begins or ends with a blank", path=path)
    if "{{" in image:
        raise InvalidError("cannot hold {{: Argo would read it as a template", path=path)


def _check_container(container: Mapping[str, Any], path: str) -> None:
    image = container.get("image")
    syntax.given(image, f"{path}.image")
    assert isinstance(image, str)
    check_image(image, path=f"{path}.image")
    _check_env(container.get("env", ()), f"{path}.env")
    _check_container_mounts(container, path)
    _check_resources(container.get("resources", {}), f"{path}.resources")
    _check_context(container.get("securityContext", {}), f"{path}.securityContext")


def _check_env(env: Sequence[Mapping[str, Any]], path: str) -> None:
    last = {item["name"]: i for i, item in enumerate(env)}
    shadowed: dict[str, int] = {}
    for i, item in enumerate(env):
        here = f"{path}[{i}]"
        syntax.env_name(item["name"], f"{here}.name")
        for name in references(item.get("value", "")):
            if name in shadowed and last[name] >= i:
                raise InvalidError(
                    f"uses {name!r}, which is set again after it: give the two different names", path=f"{here}.value"
                )
        if last[item["name"]] != i:
            shadowed[item["name"]] = i
        if "valueFrom" in item and item.get("value"):
            raise InvalidError("has both value and valueFrom: leave one", path=f"{here}.valueFrom")


def references(value: str) -> list[str]:
    """The variables that `value` refers to as `$(NAME)`; `$$` is an escaped dollar sign."""
    return [match[1] for match in _REFERENCE.finditer(value) if match[1] is not None]


def _check_container_mounts(container: Mapping[str, Any], path: str) -> None:
    folders: set[str] = set()
    for field, where in (("volumeMounts", "mountPath"), ("volumeDevices", "devicePath")):
        for i, mount in enumerate(container.get(field, ())):
            here = f"{path}.{field}[{i}]"
            folder = mount.get(where, "")
            syntax.given(mount.get("name"), f"{here}.name")
            syntax.given(folder, f"{here}.{where}")
            if f"{folder.rstrip('/')}/".startswith(f"{_ARGO_FOLDER}/"):
                why = f"Argo keeps its own files in {_ARGO_FOLDER}: choose another folder"
                raise InvalidError(why, path=f"{here}.{where}")
            syntax.once(folders, folder, f"something is mounted at {folder!r} already", f"{here}.{where}")


def _check_resources(resources: Mapping[str, Any], path: str) -> None:
    limits = _check_amounts(resources.get("limits", {}), f"{path}.limits")
    requests = _check_amounts(resources.get("requests", {}), f"{path}.requests")
    for name, asked in requests.items():
        here = f"{path}.requests.{name}"
        may_share = _is_native(name)
        if name not in limits:
            if not may_share:
                raise InvalidError("needs a limit of the same amount", path=here)
        elif not may_share and asked != limits[name]:
            raise InvalidError("must be the same as its limit", path=here)
        elif asked > limits[name]:
            raise InvalidError("is above its limit", path=here)


def _check_amounts(amounts: Mapping[str, str], path: str) -> dict[str, Any]:
    out = {}
    for name, text in amounts.items():
        here = f"{path}.{name}"
        syntax.qualified_name(name, here)
        if "/" not in name and name not in _CONTAINER_RESOURCES and not name.startswith(_HUGE):
            raise InvalidError(
                f"{name!r} is not a resource of a container: write cpu, memory or one with a domain, as nvidia.com/gpu",
                path=here,
            )
        out[name] = syntax.quantity(text, here)
        if not _is_native(name) and out[name].denominator != 1:
            raise InvalidError(f"must be a whole number, not {text}", path=here)
    return out


def _is_native(resource: str) -> bool:
    return "/" not in resource or "kubernetes.io/" in resource


def _check_ports(
    ports: Sequence[Mapping[str, Any]], path: str, *, taken: set[tuple[str, str, int]], on_host: bool
) -> None:
    names: set[str] = set()
    seen: set[tuple[int, str]] = set()
    for i, port in enumerate(ports):
        here = f"{path}[{i}]"
        number, on_node = port["containerPort"], port.get("hostPort") or 0
        protocol = port.get("protocol") or "TCP"
        if port.get("name"):
            syntax.port(port["name"], f"{here}.name")
            syntax.once(names, port["name"], f"there is more than one port named {port['name']!r}", f"{here}.name")
        syntax.port(number, f"{here}.containerPort")
        syntax.one_of(protocol, ("TCP", "UDP", "SCTP"), f"{here}.protocol")
        why = f"Argo takes port {number} ({protocol}) only once"
        syntax.once(seen, (number, protocol), why, f"{here}.containerPort")
        if on_host and on_node not in (0, number):
            raise InvalidError("must be the same as containerPort where hostNetwork is true", path=f"{here}.hostPort")
        if on_node:
            syntax.port(on_node, f"{here}.hostPort")
            key = (protocol, port.get("hostIP") or "", on_node)
            syntax.once(taken, key, f"port {on_node} of the node is taken by this pod already", f"{here}.hostPort")


def _check_restart(container: Mapping[str, Any], path: str, *, is_init: bool) -> None:
    policy = container.get("restartPolicy")
    if policy is not None and not (is_init and policy == "Always"):
        raise InvalidError(
            "must be Always, which makes it a sidecar" if is_init else "is for init containers alone",
            path=f"{path}.restartPolicy",
        )


def _check_context(context: Mapping[str, Any], path: str) -> None:
    """Check the security context of a pod or a container."""
    if "{{" in repr(context):
        raise InvalidError("cannot hold {{: Argo would read it as a template", path=path)
    if "windowsOptions" in context:
        raise InvalidError("is not for jobs, whose pods run on Linux", path=f"{path}.windowsOptions")


def _check_identity(spec: Mapping[str, Any], path: str) -> None:
    for name in ("serviceAccountName", "serviceAccount", "nodeName", "priorityClassName"):
        if spec.get(name):
            syntax.dns_subdomain(spec[name], f"{path}.{name}")
    if "overhead" in spec and "runtimeClassName" not in spec:
        raise InvalidError("is set by Kubernetes from the runtime class", path=f"{path}.overhead")
    if spec.get("preemptionPolicy") == "Never" and not spec.get("priorityClassName"):
        raise InvalidError(
            "is worked out by Kubernetes from the priority class, which is that of spec.priority",
            path=f"{path}.preemptionPolicy",
        )
    syntax.one_of(spec.get("restartPolicy") or "Never", ("Never", "OnFailure", "Always"), f"{path}.restartPolicy")
    if "os" in spec:
        syntax.one_of(spec["os"].get("name"), ("linux",), f"{path}.os.name")
    deadline = spec.get("activeDeadlineSeconds", 1)
    if not 1 <= deadline <= _MOST_DEADLINE:
        raise InvalidError(f"must be from 1 to {_MOST_DEADLINE}, not {deadline}", path=f"{path}.activeDeadlineSeconds")
    for i, secret in enumerate(spec.get("imagePullSecrets", ())):
        syntax.given(secret.get("name"), f"{path}.imagePullSecrets[{i}].name")


def _check_scheduling(spec: Mapping[str, Any], path: str) -> None:
    syntax.labels(spec.get("nodeSelector", {}), f"{path}.nodeSelector")
    for i, toleration in enumerate(spec.get("tolerations", ())):
        if not toleration.get("key") and (toleration.get("operator") or "Equal") != "Exists":
            raise InvalidError("must be Exists where there is no key", path=f"{path}.tolerations[{i}].operator")
    gates: set[str] = {keys.GATE}
    for i, gate in enumerate(spec.get("schedulingGates", ())):
        here = f"{path}.schedulingGates[{i}].name"
        syntax.qualified_name(gate["name"], here)
        syntax.once(gates, gate["name"], "is listed more than once, or is diflow's own", here)
    if spec.get("nodeName") and spec.get("schedulingGates"):
        raise InvalidError("cannot be set on a pod with scheduling gates", path=f"{path}.nodeName")
