"""The rules of Kubernetes and Argo for pod templates beyond types (ValidatePodSpec of the API server, v1.34).

The API server accepts a Workflow with invalid pods: errors appear only when Argo creates the pod, and the job waits or
fails without a visible reason. So the rules are checked here, on a template whose types were checked already. A rule of
Argo's or diflow's own says so in its message.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from diflow.common import keys
from diflow.common import limits as limits_
from diflow.common.errors import InvalidError
from diflow.dijob.pods import work_container
from diflow.dijob.rules import syntax
from diflow.dijob.rules.volumerules import check_field_ref, check_resource_field_ref, check_selector, check_volumes

_ARGO_CONTAINERS: Final = frozenset({"init", "main", "wait"})
_ARGO_PREFIXES: Final = ("artifact-plugin-", "init-artifact-")
_ARGO_FOLDER: Final = "/var/run/argo"
_FIELDS_IN_ENV: Final = (
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
)
_HANDLERS: Final = ("exec", "httpGet", "tcpSocket", "grpc", "sleep")
_PROBES: Final = ("livenessProbe", "readinessProbe", "startupProbe")
_CONTAINER_RESOURCES: Final = frozenset({"cpu", "memory", "ephemeral-storage"})
_HUGE: Final = "hugepages-"
_EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_ADMITTED_BY_KUBERNETES: Final = {
    "priority": "is worked out by Kubernetes from the priority class: name that in priorityClassName",
    "resources": "is not known to the allocator: give resources to the containers",
    "ephemeralContainers": "cannot be set when a pod is made",
}
_GRACE_SECONDS: Final = 30  # the pod's own default
_MOST_DEADLINE: Final = 2**31 - 1
_MOST_NAMESERVERS, _MOST_SEARCHES, _MOST_SEARCH_CHARACTERS = 3, 32, 2048
_SYSCTL: Final = re.compile(r"([a-z0-9]([-_a-z0-9]*[a-z0-9])?[./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?")
# Kernel parameters that belong to the node if a pod uses its network or IPC namespace.
_NODES_SYSCTLS: Final = {"hostNetwork": ("net.",), "hostIPC": ("kernel.shm", "kernel.msg", "kernel.sem", "fs.mqueue.")}
_REFERENCE: Final = re.compile(r"\$\$|\$\(([^)]*)\)")


def check_pod(spec: Mapping[str, Any], path: str) -> None:
    """Check a pod's spec of valid types. Raises InvalidError with the path of the first invalid field.

    `check_mounts` checks whether the mounted volumes exist.
    """
    for name, why in _ADMITTED_BY_KUBERNETES.items():
        if name in spec:
            raise InvalidError(why, path=f"{path}.{name}")
    check_volumes(spec.get("volumes", ()), f"{path}.volumes")
    claims = _check_claims(spec.get("resourceClaims", ()), f"{path}.resourceClaims")
    grace = spec.get("terminationGracePeriodSeconds", _GRACE_SECONDS)
    _check_containers(spec, path, claims, grace)
    _check_security(spec, f"{path}.securityContext")
    _check_identity(spec, path)
    _check_network(spec, path)
    _check_scheduling(spec, path)


def check_mounts(spec: Mapping[str, Any], shared: Iterable[Mapping[str, Any]], path: str) -> None:
    """Check that the mounted volumes are those of the task or of the job (`shared`)."""
    volumes = {v["name"]: v for v in (*shared, *spec.get("volumes", ()))}
    for kind in ("initContainers", "containers"):
        for i, container in enumerate(spec.get(kind, ())):
            here = f"{path}.{kind}[{i}]"
            for field in ("volumeMounts", "volumeDevices"):
                for j, mount in enumerate(container.get(field, ())):
                    where = f"{here}.{field}[{j}].name"
                    if mount["name"] not in volumes:
                        raise InvalidError(
                            f"there is no volume named {mount['name']!r}: add it to the task's or the job's volumes",
                            path=where,
                        )
                    if (
                        field == "volumeDevices"
                        and not {"persistentVolumeClaim", "ephemeral"} & volumes[mount["name"]].keys()
                    ):
                        raise InvalidError("must be a persistentVolumeClaim or an ephemeral volume", path=where)


def _check_claims(claims: Sequence[Mapping[str, Any]], path: str) -> frozenset[str]:
    names: set[str] = set()
    for i, claim in enumerate(claims):
        here = f"{path}[{i}]"
        name = claim.get("name", "")
        syntax.dns_label(name, f"{here}.name")
        syntax.once(names, name, f"there is more than one claim named {name!r}", f"{here}.name")
        sources = [key for key in ("resourceClaimName", "resourceClaimTemplateName") if key in claim]
        if len(sources) != 1:
            raise InvalidError("needs one of resourceClaimName and resourceClaimTemplateName", path=here)
        syntax.dns_subdomain(claim[sources[0]], f"{here}.{sources[0]}")
    return frozenset(names)


def _check_containers(spec: Mapping[str, Any], path: str, claims: frozenset[str], grace: int) -> None:
    containers, inits = spec["containers"], spec.get("initContainers", ())
    number = len(containers) + len(inits)
    if number > limits_.MOST_CONTAINERS:
        raise InvalidError(f"has {number} containers, at most {limits_.MOST_CONTAINERS} are allowed", path=path)
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
            _check_container(container, here, claims)
            _check_life(container, here, grace, is_init=kind == "initContainers")
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


def _check_container(container: Mapping[str, Any], path: str, claims: frozenset[str]) -> None:
    image = container.get("image")
    syntax.given(image, f"{path}.image")
    assert isinstance(image, str)
    check_image(image, path=f"{path}.image")
    _check_word(container, "imagePullPolicy", ("Always", "IfNotPresent", "Never"), path)
    _check_word(container, "terminationMessagePolicy", ("File", "FallbackToLogsOnError"), path)
    _check_env(container.get("env", ()), f"{path}.env")
    _check_env_from(container.get("envFrom", ()), f"{path}.envFrom")
    _check_container_mounts(container, path)
    _check_resources(container.get("resources", {}), f"{path}.resources", claims)
    _check_resize(container.get("resizePolicy", ()), f"{path}.resizePolicy")
    _check_container_security(container.get("securityContext", {}), f"{path}.securityContext")


def _check_word(given: Mapping[str, Any], name: str, allowed: tuple[str, ...], path: str) -> None:
    """Check a field with a default, which empty text selects, too."""
    if given.get(name):
        syntax.one_of(given[name], allowed, f"{path}.{name}")


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
        if "valueFrom" in item:
            if item.get("value"):
                raise InvalidError("has both value and valueFrom: leave one", path=f"{here}.valueFrom")
            _check_value_from(item["valueFrom"], f"{here}.valueFrom")


def references(value: str) -> list[str]:
    """The variables that `value` refers to as `$(NAME)`; `$$` is an escaped dollar sign."""
    return [match[1] for match in _REFERENCE.finditer(value) if match[1] is not None]


def _check_value_from(source: Mapping[str, Any], path: str) -> None:
    if len(source) != 1:
        raise InvalidError("needs one source, and no more than one", path=path)
    for kind, ref in source.items():
        here = f"{path}.{kind}"
        if kind == "fieldRef":
            check_field_ref(ref, _FIELDS_IN_ENV, here)
        elif kind == "resourceFieldRef":
            check_resource_field_ref(ref, here)
        else:
            syntax.dns_subdomain(ref.get("name", ""), f"{here}.name")
            syntax.config_key(ref.get("key", ""), f"{here}.key")


def _check_env_from(sources: Sequence[Mapping[str, Any]], path: str) -> None:
    for i, source in enumerate(sources):
        here = f"{path}[{i}]"
        if source.get("prefix"):
            syntax.env_name(source["prefix"], f"{here}.prefix")
        refs = [key for key in ("configMapRef", "secretRef") if key in source]
        if len(refs) != 1:
            raise InvalidError("needs one of configMapRef and secretRef", path=here)
        syntax.dns_subdomain(source[refs[0]].get("name", ""), f"{here}.{refs[0]}.name")


def _check_container_mounts(container: Mapping[str, Any], path: str) -> None:
    devices = container.get("volumeDevices", ())
    folders: set[str] = set()
    for i, mount in enumerate(container.get("volumeMounts", ())):
        here = f"{path}.volumeMounts[{i}]"
        syntax.given(mount.get("name"), f"{here}.name")
        folder = mount.get("mountPath", "")
        syntax.given(folder, f"{here}.mountPath")
        _check_folder(folder, f"{here}.mountPath")
        syntax.once(folders, folder, f"something is mounted at {folder!r} already", f"{here}.mountPath")
        if mount.get("subPath") and mount.get("subPathExpr"):
            raise InvalidError("has both subPath and subPathExpr: leave one", path=f"{here}.subPathExpr")
        for name in ("subPath", "subPathExpr"):
            if mount.get(name):
                syntax.relative_path(mount[name], f"{here}.{name}")
        _check_propagation(mount, container, here)
    names = {mount["name"] for mount in container.get("volumeMounts", ())}
    for i, device in enumerate(devices):
        here = f"{path}.volumeDevices[{i}]"
        where = device.get("devicePath", "")
        syntax.given(device.get("name"), f"{here}.name")
        syntax.given(where, f"{here}.devicePath")
        syntax.no_steps_up(where, f"{here}.devicePath")
        syntax.once(names, device["name"], "is mounted or a device already in this container", f"{here}.name")
        syntax.once(folders, where, f"something is at {where!r} already", f"{here}.devicePath")


def _check_folder(folder: str, path: str) -> None:
    if f"{folder.rstrip('/')}/".startswith(f"{_ARGO_FOLDER}/"):
        raise InvalidError(f"Argo keeps its own files in {_ARGO_FOLDER}: choose another folder", path=path)


def _check_propagation(mount: Mapping[str, Any], container: Mapping[str, Any], path: str) -> None:
    propagation, recursive = mount.get("mountPropagation"), mount.get("recursiveReadOnly")
    if propagation is not None:
        syntax.one_of(propagation, ("None", "HostToContainer", "Bidirectional"), f"{path}.mountPropagation")
    if propagation == "Bidirectional" and not container.get("securityContext", {}).get("privileged"):
        raise InvalidError("Bidirectional requires a privileged container", path=f"{path}.mountPropagation")
    if recursive is None:
        return
    syntax.one_of(recursive, ("Disabled", "Enabled", "IfPossible"), f"{path}.recursiveReadOnly")
    if recursive != "Disabled" and not mount.get("readOnly"):
        raise InvalidError("is for mounts with readOnly: true", path=f"{path}.recursiveReadOnly")
    if recursive != "Disabled" and propagation not in (None, "None"):
        raise InvalidError("cannot be given with mountPropagation", path=f"{path}.recursiveReadOnly")


def _check_resources(resources: Mapping[str, Any], path: str, claims: frozenset[str]) -> None:
    limits = _check_amounts(resources.get("limits", {}), f"{path}.limits")
    requests = _check_amounts(resources.get("requests", {}), f"{path}.requests")
    for name, asked in requests.items():
        here = f"{path}.requests.{name}"
        may_share = _is_native(name) and not name.startswith(_HUGE)
        if name not in limits:
            if not may_share:
                raise InvalidError("needs a limit of the same amount", path=here)
        elif not may_share and asked != limits[name]:
            raise InvalidError("must be the same as its limit", path=here)
        elif asked > limits[name]:
            raise InvalidError("is above its limit", path=here)
    names = limits.keys() | requests.keys()
    if any(name.startswith(_HUGE) for name in names) and not names & {"cpu", "memory"}:
        raise InvalidError("huge pages need cpu or memory beside them", path=path)
    seen: set[str] = set()
    for i, claim in enumerate(resources.get("claims", ())):
        here = f"{path}.claims[{i}]"
        syntax.given(claim.get("name"), f"{here}.name")
        syntax.once(seen, claim["name"], "is listed more than once", f"{here}.name")
        if claim["name"] not in claims:
            raise InvalidError(f"there is no claim named {claim['name']!r} in resourceClaims", path=f"{here}.name")
        if claim.get("request"):
            syntax.dns_label(claim["request"], f"{here}.request")


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
        if not _is_native(name):
            if name.startswith("requests."):
                raise InvalidError("the name of a resource cannot begin with 'requests.'", path=here)
            if out[name].denominator != 1:
                raise InvalidError(f"must be a whole number, not {text}", path=here)
        if name.startswith(_HUGE):
            size = syntax.quantity(name.removeprefix(_HUGE), here)
            if not size or out[name] % size:
                raise InvalidError(f"must be a multiple of the size of its pages, not {text}", path=here)
    return out


def _is_native(resource: str) -> bool:
    return "/" not in resource or "kubernetes.io/" in resource


def _check_resize(policies: Sequence[Mapping[str, Any]], path: str) -> None:
    seen: set[str] = set()
    for i, policy in enumerate(policies):
        syntax.one_of(policy.get("resourceName"), ("cpu", "memory"), f"{path}[{i}].resourceName")
        # A pod of a job is never restarted in place, and Kubernetes allows no other policy then.
        syntax.one_of(policy.get("restartPolicy"), ("NotRequired",), f"{path}[{i}].restartPolicy")
        syntax.once(seen, policy["resourceName"], "is listed more than once", f"{path}[{i}].resourceName")


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


def _check_life(container: Mapping[str, Any], path: str, grace: int, *, is_init: bool) -> None:
    policy = container.get("restartPolicy")
    if policy is not None and not (is_init and policy == "Always"):
        raise InvalidError(
            "must be Always, which makes it a sidecar" if is_init else "is for init containers alone",
            path=f"{path}.restartPolicy",
        )
    for name in ("lifecycle", *_PROBES):
        if name in container and is_init and policy is None:
            raise InvalidError("is for init containers with restartPolicy: Always alone", path=f"{path}.{name}")
    for name, handler in container.get("lifecycle", {}).items():
        if name in ("postStart", "preStop"):
            _check_handler(handler, f"{path}.lifecycle.{name}", grace)
    for name in _PROBES:
        if name in container:
            _check_probe(container[name], f"{path}.{name}", grace, kind=name)


def _check_probe(probe: Mapping[str, Any], path: str, grace: int, *, kind: str) -> None:
    _check_handler(probe, path, grace)
    for name in ("initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"):
        if probe.get(name, 0) < 0:
            raise InvalidError(f"must be 0 or more, not {probe[name]}", path=f"{path}.{name}")
    if kind != "readinessProbe" and probe.get("successThreshold", 1) > 1:
        raise InvalidError("must be 1", path=f"{path}.successThreshold")
    if "terminationGracePeriodSeconds" in probe:
        here = f"{path}.terminationGracePeriodSeconds"
        if kind == "readinessProbe":
            raise InvalidError("is not for readiness probes", path=here)
        if probe["terminationGracePeriodSeconds"] <= 0:
            raise InvalidError("must be above 0", path=here)


def _check_handler(handler: Mapping[str, Any], path: str, grace: int) -> None:
    kinds = [kind for kind in _HANDLERS if kind in handler]
    if len(kinds) != 1:
        raise InvalidError(f"needs one of {', '.join(_HANDLERS)}, and no more than one", path=path)
    kind, action = kinds[0], handler[kinds[0]]
    here = f"{path}.{kind}"
    if kind == "exec":
        syntax.given(action.get("command"), f"{here}.command")
    elif kind == "sleep":
        if not 0 <= action["seconds"] <= grace:
            raise InvalidError(f"must be from 0 to the pod's grace period of {grace} s", path=f"{here}.seconds")
    else:
        syntax.port(action["port"], f"{here}.port")
        _check_word(action, "scheme", ("HTTP", "HTTPS"), here)
        for i, header in enumerate(action.get("httpHeaders", ())):
            syntax.header_name(header["name"], f"{here}.httpHeaders[{i}].name")


def _check_container_security(context: Mapping[str, Any], path: str) -> None:
    _check_ids(context, path)
    if "procMount" in context:
        syntax.one_of(context["procMount"], ("Default", "Unmasked"), f"{path}.procMount")
    if context.get("allowPrivilegeEscalation") is False:
        added = context.get("capabilities", {}).get("add", ())
        if context.get("privileged"):
            raise InvalidError("cannot be false for a privileged container", path=f"{path}.allowPrivilegeEscalation")
        if "CAP_SYS_ADMIN" in added:
            raise InvalidError("cannot be false with CAP_SYS_ADMIN", path=f"{path}.allowPrivilegeEscalation")


def _check_security(spec: Mapping[str, Any], path: str) -> None:
    context = spec.get("securityContext", {})
    _check_ids(context, path)
    if "fsGroup" in context:
        syntax.id_number(context["fsGroup"], f"{path}.fsGroup")
    for i, group in enumerate(context.get("supplementalGroups", ())):
        syntax.id_number(group, f"{path}.supplementalGroups[{i}]")
    if "fsGroupChangePolicy" in context:
        syntax.one_of(context["fsGroupChangePolicy"], ("OnRootMismatch", "Always"), f"{path}.fsGroupChangePolicy")
    if "supplementalGroupsPolicy" in context:
        syntax.one_of(context["supplementalGroupsPolicy"], ("Merge", "Strict"), f"{path}.supplementalGroupsPolicy")
    seen: set[str] = set()
    for i, sysctl in enumerate(context.get("sysctls", ())):
        here = f"{path}.sysctls[{i}].name"
        if len(sysctl["name"]) > 253 or not _SYSCTL.fullmatch(sysctl["name"]):
            raise InvalidError(f"{sysctl['name']!r} is not a valid name of a kernel parameter", path=here)
        syntax.once(seen, sysctl["name"], "is listed more than once", here)
        for shared, prefixes in _NODES_SYSCTLS.items():
            if spec.get(shared) and sysctl["name"].replace("/", ".").startswith(prefixes):
                raise InvalidError(f"cannot be set where {shared} is true", path=here)


def _check_ids(context: Mapping[str, Any], path: str) -> None:
    """Check the common fields of the security contexts of pods and containers."""
    if "{{" in repr(context):
        raise InvalidError("cannot hold {{: Argo would read it as a template", path=path)
    if "windowsOptions" in context:
        raise InvalidError("is not for jobs, whose pods run on Linux", path=f"{path}.windowsOptions")
    for name in ("runAsUser", "runAsGroup"):
        if name in context:
            syntax.id_number(context[name], f"{path}.{name}")
    for name in ("seccompProfile", "appArmorProfile"):
        if name not in context:
            continue
        profile, here = context[name], f"{path}.{name}"
        syntax.one_of(profile.get("type"), ("RuntimeDefault", "Unconfined", "Localhost"), f"{here}.type")
        file = profile.get("localhostProfile")
        if profile["type"] != "Localhost":
            if file is not None:
                raise InvalidError("is for the type Localhost alone", path=f"{here}.localhostProfile")
        elif file is None or (name == "appArmorProfile" and (not file or file != file.strip() or len(file) > 4095)):
            raise InvalidError("must name the profile", path=f"{here}.localhostProfile")
        elif name == "seccompProfile":
            syntax.relative_path(file, f"{here}.localhostProfile")


def _check_identity(spec: Mapping[str, Any], path: str) -> None:
    for name in ("serviceAccountName", "serviceAccount", "nodeName", "priorityClassName"):
        if spec.get(name):
            syntax.dns_subdomain(spec[name], f"{path}.{name}")
    if "runtimeClassName" in spec:
        syntax.dns_subdomain(spec["runtimeClassName"], f"{path}.runtimeClassName")
    elif "overhead" in spec:
        raise InvalidError("is set by Kubernetes from the runtime class", path=f"{path}.overhead")
    if "preemptionPolicy" in spec:
        syntax.one_of(spec["preemptionPolicy"], ("PreemptLowerPriority", "Never"), f"{path}.preemptionPolicy")
        if spec["preemptionPolicy"] == "Never" and not spec.get("priorityClassName"):
            raise InvalidError(
                "is worked out by Kubernetes from the priority class: name one in priorityClassName",
                path=f"{path}.preemptionPolicy",
            )
    if "os" in spec:
        syntax.one_of(spec["os"].get("name"), ("linux",), f"{path}.os.name")
    deadline = spec.get("activeDeadlineSeconds", 1)
    if not 1 <= deadline <= _MOST_DEADLINE:
        raise InvalidError(f"must be from 1 to {_MOST_DEADLINE}, not {deadline}", path=f"{path}.activeDeadlineSeconds")
    for i, secret in enumerate(spec.get("imagePullSecrets", ())):
        syntax.given(secret.get("name"), f"{path}.imagePullSecrets[{i}].name")
    _check_host(spec, path)


def _check_host(spec: Mapping[str, Any], path: str) -> None:
    """Check the node's namespaces that a pod uses."""
    if spec.get("hostUsers") is False:
        for name in ("hostNetwork", "hostPID", "hostIPC"):
            if spec.get(name):
                raise InvalidError("cannot be true where hostUsers is false", path=f"{path}.{name}")
    else:
        for i, container in enumerate((*spec["containers"], *spec.get("initContainers", ()))):
            if container.get("securityContext", {}).get("procMount") == "Unmasked":
                raise InvalidError("Unmasked needs hostUsers: false", path=f"{path}.containers[{i}].securityContext")
    if spec.get("shareProcessNamespace") and spec.get("hostPID"):
        raise InvalidError("cannot be true where hostPID is", path=f"{path}.shareProcessNamespace")


