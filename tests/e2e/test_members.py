"""A task that grows, shrinks and grows again: replicas that come back are new pods, and all learn of each other.

The parameters are patched as the allocator does it; no allocator is there.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest

from diflow import Task
from diflow.common import keys, names
from diflow.kube.kinds import TOKEN_REVIEW
from diflow.labs.conformance import reading
from diflow.record.roster import roster
from diflow.record.status.observe import observe
from diflow.record.status.status import derive
from tests.builders import job, task, template
from tests.clusters import TestCluster, wait_until
from tests.e2e.live import Live, pod_name

T = TypeVar("T")
Pod = dict[str, Any]

_LOG = logging.getLogger(__name__)
_WAIT = "trap 'exit 143' TERM; until [ -e /tmp/go ]; do sleep 0.2; done"
# Argo 3.7 may overlook a patch until the Workflow's next change (docs/conformance.md).
_NUDGE_SECONDS = 12.0
# The kubelet syncs each pod once a minute, and its cache of Secrets and ConfigMaps may add another minute.
_KUBELET_SECONDS = 300.0
_EXPECTED = (("evaluator", 0), ("worker", 0), ("worker", 1))


@pytest.fixture(params=["argo40", "argo37"])
def argo(request: pytest.FixtureRequest) -> TestCluster:
    """A cluster of each version of Argo."""
    found: TestCluster = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def either(argo: TestCluster) -> Iterator[Live]:
    """A new namespace on it."""
    with argo.namespace("members") as namespace:
        yield Live(argo, namespace)


def test_a_replica_that_was_dropped_comes_back_as_a_new_pod(either: Live) -> None:
    name = submit(either)
    first = running(either, name, ("worker", 0))
    change(either, name, granted={"1": {"evaluator": 1, "worker": 2}})
    second = running(either, name, ("worker", 1))

    change(either, name, released=["1/worker/1"])
    either.kubectl("patch", "pod", pod_name(second), "-p", '{"spec":{"activeDeadlineSeconds":1}}')
    until(either, name, "the stopped member has come to its end", lambda: fulfilled(either, name, "worker(1:1)"))
    change(either, name, granted={"1": {"evaluator": 1, "worker": 1}})
    assert status(either, name).restarts == 0

    change(either, name, granted={"1": {"evaluator": 1, "worker": 2}}, incarnations={"1/worker/1": ".1"})
    again = running(either, name, ("worker", 1), unlike=second)
    assert again["metadata"]["annotations"]["workflows.argoproj.io/node-name"].startswith(
        f"{name}.round(0:1).worker(1:1.1)"
    )
    assert again["spec"]["hostname"] == f"{name}-worker-1"
    assert pod_name(running(either, name, ("worker", 0))) == pod_name(first), "nobody else noticed"
    seen = wait_until("all are ready", lambda: ready(either, name, 3))
    assert {(a.task, a.member) for a in seen.attempts} == {
        ("evaluator", "0"), ("worker", "0"), ("worker", "1"), ("worker", "1.1"),
    }  # fmt: skip

    for replica in _EXPECTED:
        either.exec(pod_name(running(either, name, replica)), "touch", "/tmp/go")
    ended = until(either, name, "the job has ended", lambda: phase(either, name) != "Running" and phase(either, name))
    assert ended == "Succeeded"
    done = status(either, name)
    assert (done.phase, done.restarts) == ("Succeeded", 0)


def test_argos_expressions_give_the_roster_that_the_library_computes(either: Live) -> None:
    name = submit(either, workers=2)
    people = roster(name, either.namespace, {"evaluator": 1, "worker": 2})
    for where in _EXPECTED:
        pod = running(either, name, where)
        annotations, env = pod["metadata"]["annotations"], environment(pod)
        assert annotations[keys.NODES] == env["DI_NODES"] == people.nodes
        assert annotations[keys.RANK] == env["DI_RANK"] == str(people.rank_of(*where))
        assert annotations[keys.REPLICAS] == env["WORLD_SIZE"] == str(len(people.hosts))
        files = either.exec(pod_name(pod), "sh", "-c", 'cd /etc/diflow && cat "$DI_NODES_FILE" && echo && head -9 r*')
        assert files.splitlines()[0] == people.nodes
        assert [line for line in files.splitlines()[1:] if line and not line.startswith("==>")] == [
            annotations[keys.RANK], annotations[keys.REPLICAS], "1",
        ]  # fmt: skip


def test_a_long_list_of_hosts_is_in_a_pod_and_not_in_its_copy_of_the_template(either: Live) -> None:
    """The expression of the list has a value only where Argo substitutes the pod that it creates."""
    name = submit(either, workers=2, most=300)
    people = roster(name, either.namespace, {"evaluator": 1, "worker": 2}, short=True)
    first = running(either, name, ("worker", 1))
    either.kubectl("delete", "pod", pod_name(first), "--wait=false")
    for pod in (first, running(either, name, ("worker", 1), unlike=first), running(either, name, ("evaluator", 0))):
        assert pod["metadata"]["annotations"][keys.NODES] == environment(pod)["DI_NODES"] == people.nodes
        (copy,) = (e["value"] for e in pod["spec"]["initContainers"][0]["env"] if e["name"] == "ARGO_TEMPLATE")
        assert keys.NODES in copy
        assert people.nodes not in copy
    assert either.exec(pod_name(pod), "cat", "/etc/diflow/nodes") == people.nodes


def test_a_replica_can_prove_to_the_server_alone_whose_it_is(either: Live) -> None:
    name = submit(either)
    pod = running(either, name, ("worker", 0))
    token = either.exec(pod_name(pod), "sh", "-c", 'cat "$DI_TOKEN_FILE"')
    audience = names.audience(either.namespace, name)
    found = review(either, token, audience)
    assert found["authenticated"] is True
    assert found["audiences"] == [audience]
    assert found["user"]["username"] == f"system:serviceaccount:{either.namespace}:{keys.WORKER_ACCOUNT}"
    extra = found["user"]["extra"]
    assert extra["authentication.kubernetes.io/pod-name"] == [pod_name(pod)]
    assert extra["authentication.kubernetes.io/pod-uid"] == [pod["metadata"]["uid"]]
    for other in (names.audience(either.namespace, "other"), "https://kubernetes.default.svc.cluster.local"):
        assert not review(either, token, other).get("authenticated")


def test_a_running_replica_is_told_when_the_others_change(live: Live) -> None:
    name = submit(live)
    pod = running(live, name, ("worker", 0))
    people = roster(name, live.namespace, {"evaluator": 1, "worker": 3})
    told = {keys.NODES: people.nodes, keys.RANK: "1", keys.REPLICAS: "4"}
    live.kubectl("patch", "pod", pod_name(pod), "-p", json.dumps({"metadata": {"annotations": told}}))
    began = time.monotonic()

    def files() -> bool:
        return live.exec(pod_name(pod), "cat", "/etc/diflow/nodes", "/etc/diflow/replicas") == f"{people.nodes}4"

    wait_until("the new roster is in the files of the pod", files, timeout=_KUBELET_SECONDS)
    _LOG.info("from the annotation to the file: %.1f s", time.monotonic() - began)


def review(live: Live, token: str, audience: str) -> dict[str, Any]:
    """The API server's review of a token for `audience`."""
    answer = live.api.create(TOKEN_REVIEW, {"spec": {"token": token, "audiences": [audience]}})
    return dict(answer["status"])


