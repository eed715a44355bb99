"""Which object a record is of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from diflow.record import untrusted


@dataclass(frozen=True, slots=True)
class Identity:
    """The object that a write is for, and its version: with another uid or a later version the write is refused."""

    namespace: str
    name: str
    uid: str
    version: str
    key: str = field(init=False, repr=False, compare=False)
    """"namespace/name", precomputed as each cycle needs it several times."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", f"{self.namespace}/{self.name}")

    @property
    def this_version(self) -> dict[str, str]:
        """The metadata of a patch that is valid for this version of the object only."""
        return {"uid": self.uid, "resourceVersion": self.version}

    def owner_reference(self, api_version: str, kind: str) -> dict[str, Any]:
        """The reference to this object, of a kind that an identity does not know, in what is deleted with it."""
        return {"apiVersion": api_version, "kind": kind, "name": self.name, "uid": self.uid}

    def bind(self, patch: Mapping[str, Any]) -> dict[str, Any]:
        """A merge patch, valid for this version of the object only."""
        return {**patch, "metadata": {**patch.get("metadata", {}), **self.this_version}}

    @classmethod
    def of(cls, obj: Mapping[str, Any]) -> Self:
        """That of any object, whose metadata may be anything."""
        metadata = untrusted.sub(obj, "metadata")
        return cls(*(untrusted.string(metadata.get(name)) for name in ("namespace", "name", "uid", "resourceVersion")))
