"""What other processes request through the allocator's Lease: plans, and to pause and resume (control_channel.py)."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from diflow.allocator.run import control_channel
from diflow.common import keys
from diflow.common.errors import DiflowError, LostLeadershipError
from diflow.kube.api import Cluster
from diflow.kube.leader_election import Elector

log = structlog.get_logger("diflow.allocator")


class LeaseRequests:
    """The requests that were read last, and the plan request without a response."""

    def __init__(self, cluster: Cluster, elector: Elector, *, namespace: str) -> None:
        self._cluster, self._elector, self._namespace = cluster.without_retries(), elector, namespace
        self._replan = ""
        self._unanswered = ""
        self.paused = ""
        """Who paused the allocator by the last `read`, or ""."""

    def read(self) -> set[str]:
        """Read the Lease's annotations, without a request. Returns reasons to plan; none if there is nothing new."""
        annotations = self._elector.lease_annotations()
        replan, paused = annotations.get(keys.REPLAN, ""), annotations.get(keys.PAUSED, "")
        reasons = set()
        if replan != self._replan:
            self._replan = self._unanswered = replan
            reasons.add("asked")
        if paused != self.paused:
            log.info("paused" if paused else "resumed", by=paused or self.paused)
            self.paused = paused
            reasons.add("resumed")
        return reasons

    def respond(self, text: Callable[[], str]) -> None:
        """Write the response to an unanswered plan request. Raises LostLeadershipError; other errors are logged."""
        if not self._unanswered:
            return
        asked, self._unanswered = self._unanswered, ""
        try:
            self._elector.check()
            control_channel.answer(self._cluster, namespace=self._namespace, asked=asked, text=text())
        except LostLeadershipError:
            raise
        except DiflowError as error:
            log.warning("a request for the plan was not answered", to=asked, why=str(error))
