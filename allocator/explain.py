"""Reasons in words: what a plan decides about a job, in the policy's own terms. Nothing is decided here."""

from __future__ import annotations

from diflow.allocator.plan import Action, Plan, Why
from diflow.allocator.snapshot import Snapshot

_TEXT: dict[Why, str] = {
    Why.KEPT: "keeps what it holds: no change is worth its cost",
    Why.KEPT_NOT_PREEMPTIBLE: "keeps what it holds: it is not preemptible, so it is never moved",
    Why.FITS: "starts: it gets {0:g} of the {1:g} replicas it asks for",
    Why.NO_ROOM: "waits for room: its gang needs {0:g} replicas at once and {1:g} fit now",
    Why.TOO_BIG: (
        "can never start here: its gang needs {0:g} replicas and the whole cluster takes {1:g}; "
        "ask for fewer, for less each, or add nodes"
    ),
    Why.NO_NODES: "waits: there is no node that is ready and schedulable",
    Why.NO_SUCH_QUEUE: "waits: its queue {queue!r} does not exist; create it, or name another one in spec.queue",
    Why.QUEUE_CAP: "waits: queue {subject} is capped and has room for {1:g} more replicas, the gang needs {0:g}",
    Why.QUEUE_SHARE: "waits: queue {subject} holds what it deserves; {0:g} replicas more would be above its share",
    Why.RESERVED: "waits: the room is kept for {subject}, waiting longest; {1:g} of {0:g} replicas would fit beside",
    Why.PREEMPTED_FOR_PRIORITY: "gives way to {subject}, which has a higher priority; {0:g} replicas are left to it",
    Why.RECLAIMED: "its queue is above what it deserves: replicas go to {subject}; {0:g} are left to it",
    Why.GAIN: "speed {1:.2f} → {0:.2f} times its smallest configuration, at weight {2:.3g}: the best use of the room",
    Why.SHRUNK_FOR_OTHERS: "speed {1:.2f} → {0:.2f} times its smallest configuration: its room is worth more elsewhere",
    Why.GROWN: "grows to {0:g} replicas: there is room for what its user asked for",
    Why.POLICY_FAILED: "waits: the policy gave no usable plan, so nothing is changed",
    Why.PLACED_AGAIN: "is placed again with {0:g} replicas, {1:g} before: pods are lost, or its limits changed",
    Why.NO_ROOM_ELSEWHERE: "keeps what it holds: placed anew it needs {0:g} replicas on open nodes, and {1:g} fit",
    Why.TOO_SOON: "keeps {0:g} replicas: {1:g} more would fit, but it was changed {2:.0f} s ago",
    Why.GAIN_TOO_SMALL: "keeps {0:g} replicas: {1:g} more would fit, too few to be worth a restart of all",
    Why.EXPLORES: "starts small: it has reported nothing yet, so nothing is known of how it scales",
}


_FOR_ANOTHER: dict[Why, str] = {
    Why.SHRUNK_FOR_OTHERS: "has {0:g} replicas instead of {1:g}: {subject} needs room that it held above its minimum",
}
"""Texts where the reason names a job."""


def text(snapshot: Snapshot, plan: Plan, job: int) -> str:
    """One line on one job: what happens to it, and why."""
    why = Why(int(plan.why[job]))
    action = Action(int(plan.action[job]))
    words = (_FOR_ANOTHER if plan.subject[job] >= 0 and why in _FOR_ANOTHER else _TEXT)[why].format(
        *(float(v) for v in plan.values[job]), subject=_subject(snapshot, plan, job), queue=snapshot.job_queue_name[job]
    )
    later = ""
    if action in (Action.ADMIT, Action.RESIZE) and not plan.bind_now[job]:
        later = " (once what it replaces has terminated)"
    return f"{snapshot.job_names[job]}: {action.name.lower()}{later}: {words}"


def lines(snapshot: Snapshot, plan: Plan) -> list[str]:
    """A line for every job, in the order of their names."""
    return [text(snapshot, plan, j) for j in range(snapshot.jobs)]


_NAMES_A_JOB = frozenset({Why.RESERVED, Why.PREEMPTED_FOR_PRIORITY, Why.RECLAIMED, Why.SHRUNK_FOR_OTHERS})
"""Reasons whose subject is a job; that of the others is a queue."""


def _subject(snapshot: Snapshot, plan: Plan, job: int) -> str:
    index, names_a_job = int(plan.subject[job]), Why(int(plan.why[job])) in _NAMES_A_JOB
    if index < 0:
        return "another job" if names_a_job else "it is in"
    return repr((snapshot.job_names if names_a_job else snapshot.queue_names)[index])
