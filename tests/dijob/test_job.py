"""The DIJob model: what it accepts, what it says when it does not, and how it is written back."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from diflow import DIJob, InvalidError, Task, UnknownFieldWarning
from diflow.dijob.yamltext import dump_yaml
from tests.builders import job, manifest, task, template


def invalid(**spec: Any) -> InvalidError:
    with pytest.raises(InvalidError) as caught:
        DIJob.from_manifest(manifest(**spec))
    return caught.value


def learner(**fields: Any) -> dict[str, Any]:
    return {"type": "learner", "template": template(), **fields}


def test_the_defaults_are_those_of_dijob_v2() -> None:
    made = DIJob.from_manifest(manifest())
    assert (made.priority, made.preemptible, made.backoff_limit, made.clean_pod_policy) == (
        "normal",
        False,
        3,
        "Running",
    )
    assert made.scheduling is None
    assert made.tasks[0].name == "learner"
    assert made.tasks[0].replicas == 1


@pytest.mark.parametrize("kind", ["learner", "collector", "evaluator"])
def test_two_tasks_of_one_role_are_refused(kind: str) -> None:
    tasks = [{"type": kind, "name": "a", "template": template()}, {"type": kind, "name": "b", "template": template()}]
    assert invalid(tasks=tasks).message == f"the number of {kind} task is more than one"


def test_a_none_task_needs_a_name() -> None:
    assert invalid(tasks=[{"type": "none", "template": template()}]).message == "none type task has no name"


def test_two_tasks_of_one_name_are_refused() -> None:
    tasks = [learner(), {"type": "none", "name": "learner", "template": template()}]
    assert invalid(tasks=tasks).message == "there is more than one task named learner"


def test_the_first_failure_wins_in_the_order_of_di_orchestrator() -> None:
    nameless = {"type": "none", "template": template()}
    twins = [{"type": "none", "name": "a", "template": template()}] * 2
    two_learners = [learner(), learner(name="b")]
    assert invalid(tasks=[nameless, *two_learners]).message == "none type task has no name"
    assert "learner task is more than one" in invalid(tasks=[*two_learners, nameless]).message
    assert invalid(tasks=[*twins, nameless]).message == "none type task has no name"
    assert "learner task is more than one" in invalid(tasks=[*twins, *two_learners]).message


@pytest.mark.parametrize("limit", [0, 1001, 2**31 - 1])
def test_the_limit_of_restarts_is_a_whole_int32(limit: int) -> None:
    assert DIJob.from_manifest(manifest(backoffLimit=limit)).backoff_limit == limit


@pytest.mark.parametrize("seconds", [60, 2**31 - 1])
def test_how_long_an_ended_job_is_kept(seconds: int) -> None:
    job = DIJob.from_manifest(manifest(ttlSecondsAfterFinished=seconds))
    assert job.ttl_seconds_after_finished == seconds
    assert job.to_manifest()["spec"]["ttlSecondsAfterFinished"] == seconds
    assert DIJob.from_manifest(manifest()).ttl_seconds_after_finished is None


@pytest.mark.parametrize("seconds", [-1, 0, 59, 2**31, "60", 60.0, True])
def test_a_time_to_keep_an_ended_job_that_is_out_of_bounds_is_refused(seconds: object) -> None:
    assert invalid(ttlSecondsAfterFinished=seconds).path == "spec.ttlSecondsAfterFinished"


@pytest.mark.parametrize("seconds", [1, 2**31 - 1])
def test_a_deadline_for_the_start(seconds: int) -> None:
    job = DIJob.from_manifest(manifest(startDeadlineSeconds=seconds))
    assert job.start_deadline_seconds == seconds
    assert job.to_manifest()["spec"]["startDeadlineSeconds"] == seconds
    assert "startDeadlineSeconds" not in DIJob.from_manifest(manifest()).to_manifest()["spec"]


@pytest.mark.parametrize("seconds", [-1, 0, 2**31, "60", 60.0, True])
def test_a_deadline_for_the_start_that_is_out_of_bounds_is_refused(seconds: object) -> None:
    assert invalid(startDeadlineSeconds=seconds).path == "spec.startDeadlineSeconds"


def test_the_name_of_an_application_is_checked() -> None:
    def annotated(name: str) -> dict[str, Any]:
        made = manifest()
        return {**made, "metadata": {**made["metadata"], "annotations": {"diflow/application": name}}}

    assert DIJob.from_manifest(annotated("vision/resnet-50.v2")).annotations == {
        "diflow/application": "vision/resnet-50.v2"
    }
    for name in ("", "a b", "/a", "a/", "a" * 101, "é"):
        with pytest.raises(InvalidError, match="must be the name of an application") as caught:
            DIJob.from_manifest(annotated(name))
        assert caught.value.path == "metadata.annotations.diflow/application"


def test_without_the_allocator_there_is_no_deadline_for_the_start() -> None:
    assert invalid(startDeadlineSeconds=60, scheduling="none").path == "spec.startDeadlineSeconds"


@pytest.mark.parametrize("seconds", [-1, 0, 59, 2**31, "60", 60.0, True])
def test_a_time_for_pending_pods_that_is_out_of_bounds_is_refused(seconds: object) -> None:
    assert invalid(pendingSeconds=seconds).path == "spec.pendingSeconds"


def test_a_time_for_pending_pods_needs_the_allocator() -> None:
    assert DIJob.from_manifest(manifest(pendingSeconds=900)).pending_seconds == 900
    assert invalid(pendingSeconds=900, scheduling="none").path == "spec.pendingSeconds"


def test_health_has_defaults_and_is_off_unless_it_is_asked_for() -> None:
    assert DIJob.from_manifest(manifest()).health is None
    job = DIJob.from_manifest(manifest(health={}))
    assert job.health is not None
    assert (job.health.heartbeat_seconds, job.health.progress_seconds, job.health.first_progress_seconds) == (
        600,
        900,
        7200,
    )
    assert (job.health.action, job.health.max_restarts) == ("report", 3)
    assert job.to_manifest()["spec"]["health"] == {}


def test_health_is_written_as_it_was_given() -> None:
    given = {"heartbeatSeconds": 0, "progressSeconds": 60, "action": "restart", "maxRestarts": 1}
    assert DIJob.from_manifest(manifest(health=given)).to_manifest()["spec"]["health"] == given


@pytest.mark.parametrize("field", ["heartbeatSeconds", "progressSeconds", "firstProgressSeconds"])
@pytest.mark.parametrize("seconds", [-1, 1, 59, 30 * 86_400 + 1, "60", 60.0, True])
def test_a_deadline_of_health_that_is_out_of_bounds_is_refused(field: str, seconds: object) -> None:
    assert invalid(health={field: seconds}).path == f"spec.health.{field}"


@pytest.mark.parametrize(
    ("health", "path"),
    [
        ({"action": "reboot"}, "spec.health.action"),
        ({"maxRestarts": 0}, "spec.health.maxRestarts"),
        ({"maxRestarts": 1001}, "spec.health.maxRestarts"),
        (True, "spec.health"),
        ([], "spec.health"),
    ],
)
def test_health_that_means_nothing_is_refused(health: object, path: str) -> None:
    assert invalid(health=health).path == path


def test_an_unknown_field_of_health_warns() -> None:
    with pytest.warns(UserWarning, match=r"spec.health.beat is not known"):
        DIJob.from_manifest(manifest(health={"beat": 1}))


def test_without_the_allocator_there_is_no_health() -> None:
    assert invalid(health={}, scheduling="none").path == "spec.health"


@pytest.mark.parametrize("limit", [-1, 2**31, 2**63, "3", 3.0, True])
def test_a_limit_of_restarts_that_is_none_is_refused(limit: object) -> None:
    assert invalid(backoffLimit=limit).path == "spec.backoffLimit"


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"preemptible": "yes"}, "spec.preemptible"),
        ({"preemptible": 1}, "spec.preemptible"),
        ({"priority": 5}, "spec.priority"),
        ({"tasks": [learner(replicas="3")]}, "spec.tasks[0].replicas"),
        ({"tasks": [learner(replicas=2.0)]}, "spec.tasks[0].replicas"),
        ({"volumes": 5}, "spec.volumes"),
        ({"volumes": "none"}, "spec.volumes"),
    ],
)
def test_nothing_is_converted_that_kubernetes_would_not_convert(change: dict[str, Any], path: str) -> None:
    error = invalid(**change)
    assert error.path == path
    assert error.message.startswith("must be ")


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"priority": "urgent"}, "spec.priority"),
        ({"preemptible": "maybe"}, "spec.preemptible"),
        ({"backoffLimit": -1}, "spec.backoffLimit"),
        ({"cleanPodPolicy": "Some"}, "spec.cleanPodPolicy"),
        ({"scheduling": "later"}, "spec.scheduling"),
        ({"queue": "Team_A"}, "spec.queue"),
        ({"topology": "rack"}, "spec.topology"),
        ({"topology": {}}, "spec.topology.required"),
        ({"topology": {"required": 5}}, "spec.topology.required"),
        ({"topology": {"required": "a rack"}}, "spec.topology.required"),
        ({"topology": {"required": "x" * 64}}, "spec.topology.required"),
        ({"topology": {"required": "rack"}, "scheduling": "none"}, "spec.topology"),
        ({"tasks": []}, "spec.tasks"),
        ({"tasks": "learner"}, "spec.tasks"),
        ({"tasks": ["learner"]}, "spec.tasks[0]"),
        ({"tasks": [learner(type="coordinator")]}, "spec.tasks[0].type"),
        ({"tasks": [learner(replicas=0)]}, "spec.tasks[0].replicas"),
        ({"tasks": [learner(), {"type": "collector"}]}, "spec.tasks[1].template"),
        ({"tasks": [learner(template={"spec": {"containers": []}})]}, "spec.tasks[0].template.spec.containers"),
        ({"tasks": [learner(template={"spec": {}})]}, "spec.tasks[0].template.spec.containers"),
        ({"tasks": [learner(template=3)]}, "spec.tasks[0].template"),
        ({"tasks": [learner(replicas=2, maxReplicas=1)]}, "spec.tasks[0].replicas"),
        ({"tasks": [learner(replicas=2, minReplicas=3, maxReplicas=4)]}, "spec.tasks[0].replicas"),
        ({"tasks": [learner(minReplicas=3, maxReplicas=2)]}, "spec.tasks[0].minReplicas"),
        ({"tasks": [learner(replicas=3, nodeUnit=2)]}, "spec.tasks[0].replicas"),
        ({"tasks": [learner(replicas=4, minReplicas=1, nodeUnit=2)]}, "spec.tasks[0].minReplicas"),
        ({"tasks": [learner(replicas=4, maxReplicas=5, nodeUnit=2)]}, "spec.tasks[0].maxReplicas"),
        ({"tasks": [learner(nodeUnit=0)]}, "spec.tasks[0].nodeUnit"),
        ({"volumes": [{"name": "data", "emptyDir": 3}]}, "spec.volumes[0].emptyDir"),
    ],
)
def test_a_bad_field_is_named_by_its_path(change: dict[str, Any], path: str) -> None:
    assert invalid(**change).path == path


@pytest.mark.parametrize(
    ("container", "path", "words"),
    [
        ({"env": [{"name": False, "value": "x"}]}, "env[0].name", "must be text, not false: put it in quotes"),
        ({"env": [{"name": "PORT", "value": 8080}]}, "env[0].value", "must be text, not 8080: put it in quotes"),
        ({"command": "python3 train.py"}, "command", "must be a list, not"),
        ({"args": [1]}, "args[0]", "put it in quotes"),
        ({"ports": [{"containerPort": "http"}]}, "ports[0].containerPort", "integer"),
    ],
)
def test_a_wrong_type_inside_a_template_is_caught_before_argo_sees_it(
    container: dict[str, Any], path: str, words: str
) -> None:
    error = invalid(tasks=[learner(template=template(container=container))])
    assert error.path == f"spec.tasks[0].template.spec.containers[0].{path}"
    assert words in error.message


def test_quantities_may_be_numbers() -> None:
    made = job(task(container={"resources": {"requests": {"cpu": 2, "memory": "1Gi"}, "limits": {"cpu": 2.5}}}))
    resources = made.tasks[0].template["spec"]["containers"][0]["resources"]
    assert resources == {"requests": {"cpu": "2", "memory": "1Gi"}, "limits": {"cpu": "2.5"}}


def test_unknown_fields_warn_by_path_and_are_left_out() -> None:
    data = manifest(engineFields={"x": 1}, group="xxx")
    data["spec"]["tasks"][0]["color"] = "red"
    data["spec"]["tasks"][0]["template"]["spec"]["containers"][0]["imagePullPolice"] = "Never"
    data["metadata"]["owner"] = "me"
    data["extra"] = 1
    with pytest.warns(UnknownFieldWarning) as caught:
        made = DIJob.from_manifest(data)
    paths = {warning.message.path for warning in caught if isinstance(warning.message, UnknownFieldWarning)}
    assert paths == {
        "extra",
        "metadata.owner",
        "spec.engineFields",
        "spec.tasks[0].color",
        "spec.tasks[0].template.spec.containers[0].imagePullPolice",
    }
    assert "imagePullPolice" not in str(made.to_manifest())


def test_a_manifest_read_from_the_cluster_reads_without_a_warning() -> None:
    data = manifest()
    data["metadata"] |= {
        "uid": "1",
        "resourceVersion": "2",
        "generation": 1,
        "creationTimestamp": "x",
        "managedFields": [],
    }
    data["status"] = {"phase": "Running"}
    assert DIJob.from_manifest(data).name == "job"


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"kind": "Job"}, "kind"),
        ({"apiVersion": "v1"}, "apiVersion"),
        ({"apiVersion": "diengine.opendilab.org/v1alpha1"}, "apiVersion"),
        ({"metadata": {}}, "metadata.name"),
        ({"metadata": "job"}, "metadata"),
        ({"spec": {}}, "spec.tasks"),
        ({"spec": None}, "spec.tasks"),
    ],
)
def test_a_manifest_of_another_kind_is_refused(change: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidError) as caught:
        DIJob.from_manifest({**manifest(), **change})
    assert caught.value.path == path


@pytest.mark.parametrize("manifest_", [None, 3, "text", ["a list"]])
def test_what_is_no_mapping_is_no_job(manifest_: Any) -> None:
    with pytest.raises(InvalidError, match="a DIJob is a mapping"):
        DIJob.from_manifest(manifest_)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("kind: [DIJob", "broken YAML at line 2, column 1"),
        ("", "the file is empty"),
        ("a: 1\n---\nb: 2\n", "holds 2 documents"),
        ("kind: !!python/object:os.system x", "broken YAML"),
        ("{1: 2}", "kind"),
        ("- a\n- b\n", "a DIJob is a mapping"),
    ],
)
def test_broken_yaml_is_one_clear_line(text: str, words: str) -> None:
    with pytest.raises(InvalidError) as caught:
        DIJob.from_yaml(text)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match=re.escape(str(tmp_path / "no.yaml"))):
        DIJob.from_yaml(tmp_path / "no.yaml")


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidError, match=re.escape("x.yaml cannot be read")):
        DIJob.from_yaml(tmp_path / "x.yaml")


def test_a_key_that_is_no_text_is_refused() -> None:
    with pytest.raises(InvalidError, match="must be text"):
        DIJob.from_yaml(job().to_yaml().replace("template:", "true: 1\n    template:"))


def test_a_job_cannot_be_changed() -> None:
    made = job()
    with pytest.raises((TypeError, ValueError, AttributeError)):
        made.priority = "high"  # type: ignore[misc]


def test_what_is_written_reads_back_as_the_same_job() -> None:
    made = job(
        task("learner"),
        task("collector", replicas=3),
        task("none", name="worker", replicas=2),
        priority="high",
        preemptible=True,
        backoff_limit=0,
        clean_pod_policy="All",
        queue="team-a",
        scheduling="gang",
        namespace="ml",
        labels={"a": "b"},
        annotations={"note": "{{x}}"},
        volumes=({"name": "data", "emptyDir": {}},),
    )
    assert DIJob.from_yaml(made.to_yaml()) == made


@pytest.mark.parametrize(
    "text",
    [
        "y",
        "N",
        "no",
        "on",
        "1e-4",
        "1E5",
        "1.",
        ".5",
        "-3",
        "+7",
        "0o17",
        "0x1F",
        "0b1",
        "1_000",
        "007",
        "~",
        "null",
        "=",
        "2020-01-01",
        "1:30",
        ".inf",
        ".NaN",
        "0.1",
    ],
)
def test_texts_that_another_reader_takes_for_a_number_or_a_truth_value_stand_in_quotes(text: str) -> None:
    written = dump_yaml({"value": text, text: "key"})
    assert yaml.safe_load(written) == {"value": text, text: "key"}
    assert written.splitlines() == [f"value: '{text}'", f"'{text}': key"]


def test_plain_words_stay_plain() -> None:
    words = ["yes-man", "e4", "1e", "v1.2", "10.0.0.1", "4Gi", "500m", "a1e4", "node-1", "1e4x", "0xg"]
    assert dump_yaml(words).splitlines() == [f"- {word}" for word in words]


def test_the_default_fields_are_not_written() -> None:
    assert set(job().to_manifest()["spec"]) == {"tasks"}
    assert set(job().to_manifest()["spec"]["tasks"][0]) == {"type", "template"}


def test_a_job_that_wants_no_scheduling_says_so_in_its_manifest() -> None:
    assert job(scheduling="none").to_manifest()["spec"]["scheduling"] == "none"


def test_python_and_yaml_give_equal_jobs() -> None:
    assert DIJob.from_manifest(manifest(preemptible=True)) == job(preemptible=True)


def test_the_users_data_is_not_changed() -> None:
    data = manifest(volumes=[{"name": "data", "emptyDir": {}}])
    before = copy.deepcopy(data)
    DIJob.from_manifest(data).workflow()
    assert data == before


def test_a_task_alone_says_what_is_wrong() -> None:
    with pytest.raises(InvalidError, match=re.escape("template.spec.containers: is missing")):
        Task(type="learner", template={"spec": {}})
    with pytest.raises(InvalidError, match="template: is missing"):
        Task(type="learner")


def test_a_python_job_refuses_a_field_it_does_not_know() -> None:
    with pytest.raises(InvalidError, match="colour"):
        DIJob(name="job", tasks=[task()], colour="red")  # type: ignore[call-arg]


def test_jobs_with_equal_templates_share_nothing() -> None:
    """An equal template is checked once, and each job has its own."""
    given = manifest()
    first, second = DIJob.from_manifest(given), DIJob.from_manifest(given)
    first.tasks[0].template["spec"]["containers"][0]["env"] = [{"name": "A", "value": "1"}]
    assert "env" not in second.tasks[0].template["spec"]["containers"][0]
    assert DIJob.from_manifest(given) == second
    assert "env" not in given["spec"]["tasks"][0]["template"]["spec"]["containers"][0]


@pytest.mark.parametrize(("good", "bad"), [(1, True), (1, 1.0), ("1", 1)])
def test_a_template_is_not_taken_for_one_that_python_calls_equal(good: Any, bad: Any) -> None:
    field = "terminationGracePeriodSeconds" if isinstance(good, int) else "nodeName"
    Task(name="a", template=template(**{field: good}))
    for _ in range(2):
        with pytest.raises(InvalidError, match=field):
            Task(name="a", template=template(**{field: bad}))


def test_what_is_left_out_of_a_template_is_said_each_time() -> None:
    for _ in range(2):
        with pytest.warns(UnknownFieldWarning, match="nonsense"):
            Task(name="a", template=template(nonsense=1))


@pytest.mark.parametrize(
    ("spec", "given", "is_refused"),
    [
        ({}, "system-cluster-critical", True),
        ({"priority": "normal"}, "diflow-high", True),
        ({"priority": "normal", "scheduling": "none"}, "diflow-high", True),
        ({"priority": "high", "scheduling": "gang"}, "team-a", True),
        ({"scheduling": "gang"}, "team-a", True),
        ({"priority": "high"}, "diflow-high", False),
        ({}, "diflow-normal", False),
        ({"scheduling": "none"}, "team-a", False),
    ],
)
def test_a_priority_class_beside_the_priority_is_refused(spec: dict[str, Any], given: str, is_refused: bool) -> None:
    """By the former go the rules for queues and namespaces, by the latter kube-scheduler."""
    of_task = template()
    of_task["spec"]["priorityClassName"] = given
    if not is_refused:
        DIJob.from_manifest(manifest(tasks=[learner(template=of_task)], **spec))
        return
    error = invalid(tasks=[learner(), {"type": "none", "name": "b", "template": of_task}], **spec)
    assert error.path == "spec.tasks[1].template.spec.priorityClassName"
    assert f"is {given}, beside spec.priority" in error.message