def _check_network(spec: Mapping[str, Any], path: str) -> None:
    policies = ("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None")
    _check_word(spec, "dnsPolicy", policies, path)
    config, here = spec.get("dnsConfig", {}), f"{path}.dnsConfig"
    servers, searches = config.get("nameservers", ()), config.get("searches", ())
    if spec.get("dnsPolicy") == "None" and not servers:
        raise InvalidError("needs a name server where dnsPolicy is None", path=f"{here}.nameservers")
    if len(servers) > _MOST_NAMESERVERS:
        raise InvalidError(f"has {len(servers)}, at most {_MOST_NAMESERVERS} are allowed", path=f"{here}.nameservers")
    for i, server in enumerate(servers):
        syntax.address(server, f"{here}.nameservers[{i}]")
    if len(searches) > _MOST_SEARCHES or len(" ".join(searches)) > _MOST_SEARCH_CHARACTERS:
        raise InvalidError(
            f"at most {_MOST_SEARCHES} domains and {_MOST_SEARCH_CHARACTERS} characters are allowed",
            path=f"{here}.searches",
        )
    for i, search in enumerate(searches):
        syntax.search_domain(search, f"{here}.searches[{i}]")
    for i, option in enumerate(config.get("options", ())):
        syntax.given(option.get("name"), f"{here}.options[{i}].name")
    for i, alias in enumerate(spec.get("hostAliases", ())):
        syntax.address(alias["ip"], f"{path}.hostAliases[{i}].ip")
        for j, name in enumerate(alias.get("hostnames", ())):
            syntax.dns_subdomain(name, f"{path}.hostAliases[{i}].hostnames[{j}]")


