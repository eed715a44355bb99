"""The rules of jobs about other pods and about their volumes, for a snapshot: whom they concern, and which pods of
others count.

Users write these rules and the labels that they select by. So what one namespace's rules cost is bounded: beyond
MOST_COMPARED comparisons in a picture, further rules of it are left to kube-scheduler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Final

from diflow.allocator.model.views import DomainRule, JobView, RoleView
from diflow.allocator.plan.holding import Standing
from diflow.allocator.watch.records import labels_of
from diflow.allocator.watch.volumes import ONE_NODE, ONE_POD, Volumes
from diflow.common import keys
from diflow.common.predicates import PodSelector, PodTerm, Spread, Toleration, Where
from diflow.record.pod import PodRecord

MOST_COMPARED: Final = 100_000
"""Comparisons of a pod or a task with a selector, for the rules of one namespace in one picture: 0.1 s."""

_ANY_TAINT: Final = (Toleration(operator="Exists"),)
_Role = tuple[str, str]
"""(name of the job's view, task)."""
_What = tuple[str, PodTerm | Spread, Where | None]
"""(kind, term, the nodes whose domains count)."""


@dataclass(frozen=True, slots=True)
class _Replicas:
    """A task of a job in the picture, as selectors see it."""

    role: _Role
    namespace: str
    labels: Mapping[str, str]


class _Seen:
    """What selectors can select: the tasks of the picture, and the pods that stay beside them."""

    def __init__(self, standings: Sequence[Standing], pods: Iterable[PodRecord]) -> None:
        self._tasks: dict[str, list[_Replicas]] = {}
        for standing in standings:
            read = standing.job.read
            types = {task.name: task.type for task in read.spec.tasks}
            for role in read.needs.roles:
                labels = {
                    **dict(role.rules.labels),
                    **labels_of(read.name, role.name, types.get(role.name, "none")),
                    keys.ARGO_WORKFLOW: read.identity.name,
                }
                one = _Replicas((standing.view.name, role.name), read.identity.namespace, labels)
                self._tasks.setdefault(read.identity.namespace, []).append(one)
        self._pods: dict[str, list[PodRecord]] = {}
        for pod in pods:
            self._pods.setdefault(pod.namespace, []).append(pod)
        self._by_label: dict[tuple[str, str], dict[str, tuple[list[_Replicas], list[PodRecord]]]] = {}
        self._left: dict[str, int] = {}
        self._known: dict[PodSelector, tuple[frozenset[_Role], Mapping[str, int]]] = {}

    def chosen(self, selector: PodSelector, payer: str) -> tuple[frozenset[_Role], Mapping[str, int]] | None:
        """(the tasks, the pods by node) that a selector selects; None if the namespace `payer` has asked too much."""
        if selector not in self._known:
            if self._left.get(payer, MOST_COMPARED) <= 0:
                return None
            tasks, pods = self._candidates(selector, payer)
            self._charge(payer, len(tasks) + len(pods))
            counts: dict[str, int] = {}
            for pod in pods:
                if selector.selects(pod.namespace, dict(pod.rules.labels)):
                    counts[pod.where] = counts.get(pod.where, 0) + 1
            roles = frozenset(one.role for one in tasks if selector.selects(one.namespace, one.labels))
            self._known[selector] = roles, counts
        return self._known[selector]

    def _candidates(self, selector: PodSelector, payer: str) -> tuple[list[_Replicas], list[PodRecord]]:
        """The tasks and pods among which those are that a selector selects: with the values of one label, if it names
        some."""
        spaces = selector.namespaces if selector.namespaces is not None else {*self._tasks, *self._pods}
        line = next((line for line in selector.lines if line.operator == "In"), None)
        tasks, pods = list[_Replicas](), list[PodRecord]()
        for space in spaces:
            all_tasks, all_pods = self._tasks.get(space, []), self._pods.get(space, [])
            if line is None:
                tasks, pods = tasks + all_tasks, pods + all_pods
                continue
            if (space, line.key) not in self._by_label:
                self._by_label[space, line.key] = _by_value(line.key, all_tasks, all_pods)
                self._charge(payer, len(all_tasks) + len(all_pods))
            for value in dict.fromkeys(line.values):
                some = self._by_label[space, line.key].get(value, ([], []))
                tasks, pods = tasks + some[0], pods + some[1]
        return tasks, pods

    def _charge(self, payer: str, comparisons: int) -> None:
        self._left[payer] = self._left.get(payer, MOST_COMPARED) - 1 - comparisons


def _by_value(
    key: str, tasks: Sequence[_Replicas], pods: Sequence[PodRecord]
) -> dict[str, tuple[list[_Replicas], list[PodRecord]]]:
    """The tasks and pods by the value of their label `key`."""
    out: dict[str, tuple[list[_Replicas], list[PodRecord]]] = {}
    for task in tasks:
        if key in task.labels:
            out.setdefault(task.labels[key], ([], []))[0].append(task)
    for pod in pods:
        value = next((value for name, value in pod.rules.labels if name == key), None)
        if value is not None:
            out.setdefault(value, ([], []))[1].append(pod)
    return out


def reaching(
    view: JobView,
    standing: Standing,
    volumes: Volumes,
    attached: Callable[[], Mapping[str, Set[tuple[str, str, str]]]],
) -> JobView:
    """The view in which each task is where the volumes of its claims can be reached and attached. `attached`: node →
    (driver, namespace, claim) of what is there."""
    claims = {role.name: role.rules.claims for role in standing.ruled if role.rules.claims}
    if not claims or not volumes.claims:
        return view
    space = standing.job.read.identity.namespace

    def of(role: RoleView) -> RoleView:
        names = claims.get(role.name, ())
        terms = tuple(filter(None, (volumes.source(space, one).terms for one in names)))
        full = volumes.full_for(space, names, attached()) if names and volumes.limits else frozenset[str]()
        return replace(role, where=replace(role.where.without(full), volumes=terms)) if terms or full else role

    return replace(view, roles=tuple(map(of, view.roles)))


def _of_claims(standings: Sequence[Standing], bound: Sequence[PodRecord], volumes: Volumes) -> list[DomainRule]:
    """The rules of claims that pods of one node alone can mount, or one pod."""
    users: dict[tuple[str, str], set[_Role]] = {}
    for standing in standings:
        space = standing.job.read.identity.namespace
        for role in standing.ruled:
            for claim in role.rules.claims:
                known = volumes.claims.get((space, claim))
                if known is not None and known.only:
                    users.setdefault((space, claim), set()).add((standing.view.name, role.name))
    if not users:
        return []
    there: dict[tuple[str, str], dict[str, int]] = {}
    for pod in bound:
        for claim in pod.rules.claims:
            if (pod.namespace, claim) in users:
                at = there.setdefault((pod.namespace, claim), {})
                at[pod.where] = at.get(pod.where, 0) + 1
    out = []
    for (space, claim), mine in users.items():
        roles, base = frozenset(mine), there.get((space, claim), {})
        if volumes.claims[space, claim].only == ONE_POD:
            text = f"its claim {claim} is {ONE_POD}: one pod can mount it"
            out.append(DomainRule("apart", "", text, roles, roles, base, base))
        else:
            text = f"its claim {claim} is {ONE_NODE}: only pods of one node can mount it"
            out.append(DomainRule("near", keys.HOSTNAME, text, roles, roles, base))
    return out


def rules_of(standings: Sequence[Standing], stay: Iterable[PodRecord], volumes: Volumes) -> list[DomainRule]:
    """The rules of these jobs, and of other pods about them. `stay`: the pods that are no replicas in their places, and
    do not leave."""
    asking = [
        (standing, role)
        for standing in standings
        for role in standing.ruled
        if role.rules.apart or role.rules.near or role.rules.spread
    ]
    bound = [pod for pod in stay if pod.where]
    avoiding = [pod for pod in bound if pod.rules.apart]
    out = _of_claims(standings, bound, volumes) if volumes.claims else []
    if not asking and not avoiding:
        return out
    seen = _Seen(standings, bound)
    owners: dict[_What, set[_Role]] = {}
    payers: dict[_What, str] = {}
    for standing, role in asking:
        me = standing.view.name, role.name
        for what in _parts(role.rules.apart, role.rules.near, role.rules.spread, role.where):
            owners.setdefault(what, set()).add(me)
            payers.setdefault(what, standing.job.read.identity.namespace)
    repels: dict[PodTerm, dict[str, int]] = {}
    for pod in avoiding:
        for term in pod.rules.apart:
            of_term = repels.setdefault(term, {})
            of_term[pod.where] = of_term.get(pod.where, 0) + 1
            payers.setdefault(("apart", term, None), pod.namespace)
            owners.setdefault(("apart", term, None), set())
    for what, mine in owners.items():
        found = seen.chosen(what[1].pods, payers[what])
        if found is not None:
            others = repels.get(what[1], {}) if isinstance(what[1], PodTerm) else {}
            out.append(_rule(what, frozenset(mine), *found, others))
    return out


def _parts(
    apart: Sequence[PodTerm], near: Sequence[PodTerm], spread: Sequence[Spread], where: Where
) -> Iterator[_What]:
    yield from (("apart", term, None) for term in apart)
    yield from (("near", term, None) for term in near)
    for one in spread:
        # The nodes whose domains count, whatever the pods prefer.
        counts = where if one.honours_affinity else Where(tolerations=where.tolerations)
        taints = where.tolerations if one.honours_taints else _ANY_TAINT
        yield "spread", one, replace(counts, tolerations=taints, preferred=(), volumes=())


def _rule(
    what: _What, owners: frozenset[_Role], counted: frozenset[_Role], base: Mapping[str, int], repels: Mapping[str, int]
) -> DomainRule:
    kind, term, where = what
    if isinstance(term, Spread):
        text = f"topologySpreadConstraints by {term.key}, maxSkew {term.most_skew}"
        made = DomainRule("spread", term.key, text, owners, counted, base, most=term.most_skew)
        return replace(made, least_domains=term.least_domains, where=where)
    if kind == "near":
        return DomainRule("near", term.key, f"podAffinity by {term.key}", owners, counted, base)
    return DomainRule("apart", term.key, f"podAntiAffinity by {term.key}", owners, counted, base, repels)
