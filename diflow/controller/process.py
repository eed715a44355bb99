"""The controller as a process: leader election, HTTP pages, signals, exit code."""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

import structlog

from diflow import keys, pages
from diflow.controller.daemon import Controller
from diflow.controller.telemetry import Telemetry
from diflow.errors import LostLeadershipError
from diflow.kube.leader_election import Elector
from diflow.settings import render_settings
from diflow.signals import ending_on_signals
from diflow.version import __version__

if TYPE_CHECKING:
    from diflow.controller.settings import ControllerSettings
    from diflow.kube.api import Cluster

# After a loss of leadership nothing is written; if a look still hangs after this time, the process exits.
_LONGEST_END_SECONDS: Final = 20.0

log = structlog.get_logger("diflow.controller")


def serve(cluster: Cluster, settings: ControllerSettings, *, metrics_port: int) -> int:
    """Run the controller until a signal comes. Returns the exit code: 5 when leadership was lost."""
    _ = render_settings().default_resources  # an invalid setting must not fail each job
    stop = threading.Event()
    lost: list[threading.Timer] = []

    def on_lost(why: str) -> None:
        log.error("the lead is lost", why=why)
        end = threading.Timer(_LONGEST_END_SECONDS, os._exit, (LostLeadershipError.exit_code,))
        end.daemon = True
        lost.append(end)
        end.start()
        stop.set()

    elector = candidate(cluster, settings, on_lost=on_lost)
    telemetry = Telemetry()
    controller = Controller(cluster, settings, elector, on_look=telemetry.look)
    telemetry.watch(controller)
    with ExitStack() as stack:
        if metrics_port:
            stack.enter_context(pages.serving(metrics_port, telemetry.app()))
        stack.enter_context(ending_on_signals(stop.set))
        telemetry.log_troubles(stop)
        log.info("started", version=__version__, identity=elector.identity, cluster=cluster.target.server)
        code = 0
        try:
            lead(controller, stop)
        except LostLeadershipError:
            code = LostLeadershipError.exit_code
        finally:
            stop.set()
            for end in lost:
                end.cancel()
    code = LostLeadershipError.exit_code if lost else code
    log.info("ended", code=code)
    return code


def lead(controller: Controller, stop: threading.Event) -> None:
    """Wait for leadership with warm caches, and work until `stop` is set. Raises LostLeadershipError."""
    controller.caches.all.start()
    try:
        if not controller.elector.acquire(stop):
            return
        log.info("leading", epoch=controller.elector.epoch)
        controller.run(stop)
        controller.elector.release()
    finally:
        controller.caches.all.stop()


def candidate(
    cluster: Cluster, settings: ControllerSettings, *, on_lost: Callable[[str], None] = lambda _: None
) -> Elector:
    """This process as a candidate for the controller's Lease, with a unique identity."""
    identity = f"{socket.gethostname()}-{secrets.token_hex(4)}"
    return Elector(cluster, name=keys.CONTROLLER, namespace=settings.namespace, identity=identity, on_lost=on_lost)
