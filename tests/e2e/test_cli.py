"""The `diflow` command on a real cluster: a job from submission to deletion, and jobs that cannot start."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from diflow import DIJob
from tests.builders import job, task
from tests.clusters import ROOT, wait_until
from tests.e2e.live import Live

RUN = "trap 'exit 143' TERM; echo hello from rank $DI_RANK; while true; do sleep 0.5; done"


def diflow(live: Live, *arguments: str, timeout: float = 600) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "diflow", *arguments],
        env=live.cluster.environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def ok(live: Live, *arguments: str, timeout: float = 600) -> str:
    done = diflow(live, *arguments, "-n", live.namespace, timeout=timeout)
    assert done.returncode == 0, f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def manifest(folder: Path, made: DIJob) -> str:
    path = folder / f"{made.name}.yaml"
    path.write_text(made.to_yaml(), encoding="utf-8")
    return str(path)


def phases(items: list[dict[str, Any]]) -> dict[str, str]:
    return {item["metadata"]["name"]: item["status"]["phase"] for item in items}


def message(live: Live, name: str) -> str:
    """The message of the job's newest condition."""
    text: str = json.loads(ok(live, "get", name, "-o", "json"))["status"]["conditions"][-1]["message"]
    return text


def nothing_is_left(live: Live, name: str) -> bool:
    selector = f"workflows.argoproj.io/workflow={name}"
    things = live.kubectl("get", "pods", "-l", selector, "-o", "name")
    things += live.kubectl("get", "workflow", name, "--ignore-not-found", "-o", "name")
    return things == ""


def test_a_jobs_life_by_the_command_line(live: Live, tmp_path: Path) -> None:
    work = live.until_open("life")
    file = manifest(tmp_path, job(task("learner", work), task("collector", work, replicas=2), name="life"))
    with ThreadPoolExecutor() as pool:
        watching = pool.submit(diflow, live, "submit", file, "-n", live.namespace, "--watch", timeout=600)
        try:
            live.running("life", 3)
        finally:
            live.open("life")
        watched = watching.result()
    assert watched.returncode == 0
    assert "Succeeded" in watched.stdout + watched.stderr

    got = json.loads(ok(live, "get", "life", "-o", "json"))
    phases = [condition["type"] for condition in got["status"]["conditions"]]
    times = [condition["lastTransitionTime"] for condition in got["status"]["conditions"]]
    assert phases == ["Pending", "Starting", "Running", "Succeeded"]
    assert times == sorted(times)
    assert got["status"]["phase"] == "Succeeded"
    assert got["status"]["taskStatus"] == {"learner": {"Succeeded": 1}, "collector": {"Succeeded": 2}}

    assert "life" in ok(live, "describe", "life")
    assert "life" in ok(live, "list", "-o", "name").split()
    ok(live, "delete", "life")
    wait_until("nothing is left of it", lambda: nothing_is_left(live, "life"))
    assert diflow(live, "get", "life", "-n", live.namespace).returncode == 3


def test_list_agrees_with_argo_list(live: Live, tmp_path: Path) -> None:
    for name, command in (("agree-ok", "true"), ("agree-bad", "exit 3"), ("agree-run", RUN)):
        ok(live, "submit", manifest(tmp_path, job(task("learner", command), name=name, backoff_limit=0)))
    ok(live, "wait", "agree-ok", "--for", "phase=Succeeded", "--timeout", "400s")
    assert diflow(live, "wait", "agree-bad", "-n", live.namespace, "--timeout", "400s").returncode == 1
    ok(live, "wait", "agree-run", "--for", "phase=Running", "--timeout", "400s")
    ours = phases(json.loads(ok(live, "list", "-o", "json"))["items"])
    argos = phases(json.loads(live.argo("list", "-o", "json")))
    names = ("agree-ok", "agree-bad", "agree-run")
    assert {n: ours[n] for n in names} == {n: argos[n] for n in names}
    assert "learner-0" in message(live, "agree-bad")
    assert "exit code 3" in message(live, "agree-bad")
    ok(live, "stop", "agree-run")
    ok(live, "wait", "agree-run", "--for", "phase=Failed", "--timeout", "400s")


