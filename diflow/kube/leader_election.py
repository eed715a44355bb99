"""Leader election with a Kubernetes Lease: one process writes at a time.

Each process uses only its own monotonic clock. A leader counts from before it sent its last successful renewal, and
stops after `deadline_seconds`; a candidate counts from after it first saw the leader's last renewal, and takes over
after `lease_seconds`, which is longer. So two leaders never overlap, regardless of network delays, paused processes and
wall clocks.

A write that was in flight when its sender was paused still arrives: writes also need a resourceVersion precondition.
They can also name their leader, as their field manager (`writes_as`), so that the API server can refuse those of a
former one (`diflow/jobs/checks/fence.py`).
"""

from __future__ import annotations

import copy
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any, Final

from diflow.common.clock import SYSTEM, Clock
from diflow.common.errors import ConflictError, DiflowError, LostLeadershipError, NotFoundError
from diflow.kube.api import Cluster
from diflow.kube.kinds import LEASE

Json = dict[str, Any]

WRITES_AS: Final = "diflow/writes-as"
"""Annotation of the Lease: the field manager of its holder's writes."""
_LONGEST_RETRY_AFTER_SECONDS: Final = 30.0
# Retries come sooner after a failure, so that several fit before the deadline.
_SOONER: Final = 1 / 3
# A candidate reads the Lease more often than its leader renews it: it counts from when it has seen a renewal.
_LOOKS: Final = 1 / 3
# The guard's waits do not include the time of a system suspend, so it checks the clock this often.
_TICK_SECONDS: Final = 1.0


def boottime() -> float:
    """Monotonic seconds, including the time of a system suspend where the system supports that."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


BOOT: Final = replace(SYSTEM, monotonic=boottime)
"""With the time of a system suspend, where the system supports that."""


def seconds_since_renewal(cluster: Cluster, lease: Mapping[str, Any], *, now: float) -> float:
    """Seconds since the holder of this Lease renewed it. `now`: seconds since 1970 on this machine's clock."""
    try:
        renewed = datetime.fromisoformat((lease.get("spec") or {}).get("renewTime") or "").timestamp()
    except ValueError:
        renewed = 0.0
    # The holder wrote the time of its own clock, to which the server's clock is closer than this one.
    return now + (cluster.clock_skew_seconds() or 0.0) - renewed


@dataclass(frozen=True)
class Times:
    """The times of an election. Raises ValueError if they do not fit each other."""

    lease_seconds: float = 15.0
    """How long candidates wait after a leader's last renewal."""
    renew_seconds: float = 3.0
    """The pause between renewals; a candidate reads the Lease three times as often, and when it expires."""
    deadline_seconds: float = 0.0
    """How long a process trusts its last renewal; the difference allows for clock drift and for writes in flight. 0:
    two thirds of `lease_seconds`."""
    request_seconds: float = 0.0
    """The timeout of a request, below half the deadline, so that a second attempt is possible. 0: 40 % of it."""

    def __post_init__(self) -> None:
        lease, renew = self.lease_seconds, self.renew_seconds
        deadline = self.deadline_seconds or lease * 2 / 3
        request = self.request_seconds or deadline * 0.4
        if not 0 < renew < deadline < lease or not 0 < request < deadline / 2:
            raise ValueError(
                "an elector needs renew_seconds < deadline_seconds < lease_seconds and request_seconds below half the "
                f"deadline: not {renew}, {deadline}, {lease} and {request}"
            )
        object.__setattr__(self, "deadline_seconds", deadline)
        object.__setattr__(self, "request_seconds", request)


TIMES: Final = Times()


