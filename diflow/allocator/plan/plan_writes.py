"""From a plan to the writes that carry it out, one for each job that changes.

Policies return numbers of replicas on nodes; which replica (index) goes to which node is decided here.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial

from diflow.allocator.model.plan import Action, Plan
from diflow.allocator.model.reasons import KEPT_NOT_PREEMPTIBLE, Reason, TakesTooLong
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.plan.holding import Standing, allocation_of_pods
from diflow.allocator.plan.inputs import Picture
from diflow.allocator.reasons.readers import owner
from diflow.allocator.reasons.reason_texts import Explainer
from diflow.allocator.watch.free_capacity import FreeCapacity
from diflow.allocator.watch.job import Job
from diflow.allocator.watch.needs import allocated
from diflow.allocator.write import patches
from diflow.allocator.write.patches import Note, Write
from diflow.allocator.write.rounds import decision_of, replacing_round
from diflow.common.words import counted, quantity
from diflow.record import untrusted
from diflow.record.job import JobRecord
from diflow.record.patches import live

# A decision's text changes with its numbers: the least time between two updates of the text.
_REPEAT_SECONDS = 60.0
_UNPLACED = ", which lost their nodes"


def plan_writes(
    shown: Picture,
    plan: Plan,
    *,
    now: float,
    limit_seconds: float,
    capacity: FreeCapacity,
    failed: Callable[[Job, Exception], None],
) -> tuple[list[Write], list[Write]]:
    """(writes that free capacity, writes that use it). The second ones depend on the first ones.

    A job that has waited longer than `limit_seconds` gets a warning. A job without pods whose places have enough free
    `capacity` is admitted in the same write, and takes it. `failed` is called for each job whose write cannot
    be built; the plan should then be repeated without it, as others may depend on the capacity that it frees.
    """
    free: list[Write] = []
    use: list[Write] = []
    counts = _counts(shown.snapshot, plan)
    starts = shown.snapshot.role_starts()
    limits = now, limit_seconds, capacity
    explainer = Explainer(shown.snapshot, plan)
    for j, standing in enumerate(shown.standings):
        is_kept = int(plan.action[j]) == int(Action.KEEP)
        if is_kept and not standing.is_fixed and (write := _unplaced_text(standing, j, explainer, now)) is not None:
            use.append(write)
            continue
        if standing.is_fixed or (
            is_kept and (standing.job.read.notes.allocation is not None or not standing.is_placed)
        ):
            continue  # nothing to write: most jobs in most plans
        roles = range(int(starts[j]), int(starts[j + 1]))
        target = {shown.snapshot.role_names[g]: counts.get(g, {}) for g in roles}
        try:
            some_free, some_use = _writes_of(standing, j, target, explainer, limits)
        except Exception as error:
            failed(standing.job, error)
            continue
        free += some_free
        use += some_use
    return free, use


def _writes_of(
    standing: Standing,
    j: int,
    target: Mapping[str, Mapping[str, int]],
    explainer: Explainer,
    limits: tuple[float, float, FreeCapacity],
) -> tuple[list[Write], list[Write]]:
    """The writes of one job, as in `plan_writes`."""
    (now, limit_seconds, capacity), plan, read = limits, explainer.plan, standing.job.read
    action = Action(int(plan.action[j]))
    words = explainer.reason(j, excluded=standing.excluded, reader=owner(read.identity.namespace))
    if action is Action.WAIT and standing.leaves:
        words = f"{standing.leaves}, and no other place is free; {words}"
    if action is Action.ADMIT and standing.leaves:
        words = f"is placed again, as {standing.leaves}"
    if action is Action.RESIZE and (again := _completed(standing, target)):
        words = again
    if action in (Action.WAIT, Action.PREEMPT):
        words = "; ".join([words, *_more_memory(read), *filter(None, [read.notes.excluded.text(now)])])
    decision = decision_of(action.name.lower(), words, now)
    if action is Action.KEEP or (action is Action.WAIT and not standing.is_displaced):
        since = max(standing.job.created_seconds, read.notes.allocation.since if read.notes.allocation else 0.0)
        if action is Action.WAIT and now - since > limit_seconds:
            decision = decision_of("late", f"has not been placed within {limit_seconds:g} s, and {words}", now)
        write = _text_write(read, decision, plan.reasons[j], now)
        if read.notes.allocation is None and standing.is_placed:
            found = patches.change_job(read, allocation=allocation_of_pods(standing.job))
            return [], [replace(found, is_optional=True)]
        return [], [write] if write is not None else []
    if action in (Action.WAIT, Action.PREEMPT):
        return [_preempt(standing, decision, now)], []
    if read.argo.awaits_admission:
        return [], [_begin(standing, target, decision, now, capacity)]
    if not read.terms.is_preemptible:
        return [], [_extend(standing, target, decision, now)]
    write = _move(standing, target, decision, now)
    frees = standing.is_placed and bool(_shrinks(standing, target))
    return ([write], []) if frees else ([], [write])


def _completed(standing: Standing, target: Mapping[str, Mapping[str, int]]) -> str:
    """The words about a job that is not preemptible and gets places again that it has lost, and no more; "" if it is
    another one."""
    read = standing.job.read
    before, total = sum(map(len, standing.places.values())), sum(read.running.values())
    after = sum(sum(nodes.values()) for nodes in target.values())
    if read.terms.is_preemptible or not before < after <= total - sum(map(len, standing.done.values())):
        return ""
    because = f", as {standing.leaves}" if standing.leaves else ""
    more = after - before
    return f"{more} of its {counted(total, 'replica')} {'is' if more == 1 else 'are'} placed again{because}"


def _unplaced_text(standing: Standing, j: int, explainer: Explainer, now: float) -> Write | None:
    """Update the text of a job that is not preemptible and keeps what it holds while its user asked for more: if some
    of its replicas have lost their nodes, the text of the plan that placed them is not true any more."""
    read, last = standing.job.read, standing.job.read.notes.decision
    at = read.notes.allocation
    if read.terms.is_preemptible or at is None:
        return None
    lost = f", whose {standing.leaves}" if standing.leaves else _UNPLACED
    has_said = last.action == "wait" and (last.why.endswith(_UNPLACED) or "announces its end" in last.why)
    total = sum(read.running.values())
    there = sum(map(len, standing.places.values())) + sum(map(len, standing.done.values()))
    if not standing.is_placed or there >= total:
        why = explainer.reason(j, excluded=standing.excluded, reader=owner(read.identity.namespace))
        return patches.change_job(read, decision=decision_of("keep", why, now)) if has_said else None
    # Since then it is short of places (reconcile/incomplete.py). Those on nodes that only announce their end still run.
    short = None if at.short_since or standing.leaves else replace(at, short_since=now)
    if not has_said and last.action not in ("admit", "resize"):
        return None if short is None else patches.change_job(read, allocation=short)
    room = "no node has room for" if explainer.lacks_room(j) else "nothing is placed for"
    why = f"{room} {total - there} of its {counted(total, 'replica')}{lost}"
    decision = decision_of("wait", why, now)
    if short is not None:
        note = None if has_said else Note("Waiting", why)
        return patches.change_job(read, allocation=short, decision=decision, note=note)
    return _text_write(read, decision, KEPT_NOT_PREEMPTIBLE, now)


def _more_memory(read: JobRecord) -> list[str]:
    """The tasks of which a replica ran out of memory, and what the next ones have."""
    return [
        f"each {role.name} has {quantity('memory', read.live.memory[role.name])} of memory instead of "
        f"{quantity('memory', role.asked_memory)}, since one ran out of it"
        for role in read.needs.roles
        if 0 < role.asked_memory < read.live.memory.get(role.name, 0)
    ]


def _counts(snapshot: Snapshot, plan: Plan) -> dict[int, dict[str, int]]:
    out: dict[int, dict[str, int]] = {}
    for role, node, count in zip(plan.role.tolist(), plan.node.tolist(), plan.count.tolist(), strict=True):
        out.setdefault(role, {})[snapshot.node_names[node]] = count
    return out


def _assign(places: Mapping[int, str], target: Mapping[str, int], *, slots: Iterable[int]) -> dict[int, str]:
    """Index → node: replicas stay where they can; the rest of `target` fills `slots` in order, node by node."""
    left = dict(target)
    out: dict[int, str] = {}
    for index, node in sorted(places.items()):
        if left.get(node, 0) > 0:
            out[index] = node
            left[node] -= 1
    rest = [node for node in sorted(left) for _ in range(left[node])]
    free = (slot for slot in slots if slot not in out)
    for node in rest:
        out[next(free)] = node
    return out


def _begin(
    standing: Standing,
    target: Mapping[str, Mapping[str, int]],
    decision: Mapping[str, str],
    now: float,
    capacity: FreeCapacity,
) -> Write:
    """Place a job of which nothing was created yet, and admit it if its places are free now."""
    job, read = standing.job, standing.job.read
    counts = {role.name: sum(target.get(role.name, {}).values()) for role in read.needs.roles}
    nodes = {}
    for task, count in counts.items():
        places = _assign(standing.places.get(task, {}), target.get(task, {}), slots=range(count))
        nodes[task] = tuple(places[i] for i in sorted(places))
    asked = read.limits if read.terms.is_preemptible else ""
    at = patches.placed(read, nodes, now=now, asked=asked, unpinned=is_unpinned(read))
    parameters = live(granted={**read.live.granted, read.live.current: counts})
    note = _note(standing, counts, decision["why"])
    if not job.may_begin or not capacity.reserve(allocated(read, at)):
        return patches.change_job(read, parameters=parameters, allocation=at, decision=decision, note=note)
    return patches.admit_job(read, at, now=now, parameters=parameters, allocation=at, decision=decision, note=note)


def _move(
    standing: Standing, target: Mapping[str, Mapping[str, int]], decision: Mapping[str, str], now: float
) -> Write:
    """Give a preemptible job another allocation: in a new round, or in the current one if no pod of it was admitted."""
    job, read = standing.job, standing.job.read
    counts = {task: sum(nodes.values()) for task, nodes in target.items()}
    old = read.notes.allocation
    nodes: dict[str, tuple[str, ...]] = {}
    for task, count in counts.items():
        before = {i: node for i, node in enumerate(old.nodes.get(task, ())) if node and i < count} if old else {}
        places = _assign(before, target[task], slots=range(count))
        nodes[task] = tuple(places[i] for i in range(count))
    note = _note(standing, counts, decision["why"])
    running = read.running
    if running == counts and not job.has_started() and not any(p.is_stopping for p in job.current_pods):
        at = patches.placed(read, nodes, now=now, asked=read.limits, unpinned=is_unpinned(read))
        return patches.change_job(read, allocation=at, decision=decision, note=note)
    change = partial(replace, unpinned=is_unpinned(read))
    write = replacing_round(job, counts, nodes, now=now, decision=decision, note=note, change=change)
    return replace(write, frees=_shrinks(standing, target))


def _extend(
    standing: Standing, target: Mapping[str, Mapping[str, int]], decision: Mapping[str, str], now: float
) -> Write:
    """Place a non-preemptible job, or more replicas of it, without moving running ones."""
    read = standing.job.read
    granted = dict(read.live.counts)
    incarnations = dict(read.live.incarnations)
    old = read.current_allocation
    nodes: dict[str, tuple[str, ...]] = {}
    for role in read.needs.roles:
        task = role.name
        done = standing.done.get(task, frozenset())
        running = read.live.running(task)
        total = sum(target.get(task, {}).values())
        slots = [i for i in range(running + total) if i not in done]
        places = _assign(standing.places.get(task, {}), target.get(task, {}), slots=slots)
        count = max([running, *(i + 1 for i in places)])
        finished = {i: old.node(task, i) if old else "" for i in done}
        nodes[task] = tuple(places.get(i, finished.get(i, "")) for i in range(count))
        if not read.live.has_tail(task) and count > granted.get(task, 0):
            for index in range(granted.get(task, 0), count):
                _next_incarnation(read, task, index, incarnations)
            granted[task] = count
    counts = {task: sum(1 for node in where if node) for task, where in nodes.items()}
    at = patches.placed(read, nodes, now=now, unpinned=is_unpinned(read))
    parameters = live(
        granted={**read.live.granted, read.live.current: granted} if granted != dict(read.live.counts) else None,
        incarnations=incarnations if incarnations != dict(read.live.incarnations) else None,
    )
    return patches.change_job(
        read, parameters=parameters, allocation=at, decision=decision, note=_note(standing, counts, decision["why"])
    )


def is_unpinned(read: JobRecord) -> bool:
    """Whether kube-scheduler chooses the nodes: its tasks ask for what is not known here, or it was refused before. It
    does not know which domain a job requires, and which nodes are left out for it."""
    if read.spec.required or read.notes.excluded:
        return False
    at = read.notes.allocation
    was_refused = at is not None and (at.unpinned or at.refusals > 0)
    return was_refused or any(role.rules.beyond for role in read.needs.roles)


def _next_incarnation(read: JobRecord, task: str, index: int, incarnations: dict[str, str]) -> None:
    """Give an index that was used before a new incarnation: Argo would reuse the result of a node of the same name."""
    key = f"{read.live.current}/{task}/{index}"
    number = 0
    while f"{key}{f'.{number}' if number else ''}" in read.argo.tree.members:
        number += 1
    if number:
        incarnations[key] = f".{number}"


def _preempt(standing: Standing, decision: Mapping[str, str], now: float) -> Write:
    """Take a job's place: it waits for another one, with the pods of its smallest gang."""
    read, why = standing.job.read, decision["why"]
    lost = f"{standing.displaced}; " if standing.is_displaced else ""
    if not read.terms.is_preemptible or not standing.job.has_started():
        at = patches.placed(read, {}, now=now)
        note = Note("Waiting", f"waits for another place: {lost}{why}")
        return patches.change_job(read, allocation=at, decision=decision, note=note)
    counts = read.needs.least
    note = Note("Preempted", f"stopped and waiting for its place: {lost}{why}")
    return replacing_round(standing.job, counts, {}, now=now, decision=decision, note=note)


