"""The memory of applications: what the jobs of each namespace have shown, for the next jobs of the same application.

Each namespace that has the ConfigMap `diflow-applications` gets its own memory in it, in the form of
`diflow/record/namespace/applications.py`. A watch of these ConfigMaps is all that planning reads (`priors.py`). It is
updated when a job ends; a job that runs for long adds what no job has shown before.

Nothing is kept that must not be lost. What a process has observed of running jobs (how long their restarts take, how
their gradient noise changes) is lost with it, and a namespace whose memory is deleted learns again.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import structlog

from diflow.allocator.policies.goodput.memory import work_of
from diflow.allocator.remember import namespace_records
from diflow.allocator.remember.lessons import Observed, lessons
from diflow.allocator.watch import reports
from diflow.allocator.watch.node_pools import NodePools
from diflow.allocator.watch.records import application_of
from diflow.common import keys
from diflow.common.clock import SYSTEM, Clock
from diflow.common.errors import ConflictError, DiflowError, LostLeadershipError, UnauthorizedError, UnavailableError
from diflow.common.limits import MOST_APPLICATIONS_BYTES
from diflow.kube.api import Cluster, within
from diflow.kube.kinds import CONFIG_MAP, WORKFLOW
from diflow.kube.leader_election import Elector
from diflow.kube.reflector import PACE, Json, Pace, Reflector
from diflow.record import chain, untrusted
from diflow.record.identity import Identity
from diflow.record.job import JobRecord, record_of
from diflow.record.namespace import applications
from diflow.record.namespace.applications import Application, Lesson
from diflow.record.status.status import derive

RUNNING_SECONDS: Final = 900.0
"""Between two writes of a memory for what running jobs have shown."""
MOST_READ: Final = 20
"""Workflows of ended jobs that are read in one pass. More of them wait for the next one."""
MOST_OBSERVED: Final = 10_000
"""Running jobs that are observed at a time."""
_BACKOFF_SECONDS: Final = 300.0

log = structlog.get_logger("diflow.allocator")

Key = tuple[str, str]
"""An application and a pool."""
Records = Mapping[Key, Application]


@dataclass(slots=True)
class _Namespace:
    """What is kept of a namespace: when a Workflow of it was read last, when its running jobs taught last, and until
    when it is left alone after an error, on the clock. `done`: the uids of ended Workflows that have taught."""

    read: float = -math.inf
    running: float = -math.inf
    pause_until: float = -math.inf
    done: frozenset[str] = frozenset()


class Applications:
    """Writes the memories. `jobs` is the cache of running jobs' Workflows, `ended` that of the metadata of Workflows
    that have ended. `namespace` "" means all."""

    def __init__(
        self,
        cluster: Cluster,
        elector: Elector,
        *,
        jobs: Reflector,
        ended: Reflector,
        pools: NodePools,
        namespace: str = "",
        clock: Clock = SYSTEM,
        pace: Pace = PACE,
    ) -> None:
        self._cluster, self._elector = cluster.without_retries(), elector
        self._jobs, self._ended, self._pools = jobs, ended, pools
        self._clock = clock
        self.config_maps = Reflector(
            cluster,
            CONFIG_MAP,
            fields=f"metadata.name={keys.APPLICATIONS}",
            trim=_trim,
            clock=clock,
            pace=pace,
            **within(namespace),
        )
        self._observed: dict[str, Observed] = {}
        self._namespaces: dict[str, _Namespace] = {}

    def run(self, stop: threading.Event) -> None:
        """Learn until `stop` is set or this process does not lead any more."""
        namespace_records.run(self.config_maps, self.learn, stop, failed="nothing was learned of applications")

    def learn(self) -> int:
        """Look at all jobs once. Returns the number of memories that were written. Raises LostLeadershipError."""
        if not (self.config_maps.synced and self._ended.synced and self._jobs.synced):
            return 0
        spaces = {namespace: item for (namespace, _), item in self.config_maps.items().items()}
        running, heads = self._running(spaces), self._ended_in(spaces)
        for read in [read for reads in running.values() for read in reads][:MOST_OBSERVED]:
            try:
                self._observed.setdefault(read.identity.uid, Observed()).update(read, self._clock.wall())
            except Exception as error:  # what it reports is the user's
                log.debug("the reports of a job cannot be read", job=read.key, why=type(error).__name__)
        budget, written, now = MOST_READ, 0, self._clock.monotonic()
        self._namespaces = {name: self._namespaces.get(name) or _Namespace() for name in spaces}
        for name, known in sorted(self._namespaces.items(), key=lambda one: (one[1].read, one[0])):
            if now < known.pause_until:
                continue
            try:
                used, wrote = self._of_namespace(name, spaces[name], heads.get(name, {}), running.get(name, []), budget)
                budget, written = budget - used, written + wrote
            except LostLeadershipError:
                raise
            except ConflictError:  # a user has changed it: the next pass has their version
                continue
            except DiflowError as error:
                known.pause_until = now + _BACKOFF_SECONDS
                log.debug("applications are not recorded", namespace=name, why=str(error))
                if isinstance(error, UnavailableError) and not isinstance(error, UnauthorizedError):
                    break  # that concerns all namespaces
            except Exception as error:  # the text and the reports are the users': other namespaces learn all the same
                known.pause_until = now + _BACKOFF_SECONDS
                log.error("applications are not recorded", namespace=name, why=f"{type(error).__name__}: {error}")
        self._forget_all_but(running, heads)
        return written

    def _running(self, spaces: Mapping[str, Json]) -> dict[str, list[JobRecord]]:
        """The running jobs of these namespaces that have an application."""
        out: dict[str, list[JobRecord]] = {}
        for (namespace, _), item in self._jobs.items().items():
            read: JobRecord = item["read"]
            if namespace in spaces and read.needs.application and not read.has_ended and not read.chain.continued_in:
                out.setdefault(namespace, []).append(read)
        return out

    def _ended_in(self, spaces: Mapping[str, Json]) -> dict[str, dict[str, str]]:
        """The Workflows of these namespaces that have ended: the name of each, by its uid."""
        out: dict[str, dict[str, str]] = {}
        for (namespace, name), kept in self._ended.items().items():
            if kept["head"] is not None and namespace in spaces:
                out.setdefault(namespace, {})[kept["head"].uid] = name
        return out

    def _forget_all_but(
        self, running: Mapping[str, Sequence[JobRecord]], heads: Mapping[str, Mapping[str, str]]
    ) -> None:
        """Drop what was observed of jobs that are gone or have taught."""
        alive = {read.identity.uid for reads in running.values() for read in reads}
        alive |= {uid for name, there in heads.items() for uid in there if uid not in self._namespaces[name].done}
        self._observed = {uid: seen for uid, seen in self._observed.items() if uid in alive}

    def _of_namespace(
        self, namespace: str, item: Json, heads: Mapping[str, str], running: list[JobRecord], budget: int
    ) -> tuple[int, bool]:
        """(Workflows read, whether the memory was written)."""
        kept = self._namespaces[namespace]
        is_due = bool(running) and self._clock.monotonic() - kept.running >= RUNNING_SECONDS
        done = kept.done & heads.keys()
        if not is_due and (done == heads.keys() or budget <= 0):
            kept.done = frozenset(done)
            return 0, False
        before = applications.parse(item["text"])
        known = dict(before)
        done = (done | {uid for record in known.values() for uid in record.taught}) & heads.keys()
        used = 0
        for uid, name in sorted(heads.items(), key=lambda one: one[1]):
            if uid in done:
                continue
            if used >= budget:
                break
            used += 1
            kept.read = self._clock.monotonic()
            done |= {uid}
            for key, lesson, at in self._ended_job(namespace, name, uid, known):
                known[key] = applications.learned(known.get(key) or Application(*key), lesson, now_seconds=at)
        if is_due:
            kept.running = self._clock.monotonic()
            for read in running:
                self._learn_running(read, known)
        text = applications.text(known.values())
        is_new = text != item["text"] and known != before
        if is_new:
            data = {applications.APPLICATIONS_KEY: text}
            self.config_maps.apply_write(namespace_records.write(self._cluster, self._elector, item, data))
        kept.done = frozenset(done)
        return used, is_new

    def _ended_job(self, namespace: str, name: str, uid: str, known: Records) -> list[tuple[Key, Lesson, float]]:
        """(application and pool, what the job has shown there, its end) of an ended job, for each pool in which it ran;
        nothing if it has shown nothing."""
        workflow = self._cluster.find(WORKFLOW, name, namespace=namespace)
        if workflow is None or Identity.of(workflow).uid != uid or chain.continued_in(workflow):
            return []
        try:
            state = record_of(workflow)
            if not (state.terms.is_job and state.terms.is_gang and state.terms.is_preemptible):
                return []
            status = derive(workflow)
            profile = reports.profile(state.texts.profilings)
            application = application_of(state)
            if profile is None or not status.ended:
                return []
            ended = untrusted.seconds(status.completion_timestamp)
            began = state.notes.allocation.first if state.notes.allocation is not None else 0.0
            (here, lesson), *others = lessons(
                uid,
                profile,
                pool=self._pools.of(state.notes.allocation),
                pools=self._pools.by_node().values(),
                seen=self._observed.get(uid),
                records={pool: record for (key, pool), record in known.items() if key == application},
            )
            if status.phase == "Succeeded" and 0 < began < ended:
                lesson = replace(lesson, work=work_of(profile, seconds=ended - began))
            return [((application, pool), found, ended) for pool, found in ((here, lesson), *others)]
        except Exception as error:  # the Workflow's text is the user's
            log.debug("nothing was learned", object=f"{namespace}/{name}", why=type(error).__name__)
            return []

    def _learn_running(self, read: JobRecord, known: dict[Key, Application]) -> None:
        """Add to `known` what a running job has shown."""
        profile = reports.profile(read.texts.profilings)
        if profile is None:
            return
        found = lessons(
            read.identity.uid,
            profile,
            pool=self._pools.of(read.notes.allocation),
            pools=self._pools.by_node().values(),
            seen=self._observed.get(read.identity.uid),
            records={},
        )
        for pool, lesson in found:
            key = read.needs.application, pool
            record = known.get(key) or Application(*key)
            known[key] = applications.learned_while_running(record, lesson, now_seconds=self._clock.wall())


def _trim(obj: Json) -> Json:
    """A memory as the cache keeps it: as text, which is parsed only where jobs need it."""
    metadata: Mapping[str, Any] = obj["metadata"]
    kept = {name: metadata.get(name) for name in ("namespace", "name", "uid", "resourceVersion")}
    return {"metadata": kept, "text": applications.text_of(obj)[-MOST_APPLICATIONS_BYTES:]}
