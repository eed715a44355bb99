"""The text of each reason: what a plan decides about a job, and why."""

from __future__ import annotations

from collections.abc import Set

import numpy as np

from diflow.allocator.model.arrays import BoolArray, IntArray
from diflow.allocator.model.ledger import ancestors
from diflow.allocator.model.packing import ANY_NUMBER
from diflow.allocator.model.plan import NAMES_A_JOB, Action, Plan, Why
from diflow.allocator.model.snapshot import UNLIMITED, Snapshot
from diflow.allocator.model.views import PODS
from diflow.allocator.reasons.shortage import NODES_NAMED, Leftover, amount, amount_of, amounts, request
from diflow.common import keys
from diflow.common.words import counted, numbers, quantity

_TEXT: dict[Why, str] = {
    Why.KEPT: "keeps what it holds: no change is worth its cost",
    Why.KEPT_NOT_PREEMPTIBLE: "keeps what it holds: it is not preemptible, so it is never moved",
    Why.FITS: keys.STARTS + "it gets {0:g} of the {1:replica|} it asks for",
    Why.DOES_NOT_FIT: "waits for capacity: its gang needs {0:replica|} at once and {1:fits|fit} now",
    Why.TOO_BIG: (
        "can never start here: its gang needs {0:replica|} and the whole cluster takes {1:g}; "
        "ask for fewer, for less each, or add nodes"
    ),
    Why.NO_NODES: "waits: there is no node that is ready and schedulable",
    Why.NO_SUCH_QUEUE: "waits: its queue {queue!r} does not exist; create it, or name another one in spec.queue",
    Why.ITS_TURN: (
        "waits for capacity: its turn has come, and capacity is reserved for it for {2:.0f} s more; {1:fits|fit} there "
        "now of the {0:replica|} that its gang needs"
    ),
    Why.QUEUE_CAP: "waits: queue {subject} is capped at {cap} and has {left} of that left; the gang needs {amount0}",
    Why.QUEUE_SHARE: "waits: queue {subject} holds {share} that it deserves, and the gang needs {need} more",
    Why.OWN_SHARE: (
        "waits: the own jobs of queue {subject} hold {share} that they deserve beside the queues below it, and the "
        "gang needs {need} more"
    ),
    Why.NO_SURPLUS: (
        "waits for capacity: its gang lacks {amount0}, and jobs of other queues that may be stopped hold {amount1} "
        "above what those deserve"
    ),
    Why.GUARANTEED_ELSEWHERE: (
        "waits for capacity: queue {subject} is guaranteed what it asks for, but its gang lacks {amount0}, and jobs of "
        "other queues that may be stopped hold {amount1} above what those are guaranteed"
    ),
    Why.RESERVED: "waits: its {0:replica|} would fit, but capacity is reserved for {subject}, whose turn it is",
    Why.PREEMPTED_FOR_PRIORITY: (
        "gives way to {subject}, which has a higher priority; {0:replica is|replicas are} left to it"
    ),
    Why.RECLAIMED: (
        "gives way to {subject}, whose queue held less of what it deserves; {0:replica is|replicas are} left to it"
    ),
    Why.RECLAIMED_BY_GUARANTEE: (
        "gives way to {subject}, whose queue is guaranteed what it asks for; {0:replica is|replicas are} left to it"
    ),
    Why.SHARED_IN_QUEUE: (
        "shares what it held above its minimum with {subject}, which starts in the same queue; "
        "{0:replica is|replicas are} left to it"
    ),
    Why.GAVE_BACK_RESERVATION: (
        "gives back capacity that was reserved for {subject}, which can start with it; "
        "{0:replica is|replicas are} left to it"
    ),
    Why.QUEUE_GUARANTEE: "starts: its queue is guaranteed {0:replica|} more",
    Why.GAIN: (
        "speed {1:.2f} → {0:.2f} times its smallest configuration, at weight {2:.3g}: the best use of the capacity"
    ),
    Why.SHRUNK_FOR_OTHERS: (
        "speed {1:.2f} → {0:.2f} times its smallest configuration: its capacity is worth more elsewhere"
    ),
    Why.GROWN: "grows to {0:replica|}: what its user asked for fits now",
    Why.POLICY_FAILED: "waits: the policy gave no usable plan, so nothing is changed",
    Why.PLACED_AGAIN: "is placed again with {0:replica|}, {1:g} before",
    Why.DOES_NOT_FIT_ELSEWHERE: (
        "keeps what it holds: placed again it needs {0:replica|} on open nodes, and {1:fits|fit}"
    ),
    Why.TOO_SOON: "keeps {0:replica|}: {1:g} more would fit, but it was changed {2:.0f} s ago",
    Why.GAIN_TOO_SMALL: "keeps {0:replica|}: {1:g} more would fit, too few to be worth a restart of all",
    Why.EXPLORES: "starts small: it has reported nothing yet, so nothing is known of how it scales",
}


