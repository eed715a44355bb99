"""Volcano: end-to-end tests of preemption, reclaiming, gangs, guarantees and shares.

Where they measure the cluster that they find, it is two nodes of four cores here (eight slots of one core), with memory
to spare. A test of several stages is a row for each stage that asks something new.
"""

from __future__ import annotations

from typing import Any

from diflow.common.predicates import NODE_NAME, Requirement, Where
from tests.policies.field import reasons
from tests.policies.field.rows import (
    GI,
    Case,
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

_PREEMPT = "test/e2e/schedulingaction/preempt.go"
_RECLAIM = "test/e2e/schedulingaction/reclaim.go"
_ALLOCATE = "test/e2e/schedulingaction/allocate.go"
_GUARANTEE = "test/e2e/schedulingaction/guarantee.go"
_DRF = "test/e2e/schedulingbase/drf.go"
_SCHEDULING = "test/e2e/schedulingbase/job_scheduling.go"
_GANG = "test/e2e/gangevict/gangevict.go"

_OF_FAIR = NotAsked(reasons.SETTING_OF_FAIR)

LOW, MIDDLE, HIGH = 10, 50, 100


def _at(file: str, name: str) -> Source:
    return Source("Volcano", file, name)


_ONE: dict[str, Any] = {"cpu": 1, "memory": G}
_SLOTS = (node("n1", cpu=4, memory=8 * G), node("n2", cpu=4, memory=8 * G))
_FULL = {"n1": 4, "n2": 4}
_DEFAULT = (queue("default"),)
_Q1_Q2 = (queue("q1"), queue("q2"))
_HALVES = (
    job("j1", "q1", 1, 4, on={"n1": 4}, priority=LOW, **_ONE),
    job("j2", "q2", 1, 4, on={"n2": 4}, priority=LOW, **_ONE),
)

PREEMPT: tuple[Case, ...] = (
    case(
        "a job of higher priority starts beside one of lower where there is capacity",
        _at(_PREEMPT, "schedule high priority job without preemption when resource is enough"),
        _SLOTS,
        _DEFAULT,
        [
            job("preemptee", "default", on={"n1": 1}, priority=LOW, **_ONE),
            job("preemptor", "default", priority=HIGH, **_ONE),
        ],
        ends({"preemptee": 1, "preemptor": 1}),
    ),
    case(
        "an elastic job of higher priority takes all",
        _at(_PREEMPT, "schedule high priority job with preemption when idle resource is NOT enough"),
        _SLOTS,
        _DEFAULT,
        [
            job("preemptee", "default", 1, 8, on=_FULL, priority=LOW, **_ONE),
            job("preemptor", "default", 4, 8, priority=HIGH, **_ONE),
        ],
        ends({"preemptee": 4, "preemptor": 4}),
        # Whether the last replica, a whole job, is stopped for one more of the other is left open here.
        ours=ends({"preemptee": 0, "preemptor": 8}, {"preemptee": 1, "preemptor": 7}),
        differs=reasons.STRICT,
        fit=Other(ends({"preemptee": 1, "preemptor": 7}), reasons.MINIMUM_STAYS),
    ),
    case(
        "with the rule drf an elastic job of higher priority takes half",
        _at(_PREEMPT, "schedule high priority job with preemption when idle resource is NOT enough, with drf"),
        _SLOTS,
        _DEFAULT,
        [
            job("preemptee", "default", 1, 8, on=_FULL, priority=LOW, **_ONE),
            job("preemptor", "default", 4, 8, priority=HIGH, **_ONE),
        ],
        ends({"preemptee": 4, "preemptor": 4}),
        settings={"victims": ("drf",)},
        fit=_OF_FAIR,
        together=_OF_FAIR,
    ),
    case(
        "a priority takes from its own queue alone",
        _at(_PREEMPT, "preemption only works in the same queue"),
        _SLOTS,
        _Q1_Q2,
        [*_HALVES, job("j3", "q1", 1, 8, priority=HIGH, **_ONE)],
        ends({"j1": 0, "j2": 4, "j3": 4}),
        fit=Other(ends({"j1": 4, "j2": 1, "j3": 3}, {"j1": 1, "j2": 4, "j3": 3}), reasons.FEWEST_SHRINK),
    ),
    case(
        "nobody is stopped for a gang that would not fit all the same",
        _at(_PREEMPT, "preemption doesn't work when total resource of idle resource and preemptee is NOT enough"),
        _SLOTS,
        _Q1_Q2,
        [
            job("j1", "q1", on={"n1": 1}, priority=LOW, **_ONE),
            job("j2", "q2", 4, on={"n2": 4}, priority=LOW, **_ONE),
            job("j3", "q1", 8, priority=HIGH, **_ONE),
        ],
        ends({"j1": 1, "j2": 4, "j3": 0}),
        fit=Other(ends({"j1": 0, "j2": 0, "j3": 8}), reasons.NO_QUEUES),
    ),
    case(
        "a gang of middle priority takes half of an elastic job",
        _at(_PREEMPT, "multi-preemptor-jobs who are in different priority, the second job"),
        _SLOTS,
        [queue("q1")],
        [job("low", "q1", 1, 8, on=_FULL, priority=LOW, **_ONE), job("middle", "q1", 4, priority=MIDDLE, **_ONE)],
        ends({"low": 4, "middle": 4}),
    ),
    case(
        "a gang of high priority takes all from two lower ones",
        _at(_PREEMPT, "multi-preemptor-jobs who are in different priority, the third job"),
        _SLOTS,
        [queue("q1")],
        [
            job("low", "q1", 1, 8, on={"n1": 4}, priority=LOW, **_ONE),
            job("middle", "q1", 4, on={"n2": 4}, priority=MIDDLE, **_ONE),
            job("high", "q1", 8, priority=HIGH, **_ONE),
        ],
        ends({"low": 0, "middle": 0, "high": 8}),
    ),
)


def _slots(count: int) -> list[Any]:
    return [node(f"n{i}", cpu=1, memory=G) for i in range(1, count + 1)]


_THREE_QUEUES = (queue("q1"), queue("q2"), queue("q3"))
_RUNNING = (job("j1", "q1", on={"n1": 1}, **_ONE), job("j2", "q2", on={"n2": 1}, **_ONE))
_NO_SUCH_NODE = Where(affinity=((Requirement(NODE_NAME, "In", ("fake-node",)),),))

RECLAIM: tuple[Case, ...] = (
    case(
        "nothing is reclaimed where there is an idle node",
        _at(_RECLAIM, "Reclaim Case 1: no reclaim when resource is enough; Case 9"),
        _slots(4),
        _THREE_QUEUES,
        [*_RUNNING, job("j3", "q3", **_ONE)],
        ends({"j1": 1, "j2": 1, "j3": 1}),
    ),
    case(
        "a job of a queue that does not exist gets nothing",
        _at(_RECLAIM, "Reclaim Case 4: no reclaim when new queue is not created; Case 5"),
        _slots(3),
        _Q1_Q2,
        [*_RUNNING, job("j3", "q3", **_ONE)],
        ends({"j1": 1, "j2": 1, "j3": 0}),
    ),
    case(
        "a queue that holds what it deserves takes nothing from others",
        _at(_RECLAIM, "Reclaim Case 6: no reclaim when overused"),
        _slots(3),
        _THREE_QUEUES,
        [*_RUNNING, job("j3", "q3", on={"n3": 1}, **_ONE), job("j4", "q3", **_ONE)],
        ends({"j1": 1, "j2": 1, "j3": 1, "j4": 0}),
    ),
    case(
        "nothing is reclaimed for a job that names a node which is not there",
        _at(_RECLAIM, "Reclaim Case 7: no reclaim when job not satisfied with predicates"),
        _slots(3),
        _THREE_QUEUES,
        [*_RUNNING, job("j3", "q3", where=_NO_SUCH_NODE, **_ONE)],
        ends({"j1": 1, "j2": 1, "j3": 0}),
    ),
    case(
        "nothing is reclaimed for a pod that is larger than any node",
        _at(_RECLAIM, "Reclaim Case 8: no reclaim when task resources less than reclaimable resource"),
        _slots(3),
        _THREE_QUEUES,
        [*_RUNNING, job("j4", "q3", cpu=4, memory=4 * G)],
        ends({"j1": 1, "j2": 1, "j4": 0}),
    ),
    case(
        "two queues each give one to two others",
        _at(_RECLAIM, "Reclaim Case 10: Multi reclaimed queue"),
        _slots(4),
        [*_THREE_QUEUES, queue("q4")],
        [
            job("j1", "q1", 1, 2, on={"n1": 1, "n2": 1}, priority=LOW, **_ONE),
            job("j2", "q2", 1, 2, on={"n3": 1, "n4": 1}, priority=LOW, **_ONE),
            job("j3", "q3", priority=HIGH, **_ONE),
            job("j4", "q4", priority=HIGH, **_ONE),
        ],
        ends({"j1": 1, "j2": 1, "j3": 1, "j4": 1}),
    ),
    case(
        "a queue gets half, and a gang larger than the cluster waits in the other",
        _at(_RECLAIM, "Reclaim"),
        _SLOTS,
        _Q1_Q2,
        [
            job("q1-qj-1", "q1", 1, 8, on=_FULL, priority=LOW, **_ONE),
            job("q2-qj-2", "q2", 1, 8, priority=HIGH, **_ONE),
            job("q1-qj-2", "q1", 16, **_ONE),
        ],
        ends({"q1-qj-1": range(3, 6), "q2-qj-2": range(3, 6), "q1-qj-2": 0}),
        ours=ends({"q1-qj-1": 4, "q2-qj-2": 4, "q1-qj-2": 0}),
        fit=Other(ends({"q1-qj-1": 1, "q2-qj-2": 7, "q1-qj-2": 0}), reasons.MINIMUM_STAYS),
    ),
)

_FOUR = tuple(node(f"n{i}", cpu=1, memory=GI) for i in (1, 2, 3, 4))
_ALL_FOUR = {f"n{i}": 1 for i in (1, 2, 3, 4)}
_FIRST, _LAST = {"n1": 1, "n2": 1}, {"n3": 1, "n4": 1}
_SLOT: dict[str, Any] = {"cpu": 1, "memory": GI}


def _deserves(name: str, cores: int) -> Any:
    """What the capacity plugin calls deserved is a guarantee here: see cases_volcano_queues."""
    return queue(name, guarantee=amounts(cpu=cores, memory=cores * GI))


_GP = (_deserves("gp-q", 4),)
_TWO_EACH = (_deserves("q1", 2), _deserves("q2", 2))
_VICTIM = job("victim", "q2", 2, 4, on=_ALL_FOUR, priority=LOW, **_SLOT)
_RECLAIMER = job("reclaimer", "q1", 2, priority=LOW, **_SLOT)
_WITH_ROLES = {
    "parts": (role("ps", 1, 1, **_SLOT), role("worker", 2, 3, **_SLOT)),
    "on": {"ps": {"n1": 1}, "worker": {"n2": 1, "n3": 1, "n4": 1}},
}


def _with_roles(queue: str) -> Any:
    parts: Any = _WITH_ROLES["parts"]
    on: Any = _WITH_ROLES["on"]
    return roles("victim", queue, *parts, on=on, priority=LOW)


def _low(name: str, low: int, most: int, on: dict[str, int]) -> Any:
    return job(name, "gp-q", low, most, on=on, priority=LOW, **_SLOT)


def _preemptor(size: int, priority: int = HIGH) -> Any:
    return job("preemptor", "gp-q", size, priority=priority, **_SLOT)


GANG: tuple[Case, ...] = (
    case(
        "a gang of higher priority takes what another has above its minimum",
        _at(_GANG, "GP-1: safe-bundle preemption evicts surplus tasks, victim gang survives"),
        _FOUR,
        _GP,
        [_low("victim", 2, 4, _ALL_FOUR), _preemptor(2)],
        ends({"victim": 2, "preemptor": 2}),
    ),
    case(
        "two gangs each give one above their minimum before either is stopped",
        _at(_GANG, "GP-2: safe bundles harvested across multiple gangs, zero gangs broken"),
        _FOUR,
        _GP,
        [_low("victim-a", 1, 2, _FIRST), _low("victim-b", 1, 2, _LAST), _preemptor(2)],
        ends({"victim-a": 1, "victim-b": 1, "preemptor": 2}),
        together=Other(ends({"victim-a": 2, "victim-b": 0, "preemptor": 2}), reasons.VICTIM_BY_WORTH),
    ),
    case(
        "of two gangs at their minimum one is stopped",
        _at(_GANG, "GP-3: whole-bundle eviction breaks exactly one gang when no surplus exists"),
        _FOUR,
        _GP,
        [_low("victim-a", 2, 2, _FIRST), _low("victim-b", 2, 2, _LAST), _preemptor(2)],
        ends({"victim-a": 0, "victim-b": 2, "preemptor": 2}, {"victim-a": 2, "victim-b": 0, "preemptor": 2}),
    ),
    case(
        "two gangs are stopped for one that needs the capacity of both",
        _at(_GANG, "GP-4: whole-bundle eviction breaks both gangs for large preemptor"),
        _FOUR,
        _GP,
        [_low("victim-a", 2, 2, _FIRST), _low("victim-b", 2, 2, _LAST), _preemptor(4)],
        ends({"victim-a": 0, "victim-b": 0, "preemptor": 4}),
    ),
    case(
        "a gang of four is stopped whole for one of two",
        _at(_GANG, "GP-5: basic gang preemption of a lower-priority gang"),
        _FOUR,
        _GP,
        [_low("victim", 4, 4, _ALL_FOUR), _preemptor(2)],
        ends({"victim": 0, "preemptor": 2}),
    ),
    case(
        "without the step reclaim a priority takes nothing from another queue",
        _at(_GANG, "GP-6: gang preemption does not cross queue boundaries"),
        _FOUR,
        _TWO_EACH,
        [
            job("victim", "q2", 4, on=_ALL_FOUR, priority=LOW, **_SLOT),
            job("preemptor", "q1", 2, priority=HIGH, **_SLOT),
        ],
        ends({"victim": 4, "preemptor": 0}),
        settings={"steps": ("allocate", "backfill", "preempt")},
        fit=_OF_FAIR,
        together=_OF_FAIR,
    ),
    case(
        "a gang of the same priority is not stopped",
        _at(_GANG, "GP-7: equal-priority gang is not preempted"),
        _FOUR,
        _GP,
        [job("victim", "gp-q", 4, on=_ALL_FOUR, priority=MIDDLE, **_SLOT), _preemptor(2, MIDDLE)],
        ends({"victim": 4, "preemptor": 0}),
    ),
    case(
        "nobody is stopped where the gangs of lower priority are not enough",
        _at(_GANG, "GP-8: medium-priority preemptor cannot evict high-priority victims"),
        _FOUR,
        _GP,
        [
            job("gang-a", "gp-q", 2, on=_FIRST, priority=HIGH, **_SLOT),
            job("gang-b", "gp-q", 2, on=_LAST, priority=LOW, **_SLOT),
            job("preemptor-c", "gp-q", 4, priority=MIDDLE, **_SLOT),
        ],
        ends({"gang-a": 2, "gang-b": 2, "preemptor-c": 0}),
    ),
    case(
        "of a job with two roles the one above its minimum gives a pod to a priority",
        _at(_GANG, "GP-R1: per-role surplus gate keeps role-tight tasks safe"),
        _FOUR,
        _GP,
        [_with_roles("gp-q"), _preemptor(1)],
        ends({"victim.ps": 1, "victim.worker": 2, "preemptor": 1}),
    ),
    case(
        "a queue gets back two above the minimum of another's gang",
        _at(_GANG, "GR-1: safe-bundle reclaim evicts surplus, victim gang survives; GR-3"),
        _FOUR,
        _TWO_EACH,
        [_VICTIM, _RECLAIMER],
        ends({"victim": 2, "reclaimer": 2}),
    ),
    case(
        "a queue gets back one of another's two gangs",
        _at(_GANG, "GR-2: whole-bundle reclaim breaks exactly one gang when no surplus exists"),
        _FOUR,
        _TWO_EACH,
        [
            job("victim-a", "q2", 2, on=_FIRST, priority=LOW, **_SLOT),
            job("victim-b", "q2", 2, on=_LAST, priority=LOW, **_SLOT),
            _RECLAIMER,
        ],
        ends({"victim-a": 0, "victim-b": 2, "reclaimer": 2}, {"victim-a": 2, "victim-b": 0, "reclaimer": 2}),
        fit=Other(ends({"victim-a": 2, "victim-b": 2, "reclaimer": 0}), reasons.NO_SHARES),
    ),
    case(
        "no gang changes places with one of another queue",
        _at(_GANG, "GR-4: no reclaim from queues within their deserved"),
        _FOUR,
        [_deserves("q1", 2), _deserves("q2", 2), _deserves("q3", 2)],
        [
            job("job2", "q2", 2, on=_FIRST, priority=LOW, **_SLOT),
            job("job3", "q3", 2, on=_LAST, priority=LOW, **_SLOT),
            _RECLAIMER,
        ],
        ends({"job2": 2, "job3": 2, "reclaimer": 0}),
    ),
    case(
        "a gang that needs what another queue is guaranteed takes nothing",
        # Deserved beside a guarantee is a weight here: 4 to 2.
        _at(_GANG, "GR-6: reclaim stops at guarantee boundary"),
        _FOUR,
        [queue("q1", weight=4), queue("q2", weight=2, guarantee=amounts(cpu=2, memory=2 * GI))],
        [_VICTIM, job("reclaimer", "q1", 4, priority=LOW, **_SLOT)],
        ends({"victim": 4, "reclaimer": 0}),
    ),
    case(
        "a queue above what it deserves takes nothing from one below",
        _at(_GANG, "GR-7: overused queue is skipped as reclaimer"),
        _FOUR,
        [_deserves("q1", 1), _deserves("q2", 3)],
        [
            job("job1", "q1", 2, on=_FIRST, priority=LOW, **_SLOT),
            job("job2", "q2", 2, on=_LAST, priority=LOW, **_SLOT),
            _RECLAIMER,
        ],
        ends({"job1": 2, "job2": 2, "reclaimer": 0}),
    ),
    case(
        "of a job with two roles the one above its minimum gives a pod to another queue",
        _at(_GANG, "GR-R1: per-role surplus gate keeps role-tight tasks safe"),
        _FOUR,
        [_deserves("q1", 1), _deserves("q2", 3)],
        [_with_roles("q2"), job("reclaimer", "q1", priority=LOW, **_SLOT)],
        ends({"victim.ps": 1, "victim.worker": 2, "reclaimer": 1}),
    ),
    case(
        "what is reclaimed goes to the queue that it was reclaimed for",
        _at(_GANG, "GR-N1: pipelined reclaimer wins freed capacity over a same-cycle racer"),
        _FOUR,
        _TWO_EACH,
        [_VICTIM, job("racer", "q2", 2, priority=LOW, **_SLOT), _RECLAIMER],
        ends({"victim": 2, "racer": 0, "reclaimer": 2}),
        fit=Other(ends({"victim": 2, "racer": 2, "reclaimer": 0}), reasons.NO_QUEUES),
    ),
)

_FAIR_SHARE = [job(f"{q}-{i}", q, 2, cpu=0.5, memory=G // 2) for i in range(16) for q in ("q1", "q2")]
_SMALL = (node("n1", cpu=2, memory=2 * GI), node("n2", cpu=2, memory=2 * GI))
_GUARANTEED = "a queue runs in what another is guaranteed and does not ask for"

SHARES: tuple[Case, ...] = (
    case(
        "two queues of many small gangs get half each",
        _at(_SCHEDULING, "Queue Fair Share"),
        _SLOTS,
        _Q1_Q2,
        _FAIR_SHARE,
        ends({"@q1": range(7, 10), "@q2": range(7, 10)}),
        ours=ends({"@q1": 8, "@q2": 8}),
    ),
    case(
        "a gang of pods that ask for cores and pods that ask for nothing starts",
        _at(_SCHEDULING, "Gang scheduling: Contains both best-effort pod and non-best-effort pod"),
        _SLOTS,
        _DEFAULT,
        [roles("gang", "default", role("best-effort", 4, 4), role("non-best-effort", 4, 4, **_ONE))],
        ends({"gang.best-effort": 4, "gang.non-best-effort": 4}),
    ),
    case(
        "a gang is not stopped for one of its priority that would hold less",
        _at(_DRF, "drf works"),
        _SLOTS,
        _DEFAULT,
        [
            job("j1-reference", "default", 8, on=_FULL, **_ONE),
            job("j2-drf", "default", 8, cpu=0.5, memory=G // 2),
        ],
        ends({"j1-reference": 0, "j2-drf": 8}),
        ours=ends({"j1-reference": 8, "j2-drf": 0}),
        differs=reasons.EQUALS_SHARE,
    ),
    case(
        "two small jobs run on two nodes",
        _at(_ALLOCATE, "allocate work when resource is enough"),
        _SMALL,
        _DEFAULT,
        [
            job("low", "default", on={"n1": 1}, cpu=0.5, memory=GI // 2),
            job("high", "default", **_SLOT),
        ],
        ends({"low": 1, "high": 1}),
    ),
    case(
        "a pod larger than its node waits",
        _at(_ALLOCATE, "allocate don't work when resource is NOT enough"),
        _SMALL[:1],
        _DEFAULT,
        [
            job("middle", "default", on={"n1": 1}, **_SLOT),
            job("low", "default", on={"n1": 1}, cpu=0.5, memory=GI // 2),
            job("high", "default", cpu=3, memory=3 * GI),
        ],
        ends({"middle": 1, "low": 1, "high": 0}),
    ),
    case(
        "a queue at its share uses what is idle",
        _at(_ALLOCATE, "allocate don't work when queue is overused"),
        _SMALL,
        _Q1_Q2,
        [
            job("j1", "q1", on={"n1": 1}, **_SLOT),
            job("j2", "q1", on={"n1": 1}, **_SLOT),
            job("j3", "q2", on={"n2": 1}, cpu=0.5, memory=GI // 2),
            job("j4", "q1", cpu=0.5, memory=GI // 2),
        ],
        ends({"j1": 1, "j2": 1, "j3": 1, "j4": 0}),
        ours=ends({"j1": 1, "j2": 1, "j3": 1, "j4": 1}),
        differs=reasons.IDLE_IS_USED,
    ),
    case(
        f"{_GUARANTEED}: all of it",
        _at(_GUARANTEE, "one queue reserve all cluster resource"),
        _SMALL[:1],
        [queue("queue1", guarantee=amounts(cpu=2, memory=2 * GI)), queue("queue2")],
        [job("queue2-job", "queue2", cpu=0.5, memory=GI // 2)],
        ends({"queue2-job": 0}),
        ours=ends({"queue2-job": 1}),
        differs=reasons.BORROWED,
    ),
    case(
        f"{_GUARANTEED}: half of it",
        _at(_GUARANTEE, "one queue reserve some cluster resource, so it is NOT enough to create job"),
        _SMALL[:1],
        [queue("queue1", guarantee=amounts(cpu=1, memory=GI)), queue("queue2")],
        [job("queue2-job", "queue2", cpu=1.5, memory=GI // 2)],
        ends({"queue2-job": 0}),
        ours=ends({"queue2-job": 1}),
        differs=reasons.BORROWED,
    ),
)
