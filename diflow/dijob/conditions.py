"""The conditions of a pod on its node, on other pods and on its volumes, as predicates: of a template, or of a pod."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from diflow.common.predicates import (
    NO_RULES,
    NODE_NAME,
    PodRules,
    PodSelector,
    PodTerm,
    Requirement,
    Spread,
    Toleration,
    Where,
)
from diflow.dijob.pods import PodTemplate, volumes_of

MOST_PREFERRED: Final = 32
"""The most preferred terms of a template that count: each is matched against every node in each cycle."""
_WEIGHTS: Final = range(1, 101)
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_OPERATORS: Final = frozenset({"In", "NotIn", "Exists", "DoesNotExist"})
_SCHEDULERS: Final = frozenset({None, "", "default-scheduler"})


def read_where(spec: Mapping[str, Any]) -> Where:
    """The node constraints of a pod's spec."""
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    preferred = affinity.get("preferredDuringSchedulingIgnoredDuringExecution") or []
    weighed = [(item.get("weight"), _term(item.get("preference") or {})) for item in preferred[:MOST_PREFERRED]]
    return Where(
        selector=tuple(sorted((str(k), str(v)) for k, v in (spec.get("nodeSelector") or {}).items())),
        affinity=node_terms(required.get("nodeSelectorTerms") or []),
        tolerations=tuple(
            Toleration(t.get("key") or "", t.get("operator") or "Equal", t.get("value") or "", t.get("effect") or "")
            for t in spec.get("tolerations") or []
        ),
        # An empty preferred term matches no node; Kubernetes refuses other weights.
        preferred=tuple((weight, term) for weight, term in weighed if term and weight in _WEIGHTS),
    )


def node_terms(given: Iterable[Mapping[str, Any]]) -> tuple[tuple[Requirement, ...], ...]:
    """The requirements of node selector terms, of which a node must meet one."""
    return tuple(_term(term) for term in given)


def _term(term: Mapping[str, Any]) -> tuple[Requirement, ...]:
    """The requirements of a node selector term. metadata.name is the only field that Kubernetes supports."""
    lines = [(line["key"], line) for line in term.get("matchExpressions") or []]
    lines += [(NODE_NAME, line) for line in term.get("matchFields") or []]
    return tuple(
        Requirement(key, line["operator"], tuple(str(v) for v in line.get("values") or ())) for key, line in lines
    )


def read_rules(
    spec: Mapping[str, Any], *, namespace: str, labels: Mapping[str, str], claims: Iterable[str] = ()
) -> PodRules:
    """What a pod with these labels asks for of other pods and of volumes. `claims`: those that it mounts.

    A preferred term excludes no node, so it is not read. What is not known here is named in `beyond`.
    """
    beyond: list[str] = []
    affinity = spec.get("affinity") or {}
    apart, near = (
        tuple(_pod_terms((affinity.get(kind) or {}).get(_REQUIRED), namespace, labels, beyond, f"affinity.{kind}"))
        for kind in ("podAntiAffinity", "podAffinity")
    )
    spread = tuple(_spreads(spec.get("topologySpreadConstraints"), namespace, labels, beyond))
    if spec.get("resourceClaims"):
        beyond.append("resourceClaims")
    if spec.get("schedulerName") not in _SCHEDULERS:
        beyond.append("schedulerName")
    own = tuple(sorted(labels.items()))
    found = PodRules(own, apart, near, spread, tuple(sorted(set(claims))), tuple(dict.fromkeys(beyond)))
    return NO_RULES if found == NO_RULES else found


