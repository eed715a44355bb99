"""The learner's port and the connections of its peers, over real sockets in one process."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from cartpole import model, wire
from cartpole.episodes import Player, pack
from cartpole.exchange import Exchange, Experience, Verdict
from cartpole.faults import CartpoleError, LinkError
from cartpole.link import Link
from cartpole.settings import Address
from cartpole.wire import Arrays, Kind, Message

Peers = Callable[..., Link]
PARAMS = model.initial(np.random.default_rng(0))


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.fixture
def address() -> Address:
    return Address("127.0.0.1", _free_port())


@pytest.fixture
def exchange(address: Address) -> Iterator[Exchange]:
    made = Exchange(target=475)
    made.publish(7, PARAMS)
    made.listen(address)
    yield made
    made.close()


@pytest.fixture
def link(address: Address) -> Iterator[Peers]:
    """Opens a peer's connection to the learner, and closes it at the end."""
    made: list[Link] = []

    def make(*, name: str = "collector-0", role: str = "collector", **options: Any) -> Link:
        made.append(Link(address, role=role, name=name, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


def _until(condition: object, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)


def _episodes() -> Arrays:
    return pack([Player(np.random.SeedSequence(0)).explore(PARAMS)])


def test_a_peer_gets_the_newest_weights_once(link: Peers, exchange: Exchange) -> None:
    peer = link()
    answer = peer.ask(Message(Kind.FETCH, {"have": -1}))
    assert (answer.kind, answer.integer("version")) == (Kind.WEIGHTS, 7)
    np.testing.assert_array_equal(model.checked(answer.arrays)["policy/w0"], PARAMS["policy/w0"])
    assert peer.ask(Message(Kind.FETCH, {"have": 7})).kind is Kind.SAME
    # A learner that was restarted from a checkpoint has older weights than its peers: they take those.
    exchange.publish(5, PARAMS)
    assert peer.ask(Message(Kind.FETCH, {"have": 7})).integer("version") == 5


def test_episodes_reach_the_inbox(link: Peers, exchange: Exchange) -> None:
    link().ask(Message(Kind.EPISODES, {"have": 7, "version": 6}, _episodes()))
    item = exchange.inbox.get(timeout=60)
    assert isinstance(item, Experience)
    assert (item.version, len(item.episodes)) == (6, 1)


def test_a_full_inbox_holds_collectors_back_until_the_stop(link: Peers, exchange: Exchange) -> None:
    peer = link()
    message = Message(Kind.EPISODES, {"have": 7, "version": 7}, _episodes())
    for _ in range(exchange.inbox.maxsize):
        peer.ask(message)
    answers: list[Message] = []
    waiting = threading.Thread(target=lambda: answers.append(peer.ask(message)))
    waiting.start()
    waiting.join(0.5)
    assert not answers
    exchange.stop()
    waiting.join(5)
    assert [answer.kind for answer in answers] == [Kind.STOP]


def test_a_solving_evaluation_brings_the_weights_it_was_made_with(link: Peers, exchange: Exchange) -> None:
    peer = link(role="evaluator")
    arrays: Arrays = {"returns": np.full(100, 480.0)} | dict(PARAMS)
    peer.ask(Message(Kind.EVALUATION, {"have": 7, "version": 7, "solved": True}, arrays))
    verdict = exchange.inbox.get(timeout=60)
    assert isinstance(verdict, Verdict)
    assert (verdict.mean, verdict.episodes) == (480.0, 100)
    assert verdict.params is not None


@pytest.mark.parametrize(
    ("returns", "message"),
    [
        (np.full(100, 474.9), "does not reach 475"),
        (np.full(99, 500.0), "does not reach 475"),
        (np.full(101, 500.0), "1 to 100 finite returns"),
        (np.full(100, np.inf), "1 to 100 finite returns"),
    ],
)
@pytest.mark.usefixtures("exchange")
def test_a_claim_below_the_bar_is_refused(link: Peers, returns: np.ndarray, message: str) -> None:
    arrays: Arrays = {"returns": returns} | dict(PARAMS)
    with pytest.raises(LinkError, match=message):
        link(role="evaluator").ask(Message(Kind.EVALUATION, {"have": 7, "version": 7, "solved": True}, arrays))


def test_the_learner_waits_for_each_peer_until_it_has_heard_the_stop(link: Peers, exchange: Exchange) -> None:
    expected = frozenset({"collector-0", "collector-1"})
    first = link(name="collector-0")
    first.ask(Message(Kind.FETCH, {"have": -1}))
    exchange.stop()
    assert first.ask(Message(Kind.FETCH, {"have": 7})).kind is Kind.STOP
    first.bye()
    _until(lambda: exchange.awaited(expected) == {"collector-1"})
    # The other was killed and returns late: its first request is answered with the stop.
    late = link(name="collector-1")
    assert late.ask(Message(Kind.FETCH, {"have": -1})).kind is Kind.STOP
    late.bye()
    _until(lambda: not exchange.awaited(expected))


def test_a_peer_that_the_job_has_no_more_is_not_waited_for(link: Peers, exchange: Exchange) -> None:
    expected = frozenset({"collector-0", "collector-1"})
    added = link(name="collector-2")  # so young that the roster does not have it yet
    added.ask(Message(Kind.FETCH, {"have": -1}))
    assert exchange.awaited(expected) == expected | {"collector-2"}
    assert exchange.awaited(expected, present=frozenset({"collector-0"})) == {"collector-0", "collector-2"}
    added.close()
    _until(lambda: exchange.awaited(expected, present=frozenset({"collector-0"})) == {"collector-0"})


def test_a_peer_that_dies_is_forgotten_and_may_return(link: Peers, exchange: Exchange) -> None:
    peer = link()
    peer.ask(Message(Kind.FETCH, {"have": -1}))
    assert exchange.connected("collector") == 1
    peer.close()
    _until(lambda: exchange.connected("collector") == 0)
    assert peer.ask(Message(Kind.FETCH, {"have": -1})).kind is Kind.WEIGHTS


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        wire.encode(Message(Kind.FETCH, {"have": 1})),
        wire.encode(Message(Kind.HELLO, {"role": "boss", "name": "a"})),
        wire.encode(Message(Kind.HELLO, {"role": "collector", "name": 1})),
        wire.encode(Message(Kind.HELLO, {"role": "collector", "name": "a" * 301})),
        wire.encode(Message(Kind.HELLO, {"role": "collector", "name": "a\nsolved: b"})),
        wire.encode(Message(Kind.HELLO, {"role": "collector", "name": "a"})) + wire.encode(Message(Kind.WEIGHTS)),
        wire.encode(Message(Kind.HELLO, {"role": "collector", "name": "a"}))
        + wire.encode(Message(Kind.EPISODES, {"have": 1, "version": 1})),
    ],
)
def test_a_stranger_is_refused_and_the_others_go_on(
    link: Peers, address: Address, exchange: Exchange, data: bytes
) -> None:
    with socket.create_connection((address.host, address.port), 5) as stranger:
        stranger.sendall(data)
        answer = wire.receive(stranger)
        assert answer is not None
        assert answer.kind is Kind.REFUSED
    assert exchange.inbox.empty()
    assert link().ask(Message(Kind.FETCH, {"have": -1})).kind is Kind.WEIGHTS


