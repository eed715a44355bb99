"""What the checks read of the Deployments of a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from diflow.record import untrusted


@dataclass(frozen=True, slots=True)
class Container:
    """A container of any pod template. `words`: those of its command and of its arguments."""

    image: str
    words: tuple[str, ...]
    environment: Mapping[str, str]

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """Read one. It never raises."""
        lists = (given.get(name) for name in ("command", "args"))
        words = (word for some in lists if isinstance(some, list) for word in some if isinstance(word, str))
        variables = untrusted.mappings(given.get("env"))
        return cls(
            untrusted.string(given.get("image")),
            tuple(words),
            {str(one.get("name")): str(one.get("value") or "") for one in variables},
        )


@dataclass(frozen=True, slots=True)
class Deployed:
    """A Deployment. `pods`: (the ready ones, all)."""

    namespace: str
    name: str
    containers: tuple[Container, ...]
    pods: tuple[int, int]

    @classmethod
    def of(cls, obj: Mapping[str, Any]) -> Self:
        """Read one."""
        metadata, status = untrusted.sub(obj, "metadata"), untrusted.sub(obj, "status")
        given = untrusted.mappings(untrusted.sub(obj, "spec", "template", "spec").get("containers"))
        return cls(
            untrusted.string(metadata.get("namespace")),
            untrusted.string(metadata.get("name")),
            tuple(map(Container.of, given)),
            (int(status.get("readyReplicas") or 0), int(status.get("replicas") or 0)),
        )
