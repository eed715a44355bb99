"""What diflow needs of a stored pod template, as plain data of checked types. All other fields are left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Required, TypedDict

from msgspec import Meta, Struct

from diflow.common import keys
from diflow.common.jsontext import reader
from diflow.common.limits import LONGEST_QUANTITY

Quantity = Annotated[str, Meta(max_length=LONGEST_QUANTITY)] | int | float
Quantities = dict[str, Quantity]


class Resources(TypedDict, total=False):
    """What a container requests, and its limits."""

    requests: Quantities | None
    limits: Quantities | None


class Port(TypedDict, total=False):
    """A port of a container."""

    hostPort: Annotated[int, Meta(ge=0, le=65_535)] | None
    containerPort: Annotated[int, Meta(ge=0, le=65_535)] | None
    protocol: str | None


class Mount(TypedDict, total=False):
    """A volume that a container mounts."""

    name: str | None


class Container(TypedDict, total=False):
    """A container or init container."""

    name: str
    image: str | None
    command: list[str] | None
    resources: Resources | None
    ports: list[Port] | None
    restartPolicy: str | None
    volumeMounts: list[Mount] | None
    volumeDevices: list[Mount] | None


class Expression(TypedDict, total=False):
    """One line of a node selector term."""

    key: Required[str]
    operator: Required[str]
    values: list[str] | None


class Term(TypedDict, total=False):
    """A node selector term."""

    matchExpressions: list[Expression] | None
    matchFields: list[Expression] | None


class Selector(TypedDict, total=False):
    """The terms of which a node must match one."""

    nodeSelectorTerms: list[Term] | None


class Preferred(TypedDict, total=False):
    """A preferred term, with its weight."""

    weight: Required[int]
    preference: Required[Term]


class NodeAffinity(TypedDict, total=False):
    """What the pod requires of its node, and prefers."""

    requiredDuringSchedulingIgnoredDuringExecution: Selector | None
    preferredDuringSchedulingIgnoredDuringExecution: list[Preferred] | None


class LabelSelector(TypedDict, total=False):
    """Which pods are meant, by their labels."""

    matchLabels: dict[str, str] | None
    matchExpressions: list[Expression] | None


class PodAffinityTerm(TypedDict, total=False):
    """A required term of pod affinity or anti-affinity."""

    topologyKey: Required[str]
    labelSelector: LabelSelector | None
    namespaces: list[str] | None
    namespaceSelector: LabelSelector | None
    matchLabelKeys: list[str] | None
    mismatchLabelKeys: list[str] | None


class PodAffinity(TypedDict, total=False):
    """The pods that must be near, or must not be."""

    requiredDuringSchedulingIgnoredDuringExecution: list[PodAffinityTerm] | None


class Affinity(TypedDict, total=False):
    """The affinity of a pod."""

    nodeAffinity: NodeAffinity | None
    podAffinity: PodAffinity | None
    podAntiAffinity: PodAffinity | None


class SpreadConstraint(TypedDict, total=False):
    """A topology spread constraint."""

    topologyKey: Required[str]
    maxSkew: Required[int]
    whenUnsatisfiable: str | None
    labelSelector: LabelSelector | None
    matchLabelKeys: list[str] | None
    minDomains: int | None
    nodeAffinityPolicy: str | None
    nodeTaintsPolicy: str | None


class ClaimSource(TypedDict, total=False):
    """The claim of a volume."""

    claimName: str | None


class Volume(TypedDict, total=False):
    """A volume of a pod."""

    name: str | None
    persistentVolumeClaim: ClaimSource | None


class Toleration(TypedDict, total=False):
    """A toleration of a pod."""

    key: str | None
    operator: str | None
    value: str | None
    effect: str | None


class PodSpec(TypedDict, total=False):
    """The spec of a pod."""

    containers: Required[Annotated[list[Container], Meta(min_length=1)]]
    initContainers: list[Container] | None
    nodeSelector: dict[str, str] | None
    tolerations: list[Toleration] | None
    affinity: Affinity | None
    overhead: Quantities | None
    dnsConfig: Any
    dnsPolicy: Any
    hostNetwork: Any
    topologySpreadConstraints: list[SpreadConstraint] | None
    volumes: list[Volume] | None
    resourceClaims: Any
    schedulerName: Any


class PodMetadata(Struct, frozen=True):
    """The metadata of a pod template."""

    labels: dict[str, str] | None = None


class PodTemplate(TypedDict, total=False):
    """A PodTemplateSpec."""

    spec: Required[PodSpec]
    metadata: PodMetadata | None


MONITOR_RESOURCES: Final[Mapping[str, Mapping[str, str]]] = {
    "requests": {"cpu": "10m", "memory": "64Mi"},
    "limits": {"memory": "256Mi"},
}
"""Of the monitor: it reads a file each second. The memory of a checkpoint counts for the container that wrote it."""

read_template: Final = reader(PodTemplate)


def work_container(containers: Sequence[Mapping[str, Any]]) -> int:
    """The index of the main container: the one named `di-container`, else the first."""
    return next((i for i, c in enumerate(containers) if c.get("name") == keys.MAIN_CONTAINER), 0)


def volumes_of(own: Sequence[Any], shared: Sequence[Any]) -> list[Any]:
    """The volumes of a pod: the task's own, and those of the job (`shared`) whose name no own one has."""
    taken = {volume.get("name") for volume in own}
    return [*own, *(volume for volume in shared if volume.get("name") not in taken)]
