"""The allocator as a process: leader election, HTTP pages, signals, exit code."""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from diflow.allocator.engine.control_channel import POLICY, POOLS
from diflow.allocator.engine.daemon import Allocator, lead
from diflow.allocator.engine.journal import Journal
from diflow.allocator.engine.telemetry import Telemetry
from diflow.allocator.policies.base import load_policy
from diflow.errors import LostLeadershipError
from diflow.kube.leader_election import Elector
from diflow.signals import ending_on_signals
from diflow.version import __version__

if TYPE_CHECKING:
    from diflow.allocator.engine.settings import AllocatorSettings
    from diflow.kube.api import Cluster

# After a loss of leadership nothing is written; if the loop still hangs after this time, the process exits.
_LONGEST_END_SECONDS: Final = 20.0

log = structlog.get_logger("diflow.allocator")


def serve(cluster: Cluster, settings: AllocatorSettings, *, metrics_port: int) -> int:
    """Run the allocator until a signal comes. Returns the exit code: 5 when leadership was lost."""
    stop = threading.Event()
    lost: list[threading.Timer] = []

    def on_lost(why: str) -> None:
        log.error("the lead is lost", why=why)
        timer = threading.Timer(_LONGEST_END_SECONDS, os._exit, (LostLeadershipError.exit_code,))
        timer.daemon = True
        lost.append(timer)
        timer.start()
        stop.set()
        allocator.ask("end")

    policy = load_policy(settings.policy)
    elector = candidate(cluster, settings, on_lost=on_lost)
    telemetry = Telemetry(elector)
    allocator = Allocator(cluster, settings, policy, elector, record=_recorder(settings), on_cycle=telemetry.cycle)
    telemetry.watch(allocator)

    def end() -> None:
        stop.set()
        allocator.ask("end")

    with telemetry.serving(metrics_port), ending_on_signals(end):
        telemetry.log_troubles(stop)
        log.info(
            "started",
            version=__version__,
            policy=policy.name,
            identity=elector.identity,
            namespace=settings.namespace,
            cluster=cluster.target.server,
        )
        code = 0
        try:
            lead(allocator, stop)
        except LostLeadershipError:
            code = LostLeadershipError.exit_code
        finally:
            stop.set()
            for timer in lost:
                timer.cancel()
    code = LostLeadershipError.exit_code if lost else code
    log.info("ended", code=code)
    return code


def candidate(
    cluster: Cluster, settings: AllocatorSettings, *, on_lost: Callable[[str], None] = lambda _: None
) -> Elector:
    """This process as a candidate for the allocator's Lease, with a unique identity."""
    identity = f"{socket.gethostname()}-{secrets.token_hex(4)}"
    says = {POLICY: settings.policy, POOLS: settings.pools.to_json()}
    return Elector(cluster, namespace=settings.namespace, identity=identity, says=says, on_lost=on_lost)


def _recorder(settings: AllocatorSettings) -> Callable[..., None]:
    if not settings.journal:
        return lambda _snapshot, _plan: None
    return Journal(
        Path(settings.journal),
        most_bytes=settings.journal_bytes,
        report=lambda words: log.warning("no journal", why=words),
    )
