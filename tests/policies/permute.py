"""The same cluster in another order, and the comparison of plans for it.

Snapshots are canonical (sorted by name), so the order must change before `views.build`: the snapshot is converted back
to views, shuffled, and built again.
"""

from __future__ import annotations

import numpy as np

from diflow.allocator.model.plan import Plan
from diflow.allocator.model.snapshot import UNLIMITED, Snapshot
from diflow.allocator.model.topology import Level
from diflow.allocator.model.views import POOL_LABEL, JobView, NodeView, QueueView, RoleView, build
from diflow.common.predicates import Requirement, Where


def permuted(snapshot: Snapshot, rng: np.random.Generator) -> Snapshot:
    """The snapshot, built again from its views in a random order."""
    s = snapshot
    names = s.resources
    domain_of = s.node_domain.T.tolist() if s.level_names else [[] for _ in range(s.nodes)]

    def amounts(row: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> dict[str, int]:
        return {name: int(value) for name, value in zip(names, row, strict=True)}

    nodes = [
        NodeView(
            name=s.node_names[n],
            allocatable=amounts(s.node_allocatable[n]),
            foreign=amounts(s.node_foreign[n]),
            releasing=amounts(s.node_releasing[n]),
            is_open=bool(s.node_open[n]),
            labels={
                POOL_LABEL: s.pool_names[int(s.node_pool[n])],
                **{f"class-{c}": "yes" for c in range(len(s.class_nodes)) if s.class_nodes[c, n]},
                **{f"preferred-{c}": str(weight) for c, weight in enumerate(s.class_preference[:, n].tolist())},
                **{s.level_names[i]: s.domain_names[d] for i, d in enumerate(domain_of[n]) if d >= 0},
            },
        )
        for n in range(s.nodes)
    ]
    queues = [
        QueueView(
            name=s.queue_names[q],
            weight=float(s.queue_weight[q]),
            guarantee=amounts(s.queue_guarantee[q]),
            cap={k: v for k, v in amounts(s.queue_cap[q]).items() if v < UNLIMITED},
            parent=s.queue_names[int(s.queue_parent[q])] if s.queue_parent[q] >= 0 else None,
        )
        for q in range(s.queues)
    ]
    starts = s.role_starts()
    jobs = []
    for j in range(s.jobs):
        roles = range(int(starts[j]), int(starts[j + 1]))
        placed = {
            s.role_names[g]: {
                s.node_names[int(n)]: int(c)
                for n, c in zip(s.held_node[s.held_role == g], s.held_count[s.held_role == g], strict=True)
            }
            for g in roles
        }
        jobs.append(
            JobView(
                name=s.job_names[j],
                roles=tuple(
                    RoleView(
                        name=s.role_names[g],
                        request=amounts(s.role_request[g]),
                        minimum=int(s.role_min[g]),
                        maximum=int(s.role_max[g]),
                        desired=int(s.role_desired[g]),
                        where=_where(s, int(s.role_class[g])),
                    )
                    for g in roles
                ),
                queue=s.queue_names[int(s.job_queue[j])] if s.job_queue[j] >= 0 else s.job_queue_name[j],
                priority=int(s.job_priority[j]),
                preemptible=bool(s.job_preemptible[j]),
                pinned=bool(s.job_pinned[j]),
                created_seconds=float(s.job_created_seconds[j]),
                started_seconds=_time(s.job_started_seconds[j]),
                changed_seconds=_time(s.job_changed_seconds[j]),
                restarts=int(s.job_restarts[j]),
                service_seconds=float(s.job_service_seconds[j]),
                placed=placed,
                profile=s.job_profile[j],
                required=s.level_names[s.job_required[j]] if s.job_required[j] >= 0 else "",
            )
        )
    order = [rng.permutation(len(part)).tolist() for part in (nodes, jobs, queues)]
    return build(
        [nodes[i] for i in order[0]],
        [jobs[i] for i in order[1]],
        [queues[i] for i in order[2]],
        now_seconds=s.now_seconds,
        pool_speed=dict(zip(s.pool_names, s.pool_speed.tolist(), strict=True)),
        levels=[Level(name, name) for name in s.level_names],
    )


def same_decisions(first: Snapshot, plan: Plan, second: Snapshot, other: Plan) -> bool:
    """Whether both plans are equal, byte for byte."""
    return plan.to_bytes(first) == other.to_bytes(second)


def _where(snapshot: Snapshot, kind: int) -> Where:
    weights = sorted(set(snapshot.class_preference[kind].tolist()) - {0})
    return Where(
        affinity=((Requirement(f"class-{kind}", "Exists"),),),
        preferred=tuple((w, (Requirement(f"preferred-{kind}", "In", (str(w),)),)) for w in weights),
    )


def _time(value: float) -> float | None:
    return None if value < 0 else float(value)
