"""A DIJob as a step of a larger Workflow, as a user of Argo sees it: stop, terminate, retry, and a resize meanwhile."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hera.workflows import RetryStrategy, Step, Steps, Workflow
from hera.workflows.models import TemplateRef

from diflow import DIJob
from diflow.common import keys
from diflow.workflows import step
from tests.builders import job, task
from tests.clusters import ROOT, TestCluster, wait_until
from tests.e2e.allocators import Daemon
from tests.e2e.live import Live
from tests.e2e.test_cartpole import image
from tests.e2e.test_crd import install
from tests.e2e.test_dijobs import controller, phase
from tests.workflows.golden import pipeline_module

__all__ = ["image"]
NAME = "outer"


@pytest.fixture
def live(argo40: TestCluster, tmp_path: Path) -> Iterator[Live]:
    """A namespace with the account of steps, and a controller."""
    with argo40.namespace("pipeline") as namespace:
        found = Live(argo40, namespace)
        install(found)
        found.kubectl("apply", "-k", str(ROOT / "manifests" / "pipelines"))
        with controller(found, tmp_path / "controller.log"):
            try:
                yield found
            finally:
                found.kubectl("delete", "workflows,dijobs", "--all", "--wait=false", check=False)


@pytest.fixture
def running(live: Live, tmp_path: Path) -> Iterator[Daemon]:
    """An allocator for the namespace."""
    made = Daemon(live.cluster, live.namespace, tmp_path / "allocator.log")
    made.start()
    try:
        yield made
    finally:
        made.stop()


def steps(live: Live) -> dict[str, str]:
    """The phase of each step of the outer Workflow."""
    return {node["templateName"]: node["phase"] for node in live.nodes(NAME) if node["type"] in ("Pod", "Skipped")}


def newest(live: Live) -> str:
    """The DIJob that was created last."""
    found = live.get("dijobs")["items"]
    return str(max(found, key=lambda obj: obj["metadata"]["creationTimestamp"])["metadata"]["name"]) if found else ""


def next_job(live: Live, *before: str) -> str:
    """Wait until the step runs another job than those before, and all of its replicas are ready."""
    wait_until("the step has a job", lambda: newest(live) not in ("", *before), timeout=180)
    name = newest(live)
    wait_until("it runs", lambda: phase(live, name) == "Running", timeout=240)
    return name


def nothing_runs(live: Live, name: str) -> bool:
    return all(pod["status"]["phase"] not in ("Running", "Pending") for pod in live.pods(name))


@pytest.mark.xdist_group("node")
@pytest.mark.usefixtures("image", "running")
def test_a_pipeline_is_stopped_terminated_and_retried_with_its_job_which_is_resized_while_it_waits(live: Live) -> None:
    trained = DIJob.from_yaml(ROOT / "examples" / "pipeline" / "job.yaml").model_copy(update={"scheduling": "gang"})
    live.argo("lint", "--kinds=workflowtemplates", str(ROOT / "manifests" / "pipelines" / "template.yaml"))
    live.argo("submit", "-", stdin=pipeline_module().pipeline(trained, name=NAME, steps=100_000).to_yaml())
    tried: list[str] = []
    for verb in ("stop", "terminate"):
        tried.append(next_job(live, *tried))
        live.argo(verb, NAME)
        live.ends(NAME, "Failed")
        wait_until(f"{verb} reaches the job", lambda: phase(live, tried[-1]) == "Failed", timeout=120)
        wait_until("its pods have ended", lambda: nothing_runs(live, tried[-1]))
        assert {name: steps(live)[name] for name in ("prepare", "train")} == {"prepare": "Succeeded", "train": "Failed"}
        live.argo("retry", NAME, "-p", "steps=600")

    last = next_job(live, *tried)
    tasks = live.get("dijob", last)["spec"]["tasks"]
    tasks[1]["replicas"] = 3
    live.kubectl("patch", "dijob", last, "--type=merge", "-p", json.dumps({"spec": {"tasks": tasks}}))
    wait_until("it has grown", lambda: live.get("dijob", last)["status"].get("readyReplicas") == 4, timeout=120)
    assert "train" in live.argo("get", NAME)
    live.ends(NAME, "Succeeded")
    assert steps(live) == {
        "prepare": "Succeeded", "train": "Succeeded", "evaluate": "Succeeded", "promote": "Succeeded",
        "reject": "Skipped",
    }  # fmt: skip
    prepared = [node for node in live.nodes(NAME) if node.get("templateName") == "prepare"]
    assert len(prepared) == 1, "it was not run again"
    (train,) = [node for node in live.nodes(NAME) if node.get("templateName") == "train" and node["type"] == "Pod"]
    outputs = {item["name"]: item["value"] for item in train["outputs"]["parameters"]}
    assert outputs["job"] == last
    assert json.loads(outputs["result"])["a"] == pytest.approx(3, abs=0.3)

    owned = {obj["metadata"]["name"] for obj in live.get("dijobs")["items"]}
    assert owned == {*tried, last}
    live.argo("delete", NAME)
    wait_until("its jobs are gone", lambda: not live.get("dijobs")["items"], timeout=120)


def test_the_template_in_yaml_returns_the_result_and_a_step_is_tried_again_with_another_job(live: Live) -> None:
    spec = """
      scheduling: none
      tasks:
        - type: learner
          template:
            spec:
              containers:
                - name: di-container
                  image: docker.io/library/busybox:local
                  command: [sh, -c, 'echo "of {{workflow.name}}" > /dev/termination-log']
                  resources: {requests: {cpu: 20m, memory: 16Mi}}
    """
    fails = job(task(command='test "$CODE" = 0 || exit "$CODE"'), name="fails", backoff_limit=0, scheduling="none")
    with Workflow(name=NAME, entrypoint="main", service_account_name=keys.WORKER_ACCOUNT) as outer:
        failing = step(fails, parameters={"CODE": "3"}, retry_strategy=RetryStrategy(limit="1"))
        with Steps(name="main") as main, main.parallel():
            failing(name="fails")
            Step(
                name="fit",
                template_ref=TemplateRef(name="diflow", template="dijob"),
                arguments={"name": "fit", "spec": spec},
            )
    live.argo("submit", "-", stdin=outer.to_yaml())
    live.ends(NAME, "Failed")
    pods = [node for node in live.nodes(NAME) if node["type"] == "Pod"]
    (good,) = [node for node in pods if node["displayName"] == "fit"]
    outputs = {item["name"]: item["value"] for item in good["outputs"]["parameters"]}
    assert outputs["result"].strip() == f"of {NAME}"
    assert len([node for node in pods if node["phase"] == "Failed"]) == 2
    jobs = live.get("dijobs")["items"]
    assert sorted(obj["metadata"]["name"].rpartition("-")[0] for obj in jobs) == ["fails", "fails", "fit"]
    messages = {obj["status"]["message"] for obj in jobs if obj["status"]["phase"] == "Failed"}
    assert len(messages) == 1
    assert "exit code 3" in messages.pop()
