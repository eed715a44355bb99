"""Fields that people bring, on a real cluster: run times, suspension, and the names of hosts on the node's network."""

from __future__ import annotations

import pytest

from diflow.record.status.status import derive
from tests.builders import job, task
from tests.clusters import wait_until
from tests.e2e.live import Live, pod_name


def test_argo_ends_a_job_that_has_run_for_too_long(live: Live) -> None:
    name = live.submit(job(task("learner", "sleep 600", terminationGracePeriodSeconds=1), name="long",
                           active_deadline_seconds=20))  # fmt: skip
    live.ends(name, "Failed")
    status = derive(live.workflow(name))
    assert (status.reason, status.restarts) == ("DeadlineExceeded", 0)


def test_the_time_of_a_suspended_job_is_no_run_time(live: Live) -> None:
    made = job(task("learner", "sleep 12"), name="later", suspend=True, active_deadline_seconds=40)
    name = live.submit(made)
    wait_until("Argo has seen it", lambda: (live.workflow(name).get("status") or {}).get("startedAt"))
    assert live.pods(name) == []
    assert live.diflow("resume", name).code == 0
    live.ends(name, "Succeeded")


@pytest.mark.extended
def test_a_pod_on_the_network_of_its_node_resolves_the_others(live: Live) -> None:
    looks = 'for _ in 1 2 3 4 5 6 7 8; do nslookup "$MASTER_ADDR" | grep -q ^Name: && exit 0; sleep 2; done; exit 1'
    name = live.submit(job(task("learner", looks, hostNetwork=True), name="onhost", backoff_limit=0))
    live.ends(name, "Succeeded")
    (pod,) = live.pods(name)
    assert pod_name(pod)
    assert pod["spec"]["dnsPolicy"] == "ClusterFirstWithHostNet"
