"""PyTorchJobs and TrainJobs become DIJobs: what carries over, what is named, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from diflow import DIJob
from diflow.common.errors import InvalidError
from diflow.dijob.manifests import Document
from diflow.dijob.migrate.convert import Converted, convert
from tests.cli.runner import run

Json = dict[str, Any]


def role(replicas: int = 1, **fields: Any) -> Json:
    container = {"name": "pytorch", "image": "r/x:1", "command": ["python"], **fields.pop("container", {})}
    return {"replicas": replicas, "template": {"spec": {"containers": [container], **fields.pop("pod", {})}}, **fields}


def pytorchjob(master: Json | None = None, worker: Json | None = None, **spec: Any) -> Json:
    roles = {"Master": master, "Worker": worker}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "a"},
        "spec": {"pytorchReplicaSpecs": {name: one for name, one in roles.items() if one is not None}, **spec},
    }


def trainjob(**spec: Any) -> Json:
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": "a"},
        "spec": {"runtimeRef": {"name": "torch"}, **spec},
    }


def runtime(**policy: Any) -> Json:
    pod = {"spec": {"containers": [{"name": "node", "image": "base:1", "env": [{"name": "A", "value": "1"}]}]}}
    node = {"name": "node", "template": {"spec": {"template": pod}}}
    dataset = {"name": "dataset-initializer", "template": {"spec": {"template": pod}}}
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "ClusterTrainingRuntime",
        "metadata": {"name": "torch"},
        "spec": {
            "mlPolicy": {"numNodes": 2, "torch": {"numProcPerNode": "auto"}, **policy},
            "template": {"spec": {"replicatedJobs": [dataset, node]}},
        },
    }


def one(*objects: Json) -> Converted:
    made, _ = convert([Document(data) for data in objects])
    assert len(made) == 1
    return made[0]


def spec_of(*objects: Json) -> Json:
    return dict(one(*objects).manifest["spec"])


def said(*objects: Json) -> str:
    return "\n".join(map(str, one(*objects).remarks))


def test_master_and_workers_of_one_template_are_one_task() -> None:
    (task,) = spec_of(pytorchjob(role(), role(3)))["tasks"]
    assert (task["name"], task["replicas"]) == ("worker", 4)


def test_master_and_workers_of_two_templates_are_two_tasks_of_which_the_master_is_the_first() -> None:
    tasks = spec_of(pytorchjob(role(), role(3, container={"command": ["other"]})))["tasks"]
    assert [(task["name"], task["replicas"]) for task in tasks] == [("master", 1), ("worker", 3)]


def test_the_run_policy_carries_over() -> None:
    policy = {
        "backoffLimit": 5, "cleanPodPolicy": "All", "activeDeadlineSeconds": 60, "suspend": True,
        "ttlSecondsAfterFinished": 100, "schedulingPolicy": {"queue": "vision"},
    }  # fmt: skip
    made = spec_of(pytorchjob(worker=role(2), runPolicy=policy))
    assert {name: value for name, value in made.items() if name != "tasks"} == {
        **{name: value for name, value in policy.items() if name != "schedulingPolicy"}, "queue": "vision",
    }  # fmt: skip


def test_what_the_operator_does_by_itself_is_written_or_said() -> None:
    given = pytorchjob(worker=role(2))
    assert spec_of(given)["cleanPodPolicy"] == "None"
    assert "spec.runPolicy.backoffLimit: is not set: a DIJob starts a replica again 3 times" in said(given)
    assert spec_of(pytorchjob(worker=role(2, restartPolicy="Never")))["backoffLimit"] == 0
    assert "ExitCode: write spec.failurePolicy" in said(pytorchjob(worker=role(2, restartPolicy="ExitCode")))


def test_an_elastic_job_is_preemptible_with_bounds() -> None:
    elastic = {"minReplicas": 2, "maxReplicas": 8, "rdzvBackend": "c10d", "maxRestarts": 9, "nProcPerNode": 4}
    made = spec_of(pytorchjob(worker=role(4), elasticPolicy=elastic))
    (task,) = made["tasks"]
    assert made["preemptible"] is True
    assert (task["minReplicas"], task["replicas"], task["maxReplicas"]) == (2, 4, 8)
    variables = {item["name"]: item["value"] for item in task["template"]["spec"]["containers"][0]["env"]}
    assert variables == {"PET_NPROC_PER_NODE": "4", "PET_MAX_RESTARTS": "9"}
    assert "spec.elasticPolicy.rdzvBackend: torchrun's own rendezvous is not used" in said(
        pytorchjob(worker=role(4), elasticPolicy=elastic)
    )


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            pytorchjob(worker=role(pod={"schedulerName": "volcano"})),
            "Worker.template.spec.schedulerName: the allocator",
        ),
        (pytorchjob(worker=role(pod={"priorityClassName": "x"})), "priorityClassName: write spec.priority"),
        (pytorchjob(worker=role(pod={"serviceAccountName": "x"})), "create and patch workflowtaskresults"),
        (pytorchjob(role(), role(0)), "spec.pytorchReplicaSpecs.Worker.replicas: 0"),
        (pytorchjob(worker=role(), runPolicy={"ttlSecondsAfterFinished": 0}), "0 s are 60 s here"),
        (pytorchjob(worker=role(), runPolicy={"schedulingPolicy": {"minAvailable": 1}}), "all replicas start together"),
        (pytorchjob(worker=role(), runPolicy={"schedulingPolicy": {"priorityClass": "x"}}), "write spec.priority"),
        (trainjob(trainer={"image": "x:1"}), "spec.runtimeRef: ClusterTrainingRuntime torch is not in the file"),
        (trainjob(trainer={"image": "x:1"}, initializer={"model": {"storageUri": "hf://x"}}), "spec.initializer: "),
        (trainjob(trainer={"image": "x:1"}, runtimePatches=[{"manager": "x"}]), "spec.runtimePatches: "),
    ],
)
def test_what_does_not_carry_over_is_named(given: Json, text: str) -> None:
    assert text in said(given)
    assert text in one(given).text()


@pytest.mark.parametrize(
    ("given", "path", "text"),
    [
        (pytorchjob(worker=role(), runPolcy={}), "spec.runPolcy", "did you mean runPolicy?"),
        (pytorchjob(worker=role(colour=1)), "spec.pytorchReplicaSpecs.Worker.colour", "is not known"),
        (pytorchjob(), "spec.pytorchReplicaSpecs", "has no replicas"),
        (
            pytorchjob(worker=role(container={"env": 3}), nprocPerNode="2"),
            "spec.pytorchReplicaSpecs.Worker.template.spec.containers[0].env", "must be a list, not 3",
        ),
        (pytorchjob(pytorchReplicaSpecs={"Worker": role(), "worker": role()}), "spec.pytorchReplicaSpecs.w", "two of"),
        (pytorchjob(worker={"template": {}}), "spec.pytorchReplicaSpecs.Worker.template.spec", "has no container"),
        (pytorchjob(worker=role(replicas=-1)), "spec.pytorchReplicaSpecs.Worker.replicas", "at least 0"),
        (pytorchjob(worker=role(), runPolicy={"suspend": "yes"}), "spec.runPolicy.suspend", "must be true or false"),
        (pytorchjob(worker=role(), runPolicy={"cleanPodPolicy": "x"}), "spec.runPolicy.cleanPodPolicy", "must be None"),
        (pytorchjob(worker=role(), elasticPolicy={"minReplicas": 3, "maxReplicas": 2}), "spec.elasticP", "is above"),
        (
            pytorchjob(worker=role(container={"imagePullPolice": "x"})),
            "spec.pytorchReplicaSpecs.Worker.template.spec.containers[0].imagePullPolice",
            "did you mean imagePullPolicy?",
        ),
        (trainjob(), "spec.trainer.image", "is in the runtime"),
        (trainjob(trainer={"image": "x", "nodes": 3}), "spec.trainer.nodes", "is not known"),
        (trainjob(runtimeRef={}), "spec.runtimeRef.name", "is missing"),
        (trainjob(trainer={"image": "x", "numProcPerNode": [1]}), "spec.trainer.numProcPerNode", "must be an integer"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_with_its_path(given: Json, path: str, text: str) -> None:
    with pytest.raises(InvalidError) as caught:
        one(given)
    assert caught.value.path.startswith(path)
    assert text in caught.value.message


def test_a_trainjob_is_made_of_its_runtime_and_what_it_sets_itself() -> None:
    trainer = {"numNodes": 3, "command": ["torchrun"], "env": [{"name": "B", "value": "2"}], "numProcPerNode": 8}
    (task,) = spec_of(trainjob(trainer=trainer), runtime())["tasks"]
    (work,) = task["template"]["spec"]["containers"]
    assert (task["replicas"], work["image"], work["command"]) == (3, "base:1", ["torchrun"])
    assert {item["name"]: item["value"] for item in work["env"]} == {"A": "1", "B": "2", "PET_NPROC_PER_NODE": "8"}
    assert "dataset-initializer" in said(trainjob(trainer=trainer), runtime())
    (plain,) = spec_of(trainjob(), runtime())["tasks"]
    assert plain["replicas"] == 2
    assert plain["template"]["spec"]["containers"][0]["env"][-1] == {"name": "PET_NPROC_PER_NODE", "value": "auto"}


def test_a_runtime_without_a_name_is_nobodys() -> None:
    nameless = {**runtime(), "metadata": ["torch"]}
    assert "is not in the file" in said(trainjob(trainer={"image": "x:1"}), nameless)


def test_a_runtime_of_mpi_is_refused() -> None:
    with pytest.raises(InvalidError, match="is a runtime of mpi"):
        one(trainjob(), runtime(mpi={"numProcPerNode": 1}))


def test_the_command_prints_dijobs_that_lint_takes(tmp_path: Path) -> None:
    file = tmp_path / "jobs.yaml"
    file.write_text(
        yaml.safe_dump_all([pytorchjob(role(), role(2)), trainjob(trainer={"image": "x:1", "command": ["y"]})])
    )
    result = run("convert", str(file))
    assert result.code == 0
    made = list(yaml.safe_load_all(result.out))
    assert [DIJob.from_manifest(data).name for data in made] == ["a", "a"]
    assert "warning: " in result.err
    assert run("convert", str(tmp_path / "none.yaml")).code == 2
    file.write_text(yaml.safe_dump({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}}))
    result = run("convert", str(file))
    assert result.code == 2
    assert "Job (batch/v1) is a Job of Kubernetes, and not a DIJob" in result.err
    file.write_text("- 1\n")
    assert run("convert", str(file)).code == 2
