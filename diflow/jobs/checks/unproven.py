"""Whether a job's programs need the server's unproven mode, and whether the server of this cluster has it on.

A pod authenticates to the server with a token (docs/security.md). DI-engine's clients do not send tokens: without
`DIFLOW_SERVER_UNPROVEN_PODS` all their requests are answered with 401, which the job's status does not show.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from diflow.common import keys
from diflow.common.errors import DiflowError, NotFoundError
from diflow.jobs.checks.deployments import Container, Deployed
from diflow.kube.kinds import CONFIG_MAP, DEPLOYMENT
from diflow.record import untrusted
from diflow.record.dijob import dijob_record_of

if TYPE_CHECKING:
    from diflow.dijob.model import DIJob
    from diflow.kube.api import Cluster

SETTING: Final = "DIFLOW_SERVER_UNPROVEN_PODS"
_ON: Final = frozenset({"1", "true", "t", "yes", "y", "on"})  # as the server reads its settings
# DI-engine's launchers as words of a command, and its images, such as registry:5000/opendilab/ding:v0.4.9.
_COMMAND: Final = re.compile(r"(?<![\w./-])(?:[\w./-]*/)?(ding|ditask)(?![\w-]|\.\w)")
_IMAGE: Final = re.compile(r"(?:.*/)?(?:ding|di-engine)(?:[:@].*)?")
_MOST_TEXT: Final = 100_000
_LONGEST_IMAGE: Final = 500


def why_needed(dijob: Mapping[str, Any]) -> str:
    """Why the programs of a job send no token; "" if they seem to. `dijob` is a manifest, possibly invalid.

    The annotation `diflow/sends-token` ("true" or "false") decides, else the use of DI-engine's launchers or images.
    """
    job = dijob_record_of(dijob)
    said = job.annotations.get(keys.SENDS_TOKEN)
    if said == "true":
        return ""
    if said == "false":
        return f'its annotation {keys.SENDS_TOKEN} is "false"'
    tasks = job.fields.get("tasks")
    for i, task in enumerate(tasks if isinstance(tasks, list | tuple) else ()):
        for container in untrusted.mappings(untrusted.sub(task, "template", "spec").get("containers")):
            if found := _launcher(Container.of(container)):
                return f"spec.tasks[{i}] runs DI-engine ({found}), whose clients send none"
    return ""


def warning(job: DIJob, cluster: Cluster) -> str:
    """A warning if the job's programs send no token and the server requires one, else ""."""
    from diflow.dijob.settings import render_settings  # noqa: PLC0415 (pydantic takes a while to import)

    why = why_needed(job.to_manifest())
    if not why or is_served(cluster, render_settings().server_url) is not False:
        return ""
    return (
        f"job {job.name} sends the server no token ({why}), and the server of this cluster refuses its requests "
        f"and reports (401): {SETTING}=true on the server accepts such jobs (docs/security.md)"
    )


def is_served(cluster: Cluster, server_url: str) -> bool | None:
    """Whether the server at `server_url` serves pods without a token; None if unknown.

    Read from its Deployment, or, for users without access, from the ConfigMap diflow-server in kube-public.
    """
    host = (urlsplit(server_url).hostname or "").split(".")
    if len(host) > 1:  # its Service and namespace, as inside the cluster
        try:
            return _setting(Deployed.of(cluster.get(DEPLOYMENT, host[0], namespace=host[1]))) in _ON
        except NotFoundError:
            return None
        except DiflowError:
            pass
    try:
        public = cluster.find(CONFIG_MAP, keys.SERVER, namespace=keys.PUBLIC_NAMESPACE)
    except DiflowError:
        return None
    said = untrusted.sub(public, "data").get("unprovenPods")
    return said.strip().lower() in _ON if isinstance(said, str) else None


def _setting(server: Deployed) -> str:
    given = (one.environment[SETTING] for one in server.containers if SETTING in one.environment)
    return next(given, "").strip().lower()


def _launcher(container: Container) -> str:
    if match := _COMMAND.search("\n".join(container.words)[:_MOST_TEXT]):
        return match[1]
    image = container.image
    return f"image {image}" if len(image) < _LONGEST_IMAGE and _IMAGE.fullmatch(image) else ""
