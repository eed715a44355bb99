"""The learner: gathers the collectors' episodes, improves the weights, and ends the job when the evaluator says so.

It is the only process that keeps anything. Killed at any instruction, it goes on from its last checkpoint; told to
stop by SIGTERM, it saves first. It tells diflow's server how fast it learns, and how many collectors it could use.
"""

import os
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from cartpole import model, ppo, settings
from cartpole.crew import Crew, beside
from cartpole.episodes import Episode
from cartpole.exchange import EVALUATION_EPISODES, Exchange, Experience, Verdict
from cartpole.faults import EXIT_TERMINATED, CartpoleError, StoreError, run, say
from cartpole.history import Evaluated, Played
from cartpole.settings import Settings
from cartpole.store import State, Store
from diflow import client

CHECKPOINT_SECONDS = 10.0
LINE_SECONDS = 5.0
STALE_UPDATES = 4  # episodes of weights older than this are not learned from
LINGER_SECONDS = 120.0  # for a collector that was killed just before the end: its retry must still hear `stop`
STARVED_SECONDS = 900.0  # with no episode for so long, the collectors are not coming


class Learner:
    """The training loop, and what it keeps between two rounds of it."""

    def __init__(
        self, own: Settings, store: Store, state: State, clock: Callable[[], float], crew: Crew | None = None
    ) -> None:
        self.state = state
        self._own = own
        self._store = store
        self._clock = clock
        self._crew = crew
        self._learned = 0  # steps since the last line
        self._began = clock() - state.seconds
        self._rng = np.random.default_rng(None if own.seed is None else [own.seed, own.rank, state.version])
        self._episodes: list[Episode] = []
        self._steps = 0
        self._saved = self._told = self._fed = clock()
        self._exchange = Exchange(target=own.target)
        self.verdict: Verdict | None = None

    def listen(self) -> None:
        """Open the port, with weights to hand out."""
        self._exchange.publish(self.state.version, self.state.params)
        if self.state.solved:
            self._exchange.stop()  # before the first peer can ask
        self._exchange.listen(self._own.learner)

    def train(self, stopping: threading.Event) -> None:
        """Learn until the evaluator's verdict is that the job is solved, or until told to stop."""
        while not stopping.is_set() and self.verdict is None:
            before = self._clock()
            try:
                item = self._exchange.inbox.get(timeout=0.2)
            except queue.Empty:
                item = None
            if self._crew is not None:
                self._crew.waited(self._clock() - before)
                self._crew.look(self._exchange.connected("collector"))
            if item is not None:
                self._take(item)
            elif self._clock() - self._fed > STARVED_SECONDS:
                raise CartpoleError(f"no episode came for {STARVED_SECONDS:.0f} s: look at the collectors' logs")
            self._regularly()

    def farewell(self, stopping: threading.Event) -> None:
        """Tell every peer to stop, and stay until each has heard it or the time for that is over."""
        self._exchange.stop()
        end = self._clock() + LINGER_SECONDS
        while not stopping.is_set():
            awaited = self._exchange.awaited(self._own.expected, present=self._own.present())
            if not awaited:
                break
            if self._clock() >= end:
                say(f"no goodbye from {', '.join(sorted(awaited))} within {LINGER_SECONDS:.0f} s: leaving without")
                break
            stopping.wait(0.1)
        self._exchange.close()

    def save(self) -> None:
        """Write a checkpoint; raises StoreError."""
        self.state.seconds = self._clock() - self._began
        self._store.save(self.state)
        self._saved = self._clock()

    def _take(self, item: Experience | Verdict) -> None:
        seconds = self._clock() - self._began
        history = self.state.history
        if isinstance(item, Verdict):
            history.evaluated.append(Evaluated(seconds, item.version, item.episodes, item.mean))
            if item.params is not None:
                self.state.params, self.state.solved = item.params, True
                self.verdict = item
            return
        self._fed = self._clock()
        for episode in item.episodes:
            history.played.append(Played(seconds, history.steps + episode.steps, episode.total))
        if not self.state.version - STALE_UPDATES <= item.version <= self.state.version:
            return
        self._episodes += item.episodes
        self._steps += sum(episode.steps for episode in item.episodes)
        if self._steps >= ppo.RULE.batch_steps:
            self._update()

    def _update(self) -> None:
        data = ppo.batch(self.state.params, self._episodes)
        self.state.params = ppo.improve(self.state.params, self.state.optimiser, data, self._rng)
        self.state.version += 1
        self._learned += self._steps
        self._episodes, self._steps = [], 0
        self._exchange.publish(self.state.version, self.state.params)

    def _regularly(self) -> None:
        now = self._clock()
        if now - self._told >= LINE_SECONDS:
            evaluated = self.state.history.evaluated
            client.report(
                speed=self._learned / (now - self._told) or None,  # None while it waits for the first episodes
                step=self.state.version,
                progress=min(1.0, evaluated[-1].mean / self._own.target) if evaluated else None,
            )
            self._told, self._learned = now, 0
            collectors = self._exchange.connected("collector")
            say(
                f"update {self.state.version}: {self.state.history.steps:,} steps, mean return of the last episodes "
                f"{self.state.history.recent_mean():.1f}, {collectors} collectors, {now - self._began:.0f} s"
            )
        if now - self._saved >= CHECKPOINT_SECONDS:
            try:
                self.save()
            except StoreError as error:
                self._saved = now
                say(f"{error}: going on, and trying again in {CHECKPOINT_SECONDS:.0f} s")


