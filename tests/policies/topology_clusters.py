"""Random clusters whose nodes are in racks and blocks, and whose jobs require a domain: snapshots and their histories.

The clusters are those of generators.py with more nodes; the draws for the topology come from a generator of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from diflow.allocator.model.arrays import frozen
from diflow.allocator.model.plan import Plan
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.model.topology import Level, domains
from tests.policies.generators import random_snapshot, with_holders
from tests.policies.lives import MOMENTS, later

LEVELS = (Level("block", "block"), Level("rack", "rack"))


def topology_clusters(
    seed: int, count: int, ask: Callable[[Snapshot], Plan], *, profiled: bool = True
) -> Iterator[tuple[Snapshot, Plan]]:
    """`count` snapshots, each with the policy's plan (`ask`): histories of random clusters with a topology."""
    rng = np.random.default_rng([seed, 4])
    left = count
    while left > 0:
        small = rng.random() < 0.6
        snapshot = random_cluster(rng, jobs=4 if small else 8, nodes=5 if small else 9, profiled=profiled)
        for _ in range(min(left, MOMENTS)):
            plan = ask(snapshot)
            yield snapshot, plan
            snapshot = later(rng, snapshot, plan)
        left -= MOMENTS


def random_cluster(rng: np.random.Generator, *, jobs: int = 6, nodes: int = 8, profiled: bool = True) -> Snapshot:
    """A random snapshot with one or two levels. Some nodes lack a label. Of the jobs that require a domain most are in
    one; labels of nodes may have changed under the others."""
    bare = random_snapshot(rng, jobs=jobs, nodes=nodes, profiled=profiled, holding=0.0)
    levels = LEVELS if rng.random() < 0.6 else LEVELS[1:]
    racks = int(rng.integers(1, max(2, bare.nodes // 2 + 1)))
    rack_of = rng.integers(0, racks, bare.nodes).tolist()
    missing = rng.random((bare.nodes, 2)) < (0.08 if rng.random() < 0.5 else 0.0)
    labels = [
        {
            **({} if missing[n, 0] else {"block": f"b{rack_of[n] % 2}"}),
            **({} if missing[n, 1] else {"rack": f"r{rack_of[n]}"}),
        }
        for n in range(bare.nodes)
    ]
    node_domain, names = domains(levels, labels)
    required = np.where(rng.random(bare.jobs) < 0.5, rng.integers(0, len(levels), bare.jobs), -1)
    whole = replace(
        bare,
        level_names=tuple(level.name for level in levels),
        node_domain=node_domain,
        domain_names=names,
        job_required=frozen(required.astype(np.int64)),
    )
    if rng.random() < 0.6:
        return with_holders(rng, whole, 0.5)
    # Placed without regard to the topology, as before it was set; then a few jobs are in several of "their" domains.
    held = with_holders(rng, bare, 0.5)
    for j in range(held.jobs):
        there = node_domain[required[j], held.held_node[held.role_job[held.held_role] == j]]
        if required[j] >= 0 and len(there) and (there != there[0]).any() | (there[0] < 0) and rng.random() < 0.7:
            required[j] = -1
    fields = ("level_names", "node_domain", "domain_names")
    return replace(held, job_required=frozen(required), **{name: getattr(whole, name) for name in fields})
