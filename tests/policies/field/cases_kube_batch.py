"""kube-batch: the unit tests of its actions, its end-to-end tests, and issues that its users opened.

The end-to-end tests measure the cluster that they find; here it is two nodes of four cores (eight slots of one core),
with memory to spare. A ReplicaSet there is pods of others here.
"""

from __future__ import annotations

from typing import Any

from diflow.common.predicates import NODE_NAME, Requirement, Taint, Where
from tests.policies.field import reasons
from tests.policies.field.rows import (
    GI,
    Case,
    G,
    NotAsked,
    Other,
    Source,
    case,
    ends,
    job,
    node,
    queue,
    role,
    roles,
)

_ACTIONS = "pkg/scheduler/actions"
_OF_FAIR = NotAsked(reasons.SETTING_OF_FAIR)


def _at(file: str, name: str) -> Source:
    return Source("kube-batch", file, name)


def _allocate(name: str) -> Source:
    return _at(f"{_ACTIONS}/allocate/allocate_test.go", name)


def _e2e(name: str) -> Source:
    return _at("test/e2e/job.go", name)


_ONE: dict[str, Any] = {"cpu": 1, "memory": G}
_C1 = (queue("c1"),)
_Q1 = (queue("q1"),)
_Q1_Q2 = (queue("q1"), queue("q2"))

ACTIONS: tuple[Case, ...] = (
    case(
        "a group of two fits on one node",
        _allocate("one Job with two Pods on one node"),
        [node("n1", cpu=2, memory=4 * GI)],
        _C1,
        [job("pg1", "c1", 1, 2, **_ONE)],
        ends({"pg1": 2}),
    ),
    case(
        "two queues of one weight get one core each",
        _allocate("two Jobs on one node"),
        [node("n1", cpu=2, memory=4 * G)],
        [queue("c1"), queue("c2")],
        [job("pg1", "c1", 1, 2, **_ONE), job("pg2", "c2", 1, 2, **_ONE)],
        ends({"pg1": 1, "pg2": 1}),
    ),
    case(
        "a job takes an idle core and nothing from itself",
        _at(f"{_ACTIONS}/preempt/preempt_test.go", "one Job with two Pods on one node"),
        [node("n1", cpu=3, memory=3 * GI)],
        _Q1,
        [job("pg1", "q1", 1, 4, on={"n1": 2}, **_ONE)],
        ends({"pg1": 3}, evicts=1),
        ours=ends({"pg1": 3}),
        differs=reasons.IDLE_FIRST,
        together=Other(ends({"pg1": 2}), reasons.POWERS_OF_TWO),
    ),
    case(
        "a job gives what it has above its minimum to another of its queue and priority",
        _at(f"{_ACTIONS}/preempt/preempt_test.go", "two Jobs on one node"),
        [node("n1", cpu=2, memory=2 * G)],
        _Q1,
        [job("pg1", "q1", 1, 2, on={"n1": 2}, **_ONE), job("pg2", "q1", 1, 2, **_ONE)],
        ends({"pg1": 0, "pg2": 2}),
        ours=ends({"pg1": 1, "pg2": 1}),
        differs=reasons.EQUALS_SHARE,
        together=Other(ends({"pg1": 2, "pg2": 0}), reasons.INSIDE_BY_WORTH),
    ),
    case(
        # The same numbers, with a priority and a minimum that call for both: the original's job has neither.
        "a job of higher priority takes both cores",
        _at(f"{_ACTIONS}/preempt/preempt_test.go", "two Jobs on one node, with the second of higher priority"),
        [node("n1", cpu=2, memory=2 * G)],
        _Q1,
        [job("pg1", "q1", 1, 2, on={"n1": 2}, **_ONE), job("pg2", "q1", 2, priority=1, **_ONE)],
        ends({"pg1": 0, "pg2": 2}),
    ),
    case(
        "a queue below its share reclaims one of three",
        _at(f"{_ACTIONS}/reclaim/reclaim_test.go", "Two Queue with one Queue overusing resource, should reclaim"),
        [node("n1", cpu=3, memory=3 * GI)],
        _Q1_Q2,
        [job("pg1", "q1", 1, 3, on={"n1": 3}, **_ONE), job("pg2", "q2", **_ONE)],
        ends({"pg1": 2, "pg2": 1}),
    ),
    case(
        "a gang that does not fit holds no smaller job back",
        _at(f"{_ACTIONS}/backfill/backfill_test.go", "two jobs with one node"),
        [node("n1", cpu=2, memory=4 * GI)],
        _C1,
        [job("pg1", "c1", 2, cpu=2, memory=G), job("pg2", "c1", cpu=2, memory=G)],
        ends({"pg1": 0, "pg2": 1}),
    ),
)

