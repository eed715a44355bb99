"""Volcano: the unit tests of its actions, and of its plugins `priority`, `gang`, `nodeorder` and `predicates`.

Volcano says of each pod whether it may be preempted and what its priority is; here that is a job's to say. A group with
pods of both kinds is a job with the kept pods as its minimum, where no more than the others can be asked of it; else it
is two jobs, of which the one called `-kept` may not be preempted. A minimum below the number of a group's tasks makes
no gang of them all: they are a job each. Queue priorities are left out where nothing depends on them.
"""

from __future__ import annotations

from typing import Any

from diflow.common.predicates import Where
from tests.policies.field import reasons
from tests.policies.field.rows import (
    GI,
    Case,
    Ends,
    G,
    NotAsked,
    Other,
    Source,
    amounts,
    case,
    ends,
    job,
    node,
    queue,
    role,
    roles,
)

_ALLOCATE = "pkg/scheduler/actions/allocate/allocate_test.go"
_DEQUEUE = "pkg/scheduler/actions/allocate/dequeue_strategy_test.go"
_FIFO = "pkg/scheduler/actions/allocate/allocate_priority_fifo_test.go"
_QUOTA = "pkg/scheduler/actions/allocate/allocate_guaranteequota_test.go"
_PREEMPT = "pkg/scheduler/actions/preempt/preempt_test.go"
_RECLAIM = "pkg/scheduler/actions/reclaim/reclaim_test.go"
_GANG_PREEMPT = "pkg/scheduler/actions/gangpreempt/gangpreempt_test.go"
_GANG_RECLAIM = "pkg/scheduler/actions/gangreclaim/gangreclaim_fairness_test.go"
_PRIORITY = "pkg/scheduler/plugins/priority/priority_test.go"
_NODE_ORDER = "pkg/scheduler/plugins/nodeorder/nodeorder_test.go"
_PREDICATES = "pkg/scheduler/plugins/predicates/predicates_test.go"

_OF_FAIR = NotAsked(reasons.SETTING_OF_FAIR)

LOW, MEDIUM, HIGH = 10, 20, 100_000


def _at(file: str, name: str) -> Source:
    return Source("Volcano", file, name)


_ONE: dict[str, Any] = {"cpu": 1, "memory": G}
_C1 = (queue("c1"),)
_Q1 = (queue("q1"),)
_Q1_Q2 = (queue("q1"), queue("q2"))


def _for(role: str) -> Where:
    return Where(selector=(("nodeRole", role),))


_MASTER, _WORKER = {"nodeRole": "master"}, {"nodeRole": "worker"}

