"""Calls a policy with a time limit, and validates its plan."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from diflow.allocator.model.plan import Plan, keep_plan
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.model.validate import faults
from diflow.common.clock import SYSTEM, Clock

_ENDS_SECONDS = 1.0
"""How long a call that is late may take to notice that it is to stop."""


class Guard:
    """Calls a policy with a time limit. A call that exceeds it is abandoned, and no other call starts before it has
    returned, so there is at most one such thread."""

    def __init__(self, name: str, *, limit_seconds: float, clock: Clock = SYSTEM) -> None:
        self._name, self._limit_seconds, self._clock = name, limit_seconds, clock
        self._left: threading.Thread | None = None
        self._since = 0.0
        self.processor_seconds = 0.0
        """What the last call has used, if it has returned."""

    @property
    def stuck_seconds(self) -> float:
        """Seconds since the start of an abandoned call that has not returned; 0 if there is none."""
        return self._clock.monotonic() - self._since if self._left is not None and self._left.is_alive() else 0.0

    def ask(self, call: Callable[[Snapshot], Plan], snapshot: Snapshot) -> tuple[Plan, str]:
        """(plan, ""), or (a plan without changes, what went wrong)."""
        name = self._name
        if self.stuck_seconds:
            return keep_plan(snapshot, name), f"policy {name} has not returned from an earlier call; nothing is changed"
        box: list[Plan] = []
        trouble: list[str] = []

        def run() -> None:
            began = time.thread_time()
            try:
                box.append(call(snapshot))
            except Exception as error:  # policies are plugins: nothing that they raise may stop the allocator
                trouble.append(f"{type(error).__name__}: {error}")
            finally:
                self.processor_seconds = time.thread_time() - began

        self.processor_seconds = 0.0
        began = self._clock.monotonic()
        worker = threading.Thread(target=run, name=f"policy-{name}", daemon=True)
        worker.start()
        worker.join(self._limit_seconds)
        is_late = worker.is_alive()
        if is_late:
            snapshot.work.stop()
            worker.join(_ENDS_SECONDS)
        if worker.is_alive():
            self._left, self._since = worker, began
        if is_late or worker.is_alive() or self._clock.monotonic() - began > self._limit_seconds:
            words = f"policy {name} took longer than {self._limit_seconds:g} s; nothing is changed"
            return keep_plan(snapshot, name), words
        if trouble:
            return keep_plan(snapshot, name), f"policy {name} failed ({trouble[0]}); nothing is changed"
        try:
            wrong = faults(snapshot, box[0])
        except Exception as error:  # not a Plan at all
            wrong = [f"{type(error).__name__}: {error}"]
        if wrong:
            return keep_plan(snapshot, name), f"policy {name} returned a bad plan ({wrong[0]}); nothing is changed"
        return box[0], ""


def guarded(
    call: Callable[[Snapshot], Plan], snapshot: Snapshot, *, name: str, limit_seconds: float
) -> tuple[Plan, str]:
    """Call a policy once, as `Guard.ask`."""
    return Guard(name, limit_seconds=limit_seconds).ask(call, snapshot)


def has_raised(trouble: str, name: str) -> bool:
    """Whether the trouble that `guarded` returned is that the policy raised."""
    return trouble.startswith(f"policy {name} failed ")


def has_fault(trouble: str, name: str) -> bool:
    """Whether the trouble that `guarded` returned is that the policy raised or made an invalid plan, not a timeout."""
    return trouble.startswith((f"policy {name} failed ", f"policy {name} returned a bad plan "))


def is_late(trouble: str, name: str) -> bool:
    """Whether the trouble that `guarded` returned is that the policy took too long."""
    return trouble.startswith(f"policy {name} took longer ")
