"""A plan as text for people, as `diflow allocator once`, `diflow plan` and the cron's output show it."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

from diflow.allocator.model.plan import Action, Plan
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.reasons.reason_texts import Explainer
from diflow.common.words import counted

_DONE = {
    Action.ADMIT: "starts",
    Action.RESIZE: "changes",
    Action.PREEMPT: "gives way",
    Action.WAIT: "waits",
    Action.KEEP: "stays as it is",
}


def counts(plan: Plan) -> dict[Action, int]:
    """The number of jobs by action."""
    return {action: int((plan.action == int(action)).sum()) for action in _DONE}


def summary(snapshot: Snapshot, plan: Plan) -> str:
    """One line on the whole plan."""
    found = counts(plan)
    parts = [f"{number} {_plural(_DONE[action], number)}" for action, number in found.items() if number]
    return (
        f"policy {plan.policy}: {counted(snapshot.jobs, 'job')} on {counted(snapshot.nodes, 'node')}"
        f"{': ' if parts else ''}{', '.join(parts)}"
    )


def plan_text(snapshot: Snapshot, plan: Plan, *, excluded: Mapping[str, Set[str]], trouble: str = "") -> str:
    """A line for each job, those that change first, and a summary. `excluded`: by job, the nodes that are left out for
    it."""
    order = sorted(range(snapshot.jobs), key=lambda j: (_rank(Action(int(plan.action[j]))), j))
    lines = [summary(snapshot, plan)]
    if trouble:
        lines.append(f"nothing is changed: {trouble}")
    explainer = Explainer(snapshot, plan)
    lines += [explainer.text(j, excluded=excluded.get(snapshot.job_names[j], frozenset())) for j in order]
    return "\n".join(lines) + "\n"


def as_data(snapshot: Snapshot, plan: Plan, *, excluded: Mapping[str, Set[str]]) -> dict[str, Any]:
    """The plan as plain data: for each job its action, the reason, and its replicas by task and node."""
    explainer = Explainer(snapshot, plan)
    jobs: dict[str, Any] = {
        name: {
            "action": Action(int(plan.action[j])).name.lower(),
            "why": explainer.text(j, excluded=excluded.get(name, frozenset())).partition(": ")[2],
            "allocation": {},
        }
        for j, name in enumerate(snapshot.job_names)
    }
    for role, node, count in zip(plan.role.tolist(), plan.node.tolist(), plan.count.tolist(), strict=True):
        places = jobs[snapshot.job_names[int(snapshot.role_job[role])]]["allocation"]
        places.setdefault(snapshot.role_names[role], {})[snapshot.node_names[node]] = count
    return {"policy": plan.policy, "summary": summary(snapshot, plan), "jobs": jobs}


def _rank(action: Action) -> int:
    return list(_DONE).index(action)


def _plural(word: str, number: int) -> str:
    if number == 1:
        return word
    return {"gives way": "give way", "stays as it is": "stay as they are"}.get(word, word.removesuffix("s"))
