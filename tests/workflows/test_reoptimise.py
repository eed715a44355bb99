"""The CronWorkflow of the re-optimisation, and what is refused before Argo sees it."""

from __future__ import annotations

import json
import re
import zoneinfo

import pytest
import yaml

from diflow import InvalidError
from diflow.workflows.reoptimise import render_cron
from diflow.workflows.schedule import check_schedule, check_timezone
from tests.cli.runner import run


def test_one_run_at_a_time_and_none_for_ever() -> None:
    spec = render_cron(schedule=" */15  6-22 * *  mon-fri ", timezone="Europe/Berlin")["spec"]
    assert (spec["schedules"], spec["timezone"]) == (["*/15 6-22 * * mon-fri"], "Europe/Berlin")
    assert spec["concurrencyPolicy"] == "Forbid"
    assert spec["startingDeadlineSeconds"] > 0
    assert spec["successfulJobsHistoryLimit"] > 0
    assert spec["failedJobsHistoryLimit"] > 0
    assert spec["workflowSpec"]["activeDeadlineSeconds"] > 0


def test_the_plan_is_the_output_of_its_one_step() -> None:
    (step,) = render_cron()["spec"]["workflowSpec"]["templates"]
    assert step["container"]["command"] == ["diflow", "allocator", "once", "--output", "/tmp/plan.txt"]
    assert step["outputs"]["parameters"] == [{"name": "plan", "valueFrom": {"path": "/tmp/plan.txt"}}]
    assert step["retryStrategy"]["limit"] == 2


def test_it_is_no_job_of_diflow() -> None:
    made = render_cron()
    assert "app.kubernetes.io/managed-by" not in made["spec"]["workflowMetadata"]["labels"]


def test_its_pod_is_restricted_and_has_an_account_of_its_own() -> None:
    spec = render_cron()["spec"]["workflowSpec"]
    assert spec["serviceAccountName"] == "diflow-reoptimise"
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    context = spec["templates"][0]["container"]["securityContext"]
    assert (context["allowPrivilegeEscalation"], context["readOnlyRootFilesystem"]) == (False, True)
    assert context["capabilities"] == {"drop": ["ALL"]}
    patch = json.loads(spec["podSpecPatch"])
    argos = {c["name"]: c["securityContext"] for c in [*patch["initContainers"], *patch["containers"]]}
    confined = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert argos == {"init": confined, "wait": confined}


def test_the_image_is_a_parameter_of_the_workflow() -> None:
    spec = render_cron(image="registry.local/diflow:7")["spec"]["workflowSpec"]
    assert spec["arguments"]["parameters"] == [{"name": "image", "value": "registry.local/diflow:7"}]
    assert spec["templates"][0]["container"]["image"] == "{{workflow.parameters.image}}"


@pytest.mark.parametrize(
    "schedule",
    ["0 * * * *", "*/5 0-6,18-23 ? jan,JUL-dec *", "59 23 31 12 6", "0 0 1 */3 sun-sat", "0-30/10 2 * * 1,3,5"],
)
def test_a_cron_expression_as_argo_reads_it(schedule: str) -> None:
    check_schedule(schedule)


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        ("", "has 0 fields, not the five of a cron expression"),
        ("0 0 * * * *", "has 6 fields"),
        ("@hourly", "has 1 fields"),
        ("60 * * * *", "'60' is no minute: 0 to 59 are allowed"),
        ("0 24 * * *", "'24' is no hour"),
        ("0 0 0 * *", "'0' is no day of the month: 1 to 31"),
        ("0 0 * may-foo *", "'may-foo' is no month: 1 to 12 are allowed, or jan to dec"),
        ("0 0 * * 7", "'7' is no day of the week: 0 to 6 are allowed, or sun to sat"),
        ("0 18-6 * * *", "the range '18-6' of the hour runs backwards"),
        ("*/0 * * * *", "the step in '*/0' of the minute cannot be 0"),
        ("5, * * * *", "'' is no minute"),
        ("-5 * * * *", "'-5' is no minute"),
        ("² * * * *", "is no minute"),
    ],
)
def test_what_is_wrong_in_a_cron_expression_is_named(schedule: str, words: str) -> None:
    with pytest.raises(InvalidError, match=re.escape(words)) as caught:
        render_cron(schedule=schedule)
    assert caught.value.path == "schedule"


@pytest.mark.parametrize(
    ("timezone", "words"),
    [
        ("Europe/Berln", "did you mean Europe/Berlin?"),
        ("europe/berlin", "did you mean Europe/Berlin?"),
        ("new york", "did you mean America/New_York?"),
        ("", "such as Europe/Berlin or UTC"),
        ("Moon/Sea of Clouds", "such as Europe/Berlin or UTC"),
        ("../../etc/passwd", "there is no time zone"),
    ],
)
def test_a_time_zone_that_is_none_is_refused_with_a_proposal(timezone: str, words: str) -> None:
    with pytest.raises(InvalidError, match=re.escape(words)):
        check_timezone(timezone)


def test_without_a_database_of_time_zones_the_name_is_taken_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zoneinfo, "available_timezones", set[str])
    check_timezone("Europe/Berlin")


@pytest.mark.parametrize("image", ["", "a b", "{{x}}"])
def test_an_image_that_is_none_is_refused(image: str) -> None:
    with pytest.raises(InvalidError, match="image: "):
        render_cron(image=image)


def test_the_command_prints_it() -> None:
    result = run("cron", "--schedule", "30 4 * * *", "--timezone", "Asia/Tokyo", "--image", "mine:1", "-n", "ops")
    assert (result.code, result.err) == (0, "")
    made = yaml.safe_load(result.out)
    assert (made["kind"], made["metadata"]["namespace"]) == ("CronWorkflow", "ops")
    assert made == render_cron(schedule="30 4 * * *", timezone="Asia/Tokyo", image="mine:1", namespace="ops")


def test_the_command_says_what_is_wrong_in_one_line() -> None:
    result = run("cron", "--timezone", "Berlin")
    assert result.code == 2
    assert result.err == "error: timezone: there is no time zone 'Berlin': did you mean Europe/Berlin?\n"
