"""Gangs that wait are read from the metadata of their Workflows, with the same result as from the whole."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from diflow import DIJob, Task
from diflow.allocator.watch.records import planning_record_of
from diflow.common import keys
from diflow.jobs import lookup, waiting
from diflow.kube.api import Cluster
from diflow.kube.kinds import WORKFLOW
from diflow.record.status import status
from diflow.record.waiting import from_metadata
from diflow.workflows import render
from tests.builders import template
from tests.cli.runner import Cli
from tests.kube.fakeapi import Request
from tests.kube.fakeapi import status as refusal

METADATA = {"namespace": "default", "uid": "u-1", "resourceVersion": "7", "creationTimestamp": "2026-11-20T10:00:00Z"}


def submitted(name: str = "job", **metadata: Any) -> dict[str, Any]:
    """The Workflow of a gang of two tasks."""
    tasks = (
        Task(name="learner", template=template("x")),
        Task(name="collector", replicas=3, min_replicas=2, template=template("x")),
    )
    made = render(DIJob(name=name, tasks=tasks, scheduling="gang", queue="red", priority="high", preemptible=True))
    made["metadata"] |= METADATA
    for key, values in metadata.items():
        made["metadata"][key] = {**made["metadata"].get(key, {}), **values}
    return made


def workflows(cluster: Cluster, **selection: Any) -> list[dict[str, Any]]:
    """The Workflows; those of gangs that wait have no templates, and a status without nodes."""
    return waiting.each(cluster, of_head=from_metadata, of_workflow=lambda workflow: workflow, **selection)


def head(workflow: dict[str, Any]) -> dict[str, Any]:
    return {key: workflow[key] for key in ("apiVersion", "kind", "metadata")}


PLACED = '{"round":"1","nodes":{"learner":["a"]}}'
DECISION = json.dumps({"action": "wait", "why": "2 fit, 4 are needed", "time": "2026-11-20T10:00:05Z"})


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {"annotations": {keys.DECISION: DECISION}},
        {"annotations": {keys.HELD: "true"}},
        {"annotations": {keys.BOUNDS: '{"collector":{"min":1,"max":5}}'}},
        {"labels": {keys.QUEUE: "blue", keys.INSTANCE: keys.INSTANCE_VALUE}},
        {"annotations": {keys.DIJOB: "{"}},
        {"annotations": {keys.DIJOB: "[" * 100_000}},
        {"annotations": {keys.DIJOB: '{"spec":{"tasks":[{"name":"a","replicas":100000000}]}}'}},
        {"annotations": {keys.DIJOB: '{"spec":{"tasks":[{"name":"A b","replicas":1}]}}'}},
    ],
)
def test_metadata_and_the_whole_say_the_same(metadata: dict[str, Any]) -> None:
    whole = submitted(**metadata)
    found = from_metadata(head(whole))
    assert status.derive(found) == status.derive(whole)
    # The parameters of an unreadable job are kept to be written back, which nobody does from a list.
    seen, read = planning_record_of(found), planning_record_of(whole)
    assert replace(seen, texts=replace(seen.texts, parameters=read.texts.parameters)) == read


def test_what_was_requested_since_is_in_the_metadata(diflow: Cli) -> None:
    diflow.prepare()
    diflow.api.add(WORKFLOW, submitted())
    assert diflow("scale", "job", "-t", "collector", "--replicas", "5").code == 0
    whole = diflow.api.objects[WORKFLOW.path("default")]["job"]
    asked = {role.name: role.desired for role in planning_record_of(from_metadata(head(whole))).needs.roles}
    assert asked == {role.name: role.desired for role in planning_record_of(whole).needs.roles}
    assert asked["collector"] == 5


@pytest.mark.parametrize("requested", ["{", '{"collector":-1}', '{"collector":100000000}', "x" * 200_000, '{"a":1}'])
def test_an_invalid_request_is_ignored(requested: str) -> None:
    found = planning_record_of(from_metadata(head(submitted(annotations={keys.REQUESTED: requested}))))
    assert not found.problem
    assert {role.name: role.desired for role in found.needs.roles} == {"learner": 1, "collector": 3}
    assert keys.PARAM_REPLICAS in found.complaint


def test_a_long_list_reads_no_spec_of_a_gang_that_waits(diflow: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup, "_MANY", 1)
    diflow.prepare()
    diflow.api.add(WORKFLOW, submitted("waits"))
    diflow.api.add(WORKFLOW, admitted("runs", uid="u-2"))
    before = len(diflow.api.requests)
    result = diflow("list")
    assert result.code == 0
    assert {"waits", "runs"} <= set(result.out.split())
    asked = [r for r in diflow.api.requests[before:] if r.path == WORKFLOW.path("default")]
    for request in asked:
        selector = request.query["labelSelector"]
        assert f"{keys.ADMITTED}!=false" in selector or "PartialObjectMetadata" in request.headers["Accept"]


def ended(workflow: dict[str, Any], phase: str) -> dict[str, Any]:
    labels = {"workflows.argoproj.io/completed": "true", "workflows.argoproj.io/phase": phase}
    workflow["metadata"]["labels"] |= labels
    workflow["status"] = {"phase": phase, "finishedAt": "2026-11-20T11:00:00Z"}
    return workflow


def test_a_gang_that_was_stopped_while_it_waited_is_listed_as_failed(
    diflow: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    diflow.prepare()
    diflow.api.add(WORKFLOW, ended(submitted("stopped"), "Failed"))
    for most in (1000, 0):
        monkeypatch.setattr(lookup, "_MANY", most)
        assert [line.split()[:2] for line in diflow("list").out.splitlines()[1:]] == [["stopped", "Failed"]]


@pytest.mark.parametrize("count", [1, 30])
def test_jobs_that_end_between_the_two_requests_stay_in_the_list(
    diflow: Cli, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(lookup, "_MANY", 0)
    diflow.prepare()
    names = [f"job-{i:02}" for i in range(count)]
    for name in names:
        diflow.api.add(WORKFLOW, admitted(name, uid=name))

    def ends(request: Request) -> None:
        if "completed" in request.query.get("labelSelector", ""):
            for name in names:
                diflow.api.add(WORKFLOW, ended(admitted(name, uid=name), "Succeeded"))

    diflow.api.rule(ends)
    listed = sorted(line.split()[:2] for line in diflow("list").out.splitlines()[1:])
    assert listed == [[name, "Succeeded"] for name in names]


def test_a_gang_that_is_admitted_between_the_two_requests_is_read_once(diflow: Cli) -> None:
    diflow.prepare()
    diflow.api.add(WORKFLOW, submitted("job"))

    def admits(request: Request) -> None:
        if f"{keys.ADMITTED}!=false" in request.query.get("labelSelector", ""):
            diflow.api.add(WORKFLOW, admitted("job"))

    diflow.api.rule(admits)
    (found,) = workflows(
        Cluster.connect(kubeconfig=str(diflow.kubeconfig)), labels=f"{keys.MANAGED_BY}={keys.MANAGED_BY_VALUE}"
    )
    assert found["spec"]["templates"]


def test_a_gang_that_was_resumed_and_placed_is_read_as_a_whole(diflow: Cli) -> None:
    diflow.prepare()
    resumed = submitted("job", annotations={keys.ALLOCATION: PLACED})
    diflow.api.add(WORKFLOW, resumed)
    (found,) = workflows(
        Cluster.connect(kubeconfig=str(diflow.kubeconfig)), labels=f"{keys.MANAGED_BY}={keys.MANAGED_BY_VALUE}"
    )
    assert found["spec"]["templates"]


@pytest.mark.parametrize("allocation", ["{}", "{", '{"round":"1","nodes":{}}', '{"round":"1","nodes":{"learner":[]}}'])
def test_a_gang_that_lost_its_place_is_read_from_its_metadata(diflow: Cli, allocation: str) -> None:
    diflow.prepare()
    diflow.api.add(WORKFLOW, submitted("job", annotations={keys.ALLOCATION: allocation}))
    (found,) = workflows(
        Cluster.connect(kubeconfig=str(diflow.kubeconfig)), labels=f"{keys.MANAGED_BY}={keys.MANAGED_BY_VALUE}"
    )
    assert "templates" not in found["spec"]


def test_few_gangs_with_places_are_read_one_by_one(diflow: Cli) -> None:
    diflow.prepare()
    diflow.api.add(WORKFLOW, submitted("job", annotations={keys.ALLOCATION: PLACED}))
    for name, given in (("gone", {keys.ALLOCATION: PLACED}), ("other", {})):
        made = submitted(name, annotations=given)
        made["metadata"]["uid"] = name
        diflow.api.add(WORKFLOW, made)

    def deletes(request: Request) -> None:
        if f"{keys.ADMITTED}!=false" in request.query.get("labelSelector", ""):
            diflow.api.objects[WORKFLOW.path("default")].pop("gone", None)

    diflow.api.rule(deletes)
    found = workflows(
        Cluster.connect(kubeconfig=str(diflow.kubeconfig)), labels=f"{keys.MANAGED_BY}={keys.MANAGED_BY_VALUE}"
    )
    assert {w["metadata"]["name"]: "templates" in w["spec"] for w in found} == {
        "job": True,
        "gone": False,
        "other": False,
    }


def test_without_the_right_to_get_a_workflow_a_gang_with_a_place_is_read_from_its_metadata(diflow: Cli) -> None:
    diflow.prepare()
    diflow.api.add(WORKFLOW, submitted("forged", annotations={keys.ALLOCATION: PLACED}))
    diflow.api.add(WORKFLOW, admitted("runs", uid="u-2"))
    text = 'workflows.argoproj.io "forged" is forbidden: User "jane" cannot get resource "workflows" in API group ""'
    forbidden = refusal(403, text, reason="Forbidden")
    diflow.api.fail(forbidden, method="GET", path=f"{WORKFLOW.path('default')}/", times=100)
    found = workflows(
        Cluster.connect(kubeconfig=str(diflow.kubeconfig)), labels=f"{keys.MANAGED_BY}={keys.MANAGED_BY_VALUE}"
    )
    assert {w["metadata"]["name"]: "templates" in w["spec"] for w in found} == {"forged": False, "runs": True}


def test_many_gangs_with_places_cost_other_namespaces_nothing(diflow: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "_FEW", 0)
    diflow.prepare()
    resumed = submitted("job", annotations={keys.ALLOCATION: PLACED})
    other = submitted("other")
    other["metadata"] |= {"namespace": "team", "uid": "u-2"}
    diflow.api.add(WORKFLOW, resumed)
    diflow.api.add(WORKFLOW, other, namespace="team")
    cluster = Cluster.connect(kubeconfig=str(diflow.kubeconfig))
    found = workflows(cluster, labels=f"{keys.MANAGED_BY}={keys.MANAGED_BY_VALUE}", everywhere=True)
    assert {w["metadata"]["name"]: "templates" in w["spec"] for w in found} == {"job": True, "other": False}


def test_a_workflow_that_was_just_read_is_not_replaced(diflow: Cli) -> None:
    diflow.prepare()
    whole = diflow.api.add(WORKFLOW, submitted("job"))
    assert workflows(
        Cluster.connect(kubeconfig=str(diflow.kubeconfig)),
        labels=f"{keys.MANAGED_BY}={keys.MANAGED_BY_VALUE}",
        read=[whole],
    ) == [whole]


def admitted(name: str, *, uid: str = METADATA["uid"]) -> dict[str, Any]:
    made = submitted(name)
    made["metadata"]["uid"] = uid
    made["metadata"]["labels"][keys.ADMITTED] = "true"
    return made


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {"annotations": {keys.DECISION: DECISION}},
        {"annotations": {keys.HELD: "true"}},
        {"annotations": {keys.BOUNDS: "{"}},
        {"annotations": {keys.RESTARTS_BEFORE: "3", keys.ROUNDS_BEFORE: "2"}},
        {"annotations": {keys.RESTARTS_BEFORE: "-1", keys.ROUNDS_BEFORE: "x"}},
        {"annotations": {keys.CONTINUED_IN: "other"}},
        {"annotations": {keys.HEALTH: "{}", keys.EXCLUDED: "{}", keys.ALLOCATION: "{}"}},
        {"annotations": {keys.REQUESTED: '{"collector":5}'}},
        {"annotations": {keys.REQUESTED: "x" * 200_000}},
        {"annotations": {keys.HISTORY_BEFORE: '{"phases":[["Running","2026-11-20T09:00:00Z",""]]}'}},
        {"annotations": {keys.DIJOB: "{"}},
        {"annotations": {keys.DIJOB: '{"spec":{"tasks":[{"name":"a","replicas":100000000}]}}'}},
        {"annotations": {keys.DIJOB: '{"spec":{"tasks":[{"name":"a","replicas":1}],"priority":7}}'}},
    ],
)
def test_a_brief_list_shows_of_a_gang_that_waits_what_its_whole_workflow_shows(
    metadata: dict[str, Any], diflow: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    diflow.prepare()
    diflow.api.add(WORKFLOW, submitted(**metadata))
    listed = []
    for most in (1000, 0):
        monkeypatch.setattr(lookup, "_MANY", most)
        listed.append(diflow("list").out)
    assert listed[0] == listed[1]


@pytest.mark.parametrize("name", ["Other", "oth r", "other\\n", "-othe"])
def test_a_job_of_an_invalid_name_is_held_after_an_equal_one_was_read(name: str) -> None:
    valid, edited = head(submitted("other")), head(submitted("other"))
    annotations = edited["metadata"]["annotations"]
    annotations[keys.DIJOB] = annotations[keys.DIJOB].replace('"name":"other"', f'"name":"{name}"')
    assert not planning_record_of(from_metadata(valid)).problem
    assert "(metadata.name)" in planning_record_of(from_metadata(edited)).problem
