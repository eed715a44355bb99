"""The picture of the cluster for a policy: from the caches to a snapshot.

A job whose data makes this fail is left out, so that the others are planned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Final

from diflow.allocator.gpu_pools import Pools
from diflow.allocator.model.plan import Action, Plan
from diflow.allocator.model.profile import Profile
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.model.views import JobView, NodeView, build, host_ports
from diflow.allocator.plan.holding import (
    Lapsed,
    Places,
    Standing,
    Standings,
    is_planned,
    named_troubles,
    stand,
)
from diflow.allocator.plan.isolation import without_culprits
from diflow.allocator.plan.pod_rules import reaching, rules_of
from diflow.allocator.watch.cluster_state import ClusterState
from diflow.allocator.watch.free_capacity import FreeCapacity, trouble
from diflow.allocator.watch.job import Job
from diflow.allocator.watch.volumes import Volumes
from diflow.common import quantities
from diflow.common.queue_access import NamespaceRule, refusal
from diflow.common.words import DEFAULT_QUEUE
from diflow.record.job import JobRecord
from diflow.record.node import NodeRecord
from diflow.record.pod import PodRecord


@dataclass(frozen=True, slots=True)
class Picture:
    """The input of a policy: a snapshot, and the standing of each of its jobs. `left_out`: by key, why a job is not
    in it that cannot be planned."""

    snapshot: Snapshot
    standings: tuple[Standing, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def excluded(self) -> dict[str, Set[str]]:
        """By the name of a job in the snapshot, the nodes that are left out for it."""
        return {standing.job.title: standing.excluded for standing in self.standings if standing.excluded}


@dataclass(frozen=True, slots=True)
class Restrictions:
    """What else a plan has to respect: what the caches do not show."""

    fixed: Set[str] = frozenset()
    """Jobs that cannot be written now; they keep what they hold and get nothing more."""
    ending: Set[str] = frozenset()
    """Jobs whose pods are being ended, and which have no place."""
    lapsed: Lapsed = field(default_factory=Lapsed)
    """Places that were not used in time."""
    pace: Callable[[Sequence[Standing]], list[Standing]] = list
    """The standings with the pace at which jobs are resized."""


FREE: Final = Restrictions()


def picture(
    state: ClusterState,
    capacity: FreeCapacity,
    *,
    now: float,
    pools: Pools | None = None,
    keep_cordoned: bool = False,
    restrictions: Restrictions = FREE,
    kept: Standings | None = None,
    inherit: Callable[[JobRecord, Profile | None], Profile | None] | None = None,
) -> Picture:
    """The cluster as the policy sees it.

    `kept`: the standings of the last picture. `keep_cordoned`: leave jobs on cordoned nodes, as they could not be
    placed elsewhere. `inherit`: adds to a job's profile what is known of its application.

    A job with which this raises is left out: its pods count as foreign.
    """
    jobs, pods, kept, pools = list(state.jobs.values()), list(state.pods), kept or Standings(), pools or Pools()
    ending, stuck = restrictions.ending, restrictions.lapsed.stuck

    def made(some: Sequence[Job]) -> Picture:
        found = kept.of(some, capacity, now=now, keep_cordoned=keep_cordoned)
        standings = _applied(found, restrictions, now)
        standings, views, stay = _on_nodes(jobs, standings, state.nodes, pods, ending=ending, stuck=stuck)
        attached = cache(lambda: state.volumes.attached(state.pods))
        snapshot = build(
            views,
            [reaching(_inheriting(standing, inherit), standing, state.volumes, attached) for standing in standings],
            state.queues,
            now_seconds=now,
            ages=capacity.ages,
            pool_label=pools.label,
            pool_speed=pools.speed,
            refused={**_without_claims(standings, state.volumes), **_refused(standings, state.rules)},
            levels=pools.levels,
            rules=rules_of(standings, stay, state.volumes),
        )
        return Picture(snapshot, tuple(standings))

    found = without_culprits(made, jobs, kept.left_out, fault=partial(_fault, capacity, keep_cordoned), now=now)
    return replace(found, left_out=kept.left_out.texts())


def _inheriting(standing: Standing, inherit: Callable[[JobRecord, Profile | None], Profile | None] | None) -> JobView:
    view, read = standing.view, standing.job.read
    if inherit is None or not read.needs.application:
        return view
    profile = inherit(read, view.profile)
    return view if profile is view.profile else replace(view, profile=profile)


def _fault(capacity: FreeCapacity, keep_cordoned: bool, job: Job) -> Exception | None:
    """The error of a job by itself, None if there is none."""
    try:
        if is_planned(job):
            standing = stand(job, capacity, keep_cordoned=keep_cordoned)
            build((), [standing.view])
            assert isinstance(standing.unused, dict)
            assert isinstance(standing.pods_in_place, frozenset)
    except Exception as error:
        return error
    return None


def _applied(standings: list[Standing], restrictions: Restrictions, now: float) -> list[Standing]:
    """The standings that are planned, with their restrictions, in the order of the snapshot."""
    fixed = restrictions.fixed
    standings = [s for s in standings if s.job.key not in restrictions.ending]
    standings.sort(key=lambda s: s.job.title)
    standings = restrictions.pace([restrictions.lapsed.applied(s) for s in standings])
    standings = [s if s.job.key not in fixed else replace(s, is_fixed=True) for s in standings]
    standings = [_paused(_without_nodes(s, now), now) for s in standings]
    return [s for s in standings if s.is_placed or not (s.is_fixed or s.is_barred)]


def _as_the_pods_are(standings: Iterable[Standing], nodes: Mapping[str, NodeRecord]) -> Mapping[str, NodeRecord]:
    """The nodes with as much more as the pods there have less than they are counted with, and the other way round.

    All replicas of a task have one request in a snapshot. On its node each pod counts with its own: what it requests
    cannot be changed, as its annotations can.
    """
    more: dict[str, quantities.Amounts] = {}
    for standing in standings:
        if not standing.is_placed:
            continue
        job, requests = standing.job, standing.requests
        for pod in job.current_pods:
            counted, own = requests.get(pod.task), job.counted_request(pod)
            if counted is None or own is counted or pod.identity.uid not in standing.pods_in_place:
                continue
            less = {name: counted.get(name, 0) - own.get(name, 0) for name in (*counted, *own)}
            quantities.add(more.setdefault(pod.where, {}), less)
    return {
        name: replace(
            node, allocatable={key: max(0, value + more[name].get(key, 0)) for key, value in node.allocatable.items()}
        )
        if name in more
        else node
        for name, node in nodes.items()
    }


def _paused(standing: Standing, now: float) -> Standing:
    """The standing of a job that gets nothing more for now, as kube-scheduler has refused its gang again and again."""
    at = standing.job.read.notes.allocation
    return standing if at is None or now >= at.paused_until else replace(standing, is_barred=True)


def _without_nodes(standing: Standing, now: float) -> Standing:
    """The standing of a job without the nodes that it leaves out, and with its pause after pods that did not start.
    Both expire without a change of the job."""
    read = standing.job.read
    if not read.notes.excluded:
        return standing
    if found := read.notes.excluded.at(now):
        standing = replace(standing, excluded=found)
    if now >= read.notes.excluded.paused_until(now):
        return standing
    if not (standing.is_placed and read.terms.is_preemptible):
        return replace(standing, is_barred=True)
    # It may shrink for others, and does not grow.
    held = {task: len(places) for task, places in standing.places.items()}
    return replace(standing, most={**held, **{t: min(n, held.get(t, n)) for t, n in (standing.most or {}).items()}})


def _on_nodes(
    jobs: Sequence[Job],
    standings: list[Standing],
    nodes: Mapping[str, NodeRecord],
    pods: Sequence[PodRecord],
    *,
    ending: Set[str],
    stuck: Set[str],
) -> tuple[list[Standing], list[NodeView], list[PodRecord]]:
    """(the standings that still fit on their nodes, the nodes with what others hold there, the pods of these)."""
    # Pods of superseded Workflows are about to end.
    gone = [job for job in jobs if job.is_superseded or job.key in ending]
    left = {pod.identity.uid for job in jobs for pod in job.old_pods} | {
        p.identity.uid for job in gone for p in job.pods
    }
    ours = {standing.job.key for standing in standings}
    firm = set(stuck).union(*(standing.job.strays for standing in standings))

    def leaves(pod: PodRecord) -> bool:
        uid = pod.identity.uid
        return (pod.is_terminating or pod.job in ours or uid in left) and uid not in firm

    held_pods = _in_place(standings)
    stay = [pod for pod in pods if not leaves(pod) and pod.identity.uid not in held_pods]
    nodes = _as_the_pods_are(standings, nodes)
    standings = _withdraw_overcommitted(standings, nodes, stay)
    held_pods = _in_place(standings)
    foreign: dict[str, quantities.Amounts] = {}
    releasing: dict[str, quantities.Amounts] = {}
    stay = []
    for pod in pods:
        here = nodes.get(pod.where)
        if here is not None and pod.identity.uid not in held_pods:
            held = {name: value for name, value in pod.request.items() if name in here.allocatable}
            is_leaving = leaves(pod)
            quantities.add(
                (releasing if is_leaving else foreign).setdefault(pod.where, {}), held | host_ports(pod.ports)
            )
            if not is_leaving:
                stay.append(pod)
    views = [
        NodeView(
            name,
            node.allocatable,
            foreign.get(name, {}),
            releasing.get(name, {}),
            node.is_open,
            node.labels,
            node.taints,
        )
        for name, node in nodes.items()
    ]
    return standings, views, stay


def _without_claims(standings: Iterable[Standing], volumes: Volumes) -> dict[str, str]:
    """By the name of a job's view: which claim keeps all its pods from being bound. Those that run have theirs."""
    out: dict[str, str] = {}
    for standing in standings:
        space = standing.job.read.identity.namespace
        claims = {claim for role in standing.ruled for claim in role.rules.claims} if not standing.is_placed else ()
        if why := next(filter(None, (volumes.lack(space, claim) for claim in sorted(claims))), ""):
            out[standing.view.name] = why
    return out


