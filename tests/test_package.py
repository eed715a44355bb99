"""The package as it is published: a wheel made of the sdist has every room, and works without the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for room in ("cli", "client", "jobs", "kube", "spec", "state", "workflows", "allocator", "server")
    for path in (ROOT / "diflow" / room).rglob("*.py")
    if path.name != "__main__.py"
)


def build(kind: str, of: Path, into: Path) -> Path:
    """One file made by the build backend that pyproject.toml names, with nothing downloaded."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(into)], cwd=of, check=True, timeout=120,
        capture_output=True,
    )  # fmt: skip
    (made,) = into.iterdir()
    return made


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the wheel puts into site-packages."""
    sdist = build("sdist", ROOT, tmp_path_factory.mktemp("sdist"))
    source = tmp_path_factory.mktemp("source")
    with tarfile.open(sdist) as packed:
        packed.extractall(source, filter="data")
    (folder,) = source.iterdir()
    wheel = build("wheel", folder, tmp_path_factory.mktemp("wheel"))
    target = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(target)
    return target


def run(installed: Path, *arguments: str) -> str:
    """Run Python with this copy of diflow, in a folder where no other one is."""
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "KUBECONFIG")}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=installed, env={**environment, "PYTHONPATH": str(installed)},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_room_is_in_the_wheel_and_can_be_imported(installed: Path) -> None:
    assert len(MODULES) > 150
    told = run(
        installed,
        "-c",
        "import importlib, sys\n"
        f"for name in {MODULES!r}: importlib.import_module(name)\n"
        "print(sys.modules['diflow'].__file__)",
    )
    assert Path(told.strip()).is_relative_to(installed)


def test_the_wheel_alone_renders_and_simulates(installed: Path) -> None:
    job = str(ROOT / "examples" / "minimal" / "job.yaml")
    assert "kind: Workflow" in run(installed, "-m", "diflow", "render", job)
    assert "simulate" in run(installed, "-m", "diflow", "simulate", "--help")
