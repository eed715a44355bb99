"""What the page shows: a pure function of the cluster state, the viewer's permissions and the query of the address.

A viewer sees the jobs of the namespaces in which they may list Workflows, and the nodes if they may list nodes. Pods
of other jobs on a node are shown as one amount without names: otherwise a full node would look free.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Final
from urllib.parse import urlencode

from diflow.common import quantities
from diflow.record import chain, untrusted
from diflow.record.node import NodeRecord
from diflow.record.stage import Stage
from diflow.record.status.followed import Failure
from diflow.record.status.row import placed_and_waiting
from diflow.record.status.status import ENDED
from diflow.record.status.timeline import PHASES
from diflow.server.page import resources
from diflow.server.page.facts import MOST_FAILURES, JobFacts, PodFacts

JOBS_A_PAGE: Final = 25
NODES_A_PAGE: Final = 24
WAITING_SHOWN: Final = 20
REPLICAS_SHOWN: Final = 200
RECORDED_SHOWN: Final = 2000
NODES_NAMED: Final = 12
COLOURS: Final = 8
_LONGEST: Final = 128
_DIGITS: Final = re.compile(r"([0-9]{1,9})")
_MOST_PAGES: Final = 10_000
# The choices of the phase filter.
ACTIVE: Final = "active"
FILTERS: Final = (ACTIVE, *PHASES)
_ACTIVE_PHASES: Final = ("Running", "Starting", "Restarting", "Rescheduling", "Pending", "Unknown")


@dataclass(frozen=True, slots=True)
class Permissions:
    """What a viewer may see: the jobs of these namespaces (None: of all), and whether nodes."""

    namespaces: frozenset[str] | None = frozenset()
    nodes: bool = False

    def allows(self, namespace: str) -> bool:
        return self.namespaces is None or namespace in self.namespaces


@dataclass(frozen=True, slots=True)
class Query:
    """The query of the page's address: filters, the open job and page numbers. Invalid values are ignored."""

    text: str = ""
    namespace: str = ""
    phase: str = ""
    queue: str = ""
    job: str = ""
    page: int = 1
    nodes: int = 1

    @classmethod
    def parse(cls, parameters: Mapping[str, str]) -> Query:
        """Parse `q`, `namespace`, `phase`, `queue`, `job`, `page` and `nodes`."""
        phase = parameters.get("phase", "")
        return cls(
            text=parameters.get("q", "").strip()[:_LONGEST],
            namespace=parameters.get("namespace", "")[:_LONGEST],
            phase=phase if phase in FILTERS else "",
            queue=parameters.get("queue", "")[:_LONGEST],
            job=parameters.get("job", "")[: 2 * _LONGEST],
            page=_page(parameters.get("page", "")),
            nodes=_page(parameters.get("nodes", "")),
        )

    @property
    def is_narrowed(self) -> bool:
        return bool(self.text or self.namespace or self.phase or self.queue)

    def link(self, **changed: str | int) -> str:
        """The address of this page with some parameters changed."""
        given: dict[str, str | int] = {
            "q": self.text, "namespace": self.namespace, "phase": self.phase, "queue": self.queue, "job": self.job,
            "page": self.page, "nodes": self.nodes,
        }  # fmt: skip
        kept = {name: value for name, value in {**given, **changed}.items() if value not in ("", 1)}
        return f"?{urlencode(kept, errors='replace')}" if kept else "./"


@dataclass(frozen=True, slots=True)
class CacheSnapshot:
    """A snapshot of the caches. `ended`: the records of ended jobs by namespace, whose Workflows may be deleted.
    `all_pods`: `pods` has all pods of the cluster, not only those of jobs."""

    jobs: Sequence[JobFacts] = ()
    pods: Sequence[PodFacts] = ()
    nodes: Sequence[NodeRecord] = ()
    ended: Mapping[str, Sequence[JobFacts]] = field(default_factory=dict)
    all_pods: bool = False


