"""What of a pod matters to where others may be, and of a node that announces its end."""

from __future__ import annotations

from typing import Any

import pytest

from diflow.record.node import node_record_of
from diflow.record.pod import pod_record_of

Json = dict[str, Any]


def pod(spec: Json | None = None, labels: dict[str, str] | None = None) -> Json:
    metadata = {"name": "p", "namespace": "ns", "uid": "u", "labels": labels or {}}
    return {"metadata": metadata, "spec": {"containers": [{}], **(spec or {})}, "status": {}}


def test_of_many_labels_and_terms_of_a_pod_the_first_ones_count() -> None:
    term = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"a": "b"}}}
    anti = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term] * 1000}}
    found = pod_record_of(pod({"affinity": anti}, {f"k{n}": "v" for n in range(1000)})).rules
    assert (len(found.labels), len(found.apart)) == (64, 32)


@pytest.mark.parametrize(
    ("spec", "ports"),
    [
        ({"containers": [{"ports": [{"containerPort": 80}]}]}, ()),
        ({"containers": [{"ports": [{"containerPort": 80, "hostPort": 81}]}]}, (81,)),
        ({"hostNetwork": True, "containers": [{"ports": [{"containerPort": 80}]}]}, (80,)),
        ({"hostNetwork": True, "containers": [{"ports": [{"containerPort": 80, "hostPort": 80}]}, {}]}, (80,)),
    ],
)
def test_the_ports_of_the_node_that_a_pod_takes(spec: Json, ports: tuple[int, ...]) -> None:
    assert pod_record_of(pod(spec)).ports == ports


@pytest.mark.parametrize(
    ("taint", "ends"),
    [
        ("karpenter.sh/disrupted", True),
        ("ToBeDeletedByClusterAutoscaler", True),
        ("aws-node-termination-handler/asg-lifecycle-termination", True),
        ("DeletionCandidateOfClusterAutoscaler", False),
        ("node.kubernetes.io/unschedulable", False),
        ("nvidia.com/gpu", False),
    ],
)
def test_a_node_that_announces_its_end(taint: str, *, ends: bool) -> None:
    ready = {"type": "Ready", "status": "True"}
    spec = {"taints": [{"key": taint, "effect": "NoSchedule"}]}
    found = node_record_of({"metadata": {"name": "n"}, "spec": spec, "status": {"conditions": [ready]}})
    assert (bool(found.ends), found.is_open, found.state) == (ends, not ends, "ending" if ends else "ready")


def test_a_condition_counts_by_the_setting_alone() -> None:
    conditions = [{"type": "Ready", "status": "True"}, {"type": "PreemptScheduled", "status": "True"}]
    node = {"metadata": {"name": "n"}, "spec": {}, "status": {"conditions": conditions}}
    assert node_record_of(node).is_open
    assert not node_record_of(node, ending=frozenset({"PreemptScheduled"})).is_open
