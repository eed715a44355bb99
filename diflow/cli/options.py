"""Common options of commands: the cluster, the namespace, the job."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from diflow.cli.console import DetachedError

if TYPE_CHECKING:
    from diflow.kube.api import Cluster

_PACKAGES = {
    "allocator": ("numpy", "prometheus_client", "scipy", "structlog"),
    "controller": ("prometheus_client", "structlog"),
    "server": ("cachetools", "httptools", "jinja2", "markupsafe", "prometheus_client", "starlette", "structlog",
               "uvicorn", "uvloop"),
}  # fmt: skip


class Output(StrEnum):
    """Output formats."""

    JSON = "json"
    YAML = "yaml"
    NAME = "name"
    WIDE = "wide"


def complete_job(incomplete: str) -> list[str]:
    """Job names for shell completion; none if the cluster does not respond."""
    from diflow.jobs.lookup import LATEST, names  # noqa: PLC0415

    try:
        found = names()
    except Exception:
        return []
    return [name for name in [LATEST, *found] if name.startswith(incomplete)]


JobName = Annotated[
    str,
    typer.Argument(metavar="JOB", help="The job's name; @latest is the newest one.", autocompletion=complete_job),
]
Namespace = Annotated[
    str | None,
    typer.Option("--namespace", "-n", help="The namespace (default: that of the context).", show_default=False),
]
Context = Annotated[str | None, typer.Option("--context", help="The context of the kubeconfig.", show_default=False)]
Kubeconfig = Annotated[
    str | None,
    typer.Option("--kubeconfig", help="The kubeconfig (default: $KUBECONFIG, ~/.kube/config).", show_default=False),
]
OutputForm = Annotated[
    Output | None, typer.Option("--output", "-o", help="Another form than the table.", show_default=False)
]
Timeout = Annotated[
    str | None,
    typer.Option("--timeout", help="Give up after this long, such as 90s, 10m or 2h.", show_default=False),
]


def metrics_port(variable: str) -> Any:
    """The option --metrics-port of a daemon, also given by this environment variable."""
    return typer.Option(
        "--metrics-port",
        min=0,
        max=65535,
        envvar=variable,
        show_envvar=False,
        help="Serve /metrics, /healthz and /readyz on this port (default: none).",
        show_default=False,
    )


def connect(*, kubeconfig: str | None, context: str | None, namespace: str | None) -> Cluster:
    """The cluster that the options name."""
    from diflow.jobs.checks import connecting  # noqa: PLC0415 (takes 0.4 s to import)

    return connecting.connect(kubeconfig=kubeconfig, context=context, namespace=namespace)


def needs(extra: Literal["allocator", "controller", "server"]) -> None:
    """Raise UnavailableError if diflow was installed without the dependencies of this extra."""
    from importlib.util import find_spec  # noqa: PLC0415

    from diflow.common.errors import UnavailableError  # noqa: PLC0415

    missing = [name for name in _PACKAGES[extra] if find_spec(name) is None]
    if missing:
        raise UnavailableError(
            f"this command needs the Python packages {', '.join(missing)}: pip install 'diflow[{extra}]'"
        )


def resolve(job: str, cluster: Cluster) -> str:
    """The job's name, where `@latest` is the newest job. Raises InvalidError for an empty name."""
    from diflow.common.errors import InvalidError  # noqa: PLC0415
    from diflow.jobs.lookup import LATEST, latest  # noqa: PLC0415

    if not job.strip():
        raise InvalidError(f"the job's name is empty: give a name, or {LATEST} for the newest job")
    if job != LATEST:
        return job
    return latest(cluster=cluster)


def seconds(text: str | None, *, option: str) -> float | None:
    """Parse a duration such as 90s, 10m, 2h, or a plain number of seconds."""
    if text is None:
        return None
    units = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
    number, unit = (text[:-1], units[text[-1]]) if text[-1:] in units else (text, 1.0)
    try:
        value = float(number) * unit
    except ValueError:
        value = -1.0
    if not 0.0 <= value < 1e9:
        raise typer.BadParameter(f"{option} is a length of time such as 90s, 10m or 2h, not {text!r}")
    return value


@contextmanager
def detaching(name: str, cluster: Cluster) -> Iterator[None]:
    """Within this context, Ctrl-C does not affect the job and says how to follow it again."""
    try:
        yield
    except KeyboardInterrupt:
        raise DetachedError(f"\ndetached; the job continues: diflow watch {name} -n {cluster.namespace}") from None
