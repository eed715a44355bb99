"""Reports about texts that were not true: each names what excludes, with the number of nodes, and what would help."""

from __future__ import annotations

from tests.reports.lab import job, lab, task

GPU = "nvidia.com/gpu"


def test_a_resource_that_no_node_offers_yet_is_named_and_the_job_starts_when_it_comes() -> None:
    with lab() as at:
        for name in ("n0", "n1"):
            at.cluster.machine(name)
        at.cluster.submit(job("train", task(replicas=2, ask={GPU: "1"})))
        course = at.watch("train", seconds=30)["train"]
        assert course.says(f"1 {GPU}", f"2 nodes offer no {GPU}"), course.decision
        assert "never" not in course.decision
        for name in ("n0", "n1"):  # the device plugin comes late
            at.cluster.remove_node(name)
            at.cluster.machine(name, gpu="1")
        assert at.watch("train", seconds=10)["train"].begins_whole(2)


def test_the_taint_and_the_label_that_exclude_nodes_are_named_with_their_numbers() -> None:
    with lab() as at:
        at.cluster.machine("n0", labels={"pool": "a"})
        for name in ("n1", "n2"):
            at.cluster.machine(name, taints=[{"key": "node.cilium.io/agent-not-ready", "effect": "NoExecute"}])
        for name in ("n3", "n4", "n5"):
            at.cluster.machine(name)
        at.cluster.submit(job("train", task(replicas=4, ask={"cpu": "6"}, spec={"nodeSelector": {"pool": "a"}})))
        course = at.watch("train", seconds=30)["train"]
        assert course.says(
            "3 nodes lack the label pool=a", "2 nodes have the taint node.cilium.io/agent-not-ready:NoExecute"
        ), course.decision
        assert "never" not in course.decision


def test_pods_of_others_that_hold_the_nodes_are_not_called_a_lack_of_nodes() -> None:
    with lab() as at:
        at.cluster.machine("n0", gpu="8")
        at.cluster.foreign("notebook", "n0", **{GPU: 8})
        at.cluster.submit(job("train", task(ask={GPU: "1"})))
        course = at.watch("train", seconds=30)["train"]
        assert course.says("other pods hold 8 nvidia.com/gpu"), course.decision
        assert "never" not in course.decision


def test_a_node_that_is_closed_for_a_while_is_not_called_a_lack_of_nodes() -> None:
    with lab() as at:
        for name in ("n0", "n1"):
            at.cluster.machine(name, gpu="8")
        at.cluster.cordon("n1")
        at.cluster.submit(job("train", task(replicas=2, ask={GPU: "8"})))
        course = at.watch("train", seconds=30)["train"]
        assert course.says("it is closed"), course.decision
        assert "never" not in course.decision