def test_a_peer_that_comes_first_waits_for_the_learner(link: Peers, address: Address) -> None:
    exchange = Exchange(target=475)
    exchange.publish(1, PARAMS)
    naps = 0

    def sleep(seconds: float) -> None:
        nonlocal naps
        assert 0 < seconds <= 5
        naps += 1
        if naps == 3:
            exchange.listen(address)

    peer = link(sleep=sleep)
    assert peer.ask(Message(Kind.FETCH, {"have": -1})).kind is Kind.WEIGHTS
    assert naps >= 3
    exchange.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "no-such-host.invalid"])
def test_a_learner_that_stays_away_ends_a_peer_with_one_line(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def resolve(name: str, port: int, *_rest: object) -> list[Any]:
        if name != "127.0.0.1":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (name, port))]

    # Some resolvers take seconds to report that a name does not exist.
    monkeypatch.setattr(socket, "getaddrinfo", resolve)

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    peer = Link(Address(host, _free_port()), role="collector", name="a", clock=lambda: now, sleep=sleep)
    with pytest.raises(LinkError, match=f"no learner at {host}:[0-9]+ for 300 s"):
        peer.ask(Message(Kind.FETCH, {"have": -1}))


def test_a_port_in_use_is_one_clear_line(address: Address, exchange: Exchange) -> None:
    assert exchange.inbox.empty()
    with pytest.raises(CartpoleError, match=f"cannot listen on port {address.port} .*is another learner running"):
        Exchange(target=475).listen(address)
