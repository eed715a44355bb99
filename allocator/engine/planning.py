"""Planning: from the caches to a snapshot for the policy, and from its plan to one write for each job that changes.

Policies return numbers of replicas on nodes; which replica (index) goes to which node is decided here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property

from diflow import amounts
from diflow.allocator.engine import patches, reports
from diflow.allocator.engine.access import NamespaceRule, refusal
from diflow.allocator.engine.free_capacity import FreeCapacity, trouble
from diflow.allocator.engine.isolation import MOST_CULPRITS, LeftOut, culprit
from diflow.allocator.engine.patches import Note, Write
from diflow.allocator.engine.pending import paused_until
from diflow.allocator.engine.pools import Pools
from diflow.allocator.engine.reconcile import Job, allocated, decision, next_round
from diflow.allocator.engine.records import JobRead, NodeRead, PodRead, Role
from diflow.allocator.messages.reason_texts import Explainer
from diflow.allocator.model.plan import Action, Plan, Why
from diflow.allocator.model.profile import Profile
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.model.views import DEFAULT_QUEUE, JobView, NodeView, QueueView, RoleView, build
from diflow.figures import counted, named, quantity
from diflow.state import untrusted
from diflow.state.allocation import Allocation
from diflow.state.patches import live

# A decision's text changes with its numbers: the least time between two updates of the text.
_REPEAT_SECONDS = 60.0
_NODES_NAMED = 3

Places = dict[str, dict[int, str]]
"""Task → index → node."""


@dataclass(frozen=True)
class Standing:
    """The state of one job for the next plan. `held`: task → index → node, the places that it keeps unless it is moved.
    `done`: the finished indices by task.

    Derived values are cached, as a standing is reused until the job changes.
    """

    job: Job
    held: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    done: Mapping[str, frozenset[int]] = field(default_factory=dict)
    displaced: str = ""
    """What happened to its nodes, if it had a place and lost it; else ""."""
    may_stay: bool = False
    """Displaced only because of cordoned nodes: it stays if no other place is free."""
    is_fixed: bool = False
    """It cannot be written now: others are planned around it."""
    most: Mapping[str, int] | None = None
    """The most replicas by task for now, as more pods were not created."""
    is_barred: bool = False
    """It gets nothing more for now, as it did not use an earlier place in time."""
    excluded: frozenset[str] = frozenset()
    """The nodes that are left out for this job now: it gets no new place there."""

    @property
    def is_displaced(self) -> bool:
        """It had a place and lost it."""
        return bool(self.displaced)

    @cached_property
    def is_placed(self) -> bool:
        return any(self.held.values())

    @cached_property
    def unused(self) -> Mapping[str, Mapping[int, str]]:
        """The places that no pod uses: task → index → node."""
        used = {(p.place.task, p.place.index): p.where for p in self.job.current_pods() if p.place and p.where}
        out = {
            task: {index: node for index, node in places.items() if used.get((task, index)) != node}
            for task, places in self.held.items()
        }
        return {task: places for task, places in out.items() if places}

    @cached_property
    def pods_in_place(self) -> frozenset[str]:
        """The uids of the pods that are in their places."""
        return frozenset(
            pod.identity.uid
            for pod in self.job.current_pods()
            if pod.place and self.held.get(pod.place.task, {}).get(pod.place.index) == pod.where
        )

    @cached_property
    def strays(self) -> frozenset[str]:
        """The uids of the job's strays (`Job.strays`)."""
        return frozenset(pod.identity.uid for pod in self.job.strays())

    @cached_property
    def view(self) -> JobView:
        """The job as an element of the snapshot."""
        return _view(self)


class Memory:
    """The standings of the last picture. A job's standing is reused while neither the job nor any node's state has
    changed: of a thousand jobs most are unchanged."""

    def __init__(self) -> None:
        self._nodes: object = None
        self._known: dict[str, tuple[Job, Standing | None]] = {}
        self.left_out = LeftOut()

    def stand(self, jobs: Iterable[Job], capacity: FreeCapacity, *, now: float, keep_cordoned: bool) -> list[Standing]:
        """The standings of the jobs that are planned. A job for which this raises is left out."""
        nodes = (
            keep_cordoned,
            {
                name: (node.is_open, node.is_schedulable, capacity.is_lost(name))
                for name, node in capacity.nodes.items()
            },
        )
        before = self._known if nodes == self._nodes else {}
        self._nodes, self._known = nodes, {}
        for job in jobs:
            known = before.get(job.key)
            if known is None or known[0] is not job:
                try:
                    known = job, stand(job, capacity, keep_cordoned=keep_cordoned) if _is_planned(job) else None
                except Exception as error:  # whatever is wrong with one job must not stop the others
                    self.left_out.add(job, error, now=now)
                    continue
            self._known[job.key] = known
        return [standing for _, standing in self._known.values() if standing is not None]


