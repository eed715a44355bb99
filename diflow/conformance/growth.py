"""Facts 1, 3 and 6: a live group grows, a member is stopped and dropped, and one that is dropped too early stays.

The steps are those of a resize of a non-preemptible job: the same parameters, the same patches, in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator

from diflow import keys
from diflow.conformance import reading, shapes
from diflow.conformance.finding import FactFailedError
from diflow.conformance.lab import Lab, Run
from diflow.conformance.outcome import Outcome
from diflow.job import canonical_json

_GROUP = f"round(0:1).{shapes.TASK}"
_MEMBER = f"{_GROUP}(1:1)"
_DEADLINE_MESSAGE = "Pod was active on the node longer than the specified deadline"
# How long the member that stays runs: the resize must be over by then. Doubled for a slow cluster's second try.
_STAYING_SECONDS = (45, 180)
# Argo looks at a Workflow again at each event of its pods: what has not happened long after the last does not happen.
_WATCHED_SECONDS = 15.0


def resize(lab: Lab) -> Iterator[Outcome]:
    """Facts 1 and 6, and fact 3 in the right order: grow 1 → 2, stop the new one, drop it, and let the rest succeed."""
    for staying in _STAYING_SECONDS:
        job = shapes.job(lab.name("grow"), lab.image, _script(staying), replicas=1)
        with lab.run_job(job) as run:
            run.until_running(0)
            yield _grow(lab, run)
            yield _stop(lab, run)
            first = run.worker(0)
            if first is None or reading.has_ended(first):
                continue  # too slow for this lifetime: the drop would come after the group's end
            _grant(run, 1)
            began = lab.clock()
            workflow = run.until_succeeded()
            member = reading.node(workflow, _MEMBER) or {}
            yield Outcome(
                3,
                "a stopped member was dropped after its end and the Workflow succeeded",
                {
                    "dropped_member_phase": str(member.get("phase")),
                    "group_phase": str((reading.node(workflow, _GROUP) or {}).get("phase")),
                    "seconds_from_drop_to_success": round(lab.clock() - began, 1),
                },
            )
            return
    raise FactFailedError(f"the cluster is too slow: a resize took longer than {_STAYING_SECONDS[-1]} s")


def drop_too_early(lab: Lab) -> Iterator[Outcome]:
    """Fact 3 in the wrong order: what is dropped while it runs is never looked at again."""
    job = shapes.job(lab.name("early"), lab.image, _script(5), replicas=2)
    with lab.run_job(job) as run:
        run.until_running(1)
        _grant(run, 1)
        run.stop_pod(run.until_running(1))
        run.until_ended(1)
        run.until_node(
            "replica 0 fulfilled", lambda wf: reading.is_fulfilled(reading.node(wf, f"{_GROUP}(0:0)")) or None
        )
        end = lab.clock() + _WATCHED_SECONDS
        workflow = run.until(
            "a look at the dropped member",
            lambda: _settled(run.workflow(), over=lab.clock() >= end),
        )
        left = not reading.is_fulfilled(reading.node(workflow, _MEMBER))
        stuck = reading.phase(workflow) == "Running"
    words = "stays unfulfilled and its Workflow never ends" if left and stuck else "is looked at again after all"
    yield Outcome(3, f"a member dropped while it runs {words}", {"dropped_too_early_hangs": left and stuck})


def _script(seconds: int) -> str:
    """Replica 0 succeeds after `seconds`; the others run until they are stopped."""
    return f'[ "$DI_RANK" = 0 ] && {{ sleep {seconds} & wait; exit 0; }}; {shapes.until_stopped()}'


def _grow(lab: Lab, run: Run) -> Outcome:
    began = lab.clock()
    _grant(run, 2)
    pod = run.until("the new member's pod", lambda: run.worker(1))
    created = lab.clock() - began
    nudges = len(run.nudges)
    run.until_running(1)
    world = reading.env(pod).get("WORLD_SIZE")
    if world != "2":
        raise FactFailedError(
            f"the new member was told a world of {world}, not 2: nested templates read old parameters"
        )
    kept = run.worker(0)
    if kept is None or reading.has_ended(kept):
        raise FactFailedError("replica 0 did not run on beside the new one")
    return Outcome(
        1,
        f"the new member's pod was there {created:.1f} s after the patch, and knew the new parameters",
        {"growth_seconds": round(created, 2), "running_seconds": round(lab.clock() - began, 1), "nudges": nudges},
    )


def _stop(lab: Lab, run: Run) -> Outcome:
    pod = run.until_running(1)
    run.set(**{keys.PARAM_RELEASED: canonical_json([f"1/{shapes.TASK}/1"])})
    began = lab.clock()
    run.stop_pod(pod)
    pod = run.until_ended(1)
    ended = lab.clock() - began
    workflow = run.until_node("the stopped member fulfilled", _fulfilled_member)
    code = reading.main_end(pod).get("exitCode")
    logs = run.logs(pod)
    node: reading.Json = next(
        (
            item
            for item in workflow["status"]["nodes"].values()
            if item.get("type") == "Pod" and str(item.get("name")).startswith(f"{run.name}.{_MEMBER}")
        ),
        {},
    )
    message = str(node.get("message"))
    if code != shapes.STOPPED_EXIT_CODE:
        raise FactFailedError(
            f"the stopped pod's exit code is {code}, not the program's own {shapes.STOPPED_EXIT_CODE}"
        )
    if shapes.STOPPED_WORD not in logs:
        raise FactFailedError(f"the stopped pod's logs do not have its last word, but {logs[-3:]}")
    if _DEADLINE_MESSAGE not in message:
        raise FactFailedError(f"Argo's message for the stopped pod is {message!r}")
    return Outcome(
        6,
        f"TERM, exit code {code} and logs kept; ended {ended:.1f} s after the patch",
        {"stop_seconds": round(ended, 1), "message": message, "pod_reason": str(pod["status"].get("reason"))},
    )


def _fulfilled_member(workflow: reading.Json) -> reading.Json | None:
    return workflow if reading.is_fulfilled(reading.node(workflow, _MEMBER)) else None


def _settled(workflow: reading.Json, *, over: bool) -> reading.Json | None:
    ended = reading.phase(workflow) != "Running" or reading.is_fulfilled(reading.node(workflow, _MEMBER))
    return workflow if ended or over else None


def _grant(run: Run, replicas: int) -> None:
    run.set(**{keys.PARAM_GRANTED: canonical_json({"1": {shapes.TASK: replicas}})})
