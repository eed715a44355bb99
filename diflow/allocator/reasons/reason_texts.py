"""What a plan decides about a job, and why: its reason as a sentence, and the numbers behind it."""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass

import numpy as np

from diflow.allocator.model.amounts import amount
from diflow.allocator.model.arrays import BoolArray, IntArray
from diflow.allocator.model.ledger import ancestors
from diflow.allocator.model.packing import ANY_NUMBER
from diflow.allocator.model.plan import Action, Plan
from diflow.allocator.model.reasons import DoesNotFit, Reason, Reserved
from diflow.allocator.model.snapshot import UNLIMITED, Snapshot
from diflow.allocator.model.views import PODS
from diflow.allocator.reasons.readers import ALL, Reader, another_job
from diflow.allocator.reasons.shortage import NODES_NAMED, Leftover, amounts, excluding, in_the_way, request
from diflow.common import keys
from diflow.common.words import counted, meant

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
    ("can", "cannot", "changes", "gives", "grows", "has", "is", "keeps", "shares", "starts", "waits")
)
"""The first words of the sentences that say what the job does."""


@dataclass(frozen=True, slots=True)
class _Look:
    """What the reason of one job may ask, from the snapshot and the plan."""

    explainer: Explainer
    job: int
    is_left_out: bool
    reader: Reader

    @property
    def snapshot(self) -> Snapshot:
        return self.explainer.snapshot

    @property
    def roles(self) -> range:
        return self.explainer.roles(self.job)

    @property
    def refusal(self) -> str:
        return self.snapshot.job_refusal[self.job]

    @property
    def level(self) -> str:
        return self.explainer.level(self.job)

    @property
    def has_domains(self) -> bool:
        s = self.snapshot
        return bool((s.node_domain[s.job_required[self.job]] >= 0).any())

    def task(self, minimum: int) -> str:
        s = self.snapshot
        role = next((r for r in self.roles if s.role_min[r] == minimum), None)
        return "" if role is None else f"{minimum} × {s.role_names[role]}, each {request(s, role)}"

    def gang(self) -> str:
        s, roles = self.snapshot, self.roles
        each = ", ".join(f"{s.role_min[r]} × {s.role_names[r]}" for r in roles)
        return f"{int(s.role_min[roles].sum())} replicas ({each})"

    def short(self) -> str:
        role = self.explainer.worst(self.job)
        if role < 0:
            return ""
        leftover = self.explainer.leftover
        reader = self.reader
        short = leftover.in_domains([role], reader=reader) if self.level else leftover.short(role, reader=reader)
        return f", each {request(self.snapshot, role)}" + (f"; {short}" if short else "")

    def in_the_way(self, minimum: int) -> str:
        role = next((r for r in self.roles if self.snapshot.role_min[r] == minimum), self.roles[0])
        return in_the_way(self.snapshot, role, reader=self.reader)

    def excluding(self, minimum: int) -> str:
        role = next((r for r in self.roles if self.snapshot.role_min[r] == minimum), self.roles[0])
        return ", ".join(excluding(self.snapshot, role)[0])

    def opening(self, minimum: int) -> str:
        role = next((r for r in self.roles if self.snapshot.role_min[r] == minimum), self.roles[0])
        return ", ".join([*excluding(self.snapshot, role)[1], "nodes that are added", "fewer replicas"])

    def short_together(self) -> str:
        if not self.level:
            return ""
        domains = self.explainer.leftover.in_domains(self.roles, reader=self.reader)
        return f" in one {self.level}; {domains}".rstrip("; ")

    def out_of_limits(self) -> str:
        s = self.snapshot
        held = s.held_by_role()
        found = [
            f"{s.role_names[r]} had {held[r]} and "
            + (f"needs at least {s.role_min[r]}" if held[r] < s.role_min[r] else f"may have at most {s.role_max[r]}")
            for r in self.roles
            if not s.role_min[r] <= held[r] <= s.role_max[r]
        ]
        return f": {', '.join(found)}" if found else ""

    def similar_queue(self, name: str) -> str:
        return meant(name, self.snapshot.queue_names)

    def may_grow(self) -> bool:
        return self.explainer.may_grow(self.job)

    def lacks_room(self) -> bool:
        return self.explainer.lacks_room(self.job)


