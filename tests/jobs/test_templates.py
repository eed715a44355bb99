"""The API server checks the pod templates of a job before it is created. What it says of them on a real cluster is in
tests/e2e/test_templates.py."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import yaml

from diflow.common.errors import InvalidError, UnavailableError
from diflow.jobs.checks import templates
from diflow.kube.kinds import POD_TEMPLATE, WORKFLOW
from tests.builders import job, manifest, task
from tests.cli.runner import Cli
from tests.kube.fakeapi import Answer, Request, status

FORBIDDEN = (
    'podtemplates is forbidden: User "ann" cannot create resource "podtemplates" in API group "" in the namespace '
    '"default"'
)
UNASKED = "Kubernetes could not check the pod templates"


def answers(diflow: Cli, answer: Answer) -> None:
    """What the API server says of each pod template."""
    diflow.api.rule(lambda r: answer if _is_of_template(r) else None)


def refuses(diflow: Cli, field: str, message: str = "Invalid value") -> None:
    answers(diflow, status(422, "invalid", details={"causes": [{"field": field, "message": message}]}))


def _is_of_template(request: Request) -> bool:
    return request.path == POD_TEMPLATE.path("default")


def named(name: str) -> dict[str, Any]:
    return {**manifest(), "metadata": {"name": name}}


def asked(diflow: Cli) -> list[dict[str, Any]]:
    return [request.body for request in diflow.api.requests if _is_of_template(request)]


@pytest.mark.parametrize(
    ("field", "path"),
    [
        ("template.spec.containers[0].ports[1].name", "spec.tasks[0].template.spec.containers[0].ports[1].name"),
        ("template.spec.volumes[0].nfs.path", "spec.tasks[0].template.spec.volumes[0].nfs.path"),
        ("template.spec.volumes[1].nfs.path", "spec.volumes[1].nfs.path"),
        ("template.labels", "spec.tasks[0].template.metadata.labels"),
        ("template.annotations[a]", "spec.tasks[0].template.metadata.annotations.a"),
        ("template.spec.nodeSelector[a/b-2]", "spec.tasks[0].template.spec.nodeSelector.a/b-2"),
        ("metadata.name", "spec.tasks[0].template"),
    ],
)
def test_a_field_is_named_as_the_job_has_it(diflow: Cli, field: str, path: str) -> None:
    refuses(diflow, field, "must be another one")
    own = [{"name": "own", "emptyDir": {}}]
    shared = ({"name": "own", "emptyDir": {"medium": "Memory"}}, {"name": "shared", "emptyDir": {}})
    made = job(task(volumes=own), volumes=shared)
    with pytest.raises(InvalidError, match="the cluster refuses PodTemplate learner: must be another one") as caught:
        templates.check(diflow.api.cluster(), made, namespace="default")
    assert caught.value.path == path


def test_a_refused_job_leaves_nothing_behind(diflow: Cli) -> None:
    diflow.prepare()
    refuses(diflow, "template.spec.dnsPolicy", 'Unsupported value: "Mine"')
    result = diflow("submit", diflow.file("job.yaml", manifest()))
    assert result.code == 2
    assert "spec.tasks[0].template.spec.dnsPolicy: the cluster refuses PodTemplate learner: Unsupported" in result.err
    assert [r for r in diflow.api.requests if r.method == "POST" and "dryRun" not in r.query] == []
    assert WORKFLOW.path("default") not in diflow.api.objects


def test_a_dijob_object_is_refused_before_it_is_created(diflow: Cli) -> None:
    diflow.prepare()
    refuses(diflow, "template.spec.dnsPolicy")
    result = diflow("submit", "--as", "dijob", diflow.file("job.yaml", manifest()))
    assert result.code == 2
    assert "spec.tasks[0].template.spec.dnsPolicy" in result.err
    assert [r for r in diflow.api.requests if r.method == "POST" and "dryRun" not in r.query] == []


def test_what_is_asked_has_all_that_the_pods_have_and_no_name_that_diflow_sets(diflow: Cli) -> None:
    made = job(
        task(volumes=[{"name": "own", "emptyDir": {}}], restartPolicy="Always", container={"name": ""}),
        volumes=({"name": "shared", "emptyDir": {}}, {"name": "own", "emptyDir": {"medium": "Memory"}}),
    )
    templates.check(diflow.api.cluster(), made, namespace="default")
    (body,) = asked(diflow)
    spec = body["template"]["spec"]
    assert [volume["name"] for volume in spec["volumes"]] == ["own", "shared"]
    assert (spec["restartPolicy"], spec["containers"][0]["name"], "hostname" in spec) == ("Never", "main", False)


def test_templates_that_are_alike_are_asked_about_once(diflow: Cli) -> None:
    made = job(task("learner"), task("collector"), task("evaluator", "false"))
    templates.check(diflow.api.cluster(), made, namespace="default")
    assert [body["metadata"]["name"] for body in asked(diflow)] == ["learner", "evaluator"]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (status(403, FORBIDDEN), "lacks the right to create podtemplates"),
        (status(400, 'admission webhook "w" does not support dry run'), "does not support dry run"),
        (status(403, "exceeded quota: objects"), "exceeded quota"),
    ],
)
def test_where_the_api_server_cannot_be_asked_it_is_said_once_and_the_job_runs(
    diflow: Cli, answer: Answer, why: str
) -> None:
    diflow.prepare()
    answers(diflow, answer)
    both = yaml.safe_dump_all([named("a"), named("b")])
    result = diflow("submit", "--all", diflow.file("jobs.yaml", both))
    assert result.code == 0
    assert result.err.count(UNASKED) == 1
    assert why in result.err
    assert sorted(diflow.api.objects[WORKFLOW.path("default")]) == ["a", "b"]


def test_a_program_is_warned(diflow: Cli) -> None:
    diflow.prepare()
    answers(diflow, status(403, FORBIDDEN))
    with pytest.warns(UserWarning, match=UNASKED):
        job().submit(cluster=diflow.api.cluster())
    assert list(diflow.api.objects[WORKFLOW.path("default")]) == ["job"]


def test_a_template_that_the_api_server_cannot_read_is_refused(diflow: Cli) -> None:
    answers(
        diflow, status(400, 'PodTemplate in version "v1" cannot be handled as a PodTemplate: json: cannot unmarshal')
    )
    with pytest.raises(InvalidError, match="cannot unmarshal") as caught:
        templates.check(diflow.api.cluster(), job(), namespace="default")
    assert caught.value.path == "spec.tasks[0].template"


def test_an_api_server_that_cannot_answer_now_is_no_reason_to_create_the_job(diflow: Cli) -> None:
    answers(diflow, status(503, "starting"))
    with pytest.raises(UnavailableError):
        templates.check(diflow.api.cluster().without_retries(), job(), namespace="default")


def test_a_template_of_that_name_in_the_namespace_is_in_nobodys_way(diflow: Cli) -> None:
    diflow.api.add(POD_TEMPLATE, {"metadata": {"name": "learner"}})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        templates.check(diflow.api.cluster(), job(), namespace="default", tell=pytest.fail)


def lint(diflow: Cli, *arguments: str) -> Any:
    return diflow("lint", "--cluster", "--kubeconfig", str(diflow.kubeconfig), *arguments)


def test_lint_asks_a_cluster_if_it_is_told_to_and_names_the_line(diflow: Cli) -> None:
    refuses(diflow, "template.spec.dnsPolicy", "Unsupported value")
    text = (
        "apiVersion: diengine.opendilab.org/v2alpha1\nkind: DIJob\nmetadata: {name: a}\nspec:\n  tasks:\n"
        "  - type: learner\n    template:\n      spec:\n        dnsPolicy: Mine\n"
        "        containers: [{name: c, image: 'x:1', command: ['true']}]\n"
    )
    name = diflow.file("a.yaml", text)
    assert diflow("lint", name).code == 0
    assert asked(diflow) == []
    result = lint(diflow, name)
    assert result.code == 2
    assert f"{name}: spec.tasks[0].template.spec.dnsPolicy: " in result.err
    assert "Unsupported value (line 9)" in result.err


def test_lint_says_once_that_no_cluster_answers_and_checks_the_rest(diflow: Cli) -> None:
    files = [diflow.file(f"{name}.yaml", named(name)) for name in ("a", "b")]
    answers(diflow, status(403, FORBIDDEN))
    result = lint(diflow, *files)
    assert (result.code, result.err.count(UNASKED), result.out.count("ok (")) == (0, 1, 2)
    result = diflow("lint", "--cluster", "--kubeconfig", str(diflow.folder / "none"), *files)
    assert (result.code, result.err.count(UNASKED), result.out.count("ok (")) == (0, 1, 2)


def test_doctor_says_where_templates_are_not_checked(diflow: Cli) -> None:
    diflow.prepare()
    assert "check of pod templates in default" in diflow("doctor").out
    answers(diflow, status(403, FORBIDDEN))
    said = diflow("doctor")
    assert "lacks the right to create podtemplates" in said.out
    assert "manifests/crds/roles.yaml" in said.out + said.err