@dataclass(frozen=True, slots=True)
class Lapsed:
    """Restrictions on the plan because of places that were not used in time (see promises.py).

    `barred`: the jobs that get nothing more for now. `most`: the most replicas, by job and task. `stuck`: the uids of
    pods that should leave and do not, and count as foreign. `places`: by job, the (task, index) that are no longer
    reserved for a job with finished replicas; it may use them when there is free capacity.
    """

    barred: Set[str] = frozenset()
    most: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    stuck: Set[str] = frozenset()
    places: Mapping[str, Set[tuple[str, int]]] = field(default_factory=dict)

    def applied(self, standing: Standing) -> Standing:
        """The standing with these restrictions."""
        key = standing.job.key
        if key in self.places and any(standing.done.values()):
            gone = self.places[key]
            held = {
                task: {index: node for index, node in nodes.items() if (task, index) not in gone}
                for task, nodes in standing.held.items()
            }
            standing = replace(standing, held=held)
        if key in self.barred or key in self.most:
            standing = replace(standing, is_barred=key in self.barred, most=self.most.get(key))
        return standing


@dataclass(frozen=True, slots=True)
class Picture:
    """The input of a policy: a snapshot, and the standing of each of its jobs. `left_out`: by key, why a job is not
    in it that cannot be planned."""

    snapshot: Snapshot
    standings: tuple[Standing, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)


def picture(
    jobs: Iterable[Job],
    nodes: Mapping[str, NodeRead],
    pods: Iterable[PodRead],
    queues: Sequence[QueueView],
    capacity: FreeCapacity,
    *,
    now: float,
    pools: Pools | None = None,
    keep_cordoned: bool = False,
    fixed: Set[str] = frozenset(),
    ending: Set[str] = frozenset(),
    avoid: Set[str] = frozenset(),
    memory: Memory | None = None,
    lapsed: Lapsed | None = None,
    rules: Sequence[NamespaceRule] = (),
    inherit: Callable[[JobRead, Profile | None], Profile | None] | None = None,
) -> Picture:
    """The cluster as the policy sees it. `pods`: all live ones, foreign ones too. `memory`: of the last picture.

    `keep_cordoned`: leave jobs on cordoned nodes, as they could not be placed elsewhere. `fixed`: jobs that cannot be
    written now; they keep what they hold and get nothing more. `ending`: jobs whose pods are being ended, and which
    have no place. `avoid`: open nodes that get no new pods. `rules`: which namespaces may use which queues.
    `inherit`: adds to a job's profile what is known of its application.

    A job with which this raises is left out: its pods count as foreign.
    """
    jobs, pods, memory, pools = list(jobs), list(pods), memory or Memory(), pools or Pools()
    lapsed = lapsed or Lapsed()

    def made(some: Sequence[Job]) -> Picture:
        found = memory.stand(some, capacity, now=now, keep_cordoned=keep_cordoned)
        standings = _applied(found, lapsed, fixed=fixed, ending=ending, now=now)
        standings, views = _on_nodes(jobs, standings, nodes, pods, ending=ending, avoid=avoid, stuck=lapsed.stuck)
        snapshot = build(
            views,
            [_inheriting(standing, inherit) for standing in standings],
            queues,
            now_seconds=now,
            ages=capacity.ages,
            pool_label=pools.label,
            pool_speed=pools.speed,
            refused=_refused(standings, rules),
            levels=pools.levels,
        )
        return Picture(snapshot, tuple(standings))

    def fails(some: Sequence[Job]) -> bool:
        try:
            made(some)
        except Exception:
            return True
        return False

    error: Exception = RuntimeError("no picture")
    for turn in range(MOST_CULPRITS):
        planned = memory.left_out.without(jobs, now=now)
        try:
            found = made(planned)
        except Exception as failure:  # unexpected data of some job
            error = failure
        else:
            return replace(found, left_out=memory.left_out.texts())
        if turn == 0:
            alone = [(job, wrong) for job in planned if (wrong := _fault(job, capacity, keep_cordoned)) is not None]
            for job, wrong in alone:
                memory.left_out.add(job, wrong, now=now)
            if alone:
                continue
        worst = culprit(planned, fails)
        if worst is None:
            break
        memory.left_out.add(worst, error, now=now)
    raise error


