"""Turns at something that costs: tenants take them one after the other, however much one of them asks for.

A tenant is whoever bears the cost: the namespace of a job, the account of a user, or an address that nothing else is
known of. Each write into a Workflow costs the API server a write, and Argo a look at the whole Workflow. A thousand
jobs that report every second would leave nothing of either for other work.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, OrderedDict, deque
from typing import Final

from diflow.common.clock import SYSTEM, Clock
from diflow.server.http.buckets import Buckets
from diflow.server.http.errors import unavailable

_SHORTEST_SECONDS: Final = 0.001  # a shorter wait may be too short to change the clock
_LONGEST_SECONDS: Final = 0.05
_ALL: Final = ""


class Turns:
    """`rate` turns a second in the long run, and `burst` at once after a pause: of both, one tenant gets `part`.
    At most `places` are not `done` at a time, of which a tenant that has some gets no more than are left free. `most`
    may wait: then the newest of the tenant with the most of them is refused. For one event loop."""

    def __init__(
        self,
        *,
        rate: float = math.inf,
        burst: float = 1.0,
        part: float = 1.0,
        places: float = math.inf,
        most: float = math.inf,
        clock: Clock = SYSTEM,
    ) -> None:
        self._bucket = Buckets(rate=rate, burst=burst, most=1, clock=clock) if rate < math.inf else None
        self._own = Buckets(rate=part * rate, burst=part * burst, clock=clock) if rate < math.inf and part < 1 else None
        self._places, self._most = places, most
        self._pause = clock.pause
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        self._asking: Counter[str] = Counter()
        self._held: Counter[str] = Counter()
        self._changed = asyncio.Event()
        self._giver: asyncio.Task[None] | None = None
        self._is_open = False

    @property
    def busy(self) -> int:
        """How many wait, and how many had their turn and are not done."""
        return self._asking.total() + self._held.total()

    async def wait(self, tenant: str) -> None:
        """Wait for the next turn of this tenant; with `places`, its place is kept until `done`. Raises ApiError (503)
        if too many wait, and this tenant has the most of them."""
        if self._is_open or (not self._waiting and self._may(tenant) and not self._seconds(tenant)):
            self._keep(tenant)
            return
        if self._asking.total() >= self._most:
            self._refuse_one(tenant)
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(turn)
        self._changed.set()
        if self._giver is None:
            self._giver = asyncio.ensure_future(self._give())
        self._asking[tenant] += 1
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:  # it has just had its turn
                self.done(tenant)
            raise
        finally:
            _take_one(self._asking, tenant)

    def done(self, tenant: str) -> None:
        """Give the place of a turn back."""
        _take_one(self._held, tenant)
        self._changed.set()

    def open(self) -> None:
        """Let everything pass from now on: the process ends."""
        self._is_open = True
        for tenant, turns in self._waiting.items():
            for turn in turns:
                if not turn.done():
                    self._keep(tenant)
                    turn.set_result(None)
        self._waiting.clear()
        self._changed.set()

    def _keep(self, tenant: str) -> None:
        if self._places < math.inf:
            self._held[tenant] += 1

    def _may(self, tenant: str) -> bool:
        """Whether a place is free for this tenant. Slow work of one, such as writes that conflict, would hold all of
        them otherwise."""
        free, own = self._places - self._held.total(), self._held[tenant]
        return free >= 1 and (own == 0 or own < free)

    def _seconds(self, tenant: str) -> float:
        """Take one of the rate for this tenant: 0, or the seconds until there is one."""
        if self._own is not None and (seconds := self._own.take(tenant)):
            return seconds
        if self._bucket is not None and (seconds := self._bucket.take(_ALL)):
            if self._own is not None:
                self._own.refund(tenant)
            return seconds
        return 0.0

    def _refuse_one(self, tenant: str) -> None:
        """Refuse the newest that waits of the tenant with the most of them. Raises ApiError if that is this tenant."""
        refusal = unavailable("too many requests to the cluster at once")
        largest, most = max(self._asking.items(), key=lambda each: each[1], default=(tenant, 0))
        newest = next((turn for turn in reversed(self._waiting.get(largest, ())) if not turn.done()), None)
        if newest is None or self._asking[tenant] >= most:
            raise refusal
        newest.set_exception(refusal)

    def _next(self) -> tuple[str, float]:
        """(the tenant whose turn it is, 0); without one, ("", the seconds until the rate allows one, infinite while no
        place is free for any that waits)."""
        soonest = math.inf
        for tenant, turns in list(self._waiting.items()):
            while turns and turns[0].done():  # its caller was cancelled, or it was refused
                turns.popleft()
            if not turns:
                del self._waiting[tenant]
            elif self._may(tenant):
                if not (seconds := self._seconds(tenant)):
                    return tenant, 0.0
                soonest = min(soonest, seconds)
        return "", soonest

    async def _give(self) -> None:
        try:
            while self._waiting:
                tenant, seconds = self._next()
                if not self._waiting:
                    break
                if seconds == math.inf:
                    self._changed.clear()
                    await self._changed.wait()
                elif seconds:  # somebody else may come meanwhile, who has his part left
                    await self._pause(min(max(seconds, _SHORTEST_SECONDS), _LONGEST_SECONDS))
                else:
                    self._keep(tenant)
                    self._waiting[tenant].popleft().set_result(None)
                    self._waiting.move_to_end(tenant)
        finally:
            self._giver = None


def _take_one(counts: Counter[str], name: str) -> None:
    counts[name] -= 1
    if counts[name] <= 0:
        del counts[name]
