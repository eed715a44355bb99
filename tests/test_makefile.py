"""Every target of the Makefile gets as far as its work, as somebody runs it who has just cloned the repository.

The targets that need a cluster are run until they ask for one, which is refused here: by then they have imported all
that they need, and read their options. What the tests' own targets run is asked what it would do. The commands of the
others are looked at. tests/e2e/test_bench.py runs two parts of `make bench` on a cluster of their own.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from diflow.version import __version__
from tests.clusters import ROOT, VARIABLES

pytestmark = pytest.mark.slow

BIN = Path(sys.executable).parent
REFUSED = "DIFLOW_CLUSTER_DIR=/run/clusters lies in /run, which a cluster hides"
ENDS: dict[str, str] = {
    "help": "demo-elastic",
    "cluster": REFUSED,
    "cluster-down": REFUSED,
    "demo": REFUSED,
    "demo-elastic": REFUSED,
    "demo-hostile": REFUSED,
    "demo-queues": REFUSED,
    "demo-training": REFUSED,
    "chaos": REFUSED,
    "bench PARTS=starting SIZES=100 ROUNDS=1": REFUSED,
    "bench-scale PARTS=soak": REFUSED,
    "bench-argo": REFUSED,
    "bench-long": REFUSED,
    "bench-policies STREAMS=1": "all loads together, 3 streams",
    "release TAG=v0": f"the tag is v0, but diflow/version.py says {__version__}",
}
"""Targets that are run, with what they say last."""
TESTS = ("test", "tests", "test-all", "unit", "slow", "laws")
LOOKED_AT = ("venv", "lint", "style", "types", "format", "golden", "audit", "lock", "clean")
"""They are run by other tests, change the checkout, or need what is outside of it."""
_TARGET = re.compile(r"^\.PHONY: (.+)$", re.MULTILINE)


def make(*arguments: str, home: Path) -> str:
    """What make says on a machine that has no cluster, and can make none."""
    without = ("KUBECONFIG", *VARIABLES.values())
    kept = {name: value for name, value in os.environ.items() if name not in without and not name.startswith("MAKE")}
    here = (f"BIN={BIN}", "--old-file=.venv/.ready")  # the environment of this test, which is not made anew
    done = subprocess.run(
        ["make", "--no-print-directory", *here, *arguments],
        cwd=ROOT,
        env=kept | {"HOME": str(home), "DIFLOW_CACHE": str(home / "cache"), "DIFLOW_CLUSTER_DIR": "/run/clusters"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.stdout


def commands(target: str, home: Path) -> list[str]:
    """What make would run for a target, one command a line."""
    said = make("--dry-run", target, home=home)
    assert "***" not in said, said
    return [line for line in said.replace("\\\n", " ").splitlines() if not line.startswith("make ")]


def run(command: str, **environment: str) -> str:
    """What a command of the Makefile prints."""
    done = subprocess.run(
        ["bash", "-c", command], cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_each_target_is_tested_here() -> None:
    named = {name for line in _TARGET.findall((ROOT / "Makefile").read_text()) for name in line.split()}
    assert named == {target.split()[0] for target in ENDS} | set(TESTS) | set(LOOKED_AT)


@pytest.mark.parametrize("target", ENDS)
def test_a_target_gets_as_far_as_its_work(target: str, tmp_path: Path) -> None:
    assert ENDS[target] in make(*target.split(), home=tmp_path)


@pytest.mark.parametrize("target", TESTS)
def test_pytest_takes_the_options_of_a_target_with_tests(target: str, tmp_path: Path) -> None:
    found = [line for line in commands(target, tmp_path) if "-m pytest" in line]
    assert found
    nowhere = dict.fromkeys(VARIABLES.values(), str(tmp_path / "kubeconfig"))  # or DIFLOW_TEST_CLUSTERS starts some
    for line in found:
        assert "@pytest.mark.cluster" in run(f"{line} --markers", **nowhere)


@pytest.mark.parametrize("target", [*LOOKED_AT, *TESTS])
def test_the_programs_of_a_target_are_there(target: str, tmp_path: Path) -> None:
    for line in commands(target, tmp_path):
        words = shlex.split(line)
        ours = [word for word in words if word.startswith(f"{BIN}/")]
        assert all(Path(word).exists() for word in ours), line
        if ours == [f"{BIN}/python"]:
            flag, module = words[words.index(ours[0]) + 1 :][:2]
            assert flag == "-m", line
            assert importlib.util.find_spec(module), line


def test_golden_writes_what_is_there(tmp_path: Path) -> None:
    """A generated file that is out of date fails the test of its generator; here it is the Makefile's line."""
    written = [line.partition(" > ") for line in commands("golden", tmp_path) if " > " in line]
    assert len(written) == 3
    for command, _, path in written:
        assert run(command) == (ROOT / path).read_text()
