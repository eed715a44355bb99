"""Sees to it that one process writes at a time: leader election with a Lease of Kubernetes.

Time is judged on this process's own monotonic clock alone. A leader counts from before it sent its last successful
renewal, and stops after `deadline_seconds`; a waiting process counts from after it first saw the leader's last renewal,
and takes over after `lease_seconds`, which is longer. So the two never overlap, whatever the network delays, however
long a process is stopped, and whatever the wall clocks say.

A write that was on its way when its sender was stopped still arrives: writes need a resourceVersion test, too.
"""

from __future__ import annotations

import copy
import math
import random
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any, Final

from diflow.errors import ConflictError, DiflowError, LostLeadershipError, NotFoundError
from diflow.kube.api import Cluster
from diflow.kube.kinds import LEASE

Json = dict[str, Any]

_NAME: Final = "diflow-allocator"
_LONGEST_RETRY_AFTER_SECONDS: Final = 30.0
# After a failure the next try comes sooner, so that several fit before the deadline.
_SOONER: Final = 1 / 3
# The guard's waits do not count the time for which the machine was suspended, so it looks at the clock this often.
_TICK_SECONDS: Final = 1.0


def boottime() -> float:
    """Monotonic seconds that also count the time for which the machine was suspended, where the system has them."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


class Elector:
    """One candidate. `identity` names its process: no two processes may share one (a host's name and a random part).

    `lease_seconds`: how long the others wait after the last sign of a leader. `deadline_seconds`: how long this process
    trusts its last renewal; the difference is for clocks that run at different speeds and for writes on their way.
    `renew_seconds`: the pause between renewals, and between looks at another's Lease. `request_seconds`: how long a
    request may take, below half the deadline, so that one that hangs leaves time for another.

    `says` are annotations of the Lease that tell others about this process while it leads.
    `on_lost` is called once, from a thread of the elector, when leadership was lost (not when it was released): the
    process should end then. `clock` gives monotonic seconds; `wall` the Unix time that people read in the Lease.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        name: str = _NAME,
        namespace: str,
        identity: str,
        lease_seconds: float = 15.0,
        renew_seconds: float = 3.0,
        deadline_seconds: float | None = None,
        request_seconds: float | None = None,
        says: Mapping[str, str] = MappingProxyType({}),
        on_lost: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = boottime,
        wall: Callable[[], float] = time.time,
        jitter: Callable[[float, float], float] = random.uniform,
    ) -> None:
        deadline = deadline_seconds if deadline_seconds is not None else lease_seconds * 2 / 3
        request = request_seconds if request_seconds is not None else deadline * 0.4
        if not 0 < renew_seconds < deadline < lease_seconds or not 0 < request < deadline / 2:
            raise ValueError(
                "an elector needs renew_seconds < deadline_seconds < lease_seconds and request_seconds below half the "
                f"deadline: not {renew_seconds}, {deadline}, {lease_seconds} and {request}"
            )
        if not identity:
            raise ValueError("an elector needs an identity that no other process has")
        self._cluster = cluster.asked_once(read_seconds=request * 0.75, connect_seconds=request * 0.25)
        self.name, self.namespace, self.identity = name, namespace, identity
        self._lease_seconds, self._renew_seconds, self._deadline_seconds = lease_seconds, renew_seconds, deadline
        self._says, self._on_lost = dict(says), on_lost
        self._clock, self._wall, self._jitter = clock, wall, jitter
        # Held during a request, so that a release never crosses a renewal; what `check` reads needs only `_lock`.
        self._asking = threading.Lock()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._leading = False
        self._released = False
        self._renewed = -math.inf
        self._epoch = 0
        self._trouble = ""
        self._lease: Json | None = None
        self._record: object = None
        self._record_seen = -math.inf

    # --- what callers ask ---------------------------------------------------------------------------------------------

    def acquire(self, stop: threading.Event) -> bool:
        """Wait until this process leads, and renew from then on in a thread. False if `stop` was set before."""
        while not stop.is_set():
            retry_after = 0.0
            try:
                if self.try_acquire():
                    self._start()
                    return True
                self._trouble = ""
            except DiflowError as error:
                retry_after = getattr(error, "retry_after_seconds", None) or 0.0
                self._trouble = str(error)
            except Exception as error:
                self._trouble = f"{type(error).__name__}: {error}"
            pause = self._jitter(self._renew_seconds * 0.8, self._renew_seconds * 1.2)
            stop.wait(max(pause, min(retry_after, _LONGEST_RETRY_AFTER_SECONDS)))
        return False

    def is_leader(self) -> bool:
        """Whether this process leads at this very moment. Once lost, it stays lost until it is acquired again."""
        with self._lock:
            return self._still_leading()

    def check(self) -> int:
        """The epoch to write with. Raises LostLeadershipError: call it immediately before each write."""
        with self._lock:
            if self._still_leading():
                return self._epoch
            why = f" ({self._trouble})" if self._trouble else ""
        raise LostLeadershipError(
            f"{self.identity} does not hold the Lease {self.namespace}/{self.name} now: nothing is written{why}"
        )

    @property
    def epoch(self) -> int:
        """How often the Lease had changed hands when this process last won it (leaseTransitions); 0 if it never did."""
        with self._lock:
            return self._epoch

    @property
    def trouble(self) -> str:
        """The last error that is not over yet, in words; "" when all is well."""
        return self._trouble

    @property
    def holder(self) -> str:
        """Who held the Lease when it was last seen; "" if nobody did."""
        with self._lock:
            return str(_spec(self._lease).get("holderIdentity") or "")

    def lease_annotations(self) -> Mapping[str, str]:
        """The annotations of the Lease as last seen: not older than `renew_seconds` while the server answers."""
        with self._lock:
            metadata = (self._lease or {}).get("metadata") or {}
            return dict(metadata.get("annotations") or {})

    def release(self) -> bool:
        """Give leadership up, so that the next process takes over at once. Returns whether the server knows.

        The caller has stopped writing before: a write on its way could meet those of the next leader.
        """
        with self._lock:
            led = self._still_leading()
            self._leading, self._released = False, True
        self._ended.set()
        with self._asking:
            if not led:
                return False
            try:
                self._change({"holderIdentity": ""})
            except Exception as error:  # the others then wait until the Lease has run out
                self._trouble = f"the Lease could not be released: {error or type(error).__name__}"
                return False
            return True

    def abandon(self, why: str) -> None:
        """Lead no more, without a word to the server: others wait until the Lease has run out. For a process that hangs
        and may have a write under way."""
        with self._lock:
            if self._leading:
                self._leading, self._trouble = False, why

    # --- one step at a time -------------------------------------------------------------------------------------------

    def try_acquire(self) -> bool:
        """Look at the Lease once, and take it if nobody holds it. Raises what the request raises."""
        if self.is_leader():
            return True
        with self._asking:
            lease = self._read()
            if lease is None:
                # It may have been deleted a moment ago, under a leader who has not noticed: the wait begins with this.
                self._write({"leaseTransitions": 0})
                lease = self._lease
            now = self._clock()  # not before the answer is here: the leader may have renewed while it was on its way
            record = _record(lease)
            if record != self._record:
                self._record, self._record_seen = record, now
            spec = _spec(lease)
            epoch = int(spec.get("leaseTransitions") or 0) + 1
            released = epoch > 1 and not spec.get("holderIdentity")
            # A Lease with our own identity is another's, too: ours is what this object has won and not lost again.
            lasts = max(self._lease_seconds, float(spec.get("leaseDurationSeconds") or 0))
            if not released and now - self._record_seen < lasts:
                return False
            began = self._clock()
            taken = {
                "holderIdentity": self.identity,
                "leaseDurationSeconds": math.ceil(self._lease_seconds),
                "leaseTransitions": epoch,
            }
            moment = self._time()
            try:
                self._write({**spec, **taken, "acquireTime": moment, "renewTime": moment})
            except (ConflictError, NotFoundError):
                return False
            with self._lock:
                self._leading, self._released, self._renewed, self._epoch, self._trouble = True, False, began, epoch, ""
                return self._still_leading()

    def renew(self) -> bool:
        """Renew once, if this process still leads. Whether it leads on is then up to `is_leader`."""
        with self._asking:
            began = self._clock()
            if not self.is_leader():
                return False
            try:
                self._change({})
            except _TakenError as error:
                with self._lock:
                    self._leading, self._trouble = False, str(error)
                return False
            except Exception as error:
                self._trouble = f"the Lease could not be renewed: {error or type(error).__name__}"
                return False
            with self._lock:
                self._renewed, self._trouble = began, ""
                return self._still_leading()

    def _change(self, fields: Json) -> None:
        """Write these fields, with a new time, into the Lease that is ours. Raises _TakenError if it is not."""
        for _ in range(2):
            try:
                self._write({**_spec(self._lease), **fields, "renewTime": self._time()})
                return
            except (ConflictError, NotFoundError):
                # Somebody has annotated the Lease; or an answer was lost, and this is our own renewal; or it is taken.
                spec = _spec(self._read())
                if (spec.get("holderIdentity"), spec.get("leaseTransitions")) != (self.identity, self._epoch):
                    raise _TakenError(f"{spec.get('holderIdentity') or 'nobody'} holds the Lease now") from None
        raise ConflictError("others change the Lease all the time")

    # --- threads ------------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        self._ended = threading.Event()
        for run in (self._keep, self._guard):
            threading.Thread(target=run, args=(self._ended,), name=f"elector{run.__name__}", daemon=True).start()

    def _keep(self, ended: threading.Event) -> None:
        """Renew until leadership is lost or released."""
        pause = self._renew_seconds
        while not ended.wait(pause):
            pause = self._renew_seconds * (1.0 if self.renew() else _SOONER)
            if not self.is_leader():
                ended.set()

    def _guard(self, ended: threading.Event) -> None:
        """Notice the loss even while a renewal hangs, and say it."""
        while not ended.is_set() and self.is_leader():
            left = self._renewed + self._deadline_seconds - self._clock()
            ended.wait(min(max(left, 0.001), _TICK_SECONDS))
        ended.set()
        if not self._released:
            self._on_lost(self._trouble or "the Lease was not renewed in time")

    # --- the Lease ----------------------------------------------------------------------------------------------------

    def _still_leading(self) -> bool:
        """Call it with the lock held. A deadline that has passed once has passed for good."""
        if self._leading and not self._clock() - self._renewed < self._deadline_seconds:
            self._leading = False
        return self._leading

    def _read(self) -> Json | None:
        lease = self._cluster.find(LEASE, self.name, namespace=self.namespace)
        with self._lock:
            self._lease = lease
        return lease

    def _write(self, spec: Json) -> None:
        """Put this into the Lease as it was last seen, with all that others have written there, or make it anew."""
        if self._lease is None:
            body: Json = {
                "apiVersion": f"{LEASE.group}/{LEASE.version}",
                "kind": LEASE.name,
                "metadata": {"name": self.name, "namespace": self.namespace},
                "spec": spec,
            }
            lease = self._cluster.create(LEASE, body, namespace=self.namespace)
        else:
            body = {**copy.deepcopy(self._lease), "spec": spec}
            if self._says and spec.get("holderIdentity") == self.identity:
                metadata = body["metadata"]
                metadata["annotations"] = {**(metadata.get("annotations") or {}), **self._says}
            lease = self._cluster.replace(LEASE, self.name, body, namespace=self.namespace)
        with self._lock:
            self._lease = lease

    def _time(self) -> str:
        """The wall clock's time as a Lease has it, and in any case another one than the Lease has now."""
        now = datetime.fromtimestamp(self._wall(), UTC)
        if _written(now) == _spec(self._lease).get("renewTime"):
            now += timedelta(microseconds=1)
        return _written(now)


class _TakenError(Exception):
    """The Lease belongs to somebody else, or to nobody."""


def _spec(lease: Json | None) -> Json:
    return (lease or {}).get("spec") or {}


def _record(lease: Json | None) -> object:
    """What a leader changes in the Lease when it renews, and nobody else: annotations do not keep it alive."""
    if lease is None:
        return "absent"
    spec = _spec(lease)
    return (
        (lease.get("metadata") or {}).get("uid"),
        *(spec.get(field) for field in ("holderIdentity", "acquireTime", "renewTime", "leaseTransitions")),
    )


def _written(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
