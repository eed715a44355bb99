"""The containers of diflow's own in the pods of a job: the node check, and the monitor."""

from __future__ import annotations

from itertools import count
from typing import Any, Final

from diflow.common import keys
from diflow.dijob.model import DIJob, NodeCheck
from diflow.dijob.pods import MONITOR_RESOURCES, work_container
from diflow.dijob.settings import RenderSettings

Json = dict[str, Any]

METRICS_FOLDER: Final = "/var/run/diflow"
METRICS_FILE: Final = f"{METRICS_FOLDER}/runtime_metrics.json"
CHECKPOINT_FOLDER: Final = "/dev/shm/diflow-checkpoint"  # noqa: S108 (a volume)
_TARGET: Final = "/checkpoints"
_CHECKPOINTS: Final = "checkpoints"
_METRICS_BYTES: Final = "16Mi"
_GRACE_SECONDS: Final = 30  # Kubernetes' default


def node_check(given: NodeCheck, work: Json, settings: RenderSettings) -> Json:
    """The init container of a node check, before those of the user.

    It has the resources of the work's container: the check measures what the work will have, and needs no more room.
    """
    container: Json = {
        "name": keys.CHECK_CONTAINER,
        "image": given.image or settings.image,
        "command": list(given.command or ("python3", "-m", "diflow.inpod.check")),
        "env": [{"name": "DI_CHECK_SECONDS", "value": str(given.timeout_seconds)}],
    }
    if work.get("resources"):
        container["resources"] = work["resources"]
    return container


def monitored(job: DIJob, spec: Json, settings: RenderSettings) -> Json:
    """The pod spec of a task with the monitor, and with the volumes that the work and the monitor share."""
    given = job.monitor
    if given is None:
        return spec
    taken = {volume.get("name") for volume in (*job.volumes, *spec.get("volumes", ()))}
    metrics = _free("diflow-metrics", taken)
    volumes: list[Json] = [{"name": metrics, "emptyDir": {"sizeLimit": _METRICS_BYTES}}]
    mounts: list[Json] = [{"name": metrics, "mountPath": METRICS_FOLDER}]
    env = [{"name": "RUNTIME_METRICS_PATH", "value": METRICS_FILE}]
    grace = spec.get("terminationGracePeriodSeconds", _GRACE_SECONDS)
    own_env, own_mounts = [*env, {"name": "DI_GRACE_SECONDS", "value": str(grace)}], list(mounts)
    if given.checkpoint_volume is not None:
        memory = _free("diflow-checkpoint", taken)
        folder = given.checkpoint_path or f"{_CHECKPOINTS}/{job.name}"
        volumes.append({"name": memory, "emptyDir": {"medium": "Memory"}})
        mounts.append({"name": memory, "mountPath": CHECKPOINT_FOLDER})
        own_mounts += [mounts[-1], {"name": given.checkpoint_volume, "mountPath": _TARGET}]
        own_env += [
            {"name": "DI_CHECKPOINT_FOLDER", "value": CHECKPOINT_FOLDER},
            {"name": "DI_CHECKPOINT_TARGET", "value": f"{_TARGET}/{folder}"},
        ]
    containers = list(spec["containers"])
    at = work_container(containers)
    work = containers[at]
    used = {str(mount.get("mountPath")).rstrip("/") for mount in work.get("volumeMounts", ())}
    containers[at] = {
        **work,
        # The user's own value of the variable, and a volume of the user's at the same place, take precedence.
        "env": [*env, *work.get("env", ())],
        "volumeMounts": [
            *work.get("volumeMounts", ()),
            *(mount for mount in mounts if mount["mountPath"] not in used),
        ],
    }
    monitor = {
        "name": keys.MONITOR_CONTAINER,
        "image": settings.image,
        "command": ["python3", "-m", "diflow.inpod.monitor"],
        "env": own_env,
        "volumeMounts": own_mounts,
        "resources": MONITOR_RESOURCES,
    }
    return {**spec, "containers": [*containers, monitor], "volumes": [*spec.get("volumes", ()), *volumes]}


def _free(wanted: str, taken: set[Any]) -> str:
    return next(name for i in count() if (name := f"{wanted}{f'-{i}' if i else ''}") not in taken)
