"""Where a pod may run, compiled into a mask over nodes: node selector, node affinity, taints.

Pod counts and host ports need no predicate: `views.build` makes them resources of the node (`pods`, and one of each
`hostport/N`), so no policy can ignore them.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from typing import Final, Literal

Operator = Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]

NODE_NAME = "(metadata.name)"
"""The key of a requirement on the node's name (matchFields). Not a valid label key."""


@dataclass(frozen=True, slots=True)
class Taint:
    """A node's taint. `PreferNoSchedule` excludes no node."""

    key: str
    value: str = ""
    effect: str = "NoSchedule"


@dataclass(frozen=True, slots=True)
class Toleration:
    """A pod's toleration, as in Kubernetes: an empty key with Exists tolerates every taint, an empty effect every
    effect."""

    key: str = ""
    operator: Literal["Equal", "Exists"] = "Equal"
    value: str = ""
    effect: str = ""

    def covers(self, taint: Taint) -> bool:
        if self.effect and self.effect != taint.effect:
            return False
        if not self.key:
            return self.operator == "Exists"
        return self.key == taint.key and (self.operator == "Exists" or self.value == taint.value)


@dataclass(frozen=True, slots=True)
class Requirement:
    """One requirement of a node selector term."""

    key: str
    operator: Operator
    values: tuple[str, ...] = ()

    def holds(self, labels: Mapping[str, str]) -> bool:
        present = self.key in labels
        value = labels.get(self.key, "")
        match self.operator:
            case "In":
                return present and value in self.values
            case "NotIn":
                return not present or value not in self.values
            case "Exists":
                return present
            case "DoesNotExist":
                return not present
            case "Gt" | "Lt":
                try:
                    return present and (
                        int(value) > int(self.values[0]) if self.operator == "Gt" else int(value) < int(self.values[0])
                    )
                except (ValueError, IndexError):
                    return False


@dataclass(frozen=True, slots=True)
class Where:
    """A role's node conditions. `affinity`: at least one term must hold, with all its requirements.

    `preferred`: weighted terms, which exclude no node.
    """

    selector: tuple[tuple[str, str], ...] = ()
    affinity: tuple[tuple[Requirement, ...], ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    preferred: tuple[tuple[int, tuple[Requirement, ...]], ...] = ()
    volumes: tuple[tuple[tuple[Requirement, ...], ...], ...] = ()
    """Where the volumes of its claims can be reached: of each, at least one term must hold."""

    @property
    def size(self) -> int:
        """Number of labels, values and tolerations that are compared with each node."""
        terms = (*self.affinity, *(term for _, term in self.preferred))
        lines = [line for term in terms for line in term]
        return len(self.selector) + len(self.tolerations) + len(terms) + sum(1 + len(line.values) for line in lines)

    def admits(self, labels: Mapping[str, str], taints: tuple[Taint, ...]) -> bool:
        """Whether a pod with these conditions may run on a node with these labels and taints."""
        if any(labels.get(key) != value for key, value in self.selector):
            return False
        for terms in (*([self.affinity] if self.affinity else ()), *self.volumes):
            if not any(_selects(term, labels) for term in terms):
                return False
        return all(
            taint.effect == "PreferNoSchedule" or any(t.covers(taint) for t in self.tolerations) for taint in taints
        )

    def without(self, nodes: Set[str]) -> Where:
        """The same conditions, and none of these nodes."""
        if not nodes:
            return self
        line = Requirement(NODE_NAME, "NotIn", tuple(sorted(nodes)))
        # An empty term selects nothing, with or without another requirement.
        terms = tuple((*term, line) if term else term for term in self.affinity) if self.affinity else ((line,),)
        return replace(self, affinity=terms)

    def score(self, labels: Mapping[str, str]) -> int:
        """Preference for a node with these labels: the sum of the weights of the terms that hold, as in
        kube-scheduler's NodeAffinity."""
        return sum(weight for weight, term in self.preferred if _selects(term, labels))


def _selects(term: tuple[Requirement, ...], labels: Mapping[str, str]) -> bool:
    """Whether a term holds for these labels. An empty term selects nothing, as in Kubernetes."""
    return bool(term) and all(line.holds(labels) for line in term)


@dataclass(frozen=True, slots=True)
class PodSelector:
    """Which pods are meant: those in these namespaces (None: all) with labels of which every line holds."""

    lines: tuple[Requirement, ...]
    namespaces: tuple[str, ...] | None

    def selects(self, namespace: str, labels: Mapping[str, str]) -> bool:
        if self.namespaces is not None and namespace not in self.namespaces:
            return False
        return all(line.holds(labels) for line in self.lines)


@dataclass(frozen=True, slots=True)
class PodTerm:
    """A required term of pod affinity or anti-affinity: the nodes with one value of the label `key` are one place."""

    key: str
    pods: PodSelector


@dataclass(frozen=True, slots=True)
class Spread:
    """A topology spread constraint with DoNotSchedule. `honours_taints`: nodes whose taints the pod does not tolerate
    do not count; `honours_affinity`: nor do those that its node selector excludes."""

    key: str
    most_skew: int
    pods: PodSelector
    least_domains: int = 1
    honours_affinity: bool = True
    honours_taints: bool = False


@dataclass(frozen=True, slots=True)
class PodRules:
    """What a pod asks for of other pods and of its volumes, beside the conditions on its node (`Where`).

    `apart`, `near`: required anti-affinity and affinity. `claims`: the PersistentVolumeClaims that it mounts. `beyond`:
    the fields that only kube-scheduler knows.
    """

    labels: tuple[tuple[str, str], ...] = ()
    apart: tuple[PodTerm, ...] = ()
    near: tuple[PodTerm, ...] = ()
    spread: tuple[Spread, ...] = ()
    claims: tuple[str, ...] = ()
    beyond: tuple[str, ...] = ()

    @property
    def asks(self) -> bool:
        """Whether it asks for anything of other pods or of volumes."""
        return bool(self.apart or self.near or self.spread or self.claims)

    @property
    def size(self) -> int:
        """Number of labels and values that are compared with each pod."""
        selectors = [*(one.pods for one in (*self.apart, *self.near)), *(one.pods for one in self.spread)]
        return len(selectors) + sum(1 + len(line.values) for one in selectors for line in one.lines)


NO_RULES: Final = PodRules()
