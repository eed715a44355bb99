"""What changes a job's state: the texts and the lists of parameters that go into a patch of its Workflow."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from diflow import keys


def canonical_json(data: Any) -> str:
    """Plain data as JSON with no spaces, in the order given: the same data is the same bytes."""
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False)


def texts(values: Mapping[str, Any]) -> dict[str, str]:
    """Parameters as they are written: always text, as Argo's controller stumbles over other types."""
    return {name: value if isinstance(value, str) else canonical_json(value) for name, value in values.items()}


def live(
    *,
    rounds: Sequence[str] | None = None,
    current: str | None = None,
    granted: Mapping[str, Mapping[str, int]] | None = None,
    released: Sequence[str] | None = None,
    again: Mapping[str, str] | None = None,
    replicas: str | Mapping[str, int] | None = None,
) -> dict[str, str]:
    """Those parameters of a job that are given, as they are written; `replicas` may be a text that was read."""
    given = {
        keys.PARAM_ROUNDS: rounds,
        keys.PARAM_CURRENT: current,
        keys.PARAM_GRANTED: None if granted is None else {name: dict(counts) for name, counts in granted.items()},
        keys.PARAM_RELEASED: released,
        keys.PARAM_AGAIN: None if again is None else dict(again),
        keys.PARAM_REPLICAS: replicas if replicas is None or isinstance(replicas, str) else dict(replicas),
    }
    return texts({name: value for name, value in given.items() if value is not None})


def merged(parameters: Sequence[tuple[str, str]], changes: Mapping[str, str]) -> list[dict[str, str]]:
    """All parameters with these changes. A list in a merge patch is replaced as a whole: the others go along."""
    known = {name for name, _ in parameters}
    return [
        *({"name": name, "value": changes.get(name, value)} for name, value in parameters),
        *({"name": name, "value": changes[name]} for name in sorted(changes.keys() - known)),
    ]
