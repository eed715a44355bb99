"""One job from submission to its end: its pods' environment, permissions, and what stays behind."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from diflow.common import keys
from diflow.kube.kinds import POD_GROUP
from tests.builders import job, task
from tests.clusters import wait_until
from tests.e2e.live import Live, pod_name

WAIT = "trap 'exit 143' TERM; until [ -e /tmp/go ]; do sleep 0.2; done"
# In parallel, each process would run a separate job.
in_one_process = pytest.mark.xdist_group("roles")
ENV = "env | grep -E '^(DI_|MASTER_|WORLD_|RANK|PET_)'; id -u"


@pytest.fixture(scope="module")
def submitted() -> set[str]:
    """The namespaces in which the job was submitted."""
    return set()


@pytest.fixture
def roles(live: Live, submitted: set[str]) -> str:
    """A job of a learner and two collectors that run until a file tells them to end, one for all tests of this file."""
    name = "roles"
    if live.namespace in submitted:
        return name
    tmp: dict[str, Any] = {
        "volumes": [{"name": "tmp", "emptyDir": {}}],
        "container": {"volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}]},
    }
    submitted.add(live.namespace)
    return live.submit(
        job(
            task("learner", f"{ENV}; {WAIT}", **tmp),
            task("collector", f"{ENV}; {WAIT}", replicas=2, **tmp),
            name=name,
        )
    )


@in_one_process
def test_each_replica_is_told_who_it_is(live: Live, roles: str) -> None:
    pods = live.running(roles, 3)
    domain = f"di.{live.namespace}.svc.cluster.local"
    hosts = [f"roles-learner-0.{domain}", f"roles-collector-0.{domain}", f"roles-collector-1.{domain}"]
    seen = {}
    for pod in pods:
        env = dict(
            line.split("=", 1) for line in live.logs(pod_name(pod)).splitlines() if "=" in line and line[0].isupper()
        )
        seen[int(env["DI_RANK"])] = env
        assert env["DI_NODES"].split(",") == hosts
        assert env["DI_LEARNER_NODES"].split(",") == hosts[:1]
        assert env["DI_COLLECTOR_NODES"].split(",") == hosts[1:]
        assert env["DI_JOB_ID"] == f"{live.namespace}/roles"
        assert env["MASTER_ADDR"] == hosts[0]
        assert env["WORLD_SIZE"] == env["PET_NNODES"] == "3"
        assert env["RANK"] == env["PET_NODE_RANK"] == env["DI_RANK"]
        assert hosts[int(env["DI_RANK"])].startswith(f"{pod['spec']['hostname']}.")
        assert pod["metadata"]["labels"][keys.POD] == pod["spec"]["hostname"]
        assert pod["metadata"]["annotations"][keys.RANK] == env["DI_RANK"]
        assert pod["metadata"]["annotations"][keys.REPLICAS] == "3"
    assert sorted(seen) == [0, 1, 2]


def _shows(ask: Callable[[], str], text: str) -> bool:
    return text in ask()


@in_one_process
def test_the_hosts_of_di_nodes_resolve_to_the_pods(live: Live, roles: str) -> None:
    pods = live.running(roles, 3)
    for pod in pods:
        host = f"{pod['spec']['hostname']}.di.{live.namespace}.svc.cluster.local"
        look_up = partial(live.exec, pod_name(pods[0]), "nslookup", host, check=False)
        wait_until(f"{host} resolves", partial(_shows, look_up, pod["status"]["podIP"]))


@in_one_process
def test_pods_are_not_root(live: Live, roles: str) -> None:
    for pod in live.running(roles, 3):
        assert live.exec(pod_name(pod), "id", "-u").strip() == "65532"


@in_one_process
def test_a_workers_token_allows_nothing_but_argos_reports(live: Live, roles: str) -> None:
    del roles
    account = f"system:serviceaccount:{live.namespace}:{keys.WORKER_ACCOUNT}"

    def may(*what: str) -> bool:
        return live.kubectl("auth", "can-i", *what, "--as", account, check=False).strip() == "yes"

    assert may("create", "workflowtaskresults.argoproj.io")
    assert may("patch", "workflowtaskresults.argoproj.io")
    for verb in ("get", "list", "create", "delete", "patch"):
        for kind in ("pods", "secrets", "services", "configmaps", "workflows.argoproj.io"):
            assert not may(verb, kind), f"{verb} {kind}"


@in_one_process
def test_the_job_succeeds_and_nothing_ran_beside_its_pods(live: Live, roles: str) -> None:
    for pod in live.running(roles, 3):
        live.exec(pod_name(pod), "touch", "/tmp/go")
    live.ends(roles, "Succeeded")
    assert len(live.pods(roles)) == 3, "cleanPodPolicy Running keeps what has ended"
    found = live.get("pods", labels=f"workflows.argoproj.io/workflow={roles}")["items"]
    assert sorted(map(pod_name, found)) == sorted(map(pod_name, live.pods(roles)))


def test_clean_pod_policy_all_leaves_no_pod(live: Live) -> None:
    name = live.submit(job(task("learner"), task("collector", replicas=2), name="clean", clean_pod_policy="All"))
    live.ends(name, "Succeeded")
    selector = f"workflows.argoproj.io/workflow={name}"
    wait_until("no pod is left", lambda: live.get("pods", labels=selector)["items"] == [] or None)


@pytest.mark.xdist_group("node")
def test_pods_of_a_gang_that_its_user_resumed_wait_for_the_allocator(live: Live) -> None:
    name = live.submit(job(task("learner", replicas=2), name="gang", scheduling="gang"))
    wait_until("Argo has seen it", lambda: live.workflow(name).get("status"))
    assert live.pods(name) == []
    live.argo("resume", name)
    pods = wait_until("both pods are there", lambda: p if len(p := live.pods(name)) == 2 else None)
    for pod in pods:
        assert pod["spec"]["schedulingGates"] == [{"name": "diflow/gang"}]
        assert pod["spec"].get("nodeName") is None
    node = live.node()["metadata"]["name"]
    admit = json.dumps(
        [
            {"op": "remove", "path": "/spec/schedulingGates"},
            {"op": "add", "path": "/spec/nodeSelector", "value": {"kubernetes.io/hostname": node}},
        ]
    )
    for pod in pods:
        live.kubectl("patch", "pod", pod_name(pod), "--type=json", "-p", admit)
    if pods[0]["spec"].get("schedulingGroup"):  # on a cluster with PodGroups, the allocator makes that, too
        group = {
            "schedulingPolicy": {"gang": {"minCount": 2}},
            "priorityClassName": pods[0]["spec"]["priorityClassName"],
        }
        live.api.create(POD_GROUP, {"metadata": {"name": name}, "spec": group}, namespace=live.namespace)
    live.ends(name, "Succeeded")
