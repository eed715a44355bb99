"""Gangs that wait for their first admission, read from the metadata of their Workflows alone."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from diflow.common import keys
from diflow.record import untrusted
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


@lru_cache(maxsize=256)
def _initial(replicas: tuple[tuple[str, int], ...]) -> tuple[tuple[str, str], ...]:
    return tuple(initial(dict(replicas), is_gang=True).items())
