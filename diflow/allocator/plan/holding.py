"""What each job holds for the next plan: its places, whether it has lost them, and its view as policies see it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property

from diflow.allocator.model.views import JobView, RoleView
from diflow.allocator.plan.isolation import LeftOut
from diflow.allocator.watch import reports
from diflow.allocator.watch.free_capacity import FreeCapacity
from diflow.allocator.watch.job import Job
from diflow.common import quantities
from diflow.common.words import DEFAULT_QUEUE, named
from diflow.record.allocation import Allocation
from diflow.record.job import Role
from diflow.record.pod import PodRecord, shared

_NODES_NAMED = 3
Places = dict[str, dict[int, str]]
"""Task → index → node."""


@dataclass(frozen=True)
class Standing:
    """The state of one job for the next plan. `places`: task → index → node; the job keeps them unless it is moved.
    `done`: the finished indices by task.

    Derived values are cached, as a standing is reused until the job changes.
    """

    job: Job
    places: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    done: Mapping[str, frozenset[int]] = field(default_factory=dict)
    displaced: str = ""
    """What happened to its nodes, if it had a place and lost it; else ""."""
    may_stay: bool = False
    """Displaced only because of cordoned nodes: it stays if no other place is free."""
    leaves: str = ""
    """Which of its nodes announce their end, of a job that is not preemptible: it stays there until another place is
    free."""
    is_fixed: bool = False
    """It cannot be written now: others are planned around it."""
    most: Mapping[str, int] | None = None
    """The most replicas by task for now, as more pods were not created."""
    is_barred: bool = False
    """It gets nothing more for now, as it did not use an earlier place in time."""
    is_modest: bool = False
    """It takes nothing from other jobs for now, as places were promised in its namespace that were not used."""
    spared_by: Mapping[str, int] = field(default_factory=dict)
    """The namespaces whose jobs take nothing more from it for now, and how often they did lately."""
    excluded: frozenset[str] = frozenset()
    """The nodes that are left out for this job now: it gets no new place there."""

    @property
    def is_displaced(self) -> bool:
        """It had a place and lost it."""
        return bool(self.displaced)

    @cached_property
    def is_placed(self) -> bool:
        return any(self.places.values())

    @cached_property
    def unused(self) -> Mapping[str, Mapping[int, str]]:
        """The places that no pod uses: task → index → node, without those of replicas that wait for a peer."""
        used, waits = self.job.where, self.job.waits_for_peers
        out = {
            task: {i: node for i, node in places.items() if used.get((task, i)) != node and (task, i) not in waits}
            for task, places in self.places.items()
        }
        return {task: places for task, places in out.items() if places}

    @cached_property
    def pods_in_place(self) -> frozenset[str]:
        """The uids of the pods that are in their places."""
        return frozenset(
            pod.identity.uid
            for pod in self.job.current_pods
            if self.places.get(pod.task, {}).get(pod.index) == self.job.where_is(pod)
        )

    @cached_property
    def requests(self) -> Mapping[str, Mapping[str, int]]:
        """By task, the request of one replica: the mean of its pods, which include what Argo and admission add, or else
        that of its template. A user can make one pod small, and leave the others as they are."""
        return _requests(self)

    @cached_property
    def ruled(self) -> tuple[Role, ...]:
        """Its tasks with rules about other pods or with claims: of most jobs none."""
        return tuple(role for role in self.job.read.needs.roles if role.rules.asks)

    @cached_property
    def view(self) -> JobView:
        """The job as an element of the snapshot."""
        return _view(self)


class Standings:
    """The standings of the last picture. A job's standing is reused while neither the job nor any node's state has
    changed: of a thousand jobs most are unchanged."""

    def __init__(self) -> None:
        self._nodes: object = None
        self._known: dict[str, tuple[Job, Standing | None]] = {}
        self.left_out = LeftOut()

    def of(self, jobs: Iterable[Job], capacity: FreeCapacity, *, now: float, keep_cordoned: bool) -> list[Standing]:
        """The standings of the jobs that are planned. A job for which this raises is left out."""
        nodes = (
            keep_cordoned,
            {
                name: (node.is_open, node.is_staying, node.taints, capacity.is_lost(name))
                for name, node in capacity.nodes.items()
            },
        )
        before = self._known if nodes == self._nodes else {}
        self._nodes, self._known = nodes, {}
        for job in jobs:
            known = before.get(job.key)
            if known is None or known[0] is not job:
                try:
                    known = job, stand(job, capacity, keep_cordoned=keep_cordoned) if is_planned(job) else None
                except Exception as error:  # whatever is wrong with one job must not stop the others
                    self.left_out.add(job, error, now=now)
                    continue
            self._known[job.key] = known
        return [standing for _, standing in self._known.values() if standing is not None]


@dataclass(frozen=True, slots=True)
class Lapsed:
    """Restrictions on the plan because of places that were not used in time (see timeouts.py).

    `barred`: the jobs that get nothing more for now. `most`: the most replicas, by job and task. `stuck`: the uids of
    pods that should leave and do not, and count as foreign. `places`: by job, the (task, index) that are no longer
    reserved for a job with finished replicas; it may use them when there is free capacity. `modest`: jobs that take
    nothing from others.
    """

    barred: Set[str] = frozenset()
    most: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    stuck: Set[str] = frozenset()
    places: Mapping[str, Set[tuple[str, int]]] = field(default_factory=dict)
    modest: Set[str] = frozenset()

    def applied(self, standing: Standing) -> Standing:
        """The standing with these restrictions."""
        key = standing.job.key
        if key in self.places and any(standing.done.values()):
            gone = self.places[key]
            held = {
                task: {index: node for index, node in nodes.items() if (task, index) not in gone}
                for task, nodes in standing.places.items()
            }
            standing = replace(standing, places=held)
        if key in self.barred or key in self.most:
            standing = replace(standing, is_barred=key in self.barred, most=self.most.get(key))
        if key in self.modest:
            standing = replace(standing, is_modest=True)
        return standing


def stand(job: Job, capacity: FreeCapacity, *, keep_cordoned: bool = False) -> Standing:
    """What a job holds by its allocation, and whether it has lost its place."""
    read = job.read
    at = read.notes.allocation or allocation_of_pods(job)
    if at is None or at.round != read.live.current or not at.is_placed:
        return Standing(job)
    held: Places = {}
    done: dict[str, frozenset[int]] = {}
    for role in read.needs.roles:
        running = read.live.running(role.name)
        finished = frozenset(i for i in range(running) if read.argo.tree.finished(read.live.key(role.name, i)))
        done[role.name] = finished
        held[role.name] = {
            i: node for i in range(running) if i not in finished and (node := at.node(role.name, i)) != ""
        }
    where = {node for places in held.values() for node in places.values()}
    lost = {node for node in where if capacity.is_lost(node)}
    if not read.terms.is_preemptible:
        ending = _ending(held, capacity)
        gone = lost | ending.keys()
        kept = {task: {i: node for i, node in places.items() if node not in gone} for task, places in held.items()}
        return Standing(job, kept, done, leaves=named_troubles(ending))
    tainted = _tainted(job, held, capacity)
    closed = {node for node in where if not capacity.is_open(node) or node in tainted}
    if any(done.values()) and not lost:
        return Standing(job, held, done)  # a new round would repeat the finished replicas' work
    is_to_leave = tainted or _is_cordoned(closed, capacity)
    if closed - lost and not lost and (keep_cordoned or not is_to_leave):
        return Standing(job, held, done)  # a node that is not ready may come back
    if closed:
        why = named_troubles({name: capacity.trouble(name) or tainted.get(name, "") for name in closed})
        return Standing(job, displaced=why, may_stay=not lost)
    return Standing(job, held, done)


def allocation_of_pods(job: Job) -> Allocation | None:
    """The allocation derived from the bound pods, for when the annotation is missing or invalid."""
    where = {pod.replica: pod.host for pod in job.current_pods if pod.host}
    nodes = {
        role.name: tuple(where.get((role.name, i), "") for i in range(job.read.live.running(role.name)))
        for role in job.read.needs.roles
    }
    return Allocation(job.read.live.current, nodes) if where else None


def is_planned(job: Job) -> bool:
    read = job.read
    if job.is_over:
        return False
    if read.wishes.is_suspended and not (read.notes.allocation and read.notes.allocation.is_placed):
        return False
    # If all replicas have finished, Argo is about to end the job.
    return not all(read.argo.tree.finished(member) for _, _, member in job.members())


def _is_cordoned(closed: set[str], capacity: FreeCapacity) -> bool:
    return any(name in capacity.nodes and not capacity.nodes[name].is_staying for name in closed)


def _ending(held: Mapping[str, Mapping[int, str]], capacity: FreeCapacity) -> dict[str, str]:
    """The nodes of these places that announce their end, with the words about it."""
    nodes = {node for places in held.values() for node in places.values()}
    there = {name: capacity.nodes[name] for name in sorted(nodes) if name in capacity.nodes}
    return {name: node.trouble for name, node in there.items() if node.ends and not capacity.is_lost(name)}


def _tainted(job: Job, held: Mapping[str, Mapping[int, str]], capacity: FreeCapacity) -> dict[str, str]:
    """The nodes of these places that have a taint which the pods there do not tolerate, with the words about it."""
    out: dict[str, str] = {}
    for task, places in held.items():
        for index, node in places.items():
            there = capacity.nodes.get(node)
            if node in out or there is None or not there.taints:
                continue
            if why := capacity.untolerated(node, job.tolerations(task, index)):
                out[node] = why
    return out


def named_troubles(troubles: Mapping[str, str]) -> str:
    """The nodes with a trouble, as text; "" if there are none."""
    found = [f"node {node} {words}" for node, words in sorted(troubles.items()) if words]
    return named(found, _NODES_NAMED)


def _requests(standing: Standing) -> Mapping[str, Mapping[str, int]]:
    job, read = standing.job, standing.job.read
    current, old = _by_task(job.current_pods), _by_task(job.old_pods)
    out = {}
    for role in read.needs.roles:
        pods = current.get(role.name, [])
        pods = [pod for pod in pods if pod.host] or pods or old.get(role.name, [])
        if not pods:
            out[role.name] = job.promised(role) if standing.is_placed else role.request
            continue
        # A job that holds nothing is planned with what its pods ask for, as it is admitted with that.
        asked = [job.counted_request(pod) if standing.is_placed else pod.request for pod in pods]
        request, has = _mean(asked), read.live.memory.get(role.name)
        if has is not None:
            least = job.promised(role) if standing.is_placed else role.request
            next_ = (_with_more(pod, one, least, has) for pod, one in zip(pods, asked, strict=True))
            request = shared({**request, "memory": max(one.get("memory", 0) for one in next_)})
        out[role.name] = request
    return out


def _by_task(pods: Iterable[PodRecord]) -> dict[str, list[PodRecord]]:
    out: dict[str, list[PodRecord]] = {}
    for pod in pods:
        out.setdefault(pod.task, []).append(pod)
    return out


def _mean(requests: Sequence[Mapping[str, int]]) -> Mapping[str, int]:
    """The mean of requests, rounded up: as many replicas ask for as much together."""
    first, count = requests[0], len(requests)
    if all(request is first for request in requests):
        return first
    total = quantities.total(requests)
    return shared({name: -(-value // count) for name, value in total.items()})


def _with_more(pod: PodRecord, request: Mapping[str, int], least: Mapping[str, int], memory: int) -> Mapping[str, int]:
    """The request of the pod after this one, whose main container may have more `memory` (MiB)."""
    before = request.get("memory", 0)
    next_ = max(least.get("memory", 0), before + memory - pod.memory if pod.memory else before)
    return {**request, "memory": next_} if next_ != before else request


def _view(standing: Standing) -> JobView:
    read = standing.job.read
    # The time since a job's last change delays further changes by the policy, but not a change that the user has asked
    # for since then.
    at = read.notes.allocation
    roles = []
    for role in read.needs.roles:
        held, done = standing.places.get(role.name, {}), standing.done.get(role.name, frozenset())
        low, high = _bounds(standing, role, held=len(held), done=len(done))
        if high == 0:
            continue  # all its replicas have finished
        roles.append(
            RoleView(
                name=role.name,
                request={k: v for k, v in standing.requests[role.name].items() if k != "pods"},
                minimum=low,
                maximum=max(low, high),
                desired=max(low, high),
                where=role.where.without(standing.excluded),
                host_ports=role.host_ports,
                # The rest of a group of which some replicas have finished is no multiple.
                unit=1 if low % role.unit or done else role.unit,
            )
        )
    placed = {task: Counter(places.values()) for task, places in standing.places.items() if places}
    has_done = any(standing.done.values())
    return JobView(
        name=standing.job.title,
        roles=tuple(roles),
        queue=read.wishes.queue or DEFAULT_QUEUE,
        priority=read.terms.priority_number,
        # A new round would repeat the work of finished replicas.
        preemptible=read.terms.is_preemptible and not has_done and not standing.is_fixed,
        created_seconds=standing.job.created_seconds,
        started_seconds=at.first if at and at.first else None,
        changed_seconds=at.since if at and at.since and at.asked in ("", read.limits) else None,
        restarts=at.moves if at else 0,
        placed=placed,
        profile=reports.profile(read.texts.profilings),
        required=read.spec.required,
        modest=standing.is_modest,
        spared_by=standing.spared_by,
    )


def _bounds(standing: Standing, role: Role, *, held: int, done: int) -> tuple[int, int]:
    """(minimum, maximum) of the replicas of a task that may hold a node."""
    read = standing.job.read
    if standing.is_fixed or standing.is_barred:
        return held, held
    if read.terms.is_preemptible:
        # A new round would repeat the work of finished replicas.
        if any(standing.done.values()):
            return held, held
        return role.low, min(role.high, max(role.low, (standing.most or {}).get(role.name, role.high)))
    running = read.live.running(role.name)
    if done and done == running:
        return 0, 0  # Argo's group has ended, and accepts no more members
    if not standing.is_placed:
        return role.desired - done, role.desired - done
    # No members can be added behind released ones that are still in the group.
    high = running if read.live.has_tail(role.name) else max(running, role.desired)
    high = max(held, high - done)
    return min(high, max(1, held)), high