class Elector:
    """One candidate. `identity` must be unique to its process (such as a host name and a random part).

    `says` are annotations of the Lease while this process leads.

    `on_lost` is called once, from a thread of the elector, when leadership was lost (not when it was released): the
    process should exit then. The wall clock is only written into the Lease.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        name: str,
        namespace: str,
        identity: str,
        times: Times = TIMES,
        says: Mapping[str, str] = MappingProxyType({}),
        on_lost: Callable[[str], None] = lambda _: None,
        clock: Clock = BOOT,
    ) -> None:
        if not identity:
            raise ValueError("an elector needs an identity that no other process has")
        request = times.request_seconds
        self._cluster = cluster.without_retries(read_seconds=request * 0.75, connect_seconds=request * 0.25)
        self.name, self.namespace, self.identity = name, namespace, identity
        self._times = times
        self._says, self._on_lost = dict(says), on_lost
        self._clock = clock
        # Held during a request, so that a release never overlaps a renewal; `check` needs only `_lock`.
        self._asking = threading.Lock()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._leading = False
        self._released = False
        self._renewed = -math.inf
        self._won = math.inf
        self._epoch = 0
        self._uid = ""
        self._former = ""
        self._trouble = ""
        self._lease: Json | None = None
        self._record: object = None
        self._record_seen = -math.inf
        self._expires = math.inf

    # --- public interface ---------------------------------------------------------------------------------------------

    def acquire(self, stop: threading.Event) -> bool:
        """Wait until this process leads, then renew in a thread. False if `stop` was set first."""
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
            pause = self._clock.jitter(self._times.renew_seconds * 0.8, self._times.renew_seconds * 1.2) * _LOOKS
            left = self._expires - self._clock.monotonic()
            if left > 0:
                pause = min(pause, left)
            stop.wait(max(pause, min(retry_after, _LONGEST_RETRY_AFTER_SECONDS)))
        return False

    def is_leader(self) -> bool:
        """Whether this process leads now. Lost leadership must be acquired again."""
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
    def leading_seconds(self) -> float:
        """How long ago this process last acquired the Lease; 0 if it never did."""
        with self._lock:
            return max(0.0, self._clock.monotonic() - self._won)

    @property
    def epoch(self) -> int:
        """The Lease's leaseTransitions when this process last acquired it; 0 if it never did."""
        with self._lock:
            return self._epoch

    def writes_as(self, epoch: int | str) -> str:
        """The field manager of the writes of this Lease's leader of that epoch. It fits into the 128 bytes of one.

        The Lease's uid is part of it, as a Lease that was deleted begins with epoch 1 again.
        """
        return f"{self.name}/{self.namespace}/{self._uid}/{epoch}"

    def term(self, epoch: str) -> str:
        """The Lease and the epoch under which it is held, as text: no earlier leader had the same."""
        return f"{self._uid}/{epoch}"

    @property
    def former_writes_as(self) -> str:
        """The field manager of the previous leader's writes, as it said in the Lease; "" if it did not."""
        with self._lock:
            return self._former

    @property
    def trouble(self) -> str:
        """The message of the current error, or ""."""
        return self._trouble

    @property
    def holder(self) -> str:
        """The holder of the Lease when it was last read, or ""."""
        with self._lock:
            return str(_spec(self._lease).get("holderIdentity") or "")

    def lease_annotations(self) -> Mapping[str, str]:
        """The annotations of the Lease when it was last read, at most `renew_seconds` ago if the server responds."""
        with self._lock:
            return annotations_of(self._lease)

    def release(self) -> bool:
        """Release the Lease, so that the next process takes over immediately. Returns whether that was written.

        The caller must have stopped writing: a write in flight could overlap those of the next leader.
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
            except Exception as error:  # the candidates then wait until the Lease has expired
                self._trouble = f"the Lease could not be released: {error or type(error).__name__}"
                return False
            return True

    def abandon(self, why: str) -> None:
        """Stop leading without releasing the Lease: candidates wait until it has expired. For a process that hangs and
        may have a write in flight."""
        with self._lock:
            if self._leading:
                self._leading, self._trouble = False, why

    # --- one step at a time -------------------------------------------------------------------------------------------

    def try_acquire(self) -> bool:
        """Read the Lease once, and acquire it if it is free. Raises the errors of the requests."""
        if self.is_leader():
            return True
        with self._asking:
            lease = self._read()
            if lease is None:
                # It may have been deleted under a leader that has not noticed yet: the wait starts now.
                self._write({"leaseTransitions": 0})
                lease = self._lease
            now = self._clock.monotonic()  # after the response: the leader may have renewed while it was in flight
            record = _record(lease)
            if record != self._record:
                self._record, self._record_seen = record, now
            spec = _spec(lease)
            epoch = int(spec.get("leaseTransitions") or 0) + 1
            released = epoch > 1 and not spec.get("holderIdentity")
            # Even a Lease with our identity is another's, unless this object has acquired it and not lost it.
            lasts = max(self._times.lease_seconds, float(spec.get("leaseDurationSeconds") or 0))
            self._expires = self._record_seen + lasts
            if not released and now < self._expires:
                return False
            began = self._clock.monotonic()
            taken = {
                "holderIdentity": self.identity,
                "leaseDurationSeconds": math.ceil(self._times.lease_seconds),
                "leaseTransitions": epoch,
            }
            moment = self._time()
            metadata = (lease or {}).get("metadata") or {}
            with self._lock:
                self._uid = str(metadata.get("uid") or "")
                before = self.writes_as(epoch - 1)
                self._former = before if annotations_of(lease).get(WRITES_AS) == before else ""
            try:
                self._write({**spec, **taken, "acquireTime": moment, "renewTime": moment})
            except (ConflictError, NotFoundError):
                return False
            with self._lock:
                self._leading, self._released, self._renewed, self._epoch, self._trouble = True, False, began, epoch, ""
                self._won = began
                return self._still_leading()

    def renew(self) -> bool:
        """Renew once, if this process still leads. `is_leader` has the result."""
        with self._asking:
            began = self._clock.monotonic()
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
        """Write these fields, with a new time, into our Lease. Raises _TakenError if another process holds it."""
        for _ in range(2):
            try:
                self._write({**_spec(self._lease), **fields, "renewTime": self._time()})
                return
            except (ConflictError, NotFoundError):
                # The Lease was annotated, or a response was lost and this is our own renewal, or another holds it.
                spec = _spec(self._read())
                if (spec.get("holderIdentity"), spec.get("leaseTransitions")) != (self.identity, self._epoch):
                    raise _TakenError(f"{spec.get('holderIdentity') or 'no process'} holds the Lease now") from None
        raise ConflictError("others change the Lease all the time")

    # --- threads ------------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        self._ended = threading.Event()
        for run in (self._keep, self._guard):
            threading.Thread(target=run, args=(self._ended,), name=f"elector{run.__name__}", daemon=True).start()

    def _keep(self, ended: threading.Event) -> None:
        """Renew until leadership is lost or released."""
        pause = self._times.renew_seconds
        while not ended.wait(pause):
            pause = self._times.renew_seconds * (1.0 if self.renew() else _SOONER)
            if not self.is_leader():
                ended.set()

    def _guard(self, ended: threading.Event) -> None:
        """Detect the loss even while a renewal hangs, and report it."""
        while not ended.is_set() and self.is_leader():
            left = self._renewed + self._times.deadline_seconds - self._clock.monotonic()
            ended.wait(min(max(left, 0.001), _TICK_SECONDS))
        ended.set()
        if not self._released:
            self._on_lost(self._trouble or "the Lease was not renewed in time")

    # --- the Lease ----------------------------------------------------------------------------------------------------

    def _still_leading(self) -> bool:
        """Call with the lock held. Once the deadline has passed, leadership is lost."""
        if self._leading and not self._clock.monotonic() - self._renewed < self._times.deadline_seconds:
            self._leading = False
        return self._leading

    def _read(self) -> Json | None:
        lease = self._cluster.find(LEASE, self.name, namespace=self.namespace)
        with self._lock:
            self._lease = lease
        return lease

    def _write(self, spec: Json) -> None:
        """Update the Lease as last read, with all fields that others have written, or create it."""
        if self._lease is None:
            body: Json = {
                "apiVersion": LEASE.api_version,
                "kind": LEASE.name,
                "metadata": {"name": self.name, "namespace": self.namespace},
                "spec": spec,
            }
            lease = self._cluster.create(LEASE, body, namespace=self.namespace)
        else:
            body = {**copy.deepcopy(self._lease), "spec": spec}
            if spec.get("holderIdentity") == self.identity:
                said = {**self._says, WRITES_AS: self.writes_as(spec["leaseTransitions"])}
                body["metadata"]["annotations"] = {**annotations_of(body), **said}
            lease = self._cluster.replace(LEASE, self.name, body, namespace=self.namespace)
        with self._lock:
            self._lease = lease

    def _time(self) -> str:
        """The wall-clock time in the Lease's format, always different from the one in the Lease."""
        now = datetime.fromtimestamp(self._clock.wall(), UTC)
        if _written(now) == _spec(self._lease).get("renewTime"):
            now += timedelta(microseconds=1)
        return _written(now)


class _TakenError(Exception):
    """Another process holds the Lease, or none."""


def annotations_of(lease: Mapping[str, Any] | None) -> dict[str, str]:
    """The annotations of a Lease; none if there is no Lease."""
    return dict(((lease or {}).get("metadata") or {}).get("annotations") or {})


def _spec(lease: Json | None) -> Json:
    return (lease or {}).get("spec") or {}


def _record(lease: Json | None) -> object:
    """The fields that only a renewal changes: annotations do not extend a Lease."""
    if lease is None:
        return "absent"
    spec = _spec(lease)
    return (
        (lease.get("metadata") or {}).get("uid"),
        *(spec.get(field) for field in ("holderIdentity", "acquireTime", "renewTime", "leaseTransitions")),
    )


def _written(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
