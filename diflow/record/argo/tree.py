"""The replicas of a job in Argo's nodes: the phase of each, and the job's restarts and reschedules.

The counts are computed only here, so that the allocator ends a job at the number that `diflow list` shows. A restart is
a counted attempt of one replica, or of a whole round; a reschedule is a pod that was made again without being counted,
or a round that had a node and was replaced by another one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from diflow.common import keys
from diflow.record import untrusted
from diflow.record.argo import node_names
from diflow.record.argo.failures import ALWAYS, Rules, Verdict, is_of_node, is_stop
from diflow.record.argo.node_names import NodeName
from diflow.record.argo.nodes import FULFILLED, Node

_FAILED: Final = ("Failed", "Error")
_LONGEST_SAID: Final = 300
_LONGEST_MESSAGE: Final = 200
_LONGEST_SHORT: Final = 100


@dataclass(frozen=True, slots=True)
class Ending:
    """The failure of one attempt of a replica. `attempt` names it within the job, by
    its time too, as `diflow retry` uses the same numbers again;
    `memory` is the MiB that it had, 0 if unknown; `finished` is RFC 3339 or ""."""

    attempt: str
    round: str
    task: str
    index: int
    member: str
    order: tuple[int, int, int, int]
    host: str
    memory: int
    message: str
    finished: str
    verdict: Verdict

    @property
    def replica(self) -> str:
        """The replica's name within its job."""
        return f"{self.task}-{self.index}"


@dataclass(frozen=True, slots=True)
class Tree:
    """The phase of each member ("round/task/member") in the latest restart of its round, and derived counts."""

    members: Mapping[str, str] = field(default_factory=dict)
    restart_of: Mapping[str, int] = field(default_factory=dict)
    round_phase: Mapping[str, str] = field(default_factory=dict)
    recreated: frozenset[str] = frozenset()
    """Members of which a pod was taken away and made again, in the latest restart of their round."""
    restarts: int = 0
    """The restarts that count against the backoffLimit, over all replicas and rounds."""
    moves: int = 0
    """How many pods were made again without counting against it."""
    idle: frozenset[str] = frozenset()
    """Rounds whose pods never got a node."""
    had_node: frozenset[str] = frozenset()
    """Rounds of which a pod got a node."""
    count: int = 0
    is_offloaded: bool = False
    says: str = ""
    """Argo's message about a pod that it could not create yet."""
    endings: tuple[Ending, ...] = ()
    """The failed attempts of the last round in their order, of a job with a failure policy."""
    never_began: tuple[Ending, ...] = ()
    """Those in which no program of the user was started, and its node may be why, of any job."""
    newest: Mapping[str, tuple[int, int, int, int]] = field(default_factory=dict)
    """The last pod of each member of the last round that Argo has recorded, if it is not the member's first one."""
    failure: str = ""
    """Which replica of the last round has failed, in its latest restart, so that it counts, for people. "" if none has,
    or if another one was taken away, which may be the reason. Argo has not started the round again yet."""
    retried: tuple[float, ...] = ()
    """When those attempts of single replicas of the last round failed that were followed by another one and count, in
    seconds since 1970."""
    failed_at: float = 0.0
    """When a replica of the last round last failed so that it counts, in its latest restart, in seconds since 1970; 0
    if none has."""
    is_stuck: bool = False
    """Argo creates no pods, because `argo retry` has kept what it should have removed (`left_by_argo_retry`)."""
    changed: float = 0.0
    """When Argo last changed the phase of a node of a job that is stuck, in seconds since 1970."""
    ended: str = ""
    """When a pod of it last ended (RFC 3339)."""

    def is_done(self, member: str) -> bool:
        """Argo considers this member ended."""
        return self.members.get(member, "") in FULFILLED

    def failed(self, round_: str) -> list[str]:
        """Members of a round that failed finally."""
        prefix = f"{round_}/"
        return [m for m, phase in self.members.items() if phase in _FAILED and m.startswith(prefix)]

    def finished(self, member: str) -> bool:
        """The member has succeeded."""
        return self.members.get(member, "") == "Succeeded"

    def rounds_left(self, rounds: Sequence[str]) -> int:
        """How many of these rounds were replaced by another one, without those of which no pod ever got a node.

        A job that starts with another number of replicas than it was submitted with starts in its second round.
        """
        return sum(name not in self.idle for name in rounds[:-1])


