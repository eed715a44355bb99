"""Asks the API server, by a dry run, what admission makes of the pods of a job: what it adds, and what it refuses.

Quotas, LimitRanges, pod security, priority and runtime classes, service accounts, policies and webhooks decide when a
pod is made. A dry run is decided by all of them, and makes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from diflow.common import keys, quantities
from diflow.common.errors import (
    ConflictError,
    DiflowError,
    InvalidError,
    NotFoundError,
    UnauthorizedError,
    UnavailableError,
)
from diflow.common.limits import MOST_CONDITIONS, MOST_PORTS
from diflow.common.predicates import PodRules, Toleration, Where
from diflow.dijob.conditions import host_ports, read_rules, read_where
from diflow.kube.kinds import POD
from diflow.workflows.argo_pod import pod_of, without_argo

if TYPE_CHECKING:
    from diflow.kube.api import Cluster

Json = dict[str, Any]

_REFUSED: Final = re.compile(r"is forbidden: |denied (?:the )?request")
_NO_RIGHT: Final = re.compile(r'User "[^"]*" cannot create resource "pods"|denied request: the allocator ')
"""Of RBAC, or of a policy of diflow's manifests about the allocator's own account."""
_UNANSWERED: Final = "failed calling webhook"
_WHOSE: Final = re.compile(r'^pods "[^"]*" is forbidden: ')
_LONGEST: Final = 600
_MOST_GATES: Final = 8
_USUAL: Final = tuple(
    Toleration(f"node.kubernetes.io/{key}", "Exists", "", "NoExecute") for key in ("not-ready", "unreachable")
)
"""The tolerations that Kubernetes adds to nearly all pods. They admit a pod to no node."""
_ADVICE: Final[tuple[tuple[str, str], ...]] = (
    (
        r"must specify",
        "state these resources in each container of the template, or have a LimitRange state them for the namespace",
    ),
    (r"exceeded quota|failed quota", "ask for less, end other pods of the namespace, or have its quota raised"),
    (
        r"violates PodSecurity",
        "set the fields that it names, or use a namespace whose pod-security level allows them",
    ),
    (r"PriorityClass", "create this PriorityClass, or leave priorityClassName out"),
    (r"service ?account", "create this service account, or name another one"),
    (r"RuntimeClass", "create this RuntimeClass, or leave runtimeClassName out"),
    (r"usage per (?:Container|Pod)", "ask for amounts that the LimitRange of the namespace allows"),
    (r"being terminated", "use another namespace"),
    (r"denied (?:the )?request", "change what it names, or ask who runs this policy or webhook"),
)


@dataclass(frozen=True, slots=True)
class Answer:
    """What admission makes of a pod.

    `more`: of each resource, how much more is requested than the pod said (in base units, which may be negative);
    `limits`: its limits. `where`, `rules`, `ports`: the pod's conditions on nodes, on other pods and its host ports,
    None if they are as the pod said. `gates`: scheduling gates that others have added. `refusal`: why there would be no
    such pod, in the words of the API server with what helps; "" if it is admitted.
    """

    more: Mapping[str, int] = field(default_factory=dict)
    limits: Mapping[str, int] = field(default_factory=dict)
    where: Where | None = None
    rules: PodRules | None = None
    ports: tuple[int, ...] | None = None
    gates: tuple[str, ...] = ()
    refusal: str = ""


UNKNOWN: Final = Answer()
"""Of a pod of which nothing is known: it is taken as its template has it."""


def ask(
    cluster: Cluster,
    workflow: Mapping[str, Any],
    task: str,
    *,
    memory: int = 0,
    executor: Mapping[str, Any] | None = None,
) -> Answer:
    """What admission makes of a pod of this task of a stored Workflow.

    `memory`: the MiB of its main container, of a task that may get more. `executor`: the resources of Argo's own
    containers; without them, what is added to these does not count.

    Raises UnauthorizedError without the right to create pods, UnavailableError if the API server or a webhook
    (`is_unanswered`) does not answer now.
    """
    try:
        pod = pod_of(workflow, task, memory=memory, executor=executor)
    except (ValueError, TypeError, AttributeError):  # of what was edited in the Workflow
        return UNKNOWN
    if pod is None:
        return UNKNOWN
    answer = _tried(cluster, pod)
    if isinstance(answer, DiflowError):
        # Argo's own containers are only guessed: what is refused because of them may be right in truth.
        pod = without_argo(pod)
        answer = _tried(cluster, pod)
    elif executor is None:
        pod, answer = without_argo(pod), without_argo(answer)
    if isinstance(answer, DiflowError):
        return Answer(refusal=refusal(answer.answer))
    return _difference(pod, answer)


def refusals(cluster: Cluster, workflow: Mapping[str, Any], tasks: Iterable[str], *, namespace: str) -> list[str]:
    """What the API server would refuse of the pods of a Workflow that is not made yet, each once. Nothing without the
    right to create pods, or if the API server does not answer."""
    body = {**workflow, "metadata": {**workflow["metadata"], "namespace": namespace}}
    found: dict[str, None] = {}
    for task in tasks:
        try:
            answer = ask(cluster, body, task)
        except DiflowError as error:
            if not is_unanswered(error):
                break
            answer = Answer(refusal=refusal(error.answer))
        if answer.refusal:
            found[answer.refusal] = None
    return list(found)


def is_unanswered(error: DiflowError) -> bool:
    """Whether a dry run failed because a webhook did not answer, without which there is no pod."""
    return _UNANSWERED in error.answer


def refusal(words: str) -> str:
    """Why there would be no such pod, with what helps."""
    advice = next((advice for pattern, advice in _ADVICE if re.search(pattern, words)), "")
    said = _WHOSE.sub("", words)[:_LONGEST]
    return f'the API server refuses its pods: "{said}"' + (f"; {advice}" if advice else "")


def _tried(cluster: Cluster, pod: Json) -> Json | DiflowError:
    """The pod as it would be made, or the error of an admission that refuses it."""
    try:
        return cluster.create(POD, pod, namespace=pod["metadata"]["namespace"], dry_run=True, strict=False)
    except ConflictError:  # there is one of this name, as every user can make: admission has taken this one
        return pod
    except DiflowError as error:
        if _NO_RIGHT.search(error.answer):
            raise UnauthorizedError(str(error)) from None
        if _REFUSED.search(error.answer):
            return error
        if isinstance(error, InvalidError | NotFoundError):  # not admission's: it is found when the pods are made
            return pod
        if isinstance(error, UnavailableError):
            raise
        return pod


def _difference(pod: Json, made: Json) -> Answer:
    """What the pod that would be made has beside the one that was asked for."""
    asked, given = quantities.of_pod(pod["spec"]), quantities.of_pod(made.get("spec") or {})
    more = {name: given.get(name, 0) - asked.get(name, 0) for name in {**asked, **given}}
    where, rules = _where(pod), _rules(pod)
    now_where, now_rules = _where(made), _rules(made)
    if now_where.size > max(MOST_CONDITIONS, where.size) or now_rules.size > max(MOST_CONDITIONS, rules.size):
        now_where, now_rules = where, rules
    ports, now_ports = _ports(pod), _ports(made)[:MOST_PORTS]
    own = {gate.get("name") for gate in pod["spec"].get("schedulingGates") or ()}
    gates = [gate.get("name") or "" for gate in (made.get("spec") or {}).get("schedulingGates") or ()]
    return Answer(
        more={name: amount for name, amount in more.items() if amount},
        limits=quantities.limits_of_pod(made.get("spec") or {}),
        where=now_where if now_where != where else None,
        rules=now_rules if now_rules != rules else None,
        ports=now_ports if set(now_ports) - set(ports) else None,
        gates=tuple(gate for gate in gates if gate and gate not in own and gate != keys.GATE)[:_MOST_GATES],
    )


def _where(pod: Mapping[str, Any]) -> Where:
    found = read_where(pod.get("spec") or {})
    kept = tuple(one for one in found.tolerations if one not in _USUAL)
    return Where(found.selector, found.affinity, kept, found.preferred)


def _rules(pod: Mapping[str, Any]) -> PodRules:
    metadata = pod.get("metadata") or {}
    return read_rules(pod.get("spec") or {}, namespace=str(metadata.get("namespace") or ""), labels={})


def _ports(pod: Mapping[str, Any]) -> tuple[int, ...]:
    spec = pod.get("spec") or {}
    return host_ports(spec, [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())])
