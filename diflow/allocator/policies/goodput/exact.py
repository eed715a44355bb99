"""Exhaustive search for clusters of a few jobs and nodes, where whole replicas on whole nodes decide.

Branch and bound over the configurations of one job after the other and their nodes; the bound is the exact optimum of
the remaining jobs if all nodes were one. Plain numbers: at this size numpy is slower.
"""

from __future__ import annotations

from dataclasses import dataclass

Amount = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Option:
    """One configuration of a job: its value and replicas, and whether they may be spread over several nodes.

    `fixed`: the only placement of this option, the job's current one; None: any.
    """

    value: float
    count: int
    fixed: tuple[tuple[int, int], ...] | None = None
    spread: bool = False


@dataclass(frozen=True, slots=True)
class SearchJob:
    """A job of the search: the request of one replica, its eligible nodes, and its options."""

    request: Amount
    nodes: tuple[int, ...]
    options: tuple[Option, ...]


Answer = list[tuple[tuple[int, int], ...] | None]


def search(
    jobs: list[SearchJob], free: list[list[int]], scarce: int, *, start: float, most_steps: int, good_enough: float
) -> tuple[float, Answer] | None:
    """The best allocation with a value above `start`: the value, and (node, count) pairs for each job or None.

    `scarce`: the resource whose sum gives the bound. Ends after `most_steps` placements, or at the fraction
    `good_enough` of the bound. None if nothing better was found.
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


def _bounds(jobs: list[SearchJob], scarce: int, total: int) -> list[list[float]]:
    """Best value of the jobs from each one on, for each amount of the scarce resource, as if all nodes were one."""
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


def _placements(job: SearchJob, option: Option, free: list[list[int]]) -> list[tuple[tuple[int, int], ...]]:
    """Placements of the option; of nodes with equal free capacity only the first is tried."""
    if option.fixed is not None:
        fits = all(
            count * amount <= free[node][r] or amount == 0
            for node, count in option.fixed
            for r, amount in enumerate(job.request)
        )
        return [option.fixed] if fits else []
    slots = {node: _slots(job.request, free[node]) for node in job.nodes}
    if not option.spread:
        seen: set[Amount] = set()
        out: list[tuple[tuple[int, int], ...]] = []
        for node in sorted(slots, key=lambda n: (slots[n], n)):
            look = tuple(free[node])
            if slots[node] >= option.count and look not in seen:
                seen.add(look)
                out.append(((node, option.count),))
        return out
    places: list[tuple[int, int]] = []
    left = option.count
    for node in sorted(slots, key=lambda n: (-slots[n], n)):
        if left and slots[node]:
            places.append((node, min(left, slots[node])))
            left -= places[-1][1]
    return [tuple(sorted(places))] if left == 0 else []


def _slots(request: Amount, free: list[int]) -> int:
    return max(0, min((free[r] // amount for r, amount in enumerate(request) if amount), default=1 << 30))
