"""Clusters of a few jobs and nodes: the exhaustive search of `exact.py`, and its answer as a placement."""

from __future__ import annotations

import math

import numpy as np

from diflow.allocator.model.ledger import Ledger
from diflow.allocator.policies.goodput.case import Case
from diflow.allocator.policies.goodput.exact import Option, SearchJob, search
from diflow.allocator.policies.goodput.optimise import Problem
from diflow.allocator.policies.goodput.placing import Placing

TINY_JOBS = 8
TINY_NODES = 6
SEARCH_STEPS = 600
"""Most placements that the exhaustive search tries: about 10 ms."""
CLOSE = 0.995
"""Fraction of the upper bound at which the search stops."""


def is_tiny(case: Case) -> bool:
    """Whether the search applies: few jobs and nodes; jobs that may change have one role; no caps, quotas, topology."""
    s, facts = case.snapshot, case.snapshot.facts
    plain = s.jobs <= TINY_JOBS and s.nodes <= TINY_NODES and case.quota.most is None
    plain = plain and not facts.capped and not facts.has_topology
    return plain and all(len(facts.roles_of[j]) == 1 for j in np.flatnonzero(case.view.free_to_move).tolist())


def searched(case: Case, problem: Problem, best: float) -> Placing | None:
    """A placement worth more than `best`; None if the search finds none."""
    s, values = case.snapshot, case.values
    movable = np.flatnonzero(case.view.free_to_move).tolist()
    ledger = Ledger(s)
    for j in movable:
        ledger.release(j)
    # Pods may stay on a closed node, but no new ones may start there.
    free = np.where(s.node_open[:, None], ledger.free, 0).tolist()
    jobs = [_job(case, problem, ledger, j) for j in movable]
    rest = best - sum(values.present()[~case.view.free_to_move])
    found = search(jobs, free, _scarce(problem), start=rest, most_steps=SEARCH_STEPS, good_enough=CLOSE)
    if found is None:
        return None
    placing = Placing(case)
    places = dict(zip(movable, found[1], strict=True))
    changed = [j for j in movable if (places[j] or ()) != _present(case, j)]
    for j in changed:
        placing.ledger.release(j)
    for j in changed:
        if there := places[j]:
            nodes, counts = (np.array(part, dtype=np.int64) for part in zip(*there, strict=True))
            placing.ledger.take(j, case.gangs.elastic_list[j], nodes, counts)
    placing.explain(np.array(changed, dtype=np.int64))
    placing.fill()
    return placing


def _job(case: Case, problem: Problem, ledger: Ledger, job: int) -> SearchJob:
    """The job with its options, the most valuable first."""
    s, view, gangs, values = case.snapshot, case.view, case.gangs, case.values
    role = gangs.elastic_list[job]
    nodes = s.eligible(role)
    if s.job_pinned[job] and ledger.home(job).any():
        nodes = nodes & ledger.home(job)
    low, per_node = gangs.low_list[job], gangs.per_node_list[job]
    weight, bonus = float(values.weight[job]), float(values.bonus[job])

    def worth(speed: float) -> float:
        return bonus + weight * math.pow(speed, case.settings.concavity)

    out: list[Option] = []
    for c in np.flatnonzero(np.isfinite(problem.value[job])).tolist():
        count = int(case.table.replicas[job, c])
        paid = float(values.penalty[job, c]) if view.running[job] and s.job_preemptible[job] else 1.0
        out.append(Option(worth(values.speed[job, c] * paid), count, spread=count > per_node))
        if count == low and 1 < count <= per_node:
            out.append(Option(worth(values.spread_speed[job] * paid), count, spread=True))
    if view.running[job]:
        out.append(Option(worth(values.present_speed[job]), int(view.held[job]), fixed=_present(case, job)))
    out.sort(key=lambda option: (-option.value, option.count))
    return SearchJob(tuple(s.role_request[role].tolist()), tuple(np.flatnonzero(nodes).tolist()), tuple(out))


def _present(case: Case, job: int) -> tuple[tuple[int, int], ...]:
    """The job's current placement as (node, count) pairs."""
    s = case.snapshot
    mine = s.held_role == case.gangs.elastic[job]
    return tuple(zip(s.held_node[mine].tolist(), s.held_count[mine].tolist(), strict=True))


def _scarce(problem: Problem) -> int:
    largest = np.where(np.isfinite(problem.value)[:, :, None], problem.amount, 0).max(axis=1).sum(axis=0)
    return int(np.argmax(largest / np.maximum(problem.capacity[-1], 1)))
