"""What a policy is, how one is found by name, and how a call to one can do no harm.

A policy is pure: no clock, no I/O, no randomness that is not in the snapshot. Anybody may add one: a package names it
in the entry-point group `diflow.policies`, as a callable that takes PolicySettings and returns a Policy.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import entry_points
from typing import Protocol, runtime_checkable

from diflow.allocator.plan import Plan, Why, keep_plan
from diflow.allocator.settings import PolicySettings, policy_settings
from diflow.allocator.snapshot import Snapshot
from diflow.allocator.validate import faults
from diflow.errors import InvalidError

GROUP = "diflow.policies"

_BUILT_IN = {
    "fit": "diflow.allocator.policies.fit:FitPolicy",
    "fair": "diflow.allocator.policies.fair:FairPolicy",
    "goodput": "diflow.allocator.policies.goodput:GoodputPolicy",
    "fair+goodput": "diflow.allocator.policies.together:TogetherPolicy",
    "tiresias": "diflow.allocator.policies.tiresias:TiresiasPolicy",
    "optimus": "diflow.allocator.policies.optimus:OptimusPolicy",
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


class Guard:
    """Calls a policy so that it cannot do harm. A call that does not come back in time is left behind; until it has
    come back no other one is begun, so there is one thread of them at most."""

    def __init__(self, name: str, *, limit_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._name, self._limit_seconds, self._clock = name, limit_seconds, clock
        self._left: threading.Thread | None = None
        self._since = 0.0

    @property
    def stuck_seconds(self) -> float:
        """How long ago the call began that was left behind and has not come back; 0 if there is none."""
        return self._clock() - self._since if self._left is not None and self._left.is_alive() else 0.0

    def ask(self, call: Callable[[Snapshot], Plan], snapshot: Snapshot) -> tuple[Plan, str]:
        """(plan, "") or (the plan that changes nothing, what went wrong)."""
        name = self._name
        if self.stuck_seconds:
            return _nothing(snapshot, name), f"policy {name} has not come back from an earlier plan; nothing is changed"
        box: list[Plan] = []
        trouble: list[str] = []

        def run() -> None:
            try:
                box.append(call(snapshot))
            except Exception as error:  # a policy may be anybody's code; nothing it raises may stop the allocator
                trouble.append(f"{type(error).__name__}: {error}")

        began = self._clock()
        worker = threading.Thread(target=run, name=f"policy-{name}", daemon=True)
        worker.start()
        worker.join(self._limit_seconds)
        if worker.is_alive():
            self._left, self._since = worker, began
        if worker.is_alive() or self._clock() - began > self._limit_seconds:
            words = f"policy {name} took longer than {self._limit_seconds:g} s; nothing is changed"
            return _nothing(snapshot, name), words
        if trouble:
            return _nothing(snapshot, name), f"policy {name} failed ({trouble[0]}); nothing is changed"
        try:
            wrong = faults(snapshot, box[0])
        except Exception as error:  # an object that is no plan at all
            wrong = [f"{type(error).__name__}: {error}"]
        if wrong:
            return _nothing(snapshot, name), f"policy {name} returned a bad plan ({wrong[0]}); nothing is changed"
        return box[0], ""


def guarded(
    call: Callable[[Snapshot], Plan], snapshot: Snapshot, *, name: str, limit_seconds: float
) -> tuple[Plan, str]:
    """Call a policy once so that it cannot do harm: as `Guard.ask`."""
    return Guard(name, limit_seconds=limit_seconds).ask(call, snapshot)


def has_raised(trouble: str, name: str) -> bool:
    """Whether what `guarded` says is that the policy raised: not that it was late, nor that its plan was a bad one."""
    return trouble.startswith(f"policy {name} failed ")


def _nothing(snapshot: Snapshot, name: str) -> Plan:
    return keep_plan(snapshot, name, Why.KEPT)