def resume(store: Store, own: Settings) -> State:
    """The state of the last checkpoint, or a new one."""
    state = store.load(learning_rate=own.learning_rate)
    if state is None:
        params = model.initial(np.random.default_rng(own.seed))
        return State(params=params, optimiser=model.Adam(own.learning_rate))
    say(
        f"resumed from a checkpoint: {state.version} updates, {state.history.steps:,} steps, {state.seconds:.0f} s"
        + (", solved" if state.solved else "")
    )
    return state


def main() -> int:
    """Train to the end; 0 when solved, 143 after SIGTERM."""
    stopping = threading.Event()
    client.on_stop(stopping.set)
    own = settings.read(os.environ)
    store = Store(own.folder)
    store.open()
    first = len(own.collectors)
    crew = Crew(client, first=first, clock=time.monotonic, start=beside) if client.in_job() and first else None
    learner = Learner(own, store, resume(store, own), time.monotonic, crew)
    learner.listen()
    say(f"learner of rank {own.rank}: port {own.learner.port}, folder {own.folder}, waiting for collectors")
    if not learner.state.solved:
        learner.train(stopping)
        learner.save()
    if not learner.state.solved:
        say(f"told to stop: saved at update {learner.state.version}")
        return EXIT_TERMINATED
    learner.farewell(stopping)
    plot = _plot(learner.state, store.plot, own.target)
    if stopping.is_set():
        say("told to stop before every peer had heard that the job is solved: the checkpoint says it")
        return EXIT_TERMINATED
    store.close_run()
    last = learner.state.history.evaluated[-1]
    say(
        f"solved: mean return {last.mean:.1f} over {EVALUATION_EPISODES} episodes after {last.seconds:.0f} s, "
        f"{learner.state.version} updates; plot: {plot}"
    )
    return 0


def _plot(state: State, path: Path, target: float) -> str:
    """Draw the plot; a plot that cannot be drawn must not fail a job that is solved."""
    try:
        from cartpole import plot  # noqa: PLC0415 (matplotlib takes a second to import, and only the end needs it)

        plot.draw(state.history, path, target=target)
    except (ImportError, OSError) as error:
        return f"none ({error})"
    return str(path)


if __name__ == "__main__":
    run(main)