def _inheriting(standing: Standing, inherit: Callable[[JobRead, Profile | None], Profile | None] | None) -> JobView:
    view, read = standing.view, standing.job.read
    if inherit is None or not read.application:
        return view
    profile = inherit(read, view.profile)
    return view if profile is view.profile else replace(view, profile=profile)


def _fault(job: Job, capacity: FreeCapacity, keep_cordoned: bool) -> Exception | None:
    """The error of a job by itself, None if there is none."""
    try:
        if _is_planned(job):
            standing = stand(job, capacity, keep_cordoned=keep_cordoned)
            build((), [standing.view])
            assert isinstance(standing.unused, dict)
            assert isinstance(standing.pods_in_place, frozenset)
    except Exception as error:
        return error
    return None


def _applied(
    standings: list[Standing], lapsed: Lapsed, *, fixed: Set[str], ending: Set[str], now: float
) -> list[Standing]:
    """The standings that are planned, with their restrictions, in the order of the snapshot."""
    standings = [s for s in standings if s.job.key not in ending]
    standings.sort(key=lambda s: s.job.title)
    standings = [s if s.job.key not in fixed else replace(s, is_fixed=True) for s in map(lapsed.applied, standings)]
    standings = [_without_excluded(s, now) if s.job.read.excluded else s for s in standings]
    return [s for s in standings if s.is_placed or not (s.is_fixed or s.is_barred)]


def _with_room_for_next(standings: Iterable[Standing], nodes: Mapping[str, NodeRead]) -> Mapping[str, NodeRead]:
    """The nodes with as much more memory as the pods there have less than their job's next ones.

    All replicas of a task have one request in a snapshot, that of the next pods. Running ones may have less: so what
    they leave free remains free for others.
    """
    more: dict[str, int] = {}
    for standing in standings:
        read = standing.job.read
        counted_as = {r.name: _request(standing, r).get("memory", 0) for r in read.roles if r.name in read.memory}
        for pod in standing.job.current_pods() if counted_as else ():
            if pod.place is None or pod.where not in nodes or pod.identity.uid not in standing.pods_in_place:
                continue
            # By what the pod requests, which nobody can change: its annotations are its user's.
            less = counted_as.get(pod.place.task, 0) - pod.request.get("memory", 0)
            if less > 0:
                more[pod.where] = more.get(pod.where, 0) + less
    if not more:
        return nodes
    return {
        name: replace(node, allocatable={**node.allocatable, "memory": node.allocatable.get("memory", 0) + more[name]})
        if name in more
        else node
        for name, node in nodes.items()
    }


def _without_excluded(standing: Standing, now: float) -> Standing:
    """The standing of a job for which nodes are left out, or which waits because its pods did not start; both end with
    time alone, without a change of the job."""
    read = standing.job.read
    if found := read.excluded.at(now):
        standing = replace(standing, excluded=found)
    if now >= paused_until(read.excluded, now):
        return standing
    if not (standing.is_placed and read.is_preemptible):
        return replace(standing, is_barred=True)
    # It may shrink for others, and does not grow.
    held = {task: len(places) for task, places in standing.held.items()}
    return replace(standing, most={**held, **{t: min(n, held.get(t, n)) for t, n in (standing.most or {}).items()}})


def _on_nodes(
    jobs: Sequence[Job],
    standings: list[Standing],
    nodes: Mapping[str, NodeRead],
    pods: Sequence[PodRead],
    *,
    ending: Set[str],
    avoid: Set[str],
    stuck: Set[str],
) -> tuple[list[Standing], list[NodeView]]:
    """(the standings that still fit on their nodes, the nodes with what others hold there)."""
    # Pods of superseded Workflows are about to end.
    gone = [job for job in jobs if job.is_superseded or job.key in ending]
    left = {pod.identity.uid for job in jobs for pod in job.old_pods} | {
        p.identity.uid for job in gone for p in job.pods
    }
    ours = {standing.job.key for standing in standings}
    firm = set(stuck).union(*(standing.strays for standing in standings))

    def leaves(pod: PodRead) -> bool:
        uid = pod.identity.uid
        return (pod.is_terminating or pod.job in ours or uid in left) and uid not in firm

    held_pods = _in_place(standings)
    stay = [pod for pod in pods if not leaves(pod) and pod.identity.uid not in held_pods]
    nodes = _with_room_for_next(standings, nodes)
    standings = _withdraw_overcommitted(standings, nodes, stay)
    held_pods = _in_place(standings)
    foreign: dict[str, amounts.Amounts] = {}
    releasing: dict[str, amounts.Amounts] = {}
    for pod in pods:
        here = nodes.get(pod.where)
        if here is not None and pod.identity.uid not in held_pods:
            held = {name: value for name, value in pod.request.items() if name in here.allocatable}
            amounts.add((releasing if leaves(pod) else foreign).setdefault(pod.where, {}), held)
    views = [
        NodeView(
            name,
            node.allocatable,
            foreign.get(name, {}),
            releasing.get(name, {}),
            node.is_open and name not in avoid,
            node.labels,
            node.taints,
        )
        for name, node in nodes.items()
    ]
    return standings, views


