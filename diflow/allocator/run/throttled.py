"""Says which namespaces cost more than their part, so that their jobs are read late or held."""

from __future__ import annotations

from typing import Final

import structlog

from diflow.allocator.settings import AllocatorSettings
from diflow.allocator.watch.cluster_state import Caches
from diflow.allocator.write.executor import Executor
from diflow.allocator.write.patches import Note, Reason
from diflow.common.clock import Clock
from diflow.common.words import counted

LATE_SECONDS: Final = 5.0
"""What is read with less delay is no news."""
_AGAIN_SECONDS: Final = 600.0
_MOST_AT_ONCE: Final = 4
"""Events in one cycle, for which decisions wait."""

_Found = tuple[tuple[Reason, str], str]
"""((what it is, the namespace), the sentence)."""

log = structlog.get_logger("diflow.allocator")


class Throttled:
    """What was said, and when: each thing about a namespace is an Event on the Lease, every ten minutes while it is
    so."""

    def __init__(self, caches: Caches, settings: AllocatorSettings, executor: Executor, *, clock: Clock) -> None:
        self._caches, self._settings, self._executor, self._clock = caches, settings, executor, clock
        self._said: dict[tuple[Reason, str], float] = {}

    def tell(self) -> None:
        """Say what is new."""
        now = self._clock.monotonic()
        self._said = {what: at for what, at in self._said.items() if now - at < _AGAIN_SECONDS}
        found = [*self._late(), *self._full()]
        new = [(what, text) for what, text in found if what not in self._said][:_MOST_AT_ONCE]
        for what, text in new:
            self._said[what] = now
            log.warning("a namespace costs more than its part", namespace=what[1], why=text)
        salt = str(now)
        self._executor.record_own_events([(Note(what[0], text, is_warning=True), salt) for what, text in new])

    def _late(self) -> list[_Found]:
        share = self._settings.reading_share
        return [
            (
                ("ReadLate", namespace),
                f"namespace {namespace}: its Workflows change in a way that takes more than {share:.0%} of a processor "
                f"to read, so their changes are read {seconds:.0f} s late (DIFLOW_ALLOCATOR_READING_SHARE)",
            )
            for namespace, seconds in self._caches.late().items()
            if seconds >= LATE_SECONDS
        ]

    def _full(self) -> list[_Found]:
        return [
            (
                ("MemoryFull", namespace),
                f"namespace {namespace}: its jobs fill the {self._settings.kept_mib} MiB of memory of one namespace "
                f"(DIFLOW_ALLOCATOR_KEPT_MIB); {counted(jobs, 'job')} of it {'is' if jobs == 1 else 'are'} held",
            )
            for namespace, jobs in self._caches.kept.full().items()
        ]
