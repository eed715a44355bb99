"""The interface of a policy, and how policies are found by name.

A policy is pure: no clock, no I/O, no randomness. Other packages add policies with the entry-point group
`diflow.policies`: a callable that takes PolicySettings and returns a Policy.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points
from typing import Protocol, runtime_checkable

from diflow.allocator.model.plan import Plan
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.policies.registry import registered
from diflow.allocator.policies.settings import PolicySettings, policy_settings
from diflow.common.errors import InvalidError

GROUP = "diflow.policies"


@runtime_checkable
class Policy(Protocol):
    """Decides the allocation of all jobs.

    1. The methods are deterministic and depend only on their arguments.
    2. A plan covers every job of the snapshot.
    3. `allocate` places the new job `job` (an index) and changes no other; `optimize` may change every job.
    4. `measure` is the policy's objective, higher is better; `optimize` never returns a plan below the current
       allocation.
    """

    name: str

    def allocate(self, job: int, snapshot: Snapshot) -> Plan: ...

    def optimize(self, snapshot: Snapshot) -> Plan: ...

    def measure(self, snapshot: Snapshot, plan: Plan) -> float: ...


def policy_names() -> list[str]:
    """Every name that `load_policy` knows: registered, and of other packages."""
    return sorted({*registered(), *(entry.name for entry in entry_points(group=GROUP))})


def load_policy(name: str, settings: PolicySettings | None = None) -> Policy:
    """The policy of that name. Raises InvalidError, which lists the known names, if there is none; also if its package
    is broken or a setting is invalid."""
    settings = settings or policy_settings()
    if made_by := registered().get(name):
        module, attribute = made_by.split(":")
        made: object = getattr(import_module(module), attribute)(settings)
    else:
        found = [entry for entry in entry_points(group=GROUP) if entry.name == name]
        if not found:
            raise InvalidError(f"there is no policy {name!r}: take one of {', '.join(policy_names())}")
        try:
            made = found[0].load()(settings)
        except Exception as error:  # another package's code may raise anything
            raise InvalidError(f"policy {name!r} ({found[0].value}) cannot be loaded: {error}") from error
    if not isinstance(made, Policy):
        raise InvalidError(f"policy {name!r} lacks allocate, optimize, measure or name")
    return made
