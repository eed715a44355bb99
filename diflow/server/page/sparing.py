"""Derives what the page shows of Workflows, with a limited share of processor time for each namespace.

A Workflow of a megabyte takes a quarter of a second, with each change. One watch brings the changes of all namespaces,
so a user who changes such a Workflow again and again would delay what the server knows of the jobs of others.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Final

from diflow.common.clock import SYSTEM, Clock
from diflow.kube.reflector import Key
from diflow.kube.sparing import Late, Shares
from diflow.record.job import JobRecord
from diflow.server.page.facts import JobFacts, job_facts

Object = Mapping[str, Any]

SHARE: Final = 0.1
"""Seconds of a processor in each second, for each namespace."""
BURST_SECONDS: Final = 1.0
_HEAVY_SECONDS: Final = 0.02
"""What takes less is always derived."""
_MOST_KEPT: Final = 1000


class Sparing:
    """Derives the facts of a Workflow. If its namespace has used its share, the facts of an earlier version are kept.

    `late`: Workflows with facts of an earlier version, of which the facts may be derived now. `processor`
    returns the seconds of a processor that this thread has used.
    """

    def __init__(
        self,
        derive: Callable[[Object, JobRecord, JobRecord], JobFacts | None] = job_facts,
        *,
        clock: Clock = SYSTEM,
        processor: Callable[[], float] = time.thread_time,
    ) -> None:
        self._derive = derive
        self._lock = threading.Lock()
        self._shares = Shares(share=SHARE, burst=BURST_SECONDS, clock=clock, processor=processor)
        self._kept: OrderedDict[Key, tuple[str, JobFacts | None]] = OrderedDict()
        self._late = Late(self._shares, clock=clock)

    def __call__(self, obj: Object, read: JobRecord, kept: JobRecord) -> JobFacts | None:
        identity = read.identity
        key, uid = (identity.namespace, identity.name), identity.uid
        with self._lock:
            before = self._kept.get(key)
            if before is not None and before[0] == uid and not self._shares.may(key[0]):
                self._late.add(key)
                return before[1]
        spent = self._shares.timer()
        facts = self._derive(obj, read, kept)
        took = spent()
        with self._lock:
            self._late.discard(key)
            self._kept.pop(key, None)
            if took >= _HEAVY_SECONDS:
                self._shares.charge(key[0], took)
                self._kept[key] = uid, facts
                if len(self._kept) > _MOST_KEPT:
                    self._kept.popitem(last=False)
        return facts

    def late(self) -> list[Key]:
        """The Workflows that may be looked at again now, at most one of a namespace."""
        with self._lock:
            return self._late.due()

    def forget(self, key: Key) -> None:
        """This Workflow does not exist any more."""
        with self._lock:
            self._late.discard(key)
            self._kept.pop(key, None)
