"""The conditions of a pod template on its nodes, as predicates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from diflow.common.predicates import NODE_NAME, Requirement, Toleration, Where

MOST_PREFERRED: Final = 32
"""The most preferred terms of a template that count: each is matched against every node in each cycle."""
_WEIGHTS: Final = range(1, 101)


def read_where(spec: Mapping[str, Any]) -> Where:
    """The node constraints of a pod's spec."""
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    preferred = affinity.get("preferredDuringSchedulingIgnoredDuringExecution") or []
    weighed = [(item.get("weight"), _term(item.get("preference") or {})) for item in preferred[:MOST_PREFERRED]]
    return Where(
        selector=tuple(sorted((str(k), str(v)) for k, v in (spec.get("nodeSelector") or {}).items())),
        affinity=tuple(_term(term) for term in required.get("nodeSelectorTerms") or []),
        tolerations=tuple(
            Toleration(t.get("key") or "", t.get("operator") or "Equal", t.get("value") or "", t.get("effect") or "")
            for t in spec.get("tolerations") or []
        ),
        # An empty preferred term matches no node; Kubernetes refuses other weights.
        preferred=tuple((weight, term) for weight, term in weighed if term and weight in _WEIGHTS),
    )


def _term(term: Mapping[str, Any]) -> tuple[Requirement, ...]:
    """The requirements of a node selector term. metadata.name is the only field that Kubernetes supports."""
    lines = [(line["key"], line) for line in term.get("matchExpressions") or []]
    lines += [(NODE_NAME, line) for line in term.get("matchFields") or []]
    return tuple(
        Requirement(key, line["operator"], tuple(str(v) for v in line.get("values") or ())) for key, line in lines
    )