_SLOTS = (node("n1", cpu=4, memory=8 * G), node("n2", cpu=4, memory=8 * G))
_FULL = {"n1": 4, "n2": 4}
_DEFAULT = (queue("default"),)

JOBS: tuple[Case, ...] = (
    case(
        "an elastic job fills an empty cluster",
        _e2e("Schedule Job"),
        _SLOTS,
        _DEFAULT,
        [job("qj-1", "default", 2, 8, **_ONE)],
        ends({"qj-1": range(2, 9)}),
        ours=ends({"qj-1": 8}),
    ),
    case(
        "three elastic jobs of one queue share a cluster",
        _e2e("Schedule Multiple Jobs"),
        _SLOTS,
        _DEFAULT,
        [job(f"mqj-{i}", "default", 2, 8, **_ONE) for i in (1, 2, 3)],
        ends({f"mqj-{i}": range(2, 9) for i in (1, 2, 3)}),
        ours=ends({"mqj-1": 3, "mqj-2": 3, "mqj-3": 2}),
        together=Other(ends({"mqj-1": 8, "mqj-2": 0, "mqj-3": 0}), reasons.INSIDE_BY_WORTH),
    ),
    case(
        "a gang waits beside pods of others",
        _e2e("Gang scheduling, while the ReplicaSet is there"),
        [node("n1", cpu=4, memory=8 * G, foreign=3), node("n2", cpu=4, memory=8 * G, foreign=2)],
        _DEFAULT,
        [job("gang-qj", "default", 5, **_ONE)],
        ends({"gang-qj": 0}),
    ),
    case(
        "a gang starts when pods of others are gone",
        _e2e("Gang scheduling, after the ReplicaSet"),
        _SLOTS,
        _DEFAULT,
        [job("gang-qj", "default", 5, **_ONE)],
        ends({"gang-qj": 5}),
    ),
    case(
        "a gang that fills the cluster is not stopped for a second one",
        _e2e("Gang scheduling: Full Occupied; Statement"),
        _SLOTS,
        _DEFAULT,
        [job("qj-1", "default", 8, on=_FULL, **_ONE), job("qj-2", "default", 8, **_ONE)],
        ends({"qj-1": 8, "qj-2": 0}),
    ),
    case(
        "an elastic job that holds everything gives half to a second one",
        _e2e("Preemption"),
        _SLOTS,
        _DEFAULT,
        [job("preemptee-qj", "default", 1, 8, on=_FULL, **_ONE), job("preemptor-qj", "default", 1, 8, **_ONE)],
        ends({"preemptee-qj": 4, "preemptor-qj": 4}),
        together=Other(ends({"preemptee-qj": 8, "preemptor-qj": 0}), reasons.INSIDE_BY_WORTH),
    ),
    case(
        "an elastic job that holds everything gives two thirds to two others",
        _e2e("Multiple Preemption"),
        _SLOTS,
        _DEFAULT,
        [
            job("preemptee-qj", "default", 1, 8, on=_FULL, **_ONE),
            job("preemptor-qj1", "default", 1, 8, **_ONE),
            job("preemptor-qj2", "default", 1, 8, **_ONE),
        ],
        ends({name: range(2, 9) for name in ("preemptee-qj", "preemptor-qj1", "preemptor-qj2")}),
        ours=ends(
            {"preemptee-qj": 3, "preemptor-qj1": 3, "preemptor-qj2": 2},
            {"preemptee-qj": 3, "preemptor-qj1": 2, "preemptor-qj2": 3},
            {"preemptee-qj": 2, "preemptor-qj1": 3, "preemptor-qj2": 3},
        ),
        together=Other(ends({"preemptee-qj": 8, "preemptor-qj1": 0, "preemptor-qj2": 0}), reasons.INSIDE_BY_WORTH),
    ),
    case(
        "pods that ask for nothing run beside a full cluster",
        _e2e("Schedule BestEffort Job"),
        _SLOTS,
        _DEFAULT,
        [roles("test", "default", role("slot", 2, 8, **_ONE), role("free", 2, 4))],
        ends({"test.slot": range(2, 9), "test.free": range(2, 5)}),
        ours=ends({"test.slot": 8, "test.free": 4}),
    ),
    case(
        "a gang of two roles starts with its minimum of each",
        _e2e("TaskPriority"),
        [node("n1", cpu=4, memory=8 * G, foreign=2), node("n2", cpu=4, memory=8 * G, foreign=2)],
        _DEFAULT,
        [roles("multi-pod-job", "default", role("worker", 3, 8, **_ONE), role("master", 1, 1, **_ONE))],
        ends({"multi-pod-job.worker": 3, "multi-pod-job.master": 1}),
    ),
    case(
        "what does not fit holds nothing smaller back",
        # A minimum of one of two tasks is no gang of both: they are two jobs here.
        _e2e("Try to fit unassigned task with different resource requests in one loop"),
        [node("n1", cpu=4, memory=8 * G, foreign=4), node("n2", cpu=4, memory=8 * G, foreign=3)],
        _DEFAULT,
        [job("master", "default", cpu=2, memory=G), job("worker", "default", cpu=0.5, memory=G)],
        ends({"master": 0, "worker": 1}),
    ),
    case(
        "the job of higher priority starts first",
        _e2e("Job Priority"),
        _SLOTS,
        _DEFAULT,
        [job("pri-job-1", "default", 5, 8, priority=1, **_ONE), job("pri-job-2", "default", 5, 8, priority=2, **_ONE)],
        ends({"pri-job-1": 0, "pri-job-2": range(5, 9)}),
        ours=ends({"pri-job-1": 0, "pri-job-2": 8}),
    ),
    case(
        "a job of higher priority goes before one that has waited for a minute",
        _e2e("Starvation Prevention"),
        _SLOTS,
        _DEFAULT,
        [
            job("job-1-low-pri", "default", 7, priority=1, **_ONE),
            job("job-2-high-pri", "default", 7, priority=2, **_ONE),
        ],
        ends({"job-1-low-pri": 7, "job-2-high-pri": 0}),
        ours=ends({"job-1-low-pri": 0, "job-2-high-pri": 7}),
        differs=reasons.AGE_PASSES_NO_PRIORITY,
    ),
    case(
        "a queue gets half of what another holds",
        _at("test/e2e/queue.go", "Reclaim"),
        _SLOTS,
        _Q1_Q2,
        [job("q1-qj-1", "q1", 1, 8, on=_FULL, **_ONE), job("q2-qj-2", "q2", 1, 8, **_ONE)],
        ends({"q1-qj-1": range(3, 6), "q2-qj-2": range(3, 6)}),
        ours=ends({"q1-qj-1": 4, "q2-qj-2": 4}),
    ),
)

