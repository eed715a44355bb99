"""What a policy is, how one is found by name, and how a call to one can do no harm.

A policy is pure: no clock, no I/O, no randomness that is not in the snapshot. Anybody may add one: a package names it
in the entry-point group `diflow.policies`, as a callable that takes PolicySettings and returns a Policy.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points
from typing import Protocol, runtime_checkable

from diflow.allocator.model.plan import Plan
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.policies.settings import PolicySettings, policy_settings
from diflow.errors import InvalidError

GROUP = "diflow.policies"

_BUILT_IN = {
    "fit": "diflow.allocator.policies.fit.policy:FitPolicy",
    "fair": "diflow.allocator.policies.fair.policy:FairPolicy",
    "goodput": "diflow.allocator.policies.goodput.policy:GoodputPolicy",
    "fair+goodput": "diflow.allocator.policies.goodput.fair_goodput:TogetherPolicy",
    "tiresias": "diflow.allocator.policies.baselines.tiresias:TiresiasPolicy",
    "optimus": "diflow.allocator.policies.baselines.optimus:OptimusPolicy",
}


@runtime_checkable
class Policy(Protocol):
    """Decides who holds what.

    1. Both methods are deterministic and depend on nothing but their arguments.
    2. A plan covers every job of the snapshot.
    3. `allocate` places the newcomer `job` (an index) and touches nobody else; `optimize` may touch everybody.
    4. `measure` is the policy's own figure for a plan, higher is better; an optimised plan is never below keeping.
    """

    name: str

    def allocate(self, job: int, snapshot: Snapshot) -> Plan: ...

    def optimize(self, snapshot: Snapshot) -> Plan: ...

    def measure(self, snapshot: Snapshot, plan: Plan) -> float: ...


def policy_names() -> list[str]:
    """Every name that `load_policy` knows, ours and other packages'."""
    return sorted({*_BUILT_IN, *(entry.name for entry in entry_points(group=GROUP))})


def load_policy(name: str, settings: PolicySettings | None = None) -> Policy:
    """The policy of that name. Raises InvalidError with the names that there are, or if its package is broken or a
    setting is wrong."""
    settings = settings or policy_settings()
    if name in _BUILT_IN:
        module, attribute = _BUILT_IN[name].split(":")
        made: object = getattr(import_module(module), attribute)(settings)
    else:
        found = [entry for entry in entry_points(group=GROUP) if entry.name == name]
        if not found:
            raise InvalidError(f"there is no policy {name!r}: take one of {', '.join(policy_names())}")
        try:
            made = found[0].load()(settings)
        except Exception as error:  # another package's code: whatever it raises, the message names it
            raise InvalidError(f"policy {name!r} ({found[0].value}) cannot be loaded: {error}") from error
    if not isinstance(made, Policy):
        raise InvalidError(f"policy {name!r} lacks allocate, optimize, measure or name")
    return made
