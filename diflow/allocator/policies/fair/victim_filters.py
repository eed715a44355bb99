"""Filters of the victims of preemption inside a queue: small functions, selected by name in the settings.

Two rules always hold: a victim's priority is strictly lower, and its gang keeps its minimum or nothing. A victim must
also pass all selected filters. They apply only to `preempt`, as kube-batch's drf does, which has a preemptable function
but no reclaimable one (pkg/scheduler/plugins/drf).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from diflow.allocator.model.arrays import BoolArray
from diflow.allocator.model.ledger import Ledger
from diflow.allocator.policies.fair.shares import dominant, dominant_share
from diflow.allocator.policies.fair.victims import MayTake

Rule = Callable[[int, dict[int, int]], tuple[BoolArray, MayTake]]
"""(job, more replicas by role) → (possible victims (J), whether an amount may be taken from one of them).

Valid for the ledger at the time when the rule was made. The mask excludes jobs that would be refused any amount: it is
computed for all jobs at once, while asking for each of thousands takes a second.
"""


def drf(ledger: Ledger) -> Rule:
    """The victim's dominant share may not fall below the preemptor's with its full request.

    So preemption cannot be reverted by the same rule, and no gang is stopped, because that leaves no share.
    """
    s, total = ledger.snapshot, ledger.facts.total
    share = dominant_share(s.demand_by_job(ledger.replicas), ledger.facts.whole)
    has_spare = s.jobs_of(ledger.replicas > s.role_min)

    def rule(job: int, want: dict[int, int]) -> tuple[BoolArray, MayTake]:
        least = dominant(ledger.held_amount(job, want), total) - 1e-9
        able = share >= least
        return able & has_spare if least > 0 else able, keeping(ledger, total, least)

    return rule


def keeping(ledger: Ledger, total: Sequence[int], least: float) -> MayTake:
    """Whether a victim keeps at least this dominant share."""

    def may_take(victim: int, amount: list[int]) -> bool:
        held = ledger.held_amount(victim)
        return dominant([h - a for h, a in zip(held, amount, strict=True)], total) >= least

    return may_take


RULES: dict[str, Callable[[Ledger], Rule]] = {"drf": drf}


def agreed(rules: Sequence[Rule], job: int, want: dict[int, int], victims: BoolArray) -> tuple[BoolArray, MayTake]:
    """The victims that every rule allows, and a function that tells whether an amount may be taken from one of them."""
    if not rules:
        return victims, _anything
    asked = [rule(job, want) for rule in rules]
    for able, _ in asked:
        victims = victims & able
    return victims, lambda victim, amount: all(may_take(victim, amount) for _, may_take in asked)


def _anything(_victim: int, _amount: list[int]) -> bool:
    return True
