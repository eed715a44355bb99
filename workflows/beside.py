"""The containers of diflow's own in the pods of a job: the node check."""

from __future__ import annotations

from typing import Any

from diflow import keys
from diflow.job import NodeCheck
from diflow.settings import RenderSettings

Json = dict[str, Any]


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
