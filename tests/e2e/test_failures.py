"""Failures that count against backoffLimit, ends that do not, and the end of a job at the limit."""

from __future__ import annotations

import json
from typing import Any

import pytest

from diflow.kube.kinds import WORKFLOW
from tests.builders import job, task
from tests.clusters import wait_until
from tests.e2e.live import Live, pod_name

RUN = "trap 'exit 143' TERM; i=0; while [ $i -lt {seconds} ]; do sleep 1; i=$((i+1)); done"


def run(seconds: int) -> str:
    return RUN.format(seconds=seconds)


def evict(live: Live, pod: str) -> None:
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": live.namespace}}
    live.kubectl(
        "create", "--raw", f"/api/v1/namespaces/{live.namespace}/pods/{pod}/eviction", "-f", "-", stdin=json.dumps(body)
    )


def kill_the_work(live: Live, pod: str) -> None:
    """kill -9 of the user's process: the child of Argo's emissary, which is process 1."""
    script = "kill -9 $(for p in /proc/[0-9]*; do read -r _ _ _ pp _ < $p/stat; [ $pp = 1 ] && echo ${p#/proc/}; done)"
    live.exec(pod, "sh", "-c", script, check=False)


def attempts(live: Live, name: str, template: str) -> list[dict[str, Any]]:
    return [n for n in live.nodes(name) if n["type"] == "Pod" and n["templateName"] == template]


def uids(pods: list[dict[str, Any]]) -> set[str]:
    """The uids of pods: Argo replaces a pod that was deleted before it ran by one of the same name."""
    return {pod["metadata"]["uid"] for pod in pods}


def finishers(live: Live, name: str, task_name: str) -> set[str]:
    return uids([pod for pod in live.pods(name, task_name) if pod["status"]["phase"] == "Succeeded"])


def test_a_replica_that_fails_is_started_again_in_place(live: Live) -> None:
    failing = f"{live.is_open('again')} || exit 3"
    name = live.submit(
        job(task("learner", live.until_open("again")), task("collector", failing), name="again", backoff_limit=200)
    )
    wait_until("it was tried again", lambda: len(attempts(live, name, "collector")) >= 2)
    live.open("again")
    live.ends(name, "Succeeded")
    assert len(attempts(live, name, "learner")) == 1, "the others notice nothing"
    assert len(attempts(live, name, "collector")) >= 2
    hosts = {pod["spec"]["hostname"] for pod in live.pods(name, "collector")}
    assert hosts == {"again-collector-0"}, "a replica keeps its host name"


def test_a_used_up_limit_fails_the_job_and_stops_the_others(live: Live) -> None:
    crash = "if [ $DI_RANK = 2 ]; then exit 7; fi; " + run(600)
    name = live.submit(
        job(
            task("learner", run(600)),
            task("collector", crash, replicas=2),
            name="used-up",
            backoff_limit=1,
        )
    )
    live.ends(name, "Failed")
    failed = [n for n in attempts(live, name, "collector") if n.get("outputs", {}).get("exitCode") == "7"]
    assert len(failed) == 2, "the first attempt and one retry"
    wait_until("nothing runs", lambda: all(p["status"]["phase"] != "Running" for p in live.pods(name)))


def test_kill_deletion_and_eviction_do_not_use_the_limit_up(live: Live) -> None:
    work = live.until_open("spared")
    name = live.submit(job(task("learner", work), task("collector", work, replicas=3), name="spared", backoff_limit=0))
    live.running(name, 4)
    before = live.pods(name, "collector")
    zero, one, two = map(pod_name, before)
    kill_the_work(live, zero)
    live.kubectl("delete", "pod", one, "--wait=false")
    evict(live, two)
    wait_until(
        "each was started again",
        lambda: len(uids(live.running(name, 4)) - uids(before)) == 4,  # the learner is not in `before`
    )
    live.open("spared")
    live.ends(name, "Succeeded")
    assert len(attempts(live, name, "learner")) == 1, "the others notice nothing"
    assert len(finishers(live, name, "collector") - uids(before)) == 3, "each was started again"


