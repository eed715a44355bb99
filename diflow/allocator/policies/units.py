"""Replicas in multiples of a unit: for programs whose parallelism needs whole groups of nodes (DLRover's `node_unit`).

Policies do not know units. If a plan has another number of replicas, the policy is called again with that number,
rounded down, as the role's maximum: so the rest goes to other jobs, by the policy's own rules.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from diflow.allocator.model.arrays import BoolArray, IntArray, frozen
from diflow.allocator.model.plan import Plan
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.policies.obeying import obeying


def in_units(optimize: Callable[[Snapshot], Plan], snapshot: Snapshot) -> Plan:
    """The plan of `optimize`, in which each role has a multiple of its unit (`Snapshot.role_unit`), and no rule about
    other pods is broken (`obeying.py`).

    For the units it takes at most six calls: two plans with numbers rounded down, whose rest other roles with units may
    get; one in which none of these gets more than it has; one in which those that still have a rest have their minimum,
    which is a multiple; and one in which all have it. So the units of some jobs do not keep others from growing.
    """
    optimize = partial(obeying, optimize)
    in_units = snapshot.role_unit > 1
    if not in_units.any():
        return optimize(snapshot)
    with snapshot.work.one_plan():
        return _in_units(optimize, snapshot, in_units)


def _in_units(optimize: Callable[[Snapshot], Plan], snapshot: Snapshot, in_units: BoolArray) -> Plan:
    plan = optimize(snapshot)
    least, most = snapshot.role_min, snapshot.role_max
    for call in range(5):
        rest = _rest(snapshot, plan)
        if not rest.any():
            break
        rounded = np.maximum(_count(snapshot, plan) - rest, least)
        if call < 3:
            most = np.where(rest > 0 if call < 2 else in_units, np.minimum(most, rounded), most)
        else:
            most = np.where(rest > 0 if call < 4 else in_units, least, most)
        plan = optimize(_limited(snapshot, most))
    return plan


def _count(snapshot: Snapshot, plan: Plan) -> IntArray:
    return np.bincount(plan.role, weights=plan.count, minlength=snapshot.roles).astype(np.int64)


def _rest(snapshot: Snapshot, plan: Plan) -> IntArray:
    """Replicas above a multiple of the unit (G)."""
    rest: IntArray = _count(snapshot, plan) % snapshot.role_unit
    return rest


def _limited(snapshot: Snapshot, most: IntArray) -> Snapshot:
    return replace(snapshot, role_max=frozen(most.copy()), role_desired=frozen(np.minimum(snapshot.role_desired, most)))
