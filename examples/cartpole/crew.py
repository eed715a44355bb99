"""How many collectors the learner can use: it measures how long it waits for episodes, and asks diflow's server.

Where no server answers, or outside a cluster, the job stays as it was submitted.
"""

import threading
from collections.abc import Callable
from typing import Protocol

from cartpole.faults import say
from diflow import DiflowError, InvalidError

WINDOW_SECONDS = 10.0
STARVED = 0.5  # of the time without an episode to learn from: one collector more has work for sure
SATED = 0.05  # the learner never waits: the last collector that was asked for is not needed
REST_SECONDS = 60.0  # after a server that did not answer


class Asks(Protocol):
    """What is used of diflow.client."""

    def add_replicas(self, n: int, task: str | None = None) -> None: ...
    def delete_replicas(self, n: int, task: str | None = None) -> None: ...


class Crew:
    """Asks for one collector more while the learner starves, and for one fewer when it has more than it needs.

    It gives back only what it asked for itself: others may have their reasons. One wish at a time: the next comes when
    the collectors are as many as the last one said. The job began with `first` of them. `ask` has the verbs of
    diflow.client, and `start` runs what takes long beside the training.
    """

    def __init__(
        self, ask: Asks, *, first: int, clock: Callable[[], float], start: Callable[[Callable[[], None]], None]
    ) -> None:
        self._ask = ask
        self._first = first
        self._clock = clock
        self._start = start
        self._began = clock()
        self._waited = 0.0
        self._busy = threading.Event()  # while an answer is awaited
        self._target: int | None = None
        self._added = 0
        self._is_full = False
        self._rest_until = self._began
        self._said = ""

    def waited(self, seconds: float) -> None:
        """The learner had nothing to learn from for so long."""
        self._waited += seconds

    def look(self, collectors: int) -> None:
        """Ask for more or fewer, if there is reason to; `collectors` are connected now. Returns at once."""
        now = self._clock()
        if now - self._began < WINDOW_SECONDS:
            return
        share = self._waited / (now - self._began)
        self._began, self._waited = now, 0.0
        # Fewer than at the beginning: one is on its way or being started again, and says nothing of the need.
        if self._busy.is_set() or now < self._rest_until or collectors < self._first:
            return
        if self._target is not None and collectors != self._target:
            return
        if share > STARVED and not self._is_full:
            self._wish(1, collectors, share)
        elif share < SATED and self._added > 0:
            self._wish(-1, collectors, share)

    def _wish(self, change: int, collectors: int, share: float) -> None:
        def run() -> None:
            try:
                (self._ask.add_replicas if change > 0 else self._ask.delete_replicas)(1, "collector")
            except InvalidError as error:
                self._is_full = self._is_full or change > 0
                self._tell(f"stays at {collectors} collectors: {error}")
            except DiflowError as error:
                self._rest_until = self._clock() + REST_SECONDS
                self._tell(f"could not ask for collectors: {error}")
            else:
                self._target = collectors + change
                self._added += change
                self._is_full = False
                self._tell(f"waited for episodes {share:.0%} of the time: asked for {self._target} collectors")
            finally:
                self._busy.clear()

        self._busy.set()
        self._start(run)

    def _tell(self, text: str) -> None:
        if text != self._said:
            self._said = text
            say(text)


def beside(run: Callable[[], None]) -> None:
    """Run it in a thread that does not hold the process back."""
    threading.Thread(target=run, name="crew", daemon=True).start()
