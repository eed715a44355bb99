"""`make bench` as somebody runs it who has just cloned the repository: on a cluster of its own, for all parts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clusters import ROOT, VARIABLES


@pytest.mark.extended
@pytest.mark.xdist_group("node")
@pytest.mark.skipif(os.geteuid() != 0, reason="a cluster needs root")
def test_two_live_parts_are_measured_on_one_new_cluster(tmp_path: Path) -> None:
    """A second part once found the cluster of the first one gone, and all figures were lost."""
    out = tmp_path / "bench.json"
    # In a process of a parallel run, what `cluster up` says is not shown.
    others = ("KUBECONFIG", "PYTEST_XDIST_WORKER", *VARIABLES.values())
    own = {name: value for name, value in os.environ.items() if name not in others}
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--only", "starting,resizing", "--rounds", "1", "--out", str(out)],
        cwd=ROOT, env=own, capture_output=True, text=True, check=False,
    )  # fmt: skip
    parts = [figure["part"] for figure in json.loads(out.read_text())]
    assert sorted(set(parts)) == ["resizing", "starting"], done.stdout + done.stderr
    assert "failed" not in done.stdout
    assert len({line for line in done.stderr.splitlines() if ": addresses " in line}) == 1
