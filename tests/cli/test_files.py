"""submit, render and lint on files as people have them: several objects, Lists, other encodings, older manifests."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from diflow.kube.kinds import POD, POD_TEMPLATE, WORKFLOW
from tests.builders import manifest, template
from tests.cli.runner import Cli, run
from tests.record.seen import SeenJob

_ROOT = Path(__file__).parents[2]
_SETTINGS = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}, "data": {"a": "b"}}


def named(name: str, **spec: Any) -> dict[str, Any]:
    return {**manifest(**spec), "metadata": {"name": name}}


def several(*objects: dict[str, Any]) -> str:
    return "---\n".join(yaml.safe_dump(one, sort_keys=False) for one in objects)


def workflows(diflow: Cli) -> list[str]:
    return sorted(diflow.api.objects.get(WORKFLOW.path("default"), {}))


def test_a_job_beside_other_objects_is_submitted_and_those_are_named(diflow: Cli) -> None:
    diflow.prepare()
    path = diflow.file("job.yaml", several(_SETTINGS, manifest(), {"kind": "Secret", "metadata": {"name": "s"}}))
    result = diflow("submit", path)
    assert (result.code, result.out) == (0, "job\n")
    assert f"{path}: ConfigMap settings (line 1) is not a job and is left out: create it with kubectl\n" in result.err
    assert "Secret s (line " in result.err
    assert workflows(diflow) == ["job"]
    assert {r.path for r in diflow.api.requests if r.method == "POST"} == {
        POD_TEMPLATE.path("default"),
        POD.path("default"),  # what admission makes of a pod
        WORKFLOW.path("default"),
    }
    assert not diflow.api.objects.get(POD.path("default"))


@pytest.mark.parametrize("command", ["render", "lint"])
def test_render_and_lint_take_the_job_among_others_too(diflow: Cli, command: str) -> None:
    path = diflow.file("job.yaml", several(manifest(), _SETTINGS))
    result = run(command, path)
    assert result.code == 0
    assert result.err.count("\n") == 1
    assert "ConfigMap settings (line " in result.err
    if command == "render":
        assert yaml.safe_load(result.out)["metadata"]["name"] == "job"


def test_several_jobs_are_named_and_none_is_taken_without_all(diflow: Cli) -> None:
    path = diflow.file("jobs.yaml", several(named("a"), _SETTINGS, named("b")))
    for command in ("submit", "render"):
        result = diflow(command, path)
        assert (result.code, result.out) == (2, "")
        assert f"{path}: the file holds 2 jobs (DIJob a in line 1, DIJob b in line " in result.err
        assert "put the one that you mean in a file of its own, or take all with --all" in result.err
        assert result.err.count("\n") == 1
    assert diflow.api.requests == []


def test_all_jobs_of_a_file_are_taken_with_all(diflow: Cli) -> None:
    diflow.prepare()
    path = diflow.file("jobs.yaml", several(named("a"), _SETTINGS, named("b")))
    result = diflow("submit", path, "--all")
    assert (result.code, result.out) == (0, "a\nb\n")
    assert "ConfigMap settings" in result.err
    assert workflows(diflow) == ["a", "b"]
    rendered = list(yaml.safe_load_all(run("render", "--all", path).out))
    assert [one["metadata"]["name"] for one in rendered] == ["a", "b"]


def test_of_several_jobs_none_is_made_if_one_is_refused(diflow: Cli) -> None:
    diflow.prepare()
    wrong = diflow.file("wrong.yaml", several(named("a"), named("b", backoffLimit=-1)))
    result = diflow("submit", wrong, "--all")
    assert result.code == 2
    assert "spec.backoffLimit" in result.err
    diflow.has(SeenJob("b", learner=1))
    taken = diflow.file("taken.yaml", several(named("a"), named("b")))
    assert diflow("submit", taken, "--all").code == 4
    assert workflows(diflow) == ["b"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--all", "--name", "x"], "--name: "),
        (["--all", "--wait"], "--watch, --wait and --logs follow one job"),
    ],
)
def test_options_that_are_for_one_job_are_refused_for_several(diflow: Cli, options: list[str], text: str) -> None:
    result = diflow("submit", diflow.file("jobs.yaml", several(named("a"), named("b"))), *options)
    assert result.code == 2
    assert text in result.err
    assert diflow.api.requests == []


def test_two_jobs_of_one_name_are_refused(diflow: Cli) -> None:
    result = diflow("submit", diflow.file("jobs.yaml", several(named("a"), named("a"))), "--all")
    assert result.code == 2
    assert "holds two jobs of the name a" in result.err
    assert diflow.api.requests == []


def test_lint_looks_at_every_job_of_a_file(diflow: Cli) -> None:
    path = diflow.file("jobs.yaml", several(named("a"), named("b", backoffLimit=-1), named("c", colour=1)))
    result = run("lint", path)
    assert result.code == 2
    assert result.out == f"{path}: ok (a)\n"
    lines = Path(path).read_text().splitlines()
    wrong = next(i for i, line in enumerate(lines, 1) if "backoffLimit" in line)
    odd = next(i for i, line in enumerate(lines, 1) if "colour" in line)
    assert f"error: {path}: spec.backoffLimit: " in result.err
    assert f"(line {wrong})\n" in result.err
    assert f"error: {path}: spec.colour: is not known (line {odd})\n" in result.err


def test_the_items_of_a_list_are_taken_as_kubectl_writes_them(diflow: Cli) -> None:
    diflow.prepare()
    listed = {"apiVersion": "v1", "kind": "List", "items": [named("a"), _SETTINGS]}
    assert diflow("submit", diflow.file("list.yaml", listed)).out == "a\n"
    path = diflow.file("list.json", json.dumps({"kind": "List", "items": [named("b"), named("c")]}))
    assert diflow("submit", path, "--all").out == "b\nc\n"
    assert workflows(diflow) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("kind: List\nitems: []\n", "the List in line 1 is empty: one of its items should be a DIJob"),
        ("---\n---\nkind: List\nitems: {a: 1}\n", "the List in line 3 has items that are not a list of objects"),
        ("kind: List\n", "the List in line 1 has no items"),
        ('{"kind": "DIJobList", "items": {"kind": "DIJob"}}', "the DIJobList in line 1 has items that are not a list"),
    ],
)
@pytest.mark.parametrize("command", ["lint", "render"])
def test_a_list_without_items_says_what_is_missing(diflow: Cli, command: str, content: str, text: str) -> None:
    path = diflow.file("job.yaml", content)
    result = diflow(command, path)
    assert result.code == 2
    assert result.err.startswith(f"error: {path}: {text}")
    assert result.err.count("\n") == 1


def test_lint_refuses_two_jobs_of_one_name_as_submit_does(diflow: Cli) -> None:
    one = named("twice")
    elsewhere = {**one, "metadata": {"name": "twice", "namespace": "elsewhere"}}
    path = diflow.file("job.yaml", several(one, elsewhere, one))
    linted, submitted = diflow("lint", path), diflow("submit", path, "--all", "--dry-run=client")
    assert (linted.code, submitted.code) == (2, 2)
    said = f"error: {path} holds two jobs of the name twice: give one of them another name"
    assert said in linted.err
    assert said in submitted.err
    assert linted.out.count("ok (twice)") == 2
    assert diflow("lint", path, diflow.file("other.yaml", one)).err.count("two jobs") == 1, "files are by themselves"


@pytest.mark.parametrize("command", ["lint", "render", "submit"])
def test_an_empty_name_of_a_file_is_told(diflow: Cli, command: str) -> None:
    result = diflow(command, "")
    assert (result.code, result.out) == (2, "")
    assert result.err == "error: the name of the file is empty: name one, or - for standard input, or module:name\n"


def test_an_error_in_an_item_of_a_list_has_its_line(diflow: Cli) -> None:
    listed = {"kind": "List", "items": [named("a", backoffLimit=-1)]}
    path = diflow.file("list.yaml", yaml.safe_dump(listed))
    wrong = next(i for i, line in enumerate(Path(path).read_text().splitlines(), 1) if "backoffLimit" in line)
    assert f"(line {wrong})\n" in run("render", path).err


def test_a_file_without_a_job_says_what_is_in_it(diflow: Cli) -> None:
    result = diflow("submit", diflow.file("none.yaml", several(_SETTINGS, {"kind": "Secret"})))
    assert result.code == 2
    assert "holds 2 documents and none is a DIJob (ConfigMap settings in line 1, Secret in line " in result.err


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_file_as_windows_writes_it_is_read(diflow: Cli, encoding: str) -> None:
    path = diflow.folder / "job.yaml"
    path.write_bytes(yaml.safe_dump(manifest()).replace("\n", "\r\n").encode(encoding))
    assert run("lint", str(path)).code == 0


def test_json_with_pairs_of_surrogates_reaches_the_container_unchanged(diflow: Cli) -> None:
    job = manifest(tasks=[{"type": "learner", "template": template("echo 😀")}])
    assert "\\ud83d\\ude00" in json.dumps(job)
    result = run("render", diflow.file("job.json", json.dumps(job)))
    assert result.code == 0
    assert "echo 😀" in json.dumps(yaml.safe_load(result.out), ensure_ascii=False)


def test_keys_that_stand_twice_warn_with_their_lines(diflow: Cli) -> None:
    path = diflow.file(
        "job.yaml", yaml.safe_dump(manifest(), sort_keys=False) + "  priority: high\n  priority: normal\n"
    )
    last = len(Path(path).read_text().splitlines())
    result = run("lint", "--strict", path)
    assert result.code == 2
    assert f"spec.priority is given twice, in lines {last - 1} and {last}: the last one counts" in result.err


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (
            {"apiVersion": "diengine.opendilab.org/v1alpha1", "kind": "DIJob", "metadata": {"name": "a"},
             "spec": {"coordinator": {"template": template()}}},
            "apiVersion: v1alpha1 is the DIJob of DI-orchestrator v0.x (coordinator, collector, learner): kubectl "
            "apply runs it where the controller is installed (docs/manifests.md)",
        ),
        (
            {"apiVersion": "diengine.opendilab.org/v1alpha1", "kind": "AggregatorConfig", "metadata": {"name": "a"}},
            "kind: an AggregatorConfig belongs to jobs with a coordinator, and is no job: create it with kubectl apply",
        ),
        (
            {"apiVersion": "diengine.opendilab.org/v2alpha1", "kind": "DIJob", "metadata": {"name": "a"},
             "spec": {"minReplicas": 1, "engineFields": {"topology": "ring"}, "template": template()}},
            "spec.engineFields.topology: must be one of star, alone, mesh",
        ),
        (
            {"apiVersion": "diengine.opendilab.org/v2alpha1", "kind": "DIJob", "metadata": {"name": "a"},
             "spec": {"coordinator": {"template": template()}, "learner": {"template": template()}}},
            "spec: coordinator and learner in spec are of the DIJob of DI-orchestrator v0.x: kubectl apply runs it "
            "where the controller is installed (docs/manifests.md)",
        ),
    ],
)  # fmt: skip
def test_manifests_of_older_versions_are_recognised(diflow: Cli, content: dict[str, Any], text: str) -> None:
    path = diflow.file("old.yaml", content)
    for command in ("submit", "render", "lint"):
        result = diflow(command, path)
        assert result.code == 2
        assert f"error: {path}: {text}" in result.err
        assert result.err.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("[" * 100_000, "nested more than 64 levels deep at line 1"),
        ("a: &a [*a]", "broken YAML at line 1: *a is used inside of what it names"),
        ("kind: DIJob\nspec: !!set {a}", "broken YAML at line 2, column 7: !!set is a type"),
        ("kind: DIJob\nspec: !!binary aGk=", "broken YAML at line 2, column 7: !!binary is a type"),
        ("a: \0", "broken YAML at line 1: the character U+0000 is not allowed"),
        pytest.param(f"kind: DIJob\nspec: 0x{'f' * 5_000}", "line 2, column 7: 0xffff", id="hexadecimal"),
        pytest.param(f"kind: DIJob\nspec: 0{'7' * 20_000}", "line 2, column 7: 07777", id="octal"),
    ],
)
def test_a_file_that_would_break_a_reader_is_one_line(diflow: Cli, content: str, text: str) -> None:
    path = diflow.file("bad.yaml", content)
    for command in ("render", "lint"):
        result = run(command, path)
        assert (result.code, result.out) == (2, "")
        assert result.err.startswith(f"error: {path}: ")
        assert text in result.err
        assert result.err.count("\n") == 1


@pytest.mark.parametrize("end", ["", ".py", ":job", ".py:job"])
def test_a_name_that_is_longer_than_any_file_has_is_one_line(end: str) -> None:
    for command in ("render", "lint"):
        result = run(command, "x" * 5_000 + end)
        assert (result.code, result.out) == (2, "")
        assert "unexpected" not in result.err
        assert result.err.count("\n") == 1


def test_a_date_is_text_as_with_kubectl(diflow: Cli) -> None:
    text = yaml.safe_dump(manifest()).replace("metadata:\n", "metadata:\n  annotations: {day: 2026-11-22, at: 12:30}\n")
    given = yaml.safe_load(run("render", diflow.file("job.yaml", text)).out)["metadata"]["annotations"]
    assert (given["day"], given["at"]) == ("2026-11-22", "12:30")


def start(*args: str, **streams: Any) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(_ROOT)}
    return subprocess.run(
        [sys.executable, "-m", "diflow", *args],
        capture_output=True,
        check=False,
        timeout=200,
        env=environment,
        **streams,
    )


def test_standard_input_that_is_closed_is_one_line() -> None:
    done = start("render", "-", preexec_fn=lambda: os.close(0))
    assert done.returncode == 2
    assert done.stderr.decode().startswith("error: standard input is closed: give a file")
    assert done.stderr.count(b"\n") == 1


def test_standard_input_that_is_no_text_is_one_line() -> None:
    done = start("render", "-", input=bytes(range(256)) * 10)
    assert done.returncode == 2
    assert done.stderr == (
        b"error: standard input cannot be read: it is not text in UTF-8 (byte 0x80 in line 2): is it a manifest?\n"
    )


def test_a_job_on_standard_input_may_have_a_byte_order_mark() -> None:
    done = start("render", "-", input=b"\xef\xbb\xbf" + yaml.safe_dump(manifest()).encode())
    assert (done.returncode, done.stderr) == (0, b"")


def test_several_objects_on_standard_input_are_named_by_their_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(several(_SETTINGS, manifest())))
    result = run("render", "-")
    assert result.code == 0
    assert result.err == "-: ConfigMap settings (line 1) is not a job and is left out: create it with kubectl\n"
