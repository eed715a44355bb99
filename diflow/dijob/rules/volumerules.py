"""What is known of a pod's volumes without a cluster, beyond types (see `podrules`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from diflow.common.errors import InvalidError
from diflow.dijob.rules import syntax

_RESERVED: Final = frozenset({"var-run-argo", "tmp-dir-argo", "argo-env-config", "argo-staging", "input-artifacts"})
# The field of a source that names what is mounted.
_NAMES: Final[Mapping[str, str]] = {
    "configMap": "name",
    "hostPath": "path",
    "nfs": "path",
    "persistentVolumeClaim": "claimName",
    "secret": "secretName",
}
_OF_CLAIMS: Final = ("labels", "annotations")


def check_volumes(volumes: Sequence[Mapping[str, Any]], path: str) -> None:
    """Check volumes of valid types. Raises InvalidError with the path of the first invalid field."""
    seen: set[str] = set()
    for i, volume in enumerate(volumes):
        here = f"{path}[{i}]"
        name = volume.get("name", "")
        syntax.dns_label(name, f"{here}.name")
        syntax.once(seen, name, f"there is more than one volume named {name!r}", f"{here}.name")
        if name in _RESERVED:
            raise InvalidError(f"the volume's name {name!r} is used by Argo: choose another", path=f"{here}.name")
        _check_source({key: value for key, value in volume.items() if key != "name"}, here)


def _check_source(sources: Mapping[str, Any], path: str) -> None:
    if len(sources) > 1:
        raise InvalidError(f"has more than one source: {', '.join(sorted(sources))}", path=path)
    for kind, source in sources.items():  # without one, Kubernetes uses an emptyDir
        if name := _NAMES.get(kind):
            syntax.given(source.get(name), f"{path}.{kind}.{name}")
    # Its other fields, as a time of creation, have types that Argo's controller must be able to read.
    for key in sources.get("ephemeral", {}).get("volumeClaimTemplate", {}).get("metadata", {}):
        if key not in _OF_CLAIMS:
            raise InvalidError(
                "cannot be set: a claim that is made for a pod is named after it",
                path=f"{path}.ephemeral.volumeClaimTemplate.metadata.{key}",
            )
