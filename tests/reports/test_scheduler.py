"""Gangs in the lab whose kube-scheduler knows taints, ports, affinity, spread, volumes and claims of devices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest

from diflow import Task
from diflow.allocator.policies.base import load_policy
from diflow.allocator.policies.settings import PolicySettings
from tests.reports.lab import UsersLab, job, lab, task

Json = dict[str, Any]
POLICIES = ("fit", "fair", "goodput", "fair+goodput")
HOST, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"


def nodes(at: UsersLab, count: int, *, zones: int = 0, cpu: str = "8", **more: Any) -> None:
    """Nodes n0, n1, ... of 8 CPUs, in turn in these zones."""
    for n in range(count):
        at.cluster.machine(f"n{n}", zone=f"z{n % zones}" if zones else "", cpu=cpu, **more)


def apart(key: str = HOST, **labels: str) -> Json:
    """Required anti-affinity to pods with these labels."""
    term = {"topologyKey": key, "labelSelector": {"matchLabels": labels or {"app": "x"}}}
    return {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}


def test_a_gang_starts_on_the_nodes_whose_taints_it_tolerates() -> None:
    with lab() as at:
        nodes(at, 2, cpu="1", taints=[{"key": "gpu", "value": "yes", "effect": "NoSchedule"}])
        at.cluster.machine("other", cpu="8", taints=[{"key": "team", "effect": "NoExecute"}])
        tolerations = [{"key": "gpu", "operator": "Exists"}]
        at.cluster.submit(job("a", task(replicas=2, spec={"tolerations": tolerations})))
        course = at.watch("a", seconds=10)["a"]
    assert course.begins_whole(2)
    assert sorted(course.where.values()) == ["n0", "n1"]


def test_what_the_allocator_does_not_know_is_refused_in_kube_schedulers_words() -> None:
    with lab(begin=False) as at:
        nodes(at, 2)
        at.cluster.submit(job("a", task(replicas=3, labels={"app": "x"}, spec=apart())).model_copy(
            update={"scheduling": "none"}
        ))  # fmt: skip
        at.watch("a", seconds=5)
    assert len(at.running("a")) == 2
    assert [why.partition(" preemption")[0] for why in at.cluster.refused.values()] == [
        "0/2 nodes are available: 2 node(s) didn't satisfy existing pods anti-affinity rules."
    ]


def near(key: str, **labels: str) -> Json:
    """Required affinity to pods with these labels."""
    term = {"topologyKey": key, "labelSelector": {"matchLabels": labels}}
    return {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}


def spread(key: str = ZONE, skew: int = 1, **more: Any) -> Json:
    """A hard spread constraint of pods with the label app=x."""
    one = {"maxSkew": skew, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule", **more}
    return {"topologySpreadConstraints": [{"labelSelector": {"matchLabels": {"app": "x"}}, **one}]}


HOST_PORT = {"ports": [{"containerPort": 23456}]}
APP = {"app": "x"}
RULES: dict[str, tuple[Json, Json]] = {
    "apart by host": (apart(), {}),
    "apart by zone": (apart(ZONE), {}),
    "spread by zone": (spread(), {}),
    "spread by host": (spread(HOST), {}),
    "near by zone": (near(ZONE, app="x"), {}),
    "on the host's network": ({"hostNetwork": True}, HOST_PORT),
    "apart and spread": ({**apart(), **spread()}, {}),
}


def zones_of(at: UsersLab, where: Iterable[str]) -> Counter[str]:
    with at.api.changed:
        nodes_ = at.api.objects["/api/v1/nodes"]
        return Counter(nodes_[name]["metadata"]["labels"][ZONE] for name in where)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("preemptible", [False, True], ids=["fixed", "preemptible"])
@pytest.mark.parametrize("rule", RULES)
def test_a_gang_obeys_its_rules_and_starts_at_once_in_one_round(rule: str, *, preemptible: bool, policy: str) -> None:
    spec, container = RULES[rule]
    count = 2 if rule == "apart by zone" else 4
    elastic = {"min_replicas": 2, "max_replicas": count} if preemptible else {}
    with lab(policy=load_policy(policy, PolicySettings(least_seconds_between_resizes=5.0))) as at:
        nodes(at, 6, zones=2, gpu="8")
        made = task(replicas=count, labels=APP, spec=spec, container=container, ask={"nvidia.com/gpu": "1"})
        gang = job("a", made.model_copy(update=elastic), preemptible=preemptible)
        alone = at.alone(gang.model_copy(update={"preemptible": False, "tasks": (fixed(gang.tasks[0]),)}))
        at.cluster.submit(gang)
        course = at.watch("a", seconds=40)["a"]
    low = 2 if preemptible else count
    assert course.begins_whole(low), course.running
    assert course.since(low) <= 2 * alone + 1, (alone, course.running)
    assert course.rounds <= (1 if not preemptible or policy in ("fit", "fair") else 3), course
    assert course.restarts == 0
    assert at.cluster.problems == []
    assert at.cluster.refused == {}


def fixed(given: Task) -> Task:
    return given.model_copy(update={"min_replicas": None, "max_replicas": None})


def test_a_spread_gang_is_two_and_two() -> None:
    with lab() as at:
        nodes(at, 6, zones=2)
        at.cluster.submit(job("a", task(replicas=4, labels=APP, spec=spread())))
        course = at.watch("a", seconds=10)["a"]
        assert zones_of(at, course.where.values()) == {"z0": 2, "z1": 2}


def test_a_gang_that_its_rules_let_nowhere_says_which_and_delays_nobody() -> None:
    with lab() as at:
        nodes(at, 2)
        at.cluster.submit(job("never", task(replicas=3, labels=APP, spec=apart()), priority="high"))
        at.step()
        at.cluster.submit(job("innocent", task(replicas=2, ask={"cpu": "8"})))
        courses = at.watch("never", "innocent", seconds=30)
    assert courses["innocent"].since(2) <= 3.0  # as alone
    assert courses["never"].most == 0
    assert courses["never"].says("2 fit by its rules about other pods: podAntiAffinity by kubernetes.io/hostname")


def test_pods_of_others_count() -> None:
    """Both the pods that a gang avoids, and those that avoid its own."""
    with lab() as at:
        nodes(at, 4)
        at.cluster.other_pod("db", "n0", labels={"app": "db"})
        at.cluster.other_pod("alone", "n1", labels={}, spec=apart(app="x"))
        at.cluster.submit(job("a", task(replicas=4, labels=APP, spec=apart(app="db"))))
        course = at.watch("a", seconds=10)["a"]
    assert course.begins_whole(4)
    assert set(course.where.values()) <= {"n2", "n3"}
    assert at.cluster.refused == {}


def test_a_gang_goes_to_the_pods_that_it_has_to_be_near_and_waits_without_them() -> None:
    with lab() as at:
        nodes(at, 6, zones=3)
        at.cluster.submit(job("a", task(replicas=3, spec=near(ZONE, app="cache"))))
        assert at.watch("a", seconds=5)["a"].says("0 fit by its rules about other pods: podAffinity by")
        at.cluster.other_pod("cache", "n1", labels={"app": "cache"})
        course = at.watch("a", seconds=30)["a"]
        assert zones_of(at, course.where.values()) == {"z1": 3}
    assert course.begins_whole(3)


def test_two_gangs_of_one_label_share_the_nodes() -> None:
    with lab() as at:
        nodes(at, 4)
        for name in "ab":
            at.cluster.submit(job(name, task(replicas=2, labels=APP, spec=apart())))
        courses = at.watch("a", "b", seconds=10)
    assert len({*courses["a"].where.values(), *courses["b"].where.values()}) == 4
    assert at.cluster.refused == {}


def test_the_port_of_a_pod_on_the_hosts_network_is_taken() -> None:
    with lab() as at:
        nodes(at, 3)
        with_port = {"hostNetwork": True, "containers": [{"name": "x", "ports": [{"hostPort": 23456}]}]}
        at.cluster.other_pod("exporter", "n0", labels={}, spec=with_port)
        at.cluster.submit(job("a", task(replicas=2, spec={"hostNetwork": True}, container=HOST_PORT)))
        course = at.watch("a", seconds=10)["a"]
    assert sorted(course.where.values()) == ["n1", "n2"]


def test_a_job_with_rules_grows_and_is_completed_by_them() -> None:
    with lab() as at:
        nodes(at, 3, zones=3)
        at.cluster.submit(
            job("a", task(replicas=2, min_replicas=2, max_replicas=5, labels=APP, spec=apart()), preemptible=True)
        )
        at.watch("a", seconds=10)
        at.cluster.scale("a", worker=5)
        at.watch("a", seconds=60)
        assert len(at.running("a")) == 3
        at.cluster.machine("n3")
        at.cluster.machine("n4")
        course = at.watch("a", seconds=60)["a"]
    assert len(set(course.where.values())) == 5
    assert at.cluster.refused == {}
