"""The profile `restricted` of PodSecurity (Kubernetes 1.34), as far as the fields of a pod that diflow makes go."""

from __future__ import annotations

from typing import Any, Final

Json = dict[str, Any]
_VOLUMES: Final = frozenset(
    {
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "persistentVolumeClaim",
        "projected",
        "secret",
        "image",
    }
)


def violations(spec: Json) -> list[str]:
    """What the profile refuses of a pod with this spec."""
    of_pod = spec.get("securityContext") or {}
    found = [name for name in ("hostNetwork", "hostPID", "hostIPC") if spec.get(name)]
    found += [f"volume {v['name']}" for v in spec.get("volumes", ()) if not (v.keys() - {"name"}) <= _VOLUMES]
    for container in (*spec["containers"], *spec.get("initContainers", ())):
        own, name = container.get("securityContext") or {}, container["name"]
        capabilities = own.get("capabilities") or {}
        if own.get("privileged"):
            found.append(f"{name}: privileged")
        if own.get("allowPrivilegeEscalation") is not False:
            found.append(f"{name}: allowPrivilegeEscalation")
        if "ALL" not in (capabilities.get("drop") or ()):
            found.append(f"{name}: capabilities are not dropped")
        if set(capabilities.get("add") or ()) - {"NET_BIND_SERVICE"}:
            found.append(f"{name}: capabilities are added")
        if own.get("runAsNonRoot", of_pod.get("runAsNonRoot")) is not True:
            found.append(f"{name}: runAsNonRoot")
        if own.get("runAsUser", of_pod.get("runAsUser")) == 0:
            found.append(f"{name}: runAsUser 0")
        profile = (own.get("seccompProfile") or of_pod.get("seccompProfile") or {}).get("type")
        if profile not in ("RuntimeDefault", "Localhost"):
            found.append(f"{name}: seccompProfile")
    return found
