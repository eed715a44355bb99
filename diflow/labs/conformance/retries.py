"""Fact 7: the variables of a retry's expression, and when its parameters are read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from diflow.common import keys
from diflow.labs.conformance import reading, shapes
from diflow.labs.conformance.finding import FactFailedError
from diflow.labs.conformance.lab import Lab, Run
from diflow.labs.conformance.outcome import Outcome

# The steps of `anew`: the parameters set before each attempt is stopped, and whether another attempt must follow.
_STEPS: Final[tuple[tuple[dict[str, str], str], ...]] = (
    ({}, "the workflow parameter as it was at the start"),
    ({"global": "no", "local": "yes"}, "the input as it is now, for it was 'no' before"),
    ({"local": "no"}, ""),
)


def expressions(lab: Lab) -> Iterator[Outcome]:
    """Fact 7."""
    with lab.run(shapes.retries(lab.name("retries"), lab.image)) as run:
        for number, (parameters, because) in enumerate(_STEPS):
            pod = _attempt_running(run, number)
            if parameters:
                run.set_and_see(**parameters)
            run.stop_pod(pod)
            if because:
                _another(run, number + 1, because)
        workflow = run.until_node(
            "the end of all retries", lambda wf: wf if all(map(reading.is_fulfilled, _leaves(wf))) else None
        )
    anew, sees, bare = (len(reading.attempts(workflow, name)) for name in ("anew", "sees", "bare"))
    if anew != len(_STEPS):
        raise FactFailedError(f"{anew} attempts, not {len(_STEPS)}: the expression did not reread its parameters")
    if sees != 2:
        message = (reading.node(workflow, "sees") or {}).get("message")
        raise FactFailedError(f"{sees} attempts, not 2: lastRetry.* or retries is not as expected ({message})")
    yield Outcome(
        7,
        "lastRetry.exitCode, status, message, duration and retries are set; quoted parameters are reread at "
        f"each evaluation; a bare workflow.parameters.x is {'set too' if bare > 1 else 'not set'}",
        {
            "sees_retries": True,
            "bare_parameter_attempts": bare,
            "bare_parameter_phase": str((reading.node(workflow, "bare") or {}).get("phase")),
            "bare_parameter_message": str((reading.node(workflow, "bare") or {}).get("message"))[:200],
        },
    )


def _leaves(workflow: reading.Json) -> list[reading.Json | None]:
    return [reading.node(workflow, name) for name in ("sees", "bare", "anew")]


def _attempt_running(run: Run, number: int) -> reading.Json:
    node = f"{run.name}.anew({number})"

    def look() -> reading.Json | None:
        for pod in run.pods():
            named = (pod["metadata"].get("annotations") or {}).get(keys.ARGO_NODE_NAME)
            if named == node and reading.main_is_running(pod):
                return pod
        return None

    return run.until(f"attempt {number} running", look)


def _another(run: Run, number: int, because: str) -> None:
    def look(workflow: reading.Json) -> bool | None:
        if len(reading.attempts(workflow, "anew")) > number:
            return True
        if reading.is_fulfilled(reading.node(workflow, "anew")):
            message = (reading.node(workflow, "anew") or {}).get("message")
            raise FactFailedError(f"no attempt {number} followed: the expression did not read {because} ({message})")
        return None

    run.until_node(f"attempt {number}", look)
