"""The peers of a gang measure the network between them, in pairs.

Of each pair the lower rank connects. It sends MESSAGES small messages and gets each back, then BYTES bytes each way.
Both sides measure, and each reports only its own figures: a peer cannot make another node look faulty. A replica has
one meeting at a time, so that two of them do not share its network; as it only waits for higher ranks, no two wait for
each other. In a small gang every pair meets. In a large one each replica meets MOST_PEERS others, at distances that
connect the gang.

The port is open to the cluster's network as long as the check runs, and takes bounded messages from the addresses of
the peers alone.
"""

from __future__ import annotations

import contextlib
import socket
import statistics
import struct
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from diflow.common.clock import SYSTEM, Clock
from diflow.common.limits import MOST_PEERS

PORT: Final = 29511
MESSAGES: Final = 20
BYTES: Final = 4 * 2**20
MEETING_SECONDS: Final = 5.0
"""The longest meeting: with 4 MiB each way, a network of less than 2 MiB/s ends it."""
_CONNECT_SECONDS: Final = 1.0
_PAUSE_SECONDS: Final = 0.2
_PIECE: Final = 64 * 1024
_HELLO: Final = struct.Struct("!8sI")
_MAGIC: Final = b"diflowck"
_MOST_WAITING: Final = 32
_READY: Final = b"+"