def _refused(standings: Iterable[Standing], rules: Sequence[NamespaceRule]) -> dict[str, str]:
    """By the name of a job's view: why it may not use the queue or the priority that it names."""
    if not rules:
        return {}
    asked: dict[tuple[str, str, int], str] = {}
    out: dict[str, str] = {}
    for standing in standings:
        read = standing.job.read
        key = read.identity.namespace, read.queue or DEFAULT_QUEUE, read.priority
        if key not in asked:
            asked[key] = refusal(rules, namespace=key[0], queue=key[1], priority=key[2])
        if asked[key]:
            out[standing.view.name] = asked[key]
    return out


def stand(job: Job, capacity: FreeCapacity, *, keep_cordoned: bool = False) -> Standing:
    """What a job holds by its allocation, and whether it has lost its place."""
    read = job.read
    at = read.allocation or _allocation_of_pods(job)
    if at is None or at.round != read.current or not at.is_placed:
        return Standing(job)
    held: Places = {}
    done: dict[str, frozenset[int]] = {}
    for role in read.roles:
        running = min(read.running(role.name), read.granted[read.current].get(role.name, 0))
        finished = frozenset(i for i in range(running) if read.tree.finished(read.member(role.name, i)))
        done[role.name] = finished
        held[role.name] = {
            i: node for i in range(running) if i not in finished and (node := at.node(role.name, i)) != ""
        }
    where = {node for places in held.values() for node in places.values()}
    lost = {node for node in where if capacity.is_lost(node)}
    if not read.is_preemptible:
        kept = {task: {i: node for i, node in places.items() if node not in lost} for task, places in held.items()}
        return Standing(job, kept, done)
    closed = {node for node in where if not capacity.is_open(node)}
    if any(done.values()) and not lost:
        return Standing(job, held, done)  # a new round would repeat the finished replicas' work
    if closed - lost and not lost and (keep_cordoned or not _is_cordoned(closed, capacity)):
        return Standing(job, held, done)  # a node that is not ready may come back
    if closed:
        return Standing(job, {}, {}, displaced=_named({n: capacity.trouble(n) for n in closed}), may_stay=not lost)
    return Standing(job, held, done)


def _allocation_of_pods(job: Job) -> Allocation | None:
    """The allocation derived from the pods, for when the annotation is missing or invalid."""
    where = {(p.place.task, p.place.index): p.where for p in job.current_pods() if p.place and p.where}
    nodes = {
        role.name: tuple(where.get((role.name, i), "") for i in range(job.read.running(role.name)))
        for role in job.read.roles
    }
    return Allocation(job.read.current, nodes) if where else None


def plan_writes(
    shown: Picture,
    plan: Plan,
    *,
    now: float,
    limit_seconds: float = 300.0,
    capacity: FreeCapacity | None = None,
    failed: Callable[[Job, Exception], None] | None = None,
) -> tuple[list[Write], list[Write]]:
    """(writes that free capacity, writes that use it). The second ones depend on the first ones.

    A job that has waited longer than `limit_seconds` gets a warning. A job without pods whose places have enough free
    `capacity` is admitted in the same write, and takes it. `failed` is called for each job whose write cannot
    be built; the plan should then be repeated without it, as others may depend on the capacity that it frees.
    """
    free: list[Write] = []
    use: list[Write] = []
    counts = _counts(shown.snapshot, plan)
    starts = shown.snapshot.role_starts()
    limits = now, limit_seconds, capacity
    explainer = Explainer(shown.snapshot, plan)
    for j, standing in enumerate(shown.standings):
        is_kept = int(plan.action[j]) == int(Action.KEEP)
        if standing.is_fixed or (is_kept and (standing.job.read.allocation is not None or not standing.is_placed)):
            continue  # nothing to write: most jobs in most plans
        roles = range(int(starts[j]), int(starts[j + 1]))
        target = {shown.snapshot.role_names[g]: counts.get(g, {}) for g in roles}
        try:
            some_free, some_use = _writes_of(standing, j, target, explainer, limits)
        except Exception as error:
            if failed is None:
                raise
            failed(standing.job, error)
            continue
        free += some_free
        use += some_use
    return free, use


