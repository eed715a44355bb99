"""Reads and validates `queues.yaml`, the key of a ConfigMap in which an administrator defines the queues.

    queues:
      - name: vision
        weight: 2
        guarantee: {cpu: "4", nvidia.com/gpu: 1}
        cap: {nvidia.com/gpu: 8}
        lendsTo: preemptible
        demand: desired
      - name: vision-ann
        parent: vision
    namespaces:
      - {name: "vision-*", queues: [vision, "vision-*"], priorities: [normal]}

Amounts are Kubernetes quantities; in snapshots cpu is in millicores, memory and storage in MiB, others in units.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import yaml

from diflow.allocator.model.views import QueueView
from diflow.common import names
from diflow.common.errors import InvalidError
from diflow.common.quantities import MOST, amount
from diflow.common.queue_access import NamespaceRule, read_rules

_FIELDS = frozenset({"name", "weight", "guarantee", "cap", "parent", "lendsTo", "demand"})
_LENDS_TO = ("preemptible", "all")
"""To which jobs of other queues a queue lends what it is guaranteed."""
_DEMANDS = ("minimum", "desired")
"""For how many replicas of its preemptible jobs nodes are asked for of an autoscaler."""


@dataclass(frozen=True, slots=True)
class QueueFile:
    """The queues, and which namespaces may use them (queue_access.py)."""

    queues: tuple[QueueView, ...] = ()
    rules: tuple[NamespaceRule, ...] = ()


def read_file(text: str) -> QueueFile:
    """The queues and rules in this text. Raises InvalidError with the path of the first field that is wrong."""
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InvalidError(f"not YAML: {str(error).splitlines()[0]}", path="queues.yaml") from None
    except (RecursionError, ValueError) as error:  # a date such as 2026-13-45, a number of 5,000 digits
        raise InvalidError(f"cannot be read: {error}", path="queues.yaml") from None
    if not isinstance(data, dict) or not isinstance(data.get("queues"), list):
        raise InvalidError("must be a mapping with a list `queues`", path="queues.yaml")
    beside = sorted(str(key) for key in data if key not in ("queues", "namespaces"))
    if beside:
        raise InvalidError("unknown field; known are namespaces and queues", path=beside[0])
    queues = [_queue(item, f"queues[{i}]") for i, item in enumerate(data["queues"])]
    known = {queue.name for queue in queues}
    if len(known) < len(queues):
        twice = next(q.name for i, q in enumerate(queues) if q.name in {other.name for other in queues[:i]})
        raise InvalidError(f"the queue {twice!r} is there twice", path="queues")
    parents = {queue.name: queue.parent for queue in queues}
    for i, queue in enumerate(queues):
        if queue.parent is not None and queue.parent not in known:
            raise InvalidError(f"there is no queue {queue.parent!r}", path=f"queues[{i}].parent")
        seen, above = {queue.name}, queue.parent
        while above is not None:
            if above in seen:
                raise InvalidError(f"{queue.name!r} would be above itself", path=f"queues[{i}].parent")
            seen.add(above)
            above = parents[above]
    return QueueFile(tuple(queues), read_rules(data.get("namespaces")))


def _queue(item: Any, path: str) -> QueueView:
    if not isinstance(item, dict):
        raise InvalidError("must be a mapping with a name", path=path)
    unknown = sorted(str(key) for key in item if key not in _FIELDS)
    if unknown:
        raise InvalidError(f"unknown field; known are {', '.join(sorted(_FIELDS))}", path=f"{path}.{unknown[0]}")
    name, parent, weight = item.get("name"), item.get("parent"), item.get("weight", 1)
    if not isinstance(name, str):
        raise InvalidError("must be text", path=f"{path}.name")
    names.check_label(name, what="the queue's name", path=f"{path}.name")
    if parent is not None and not isinstance(parent, str):
        raise InvalidError("must be the name of a queue", path=f"{path}.parent")
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight < 1e6:
        raise InvalidError(f"must be a number from 0 to a million, not {weight!r}", path=f"{path}.weight")
    tables: dict[str, dict[str, int]] = {}
    for field in ("guarantee", "cap"):
        given = {} if item.get(field) is None else item[field]
        if not isinstance(given, dict):
            raise InvalidError("must be a mapping from resources to quantities", path=f"{path}.{field}")
        tables[field] = {str(r): amount(str(r), q, f"{path}.{field}[{r}]") for r, q in given.items()}
        for r, most in tables[field].items():
            if most > MOST:
                raise InvalidError("is more than any cluster has", path=f"{path}.{field}[{r}]")
    for resource, least in tables["guarantee"].items():
        if least > tables["cap"].get(resource, least):
            raise InvalidError("the guarantee is above the cap", path=f"{path}.guarantee[{resource}]")
    lends = _choice(item, "lendsTo", _LENDS_TO, path) == "all"
    demand = _choice(item, "demand", _DEMANDS, path)
    return QueueView(name, float(weight), tables["guarantee"], tables["cap"], parent, lends=lends, demand=demand)


def _choice(item: dict[str, Any], field: str, words: tuple[str, ...], path: str) -> str:
    """One of these words: the first one without the field."""
    given = item.get(field, words[0])
    if given not in words:
        raise InvalidError(f"must be {' or '.join(words)}, not {given!r}", path=f"{path}.{field}")
    return str(given)
