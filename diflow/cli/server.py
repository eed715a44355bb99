"""Commands for the server of the REST API."""

from __future__ import annotations

from typing import Annotated

import typer

from diflow.cli.allocating import LogOption
from diflow.cli.options import Context, Kubeconfig, needs


def run(
    *,
    port: Annotated[
        int | None,
        typer.Option(
            "--port", min=0, max=65535, help="Serve the API on this port (default: 8081).", show_default=False
        ),
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            "--metrics-port",
            min=-1,
            max=65535,
            help="Serve /metrics, /healthz and /readyz on this port (default: 8080; -1: nowhere).",
            show_default=False,
        ),
    ] = None,
    log_format: LogOption = None,
    debug: Annotated[bool, typer.Option("--debug", help="Log requests that only read, too.")] = False,
    watch_namespace: Annotated[
        str | None,
        typer.Option("--watch-namespace", help="Serve only jobs of this namespace.", show_default=False),
    ] = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> int:
    """Serve the REST API and the status page until SIGTERM or Ctrl-C; accepted requests are completed.

    Everything else is set by the environment variables DIFLOW_SERVER_....
    """
    needs("server")
    from diflow.daemon.logs import configure_log  # noqa: PLC0415
    from diflow.jobs.checks.connecting import REMEDIES  # noqa: PLC0415 (these take half a second to import)
    from diflow.server import service  # noqa: PLC0415
    from diflow.server.settings import server_settings  # noqa: PLC0415
    from diflow.server.telemetry import CountedCluster  # noqa: PLC0415

    given = {"port": port, "metrics_port": metrics_port, "watched_namespace": watch_namespace}
    settings = server_settings(**{name: value for name, value in given.items() if value is not None})
    cluster = CountedCluster.connect(kubeconfig=kubeconfig, context=context, remedies=REMEDIES)
    configure_log(log_format.value if log_format else None, level="debug" if debug else "info")
    return service.run(cluster, settings)