def _writes_of(
    standing: Standing,
    j: int,
    target: Mapping[str, Mapping[str, int]],
    explainer: Explainer,
    limits: tuple[float, float, FreeCapacity | None],
) -> tuple[list[Write], list[Write]]:
    """The writes of one job, as in `plan_writes`."""
    (now, limit_seconds, capacity), plan, read = limits, explainer.plan, standing.job.read
    action = Action(int(plan.action[j]))
    words = explainer.text(j, excluded=standing.excluded).split(": ", 2)[-1]
    if action in (Action.WAIT, Action.PREEMPT):
        words = "; ".join([words, *_more_memory(read), *filter(None, [read.excluded.text(now)])])
    said = decision(action.name.lower(), words, now)
    if action is Action.KEEP or (action is Action.WAIT and not standing.is_displaced):
        since = max(standing.job.created_seconds, read.allocation.since if read.allocation else 0.0)
        if action is Action.WAIT and now - since > limit_seconds:
            said = decision("late", f"not placed within {limit_seconds:g} s: {words}", now)
        write = _say(read, said, Why(int(plan.why[j])), now)
        if read.allocation is None and standing.is_placed:
            found = patches.change_job(read, allocation=_allocation_of_pods(standing.job))
            return [], [replace(found, is_optional=True)]
        return [], [write] if write is not None else []
    if action in (Action.WAIT, Action.PREEMPT):
        return [_preempt(standing, said, now)], []
    if read.awaits_admission:
        return [], [_begin(standing, target, said, now, capacity)]
    if not read.is_preemptible:
        return [], [_extend(standing, target, said, now)]
    write = _move(standing, target, said, now)
    frees = standing.is_placed and bool(_shrinks(standing, target))
    return ([write], []) if frees else ([], [write])


def _more_memory(read: JobRead) -> list[str]:
    """The tasks of which a replica ran out of memory, and what the next ones have."""
    return [
        f"each {role.name} has {quantity('memory', read.memory[role.name])} of memory instead of "
        f"{quantity('memory', role.asked_memory)}, since one ran out of it"
        for role in read.roles
        if 0 < role.asked_memory < read.memory.get(role.name, 0)
    ]


def left_in_place(shown: Picture, plan: Plan) -> bool:
    """Whether a job has to leave a cordoned node and has no other place, so that it should stay."""
    return any(
        standing.may_stay and int(plan.action[j]) == int(Action.WAIT) for j, standing in enumerate(shown.standings)
    )


def _in_place(standings: Iterable[Standing]) -> set[str]:
    return set().union(*(standing.pods_in_place for standing in standings))


def _is_planned(job: Job) -> bool:
    read = job.read
    if job.is_over:
        return False
    if read.is_suspended and not (read.allocation and read.allocation.is_placed):
        return False
    # If all replicas have finished, Argo is about to end the job.
    return not all(read.tree.finished(member) for _, _, member in job.members())


def _is_cordoned(closed: set[str], capacity: FreeCapacity) -> bool:
    return any(name in capacity.nodes and not capacity.nodes[name].is_schedulable for name in closed)


