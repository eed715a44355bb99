"""A collector's or evaluator's line to the learner: one request, one answer, and patience when the learner is away.

The learner may not be up yet, its name may not be in the DNS yet, or it may have been restarted. All of these look the
same from here: try again with a growing, jittered pause, and give up after some minutes with one clear line.
"""

import contextlib
import random
import socket
import time
from collections.abc import Callable

from cartpole import wire
from cartpole.faults import LinkError, WireError, say
from cartpole.settings import Address
from cartpole.wire import Kind, Message

GIVE_UP_SECONDS = 300.0  # a learner's pod that is retried, its image pulled again, is back well before this
CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 60.0  # the learner holds an answer back while it has more episodes than it can learn from
FIRST_PAUSE_SECONDS = 0.2
LONGEST_PAUSE_SECONDS = 5.0
QUIET_SECONDS = 15.0  # between two lines that say the learner is still away


class Link:
    """Asks the learner, over as many connections as it takes."""

    def __init__(
        self,
        address: Address,
        *,
        role: str,
        name: str,
        give_up_seconds: float = GIVE_UP_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._address = address
        self._hello = wire.encode(Message(Kind.HELLO, {"role": role, "name": name}))
        self._give_up_seconds = give_up_seconds
        self._clock = clock
        self._sleep = sleep
        self._connection: socket.socket | None = None

    def ask(self, message: Message) -> Message:
        """Send a request and return its answer, again on a new connection whenever one breaks.

        A request may reach the learner twice: all of them can bear that. Raises LinkError when the learner refuses
        this process, or cannot be reached for too long.
        """
        request = wire.encode(message)
        started = told = self._clock()
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                return self._once(request)
            except (OSError, WireError) as error:
                reason = _reason(error)
                was_connected = self.close()
            now = self._clock()
            left = self._give_up_seconds - (now - started)
            if left <= 0:
                raise LinkError(
                    f"no learner at {self._address} for {self._give_up_seconds:.0f} s ({reason}): "
                    "look at the learner's log, and at its host name in DI_NODES"
                )
            if was_connected or now - told >= QUIET_SECONDS:
                told = now
                say(f"no answer from the learner at {self._address} ({reason}): trying for {left:.0f} s more")
            self._sleep(pause * random.uniform(0.5, 1.0))  # jitter, not a secret
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def bye(self) -> None:
        """Tell the learner that this process ends well and will not come back."""
        if self._connection is not None:
            with contextlib.suppress(OSError):  # the learner leaves without us after a while
                self._connection.sendall(wire.encode(Message(Kind.BYE)))
        self.close()

    def close(self) -> bool:
        """Drop the connection, if there is one; says whether there was."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        return connection is not None

    def _once(self, request: bytes) -> Message:
        if self._connection is None:
            connection = socket.create_connection((self._address.host, self._address.port), CONNECT_SECONDS)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.settimeout(ANSWER_SECONDS)
            self._connection = connection
            connection.sendall(self._hello)
        self._connection.sendall(request)
        answer = wire.receive(self._connection)
        if answer is None:
            raise WireError("the learner closed the connection")
        if answer.kind is Kind.REFUSED:
            raise LinkError(f"the learner at {self._address} refused this process: {answer.fields.get('reason')}")
        return answer


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "it took too long"
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return str(error)
