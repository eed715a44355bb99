"""Random clusters with several pools of nodes, and jobs that have reported from some of them: snapshots and histories.

The clusters are those of generators.py with more nodes; the draws for the pools come from a generator of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from diflow.allocator.model.arrays import FloatArray
from diflow.allocator.model.plan import Plan
from diflow.allocator.model.profile import POOL, Prior, Profile, clean
from diflow.allocator.model.snapshot import Snapshot
from diflow.common.names import pool_number
from tests.policies.generators import random_snapshot, with_holders
from tests.policies.lives import MOMENTS, later

NAMES = ("fast", "middle", "slow")
NUMBERS = tuple(pool_number(name) for name in NAMES)
HOSTILE = (0.0, 1.0, 7.5, 1e9)
"""Numbers of no pool, as a user may write them."""


def pool_clusters(seed: int, count: int, ask: Callable[[Snapshot], Plan]) -> Iterator[tuple[Snapshot, Plan]]:
    """`count` snapshots, each with the policy's plan (`ask`): histories of random clusters with two or three pools."""
    rng = np.random.default_rng([seed, 5])
    left = count
    while left > 0:
        small = rng.random() < 0.6
        snapshot = random_cluster(rng, jobs=4 if small else 8, nodes=4 if small else 8)
        for _ in range(min(left, MOMENTS)):
            plan = ask(snapshot)
            yield snapshot, plan
            snapshot = later(rng, snapshot, plan)
        left -= MOMENTS


def random_cluster(rng: np.random.Generator, *, jobs: int, nodes: int) -> Snapshot:
    """A random snapshot with pools, in which most running jobs are in one pool each."""
    bare = random_snapshot(rng, jobs=jobs, nodes=nodes, holding=0.0)
    pools = int(rng.integers(2, len(NAMES) + 1))
    _, of_node = np.unique(rng.integers(0, pools, bare.nodes), return_inverse=True)
    pools = int(of_node.max()) + 1  # each has a node, as in any snapshot of a cluster
    cluster = replace(
        bare,
        node_pool=of_node,
        pool_names=NAMES[:pools],
        pool_speed=np.array([4.0, 2.0, 1.0])[:pools] if rng.random() < 0.6 else np.ones(pools),
        job_profile=tuple(None if p is None else _in_pools(rng, p, pools) for p in bare.job_profile),
    )
    held = with_holders(rng, cluster, 0.6)
    if rng.random() < 0.2:
        return held
    # Of a job in several pools, what is in the pool of its first node.
    first = {
        int(job): held.held_node[held.role_job[held.held_role] == job][0] for job in set(held.role_job[held.held_role])
    }
    stays = np.array(
        [of_node[node] == of_node[first[int(held.role_job[role])]]
         for role, node in zip(held.held_role, held.held_node, strict=True)],
        dtype=np.bool_,
    )  # fmt: skip
    return replace(
        held, held_role=held.held_role[stays], held_node=held.held_node[stays], held_count=held.held_count[stays]
    )


def _in_pools(rng: np.random.Generator, profile: Profile, pools: int) -> Profile:
    """The profile as of a job that has run in some of the pools, with the records of others; some are hostile."""
    rows = np.array(profile.observations, dtype=np.float64)
    if rows.ndim != 2 or rows.shape[1] != POOL + 1 or not len(rows):
        return profile
    choice = np.array([*NUMBERS[:pools], *(HOSTILE if rng.random() < 0.3 else ())])
    rows[:, POOL] = choice[rng.integers(0, len(choice), len(rows))]
    records = {NUMBERS[p]: _record(rng, rows) for p in range(pools) if rng.random() < 0.3}
    return replace(
        profile,
        observations=rows,
        parameters=profile.parameters if rng.random() < 0.2 else None,
        priors=records,
        prior=next(iter(records.values()), None),
        local_batches={NUMBERS[0]: int(rng.integers(1, 512))} if rng.random() < 0.3 else {},
        restart_seconds=float(rng.integers(1, 300)) if rng.random() < 0.3 else None,
    )


def _record(rng: np.random.Generator, rows: FloatArray) -> Prior:
    made = clean(rows).copy()
    made[:, 3:5] *= np.exp(rng.normal())
    return Prior(version=int(rng.integers(2**40)), observations=made, works=np.sort(rng.uniform(1e3, 1e6, 4)))
