"""The memory of applications: what the jobs of each namespace have shown, for the next jobs of the same application.

Each namespace that has the ConfigMap `diflow-applications` gets its own memory in it, in the form of
`diflow/state/applications.py`. A watch of these ConfigMaps is all that planning reads. A job teaches it when it has
ended; a job that runs for long adds what no job has shown before.

Nothing is kept that must not be lost. What a process has noticed of running jobs (how long their restarts take, how
their gradient noise changes) is lost with it, and a namespace whose memory is deleted learns again.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import structlog

from diflow import keys
from diflow.allocator.engine import reports
from diflow.allocator.engine.priors import prior_of
from diflow.allocator.engine.records import JobRead, NodeRead, application_of
from diflow.allocator.model.prior import Prior
from diflow.allocator.model.profile import NODES, POOL, REPLICAS, Profile, clean, gradient_noise
from diflow.allocator.policies.goodput.fitting import fit_all
from diflow.allocator.policies.goodput.memory import miss, work_of
from diflow.bounds import MOST_APPLICATIONS_BYTES
from diflow.errors import ConflictError, DiflowError, LostLeadershipError, UnauthorizedError, UnavailableError
from diflow.job import read_annotation
from diflow.kube.api import Cluster
from diflow.kube.kinds import CONFIG_MAP, WORKFLOW
from diflow.kube.leader_election import Elector
from diflow.kube.reflector import Json, Reflector
from diflow.names import UNKNOWN_POOL, pool_number
from diflow.state import applications, chain, untrusted
from diflow.state.allocation import Allocation
from diflow.state.applications import BINS, LEAST_NOISE, MOST_NOISE, Application, Batches, Lesson
from diflow.state.parameters import JobState
from diflow.state.status import derive

PASS_SECONDS: Final = 10.0
GLIMPSE_SECONDS: Final = 900.0
"""Between two writes of a memory for what running jobs have shown."""
REFRESH_SECONDS: Final = 300.0
"""For so long plans use a memory as it was read, except for applications that are new in it: each change of it means a
new fit for all jobs of the application."""
MOST_READ: Final = 20
"""Workflows of ended jobs that are read in one pass. More of them wait for the next one."""
MOST_NOTICED: Final = 10_000
"""Running jobs of which something is noticed at a time."""
_BACKOFF_SECONDS: Final = 300.0

log = structlog.get_logger("diflow.allocator")

Names = Mapping[tuple[str, str], Application]


@dataclass(slots=True)
class _Noticed:
    """What a process has noticed of a running job. `since`, `then`: of its current round, and its report at that
    time; a new report is that of the first steps of the round."""

    text: str = ""
    since: float = 0.0
    then: str = ""
    is_measured: bool = True
    restarts: list[float] = field(default_factory=list)
    noise: dict[int, float] = field(default_factory=dict)


class Applications:
    """Reads and writes the memories. `jobs` and `nodes` are the caches of running jobs' Workflows and of nodes, `ended`
    that of the metadata of Workflows that have ended. `namespace` "" means all."""

    def __init__(
        self,
        cluster: Cluster,
        elector: Elector,
        *,
        jobs: Reflector,
        nodes: Reflector,
        ended: Reflector,
        pool_label: str,
        namespace: str = "",
        on_change: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        **options: Any,
    ) -> None:
        self._cluster, self._elector = cluster.without_retries(), elector
        self._jobs, self._nodes, self._ended = jobs, nodes, ended
        self._pool_label, self._clock, self._wall = pool_label, clock, wall
        space: dict[str, Any] = {"namespace": namespace} if namespace else {"everywhere": True}
        self.config_maps = Reflector(
            cluster,
            CONFIG_MAP,
            fields=f"metadata.name={keys.APPLICATIONS}",
            trim=_trim,
            on_change=lambda *_: on_change(),
            clock=clock,
            **space,
            **options,
        )
        self._priors: dict[str, tuple[object, dict[str, dict[str, Prior]], float]] = {}
        self._inherited: dict[str, tuple[Profile | None, Prior, dict[str, Prior], Profile]] = {}
        self._done: dict[str, frozenset[str]] = {}
        self._noticed: dict[str, _Noticed] = {}
        self._pools: tuple[object, Mapping[str, str]] = (None, {})
        self._glimpsed: dict[str, float] = {}
        self._pause_until: dict[str, float] = {}
        self._served: dict[str, float] = {}

    # -- reading --

    def profile(self, read: JobRead, profile: Profile | None) -> Profile | None:
        """The profile of a job with what is known of its application; the same object while neither has changed."""
        of_pools = self._of_pools(read) if read.application else None
        if not of_pools:
            return profile
        # Of another type of GPU the shape of the curve is still a better guess than none; the last one is the newest.
        pool = self._pool(read.allocation)
        prior = of_pools.get(pool) or next(reversed(of_pools.values()))
        known = self._inherited.get(read.key)
        if known is None or known[0] is not profile or known[1] is not prior or known[2] is not of_pools:
            if len(self._inherited) > 2 * MOST_NOTICED:
                self._inherited.clear()
            made = replace(profile or Profile(), prior=prior, **_in_pools(of_pools, pool))
            known = self._inherited[read.key] = profile, prior, of_pools, made
        return known[3]

    def _of_pools(self, read: JobRead) -> dict[str, Prior] | None:
        """What is known of the job's application, by pool."""
        namespace = read.identity.namespace
        item = self.config_maps.items().get((namespace, keys.APPLICATIONS))
        if item is None:
            self._priors.pop(namespace, None)
            return None
        kept, now = self._priors.get(namespace), self._clock()
        if kept is None or (kept[0] is not item and now - kept[2] >= self._least_age(read, kept[1])):
            found: dict[str, dict[str, Prior]] = {}
            for (name, pool), record in applications.parse(item["text"]).items():
                found.setdefault(name, {})[pool] = prior_of(record)
            kept = self._priors[namespace] = item, found, now
        return kept[1].get(read.application)

    @staticmethod
    def _least_age(read: JobRead, known: Mapping[str, object]) -> float:
        """How old the priors of a namespace must be, in seconds, before a change of its memory is read for this job."""
        return REFRESH_SECONDS if read.application in known else PASS_SECONDS

    def mark(self, text: str) -> Mapping[str, str | None]:
        """The annotation with the pool of the nodes of this allocation, without a value if they are of several. The
        server writes it into the reports of the round. Nothing on a cluster with one pool."""
        of_node = self._by_node()
        if len(set(of_node.values())) < 2:
            return {}
        allocation = Allocation.parse(text)
        if allocation is None or not allocation.is_placed:
            return {}
        there = {of_node.get(name, "") for names in allocation.nodes.values() for name in names if name}
        return {keys.POOL: there.pop() if len(there) == 1 else None}

    def _pool(self, allocation: Allocation | None) -> str:
        """The pool of the nodes of this allocation; "" if it has none."""
        places = allocation.nodes if allocation is not None else {}
        first = next((name for names in places.values() for name in names if name), "")
        return self._by_node().get(first, "")

    def _by_node(self) -> Mapping[str, str]:
        """The pool of each node."""
        items = self._nodes.items()
        if items is not self._pools[0]:
            reads: list[NodeRead] = [item["read"] for item in items.values()]
            names = {node.name: untrusted.string(node.labels.get(self._pool_label), most=63) for node in reads}
            self._pools = items, names
        return self._pools[1]

    # -- writing --

    def run(self, stop: threading.Event) -> None:
        """Learn until `stop` is set or this process does not lead any more."""
        self.config_maps.start()
        try:
            while not stop.wait(PASS_SECONDS):
                try:
                    self.learn()
                except LostLeadershipError:
                    return
                except Exception:  # the next pass may succeed
                    log.exception("nothing was learned of applications")
        finally:
            self.config_maps.stop()

    def learn(self) -> int:
        """Look at all jobs once. Returns the number of memories that were written. Raises LostLeadershipError."""
        if not (self.config_maps.synced and self._ended.synced and self._jobs.synced):
            return 0
        spaces = {namespace: item for (namespace, _), item in self.config_maps.items().items()}
        running, heads = self._running(spaces), self._ended_in(spaces)
        for read in [read for reads in running.values() for read in reads][:MOST_NOTICED]:
            try:
                self._notice(read)
            except Exception as error:  # what it reports is the user's
                log.debug("nothing was noticed", job=read.key, why=type(error).__name__)
        budget, written, now = MOST_READ, 0, self._clock()
        for namespace, item in sorted(spaces.items(), key=lambda one: (self._served.get(one[0], -math.inf), one[0])):
            if now < self._pause_until.get(namespace, -math.inf):
                continue
            try:
                used, wrote = self._of_namespace(
                    namespace, item, heads.get(namespace, {}), running.get(namespace, []), budget
                )
                budget, written = budget - used, written + wrote
            except LostLeadershipError:
                raise
            except ConflictError:  # a user has changed it: the next pass has their version
                continue
            except DiflowError as error:
                self._pause_until[namespace] = now + _BACKOFF_SECONDS
                log.debug("applications are not recorded", namespace=namespace, why=str(error))
                if isinstance(error, UnavailableError) and not isinstance(error, UnauthorizedError):
                    break  # that concerns all namespaces
            except Exception as error:  # the text and the reports are the users': other namespaces learn all the same
                self._pause_until[namespace] = now + _BACKOFF_SECONDS
                log.error("applications are not recorded", namespace=namespace, why=f"{type(error).__name__}: {error}")
        self._forget_all_but(spaces, running, heads)
        return written

    def _running(self, spaces: Mapping[str, Json]) -> dict[str, list[JobRead]]:
        """The running jobs of these namespaces that have an application."""
        out: dict[str, list[JobRead]] = {}
        for (namespace, _), item in self._jobs.items().items():
            read: JobRead = item["read"]
            if namespace in spaces and read.application and not read.has_ended and not read.continued_in:
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
        self,
        spaces: Mapping[str, Json],
        running: Mapping[str, Sequence[JobRead]],
        heads: Mapping[str, Mapping[str, str]],
    ) -> None:
        """Drop what was noticed of jobs and namespaces that are gone."""
        alive = {read.identity.uid for reads in running.values() for read in reads}
        alive |= {uid for namespace, there in heads.items() for uid in there if uid not in self._of(namespace)}
        self._noticed = {uid: seen for uid, seen in self._noticed.items() if uid in alive}
        self._done = {name: done for name, done in self._done.items() if name in spaces}
        for times in (self._glimpsed, self._pause_until, self._served):
            for namespace in times.keys() - spaces.keys():
                del times[namespace]

    def _of(self, namespace: str) -> frozenset[str]:
        return self._done.get(namespace, frozenset())

    def _of_namespace(
        self, namespace: str, item: Json, heads: Mapping[str, str], running: list[JobRead], budget: int
    ) -> tuple[int, bool]:
        """(Workflows read, whether the memory was written)."""
        is_due = bool(running) and self._clock() - self._glimpsed.get(namespace, -math.inf) >= GLIMPSE_SECONDS
        done = self._of(namespace) & heads.keys()
        if not is_due and (done == heads.keys() or budget <= 0):
            self._done[namespace] = frozenset(done)
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
            self._served[namespace] = self._clock()
            done |= {uid}
            for key, made, at in self._ended_job(namespace, name, uid, known):
                known[key] = applications.learned(_record(known, key), made, now_seconds=at)
        if is_due:
            self._glimpsed[namespace] = self._clock()
            for read in running:
                self._glimpse(read, known)
        text = applications.text(known.values())
        is_new = text != item["text"] and known != before
        if is_new:
            self._write(namespace, item, text)
        self._done[namespace] = frozenset(done)
        return used, is_new

    def _ended_job(
        self, namespace: str, name: str, uid: str, known: Names
    ) -> list[tuple[tuple[str, str], Lesson, float]]:
        """(application and pool, what the job has shown there, its end) of an ended job, for each pool in which it ran;
        nothing if it has shown nothing."""
        workflow = self._cluster.find(WORKFLOW, name, namespace=namespace)
        if workflow is None or untrusted.sub(workflow, "metadata").get("uid") != uid or chain.continued_in(workflow):
            return []
        try:
            state = JobState.parse(workflow)
            if not (state.is_job and state.is_gang and state.is_preemptible):
                return []
            status = derive(workflow)
            profile = reports.profile(state.profilings)
            application = application_of(workflow, read_annotation(state.dijob))
            if profile is None or not status.ended:
                return []
            ended = untrusted.seconds(status.completion_timestamp)
            began = state.allocation.first if state.allocation is not None else 0.0
            pool = self._pool(state.allocation)
            here, *others = self._by_pool(profile, pool)
            key = application, pool
            lesson = self._lesson(uid, here[1], known.get(key))
            if status.phase == "Succeeded" and 0 < began < ended:
                lesson = replace(lesson, work=work_of(profile, seconds=ended - began))
            out = [(key, lesson, ended)]
            for other, part in others:
                key = application, other
                # Its times alone: all else was seen in the last pool.
                out.append((key, _times_of(self._lesson(uid, part, known.get(key))), ended))
            return out
        except Exception as error:  # the Workflow's text is the user's
            log.debug("nothing was learned", object=f"{namespace}/{name}", why=type(error).__name__)
            return []

    def _by_pool(self, profile: Profile, pool: str) -> list[tuple[str, Profile]]:
        """What a job whose nodes are in `pool` has reported there, and in each other pool of the cluster."""
        rows = clean(profile.observations)
        numbers = rows[:, POOL] if len(rows) else np.zeros(0)
        here = (numbers == pool_number(pool)) | (numbers == UNKNOWN_POOL)
        names = sorted(set(self._by_node().values()) - {pool})
        if len(names) == 0:  # the numbers are those of pools that are gone, or of a user
            return [(pool, profile)]
        parts = [(name, rows[numbers == pool_number(name)]) for name in names]
        return [
            (pool, replace(profile, observations=rows[here])),
            *((name, replace(profile, observations=part)) for name, part in parts if len(part)),
        ]

    def _glimpse(self, read: JobRead, known: dict[tuple[str, str], Application]) -> None:
        profile = reports.profile(read.profilings) if read.profilings not in ("", "{}") else None
        if profile is not None:
            for at, (pool, part) in enumerate(self._by_pool(profile, self._pool(read.allocation))):
                key = read.application, pool
                lesson = self._lesson(read.identity.uid, part, None)
                lesson = _times_of(lesson) if at else lesson
                known[key] = applications.glimpsed(_record(known, key), lesson, now_seconds=self._wall())

    def _lesson(self, uid: str, profile: Profile, record: Application | None) -> Lesson:
        rows, seen = clean(profile.observations), self._noticed.get(uid)
        noise = dict(seen.noise) if seen is not None else {}
        noise |= _noise(profile)
        found = math.nan
        if record is not None and record.shapes and len(rows):
            found = miss(rows, fit_all([prior_of(record).observations], apart=True)[0])
        return Lesson(
            shapes=tuple(tuple(row) for row in rows[:, :5].tolist()),
            noise=noise,
            restart_seconds=float(np.median(seen.restarts)) if seen is not None and seen.restarts else None,
            batches=Batches(
                initial=profile.initial_batch,
                least=max(profile.initial_batch, profile.min_batch),
                most=profile.max_batch,
                local_least=profile.min_local_batch,
                local_most=profile.max_local_batch,
                accumulation=profile.accumulation,
            ),
            miss=found if math.isfinite(found) else None,
            uid=uid,
        )

    def _notice(self, read: JobRead) -> None:
        """Notice the gradient noise of a running job, and how long its last restart took: from the decision, after
        which its old pods get SIGTERM, to the first report of the new round."""
        seen = self._noticed.setdefault(read.identity.uid, _Noticed())
        since = read.allocation.since if read.allocation is not None and read.allocation.moves else 0.0
        if since != seen.since:
            seen.since, seen.then, seen.is_measured = since, read.profilings, since == 0.0 or seen.text == ""
        if read.profilings == seen.text:
            return
        seen.text = read.profilings
        profile = reports.profile(read.profilings) if read.profilings not in ("", "{}") else None
        if profile is None:
            return
        seen.noise |= _noise(profile)
        if not seen.is_measured and read.profilings != seen.then and _is_of_round(profile, read):
            seen.is_measured = True
            took = self._wall() - since
            if 0 < took < 3600.0:
                seen.restarts = [*seen.restarts[-15:], took]

    def _write(self, namespace: str, item: Json, text: str) -> None:
        metadata = item["metadata"]
        body = {
            "metadata": {"uid": metadata.get("uid"), "resourceVersion": metadata.get("resourceVersion")},
            "data": {applications.APPLICATIONS_KEY: text},
        }
        manager = self._elector.writes_as(str(self._elector.check()))
        written = self._cluster.patch(CONFIG_MAP, keys.APPLICATIONS, body, namespace=namespace, manager=manager)
        self.config_maps.apply_write(written)