ALLOCATE: tuple[Case, ...] = (
    case(
        "of two pods the one runs whose node there is",
        _at(_ALLOCATE, "prepredicate failed: node selector does not match"),
        [node("n1", cpu=2, memory=4 * GI, labels=_WORKER)],
        _C1,
        [job("p1", "c1", where=_for("master"), **_ONE), job("p2", "c1", where=_for("worker"), **_ONE)],
        ends({"p1": 0, "p2": 1}),
    ),
    case(
        "a gang of two roles starts with one of each where one of each fits",
        _at(_ALLOCATE, "prepredicate failed and tasks are not used up, continue on until min member meet"),
        [node("n1", cpu=1, memory=2 * GI, labels=_MASTER), node("n2", cpu=1, memory=2 * GI, labels=_WORKER)],
        _C1,
        [
            roles(
                "pg1",
                "c1",
                role("master", 1, 2, where=_for("master"), **_ONE),
                role("worker", 1, 2, where=_for("worker"), **_ONE),
            )
        ],
        ends({"pg1.master": 1, "pg1.worker": 1}),
    ),
    case(
        "a gang whose masters do not all fit starts no worker",
        _at(_ALLOCATE, "master's min member can not be allocated, break from allocating"),
        [node("n1", cpu=1, memory=2 * GI, labels=_MASTER), node("n2", cpu=2, memory=2 * GI, labels=_WORKER)],
        _C1,
        [
            roles(
                "pg1",
                "c1",
                role("master", 2, 2, where=_for("master"), **_ONE),
                role("worker", 1, 2, where=_for("worker"), **_ONE),
            )
        ],
        ends({"pg1.master": 0, "pg1.worker": 0}),
    ),
    case(
        "a queue whose job does not fit holds no other queue back",
        _at(_ALLOCATE, "high priority queue should not block others"),
        [node("n1", cpu=2, memory=4 * G)],
        [queue("c1"), queue("c2")],
        [job("pg1", "c1", cpu=3, memory=G), job("pg2", "c2", **_ONE)],
        ends({"pg1": 0, "pg2": 1}),
    ),
    case(
        "the queue that holds less is served first",
        _at(_ALLOCATE, "queue with low DRF share value has high priority, should allocate first"),
        [node("node-1", cpu=5, memory=5 * G)],
        [queue("q-1"), queue("q-2")],
        [
            job("pg-small-1", "q-1", on={"node-1": 1}, **_ONE),
            job("pg-large-1", "q-1", cpu=2, memory=2 * G),
            job("pg-large-2", "q-2", cpu=3, memory=2 * G),
        ],
        ends({"pg-small-1": 1, "pg-large-1": 0, "pg-large-2": 1}),
        fit=Other(ends({"pg-small-1": 1, "pg-large-1": 1, "pg-large-2": 0}), reasons.NO_QUEUES),
        together=Other(ends({"pg-small-1": 0, "pg-large-1": 1, "pg-large-2": 1}), reasons.VICTIM_BY_WORTH),
    ),
    case(
        "a queue that was served comes after one that now holds less",
        _at(_ALLOCATE, "queue's DRF share value will be updated and its priority will change"),
        [node("node-1", cpu=5, memory=5 * G)],
        [queue("q-1"), queue("q-2")],
        [
            # Jobs of one age are told apart by name there, and so the large one of q-2 is the older here.
            job("pg-small-1", "q-1", on={"node-1": 1}, **_ONE),
            job("pg-large-1", "q-1", cpu=2, memory=2 * G),
            job("pg-large-2", "q-2", cpu=2, memory=2 * G),
            job("pg-small-2", "q-2", **_ONE),
        ],
        ends({"pg-small-1": 1, "pg-large-1": 1, "pg-large-2": 1, "pg-small-2": 0}),
    ),
    case(
        "a queue's next job is served when its first has all that it wants",
        _at(_ALLOCATE, "queue's one jobs has no pending tasks, should be put back to queues for next job"),
        [node("node-1", cpu=5, memory=5 * G)],
        [queue("q-1")],
        [job("pg-1", "q-1", on={"node-1": 1}, **_ONE), job("pg-2", "q-1", cpu=2, memory=2 * G)],
        ends({"pg-1": 1, "pg-2": 1}),
    ),
    case(
        "jobs start in their order where there is capacity for all",
        _at(_DEQUEUE, "FIFO strategy should schedule jobs in order when resources are sufficient"),
        [node("n1", cpu=4, memory=8 * G)],
        _Q1,
        [job("pg1", "q1", **_ONE), job("pg2", "q1", **_ONE)],
        ends({"pg1": 1, "pg2": 1}),
    ),
    case(
        "a job of ten cores on a node of two holds the next one back nowhere",
        _at(_DEQUEUE, "Traverse strategy should skip first job; Default strategy should behave like traverse"),
        [node("n1", cpu=2, memory=4 * G)],
        _Q1,
        [job("pg1", "q1", cpu=10, memory=10 * G), job("pg2", "q1", **_ONE)],
        ends({"pg1": 0, "pg2": 1}),
    ),
    case(
        "a job that does not fit holds two of its priority back nowhere",
        _at(_FIFO, "PriorityFIFO: all same priority, all can proceed"),
        [node("n1", cpu=2, memory=4 * GI)],
        _Q1,
        [
            job("pg-a", "q1", priority=1000, cpu=4, memory=G),
            job("pg-b", "q1", priority=1000, **_ONE),
            job("pg-c", "q1", priority=1000, **_ONE),
        ],
        ends({"pg-a": 0, "pg-b": 1, "pg-c": 1}),
    ),
    case(
        "a job of lower priority uses what one that does not fit leaves idle",
        _at(_FIFO, "PriorityFIFO: same priority job can proceed after failure, lower priority blocked"),
        [node("n1", cpu=2, memory=4 * GI)],
        _Q1,
        [
            job("pg-a", "q1", priority=1000, cpu=4, memory=G),
            job("pg-b", "q1", priority=1000, **_ONE),
            job("pg-c", "q1", priority=500, **_ONE),
        ],
        ends({"pg-a": 0, "pg-b": 1, "pg-c": 0}),
        ours=ends({"pg-a": 0, "pg-b": 1, "pg-c": 1}),
        differs=reasons.HOLDS_NOBODY_BACK,
    ),
    case(
        "two queues run in what a third is guaranteed and does not ask for",
        _at(_QUOTA, "two share queue, use other queue guarantee resource"),
        [node("n1", cpu=20, memory=20 * GI)],
        [
            queue("c1", guarantee=amounts(cpu=15, memory=15 * G), cap=amounts(cpu=15, memory=15 * G)),
            queue("c2", cap=amounts(cpu=5, memory=5 * G)),
            queue("c3", cap=amounts(cpu=5, memory=5 * G)),
        ],
        [job("pg2", "c2", cpu=3, memory=3 * G), job("pg3", "c3", cpu=4, memory=4 * G)],
        ends({"pg2": 1, "pg3": 0}, {"pg2": 0, "pg3": 1}),
        ours=ends({"pg2": 1, "pg3": 1}),
        differs=reasons.BORROWED,
    ),
)

