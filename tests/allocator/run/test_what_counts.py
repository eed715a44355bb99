"""What counts as used: bound pods, each with its own request, and what the allocator has promised; nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from diflow.allocator.policies.base import load_policy
from diflow.kube.kinds import CONFIG_MAP, POD
from tests.allocator.lab import Lab, job, lab, task

pytestmark = pytest.mark.usefixtures("from_memory_as_afresh")


@pytest.fixture(params=["fit", "fair", "goodput", "fair+goodput"], name="at")
def _at(request: pytest.FixtureRequest) -> Iterator[Lab]:
    """Two nodes of eight CPUs each, and an allocator that leads."""
    with lab(direct=False, policy=load_policy(request.param)) as made:
        made.cluster.node("a", cpu=8)
        made.cluster.node("b", cpu=8)
        yield made


def pending(at: Lab, name: str, node: str, *, cpu: str = "8", **metadata: Any) -> None:
    """A pod that asks for a node, and that nobody binds."""
    at.api.add(
        POD,
        {
            "metadata": {"name": name, "uid": name, **metadata},
            "spec": {
                "schedulerName": "nobody",
                "nodeSelector": {"kubernetes.io/hostname": node},
                "containers": [{"resources": {"requests": {"cpu": cpu}}}],
            },
            "status": {"phase": "Pending"},
        },
        namespace="evil",
    )


def ask_for(at: Lab, pod: dict[str, Any], cpu: str) -> None:
    asked = {"resources": {"requests": {"cpu": cpu}}}
    containers = [{**c, **(asked if c["name"] == "main" else {})} for c in pod["spec"]["containers"]]
    at.api.add(POD, {**pod, "spec": {**pod["spec"], "containers": containers}})


def claim(at: Lab, real: dict[str, Any], node: str, name: str, **metadata: Any) -> None:
    """A copy of a job's pod that asks for a node, with a thousand CPUs, and that nobody binds."""
    body = {
        **real,
        "metadata": {**real["metadata"], "name": name, "uid": name, **metadata},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "containers": [{"resources": {"requests": {"cpu": "1000"}}}],
        },
        "status": {"phase": "Pending"},
    }
    at.api.add(POD, body)


def runs(at: Lab, name: str, count: int, *, seconds: int = 45) -> None:
    at.until(lambda: len(at.cluster.running(name)) == count, f"{count} replicas of {name} run", seconds=seconds)


@pytest.mark.parametrize("cpu", ["8", "1000"])
def test_pods_that_nobody_binds_use_nothing(at: Lab, cpu: str) -> None:
    for node in "ab":
        pending(at, f"claim-{node}", node, cpu=cpu)
    at.cluster.submit(job("honest", task(replicas=4, cpu="4")))
    runs(at, "honest", 4)


def test_a_replica_that_failed_starts_again_beside_them(at: Lab) -> None:
    at.cluster.submit(job("honest", task(replicas=4, cpu="4"), backoff_limit=3))
    runs(at, "honest", 4)
    for node in "ab":
        pending(at, f"claim-{node}", node)
    failed = at.cluster.of("honest")["worker-0"]["metadata"]
    at.cluster.finish(failed["name"], code=1)
    at.until(lambda: at.cluster.pod(failed["name"])["status"]["phase"] == "Failed", "it has failed")
    runs(at, "honest", 4)


def test_pods_with_the_labels_of_a_job_use_nothing_either(at: Lab) -> None:
    at.cluster.submit(job("evil", task(cpu="1")))
    runs(at, "evil", 1)
    (real,) = at.cluster.of("evil").values()
    for copy in range(3):
        for node in "ab":
            claim(at, real, node, f"claim-{node}-{copy}")
    at.cluster.submit(job("honest", task(replicas=3, cpu="4")))
    runs(at, "honest", 3)


@pytest.mark.parametrize(
    "path", ["", "evil", "evil(0)", "evil.round(0:1).w(9:9)(0).w(9)", "evil.round(0:1).w(-1:-1)(0)"]
)
def test_pods_of_a_job_that_are_no_replicas_use_nothing(at: Lab, path: str) -> None:
    """Steps of its own that a user adds to a Workflow, or pods with its labels, that ask for a node."""
    at.cluster.submit(job("evil", task(cpu="1")))
    runs(at, "evil", 1)
    (real,) = at.cluster.of("evil").values()
    annotations = {**real["metadata"]["annotations"], "workflows.argoproj.io/node-name": path}
    for node in "ab":
        claim(at, real, node, node, annotations=annotations)
    at.cluster.submit(job("honest", task(replicas=3, cpu="4")))
    runs(at, "honest", 3)


def test_a_replica_that_nobody_binds_counts_with_what_was_promised() -> None:
    """However much its pod asks for."""
    with lab(direct=False) as at:
        at.cluster.node("a", cpu=8)
        at.cluster.refuses.add("a")
        names = ["evil-1", "evil-2"]
        for name in names:
            at.cluster.submit(job(name, task(cpu="10m")))
        at.until(lambda: all(at.cluster.of(name) for name in names), "they are admitted, and have pods")
        for name in names:
            ask_for(at, at.cluster.of(name)["worker-0"], "8")
        at.step()
        at.cluster.submit(job("honest", task(cpu="3")))
        at.until(lambda: bool(at.allocation("honest")), "the honest job is admitted")


