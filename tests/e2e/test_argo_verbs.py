"""A diflow job under the argo CLI: every verb does what an Argo user expects."""

from __future__ import annotations

import json
import secrets
import urllib.request
from typing import Any

import pytest
import yaml

from diflow.jobs.retry import retry
from tests.builders import job, task
from tests.clusters import ROOT, wait_until
from tests.e2e.allocators import status
from tests.e2e.live import Live, pod_name

RUN = "trap 'exit 143' TERM; echo hello from rank $DI_RANK; while true; do sleep 0.5; done"


def long_job(live: Live, name: str, **fields: Any) -> str:
    submitted = live.submit(job(task("learner", RUN), task("collector", RUN, replicas=2), name=name, **fields))
    live.running(name, 3)
    return submitted


def nothing_runs(live: Live, name: str) -> bool:
    return all(pod["status"]["phase"] not in ("Running", "Pending") for pod in live.pods(name))


def test_get_and_list_and_logs_show_the_job(live: Live) -> None:
    name = long_job(live, "seen")
    shown = live.argo("get", name)
    for word in ("round", "learner", "collector", "Running"):
        assert word in shown
    listed = live.argo("list", "-o", "json")
    assert name in {item["metadata"]["name"] for item in json.loads(listed)}
    logs = wait_until(
        "all ranks are in the logs",
        lambda: t if (t := live.argo("logs", name, "--no-color")).count("hello from rank") == 3 else None,
    )
    assert {line.split()[-1] for line in logs.splitlines() if "hello from rank" in line} == {"0", "1", "2"}
    live.argo("delete", name)
    wait_until("its pods are gone", lambda: live.pods(name) == [] or None)


def test_the_ui_has_the_columns_and_links_of_the_manifests(live: Live) -> None:
    if live.cluster.argo_server is None:
        pytest.skip("this cluster is not ours: its Argo has settings of its own")
    with urllib.request.urlopen(f"{live.cluster.argo_server}/api/v1/info", timeout=30) as answer:
        found = json.load(answer)
    for name, file in (("columns", ""), ("links", "-links")):
        given = yaml.safe_load((ROOT / "manifests" / "argo" / f"workflow-controller-configmap{file}.yaml").read_text())
        shown = [{key: value for key, value in item.items() if value} for item in found[name]]  # `target` is empty
        assert shown == yaml.safe_load(given["data"][name])


def test_stop_ends_the_job_with_time_to_save(live: Live) -> None:
    name = long_job(live, "stopped", backoff_limit=3)
    live.argo("stop", name)
    live.ends(name, "Failed")
    wait_until("nothing runs", lambda: nothing_runs(live, name))
    codes = [
        status["state"]["terminated"]["exitCode"]
        for pod in live.pods(name)
        for status in pod["status"]["containerStatuses"]
        if status["name"] == "main"
    ]
    assert codes == [143, 143, 143], "each was asked to end, once"


def test_terminate_ends_the_job_at_once(live: Live) -> None:
    name = long_job(live, "terminated")
    live.argo("terminate", name)
    live.ends(name, "Failed")
    wait_until("nothing runs", lambda: nothing_runs(live, name))


def test_suspend_and_resume(live: Live) -> None:
    gate = f"suspended-{secrets.token_hex(2)}"  # that of an earlier try is open already
    failing = live.fails_until_open(gate)
    name = live.submit(job(task("learner", failing), name="suspended", backoff_limit=200))
    live.argo("suspend", name)
    wait_until("it is suspended", lambda: live.workflow(name)["spec"].get("suspend"))
    wait_until("its last attempt is over", lambda: nothing_runs(live, name))
    live.open(gate)
    wait_until("Argo has it", lambda: live.workflow(name).get("status", {}).get("phase") == "Running")
    live.argo("resume", name)
    live.ends(name, "Succeeded")


def test_retry_runs_what_failed_again(live: Live) -> None:
    gate = f"retried-{secrets.token_hex(2)}"  # that of an earlier try is open already
    failing = live.fails_until_open(gate)
    name = live.submit(job(task("learner", RUN), task("collector", failing), name="retried", backoff_limit=0))
    live.ends(name, "Failed")
    live.open(gate)
    live.argo("retry", name)
    wait_until(
        "the collector succeeded",
        lambda: any(pod["status"]["phase"] == "Succeeded" for pod in live.pods(name, "collector")),
    )
    live.running(name, 1)
    live.argo("stop", name)
    live.ends(name, "Failed")


@pytest.mark.parametrize("is_preemptible", [False, True])
def test_diflow_retry_repairs_what_argo_retry_leaves(live: Live, is_preemptible: bool) -> None:
    gate = f"mended-{secrets.token_hex(2)}"  # that of an earlier try is open already
    failing = live.fails_until_open(gate)
    tasks = [task("learner", failing), *([task("collector", "true")] if is_preemptible else [])]
    name = live.submit(job(*tasks, name="left", backoff_limit=1, preemptible=is_preemptible))
    live.ends(name, "Failed")
    live.open(gate)
    live.argo("retry", name)
    wait_until("its status says it", lambda: f"`diflow retry {name}`" in status(live, name).message)
    retry(name, namespace=live.namespace, cluster=live.api)
    live.ends(name, "Succeeded")


def test_resubmit_is_a_second_job_with_names_of_its_own(live: Live) -> None:
    first = live.submit(job(task("learner", "hostname; echo $DI_NODES"), name="original"))
    live.ends(first, "Succeeded")
    second = json.loads(live.argo("resubmit", first, "-o", "json"))["metadata"]["name"]
    assert second != first
    live.ends(second, "Succeeded")
    said = live.logs(pod_name(live.pods(second)[0]))
    assert f"{second}-learner-0\n" in said
    assert f"{second}-learner-0.di.{live.namespace}.svc.cluster.local" in said


def test_submit_under_another_name(live: Live) -> None:
    from diflow.workflows import to_yaml

    yaml = to_yaml(job(task("learner", "hostname"), name="named"))
    live.argo("submit", "-", "--name", "other", stdin=yaml)
    live.ends("other", "Succeeded")
    assert live.pods("other")[0]["spec"]["hostname"] == "other-learner-0"
