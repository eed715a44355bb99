"""Planning: from the caches to a snapshot for the policy, and from its plan to one patch for each job that changes.

Which replica (index) goes to which node is settled here; policies only count replicas on nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from diflow import keys
from diflow.allocator import amounts, explain, reports, writes
from diflow.allocator.allocation import Allocation
from diflow.allocator.carrying import Job, decision, next_round
from diflow.allocator.plan import Action, Plan, Why
from diflow.allocator.pools import Pools
from diflow.allocator.profile import Profile
from diflow.allocator.reading import JobRead, NodeRead, PodRead, Role, seconds
from diflow.allocator.room import Room
from diflow.allocator.snapshot import Snapshot
from diflow.allocator.views import DEFAULT_QUEUE, JobView, NodeView, QueueView, RoleView, build
from diflow.allocator.writes import Note, Write
from diflow.figures import counted

# A decision's text changes with the numbers in it; people need not see each of them.
_REPEAT_SECONDS = 60.0

Places = dict[str, dict[int, str]]
"""Task → index → node."""


@dataclass(frozen=True)
class Standing:
    """Where one job stands for the next plan. `held`: task → index → node, of what it keeps unless it is moved.

    What follows from it is worked out once: it is the same in the next plan as long as nothing of the job changes.
    """

    job: Job
    held: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    done: Mapping[str, frozenset[int]] = field(default_factory=dict)
    is_displaced: bool = False
    """It had a place and lost it: its node is gone, or is to be emptied."""
    may_stay: bool = False
    """Displaced only to empty a node that still works: it stays if there is nowhere to go."""
    is_fixed: bool = False
    """Nothing can be written for it now: others are planned around it."""

    @cached_property
    def is_placed(self) -> bool:
        return any(self.held.values())

    @cached_property
    def unused(self) -> Mapping[str, Mapping[int, str]]:
        """The places of which no pod makes use yet, or not any more."""
        used = {(p.place.task, p.place.index): p.where for p in self.job.current_pods() if p.place and p.where}
        out = {
            task: {index: node for index, node in places.items() if used.get((task, index)) != node}
            for task, places in self.held.items()
        }
        return {task: places for task, places in out.items() if places}

    @cached_property
    def pods_in_place(self) -> frozenset[str]:
        """The uids of the pods that are where the job holds a place for them."""
        return frozenset(
            pod.identity.uid
            for pod in self.job.current_pods()
            if pod.place and self.held.get(pod.place.task, {}).get(pod.place.index) == pod.where
        )

    @cached_property
    def view(self) -> JobView:
        """The job as the snapshot is made of it."""
        return _view(self)


class Memory:
    """Where the jobs stood in the last picture. A job's standing is taken again as long as neither it nor the state of
    any node has changed: of a thousand jobs most rest."""

    def __init__(self) -> None:
        self._nodes: object = None
        self._known: dict[str, tuple[Job, Standing | None]] = {}

    def stand(self, jobs: Iterable[Job], room: Room, *, keep_cordoned: bool) -> list[Standing]:
        """The standings of those jobs that are planned."""
        nodes = (
            keep_cordoned,
            {name: (node.is_open, node.is_schedulable, room.is_lost(name)) for name, node in room.nodes.items()},
        )
        before = self._known if nodes == self._nodes else {}
        self._nodes, self._known = nodes, {}
        for job in jobs:
            known = before.get(job.key)
            if known is None or known[0] is not job:
                known = job, stand(job, room, keep_cordoned=keep_cordoned) if _is_planned(job) else None
            self._known[job.key] = known
        return [standing for _, standing in self._known.values() if standing is not None]


@dataclass(frozen=True, slots=True)
class Picture:
    """A snapshot, and which job each of its rows is."""

    snapshot: Snapshot
    standings: tuple[Standing, ...]


def picture(
    jobs: Iterable[Job],
    nodes: Mapping[str, NodeRead],
    pods: Iterable[PodRead],
    queues: Sequence[QueueView],
    room: Room,
    *,
    now: float,
    pools: Pools | None = None,
    keep_cordoned: bool = False,
    fixed: Set[str] = frozenset(),
    avoid: Set[str] = frozenset(),
    memory: Memory | None = None,
) -> Picture:
    """The cluster as the policy sees it. `pods`: all live ones, others' too. `memory`: of the last picture.

    `keep_cordoned`: leave jobs on nodes that are cordoned (they could not be placed elsewhere). `fixed`: jobs for which
    nothing can be written now; what they hold they keep, and they are given nothing. `avoid`: nodes that get no new
    pods, though they look as if they could take some.
    """
    jobs, pods, pools = list(jobs), list(pods), pools or Pools()
    standings = (memory or Memory()).stand(jobs, room, keep_cordoned=keep_cordoned)
    standings.sort(key=lambda s: s.job.title)
    standings = [s if s.job.key not in fixed else replace(s, is_fixed=True) for s in standings]
    standings = [s for s in standings if s.is_placed or not s.is_fixed]
    # What a job has left behind in the Workflow before is on its way out.
    left = {pod.identity.uid for job in jobs for pod in (*job.old_pods, *(job.pods if job.is_passed else ()))}
    standings = _settle_overfull(standings, nodes, [pod for pod in pods if pod.identity.uid not in left])
    held_pods: set[str] = set().union(*(standing.pods_in_place for standing in standings))
    foreign: dict[str, amounts.Amounts] = {}
    releasing: dict[str, amounts.Amounts] = {}
    ours = {standing.job.key for standing in standings}
    for pod in pods:
        if not pod.where or pod.identity.uid in held_pods:
            continue
        leaves = pod.is_terminating or pod.job in ours or pod.identity.uid in left
        amounts.add((releasing if leaves else foreign).setdefault(pod.where, {}), pod.request)
    snapshot = build(
        [
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
        ],
        [standing.view for standing in standings],
        queues,
        now_seconds=now,
        pool_label=pools.label,
        pool_speed=pools.speed,
    )
    return Picture(snapshot, tuple(standings))


def stand(job: Job, room: Room, *, keep_cordoned: bool = False) -> Standing:
    """What a job holds now, by what was decided; and whether it has to go elsewhere."""
    read = job.read
    at = read.allocation or _found_again(job)
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
    lost = {node for node in where if room.is_lost(node)}
    if not read.is_preemptible:
        kept = {task: {i: node for i, node in places.items() if node not in lost} for task, places in held.items()}
        return Standing(job, kept, done)
    closed = {node for node in where if not room.is_open(node)}
    if any(done.values()) and not lost:
        return Standing(job, held, done)  # it is about to end: a new round would do its finished work again
    if closed - lost and not lost and (keep_cordoned or not _is_cordoned(closed, room)):
        return Standing(job, held, done)  # a node that has just gone silent may come back
    if closed:
        return Standing(job, {}, {}, is_displaced=True, may_stay=not lost)
    return Standing(job, held, done)


def _found_again(job: Job) -> Allocation | None:
    """The allocation as the pods have it, when somebody has made the annotation unreadable."""
    where = {(p.place.task, p.place.index): p.where for p in job.current_pods() if p.place and p.where}
    nodes = {
        role.name: tuple(where.get((role.name, i), "") for i in range(job.read.running(role.name)))
        for role in job.read.roles
    }
    return Allocation(job.read.current, nodes) if where else None


def plan_writes(
    shown: Picture, plan: Plan, *, now: float, limit_seconds: float = 300.0
) -> tuple[list[Write], list[Write]]:
    """(writes that free room, writes that use it). The second may only be made when all of the first were.

    A job that has waited longer than `limit_seconds` says so in a warning.
    """
    free: list[Write] = []
    use: list[Write] = []
    counts = _counts(shown.snapshot, plan)
    starts = shown.snapshot.role_starts()
    for j, standing in enumerate(shown.standings):
        read = standing.job.read
        action = Action(int(plan.action[j]))
        if action is Action.KEEP and (read.allocation is not None or not standing.is_placed):
            continue  # there is nothing to write or to tell: most jobs in most plans
        roles = range(int(starts[j]), int(starts[j + 1]))
        target = {shown.snapshot.role_names[g]: counts.get(g, {}) for g in roles}
        words = explain.text(shown.snapshot, plan, j).split(": ", 2)[-1]
        said = decision(action.name.lower(), words, now)
        if action is Action.KEEP or (action is Action.WAIT and not standing.is_displaced):
            since = max(read.created_seconds, read.allocation.since if read.allocation else 0.0)
            if action is Action.WAIT and now - since > limit_seconds:
                said = decision("late", f"not placed within {limit_seconds:g} s: {words}", now)
            write = _say(read, said, Why(int(plan.why[j])), now)
            if read.allocation is None and standing.is_placed:
                use.append(writes.change_job(read, allocation=_found_again(standing.job)))
            elif write is not None:
                use.append(write)
            continue
        if action in (Action.WAIT, Action.PREEMPT):
            free.append(_put_off(standing, said, now))
        elif read.is_preemptible:
            write = _move(standing, target, said, now)
            (free if standing.is_placed and bool(_shrinks(standing, target)) else use).append(write)
        else:
            use.append(_extend(standing, target, said, now))
    return free, use


def left_in_place(shown: Picture, plan: Plan) -> bool:
    """Whether a job was to leave a cordoned node and has nowhere to go: then it should rather stay."""
    return any(
        standing.may_stay and int(plan.action[j]) == int(Action.WAIT) for j, standing in enumerate(shown.standings)
    )


def _is_planned(job: Job) -> bool:
    read = job.read
    if read.has_ended or read.is_stopping or read.problem or job.is_passed:
        return False
    if read.is_suspended and not (read.allocation and read.allocation.is_placed):
        return False
    # All its replicas have finished, and Argo is about to end it: there is nothing left to place.
    return not all(read.tree.finished(member) for _, _, member in job.members())


def _is_cordoned(closed: set[str], room: Room) -> bool:
    return any(name in room.nodes and not room.nodes[name].is_schedulable for name in closed)


def _settle_overfull(standings: list[Standing], nodes: Mapping[str, NodeRead], pods: list[PodRead]) -> list[Standing]:
    """Take back places that were promised and are not used, on nodes that have no room for them any more.

    A node may shrink or be closed, or a foreign pod may come, between a decision and the admission, or while Argo makes
    a pod anew.
    """
    unused = {s.job.key: s.unused for s in standings if s.is_placed and not s.is_fixed}
    if not any(unused.values()):
        return standings
    asked = {node for unused_ in unused.values() for places in unused_.values() for node in places.values()}
    free = {name: dict(nodes[name].allocatable) for name in asked if name in nodes}
    ours = {s.job.key for s in standings}
    for pod in pods:
        if pod.where in free and pod.job not in ours and not pod.is_terminating:
            amounts.add(free[pod.where], {name: -value for name, value in pod.request.items()})
    for standing in standings:
        less = unused.get(standing.job.key)
        _use(free, standing, _without(standing.held, less) if less else standing.held, -1)
    out = {s.job.key: s for s in standings}
    promised = (s for s in standings if unused.get(s.job.key))
    for standing in sorted(promised, key=lambda s: (-s.job.read.priority, s.job.read.created_seconds, s.job.key)):
        places = unused[standing.job.key]
        _use(free, standing, places, -1)
        where = {node for nodes in places.values() for node in nodes.values()}
        closed = any(not nodes[node].is_open for node in where if node in nodes)
        if closed or any(value < 0 for node in where for value in free.get(node, {"gone": -1}).values()):
            _use(free, standing, places, 1)
            out[standing.job.key] = _less(standing, places)
    return [out[s.job.key] for s in standings]


def _less(standing: Standing, places: Mapping[str, Mapping[int, str]]) -> Standing:
    """A job that cannot have these places: a gang that moves as a whole has none then."""
    if not standing.job.read.is_preemptible:
        kept = _without(standing.held, places)
        return replace(standing, held=kept, is_displaced=not any(kept.values()))
    if any(standing.done.values()):
        return standing  # in another place all its finished work would be done again: it waits for this one
    return Standing(standing.job, is_displaced=True)


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
    """What one replica takes: as its pods say, which know what Argo adds; else as its template says."""
    for pod in (*standing.job.pods, *standing.job.old_pods):
        if pod.place is not None and pod.place.task == role.name:
            return pod.request
    return role.request


def _view(standing: Standing) -> JobView:
    read = standing.job.read
    at = read.allocation
    roles = []
    for role in read.roles:
        held, done = standing.held.get(role.name, {}), standing.done.get(role.name, frozenset())
        low, high = _bounds(standing, role, held=len(held), done=len(done))
        if high == 0:
            continue  # all its replicas have come to their end
        roles.append(
            RoleView(
                name=role.name,
                request={k: v for k, v in _request(standing, role).items() if k != "pods"},
                minimum=low,
                maximum=max(low, high),
                desired=max(low, high),
                where=role.where,
                host_ports=role.host_ports,
            )
        )
    placed = {task: Counter(places.values()) for task, places in standing.held.items() if places}
    has_done = any(standing.done.values())
    return JobView(
        name=standing.job.title,
        roles=tuple(roles),
        queue=read.queue or DEFAULT_QUEUE,
        priority=read.priority,
        # One that has finished replicas would do their work again in a new round.
        preemptible=read.is_preemptible and not has_done and not standing.is_fixed,
        created_seconds=read.created_seconds,
        started_seconds=at.first if at and at.first else None,
        changed_seconds=at.since if at and at.since else None,
        restarts=at.moves if at else 0,
        placed=placed,
        profile=_profile(read),
    )


def _bounds(standing: Standing, role: Role, *, held: int, done: int) -> tuple[int, int]:
    """How many replicas of a task may hold a node: at least and at most."""
    read = standing.job.read
    if standing.is_fixed:
        return held, held
    if read.is_preemptible:
        # In a new round those that have finished would do their work again.
        return (held, held) if any(standing.done.values()) else (role.low, role.high)
    running = read.running(role.name)
    if done and done == running:
        return 0, 0  # Argo's group has come to its end, and takes no more members
    if not standing.is_placed:
        return role.wanted - done, role.wanted - done
    # While released members are still in the group nothing can be added behind them.
    high = running if read.has_tail(role.name) else max(running, role.wanted)
    high = max(held, high - done)
    return min(high, max(1, held)), high


def _profile(read: JobRead) -> Profile | None:
    return reports.profile(read.profilings) if read.profilings not in ("", "{}") else None


def _counts(snapshot: Snapshot, plan: Plan) -> dict[int, dict[str, int]]:
    out: dict[int, dict[str, int]] = {}
    for role, node, count in zip(plan.role.tolist(), plan.node.tolist(), plan.count.tolist(), strict=True):
        out.setdefault(role, {})[snapshot.node_names[node]] = count
    return out


def _assign(places: Mapping[int, str], target: Mapping[str, int], *, slots: Iterable[int]) -> dict[int, str]:
    """Index → node: whoever can stay stays; the rest of `target` fills `slots` in order, node by node."""
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


def _move(standing: Standing, target: Mapping[str, Mapping[str, int]], said: Mapping[str, str], now: float) -> Write:
    """Give a preemptible job another allocation: a new round, or the present one if nothing of it was ever admitted."""
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
        at = Allocation(read.current, nodes, now, first, old.moves if old else 0)
        return writes.change_job(read, allocation=at, decision=said, note=note)
    return next_round(job, counts, nodes, now=now, decision=said, note=note)


def _extend(standing: Standing, target: Mapping[str, Mapping[str, int]], said: Mapping[str, str], now: float) -> Write:
    """Place a job that is not preemptible, or more replicas of it: nothing that runs is touched."""
    read = standing.job.read
    granted = dict(read.granted[read.current])
    again = dict(read.again)
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
                _bring_back(read, task, index, again)
            granted[task] = count
    counts = {task: sum(1 for node in where if node) for task, where in nodes.items()}
    first = old.first if old and old.first else now
    at = Allocation(read.current, nodes, now, first, old.moves if old else 0)
    parameters: dict[str, Any] = {}
    if granted != dict(read.granted[read.current]):
        parameters[keys.PARAM_GRANTED] = {**read.granted, read.current: granted}
    if again != dict(read.again):
        parameters[keys.PARAM_AGAIN] = again
    return writes.change_job(
        read, parameters=parameters, allocation=at, decision=said, note=_note(standing, counts, said["why"])
    )


def _bring_back(read: JobRead, task: str, index: int, again: dict[str, str]) -> None:
    """Give an index that lived before a name of its own: Argo takes a finished node of the same name for the result."""
    key = f"{read.current}/{task}/{index}"
    life = 0
    while f"{key}{f'.{life}' if life else ''}" in read.tree.members:
        life += 1
    if life:
        again[key] = f".{life}"


def _put_off(standing: Standing, said: Mapping[str, str], now: float) -> Write:
    """Take a job's place away: it waits, with pods of its smallest gang, for the next one."""
    read, why = standing.job.read, said["why"]
    lost = "its node went away; " if standing.is_displaced else ""
    if not read.is_preemptible or not standing.job.has_started():
        old = read.allocation
        at = Allocation(read.current, {}, now, old.first if old else 0.0, old.moves if old else 0)
        note = Note("Waiting", f"waits for another place: {lost}{why}")
        return writes.change_job(read, allocation=at, decision=said, note=note)
    counts = {role.name: role.low for role in read.roles}
    note = Note("Preempted", f"stopped and waiting for its place: {lost}{why}")
    return next_round(standing.job, counts, {}, now=now, decision=said, note=note)


