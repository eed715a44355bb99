"""Records the jobs that have ended, so that they are listed after Argo has deleted their Workflows.

Each namespace that has the ConfigMap `diflow-ended` gets its own record in it (`diflow/record/namespace/ended.py`), of
all jobs of diflow there, also those that the allocator does not schedule. Argo labels the Workflows that have ended: a
watch of these, with their metadata alone, says which jobs there are to record, and each is read once.

Nothing is kept that must not be lost: what the record lacks is found again in the Workflows that still exist. A
namespace whose record cannot be written, or in which very many jobs end, delays and displaces no record of another one.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from typing import Final

import structlog

from diflow.allocator.remember import namespace_records
from diflow.common import keys
from diflow.common.clock import SYSTEM, Clock
from diflow.common.durations import backoff
from diflow.common.errors import DiflowError, LostLeadershipError, NotFoundError, UnauthorizedError, UnavailableError
from diflow.common.limits import MOST_ENDED_JOBS
from diflow.kube.api import Cluster, within
from diflow.kube.kinds import CONFIG_MAP, WORKFLOW
from diflow.kube.leader_election import Elector
from diflow.kube.reflector import PACE, Json, Pace, Reflector
from diflow.record import chain, untrusted
from diflow.record.identity import Identity
from diflow.record.namespace import ended
from diflow.record.namespace.ended import EndedJob

ENDED: Final = f"{keys.MANAGED},{keys.ARGO_COMPLETED}=true"
"""Label selector of the Workflows of jobs that have ended."""

# Workflows that are read in one pass: of one namespace, and in all. A Workflow has about 80 kB.
_MOST_READ: Final = 100
_MOST_READ_IN_ALL: Final = 500
_BACKOFF_SECONDS: Final = (30.0, 600.0)

log = structlog.get_logger("diflow.allocator")


@dataclass(slots=True)
class _Space:
    """What is known of a namespace. `is_new`: nothing was recorded by this process yet. `done`: (uid, version) of the
    Workflows that need no further look."""

    is_new: bool = True
    done: frozenset[tuple[str, str]] = frozenset()
    served: float = -math.inf
    pause_until: float = -math.inf
    failures: int = 0


@dataclass(slots=True)
class _Budget:
    """How many Workflows may still be read in this pass."""

    left: int = _MOST_READ_IN_ALL


class EndedJobs:
    """Writes the records while this process leads. `namespace` "" means all. `options` are those of `Reflector`."""

    def __init__(
        self,
        cluster: Cluster,
        elector: Elector,
        *,
        namespace: str = "",
        clock: Clock = SYSTEM,
        pace: Pace = PACE,
    ) -> None:
        self._cluster, self._elector, self._clock = cluster.without_retries(), elector, clock
        self.workflows = Reflector(
            cluster, WORKFLOW, labels=ENDED, metadata_only=True, trim=_trim, clock=clock, pace=pace, **within(namespace)
        )
        self._spaces: dict[str, _Space] = {}

    def run(self, stop: threading.Event) -> None:
        """Write records until `stop` is set or this process does not lead any more."""
        namespace_records.run(self.workflows, self.record, stop, failed="ended jobs were not recorded")

    def record(self) -> int:
        """Write what the records lack. Returns the number of written records. Raises LostLeadershipError."""
        if not self.workflows.synced:
            return 0
        present: dict[str, list[tuple[str, Identity]]] = {}
        for (namespace, _), kept in self.workflows.items().items():
            if kept["head"] is not None:
                present.setdefault(namespace, []).append((kept["created"], kept["head"]))
        self._spaces = {name: self._spaces.get(name) or _Space() for name in present}
        budget, written, now = _Budget(), 0, self._clock.monotonic()
        for name, space in sorted(self._spaces.items(), key=lambda item: (item[1].served, item[0])):
            if budget.left <= 0:
                break
            if now < space.pause_until:
                continue
            try:
                written += self._record(name, space, present[name], budget)
                space.failures = 0
            except LostLeadershipError:
                raise
            except DiflowError as error:
                self._back_off(name, space, error)
                if isinstance(error, UnavailableError) and not isinstance(error, UnauthorizedError):
                    break  # that concerns all namespaces
        return written

    def _record(self, namespace: str, space: _Space, heads: list[tuple[str, Identity]], budget: _Budget) -> bool:
        """Add to the record of one namespace, with the Workflows that have ended there, each with the time of its
        creation. Returns whether it was written."""
        there = {(head.uid, head.version): head for _, head in sorted(heads, key=lambda one: (one[0], one[1].name))}
        if space.is_new:
            # What ended before this process looked: more than the record holds are not read. What ends from now on is
            # read in any case, as a job that runs for days ends after many younger ones.
            space.done, space.is_new = frozenset(list(there)[:-MOST_ENDED_JOBS]), False
        done = space.done & there.keys()
        todo = [(key, head) for key, head in there.items() if key not in done]
        if not todo:
            space.done = done
            return False
        space.served = self._clock.monotonic()
        config_map = self._cluster.get(CONFIG_MAP, keys.ENDED_JOBS, namespace=namespace)
        before = ended.text_of(config_map)
        recorded = ended.parse(before, namespace=namespace)
        found: list[EndedJob] = []
        looked = {(job.uid, job.version) for job in recorded} & there.keys()
        for key, head in [one for one in todo if one[0] not in looked][:_MOST_READ]:
            if budget.left <= 0:
                break
            budget.left -= 1
            job = self._read(head, namespace)
            if job is not None:
                found.append(job)
            looked.add(key)
        after = ended.text(ended.merged(recorded, found))
        is_new = bool(found) and after != before
        if is_new:
            data = {ended.JOBS_KEY: after}
            namespace_records.write(self._cluster, self._elector, config_map, data, metadata_only=True)
        space.done = done | looked
        return is_new

    def _read(self, head: Identity, namespace: str) -> EndedJob | None:
        workflow = self._cluster.find(WORKFLOW, head.name, namespace=namespace)
        if workflow is None or Identity.of(workflow).uid != head.uid:
            return None
        try:
            return ended.of_workflow(workflow)
        except Exception as error:  # the Workflow's text is the user's
            log.debug("the end of a job is not recorded", object=f"{namespace}/{head.name}", why=type(error).__name__)
            return None

    def _back_off(self, namespace: str, space: _Space, error: DiflowError) -> None:
        pause = backoff(_BACKOFF_SECONDS, space.failures, error)
        if not space.failures:
            write = log.debug if isinstance(error, NotFoundError) else log.warning
            write("ended jobs are not recorded", namespace=namespace, why=str(error), again_seconds=pause)
        space.failures += 1
        space.pause_until = self._clock.monotonic() + pause


def _trim(obj: Json) -> Json:
    """What identifies a Workflow that has ended; None if its job continues in another one."""
    if chain.continued_in(obj):
        return {"head": None}
    return {
        "head": Identity.of(obj),
        "created": untrusted.time(untrusted.sub(obj, "metadata").get("creationTimestamp")),
    }
