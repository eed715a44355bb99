"""Writes that take long do not keep a job of another namespace waiting."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from diflow.allocator.settings import AllocatorSettings
from diflow.kube.kinds import WORKFLOW
from tests.allocator.faults import eventually
from tests.allocator.lab import Lab, lab
from tests.allocator.watch.test_reading import put, workflow

EVIL = 40


@pytest.fixture(name="at")
def _at() -> Iterator[Lab]:
    with lab(settings=AllocatorSettings(writers=1)) as made:
        yield made


@pytest.mark.parametrize("comes", ["honest", "evil"])
def test_a_cycle_with_many_slow_writes_ends_when_a_job_of_another_namespace_comes(at: Lab, comes: str) -> None:
    with capture_logs() as lines:
        _let_many_write_and_one_come(at, comes)
    said = [line["event"] for line in lines]
    assert ("writes of the plan are left for the next cycle" in said) is (comes == "honest")
    assert "writes of the plan were refused" not in said


def _let_many_write_and_one_come(at: Lab, comes: str) -> None:
    assert at.daemon is not None
    allocator, line, sent = at.daemon.allocator, at.daemon.line, list[str]()
    at.cluster.node("large", cpu=1000)
    at.step()
    for i in range(EVIL):
        put(at.api, workflow(f"w{i:02}", namespace="evil"))

    def change(method: str, path: str) -> None:
        if method != "PATCH" or "/workflows/" not in path:
            return
        sent.append("/".join(path.split("/")[-3::2]))
        at.time.sleep(0.06)
        if len(sent) == 3:
            put(at.api, workflow("new", namespace=comes))
            eventually(lambda: comes in allocator._reasons.namespaces)

    line.before = change
    at.until(lambda: f"{comes}/new" in sent, "it is placed")
    assert (sent.index(f"{comes}/new") < EVIL / 2) is (comes == "honest")
    at.until(lambda: all(f"evil/w{i:02}" in sent for i in range(EVIL)), "so are all others")
    line.before = lambda *_: None
    at.rest()
    for i in range(EVIL):
        assert "diflow/allocation" in at.api.objects[WORKFLOW.path("evil")][f"w{i:02}"]["metadata"]["annotations"]
    assert allocator.executor.refusals() == {}, "what was left is not refused"
