"""Asks the API server about the pod templates of a job, by a dry run of a PodTemplate with each of them.

A PodTemplate is validated as a pod is, and by nothing else: no quota, account, class or node is looked up. What is
known without a cluster is in `diflow.dijob.rules`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from diflow.common.errors import ConflictError, InvalidError, UnauthorizedError
from diflow.common.jsontext import canonical_json
from diflow.dijob.pods import volumes_of, work_container
from diflow.kube.kinds import POD_TEMPLATE

if TYPE_CHECKING:
    from diflow.dijob.model import DIJob, Task
    from diflow.kube.api import Cluster

Json = dict[str, Any]
Tell = Callable[[str], object]
"""Is told why the API server was not asked."""

UNASKED: Final = (
    "Kubernetes could not check the pod templates ({}): what diflow's own rules do not know is found when the pods are "
    "made"
)
_WORK: Final = "main"
"""The name that Argo gives the container of the work, which may have none."""
_SET_BY_DIFLOW: Final = ("hostname", "subdomain", "restartPolicy")
_VOLUME: Final = re.compile(r"template\.spec\.volumes\[(\d+)\]")
_OF_METADATA: Final = re.compile(r"template\.(labels|annotations)\b")
_KEY: Final = re.compile(r"\[([^\]\d][^\]]*)\]")
"""A key of a mapping, which Kubernetes writes like an index."""
_UNDECODED: Final = "cannot be handled as a PodTemplate"


def check(cluster: Cluster, job: DIJob, *, namespace: str, tell: Tell = lambda _: None) -> None:
    """Let the API server check the templates of all tasks. If it cannot be asked, `tell` is told why.

    Raises InvalidError in the words of the API server, with the path in the DIJob, and UnavailableError if it cannot
    answer now.
    """
    seen: set[str] = set()
    for i, task in enumerate(job.tasks):
        template = _template(job, task)
        text = canonical_json(template)
        if text in seen:
            continue
        seen.add(text)
        try:
            why = _ask(cluster, task.name, template, namespace=namespace)
        except InvalidError as error:
            raise InvalidError(error.message, path=_path(error.path, i, job)) from None
        if why:
            tell(UNASKED.format(why))
            return


def trouble(cluster: Cluster, *, namespace: str) -> str:
    """Why the API server cannot be asked about templates in this namespace; "" if it can."""
    template = {"spec": {"containers": [{"name": _WORK, "image": "x"}]}}
    return _ask(cluster, "diflow", template, namespace=namespace)


def _ask(cluster: Cluster, name: str, template: Json, *, namespace: str) -> str:
    """Let the API server check a template. Returns why it could not, "" if it takes it. Raises InvalidError."""
    body = {
        "apiVersion": POD_TEMPLATE.api_version,
        "kind": POD_TEMPLATE.name,
        "metadata": {"name": name},
        "template": template,
    }
    try:
        cluster.create(POD_TEMPLATE, body, namespace=namespace, dry_run=True, strict=False)
    except ConflictError:  # there is one of this name, which is seen after the validation
        return ""
    except UnauthorizedError as error:
        return str(error)
    except InvalidError as error:
        if not error.path and _UNDECODED not in error.message:  # of admission, as by a webhook that knows no dry run
            return str(error)
        raise
    return ""


def _template(job: DIJob, task: Task) -> Json:
    """The template of a task with what its pods have besides."""
    template: Mapping[str, Any] = task.template
    spec = {name: value for name, value in template["spec"].items() if name not in _SET_BY_DIFLOW}
    containers = [dict(container) for container in spec["containers"]]
    work = containers[work_container(containers)]
    work["name"] = work.get("name") or _WORK
    volumes = volumes_of(spec.get("volumes", ()), job.volumes)
    return {**template, "spec": {**spec, "restartPolicy": "Never", "containers": containers, "volumes": volumes}}


def _path(field: str, number: int, job: DIJob) -> str:
    """The path in the DIJob of a field of the PodTemplate of its task of this number."""
    if (found := _VOLUME.match(field)) is not None:
        own = job.tasks[number].template["spec"].get("volumes", ())
        index = int(found[1])
        if index >= len(own):
            name = volumes_of(own, job.volumes)[index]["name"]
            index = next(i for i, volume in enumerate(job.volumes) if volume["name"] == name)
            return f"spec.volumes[{index}]{field[found.end() :]}"
    if not field.startswith("template"):
        field = "template"
    field = _OF_METADATA.sub(r"template.metadata.\1", field, count=1)
    field = _KEY.sub(r".\1", field)
    return f"spec.tasks[{number}].{field}"