_ON_N2 = Where(affinity=((Requirement(NODE_NAME, "In", ("n2",)),),))
_RATHER_N2 = Where(preferred=((100, (Requirement("host", "In", ("n2",)),)),))
_TAINT = (Taint("test-taint-key", "test-taint-val"),)
_LABELLED = tuple(node(f"n{i}", cpu=4, memory=8 * G, labels={"host": f"n{i}"}) for i in (1, 2))

NODES: tuple[Case, ...] = (
    case(
        "a pod runs on the node that it names",
        _at("test/e2e/predicates.go", "NodeAffinity"),
        _SLOTS,
        _DEFAULT,
        [job("na-job", "default", where=_ON_N2, **_ONE)],
        ends({"na-job": 1}, on={"na-job": ["n2"]}),
    ),
    case(
        "one pod with a host port runs on each node",
        _at("test/e2e/predicates.go", "Hostport"),
        _SLOTS,
        _DEFAULT,
        [job("hp-job", "default", 2, 4, ports=(28080,), **_ONE)],
        ends({"hp-job": 2}),
    ),
    case(
        "no pod runs on a tainted node",
        _at("test/e2e/predicates.go", "Taints/Tolerations, with taints"),
        [node(f"n{i}", cpu=4, memory=8 * G, taints=_TAINT) for i in (1, 2)],
        _DEFAULT,
        [job("tt-job", "default", **_ONE)],
        ends({"tt-job": 0}),
    ),
    case(
        "a pod runs when the taints are gone",
        _at("test/e2e/predicates.go", "Taints/Tolerations, without taints"),
        _SLOTS,
        _DEFAULT,
        [job("tt-job", "default", **_ONE)],
        ends({"tt-job": 1}),
    ),
    case(
        "of two nodes with equal free capacity the preferred one is taken",
        _at("test/e2e/nodeorder.go", "Node Affinity Test"),
        _LABELLED,
        _DEFAULT,
        [job("pa-job", "default", where=_RATHER_N2, **_ONE)],
        ends({"pa-job": 1}, on={"pa-job": ["n2"]}),
    ),
    case(
        "by least_requested a pod goes to the emptiest node",
        _at("test/e2e/nodeorder.go", "Least Requested Resource Test"),
        [node(f"n{i}", cpu=4, memory=8 * G) for i in (1, 2, 3)],
        _DEFAULT,
        [
            job("pa-job", "default", 3, on={"n1": 3}, cpu=0.5, memory=G),
            job("pa-job1", "default", 3, on={"n2": 3}, cpu=0.5, memory=G),
            job("pa-test-job", "default", **_ONE),
        ],
        ends({"pa-job": 3, "pa-job1": 3, "pa-test-job": 1}, on={"pa-test-job": ["n3"]}),
        settings={"node_order": (("least_requested", 1.0),)},
        fit=_OF_FAIR,
        together=_OF_FAIR,
    ),
)