def read_tree(
    nodes: Sequence[Node], *, is_offloaded: bool = False, rules: Callable[[str], Rules] | None = None
) -> Tree:
    """The tree of these nodes. `rules`: those of a task, of a job with a failure policy."""
    if not nodes:
        return _WITHOUT_NODES[is_offloaded]
    places = [(node.place, node) for node in nodes if node.place is not None and not is_never_made(node)]
    pods = [(place, node) for place, node in places if place.is_pod and node.type == "Pod"]
    restart_of: dict[str, int] = {}
    for place, _ in places:
        restart_of[place.round] = max(restart_of.get(place.round, 0), place.restart)
    latest = [(place, node) for place, node in places if place.task and place.restart == restart_of[place.round]]
    had_host = {place.round for place, node in pods if node.had_host}
    pending = (node.message for place, node in places if node.phase == "Pending" and place.is_pod)
    last = max((place.round_index for place, _ in places), default=0)
    of_last = [(place, node) for place, node in pods if place.round_index == last]
    newest: dict[str, tuple[int, int, int, int]] = {}
    for place, _ in of_last:
        if place.is_repeated:
            member = _member(place)
            newest[member] = max(newest.get(member, place.order), place.order)
    is_stuck = bool(left_by_argo_retry(nodes))
    times = (untrusted.seconds(time) for node in nodes for time in (node.started, node.finished)) if is_stuck else ()
    return Tree(
        members={_member(place): node.phase for place, node in latest if place.is_member},
        restart_of=restart_of,
        round_phase={
            place.round: node.phase for place, node in places if not place.task and not place.is_attempt_of_round
        },
        recreated=frozenset(_member(place) for place, _ in latest if place.is_pod and place.uncounted),
        restarts=_restarts([place for place, _ in pods]),
        # One that never had a node does not count: another one is made at once, as with more memory.
        moves=sum(place.uncounted > 0 and node.had_host for place, node in pods),
        idle=frozenset(place.round for place, _ in pods) - had_host,
        had_node=frozenset(had_host),
        count=len(nodes),
        is_offloaded=is_offloaded,
        says=next(filter(None, pending), "")[:_LONGEST_SAID],
        newest=newest,
        failure=_failure(of_last, rules),
        retried=_retried(of_last),
        failed_at=_failed_at(of_last, rules),
        is_stuck=is_stuck,
        changed=max(times, default=0.0),
        ended=max((node.finished for _, node in pods), default=""),
        endings=() if rules is None else _endings(of_last, rules),
        never_began=_endings([one for one in of_last if is_of_node(one[1].message)], rules or _no_policy),
    )


def _no_policy(_task: str) -> Rules:
    return ALWAYS


_WITHOUT_NODES: Final = (Tree(), Tree(is_offloaded=True))
"""Of thousands of jobs that wait."""


def _member(place: NodeName) -> str:
    return f"{place.round}/{place.task}/{place.member}"


def _restarts(pods: Sequence[NodeName]) -> int:
    """The restarts that count: of single replicas, and of whole rounds. Only pods count, as Argo adds nodes without
    pods for further attempts of a round after a stop."""
    alone: dict[tuple[str, int, str, str], int] = {}
    together: dict[str, int] = {}
    for place in pods:
        together[place.round] = max(together.get(place.round, 0), place.restart)
        if place.task and place.counted:
            at = (place.round, place.restart, place.task, place.member)
            alone[at] = max(alone.get(at, 0), place.counted)
    return sum(alone.values()) + sum(together.values())


def left_by_argo_retry(nodes: Sequence[Node]) -> frozenset[str]:
    """The names of the nodes that must go, with their descendants, so that Argo creates pods after `argo retry`.

    `argo retry` resets only what failed. It keeps the leaf `superseded` of a DAG, which was skipped after all others
    had ended: Argo looks at a DAG from its leaves, and no further than at one that has ended. It also sets all attempts
    of a replica, or of a round, to Running, and not only the last one; Argo goes on with the last one alone.

    If Argo's controller looks at the job while it is repaired, it merges its changes into what the repair has left: it
    adds pods without the nodes above them, and parts of nodes that have no name. The name of these is "".
    """
    last: dict[str, int] = {}
    running: list[tuple[str, int]] = []
    leaves: dict[str, str] = {}
    unfinished: set[str] = set()
    for node in nodes:
        parent, _, task = node.name.rpartition(".")
        if task == keys.TEMPLATE_SUPERSEDED and node.is_fulfilled and node.type in ("Skipped", "Suspend"):
            leaves[parent] = node.name
        elif node.type == "DAG" and (attempt := _attempt(node.place)) is not None:
            retry = node.name.rpartition("(")[0]
            last[retry] = max(last.get(retry, 0), attempt)
            if node.phase == "Running":
                running.append((retry, attempt))
        elif node.phase == "Running" and node.type in ("TaskGroup", "Retry"):
            unfinished.add(parent)
    earlier = (retry for retry, attempt in running if attempt < last[retry])
    return frozenset(earlier) | {leaf for parent, leaf in leaves.items() if parent in unfinished} | _torn(nodes)