_FOR_ANOTHER: dict[Why, str] = {
    Why.SHRUNK_FOR_OTHERS: "has {0:replica|} instead of {1:g}: {subject} needs capacity that it held above its minimum",
}
"""Texts for a reason that names a job."""

_OF_A_RESOURCE = frozenset({Why.QUEUE_CAP, Why.QUEUE_SHARE, Why.OWN_SHARE, Why.NO_SURPLUS, Why.GUARANTEED_ELSEWHERE})
"""Reasons whose third value is a resource and whose other values are amounts of it."""
_TOGETHER = "waits for capacity: each of its roles fits by itself, and not its {} replicas ({}) together"
_TOO_BIG = (
    "can never start here: its gang needs {0}, and the whole cluster takes {1:g} of them; ask for fewer, for less "
    "each, or add nodes"
)
_TOO_BIG_FOR_ONE = (
    "can never start here: its gang needs {0:replica|} in one {level} and the largest takes {1:g}; ask for fewer, for "
    "less each, for a wider level, or add nodes"
)
_NO_DOMAIN = "can never start here: its gang has to be in one {level}, and no node has the label of that level"
_WOULD_HELP = {
    Why.QUEUE_SHARE: "when other jobs of that queue end, when its weight or guarantee is raised, or in another queue",
    Why.OWN_SHARE: "when other jobs of that queue itself end, or in a queue below it",
    Why.NO_SURPLUS: "when other queues hold more than they deserve, which jobs that start in idle capacity may lead to",
    Why.GUARANTEED_ELSEWHERE: "when other queues hold more than they are guaranteed in jobs that may be stopped",
    Why.ITS_TURN: "when all of its replicas fit in the reserved capacity; it passes shares meanwhile, no guarantees",
}
"""What would have to change, besides more free capacity."""
_LEFT_OUT = (
    "cannot start now: its gang needs {0:replica|} and the nodes that are not left out for it take {1:g}; it can use "
    "the others again when their time is over"
)
_KEPT_WITHOUT = "keeps what it holds: no node that is not left out for it has room for the rest"
_KEPT_NO_ROOM = "keeps what it holds: no node has room for the rest"
_REFUSED = {Why.TOO_BIG: "can never start here", Why.NO_SUCH_QUEUE: "waits"}
"""The beginning of the text if the snapshot says why the job may not be placed."""
_ALL = "keeps what it holds: it has all that it may have"
_LATER = " (once what it replaces has terminated)"
_VERBS = {
    "admit": "starts",
    "resize": "changes its number of replicas",
    "keep": "keeps what it holds",
    "preempt": "gives way",
    "wait": "waits",
    "late": "waits",
}
"""By action: the verb for a reason that has figures only."""
_BEGINNINGS = frozenset(
    words.split()[0].removesuffix(":")
    for words in (*_TEXT.values(), *_FOR_ANOTHER.values(), _LEFT_OUT, *_VERBS.values())
    if not words.startswith("speed ")
)
"""The first words of the reasons that say what the job does."""