def withdraw(standing: Standing, why: str, *, now: float, most: Mapping[str, int] | None) -> Write | None:
    """Withdraw the unused places of a job. `most`: the replicas by task with which a preemptible job is to wait. None
    if nothing has to be written."""
    job, read, old = standing.job, standing.job.read, standing.job.read.notes.allocation
    decision, note = decision_of("wait", why, now), Note("Waiting", why, is_warning=True)
    if old is None or (read.terms.is_preemptible and any(standing.done.values())):
        return None
    if read.terms.is_preemptible and (most or job.has_started()):
        return replacing_round(job, most or read.needs.least, {}, now=now, decision=decision, note=note)
    nodes = {}
    if not read.terms.is_preemptible and job.has_started() and not job.is_incomplete:
        unused = standing.unused
        nodes = {
            task: tuple("" if index in unused.get(task, {}) else node for index, node in enumerate(places))
            for task, places in old.nodes.items()
        }
    at = patches.placed(read, nodes, now=now)
    return patches.change_job(read, allocation=at, decision=decision, note=note)


def _text_write(read: JobRecord, decision: Mapping[str, str], reason: Reason, now: float) -> Write | None:
    """Update the text of why a job waits or stays as it is, if it has changed."""
    last, action = read.notes.decision, decision["action"]
    is_same = last.action == action
    if action == "keep" or (is_same and last.why == decision["why"]):
        return None
    if is_same and (isinstance(reason, TakesTooLong) or 0 <= now - untrusted.seconds(last.time) < _REPEAT_SECONDS):
        return None
    note = None
    if not is_same:
        is_warning = not reason.can_end or action == "late"
        note = Note("Waiting", decision["why"], is_warning=is_warning)
    return patches.change_job(read, decision=decision, note=note)


def _note(standing: Standing, counts: Mapping[str, int], why: str) -> Note:
    before = sum(len(places) for places in standing.places.values())
    after = sum(counts.values())
    if standing.is_displaced:
        return Note("Rescheduled", f"placed again with {counted(after, 'replica')}, as {standing.displaced}; {why}")
    if standing.leaves:
        return Note("Rescheduled", why)
    if not before:
        return Note("Admitted", f"{counted(after, 'replica')}: {_spread(counts)}; {why}")
    if re.match(r"\d+ of its ", why):
        return Note("Rescheduled", why)
    if before == after:
        return Note("Rescheduled", f"moved with {counted(after, 'replica')}; {why}")
    return Note("Resized", f"{before} → {counted(after, 'replica')}: {_spread(counts)}; {why}")


def _spread(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} × {task}" for task, count in counts.items())


def _shrinks(standing: Standing, target: Mapping[str, Mapping[str, int]]) -> bool:
    """Whether some node will hold fewer replicas of the job than now."""
    return any(
        count > target.get(task, {}).get(node, 0)
        for task, places in standing.places.items()
        for node, count in Counter(places.values()).items()
    )
