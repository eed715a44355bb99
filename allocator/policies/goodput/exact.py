"""Exhaustive search for clusters of a few jobs and nodes, where whole replicas on whole nodes decide.

Branch and bound over the configurations of one job after the other and the nodes that they could go to; the bound is
the exact optimum of what is left if the nodes were one. Plain numbers: at this size numpy only gets in the way.
"""

from __future__ import annotations

from dataclasses import dataclass

Amount = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Option:
    """One configuration of a job: its value, replicas, and the nodes that it may only be on (None: anywhere).

    `fixed` is a placement that it has to take as it is: where the job is now.
    """

    value: float
    count: int
    fixed: tuple[tuple[int, int], ...] | None = None
    spread: bool = False


@dataclass(frozen=True, slots=True)
class Job:
    """A job of the search: the request of one replica, where it may go, and its options."""

    request: Amount
    nodes: tuple[int, ...]
    options: tuple[Option, ...]


Answer = list[tuple[tuple[int, int], ...] | None]


def search(
    jobs: list[Job], free: list[list[int]], scarce: int, *, start: float, most_steps: int, good_enough: float
) -> tuple[float, Answer] | None:
    """The best allocation worth more than `start`: its value and each job's (node, count)s, None where it gets nothing.

    `scarce` is the resource whose sum bounds what is left. Ends after `most_steps` placements tried, or when within
    `good_enough` of the bound. None when nothing better was found.
    """
    total = sum(max(0, node[scarce]) for node in free)
    bounds = _bounds(jobs, scarce, total)
    target = bounds[0][total] * good_enough
    best: list[float] = [start]
    found: list[Answer | None] = [None]
    chosen: Answer = [None] * len(jobs)
    steps = [0]

    def descend(at: int, value: float, left: int) -> None:
        if value > best[0]:
            best[0], found[0] = value, [*chosen[:at], *([None] * (len(jobs) - at))]
        if at == len(jobs) or steps[0] > most_steps or best[0] >= target:
            return
        if value + bounds[at][max(0, left)] <= best[0] * (1 + 1e-9):
            return
        job = jobs[at]
        for option in job.options:
            if value + option.value + bounds[at + 1][max(0, left)] <= best[0] * (1 + 1e-9):
                continue
            for places in _placements(job, option, free):
                steps[0] += 1
                for node, count in places:
                    for r, amount in enumerate(job.request):
                        free[node][r] -= count * amount
                chosen[at] = places
                descend(at + 1, value + option.value, left - option.count * job.request[scarce])
                chosen[at] = None
                for node, count in places:
                    for r, amount in enumerate(job.request):
                        free[node][r] += count * amount
                if steps[0] > most_steps or best[0] >= target:
                    return
        descend(at + 1, value, left)

    descend(0, 0.0, total)
    return None if found[0] is None else (best[0], found[0])


def _bounds(jobs: list[Job], scarce: int, total: int) -> list[list[float]]:
    """Best value of the jobs from each one on, for each amount of the scarce resource, nodes put together."""
    out = [[0.0] * (total + 1)]
    for job in reversed(jobs):
        after = out[0]
        now = after.copy()
        for option in job.options:
            need = option.count * job.request[scarce]
            for left in range(need, total + 1):
                value = option.value + after[left - need]
                now[left] = max(now[left], value)
        out.insert(0, now)
    return out


def _placements(job: Job, option: Option, free: list[list[int]]) -> list[tuple[tuple[int, int], ...]]:
    """Ways to place the option; nodes that look alike count once."""
    if option.fixed is not None:
        fits = all(
            count * amount <= free[node][r] or amount == 0
            for node, count in option.fixed
            for r, amount in enumerate(job.request)
        )
        return [option.fixed] if fits else []
    room = {node: _room(job.request, free[node]) for node in job.nodes}
    if not option.spread:
        seen: set[Amount] = set()
        out: list[tuple[tuple[int, int], ...]] = []
        for node in sorted(room, key=lambda n: (room[n], n)):
            look = tuple(free[node])
            if room[node] >= option.count and look not in seen:
                seen.add(look)
                out.append(((node, option.count),))
        return out
    places: list[tuple[int, int]] = []
    left = option.count
    for node in sorted(room, key=lambda n: (-room[n], n)):
        if left and room[node]:
            places.append((node, min(left, room[node])))
            left -= places[-1][1]
    return [tuple(sorted(places))] if left == 0 else []


def _room(request: Amount, free: list[int]) -> int:
    return max(0, min((free[r] // amount for r, amount in enumerate(request) if amount), default=1 << 30))