@dataclass(frozen=True, slots=True)
class JobLine:
    """A job with its pods per node, and its colour (-1: none).

    `trouble` is why a pod that has a node does not start, or "".
    """

    facts: JobFacts
    colour: int
    nodes: tuple[tuple[str, int], ...]
    trouble: str = ""

    @property
    def line_at(self) -> int:
        """The number of replicas at which the pictures have a line; 0: none, as for an ended job."""
        return 0 if self.facts.has_ended else self.facts.high

    @property
    def begin(self) -> float:
        """The start of the history (seconds since 1970)."""
        return self.facts.history.steps[0].at if self.facts.history.steps else self.facts.submitted

    @property
    def nodes_text(self) -> str:
        """The first nodes with the number of pods on each."""
        return ", ".join(f"{node} ×{count}" for node, count in self.nodes[:NODES_NAMED])

    @property
    def said(self) -> str:
        """The job's message, with why it is not healthy or does not start."""
        job = self.facts
        if job.unhealthy:
            return f"{job.message}; {job.unhealthy}"
        if self.trouble and job.stage is Stage.ADMITTED and self.trouble not in job.message:
            return f"{job.message}; {self.trouble}"
        return job.message


@dataclass(frozen=True, slots=True)
class QueueLine:
    """A waiting job, with its place among the jobs of its queue that the viewer sees."""

    place: int
    job: JobLine


@dataclass(frozen=True, slots=True)
class Opened:
    """The open job, with `count` pods, of which `replicas` are shown."""

    line: JobLine
    replicas: tuple[PodFacts, ...]
    count: int


@dataclass(frozen=True, slots=True)
class Holder:
    """A job on a node, with its pods there and their requests; key "" and colour -1: all pods not shown by name."""

    key: str
    colour: int
    replicas: int
    request: Mapping[str, int]

    @property
    def name(self) -> str:
        """The job's name without its namespace."""
        return self.key.partition("/")[2]


