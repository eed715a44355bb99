"""The controller as a process: leader election, HTTP pages, signals, exit code."""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING

import structlog

from diflow.common import keys
from diflow.controller.daemon import Controller
from diflow.controller.telemetry import Telemetry
from diflow.daemon import probes
from diflow.daemon.process import Tenure
from diflow.dijob.settings import render_settings
from diflow.kube.leader_election import Elector
from diflow.version import __version__

if TYPE_CHECKING:
    from diflow.controller.settings import ControllerSettings
    from diflow.kube.api import Cluster

log = structlog.get_logger("diflow.controller")


def serve(cluster: Cluster, settings: ControllerSettings, *, metrics_port: int) -> int:
    """Run the controller until a signal comes. Returns the exit code: 5 when leadership was lost."""
    _ = render_settings().default_resources  # an invalid setting must not fail each job
    tenure = Tenure("diflow.controller")
    elector = candidate(cluster, settings, on_lost=tenure.lose)
    telemetry = Telemetry()
    controller = Controller(cluster, settings, elector, on_look=telemetry.look)
    telemetry.watch(controller)
    with probes.serving(metrics_port, telemetry.app()) if metrics_port else nullcontext():
        tenure.watch(telemetry, elector.abandon)
        return tenure.serve(
            partial(lead, controller),
            version=__version__,
            identity=elector.identity,
            namespace=settings.namespace,
            cluster=cluster.target.server,
        )


def lead(controller: Controller, stop: threading.Event) -> None:
    """Wait for leadership with warm caches, and work until `stop` is set. Raises LostLeadershipError."""
    controller.caches.all.start()
    try:
        if not controller.elector.acquire(stop):
            return
        log.info("leading", epoch=controller.elector.epoch)
        try:
            controller.run(stop)
        finally:
            controller.elector.release()
    finally:
        controller.caches.all.stop()


def candidate(
    cluster: Cluster, settings: ControllerSettings, *, on_lost: Callable[[str], None] = lambda _: None
) -> Elector:
    """This process as a candidate for the controller's Lease, with a unique identity."""
    identity = f"{socket.gethostname()}-{secrets.token_hex(4)}"
    return Elector(cluster, name=keys.CONTROLLER, namespace=settings.namespace, identity=identity, on_lost=on_lost)
