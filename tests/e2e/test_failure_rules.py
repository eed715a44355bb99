"""The failure policy on real pods: what the kubelet says of out-of-memory, exit codes and evictions.

One test for the jobs without the allocator, and one for those with it: they wait for the same clocks, side by side. The
last one has two nodes, of which the second starts meanwhile.
"""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from diflow import DIJob, Task
from diflow.record.exclusions import Exclusions
from diflow.record.status.followed import failures
from diflow.record.status.observe import observe
from tests.builders import template
from tests.clusters import ROOT, TestCluster, wait_until
from tests.e2e.allocators import allocated, events, run_on, status, submit
from tests.e2e.live import SECOND, Live
from tests.e2e.test_failures import attempts, evict, uids

pytestmark = [pytest.mark.extended, pytest.mark.xdist_group("allocator")]


@pytest.fixture(scope="module")
def live(argo40: TestCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A namespace with an allocator."""
    with allocated(argo40, "rules", tmp_path_factory.mktemp("allocator")) as place:
        yield place


_DISK_MIB = 1000


@pytest.fixture(scope="module", autouse=True)
def starting(argo40: TestCluster) -> Iterator[subprocess.Popen[bytes] | None]:
    """Starts a second real node, with a disk that can be filled, for the jobs of this file alone."""
    if argo40.name is None:
        yield None  # the cluster is another one: what it has is not known
        return
    taint = {"key": SECOND, "value": "true", "effect": "NoSchedule"}  # from the start: others are not to use it
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": f"{argo40.name}-node-2"},
        "spec": {"taints": [taint]},
    }
    argo40.kubectl("apply", "-f", "-", stdin=json.dumps(node))
    command = [sys.executable, "-m", "cluster", "second-node", "--name", argo40.name, "--disk-mib", str(_DISK_MIB)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        yield process
        process.wait()


@pytest.fixture(scope="module")
def second(starting: subprocess.Popen[bytes] | None) -> str:
    """The name of the second node."""
    if starting is None:
        pytest.skip("only `python3 -m cluster` can add a real node")
    name = starting.communicate()[0].decode().strip()
    assert starting.returncode == 0
    return name


@pytest.fixture
def preferred(live: Live, second: str) -> Iterator[str]:
    """The second node, which has the label `SECOND`. No other node has it at first."""
    live.kubectl("label", "nodes", "--all", f"{SECOND}-")
    live.kubectl("label", "node", second, f"{SECOND}=true", "--overwrite")
    yield second
    live.kubectl("label", "nodes", "--all", f"{SECOND}-")


def asks(name: str, command: str, *rules: dict[str, Any], memory: str = "64Mi", replicas: int = 1, **of: Any) -> DIJob:
    amounts = {"cpu": "20m", "memory": memory}
    container = {"resources": {"requests": amounts, "limits": {"memory": memory}}, **of.pop("container", {})}
    made = template(command, container=container, **of.pop("pod", {}))
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

    live.ends(ends, "Failed")
    assert len(attempts(live, ends, "worker")) == 1
    assert told(live, ends) == [("exit code 3", "failurePolicy.rules[0]", "the job ended")]

    live.ends(hungry, "Failed")  # nobody gives it more: it counts
    (one,) = told(live, hungry)
    assert one[0].startswith("out of memory")
    assert "which needs the allocator" in one[1]

    wait_until("it was made again", lambda: len(attempts(live, ignored, "worker")) >= 2)
    live.open("ignored")
    live.ends(ignored, "Succeeded")
    assert status(live, ignored).restarts == 0

    # Argo makes a pod of the same name if it has not seen that the first one ran.
    wait_until("it was made again", lambda: not uids(live.running(waits, 1)) & uids([pod]))
    live.open("evicted")
    live.ends(waits, "Succeeded")
    assert status(live, waits).restarts == 0


def test_the_allocator_gives_more_memory_and_leaves_the_node_out(live: Live) -> None:
    home = live.node()["metadata"]["name"]
    alone = submit(live, asks("more", uses(150), memory="64Mi"))
    together = submit(live, asks("round", f"[ $DI_RANK = 1 ] || sleep 3; {uses(100)}", memory="64Mi", replicas=2,
                                 preemptible=True))  # fmt: skip
    most = submit(live, asks("most", uses(200), memory="64Mi", max_memory="96Mi"))
    bad = submit(live, asks("bad", "exit 201"))
    ends = submit(live, asks("ends", "exit 134", on("FailJob", 134), replicas=2, preemptible=True, backoff_limit=5))

    live.ends(alone, "Succeeded")
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

    live.ends(together, "Succeeded")
    assert status(live, together).restarts == 0
    live.ends(most, "Failed")
    assert message(live, most) == "worker-0 ran out of memory with 96Mi, the most that it may have (maxMemory)"
    live.ends(ends, "Failed")
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


def test_a_bad_node_is_left_for_another_one_and_an_eviction_under_pressure_is_not_counted(
    live: Live, preferred: str
) -> None:
    second, mark = preferred, uuid.uuid4().hex[:6]  # a second try must not find the gates of the first one open
    home = live.node()["metadata"]["name"]
    there: dict[str, Any] = {
        "pod": {
            "nodeSelector": {SECOND: "true"},
            "tolerations": [{"key": SECOND, "operator": "Exists"}],
            "volumes": [{"name": "scratch", "emptyDir": {}}],
        },
        "container": {
            "env": [{"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
            "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
        },
    }
    done, fill_now = live.is_open(f"home-{mark}"), live.is_open(f"fill-{mark}")
    fails = f"[ $DI_RANK != 0 ] || [ $NODE = {home} ] || ! {live.is_open(f'bad-{mark}')} || exit 201"
    bad = f"until {done}; do {fails}; sleep 0.5; done"
    left = "$(($(df -m /scratch | awk 'NR == 2 {print $4}') - 20))"
    fill = f"dd if=/dev/zero of=/scratch/fill bs=1M count={left}; sleep 600"
    is_again = f"{fill_now} && again=1"
    full = f'{is_again}; until {done}; do [ -n "$again" ] || ! {fill_now} || {{ {fill}; }}; sleep 0.5; done'
    alone = submit(live, asks("alone", bad, **there))
    together = submit(live, asks("together", bad, replicas=2, preemptible=True, **there))
    # What is written to a disk in memory counts against a memory limit: it has none.
    unlimited = {**there, "container": {**there["container"], "resources": {"requests": {"cpu": "20m"}}}}
    pressed = submit(live, asks("pressed", full, **unlimited))
    for name, replicas in ((alone, 1), (together, 2), (pressed, 1)):
        live.running(name, replicas)
        assert run_on(live, name) == {second: replicas}
    before = uids(live.pods(pressed))

    live.kubectl("label", "node", home, f"{SECOND}=true", "--overwrite")
    live.open(f"bad-{mark}")
    for name, replicas in ((alone, 1), (together, 2)):
        _until_on(live, name, {home: replicas})
        given = live.workflow(name)["metadata"]["annotations"]["diflow/excluded-nodes"]
        assert [(e.node, e.reason) for e in Exclusions.parse(given).entries] == [
            (second, "worker-0: Error (exit code 201)")
        ]
        assert any(reason == "NodeLeftOut" and second in text for reason, text in events(live, name))
    assert run_on(live, pressed) == {second: 1}, "others may still use the node"

    live.open(f"fill-{mark}")
    wait_until("it was evicted and runs again", lambda: not uids(live.running(pressed, 1)) & before)
    live.open(f"home-{mark}")
    for name in (alone, together, pressed):
        live.ends(name, "Succeeded")
        assert status(live, name).restarts == 0, name
    (one,) = told(live, alone)
    assert one == ("hardware, exit code 201", "default: hardware", f"started again on {home}, not counted")
    said = [node["message"] for node in attempts(live, pressed, "worker") if node["phase"] == "Failed"]
    assert any(text.startswith("The node was low on resource: ephemeral-storage") for text in said), said
    for reason, rule, followed in told(live, pressed):
        assert (reason.partition(",")[0], rule) == ("taken away", "default: evicted, preempted or lost")
        assert followed.startswith("started again")
        assert followed.endswith("not counted")


def _until_on(live: Live, name: str, nodes: dict[str, int]) -> None:
    wait_until(f"{name} runs on {nodes}", lambda: run_on(live, name) == nodes)
