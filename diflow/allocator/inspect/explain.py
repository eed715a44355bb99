"""Explains why a job waits or has its number of replicas, for `diflow explain`."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from diflow.allocator.inspect import observer
from diflow.allocator.inspect.rows import PlanRow, job_rows
from diflow.allocator.model.plan import Action, Plan
from diflow.allocator.model.reasons import Crowded
from diflow.allocator.policies.base import load_policy
from diflow.allocator.policies.waiting import start_order
from diflow.allocator.reasons import reason_texts
from diflow.allocator.reasons.shortage import held_nodes
from diflow.common.durations import age
from diflow.common.errors import InvalidError
from diflow.common.words import DEFAULT_QUEUE, counted, named
from diflow.jobs import lookup
from diflow.jobs.checks.queues import no_effect
from diflow.record.stage import Stage

if TYPE_CHECKING:
    from diflow.allocator.inspect.lists import Lists
    from diflow.allocator.inspect.observer import Seen
    from diflow.allocator.plan.inputs import Picture
    from diflow.kube.api import Cluster
    from diflow.record.pod import PodRecord

_MOST_PODS: Final = 4
_WITHOUT_PLACES: Final = {
    Stage.WAITING: "waits for",
    Stage.SUSPENDED: "is suspended, and asks for",
    Stage.HELD: "is held, and asks for",
    Stage.STOPPING: "is being stopped, and asked for",
    Stage.DELETING: "is being deleted, and asked for",
}


def explanation(cluster: Cluster, name: str, *, policy: str, lists: Lists | None = None) -> Iterator[str]:
    """Lines of text. `lists`: those that were begun before.

    Raises NotFoundError for an unknown job, InvalidError for an unknown policy.
    """
    if policy:
        load_policy(policy)
    job = lookup.get(name, cluster=cluster)
    where = f"{job.namespace}/{job.name}"
    if job.status.ended:
        yield f"{where} has ended ({job.status.phase}): {job.status.message}"
        return
    if not job.record.terms.is_gang:
        yield f"{where} has scheduling: none: Argo alone runs it, and no allocator decides about it"
        yield f"  {job.status.phase}: {job.status.message}"
        return
    seen = observer.look(cluster, read=[job.workflow], lists=lists)
    row = next((row for row in job_rows(seen) if row.key == where), None)
    if row is None:
        goes_on = job.status.stage is Stage.SUPERSEDED
        yield f"{where} {job.status.message if goes_on else 'is not there any more'}"
        return
    yield headline(row)
    if row.state == "starting":
        if job.status.phase != "Running":  # what its pods wait for, such as an image that cannot be pulled
            yield f"{job.status.phase}: {job.status.message}"
        yield "its places are those in its Workflow; only the allocator can verify their signature"
    yield from _last_decision(seen, row)
    if text := job.record.notes.excluded.text(seen.now):
        yield f"nodes {text}"
    if trouble := _about_queue(seen, row):
        yield f"note: {trouble}"
    yield seen.allocator.text()
    if about := _about(row):
        yield about
    if row.stage not in (Stage.HELD, Stage.STOPPING, Stage.DELETING):
        yield from _now(seen, row, policy=policy)


def _now(seen: Seen, row: PlanRow, *, policy: str) -> Iterator[str]:
    if seen.limited is not None:
        yield seen.not_shown
    elif row.key in seen.picture.snapshot.job_names:
        yield from _decision_now(seen, row.key, policy=policy)
    elif row.stage is not Stage.SUSPENDED:
        yield f"nothing is planned for it now{f': {row.message}' if row.message else ', as its replicas have finished'}"


def _about(row: PlanRow) -> str:
    """The sentence of a job that neither is admitted nor waits."""
    if row.stage is Stage.HELD:
        return f"it is {row.message}; until that is corrected, it keeps what it has, and nothing is decided about it"
    if row.stage is Stage.SUSPENDED and row.granted:
        return f"it is suspended: Argo starts no more of its pods until `diflow resume {row.name} -n {row.namespace}`"
    if row.stage is Stage.SUSPENDED:
        return f"it is {row.message}"
    return f"it {row.message}" if row.stage in (Stage.STOPPING, Stage.DELETING) else ""


def _about_queue(seen: Seen, row: PlanRow) -> str:
    has_none = not seen.state.queues and row.queue != DEFAULT_QUEUE
    return seen.state.queue_trouble or (no_effect(row.queue) if has_none else "")


def _could_start(plan: Plan, job: int) -> bool:
    """It waits, for a reason that can end."""
    return int(plan.action[job]) == int(Action.WAIT) and plan.reasons[job].can_end


def headline(row: PlanRow) -> str:
    """One line: what a job has of what it asks for, and of which kind it is."""
    if not row.high:  # its request could not be read
        keeps = f", and keeps {counted(row.granted, 'replica')}" if row.granted else ""
        return f"{row.key} {_WITHOUT_PLACES[row.stage].partition(',')[0]}{keeps}"
    asked = counted(row.range_text, "replica")
    has = f"has {row.granted} of {asked}" if row.granted else f"{_WITHOUT_PLACES[row.stage]} {asked}"
    runs = f" ({row.ready} run)" if row.granted and row.ready != row.granted else ""
    kind = "preemptible" if row.is_preemptible else "not preemptible"
    return f"{row.key} {has}{runs}; priority {row.priority}, queue {row.queue}, {kind}"


def _last_decision(seen: Seen, row: PlanRow) -> Iterator[str]:
    said = seen.job(row.key).read.notes.decision
    if said:
        when = age(said.time, now=datetime.fromtimestamp(seen.now, UTC))
        words = reason_texts.sentence(said.action, said.why)
        yield f"decided {when} ago: {words}"
    else:
        yield "nothing was decided about it yet"
    if row.stage is Stage.WAITING and row.message != said.why:
        yield f"it {row.message}"


def _decision_now(seen: Seen, where: str, *, policy: str) -> Iterator[str]:
    """What the policy would decide now, with the numbers behind it."""
    try:
        shown, plan = observer.decide(seen, policy)
    except InvalidError as error:
        yield f"what would be decided now is not known: {error}"
        return
    if where not in shown.snapshot.job_names:
        yield f"it is held: {shown.left_out.get(seen.job(where).key, 'nothing is planned for it now')}"
        return
    at = shown.snapshot.job_names.index(where)
    excluded = shown.excluded.get(where, frozenset())
    words, *facts = reason_texts.details(shown.snapshot, plan, at, excluded=excluded)
    yield f"now, policy {plan.policy} would decide: {words}"
    for line in facts:
        yield f"  {line}"
    if isinstance(plan.reasons[at], Crowded) and (pods := _in_the_way(seen, shown, at)):
        yield f"  in its way: {named(pods, _MOST_PODS)}"
    if int(plan.action[at]) == int(Action.WAIT):
        order = [j for j in start_order(shown.snapshot).tolist() if j == at or _could_start(plan, j)]
        ahead = [shown.snapshot.job_names[j] for j in order[: order.index(at)]]
        if ahead:
            wait = counted(len(ahead), "job waits", plural="jobs wait")
            yield f"  {wait} before it: {named(ahead, 3)}"
        else:
            yield "  it is the first that waits"


def _in_the_way(seen: Seen, shown: Picture, job: int) -> list[str]:
    """The pods that keep a job from nodes that would hold it, the largest first: those of others, and of jobs that are
    not planned any more."""
    s, planned = shown.snapshot, {standing.job.key for standing in shown.standings}
    found: dict[str, float] = {}
    for role in s.facts.roles_of[job]:
        nodes = {s.node_names[node] for node in held_nodes(s, role)}
        asked = [s.resources[r] for r in s.role_request[role].nonzero()[0].tolist()]
        for pod in seen.state.pods:
            if pod.where in nodes and not pod.is_terminating and pod.job not in planned:
                there = seen.state.nodes[pod.where].allocatable
                size = max((pod.request.get(name, 0) / max(1, there.get(name, 0)) for name in asked), default=0.0)
                found[_whose(seen, pod)] = max(size, found.get(_whose(seen, pod), 0.0))
    return sorted(found, key=lambda text: (-found[text], text))


def _whose(seen: Seen, pod: PodRecord) -> str:
    name = f"{pod.namespace}/{pod.name} on {pod.where}"
    job = seen.state.jobs.get(pod.job)
    if not pod.job:
        return name
    if job is None:
        return f"{name} (of {pod.job}, which has ended or is not the allocator's)"
    return f"{name} (of {pod.job}, which {'is being stopped' if job.read.is_stopping else 'is held'})"
