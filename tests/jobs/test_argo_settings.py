"""The settings of Argo's controller: read from its Deployment and ConfigMap, and what doctor says about them."""

from __future__ import annotations

import pytest

from diflow.jobs.checks.argo_settings import ArgoSettings, parsed, remarks, seconds
from diflow.kube.kinds import CONFIG_MAP
from tests.cli.runner import Cli

CALM = ArgoSettings("argo", requeue_seconds=1.0, qps=100.0)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("10s", 10.0), ("1m30s", 90.0), ("500ms", 0.5), ("1.5h", 5400.0), ("0s", 0.0),
        ("", 0.0), ("10", 0.0), ("-1s", 0.0), ("1s " * 30, 0.0), ("1x", 0.0), ("s", 0.0),
    ],
)  # fmt: skip
def test_a_length_of_time_is_read_as_go_does(text: str, value: float) -> None:
    assert seconds(text) == pytest.approx(value)


def test_without_settings_they_are_argos_defaults() -> None:
    assert parsed("argo", [], {}, {}) == ArgoSettings("argo")


def test_flags_environment_and_both_forms_of_the_config_map_are_read() -> None:
    words = ["workflow-controller", "--qps=80", "--workflow-workers", "8", "--namespaced"]
    flat = parsed("argo", words, {"DEFAULT_REQUEUE_TIME": "2s"}, {"parallelism": "5", "instanceID": "blue"})
    assert flat == ArgoSettings(
        "argo", requeue_seconds=2.0, qps=80.0, workers=8, managed_namespace="argo", parallelism=5, instance_id="blue"
    )
    whole = "namespaceParallelism: 3\nworkflowRestrictions: {templateReferencing: Strict}\n"
    assert parsed("argo", ["--managed-namespace=ml"], {}, {"config": whole}) == ArgoSettings(
        "argo", managed_namespace="ml", namespace_parallelism=3, restrictions="Strict"
    )


@pytest.mark.parametrize(
    "config",
    [
        {"parallelism": "many", "instanceID": ""},
        {"config": "- a\n- b"},
        {"config": "{" * 5000, "workflowRestrictions": "Strict"},
        {"parallelism": "1e400", "namespaceParallelism": "-3"},
        {"parallelism": "[" * 200_000},
    ],
)
def test_an_invalid_value_counts_as_the_default(config: dict[str, str]) -> None:
    assert parsed("argo", ["--qps", "--workflow-workers=x"], {"DEFAULT_REQUEUE_TIME": "soon"}, config) == ArgoSettings(
        "argo"
    )


@pytest.mark.parametrize(
    ("settings", "text", "is_fatal"),
    [
        (ArgoSettings("argo", qps=100.0), "after 10 s", False),
        (ArgoSettings("argo", requeue_seconds=1.0), "at most 20 requests a second", False),
        (ArgoSettings("argo", 1.0, 100.0, instance_id="blue"), "instance id 'blue'", True),
        (ArgoSettings("argo", 1.0, 100.0, managed_namespace="ml"), "only the Workflows of namespace ml", True),
        (ArgoSettings("argo", 1.0, 100.0, restrictions="Secure"), "workflowRestrictions are Secure", True),
        (ArgoSettings("argo", 1.0, 100.0, parallelism=5), "jobs that wait for capacity count", False),
        (ArgoSettings("argo", 1.0, 100.0, namespace_parallelism=5), "namespaceParallelism is 5", False),
    ],
)
def test_each_setting_that_should_change_has_a_remark(settings: ArgoSettings, text: str, *, is_fatal: bool) -> None:
    (remark,) = remarks(settings, namespace="default")
    assert text in remark.what
    assert remark.is_fatal == is_fatal


def test_good_settings_have_none() -> None:
    assert remarks(CALM, namespace="default") == []
    assert remarks(ArgoSettings("argo", 1.0, 100.0, managed_namespace="ml"), namespace="ml") == []


def test_doctor_advises_and_passes_and_fails_where_jobs_cannot_run(diflow: Cli) -> None:
    diflow.prepare()
    result = diflow("doctor")
    assert result.code == 0
    assert "! Argo's settings: it looks at a job that has changed after 10 s" in result.out
    assert "deployment/workflow-controller DEFAULT_REQUEUE_TIME=1s" in result.out
    config = {"metadata": {"name": "workflow-controller-configmap"}, "data": {"instanceID": "blue"}}
    diflow.api.add(CONFIG_MAP, config)
    result = diflow("doctor")
    assert result.code == 5
    assert "✗ Argo's settings: it runs only Workflows with the instance id 'blue'" in result.out
