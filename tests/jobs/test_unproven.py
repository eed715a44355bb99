"""Jobs whose programs send the server no token: recognised, and named in the server's refusal."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest

from diflow.jobs.checks.unproven import why_needed
from diflow.kube.kinds import CONFIG_MAP, DEPLOYMENT, WORKFLOW
from tests.builders import manifest, template
from tests.cli.placed import dijob, put
from tests.cli.runner import Cli
from tests.kube.fakeapi import status

_DITASK = ["/bin/bash", "-c", "ditask --labels learner \\\n  --package . --parallel-workers 1 --platform k8s"]


def with_container(annotations: dict[str, str] | None = None, **container: Any) -> dict[str, Any]:
    made = manifest(tasks=[{"type": "learner", "template": template(container=container)}])
    return {**made, "metadata": {"name": "job", "annotations": annotations or {}}}


def server(diflow: Cli, **env: str) -> None:
    containers = [{"name": "server", "env": [{"name": name, "value": value} for name, value in env.items()]}]
    made = {"metadata": {"name": "diflow-server"}, "spec": {"template": {"spec": {"containers": containers}}}}
    diflow.api.add(DEPLOYMENT, made, namespace="diflow-system")


@pytest.mark.parametrize(
    ("job", "why"),
    [
        (with_container(command=_DITASK), "spec.tasks[0] runs DI-engine (ditask)"),
        (with_container(command=["sh"], args=["-c", "cd /x && ding -m dist"]), "spec.tasks[0] runs DI-engine (ding)"),
        (with_container(command=["/opt/bin/ditask"]), "runs DI-engine (ditask)"),
        (with_container(image="opendilab/ding:v0.3.1"), "runs DI-engine (image opendilab/ding:v0.3.1)"),
        (
            with_container(image="registry:5000/x/ding@sha256:00"),
            "runs DI-engine (image registry:5000/x/ding@sha256:00)",
        ),
        (with_container({"diflow/sends-token": "false"}), 'its annotation diflow/sends-token is "false"'),
    ],
)
def test_a_job_whose_programs_send_no_token_is_recognised(job: dict[str, Any], why: str) -> None:
    assert why in why_needed(job)


@pytest.mark.parametrize(
    "job",
    [
        manifest(),
        with_container({"diflow/sends-token": "true"}, command=_DITASK, image="opendilab/ding"),
        with_container(command=["python", "bidding.py", "--ding-dong", "my-ding", "ding.py"]),
        with_container(image="opendilab/dingo:1"),
        {},
        {"metadata": 3, "spec": {"tasks": [None, {"template": {"spec": {"containers": [None, {"command": "ding"}]}}}]}},
        {"spec": {"tasks": {"a": 1}}},
    ],
)  # fmt: skip
def test_other_jobs_are_not_and_nothing_in_a_manifest_is_believed(job: dict[str, Any]) -> None:
    assert why_needed(job) == ""


@pytest.mark.parametrize("part", ["/", "a/", " ding-", "\n"])
def test_the_time_to_look_through_a_command_grows_with_its_length_alone(part: str) -> None:
    short, long = (_seconds_to_look(part * (size // len(part))) for size in (250_000, 1_000_000))
    # 4 times if linear, 16 times if quadratic; times below 0.01 s are noise.
    assert long < 10 * max(short, 0.01)


def _seconds_to_look(text: str) -> float:
    job, best = with_container(command=[text]), math.inf
    for _ in range(3):
        began = time.process_time()
        assert why_needed(job) == ""
        best = min(best, time.process_time() - began)
    return best


def test_submit_warns_where_the_server_refuses_such_a_job_and_makes_it_all_the_same(diflow: Cli) -> None:
    diflow.prepare()
    server(diflow)
    result = diflow("submit", diflow.file("job.yaml", with_container(command=_DITASK)))
    assert (result.code, result.out) == (0, "job\n")
    assert (
        "warning: job job sends the server no token (spec.tasks[0] runs DI-engine (ditask), whose clients send none), "
        "and the server of this cluster refuses its requests and reports (401): DIFLOW_SERVER_UNPROVEN_PODS=true on "
        "the server accepts such jobs (docs/security.md)\n"
    ) in result.err


def test_submit_is_quiet_where_the_server_serves_them_or_is_not_there(diflow: Cli) -> None:
    diflow.prepare()
    path = diflow.file("job.yaml", with_container(command=_DITASK))
    assert "token" not in diflow("submit", path, "--name", "a").err
    server(diflow, DIFLOW_SERVER_UNPROVEN_PODS="True")
    assert "token" not in diflow("submit", path, "--name", "b").err
    server(diflow)
    assert "token" not in diflow("submit", diflow.file("other.yaml", manifest()), "--name", "c").err
    assert len(diflow.api.objects[WORKFLOW.path("default")]) == 3


def test_who_may_not_read_the_deployment_is_told_by_what_everybody_may_read(diflow: Cli) -> None:
    diflow.prepare()
    server(diflow, DIFLOW_SERVER_UNPROVEN_PODS="true")
    diflow.api.rule(lambda r: status(403, "no") if r.path.startswith(DEPLOYMENT.path("diflow-system")) else None)
    path = diflow.file("job.yaml", with_container(command=_DITASK))
    assert "token" not in diflow("submit", path, "--name", "a").err
    said = {"metadata": {"name": "diflow-server"}, "data": {"unprovenPods": "false"}}
    diflow.api.add(CONFIG_MAP, said, namespace="kube-public")
    assert "job b sends the server no token" in diflow("submit", path, "--name", "b").err


def test_doctor_says_how_the_server_is_set_and_names_the_jobs_that_it_refuses(diflow: Cli) -> None:
    diflow.prepare()
    assert "– the server and pods without a token: not checked" in diflow("doctor").out
    server(diflow)
    assert "✓ the server and pods without a token: refused (DIFLOW_SERVER_UNPROVEN_PODS is off)" in diflow("doctor").out
    put(diflow, dijob("old", {"worker": 1}).model_copy(update={"annotations": {"diflow/sends-token": "false"}}))
    result = diflow("doctor")
    assert result.code == 5
    assert (
        "✗ the server and pods without a token: refused, and old send none\n    → their requests and reports"
        in result.out
    )
    server(diflow, DIFLOW_SERVER_UNPROVEN_PODS="on")
    assert "✓ the server and pods without a token: served" in diflow("doctor").out
