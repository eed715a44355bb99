"""The cache of binaries: its key covers all inputs, and it never contains an incomplete binary."""

from __future__ import annotations

import dataclasses
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path

import pytest

from cluster import build, commands, config
from cluster.errors import ClusterError
from cluster.parts import ARGO, CONTROL_PLANES, COREDNS, ETCD, KWOK, NODE, Part, Program
from cluster.paths import PACKAGE
from cluster.plan import Plan
from cluster.progress import Progress

PARTS = (ETCD, NODE, *CONTROL_PLANES.values(), COREDNS, KWOK, *ARGO.values())


def quiet(_: str) -> None:
    """Takes the place of progress."""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("DIFLOW_CACHE", str(folder))
    return folder


@pytest.fixture
def hello(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Part:
    """A part with one small program, in a separate package folder."""
    folder = tmp_path / "package" / "go" / "hello"
    folder.mkdir(parents=True)
    (folder / "go.mod").write_text("module example.invalid/hello\n\ngo 1.22\n")
    (folder / "main.go").write_text('package main\n\nfunc main() { println("hello") }\n')
    monkeypatch.setattr(build, "PACKAGE", tmp_path / "package")
    return Part("hello", "example.invalid/hello", "1.0.0", (Program("hello", "."),))


def test_a_changed_checksum_file_changes_the_key(tmp_path: Path) -> None:
    before = build.part_key(ETCD)
    copy = tmp_path / "etcd"
    shutil.copytree(PACKAGE / "go" / "etcd", copy)
    assert build.part_key(ETCD, copy) == before
    with (copy / "go.sum").open("a") as file:
        file.write("example.invalid v1.0.0 h1:x\n")
    assert build.part_key(ETCD, copy) != before


def test_a_changed_link_flag_or_program_changes_the_key() -> None:
    before = build.part_key(NODE)
    assert build.part_key(dataclasses.replace(NODE, ldflags="-s")) != before
    assert build.part_key(dataclasses.replace(NODE, programs=NODE.programs[1:])) != before


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_each_part_requires_the_version_that_the_table_names(part: Part) -> None:
    assert f"{part.module} v{part.version}" in (PACKAGE / "go" / part.name / "go.mod").read_text()


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_each_program_from_another_module_is_a_tool_of_its_go_mod(part: Part) -> None:
    text = (PACKAGE / "go" / part.name / "go.mod").read_text()
    for program in part.programs:
        assert program.package == "." or program.package in text


def test_coredns_has_every_plugin_that_the_corefile_names() -> None:
    corefile = config.corefile(Plan("x", "/nowhere", "10.230.0.0/16", "none", {}))
    named = set(re.findall(r"^    (\w+)", corefile, re.MULTILINE))
    compiled = set(re.findall(r"coredns/plugin/(\w+)", (PACKAGE / "go" / "coredns" / "main.go").read_text()))
    assert {"kubernetes", "template"} <= named
    assert named == compiled


def test_both_versions_of_argo_take_turns_because_they_share_most_packages() -> None:
    assert {part.family for part in ARGO.values()} == {"argo"}


needs_go = pytest.mark.skipif(shutil.which("go") is None, reason="no Go on this machine")


@needs_go
def test_a_program_is_built_once_and_then_taken_from_the_cache(hello: Part, cache: Path) -> None:
    told: list[str] = []
    build.build([hello], told.append)
    said = subprocess.run([build.binary(hello, "hello")], capture_output=True, text=True, check=True).stderr
    assert said == "hello\n"
    first = len(told)
    assert first > 0
    build.build([hello], told.append)
    assert len(told) == first
    assert not list((cache / "work").iterdir())


@needs_go
def test_the_programs_of_a_part_are_built_together_and_one_alone_where_no_more_is_needed(
    hello: Part, tmp_path: Path
) -> None:
    folder = tmp_path / "package" / "go" / "hello"
    for name in ("one", "two"):
        (folder / "cmd" / name).mkdir(parents=True)
        (folder / "cmd" / name / "main.go").write_text(f'package main\n\nfunc main() {{ println("{name}") }}\n')
    both = tuple(Program(name, f"example.invalid/hello/cmd/{name}") for name in ("one", "two"))
    part = dataclasses.replace(hello, programs=both)
    assert build.build_one(part, "two", quiet) == build.binary(part, "two")
    assert not build.is_built(part)
    build.build([part], quiet)
    assert build.is_built(part)
    for name in ("one", "two"):
        said = subprocess.run([build.binary(part, name)], capture_output=True, text=True, check=True).stderr
        assert said == f"{name}\n"
    assert sorted(path.name for path in build.part_folder(part).iterdir()) == ["one", "two"]


@needs_go
def test_a_program_stays_where_it_was_put_although_the_checkout_changes_meanwhile(hello: Part, tmp_path: Path) -> None:
    build.build([hello], quiet)
    built = build.binary(hello, "hello")
    with (tmp_path / "package" / "go" / "hello" / "main.go").open("a") as file:
        file.write("// changed by somebody else\n")
    assert build.binary(hello, "hello") == built
    assert build.is_built(hello)


@needs_go
def test_a_build_that_fails_names_its_log_and_leaves_no_binary(hello: Part, tmp_path: Path) -> None:
    (tmp_path / "package" / "go" / "hello" / "main.go").write_text("package main\n\nfunc main() { nonsense() }\n")
    with pytest.raises(ClusterError, match=r"building hello failed: .*nonsense.*build-hello\.log"):
        build.build([hello], quiet)
    assert list(build.part_folder(hello).iterdir()) == []


def test_the_image_is_made_while_the_programs_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = threading.Event()
    done: list[list[str] | str] = []

    def compile_(parts: Iterable[Part], _: Progress) -> None:
        assert begun.wait(60), "the image waits for the programs"
        done.append([part.name for part in parts])

    monkeypatch.setattr("cluster.commands.lifecycle.require_root", lambda: None)
    monkeypatch.setattr("cluster.commands.packages.require", lambda *_: None)
    monkeypatch.setattr("cluster.commands.build.build", compile_)
    monkeypatch.setattr("cluster.commands.diflowimage.base_image", lambda _: begun.set())
    monkeypatch.setattr(commands, "_seed", lambda *_: done.append("seed"))
    commands.build_everything(["4.0.7"], quiet)
    assert done == [
        ["etcd", "kubernetes-1.34.4", "kubernetes-1.37.2", "kubernetes-1.34.4", "argo-4.0.7", "coredns", "kwok"],
        "seed",
    ]


def test_without_go_the_message_says_to_install_it(hello: Part, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ClusterError, match="install Go"):
        build.module_folder(hello)


def test_a_second_builder_waits_for_the_first_and_says_so(cache: Path) -> None:
    script = (
        "import sys\nfrom cluster import build\n"
        "with build.locked('thing', print):\n    print('held', flush=True)\n    sys.stdin.readline()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], cwd=PACKAGE.parent, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as first:
        assert first.stdin is not None
        assert first.stdout is not None
        assert first.stdout.readline() == "held\n"
        told: list[str] = []

        def let_go(line: str) -> None:
            told.append(line)
            assert first.stdin is not None
            first.stdin.write("\n")
            first.stdin.flush()

        with build.locked("thing", let_go):
            first.wait(timeout=100)
    assert told == ["thing: another process is building it; waiting"]
    assert (cache / "locks" / "thing").exists()
