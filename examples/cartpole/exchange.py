"""The learner's side of the wire: a thread for each connection, and what they share with the training loop.

Threads only check and hand over: episodes and evaluations go into one bounded inbox, encoded weights come back. A full
inbox holds the answers back, so that collectors never run far ahead of the learner.
"""

import contextlib
import queue
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from cartpole import episodes, model, wire
from cartpole.episodes import Episode
from cartpole.faults import CartpoleError, WireError, say
from cartpole.settings import Address
from cartpole.wire import Kind, Message

IDLE_SECONDS = 300.0  # a peer that says nothing for so long is gone: its node was lost, and no reset ever came
INBOX = 4  # requests: more would only be played with older weights
CONNECTIONS = 64
EVALUATION_EPISODES = 100
NAME_LIMIT = 300  # characters: a host name has 253 at most, a port comes to it


@dataclass(frozen=True, slots=True)
class Experience:
    """Episodes from a collector, and the version of the weights that played them."""

    version: int
    episodes: list[Episode]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Returns of greedy episodes with one set of weights; `params` are those weights when they solve."""

    version: int
    mean: float
    episodes: int
    params: model.Params | None


class Exchange:
    """Answers the peers until it is closed."""

    def __init__(self, *, target: float) -> None:
        self._target = target
        self._lock = threading.Lock()
        self._weights = b""
        self._version = -1
        self._connected: dict[int, tuple[str, str]] = {}  # by a connection's number: its role and name
        self._seen: set[str] = set()  # names, as in the next one
        self._gone: set[str] = set()
        self._server: socket.socket | None = None
        self._stop = threading.Event()
        self._closed = threading.Event()
        self.inbox: queue.Queue[Experience | Verdict] = queue.Queue(INBOX)

    def publish(self, version: int, params: model.Params) -> None:
        """Make these the weights that peers fetch."""
        frame = wire.encode(Message(Kind.WEIGHTS, {"version": version}, dict(params)))
        with self._lock:
            self._version, self._weights = version, frame

    def stop(self) -> None:
        """From now on tell every peer that the job is solved."""
        self._stop.set()

    def close(self) -> None:
        """Take no more connections, and let no thread wait for the training loop."""
        self._closed.set()
        if self._server is not None:
            with contextlib.suppress(OSError):  # this is what wakes a thread that sits in accept()
                self._server.shutdown(socket.SHUT_RDWR)
            self._server.close()

    def connected(self, role: str) -> int:
        """How many peers of a role are connected."""
        with self._lock:
            return sum(each == role for each, _ in self._connected.values())

    def awaited(self, expected: frozenset[str], *, present: frozenset[str] | None = None) -> frozenset[str]:
        """Peers, of those expected and those seen, that have not said goodbye.

        Of these, only such as the job still has (`present`, None if that is not known) or as are connected: one that
        was taken away in between will never say it.
        """
        with self._lock:
            left = (expected | self._seen) - self._gone
            return left if present is None else left & (present | {name for _, name in self._connected.values()})

    def listen(self, address: Address) -> None:
        """Open the port and serve it in the background; raises CartpoleError when it cannot be had."""
        try:
            server = _open(address)
        except OSError as error:
            raise CartpoleError(
                f"cannot listen on port {address.port} ({error.strerror or error}): "
                "is another learner running here? Stop it, or give this one another port in DI_NODES"
            ) from None
        self._server = server
        threading.Thread(target=self._accept, args=(server,), name="accept", daemon=True).start()

    def _accept(self, server: socket.socket) -> None:
        slots = threading.Semaphore(CONNECTIONS)
        number = 0
        while not self._closed.is_set():
            slots.acquire()
            try:
                connection, _ = server.accept()
            except OSError:
                slots.release()
                self._closed.wait(0.1)  # out of file descriptors, or the peer was already gone: no tight loop
                continue
            number += 1
            serve = _releasing(self._serve, slots)
            threading.Thread(target=serve, args=(connection, number), name=f"peer-{number}", daemon=True).start()

    def _serve(self, connection: socket.socket, number: int) -> None:
        who = "a peer"
        with connection:
            try:
                connection.settimeout(IDLE_SECONDS)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                hello = wire.receive(connection)
                if hello is None:
                    return  # a probe of the port
                role, name = _introduced(hello)
                who = f"{role} {name}"
                with self._lock:
                    self._connected[number] = role, name
                    self._seen.add(name)
                    self._gone.discard(name)
                self._converse(connection, name)
            except (WireError, ValueError) as error:
                say(f"refused {who}: {error}")
                _refuse(connection, str(error))
            except OSError:
                pass  # the peer was killed, or its node lost: it comes back by itself
            finally:
                with self._lock:
                    self._connected.pop(number, None)

    def _converse(self, connection: socket.socket, name: str) -> None:
        while True:
            message = wire.receive(connection)
            if message is None:
                return
            if message.kind is Kind.BYE:
                with self._lock:
                    self._gone.add(name)
                return
            connection.sendall(self._answer(message))

    def _answer(self, message: Message) -> bytes:
        have = message.integer("have")
        if message.kind is Kind.EPISODES:
            self._hand_over(Experience(message.integer("version"), episodes.unpack(message.arrays)))
        elif message.kind is Kind.EVALUATION:
            self._hand_over(self._verdict(message))
        elif message.kind is not Kind.FETCH:
            raise WireError(f"a {message.kind.name} frame is not a request")
        if self._stop.is_set():
            return wire.encode(Message(Kind.STOP))
        with self._lock:
            # Not `<`: after a learner's restart its weights are older than those that a peer may have.
            if have != self._version:
                return self._weights
        return wire.encode(Message(Kind.SAME, {"version": have}))

    def _verdict(self, message: Message) -> Verdict:
        returns = np.asarray(message.arrays.get("returns", np.zeros(0)), dtype=np.float64)
        if returns.ndim != 1 or not 0 < len(returns) <= EVALUATION_EPISODES or not np.isfinite(returns).all():
            raise WireError(f"an evaluation has 1 to {EVALUATION_EPISODES} finite returns")
        mean = float(returns.mean())
        params: model.Params | None = None
        if message.fields.get("solved") is True:
            if len(returns) < EVALUATION_EPISODES or mean < self._target:
                raise WireError(f"a mean of {mean:.1f} over {len(returns)} episodes does not reach {self._target:g}")
            params = model.checked({name: value for name, value in message.arrays.items() if name != "returns"})
        return Verdict(message.integer("version"), mean, len(returns), params)

    def _hand_over(self, item: Experience | Verdict) -> None:
        while not (self._stop.is_set() or self._closed.is_set()):
            try:
                self.inbox.put(item, timeout=0.2)
            except queue.Full:
                continue
            return


def _open(address: Address) -> socket.socket:
    if address.host in ("127.0.0.1", "localhost"):
        return socket.create_server((address.host, address.port))
    # In a pod: every address of it, of either family, as the Service may reach it by both.
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(("", address.port), family=socket.AF_INET6, dualstack_ipv6=True)
        except OSError:
            pass  # a kernel without IPv6: the error of the next line is the one to show
    return socket.create_server(("", address.port))


def _releasing(
    serve: Callable[[socket.socket, int], None], slots: threading.Semaphore
) -> Callable[[socket.socket, int], None]:
    def run(connection: socket.socket, number: int) -> None:
        try:
            serve(connection, number)
        finally:
            slots.release()

    return run


def _introduced(hello: Message) -> tuple[str, str]:
    role, name = hello.fields.get("role"), hello.fields.get("name")
    if hello.kind is not Kind.HELLO or role not in ("collector", "evaluator"):
        raise WireError("the first frame did not say who is there")
    if not isinstance(name, str) or not 0 < len(name) <= NAME_LIMIT or not name.isprintable():
        raise WireError("the first frame did not say the name of who is there")
    return str(role), name


def _refuse(connection: socket.socket, reason: str) -> None:
    with contextlib.suppress(OSError):  # it is gone already
        connection.sendall(wire.encode(Message(Kind.REFUSED, {"reason": reason[:500]})))
