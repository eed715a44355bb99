"""Volcano: the unit tests of its plugins `proportion`, `capacity` and `drf`, the latter two with their hierarchies.

The capacity plugin's `deserved` has no twin here. It is what a queue gets back from others as soon as it asks, and so
the nearest is the guarantee; but what nobody is guaranteed goes by weight here, and to whoever comes first there.
"""

from __future__ import annotations

from typing import Any

from diflow.allocator.model.views import PODS, QueueView
from diflow.common.predicates import Where
from tests.policies.field import reasons
from tests.policies.field.rows import (
    GI,
    Case,
    G,
    Other,
    Source,
    amounts,
    case,
    ends,
    job,
    node,
    queue,
)

_PROPORTION = "pkg/scheduler/plugins/proportion/proportion_test.go"
_CAPACITY = "pkg/scheduler/plugins/capacity/capacity_test.go"
_HDRF = "pkg/scheduler/plugins/drf/hdrf_test.go"


def _at(file: str, name: str) -> Source:
    return Source("Volcano", file, name)


def _deserves(name: str, deserved: dict[str, int], cap: dict[str, int] | None = None, **other: Any) -> QueueView:
    return queue(name, guarantee=deserved, cap=cap or {}, **other)


_TWO_NODES = (node("n1", cpu=2, memory=2 * G), node("n2", cpu=2, memory=2 * G))
_CAPPED = (queue("q1", cap=amounts(cpu=2, memory=2 * G)), queue("q2", cap=amounts(cpu=3, memory=3 * G)))
_LOPSIDED = (
    job("pg1", "q1", on={"n1": 1}, cpu=1, memory=2 * G),
    job("pg2", "q2", on={"n2": 1}, cpu=2, memory=G),
)
"""One holds all memory of its node, the other all cores."""

PROPORTION: tuple[Case, ...] = (
    case(
        "a queue at its cap of memory starts a job that asks for cores alone",
        _at(_PROPORTION, "TestEnqueueAndAllocable case0"),
        _TWO_NODES,
        _CAPPED,
        [*_LOPSIDED, job("pg3", "q1", cpu=1)],
        ends({"pg1": 1, "pg2": 1, "pg3": 1}),
    ),
    case(
        "a queue that holds all cores starts a job that asks for memory alone",
        _at(_PROPORTION, "TestEnqueueAndAllocable case1"),
        _TWO_NODES,
        _CAPPED,
        [*_LOPSIDED, job("pg4", "q2", memory=G)],
        ends({"pg1": 1, "pg2": 1, "pg4": 1}),
    ),
    case(
        "a queue at its cap of memory starts no job that asks for more",
        _at(_PROPORTION, "TestEnqueueAndAllocable case2, case3"),
        _TWO_NODES,
        _CAPPED,
        [*_LOPSIDED, job("pg5", "q1", cpu=1, memory=G)],
        ends({"pg1": 1, "pg2": 1, "pg5": 0}),
    ),
)

_WORKER = Where(selector=(("selector", "worker"),))
_N1 = node("n1", cpu=2, memory=4 * GI, labels={"selector": "worker"})
_N2 = node("n2", cpu=2, memory=4 * GI)
_ONE: dict[str, Any] = {"cpu": 1, "memory": GI}
_NODE: dict[str, Any] = {"cpu": 2, "memory": 4 * GI}
_THREE = (node("n1", cpu=3, memory=3 * G), node("n2", cpu=3, memory=3 * G))
_ENQUEUE = (
    _deserves("q1", amounts(cpu=2, memory=2 * G), amounts(cpu=2, memory=2 * G)),
    _deserves("q2", amounts(cpu=2, memory=2 * G), amounts(cpu=3, memory=3 * G)),
)
_LOPSIDED_THREE = (
    job("pg1", "q1", on={"n1": 1}, cpu=1, memory=3 * G),
    job("pg2", "q2", on={"n2": 1}, cpu=3, memory=G),
)