@dataclass(frozen=True, slots=True)
class NodeLine:
    """A node with the jobs on it, and the sum of their requests."""

    facts: NodeRecord
    allocatable: quantities.Amounts
    used: quantities.Amounts
    holders: tuple[Holder, ...]

    @property
    def free(self) -> quantities.Amounts:
        """What no pod that the page knows holds."""
        return {name: max(0, there - self.used.get(name, 0)) for name, there in self.allocatable.items()}


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over all that the viewer sees. `phases`: the number of jobs by phase. `free`: on open nodes."""

    phases: Mapping[str, int] = field(default_factory=dict)
    waiting: int = 0
    desired: int = 0
    granted: int = 0
    ready: int = 0
    allocatable: quantities.Amounts = field(default_factory=dict)
    used: quantities.Amounts = field(default_factory=dict)
    free: quantities.Amounts = field(default_factory=dict)
    nodes: int = 0
    nodes_ready: int = 0
    nodes_cordoned: int = 0

    @property
    def active(self) -> int:
        """Jobs that have not ended."""
        return sum(n for phase, n in self.phases.items() if phase not in ENDED)

    @property
    def active_text(self) -> str:
        """Their numbers by phase, such as `2 running, 1 pending`."""
        parts = [f"{n} {phase.lower()}" for phase in _ACTIVE_PHASES if (n := self.phases.get(phase))]
        return ", ".join(parts) or "none that has not ended"


@dataclass(frozen=True, slots=True)
class Board:
    """The content of the page."""

    query: Query
    totals: Totals
    queue: tuple[QueueLine, ...]
    jobs: tuple[JobLine, ...]
    jobs_found: int
    jobs_pages: int
    opened: Opened | None
    nodes: tuple[NodeLine, ...]
    nodes_pages: int
    resources: tuple[str, ...]
    namespaces: tuple[str, ...]
    queues: tuple[str, ...]
    permissions: Permissions
    all_pods: bool


def board(state: CacheSnapshot, permissions: Permissions, query: Query) -> Board:
    """The part of the cluster state that the viewer may see and has asked for."""
    jobs = [job for job in _newest(state.jobs) if permissions.allows(job.namespace)]
    jobs += _deleted(state, permissions)
    pods, owned = _by_job(state.pods, jobs)
    colours = _colours(jobs, pods)
    lines = sorted((_line(job, pods.get(job.uid, ()), colours) for job in jobs), key=_order)
    found = [line for line in lines if _matches(line.facts, query)]
    pages = max(1, -(-len(found) // JOBS_A_PAGE))
    page = min(query.page, pages)
    nodes = _nodes(state, {job.uid: job for job in jobs}, owned, colours) if permissions.nodes else []
    node_pages = max(1, -(-len(nodes) // NODES_A_PAGE))
    node_page = min(query.nodes, node_pages)
    return Board(
        query=query,
        totals=_totals(lines, nodes),
        queue=_queue(lines)[:WAITING_SHOWN],
        jobs=tuple(found[(page - 1) * JOBS_A_PAGE : page * JOBS_A_PAGE]),
        jobs_found=len(found),
        jobs_pages=pages,
        opened=_opened(lines, pods, query.job, state.jobs),
        nodes=tuple(nodes[(node_page - 1) * NODES_A_PAGE : node_page * NODES_A_PAGE]),
        nodes_pages=node_pages,
        resources=resources.shown(name for node in nodes for name in node.allocatable),
        namespaces=tuple(sorted({job.namespace for job in jobs})),
        queues=tuple(sorted({job.queue for job in jobs})),
        permissions=permissions,
        all_pods=state.all_pods,
    )


def _newest(jobs: Iterable[JobFacts]) -> list[JobFacts]:
    """The current Workflow of each job."""
    return chain.newest(jobs, part=attrgetter("record.part"))


def _deleted(state: CacheSnapshot, permissions: Permissions) -> list[JobFacts]:
    """The recorded jobs without a Workflow: the last ones, and the same number of each namespace, so that a namespace
    with many of them does not displace those of others."""
    seen = [jobs for namespace, jobs in state.ended.items() if permissions.allows(namespace)]
    share = max(1, RECORDED_SHOWN // max(1, len(seen)))
    present = {(job.namespace, job.name, job.submitted) for job in state.jobs}
    return [job for jobs in seen for job in jobs[-share:] if (job.namespace, job.name, job.submitted) not in present]


def _by_job(
    pods: Iterable[PodFacts], jobs: Iterable[JobFacts]
) -> tuple[dict[str, list[PodFacts]], dict[tuple[str, str], str]]:
    """(pods by the uid of their Workflow, the uid of the Workflow by the pod's (namespace, name))."""
    uids = {(job.namespace, job.record.identity.name): job.uid for job in jobs if not job.is_deleted}
    out: dict[str, list[PodFacts]] = {}
    owned: dict[tuple[str, str], str] = {}
    for pod in pods:
        read = pod.record
        uid = uids.get((read.namespace, read.workflow)) if read.task else None
        if uid is not None and read.owner in ("", uid):
            out.setdefault(uid, []).append(pod)
            owned[read.namespace, read.name] = uid
    return out, owned


def _colours(jobs: Iterable[JobFacts], pods: Mapping[str, Sequence[PodFacts]]) -> dict[str, int]:
    """A colour for each job that has nodes: the same on each page, and each colour for as few jobs as possible."""
    out: dict[str, int] = {}
    taken = [0] * COLOURS
    for job in sorted(jobs, key=lambda job: (job.submitted, job.key)):
        if job.has_ended or not any(pod.record.host for pod in pods.get(job.uid, ())):
            continue
        start = zlib.crc32(job.key.encode(errors="replace")) % COLOURS
        place = min(range(COLOURS), key=lambda step: (taken[(start + step) % COLOURS], step))
        out[job.uid] = (start + place) % COLOURS
        taken[out[job.uid]] += 1
    return out


def _line(job: JobFacts, pods: Sequence[PodFacts], colours: Mapping[str, int]) -> JobLine:
    nodes: dict[str, int] = {}
    for pod in pods:
        if node := pod.record.host:
            nodes[node] = nodes.get(node, 0) + 1
    return JobLine(
        facts=job,
        colour=colours.get(job.uid, -1),
        nodes=tuple(sorted(nodes.items())),
        trouble=next((f"{pod.replica}: {pod.waiting}" for pod in pods if pod.record.host and pod.waiting), ""),
    )


def _order(line: JobLine) -> tuple[object, ...]:
    """Jobs that have nodes, then waiting ones, then ended ones; each the newest first."""
    job = line.facts
    rank = 2 if job.has_ended else 1 if job.is_queued or job.phase == "Pending" else 0
    return (rank, -(job.finished if rank == 2 and job.finished else job.submitted), job.key)


def _matches(job: JobFacts, query: Query) -> bool:
    return (
        (not query.namespace or job.namespace == query.namespace)
        and (not query.queue or job.queue == query.queue)
        and (not query.phase or (not job.has_ended if query.phase == ACTIVE else job.phase == query.phase))
        and (not query.text or query.text.casefold() in job.key.casefold())
    )


def _queue(lines: Iterable[JobLine]) -> tuple[QueueLine, ...]:
    """The waiting jobs: by priority, then the oldest first."""
    waiting = [line for line in lines if line.facts.is_queued]
    waiting.sort(key=lambda line: (line.facts.priority != "high", line.facts.submitted, line.facts.key))
    places: dict[str, int] = {}
    out = []
    for line in waiting:
        places[line.facts.queue] = places.get(line.facts.queue, 0) + 1
        out.append(QueueLine(places[line.facts.queue], line))
    return tuple(out)


def _nodes(
    state: CacheSnapshot, jobs: Mapping[str, JobFacts], owned: Mapping[tuple[str, str], str], colours: Mapping[str, int]
) -> list[NodeLine]:
    there: dict[str, list[PodFacts]] = {}
    for pod in state.pods:
        if pod.record.host:
            there.setdefault(pod.record.host, []).append(pod)
    out = []
    for node in sorted(state.nodes, key=lambda node: (node.is_ready, _natural(node.name))):
        by_uid: dict[str, list[PodFacts]] = {}
        for pod in there.get(node.name, ()):
            by_uid.setdefault(owned.get((pod.record.namespace, pod.record.name), ""), []).append(pod)
        holders = [
            Holder(
                key=jobs[uid].key if uid else "",
                colour=colours.get(uid, -1),
                replicas=len(pods),
                request=quantities.total(pod.record.request for pod in pods),
            )
            for uid, pods in by_uid.items()
        ]
        holders.sort(key=lambda holder: (not holder.key, holder.key))
        used = quantities.total(holder.request for holder in holders)
        out.append(NodeLine(node, dict(node.allocatable), used, tuple(holders)))
    return out


def _totals(lines: Sequence[JobLine], nodes: Sequence[NodeLine]) -> Totals:
    phases: dict[str, int] = {}
    for line in lines:
        phases[line.facts.phase] = phases.get(line.facts.phase, 0) + 1
    live = [line.facts for line in lines if not line.facts.has_ended]
    return Totals(
        phases=phases,
        waiting=placed_and_waiting(live)[1],
        desired=sum(job.high for job in live),
        granted=sum(job.granted for job in live),
        ready=sum(job.ready for job in live),
        allocatable=quantities.total(node.allocatable for node in nodes if node.facts.is_ready),
        used=quantities.total(node.used for node in nodes if node.facts.is_ready),
        free=quantities.total(node.free for node in nodes if node.facts.is_open),
        nodes=len(nodes),
        nodes_ready=sum(node.facts.is_ready for node in nodes),
        nodes_cordoned=sum(not node.facts.is_schedulable for node in nodes),
    )


def _opened(
    lines: Iterable[JobLine], pods: Mapping[str, Sequence[PodFacts]], key: str, all_jobs: Iterable[JobFacts]
) -> Opened | None:
    line = next((line for line in lines if line.facts.reference == key), None) if key else None
    if line is None:
        return None
    line = replace(line, facts=replace(line.facts, failures=_failures(line.facts, all_jobs)))
    replicas = sorted(pods.get(line.facts.uid, ()), key=_place)
    return Opened(line, tuple(replicas[:REPLICAS_SHOWN]), len(replicas))


def _place(pod: PodFacts) -> tuple[object, ...]:
    return (pod.is_ending, pod.record.task, pod.record.index, pod.record.name)


def _failures(job: JobFacts, all_jobs: Iterable[JobFacts]) -> tuple[Failure, ...]:
    """The last failures of the job's replicas, in its earlier Workflows as well."""
    out = list(job.failures)
    known = {(one.namespace, one.record.identity.name): one for one in all_jobs}
    for before in chain.earlier(job.record.part, {place: one.record.part for place, one in known.items()}):
        if len(out) >= MOST_FAILURES:
            break
        out += known[job.namespace, before].failures
    return tuple(out[:MOST_FAILURES])


def _natural(name: str) -> list[tuple[int, str]]:
    """A sort key for names: gpu-2 before gpu-10."""
    return [
        (-1 if (number := untrusted.whole(part)) is None else number, part) for part in _DIGITS.split(name[:_LONGEST])
    ]


def _page(text: str) -> int:
    return max(1, min(untrusted.whole(text) or 1, _MOST_PAGES))
