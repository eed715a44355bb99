"""submit, render and lint: what is accepted, what is refused, and that a refused job leaves nothing behind."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
import yaml

from diflow.cli.main import code_of
from diflow.kube.kinds import POD, PRIORITY_CLASS, SERVICE, SERVICE_ACCOUNT, WORKFLOW
from tests.builders import manifest, template
from tests.cli.runner import Cli, run, the_service
from tests.kube.fakeapi import Request, status
from tests.record.seen import SeenJob

_PYTHON = """
from diflow import DIJob, Task

TEMPLATE = {"spec": {"containers": [{"name": "di-container", "image": "a:1", "command": ["true"]}]}}
job = DIJob(name="from-python", tasks=(Task(type="learner", template=TEMPLATE),))
number = 7
"""


def workflows(diflow: Cli) -> list[str]:
    return sorted(diflow.api.objects.get(WORKFLOW.path("default"), {}))


def test_a_submitted_job_is_in_the_cluster_and_its_name_is_the_only_data(diflow: Cli) -> None:
    diflow.prepare()
    result = diflow("submit", diflow.file("job.yaml", manifest()))
    assert (result.code, result.out) == (0, "job\n")
    assert "diflow watch job -n default" in result.err
    stored = diflow.api.objects[WORKFLOW.path("default")]["job"]
    assert stored["spec"]["entrypoint"] == "job"
    assert stored["metadata"]["namespace"] == "default"


def test_another_name_and_namespace_can_be_given(diflow: Cli) -> None:
    diflow.prepare()
    for account in ("diflow-worker", "diflow-steps"):
        diflow.api.add(SERVICE_ACCOUNT, {"metadata": {"name": account}}, namespace="lab")
    diflow.api.add(SERVICE, the_service(), namespace="lab")
    result = diflow("submit", diflow.file("job.yaml", manifest()), "--name", "other", "-n", "lab")
    assert (result.code, result.out) == (0, "other\n")
    assert "other" in diflow.api.objects[WORKFLOW.path("lab")]
    assert "is used instead of" not in result.err
    own = manifest()
    own["metadata"]["namespace"] = "theirs"
    result = diflow("submit", diflow.file("job.yaml", own), "-n", "lab")
    assert (result.code, result.out) == (0, "job\n")
    assert "warning: the namespace lab is used instead of theirs, which the manifest has\n" in result.err


def test_a_namespace_that_is_not_there_is_named(diflow: Cli) -> None:
    diflow.prepare()
    result = diflow("submit", diflow.file("job.yaml", manifest()), "-n", "nowhere")
    assert result.code == 3
    assert result.err == "error: there is no namespace 'nowhere': check -n, or create it\n"
    assert WORKFLOW.path("nowhere") not in diflow.api.objects


def test_a_new_name_is_checked_as_one_in_the_file_is(diflow: Cli) -> None:
    result = diflow("submit", diflow.file("job.yaml", manifest()), "--name", "Not_Good")
    assert result.code == 2
    assert "metadata.name" in result.err
    assert diflow.api.requests == []


def test_the_server_checks_the_whole_workflow_before_anything_is_made(diflow: Cli) -> None:
    diflow.prepare()
    diflow.api.rule(
        lambda r: (
            status(422, "x", details={"causes": [{"field": "spec.templates", "message": "too many"}]})
            if r.query.get("dryRun") and r.path == WORKFLOW.path("default")
            else None
        )
    )
    result = diflow("submit", diflow.file("job.yaml", manifest()))
    assert result.code == 2
    assert result.err == "error: spec.templates: the cluster refuses Workflow job: too many\n"
    assert workflows(diflow) == []
    assert len(diflow.api.seen("POST", "/workflows")) == 1


def test_a_name_that_is_taken_is_a_conflict_and_says_what_to_do(diflow: Cli) -> None:
    diflow.prepare()
    diflow.has(SeenJob("job", learner=1))
    result = diflow("submit", diflow.file("job.yaml", manifest()))
    assert result.code == 4
    assert "there is a Workflow job in the namespace 'default' already" in result.err
    assert "diflow delete job -n default" in result.err


@pytest.mark.parametrize(
    ("missing", "text"),
    [
        ((SERVICE_ACCOUNT, "diflow-worker"), "the service account diflow-worker is missing in the namespace 'default'"),
        ((SERVICE_ACCOUNT, "diflow-steps"), "the service account diflow-steps is missing in the namespace 'default'"),
        ((SERVICE, "di"), "the Service di, by which replicas find each other, is missing in 'default'"),
        ((PRIORITY_CLASS, "diflow-normal"), "the PriorityClass diflow-normal is missing"),
    ],
)
def test_what_the_cluster_lacks_is_named_and_nothing_is_made(
    diflow: Cli,
    missing: tuple[Any, str],
    text: str,
) -> None:
    diflow.prepare()
    diflow.api.remove(*missing)
    result = diflow("submit", diflow.file("job.yaml", manifest()))
    assert result.code == 5
    assert text in result.err
    assert "manifests" in result.err
    assert workflows(diflow) == []
    assert not diflow.api.seen("POST", "/services")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"clusterIP": "10.0.0.7"}, "is another one than that of diflow's manifests"),
        ({"selector": {"app": "theirs"}}, "is another one than that of diflow's manifests"),
        ({"selector": None}, "is another one than that of diflow's manifests"),
        ({"publishNotReadyAddresses": False}, "does not publish the addresses of pods that start"),
    ],
)
def test_another_service_of_that_name_is_refused(diflow: Cli, changes: dict[str, Any], text: str) -> None:
    diflow.prepare()
    service = the_service()
    diflow.api.add(SERVICE, {**service, "spec": {**service["spec"], **changes}})
    result = diflow("submit", diflow.file("job.yaml", manifest()))
    assert result.code == 5
    assert f"the Service di in 'default' {text}: kubectl apply -n default -k manifests/jobs" in result.err
    assert workflows(diflow) == []
    assert f"✗ Service di in default: the Service di in 'default' {text}" in diflow("doctor").out


def of_task(job: str, task: str) -> dict[str, Any]:
    made = manifest(tasks=[{"type": "none", "name": task, "template": template()}])
    return {**made, "metadata": {"name": job}}


@pytest.mark.parametrize(("first", "second"), [(("a", "b-c"), ("a-b", "c")), (("a-b", "c"), ("a", "b-c"))])
def test_two_jobs_whose_replicas_would_have_the_same_host_names(
    diflow: Cli, first: tuple[str, str], second: tuple[str, str]
) -> None:
    diflow.prepare()
    assert diflow("submit", diflow.file("one.yaml", of_task(*first))).code == 0
    result = diflow("submit", diflow.file("two.yaml", of_task(*second)))
    assert result.code == 4
    assert f"the job {first[0]} has a task {first[1]}, whose replicas would have the same host names" in result.err
    assert "(a-b-c-0): give the job another name" in result.err
    assert workflows(diflow) == [first[0]]
    assert diflow("submit", diflow.file("two.yaml", of_task(*second)), "--name", "other").code == 0


def test_a_job_that_has_ended_or_is_somebody_elses_has_no_host_names(diflow: Cli) -> None:
    diflow.prepare()
    diflow.has(SeenJob("a", **{"b-c": 1}).ended(9))  # type: ignore[arg-type]
    assert diflow("submit", diflow.file("one.yaml", of_task("a-b", "c"))).code == 0
    diflow.api.add(WORKFLOW, {"metadata": {"name": "x"}, "spec": {}})
    assert diflow("submit", diflow.file("two.yaml", of_task("x-y", "z"))).code == 0


def test_other_tasks_of_a_job_with_such_a_name_are_no_hindrance(diflow: Cli) -> None:
    diflow.prepare()
    assert diflow("submit", diflow.file("one.yaml", of_task("a", "c"))).code == 0
    assert diflow("submit", diflow.file("two.yaml", of_task("a-b", "c"))).code == 0
    assert len(diflow.api.seen("GET", "/workflows/a")) == 1, "each name is looked up once"


def test_who_may_not_read_workflows_submits_a_job_with_any_name(diflow: Cli) -> None:
    diflow.prepare()
    diflow.api.rule(lambda r: status(403, "no") if r.path.endswith("/workflows/a") else None)
    assert diflow("submit", diflow.file("one.yaml", of_task("a-b", "c"))).code == 0


def test_an_argo_that_is_too_old_is_refused(diflow: Cli) -> None:
    diflow.prepare(argo="v3.4.0")
    result = diflow("submit", diflow.file("job.yaml", manifest()))
    assert result.code == 5
    assert "Argo Workflows 3.4.0 is too old: 3.7 or newer is needed" in result.err


def test_no_argo_is_said_plainly(diflow: Cli) -> None:
    diflow.prepare()
    diflow.api.rule(
        lambda r: status(404, "the server could not find the requested resource") if "argoproj" in r.path else None
    )
    result = diflow("submit", diflow.file("job.yaml", manifest()))
    assert result.code == 5
    assert (
        "Argo Workflows is not installed: no workflows.argoproj.io in this cluster. Install it and diflow's manifests/"
        in result.err
    )


def test_a_user_who_may_only_make_workflows_can_submit(diflow: Cli) -> None:
    diflow.prepare()
    diflow.api.rule(lambda r: status(403, "no") if "/workflows" not in r.path else None)
    assert diflow("submit", diflow.file("job.yaml", manifest())).code == 0


def test_a_forbidden_submit_names_the_right(diflow: Cli) -> None:
    diflow.prepare()
    text = (
        'workflows.argoproj.io is forbidden: User "ada" cannot create resource "workflows" in API group '
        '"argoproj.io" in the namespace "default"'
    )
    diflow.api.rule(lambda r: status(403, text) if r.method == "POST" else None)
    result = diflow("submit", diflow.file("job.yaml", manifest()))
    assert result.code == 5
    assert "the user 'ada' lacks the right to create workflows.argoproj.io" in result.err


@pytest.mark.parametrize("option", [["--dry-run=client"], ["--dry-run", "client"], ["--dry-run"]])
def test_a_dry_run_prints_the_workflow_and_needs_no_cluster(
    diflow: Cli, option: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    file = diflow.file("job.yaml", manifest())
    for args, name in (([*option, "--name=x", file], "x"), ([file, *option], "job")):
        assert code_of(["submit", *args]) == 0
        made = yaml.safe_load(capsys.readouterr().out)
        assert (made["kind"], made["metadata"]["name"]) == ("Workflow", name)


def test_a_dry_run_on_the_server_makes_nothing(diflow: Cli) -> None:
    diflow.prepare()
    result = diflow("submit", diflow.file("job.yaml", manifest()), "--dry-run=server")
    assert result.code == 0
    assert "nothing was created" in result.err
    assert yaml.safe_load(result.out)["metadata"]["namespace"] == "default"
    assert workflows(diflow) == []


def earlier_pods(diflow: Cli, *, are_read: int | None = None) -> None:
    """Pods of an earlier Workflow, which are gone when they were read so often (None: they stay)."""
    labels = {"workflows.argoproj.io/workflow": "job"}
    going = {"name": "job-learner-1", "labels": labels, "deletionTimestamp": "2026-11-21T09:40:44Z"}
    diflow.api.add(POD, {"metadata": going})
    diflow.api.add(POD, {"metadata": {"name": "job-learner-2", "labels": labels}})
    left = [are_read]

    def rule(request: Request) -> None:
        if request.method == "GET" and request.path.endswith("/pods") and left[0] is not None:
            left[0] -= 1
            if left[0] < 0:
                diflow.api.objects[POD.path("default")].clear()

    diflow.api.rule(rule)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses take no time."""
    monkeypatch.setattr("diflow.jobs.earlier_pods._PAUSE_SECONDS", 0.0)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("count", [1, 2])
