"""One plan for the whole cluster, by the running allocator, or by this process if it gets the Lease."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from diflow.allocator.policies.base import load_policy
from diflow.allocator.run import control_channel
from diflow.allocator.run.daemon import Allocator
from diflow.allocator.run.process import candidate
from diflow.common import keys
from diflow.common.errors import UnavailableError
from diflow.daemon.logs import configure_log

if TYPE_CHECKING:
    from diflow.allocator.settings import AllocatorSettings
    from diflow.kube.api import Cluster
    from diflow.kube.leader_election import Elector

_LOOK_SECONDS = 0.5


def decide_once(
    cluster: Cluster,
    settings: AllocatorSettings,
    *,
    seconds: float,
    note: Callable[[str], None],
) -> str:
    """The plan as text. `note` gets progress messages. Raises TimeoutError if there is no plan within `seconds`."""
    policy = load_policy(settings.policy)
    elector = candidate(cluster, settings)
    ends = time.monotonic() + seconds
    asked = ""
    while time.monotonic() < ends:
        if elector.try_acquire():
            # `acquire` starts the renewals: a plan may take longer than the Lease's duration.
            elector.acquire(threading.Event())
            allocator = Allocator(cluster, settings, policy, elector)
            return _one_cycle(allocator, elector, seconds=max(1.0, ends - time.monotonic()))
        if not asked and elector.holder:
            asked = secrets.token_hex(8)
            control_channel.annotate(cluster, keys.REPLAN, asked, namespace=settings.namespace)
            note(f"asking the allocator {elector.holder}")
        if asked:
            text = control_channel.answer_to(cluster, asked, namespace=settings.namespace)
            if text is not None:
                return text
        time.sleep(_LOOK_SECONDS)
    raise TimeoutError(
        f"no plan within {seconds:g} s: {elector.holder or 'nobody'} holds the Lease and does not answer "
        f"(it needs the right to write the ConfigMap {control_channel.ANSWER} in {settings.namespace})"
    )


def _one_cycle(allocator: Allocator, elector: Elector, *, seconds: float) -> str:
    configure_log(None, level="warning")
    allocator.caches.start()
    try:
        if not allocator.caches.wait_synced(seconds):
            raise UnavailableError(f"the cluster was not read in time: {allocator.caches.trouble()}")
        done = allocator.cycle("once")
        if done.trouble:
            raise UnavailableError(f"nothing was decided: {done.trouble}")
        return allocator.account()
    finally:
        allocator.caches.stop()
        allocator.executor.close()
        elector.release()
