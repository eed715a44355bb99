"""The package as it is published: the wheel has every room, and works in a clean environment, without the checkout.

The environments have what pip would put there by the wheel's own words, and none of the tools that the tests run with.
They are linked and not installed, for tests ask nothing of the network; the hashes of the lock file are tried where the
image is made (tests/cluster/test_dockerfile.py).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from diflow.version import __version__
from tests.labs.simulator.test_simulator import profiles  # noqa: F401 - a fixture

ROOT = Path(__file__).parents[1]
JOB = str(ROOT / "examples" / "minimal" / "job.yaml")
FILES = {
    path.relative_to(ROOT).as_posix()
    for path in (ROOT / "diflow").rglob("*")
    if path.is_file() and "__pycache__" not in path.parts
}
MODULES = sorted(
    path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    for path in FILES
    if path.endswith(".py") and not path.endswith("__main__.py")
)


@dataclass(frozen=True)
class Built:
    """What `python -m build` makes."""

    sdist: Path
    wheel: Path


@dataclass(frozen=True)
class Environment:
    """A Python with the wheel and some packages."""

    folder: Path

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run its Python in a folder where no other diflow is."""
        left_out = ("PYTHONPATH", "PYTHONHOME", "KUBECONFIG", "VIRTUAL_ENV")
        return subprocess.run(
            [self.folder / "bin" / "python", *arguments],
            cwd=self.folder, env={k: v for k, v in os.environ.items() if k not in left_out},
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip

    def output(self, *arguments: str) -> str:
        """Its stdout, after a successful run."""
        done = self.run(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """An sdist and the wheel made of it, by the build backend that pyproject.toml names, with nothing downloaded."""
    folder = tmp_path_factory.mktemp("built")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, check=False, timeout=300, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return Built(sdist, wheel)


def needed(wheel: Path, extras: set[str]) -> dict[str, metadata.Distribution]:
    """The packages that pip would install beside the wheel, by their normal names."""
    (described,) = (path for path in zipfile.Path(wheel).iterdir() if path.name.endswith(".dist-info"))
    open_ = [
        Requirement(line.partition(":")[2])
        for line in (described / "METADATA").read_text().splitlines()
        if line.startswith("Requires-Dist:")
    ]
    asked = [(requirement, extras) for requirement in open_]
    found: dict[str, metadata.Distribution] = {}
    seen = set()
    while asked:
        requirement, chosen = asked.pop()
        if requirement.marker and not any(requirement.marker.evaluate({"extra": extra}) for extra in {"", *chosen}):
            continue
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        found[name] = metadata.distribution(name)
        assert requirement.specifier.contains(found[name].version, prereleases=True), requirement
        if (name, frozenset(requirement.extras)) not in seen:
            seen.add((name, frozenset(requirement.extras)))
            asked += [(Requirement(line), requirement.extras) for line in found[name].requires or ()]
    return found


def environment(folder: Path, wheel: Path, extras: set[str]) -> Environment:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=300)
    (site,) = folder.glob("lib/python3*/site-packages")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(site)
    for package in needed(wheel, extras).values():
        for name in {path.parts[0] for path in package.files or ()} - {"..", "__pycache__"}:
            # Two packages may put files into one folder, such as that of their compiled libraries.
            if not (site / name).exists():
                (site / name).symlink_to(Path(str(package.locate_file(name))))
    return Environment(folder)


@pytest.fixture(scope="module")
def full(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """As `pip install 'diflow[allocator,server]'`."""
    return environment(tmp_path_factory.mktemp("full"), built.wheel, {"allocator", "server"})


@pytest.fixture(scope="module")
def bare(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """As `pip install diflow`."""
    return environment(tmp_path_factory.mktemp("bare"), built.wheel, set())


@pytest.mark.slow
def test_the_wheel_holds_every_file_of_every_room(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as packed:
        held = {name for name in packed.namelist() if ".dist-info/" not in name and not name.endswith("/")}
    assert held == FILES
    assert built.wheel.name.startswith(f"diflow-{__version__}-")


def test_the_sdist_holds_them_once_and_what_a_reader_needs(built: Built) -> None:
    with tarfile.open(built.sdist) as packed:
        held = [name.partition("/")[2] for name in packed.getnames()]
    assert len(held) == len(set(held))
    assert FILES | {"README.md", "LICENSE", "CHANGELOG.md", "pyproject.toml"} <= set(held)
    assert not [name for name in held if name.startswith(("workflows", "allocator", "server", "tests"))]


@pytest.mark.slow
def test_every_room_can_be_imported_from_the_wheel_alone(full: Environment) -> None:
    assert len(MODULES) > 150
    told = full.output(
        "-c",
        "import importlib, sys\n"
        f"for name in {MODULES!r}: importlib.import_module(name)\n"
        "print(*sorted({name.partition('.')[0] for name in sys.modules} & {'pytest', 'hatchling', 'httpx'}))\n"
        "print(sys.modules['diflow'].__file__)",
    )
    tools, place = told.splitlines()
    assert tools == ""
    assert Path(place).is_relative_to(full.folder)


def test_the_command_is_there_and_says_the_version(bare: Environment) -> None:
    load = "from importlib.metadata import entry_points as e; (c,) = e(group='console_scripts', name='diflow'); "
    assert bare.output("-c", load + "print(c.load().__module__)").startswith("diflow.cli")
    assert bare.output("-m", "diflow", "--version").strip() == f"diflow {__version__}"


@pytest.mark.slow
def test_the_bare_package_renders_and_says_what_simulate_lacks(bare: Environment) -> None:
    assert "kind: Workflow" in bare.output("-m", "diflow", "render", JOB)
    done = bare.run("-m", "diflow", "simulate", JOB)
    assert done.returncode != 0
    assert "pip install 'diflow[allocator]'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_the_wheel_with_its_extras_renders_and_simulates(
    full: Environment,
    profiles: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    assert "kind: Workflow" in full.output("-m", "diflow", "render", JOB)
    workload = tmp_path / "workload.csv"
    workload.write_text("name,time,application,num_replicas,batch_size\na,5,toy,1,32\nb,9,toy,2,64\n")
    asked = ["simulate", "--workload", str(workload), "--profiles", str(profiles), "--policy", "goodput"]
    assert full.output("-m", "diflow", *asked).splitlines()[1].startswith("goodput")
