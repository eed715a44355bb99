"""A gang that kube-scheduler refuses by a rule that the allocator does not know, on a real cluster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from diflow import DIJob, Task
from tests.builders import template
from tests.clusters import TestCluster, wait_until
from tests.e2e.allocators import allocated, events, status, submit, until_running
from tests.e2e.live import Live

pytestmark = [pytest.mark.extended, pytest.mark.xdist_group("allocator")]


@pytest.fixture(scope="module")
def live(argo40: TestCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A namespace with an allocator."""
    with allocated(argo40, "refused", tmp_path_factory.mktemp("allocator")) as place:
        yield place


def apart(name: str, namespace: str, replicas: int) -> DIJob:
    """A gang of which no two pods may be on one node, by a selector of namespaces."""
    term = {
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": {"matchLabels": {"apart": name}},
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
    }
    made = template("sleep 600")
    made["metadata"] = {"labels": {"apart": name}}
    made["spec"]["affinity"] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    return DIJob(name=name, tasks=(Task(name="worker", replicas=replicas, template=made),), scheduling="gang")


def test_a_gang_that_kube_scheduler_refuses_goes_back_with_its_words(live: Live) -> None:
    name = submit(live, apart("refused", live.namespace, 2))
    found = wait_until(
        "it went back",
        lambda: next((message for reason, message in events(live, name) if reason == "Refused"), ""),
        timeout=240,
    )
    assert "kube-scheduler says" in found
    assert "tried again" in found
    wait_until("its pods hold no node", lambda: all(not pod["spec"].get("nodeName") for pod in live_pods(live, name)))
    assert (status(live, name).restarts, status(live, name).ended) == (0, False)
    live.delete(name)


def test_a_gang_that_kube_scheduler_takes_runs(live: Live) -> None:
    name = submit(live, apart("taken", live.namespace, 1))
    (pod,) = until_running(live, name, 1)
    assert "kubernetes.io/hostname" not in (pod["spec"].get("nodeSelector") or {})
    live.delete(name)


def live_pods(live: Live, name: str) -> list[dict[str, Any]]:
    return [pod for pod in live.pods(name) if pod["status"].get("phase") not in ("Failed", "Succeeded")]
