"""How the replicas of a job find each other with DI-engine's `ditask`: `engineFields` of DI-orchestrator v1.0.

Its manifests pass the variables `DI_PARALLEL_WORKERS_ARG`, `DI_PORTS_ARG`, `DI_NODE_IDS_ARG` and
`DI_ATTACHED_NODES_ARG` to that command. A job has the fields as the annotation `diflow/ditask`, such as `star/2`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from diflow.common import keys
from diflow.common.errors import InvalidError
from diflow.common.limits import MOST_PARALLEL_WORKERS

TOPOLOGIES: Final = ("star", "alone", "mesh")
URL_PREFIX: Final = "tcp://"
_PATH: Final = "spec.engineFields"
_PATH_OF_ANNOTATION: Final = f"metadata.annotations[{keys.DITASK}]"


@dataclass(frozen=True, slots=True)
class Ditask:
    """`workers` processes in each replica. `topology`: `star`, all others connect to the first replica; `mesh`, each
    connects to all workers of the replicas before it; `alone`, to none."""

    topology: str = TOPOLOGIES[0]
    workers: int = 1

    def text(self) -> str:
        """The annotation's text."""
        return f"{self.topology}/{self.workers}"

    @property
    def ports(self) -> tuple[int, ...]:
        """The ports of the workers of a replica."""
        return tuple(range(keys.PORT, keys.PORT + self.workers))

    def addresses(self, host: str) -> str:
        """The URLs of the workers of a replica, comma-joined."""
        return ",".join(f"{URL_PREFIX}{host}:{port}" for port in self.ports)

    def most_bytes(self, replicas: int, host: str) -> int:
        """The longest value of one variable, `host` being the longest host name."""
        return replicas * (len(self.addresses(host)) + 1) if self.topology == "mesh" else 0


def from_fields(given: Any) -> Ditask:
    """`engineFields` of a manifest; None for none. Raises InvalidError."""
    if given is None:
        return Ditask()
    if not isinstance(given, Mapping):
        raise InvalidError("must be a mapping", path=_PATH)
    topology, workers = given.get("topology", TOPOLOGIES[0]), given.get("parallelWorkers", 1)
    if topology not in TOPOLOGIES:
        raise InvalidError(f"must be one of {', '.join(TOPOLOGIES)}", path=f"{_PATH}.topology")
    if not isinstance(workers, int) or isinstance(workers, bool) or not 1 <= workers <= MOST_PARALLEL_WORKERS:
        raise InvalidError(f"must be a whole number from 1 to {MOST_PARALLEL_WORKERS}", path=f"{_PATH}.parallelWorkers")
    return Ditask(topology, workers)


def of_annotations(annotations: Mapping[str, str]) -> Ditask | None:
    """What the annotation of a job says; None if it has none. Raises InvalidError."""
    text = annotations.get(keys.DITASK)
    if text is None:
        return None
    topology, _, number = text.partition("/")
    if (
        topology in TOPOLOGIES
        and number.isdecimal()
        and number.isascii()
        and len(number) <= len(str(MOST_PARALLEL_WORKERS))
    ):
        workers = int(number)
        if 1 <= workers <= MOST_PARALLEL_WORKERS:
            return Ditask(topology, workers)
    raise InvalidError(
        f"must be a topology ({', '.join(TOPOLOGIES)}), a slash, and from 1 to {MOST_PARALLEL_WORKERS} parallel "
        "workers, such as star/1",
        path=_PATH_OF_ANNOTATION,
    )
