"""Reading jobs from the DIJob objects of a cluster."""

from __future__ import annotations

import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from diflow.jobs import dijobs
from diflow.record.dijob import dijob_record_of
from tests.controller.refusals import dijob


def _with_unknown(name: str) -> dict[str, Any]:
    made = dijob(name, {"tasks": [{"name": "a", f"of{name}": 1}], "nodeCheck": {f"in{name}": 1}})
    made["metadata"]["namespace"] = "default"
    return made


def test_threads_that_read_jobs_at_once_mix_up_no_unknown_fields(capfd: pytest.CaptureFixture[str]) -> None:
    """The controller's threads read the jobs of several users at once, and tell each its own fields."""
    names = [f"job{i}" for i in range(4)]

    def read_often(name: str) -> set[tuple[str, ...]]:
        return {dijobs.read(dijob_record_of(_with_unknown(name)))[1] for _ in range(100)}

    filters, show = list(warnings.filters), warnings.showwarning
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(len(names)) as pool:
            found = dict(zip(names, pool.map(read_often, names), strict=True))
    finally:
        sys.setswitchinterval(interval)
    assert found == {name: {(f"spec.tasks[0].of{name}", f"spec.nodeCheck.in{name}")} for name in names}
    assert (warnings.filters, warnings.showwarning) == (filters, show)
    assert "not known" not in capfd.readouterr().err
