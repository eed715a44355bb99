"""What the page keeps: beside the API's record of each job and pod what it shows of them, and nodes and ended jobs.

page = PageCache(cluster)
cache = Cache(cluster, beside=page.beside, ...)
page.start(cache)
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, Final

import structlog

from diflow.common import keys
from diflow.common.clock import SYSTEM, Clock
from diflow.common.errors import DiflowError
from diflow.kube.api import Cluster, within
from diflow.kube.kinds import CONFIG_MAP, NODE, WORKFLOW
from diflow.kube.reflector import Json, Reflector
from diflow.kube.reflectors import Reflectors
from diflow.record.pod import PodRecord
from diflow.server.api.cache import Cache
from diflow.server.page.board import CacheSnapshot
from diflow.server.page.facts import JobFacts, PodFacts, pod_facts, trim_node, trim_record
from diflow.server.page.sparing import Sparing

log = structlog.get_logger("diflow.server")

_AGAIN_SECONDS: Final = 5.0


class PageCache:
    """The page's part of the server's caches. `namespace` "" means all."""

    def __init__(
        self, cluster: Cluster, *, namespace: str = "", sparing: Sparing | None = None, clock: Clock = SYSTEM
    ) -> None:
        self._cluster = cluster
        self._sparing = sparing or Sparing()
        self._clock = clock
        self._nodes = Reflector(cluster, NODE, trim=lambda obj: {"read": trim_node(obj)}, clock=clock, **within(""))
        self._ended = Reflector(
            cluster,
            CONFIG_MAP,
            trim=lambda obj: {"read": trim_record(obj)},
            fields=f"metadata.name={keys.ENDED_JOBS}",
            clock=clock,
            **within(namespace),
        )
        self._all = Reflectors((self._nodes, self._ended))
        self._stopping = threading.Event()

    def beside(self, obj: Json, read: Any, kept: Any) -> JobFacts | PodFacts | None:
        """What to keep beside the record of a Workflow or a pod."""
        return pod_facts(obj, read) if isinstance(read, PodRecord) else self._sparing(obj, read, kept)

    def start(self, cache: Cache) -> None:
        """Start to list and watch, and to keep what is beside the records of this cache up to date, in threads."""
        self._all.start()
        threading.Thread(target=self._keep_up, args=(cache,), name="page", daemon=True).start()

    def stop(self) -> None:
        """Stop the threads. What was kept stays readable."""
        self._stopping.set()
        self._all.stop()

    def wait_synced(self, timeout: float) -> bool:
        """Wait until nodes and ended jobs have been listed. False if that took longer than `timeout` seconds."""
        return self._all.wait_synced(timeout)

    def ended(self) -> Mapping[str, tuple[JobFacts, ...]]:
        """The records of ended jobs, by namespace."""
        return {namespace: kept["read"] for (namespace, _), kept in self._ended.items().items()}

    def snapshot(self, cache: Cache) -> CacheSnapshot:
        """All that is kept."""
        nodes = [kept["read"] for kept in self._nodes.items().values()]
        return CacheSnapshot(_beside(cache.workflows), _beside(cache.pods), nodes, self.ended())

    def look_again(self, cache: Cache) -> None:
        """Read the Workflows once more of which what is shown is out of date. Raises DiflowError."""
        for namespace, name in self._sparing.late():
            found = self._cluster.find(WORKFLOW, name, namespace=namespace)
            if found is None:
                self._sparing.forget((namespace, name))
            else:
                cache.workflows.apply_write(found, again=True)

    def _keep_up(self, cache: Cache) -> None:
        while True:
            self._clock.wait(self._stopping, _AGAIN_SECONDS)
            if self._stopping.is_set():
                return
            try:
                self.look_again(cache)
            except DiflowError as error:
                log.debug("Workflows could not be read again", why=str(error))


def _beside(objects: Reflector) -> list[Any]:
    return [kept["beside"] for kept in objects.items().values() if kept["beside"] is not None]