@pytest.mark.xdist_group("node")
def test_preemption_does_not_use_the_limit_up(live: Live) -> None:
    node = live.node()
    cores = int(node["status"]["allocatable"]["cpu"])
    most: dict[str, Any] = {"container": {"resources": {"requests": {"cpu": f"{cores * 550}m", "memory": "16Mi"}}}}
    # By kube-scheduler, for a class that is none of diflow's: for those it stops no pod.
    preempting = f"{live.namespace}-preempts"
    live.kubectl("create", "priorityclass", preempting, "--value=2000")
    low = live.submit(job(task("learner", live.until_open("low"), **most), name="low", backoff_limit=0))
    before = live.running(low, 1)
    most["priorityClassName"] = preempting
    high = live.submit(job(task("learner", run(3), **most), name="high", backoff_limit=0, scheduling="none"))
    live.ends(high, "Succeeded")
    live.kubectl("delete", "priorityclass", preempting)
    live.open("low")
    live.ends(low, "Succeeded")
    assert len(finishers(live, low, "learner") - uids(before)) == 1, "it was preempted and started again"


def test_a_rejection_by_the_kubelet_does_not_use_the_limit_up(live: Live) -> None:
    node = live.node()["metadata"]["name"]
    huge: dict[str, Any] = {
        "container": {"resources": {"requests": {"cpu": "1000", "memory": "16Mi"}}},
        "nodeName": node,
    }
    name = live.submit(job(task("learner", **huge), name="outof", backoff_limit=0))
    wait_until("it was tried again", lambda: len(attempts(live, name, "learner")) >= 2)
    assert live.workflow(name)["status"]["phase"] == "Running"
    live.delete(name)


def test_out_of_memory_is_the_jobs_own_fault(live: Live) -> None:
    limits: dict[str, Any] = {"container": {"resources": {"requests": {"cpu": "20m"}, "limits": {"memory": "24Mi"}}}}
    hungry = "head -c 200000000 /dev/zero | tail >/dev/null"
    name = live.submit(job(task("learner", hungry, **limits), name="oom", backoff_limit=1))
    live.ends(name, "Failed")
    assert len(attempts(live, name, "learner")) == 2


def test_a_preemptible_job_starts_its_round_again_together(live: Live) -> None:
    failing = f"{live.is_open('together')} || exit 3; " + run(2)
    name = live.submit(
        job(
            task("learner", run(3)),
            task("collector", failing),
            name="together",
            preemptible=True,
            backoff_limit=200,
        )
    )
    wait_until("the round started again", lambda: len(attempts(live, name, "learner")) >= 2)
    live.open("together")
    live.ends(name, "Succeeded")
    learners, collectors = attempts(live, name, "learner"), attempts(live, name, "collector")
    assert len(learners) == len(collectors) >= 2
    assert sum(n["phase"] == "Failed" for n in learners) == 0


def test_a_program_cannot_talk_its_way_out_of_the_limit(live: Live) -> None:
    liar = "echo 'Pod was rejected: it is not my fault' > /dev/termination-log; exit 1"
    name = live.submit(job(task("learner", liar), name="liar", backoff_limit=1))
    live.ends(name, "Failed")
    assert len(attempts(live, name, "learner")) == 2


def test_an_ended_job_is_deleted_after_its_time_with_its_pods(live: Live) -> None:
    name = live.submit(job(task("learner", "exit 3"), name="passing", backoff_limit=0, ttl_seconds_after_finished=60))
    live.ends(name, "Failed")
    assert live.pods(name), "it is kept for a while"
    wait_until("it is gone", lambda: live.api.find(WORKFLOW, name, namespace=live.namespace) is None)
    wait_until("its pods too", lambda: not live.pods(name))
