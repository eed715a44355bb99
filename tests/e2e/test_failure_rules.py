"""The failure policy on real pods: what the kubelet says of out-of-memory, exit codes and evictions.

One test for the jobs without the allocator, and one for those with it: they wait for the same clocks, side by side.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from diflow import DIJob, Task
from diflow.state.exclusions import Exclusions
from diflow.state.followed import failures
from diflow.state.observe import observe
from tests.builders import template
from tests.clusters import TestCluster, wait_until
from tests.e2e.allocators import daemon, status, submit
from tests.e2e.live import Live
from tests.e2e.test_failures import attempts, evict, uids

pytestmark = pytest.mark.xdist_group("allocator")


@pytest.fixture(scope="module")
def live(argo40: TestCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A namespace with an allocator."""
    with argo40.namespace("rules") as namespace:
        place = Live(argo40, namespace)
        with daemon(place, tmp_path_factory.mktemp("allocator") / "log"):
            yield place


def asks(name: str, command: str, *rules: dict[str, Any], memory: str = "64Mi", replicas: int = 1, **of: Any) -> DIJob:
    amounts = {"cpu": "20m", "memory": memory}
    made = template(command, container={"resources": {"requests": amounts, "limits": {"memory": memory}}})
    worker = Task(name="worker", replicas=replicas, template=made, max_memory=of.pop("max_memory", None))
    fields = {"scheduling": "gang", "backoff_limit": 0, **of}
    return DIJob(name=name, tasks=(worker,), failure_policy={"rules": list(rules)}, **fields)


def on(action: str, *values: int) -> dict[str, Any]:
    return {"action": action, "onExitCodes": {"operator": "In", "values": list(values)}}


def uses(mib: int) -> str:
    """A program that touches so much memory."""
    return f"exec dd if=/dev/zero of=/dev/null bs={mib}M count=2"


def message(live: Live, name: str) -> str:
    return status(live, name).message


def told(live: Live, name: str) -> list[tuple[str, str, str]]:
    seen = observe(live.workflow(name), live.pods(name))
    return [(one.reason, one.rule, one.followed) for one in failures(seen)]


def test_argo_alone_counts_ignores_and_ends_the_job(live: Live) -> None:
    alone: dict[str, Any] = {"scheduling": "none"}
    ends = submit(live, asks("ends", "exit 3", on("FailJob", 3), backoff_limit=50, **alone))
    again = f"{live.is_open('ignored')} || exit 42"
    ignored = submit(live, asks("ignored", again, on("Ignore", 42), **alone))
    hungry = submit(live, asks("hungry", uses(120), memory="64Mi", **alone))
    waits = submit(live, asks("evicted", live.until_open("evicted"), **alone))
    (pod,) = live.running(waits, 1)
    evict(live, pod["metadata"]["name"])

    assert live.ended(ends) == "Failed"
    assert len(attempts(live, ends, "worker")) == 1
    assert told(live, ends) == [("unknown, exit code 3", "failurePolicy.rules[0]", "the job ended")]

    assert live.ended(hungry) == "Failed"  # nobody gives it more: it counts
    (one,) = told(live, hungry)
    assert one[0].startswith("out of memory")
    assert "which needs the allocator" in one[1]

    wait_until("it was made again", lambda: len(attempts(live, ignored, "worker")) >= 2)
    live.open("ignored")
    assert live.ended(ignored) == "Succeeded"
    assert status(live, ignored).restarts == 0

    # Argo makes a pod of the same name if it has not seen that the first one ran.
    wait_until("it was made again", lambda: not uids(live.running(waits, 1)) & uids([pod]))
    live.open("evicted")
    assert live.ended(waits) == "Succeeded"
    assert status(live, waits).restarts == 0


def test_the_allocator_gives_more_memory_and_leaves_the_node_out(live: Live) -> None:
    home = live.node()["metadata"]["name"]
    alone = submit(live, asks("more", uses(150), memory="64Mi"))
    together = submit(live, asks("round", f"[ $DI_RANK = 1 ] || sleep 3; {uses(100)}", memory="64Mi", replicas=2,
                                 preemptible=True))  # fmt: skip
    most = submit(live, asks("most", uses(200), memory="64Mi", max_memory="96Mi"))
    bad = submit(live, asks("bad", "exit 201"))
    ends = submit(live, asks("ends", "exit 134", on("FailJob", 134), replicas=2, preemptible=True, backoff_limit=5))

    assert live.ended(alone) == "Succeeded"
    given = [
        next(p["value"] for p in one["inputs"]["parameters"] if p["name"] == "memory")
        for one in sorted(attempts(live, alone, "worker"), key=lambda node: str(node["startedAt"]))
        if one.get("hostNodeName")
    ]
    assert given == ["64", "128", "256"], "Argo records what each attempt had"
    (pod,) = [pod for pod in live.pods(alone) if pod["status"]["phase"] == "Succeeded"]
    main = next(c for c in pod["spec"]["containers"] if c["name"] == "main")
    assert main["resources"]["limits"]["memory"] == main["resources"]["requests"]["memory"] == "256Mi"
    first, second = told(live, alone)
    assert first == ("out of memory, exit code 137, with 64Mi", "default: out of memory",
                     "started again with 128Mi, not counted")  # fmt: skip
    assert second[2] == "started again with 256Mi, not counted"
    assert status(live, alone).restarts == 0

    assert live.ended(together) == "Succeeded"
    assert status(live, together).restarts == 0
    assert live.ended(most) == "Failed"
    assert message(live, most) == "worker-0 ran out of memory with 96Mi, the most that it may have (maxMemory)"
    assert live.ended(ends) == "Failed"
    assert message(live, ends).endswith("which ends the job (failurePolicy.rules[0])")

    def left_out() -> list[str]:
        text = live.workflow(bad)["metadata"]["annotations"].get("diflow/excluded-nodes")
        return [entry.node for entry in Exclusions.parse(text).entries]

    assert wait_until("its node is left out", left_out) == [home]
    said = wait_until(
        "it says why it waits",
        lambda: (
            json.loads(live.workflow(bad)["metadata"]["annotations"]["diflow/decision"])["why"]
            if "left out for this job" in live.workflow(bad)["metadata"]["annotations"]["diflow/decision"]
            else None
        ),
    )
    assert f"{home} (worker-0: Error (exit code 201))" in said
    assert status(live, bad).restarts == 0
    live.delete(bad)