def _check_scheduling(spec: Mapping[str, Any], path: str) -> None:
    syntax.labels(spec.get("nodeSelector", {}), f"{path}.nodeSelector")
    for i, toleration in enumerate(spec.get("tolerations", ())):
        _check_toleration(toleration, f"{path}.tolerations[{i}]")
    affinity = spec.get("affinity", {})
    _check_node_affinity(affinity.get("nodeAffinity", {}), f"{path}.affinity.nodeAffinity")
    for kind in ("podAffinity", "podAntiAffinity"):
        here = f"{path}.affinity.{kind}"
        terms = affinity.get(kind, {})
        for i, term in enumerate(terms.get("requiredDuringSchedulingIgnoredDuringExecution", ())):
            _check_pod_term(term, f"{here}.requiredDuringSchedulingIgnoredDuringExecution[{i}]")
        for i, term in enumerate(terms.get("preferredDuringSchedulingIgnoredDuringExecution", ())):
            where = f"{here}.preferredDuringSchedulingIgnoredDuringExecution[{i}]"
            _check_weight(term["weight"], where)
            _check_pod_term(term["podAffinityTerm"], f"{where}.podAffinityTerm")
    _check_spread(spec.get("topologySpreadConstraints", ()), f"{path}.topologySpreadConstraints")
    for i, gate in enumerate(spec.get("readinessGates", ())):
        syntax.qualified_name(gate["conditionType"], f"{path}.readinessGates[{i}].conditionType")
    gates: set[str] = {keys.GATE}
    for i, gate in enumerate(spec.get("schedulingGates", ())):
        here = f"{path}.schedulingGates[{i}].name"
        syntax.qualified_name(gate["name"], here)
        syntax.once(gates, gate["name"], "is listed more than once, or is diflow's own", here)
    if spec.get("nodeName") and spec.get("schedulingGates"):
        raise InvalidError("cannot be set on a pod with scheduling gates", path=f"{path}.nodeName")


