"""What a new job would change: compares the policy's plans with it and without it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from diflow.allocator.inspect import observer
from diflow.allocator.model.plan import Action, Plan
from diflow.allocator.plan.inputs import Picture
from diflow.allocator.reasons.reason_texts import Explainer
from diflow.common.errors import ConflictError
from diflow.common.words import STARTS, counted
from diflow.workflows import render

if TYPE_CHECKING:
    from diflow.allocator.inspect.observer import Seen
    from diflow.dijob.model import DIJob

Places = dict[str, dict[str, int]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The change for one job. Replicas: `holds` now, `without` the new job, and `after` its submission.

    `allocation`: task → node → replicas.
    """

    job: str
    what: str
    holds: int
    without: int
    after: int
    why: str
    allocation: Places


@dataclass(frozen=True, slots=True)
class Simulated:
    """The outcome of the new job, and of all others for which the plans differ."""

    policy: str
    job: Outcome
    others: tuple[Outcome, ...]

    def to_dict(self) -> dict[str, Any]:
        return {"policy": self.policy, "job": asdict(self.job), "others": [asdict(one) for one in self.others]}

    def text(self) -> str:
        """As text for people."""
        mine = self.job
        lines = [f"{mine.job} {mine.what}: {mine.why}"]
        for task, nodes in mine.allocation.items():
            where = ", ".join(f"{count} on {node}" for node, count in nodes.items())
            lines.append(f"  {task}: {where}")
        if not self.others:
            lines.append("no other job changes")
        for other in self.others:
            lines.append(f"{other.job} {other.what}: {other.why}")
        return "\n".join(lines)


def simulate_job(seen: Seen, job: DIJob, *, namespace: str, policy: str) -> Simulated:
    """Plan twice, without the job and with it. Raises the errors of `as_submitted`."""
    key, workflow = as_submitted(seen, job, namespace=namespace)
    before, earlier = observer.decide(seen, policy) if seen.picture.standings else (seen.picture, None)
    after, plan = observer.decide(observer.with_job(seen, workflow), policy)
    was = _replicas(before, earlier) if earlier is not None else {}
    now = _replicas(after, plan)
    held = {s.job.title: sum(len(places) for places in s.places.values()) for s in after.standings}
    explainer, excluded = Explainer(after.snapshot, plan), after.excluded

    def why(job: int) -> str:
        without = excluded.get(after.snapshot.job_names[job], frozenset[str]())
        return explainer.reason(job, excluded=without).removeprefix(STARTS)

    others = []
    for j, name in enumerate(after.snapshot.job_names):
        holds, without, will = held[name], was.get(name, 0), now[name]
        if name != key and without != will:
            what = _what(holds, without, will)
            others.append(Outcome(name, what, holds, without, will, why(j), _places(after, plan, j)))
    at = after.snapshot.job_names.index(key)
    action = Action(int(plan.action[at]))
    later = "" if plan.bind_now[at] else " once others have released their capacity"
    what = f"would start{later}" if action is Action.ADMIT else "would wait"
    mine = Outcome(key, what, 0, 0, now[key], why(at), _places(after, plan, at))
    return Simulated(plan.policy, mine, tuple(others))


def as_submitted(seen: Seen, job: DIJob, *, namespace: str) -> tuple[str, dict[str, Any]]:
    """(the key of a new job, its Workflow). Raises ConflictError if there is a job of that name, InvalidError for a job
    that cannot be rendered."""
    where = job.namespace or namespace
    key = f"{where}/{job.name}"
    if key in seen.state.jobs:
        raise ConflictError(f"there is a job {key} already: give this one another name with --name")
    workflow = render(job.model_copy(update={"namespace": where, "scheduling": "gang"}))
    return key, {**workflow, "metadata": {**workflow["metadata"], "namespace": where, "uid": "simulated"}}


def _what(holds: int, without: int, after: int) -> str:
    if not after:
        return f"would be preempted, {_all(holds)}" if holds else f"would wait, instead of starting with {without}"
    if after < holds:
        return f"would shrink from {holds} to {counted(after, 'replica')}"
    if not holds:
        return f"would start with {after} instead of {counted(without, 'replica')}"
    if after == holds:
        return f"would stay at {counted(holds, 'replica')}, instead of getting {without}"
    return f"would grow from {holds} to {after} instead of {counted(without, 'replica')}"


def _all(replicas: int) -> str:
    return "its replica" if replicas == 1 else f"all {replicas} replicas"


def _replicas(shown: Picture, plan: Plan) -> dict[str, int]:
    out = dict.fromkeys(shown.snapshot.job_names, 0)
    for role, count in zip(plan.role.tolist(), plan.count.tolist(), strict=True):
        out[shown.snapshot.job_names[int(shown.snapshot.role_job[role])]] += count
    return out


def _places(shown: Picture, plan: Plan, job: int) -> Places:
    out: Places = {}
    s = shown.snapshot
    for role, node, count in zip(plan.role.tolist(), plan.node.tolist(), plan.count.tolist(), strict=True):
        if int(s.role_job[role]) == job:
            out.setdefault(s.role_names[role], {})[s.node_names[node]] = count
    return out
