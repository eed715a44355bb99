"""Builds the Go programs into the cache.

The cache key of a binary is the content of its go.mod, go.sum and main file and the recipe here. It is written to a
temporary file and renamed: a killed build leaves nothing partial, and a changed version never uses an old file.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from cluster.errors import ClusterError
from cluster.parts import Part, Program
from cluster.paths import PACKAGE, cache_root
from cluster.progress import Progress

# Increase this when the build changes without a change of a file below go/.
_RECIPE = 2


def part_key(part: Part, source: Path | None = None) -> str:
    """Twelve hex digits that change with every input of the binaries."""
    folder = source or PACKAGE / "go" / part.name
    digest = hashlib.sha256()
    digest.update(json.dumps([_RECIPE, part.ldflags, part.patch, part.keep]).encode())
    for path in sorted(folder.iterdir()):
        if path.name in ("go.mod", "go.sum") or path.suffix == ".go":
            digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    for program in part.programs:
        digest.update(f"{program.name} {program.package}\0".encode())
    return digest.hexdigest()[:12]


def part_folder(part: Part) -> Path:
    """The folder of a part's binaries, which may not exist yet."""
    version = "" if part.name.endswith(part.version) else f"-{part.version}"
    return cache_root() / "go" / f"{part.name}{version}-{_first_key(part, PACKAGE / 'go' / part.name)}"


@cache
def _first_key(part: Part, source: Path) -> str:
    # The checkout may change during a build of minutes: the binaries are found by the key from its start.
    return part_key(part, source)


def binary(part: Part, name: str) -> Path:
    """The path of a built program; `build` creates it."""
    return part_folder(part) / name


def is_built(part: Part) -> bool:
    """Whether all programs of the part are in the cache."""
    folder = part_folder(part)
    names = [p.name for p in part.programs] + list(part.keep)
    return all((folder / name).exists() for name in names)


@contextmanager
def locked(name: str, progress: Progress) -> Iterator[None]:
    """Holds a lock in the cache, which serialises builds of the same thing; reports when it waits."""
    folder = cache_root() / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / name).open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress(f"{name}: another process is building it; waiting")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def build(parts: Iterable[Part], progress: Progress) -> None:
    """Builds what is missing."""
    for part in parts:
        if not is_built(part):
            with locked(part.family or part.name, progress):
                _build_part(part, part.programs, progress)


def build_one(part: Part, name: str, progress: Progress) -> Path:
    """Builds a single program of a part."""
    path = binary(part, name)
    if not path.exists():
        with locked(part.family or part.name, progress):
            _build_part(part, [p for p in part.programs if p.name == name], progress)
    return path


def _build_part(part: Part, programs: Iterable[Program], progress: Progress) -> None:
    folder = part_folder(part)
    folder.mkdir(parents=True, exist_ok=True)
    work = _work_folder(part)
    try:
        missing = [program for program in programs if not (folder / program.name).exists()]
        if missing:
            _build_programs(part, missing, work, folder, progress)
        for kept in part.keep:
            if not (folder / kept).exists():
                staged = folder / f".{kept}.{os.getpid()}"
                shutil.copytree(work / "src" / kept, staged)
                staged.rename(folder / kept)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _build_programs(part: Part, programs: list[Program], work: Path, folder: Path, progress: Progress) -> None:
    """Builds programs of one part with one command: one is linked, on one processor, while the next is compiled."""
    log = cache_root() / "logs" / f"build-{part.name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    names = ", ".join(program.name for program in programs)
    progress(f"building {names} ({part.module} v{part.version}), log {log}")
    began = time.monotonic()
    staged = folder / f".built.{os.getpid()}"
    # Debug information is stripped at the end (-s -w), so none is compiled.
    command = ["go", "build", "-trimpath", "-gcflags=all=-dwarf=false", "-ldflags", part.ldflags, "-o", f"{staged}/"]
    command += [program.package for program in programs]
    try:
        staged.mkdir()
        with log.open("w") as out:
            done = subprocess.run(
                command, cwd=work, env=_build_environment(), stdout=out, stderr=subprocess.STDOUT, check=False
            )
        if done.returncode != 0:
            tail = " | ".join(log.read_text(errors="replace").strip().splitlines()[-3:])
            raise ClusterError(f"building {names} failed: {tail} (whole log: {log})")
        for program in programs:
            (staged / program.name).rename(folder / program.name)
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    progress(f"built {names} in {time.monotonic() - began:.0f} s")


def _build_environment() -> dict[str, str]:
    # Without cgo every program is static, and all share the compiled packages: with it, `net` and almost every package
    # above it would be compiled twice. The compilers are short-lived, so garbage collection is reduced.
    return _go_environment() | {"CGO_ENABLED": "0", "GOGC": "400"}


def _work_folder(part: Part) -> Path:
    """A copy of the part's go.mod for the build, as the checkout is never written to."""
    work = cache_root() / "work" / f"{part.name}-{os.getpid()}"
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(PACKAGE / "go" / part.name, work)
    if part.patch == "argo":
        _patch_argo(part, work)
    return work


def _patch_argo(part: Part, work: Path) -> None:
    """Copies Argo's module beside the go.mod and adds the two things that a Go module cannot have."""
    source = work / "src"
    shutil.copytree(module_folder(part), source)
    for path in (source, *source.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    link = source / "workflow" / "executor" / "osspecific" / "signal_linux.go"
    if not link.exists():
        link.symlink_to("signal_darwin.go")
    page = source / "ui" / "dist" / "app" / "index.html"
    if not page.exists():
        page.parent.mkdir(parents=True)
        page.write_text(_UI_PAGE.format(version=part.version))
    _go(["go", "mod", "edit", f"-replace={part.module}=./src"], work)


_UI_PAGE = """<!doctype html>
<title>Argo Workflows v{version}</title>
<h1>Argo Workflows v{version}</h1>
<p>This server was built from its Go module, which does not hold the web interface; its API is all here.</p>
"""


def module_folder(part: Part) -> Path:
    """The part's module in Go's module cache, downloaded if missing."""
    answer = _go(["go", "mod", "download", "-json", f"{part.module}@v{part.version}"], PACKAGE / "go" / part.name)
    return Path(json.loads(answer)["Dir"])


def _go_environment() -> dict[str, str]:
    # The installed toolchain is used: none is downloaded during a build.
    return os.environ | {"GOFLAGS": "-buildvcs=false -mod=readonly", "GOTOOLCHAIN": "local", "GOWORK": "off"}


def _go(command: list[str], folder: Path) -> str:
    if shutil.which("go") is None:
        raise ClusterError("no `go` on the PATH: install Go 1.25 or newer (https://go.dev/doc/install), then try again")
    done = subprocess.run(command, cwd=folder, env=_go_environment(), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ClusterError(f"`{' '.join(command)}` failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout
