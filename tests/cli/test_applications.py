"""diflow applications: what is recorded of applications, and how to forget it."""

from __future__ import annotations

import json

import pytest

from diflow.common import keys
from diflow.kube.kinds import CONFIG_MAP
from diflow.record.namespace import applications
from diflow.record.namespace.applications import Application, Lesson, learned
from tests.cli.runner import Cli
from tests.kube.fakeapi import Answer, Request, status


def record(name: str, pool: str = "", *, seconds: float = 1_700_000_000.0) -> Application:
    lesson = Lesson(shapes=[(1, 1, 32.0, 0.1, 0.1), (2, 8, 32.0, 0.1, 0.2)], work=5.0, restart_seconds=42.0, miss=0.12)
    return learned(Application(name, pool), lesson, now_seconds=seconds)


def has(diflow: Cli, *records: Application, namespace: str = "default") -> None:
    data = {applications.APPLICATIONS_KEY: applications.text(records)}
    diflow.api.add(CONFIG_MAP, {"metadata": {"name": keys.APPLICATIONS}, "data": data}, namespace=namespace)


def left(diflow: Cli) -> list[tuple[str, str]]:
    return list(
        applications.parse(applications.text_of(diflow.api.objects[CONFIG_MAP.path("default")][keys.APPLICATIONS]))
    )


def test_applications_are_listed_the_last_used_first(diflow: Cli) -> None:
    has(diflow, record("bert", "a100"), record("vision/resnet", seconds=1_800_000_000.0))
    head, first, second = (line.split() for line in diflow("applications").out.splitlines())
    assert head == ["APPLICATION", "POOL", "JOBS", "REPLICAS", "RESTART", "MISS", "USED"]
    assert first[:6] == ["vision/resnet", "-", "1", "1-8", "42s", "12%"]
    assert second[:6] == ["bert", "a100", "1", "1-8", "42s", "12%"]
    assert diflow("applications", "-o", "name").out.split() == ["vision/resnet", "bert"]
    (data, _) = json.loads(diflow("applications", "-o", "json").out)
    assert (data["application"], data["mostReplicas"], data["works"]) == ("vision/resnet", 8, [5.0])


def test_applications_of_all_namespaces_have_their_namespace(diflow: Cli) -> None:
    has(diflow, record("bert"))
    has(diflow, record("resnet"), namespace="other")
    lines = [line.split()[:2] for line in diflow("applications", "-A").out.splitlines()]
    assert lines == [["NAMESPACE", "APPLICATION"], ["default", "bert"], ["other", "resnet"]]


def test_without_the_config_map_it_is_told_how_to_get_one(diflow: Cli) -> None:
    assert "no ConfigMap diflow-applications" in diflow("applications").err
    has(diflow)
    assert "nothing is recorded of any application yet" in diflow("applications").err


def test_a_forgotten_application_is_gone_on_all_pools_and_no_other_one_is(diflow: Cli) -> None:
    has(diflow, record("bert", "a100"), record("bert", "t4"), record("resnet"))
    result = diflow("applications", "--forget", "bert")
    assert (result.code, result.out) == (0, "bert is forgotten\n")
    assert left(diflow) == [("resnet", "")]


@pytest.mark.parametrize("names", [["none"], ["bert", "none"]])
def test_forgetting_what_is_not_recorded_changes_nothing(diflow: Cli, names: list[str]) -> None:
    has(diflow, record("bert"))
    result = diflow("applications", *[word for name in names for word in ("--forget", name)])
    assert result.code == 3
    assert "no record of the application 'none'" in result.err
    assert left(diflow) == [("bert", "")]


def test_what_the_allocator_writes_meanwhile_is_not_lost(diflow: Cli) -> None:
    has(diflow, record("bert"))
    raced: list[int] = []

    def rule(request: Request) -> Answer | None:
        if request.method != "PATCH" or raced:
            return None
        raced.append(1)
        has(diflow, record("bert"), record("resnet"))
        return status(409, "the object has been modified", reason="Conflict")

    diflow.api.rule(rule)
    assert diflow("applications", "--forget", "bert").code == 0
    assert left(diflow) == [("resnet", "")]


def test_a_namespace_must_be_chosen_to_forget(diflow: Cli) -> None:
    assert diflow("applications", "-A", "--forget", "bert").code == 2