def _check_toleration(toleration: Mapping[str, Any], path: str) -> None:
    operator, key = toleration.get("operator") or "Equal", toleration.get("key")
    if key:
        syntax.qualified_name(key, f"{path}.key")
    syntax.one_of(operator, ("Equal", "Exists"), f"{path}.operator")
    if not key and operator != "Exists":
        raise InvalidError("must be Exists where there is no key", path=f"{path}.operator")
    if "tolerationSeconds" in toleration and toleration.get("effect") != "NoExecute":
        raise InvalidError("must be NoExecute where tolerationSeconds is given", path=f"{path}.effect")
    if operator == "Exists" and toleration.get("value"):
        raise InvalidError("must be empty with the operator Exists", path=f"{path}.value")
    syntax.label_value(toleration.get("value") or "", f"{path}.value")
    _check_word(toleration, "effect", _EFFECTS, path)


def _check_node_affinity(affinity: Mapping[str, Any], path: str) -> None:
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    here = f"{path}.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
    if required is not None:
        syntax.given(required["nodeSelectorTerms"], here)
        for i, term in enumerate(required["nodeSelectorTerms"]):
            _check_node_term(term, f"{here}[{i}]", is_required=True)
    for i, preferred in enumerate(affinity.get("preferredDuringSchedulingIgnoredDuringExecution", ())):
        here = f"{path}.preferredDuringSchedulingIgnoredDuringExecution[{i}]"
        _check_weight(preferred["weight"], here)
        _check_node_term(preferred["preference"], f"{here}.preference", is_required=False)


