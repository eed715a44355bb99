"""What followed from each failure, as the Workflow shows it."""

from __future__ import annotations

from typing import Any

import pytest

from diflow import DIJob, Task
from diflow.common import keys
from diflow.dijob.model import NodeCheck
from diflow.record.status.followed import Failure, failures
from diflow.record.status.observe import observe
from diflow.workflows import render
from tests.server.page_scene import trim_workflow

HOUR = "2026-11-21T09:{:02}:00Z"


def workflow(*nodes: dict[str, Any], **fields: Any) -> dict[str, Any]:
    phase = fields.pop("phase", "Running")
    amounts = {"requests": {"cpu": "1", "memory": "2Gi"}}
    template = {"spec": {"containers": [{"name": "di-container", "image": "x", "resources": amounts}]}}
    worker = Task(name="worker", replicas=2, template=template)
    body = render(DIJob(name="job", tasks=(worker,), failure_policy={}, scheduling="gang", **fields))
    body["spec"]["suspend"] = None
    body["metadata"] |= {"namespace": "default", "uid": "u", "creationTimestamp": HOUR.format(0)}
    return {**body, "status": {"phase": phase, "startedAt": HOUR.format(0), "nodes": {n["id"]: n for n in nodes}}}


def attempt(
    path: str, minute: int, message: str = "", *, host: str = "a", code: int | None = None, memory: int = 2048
) -> Any:
    name = f"job.{path}"
    phase = "Failed" if message else "Running"
    more = {"outputs": {"exitCode": str(code)}} if code is not None else {}
    return {
        "id": name, "name": name, "type": "Pod", "phase": phase, "message": message, "hostNodeName": host,
        "startedAt": HOUR.format(minute), "finishedAt": HOUR.format(minute + 1) if message else None,
        "inputs": {"parameters": [{"name": "round", "value": "1"}, {"name": "memory", "value": str(memory)}]}, **more,
    }  # fmt: skip


def seen(*nodes: dict[str, Any], **fields: Any) -> list[Failure]:
    return failures(observe(workflow(*nodes, **fields)))


ONE = "round(0:1).worker(0:0)"


def test_more_memory() -> None:
    (one,) = seen(
        attempt(f"{ONE}(0).worker(0)", 1, "main: OOMKilled (exit code 137)", code=137),
        attempt(f"{ONE}(0).worker(1)", 2, "Pod was rejected: it is made again with more memory", host=""),
        attempt(f"{ONE}(0).worker(2)", 3, memory=4096),
    )
    assert one == Failure(
        replica="worker-0",
        ended=HOUR.format(2),
        node="a",
        reason="out of memory, exit code 137, with 2Gi",
        said="OOMKilled (exit code 137)",
        rule="default: out of memory",
        followed="started again with 4Gi, not counted",
    )


def test_one_out_of_memory_is_one_reschedule() -> None:
    """The pod that Argo makes with the old memory is rejected before it has a node, and another one is made."""
    body = workflow(
        attempt(f"{ONE}(0).worker(0)", 1, "main: OOMKilled (exit code 137)", code=137),
        attempt(f"{ONE}(0).worker(1)", 2, "Pod was rejected: it is made again with more memory", host=""),
        attempt(f"{ONE}(0).worker(2)", 3, memory=4096),
    )
    assert (observe(body).job.restarts, observe(body).job.reschedules) == (0, 1)


def test_another_node() -> None:
    (one,) = seen(
        attempt(f"{ONE}(0).worker(0)", 1, "main: Error (exit code 201)", code=201),
        attempt(f"{ONE}(0).worker(1)", 3, host="b"),
    )
    assert (one.reason, one.rule) == ("hardware, exit code 201", "default: hardware")
    assert one.followed == "started again on b, not counted"


def test_a_counted_failure_and_one_that_waits() -> None:
    first, second = seen(
        attempt(f"{ONE}(0).worker(0)", 1, "main: Error (exit code 1)", code=1),
        attempt(f"{ONE}(1).worker(0)", 3, "main: Error (exit code 3)", code=3),
    )
    assert first.followed == "started again (1 of 3)"
    assert (second.followed, second.rule) == ("waits to be started again", "none: all other failures")


def test_a_node_check_of_the_users_own_is_named_with_its_exit_code() -> None:
    (one,) = seen(
        attempt(f"{ONE}(0).worker(0)", 1, "diflow-check: Error (exit code 3)"),
        node_check=NodeCheck(image="mine", command=("check",)),
    )
    assert (one.reason, one.rule) == ("node check, exit code 3", "node check")


@pytest.mark.parametrize(
    ("message", "code", "reason"),
    [
        ("main: Error (exit code 3)", 3, "exit code 3"),  # the code says more than "unknown"
        ("main: Error (exit code 1)", 1, "error of the program, exit code 1"),
        ("setup: Error (exit code 1)", None, "error of the program, exit code 1 of setup"),
        ("Pod ephemeral local storage usage exceeds the total limit of containers 1Gi.", None, "unknown"),
    ],
)
def test_the_reason_has_the_exit_code_and_the_container_that_is_not_the_work(
    message: str, code: int | None, reason: str
) -> None:
    (one,) = seen(attempt(f"{ONE}(0).worker(0)", 1, message, code=code))
    assert one.reason == reason


def test_the_end_of_the_job() -> None:
    (one,) = seen(attempt(f"{ONE}(0).worker(0)", 1, "main: Error (exit code 1)", code=1), phase="Failed")
    assert one.followed == "the job ended"


def test_a_restart_of_all_and_a_round() -> None:
    first, second = seen(
        attempt("round(0:1)(0).worker(0:0).worker(0)", 1, "main: Error (exit code 1)", code=1),
        attempt("round(0:1)(1).worker(0:0).worker(0)", 3, "pod deleted"),
        attempt("round(1:2)(0).worker(0:0).worker(0)", 5),
        preemptible=True,
    )
    assert first.followed == "all replicas were started again (1 of 3)"
    assert second.followed == "all replicas were started again, not counted"
    assert (second.reason, second.rule) == ("taken away", "default: evicted, preempted or lost")


def test_a_failure_of_a_replaced_round_may_have_counted_if_some_did() -> None:
    nodes = [
        attempt("round(0:1)(0).worker(0:0).worker(0)", 1, "main: Error (exit code 3)", code=3),
        attempt("round(1:2)(0).worker(0:0).worker(0)", 5),
    ]
    assert seen(*nodes, preemptible=True)[0].followed == "all replicas were started again, not counted"
    some = workflow(*nodes, preemptible=True)
    some["metadata"]["annotations"][keys.RESTARTS_BEFORE] = "1"
    assert failures(observe(some))[0].followed == "all replicas were started again"


def test_what_diflow_stopped_on_purpose_is_no_failure() -> None:
    stopped = "Pod was active on the node longer than the specified deadline"
    assert seen(
        attempt("round(0:1)(0).worker(0:0).worker(0)", 1, stopped),
        attempt("round(1:2)(0).worker(0:0).worker(0)", 3, "Pod was rejected: released for round 3", host=""),
        attempt("round(2:3)(0).worker(0:0).worker(0)", 5),
        preemptible=True,
    ) == []  # fmt: skip


def test_the_page_keeps_the_last_few() -> None:
    nodes = [attempt(f"{ONE}(0).worker({i})", i, "main: Error (exit code 143)", code=143) for i in range(20)]
    found = trim_workflow(workflow(*nodes))
    assert found is not None
    assert len(found.failures) == 8
    assert found.failures[0].ended > found.failures[-1].ended
    assert found.failures[0].followed == "waits to be started again"
