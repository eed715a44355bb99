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
    """A PersistentVolumeClaim: its access modes, its volume ("" while it has none), and its storage class. `is_bound`:
    to that volume, and not only meant for it."""

    modes: tuple[str, ...]
    volume: str
    storage: str
    is_bound: bool = True
    is_ending: bool = False

    @property
    def only(self) -> str:
        """ONE_NODE or ONE_POD if nothing more can mount it; else ""."""
        if ONE_POD in self.modes:
            return ONE_POD
        return ONE_NODE if self.modes == (ONE_NODE,) else ""


@dataclass(frozen=True, slots=True)
class Source:
    """A volume, or what the volumes of a storage class will be: the terms of which a node must meet one to reach it
    ((): any node will do), and its CSI driver, "" for others. `waits`: the class makes a volume for a claim when a pod
    needs it, and not before."""

    terms: Terms = ()
    driver: str = ""
    waits: bool = False


_ANYWHERE: Final = Source()


@dataclass(frozen=True, slots=True)
class Volumes:
    """The claims by (namespace, name), the volumes and storage classes by name, and by node, how many volumes of each
    driver it takes. `is_known`: they have all been listed, so that what is not here does not exist."""

    claims: Mapping[tuple[str, str], Claim] = field(default_factory=dict)
    volumes: Mapping[str, Source] = field(default_factory=dict)
    classes: Mapping[str, Source] = field(default_factory=dict)
    limits: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    is_known: bool = False

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
            is_known=True,
        )

    def lack(self, namespace: str, claim: str) -> str:
        """Why kube-scheduler binds no pod that mounts this claim, wherever it is, for people; "" if it may."""
        found, its = self.claims.get((namespace, claim)), f"its claim {claim}"
        if not self.is_known:
            return ""
        if found is None:
            return f"{its} does not exist"
        if found.is_ending:
            return f"{its} is being deleted"
        return (self._lack_of_volume if found.volume else self._lack_of_class)(found, its)

    def _lack_of_volume(self, claim: Claim, its: str) -> str:
        if not claim.is_bound:
            return f"{its} is not bound yet to the volume {claim.volume}"
        return "" if claim.volume in self.volumes else f"the volume of {its}, {claim.volume}, does not exist"

    def _lack_of_class(self, claim: Claim, its: str) -> str:
        storage = self.classes.get(claim.storage)
        if not claim.storage:
            return f"{its} is not bound, and has no storage class that makes a volume"
        if storage is None:
            return f"the storage class of {its}, {claim.storage}, does not exist"
        late = f"{its} is not bound yet, and its storage class {claim.storage} waits for no pod"
        return "" if storage.waits else late

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
    found = Claim(
        modes,
        str(spec.get("volumeName") or ""),
        str(spec.get("storageClassName") or ""),
        is_bound=untrusted.sub(obj, "status").get("phase") in ("Bound", "Lost"),
        is_ending=bool(untrusted.sub(obj, "metadata").get("deletionTimestamp")),
    )
    return {"read": found}


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
    waits = obj.get("volumeBindingMode") == "WaitForFirstConsumer"
    return {"read": Source(terms, str(obj.get("provisioner") or ""), waits)}


def trim_limits(obj: Json) -> Json | None:
    """Of a CSINode: how many volumes of each driver it takes."""
    found = {}
    for driver in islice(untrusted.mappings(untrusted.sub(obj, "spec").get("drivers")), _MOST_TERMS):
        count = untrusted.sub(driver, "allocatable").get("count")
        if isinstance(count, int):
            found[str(driver.get("name"))] = count
    return {"read": found}