def submit(live: Live, *, workers: int = 1, most: int | None = None) -> str:
    tmp: dict[str, Any] = {
        "volumes": [{"name": "tmp", "emptyDir": {}}],
        "container": {"volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}]},
        "terminationGracePeriodSeconds": 5,
    }
    return live.submit(
        job(
            task("evaluator", _WAIT, **tmp),
            Task(type="none", name="worker", replicas=workers, max_replicas=most, template=template(_WAIT, **tmp)),
            name=f"members-{workers}",
        )
    )


def change(live: Live, name: str, **parameters: Any) -> None:
    """Patch parameters of the running Workflow in one request."""
    names = [item["name"] for item in live.workflow(name)["spec"]["arguments"]["parameters"]]
    patch = [
        {
            "op": "replace",
            "path": f"/spec/arguments/parameters/{names.index(parameter)}/value",
            "value": json.dumps(value),
        }
        for parameter, value in parameters.items()
    ]
    live.kubectl("patch", "workflow", name, "--type=json", "-p", json.dumps(patch))


def running(live: Live, name: str, replica: tuple[str, int], *, unlike: Pod | None = None) -> Pod:
    """Wait for a running pod of the replica other than `unlike`."""
    host = f"{name}-{replica[0]}-{replica[1]}"

    def probe() -> Pod | None:
        for pod in live.pods(name, replica[0]):
            alive = pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]
            is_it = pod["metadata"]["labels"][keys.POD] == host and pod["metadata"]["uid"] != uid(unlike)
            if alive and is_it and all(s.get("ready") for s in pod["status"].get("containerStatuses", [{}])):
                return pod
        return None

    return until(live, name, f"{host} runs", probe)


def until(live: Live, name: str, what: str, probe: Callable[[], T | None]) -> T:
    """As `wait_until`; the Workflow is touched if Argo seems to have missed a change."""
    due = time.monotonic() + _NUDGE_SECONDS

    def nudging() -> T | None:
        nonlocal due
        found = probe()
        if not found and time.monotonic() > due:
            due = time.monotonic() + _NUDGE_SECONDS
            live.kubectl("annotate", "workflow", name, "--overwrite", f"diflow/test-nudged={time.monotonic()}")
        return found

    return wait_until(what, nudging, timeout=300)


def fulfilled(live: Live, name: str, member: str) -> bool:
    wanted = f"{name}.round(0:1).{member}"
    return any(n["name"] == wanted and n.get("phase") in ("Succeeded", "Failed", "Error") for n in live.nodes(name))


def ready(live: Live, name: str, count: int) -> Any:
    workflow, pods = live.workflow(name), live.pods(name)
    now = derive(workflow, pods)
    return observe(workflow, pods) if (now.phase, now.ready_replicas) == ("Running", count) else None


def status(live: Live, name: str) -> Any:
    return derive(live.workflow(name), live.pods(name))


def phase(live: Live, name: str) -> str:
    return str(live.workflow(name).get("status", {}).get("phase", ""))


def environment(pod: Pod) -> dict[str, str]:
    """The variables of the main container, those from the pod's annotations too."""
    return reading.env(pod)


def uid(pod: Pod | None) -> str:
    return str(pod["metadata"]["uid"]) if pod else ""


def test_tasks_named_as_words_of_argos_language_run_and_know_each_other(either: Live) -> None:
    tasks = ("and", "not", "replica-a", "a")
    told = " && ".join(f"echo {names.nodes_variable(task)}=${names.nodes_variable(task)}" for task in tasks)
    name = either.submit(job(*(task("none", told, name=one) for one in tasks), name="words"))
    either.ends(name, "Succeeded")
    pods = either.pods(name)
    assert sorted(pod["metadata"]["labels"][keys.TASK_NAME] for pod in pods) == sorted(tasks)
    for pod in pods:
        found = dict(line.split("=", 1) for line in either.logs(pod_name(pod)).splitlines() if line.startswith("DI_"))
        assert found == {names.nodes_variable(one): names.host(name, either.namespace, one, 0) for one in tasks}
