"""The pod that Argo would make of a task of a stored Workflow, for a dry run.

Argo fills in templates, merges the patches and adds containers of its own. What depends on the replica, its place or
its attempt is filled with any valid text here: no admission is known to look at it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from diflow.common import keys
from diflow.common.jsontext import canonical_json
from diflow.record import untrusted
from diflow.record.argo.failures import MAIN
from diflow.workflows.expressions import WAIT_OR_MAIN

Json = dict[str, Any]

WAIT: Final = "wait"
INIT: Final = "init"
_ARGO_IMAGE: Final = "argoexec"
_ANY: Final = "x"
_NAME_SUFFIX: Final = "-dry-run"
_LONGEST_NAME: Final = 253
_TEMPLATED: Final = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
_LESS_MEMORY: Final = re.compile(r"=int\(inputs\.parameters\.memory\) - (\d{1,15})")
_OF_TEMPLATE: Final = (
    "nodeSelector", "tolerations", "affinity", "hostAliases", "schedulerName", "automountServiceAccountToken",
    "activeDeadlineSeconds", "serviceAccountName", "securityContext", "priorityClassName",
)  # fmt: skip
_OF_WORKFLOW: Final = {
    **{name: name for name in _OF_TEMPLATE}, "priorityClassName": "podPriorityClassName",
    "dnsPolicy": "dnsPolicy", "dnsConfig": "dnsConfig", "hostNetwork": "hostNetwork",
    "imagePullSecrets": "imagePullSecrets",
}  # fmt: skip
_MERGED_BY: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        ("containers", "initContainers", "volumes", "env", "imagePullSecrets", "schedulingGates", "resourceClaims"),
        "name",
    ),
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "containerPort",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
}
"""By which field Kubernetes merges the items of a list of a pod; others are replaced."""


def pod_of(
    workflow: Mapping[str, Any], task: str, *, memory: int = 0, executor: Mapping[str, Any] | None = None
) -> Json | None:
    """The pod of a replica of this task, as Argo would create it; None if the Workflow has no such template.

    `memory`: the MiB of its main container, of a task that may get more. `executor`: the resources of Argo's own
    containers. Raises ValueError if a part of the Workflow was edited so that Argo could not read it either.
    """
    spec = untrusted.sub(workflow, "spec")
    template = next((one for one in untrusted.mappings(spec.get("templates")) if one.get("name") == task), None)
    main = untrusted.sub(template or {}, "container")
    if template is None or not main:
        return None
    metadata = untrusted.sub(workflow, "metadata")
    values = {
        "workflow.name": untrusted.string(metadata.get("name")),
        "workflow.namespace": untrusted.string(metadata.get("namespace")),
        "workflow.uid": untrusted.string(metadata.get("uid")),
        "inputs.parameters.index": "0",
        "inputs.parameters.member": "0",
        "inputs.parameters.round": "1",
        "inputs.parameters.attempt": "0",
        "inputs.parameters.memory": str(memory),
    }
    given = untrusted.load(_filled(canonical_json({"template": template, "spec": _shared(spec)}), values, memory))
    template, spec = given["template"], given["spec"]
    base = _spec(spec, template, executor or {})
    for patch in (spec.get("podSpecPatch"), template.get("podSpecPatch")):
        if patch:
            base = merged(base, untrusted.load(patch))
    base.pop(_ANY, None)
    base.pop("hostname", None)
    name = f"{values['workflow.name']}-{task}"[: _LONGEST_NAME - len(_NAME_SUFFIX)]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{name}{_NAME_SUFFIX}",
            "namespace": values["workflow.namespace"],
            "labels": {
                **_texts(spec, "podMetadata", "labels"),
                **_texts(template, "metadata", "labels"),
                keys.ARGO_WORKFLOW: values["workflow.name"],
                keys.ARGO_COMPLETED: "false",
            },
            "annotations": {
                **_texts(spec, "podMetadata", "annotations"),
                **_texts(template, "metadata", "annotations"),
            },
        },
        "spec": base,
    }


def without_argo(pod: Mapping[str, Any]) -> Json:
    """The pod without the containers that Argo adds."""
    spec = dict(pod.get("spec") or {})
    for kind in ("containers", "initContainers"):
        spec[kind] = [one for one in spec.get(kind) or [] if one.get("name") not in (WAIT, INIT)]
    return {**pod, "spec": spec}


def _shared(spec: Mapping[str, Any]) -> Json:
    """What Argo takes from the Workflow's spec for each pod."""
    names = {"volumes", "podMetadata", "podSpecPatch", *_OF_WORKFLOW.values()}
    return {name: value for name, value in spec.items() if name in names}


def _filled(text: str, values: Mapping[str, str], memory: int) -> str:
    """JSON text with Argo's templates filled in: those that are not known with any text."""
    # The patches are JSON within JSON: as text they have an expression with its quotes escaped.
    text = text.replace(canonical_json(WAIT_OR_MAIN)[1:-1], WAIT)

    def value(found: re.Match[str]) -> str:
        if less := _LESS_MEMORY.fullmatch(found[1]):
            return str(memory - int(less[1]))
        return canonical_json(values.get(found[1], _ANY))[1:-1]

    return _TEMPLATED.sub(value, text)


def _spec(spec: Mapping[str, Any], template: Mapping[str, Any], executor: Mapping[str, Any]) -> Json:
    """The pod's spec before the patches."""
    # Argo keeps the main container with an empty name.
    own = {"image": _ARGO_IMAGE, **({"resources": dict(executor)} if executor else {})}
    out: Json = {
        "restartPolicy": "Never",
        "containers": [
            {"name": WAIT, **own},
            {**template["container"], "name": MAIN},
            *map(_plain, template.get("sidecars") or ()),
        ],
        "initContainers": [{"name": INIT, **own}, *map(_plain, template.get("initContainers") or ())],
        "volumes": [*(spec.get("volumes") or ()), *(template.get("volumes") or ())],
    }
    for name, of_workflow in _OF_WORKFLOW.items():
        found = template.get(name)
        found = spec.get(of_workflow) if found is None else found
        if found is not None:
            out[name] = found
    return out


def _plain(container: Mapping[str, Any]) -> Json:
    """A container without what only Argo's have."""
    return {name: value for name, value in container.items() if name != "mirrorVolumeMounts"}


def merged(base: Any, patch: Any, by: str = "") -> Any:
    """A part of a pod with a strategic merge patch of it; `by`: the field by which the items of a list are merged."""
    if isinstance(base, dict) and isinstance(patch, dict):
        out = dict(base)
        for name, value in patch.items():
            if value is None:
                out.pop(name, None)
            else:
                out[name] = merged(out.get(name), value, _MERGED_BY.get(name, ""))
        return out
    if by and isinstance(base, list) and isinstance(patch, list) and all(isinstance(one, dict) for one in patch):
        return _merged_lists(base, patch, by)
    return merged({}, patch) if isinstance(patch, dict) else patch


def _merged_lists(base: Iterable[Any], patch: Iterable[Json], by: str) -> list[Any]:
    out = list(base)
    where = {one.get(by): i for i, one in enumerate(out) if isinstance(one, dict)}
    for one in patch:
        if (at := where.get(one.get(by))) is not None:
            out[at] = merged(out[at], one)
        else:
            out.append(merged({}, one))
    return out


def _texts(obj: Mapping[str, Any], *path: str) -> dict[str, str]:
    return {str(key): str(value) for key, value in untrusted.sub(obj, *path).items()}