class Explainer:
    """The texts of one plan. Use one instance for all its jobs, as it caches how roles fit."""

    def __init__(self, snapshot: Snapshot, plan: Plan) -> None:
        self.snapshot, self.plan = snapshot, plan
        self._leftover: Leftover | None = None
        self._held: IntArray | None = None

    @property
    def leftover(self) -> Leftover:
        if self._leftover is None:
            self._leftover = Leftover(self.snapshot, self.plan)
        return self._leftover

    def text(self, job: int, *, excluded: Set[str] = frozenset()) -> str:
        """One line for one job: its action and the reason. `excluded`: the nodes that are left out for it."""
        action, words = Action(int(self.plan.action[job])), self.reason(job, excluded=excluded)
        return f"{self.snapshot.job_names[job]}: {action.name.lower()}{self._later(job)}: {words}"

    def sentence(self, job: int, *, excluded: Set[str] = frozenset()) -> str:
        """As `text`, as a sentence about "it"."""
        action = Action(int(self.plan.action[job])).name.lower()
        return f"{sentence(action, self.reason(job, excluded=excluded))}{self._later(job)}"

    def _later(self, job: int) -> str:
        is_later = not self.plan.bind_now[job] and int(self.plan.action[job]) in (Action.ADMIT, Action.RESIZE)
        return _LATER if is_later else ""

    def reason(self, job: int, *, excluded: Set[str] = frozenset()) -> str:
        """As `text`, without the job's name and its action."""
        plan, s = self.plan, self.snapshot
        why = Why(int(plan.why[job]))
        words = (_FOR_ANOTHER if plan.subject[job] >= 0 and why in _FOR_ANOTHER else _TEXT)[why].format(
            *numbers(plan.values[job]),
            subject=_subject(s, plan, job),
            queue=s.job_queue_name[job],
            **(self._amounts(job) if why in _OF_A_RESOURCE else {}),
        )
        if why is Why.RESERVED and plan.values[job, 2] > 0:
            words += f", for {plan.values[job, 2]:.0f} s more at most"
        if why is Why.TOO_BIG and s.required(job) < 0:
            words = self._too_big(job) or words
        elif why is Why.TOO_BIG:
            level = s.required(job)
            some = bool((s.node_domain[level] >= 0).any())
            words = (_TOO_BIG_FOR_ONE if some else _NO_DOMAIN).format(
                *numbers(plan.values[job]), level=s.level_names[level]
            )
        if why is Why.TOO_BIG and excluded:
            words = _LEFT_OUT.format(*numbers(plan.values[job]))
        refusal = s.refusal(job)
        if refusal and why in _REFUSED:
            words = f"{_REFUSED[why]}: {refusal}"
        if why is Why.KEPT and not self._below_maximum(job):
            words = _ALL
        if excluded and why in (Why.KEPT, Why.KEPT_NOT_PREEMPTIBLE) and self.lacks_room(job):
            words = _KEPT_WITHOUT
        elif why is Why.KEPT_NOT_PREEMPTIBLE and self.lacks_room(job):
            words = _KEPT_NO_ROOM
        if why is Why.PLACED_AGAIN:
            words += self._out_of_limits(job)
        need, fits = plan.values[job, :2].tolist()
        if why is Why.DOES_NOT_FIT and need <= fits:  # a gang of several roles
            roles = self._roles(job)
            words = _TOGETHER.format(
                int(s.role_min[roles].sum()), ", ".join(f"{s.role_min[r]} × {s.role_names[r]}" for r in roles)
            )
            if s.required(job) >= 0:
                words += f" in one {s.level_names[s.required(job)]}; {self.leftover.in_domains(roles)}".rstrip("; ")
        elif why is Why.DOES_NOT_FIT:
            words += self._short(job)
        return words

    def _too_big(self, job: int) -> str:
        """The text for a gang that no empty cluster holds: the task of which too few fit, and what each needs."""
        need, most = self.plan.values[job, :2].tolist()
        role = next((r for r in self._roles(job) if self.snapshot.role_min[r] == need), None)
        if role is None:
            return ""
        task = f"{need:g} × {self.snapshot.role_names[role]}, each {request(self.snapshot, role)}"
        return _TOO_BIG.format(task, most)

    def lacks_room(self, job: int) -> bool:
        """It may have more replicas, and none of them fits anywhere."""
        growing = [role for role in self._roles(job) if self._may_grow(role)]
        return bool(growing) and not any(self.leftover.fit(role).fits for role in growing)

    def _amounts(self, job: int) -> dict[str, str]:
        """The amounts of a reason that is about one resource, as text."""
        s, plan = self.snapshot, self.plan
        first, second, resource = plan.values[job].tolist()
        r, name = int(resource), s.resources[int(resource)]
        out = {
            "amount0": amount_of(name, first),
            "amount1": amount_of(name, second),
            "left": amount_of(name, second),
            "share": f"{quantity(name, first)} of the {amount_of(name, second)}",
            "need": amount_of(name, self._gang(job)[r]),
        }
        if Why(int(plan.why[job])) is Why.QUEUE_CAP and plan.subject[job] >= 0:
            out["cap"] = amount_of(name, float(s.queue_cap[int(plan.subject[job]), r]))
        return out

    def _gang(self, job: int) -> list[int]:
        """R: what the job's gang asks for."""
        s, roles = self.snapshot, self._roles(job)
        out: list[int] = (s.role_min[roles, None] * s.role_request[roles]).sum(axis=0).tolist()
        return out

    def _out_of_limits(self, job: int) -> str:
        """What its roles hold that is below their minimum now, and above their maximum."""
        s = self.snapshot
        held = np.bincount(s.held_role, weights=s.held_count, minlength=s.roles).astype(np.int64)
        found = [
            f"{s.role_names[r]} had {held[r]} and "
            + (f"needs at least {s.role_min[r]}" if held[r] < s.role_min[r] else f"may have at most {s.role_max[r]}")
            for r in self._roles(job)
            if not s.role_min[r] <= held[r] <= s.role_max[r]
        ]
        return f": {', '.join(found)}" if found else ""

    def _short(self, job: int) -> str:
        """What one replica asks for and which nodes are short of what, for the role that fits worst."""
        role = self._worst(job)
        if role < 0:
            return ""
        by_node = self.snapshot.required(job) < 0
        short = self.leftover.short(role) if by_node else self.leftover.in_domains([role])
        return f", each {request(self.snapshot, role)}" + (f"; {short}" if short else "")

    def _worst(self, job: int) -> int:
        """The role with the largest missing fraction of its minimum, or -1."""
        roles = self._roles(job)
        missing = [(f.need - f.fits) / max(1, f.need) for f in (self.leftover.fit(role) for role in roles)]
        return max(zip(missing, [-r for r in roles], strict=True), default=(0.0, 1))[1] * -1

    def _roles(self, job: int) -> range:
        low, high = np.searchsorted(self.snapshot.role_job, (job, job + 1)).tolist()
        return range(low, high)

    def details(self, job: int, *, excluded: Set[str] = frozenset()) -> list[str]:
        """All about one job, line by line: the decision, its request, its places now and by the plan, what is free of
        each resource and where, which limit binds, and what would have to change. `excluded`: the nodes that are left
        out for it."""
        out = [self.sentence(job, excluded=excluded), self._asks(job)]
        out += [f"{what}: {places}" for what, places in self._places(job) if places]
        waits = self.plan.action[job] in (Action.WAIT, Action.PREEMPT)
        short = [role for role in self._roles(job) if waits or self._may_grow(role)]
        if short:
            for role in short:
                out += self._role(role, excluded)
            out += self._limits(job)
            out += self._what_would_help(job)
        return out

    def _below_maximum(self, job: int) -> bool:
        return any(self._may_grow(role) for role in self._roles(job))

    def _may_grow(self, role: int) -> bool:
        s = self.snapshot
        most = s.role_max if s.job_preemptible[s.role_job[role]] else s.role_desired
        return bool(self._after()[role] < most[role])

    def _after(self) -> IntArray:
        """Replicas of each role after the plan."""
        if self._held is None:
            plan = self.plan
            self._held = np.bincount(plan.role, weights=plan.count, minlength=self.snapshot.roles).astype(np.int64)
        return self._held

    def _asks(self, job: int) -> str:
        s = self.snapshot
        parts = []
        for r in self._roles(job):
            low = int(s.role_min[r])
            high = int(s.role_max[r] if s.job_preemptible[job] else s.role_desired[r])
            count = f"{low}" if low == high else f"{low} to {high}"
            parts.append(f"{count} × {s.role_names[r]} of {request(s, r)}")
        kind = "preemptible" if s.job_preemptible[job] else "not preemptible"
        one = f", all in one {s.level_names[s.required(job)]}" if s.required(job) >= 0 else ""
        terms = f"priority {s.job_priority[job]}, {kind}, queue {s.job_queue_name[job]}"
        return f"asks for: {' and '.join(parts)}{one}; {terms}"

    def _places(self, job: int) -> list[tuple[str, str]]:
        s, plan = self.snapshot, self.plan
        now = self._where(job, s.held_role, s.held_node, s.held_count)
        then = self._where(job, plan.role, plan.node, plan.count)
        return [("holds", now), ("is to hold", then if then != now else "")]

    def _where(self, job: int, role: IntArray, node: IntArray, count: IntArray) -> str:
        s = self.snapshot
        parts = []
        for r in self._roles(job):
            mine = role == r
            if mine.any():
                at = [f"{c} on {s.node_names[n]}" for n, c in zip(node[mine], count[mine], strict=True)]
                parts.append(f"{int(count[mine].sum())} × {s.role_names[r]} ({', '.join(at)})")
        return " and ".join(parts)

    def _role(self, role: int, excluded: Set[str]) -> list[str]:
        """The replicas that fit on each node, and what is free of each resource in total and on the best node."""
        s, found = self.snapshot, self.leftover.fit(role)
        best = [n for n in np.lexsort((np.arange(s.nodes), -found.slots))[:NODES_NAMED].tolist() if found.slots[n]]
        where = ", ".join(f"{_count(found.slots[n])} on {s.node_names[n]}" for n in best)
        short = self.leftover.short(role, excluded=excluded)
        out = [
            f"{s.role_names[role]}: {_count(found.fits)} more fit now"
            + (f" ({where})" if where else "")
            + (f"; {short}" if short else "")
        ]
        mask = found.where
        if mask.any():
            free = np.maximum(self.leftover.free[mask], 0)
            names = np.flatnonzero(mask)
            for r in np.flatnonzero(s.role_request[role]).tolist():
                top = int(free[:, r].argmax())
                if s.resources[r] == PODS and free[top, r] >= found.need:
                    continue
                out.append(
                    f"  {amount(s.resources[r], int(s.role_request[role, r]))} each: "
                    f"{amount(s.resources[r], int(free[:, r].sum()))} free in all on {counted(len(names), 'node')}, "
                    f"at most {amount(s.resources[r], int(free[top, r]))} on one ({s.node_names[names[top]]})"
                )
        return out

    def _limits(self, job: int) -> list[str]:
        s, plan = self.snapshot, self.plan
        out = []
        if s.job_queue[job] >= 0:
            used = self._queue_use()
            need = sum((s.role_min[r] * s.role_request[r] for r in self._roles(job)), np.zeros(len(s.resources), int))
            for q in ancestors(s.queue_parent)[int(s.job_queue[job])]:
                tight = (s.queue_cap[q] < UNLIMITED) & (need > 0) & (used[q] + need > s.queue_cap[q])
                out += [
                    f"limit: queue {s.queue_names[q]!r} may hold {amount(s.resources[r], int(s.queue_cap[q, r]))}, and "
                    f"holds {amount(s.resources[r], int(used[q, r]))}"
                    for r in np.flatnonzero(tight).tolist()
                ]
        if plan.why[job] == Why.RESERVED and plan.subject[job] >= 0:
            other = int(plan.subject[job])
            waits = s.now_seconds - s.job_created_seconds[other]
            out.append(f"limit: capacity is reserved for {s.job_names[other]!r}, which has waited for {waits:.0f} s")
        return out

    def _queue_use(self) -> IntArray:
        s, after = self.snapshot, self._after()
        out = np.zeros((s.queues, len(s.resources)), dtype=np.int64)
        chains = ancestors(s.queue_parent)
        for r in np.flatnonzero(after).tolist():
            queue = int(s.job_queue[s.role_job[r]])
            if queue >= 0:
                out[chains[queue]] += after[r] * s.role_request[r]
        return out

    def _what_would_help(self, job: int) -> list[str]:
        s, why = self.snapshot, Why(int(self.plan.why[job]))
        if self.plan.action[job] not in (Action.WAIT, Action.PREEMPT):
            return []
        if why in (Why.TOO_BIG, Why.NO_NODES, Why.NO_SUCH_QUEUE):
            return []  # the first line says it all
        if why is Why.QUEUE_CAP:
            need, cap = self.plan.values[job, 0], s.queue_cap[self.plan.subject[job], int(self.plan.values[job, 2])]
            ends = "with a smaller gang" if need > cap else "when other jobs of that queue end"
            return [f"would start {ends}, when the cap is raised, or in another queue"]
        if why is Why.RESERVED:
            end = ", when the reservation ends" if self.plan.values[job, 2] > 0 else ""
            return [f"would start when that job has started{end}, or with a higher priority than it has"]
        out = []
        if why in _WOULD_HELP:
            out.append(f"would start {_WOULD_HELP[why]}")
        role = self._worst(job)
        if role >= 0:
            found = self.leftover.fit(role)
            missing = found.need - found.fits
            if missing > 0:
                out.append(
                    f"would start when there is capacity for {missing} × ({request(s, role)}) more where it may run"
                    + (f", or with a minimum of {found.fits}" if found.fits else "")
                )
            elif why is Why.DOES_NOT_FIT:
                out.append(
                    self._missing_together(job) or "would start when its roles fit together; each by itself does"
                )
        holders = s.jobs_of(self.plan.role)
        firm = holders & ~s.job_preemptible
        above = holders & s.job_preemptible & (s.job_priority >= s.job_priority[job])
        if above.any() or firm.any():
            out.append(
                f"in its way: {_jobs(firm)} that may not be moved, {_jobs(above)} of its priority or above"
                + (_priority_above(int(s.job_priority[above].min())) if above.any() else "")
            )
        return out

    def _missing_together(self, job: int) -> str:
        """What the minimums of its roles need above all that is free where any of them may run; "" if that is enough in
        all, and only its distribution over the nodes is in the way."""
        s, roles = self.snapshot, self._roles(job)
        where = np.any([self.leftover.fit(role).where for role in roles], axis=0)
        free = np.maximum(self.leftover.free[where], 0).sum(axis=0)
        need = np.array(self._gang(job), dtype=np.int64)
        short = np.flatnonzero(need > free).tolist()
        if not short:
            return ""
        more, asked, there = (amounts(s, {r: int(given[r]) for r in short}) for given in (need - free, need, free))
        return (
            f"cannot start before {more} more is free where it may run: its roles together need {asked}, and {there} "
            "is free"
        )


