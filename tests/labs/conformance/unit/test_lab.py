"""How the probe waits: for a sign that Argo has acted, not for a time; and its second try after a failure."""

# ruff: noqa: ARG002 (the fake has the arguments of the real cluster)

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from diflow.common.errors import UnavailableError
from diflow.kube.kinds import Kind
from diflow.labs.conformance import ProbeSettings, lab, probe, shapes
from diflow.labs.conformance.finding import FactFailedError, HopelessError
from diflow.labs.conformance.lab import Lab, Run
from diflow.labs.conformance.outcome import Outcome
from tests.labs.conformance.unit.test_probe import Fake

Json = dict[str, Any]
# The module; the package's own `probe` is the function.
probing = importlib.import_module("diflow.labs.conformance.probe")


@dataclass
class LazyArgo(Fake):
    """A cluster whose Argo acts on the witnesses alone, and on a patch of them only after some more changes."""

    overlooks: int = 0
    refuses: int = 0
    ends_as: str = ""
    patches: list[Any] = field(default_factory=list)

    def get(self, kind: Kind, name: str, *, namespace: str | None = None) -> Json:
        if self.refuses:
            self.refuses -= 1
            raise UnavailableError("too busy")
        return super().get(kind, name, namespace=namespace)

    def patch(self, kind: Kind, name: str, body: Any, *, namespace: str | None = None) -> Json:
        self.patches.append(body)
        workflow = self.workflows[name]
        given = workflow["spec"]["arguments"]["parameters"]
        for change in body if isinstance(body, list) else []:
            given[int(change["path"].split("/")[4])]["value"] = change["value"]
        if self.overlooks:
            self.overlooks -= 1
            return workflow
        count = int(next(item["value"] for item in given if item["name"] == shapes.PARAM_WITNESSES))
        names = [f"{name}.witness({i}:{i})" for i in range(count)]
        workflow["status"] = {
            "phase": self.ends_as or "Running",
            "nodes": {} if self.ends_as else {node: {"name": node, "phase": "Running"} for node in names},
        }
        return workflow


def _lab(cluster: Fake, *, seconds: float = 60) -> Lab:
    return Lab(cluster=cluster, namespace="ns", image="busybox", id="x", limit_seconds=seconds)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab, "_POLL_SECONDS", 0.001)
    monkeypatch.setattr(lab, "_NUDGE_SECONDS", 0.01)


def _started(cluster: LazyArgo) -> Run:
    workflow = shapes.named_group("w")
    workflow["status"] = {"phase": "Running"}
    cluster.workflows["w"] = workflow
    return Run(_lab(cluster), "w")


def test_a_change_is_seen_when_the_witness_that_came_with_it_is_there() -> None:
    cluster = LazyArgo()
    run = _started(cluster)
    workflow = run.set_and_see(members='["a"]')
    values = {item["name"]: item["value"] for item in workflow["spec"]["arguments"]["parameters"]}
    assert (values["members"], values[shapes.PARAM_WITNESSES]) == ('["a"]', "2")
    assert "w.witness(1:1)" in workflow["status"]["nodes"]
    assert len(cluster.patches) == 1, "both in one patch"
    assert "w.witness(2:2)" in run.set_and_see()["status"]["nodes"]


def test_argo_is_nudged_until_it_sees_a_change() -> None:
    cluster = LazyArgo(overlooks=3)
    run = _started(cluster)
    run.set_and_see(members='["a"]')
    assert len(run.nudges) == 3


def test_a_workflow_that_ends_instead_is_an_answer_too() -> None:
    run = _started(LazyArgo(ends_as="Error"))
    assert run.set_and_see(members="[]")["status"]["phase"] == "Error"


def test_a_cluster_that_does_not_answer_for_a_while_is_asked_again() -> None:
    cluster = LazyArgo()
    run = _started(cluster)
    cluster.refuses = 5
    assert run.until_node("anything", lambda workflow: workflow["metadata"]["name"]) == "w"


def test_a_cluster_that_never_answers_ends_the_wait() -> None:
    with pytest.raises(UnavailableError, match="too busy"):
        _lab(Fake(), seconds=0.01).until("anything", _busy)


def _busy() -> None:
    raise UnavailableError("too busy")


def test_a_witness_keeps_its_workflow_open_until_the_run_lets_it_go() -> None:
    cluster = LazyArgo()
    run = _started(cluster)
    cluster.ends_as = "Succeeded"
    run.until_succeeded()
    assert [change["value"] for change in cluster.patches[0]] == ["0"]


class Moody:
    """A scenario for facts 2 and 4 that fails the first times."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.ids: list[str] = []

    def __call__(self, lab: Lab) -> Iterator[Outcome]:
        self.ids.append(lab.id)
        number = len(self.ids)
        yield Outcome(2, "kept", {"run": number})
        if self.failures:
            raise self.failures.pop(0)
        yield Outcome(4, "grown", {"run": number})


def _probe(scenario: Moody, monkeypatch: pytest.MonkeyPatch) -> dict[int, Any]:
    monkeypatch.setattr(probing, "_SCENARIOS", (probing._Scenario((2, 4), scenario),))
    return {item.fact: item for item in probe(Fake(), "ns", facts=[2, 4], settings=ProbeSettings())}


def test_what_fails_once_is_tried_again_and_the_run_that_held_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = Moody(FactFailedError("too slow"))
    found = _probe(scenario, monkeypatch)
    assert found[4].ok
    assert found[4].detail == "grown (at the second attempt; at the first: too slow)"
    assert [found[fact].measured["run"] for fact in (2, 4)] == [2, 2]
    assert len(set(scenario.ids)) == 2, "each try has names of its own"


def test_what_fails_twice_has_failed_and_both_reasons_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    found = _probe(Moody(FactFailedError("too slow"), UnavailableError("gone")), monkeypatch)
    assert found[2].ok
    assert not found[4].ok
    assert found[4].detail == "it could not be measured: gone (at the first attempt: too slow)"


def test_what_would_fail_again_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = Moody(HopelessError("no such image"))
    assert _probe(scenario, monkeypatch)[4].detail == "no such image"
    assert len(scenario.ids) == 1
