"""Gangs that wait for their first admission, read from the metadata of their Workflows alone."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from diflow.common import keys
from diflow.record import untrusted
from diflow.record.allocation import Allocation
from diflow.record.parameters import submitted_replicas
from diflow.record.patches import initial

Object = dict[str, Any]


def from_metadata(head: Mapping[str, Any]) -> Object:
    """The Workflow of a gang that waits, as far as diflow reads it, from its metadata."""
    annotations = untrusted.sub(head, "metadata", "annotations")
    # An unreadable DIJob has no tasks, and its state names the problem, as that of the whole Workflow does.
    values = dict(_initial(tuple(submitted_replicas(head).items())))
    if requested := untrusted.string(annotations.get(keys.REQUESTED)):
        values[keys.PARAM_REPLICAS] = requested
    parameters = [{"name": name, "value": value} for name, value in values.items()]
    return {**head, "spec": {"suspend": True, "arguments": {"parameters": parameters}}, "status": {}}


def is_waiting(head: Mapping[str, Any]) -> bool:
    """Whether the Workflow with this metadata is that of such a gang."""
    return bool(untrusted.sub(head, "metadata", "labels").get(keys.ADMITTED) == "false")


def has_places(head: Mapping[str, Any]) -> bool:
    """Whether such a gang has places already: it waits for other pods to end, or somebody resumed it."""
    allocation = Allocation.parse(untrusted.sub(head, "metadata", "annotations").get(keys.ALLOCATION))
    return allocation is not None and allocation.is_placed


@lru_cache(maxsize=256)
def _initial(replicas: tuple[tuple[str, int], ...]) -> tuple[tuple[str, str], ...]:
    return tuple(initial(dict(replicas), is_gang=True).items())
