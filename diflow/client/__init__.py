"""The client library for training processes: peers, scale requests, reports, and graceful stops.

    from diflow import client

    client.on_stop(save_and_leave)
    for step, batch in enumerate(loader):
        ...
        client.report(speed=samples_a_second, step=step, batch=len(batch))

It needs only the standard library and `requests`. The server and the pod's token are taken from the container's
environment; outside a job, reports are discarded. It never blocks or ends the training: docs/client.md describes what
happens if the server is unavailable. The functions are those of one `Client` that the process shares.
"""

from __future__ import annotations

import atexit
from typing import Final

from diflow.client.process import Client

__all__ = [
    "Client",
    "add_replicas",
    "close",
    "delete_replicas",
    "in_job",
    "on_stop",
    "replicas",
    "report",
    "shards",
    "stopping",
]

_LAST_SECONDS: Final = 1.0  # at the end of the process, for a pending report

_shared: Final = Client()

add_replicas = _shared.add_replicas
close = _shared.close
delete_replicas = _shared.delete_replicas
on_stop = _shared.on_stop
replicas = _shared.replicas
report = _shared.report
shards = _shared.shards
stopping = _shared.stopping


def in_job() -> bool:
    """Whether this process runs in a job that has a server."""
    return _shared.in_job


@atexit.register
def _end() -> None:
    close(_LAST_SECONDS)
