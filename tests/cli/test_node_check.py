"""What `diflow describe` says of the node check."""

from __future__ import annotations

import json
import re
import time

from diflow.common import keys
from diflow.kube.kinds import WORKFLOW
from diflow.record.exclusions import Exclusions
from diflow.record.nodecheck import Entry, Record
from tests.cli.runner import Cli
from tests.cli.test_listing import gang


def test_describe_tells_what_the_node_check_has_found(diflow: Cli) -> None:
    job = gang()
    diflow.has(job)
    made = diflow.api.objects[WORKFLOW.path("default")]["cartpole"]
    annotations = made["metadata"]["annotations"]
    assert "Node check" not in diflow("describe", "cartpole").out
    manifest = json.loads(annotations[keys.DIJOB])
    manifest["spec"]["nodeCheck"] = {}
    annotations[keys.DIJOB] = json.dumps(manifest)
    entries = {0: Entry("aaaaaaaa", {"product": 0.1}), 1: Entry("bbbbbbbb", {}, "no disk")}
    annotations[keys.NODE_CHECK] = Record("1", time.time(), entries).to_json()
    left_out = Exclusions().without("node-z", reason="product 9 s", source="node-check", now=time.time())
    annotations[keys.EXCLUDED] = left_out.without(
        "node-y", reason="exit code 201", source="failure", now=time.time()
    ).to_json()
    diflow.api.add(WORKFLOW, made)
    out = diflow("describe", "cartpole").out
    found = re.search(r"^Node check: +(.*)$", out, re.MULTILINE)
    assert "node-z (product 9 s)" in out
    assert found is not None
    assert found[1] == "2 of 3 replicas in round 1; rank 1: no disk"


def _described_with_a_command(diflow: Cli) -> str:
    """What `diflow describe` says about the node check of a job whose check is a command of its own."""
    made = diflow.api.objects[WORKFLOW.path("default")]["cartpole"]
    manifest = json.loads(made["metadata"]["annotations"][keys.DIJOB])
    manifest["spec"]["nodeCheck"] = {"image": "mine", "command": ["check"]}
    made["metadata"]["annotations"][keys.DIJOB] = json.dumps(manifest)
    diflow.api.add(WORKFLOW, made)
    found = re.search(r"^Node check: +(.*)$", diflow("describe", "cartpole").out, re.MULTILINE)
    assert found is not None
    return found[1]


def test_describe_expects_no_results_of_a_command_of_the_jobs_own(diflow: Cli) -> None:
    diflow.has(gang())
    found = _described_with_a_command(diflow)
    assert found == "by a command of the job; it has reported no figures"


def test_describe_names_the_command_that_shows_the_output_of_a_check_that_has_failed(diflow: Cli) -> None:
    job = gang()
    for number, code in ((0, 3), (1, 143)):
        pod = job.pods[number].pod
        assert pod is not None
        ended = {"name": keys.CHECK_CONTAINER, "state": {"terminated": {"exitCode": code}}}
        pod["status"] |= {"phase": "Failed", "initContainerStatuses": [ended]}
        if code == 143:  # the allocator has ended it
            pod["status"]["reason"] = "DeadlineExceeded"
    diflow.has(job)
    found = _described_with_a_command(diflow)
    assert job.pods[0].pod is not None
    name = job.pods[0].pod["metadata"]["name"]
    assert found == (
        "by a command of the job; it failed last on node node-a (exit code 3): "
        f"`kubectl logs -n default {name} -c diflow-check` shows its output"
    )


def test_describe_says_that_no_result_has_reached_a_server(diflow: Cli) -> None:
    """As where no server is installed: the checks run until their time is over, and then the work begins."""
    job = gang()
    for seen in job.pods:
        assert seen.pod is not None
        seen.pod["status"] = {
            "phase": "Pending",
            "initContainerStatuses": [{"name": keys.CHECK_CONTAINER, "state": {"running": {"startedAt": "x"}}}],
        }
        seen.node["phase"] = "Pending"
    diflow.has(job)
    made = diflow.api.objects[WORKFLOW.path("default")]["cartpole"]
    manifest = json.loads(made["metadata"]["annotations"][keys.DIJOB])
    manifest["spec"]["nodeCheck"] = {}
    made["metadata"]["annotations"][keys.DIJOB] = json.dumps(manifest)
    diflow.api.add(WORKFLOW, made)
    out = diflow("describe", "cartpole").out
    found = re.search(r"^Node check: +(.*)$", out, re.MULTILINE)
    assert found is not None
    assert found[1].startswith("0 of 3 replicas in round 1; no result has reached the server yet (`diflow doctor`")
    assert re.search(r"^Message: .*its node check runs", out, re.MULTILINE)
