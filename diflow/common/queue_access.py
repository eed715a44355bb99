"""Which namespaces may use which queues and priorities: the list `namespaces` of `queues.yaml`.

    namespaces:
      - {name: "team-*", queues: [team, "team-*"], priorities: [normal]}
      - {name: research, queues: ["*"]}
      - {name: "*", queues: [default], priorities: [normal]}

The first rule whose name matches a job's namespace decides; a field that the rule omits is
unlimited. If there are rules and none matches, the namespace may use nothing; without rules there are no restrictions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

import yaml

from diflow.common import keys
from diflow.common.errors import InvalidError
from diflow.common.words import counted, named

MOST_RULES: Final = 1000
_PATTERN: Final = re.compile(r"[a-z0-9*]([a-z0-9*-]{0,61}[a-z0-9*])?")
_FIELDS: Final = ("name", "priorities", "queues")


@dataclass(frozen=True, slots=True)
class NamespaceRule:
    """What the namespaces that match `name` (`*` matches any text) may use. None: anything."""

    name: str
    queues: tuple[str, ...] | None = None
    priorities: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class QueueAccess:
    """The names of the queues, and which namespaces may use them: what users are told of `queues.yaml`. `kept`: those
    with a guarantee that is lent to preemptible jobs alone while they do not use it."""

    queues: tuple[str, ...] = ()
    rules: tuple[NamespaceRule, ...] = ()
    kept: tuple[str, ...] = ()

    @classmethod
    def read(cls, text: str) -> QueueAccess:
        """Those in this text. The allocator reads the rest of it, and more strictly. Raises InvalidError."""
        try:
            data = yaml.safe_load(text)
            queues = tuple(str(queue["name"]) for queue in data["queues"])
            kept = tuple(str(queue["name"]) for queue in data["queues"] if _is_kept(queue))
            return cls(queues, read_rules(data.get("namespaces")), kept)
        except (yaml.YAMLError, RecursionError, ValueError, TypeError, KeyError, AttributeError) as error:
            if isinstance(error, InvalidError):
                raise
            raise InvalidError("cannot be read", path="queues.yaml") from None

    def usable(self, namespace: str) -> list[str]:
        """The queues that exist and that a namespace may use."""
        rule = rule_of(self.rules, namespace)
        if not self.rules or (rule is not None and rule.queues is None):
            return list(self.queues)
        allowed = rule.queues or () if rule is not None else ()
        return [queue for queue in self.queues if any(fnmatchcase(queue, name) for name in allowed)]

    def contradictions(self) -> list[str]:
        """What cannot be meant: rules that decide for no namespace, and queues in rules that do not exist."""
        found, before = [], list[str]()
        for rule in self.rules:
            hidden = next((name for name in before if fnmatchcase(rule.name, name)), None)
            if hidden is not None:
                found.append(f"the rule {rule.name!r} never decides, as the rule {hidden!r} before it does")
            before.append(rule.name)
            missing = [name for name in rule.queues or () if not any(fnmatchcase(queue, name) for queue in self.queues)]
            if missing and self.queues:
                found.append(f"the rule {rule.name!r} allows {named(missing, 3)}, which no queue is called")
        if (twice := len(self.queues) - len(set(self.queues))) > 0:
            found.append(f"{counted(twice, 'queue is', plural='queues are')} defined twice")
        return found

    def text(self) -> str:
        """The text of which `read` makes the same."""
        rules = [
            {
                "name": rule.name,
                **({"queues": list(rule.queues)} if rule.queues is not None else {}),
                **({"priorities": list(rule.priorities)} if rule.priorities is not None else {}),
            }
            for rule in self.rules
        ]
        queues = [{"name": name, **({"kept": True} if name in self.kept else {})} for name in self.queues]
        return json.dumps({"queues": queues, "namespaces": rules or None})


def _is_kept(queue: Mapping[str, Any]) -> bool:
    """Of what the administrator has written, or of what is published of it."""
    return bool(queue.get("kept") or (queue.get("guarantee") and queue.get("lendsTo") != "all"))


def rule_of(rules: Sequence[NamespaceRule], namespace: str) -> NamespaceRule | None:
    """The rule that decides for a namespace; None if none names it."""
    return next((rule for rule in rules if fnmatchcase(namespace, rule.name)), None)


def refusal(rules: Sequence[NamespaceRule], *, namespace: str, queue: str, priority: int) -> str:
    """Why these rules forbid a job, in one clause; "" if they allow it."""
    if not rules:
        return ""
    rule = rule_of(rules, namespace)
    if rule is None:
        return f"no rule of the administrator's queues.yaml names the namespace {namespace}"
    if rule.queues is not None and not any(fnmatchcase(queue, name) for name in rule.queues):
        return f"the namespace {namespace} may not use the queue {queue!r}: {_may('spec.queue', rule.queues)}"
    if rule.priorities is not None and priority not in {keys.WORKFLOW_PRIORITIES[name] for name in rule.priorities}:
        given = next((name for name, value in keys.WORKFLOW_PRIORITIES.items() if value == priority), f"{priority}")
        return f"the namespace {namespace} may not use the priority {given}: {_may('spec.priority', rule.priorities)}"
    return ""


def as_lines(rules: Sequence[NamespaceRule]) -> str:
    """The rules for the policy in manifests/admission, which says what a line means; "" without rules."""
    return "".join(f"{_line(rule)}\n" for rule in rules)


def _line(rule: NamespaceRule) -> str:
    priorities = keys.WORKFLOW_PRIORITIES if rule.priorities is None else rule.priorities
    highest = (
        keys.HIGHEST_PRIORITY
        if rule.priorities is None
        else max((keys.PRIORITY_VALUES[name] for name in priorities), default=0)
    )
    allowed = [_regex((rule.name,)), _regex(rule.queues), _regex(rule.priorities)]
    return " ".join([*allowed, str(highest)])


def _regex(patterns: Sequence[str] | None) -> str:
    """A regular expression of RE2 for what one of these patterns matches; None: anything."""
    if patterns is None:
        return ".*"
    parts = ("".join(".*" if part == "*" else re.escape(part) for part in re.split(r"(\*)", one)) for one in patterns)
    return f"^({'|'.join(parts)})$" if patterns else "^$"


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
