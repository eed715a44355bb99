"""The failure policy of a job as models (`spec.failurePolicy`). What its rules mean: `diflow.record.argo.failures`."""

from __future__ import annotations

from typing import Any, Self

from pydantic import BaseModel, model_validator

from diflow.common.errors import InvalidError
from diflow.common.limits import MOST_CODE
from diflow.dijob.rules.complaints import Model
from diflow.dijob.stored import ACTIONS, OPERATORS, Action, Operator, failure_policy
from diflow.dijob.stored import FailurePolicy as StoredPolicy


class OnExitCodes(Model):
    """A rule about the exit code of a container that failed; of any of them without `container_name`."""

    operator: Operator
    values: tuple[int, ...]
    container_name: str | None = None


class OnPodCondition(Model):
    """A rule about a condition of the pod: DisruptionTarget, of pods that were evicted, preempted or lost."""

    type: str
    status: str = "True"


class FailureRule(Model):
    """What follows when a replica fails in this way."""

    action: Action
    on_exit_codes: OnExitCodes | None = None
    on_pod_conditions: tuple[OnPodCondition, ...] | None = None


class FailurePolicy(Model):
    """What follows when a replica fails: the first of these rules that matches decides, and then the default ones."""

    rules: tuple[FailureRule, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _is_valid(cls, data: Any) -> Any:
        given = data
        if isinstance(data, dict) and isinstance(data.get("rules"), list | tuple):
            given = {**data, "rules": [_dumped(r) if isinstance(r, FailureRule) else r for r in data["rules"]]}
        try:
            failure_policy(given)
        except InvalidError as error:
            raise InvalidError(_words(error), path=error.path) from None
        return given

    @classmethod
    def of(cls, data: Any) -> Self:
        """The policy of plain data. Raises InvalidError with the path within it."""
        if not isinstance(data, dict):
            raise InvalidError("must be a mapping", path="")
        return cls(**data)

    def stored(self) -> StoredPolicy:
        """The policy as the readers of a job have it."""
        return failure_policy(_dumped(self))


def _dumped(model: BaseModel) -> dict[str, Any]:
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)


def _words(error: InvalidError) -> str:
    """What is wrong with a policy, for its author."""
    field, why = error.path.rpartition(".")[2], error.message
    if why.startswith("invalid enum value"):
        return f"must be one of {', '.join(ACTIONS if field == 'action' else OPERATORS)}"
    if field.startswith("values["):
        return f"exit codes are whole numbers from 0 to {MOST_CODE}"
    return "is not the name of a container" if field == "containerName" else why