def test_a_submission_waits_for_the_pods_of_an_earlier_workflow_and_says_so_once(diflow: Cli, count: int) -> None:
    diflow.prepare()
    earlier_pods(diflow, are_read=3)
    jobs = [{**manifest(), "metadata": {"name": name}} for name in ("job", "other")[:count]]
    result = diflow("submit", "--all", diflow.file("jobs.yaml", "---\n".join(map(yaml.safe_dump, jobs))))
    assert result.code == 0
    assert result.out.splitlines()[0] == "job"
    (line,) = [line for line in result.err.splitlines() if line.startswith("waits")]
    assert line.startswith("waits (for up to 60 s): there are pods of an earlier Workflow job in the namespace")
    assert "job-learner-2, job-learner-1 (is being deleted). Wait until" in line


def test_pods_that_stay_are_named_after_a_minute_and_nothing_is_made(
    diflow: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    diflow.prepare()
    earlier_pods(diflow)
    monkeypatch.setattr("diflow.jobs.earlier_pods.WAIT_SECONDS", 0.0)
    result = diflow("submit", diflow.file("job.yaml", manifest()))
    assert (result.code, workflows(diflow)) == (4, [])
    assert "error: there are pods of an earlier Workflow job" in result.err
    assert "job-learner-2, job-learner-1 (is being deleted)" in result.err


def test_a_dry_run_on_the_server_says_that_the_job_would_wait_for_pods(diflow: Cli) -> None:
    diflow.prepare()
    earlier_pods(diflow)
    result = diflow("submit", diflow.file("job.yaml", manifest()), "--dry-run=server")
    assert result.code == 0
    assert "job job would wait: there are pods of an earlier Workflow job" in result.err
    assert "nothing was created" in result.err
    assert len(diflow.api.seen("GET", "/pods")) == 1


def test_a_name_that_is_taken_is_said_before_its_pods(diflow: Cli) -> None:
    diflow.prepare()
    diflow.has(SeenJob("job", learner=1).all_ready())
    result = diflow("submit", diflow.file("job.yaml", manifest()))
    assert "there is a Workflow job in the namespace 'default' already" in result.err


def test_submit_and_wait_ends_as_the_job_does(diflow: Cli) -> None:
    diflow.prepare()

    def finish(phase: str) -> None:
        def rule(request: Any) -> None:
            if request.method == "GET" and request.query.get("watch") and request.path.endswith("/workflows"):
                job = SeenJob("job", learner=1, backoff_limit=0).all_ready()
                job.pods[0].ends(9, code=0 if phase == "Succeeded" else 3)
                diflow.api.add(WORKFLOW, job.ended(10, phase).workflow())

        diflow.api.rules.clear()
        diflow.api.rule(rule)

    finish("Succeeded")
    assert diflow("submit", diflow.file("job.yaml", manifest()), "--wait").code == 0
    diflow.api.remove(WORKFLOW, "job")
    finish("Failed")
    result = diflow("submit", diflow.file("job.yaml", manifest()), "--wait")
    assert result.code == 1
    assert "job job failed: learner-0 failed: Error (exit code 3)" in result.err


def test_the_ways_to_follow_exclude_each_other(diflow: Cli) -> None:
    result = diflow("submit", diflow.file("job.yaml", manifest()), "--wait", "--logs")
    assert result.code == 2
    assert "choose one of --watch, --wait and --logs" in result.err


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("spec: [1\n", "broken YAML at line 2, column 1"),
        ("", "is empty"),
        ({"kind": "Job"}, "kind: must be DIJob, not 'Job'"),
        ({**manifest(), "apiVersion": "v1"}, "apiVersion: must be diengine.opendilab.org/v2alpha1, not 'v1'"),
        (manifest(backoffLimit="many"), "spec.backoffLimit"),
        (manifest(tasks=[{"type": "wizard", "template": template()}]), "spec.tasks[0].type"),
        (
            manifest(tasks=[{"type": "learner", "template": {"spec": {"containers": [{"name": "a", "env": [
                {"name": "N", "value": False}]}]}}}]),
            "spec.tasks[0].template.spec.containers[0].env[0].value: must be text, not false: put it in quotes",
        ),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_with_the_files_name_and_the_fields_path(
    diflow: Cli,
    content: Any,
    text: str,
) -> None:
    path = diflow.file("bad.yaml", content)
    for command in ("submit", "render"):
        result = diflow(command, path)
        assert result.code == 2
        assert result.out == ""
        assert text in result.err
        assert path in result.err
        assert result.err.count("\n") == 1
    assert diflow.api.requests == []


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("nowhere.yaml", "there is no file nowhere.yaml: check the path"),
        ("nowhere:job", "there is no module nowhere"),
        ("nowhere.py:job", "there is no file nowhere.py"),
        ("{folder}", "is a folder"),
        ("{python}", "say which variable holds the job"),
        ("{python}:nothing", "has no variable nothing; it has job"),
        ("{python}:number", "is a int, not a DIJob"),
        ("{broken}:job", "cannot be imported: ZeroDivisionError"),
        ("{needy}:job", "cannot be imported: No module named 'something_else'"),
    ],
)
def test_a_source_that_is_none_says_why(
    diflow: Cli,
    monkeypatch: pytest.MonkeyPatch,
    source: str,
    text: str,
) -> None:
    monkeypatch.chdir(diflow.folder)
    names = {
        "folder": str(diflow.folder),
        "python": diflow.file("mine.py", _PYTHON),
        "broken": diflow.file("broken.py", "1 / 0"),
        "needy": diflow.file("needy.py", "import something_else"),
    }
    result = run("render", source.format(**names))
    assert (result.code, result.out) == (2, "")
    assert text in result.err