def _issue(number: int, name: str) -> Source:
    return _at(f"issue #{number}", name)


ISSUES: tuple[Case, ...] = (
    case(
        "what one queue does not ask for is divided among the others",
        _issue(665, "queues of weight 1, 1, 1 on 12 cores that ask for 2, 20, 20"),
        [node("n1", cpu=12, memory=64 * G)],
        [queue("a"), queue("b"), queue("c")],
        [job("a", "a", 1, 2, **_ONE), job("b", "b", 1, 20, **_ONE), job("c", "c", 1, 20, **_ONE)],
        ends({"a": 2, "b": 5, "c": 5}),
    ),
    case(
        "a queue of cores and one of GPUs both run",
        _issue(729, "10 cores and 10 GPUs; one asks for 8 cores, one for 2 cores and 10 GPUs"),
        [node("n1", cpu=10, memory=64 * G, gpu=10)],
        [queue("a"), queue("b")],
        [
            job("A", "a", 8, **_ONE),
            roles("B", "b", role("cpu", 2, 2, **_ONE), role("gpu", 10, 10, memory=G, gpu=1)),
        ],
        ends({"A": 8, "B.cpu": 2, "B.gpu": 10}),
    ),
    case(
        "a gang of which three of four fit holds a small job back nowhere",
        _issue(561, "three nodes of 32 and three of 40 cores, a gang of 35 cores each"),
        [node(f"n{i}", cpu=cores, memory=64 * G) for i, cores in enumerate((32, 32, 32, 40, 40, 40))],
        _DEFAULT,
        [job("big", "default", 4, 6, cpu=35, memory=G), job("small", "default", **_ONE)],
        ends({"big": 0, "small": 1}),
    ),
    case(
        "a gang of which two of three fit holds a job of three cores back nowhere",
        _issue(514, "10 cores, a gang of three times four, and one of three"),
        [node("n1", cpu=10, memory=64 * G)],
        _DEFAULT,
        [job("first", "default", 3, cpu=4, memory=G), job("second", "default", cpu=3, memory=G)],
        ends({"first": 0, "second": 1}),
    ),
    case(
        "reclaiming stops at what the other queue deserves",
        _issue(882, "jobs of two queues that are evicted in turn, cycle after cycle"),
        _SLOTS,
        [queue("a"), queue("b")],
        [job("greedy", "a", 1, 8, on=_FULL, **_ONE), job("b1", "b", 1, 3, **_ONE), job("b2", "b", 1, 3, **_ONE)],
        ends({"greedy": 4, "@b": 4}),
        ours=ends({"greedy": 4, "b1": 2, "b2": 2, "@b": 4}),
        fit=Other(ends({"greedy": 3, "b1": 3, "b2": 2}, {"greedy": 3, "b1": 2, "b2": 3}), reasons.ALIKE),
    ),
    case(
        "pods of others take capacity",
        _issue(858, "pods of another scheduler on a node"),
        [node("n1", cpu=4, memory=8 * G, foreign=3)],
        _DEFAULT,
        [job("a", "default", 2, **_ONE)],
        ends({"a": 0}),
    ),
)