def _check_node_term(term: Mapping[str, Any], path: str, *, is_required: bool) -> None:
    for i, rule in enumerate(term.get("matchExpressions", ())):
        here = f"{path}.matchExpressions[{i}]"
        operator, values = rule["operator"], rule.get("values", ())
        syntax.one_of(operator, ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"), f"{here}.operator")
        if operator in ("In", "NotIn"):
            syntax.given(values, f"{here}.values")
        elif operator in ("Exists", "DoesNotExist"):
            if values:
                raise InvalidError(f"cannot be given with {operator}", path=f"{here}.values")
        elif len(values) != 1:
            raise InvalidError(f"{operator} needs one value", path=f"{here}.values")
        syntax.qualified_name(rule["key"], f"{here}.key")
        for j, value in enumerate(values if is_required else ()):
            syntax.label_value(value, f"{here}.values[{j}]")
    for i, rule in enumerate(term.get("matchFields", ())):
        here = f"{path}.matchFields[{i}]"
        syntax.one_of(rule["key"], ("metadata.name",), f"{here}.key")
        syntax.one_of(rule["operator"], ("In", "NotIn"), f"{here}.operator")
        if len(rule.get("values", ())) != 1:
            raise InvalidError(f"{rule['operator']} needs one value here", path=f"{here}.values")
        syntax.dns_subdomain(rule["values"][0], f"{here}.values[0]")


def _check_weight(weight: int, path: str) -> None:
    if not 1 <= weight <= 100:
        raise InvalidError(f"must be from 1 to 100, not {weight}", path=f"{path}.weight")


def _check_pod_term(term: Mapping[str, Any], path: str) -> None:
    for name in ("labelSelector", "namespaceSelector"):
        if name in term:
            check_selector(term[name], f"{path}.{name}")
    for i, namespace in enumerate(term.get("namespaces", ())):
        syntax.dns_label(namespace, f"{path}.namespaces[{i}]")
    syntax.qualified_name(term["topologyKey"], f"{path}.topologyKey")
    _check_label_keys(term, path)


def _check_label_keys(term: Mapping[str, Any], path: str) -> None:
    selector = term.get("labelSelector")
    selected = set((selector or {}).get("matchLabels", {}))
    selected |= {rule.get("key") for rule in (selector or {}).get("matchExpressions", ())}
    seen: set[str] = set()
    for kind in ("matchLabelKeys", "mismatchLabelKeys"):
        for i, key in enumerate(term.get(kind, ())):
            here = f"{path}.{kind}[{i}]"
            if selector is None:
                raise InvalidError("needs a labelSelector", path=here)
            syntax.qualified_name(key, here)
            # Kubernetes rejects these if the pod has such a label; otherwise they have no effect.
            if key in seen or (kind == "matchLabelKeys" and key in selected):
                raise InvalidError(f"the key {key!r} is named more than once", path=here)
            seen.add(key)


def _check_spread(constraints: Sequence[Mapping[str, Any]], path: str) -> None:
    seen: set[tuple[str, str]] = set()
    for i, rule in enumerate(constraints):
        here = f"{path}[{i}]"
        if rule["maxSkew"] < 1:
            raise InvalidError(f"must be 1 or more, not {rule['maxSkew']}", path=f"{here}.maxSkew")
        syntax.given(rule["topologyKey"], f"{here}.topologyKey")
        syntax.one_of(rule["whenUnsatisfiable"], ("DoNotSchedule", "ScheduleAnyway"), f"{here}.whenUnsatisfiable")
        pair = (rule["topologyKey"], rule["whenUnsatisfiable"])
        syntax.once(seen, pair, "another constraint has the same topologyKey and whenUnsatisfiable", here)
        if "minDomains" in rule:
            if rule["minDomains"] < 1:
                raise InvalidError(f"must be 1 or more, not {rule['minDomains']}", path=f"{here}.minDomains")
            if rule["whenUnsatisfiable"] != "DoNotSchedule":
                raise InvalidError("is for whenUnsatisfiable: DoNotSchedule alone", path=f"{here}.minDomains")
        for name in ("nodeAffinityPolicy", "nodeTaintsPolicy"):
            if name in rule:
                syntax.one_of(rule[name], ("Honor", "Ignore"), f"{here}.{name}")
        if "labelSelector" in rule:
            check_selector(rule["labelSelector"], f"{here}.labelSelector")
        _check_label_keys(rule, here)
