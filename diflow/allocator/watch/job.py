"""A job as the allocator sees it: its Workflow, its pods, and the Workflows before and after it."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Final

from diflow.common.predicates import Toleration
from diflow.record.job import JobRecord, Role
from diflow.record.pod import PodRecord, shared

_NOTHING: Final[Mapping[str, int]] = MappingProxyType({})
_ADDED: Final = {"cpu": 2000, "memory": 2048, "ephemeral-storage": 10 * 1024, "pods": 1}
"""What Argo's containers, sidecars of admission webhooks and overheads may add to what a task asks for: more than that
is no part of a promise."""
_START_SECONDS: Final = 120.0
"""Pods that were made so much later than their gang got its places are no part of its start: they were added, or made
again."""
_HELD_SECONDS: Final = 600.0
"""How long the places of a job that cannot be read are kept for its pods, from the time when it got them."""


@dataclass(frozen=True)
class Job:
    """A job's Workflow and its live pods.

    `before` and `after` are the previous and the next Workflow of the job, if they exist; `old_pods` are the live pods
    of the previous ones. A full Workflow is too large for another round, which begins in the next Workflow. `known_as`:
    the key of the job, if it is not this Workflow's. `submitted_seconds`: when the first existing Workflow of the job
    was created, None if it is this one.
    """

    read: JobRecord
    pods: Sequence[PodRecord]
    before: JobRecord | None = None
    after: JobRecord | None = None
    old_pods: Sequence[PodRecord] = ()
    is_full: bool = False
    known_as: str = ""
    submitted_seconds: float | None = None

    @property
    def created_seconds(self) -> float:
        """When the job was submitted: the creation of its first Workflow that still exists."""
        return self.read.argo.created_seconds if self.submitted_seconds is None else self.submitted_seconds

    @property
    def key(self) -> str:
        return self.read.key

    @property
    def title(self) -> str:
        """The job's "namespace/name", whichever Workflow it is in."""
        return self.known_as or self.read.key

    @property
    def order(self) -> tuple[int, float, str]:
        """Sort key of admissions: higher priorities first, then older jobs."""
        return -self.read.terms.priority_number, self.created_seconds, self.key

    @property
    def is_superseded(self) -> bool:
        """The job continues in another Workflow, or that is decided."""
        return bool(self.read.chain.continued_in) or self.after is not None

    @property
    def is_over(self) -> bool:
        """It has ended or is ending, continues in another Workflow, or has a Workflow that cannot be read."""
        read = self.read
        return read.has_ended or read.is_stopping or bool(read.problem) or self.is_superseded

    @property
    def may_begin(self) -> bool:
        """The previous Workflow, if there is one, names this one as its successor."""
        return self.before is None or self.before.chain.continued_in == self.read.identity.name

    def is_made_of(self, other: Job) -> bool:
        """Whether it consists of the same objects as `other`: comparing by identity is cheaper than by value."""
        return (
            self.read is other.read
            and self.before is other.before
            and self.after is other.after
            and (self.is_full, self.known_as, self.submitted_seconds)
            == (other.is_full, other.known_as, other.submitted_seconds)
            and _are_the_same(self.pods, other.pods)
            and _are_the_same(self.old_pods, other.old_pods)
        )

    def is_wanted(self, pod: PodRecord) -> bool:
        """Whether the pod is of the current round, not released, and not forgotten."""
        job = self.read
        return (
            pod.place is not None
            and pod.place.round == job.live.current
            and pod.member not in job.live.released
            and pod.identity.uid not in self.forgotten
        )

    @cached_property
    def forgotten(self) -> Set[str]:
        """The uids of the pods of the current round that Argo has made and then forgotten.

        Argo makes a pod before it records its node. If that node is removed, as by a repair, or never recorded, Argo
        goes on with an earlier attempt and looks at the pod no more. A pod is forgotten if its attempt is later than
        all that are recorded of its replica, and the one before it is not recorded or has a live pod: Argo makes the
        next attempt of a pod that has ended.
        """
        tree, current = self.read.argo.tree, self.read.live.current
        if tree.is_offloaded:
            return frozenset()
        later: list[tuple[PodRecord, tuple[str, tuple[int, int, int, int]]]] = []
        for pod in self.pods:
            place = pod.place
            if place is None or place.round != current or not place.is_repeated:
                continue
            of_round = (tree.restart_of.get(current, 0), place.incarnation, 0, 0)
            recorded = max(tree.newest.get(pod.member, of_round), of_round)
            if place.order > recorded:
                later.append((pod, (pod.member, recorded)))
        if not later:
            return frozenset()
        live = {(pod.member, pod.place.order) for pod in self.pods if pod.place and not pod.is_terminating}
        return frozenset(pod.identity.uid for pod, before in later if before in live or not self._is_next(pod))

    def _is_next(self, pod: PodRecord) -> bool:
        """Whether Argo has recorded an earlier attempt of the pod's replica, or of its round."""
        place, tree = pod.place, self.read.argo.tree
        if place is None:
            return False
        return pod.member in tree.members if place.counted or place.uncounted else place.round in tree.restart_of

    def members(self) -> Iterator[tuple[str, int, str]]:
        """(task, index, member) of each replica that should run now."""
        for role in self.read.needs.roles:
            for index in range(self.read.live.running(role.name)):
                yield role.name, index, self.read.live.key(role.name, index)

    def has_started(self) -> bool:
        """Whether a replica of the current round, in its latest restart, was admitted or has finished."""
        tree, latest = self.read.argo.tree, self.latest_restart
        if self.read.argo.places_until and not latest:
            return True  # its pods are created without gates
        if any(not pod.is_gated for pod in self.latest_pods):
            return True
        return latest <= tree.restart_of.get(self.read.live.current, 0) and any(
            tree.is_done(member) for _, _, member in self.members()
        )

    @cached_property
    def current_pods(self) -> Sequence[PodRecord]:
        """The pods of the current round, at most one for each granted replica: others are strays."""
        found = [pod for pod in self.pods if self.is_wanted(pod) and self._is_granted(pod)]
        latest: dict[str, PodRecord] = {}
        for pod in found:
            other = latest.setdefault(pod.member, pod)
            if other.place and pod.place and pod.place.order > other.place.order:
                latest[pod.member] = pod
        return found if len(latest) == len(found) else list(latest.values())

    @cached_property
    def latest_pods(self) -> Sequence[PodRecord]:
        """Those of them that are of the latest restart of the round."""
        return [pod for pod in self.current_pods if pod.restart == self.latest_restart]

    @cached_property
    def where(self) -> Mapping[tuple[str, int], str]:
        """(task, index) → the node whose capacity the pod of this replica uses; without pods that have none yet."""
        return {pod.replica: where for pod in self.current_pods if (where := self.where_is(pod))}

    def tolerations(self, task: str, index: int) -> tuple[Toleration, ...]:
        """Those of the pod of a replica, or of another one of its task, with what admission has added; else those of
        the template."""
        known = self._tolerations
        found = known.get((task, index))
        return known.get((task, -1), ()) if found is None else found

    @cached_property
    def _tolerations(self) -> Mapping[tuple[str, int], tuple[Toleration, ...]]:
        """Those of the pod of each (task, index), and at the index -1 of any other one."""
        out = {(role.name, -1): role.where.tolerations for role in self.read.needs.roles}
        for pod in self.current_pods:
            out[pod.replica] = out[pod.task, -1] = pod.tolerations
        return out

    def where_is(self, pod: PodRecord) -> str:
        """The node whose capacity a current pod uses, "" if there is none: where it is bound or sent, or else, if
        kube-scheduler chooses its node, the one that is expected."""
        at = self.read.current_allocation
        return pod.where or (at.node(*pod.replica) if at is not None and at.unpinned and not pod.gates else "")

    @cached_property
    def strays(self) -> frozenset[str]:
        """The uids of pods labelled as replicas that are not granted or have another pod: every user who may create
        pods can make them. They give the job no claim to a place, and the allocator does not end them."""
        return frozenset(pod.identity.uid for pod in self.pods if self.is_wanted(pod)) - self._own

    @cached_property
    def _own(self) -> frozenset[str]:
        """The uids of `current_pods`."""
        return frozenset(pod.identity.uid for pod in self.current_pods)

    def _is_granted(self, pod: PodRecord) -> bool:
        read, place = self.read, pod.place
        if place is None:
            return False
        newest = read.live.member(read.live.current, place.task, place.index)
        return place.index < read.live.counts.get(place.task, 0) and place.member == newest

    def promised(self, role: Role) -> Mapping[str, int]:
        """What was promised to each replica of a task: what it asked for when it got its place, which its user cannot
        change; else what it asks for."""
        at = self.read.current_allocation
        return role.request if at is None else at.requests.get(role.name, role.request)

    def counted_request(self, pod: PodRecord) -> Mapping[str, int]:
        """What a replica's pod counts with: its request, once it is bound. Until then, no more than was promised to it
        and what may be added to that: a pod of a thousand processors can be written, and is bound to no node."""
        if pod.host:
            return pod.request
        role = next((role for role in self.read.needs.roles if role.name == pod.task), None)
        if role is None:
            return _NOTHING
        asked = self.promised(role)
        most = {name: asked.get(name, 0) + _ADDED.get(name, 0) for name in pod.request}
        if all(value <= most[name] for name, value in pod.request.items()):
            return pod.request
        return shared({name: min(value, most[name]) for name, value in pod.request.items()})

    @property
    def promised_until(self) -> float:
        """Until when places count that its pods do not use yet, in seconds since 1970: without end while the allocator
        can take them back, which it cannot of a job that cannot be read."""
        at = self.read.current_allocation
        return math.inf if at is None or not self.read.problem else at.since + _HELD_SECONDS

    def has_sent(self, pod: PodRecord, now: float) -> bool:
        """Whether this pod is the one of its replica, and asks for the node that the allocator has given to that."""
        at = self.read.current_allocation
        return (
            at is not None
            and now < self.promised_until
            and not (self.read.has_ended or self.read.is_stopping or self.is_superseded)
            and at.node(*pod.replica) == (pod.pinned or self.where_is(pod)) != ""
            and pod.identity.uid in self._own
        )

    def lacks(self) -> list[str]:
        """The replicas of the current round ("worker-3") that have not finished and have no live pod."""
        there, finished = {pod.member for pod in self.current_pods}, self.read.argo.tree.finished
        return [
            f"{task}-{index}" for task, index, member in self.members() if member not in there and not finished(member)
        ]

    @cached_property
    def first_pods(self) -> Sequence[PodRecord]:
        """The first pods of its members, of those that were there when the gang started."""
        at = self.read.placed
        if at is None:
            return ()
        ends = (at.since if self.read.terms.is_preemptible else at.first) + _START_SECONDS
        pods = self.current_pods
        return [pod for pod in pods if pod.place is not None and not pod.place.is_repeated and pod.created < ends]

    @cached_property
    def not_begun(self) -> Sequence[PodRecord]:
        """Those of them that have a node and have not begun: their peers wait for them."""
        return [pod for pod in self.first_pods if pod.pending_since and not (pod.began or pod.is_ending)]

    @cached_property
    def waits_for_peers(self) -> Set[tuple[str, int]]:
        """The replicas (task, index) that have failed while a member of their gang has not begun: they start again when
        it has."""
        if not self.not_begun:
            return frozenset()
        failed = set(self.read.argo.tree.failed(self.read.live.current))
        again = {
            pod.member for pod in self.current_pods if pod.is_gated and pod.place is not None and pod.place.counted
        }
        return frozenset((task, index) for task, index, member in self.members() if member in failed | again)

    @property
    def is_incomplete(self) -> bool:
        """It was admitted, and some of its first pods do not exist: those that do wait for them."""
        read = self.read
        is_first = not (read.restarts or read.argo.tree.restarts or read.argo.tree.recreated)
        return bool(read.argo.places_until and is_first and self.lacks())

    @cached_property
    def latest_restart(self) -> int:
        seen = [pod.restart for pod in self.current_pods]
        return max([*seen, self.read.argo.tree.restart_of.get(self.read.live.current, 0)])

    def leaving(self) -> list[PodRecord]:
        """Live pods that should end."""
        return [pod for pod in self.pods if not self.is_wanted(pod)]


def _are_the_same(some: Sequence[PodRecord], others: Sequence[PodRecord]) -> bool:
    return len(some) == len(others) and all(map(operator.is_, some, others))
