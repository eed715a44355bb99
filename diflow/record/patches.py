"""The parameters that go into a patch of a job's Workflow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from diflow.common import keys
from diflow.common.jsontext import canonical_json

FIRST_ROUND = "1"
NOT_ADMITTED = "{}"
"""The parameter `places` of a job that was never admitted. It has no pods while its Workflow is suspended."""

STOP: Final = "Stop"
"""`spec.shutdown` of a Workflow that is to end; its pods get SIGTERM and their grace period."""
TERMINATE: Final = "Terminate"
"""That of one that is to end as `argo terminate` has it."""
UNLABELLED: Final[Mapping[str, None]] = {keys.INSTANCE: None, keys.ADMITTED: None}
"""Labels without those of a gang that waits. Argo ends no Workflow that is hidden from it. A gang that waits is read as
a whole without its label, as its metadata do not show that it is being stopped."""


def texts(values: Mapping[str, Any]) -> dict[str, str]:
    """Parameters as they are written: always text, as Argo's controller fails on other types."""
    return {name: value if isinstance(value, str) else canonical_json(value) for name, value in values.items()}


def hidden(workflow: dict[str, Any]) -> dict[str, Any]:
    """The Workflow of a gang as it is submitted: Argo does not see it until the allocator's first decision."""
    metadata = workflow["metadata"]
    labels = {**metadata["labels"], keys.INSTANCE: keys.INSTANCE_VALUE}
    return {**workflow, "metadata": {**metadata, "labels": labels}}


def stopping(how: str = STOP) -> dict[str, Any]:
    """The change of a Workflow's `spec` that ends its job. Argo ends no Workflow that is suspended."""
    return {"shutdown": how, "suspend": None}


def stop(how: str = STOP) -> dict[str, Any]:
    """A patch that ends a job, one that waits too."""
    return {"metadata": {"labels": dict(UNLABELLED)}, "spec": stopping(how)}


def live(
    *,
    rounds: Sequence[str] | None = None,
    current: str | None = None,
    granted: Mapping[str, Mapping[str, int]] | None = None,
    released: Sequence[str] | None = None,
    incarnations: Mapping[str, str] | None = None,
    replicas: str | Mapping[str, int] | None = None,
    places: str | None = None,
    memory: Mapping[str, int] | None = None,
) -> dict[str, str]:
    """The given parameters of a job's live state as text; `replicas` may be text already."""
    given = {
        keys.PARAM_ROUNDS: rounds,
        keys.PARAM_CURRENT: current,
        keys.PARAM_GRANTED: None if granted is None else {name: dict(counts) for name, counts in granted.items()},
        keys.PARAM_RELEASED: released,
        keys.PARAM_INCARNATIONS: None if incarnations is None else dict(incarnations),
        keys.PARAM_PLACES: places,
        keys.PARAM_MEMORY: None if memory is None else dict(memory),
        keys.PARAM_REPLICAS: replicas if replicas is None or isinstance(replicas, str) else dict(replicas),
    }
    return texts({name: value for name, value in given.items() if value is not None})


def initial(replicas: Mapping[str, int], *, is_gang: bool, memory: Mapping[str, int] | None = None) -> dict[str, str]:
    """All parameters of a job as it is submitted, in order. `replicas`: by task, in the order of the tasks; `memory`:
    the MiB of the tasks that may get more."""
    values: dict[str, Any] = {
        keys.PARAM_ROUNDS: [FIRST_ROUND],
        keys.PARAM_CURRENT: FIRST_ROUND,
        keys.PARAM_GRANTED: {FIRST_ROUND: dict(replicas)},
        keys.PARAM_INCARNATIONS: {},
        keys.PARAM_RELEASED: [],
        **({keys.PARAM_PLACES: NOT_ADMITTED} if is_gang else {}),
        keys.PARAM_TASKS: list(replicas),
        keys.PARAM_REPLICAS: dict(replicas),
        keys.PARAM_PROFILINGS: {},
        **({keys.PARAM_MEMORY: dict(memory)} if memory else {}),
    }
    return texts(values)


def merged(parameters: Sequence[tuple[str, str]], changes: Mapping[str, str]) -> list[dict[str, str]]:
    """All parameters with these changes, as a merge patch replaces the whole list."""
    known = {name for name, _ in parameters}
    return [
        *({"name": name, "value": changes.get(name, value)} for name, value in parameters),
        *({"name": name, "value": changes[name]} for name in sorted(changes.keys() - known)),
    ]