class Explainer:
    """The texts of one plan. Use one instance for all its jobs, as it caches how roles fit."""

    def __init__(self, snapshot: Snapshot, plan: Plan) -> None:
        self.snapshot, self.plan = snapshot, plan
        self._leftover: Leftover | None = None
        self._held: IntArray | None = None
        self._rows: dict[str, int] = {}

    @property
    def leftover(self) -> Leftover:
        if self._leftover is None:
            self._leftover = Leftover(self.snapshot, self.plan)
        return self._leftover

    def text(self, job: int, *, excluded: Set[str] = frozenset(), reader: Reader = ALL) -> str:
        """One line for one job: its action and the reason. `excluded`: the nodes that are left out for it."""
        action, words = Action(int(self.plan.action[job])), self.reason(job, excluded=excluded, reader=reader)
        return f"{self.snapshot.job_names[job]}: {action.name.lower()}{self._later(job)}: {words}"

    def sentence(self, job: int, *, excluded: Set[str] = frozenset(), reader: Reader = ALL) -> str:
        """As `text`, as a sentence about "it"."""
        action = Action(int(self.plan.action[job])).name.lower()
        return f"{sentence(action, self.reason(job, excluded=excluded, reader=reader))}{self._later(job)}"

    def _later(self, job: int) -> str:
        is_later = not self.plan.bind_now[job] and int(self.plan.action[job]) in (Action.ADMIT, Action.RESIZE)
        return _LATER if is_later else ""

    def reason(self, job: int, *, excluded: Set[str] = frozenset(), reader: Reader = ALL) -> str:
        """As `text`, without the job's name and its action."""
        reason, look = self.plan.reasons[job], _Look(self, job, is_left_out=bool(excluded), reader=reader)
        return reader.told(_said(reason, lambda: reason.in_full(look)), self._other)

    def _other(self, key: str) -> str | None:
        """What is said of a job to those who may not see it; None if there is none of this key."""
        s = self.snapshot
        self._rows = self._rows or {name: row for row, name in enumerate(s.job_names)}
        row = self._rows.get(key)
        return None if row is None else another_job(int(s.job_priority[row]), s.job_queue_name[row])

    def lacks_room(self, job: int) -> bool:
        """It may have more replicas, and none of them fits anywhere."""
        growing = [role for role in self.roles(job) if self._may_grow(role)]
        return bool(growing) and not any(self.leftover.fit(role).fits for role in growing)

    def _gang(self, job: int) -> list[int]:
        """R: what the job's gang asks for."""
        s, roles = self.snapshot, self.roles(job)
        out: list[int] = (s.role_min[roles, None] * s.role_request[roles]).sum(axis=0).tolist()
        return out

    def worst(self, job: int) -> int:
        """The role with the largest missing fraction of its minimum, or -1."""
        roles = self.roles(job)
        missing = [(f.need - f.fits) / max(1, f.need) for f in (self.leftover.fit(role) for role in roles)]
        return max(zip(missing, [-r for r in roles], strict=True), default=(0.0, 1))[1] * -1

    def roles(self, job: int) -> range:
        low, high = np.searchsorted(self.snapshot.role_job, (job, job + 1)).tolist()
        return range(low, high)

    def details(self, job: int, *, excluded: Set[str] = frozenset(), reader: Reader = ALL) -> list[str]:
        """All about one job, line by line: the decision, its request, its places now and by the plan, what is free of
        each resource and where, which limit binds, and what would have to change. `excluded`: the nodes that are left
        out for it."""
        out = [self.sentence(job, excluded=excluded, reader=reader), self._asks(job)]
        out += [f"{what}: {places}" for what, places in self._places(job) if places]
        waits = self.plan.action[job] in (Action.WAIT, Action.PREEMPT)
        short = [role for role in self.roles(job) if waits or self._may_grow(role)]
        if short:
            for role in short:
                out += self._role(role, excluded, reader)
            out += [reader.told(line, self._other) for line in self._limits(job)]
            out += self._what_would_help(job, is_left_out=bool(excluded), reader=reader)
        return out

    def level(self, job: int) -> str:
        """The level of which one domain must hold the whole job, or ""."""
        level = int(self.snapshot.job_required[job])
        return self.snapshot.level_names[level] if level >= 0 else ""

    def may_grow(self, job: int) -> bool:
        """Whether it may have more replicas than the plan gives it."""
        return any(self._may_grow(role) for role in self.roles(job))

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
        for r in self.roles(job):
            low = int(s.role_min[r])
            high = int(s.role_max[r] if s.job_preemptible[job] else s.role_desired[r])
            count = f"{low}" if low == high else f"{low} to {high}"
            parts.append(f"{count} × {s.role_names[r]} of {request(s, r)}")
        kind = "preemptible" if s.job_preemptible[job] else "not preemptible"
        one = f", all in one {level}" if (level := self.level(job)) else ""
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
        for r in self.roles(job):
            mine = role == r
            if mine.any():
                at = [f"{c} on {s.node_names[n]}" for n, c in zip(node[mine], count[mine], strict=True)]
                parts.append(f"{int(count[mine].sum())} × {s.role_names[r]} ({', '.join(at)})")
        return " and ".join(parts)

    def _role(self, role: int, excluded: Set[str], reader: Reader) -> list[str]:
        """The replicas that fit on each node, and what is free of each resource in total and on the best node."""
        s, found = self.snapshot, self.leftover.fit(role)
        best = [n for n in np.lexsort((np.arange(s.nodes), -found.slots))[:NODES_NAMED].tolist() if found.slots[n]]
        where = ", ".join(
            f"{_count(found.slots[n])} on {reader.node(s.node_names[n], place)}" for place, n in enumerate(best)
        )
        short = self.leftover.short(role, excluded=excluded, reader=reader)
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
                    f"at most {amount(s.resources[r], int(free[top, r]))} on one"
                    + (f" ({s.node_names[names[top]]})" if reader.nodes else "")
                )
        return out

    def _limits(self, job: int) -> list[str]:
        s, plan = self.snapshot, self.plan
        out = []
        if s.job_queue[job] >= 0:
            used = self._queue_use()
            need = sum((s.role_min[r] * s.role_request[r] for r in self.roles(job)), np.zeros(len(s.resources), int))
            for q in ancestors(s.queue_parent)[int(s.job_queue[job])]:
                tight = (s.queue_cap[q] < UNLIMITED) & (need > 0) & (used[q] + need > s.queue_cap[q])
                out += [
                    f"limit: queue {s.queue_names[q]!r} may hold {amount(s.resources[r], int(s.queue_cap[q, r]))}, and "
                    f"holds {amount(s.resources[r], int(used[q, r]))}"
                    for r in np.flatnonzero(tight).tolist()
                ]
        if isinstance(reason := plan.reasons[job], Reserved):
            waits = s.now_seconds - s.job_created_seconds[s.job_names.index(reason.job)]
            out.append(f"limit: capacity is reserved for {reason.job!r}, which has waited for {waits:.0f} s")
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

    def _what_would_help(self, job: int, *, is_left_out: bool, reader: Reader) -> list[str]:
        look = _Look(self, job, is_left_out=is_left_out, reader=reader)
        s, reason = self.snapshot, self.plan.reasons[job]
        if self.plan.action[job] not in (Action.WAIT, Action.PREEMPT):
            return []
        out = list(filter(None, [_said(reason, lambda: reason.in_detail(look))]))
        if reason.is_all:
            return out
        role = self.worst(job)
        if role >= 0:
            found = self.leftover.fit(role)
            missing = found.need - found.fits
            if missing > 0:
                out.append(
                    f"would start when there is capacity for {missing} × ({request(s, role)}) more where it may run"
                    + (f", or with a minimum of {found.fits}" if found.fits else "")
                )
            elif isinstance(reason, DoesNotFit):
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
        s, roles = self.snapshot, self.roles(job)
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


def details(
    snapshot: Snapshot, plan: Plan, job: int, *, excluded: Set[str] = frozenset(), reader: Reader = ALL
) -> list[str]:
    """All about one job, for `diflow explain JOB`. `excluded`: the nodes that are left out for it."""
    return Explainer(snapshot, plan).details(job, excluded=excluded, reader=reader)


def _said(reason: Reason, say: Callable[[], str]) -> str:
    """Its words. No decision is lost for the words of another package's reason."""
    try:
        return say()
    except Exception as error:
        return f"is told {reason.word!r}, and that reason has no text ({type(error).__name__})"


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
