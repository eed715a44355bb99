"""Derives what the page shows of Workflows, with a limited share of processor time for each namespace.

A Workflow of a megabyte takes a quarter of a second, with each change. One watch brings the changes of all namespaces,
so a user who changes such a Workflow again and again would delay what the server knows of the jobs of others.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from diflow.common.clock import SYSTEM, Clock
from diflow.kube.reflector import Key
from diflow.record.job import JobRecord
from diflow.server.page.facts import JobFacts, job_facts

Object = Mapping[str, Any]

SHARE: Final = 0.1
"""Seconds of a processor in each second, for each namespace."""
BURST_SECONDS: Final = 1.0
_HEAVY_SECONDS: Final = 0.02
"""What takes less is always derived."""
_MOST_KEPT: Final = 1000
_MOST_LATE: Final = 1000


@dataclass(slots=True)
class _Spent:
    seconds: float
    at: float


class Sparing:
    """Derives the facts of a Workflow. If its namespace has used its share, the facts of an earlier version are kept.

    `late`: Workflows with facts of an earlier version, of which the facts may be derived now. `processor`
    returns the seconds of a processor that this thread has used.
    """

    def __init__(
        self,
        derive: Callable[[Object, JobRecord], JobFacts | None] = job_facts,
        *,
        clock: Clock = SYSTEM,
        processor: Callable[[], float] = time.thread_time,
    ) -> None:
        self._derive, self._clock, self._processor = derive, clock, processor
        self._lock = threading.Lock()
        self._spent: dict[str, _Spent] = {}
        self._kept: OrderedDict[Key, tuple[str, JobFacts | None]] = OrderedDict()
        self._late: OrderedDict[Key, None] = OrderedDict()

    def __call__(self, obj: Object, record: JobRecord) -> JobFacts | None:
        identity = record.identity
        key, uid = (identity.namespace, identity.name), identity.uid
        with self._lock:
            before = self._kept.get(key)
            if before is not None and before[0] == uid and not self._may(key[0]) and len(self._late) < _MOST_LATE:
                self._late[key] = None
                return before[1]
        began = self._processor()
        facts = self._derive(obj, record)
        took = self._processor() - began
        with self._lock:
            self._late.pop(key, None)
            self._kept.pop(key, None)
            if took >= _HEAVY_SECONDS:
                self._charge(key[0], took)
                self._kept[key] = uid, facts
                if len(self._kept) > _MOST_KEPT:
                    self._kept.popitem(last=False)
        return facts

    def late(self) -> list[Key]:
        """The Workflows that may be looked at again now, at most one of a namespace."""
        with self._lock:
            return list({key[0]: key for key in reversed(self._late) if self._may(key[0])}.values())

    def forget(self, key: Key) -> None:
        """This Workflow does not exist any more."""
        with self._lock:
            self._late.pop(key, None)
            self._kept.pop(key, None)

    def _may(self, namespace: str) -> bool:
        spent = self._spent.get(namespace)
        if spent is None:
            return True
        now = self._clock.monotonic()
        spent.seconds, spent.at = max(0.0, spent.seconds - SHARE * (now - spent.at)), now
        if spent.seconds == 0.0:
            del self._spent[namespace]
        return spent.seconds < BURST_SECONDS

    def _charge(self, namespace: str, seconds: float) -> None:
        spent = self._spent.setdefault(namespace, _Spent(0.0, self._clock.monotonic()))
        spent.seconds += seconds