CAPACITY: tuple[Case, ...] = (
    case(
        "a queue below its cap starts a job",
        _at(_CAPACITY, "case0: Pod allocatable when queue has not exceed capability"),
        [_N1, _N2],
        [queue("q1", cap=amounts(cpu=2, memory=2 * GI))],
        [job("pg1", "q1", on={"n1": 1}, **_ONE), job("pg2", "q1", where=_WORKER, **_ONE)],
        ends({"pg1": 1, "pg2": 1}, on={"pg2": ["n1"]}),
    ),
    case(
        "a queue near its cap starts no job that would exceed it",
        _at(_CAPACITY, "case1: Pod not allocatable when queue exceed queue capability"),
        [_N1, _N2],
        [queue("q2", cap=amounts(cpu=1.5, memory=GI * 3 // 2))],
        [job("pg3", "q2", on={"n1": 1}, **_ONE), job("pg4", "q2", **_ONE)],
        ends({"pg3": 1, "pg4": 0}),
    ),
    case(
        "a queue gets back what it deserves from one that holds both nodes",
        _at(_CAPACITY, "case2: Can reclaim from other queues when allocated < deserved"),
        [_N1, _N2],
        [_deserves("q3", amounts(**_NODE)), _deserves("q4", amounts(**_NODE))],
        [job("pg5", "q3", 1, 2, on={"n1": 1, "n2": 1}, **_NODE), job("pg6", "q4", **_NODE)],
        ends({"pg5": 1, "pg6": 1}),
    ),
    case(
        "a queue above its share of cores gets back the GPUs that it deserves",
        _at(_CAPACITY, "case3: CPU & Memory are overused, scalar resource is not overused"),
        [node("n3", a100=10, **_NODE), node("n4", a100=10, **_NODE)],
        [_deserves("q5", amounts(a100=10, **_NODE)), _deserves("q6", amounts(a100=10, **_NODE))],
        [
            job("pg7", "q5", 1, 2, on={"n3": 1, "n4": 1}, a100=10),
            job("pg8", "q6", 1, 2, on={"n3": 1, "n4": 1}, **_NODE),
            job("pg9", "q6", a100=10),
        ],
        ends({"pg7": 1, "pg8": 2, "pg9": 1}),
    ),
    case(
        "a queue gets back the core that it deserves from one that deserves nothing",
        _at(_CAPACITY, "case5: Can reclaim from other queues when allocated + req <= deserved on one dimension"),
        [_N1],
        [
            _deserves("q10", amounts(cpu=2, memory=2 * GI), amounts(cpu=4, memory=4 * GI)),
            _deserves("q11", {}, amounts(cpu=2, memory=2 * GI)),
        ],
        [
            job("pg16", "q10", on={"n1": 1}, cpu=1, memory=3 * GI),
            job("pg17", "q10", **_ONE),
            job("pg18", "q11", on={"n1": 1}, **_ONE),
        ],
        ends({"pg16": 1, "pg17": 1, "pg18": 0}),
        fit=Other(ends({"pg16": 1, "pg17": 0, "pg18": 1}), reasons.NO_SHARES),
    ),
    case(
        "a queue that holds the core that it deserves takes no second one",
        _at(_CAPACITY, "case6: Can not reclaim from other queues when allocated + req > deserved"),
        [_N1],
        [
            _deserves("q12", amounts(cpu=1, memory=2 * GI), amounts(cpu=4, memory=4 * GI)),
            _deserves("q13", {}, amounts(cpu=2, memory=2 * GI)),
        ],
        [
            job("pg19", "q12", on={"n1": 1}, **_ONE),
            job("pg20", "q12", cpu=1, memory=2 * GI),
            job("pg21", "q13", on={"n1": 1}, **_ONE),
        ],
        ends({"pg19": 1, "pg20": 0, "pg21": 1}),
    ),
    case(
        "a queue within what it deserves gives no cores for the sake of GPUs",
        _at(_CAPACITY, "case7: allocated does not contain scalar dimension (GPU), deserved does; should not reclaim"),
        [node("n7", cpu=4, memory=8 * GI, gpu=4)],
        [
            _deserves("queue14", amounts(cpu=2, memory=4 * GI, gpu=2)),
            queue("queue15"),
            _deserves("queue16", amounts(cpu=2, memory=4 * GI, gpu=2)),
        ],
        [
            job("pg22", "queue14", on={"n7": 1}, cpu=2, memory=4 * GI),
            job("pg23", "queue15", on={"n7": 1}, gpu=1),
            job("pg24", "queue16", on={"n7": 1}, cpu=2, memory=GI, gpu=1),
            job("pg25", "queue16", cpu=2, memory=3 * GI, gpu=1),
        ],
        ends({"pg22": 1, "pg23": 1, "pg24": 1, "pg25": 0}),
    ),
    case(
        "of what a queue holds too much of only that is taken which is asked for",
        _at(_CAPACITY, "case8: reclaimer dimensions are considered properly while evicting reclaimees"),
        [node("n8", cpu=4, memory=8 * GI, gpu=1)],
        [
            _deserves("queue17", amounts(cpu=2, memory=2 * GI)),
            _deserves("queue18", amounts(cpu=2, memory=4 * GI, gpu=1)),
        ],
        [
            job("pg26", "queue17", on={"n8": 1}, memory=4 * GI),
            job("pg27", "queue17", on={"n8": 1}, cpu=1),
            job("pg28", "queue17", on={"n8": 1}, gpu=1),
            job("pg29", "queue18", on={"n8": 1}, cpu=2, memory=4 * GI),
            job("pg30", "queue18", cpu=1, gpu=1),
        ],
        ends({"pg26": 1, "pg27": 1, "pg28": 0, "pg29": 1, "pg30": 1}),
        fit=Other(ends({"pg26": 1, "pg27": 1, "pg28": 1, "pg29": 1, "pg30": 0}), reasons.NO_SHARES),
    ),
    case(
        "a job with the GPU that its queue deserves gives no cores",
        _at(_CAPACITY, "case9: reclaimee has intersecting scalar dimensions with deserved shouldn't be reclaimed"),
        [node("n8", cpu=4, memory=8 * GI, gpu=1)],
        [_deserves("queue19", amounts(gpu=1)), _deserves("queue20", amounts(cpu=2, memory=2 * GI))],
        [job("pg31", "queue19", on={"n8": 1}, cpu=4, memory=4 * GI, gpu=1), job("pg32", "queue20", **_ONE)],
        ends({"pg31": 1, "pg32": 0}),
    ),
    case(
        "nothing is taken from others for a job above its own queue's cap",
        _at(_CAPACITY, "case10: PreemptiveFn respects capability, no reclaim when futureUsed would exceed capability"),
        [node("n9", cpu=8, memory=100 * GI), node("n10", cpu=8, memory=100 * GI)],
        [
            _deserves("queue21", amounts(cpu=8, memory=100 * GI), amounts(cpu=8, memory=100 * GI)),
            queue("queue22", cap=amounts(cpu=2, memory=5 * GI)),
        ],
        [
            job("pg33", "queue21", on={"n9": 1}, cpu=7, memory=90 * GI),
            job("pg34", "queue21", cpu=2, memory=5 * GI),
            job("pg35", "queue22", on={"n10": 1}, cpu=2, memory=5 * GI),
        ],
        ends({"pg33": 1, "pg34": 0, "pg35": 1}),
    ),
    case(
        "a queue above its cap of memory starts a job that asks for cores alone",
        _at(_CAPACITY, "TestEnqueueAndAllocatable case0"),
        _THREE,
        _ENQUEUE,
        [*_LOPSIDED_THREE, job("pg3", "q1", cpu=1)],
        ends({"pg1": 1, "pg2": 1, "pg3": 1}),
    ),
    case(
        "a queue above what it deserves of cores starts a job that asks for memory alone",
        _at(_CAPACITY, "TestEnqueueAndAllocatable case1"),
        _THREE,
        _ENQUEUE,
        [*_LOPSIDED_THREE, job("pg4", "q2", memory=G)],
        ends({"pg1": 1, "pg2": 1, "pg4": 1}),
    ),
    case(
        "a queue above its cap of memory starts no job that asks for more",
        _at(_CAPACITY, "TestEnqueueAndAllocatable case2"),
        _THREE,
        _ENQUEUE,
        [*_LOPSIDED_THREE, job("pg5", "q1", cpu=1, memory=G)],
        ends({"pg1": 1, "pg2": 1, "pg5": 0}),
    ),
)

_EIGHT = node("n1", cpu=8, memory=8 * GI, pods=11)
_ROOT = queue("root")


def _under(
    parent: str, name: str, deserved: dict[str, int] | None = None, cap: dict[str, int] | None = None
) -> QueueView:
    return queue(name, guarantee=deserved or {}, cap=cap or {}, parent=parent)


def _cores(count: float, pods: int = 0) -> dict[str, int]:
    return amounts(cpu=count, memory=round(count * GI)) | ({PODS: pods} if pods else {})


_FOUR = (
    _ROOT,
    _under("root", "q1", cap=_cores(4)),
    _under("root", "q2", cap=_cores(4)),
    _under("q1", "q11", cap=_cores(1)),
    _under("q1", "q12", cap=_cores(3)),
)
_Q3 = _under("root", "q3", _cores(4, pods=10), _cores(4, pods=10))
_Q4 = _under("root", "q4", _cores(2, pods=1), _cores(4, pods=4))
_Q31 = _under("q3", "q31", _cores(2, pods=2), _cores(4, pods=4))
_Q32 = _under("q3", "q32", _cores(2, pods=2), _cores(4, pods=4))
_Q33 = _under("q3", "q33", {PODS: 2}, _cores(4, pods=4))
_TWO: dict[str, Any] = {"cpu": 2, "memory": 2 * GI}

HIERARCHY: tuple[Case, ...] = (
    case(
        "a job of a queue below a queue starts",
        _at(_CAPACITY, "WithHierarchy case0: Pod allocatable when queue is leaf queue"),
        [_EIGHT],
        _FOUR,
        [job("pg1", "q11", **_ONE)],
        ends({"pg1": 1}),
    ),
    case(
        "a job of a queue that has queues below it starts",
        _at(_CAPACITY, "WithHierarchy case1: Pod not allocatable when queue is not leaf queue"),
        [_EIGHT],
        _FOUR,
        [job("pg2", "q1", **_ONE)],
        ends({"pg2": 0}),
        ours=ends({"pg2": 1}),
        differs=reasons.OWN_JOBS,
    ),
    case(
        "a gang above what its queue deserves starts in what is idle, below its cap",
        _at(_CAPACITY, "WithHierarchy case2: Pod allocatable when queue has not exceed capability"),
        [_EIGHT],
        [_ROOT, _Q3, _Q4, _Q31, _Q32],
        [job("pg3", "q31", 2, **_TWO)],
        ends({"pg3": 2}),
    ),
    case(
        "a queue gets back what it deserves from its sister where their parent is at its cap",
        _at(_CAPACITY, "WithHierarchy case3: Can reclaim from other queues when allocated < deserved"),
        [_EIGHT],
        [_ROOT, _Q3, _Q31, _Q32, _Q4],
        [
            job("pg4", "q4", on={"n1": 1}, cpu=4, memory=4 * GI),
            job("pg5", "q31", 1, 2, on={"n1": 2}, **_TWO),
            job("pg6", "q32", **_TWO),
        ],
        ends({"pg4": 1, "pg5": 1, "pg6": 1}),
    ),
    case(
        "a job waits when the cap of its queue's parent is used up",
        _at(_CAPACITY, "WithHierarchy case4: Pod is not allocatable when ancestor queue's real capability not enough"),
        [_EIGHT],
        [_ROOT, _Q3, _Q31, _Q32, _Q33],
        [
            job("pg5", "q31", on={"n1": 1}, preemptible=False, **_TWO),
            job("pg7", "q32", on={"n1": 1}, **_TWO),
            job("pg8", "q33", cpu=3, memory=3 * GI),
        ],
        ends({"pg5": 1, "pg7": 1, "pg8": 0}),
    ),
    case(
        "a cap of memory says nothing about cores",
        _at(_CAPACITY, "WithHierarchy case5: If the capability cpu or memory is not specified"),
        [_EIGHT],
        [_ROOT, _under("root", "q5", cap={"memory": 4 * GI}), _under("q5", "q51", cap={"memory": 2 * GI})],
        [job("pg9", "q51", **_ONE)],
        ends({"pg9": 1}),
    ),
    case(
        "two queues without caps share the cap of their parent, and the older job has it",
        _at(
            _CAPACITY,
            "WithHierarchy case6: podgroup can't be enqueued when any ancestor queue's capability is not enough",
        ),
        [_EIGHT],
        [_ROOT, _under("root", "q6", cap=amounts(**_NODE)), _under("q6", "q61"), _under("q6", "q62")],
        [job("pg10", "q61", **_NODE), job("pg11", "q62", **_NODE)],
        ends({"pg10": 1, "pg11": 0}),
    ),
    case(
        "guarantees above the cap of their parent are no error",
        _at(
            _CAPACITY, "WithHierarchy case7: the sum of sub queue 71 and 72's guarantee exceeds the capacity of queue7"
        ),
        [_EIGHT],
        [
            _ROOT,
            _under("root", "q7", cap=amounts(cpu=6, memory=4 * GI)),
            _under("q7", "q71", amounts(cpu=4, memory=3 * GI), amounts(cpu=6, memory=4 * GI)),
            _under("q7", "q72", amounts(cpu=4, memory=3 * GI), amounts(cpu=6, memory=4 * GI)),
        ],
        [],
        ends({}),
    ),
    case(
        "a queue that deserves GPUs starts a job with one",
        _at(_CAPACITY, "WithHierarchy case8: When the queue's deserved value has a scalar resource set"),
        [node("n-gpu", cpu=8, memory=8 * GI, gpu=8)],
        [
            _ROOT,
            _under("root", "q8", _cores(4) | {"gpu": 8}),
            _under("q8", "q81", _cores(2) | {"gpu": 4}),
            _under("q8", "q82", _cores(2) | {"gpu": 4}),
        ],
        [job("pg12", "q81", gpu=1, **_TWO)],
        ends({"pg12": 1}),
    ),
    case(
        "a resource of which there is none and nobody deserves any hinders nobody",
        _at(_CAPACITY, "WithHierarchy case9: When some scalar resources are 0 in deserved, the check can still pass"),
        [node("n2", cpu=8, memory=8 * GI, gpu=8, hugepages=0)],
        [
            _ROOT,
            _under("root", "q9", _cores(2) | {"gpu": 8, "hugepages": 0}),
            _under("q9", "q91", _cores(2) | {"gpu": 4, "hugepages": 0}),
        ],
        [job("pg13", "q91", gpu=1, **_TWO)],
        ends({"pg13": 1}),
    ),
    case(
        "a cap above what the cluster has is no error",
        _at(_CAPACITY, "WithHierarchy case10: root queue's capability > cluster total resource"),
        [_EIGHT],
        [queue("root", cap=_cores(16)), _under("root", "q10", cap=amounts(cpu=10, memory=4 * GI))],
        [],
        ends({}),
    ),
    case(
        "two queues each use the cap of GPUs that they have",
        _at(_CAPACITY, "WithHierarchy case11: If the capability scalar resources is not specified"),
        [node("n2", cpu=8, memory=8 * GI, gpu=8)],
        [
            _ROOT,
            _under("root", "q1"),
            _under("q1", "q11", cap=_cores(4) | {"gpu": 4}),
            _under("q1", "q12", cap=_cores(4) | {"gpu": 4}),
        ],
        [job("pg14", "q11", gpu=4, **_ONE), job("pg15", "q12", gpu=4, **_ONE)],
        ends({"pg14": 1, "pg15": 1}),
    ),
    case(
        "a queue gets back the GPUs that it deserves from a sister that deserves none",
        _at(_CAPACITY, "WithHierarchy case12: Can reclaim from other queues on a single scalar dimension"),
        [node("n3", cpu=16, memory=16 * GI, pods=11, a100=5, rdma=1001)],
        [
            queue("root", guarantee=_cores(16) | {"a100": 4, "rdma": 1000}),
            _under("root", "q1", {"a100": 2}),
            _under("q1", "q11", {"a100": 2}),
            _under("q1", "q12"),
        ],
        [
            job("pg16", "q11", a100=2, rdma=1, **_ONE),
            job("pg17", "q12", on={"n3": 1}, a100=2, rdma=1, **_ONE),
            job("pg18", "q12", on={"n3": 1}, preemptible=False, a100=2, rdma=1, **_ONE),
        ],
        ends({"pg16": 1, "pg17": 0, "pg18": 1}),
        fit=Other(ends({"pg16": 0, "pg17": 1, "pg18": 1}), reasons.NO_SHARES),
    ),
)

_CPU: dict[str, Any] = {"cpu": 1}
_MEMORY: dict[str, Any] = {"memory": G}

HDRF: tuple[Case, ...] = (
    case(
        "departments share cores and memory each by itself",
        _at(_HDRF, "rescaling test"),
        [node("n", cpu=10, memory=10 * G)],
        [
            queue("sci", weight=50),
            queue("eng", weight=50),
            queue("eng-dev", weight=50, parent="eng"),
            queue("eng-prod", weight=50, parent="eng"),
        ],
        [
            job("pg1", "sci", 1, 10, cpu=1, memory=G),
            job("pg21", "eng-dev", 1, 10, **_CPU),
            job("pg22", "eng-prod", 1, 10, **_MEMORY),
        ],
        ends({"pg1": 5, "pg21": 5, "pg22": 5}),
    ),
    case(
        "a department whose user can get no more cores still gets its memory",
        _at(_HDRF, "blocking nodes test"),
        [node("n", cpu=30, memory=30 * G, pods=500)],
        [
            queue("pg1", weight=25),
            queue("pg2", weight=25),
            queue("pg3", weight=25),
            queue("pg3-pg31", weight=50, parent="pg3"),
            queue("pg3-pg32", weight=50, parent="pg3"),
            queue("pg4", weight=25),
        ],
        [
            job("pg1", "pg1", 1, 30, **_CPU),
            job("pg2", "pg2", 1, 30, **_CPU),
            job("pg31", "pg3-pg31", 1, 30, **_CPU),
            job("pg32", "pg3-pg32", 1, 30, **_MEMORY),
            job("pg4", "pg4", 1, 30, **_MEMORY),
        ],
        ends({"pg1": 10, "pg2": 10, "pg31": 10, "pg32": 15, "pg4": 15}),
    ),
)