def rules_of_template(
    template: PodTemplate, *, namespace: str, more: Mapping[str, str], shared: Iterable[tuple[str, str]]
) -> PodRules:
    """The rules of the pods of a template, with the labels of the template alone. `more`: labels that they have beside
    these; `shared`: the claims of the job's volumes, by the names of the volumes."""
    spec, metadata = template["spec"], template.get("metadata")
    labels = (metadata.labels if metadata is not None else None) or {}
    others = [{"name": name, "persistentVolumeClaim": {"claimName": claim}} for name, claim in shared]
    claims = claims_of(spec, volumes_of(spec.get("volumes") or (), others))
    found = read_rules(spec, namespace=namespace, labels={**labels, **more}, claims=claims)
    own = tuple(sorted(labels.items()))
    return found if found.labels == own else replace(found, labels=own)


def _pod_terms(
    given: Any, namespace: str, labels: Mapping[str, str], beyond: list[str], path: str
) -> Iterator[PodTerm]:
    for term in given or ():
        spaces: tuple[str, ...] | None = tuple(term.get("namespaces") or ()) or (namespace,)
        others = term.get("namespaceSelector")
        if others is not None and not (others.get("matchLabels") or others.get("matchExpressions")):
            spaces = None  # an empty selector selects all namespaces
        elif others is not None:
            beyond.append(f"{path}.namespaceSelector")  # the labels of namespaces are not known
            continue
        lines = _lines(term, labels)
        if lines is None:
            beyond.append(f"{path}.labelSelector")
        elif term.get("labelSelector") is not None:  # without one, no pod is meant
            yield PodTerm(term["topologyKey"], PodSelector(lines, spaces))


def _spreads(given: Any, namespace: str, labels: Mapping[str, str], beyond: list[str]) -> Iterator[Spread]:
    for one in given or ():
        if one.get("whenUnsatisfiable", "DoNotSchedule") != "DoNotSchedule":
            continue
        lines = _lines(one, labels)
        if lines is None:
            beyond.append("topologySpreadConstraints.labelSelector")
        elif one.get("labelSelector") is not None:
            yield Spread(
                one["topologyKey"],
                max(1, one["maxSkew"]),
                PodSelector(lines, (namespace,)),
                least_domains=one.get("minDomains") or 1,
                honours_affinity=one.get("nodeAffinityPolicy") != "Ignore",
                honours_taints=one.get("nodeTaintsPolicy") == "Honor",
            )


def _lines(given: Mapping[str, Any], labels: Mapping[str, str]) -> tuple[Requirement, ...] | None:
    """The lines of a label selector, with those of the keys whose values are the pod's own; None if one has an operator
    that is not known."""
    selector = given.get("labelSelector") or {}
    lines = [Requirement(key, "In", (value,)) for key, value in (selector.get("matchLabels") or {}).items()]
    for line in selector.get("matchExpressions") or ():
        if line["operator"] not in _OPERATORS:
            return None
        lines.append(Requirement(line["key"], line["operator"], tuple(map(str, line.get("values") or ()))))
    for name, operator in (("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn")):
        lines += [Requirement(k, operator, (labels[k],)) for k in given.get(name) or () if k in labels]  # type: ignore[arg-type]
    return tuple(sorted(lines, key=lambda line: (line.key, line.operator, line.values)))


def claims_of(spec: Mapping[str, Any], volumes: Iterable[Mapping[str, Any]]) -> list[str]:
    """The names of the claims among these volumes that containers of the pod mount."""
    every = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
    mounted = {
        mount.get("name")
        for container in every
        for mount in [*(container.get("volumeMounts") or ()), *(container.get("volumeDevices") or ())]
    }
    names = [(one.get("name"), (one.get("persistentVolumeClaim") or {}).get("claimName")) for one in volumes]
    return [claim for name, claim in names if claim and name in mounted]


def host_ports(spec: Mapping[str, Any], containers: Iterable[Mapping[str, Any]]) -> tuple[int, ...]:
    """The ports of the node that a pod with these containers takes: on the host's network, all of its ports."""
    kind = "containerPort" if spec.get("hostNetwork") is True else "hostPort"
    given = [port for one in containers for port in one.get("ports") or ()]
    numbers = [port.get("hostPort") or port.get(kind) for port in given]
    return tuple(dict.fromkeys(number for number in numbers if number))
