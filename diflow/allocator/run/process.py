"""The allocator as a process: leader election, HTTP pages, signals, exit code."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from diflow.allocator.policies.base import load_policy
from diflow.allocator.run.daemon import Allocator, lead
from diflow.allocator.run.journal import Journal
from diflow.allocator.run.telemetry import Telemetry
from diflow.common import keys
from diflow.daemon import probes
from diflow.daemon.process import Tenure
from diflow.kube.leader_election import Elector
from diflow.version import __version__

if TYPE_CHECKING:
    from diflow.allocator.settings import AllocatorSettings
    from diflow.kube.api import Cluster

log = structlog.get_logger("diflow.allocator")


def serve(cluster: Cluster, settings: AllocatorSettings, *, metrics_port: int) -> int:
    """Run the allocator until a signal comes. Returns the exit code: 5 when leadership was lost."""
    tenure = Tenure("diflow.allocator", wake=lambda: allocator.ask("end"))
    policy = load_policy(settings.policy)
    elector = candidate(cluster, settings, on_lost=tenure.lose)
    telemetry = Telemetry(elector)
    allocator = Allocator(cluster, settings, policy, elector, record=_recorder(settings), on_cycle=telemetry.cycle)
    telemetry.watch(allocator)
    with probes.serving(metrics_port, telemetry.app()) if metrics_port else nullcontext():
        tenure.watch(telemetry, elector.abandon)
        return tenure.serve(
            partial(lead, allocator),
            version=__version__,
            policy=policy.name,
            identity=elector.identity,
            namespace=settings.namespace,
            cluster=cluster.target.server,
        )


def candidate(
    cluster: Cluster, settings: AllocatorSettings, *, on_lost: Callable[[str], None] = lambda _: None
) -> Elector:
    """This process as a candidate for the allocator's Lease, with a unique identity."""
    identity = f"{socket.gethostname()}-{secrets.token_hex(4)}"
    says = {keys.POLICY: settings.policy, keys.POOLS: settings.pools.to_json()}
    return Elector(
        cluster, name=keys.ALLOCATOR, namespace=settings.namespace, identity=identity, says=says, on_lost=on_lost
    )


def _recorder(settings: AllocatorSettings) -> Callable[..., None]:
    if not settings.journal:
        return lambda _snapshot, _plan: None
    return Journal(
        Path(settings.journal),
        most_bytes=settings.journal_bytes,
        report=lambda words: log.warning("the journal cannot be written", why=words),
    )