def test_what_was_promised_counts_until_it_is_bound() -> None:
    with lab(direct=False) as at:
        at.cluster.node("a", cpu=8)
        at.cluster.refuses.add("a")  # kube-scheduler is late
        at.cluster.submit(job("first", task(replicas=2, cpu="4")))
        at.until(lambda: at.allocation("first").get("worker") == ["a", "a"], "it is admitted")
        at.cluster.submit(job("second", task(replicas=1, cpu="4")))
        for _ in range(10):
            at.step()
        assert at.allocation("second") == {}
        at.cluster.refuses.clear()
        runs(at, "first", 2)


def test_a_request_of_the_pod_as_a_whole_counts(at: Lab) -> None:
    for node in "ab":
        at.api.add(
            POD,
            {
                "metadata": {"name": f"whole-{node}", "uid": f"whole-{node}"},
                "spec": {"nodeName": node, "resources": {"requests": {"cpu": "6"}}, "containers": [{"name": "c"}]},
                "status": {"phase": "Running"},
            },
        )
    at.cluster.submit(job("large", task(replicas=2, cpu="4")))
    at.cluster.submit(job("small", task(replicas=2, cpu="2")))
    runs(at, "small", 2)
    at.rest()
    assert at.allocation("large") == {}


def test_one_small_pod_makes_its_job_no_smaller(at: Lab) -> None:
    """Of a job that fills a node one pod is made small; another job of the size of the node goes to the other one."""
    at.cluster.submit(job("evil", task(replicas=8, cpu="1")))
    runs(at, "evil", 8)
    ask_for(at, at.cluster.of("evil")["worker-0"], "1m")
    at.cluster.submit(job("honest", task(replicas=4, cpu="1")))
    runs(at, "honest", 4)
    (where,) = set(at.cluster.running("evil").values())
    assert where not in set(at.cluster.running("honest").values())


def test_what_a_smaller_pod_leaves_free_is_free(at: Lab) -> None:
    at.cluster.submit(job("some", task(replicas=8, cpu="2")))
    runs(at, "some", 8)
    for index in range(4):
        ask_for(at, at.cluster.of("some")[f"worker-{index}"], "1")
    at.cluster.submit(job("another", task(replicas=4, cpu="1")))
    runs(at, "another", 4)


@pytest.mark.parametrize("how", ["ended", "unreadable"])
def test_pods_of_a_job_that_is_over_claim_nothing(how: str) -> None:
    with lab(direct=False) as at:
        at.cluster.node("a", cpu=8)
        at.cluster.submit(job("evil", task(cpu="1"), preemptible=True, backoff_limit=1))
        runs(at, "evil", 1)
        (real,) = at.cluster.of("evil").values()
        at.api.remove(POD, real["metadata"]["name"])
        at.until(lambda: '"round":"2"' in at.annotation("evil", "allocation"), "it is in its second round", seconds=90)
        runs(at, "evil", 1)
        (real,) = at.cluster.of("evil").values()
        if how == "ended":
            at.cluster.finish(real["metadata"]["name"])
            at.until(lambda: at.cluster.phase("evil") == "Succeeded", "it has ended")
        else:
            at.cluster.edit("evil", granted="x")
        for number in range(2):
            name = f"claim-{number}"
            spec = {**real["spec"], "nodeName": "", "nodeSelector": {"kubernetes.io/hostname": "a"}}
            copy = {**real, "metadata": {**real["metadata"], "name": name, "uid": name}, "spec": spec}
            ask_for(at, {**copy, "status": {"phase": "Pending"}}, "1000")
        at.cluster.submit(job("honest", task(cpu="5")))
        runs(at, "honest", 1)


def test_what_admission_adds_to_pods_does_not_keep_a_job_from_the_capacity_of_others() -> None:
    """A sidecar of more than what a promise may hold beyond the request of a task."""
    with lab(direct=False, wait_request={"cpu": "2500m"}) as at:
        at.cluster.node("a", cpu=12)
        at.cluster.submit(job("low", task(cpu="3"), preemptible=True))
        runs(at, "low", 1)
        at.cluster.submit(job("high", task(cpu="6500m"), priority="high"))
        runs(at, "high", 1, seconds=200)


def test_the_shares_of_two_queues_do_not_depend_on_the_pods_of_a_third() -> None:
    with lab(direct=False, policy=load_policy("fair")) as at:
        queues = {"queues.yaml": "queues: [{name: a}, {name: b}, {name: c}]"}
        at.api.add(
            CONFIG_MAP, {"metadata": {"name": at.settings.queues_config}, "data": queues}, namespace="diflow-system"
        )
        at.cluster.node("n", cpu=20)
        at.cluster.submit(job("evil", task(replicas=20, cpu="10m"), queue="c"))
        runs(at, "evil", 20)
        for number in range(16):
            at.cluster.submit(job(f"a{number}", task(cpu="1"), queue="a", preemptible=True))
        at.until(lambda: all(at.cluster.running(f"a{number}") for number in range(16)), "a has 16")
        real = at.cluster.of("evil")["worker-0"]
        ask_for(at, {**real, "metadata": {**real["metadata"], "name": "big", "uid": "big"}}, "3")
        for number in range(8):
            at.cluster.submit(job(f"b{number}", task(cpu="1"), queue="b"))
        at.until(lambda: all(at.cluster.running(f"b{number}") for number in range(8)), "b has 8", seconds=90)
