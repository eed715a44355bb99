"""What else must agree before a job gives way to one of a higher priority: small functions that settings name.

Two things always hold and are not named: a victim's priority is strictly lower, and its gang keeps its minimum or
nothing. All that are named must agree besides. They are asked in `preempt` alone, as kube-batch's drf is, which says
nothing of what queues reclaim from each other (pkg/scheduler/plugins/drf: a preemptable function, no reclaimable one).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from diflow.allocator.model.arrays import BoolArray
from diflow.allocator.model.ledger import Ledger
from diflow.allocator.policies.fair.shares import dominant, dominant_share
from diflow.allocator.policies.fair.victims import MayTake

Rule = Callable[[int, dict[int, int]], tuple[BoolArray, MayTake]]
"""(job, so many more replicas of its roles) → (J: who may be asked at all, whether so much may be taken from one).

It holds for the ledger as it was when the rule was made. Who may not be asked would be refused anything: that is known
for all jobs at once, where asking each of thousands takes a second.
"""


def drf(ledger: Ledger) -> Rule:
    """Whether the victim's dominant share is still no smaller than the preemptor's with all that it asks for.

    So who has taken cannot be taken from in turn on that ground, and nobody is stopped whole: that leaves no share.
    """
    s, total = ledger.snapshot, ledger.facts.total
    share = dominant_share(s.demand_by_job(ledger.replicas), ledger.facts.whole)
    has_spare = s.jobs_of(ledger.replicas > s.role_min)

    def rule(job: int, want: dict[int, int]) -> tuple[BoolArray, MayTake]:
        least = dominant(ledger.held_amount(job, want), total) - 1e-9

        def may_take(victim: int, amount: list[int]) -> bool:
            held = ledger.held_amount(victim)
            return dominant([h - a for h, a in zip(held, amount, strict=True)], total) >= least

        able = share >= least
        return able & has_spare if least > 0 else able, may_take

    return rule


RULES: dict[str, Callable[[Ledger], Rule]] = {"drf": drf}


def agreed(rules: Sequence[Rule], job: int, want: dict[int, int], victims: BoolArray) -> tuple[BoolArray, MayTake]:
    """Those of `victims` whom no rule spares, and whether all rules agree to what is taken from one of them."""
    if not rules:
        return victims, _anything
    asked = [rule(job, want) for rule in rules]
    for able, _ in asked:
        victims = victims & able
    return victims, lambda victim, amount: all(may_take(victim, amount) for _, may_take in asked)


def _anything(_victim: int, _amount: list[int]) -> bool:
    return True