PREEMPT: tuple[Case, ...] = (
    case(
        "a gang that lacks one of its three pods gets it beside eight idle cores",
        _at(_PREEMPT, "do not preempt if there are enough idle resources"),
        [node("n1", cpu=10, memory=10 * G)],
        _Q1,
        [job("pg1", "q1", 3, on={"n1": 2}, **_ONE)],
        ends({"pg1": 3}),
    ),
    case(
        "of two jobs at their minimum or above nobody gives anything",
        _at(_PREEMPT, "do not preempt if job is pipelined"),
        [node("n1", cpu=3, memory=3 * G)],
        _Q1,
        [job("pg1", "q1", 1, 2, on={"n1": 2}, **_ONE), job("pg2", "q1", 1, 2, on={"n1": 1}, **_ONE)],
        ends({"pg1": 2, "pg2": 1}),
    ),
    case(
        "a job of higher priority takes the one pod that may be preempted",
        _at(_PREEMPT, "preempt one task of different job to fit both jobs on one node"),
        [node("n1", cpu=2, memory=2 * G)],
        _Q1,
        [
            job("pg1", "q1", on={"n1": 1}, priority=LOW, **_ONE),
            job("pg1-kept", "q1", on={"n1": 1}, priority=LOW, preemptible=False, **_ONE),
            job("pg2", "q1", 1, 2, priority=HIGH, **_ONE),
        ],
        ends({"pg1": 0, "pg1-kept": 1, "pg2": 1}),
    ),
    case(
        "two of three small pods are enough for a large one beside three idle cores",
        _at(_PREEMPT, "preempt enough tasks to fit large task of different job"),
        [node("n1", cpu=6, memory=6 * G)],
        _Q1,
        [
            job("pg1", "q1", 1, 3, on={"n1": 3}, priority=LOW, **_ONE),
            job("pg2", "q1", priority=HIGH, cpu=5, memory=5 * G),
        ],
        ends({"pg1": 1, "pg2": 1}),
    ),
    case(
        "a job of higher priority takes from its own queue where the queue's cap is all that it lacks",
        _at(_PREEMPT, "preempt low priority job in same queue"),
        [node("n1", cpu=12, memory=12 * G)],
        [queue("q1", cap=amounts(cpu=4, memory=4 * G))],
        [
            job("pg1", "q1", on={"n1": 1}, priority=LOW, cpu=3, memory=3 * G),
            job("pg2", "q1", priority=HIGH, cpu=3, memory=3 * G),
        ],
        ends({"pg1": 0, "pg2": 1}),
    ),
    case(
        "nobody is stopped where both fit within the cap and on the node",
        _at(_PREEMPT, "preempt low priority job in same queue: allocatable and has enough resource, don't preempt"),
        [node("n1", cpu=12, memory=12 * G)],
        [queue("q1", cap=amounts(cpu=6, memory=6 * G))],
        [
            job("pg1", "q1", on={"n1": 1}, priority=LOW, cpu=3, memory=3 * G),
            job("pg2", "q1", priority=HIGH, cpu=3, memory=3 * G),
        ],
        ends({"pg1": 1, "pg2": 1}),
    ),
    case(
        "under a cap only the pod of lower priority that may be preempted gives way",
        _at(_PREEMPT, "preempt low priority job in same queue but not pod with preemptable=false or higher priority"),
        [node("n1", cpu=12, memory=12 * G)],
        [queue("q1", cap=amounts(cpu=3, memory=3 * G))],
        [
            job("pg1", "q1", on={"n1": 1}, priority=LOW, **_ONE),
            job("pg1-high", "q1", on={"n1": 1}, priority=HIGH, **_ONE),
            job("pg1-kept", "q1", on={"n1": 1}, priority=LOW, preemptible=False, **_ONE),
            job("pg2", "q1", priority=HIGH, **_ONE),
        ],
        ends({"pg1": 0, "pg1-high": 1, "pg1-kept": 1, "pg2": 1}),
    ),
    case(
        "a pod that asks for nothing gives up the node's last place for a pod",
        _at(_PREEMPT, "unBestEffort high-priority pod preempt BestEffort low-priority pod in same queue"),
        [node("n1", cpu=12, memory=12 * G, pods=1)],
        [queue("q1", cap=amounts(cpu=6, memory=6 * G))],
        [job("pg1", "q1", on={"n1": 1}, priority=LOW), job("pg2", "q1", priority=HIGH, cpu=3, memory=3 * G)],
        ends({"pg1": 0, "pg2": 1}),
    ),
    case(
        "a pod that asks for nothing takes the node's last place for a pod",
        _at(_PREEMPT, "BestEffort high-priority pod preempt BestEffort low-priority pod in same queue"),
        [node("n1", cpu=12, memory=12 * G, pods=1)],
        [queue("q1", cap=amounts(cpu=6, memory=6 * G))],
        [job("pg1", "q1", on={"n1": 1}, priority=LOW), job("pg2", "q1", priority=HIGH)],
        ends({"pg1": 0, "pg2": 1}),
    ),
    case(
        "a gang of higher priority takes both nodes",
        _at(_PREEMPT, "task nominated to a node that passes predicates still preempts for its gang"),
        [node("n1", cpu=2, memory=2 * G), node("n2", cpu=2, memory=2 * G)],
        _Q1,
        [
            job("pg1", "q1", 1, 2, on={"n1": 1, "n2": 1}, priority=LOW, cpu=2, memory=2 * G),
            job("pg2", "q1", 2, priority=HIGH, cpu=2, memory=2 * G),
        ],
        ends({"pg1": 0, "pg2": 2}),
    ),
    case(
        "of two equal victims one is enough",
        # Which of the two nodes it is, is the binpack plugin's weight of GPUs there.
        _at(_PREEMPT, "prefer binpack node when highest-priority victims tie"),
        [node("n1", cpu=1, memory=G, gpu=10), node("n2", cpu=1, memory=G, gpu=2)],
        _Q1,
        [
            job("pg1", "q1", 1, 2, on={"n1": 1, "n2": 1}, priority=LOW, gpu=1, **_ONE),
            job("pg2", "q1", priority=HIGH, gpu=1, **_ONE),
        ],
        ends({"pg1": 1, "pg2": 1}),
    ),
    case(
        "the victim is the job of lowest priority, whatever its node",
        _at(_PREEMPT, "victim priority beats node-order score"),
        [node("n1", cpu=1, memory=G, gpu=10), node("n2", cpu=1, memory=G, gpu=2)],
        _Q1,
        [
            job("pg1", "q1", on={"n1": 1}, priority=LOW, gpu=1, **_ONE),
            job("pg2", "q1", on={"n2": 1}, priority=MEDIUM, gpu=1, **_ONE),
            job("pg3", "q1", priority=HIGH, gpu=1, **_ONE),
        ],
        ends({"pg1": 0, "pg2": 1, "pg3": 1}),
    ),
    case(
        "one victim rather than two",
        _at(_PREEMPT, "disable node-order score preserves default selection"),
        [node("n1", cpu=1, memory=G, gpu=10), node("n2", cpu=1, memory=G, gpu=2)],
        _Q1,
        [
            job("pg1", "q1", on={"n1": 1}, priority=LOW, gpu=2, **_ONE),
            job("pg2", "q1", 1, 2, on={"n2": 2}, priority=LOW, cpu=0.5, memory=G // 2, gpu=1),
            job("pg3", "q1", priority=HIGH, gpu=2, **_ONE),
        ],
        ends({"pg1": 0, "pg2": 2, "pg3": 1}),
        together=Other(ends({"pg1": 0, "pg2": 2, "pg3": 1}, {"pg1": 1, "pg2": 0, "pg3": 1}), reasons.VICTIM_BY_WORTH),
    ),
    case(
        "both pods of a gang use the capacity of one victim",
        _at(_PREEMPT, "reuse capacity freed by a sibling's preemption instead of evicting on another node"),
        [node("n1", cpu=2, memory=2 * G), node("n2", cpu=2, memory=2 * G)],
        _Q1,
        [
            job("pg1", "q1", on={"n1": 1}, priority=LOW, cpu=2, memory=2 * G),
            job("pg2", "q1", on={"n2": 1}, priority=MEDIUM, cpu=2, memory=2 * G),
            job("pg3", "q1", 2, priority=HIGH, **_ONE),
        ],
        ends({"pg1": 0, "pg2": 1, "pg3": 2}, on={"pg3": ["n1"]}),
    ),
    case(
        "of two pods of one group the one of lower priority gives way",
        _at(_PRIORITY, "enable preempt low priority: enablePreemptable:true"),
        [node("node1", cpu=6, memory=6 * G), node("node2", cpu=2, memory=2 * G)],
        [queue("q1", cap=amounts(cpu=6, memory=6 * G))],
        [
            job("pg1", "q1", on={"node1": 1}, priority=100, cpu=3, memory=3 * G),
            job("pg1-high", "q1", on={"node1": 1}, priority=1000, cpu=3, memory=3 * G),
            job("pg2", "q1", priority=1000, cpu=3, memory=3 * G),
        ],
        ends({"pg1": 0, "pg1-high": 1, "pg2": 1}),
    ),
    case(
        "without the step preempt no priority takes anything",
        _at(_PRIORITY, "disable preempt low priority: enablePreemptable:false"),
        [node("node1", cpu=3, memory=3 * G), node("node2", cpu=3, memory=3 * G)],
        [queue("q1", cap=amounts(cpu=6, memory=6 * G))],
        [
            job("pg1", "q1", on={"node1": 1}, priority=100, cpu=3, memory=3 * G),
            job("pg1-kept", "q1", on={"node2": 1}, priority=100, preemptible=False, cpu=3, memory=3 * G),
            job("pg2", "q1", priority=1000, cpu=3, memory=3 * G),
        ],
        ends({"pg1": 1, "pg1-kept": 1, "pg2": 0}),
        settings={"steps": ("allocate", "backfill", "reclaim")},
        fit=_OF_FAIR,
        together=_OF_FAIR,
    ),
    case(
        "a gang of lower priority is stopped whole",
        # The test asks who may be a victim, and names no node: here it is one of one core.
        _at(_GANG_PREEMPT, "SelectDomainVictims_RespectAllowWholeBundle (allowed), AllowVictimJobWhenPreemptableUnset"),
        [node("n1", cpu=1, memory=G)],
        _Q1,
        [job("victim", "q1", on={"n1": 1}, priority=10, **_ONE), job("preemptor", "q1", priority=100, **_ONE)],
        ends({"victim": 0, "preemptor": 1}),
    ),
    case(
        "with the rule drf no gang of lower priority is stopped whole",
        _at(_GANG_PREEMPT, "SelectDomainVictims_RespectAllowWholeBundle (not allowed)"),
        [node("n1", cpu=1, memory=G)],
        _Q1,
        [job("victim", "q1", on={"n1": 1}, priority=10, **_ONE), job("preemptor", "q1", priority=100, **_ONE)],
        ends({"victim": 1, "preemptor": 0}),
        settings={"victims": ("drf",)},
        fit=_OF_FAIR,
        together=_OF_FAIR,
    ),
    case(
        "what may not be preempted gives no priority anything",
        _at(_GANG_PREEMPT, "SelectDomainVictims_RespectVictimJobPreemptable"),
        [node("n1", cpu=1, memory=G)],
        _Q1,
        [
            job("victim", "q1", on={"n1": 1}, priority=10, preemptible=False, **_ONE),
            job("preemptor", "q1", priority=100, **_ONE),
        ],
        ends({"victim": 1, "preemptor": 0}),
    ),
)

_POOL = {pool: Where(selector=(("nodepool", pool),)) for pool in ("gpu", "cpu")}
_GPU: dict[str, Any] = {"labels": {"nodepool": "gpu"}}
_CPU: dict[str, Any] = {"labels": {"nodepool": "cpu"}}


def _across(name: str, test: str, guaranteed: dict[str, int], theirs: Ends) -> Case:
    """An elastic job with all seven cores, and one that asks for two of them in another queue."""
    return case(
        name,
        _at(_GANG_RECLAIM, f"TestGangReclaimNeedsQueueFairnessPlugin: {test}"),
        [node("n1", cpu=7, memory=16 * GI)],
        [queue("qa", guarantee=guaranteed), queue("qb", guarantee=guaranteed)],
        [
            job("pg-low", "qa", 1, 7, on={"n1": 7}, priority=10, **_ONE),
            job("pg-high", "qb", priority=1000, cpu=2, memory=G),
        ],
        theirs,
        ours=ends({"pg-low": 5, "pg-high": 1}),
        differs=reasons.NO_MORE_THAN_ASKED,
    )


RECLAIM: tuple[Case, ...] = (
    case(
        "a queue below its share reclaims the one pod of three that may be preempted",
        _at(_RECLAIM, "Two Queue with one Queue overusing resource, should reclaim"),
        [node("n1", cpu=3, memory=3 * GI)],
        _Q1_Q2,
        [
            job("pg1", "q1", on={"n1": 1}, priority=LOW, **_ONE),
            job("pg1-kept", "q1", 1, 2, on={"n1": 2}, priority=LOW, preemptible=False, **_ONE),
            job("pg2", "q2", priority=HIGH, **_ONE),
        ],
        ends({"pg1": 0, "pg1-kept": 2, "pg2": 1}),
    ),
    case(
        "of two queues above their share the one gives whose job has the lower priority",
        _at(_RECLAIM, "sort reclaimees when reclaiming from overusing queue"),
        [node("n1", cpu=4, memory=4 * GI)],
        [queue("q1"), queue("q2"), queue("q3")],
        [
            job("pg1", "q1", 1, 2, on={"n1": 2}, priority=500, **_ONE),
            job("pg2", "q2", 1, 2, on={"n1": 2}, priority=100, **_ONE),
            job("pg3", "q3", priority=1000, **_ONE),
        ],
        ends({"pg1": 2, "pg2": 1, "pg3": 1}),
    ),
    case(
        "reclaiming goes by the nodes that the newcomer may use",
        _at(_RECLAIM, "reclaim on full node with matching nodeSelector, skip non-matching node"),
        [node("n1", cpu=3, memory=3 * GI, **_GPU), node("n2", cpu=0.5, memory=GI // 2, **_CPU)],
        _Q1_Q2,
        [
            job("pg1", "q1", 2, 3, on={"n1": 3}, priority=LOW, where=_POOL["gpu"], **_ONE),
            job("pg2", "q2", priority=HIGH, where=_POOL["gpu"], **_ONE),
        ],
        ends({"pg1": 2, "pg2": 1}),
    ),
    case(
        "nothing is reclaimed for a job that no node would take",
        _at(_RECLAIM, "no reclaim when all nodes are structurally incompatible with nodeSelector"),
        [node("n1", cpu=3, memory=3 * GI, **_CPU)],
        _Q1_Q2,
        [
            job("pg1", "q1", 2, 3, on={"n1": 3}, priority=LOW, **_ONE),
            job("pg2", "q2", priority=HIGH, where=_POOL["gpu"], **_ONE),
        ],
        ends({"pg1": 3, "pg2": 0}),
    ),
    case(
        "of two full nodes only the one gives that the newcomer may use",
        _at(_RECLAIM, "reclaim only on matching node when mixed matching and non-matching nodes are full"),
        [node("n1", cpu=3, memory=3 * GI, **_GPU), node("n2", cpu=1, memory=GI, **_CPU)],
        _Q1_Q2,
        [
            job("pg1", "q1", 2, 3, on={"n1": 3}, priority=LOW, where=_POOL["gpu"], **_ONE),
            job("pg1-elsewhere", "q1", on={"n2": 1}, priority=LOW, **_ONE),
            job("pg2", "q2", priority=HIGH, where=_POOL["gpu"], **_ONE),
        ],
        ends({"pg1": 2, "pg1-elsewhere": 1, "pg2": 1}),
    ),
    _across(
        "a queue of seven cores gives two to a newcomer of two",
        "with proportion",
        {},
        ends({"pg-low": 1, "pg-high": 1}),
    ),
    _across(
        "a queue of seven cores that is guaranteed half gives two to a newcomer of two",
        "with capacity",
        amounts(cpu=3.5, memory=8 * GI),
        ends({"pg-low": 3, "pg-high": 1}),
    ),
)

_BEST_EFFORT_ON = Where(selector=(("selector", "worker"),))
_SMALL_AND_LARGE = (node("n1", cpu=2, memory=4 * GI), node("n2", cpu=4, memory=8 * GI))

NODES: tuple[Case, ...] = (
    case(
        "by least_requested a pod goes to the node of which it takes the smaller part",
        _at(_NODE_ORDER, "leastAllocated strategy"),
        _SMALL_AND_LARGE,
        _C1,
        [job("pg1", "c1", **_ONE)],
        ends({"pg1": 1}, on={"pg1": ["n2"]}),
        ours=ends({"pg1": 1}, on={"pg1": ["n1", "n2"]}),
        differs=reasons.AS_THE_NODE_IS,
        settings={"node_order": (("least_requested", 1.0),)},
        fit=_OF_FAIR,
        together=_OF_FAIR,
    ),
    case(
        "by most_requested a pod goes to the node of which it takes the larger part",
        _at(_NODE_ORDER, "mostAllocated strategy"),
        _SMALL_AND_LARGE,
        _C1,
        [job("pg1", "c1", **_ONE)],
        ends({"pg1": 1}, on={"pg1": ["n1"]}),
    ),
    case(
        "a node with two places for pods takes two, of the job of higher priority",
        _at(_PREDICATES, "TestNodeNum: pod-predicate"),
        [node("node1", cpu=4, memory=4 * G, pods=2, labels={"selector": "worker"})],
        _Q1,
        [
            roles("pg1", "q1", role("bound", 1, 1, where=_BEST_EFFORT_ON), role("free", 1, 1), priority=2),
            job("pg2", "q1", priority=1),
        ],
        ends({"pg1.bound": 1, "pg1.free": 1, "pg2": 0}),
    ),
)
