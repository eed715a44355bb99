"""Peers measure the network between them, in pairs, over real sockets; one that does not come holds up nobody."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from diflow.common.limits import MOST_PEERS, MOST_REPLICAS
from diflow.inpod import meetings
from diflow.inpod.meetings import Meetings, peers


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        found = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in found]


@contextlib.contextmanager
def gang(count: int, *, without: tuple[int, ...] = ()) -> Iterator[dict[int, Meetings]]:
    """Replicas that listen; those in `without` do not come."""
    ports = free_ports(count)
    hosts = ["127.0.0.1"] * count
    found = {rank: Meetings(rank, hosts, ports=ports) for rank in range(count) if rank not in without}
    try:
        for one in found.values():
            assert one.listen()
            one.ready.set()
        yield found
    finally:
        for one in found.values():
            one.close()


def meet(found: dict[int, Meetings], *, seconds: float) -> float:
    """Let all meet at once, and return how long that took."""
    start = time.monotonic()
    threads = [threading.Thread(target=one.meet, kwargs={"seconds": seconds}) for one in found.values()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return time.monotonic() - start


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meetings, "BYTES", 128 * 1024)


def test_every_pair_of_a_small_gang_meets_and_both_sides_measure() -> None:
    with gang(5) as found:
        meet(found, seconds=20)
        for one in found.values():
            one.await_lower(seconds=5)
        for one in found.values():
            assert one.unmet() == ()
            assert set(one.figures()) == {"latency", "transfer"}
            assert all(value > 0 for value in one.figures().values())


def test_a_peer_that_does_not_come_costs_bounded_time_and_is_named_by_all() -> None:
    with gang(4, without=(3,)) as found:
        took = meet(found, seconds=1.5)
        assert {rank: one.unmet() for rank, one in found.items()} == {0: (3,), 1: (3,), 2: (3,)}
        assert all(one.figures() for one in found.values())
    assert took < 20


def test_a_peer_that_accepts_and_says_nothing_costs_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meetings, "MEETING_SECONDS", 0.5)
    with gang(2, without=(1,)) as found, socket.create_server(("127.0.0.1", found[0]._ports[1])):
        meet(found, seconds=1)
        assert found[0].unmet() == (1,)


@pytest.mark.parametrize(
    "said", [b"", b"GET / HTTP/1.1\r\n\r\n", b"diflowck\xff\xff\xff\xff", b"diflowck\x00\x00\x00\x01"]
)
def test_strangers_are_turned_away(said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meetings, "MEETING_SECONDS", 0.5)
    with gang(2, without=(0,)) as found:
        port = found[1]._ports[1]
        # It may hang up before all is said.
        with socket.create_connection(("127.0.0.1", port), timeout=5) as wire, contextlib.suppress(ConnectionError):
            wire.sendall(said)
            with contextlib.suppress(OSError):  # ENOTCONN is no ConnectionError
                wire.shutdown(socket.SHUT_WR)
            assert wire.recv(1) == b""
        assert found[1].unmet() == (0,)


def test_a_peer_is_known_by_the_address_of_its_host(monkeypatch: pytest.MonkeyPatch) -> None:
    with gang(2) as found:
        monkeypatch.setattr(found[1], "_hosts", ("192.0.2.1", "127.0.0.1"))
        meet(found, seconds=1)
        assert found[0].unmet() == (1,)


def test_peers_wait_until_a_replica_is_ready() -> None:
    with gang(2) as found:
        found[1].ready.clear()
        threading.Timer(0.3, found[1].ready.set).start()
        meet(found, seconds=10)
        assert found[1].ready.is_set()
        assert found[0].unmet() == ()


def test_a_port_that_is_taken_is_said() -> None:
    with socket.create_server(("0.0.0.0", 0)) as taken:
        port = taken.getsockname()[1]
        assert not Meetings(0, ["127.0.0.1"], ports=[port]).listen()


@pytest.mark.parametrize("replicas", [2, 3, 4, 7, 16, 17, 18, 40, 256, MOST_REPLICAS])
def test_meetings_are_mutual_bounded_and_connect_the_gang(replicas: int) -> None:
    found = {rank: peers(rank, replicas) for rank in range(replicas)}
    for rank, some in found.items():
        assert rank not in some
        assert len(set(some)) == len(some) <= MOST_PEERS
        assert all(rank in found[peer] for peer in some)
        if replicas <= MOST_PEERS + 1:
            assert set(some) == set(range(replicas)) - {rank}
    reached, new = {0}, {0}
    while new:
        new = {peer for rank in new for peer in found[rank]} - reached
        reached |= new
    assert len(reached) == replicas