def _refused(standings: Iterable[Standing], rules: Sequence[NamespaceRule]) -> dict[str, str]:
    """By the name of a job's view: why it may not use the queue or the priority that it names."""
    if not rules:
        return {}
    asked: dict[tuple[str, str, int], str] = {}
    out: dict[str, str] = {}
    for standing in standings:
        read = standing.job.read
        key = read.identity.namespace, read.wishes.queue or DEFAULT_QUEUE, read.terms.priority_number
        if key not in asked:
            asked[key] = refusal(rules, namespace=key[0], queue=key[1], priority=key[2])
        if asked[key]:
            out[standing.view.name] = asked[key]
    return out


def left_in_place(shown: Picture, plan: Plan) -> bool:
    """Whether a job has to leave a cordoned node and has no other place, so that it should stay."""
    return any(
        standing.may_stay and int(plan.action[j]) == int(Action.WAIT) for j, standing in enumerate(shown.standings)
    )


def _in_place(standings: Iterable[Standing]) -> set[str]:
    return set().union(*(standing.pods_in_place for standing in standings))


def _withdraw_overcommitted(
    standings: list[Standing], nodes: Mapping[str, NodeRecord], pods: list[PodRecord]
) -> list[Standing]:
    """Withdraw unused places on nodes that cannot hold them any more beside `pods`, which stay.

    A node may shrink or be closed, or a foreign pod may arrive, between a decision and the admission, or while Argo
    creates a pod again.
    """
    unused = {s.job.key: s.unused for s in standings if s.is_placed and not s.is_fixed}
    if not any(unused.values()):
        return standings
    asked = {node for unused_ in unused.values() for places in unused_.values() for node in places.values()}
    free = {name: dict(nodes[name].allocatable) for name in asked if name in nodes}
    for pod in pods:
        if pod.where in free:
            quantities.add(free[pod.where], {name: -value for name, value in pod.request.items()})
    for standing in standings:
        less = unused.get(standing.job.key)
        _use(free, standing, _without(standing.places, less) if less else standing.places, -1)
    out = {s.job.key: s for s in standings}
    promised = (s for s in standings if unused.get(s.job.key))
    for standing in sorted(promised, key=lambda s: s.job.order):
        places = unused[standing.job.key]
        _use(free, standing, places, -1)
        where = {node for nodes in places.values() for node in nodes.values()}
        full = "has no capacity for it any more"
        tainted = {node: _taint_of(standing, places, node, nodes) for node in where}
        found = {
            node: trouble(nodes.get(node))
            or tainted[node]
            or (full if any(value < 0 for value in free[node].values()) else "")
            for node in where
        }
        if why := named_troubles(found):
            _use(free, standing, places, 1)
            out[standing.job.key] = _less(standing, places, why)
    return [out[s.job.key] for s in standings]


