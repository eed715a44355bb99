"""Gangs on Kubernetes with PodGroups and without: the same jobs, the same outcomes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from diflow import DIJob, Task
from diflow.jobs.checks import podgroups
from diflow.kube.kinds import POD_GROUP
from tests.builders import template
from tests.clusters import TestCluster, wait_until
from tests.e2e.allocators import allocated, events, status, submit, until_running
from tests.e2e.live import Live
from tests.e2e.test_refused import apart

pytestmark = [pytest.mark.extended, pytest.mark.xdist_group("allocator")]


@pytest.fixture(
    scope="module",
    params=["argo40", pytest.param("argo37", marks=pytest.mark.xdist_group("argo37"))],
    ids=["with PodGroups", "without PodGroups"],
)
def live(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A namespace with an allocator."""
    cluster: TestCluster = request.getfixturevalue(request.param)
    with allocated(cluster, "groups", tmp_path_factory.mktemp("allocator")) as place:
        yield place


def is_native(live: Live) -> bool:
    api = live.cluster.api
    return podgroups.are_served(api) and podgroups.are_used(api, namespace=live.namespace)


def bound(live: Live, name: str) -> int:
    return sum(
        bool(pod["spec"].get("nodeName"))
        for pod in live.pods(name)
        if pod["status"].get("phase") not in ("Failed", "Succeeded")
    )


def test_the_gangs_of_the_newest_kubernetes_are_native(live: Live) -> None:
    assert is_native(live) == podgroups.are_served(live.cluster.api) == (live.cluster.argo_version != "3.7.3")


def test_a_gang_runs_and_has_a_group_where_there_are_groups(live: Live) -> None:
    made = Task(name="worker", replicas=3, template=template("sleep 600"))
    name = submit(live, DIJob(name="whole", tasks=(made,), scheduling="gang"))
    pods = until_running(live, name, 3)
    groups = {(pod["spec"].get("schedulingGroup") or {}).get("podGroupName") for pod in pods}
    if is_native(live):
        (workflow,) = {pod["metadata"]["labels"]["workflows.argoproj.io/workflow"] for pod in pods}
        assert groups == {workflow}
        group = live.cluster.api.get(POD_GROUP, workflow, namespace=live.namespace)
        assert group["spec"]["schedulingPolicy"]["gang"]["minCount"] == 3
        assert group["metadata"]["ownerReferences"][0]["name"] == workflow
    else:
        assert groups == {None}
    live.delete(name)


def test_a_gang_that_kube_scheduler_takes_in_part_goes_back(live: Live) -> None:
    name = submit(live, apart("part", live.namespace, 2))
    most = 0

    def refused() -> str:
        nonlocal most
        most = max(most, bound(live, name))
        return next((message for reason, message in events(live, name) if reason == "Refused"), "")

    found = wait_until("it went back", refused, timeout=240)
    assert "kube-scheduler says" in found
    assert most == (0 if is_native(live) else 1)
    wait_until("its pods hold no node", lambda: bound(live, name) == 0)
    assert (status(live, name).restarts, status(live, name).ended) == (0, False)
    live.delete(name)