def text(snapshot: Snapshot, plan: Plan, job: int, *, excluded: Set[str] = frozenset()) -> str:
    """One line for one job: its action and the reason. `excluded`: the nodes that are left out for it."""
    return Explainer(snapshot, plan).text(job, excluded=excluded)


def details(snapshot: Snapshot, plan: Plan, job: int, *, excluded: Set[str] = frozenset()) -> list[str]:
    """All about one job, for `diflow explain JOB`. `excluded`: the nodes that are left out for it."""
    return Explainer(snapshot, plan).details(job, excluded=excluded)


def sentence(action: str, words: str) -> str:
    """A decision about a job, by its action and its reason, as a sentence about "it"; a reason that is about something
    else as it is."""
    if words.startswith("speed "):
        words = f"{_VERBS.get(action, action)}: {words}"
    first = words.partition(" ")[0]
    return f"it {words}" if first.removesuffix(":") in _BEGINNINGS else words


def _count(replicas: int) -> str:
    return "any number" if replicas >= ANY_NUMBER else f"{replicas}"


def _priority_above(least: int) -> str:
    """The lowest `spec.priority` that is above `least`; nothing if there is none."""
    names = [name for name, value in keys.WORKFLOW_PRIORITIES.items() if value > least]
    return f" (`spec.priority: {names[0]}` may stop some)" if names else ""


def _jobs(which: BoolArray) -> str:
    return counted(int(which.sum()), "job")


def _subject(snapshot: Snapshot, plan: Plan, job: int) -> str:
    index, names_a_job = int(plan.subject[job]), Why(int(plan.why[job])) in NAMES_A_JOB
    if index < 0:
        return "another job" if names_a_job else "it is in"
    return repr((snapshot.job_names if names_a_job else snapshot.queue_names)[index])