def _say(read: JobRead, said: Mapping[str, str], why: Why, now: float) -> Write | None:
    """Tell why a job waits or stays as it is, when that is news."""
    last = read.decision
    if last.get("why") == said["why"] and last.get("action") == said["action"]:
        return None
    if said["action"] == "keep":
        return None
    recent = now - seconds(str(last.get("time") or "")) < _REPEAT_SECONDS
    if last.get("action") == said["action"] and recent:
        return None
    news = last.get("action") != said["action"]
    note = (
        Note("Waiting", said["why"], is_warning=why in (Why.TOO_BIG, Why.NO_SUCH_QUEUE) or said["action"] == "late")
        if news
        else None
    )
    return writes.change_job(read, decision=said, note=note)


def _note(standing: Standing, counts: Mapping[str, int], why: str) -> Note:
    before = sum(len(places) for places in standing.held.values())
    after = sum(counts.values())
    if standing.is_displaced:
        return Note(
            "Rescheduled", f"placed anew with {counted(after, 'replica')}, as nodes of it are closed or gone; {why}"
        )
    if not before:
        return Note("Admitted", f"{counted(after, 'replica')}: {_spread(counts)}; {why}")
    if before == after:
        return Note("Rescheduled", f"moved with {counted(after, 'replica')}; {why}")
    return Note("Resized", f"{before} → {counted(after, 'replica')}: {_spread(counts)}; {why}")


def _spread(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} × {task}" for task, count in counts.items())


def _shrinks(standing: Standing, target: Mapping[str, Mapping[str, int]]) -> bool:
    """Some node is to hold less of the job than it does now."""
    for task, places in standing.held.items():
        for node in set(places.values()):
            if target.get(task, {}).get(node, 0) < list(places.values()).count(node):
                return True
    return False
