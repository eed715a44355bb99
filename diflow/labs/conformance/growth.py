"""Facts 1, 3 and 6: a running group grows, a member is stopped and dropped, and one that is dropped too early remains.

The steps are those of a resize of a non-preemptible job: the same parameters and patches, in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator

from diflow.common import keys
from diflow.common.jsontext import canonical_json
from diflow.labs.conformance import reading, shapes
from diflow.labs.conformance.finding import FactFailedError
from diflow.labs.conformance.lab import Lab, Run
from diflow.labs.conformance.outcome import Outcome

_ROUND = "round(0:1)"
_GROUP = f"{_ROUND}.{shapes.TASK}"
_MEMBER = f"{_GROUP}(1:1)"
_DEADLINE_MESSAGE = "Pod was active on the node longer than the specified deadline"


def resize(lab: Lab) -> Iterator[Outcome]:
    """Facts 1 and 6, and fact 3 in the right order: grow 1 → 2, stop the new one, drop it, and let the rest succeed."""
    job = shapes.job(lab.name("grow"), lab.image, shapes.until_told(), replicas=1, **shapes.TELLABLE)
    with lab.run_job(job, witness=True) as run:
        run.until_running(0)
        yield _grow(lab, run)
        yield _stop(lab, run)
        run.set_and_see(**_granted(1))
        run.tell(run.until_running(0))
        workflow = run.until_succeeded()
        yield Outcome(
            3,
            "a stopped member was dropped after its end and the Workflow succeeded",
            {
                "dropped_member_phase": reading.phase_of(workflow, _MEMBER),
                "group_phase": reading.phase_of(workflow, _GROUP),
            },
        )


def drop_too_early(lab: Lab) -> Iterator[Outcome]:
    """Fact 3 in the wrong order: Argo ignores a member that is dropped while it runs."""
    job = shapes.job(lab.name("early"), lab.image, shapes.until_told(), replicas=2, **shapes.TELLABLE)
    with lab.run_job(job, witness=True) as run:
        for index in range(2):
            run.until_running(index)
        run.set_and_see(**_granted(1))
        run.stop_pod(run.until_running(1))
        run.until_ended(1)
        run.until_node("the end of the dropped member's pod noticed", _noticed)
        run.tell(run.until_running(0))
        run.until_node(
            "replica 0 fulfilled", lambda wf: reading.is_fulfilled(reading.node(wf, f"{_GROUP}(0:0)")) or None
        )
        # Argo reconciles twice more: if it considered the dropped member, the round would have ended by then.
        run.set_and_see()
        workflow = run.set_and_see()
        left = not reading.is_fulfilled(reading.node(workflow, _MEMBER))
        stuck = not reading.is_fulfilled(reading.node(workflow, _ROUND))
    words = "stays unfulfilled and its round never ends" if left and stuck else "is still reconciled"
    yield Outcome(3, f"a member dropped while it runs {words}", {"dropped_too_early_hangs": left and stuck})


def _grow(lab: Lab, run: Run) -> Outcome:
    began = lab.clock.monotonic()
    run.set(**_granted(2))
    pod = run.until("the new member's pod", lambda: run.worker(1))
    created = lab.clock.monotonic() - began
    nudges = len(run.nudges)
    run.until_running(1)
    world = reading.env(pod).get("WORLD_SIZE")
    if world != "2":
        raise FactFailedError(
            f"the new member has a world size of {world}, not 2: nested templates read old parameters"
        )
    kept = run.worker(0)
    if kept is None or reading.has_ended(kept):
        raise FactFailedError("replica 0 did not keep running beside the new one")
    return Outcome(
        1,
        f"the new member's pod was created {created:.1f} s after the patch, with the new parameters",
        {
            "growth_seconds": round(created, 2),
            "running_seconds": round(lab.clock.monotonic() - began, 1),
            "nudges": nudges,
        },
    )


def _stop(lab: Lab, run: Run) -> Outcome:
    pod = run.until_running(1)
    # Argo must have read it before the pod ends; else it retries the member.
    run.set_and_see(**{keys.PARAM_RELEASED: canonical_json([f"1/{shapes.TASK}/1"])})
    began = lab.clock.monotonic()
    run.stop_pod(pod)
    pod = run.until_ended(1)
    ended = lab.clock.monotonic() - began
    workflow = run.until_node("the stopped member fulfilled", _fulfilled_member)
    code = reading.main_end(pod).get("exitCode")
    logs = run.logs(pod)
    message = str(next(iter(reading.pod_nodes(workflow, _MEMBER)), {}).get("message"))
    if code != shapes.STOPPED_EXIT_CODE:
        raise FactFailedError(
            f"the stopped pod's exit code is {code}, not the program's own {shapes.STOPPED_EXIT_CODE}"
        )
    if shapes.STOPPED_WORD not in logs:
        raise FactFailedError(f"the stopped pod's logs do not have its last line, but {logs[-3:]}")
    if _DEADLINE_MESSAGE not in message:
        raise FactFailedError(f"Argo's message for the stopped pod is {message!r}")
    return Outcome(
        6,
        f"TERM, exit code {code} and logs kept; ended {ended:.1f} s after the patch",
        {"stop_seconds": round(ended, 1), "message": message, "pod_reason": str(pod["status"].get("reason"))},
    )


def _fulfilled_member(workflow: reading.Json) -> reading.Json | None:
    return workflow if reading.is_fulfilled(reading.node(workflow, _MEMBER)) else None


def _noticed(workflow: reading.Json) -> bool | None:
    pods = reading.pod_nodes(workflow, _MEMBER)
    return True if pods and all(map(reading.is_fulfilled, pods)) else None


def _granted(replicas: int) -> dict[str, str]:
    return {keys.PARAM_GRANTED: canonical_json({"1": {shapes.TASK: replicas}})}