def test_logs_of_all_ranks_are_prefixed_and_can_be_narrowed(live: Live, tmp_path: Path) -> None:
    file = manifest(tmp_path, job(task("learner", RUN), task("collector", RUN, replicas=2), name="talk"))
    ok(live, "submit", file)
    ok(live, "wait", "talk", "--for", "phase=Running", "--timeout", "400s")
    wait_until("all have spoken", lambda: ok(live, "logs", "talk").count("hello from rank") == 3, every=2)
    lines = ok(live, "logs", "talk").splitlines()
    assert {line.split("|")[0].strip() for line in lines} == {"learner-0", "collector-0", "collector-1"}
    assert "rank 2" in ok(live, "logs", "talk", "--task", "collector", "--rank", "1")
    assert ok(live, "logs", "talk", "--grep", "rank 0").count("\n") == 1
    ok(live, "delete", "talk")


def test_python_jobs_are_submitted_by_module_and_name(live: Live) -> None:
    shown = diflow(live, "submit", "examples/cartpole/job.py:job", "--dry-run", "-n", live.namespace)
    assert shown.returncode == 0
    assert "kind: Workflow" in shown.stdout


def test_a_name_that_is_taken_is_a_conflict(live: Live, tmp_path: Path) -> None:
    file = manifest(tmp_path, job(task("learner", "sleep 1"), name="taken"))
    ok(live, "submit", file)
    again = diflow(live, "submit", file, "-n", live.namespace)
    assert again.returncode == 4
    assert "taken" in again.stderr
    assert len(again.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        (
            "no-image",
            {"container": {"image": "docker.io/library/nothing:here", "imagePullPolicy": "IfNotPresent"}},
            "image",
        ),
        ("no-command", {"container": {"command": ["/no/such/program"]}}, "/no/such/program"),
        ("too-big", {"container": {"resources": {"requests": {"cpu": "500"}}}}, "cpu"),
    ],
)
def test_a_job_that_cannot_start_says_why(
    live: Live, tmp_path: Path, name: str, change: dict[str, Any], words: str
) -> None:
    ok(live, "submit", manifest(tmp_path, job(task("learner", **change), name=name, backoff_limit=0)))
    wait_until(f"{name} says why", lambda: words in message(live, name), every=2)
    ok(live, "delete", name)
    wait_until("nothing is left of it", lambda: nothing_is_left(live, name))


def test_a_namespace_that_is_not_prepared_is_told_what_to_do(live: Live, tmp_path: Path) -> None:
    file = manifest(tmp_path, job(name="unprepared"))
    bare = f"{live.namespace}-bare"
    live.cluster.kubectl("create", "namespace", bare)
    try:
        done = diflow(live, "submit", file, "-n", bare)
        assert done.returncode == 5
        assert "manifests" in done.stderr
        assert live.cluster.kubectl("get", "workflows,services,pods", "-n", bare, "-o", "name") == ""
        absent = diflow(live, "submit", file, "-n", f"{bare}-not")
        assert absent.returncode in (3, 5)
        assert "Traceback" not in absent.stderr
    finally:
        live.cluster.kubectl("delete", "namespace", bare, "--wait=false")


def test_a_user_without_rights_is_told_which_is_missing(live: Live, tmp_path: Path) -> None:
    token = live.kubectl("create", "token", "diflow-worker").strip()
    config = json.loads(live.cluster.kubectl("config", "view", "--raw", "--minify", "-o", "json"))
    config["users"][0]["user"] = {"token": token}
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(config), encoding="utf-8")
    done = diflow(live, "list", "-n", live.namespace, "--kubeconfig", str(path))
    assert done.returncode == 5
    assert "workflows" in done.stderr
    assert token not in done.stderr


def test_the_server_checks_a_dry_run_and_nothing_is_made(live: Live, tmp_path: Path) -> None:
    ok(live, "submit", manifest(tmp_path, job(name="dry")), "--dry-run=server")
    assert nothing_is_left(live, "dry")


def test_the_doctor_is_content_with_this_cluster(live: Live) -> None:
    done = diflow(live, "doctor", "-n", live.namespace)
    # Other tests install the kind DIJob on this cluster, each with a controller of its own.
    failed = [line for line in done.stdout.splitlines() if line.startswith("✗") and "DIJob objects" not in line]
    assert failed == [], done.stdout + done.stderr
