"""What would happen if a job came: the policy's plan with it, beside its plan without it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from diflow.allocator import explain, looking
from diflow.allocator.plan import Action, Plan
from diflow.allocator.planning import Picture
from diflow.errors import ConflictError
from diflow.workflows import render

if TYPE_CHECKING:
    from diflow.allocator.looking import Seen
    from diflow.job import DIJob

Places = dict[str, dict[str, int]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What becomes of one job. `places`: task → node → replicas; `before` and `after` count replicas."""

    job: str
    what: str
    before: int
    after: int
    why: str
    places: Places

    def to_dict(self) -> dict[str, Any]:
        return {
            "job": self.job,
            "what": self.what,
            "before": self.before,
            "after": self.after,
            "why": self.why,
            "allocation": self.places,
        }


@dataclass(frozen=True, slots=True)
class Simulated:
    """The newcomer's own fate, and that of all others for which it makes a difference."""

    policy: str
    job: Outcome
    others: tuple[Outcome, ...]

    def to_dict(self) -> dict[str, Any]:
        return {"policy": self.policy, "job": self.job.to_dict(), "others": [o.to_dict() for o in self.others]}

    def text(self) -> str:
        """The same for people."""
        mine = self.job
        lines = [f"{mine.job} {mine.what}: {mine.why}"]
        for task, nodes in mine.places.items():
            where = ", ".join(f"{count} on {node}" for node, count in nodes.items())
            lines.append(f"  {task}: {where}")
        if not self.others:
            lines.append("no other job would notice")
        for other in self.others:
            lines.append(f"{other.job} {other.what}: {other.before} → {other.after} replicas; {other.why}")
        return "\n".join(lines)


def simulate_job(seen: Seen, job: DIJob, *, namespace: str, policy: str) -> Simulated:
    """Ask the policy twice, without the job and with it.

    Raises ConflictError if there is a job of that name, InvalidError for a job that cannot be rendered.
    """
    where = job.namespace or namespace
    key = f"{where}/{job.name}"
    if key in seen.world.jobs:
        raise ConflictError(f"there is a job {key} already: give this one another name with --name")
    workflow = render(job.model_copy(update={"namespace": where, "scheduling": "gang"}))
    workflow["metadata"] = {**workflow["metadata"], "namespace": where, "uid": "simulated"}
    before, without = looking.decide(seen, policy) if seen.picture.standings else (seen.picture, None)
    after, with_it = looking.decide(looking.with_job(seen, workflow), policy)
    was = _replicas(before, without) if without is not None else {}
    now = _replicas(after, with_it)
    held = _held(after)
    others = []
    for j, name in enumerate(after.snapshot.job_names):
        if name != key and was.get(name) != now[name]:
            others.append(
                Outcome(name, _what(was.get(name, 0), now[name], held[name]), was.get(name, 0), now[name],
                        _why(after, with_it, j), _places(after, with_it, j))
            )  # fmt: skip
    at = after.snapshot.job_names.index(key)
    action = Action(int(with_it.action[at]))
    later = "" if with_it.bind_now[at] else " once others have made room"
    what = f"would start{later}" if action is Action.ADMIT else "would wait"
    mine = Outcome(key, what, 0, now[key], _why(after, with_it, at), _places(after, with_it, at))
    return Simulated(with_it.policy, mine, tuple(others))


def _what(was: int, now: int, held: int) -> str:
    if now == 0:
        return "would be preempted" if held else "would wait longer"
    if was == 0:
        return "would start"
    return "would shrink" if now < was else "would grow"


def _why(shown: Picture, plan: Plan, job: int) -> str:
    return explain.text(shown.snapshot, plan, job).partition(": ")[2].partition(": ")[2]


def _replicas(shown: Picture, plan: Plan) -> dict[str, int]:
    out = dict.fromkeys(shown.snapshot.job_names, 0)
    for role, count in zip(plan.role.tolist(), plan.count.tolist(), strict=True):
        out[shown.snapshot.job_names[int(shown.snapshot.role_job[role])]] += count
    return out


def _held(shown: Picture) -> dict[str, int]:
    return {s.job.key: sum(len(places) for places in s.held.values()) for s in shown.standings}


def _places(shown: Picture, plan: Plan, job: int) -> Places:
    out: Places = {}
    s = shown.snapshot
    for role, node, count in zip(plan.role.tolist(), plan.node.tolist(), plan.count.tolist(), strict=True):
        if int(s.role_job[role]) == job:
            out.setdefault(s.role_names[role], {})[s.node_names[node]] = count
    return out