def peers(rank: int, replicas: int) -> tuple[int, ...]:
    """The ranks that this one meets, in an order in which few meet the same one at once; symmetric.

    All others if there are at most MOST_PEERS; else those at the distances 1, 2, 4, ... and further ones, both ways.
    """
    if replicas <= MOST_PEERS + 1:
        distances = list(range(1, replicas // 2 + 1))
    else:
        powers = [2**i for i in range(replicas.bit_length()) if 2**i <= (replicas - 1) // 2]
        # Powers of two make a graph in which every two replicas are a few meetings apart.
        distances = sorted({1, *powers[-(MOST_PEERS // 2 - 1) :]})[: MOST_PEERS // 2]
    found: dict[int, None] = {}
    for distance in distances:
        # Neighbours differ in the direction that they take first.
        sides = (distance, -distance) if rank // distance % 2 == 0 else (-distance, distance)
        for side in sides:
            found[(rank + side) % replicas] = None
    found.pop(rank, None)
    return tuple(found)


@dataclass(slots=True)
class Met:
    """The figures of the meetings so far, by peer."""

    latency: dict[int, float] = field(default_factory=dict)
    transfer: dict[int, float] = field(default_factory=dict)

    def figures(self) -> dict[str, float]:
        """The best figure of all meetings: a figure of a meeting with a slow peer is bad because of the peer."""
        out = {
            "latency": min(self.latency.values(), default=None),
            "transfer": min(self.transfer.values(), default=None),
        }
        return {name: value for name, value in out.items() if value is not None}


class Meetings:
    """The meetings of one replica. `hosts`: those of all replicas by rank.

    `ready` is set when this replica may be disturbed: until then peers wait.
    """

    def __init__(
        self,
        rank: int,
        hosts: Sequence[str],
        *,
        port: int = PORT,
        clock: Clock = SYSTEM,
        ports: Sequence[int] | None = None,
    ) -> None:
        self.rank = rank
        self._hosts = tuple(hosts)
        self._ports = tuple(ports) if ports is not None else (port,) * len(self._hosts)
        self._clock = clock
        self._one = threading.Lock()
        self._known = threading.Lock()
        self._waiting = threading.Semaphore(_MOST_WAITING)
        self._socket: socket.socket | None = None
        self._addresses: dict[int, frozenset[str]] = {}
        self.ready = threading.Event()
        self._met = Met()
        self.peers = peers(rank, len(self._hosts))

    def listen(self) -> bool:
        """Accept meetings from now on, in a thread. False if the port is taken, as by another pod of a host network."""
        try:
            self._socket = _listening(self._ports[self.rank])
        except OSError:
            return False
        threading.Thread(target=self._accept, args=(self._socket,), daemon=True).start()
        return True

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()

    def meet(self, *, seconds: float) -> None:
        """Meet the peers of higher rank, within `seconds`. A peer that does not come delays it by no more than that."""
        until = self._clock.monotonic() + seconds
        left = [peer for peer in self.peers if peer > self.rank]
        while left and self._clock.monotonic() < until:
            for peer in list(left):
                if self._clock.monotonic() >= until:
                    break
                if self._meet(peer, until):
                    left.remove(peer)
            if left:
                self._clock.sleep(_PAUSE_SECONDS)

    def await_lower(self, *, seconds: float) -> None:
        """Wait until the peers of lower rank have come, within `seconds`."""
        until = self._clock.monotonic() + seconds
        while self._clock.monotonic() < until and any(peer in self.unmet() for peer in self.peers if peer < self.rank):
            self._clock.sleep(_PAUSE_SECONDS)

    def figures(self) -> dict[str, float]:
        with self._known:
            return self._met.figures()

    def unmet(self) -> tuple[int, ...]:
        """The peers that were not met."""
        with self._known:
            return tuple(sorted(peer for peer in self.peers if peer not in self._met.transfer))

    def _meet(self, peer: int, until: float) -> bool:
        """One meeting with a peer of higher rank; False if it cannot be now."""
        seconds = max(0.05, min(_CONNECT_SECONDS, until - self._clock.monotonic()))
        try:
            # The own turn first, then the peer's: ranks rise along every chain of waits.
            with self._one, socket.create_connection((self._hosts[peer], self._ports[peer]), timeout=seconds) as wire:
                wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                wire.settimeout(max(0.05, min(MEETING_SECONDS, until - self._clock.monotonic())))
                wire.sendall(_HELLO.pack(_MAGIC, self.rank))
                if _read(wire, 1, until, self._clock) != _READY:
                    return False
                end = min(until, self._clock.monotonic() + MEETING_SECONDS)
                latency = self._latency(wire, end)
                transfer = self._send_and_take(wire, end)
        except (OSError, EOFError):
            return False
        self._note(peer, latency, transfer)
        return True

    def _latency(self, wire: socket.socket, end: float) -> float:
        times = []
        for _ in range(MESSAGES):
            start = self._clock.monotonic()
            wire.sendall(b".")
            _read(wire, 1, end, self._clock)
            times.append(self._clock.monotonic() - start)
        return statistics.median(times)

    def _send_and_take(self, wire: socket.socket, end: float) -> float:
        start = self._clock.monotonic()
        _send(wire, BYTES, end, self._clock)
        _read(wire, 1, end, self._clock)
        _take(wire, BYTES, end, self._clock)
        wire.sendall(b".")
        return (self._clock.monotonic() - start) / (2 * BYTES / 2**20)

    def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                wire, address = listening.accept()
            except OSError:
                return
            if not self._waiting.acquire(blocking=False):
                wire.close()
                continue
            threading.Thread(target=self._answer, args=(wire, str(address[0])), daemon=True).start()

    def _answer(self, wire: socket.socket, address: str) -> None:
        """The other side of `_meet`."""
        try:
            with wire:
                wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                wire.settimeout(MEETING_SECONDS)
                end = self._clock.monotonic() + MEETING_SECONDS
                magic, peer = _HELLO.unpack(_read(wire, _HELLO.size, end, self._clock))
                if magic != _MAGIC or peer >= self.rank or peer not in self.peers or not self._is_of(peer, address):
                    return
                if not self.ready.wait(MEETING_SECONDS):
                    return
                with self._turn() as is_mine:
                    if is_mine:
                        self._note(peer, *self._serve(wire))
        except (OSError, EOFError, struct.error):
            return
        finally:
            self._waiting.release()

    @contextlib.contextmanager
    def _turn(self) -> Iterator[bool]:
        is_mine = self._one.acquire(timeout=MEETING_SECONDS)
        try:
            yield is_mine
        finally:
            if is_mine:
                self._one.release()

    def _serve(self, wire: socket.socket) -> tuple[float, float]:
        end = self._clock.monotonic() + MEETING_SECONDS
        wire.sendall(_READY)
        times = []
        for _ in range(MESSAGES):
            start = self._clock.monotonic()
            _read(wire, 1, end, self._clock)
            wire.sendall(b".")
            times.append(self._clock.monotonic() - start)
        start = self._clock.monotonic()
        _take(wire, BYTES, end, self._clock)
        wire.sendall(b".")
        _send(wire, BYTES, end, self._clock)
        _read(wire, 1, end, self._clock)
        return statistics.median(times), (self._clock.monotonic() - start) / (2 * BYTES / 2**20)

    def _is_of(self, peer: int, address: str) -> bool:
        """Whether the address is one of the peer's host."""
        known = self._addresses.get(peer)
        if known is None or address not in known:
            try:
                found = socket.getaddrinfo(self._hosts[peer], None, type=socket.SOCK_STREAM)
            except OSError:
                return False
            known = self._addresses[peer] = frozenset(str(one[4][0]) for one in found)
        return address in known or address.removeprefix("::ffff:") in known

    def _note(self, peer: int, latency: float, transfer: float) -> None:
        with self._known:
            self._met.latency[peer] = min(latency, self._met.latency.get(peer, latency))
            self._met.transfer[peer] = min(transfer, self._met.transfer.get(peer, transfer))


def _listening(port: int) -> socket.socket:
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=64)
    return socket.create_server(("", port), backlog=64)


def _read(wire: socket.socket, size: int, end: float, clock: Clock) -> bytes:
    """Exactly `size` bytes, before `end`. Raises OSError or EOFError."""
    out = bytearray()
    while len(out) < size:
        _check_time(end, clock)
        piece = wire.recv(size - len(out))
        if not piece:
            raise EOFError
        out += piece
    return bytes(out)


def _take(wire: socket.socket, size: int, end: float, clock: Clock) -> None:
    """Receive `size` bytes, and drop them."""
    piece = bytearray(_PIECE)
    while size > 0:
        _check_time(end, clock)
        got = wire.recv_into(piece, min(size, _PIECE))
        if not got:
            raise EOFError
        size -= got


def _send(wire: socket.socket, size: int, end: float, clock: Clock) -> None:
    piece = memoryview(bytes(_PIECE))
    while size > 0:
        _check_time(end, clock)
        size -= wire.send(piece[: min(size, _PIECE)])


def _check_time(end: float, clock: Clock) -> None:
    if clock.monotonic() > end:
        raise TimeoutError("the meeting takes too long")