def _taint_of(
    standing: Standing, places: Mapping[str, Mapping[int, str]], node: str, nodes: Mapping[str, NodeRecord]
) -> str:
    """Which taint keeps the pods of these places from a node, for people; "" if none does."""
    if node not in nodes or not nodes[node].taints:
        return ""
    found = (
        nodes[node].untolerated(standing.job.tolerations(task, index))
        for task, of_task in places.items()
        for index, there in of_task.items()
        if there == node
    )
    taint = next(filter(None, found), "")
    return f"has the taint {taint}, which its pods do not tolerate" if taint else ""


def _less(standing: Standing, places: Mapping[str, Mapping[int, str]], why: str) -> Standing:
    """The standing without these places; a preemptible job, which moves as a whole, loses all."""
    if not standing.job.read.terms.is_preemptible:
        kept = _without(standing.places, places)
        return replace(standing, places=kept, displaced="" if any(kept.values()) else why)
    if any(standing.done.values()):
        return standing  # another place would repeat the finished work: it waits for this one
    return Standing(standing.job, displaced=why)


def _without(places: Mapping[str, Mapping[int, str]], less: Mapping[str, Mapping[int, str]]) -> Places:
    return {
        task: {index: node for index, node in nodes.items() if index not in less.get(task, {})}
        for task, nodes in places.items()
    }


def _use(
    free: dict[str, quantities.Amounts], standing: Standing, held: Mapping[str, Mapping[int, str]], sign: int
) -> None:
    for task, places in held.items():
        counts = Counter(node for node in places.values() if node in free)
        request = standing.requests[task] if counts else {}
        for node, count in counts.items():
            quantities.add(free[node], {name: sign * count * value for name, value in request.items()})
