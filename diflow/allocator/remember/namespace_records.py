"""What is common to those that keep a record in a ConfigMap of each namespace, beside the loop of the allocator."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

import structlog

from diflow.common.errors import LostLeadershipError
from diflow.kube.api import Cluster
from diflow.kube.kinds import CONFIG_MAP
from diflow.kube.leader_election import Elector
from diflow.kube.reflector import Json, Reflector

PASS_SECONDS: Final = 10.0
"""Between two passes over all namespaces. A Workflow exists for at least a minute after its end
(`limits.LEAST_TTL_SECONDS`)."""

log = structlog.get_logger("diflow.allocator")


def run(reflector: Reflector, work: Callable[[], object], stop: threading.Event, *, failed: str) -> None:
    """Do the work of a pass again and again, with this cache, until `stop` is set or this process does not lead any
    more. `failed`: what is logged when a pass fails."""
    reflector.start()
    try:
        while not stop.wait(PASS_SECONDS):
            try:
                work()
            except LostLeadershipError:
                return
            except Exception:  # the next pass may succeed
                log.exception(failed)
    finally:
        reflector.stop()


def write(
    cluster: Cluster,
    elector: Elector,
    config_map: Mapping[str, Any],
    data: Mapping[str, str],
    *,
    metadata_only: bool = False,
) -> Json:
    """Write the record into its ConfigMap, unless that has changed since it was read. Returns the response. Raises
    LostLeadershipError, and the errors of the API server."""
    metadata = config_map["metadata"]
    body = {"metadata": {key: metadata.get(key) for key in ("uid", "resourceVersion")}, "data": dict(data)}
    return cluster.patch(
        CONFIG_MAP,
        metadata["name"],
        body,
        namespace=metadata["namespace"],
        manager=elector.writes_as(str(elector.check())),
        metadata_only=metadata_only,
    )
