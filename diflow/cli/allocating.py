"""Commands for the allocator itself: run it, let it decide once."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diflow.cli.options import Context, Kubeconfig, connect

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from diflow.allocator.daemon import Allocator
    from diflow.allocator.elector import Elector
    from diflow.allocator.service import AllocatorSettings
    from diflow.client.kube import Cluster

# After leadership was lost nothing is written any more; a loop that still hangs then is ended.
_LONGEST_END_SECONDS = 20.0

Home = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        "-n",
        help="Where the allocator's Lease and queues are (default: diflow-system).",
        show_default=False,
    ),
]
Watched = Annotated[
    str | None,
    typer.Option("--watch-namespace", help="Allocate only jobs of this namespace.", show_default=False),
]
PolicyName = Annotated[
    str | None,
    typer.Option("--policy", help="The policy, such as fit or fair+goodput (default: fit).", show_default=False),
]


class LogFormat(StrEnum):
    """How log lines look."""

    TEXT = "text"
    JSON = "json"


def run(
    *,
    policy: PolicyName = None,
    journal: Annotated[
        Path | None,
        typer.Option("--journal", help="Append each snapshot with its plan to this file.", show_default=False),
    ] = None,
    metrics_port: Annotated[
        int,
        typer.Option(
            "--metrics-port",
            min=0,
            max=65535,
            envvar="DIFLOW_ALLOCATOR_METRICS_PORT",
            show_envvar=False,
            help="Serve /metrics, /healthz and /readyz on this port (default: none).",
            show_default=False,
        ),
    ] = 0,
    log_format: Annotated[
        LogFormat | None,
        typer.Option("--log-format", help="How log lines look (default: text on a terminal).", show_default=False),
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Log each write that was refused, too.")] = False,
    watch_namespace: Watched = None,
    namespace: Home = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> int:
    """Run the allocator: wait to be the one that leads, then decide until SIGTERM or Ctrl-C.

    Everything else is set by the environment variables DIFLOW_ALLOCATOR_... and DIFLOW_POLICY_.... Ends with 5 when
    another process took the lead: it should then be started again.
    """
    _needs_packages()
    from diflow.allocator.telemetry import configure_log  # noqa: PLC0415 (these take half a second to import)

    settings = _settings(
        policy=policy, journal=str(journal) if journal else None, namespace=namespace, watched_namespace=watch_namespace
    )
    cluster = connect(kubeconfig=kubeconfig, context=context, namespace=settings.namespace)
    configure_log(log_format.value if log_format else None, debug=debug)
    return _serve(cluster, settings, metrics_port=metrics_port)


def _serve(cluster: Cluster, settings: AllocatorSettings, *, metrics_port: int) -> int:
    import threading  # noqa: PLC0415

    import structlog  # noqa: PLC0415

    from diflow.allocator.daemon import Allocator, lead  # noqa: PLC0415
    from diflow.allocator.policy import load_policy  # noqa: PLC0415
    from diflow.allocator.telemetry import Telemetry  # noqa: PLC0415
    from diflow.errors import LostLeadershipError  # noqa: PLC0415
    from diflow.version import __version__  # noqa: PLC0415

    log = structlog.get_logger("diflow.allocator")
    stop, lost = threading.Event(), threading.Event()

    def on_lost(why: str) -> None:
        log.error("the lead is lost", why=why)
        lost.set()
        stop.set()
        end = threading.Timer(_LONGEST_END_SECONDS, os._exit, (LostLeadershipError.exit_code,))
        end.daemon = True
        end.start()

    policy = load_policy(settings.policy)
    elector = candidate(cluster, settings, on_lost=on_lost)
    telemetry = Telemetry(elector)
    allocator = Allocator(cluster, settings, policy, elector, record=_recorder(settings), on_cycle=telemetry.cycle)
    telemetry.watch(allocator)
    served = telemetry.serve(metrics_port) if metrics_port else None
    telemetry.tell_troubles(stop)
    _end_on_signals(stop, allocator)
    log.info(
        "started",
        version=__version__,
        policy=policy.name,
        identity=elector.identity,
        namespace=settings.namespace,
        cluster=cluster.target.server,
    )
    try:
        lead(allocator, stop)
    except LostLeadershipError as error:
        log.error("ended", why=str(error))
        return error.exit_code
    finally:
        if served is not None:
            served.shutdown()
    if lost.is_set():
        return LostLeadershipError.exit_code
    log.info("ended")
    return 0


def candidate(
    cluster: Cluster, settings: AllocatorSettings, *, on_lost: Callable[[str], None] = lambda _: None
) -> Elector:
    """This process as a candidate for the allocator's Lease, under a name that no other process has."""
    import secrets  # noqa: PLC0415
    import socket  # noqa: PLC0415

    from diflow.allocator.elector import Elector  # noqa: PLC0415

    identity = f"{socket.gethostname()}-{secrets.token_hex(4)}"
    return Elector(cluster, namespace=settings.namespace, identity=identity, on_lost=on_lost)


def _settings(**given: Any) -> AllocatorSettings:
    from diflow.allocator.service import allocator_settings  # noqa: PLC0415

    return allocator_settings(**{name: value for name, value in given.items() if value is not None})


def _recorder(settings: AllocatorSettings) -> Callable[..., None]:
    if not settings.journal:
        return lambda _snapshot, _plan: None
    from diflow.allocator.telemetry import Recorder  # noqa: PLC0415

    return Recorder(Path(settings.journal), most_bytes=settings.journal_bytes)


def _end_on_signals(stop: threading.Event, allocator: Allocator) -> None:
    """TERM and INT end the loop after what it is doing; a second one ends the process at once."""
    import signal  # noqa: PLC0415
    import threading  # noqa: PLC0415

    def end() -> None:
        stop.set()
        allocator.ask("stop")

    def on_signal(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        # Not here: the main thread may hold the very lock that is needed to wake it.
        threading.Thread(target=end, name="signal", daemon=True).start()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)


def _needs_packages() -> None:
    """Raise UnavailableError where diflow was installed without what the allocator needs."""
    from importlib.util import find_spec  # noqa: PLC0415

    from diflow.errors import UnavailableError  # noqa: PLC0415

    missing = [name for name in ("numpy", "prometheus_client", "scipy", "structlog") if find_spec(name) is None]
    if missing:
        raise UnavailableError(
            f"this command needs the Python packages {', '.join(missing)}: pip install 'diflow[allocator]'"
        )
