"""When the learner of the CartPole example requests other numbers of collectors."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cartpole import model, ppo
from cartpole.crew import REST_SECONDS, WINDOW_SECONDS, Crew
from cartpole.episodes import Episode, Player, pack
from cartpole.link import Link
from cartpole.settings import Address
from cartpole.wire import Kind, Message
from diflow import InvalidError, UnavailableError
from tests.client.fakeserver import Seen, serving

EXAMPLES = Path(__file__).parents[2] / "examples"


class Server:
    """A fake diflow.client that records its calls."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.error: Exception | None = None

    def add_replicas(self, n: int, task: str | None = None) -> None:
        self._take(n, task)

    def delete_replicas(self, n: int, task: str | None = None) -> None:
        self._take(-n, task)

    def _take(self, change: int, task: str | None) -> None:
        assert task == "collector"
        self.asked.append(change)
        if self.error is not None:
            raise self.error


class Watched:
    """A crew of a job that began with three collectors, with a simulated clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.server = Server()
        self.begun: list[Callable[[], None]] = []
        self.crew = Crew(self.server, first=3, clock=lambda: self.now, start=self.begun.append)

    def window(self, share: float, collectors: int, *, answered: bool = True) -> list[int]:
        """One window, in which the learner waits for that share of the time. Returns the requests so far."""
        for _ in range(10):
            self.now += WINDOW_SECONDS / 10
            self.crew.waited(share * WINDOW_SECONDS / 10)
            self.crew.look(collectors)
        while answered and self.begun:
            self.begun.pop(0)()
        return self.server.asked


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_a_learner_that_starves_asks_for_one_more_and_again_when_it_came(watched: Watched) -> None:
    assert watched.window(0.9, 3) == [1]
    assert watched.window(0.9, 3) == [1], "it is not there yet"
    assert watched.window(0.9, 4) == [1, 1]
    assert watched.window(0.3, 5) == [1, 1], "neither hungry nor full"


def test_a_learner_that_never_waits_gives_back_what_it_asked_for_and_no_more(watched: Watched) -> None:
    assert watched.window(0.0, 3) == []
    watched.window(0.9, 3)
    assert watched.window(0.0, 4) == [1, -1]
    assert watched.window(0.0, 3) == [1, -1]


def test_nothing_is_asked_while_collectors_are_still_coming(watched: Watched) -> None:
    for collectors in (0, 1, 2):
        assert watched.window(1.0, collectors) == []


def test_the_most_that_the_job_may_have_is_not_asked_for_twice(
    watched: Watched, capsys: pytest.CaptureFixture[str]
) -> None:
    watched.server.error = InvalidError("replicas is above the maximum")
    for _ in range(3):
        assert watched.window(1.0, 3) == [1]
    assert capsys.readouterr().out == "stays at 3 collectors: replicas is above the maximum\n"
    watched.server.error = None
    assert watched.window(0.0, 4) == [1], "the fourth is not ours to give back"


def test_a_server_that_is_away_is_left_in_peace_for_a_while(
    watched: Watched, capsys: pytest.CaptureFixture[str]
) -> None:
    watched.server.error = UnavailableError("no such host")
    for _ in range(round(REST_SECONDS / WINDOW_SECONDS)):
        assert watched.window(1.0, 3) == [1]
    assert watched.window(1.0, 3) == [1, 1]
    assert capsys.readouterr().out == "could not ask for collectors: no such host\n"


def test_the_training_does_not_wait_for_the_answer(watched: Watched) -> None:
    assert watched.window(1.0, 3, answered=False) == []
    assert watched.window(1.0, 3, answered=False) == []
    assert len(watched.begun) == 1, "one wish at a time"


@pytest.mark.slow
def test_a_learner_in_a_job_tells_its_speed_and_asks_for_a_collector_while_nothing_comes(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    nodes = [f"127.0.0.1:{port}", "127.0.0.1:1"]
    with serving() as server:
        environ = {name: value for name, value in os.environ.items() if not name.startswith("DI_")} | {
            "PYTHONPATH": str(EXAMPLES),
            "CARTPOLE_DIR": str(tmp_path),
            "DI_JOB_ID": "ml/cartpole",
            "DI_SERVER_URL": server.url,
            "DI_RANK": "0",
            "DI_NODES": ",".join(nodes),
            "DI_LEARNER_NODES": nodes[0],
            "DI_COLLECTOR_NODES": nodes[1],
        }
        learner = subprocess.Popen(
            [sys.executable, "-m", "cartpole.learner"], env=environ, stdout=subprocess.PIPE, text=True
        )
        link = Link(Address("127.0.0.1", port), role="collector", name=nodes[1])
        try:
            link.ask(Message(Kind.FETCH, {"have": -1}))
            link.ask(Message(Kind.EPISODES, {"have": 0, "version": 0}, pack(_episodes(ppo.RULE.batch_steps))))
            seen = server.until(lambda all_seen: any(map(_has_speed, all_seen)) and any(map(_is_wish, all_seen)))
        finally:
            learner.send_signal(signal.SIGTERM)
            log = learner.communicate(timeout=60)[0]
            link.close()
    assert learner.returncode == 143, log
    wish = next(filter(_is_wish, seen))
    assert (wish.method, wish.body) == ("POST", {"replicas": 1, "task": "collector"})
    assert next(filter(_has_speed, seen)).body["step"] == 1


def _has_speed(seen: Seen) -> bool:
    return seen.path == "/v2alpha1/job/ml.cartpole/profilings" and seen.body.get("speed", 0) > 0


def _is_wish(seen: Seen) -> bool:
    return seen.path == "/v2alpha1/job/ml.cartpole/replicas"


def _episodes(steps: int) -> list[Episode]:
    player, params = Player(np.random.SeedSequence(0)), model.initial(np.random.default_rng(0))
    episodes = [player.explore(params)]
    while sum(episode.steps for episode in episodes) < steps:
        episodes.append(player.explore(params))
    return episodes
