"""Commands for the controller of DIJob objects."""

from __future__ import annotations

from typing import Annotated

import typer

from diflow.cli import options
from diflow.cli.allocating import LogOption
from diflow.cli.options import Context, Kubeconfig, connect, needs


def run(
    *,
    metrics_port: Annotated[int, options.metrics_port("DIFLOW_CONTROLLER_METRICS_PORT")] = 0,
    log_format: LogOption = None,
    debug: Annotated[bool, typer.Option("--debug", help="Log each conflict, too.")] = False,
    watch_namespace: Annotated[
        str | None,
        typer.Option("--watch-namespace", help="Only DIJobs of this namespace.", show_default=False),
    ] = None,
    namespace: Annotated[
        str | None,
        typer.Option("--namespace", "-n", help="Where the Lease is (default: diflow-system).", show_default=False),
    ] = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> int:
    """Run the controller: wait for leadership, then give each DIJob object its Workflow and its status, until SIGTERM
    or Ctrl-C.

    Everything else is set by the environment variables DIFLOW_CONTROLLER_.... Exits with 5 when another process has
    become the leader: restart it then.
    """
    needs("controller")
    from diflow.controller.process import serve  # noqa: PLC0415 (these take half a second to import)
    from diflow.controller.settings import controller_settings  # noqa: PLC0415
    from diflow.daemon.logs import configure_log  # noqa: PLC0415

    given = {"namespace": namespace, "watched_namespace": watch_namespace}
    settings = controller_settings(**{name: value for name, value in given.items() if value is not None})
    cluster = connect(kubeconfig=kubeconfig, context=context, namespace=settings.namespace)
    configure_log(log_format.value if log_format else None, level="debug" if debug else "info")
    return serve(cluster, settings, metrics_port=metrics_port)
