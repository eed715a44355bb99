"""Which namespaces may use which queues and priorities: the list `namespaces` of `queues.yaml`.

    namespaces:
      - {name: "team-*", queues: [team, "team-*"], priorities: [normal]}
      - {name: research, queues: ["*"]}
      - {name: "*", queues: [default], priorities: [normal]}

The first rule whose name matches a job's namespace decides; a field that the rule omits is
unlimited. If there are rules and none matches, the namespace may use nothing; without rules there are no restrictions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

from diflow.common import keys
from diflow.common.errors import InvalidError

MOST_RULES: Final = 1000
_PATTERN: Final = re.compile(r"[a-z0-9*]([a-z0-9*-]{0,61}[a-z0-9*])?")
_FIELDS: Final = ("name", "priorities", "queues")


@dataclass(frozen=True, slots=True)
class NamespaceRule:
    """What the namespaces that match `name` (`*` matches any text) may use. None: anything."""

    name: str
    queues: tuple[str, ...] | None = None
    priorities: tuple[str, ...] | None = None


def refusal(rules: Sequence[NamespaceRule], *, namespace: str, queue: str, priority: int) -> str:
    """Why these rules forbid a job, in one clause; "" if they allow it."""
    if not rules:
        return ""
    rule = next((rule for rule in rules if fnmatchcase(namespace, rule.name)), None)
    if rule is None:
        return f"no rule of the administrator's queues.yaml names the namespace {namespace}"
    if rule.queues is not None and not any(fnmatchcase(queue, name) for name in rule.queues):
        return f"the namespace {namespace} may not use the queue {queue!r}: {_may('spec.queue', rule.queues)}"
    if rule.priorities is not None and priority not in {keys.WORKFLOW_PRIORITIES[name] for name in rule.priorities}:
        given = next((name for name, value in keys.WORKFLOW_PRIORITIES.items() if value == priority), f"{priority}")
        return f"the namespace {namespace} may not use the priority {given}: {_may('spec.priority', rule.priorities)}"
    return ""


def read_rules(data: Any) -> tuple[NamespaceRule, ...]:
    """The rules in the list `namespaces`. Raises InvalidError with the path of the first field that is wrong."""
    if data is None:
        return ()
    if not isinstance(data, list):
        raise InvalidError("must be a list of rules", path="namespaces")
    if len(data) > MOST_RULES:
        raise InvalidError(f"has {len(data)} rules, and may have {MOST_RULES}", path="namespaces")
    return tuple(_rule(item, f"namespaces[{i}]") for i, item in enumerate(data))


def _rule(item: Any, path: str) -> NamespaceRule:
    if not isinstance(item, dict):
        raise InvalidError('must be a mapping such as {name: "team-*", queues: [team]}', path=path)
    unknown = sorted(str(key) for key in item if key not in _FIELDS)
    if unknown:
        raise InvalidError(f"unknown field; known are {', '.join(_FIELDS)}", path=f"{path}.{unknown[0]}")
    name = item.get("name")
    if not _is_pattern(name):
        raise InvalidError("must be a namespace, with * for any text", path=f"{path}.name")
    priorities = _names(item, "priorities", path)
    for i, given in enumerate(priorities or ()):
        if given not in keys.WORKFLOW_PRIORITIES:
            known = " or ".join(keys.WORKFLOW_PRIORITIES)
            raise InvalidError(f"must be {known}, not {given!r}", path=f"{path}.priorities[{i}]")
    return NamespaceRule(str(name), _names(item, "queues", path), priorities)


def _names(item: Mapping[Any, Any], field: str, path: str) -> tuple[str, ...] | None:
    given = item.get(field)
    if given is None:
        if field in item:
            raise InvalidError("is empty: leave it out to allow all, or write [] to allow none", path=f"{path}.{field}")
        return None
    if not isinstance(given, list):
        raise InvalidError("must be a list of names", path=f"{path}.{field}")
    for i, name in enumerate(given):
        if not _is_pattern(name):
            raise InvalidError("must be a name, with * for any text", path=f"{path}.{field}[{i}]")
    return tuple(given)


def _is_pattern(name: Any) -> bool:
    return isinstance(name, str) and _PATTERN.fullmatch(name) is not None


def _may(field: str, names: Sequence[str]) -> str:
    return f"set {field} to {' or '.join(names)}" if names else "it may use none"
