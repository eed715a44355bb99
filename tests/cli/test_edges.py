"""Careless and hostile input at the command line: names, terminals, closed streams, versions, exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from diflow.cli.output import print_data
from diflow.common import keys
from diflow.kube.api import Cluster
from diflow.kube.kinds import LEASE, NAMESPACE, POD, WORKFLOW
from diflow.version import __version__
from tests.builders import manifest, template
from tests.cli.placed import dijob, lease, node, put
from tests.cli.runner import Cli, run
from tests.kube.fakeapi import now, status
from tests.record.seen import SeenJob

_ROOT = Path(__file__).parents[2]


# --- names that would lead elsewhere ----------------------------------------------------------------------------------


@pytest.mark.parametrize("namespace", ["../x", "..", ".", "a/b", "a%2Fb", "A", "", "x" * 64])
def test_a_namespace_that_cannot_be_is_wrong_input_and_nothing_is_sent(diflow: Cli, namespace: str) -> None:
    for args in (("list",), ("get", "job"), ("delete", "job"), ("doctor",), ("queue",)):
        result = diflow(*args, "-n", namespace)
        assert result.code == 2
        assert result.err.startswith("error: --namespace: the namespace ")
        assert result.err.count("\n") == 1
    assert diflow.api.requests == []


@pytest.mark.parametrize("name", ["..", ".", "../pods", "../../other/workflows/job", "a%2Fb", "job/status"])
def test_a_job_whose_name_cannot_be_is_not_there_and_nothing_is_changed(diflow: Cli, name: str) -> None:
    diflow.has(SeenJob("job", learner=1))
    for command in ("get", "describe", "stop", "suspend", "retry", "delete", "wait", "logs"):
        result = diflow(command, name)
        assert result.code == 3, command
        assert result.err.startswith("error: there is no ")
    assert {r.path for r in diflow.api.requests} <= {WORKFLOW.path("default")}
    assert {r.method for r in diflow.api.requests} <= {"GET"}


@pytest.mark.parametrize("name", ["", " "])
def test_an_empty_name_of_a_job_is_invalid_input_and_nothing_is_sent(diflow: Cli, name: str) -> None:
    diflow.has(SeenJob("job", learner=1))
    for command in (
        ("get",),
        ("describe",),
        ("stop",),
        ("suspend",),
        ("resume",),
        ("retry",),
        ("delete",),
        ("delete", "--ignore-not-found"),
        ("scale", "--replicas", "2"),
        ("wait",),
        ("watch",),
        ("logs",),
        ("explain",),
    ):
        result = diflow(*command, name)
        assert result.code == 2, command
        assert result.err == "error: the job's name is empty: give a name, or @latest for the newest job\n"
    assert diflow.api.requests == []
    assert "job" in diflow.api.objects[WORKFLOW.path("default")]


def test_a_jobs_name_selects_no_other_jobs(diflow: Cli) -> None:
    """A comma in a label selector is an `and`; jobs that continue in other Workflows are found by a label."""
    made = SeenJob("job", learner=1)
    made.labels |= {"diflow/job": "job", "diflow/part": "1"}
    diflow.has(made)
    assert diflow("delete", "job,diflow/part=1").code == 3
    assert "job" in diflow.api.objects[WORKFLOW.path("default")]


def test_a_path_names_one_object_whatever_the_name_is() -> None:
    assert POD.path("default", "a b?c#d") == "/api/v1/namespaces/default/pods/a%20b%3Fc%23d"
    for name in ("..", ".", "a/b", "a%b"):
        with pytest.raises(Exception, match="there is no Pod"):
            POD.path("default", name)
        with pytest.raises(Exception, match="there is no namespace"):
            POD.path(name)


def test_a_name_in_a_hostile_workflow_is_not_followed_to_other_objects(diflow: Cli) -> None:
    made = SeenJob("job", learner=1).all_ready()
    made.annotations["diflow/continued-in"] = "../../../../api/v1/namespaces/default/secrets/x"
    diflow.has(made)
    assert diflow("get", "job").code == 0
    assert not [r for r in diflow.api.requests if "secrets" in r.path]


# --- exit codes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (("replay", "nowhere.jsonl"), "the journal nowhere.jsonl cannot be read: No such file or directory"),
        (("replay", "empty.jsonl"), "the journal empty.jsonl holds no whole entry"),
        (("replay", "empty.jsonl", "--policy", "nothing"), "there is no policy 'nothing': take one of "),
        (("simulate", "queue", "--journal", "nowhere.jsonl"), "the journal nowhere.jsonl cannot be read"),
        (("simulate", "--workload", "nowhere.csv", "--profiles", "."), "nowhere.csv cannot be read"),
    ],
)
def test_a_file_or_a_policy_that_is_not_there_is_wrong_input(
    diflow: Cli, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...], text: str
) -> None:
    diflow.file("empty.jsonl", "")
    monkeypatch.chdir(diflow.folder)
    result = run(*args)
    assert result.code == 2
    assert text in result.err


def test_explaining_by_a_policy_that_is_not_there_is_wrong_input(diflow: Cli) -> None:
    node(diflow, "a")
    put(diflow, dijob("job", {"worker": 1}))
    result = diflow("explain", "job", "--policy", "nothing")
    assert result.code == 2
    assert "there is no policy 'nothing'" in result.err


# --- the version ------------------------------------------------------------------------------------------------------


def test_the_version_is_an_option_too_and_asks_no_cluster() -> None:
    result = run("--version")
    assert (result.code, result.out, result.err) == (0, f"diflow {__version__}\n", "")


# --- doctor -----------------------------------------------------------------------------------------------------------


def test_doctor_names_a_namespace_that_is_not_there_and_not_all_that_is_missing_in_it(diflow: Cli) -> None:
    diflow.prepare()
    result = diflow("doctor", "-n", "nowhere")
    assert result.code == 5
    assert (
        "✗ namespace nowhere: missing\n    → check -n, or create it: kubectl create namespace nowhere\n" in result.out
    )
    assert "service account" not in result.out
    assert "your right" not in result.out
    assert "✓ Argo's workflow controller: 4.0.7" in result.out
    assert result.out.splitlines()[-1].startswith("1 of ")


def test_doctor_looks_on_where_it_may_not_see_the_namespace(diflow: Cli) -> None:
    diflow.prepare()
    diflow.api.rule(lambda r: status(403, "no") if r.path == NAMESPACE.path(None, "default") else None)
    result = diflow("doctor")
    assert result.code == 0
    assert "– namespace default: not checked, as you may not read it" in result.out
    assert "✓ service account diflow-worker in default" in result.out


# --- where the allocator is -------------------------------------------------------------------------------------------


def elsewhere(diflow: Cli, namespace: str = "other") -> None:
    spec = {"holderIdentity": "pod-1", "leaseDurationSeconds": 15, "renewTime": now(), "leaseTransitions": 1}
    diflow.api.add(LEASE, {"metadata": {"name": "diflow-allocator"}, "spec": spec}, namespace=namespace)


def test_an_allocator_that_leads_in_another_namespace_is_found(diflow: Cli) -> None:
    node(diflow, "a")
    put(diflow, dijob("job", {"worker": 1}))
    elsewhere(diflow)
    scaled = diflow("scale", "job", "--replicas", "2")
    assert (scaled.code, scaled.err) == (0, "")
    explained = diflow("explain", "job")
    assert "the allocator runs (pod-1)" in explained.out
    assert "no allocator runs" not in explained.out
    assert "no allocator runs" not in diflow("queue").out


def test_pausing_reaches_the_allocator_that_leads(diflow: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diflow.allocator.run.control_channel.RENEWAL_SECONDS", 0.0)
    lease(diflow)  # where it was installed, nobody leads
    elsewhere(diflow)
    assert diflow("pause").code == 0
    paused = diflow.api.objects[LEASE.path("other")]["diflow-allocator"]["metadata"]["annotations"]
    assert "diflow/paused" in paused


def test_one_that_has_ended_elsewhere_is_not_taken_for_one_that_runs(diflow: Cli) -> None:
    node(diflow, "a")
    put(diflow, dijob("job", {"worker": 1}))
    spec = {"holderIdentity": "pod-1", "leaseDurationSeconds": 15, "renewTime": "2020-01-01T00:00:00Z"}
    diflow.api.add(LEASE, {"metadata": {"name": "diflow-allocator"}, "spec": spec}, namespace="other")
    assert "no allocator runs now: this is acted on" in diflow("scale", "job", "--replicas", "2").err


def test_who_may_not_list_leases_is_told_where_was_looked(diflow: Cli) -> None:
    node(diflow, "a")
    put(diflow, dijob("job", {"worker": 1}))
    elsewhere(diflow)
    diflow.api.rule(lambda r: status(403, "no") if r.path == LEASE.path(None) else None)
    where = "in the namespace diflow-system (DIFLOW_ALLOCATOR_NAMESPACE names another)"
    assert f"no allocator runs now {where}: this is acted on" in diflow("scale", "job", "--replicas", "2").err
    assert f"no allocator runs {where}: nothing is decided" in diflow("explain", "job").out


# --- terminals and streams --------------------------------------------------------------------------------------------


def process(diflow: Cli, *args: str, encoding: str = "ascii", **streams: Any) -> subprocess.CompletedProcess[bytes]:
    """`diflow` as a process whose stdout and stderr have another encoding than UTF-8."""
    settings = {"KUBECONFIG": str(diflow.kubeconfig), "PYTHONPATH": str(_ROOT), "PYTHONIOENCODING": encoding}
    return subprocess.run(
        [sys.executable, "-m", "diflow", *args],
        capture_output=not streams,
        check=False,
        timeout=200,
        env={**os.environ, **settings, "LC_ALL": "C"},
        **streams,
    )


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_that_is_not_utf_8_gets_plain_characters(diflow: Cli, encoding: str) -> None:
    diflow.prepare()
    put(diflow, dijob("job", {"worker": 2}))
    scaled = process(diflow, "scale", "job", "--replicas", "3", encoding=encoding)
    assert (scaled.returncode, scaled.stdout) == (0, b"job/worker: 2 -> 3 replicas\n")
    assert process(diflow, "doctor", encoding=encoding).stdout.count(b"\nok ") >= 5


def test_data_is_the_same_data_where_the_output_is_not_utf_8(diflow: Cli) -> None:
    job = manifest(tasks=[{"type": "learner", "template": template("echo 'grüße 😀 →'")}])
    path = diflow.file("job.yaml", job)
    rendered = process(diflow, "render", path)
    assert rendered.returncode == 0
    assert yaml.safe_load(rendered.stdout) == yaml.safe_load(run("render", path).out)
    assert rendered.stdout.isascii()
    made = SeenJob("job", learner=1).all_ready()
    made.profilings = json.dumps({"note": "grüße 😀"})
    diflow.has(made)
    for form, read in (("json", json.loads), ("yaml", yaml.safe_load)):
        shown = process(diflow, "get", "job", "-o", form)
        assert read(shown.stdout)["status"]["profilings"] == {"note": "grüße 😀"}


def test_an_error_with_characters_that_the_terminal_lacks_is_still_one_line(diflow: Cli) -> None:
    result = process(diflow, "render", "größe→.yaml")
    assert result.returncode == 2
    assert result.stderr.startswith(b"error: there is no file ")
    assert result.stderr.count(b"\n") == 1


@pytest.mark.parametrize("command", ["list", "render"])
def test_what_cannot_be_printed_as_stdout_is_closed_is_a_failure_that_says_so(diflow: Cli, command: str) -> None:
    diflow.has(SeenJob("job", learner=1))
    args = (command, diflow.file("job.yaml", manifest())) if command == "render" else (command,)
    result = process(diflow, *args, stdin=None, stderr=subprocess.PIPE, preexec_fn=lambda: os.close(1))
    said = b"error: standard output is closed: what was to be printed is lost\n"
    assert (result.returncode, result.stderr) == (1, said)


def test_a_command_that_prints_nothing_needs_no_stdout(diflow: Cli) -> None:
    diflow.has(SeenJob("job", learner=1))
    result = process(diflow, "suspend", "job", stdin=None, stderr=subprocess.PIPE, preexec_fn=lambda: os.close(1))
    assert result.returncode == 0
    assert b"closed" not in result.stderr


def test_a_full_disk_behind_stdout_is_a_failure_that_says_so(diflow: Cli) -> None:
    path = diflow.file("job.yaml", manifest())
    with Path("/dev/full").open("wb") as full:
        result = process(diflow, "render", path, stdout=full, stderr=subprocess.PIPE)
    said = b"error: the output cannot be written: No space left on device\n"
    assert (result.returncode, result.stderr) == (1, said)


def test_print_data_writes_yaml_and_json_as_they_are_where_the_output_takes_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_data({"a": "grüße"}, form="json")
    print_data({"a": "grüße"}, form="yaml")
    assert capsys.readouterr().out == '{\n  "a": "grüße"\n}\na: grüße\n'


def test_a_cluster_of_a_namespace_that_cannot_be_is_not_made() -> None:
    with pytest.raises(Exception, match="the namespace 'a/b'"):
        Cluster.connect(namespace="a/b")


# --- texts of jobs on a terminal --------------------------------------------------------------------------------------

_TITLE = "\x1b]0;owned\x07"
_HIDDEN = "\x1b[8m"
_TURNED = "\u202e"
_RUBBED_OUT = "\x9b2K\r"
_MARKUP = "[/no] :bug: [link=x]"
_HOSTILE = f"{_TITLE}{_HIDDEN}{_TURNED}{_RUBBED_OUT}{_MARKUP}"


@pytest.mark.parametrize(
    "command",
    [
        ("list", "-o", "wide"),
        ("describe", "told"),
        ("describe", "odd"),
        ("explain", "odd"),
        ("queue", "-o", "wide"),
        ("top",),
        ("watch", "told", "--timeout", "1"),
    ],
    ids=" ".join,
)
def test_what_somebody_wrote_into_a_job_does_not_steer_the_terminal(
    diflow: Cli, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "240")
    node(diflow, "node-a")
    put(diflow, dijob("told", {"worker": 1}), decided=("wait", f"waits for {_HOSTILE}a node"))
    odd = put(diflow, dijob("odd", {"worker": 1}))
    odd["metadata"]["labels"][keys.QUEUE] = _MARKUP
    for parameter in odd["spec"]["arguments"]["parameters"]:
        if parameter["name"] == keys.PARAM_CURRENT:
            parameter["value"] = _HOSTILE
    odd["metadata"]["annotations"][keys.DIJOB] = json.dumps({"spec": {"backoffLimit": _HOSTILE}})
    result = diflow(*command)
    assert "unexpected" not in result.err
    for text in (result.out, result.err):
        assert not {"\x1b", "\x07", "\x9b", "\r", _TURNED} & set(text), (command, text)
