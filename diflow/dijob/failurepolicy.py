"""The failure policy of a job (`spec.failurePolicy`) as plain, bounded values.

The form is that of the podFailurePolicy of Kubernetes' Jobs. What the rules mean is in `diflow.record.argo.failures`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

Action = Literal["Count", "Ignore", "FailJob", "Elsewhere", "MoreMemory"]
Operator = Literal["In", "NotIn"]

ACTIONS: Final[tuple[str, ...]] = get_args(Action)
OPERATORS: Final[tuple[str, ...]] = get_args(Operator)
DISRUPTION: Final = "DisruptionTarget"
"""The one condition that is known: Kubernetes sets it when a pod is evicted, preempted or deleted with its node."""
MOST_RULES: Final = 20
MOST_CODES: Final = 255
MOST_CODE: Final = 255
"""Linux has no larger exit codes."""
MOST_CONDITIONS: Final = 20
_CONTAINER: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)


@dataclass(frozen=True, slots=True)
class GivenRule:
    """One rule as the job gives it: on the exit codes of a container (`operator`, `values`), or on the condition
    DisruptionTarget (no operator). `container`: "" for any."""

    action: Action
    operator: Operator | None = None
    values: tuple[int, ...] = ()
    container: str = ""


class PolicyError(ValueError):
    """The policy is invalid: the message says why, `path` where."""

    def __init__(self, message: str, path: str) -> None:
        super().__init__(message)
        self.path = path


def parse(policy: Any) -> tuple[GivenRule, ...]:
    """The rules of a failure policy, which is plain data. Raises PolicyError."""
    if not isinstance(policy, Mapping):
        raise PolicyError("must be a mapping", "")
    rules = policy.get("rules")
    if unknown := sorted(str(key) for key in policy if key != "rules"):
        raise PolicyError(f"{unknown[0][:80]} is not a field of it", "")
    if rules is None:
        return ()
    if not isinstance(rules, list | tuple):
        raise PolicyError("must be a list", "rules")
    if len(rules) > MOST_RULES:
        raise PolicyError(f"has {len(rules):,} rules, at most {MOST_RULES} are allowed", "rules")
    return tuple(_rule(item, f"rules[{i}]") for i, item in enumerate(rules))


def _rule(item: Any, path: str) -> GivenRule:
    given = _mapping(item, path, ("action", "onExitCodes", "onPodConditions"))
    action = given.get("action")
    if action not in ACTIONS:
        raise PolicyError(f"must be one of {', '.join(ACTIONS)}", f"{path}.action")
    codes, conditions = given.get("onExitCodes"), given.get("onPodConditions")
    if (codes is None) == (conditions is None):
        raise PolicyError("must have one of onExitCodes and onPodConditions", path)
    if conditions is not None:
        _check_conditions(conditions, f"{path}.onPodConditions")
        if action == "MoreMemory":
            raise PolicyError("more memory does not help a pod that was evicted", f"{path}.action")
        return GivenRule(action)
    return _on_codes(action, codes, f"{path}.onExitCodes")


def _on_codes(action: Action, item: Any, path: str) -> GivenRule:
    given = _mapping(item, path, ("containerName", "operator", "values"))
    operator, values, container = given.get("operator"), given.get("values"), given.get("containerName")
    if operator not in OPERATORS:
        raise PolicyError(f"must be one of {', '.join(OPERATORS)}", f"{path}.operator")
    if not isinstance(values, list | tuple) or not values:
        raise PolicyError("must be a list of exit codes", f"{path}.values")
    if len(values) > MOST_CODES:
        raise PolicyError(f"has {len(values):,} exit codes, at most {MOST_CODES} are allowed", f"{path}.values")
    for code in values:
        if not isinstance(code, int) or isinstance(code, bool) or not 0 <= code <= MOST_CODE:
            raise PolicyError(f"exit codes are whole numbers from 0 to {MOST_CODE}", f"{path}.values")
    if operator == "In" and 0 in values:
        raise PolicyError("0 is no failure: it cannot be one of the exit codes of In", f"{path}.values")
    if len(set(values)) < len(values):
        raise PolicyError("names an exit code twice", f"{path}.values")
    if container is not None and not (isinstance(container, str) and _CONTAINER.fullmatch(container)):
        raise PolicyError("is not the name of a container", f"{path}.containerName")
    return GivenRule(action, operator, tuple(values), container or "")


def _check_conditions(items: Any, path: str) -> None:
    if not isinstance(items, list | tuple) or not items:
        raise PolicyError("must be a list of conditions", path)
    if len(items) > MOST_CONDITIONS:
        raise PolicyError(f"has {len(items):,} conditions, at most {MOST_CONDITIONS} are allowed", path)
    for i, item in enumerate(items):
        given = _mapping(item, f"{path}[{i}]", ("type", "status"))
        if given.get("type") != DISRUPTION:
            text = f"must be {DISRUPTION}: Argo records no other condition of a pod that has ended"
            raise PolicyError(text, f"{path}[{i}].type")
        if given.get("status", "True") != "True":
            raise PolicyError('must be "True", which is the default', f"{path}[{i}].status")


def _mapping(item: Any, path: str, fields: tuple[str, ...]) -> Mapping[str, Any]:
    if not isinstance(item, Mapping):
        raise PolicyError("must be a mapping", path)
    for key in item:
        if key not in fields:
            raise PolicyError(f"{str(key)[:80]} is not a field of it: there are {', '.join(fields)}", path)
    return item
