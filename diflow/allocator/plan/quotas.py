"""Gangs for which a quota of their namespace has no room: none of their pods is made while it cannot hold all.

A quota is the namespace's own. It holds the gang that needs more than is left, and those that a plan would start beside
others which use that up; nobody else waits for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from diflow.allocator.model.plan import Plan
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.plan.holding import Standing
from diflow.allocator.watch.quotas import Quota, usage
from diflow.common import quantities
from diflow.common.words import counted
from diflow.record.job import Role

Quotas = Mapping[str, Sequence[Quota]]
"""By namespace."""
_MOST: Final = 2


def limited(standings: Sequence[Standing], quotas: Quotas) -> tuple[list[Standing], dict[str, str]]:
    """(the standings with no more replicas than their quotas have room for, why others would get no pods, by key)."""
    if not quotas:
        return list(standings), {}
    missing = _on_their_way(standings, quotas)
    out, refused = [], dict[str, str]()
    for standing in standings:
        found = standing
        for quota in quotas.get(standing.job.read.identity.namespace, ()):
            room = _room(quota, missing)
            if not standing.is_placed and (short := _short(_least(standing), room)):
                refused.setdefault(standing.job.key, _text(standing, quota, room, short))
            else:
                found = _with_most(found, room)
        out.append(found)
    return out, refused


def beyond(standings: Sequence[Standing], snapshot: Snapshot, plan: Plan, quotas: Quotas) -> dict[str, str]:
    """By key: the gangs that a plan would start together with others, for all of which their quotas have no room."""
    if not quotas:
        return {}
    counts = _given(snapshot, plan)
    missing = _on_their_way(standings, quotas)
    rooms = {(quota.namespace, quota.name): _room(quota, missing) for some in quotas.values() for quota in some}
    out: dict[str, str] = {}
    starts = (s for s in standings if not s.is_placed and any(counts.get(s.job.title, {}).values()))
    for standing in sorted(starts, key=lambda s: s.job.order):
        there = _there(standing)
        given = counts[standing.job.title]
        needs = _needs(standing, {task: max(0, count - there.get(task, 0)) for task, count in given.items()})
        mine = quotas.get(standing.job.read.identity.namespace, ())
        short = next((quota for quota in mine if _short(needs, rooms[quota.namespace, quota.name])), None)
        if short is not None:
            out[standing.job.key] = (
                f"the quota {short.name} of its namespace has no room for all of its pods beside those of other jobs "
                "that start now"
            )
            continue
        for quota in mine:
            _take(rooms[quota.namespace, quota.name], needs)
    return out


def _given(s: Snapshot, plan: Plan) -> dict[str, dict[str, int]]:
    """The replicas by task that a plan gives each job, by title."""
    out: dict[str, dict[str, int]] = {}
    for role, count in zip(plan.role.tolist(), plan.count.tolist(), strict=True):
        of_job = out.setdefault(s.job_names[int(s.role_job[role])], {})
        of_job[s.role_names[role]] = of_job.get(s.role_names[role], 0) + count
    return out


def _on_their_way(standings: Iterable[Standing], quotas: Quotas) -> dict[str, quantities.Amounts]:
    """By namespace: what pods will use that were admitted and do not exist yet."""
    out: dict[str, quantities.Amounts] = {}
    for standing in standings:
        space = standing.job.read.identity.namespace
        if space in quotas and standing.is_placed:
            roles = {role.name: role for role in standing.job.read.needs.roles}
            for replica in standing.job.lacks():
                role = roles.get(replica.rpartition("-")[0])
                if role is not None:
                    quantities.add(out.setdefault(space, {}), usage(role))
    return out


def _room(quota: Quota, missing: Mapping[str, quantities.Amounts]) -> dict[str, int]:
    less = missing.get(quota.namespace, {})
    return {name: left - less.get(name, 0) for name, left in quota.room.items()}


def _least(standing: Standing) -> quantities.Amounts:
    """What its pods need at least that do not exist yet."""
    roles, there = standing.job.read.needs.roles, _there(standing)
    least = {
        role.name: role.low if standing.job.read.terms.is_preemptible else role.desired - _done(standing, role)
        for role in roles
    }
    return _needs(standing, {name: max(0, count - there.get(name, 0)) for name, count in least.items()})


def _there(standing: Standing) -> dict[str, int]:
    """By task: its pods that exist, which the quota counts already."""
    out: dict[str, int] = {}
    for pod in standing.job.current_pods:
        out[pod.task] = out.get(pod.task, 0) + 1
    return out


def _done(standing: Standing, role: Role) -> int:
    return len(standing.done.get(role.name, ()))


def _needs(standing: Standing, counts: Mapping[str, int]) -> quantities.Amounts:
    out: quantities.Amounts = {}
    for role in standing.job.read.needs.roles:
        count = counts.get(role.name, 0)
        quantities.add(out, {name: count * each for name, each in usage(role).items()})
    return out


def _short(needs: Mapping[str, int], room: Mapping[str, int]) -> list[str]:
    """The resources of which more is needed than is left."""
    return sorted(name for name, left in room.items() if needs.get(name, 0) > max(0, left))


def _take(room: dict[str, int], needs: Mapping[str, int]) -> None:
    for name in room:
        room[name] -= needs.get(name, 0)


def _with_most(standing: Standing, room: dict[str, int]) -> Standing:
    """The standing of an elastic job with no more replicas than there is room for."""
    roles = standing.job.read.needs.roles
    if not standing.job.read.terms.is_preemptible or all(role.low == role.high for role in roles):
        return standing
    there = _there(standing)
    left, most = dict(room), dict(standing.most or {})
    firm = {role.name: max(role.low, len(standing.places.get(role.name, ()))) for role in roles}
    if not standing.is_placed:  # else they are among those on their way
        _take(left, _needs(standing, {name: max(0, count - there.get(name, 0)) for name, count in firm.items()}))
    is_less = False
    for role in roles:
        more = role.high - firm[role.name]
        each = usage(role)
        for name, amount in left.items():
            if each.get(name, 0) > 0:
                more = min(more, max(0, amount) // each[name])
        _take(left, {name: more * amount for name, amount in each.items()})
        if firm[role.name] + more < min(role.high, most.get(role.name, role.high)):
            most[role.name] = firm[role.name] + more
            is_less = True
    return replace(standing, most=most) if is_less else standing


def _text(standing: Standing, quota: Quota, room: Mapping[str, int], short: Sequence[str]) -> str:
    needs = _least(standing)
    parts = [
        f"{name}: {_amount(name, max(0, room[name]))} of {_amount(name, quota.hard[name])} left, and its gang needs "
        f"{_amount(name, needs[name])}"
        for name in short[:_MOST]
    ]
    return (
        f"the quota {quota.name} of its namespace has no room for all of its pods ({'; '.join(parts)}); it starts when "
        "other pods end or the quota is raised"
    )


def _amount(name: str, value: int) -> str:
    if name in ("pods", "count/pods"):
        return counted(value, "pod")
    resource = name.removeprefix("requests.").removeprefix("limits.")
    if resource == "cpu":
        return f"{value / 1000:g}"
    return f"{value}Mi" if resource in ("memory", "ephemeral-storage") else str(value)