def test_a_job_can_come_from_python_by_its_file_or_by_its_module(
    diflow: Cli,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = diflow.file("mine_too.py", _PYTHON)
    monkeypatch.chdir(diflow.folder)
    by_file = run("render", f"{path}:job")
    by_module = run("render", "mine_too:job")
    assert by_file.code == by_module.code == 0
    assert by_file.out == by_module.out
    assert yaml.safe_load(by_file.out)["metadata"]["name"] == "from-python"


def test_a_job_can_come_from_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:

    monkeypatch.setattr("sys.stdin", io.StringIO(yaml.safe_dump(manifest())))
    assert yaml.safe_load(run("render", "-").out)["metadata"]["name"] == "job"


def test_all_unknown_fields_of_a_job_are_named_and_it_is_not_taken(diflow: Cli) -> None:
    diflow.prepare()
    result = diflow("submit", diflow.file("job.yaml", manifest(colour="blue", shape="round")))
    assert result.code == 2
    assert re.search(r"error: \S+job.yaml: spec.colour: is not known \(line 6\)", result.err)
    assert "warning: spec.shape is not known (line 7)" in result.err
    assert diflow.api.seen("POST") == []


@pytest.mark.parametrize(
    ("misspelt", "text"),
    [
        ({"preemtible": True}, "spec.preemtible: is not known: did you mean preemptible?"),
        (
            {"nodeCheck": {"timeout": 3}},
            "spec.nodeCheck.timeout: is not known: known here are command, image, maxMoves,",
        ),
        ({"health": {"heartbeatSecond": 90}}, "is not known: did you mean heartbeatSeconds?"),
        ({"x" * 65: 1}, f"spec.{'x' * 65}: is not known"),
    ],
)
def test_a_misspelt_field_names_the_one_that_was_meant(diflow: Cli, misspelt: dict[str, object], text: str) -> None:
    result = run("lint", diflow.file("job.yaml", manifest(**misspelt)))
    assert text in result.err
    assert "(line" in result.err
    assert result.code == 2


@pytest.mark.parametrize("form", ["workflow", "dijob"])
def test_a_job_with_a_misspelt_field_is_not_submitted(diflow: Cli, form: str) -> None:
    diflow.prepare()
    misspelt = manifest()
    misspelt["spec"]["tasks"][0]["replcas"] = 4
    result = diflow("submit", "--as", form, diflow.file("job.yaml", misspelt))
    assert result.code == 2
    assert re.search(
        r"error: \S+job.yaml: spec.tasks\[0\].replcas: is not known: did you mean replicas\? \(line", result.err
    )
    assert diflow.api.seen("POST") == []


@pytest.mark.parametrize("part", ["nodeCheck", "monitor"])
def test_a_part_that_may_be_true_says_so(diflow: Cli, part: str) -> None:
    result = run("lint", diflow.file("job.yaml", manifest(**{part: "yes"})))
    assert f"spec.{part}: must be true, false or a mapping, not 'yes'" in result.err


@pytest.mark.parametrize("command", ["submit", "lint"])
def test_a_job_that_the_allocator_would_hold_for_ever_is_refused(diflow: Cli, command: str) -> None:
    made = manifest()
    tolerations = [{"key": f"taint-{i}", "operator": "Exists"} for i in range(150)]
    made["spec"]["tasks"][0]["template"]["spec"]["tolerations"] = tolerations
    result = diflow(command, diflow.file("job.yaml", made))
    assert result.code == 2
    assert "the job has 150 conditions on nodes in one task, at most 128 are allowed" in result.err


@pytest.mark.parametrize("command", ["submit", "lint"])
def test_unknown_fields_are_reported_of_a_refused_job_too(diflow: Cli, command: str) -> None:
    misspelt = manifest()
    misspelt["spec"]["tasks"][0] |= {"replicsa": 4, "minReplicas": 2, "maxReplicas": 4}
    misspelt["spec"]["preemptible"] = True
    result = diflow(command, diflow.file("job.yaml", misspelt))
    assert result.code == 2
    assert "spec.tasks[0].replicsa is not known: did you mean replicas?" in result.err
    assert "replicas 1 is below minReplicas 2" in result.err


def test_lint_tells_what_is_wrong_and_what_is_seldom_meant(diflow: Cli) -> None:
    good = diflow.file("good.yaml", manifest())
    bare = {"spec": {"containers": [{"name": "a", "image": "repo/thing"}]}}
    odd = diflow.file("odd.yaml", manifest(tasks=[{"type": "learner", "template": bare, "maxReplicas": 3}]))
    bad = diflow.file("bad.yaml", manifest(backoffLimit=-1))
    result = run("lint", good, odd, bad)
    assert result.code == 2
    assert result.out == f"{good}: ok (job)\n{odd}: ok (job)\n"
    assert "containers[0] has no command: Argo must then ask the registry" in result.err
    assert "repo/thing has no fixed tag" in result.err
    assert "minReplicas or maxReplicas" in result.err
    assert f"error: {bad}: spec.backoffLimit" in result.err


def test_lint_is_quiet_about_a_good_job_and_strict_when_asked(diflow: Cli) -> None:
    good = diflow.file("good.yaml", manifest())
    assert run("lint", good).err == ""
    odd = diflow.file("odd.yaml", manifest(tasks=[{"type": "learner", "template": template(restartPolicy="Always")}]))
    assert run("lint", odd).code == 0
    assert run("lint", "--strict", odd).code == 2


def test_no_pod_is_ever_made_by_a_command_of_ours(diflow: Cli) -> None:
    diflow.prepare()
    diflow("submit", diflow.file("job.yaml", manifest()))
    made = [request for request in diflow.api.seen("POST", POD.plural) if not request.query.get("dryRun")]
    assert made == []


def test_what_admission_would_refuse_of_the_pods_is_said_and_the_job_is_created(diflow: Cli) -> None:
    """A quota may get room, and a class may be made, while the job waits."""
    diflow.prepare()
    words = "exceeded quota: team, requested: cpu=1, used: cpu=4, limited: cpu=4"

    def full(request: Request) -> Any:
        is_try = request.method == "POST" and request.path.endswith("/pods") and request.query.get("dryRun")
        return status(403, f'pods "x" is forbidden: {words}', reason="Forbidden") if is_try else None

    diflow.api.rule(full)
    result = diflow("submit", diflow.file("job.yaml", manifest()))
    assert (result.code, result.out) == (0, "job\n")
    assert f'the API server refuses its pods: "{words}"; ask for less' in " ".join(result.err.split())


def test_who_may_not_create_pods_is_told_nothing_of_admission(diflow: Cli) -> None:
    diflow.prepare()
    words = 'pods is forbidden: User "me" cannot create resource "pods" in API group "" in the namespace "default"'
    diflow.api.rule(
        lambda r: status(403, words, reason="Forbidden") if r.method == "POST" and r.path.endswith("/pods") else None
    )
    result = diflow("submit", diflow.file("job.yaml", manifest()))
    assert (result.code, result.out) == (0, "job\n")
    assert "pods" not in result.err.replace("prepods", "")
