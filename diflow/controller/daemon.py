"""The controller's loop: threads that look at the jobs that have changed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from diflow.common.clock import SYSTEM, Clock
from diflow.common.errors import LostLeadershipError
from diflow.controller.caches import Caches
from diflow.controller.reconcile import Next, Reconciler
from diflow.controller.settings import ControllerSettings
from diflow.controller.workqueue import WorkQueue
from diflow.kube.api import Cluster
from diflow.kube.leader_election import Elector
from diflow.kube.reflector import PACE, Pace
from diflow.kube.sparing import Shares

_LOOK_SECONDS: Final = 1.0
_BURST_SECONDS: Final = 5.0
"""Of a processor, that looks at the jobs of one namespace may cost at once. Those of others wait for the threads that
work at them."""


class Controller:
    """Gives DIJob objects their Workflows and their status. `run` blocks."""

    def __init__(
        self,
        cluster: Cluster,
        settings: ControllerSettings,
        elector: Elector,
        *,
        on_look: Callable[[float], None] = lambda _: None,
        clock: Clock = SYSTEM,
        pace: Pace = PACE,
    ) -> None:
        self.settings, self.elector = settings, elector
        self._clock, self._on_look = clock, on_look
        self.queue = WorkQueue(clock=clock)
        self.caches = Caches(cluster, settings, on_change=self._on_change, clock=clock, pace=pace)
        self.reconciler = Reconciler(cluster, self.caches, elector, settings, clock=clock)
        # As the time of processors, by the machine's own clock.
        self._shares = Shares(share=2 * settings.reading_share, burst=_BURST_SECONDS)
        self._looking: dict[int, float] = {}
        self._lost: LostLeadershipError | None = None

    def run(self, stop: threading.Event) -> None:
        """Work until `stop` is set, on caches that were started. Raises LostLeadershipError when this process does not
        lead any more."""
        self.caches.all.reopen()
        while not stop.is_set() and not self.caches.all.wait_synced(_LOOK_SECONDS):
            self.elector.check()
        self.look_at_all()
        threads = [
            threading.Thread(target=self._work, args=(stop,), name=f"look-{i}", daemon=True)
            for i in range(self.settings.workers)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._lost is not None:
            raise self._lost

    def _on_change(self, key: tuple[str, str]) -> None:
        """Look at a job that has changed. A process that does not lead looks at all jobs when it begins to."""
        if self.elector.is_leader():
            self.queue.add(key)

    def look_at_all(self) -> None:
        """Look at each job once."""
        for key in self.caches.jobs():
            self.queue.add(key)

    @property
    def longest_look_seconds(self) -> float:
        """For how long the longest look has lasted that is not over."""
        now = self._clock.monotonic()
        return max((now - began for began in list(self._looking.values())), default=0.0)

    def _work(self, stop: threading.Event) -> None:
        while (key := self.queue.pop(stop)) is not None:
            try:
                self._look(key)
            except LostLeadershipError as error:
                self._lost = error
                stop.set()

    def _look(self, key: tuple[str, str]) -> None:
        wait = self._shares.left_seconds(key[0])
        if wait > 0:
            self.queue.done(key, again=wait)
            return
        began = self._looking[threading.get_ident()] = self._clock.monotonic()
        found = Next(0.0)  # where leadership was lost
        try:
            with self._shares.paid_by(key[0]):
                found = self.reconciler.look(key)
        finally:
            del self._looking[threading.get_ident()]
            self.queue.done(key, again=found.again_seconds, rest=found.rest_seconds)
            self._on_look(self._clock.monotonic() - began)
        if self.caches.dijobs.get(*key) is None:
            self.queue.forget(key)
