"""The containers of diflow's own in the pods of a job."""

from __future__ import annotations

import pytest

from diflow.allocator.watch.records import planning_record_of
from diflow.common import quantities
from diflow.dijob.model import Monitor, NodeCheck
from diflow.version import __version__
from diflow.workflows import render
from diflow.workflows.pods import CONFINED
from tests.builders import job, task
from tests.workflows.test_render import env, made, made_containers, named, workflow


def test_a_node_check_is_the_first_init_container_with_the_resources_of_the_work() -> None:
    first = {"name": "fetch", "image": "busybox", "command": ["true"]}
    wf = workflow(task(initContainers=[first]), node_check=NodeCheck(timeout_seconds=60), scheduling="gang")
    given = named(wf, "learner")["initContainers"]
    assert [one["name"] for one in given] == ["diflow-check", "fetch"]
    check = given[0]
    assert check["image"] == f"docker.io/diflow/diflow:{__version__}"
    assert check["command"] == ["python3", "-m", "diflow.inpod.check"]
    assert check["resources"] == named(wf, "learner")["container"]["resources"]
    assert check["securityContext"] == CONFINED
    seen = env(check)
    assert seen["DI_CHECK_SECONDS"] == "60"
    assert {"DI_JOB_ID", "DI_SERVER_URL", "DI_RANK", "DI_NODES", "DI_TOKEN_FILE"} <= seen.keys()
    assert "/var/run/secrets/diflow" in {mount["mountPath"] for mount in check["volumeMounts"]}


def test_a_node_check_of_the_users_own_keeps_its_braces() -> None:
    given = NodeCheck(image="my/check", command=("sh", "-c", "echo {{workflow.name}}"))
    wf = workflow(node_check=given, scheduling="gang")
    made = made_containers(wf)["diflow-check"]
    assert (made["image"], made["command"]) == ("my/check", ["sh", "-c", "echo {{workflow.name}}"])
    assert "{{workflow.name}}" not in named(wf, "learner")["podSpecPatch"].replace('"hostname":"{{workflow.name}}', "")


def test_a_node_check_requests_nothing_beyond_the_work() -> None:
    spec = made(workflow(node_check=NodeCheck(), scheduling="gang"))["spec"]
    without = {**spec, "initContainers": [c for c in spec["initContainers"] if c["name"] != "diflow-check"]}
    assert quantities.of_pod(spec) == quantities.of_pod(without)


def test_the_image_of_the_node_check_is_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIFLOW_IMAGE", "registry.example.com/diflow:1")
    wf = workflow(node_check=NodeCheck(), scheduling="gang")
    assert named(wf, "learner")["initContainers"][0]["image"] == "registry.example.com/diflow:1"


VOLUME = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}


def test_a_monitor_shares_the_file_of_the_trainer_with_the_work() -> None:
    wf = workflow(monitor=Monitor())
    containers = made_containers(wf)
    work, monitor = containers["main"], containers["diflow-monitor"]
    assert monitor["image"] == f"docker.io/diflow/diflow:{__version__}"
    assert monitor["command"][-3:] == ["python3", "-m", "diflow.inpod.monitor"]
    assert monitor["securityContext"] == CONFINED
    path = "/var/run/diflow/runtime_metrics.json"
    assert env(work)["RUNTIME_METRICS_PATH"] == env(monitor)["RUNTIME_METRICS_PATH"] == path
    assert env(monitor)["DI_GRACE_SECONDS"] == "30"
    assert {"DI_JOB_ID", "DI_SERVER_URL", "DI_RANK", "DI_TOKEN_FILE"} <= env(monitor).keys()
    for container in (work, monitor):
        mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        assert mounts["/var/run/diflow"] == "diflow-metrics"
        assert "/dev/shm/diflow-checkpoint" not in mounts
    (volume,) = [v for v in made(wf)["spec"]["volumes"] if v["name"] == "diflow-metrics"]
    assert volume["emptyDir"]["sizeLimit"] == "16Mi"


def test_a_monitor_saves_from_memory_to_a_volume_of_the_job() -> None:
    given = Monitor(checkpoint_volume="data", checkpoint_path="runs/a")
    wf = workflow(task(terminationGracePeriodSeconds=90), monitor=given, volumes=(VOLUME,))
    containers = made_containers(wf)
    monitor = containers["diflow-monitor"]
    mounts = {mount["mountPath"]: mount["name"] for mount in monitor["volumeMounts"]}
    shared = {mount["mountPath"]: mount["name"] for mount in containers["main"]["volumeMounts"]}
    assert mounts["/checkpoints"] == "data"
    assert "/checkpoints" not in shared
    memory = "/dev/shm/diflow-checkpoint"
    assert mounts[memory] == shared[memory] == "diflow-checkpoint"
    (volume,) = [v for v in made(wf)["spec"]["volumes"] if v["name"] == "diflow-checkpoint"]
    assert volume["emptyDir"] == {"medium": "Memory"}
    assert env(monitor)["DI_CHECKPOINT_TARGET"] == "/checkpoints/runs/a"
    assert env(monitor)["DI_CHECKPOINT_FOLDER"] == memory
    assert env(monitor)["DI_GRACE_SECONDS"] == "90"


def test_by_default_each_job_has_a_folder_of_its_own_for_checkpoints() -> None:
    made = workflow(monitor=Monitor(checkpoint_volume="data"), volumes=(VOLUME,))
    name = made["metadata"]["name"]
    assert env(made_containers(made)["diflow-monitor"])["DI_CHECKPOINT_TARGET"] == f"/checkpoints/checkpoints/{name}"


def test_a_monitor_leaves_what_the_user_has_chosen() -> None:
    taken = {"name": "diflow-metrics", "emptyDir": {}}
    own = {
        "env": [{"name": "RUNTIME_METRICS_PATH", "value": "/mine"}],
        "volumeMounts": [{"name": "diflow-metrics", "mountPath": "/var/run/diflow/"}],
    }
    wf = workflow(task(container=own, volumes=[taken]), monitor=Monitor())
    containers = made_containers(wf)
    assert env(containers["main"])["RUNTIME_METRICS_PATH"] == "/mine"
    mounts = [mount["name"] for mount in containers["main"]["volumeMounts"] if "run/diflow" in mount["mountPath"]]
    assert mounts == ["diflow-metrics"]
    assert "diflow-metrics-0" not in mounts
    assert {"diflow-metrics", "diflow-metrics-1"} <= {v["name"] for v in made(wf)["spec"]["volumes"]}


def test_the_allocator_counts_what_the_monitor_requests() -> None:
    given = job(monitor=Monitor(), node_check=NodeCheck(), scheduling="gang")
    expected, alone = (planning_record_of(render(one)).needs.roles[0].request for one in (given, job()))
    assert (expected["cpu"], expected["memory"]) == (alone["cpu"] + 10, alone["memory"] + 64)
    spec = made(workflow(monitor=Monitor(), node_check=NodeCheck(), scheduling="gang"))["spec"]
    assert quantities.of_pod(spec) == expected