def _torn(nodes: Sequence[Node]) -> frozenset[str]:
    """Of a tree in which some nodes have no name: "", and the names of the nodes that are missing above each pod."""
    if all(node.name for node in nodes):
        return frozenset()
    names = {node.name for node in nodes}
    pods = (node.name for node in nodes if node.place is not None and node.place.is_pod)
    missing = (next((above for above in node_names.above(pod) if above not in names), "") for pod in pods)
    return frozenset(("", *missing))


def _attempt(place: NodeName | None) -> int | None:
    """The number of an attempt of a replica, or of a round, that counts."""
    if place is None or not (place.is_counted_attempt or (place.is_attempt_of_round and not place.task)):
        return None
    return place.counted if place.is_counted_attempt else place.restart


def _endings(pods: Sequence[tuple[NodeName, Node]], rules: Callable[[str], Rules]) -> tuple[Ending, ...]:
    known = {task: rules(task) for task in {place.task for place, _ in pods}}
    endings = [
        Ending(
            attempt=f"{_member(place)}/{place.restart}/{place.counted}/{place.uncounted}@{node.finished}",
            round=place.round,
            task=place.task,
            index=place.index,
            member=_member(place),
            order=place.order,
            host=node.host,
            memory=node.memory,
            message=node.message[:_LONGEST_MESSAGE],
            finished=node.finished,
            verdict=known[place.task].judge(node.message),
        )
        for place, node in pods
        if node.phase in _FAILED
    ]
    return tuple(sorted(endings, key=lambda end: (end.order, end.task, end.index)))


def _failure(pods: Sequence[tuple[NodeName, Node]], rules: Callable[[str], Rules] | None) -> str:
    """`Tree.failure` of the pods of the last round."""
    if not any(node.phase in _FAILED for _, node in pods):
        return ""
    restart = max(place.restart for place, _ in pods)
    latest = [(place, node) for place, node in pods if place.restart == restart]
    if any(place.uncounted for place, _ in latest):
        return ""
    # The pods that diflow has stopped after a failure, or for a move, say nothing.
    failed = [(place, node) for place, node in latest if node.phase in _FAILED and not is_stop(node.message)]
    if any(not (rules or _no_policy)(place.task).judge(node.message).is_counted for place, node in failed):
        return ""
    first = min(failed, key=lambda one: (one[1].finished, one[0].task, one[0].index), default=None)
    if first is None:
        return ""
    place, node = first
    return f"{place.task}-{place.index} failed ({node.message[:_LONGEST_SHORT] or 'Error'})"


def _failed_at(pods: Sequence[tuple[NodeName, Node]], rules: Callable[[str], Rules] | None) -> float:
    """`Tree.failed_at` of the pods of the last round."""
    failed = [(place, node) for place, node in pods if node.phase in _FAILED and not is_stop(node.message)]
    restart = max((place.restart for place, _ in pods), default=0)
    times = (
        node.finished
        for place, node in failed
        if place.restart == restart and (rules or _no_policy)(place.task).judge(node.message).is_counted
    )
    return untrusted.seconds(max(times, default=""))


def _retried(pods: Sequence[tuple[NodeName, Node]]) -> tuple[float, ...]:
    """`Tree.retried` of the pods of the last round."""
    last: dict[tuple[int, str], int] = {}
    for place, _ in pods:
        if place.counted:
            key = place.restart, _member(place)
            last[key] = max(last.get(key, 0), place.counted)
    if not last:
        return ()
    ends: dict[tuple[int, str, int], tuple[int, str]] = {}
    for place, node in pods:
        if place.counted < last.get((place.restart, _member(place)), 0):
            attempt = place.restart, _member(place), place.counted
            ends[attempt] = max(ends.get(attempt, (0, "")), (place.uncounted, node.finished))
    return tuple(sorted(untrusted.seconds(time) for _, time in ends.values()))


def is_never_made(node: Node) -> bool:
    """Argo added a node for another attempt of a pod that it had stopped, without a pod: it is not counted."""
    place: NodeName | None = node.place
    return (
        place is not None
        and place.is_pod
        and "shutdown with strategy" in node.message
        and not node.host
        and place.is_repeated
    )
