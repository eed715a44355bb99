"""The snapshot between the writes that free capacity and those that use it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from diflow.allocator.model.arrays import frozen
from diflow.allocator.model.plan import ADMIT, KEEP, RESIZE, Plan
from diflow.allocator.model.snapshot import Snapshot


def carry_out_first_step(snapshot: Snapshot, plan: Plan) -> Snapshot:
    """The snapshot halfway through the plan: removed pods are terminating, pods bound now run, promised ones do not
    exist yet."""
    action = plan.action
    stays = (action == KEEP) | ((action == ADMIT) & plan.bind_now)
    grows = (action == RESIZE) & plan.bind_now
    by_role = (stays | grows)[snapshot.role_job]
    now_there = by_role[plan.role] if len(plan.role) else np.zeros(0, dtype=np.bool_)
    leaves = ~(by_role[snapshot.held_role]) if len(snapshot.held_role) else np.zeros(0, dtype=np.bool_)
    gone = snapshot.usage(snapshot.held_role[leaves], snapshot.held_node[leaves], snapshot.held_count[leaves])
    return replace(
        snapshot,
        node_releasing=frozen(snapshot.node_releasing + gone),
        job_started_seconds=frozen(
            np.where(
                (action == ADMIT) & plan.bind_now & (snapshot.job_started_seconds < 0),
                snapshot.now_seconds,
                snapshot.job_started_seconds,
            )
        ),
        held_role=frozen(plan.role[now_there]),
        held_node=frozen(plan.node[now_there]),
        held_count=frozen(plan.count[now_there]),
    )
