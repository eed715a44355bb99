"""ResourceQuotas, as far as they decide how many pods a namespace may have. Without the right to read them they are not
known, and pods are refused when they are made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from diflow.common import quantities
from diflow.common.errors import InvalidError
from diflow.record import untrusted
from diflow.record.identity import Identity
from diflow.record.job import Role

Json = dict[str, Any]
_MOST_RESOURCES: Final = 64
_REQUESTS: Final = "requests."
_LIMITS: Final = "limits."
_OF_PODS: Final = frozenset({"pods", "count/pods"})
_BARE: Final = frozenset({"cpu", "memory", "ephemeral-storage"})


@dataclass(frozen=True, slots=True)
class Quota:
    """A ResourceQuota: of each resource of pods, what its namespace may have and has, in base units. One with scopes
    counts some pods alone, and is not known here."""

    namespace: str
    name: str
    hard: Mapping[str, int]
    used: Mapping[str, int]

    @property
    def room(self) -> dict[str, int]:
        """What is left of each resource."""
        return {name: most - self.used.get(name, 0) for name, most in self.hard.items()}

    def has_more_room_than(self, before: Quota | None) -> bool:
        """Whether there is more left of a resource than before, or it is limited no more."""
        if before is None:
            return False
        left, was = self.room, before.room
        return any(name not in left or left[name] > amount for name, amount in was.items())


def trim_quota(obj: Json) -> Json | None:
    """A ResourceQuota as the cache keeps it; None for one that decides nothing here."""
    spec, status = untrusted.sub(obj, "spec"), untrusted.sub(obj, "status")
    hard = _amounts(untrusted.sub(spec, "hard"))
    if not hard or spec.get("scopes") or spec.get("scopeSelector") or not untrusted.sub(status, "hard"):
        return None
    identity = Identity.of(obj)
    return {"read": Quota(identity.namespace, identity.name, hard, _amounts(untrusted.sub(status, "used")))}


def _amounts(given: Mapping[str, Any]) -> dict[str, int]:
    """The amounts of what pods have; other objects are not counted here."""
    out: dict[str, int] = {}
    for name, value in islice(given.items(), _MOST_RESOURCES):
        resource = name.removeprefix(_REQUESTS).removeprefix(_LIMITS)
        if name in _OF_PODS or name in _BARE or resource != name:
            try:
                out[name] = quantities.amount(resource, value, name)
            except InvalidError:
                continue
    return out


def usage(role: Role) -> Mapping[str, int]:
    """What a quota counts of each pod of a task, as far as it is known."""
    out = dict.fromkeys(_OF_PODS, 1)
    for name, amount in role.request.items():
        if name != quantities.PODS:
            out[f"{_REQUESTS}{name}"] = amount
            if name in _BARE:
                out[name] = amount
    out.update({f"{_LIMITS}{name}": amount for name, amount in role.limits.items() if name != quantities.PODS})
    return out