def _record(known: Names, key: tuple[str, str]) -> Application:
    return known.get(key) or Application(key[0], key[1])


def _times_of(lesson: Lesson) -> Lesson:
    """The lesson without what was not measured in its pool."""
    return replace(lesson, noise=None, restart_seconds=None)


def _in_pools(of_pools: Mapping[str, Prior], pool: str) -> dict[str, Any]:
    """What a profile says of several pools: the records of the application, and the largest batch of a replica in those
    where the job is not."""
    if len(of_pools) < 2 and pool in of_pools:
        return {}
    return {
        "priors": {pool_number(name): prior for name, prior in of_pools.items()},
        "local_batches": {
            pool_number(name): prior.max_local_batch
            for name, prior in of_pools.items()
            if name != pool and prior.max_local_batch > 1
        },
    }


def _noise(profile: Profile) -> dict[int, float]:
    """The logarithm of the gradient noise in the part of the progress in which the job is."""
    found = gradient_noise(profile)
    if found is None or min(found) <= 0:
        return {}
    value = math.log(found[1]) - math.log(found[0])  # the quotient of two floats may be 0 or infinite
    if not LEAST_NOISE <= value <= MOST_NOISE:
        return {}
    part = min(int((profile.fraction_done or 0.0) * BINS), BINS - 1)
    return {part: value}


def _is_of_round(profile: Profile, read: JobRead) -> bool:
    """Whether the newest observation is of as many nodes as the current round has."""
    if not len(profile.observations) or read.allocation is None:
        return False
    newest = profile.observations[-1]
    places = [name for names in read.allocation.nodes.values() for name in names if name]
    return int(newest[NODES]) == len(set(places)) or int(newest[REPLICAS]) == len(places)


def _trim(obj: Json) -> Json:
    """A memory as the cache keeps it: as text, which is parsed only where jobs need it."""
    metadata: Mapping[str, Any] = obj["metadata"]
    kept = {name: metadata.get(name) for name in ("namespace", "name", "uid", "resourceVersion")}
    return {"metadata": kept, "text": applications.text_of(obj)[-MOST_APPLICATIONS_BYTES:]}
