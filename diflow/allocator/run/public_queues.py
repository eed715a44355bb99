"""Publishes the names of the queues and the rules of the namespaces, for users who may not read `queues.yaml`.

They are in the ConfigMap diflow-queue-names of kube-public, which everybody can read, with whether a queue's guarantee
is lent to preemptible jobs alone; weights, caps and amounts are not. `diflow submit` and `diflow lint --cluster` refuse
by it what would wait for ever.
"""

from __future__ import annotations

import math
from typing import Final

import structlog

from diflow.allocator.watch.cluster_state import ClusterState
from diflow.common import keys
from diflow.common.clock import Clock
from diflow.common.errors import DiflowError, LostLeadershipError, NotFoundError
from diflow.common.queue_access import QueueAccess, as_lines
from diflow.kube.api import Cluster
from diflow.kube.kinds import CONFIG_MAP
from diflow.kube.leader_election import Elector

_AGAIN_SECONDS: Final = 300.0
_NONE: Final = QueueAccess().text()

log = structlog.get_logger("diflow.allocator")


class PublicQueues:
    """Writes the ConfigMap when a process begins to lead, and when what it says has changed."""

    def __init__(self, cluster: Cluster, elector: Elector, *, clock: Clock) -> None:
        self._cluster = cluster.without_retries()
        self._elector = elector
        self._clock = clock
        self._said: str | None = None
        self._not_before = -math.inf

    def run(self, state: ClusterState) -> None:
        """Publish the queues of this state. Raises LostLeadershipError."""
        queues = state.queues
        kept = tuple(queue.name for queue in queues if queue.guarantee and not queue.lends)
        text = QueueAccess(tuple(queue.name for queue in queues), state.rules, kept).text()
        if state.queue_trouble or text == self._said or self._clock.monotonic() < self._not_before:
            return
        try:
            # What is public may be older than this process; the rules may have been removed while nobody led.
            if self._said is None and (self._published() or _NONE) == text:
                self._said = text
                return
            self._elector.check()
            body = {"data": {keys.QUEUES_FILE: text, keys.RULES_LINES: as_lines(state.rules)}}
            self._cluster.patch(CONFIG_MAP, keys.PUBLIC_QUEUES, body, namespace=keys.PUBLIC_NAMESPACE)
            self._said = text
        except LostLeadershipError:
            raise
        except NotFoundError:  # an installation without the ConfigMap publishes nothing
            self._not_before = self._clock.monotonic() + _AGAIN_SECONDS
        except DiflowError as error:
            self._not_before = self._clock.monotonic() + _AGAIN_SECONDS
            log.warning("the names of the queues are not published", why=str(error))

    def _published(self) -> str:
        """What is public now; "" if nothing is."""
        found = self._cluster.find(CONFIG_MAP, keys.PUBLIC_QUEUES, namespace=keys.PUBLIC_NAMESPACE)
        return str(((found or {}).get("data") or {}).get(keys.QUEUES_FILE) or "")
