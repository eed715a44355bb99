"""The API server checks the pod templates of a DIJob object before its Workflow is made."""

from __future__ import annotations

import pytest
import structlog

from diflow.kube.kinds import POD, POD_TEMPLATE, WORKFLOW
from tests.controller.lab import Lab, lab
from tests.controller.test_controller import pod
from tests.kube.fakeapi import Answer, status

FORBIDDEN = (
    'podtemplates is forbidden: User "system:serviceaccount:diflow-system:diflow-controller" cannot create resource '
    '"podtemplates" in API group "" in the namespace "default"'
)


def answers(at: Lab, answer: Answer) -> None:
    at.api.rule(lambda r: answer if r.path == POD_TEMPLATE.path("default") else None)


def asked(at: Lab) -> int:
    return len(at.api.seen("POST", POD_TEMPLATE.plural))


def refusal(field: str) -> Answer:
    return status(422, "invalid", details={"causes": [{"field": field, "message": "Unsupported value"}]})


def test_a_job_whose_template_is_refused_ends_failed_and_is_not_tried_again() -> None:
    with lab() as at:
        at.begin()
        answers(at, refusal("template.spec.dnsPolicy"))
        at.apply()
        at.until(lambda: at.phase() == "Failed", "it has failed")
        assert at.message().startswith("spec.tasks[0].template.spec.dnsPolicy: the cluster refuses PodTemplate ")
        for _ in range(30):
            at.step()
        assert (asked(at), at.workflows()) == (1, {})


def test_the_module_of_a_job_with_a_coordinator_is_named() -> None:
    with lab() as at:
        at.begin()
        answers(at, refusal("template.spec.dnsPolicy"))
        at.apply_old()
        at.until(lambda: at.phase("old") == "Failed", "it has failed")
        assert at.message("old").startswith(
            "spec.coordinator.template.spec.dnsPolicy: the cluster refuses PodTemplate "
        )


def test_an_api_server_that_cannot_answer_now_is_asked_again() -> None:
    with lab() as at:
        at.begin()
        answers(at, status(503, "starting"))
        at.apply()
        at.until(lambda: asked(at) >= 3, "it is asked again")
        assert (at.phase() == "Failed", at.workflows()) == (False, {})
        at.api.rules.clear()
        at.until(at.workflows, "the Workflow is made", seconds=120)


@pytest.mark.parametrize("answer", [status(403, FORBIDDEN), status(400, "a webhook does not support dry run")])
def test_a_controller_that_cannot_ask_says_so_once_and_makes_the_workflows(answer: Answer) -> None:
    with structlog.testing.capture_logs() as logs, lab() as at:
        at.begin()
        answers(at, answer)
        at.apply("one")
        at.apply("two")
        at.until(lambda: len(at.workflows()) == 2, "the Workflows are made")
    assert len([one for one in logs if one["event"] == "pod templates are not checked by the API server"]) == 1


def test_the_api_server_is_asked_once_about_a_job_that_waits_until_the_job_changes() -> None:
    with lab() as at:
        at.begin()
        pod(at, "theirs", of="job")
        at.apply()
        at.until(lambda: asked(at) == 1, "it is asked")
        for _ in range(90):
            at.step()
        tried = at.api.seen("POST", WORKFLOW.plural)
        assert (asked(at), len(tried), at.workflows()) == (1, 1, {})
        at.apply(activeDeadlineSeconds=1000)
        at.until(lambda: asked(at) == 2, "it is asked about the change", seconds=120)
        at.api.remove(POD, "theirs")
        at.until(at.workflows, "the Workflow is made", seconds=120)
        assert asked(at) == 2
