"""What the applications of a namespace have shown, as the allocator has recorded it: list it, forget it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from diflow.common import keys
from diflow.common.errors import NotFoundError
from diflow.jobs.changing import Patch, until_written
from diflow.kube.api import Cluster
from diflow.kube.kinds import CONFIG_MAP
from diflow.record import untrusted
from diflow.record.identity import Identity
from diflow.record.namespace import applications
from diflow.record.namespace.applications import Application


@dataclass(frozen=True, slots=True)
class Listed:
    """An application of a namespace."""

    namespace: str
    application: Application

    def to_dict(self) -> dict[str, Any]:
        """The record as plain data."""
        record = self.application
        return {
            "namespace": self.namespace,
            "application": record.name,
            "pool": record.pool,
            "jobs": record.jobs,
            "usedSeconds": record.used_seconds,
            "mostReplicas": max((shape[1] for shape in record.shapes), default=0),
            "shapes": [list(shape) for shape in record.shapes],
            "gradientNoise": list(record.noise),
            "works": list(record.works),
            "restartSeconds": record.restart_seconds,
            "restarts": record.restarts,
            "misses": record.misses,
        }


def list_applications(*, everywhere: bool, cluster: Cluster) -> tuple[list[Listed], bool]:
    """(the applications of the namespace, or `everywhere`, the one that was used last first; whether there is a
    ConfigMap for them)."""
    if everywhere:
        found = cluster.list_all(CONFIG_MAP, everywhere=True, fields=f"metadata.name={keys.APPLICATIONS}")
    else:
        one = cluster.find(CONFIG_MAP, keys.APPLICATIONS)
        found = [one] if one is not None else []
    out = [
        Listed(untrusted.string(untrusted.sub(config_map, "metadata").get("namespace")), record)
        for config_map in found
        for record in applications.parse(applications.text_of(config_map)).values()
    ]
    return sorted(out, key=lambda one: (-one.application.used_seconds, one.namespace, one.application.key)), bool(found)


def forget(names: Sequence[str], *, cluster: Cluster) -> None:
    """Delete the records of these applications on all pools. Raises NotFoundError, and deletes nothing, if there is
    no record of one of them."""

    def read() -> tuple[None, Patch]:
        config_map = cluster.find(CONFIG_MAP, keys.APPLICATIONS)
        known = applications.parse(applications.text_of(config_map))
        missing = sorted(set(names) - {name for name, _ in known})
        if missing or config_map is None:
            raise NotFoundError(f"there is no record of the application {missing[0] if missing else names[0]!r}")
        kept = [record for record in known.values() if record.name not in names]
        body = {
            "metadata": Identity.of(config_map).this_version,
            "data": {applications.APPLICATIONS_KEY: applications.text(kept)},
        }
        return None, Patch(CONFIG_MAP, keys.APPLICATIONS, body)

    until_written(read, namespace=None, cluster=cluster)  # the allocator may write meanwhile