def _withdraw_overcommitted(
    standings: list[Standing], nodes: Mapping[str, NodeRead], pods: list[PodRead]
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
            amounts.add(free[pod.where], {name: -value for name, value in pod.request.items()})
    for standing in standings:
        less = unused.get(standing.job.key)
        _use(free, standing, _without(standing.held, less) if less else standing.held, -1)
    out = {s.job.key: s for s in standings}
    promised = (s for s in standings if unused.get(s.job.key))
    for standing in sorted(promised, key=lambda s: (-s.job.read.priority, s.job.created_seconds, s.job.key)):
        places = unused[standing.job.key]
        _use(free, standing, places, -1)
        where = {node for nodes in places.values() for node in nodes.values()}
        full = "has no capacity for it any more"
        found = {
            node: trouble(nodes.get(node)) or (full if any(value < 0 for value in free[node].values()) else "")
            for node in where
        }
        if why := _named(found):
            _use(free, standing, places, 1)
            out[standing.job.key] = _less(standing, places, why)
    return [out[s.job.key] for s in standings]


def _named(troubles: Mapping[str, str]) -> str:
    """The nodes with a trouble, as text; "" if there are none."""
    found = [f"node {node} {words}" for node, words in sorted(troubles.items()) if words]
    return named(found, _NODES_NAMED)


def _less(standing: Standing, places: Mapping[str, Mapping[int, str]], why: str) -> Standing:
    """The standing without these places; a preemptible job, which moves as a whole, loses all."""
    if not standing.job.read.is_preemptible:
        kept = _without(standing.held, places)
        return replace(standing, held=kept, displaced="" if any(kept.values()) else why)
    if any(standing.done.values()):
        return standing  # another place would repeat the finished work: it waits for this one
    return Standing(standing.job, displaced=why)


def _without(places: Mapping[str, Mapping[int, str]], less: Mapping[str, Mapping[int, str]]) -> Places:
    return {
        task: {index: node for index, node in nodes.items() if index not in less.get(task, {})}
        for task, nodes in places.items()
    }


def _use(
    free: dict[str, amounts.Amounts], standing: Standing, held: Mapping[str, Mapping[int, str]], sign: int
) -> None:
    roles = {role.name: role for role in standing.job.read.roles}
    for task, places in held.items():
        counts = Counter(node for node in places.values() if node in free)
        request = _request(standing, roles[task]) if counts else {}
        for node, count in counts.items():
            amounts.add(free[node], {name: sign * count * value for name, value in request.items()})


def _request(standing: Standing, role: Role) -> Mapping[str, int]:
    """The request of one replica: from its pods, which include what Argo adds, else from its template."""
    for pod in (*standing.job.pods, *standing.job.old_pods):
        if pod.place is not None and pod.place.task == role.name:
            has = standing.job.read.memory.get(role.name)
            return pod.request if has is None else _with_more(pod, role, has)
    return role.request


def _with_more(pod: PodRead, role: Role, memory: int) -> Mapping[str, int]:
    """The request of the pod after this one, whose main container may have more `memory` (MiB)."""
    before = pod.request.get("memory", 0)
    next_ = max(role.request.get("memory", 0), before + memory - pod.memory if pod.memory else before)
    return {**pod.request, "memory": next_} if next_ != before else pod.request


def _view(standing: Standing) -> JobView:
    read = standing.job.read
    # The time since a job's last change delays further changes by the policy, but not a change that the user has asked
    # for since then.
    at = read.allocation
    roles = []
    for role in read.roles:
        held, done = standing.held.get(role.name, {}), standing.done.get(role.name, frozenset())
        low, high = _bounds(standing, role, held=len(held), done=len(done))
        if high == 0:
            continue  # all its replicas have finished
        roles.append(
            RoleView(
                name=role.name,
                request={k: v for k, v in _request(standing, role).items() if k != "pods"},
                minimum=low,
                maximum=max(low, high),
                desired=max(low, high),
                where=role.where.without(standing.excluded),
                host_ports=role.host_ports,
                # The rest of a group of which some replicas have finished is no multiple.
                unit=1 if low % role.unit or done else role.unit,
            )
        )
    placed = {task: Counter(places.values()) for task, places in standing.held.items() if places}
    has_done = any(standing.done.values())
    return JobView(
        name=standing.job.title,
        roles=tuple(roles),
        queue=read.queue or DEFAULT_QUEUE,
        priority=read.priority,
        # A new round would repeat the work of finished replicas.
        preemptible=read.is_preemptible and not has_done and not standing.is_fixed,
        created_seconds=standing.job.created_seconds,
        started_seconds=at.first if at and at.first else None,
        changed_seconds=at.since if at and at.since and at.asked in ("", read.limits) else None,
        restarts=at.moves if at else 0,
        placed=placed,
        profile=reports.profile(read.profilings) if read.profilings not in ("", "{}") else None,
        required=read.required,
    )


def _bounds(standing: Standing, role: Role, *, held: int, done: int) -> tuple[int, int]:
    """(minimum, maximum) of the replicas of a task that may hold a node."""
    read = standing.job.read
    if standing.is_fixed or standing.is_barred:
        return held, held
    if read.is_preemptible:
        # A new round would repeat the work of finished replicas.
        if any(standing.done.values()):
            return held, held
        return role.low, min(role.high, max(role.low, (standing.most or {}).get(role.name, role.high)))
    running = read.running(role.name)
    if done and done == running:
        return 0, 0  # Argo's group has ended, and accepts no more members
    if not standing.is_placed:
        return role.wanted - done, role.wanted - done
    # No members can be added behind released ones that are still in the group.
    high = running if read.has_tail(role.name) else max(running, role.wanted)
    high = max(held, high - done)
    return min(high, max(1, held)), high


def _counts(snapshot: Snapshot, plan: Plan) -> dict[int, dict[str, int]]:
    out: dict[int, dict[str, int]] = {}
    for role, node, count in zip(plan.role.tolist(), plan.node.tolist(), plan.count.tolist(), strict=True):
        out.setdefault(role, {})[snapshot.node_names[node]] = count
    return out


def _assign(places: Mapping[int, str], target: Mapping[str, int], *, slots: Iterable[int]) -> dict[int, str]:
    """Index → node: replicas stay where they can; the rest of `target` fills `slots` in order, node by node."""
    left = dict(target)
    out: dict[int, str] = {}
    for index, node in sorted(places.items()):
        if left.get(node, 0) > 0:
            out[index] = node
            left[node] -= 1
    rest = [node for node in sorted(left) for _ in range(left[node])]
    free = (slot for slot in slots if slot not in out)
    for node in rest:
        out[next(free)] = node
    return out


def _begin(
    standing: Standing,
    target: Mapping[str, Mapping[str, int]],
    said: Mapping[str, str],
    now: float,
    capacity: FreeCapacity | None,
) -> Write:
    """Place a job of which nothing was created yet, and admit it if its places are free now."""
    job, read, old = standing.job, standing.job.read, standing.job.read.allocation
    counts = {role.name: sum(target.get(role.name, {}).values()) for role in read.roles}
    nodes = {}
    for task, count in counts.items():
        places = _assign(standing.held.get(task, {}), target.get(task, {}), slots=range(count))
        nodes[task] = tuple(places[i] for i in sorted(places))
    at = Allocation(
        read.current, nodes, now, old.first if old and old.first else now, 0, read.limits if read.is_preemptible else ""
    )
    parameters = live(granted={**read.granted, read.current: counts})
    note = _note(standing, counts, said["why"])
    need = allocated(read, at)
    if capacity is None or need is None or not job.may_begin or not capacity.fits(need):
        return patches.change_job(read, parameters=parameters, allocation=at, decision=said, note=note)
    capacity.take(need)
    admission = patches.admission(at, now=now)
    parameters |= admission.pop("parameters")
    return patches.change_job(read, parameters=parameters, allocation=at, decision=said, note=note, **admission)


def _move(standing: Standing, target: Mapping[str, Mapping[str, int]], said: Mapping[str, str], now: float) -> Write:
    """Give a preemptible job another allocation: in a new round, or in the current one if no pod of it was admitted."""
    job, read = standing.job, standing.job.read
    counts = {task: sum(nodes.values()) for task, nodes in target.items()}
    old = read.allocation
    nodes: dict[str, tuple[str, ...]] = {}
    for task, count in counts.items():
        before = {i: node for i, node in enumerate(old.nodes.get(task, ())) if node and i < count} if old else {}
        places = _assign(before, target[task], slots=range(count))
        nodes[task] = tuple(places[i] for i in range(count))
    note = _note(standing, counts, said["why"])
    running = {role.name: read.running(role.name) for role in read.roles}
    if running == counts and not job.has_started() and not any(p.is_stopping for p in job.current_pods()):
        first = old.first if old and old.first else now
        at = Allocation(read.current, nodes, now, first, old.moves if old else 0, read.limits)
        return patches.change_job(read, allocation=at, decision=said, note=note)
    write = next_round(job, counts, nodes, now=now, decision=said, note=note)
    return replace(write, frees=_shrinks(standing, target))


def _extend(standing: Standing, target: Mapping[str, Mapping[str, int]], said: Mapping[str, str], now: float) -> Write:
    """Place a non-preemptible job, or more replicas of it, without moving running ones."""
    read = standing.job.read
    granted = dict(read.granted[read.current])
    incarnations = dict(read.incarnations)
    old = read.allocation if read.allocation and read.allocation.round == read.current else None
    nodes: dict[str, tuple[str, ...]] = {}
    for role in read.roles:
        task = role.name
        done = standing.done.get(task, frozenset())
        running = read.running(task)
        total = sum(target.get(task, {}).values())
        slots = [i for i in range(running + total) if i not in done]
        places = _assign(standing.held.get(task, {}), target.get(task, {}), slots=slots)
        count = max([running, *(i + 1 for i in places)])
        finished = {i: old.node(task, i) if old else "" for i in done}
        nodes[task] = tuple(places.get(i, finished.get(i, "")) for i in range(count))
        if not read.has_tail(task) and count > granted.get(task, 0):
            for index in range(granted.get(task, 0), count):
                _next_incarnation(read, task, index, incarnations)
            granted[task] = count
    counts = {task: sum(1 for node in where if node) for task, where in nodes.items()}
    first = old.first if old and old.first else now
    at = Allocation(read.current, nodes, now, first, old.moves if old else 0)
    parameters = live(
        granted={**read.granted, read.current: granted} if granted != dict(read.granted[read.current]) else None,
        incarnations=incarnations if incarnations != dict(read.incarnations) else None,
    )
    return patches.change_job(
        read, parameters=parameters, allocation=at, decision=said, note=_note(standing, counts, said["why"])
    )


def _next_incarnation(read: JobRead, task: str, index: int, incarnations: dict[str, str]) -> None:
    """Give an index that was used before a new incarnation: Argo would reuse the result of a node of the same name."""
    key = f"{read.current}/{task}/{index}"
    number = 0
    while f"{key}{f'.{number}' if number else ''}" in read.tree.members:
        number += 1
    if number:
        incarnations[key] = f".{number}"


def _preempt(standing: Standing, said: Mapping[str, str], now: float) -> Write:
    """Take a job's place: it waits for another one, with the pods of its smallest gang."""
    read, why = standing.job.read, said["why"]
    lost = f"{standing.displaced}; " if standing.is_displaced else ""
    if not read.is_preemptible or not standing.job.has_started():
        old = read.allocation
        at = Allocation(read.current, {}, now, old.first if old else 0.0, old.moves if old else 0)
        note = Note("Waiting", f"waits for another place: {lost}{why}")
        return patches.change_job(read, allocation=at, decision=said, note=note)
    counts = {role.name: role.low for role in read.roles}
    note = Note("Preempted", f"stopped and waiting for its place: {lost}{why}")
    return next_round(standing.job, counts, {}, now=now, decision=said, note=note)


def withdraw(standing: Standing, why: str, *, now: float, most: Mapping[str, int] | None = None) -> Write | None:
    """Withdraw the unused places of a job. `most`: the replicas by task with which a preemptible job is to wait. None
    if nothing has to be written."""
    job, read, old = standing.job, standing.job.read, standing.job.read.allocation
    said, note = decision("wait", why, now), Note("Waiting", why, is_warning=True)
    if old is None or (read.is_preemptible and any(standing.done.values())):
        return None
    if read.is_preemptible and (most or job.has_started()):
        return next_round(
            job, most or {role.name: role.low for role in read.roles}, {}, now=now, decision=said, note=note
        )
    nodes = {}
    if not read.is_preemptible and job.has_started() and not job.is_incomplete:
        unused = standing.unused
        nodes = {
            task: tuple("" if index in unused.get(task, {}) else node for index, node in enumerate(places))
            for task, places in old.nodes.items()
        }
    at = Allocation(read.current, nodes, now, old.first, old.moves)
    return patches.change_job(read, allocation=at, decision=said, note=note)


def _say(read: JobRead, said: Mapping[str, str], why: Why, now: float) -> Write | None:
    """Update the text of why a job waits or stays as it is, if it has changed."""
    last = read.decision
    if last.get("why") == said["why"] and last.get("action") == said["action"]:
        return None
    if said["action"] == "keep":
        return None
    recent = 0 <= now - untrusted.seconds(last.get("time")) < _REPEAT_SECONDS
    if last.get("action") == said["action"] and recent:
        return None
    news = last.get("action") != said["action"]
    note = (
        Note("Waiting", said["why"], is_warning=why in (Why.TOO_BIG, Why.NO_SUCH_QUEUE) or said["action"] == "late")
        if news
        else None
    )
    return patches.change_job(read, decision=said, note=note)


def _note(standing: Standing, counts: Mapping[str, int], why: str) -> Note:
    before = sum(len(places) for places in standing.held.values())
    after = sum(counts.values())
    if standing.is_displaced:
        return Note("Rescheduled", f"placed again with {counted(after, 'replica')}, as {standing.displaced}; {why}")
    if not before:
        return Note("Admitted", f"{counted(after, 'replica')}: {_spread(counts)}; {why}")
    if before == after:
        return Note("Rescheduled", f"moved with {counted(after, 'replica')}; {why}")
    return Note("Resized", f"{before} → {counted(after, 'replica')}: {_spread(counts)}; {why}")


def _spread(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} × {task}" for task, count in counts.items())


def _shrinks(standing: Standing, target: Mapping[str, Mapping[str, int]]) -> bool:
    """Whether some node will hold fewer replicas of the job than now."""
    for task, places in standing.held.items():
        for node in set(places.values()):
            if target.get(task, {}).get(node, 0) < list(places.values()).count(node):
                return True
    return False
