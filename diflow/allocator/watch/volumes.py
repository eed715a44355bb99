"""Claims, volumes and storage classes, as far as they decide where pods may be. Without the right to read them they are
not known, and kube-scheduler alone decides: then nothing here is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from diflow.common.predicates import Requirement
from diflow.dijob.conditions import node_terms
from diflow.record import untrusted
from diflow.record.identity import Identity
from diflow.record.pod import PodRecord

Json = dict[str, Any]
Terms = tuple[tuple[Requirement, ...], ...]
_MOST_TERMS: Final = 64
ONE_NODE: Final = "ReadWriteOnce"
ONE_POD: Final = "ReadWriteOncePod"


@dataclass(frozen=True, slots=True)
class Claim:
    """A PersistentVolumeClaim: its access modes, its volume ("" while it has none), and its storage class."""

    modes: tuple[str, ...]
    volume: str
    storage: str

    @property
    def only(self) -> str:
        """ONE_NODE or ONE_POD if nothing more can mount it; else ""."""
        if ONE_POD in self.modes:
            return ONE_POD
        return ONE_NODE if self.modes == (ONE_NODE,) else ""


@dataclass(frozen=True, slots=True)
class Source:
    """A volume, or what the volumes of a storage class will be: the terms of which a node must meet one to reach it
    ((): any node will do), and its CSI driver, "" for others."""

    terms: Terms = ()
    driver: str = ""


_ANYWHERE: Final = Source()


@dataclass(frozen=True, slots=True)
class Volumes:
    """The claims by (namespace, name), the volumes and storage classes by name, and by node, how many volumes of each
    driver it takes."""

    claims: Mapping[tuple[str, str], Claim] = field(default_factory=dict)
    volumes: Mapping[str, Source] = field(default_factory=dict)
    classes: Mapping[str, Source] = field(default_factory=dict)
    limits: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @classmethod
    def of(
        cls, claims: Iterable[Json], volumes: Iterable[Json], classes: Iterable[Json], limits: Iterable[Json]
    ) -> Volumes:
        """Of objects that were listed."""

        def by_name(objects: Iterable[Json], trim: Callable[[Json], Json | None]) -> dict[str, Any]:
            found = ((Identity.of(obj).name, trim(obj)) for obj in objects)
            return {name: kept["read"] for name, kept in found if kept is not None}

        ids = [(Identity.of(obj), trim_claim(obj)) for obj in claims]
        return cls(
            {(one.namespace, one.name): kept["read"] for one, kept in ids if kept is not None},
            by_name(volumes, trim_volume),
            by_name(classes, trim_class),
            by_name(limits, trim_limits),
        )

    def source(self, namespace: str, claim: str) -> Source:
        """Where what a pod mounts by this claim is, or will be."""
        found = self.claims.get((namespace, claim))
        if found is None:
            return _ANYWHERE
        known = self.volumes.get(found.volume) if found.volume else self.classes.get(found.storage)
        return known or _ANYWHERE

    def attached(self, pods: Iterable[PodRecord]) -> dict[str, set[tuple[str, str, str]]]:
        """Node → (driver, namespace, claim) of what these pods have mounted there."""
        out: dict[str, set[tuple[str, str, str]]] = {}
        for pod in pods:
            for claim in pod.rules.claims if pod.where else ():
                if driver := self.source(pod.namespace, claim).driver:
                    out.setdefault(pod.where, set()).add((driver, pod.namespace, claim))
        return out

    def full_for(
        self, namespace: str, claims: Iterable[str], attached: Mapping[str, Set[tuple[str, str, str]]]
    ) -> frozenset[str]:
        """The nodes that take no more volumes, of those that a pod with these claims needs there."""
        mine = {(self.source(namespace, claim).driver, namespace, claim) for claim in claims}
        out = set()
        for node, limits in self.limits.items():
            there = attached.get(node, set())
            for driver, most in limits.items():
                new = {one for one in mine - there if one[0] == driver}
                if new and len(new) + sum(one[0] == driver for one in there) > most:
                    out.add(node)
        return frozenset(out)


UNKNOWN: Final = Volumes()


def trim_claim(obj: Json) -> Json | None:
    spec = untrusted.sub(obj, "spec")
    modes = tuple(str(mode) for mode in islice(spec.get("accessModes") or (), 8))
    return {"read": Claim(modes, str(spec.get("volumeName") or ""), str(spec.get("storageClassName") or ""))}


def trim_volume(obj: Json) -> Json | None:
    given = untrusted.sub(obj, "spec", "nodeAffinity", "required").get("nodeSelectorTerms") or []
    found = Source(node_terms(given[:_MOST_TERMS]), str(untrusted.sub(obj, "spec", "csi").get("driver") or ""))
    return {"read": found}


def trim_class(obj: Json) -> Json | None:
    terms = tuple(
        tuple(
            Requirement(str(line.get("key")), "In", tuple(map(str, line.get("values") or ())))
            for line in one.get("matchLabelExpressions") or ()
        )
        for one in islice(obj.get("allowedTopologies") or (), _MOST_TERMS)
    )
    return {"read": Source(terms, str(obj.get("provisioner") or ""))}


def trim_limits(obj: Json) -> Json | None:
    """Of a CSINode: how many volumes of each driver it takes."""
    found = {}
    for driver in islice(untrusted.mappings(untrusted.sub(obj, "spec").get("drivers")), _MOST_TERMS):
        count = untrusted.sub(driver, "allocatable").get("count")
        if isinstance(count, int):
            found[str(driver.get("name"))] = count
    return {"read": found}
