"""The example is written twice, as YAML and as Python: one job, the same bytes."""

from pathlib import Path

import pytest

JOB_YAML = Path(__file__).parents[2] / "examples" / "cartpole" / "job.yaml"


def test_the_yaml_and_the_python_render_to_the_same_bytes() -> None:
    pytest.importorskip("hera", reason="the library's own dependencies are not installed")
    from cartpole.job import job
    from diflow import DIJob

    from_yaml = DIJob.from_yaml(JOB_YAML)
    assert from_yaml == job
    assert from_yaml.workflow().to_yaml() == job.workflow().to_yaml()


def test_the_job_has_the_roles_that_the_programs_expect() -> None:
    from cartpole.job import job

    assert [(task.name, task.replicas) for task in job.tasks] == [("learner", 1), ("collector", 3), ("evaluator", 1)]
    for task in job.tasks:
        command = task.template["spec"]["containers"][0]["command"]
        assert command == ["python3", "-m", f"cartpole.{task.name}"]
        assert (JOB_YAML.parent / f"{task.name}.py").exists()
