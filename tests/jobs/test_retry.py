"""What a retry keeps of a failed Workflow, on jobs that failed on a real cluster."""

from __future__ import annotations

import base64
import copy
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from diflow.common import keys
from diflow.common.errors import ConflictError
from diflow.jobs.retry import _subtrees, repair, retried
from diflow.kube.kinds import WORKFLOW
from diflow.record import nodecheck
from diflow.record.argo.nodes import nodes as typed
from diflow.record.argo.nodes import raw
from diflow.record.argo.tree import read_tree
from diflow.record.exclusions import Exclusions
from diflow.record.health import HealthState
from tests.cli.runner import Cli
from tests.kube.fakeapi import merge
from tests.record.seen import SeenJob

_FOLDER = Path(__file__).parents[1] / "data" / "recordings"
_NOW = "2026-11-22T00:00:00Z"


def recorded(name: str) -> dict[str, Any]:
    """A recorded Workflow, without the step that made a Service: those of 0.2 have none."""
    found: dict[str, Any] = json.loads((_FOLDER / f"{name}.json").read_text(encoding="utf-8"))["workflow"]
    steps = found["status"]["nodes"]
    found["status"]["nodes"] = {key: node for key, node in steps.items() if ".service" not in node["name"]}
    return found


def nodes(workflow: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {node["name"]: node for node in raw(workflow)[0].values()}


def again(workflow: dict[str, Any]) -> tuple[dict[str, Any], set[str]]:
    """The Workflow after a retry, and the nodes whose pods are deleted."""
    patch, forgotten = retried(workflow, now=_NOW)
    return merge(workflow, patch), forgotten


def test_a_preemptible_job_restarts_its_round() -> None:
    old = recorded("preemptible-used-up")
    new, forgotten = again(old)
    assert set(nodes(new)) == {"pre", "pre.round"}
    pods = {node["id"] for node in nodes(old).values() if node["type"] == "Pod"}
    assert forgotten == pods


def test_replicas_of_a_job_that_failed_are_all_forgotten_with_their_attempts() -> None:
    new, forgotten = again(recorded("retried-and-failed"))
    kept = nodes(new)
    assert not [name for name, node in kept.items() if node["type"] == "Pod"]
    assert {node["phase"] for node in kept.values()} == {"Running"}
    assert len(forgotten) > 0


def test_what_is_kept_refers_to_nothing_that_is_forgotten() -> None:
    for path in _FOLDER.glob("*.json"):
        workflow = recorded(path.stem)
        for node in workflow["status"]["nodes"].values():
            node["children"] = list(workflow["status"]["nodes"])
        if workflow["status"]["phase"] != "Failed":
            continue
        new, _ = again(workflow)
        kept = set(new["status"]["nodes"])
        for node in new["status"]["nodes"].values():
            assert set(node["children"]) <= kept


def test_a_succeeded_replica_keeps_the_attempts_that_failed_before_it() -> None:
    job = SeenJob("job", learner=1, collector=1, backoff_limit=1)
    job.pod("learner-0").ready(1).ends(3, code=1)
    job.pod("learner-0", created=4, counted=1).ready(5).ends(9)
    job.pod("collector-0").ready(1).ends(3, code=1)
    for name, kind, phase in (
        ("", "DAG", "Failed"), (".round(0:1)", "DAG", "Failed"), (".round(0:1).learner(0:0)", "Retry", "Succeeded"),
        (".round(0:1).collector(0:0)", "Retry", "Failed"),
    ):  # fmt: skip
        job.node(name, kind=kind, phase=phase)
    new, forgotten = again(job.ended(20, "Failed").workflow())
    learners = [node for name, node in nodes(new).items() if ".learner(0:0)(" in name]
    assert sorted(node["phase"] for node in learners) == ["Failed", "Succeeded"]
    assert forgotten == {"id-job.round(0:1).collector(0:0)(0).collector(0)"}


def test_the_workflow_looks_to_argo_as_if_it_had_not_ended() -> None:
    old = recorded("failed-at-once")
    old["status"]["conditions"] = [{"type": "Completed", "status": "True"}, {"type": "PodRunning", "status": "False"}]
    before = copy.deepcopy(old)
    new, _ = again(old)
    assert old == before
    assert "shutdown" not in new["spec"]
    assert not {"phase", "message"} & set(new["status"])
    assert (new["status"]["startedAt"], new["status"].get("finishedAt")) == (_NOW, None)
    assert "workflows.argoproj.io/completed" not in new["metadata"]["labels"]
    assert new["status"]["conditions"][0] == {"type": "Completed", "status": "False"}
    assert new["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "diflow"


def test_a_retry_has_its_whole_limit_and_no_old_reason() -> None:
    job = SeenJob("job", learner=1).all_ready().shutdown().decided("stop", "too many restarts")
    health = HealthState("1", why="no sign of life", restarts=3, silent=frozenset({0})).text()
    job.annotations |= {"diflow/restarts-before": "3", "diflow/rounds-before": "2", "diflow/health": health}
    new, _ = again(job.ended(9, "Failed").workflow())
    assert set(new["metadata"]["annotations"]) == {"diflow/dijob", "diflow/rounds-before"}


def test_packed_nodes_stay_packed() -> None:
    """Plain, they may be more than the API server takes."""
    job = SeenJob("job", learner=1).all_ready().node("", kind="DAG", phase="Failed")
    new, _ = again(job.ended(9, "Failed").compressed())
    assert "nodes" not in new["status"]
    assert set(nodes(new)) == {"job"}


@pytest.mark.parametrize("phase", ["Running", "Succeeded", "Pending"])
def test_only_a_failed_job_can_be_retried(phase: str) -> None:
    job = SeenJob("job", learner=1).all_ready()
    job.status["phase"] = phase
    with pytest.raises(ConflictError, match="only a failed job can be retried"):
        again(job.workflow())


def test_the_limits_of_its_check_and_of_its_health_begin_again_and_bad_nodes_stay_left_out() -> None:
    old = recorded("retried-and-failed")
    excluded = Exclusions()
    for number, node in enumerate(("a", "b"), 1):
        attempts = [nodecheck.move(number), f"1/w/{number}/0/0/0@"]
        excluded = excluded.without(node, reason="slow", source="node-check", now=1e9, attempts=attempts)
    old["metadata"]["annotations"] |= {
        keys.EXCLUDED: excluded.to_json(), keys.HEALTH: HealthState("1", restarts=3).text(),
    }  # fmt: skip
    new, _ = again(old)
    found = Exclusions.parse(new["metadata"]["annotations"][keys.EXCLUDED])
    assert (nodecheck.moves(excluded), nodecheck.moves(found)) == (2, 0)
    assert found.at(1e9) == {"a", "b"}
    assert found.knows("1/w/2/0/0/0@")
    assert keys.HEALTH not in new["metadata"]["annotations"]
    old["metadata"]["annotations"][keys.EXCLUDED] = "{"
    new, _ = again(old)
    assert new["metadata"]["annotations"][keys.EXCLUDED] == "[]"


def after_argo_retry(*, where: str) -> SeenJob:
    """A job as `argo retry` leaves it: all attempts of the Retry node `where` run, and have no pods."""
    job = SeenJob("job", learner=1, collector=2, backoff_limit=1)
    job.pod("collector-0").ready(1)
    for name, kind in (
        ("", "DAG"), (".round", "TaskGroup"), (".round(0:1)", "Retry" if where == ".round(0:1)" else "DAG"),
        (".round(0:1).collector", "TaskGroup"), (where, "Retry"),
    ):  # fmt: skip
        job.node(name, kind=kind, phase="Running")
    for attempt in range(2):
        job.node(f"{where}({attempt})", kind="DAG", phase="Running")
        job.node(f"{where}({attempt}).learner", kind="Retry", phase="Running")
    return job


@pytest.mark.parametrize("where", [".round(0:1).learner(0:0)", ".round(0:1)"])
@pytest.mark.parametrize("is_compressed", [False, True])
def test_what_argo_retry_left_running_is_removed_with_its_retry_node(where: str, is_compressed: bool) -> None:
    workflow = after_argo_retry(where=where).workflow()
    found = workflow["status"]["nodes"]
    found["id-job.round"]["children"] = ["id-job.round(0:1)", f"id-job{where}"]
    workflow["metadata"].setdefault("annotations", {})[keys.DECISION] = "{}"
    if is_compressed:
        packed = gzip.compress(json.dumps(workflow["status"].pop("nodes")).encode())
        workflow["status"]["compressedNodes"] = base64.b64encode(packed).decode()
    answer = repair(workflow)
    assert answer is not None
    new = merge(workflow, answer[0])
    assert ("nodes" in new["status"]) != is_compressed
    left = nodes(new)
    assert not [name for name in left if name.startswith(f"job{where}")]
    assert left.keys() == {node["name"] for node in found.values() if not node["name"].startswith(f"job{where}")}
    assert f"id-job{where}" not in left["job.round"]["children"]
    assert keys.DECISION not in new["metadata"]["annotations"]
    assert repair(new) is None, "once"


def test_what_argo_adds_while_a_job_is_repaired_is_removed_too() -> None:
    """Argo merges its changes into the Workflow that the repair has left, as it does after any conflict."""
    job = after_argo_retry(where=".round(0:1)")
    before = job.workflow()
    answer = repair(before)
    assert answer is not None
    retry, pod = "id-job.round(0:1)(1).learner", "job.round(0:1)(1).learner(0:0).learner(0)"
    added = {
        "id-job.round(0:1)": {"progress": "0/2"},
        retry: {"children": [f"id-{pod}"]},
        f"id-{pod}": {"id": f"id-{pod}", "name": pod, "type": "Pod", "phase": "Pending"},
    }
    torn = merge(merge(before, answer[0]), {"status": {"nodes": added}})
    tree = read_tree(typed(torn)[0])
    assert (tree.is_stuck, tree.restarts) == (True, 1)
    again = repair(torn)
    assert again is not None
    new = merge(torn, again[0])
    assert not added.keys() & new["status"]["nodes"].keys()
    assert nodes(new) == nodes(merge(before, answer[0]))
    assert again[1] == {f"id-{pod}"}
    assert repair(new) is None


def test_a_job_with_one_running_attempt_of_each_replica_needs_no_repair() -> None:
    workflow = after_argo_retry(where=".round(0:1).learner(0:0)").workflow()
    workflow["status"]["nodes"]["id-job.round(0:1).learner(0:0)(0)"]["phase"] = "Failed"
    assert repair(workflow) is None
    workflow["status"] = {"phase": "Running", "offloadNodeStatusVersion": "fnv:1"}
    assert repair(workflow) is None


def test_nodes_that_nobody_could_read_do_not_hinder_the_repair() -> None:
    workflow = after_argo_retry(where=".round(0:1).learner(0:0)").workflow()
    found = workflow["status"]["nodes"]
    found["odd"], found["list"] = 7, ["id-job.round"]
    found["id-job.round"].update(children=[{}, ["a"], None, 3], outboundNodes="id-job")
    found["long"] = {"name": "(" * 100_000, "type": {}, "children": {}}
    answer = repair(workflow)
    assert answer is not None
    assert set(answer[0]["status"]["nodes"].values()) == {None}


def test_the_leaf_that_argo_retry_keeps_is_removed() -> None:
    job = SeenJob("job", learner=1)
    for name, kind, phase in (
        ("", "DAG", "Running"), (".round(0:1)", "DAG", "Running"), (".round(0:1).learner", "TaskGroup", "Running"),
        (".round(0:1).superseded", "Skipped", "Skipped"),
    ):  # fmt: skip
        job.node(name, kind=kind, phase=phase)
    workflow = job.workflow()
    assert repair(workflow) == ({"status": {"nodes": {"id-job.round(0:1).superseded": None}}}, set())
    workflow["status"]["nodes"]["id-job.round(0:1).learner"]["phase"] = "Succeeded"
    assert repair(workflow) is None, "the round is about to end"


@pytest.mark.parametrize("tops", [("job.worker", "job.worker-2"), ("job.worker-2", "job.worker(0)", "job.worker.a")])
def test_of_nodes_whose_names_begin_alike_each_is_removed_with_its_own_descendants(tops: tuple[str, ...]) -> None:
    names = {
        f"job.{task}{rest}"
        for task in ("worker", "worker-2", "worker-a", "worker(0)", "worker.a", "workers", "worker\0", "worker!")
        for rest in ("", "(0)", "(0:1).worker(0)", ".a", "-a", "-2.a", " (1)")
    }
    expected = {name for name in names for top in tops if name == top or name.startswith((f"{top}.", f"{top}("))}
    assert _subtrees(frozenset(tops), names) == expected | set(tops)


def test_torn_nodes_of_two_tasks_whose_names_begin_alike_are_all_removed() -> None:
    job = SeenJob("job", worker=1)
    for name, kind in (("", "DAG"), (".round", "TaskGroup"), (".round(0:1)", "DAG")):
        job.node(name, kind=kind, phase="Running")
    workflow = job.workflow()
    kept = set(workflow["status"]["nodes"])
    torn: dict[str, Any] = {"nameless": {"progress": "0/1"}}
    for task in ("worker", "worker-2"):
        pod = f"job.round(0:1).{task}(0:0)(1).{task}(0)"
        torn[f"id-{pod}"] = {"id": f"id-{pod}", "name": pod, "type": "Pod", "phase": "Pending"}
    answer = repair(merge(workflow, {"status": {"nodes": torn}}))
    assert answer is not None
    assert set(merge(workflow, answer[0])["status"]["nodes"]) == kept
    assert answer[1] == torn.keys() - {"nameless"}


def test_a_replica_that_has_succeeded_is_kept_by_a_repair() -> None:
    """Its pod exists, and has the name that a new one would get: Argo could not create that."""
    job = after_argo_retry(where=".round(0:1)")
    done = ".round(0:1)(0).learner(1:1)"
    for name, kind in ((done, "Retry"), (f"{done}(0)", "DAG"), (f"{done}(0).learner(0)", "Pod")):
        job.node(name, kind=kind, phase="Succeeded")
    workflow = job.workflow()
    answer = repair(workflow)
    assert answer is not None
    new = merge(workflow, answer[0])
    assert {name for name in nodes(new) if name.startswith("job.round(0:1)")} == {
        f"job{name}" for name in (done, f"{done}(0)", f"{done}(0).learner(0)")
    }
    assert "id-job" + f"{done}(0).learner(0)" not in answer[1]
    assert repair(new) is None, "once"


def test_a_job_that_was_stopped_after_argo_retry_is_retried_as_any_failed_job(diflow: Cli) -> None:
    diflow.prepare()
    workflow = after_argo_retry(where=".round(0:1)").shutdown().workflow()
    workflow["status"]["phase"] = "Failed"
    workflow["metadata"]["labels"]["workflows.argoproj.io/phase"] = "Failed"
    diflow.api.add(WORKFLOW, workflow)
    assert diflow("retry", "job").code == 0
    new = diflow.api.objects[WORKFLOW.path("default")]["job"]
    assert not new["status"].get("phase")
    assert "shutdown" not in new["spec"]


def test_a_job_that_failed_before_it_had_nodes_gets_none_that_are_packed() -> None:
    workflow = SeenJob("job", learner=1).ended(9, "Failed").workflow()
    workflow["status"].pop("nodes", None)
    new, _ = again(workflow)
    assert new["status"]["nodes"] == {}
    assert "compressedNodes" not in new["status"]


@pytest.mark.parametrize("forged", [7, [], "x", {}, {"name": 7}, {"name": "job.round", "children": None}])
def test_forged_nodes_do_not_stop_a_retry(forged: Any) -> None:
    workflow = SeenJob("job", learner=1).all_ready().ended(9, "Failed").workflow()
    workflow["status"]["nodes"]["forged"] = forged
    new, _ = again(workflow)
    assert new["status"]["startedAt"] == _NOW


def test_an_earlier_attempt_that_argo_retry_has_reset_is_removed_when_the_last_one_has_ended() -> None:
    """Argo goes on with the last attempt alone, and the job would never end."""
    workflow = after_argo_retry(where=".round(0:1)").workflow()
    workflow["status"]["nodes"]["id-job.round(0:1)(1)"]["phase"] = "Succeeded"
    assert repair(workflow) is not None


@pytest.mark.parametrize("is_repair", [False, True])
@pytest.mark.parametrize(
    ("places", "after"),
    [('{"until":1767323100,"1/learner/0/0/0":"a"}', '{"until":0}'), ("{}", "{}"), ('{"until":0}', '{"until":0}')],
)
def test_new_pods_get_no_place_of_the_admission(places: str, after: str, is_repair: bool) -> None:
    """Within two minutes of it they would be created without gates, on nodes that other jobs may have by now."""
    if is_repair:
        workflow = after_argo_retry(where=".round(0:1)").workflow()
    else:
        workflow = SeenJob("job", learner=1).all_ready().ended(9, "Failed").workflow()
    workflow["spec"]["arguments"]["parameters"].append({"name": "places", "value": places})
    answer = repair(workflow) if is_repair else retried(workflow, now=_NOW)
    assert answer is not None
    new = merge(workflow, answer[0])
    given = [(item["name"], item["value"]) for item in new["spec"]["arguments"]["parameters"]]
    before = [(item["name"], item["value"]) for item in workflow["spec"]["arguments"]["parameters"]]
    assert given == [*before[:-1], ("places", after)]
