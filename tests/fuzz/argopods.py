"""The Pod that Argo's controller makes of a rendered template, as far as the API server's checks are concerned.

What the controller does is followed here: its variables are filled in, its own containers, volumes and mounts are
added, only what its own fields mount becomes a volume, and last the podSpecPatch is merged by Kubernetes' rules.
"""

from __future__ import annotations

import copy
import json
import re
from typing import Any

_TEMPLATE = re.compile(r"\{\{.*?\}\}")
_ARGO = {"name": "var-run-argo", "mountPath": "/var/run/argo"}
_SAME = ("affinity", "tolerations", "nodeSelector", "hostAliases", "schedulerName", "automountServiceAccountToken")
_MAPS = ("annotations", "labels", "limits", "matchLabels", "nodeSelector", "requests", "volumeAttributes")
# The lists of a PodSpec that a strategic merge joins by a key; it replaces all others.
_KEYS = {
    "containers": "name",
    "env": "name",
    "hostAliases": "ip",
    "imagePullSecrets": "name",
    "initContainers": "name",
    "ports": "containerPort",
    "resourceClaims": "name",
    "schedulingGates": "name",
    "topologySpreadConstraints": "topologyKey",
    "volumeDevices": "devicePath",
    "volumeMounts": "mountPath",
    "volumes": "name",
}


def pods(workflow: dict[str, Any]) -> list[dict[str, Any]]:
    """A Pod of each task of a rendered Workflow."""
    spec = json.loads(_TEMPLATE.sub("1", json.dumps(workflow["spec"])))
    return [pod(template, spec) for template in spec["templates"] if "container" in template]


def plain_pod(template: dict[str, Any], volumes: list[Any]) -> dict[str, Any]:
    """The Pod of a task's template, without Argo's changes."""
    metadata = template.get("metadata") or {}
    spec = template.get("spec")
    if isinstance(spec, dict):
        dropped = ("hostname", "subdomain")  # set by diflow
        spec = {key: value for key, value in spec.items() if key not in dropped}
        if spec.get("restartPolicy") in (None, "", "OnFailure", "Always"):  # another text is refused
            spec["restartPolicy"] = "Never"
        own = spec.get("volumes")
        if volumes and (own is None or isinstance(own, list)):
            taken = [volume.get("name") for volume in own or [] if isinstance(volume, dict)]
            shared = [v for v in volumes if not isinstance(v, dict) or v.get("name") not in taken]
            spec["volumes"] = [*(own or []), *shared]
    if isinstance(metadata, dict):
        metadata = {key: value for key, value in metadata.items() if key in ("labels", "annotations")} | {"name": "pod"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def plain_workflow(template: dict[str, Any], volumes: list[Any]) -> dict[str, Any]:
    """A Workflow with the parts of a task's template in the fields that Argo has for them."""
    metadata = template.get("metadata")
    spec = template["spec"] if isinstance(template.get("spec"), dict) else {}
    containers = spec.get("containers")
    first, *others = containers if isinstance(containers, list) and containers else [None]
    parts = {
        "name": "pod",
        "container": first,
        "sidecars": others,
        "initContainers": spec.get("initContainers"),
        "volumes": spec.get("volumes"),
        "securityContext": spec.get("securityContext"),
        "metadata": metadata,
        **{name: spec.get(name) for name in (*_SAME, "activeDeadlineSeconds", "priorityClassName")},
    }
    workflow = {"entrypoint": "pod", "volumes": volumes, "templates": [_without_nulls(parts)]}
    return {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Workflow",
        "metadata": {"name": "job"},
        "spec": _without_nulls(workflow),
    }


def _without_nulls(value: Any) -> Any:
    """Removes fields without a value; lists and mappings with names of the user's own stay as they are."""
    if isinstance(value, dict):
        return {key: item if key in _MAPS else _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def pod(template: dict[str, Any], shared: dict[str, Any]) -> dict[str, Any]:
    """The Pod of a template of a Workflow with this spec."""
    template, shared = copy.deepcopy((template, shared))
    patches = [json.loads(part["podSpecPatch"]) for part in (shared, template)]
    for item in patches[0].get("containers", []):
        if item["name"] == "1":  # the expression that names `wait`, in a pod of a task
            item["name"] = "wait"
    containers = [
        {"name": "wait", "image": "argoexec", "volumeMounts": [_ARGO]},
        {**template["container"], "name": "main"},
        *template.get("sidecars", []),
    ]
    inits = [{"name": "init", "image": "argoexec"}, *template.get("initContainers", [])]
    mounts = [mount for c in [*containers[1:], *inits[1:]] for mount in c.get("volumeMounts", [])]
    # Of two with one name Argo uses the template's.
    known = {v["name"]: v for v in [*shared.get("volumes", []), *template.get("volumes", [])]}
    missing = [mount["name"] for mount in mounts if mount["name"] not in known]
    if missing:
        raise AssertionError(f"volume '{missing[0]}' not found in workflow spec")
    names = dict.fromkeys(mount["name"] for mount in mounts)
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "volumes": [{"name": "var-run-argo", "emptyDir": {}}, {"name": "tmp-dir-argo", "emptyDir": {}}]
        + [known[name] for name in names],
        "containers": containers,
        "initContainers": inits,
        "serviceAccountName": template.get("serviceAccountName", shared["serviceAccountName"]),
        "securityContext": template.get("securityContext", shared["securityContext"]),
        "priorityClassName": template.get("priorityClassName", shared["podPriorityClassName"]),
        **{name: template[name] for name in (*_SAME, "activeDeadlineSeconds") if name in template},
    }
    for patch in patches:
        spec = merged(spec, patch)
    spec.pop("1", None)  # the gate or the node of a gang's pod
    for container in (*(c for c in spec["containers"] if c["name"] != "wait"), *spec["initContainers"]):
        container["volumeMounts"] = [*container.get("volumeMounts", []), _ARGO]
    annotations = {**shared["podMetadata"]["annotations"], **template["metadata"]["annotations"]}
    metadata = {"name": "pod", **template["metadata"], "annotations": annotations}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def merged(base: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """A strategic merge of a patch into a PodSpec, or into a part of it."""
    out = dict(base)
    for name, value in patch.items():
        key = _KEYS.get(name)
        if value is None:
            out.pop(name, None)
        elif isinstance(value, dict) and isinstance(base.get(name), dict):
            out[name] = merged(base[name], value)
        elif key is not None and isinstance(value, list):
            if any(key not in item for item in value):
                raise AssertionError(f"an item of {name} has no {key} to merge it by")
            out[name] = _merged_list(base.get(name, []), value, key)
        else:
            out[name] = value
    return out


def _merged_list(base: list[dict[str, Any]], patch: list[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    """The items of both lists. Those of the patch keep their order; each of the others comes, in their order, before
    the first one of the patch that follows it in the base, and else at the end."""
    items = {item[key]: item for item in base}
    place = {item[key]: i for i, item in enumerate(base)}
    for item in patch:
        items[item[key]] = merged(items.get(item[key], {}), item)
    left = [name for name in place if name not in {item[key] for item in patch}]
    out: list[str] = []
    for name in dict.fromkeys(item[key] for item in patch):
        while left and name in place and place[left[0]] < place[name]:
            out.append(left.pop(0))
        out.append(name)
    return [items[name] for name in (*out, *left)]
