"""All that shows a job says the same of it in each stage of its life: the stage, one sentence, and the same numbers.

Each job is put into a cluster with its pods, and read back from the output of `describe`, `list`, `queue`, `top` and
`explain`, from the status page with its queue, from the status of a DIJob object, and from the allocator's Event.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from markupsafe import Markup

from diflow.allocator.reconcile.problems import Problems
from diflow.allocator.watch.cluster_state import assemble
from diflow.allocator.watch.records import planning_record_of
from diflow.common import keys
from diflow.controller import statuses
from diflow.kube.kinds import POD, WORKFLOW
from diflow.record.argo import node_names
from diflow.record.pod import serving_record_of
from diflow.record.status.status import derive
from diflow.server.page import CacheSnapshot, Freshness, Permissions, pod_facts, render
from diflow.server.page.board import Query, board
from diflow.workflows import render as rendered
from tests.allocator.lab import job, task
from tests.cli.placed import lease, node
from tests.cli.runner import Cli, cli
from tests.server.page_scene import trim_workflow

Object = dict[str, Any]
Edit = Callable[[Object], None]

NOW = 1_800_000_000.0
MADE = "2026-01-02T03:04:05Z"
NO_ALLOCATOR = "waits for the allocator (`diflow doctor` checks whether one runs)"
BY_USER = "is being stopped: a user asked for it"
DELETED = "is being deleted; what belongs to it is deleted first"
ENDING = "is being deleted; 2 pods of it have not ended"
NO_ROOM = "waits for capacity: its gang needs 2 replicas at once and 0 fit now"
SUSPENDED = "suspended (`diflow resume train` resumes it)"
TOO_LATE = "it was not admitted within 60 s of its submission"
BROKEN = (
    'held: the parameter rounds is not what diflow wrote: it must be a list of numbers such as ["1","2"]; put it back, '
    "or delete the job"
)
BROKEN_DIJOB = "held: the annotation diflow/dijob is not a valid job any more: must be a mapping, not a list"
TOO_LARGE = "held: it has 202 conditions on nodes, and a job may have 128: ask for fewer"
OUTSIDE = ("waiting", "held", "suspended")
"""The stages of a job that stands in the queue, if it holds no place."""


@dataclass(frozen=True, slots=True)
class Shown:
    """What a job's views show. `words` has the stage by view, `sentences` the sentence, `queues` who queues it.

    The numbers by view: `ready` replicas, those that are `granted` (of a job that has places), the range that is
    `asked` for; and how many jobs the view counts as `placed` and as `waiting`.
    """

    words: dict[str, str] = field(default_factory=dict)
    sentences: dict[str, str] = field(default_factory=dict)
    queues: dict[str, bool] = field(default_factory=dict)
    ready: dict[str, int] = field(default_factory=dict)
    granted: dict[str, int] = field(default_factory=dict)
    asked: dict[str, str] = field(default_factory=dict)
    placed: dict[str, int] = field(default_factory=dict)
    waiting: dict[str, int] = field(default_factory=dict)
    explained: str = ""


def gang() -> Object:
    """The Workflow of a new gang of two."""
    made: Object = json.loads(json.dumps(rendered(job("train", task("worker", replicas=2)))))
    made["metadata"] |= {"namespace": "default", "uid": "u-1", "resourceVersion": "5", "creationTimestamp": MADE}
    return made


def pods_of(made: Object) -> list[Object]:
    """The pods of the replicas that run, as Argo makes them."""
    found = list[Object]()
    for name, one in made.get("status", {}).get("nodes", {}).items():
        if one["phase"] != "Running" or ".hooks." in name:
            continue
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": MADE}
        running = {"name": "main", "ready": True, "state": {"running": {"startedAt": MADE}}}
        metadata = {
            "name": f"train-{len(found)}", "namespace": "default", "uid": f"pod-{len(found)}",
            "creationTimestamp": MADE,
            "labels": {keys.OPERATOR: keys.OPERATOR_VALUE, keys.JOB: "train", keys.ARGO_WORKFLOW: "train"},
            "annotations": {keys.ARGO_NODE_NAME: name, keys.ARGO_NODE_ID: name},
            "ownerReferences": [{"kind": "Workflow", "name": "train", "uid": "u-1"}],
        }  # fmt: skip
        if "deletionTimestamp" in made["metadata"]:  # Kubernetes deletes them first
            metadata["deletionTimestamp"] = MADE
        found.append({
            "metadata": metadata,
            "spec": {"nodeName": "a", "containers": [{"name": "main", "image": "none"}]},
            "status": {"phase": "Running", "conditions": [ready], "containerStatuses": [running]},
        })  # fmt: skip
    return found


def changed(made: Object, **values: str) -> None:
    """Other values of these parameters."""
    for parameter in made["spec"]["arguments"]["parameters"]:
        parameter["value"] = values.get(parameter["name"], parameter["value"])


def decided(action: str, why: str) -> Edit:
    said = json.dumps({"action": action, "why": why, "time": MADE})
    return lambda made: made["metadata"]["annotations"].update({keys.DECISION: said})


def of_user(made: Object) -> None:
    """Its user suspends it."""
    made["metadata"]["annotations"][keys.HELD] = "true"
    made["spec"]["suspend"] = True


def stopped(made: Object) -> None:
    """As `diflow stop` does it."""
    made["spec"]["shutdown"] = "Stop"
    made["spec"].pop("suspend", None)
    made["metadata"]["labels"].pop(keys.ADMITTED, None)


def admitted(made: Object, nodes: tuple[str, ...] = ("a", "b")) -> None:
    """It has its places, and Argo has not looked at it."""
    made["spec"].pop("suspend", None)
    made["metadata"]["labels"][keys.ADMITTED] = "true"
    allocation = {"round": "1", "nodes": {"worker": nodes}, "since": NOW - 60, "first": NOW - 60}
    made["metadata"]["annotations"][keys.ALLOCATION] = json.dumps(allocation)
    changed(made, places=json.dumps({"until": 4e9, "uid": "u-1"}))


def seen(made: Object) -> None:
    """Argo has looked at it, and made nothing."""
    made["status"] = {"phase": "Running", "startedAt": MADE}


def with_pods(phase: str = "Running", message: str = "") -> Edit:
    """Argo has made its pods."""

    def edit(made: Object) -> None:
        seen(made)
        names = [f"train.round(0:1).worker({i}:{i}).worker(0)" for i in range(2)]
        shared = {"type": "Pod", "phase": phase, "message": message, "startedAt": MADE, "hostNodeName": "a"}
        shared |= {"finishedAt": MADE} if phase == "Failed" else {}
        made["status"]["nodes"] = {name: {"id": name, "name": name, **shared} for name in names}

    return edit


def gave_up(made: Object) -> None:
    """Its step has stopped it after a failure."""
    stopped(made)
    name = "train.round(0:1).hooks.give-up"
    made["status"]["nodes"][name] = {"id": name, "name": name, "type": "Pod", "phase": "Running", "hostNodeName": "a"}


def taken_back(made: Object) -> None:
    admitted(made, nodes=("", ""))
    seen(made)


def deleted(made: Object) -> None:
    made["metadata"] |= {"deletionTimestamp": MADE, "finalizers": ["foregroundDeletion"]}


def deleted_and_kept(made: Object) -> None:
    deleted(made)
    made["metadata"]["finalizers"].append("example.org/archive")


def broken(made: Object) -> None:
    changed(made, rounds="[")


def broken_in_metadata(made: Object) -> None:
    """Of a gang that waits, `queue` and `top` read no more."""
    made["metadata"]["annotations"][keys.DIJOB] = "["


def went_on(made: Object) -> None:
    made["metadata"]["annotations"][keys.CONTINUED_IN] = "train-2"


def with_conditions(made: Object) -> None:
    """One term with more nodes than a job may name, from before a submission refused it."""
    given = json.loads(made["metadata"]["annotations"][keys.DIJOB])
    line = {"key": "host", "operator": "In", "values": [f"n{i}" for i in range(200)]}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [line]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    given["spec"]["tasks"][0]["template"]["spec"]["affinity"] = affinity
    made["metadata"]["annotations"][keys.DIJOB] = json.dumps(given)


WAIT = decided("wait", NO_ROOM)
PREEMPTED = decided("preempt", "gives way to default/other, which has a higher priority")
CHECKED = decided("check", "its node check left out node a: product 0.9 s")
STARTS = decided("admit", "starts: it gets 2 of the 2 replicas it asks for")
LATE = decided("stop", TOO_LATE)
BY_DELETION = decided("stop", "its Workflow is being deleted")

LIFE: dict[str, tuple[tuple[Edit, ...], str, str]] = {
    # Argo has not looked at it.
    "is new": ((), "waiting", NO_ALLOCATOR),
    "waits": ((WAIT,), "waiting", NO_ROOM),
    "is suspended at once": ((of_user,), "suspended", SUSPENDED),
    "waits and is suspended": ((WAIT, of_user), "suspended", SUSPENDED),
    "is stopped at once": ((stopped,), "stopping", BY_USER),
    "waits and is stopped": ((WAIT, stopped), "stopping", BY_USER),
    "is deleted at once": ((deleted,), "deleting", DELETED),
    "waits and is deleted": ((WAIT, deleted), "deleting", DELETED),
    "is admitted": ((STARTS, admitted), "starting", "waits for Argo's workflow controller to take it up"),
    # Argo has looked at it, and has made nothing of it.
    "is new, and seen": ((seen,), "waiting", NO_ALLOCATOR),
    "waits, and is seen": ((WAIT, seen), "waiting", NO_ROOM),
    "waits, is seen and suspended": ((WAIT, seen, of_user), "suspended", SUSPENDED),
    "waits, is seen and stopped": ((WAIT, seen, stopped), "stopping", BY_USER),
    "waits, is seen and deleted": ((WAIT, seen, deleted), "deleting", DELETED),
    "comes too late": ((LATE, seen, stopped), "stopping", f"is being stopped: {TOO_LATE}"),
    "starts": ((STARTS, admitted, seen), "starting", "no replica has a node yet"),
    # It has run.
    "runs": ((STARTS, admitted, with_pods()), "starting", "all 2 replicas ready"),
    "runs and is suspended": (
        (STARTS, admitted, with_pods(), of_user), "suspended", f"{SUSPENDED}; all 2 replicas ready",
    ),
    "is preempted": ((taken_back, PREEMPTED), "waiting", "gives way to default/other, which has a higher priority"),
    "is preempted and suspended": ((taken_back, PREEMPTED, of_user), "suspended", SUSPENDED),
    "is sent back by its check": (
        (taken_back, CHECKED), "waiting", "waits for a new place: its node check left out node a: product 0.9 s",
    ),
    "has lost its places": ((taken_back, STARTS), "waiting", "waits for a new place"),
    "runs and is stopped": ((STARTS, admitted, with_pods(), stopped), "stopping", BY_USER),
    "fails": (
        (STARTS, admitted, with_pods("Failed", "main: Error (exit code 7)"), gave_up),
        "stopping", "is being stopped: worker-0 failed: Error (exit code 7)",
    ),
    "runs and is deleted": ((STARTS, admitted, with_pods(), deleted), "deleting", ENDING),
    "is deleted and stopped": (
        (BY_DELETION, admitted, with_pods(), stopped, deleted), "deleting", ENDING,
    ),
    "is deleted and kept": (
        (admitted, with_pods(), deleted_and_kept),
        "deleting", f"{ENDING}, and the finalizer example.org/archive keeps it",
    ),
    # It cannot be read, or is not there any more.
    "cannot be read": ((WAIT, seen, broken_in_metadata), "held", BROKEN_DIJOB),
    "runs and cannot be read": ((STARTS, admitted, with_pods(), broken), "held", BROKEN),
    "is too large": ((with_conditions,), "held", TOO_LARGE),
    "waits and is too large": ((WAIT, seen, with_conditions), "held", TOO_LARGE),
    "runs and is too large": ((STARTS, admitted, with_pods(), with_conditions), "held", TOO_LARGE),
    "is too large and is suspended": ((with_conditions, of_user), "held", TOO_LARGE),
    "cannot be read and is suspended": ((WAIT, broken_in_metadata, of_user), "held", BROKEN_DIJOB),
    "cannot be read and is stopped": (
        (WAIT, broken, stopped), "stopping", BY_USER + BROKEN.replace("held", "; it cannot be read"),
    ),
    "cannot be read and is deleted": (
        (WAIT, broken_in_metadata, deleted),
        "deleting", DELETED + BROKEN_DIJOB.replace("held", "; it cannot be read"),
    ),
    "goes on in another Workflow": ((admitted, with_pods(), went_on), "superseded", "goes on in the Workflow train-2"),
}  # fmt: skip


HOLDS_PLACES = ("runs and is suspended", "runs and cannot be read", "runs and is too large")
"""Of the jobs that are suspended or held: these keep what they have, and do not wait."""
RUNS = dict.fromkeys((*HOLDS_PLACES, "runs", "runs and is stopped", "goes on in another Workflow"), 2)
"""How many replicas are ready. Those of a job that is deleted are not, while its pods end."""


@pytest.fixture(scope="module")
def diflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    with cli(tmp_path_factory.mktemp("diflow")) as made:
        node(made, "a")
        node(made, "b")
        lease(made, holder="somebody")
        yield made


@pytest.mark.parametrize("title", LIFE)
def test_all_views_say_the_same_of_a_job(title: str, diflow: Cli) -> None:
    edits, word, sentence = LIFE[title]
    made = gang()
    for edit in edits:
        edit(made)
    found = shown(made, diflow)
    assert set(found.words.values()) == {word}
    assert set(found.sentences.values()) == {sentence}
    assert set(found.queues.values()) == {word in OUTSIDE and title not in HOLDS_PLACES}
    if title == "runs and is suspended":
        sentence = "it is suspended: Argo starts no more of its pods until `diflow resume train -n default`"
    assert word in ("starting", "superseded") or sentence in found.explained
    assert set(found.ready.values()) == {RUNS.get(title, 0)}
    assert set(found.granted.values()) <= {2}
    assert len(set(found.asked.values())) <= 1
    assert word == "superseded" or set(found.waiting.values()) == {int(set(found.queues.values()) == {True})}
    assert len(set(found.placed.values())) <= 1


def shown(made: Object, diflow: Cli) -> Shown:
    """What all views say of the job in this Workflow."""
    diflow.api.add(WORKFLOW, made)
    for name in list(diflow.api.objects.get(POD.path("default"), ())):
        diflow.api.remove(POD, name)
    pods = pods_of(made)
    for pod in pods:
        diflow.api.add(POD, pod)
    out = Shown(explained=diflow("explain", "train").out)
    _of_the_command_line(diflow, out)
    _of_the_page(made, pods, out)
    status = statuses.observed(derive(made, pods), requests=0, ttl_seconds=None)
    out.sentences["DIJob"] = status["message"]
    out.ready["DIJob"] = status["readyReplicas"]
    if set(out.words.values()) == {"held"}:
        (text,) = _of_the_events(made)
        out.sentences["event"] = f"held: {text}"
    return out


def _of_the_command_line(diflow: Cli, out: Shown) -> None:
    text = diflow("describe", "train").out
    described = re.search("^Message: +(.*)$", text, re.MULTILINE)
    counted = re.search("^Ready: +([0-9]+) of ([0-9]+)$", text, re.MULTILINE)
    assert described is not None
    assert counted is not None
    out.sentences["describe"] = described[1]
    (line,) = diflow("list", "-o", "wide").out.splitlines()[1:]
    cells = re.split(r"\s{2,}", line)
    out.sentences["list"] = cells[-1]
    out.ready.update({"describe": int(counted[1]), "list": int(cells[3])})
    word = cells[2].partition(",")[2].lower()
    tops = json.loads(diflow("top", "-o", "json").out)["jobs"]
    queue = json.loads(diflow("queue", "-o", "json").out)
    queued = queue["waiting"]
    for row in tops:
        out.ready["top"] = row["observed"]
        if row["granted"]:
            out.granted.update({"top": row["granted"], "describe": int(counted[2]), "list": int(cells[4])})
    for view, rows in (("top", tops), ("queue", queued)):
        out.asked.update((view, f"{row['low']}-{row['high']}") for row in rows)
    heads = re.search("([0-9]+) jobs? placed, ([0-9]+) waits?", diflow("top", "--once").out)
    assert heads is not None
    queues = [*queue["queues"], *queue["missing_queues"]]
    out.placed.update({"top": int(heads[1]), "queue": sum(one["running"] for one in queues)})
    out.waiting.update({"top": int(heads[2]), "queue": sum(one["waiting"] for one in queues), "its rows": len(queued)})
    for view, rows in (("top", tops), ("queue", queued)):
        for row in rows:
            out.words[view] = "starting" if row["state"] == "running" else row["state"]
            if out.words[view] != "starting":  # else why it has no more replicas
                # How far the pods of a suspended job are is in other columns.
                is_begun = row["granted"] and described[1].startswith(f"{row['why']}; ")
                out.sentences[view] = described[1] if is_begun else row["why"]
    if word or not tops:
        out.words["list"] = word or "superseded"
    out.queues.update({"queue": bool(queued), "queue as text": _has_row(diflow("queue").out)})


def _has_row(text: str) -> bool:
    """Whether the job is in the table of those that wait: one that is held and runs is told of in a line above it."""
    return re.search("^1 +default/train ", text, re.MULTILINE) is not None


def _of_the_page(made: Object, pods: list[Object], out: Shown) -> None:
    facts = trim_workflow(made)
    assert facts is not None
    kept = [one for pod in pods if (one := pod_facts(pod, serving_record_of(pod))) is not None]
    found = board(CacheSnapshot(jobs=[facts], pods=kept), Permissions(None), Query.parse({"job": "default/train"}))
    (line,) = found.jobs
    out.ready["page"] = line.facts.ready
    out.waiting["page"] = found.totals.waiting
    if out.granted:
        out.granted["page"] = line.facts.granted
    if out.asked and line.facts.high:
        out.asked["page"] = f"{line.facts.low}-{line.facts.high}"
    out.sentences["page"] = line.said
    out.queues["page"] = bool(found.queue)
    for place in found.queue:
        out.sentences["the page's queue"] = place.job.said
    page = str(render.content(found, Freshness(), now=NOW))
    assert page.count(f">{Markup.escape(line.said)}<") >= 2 + len(found.queue)  # its row, its panel, and its queue


def _of_the_events(made: Object) -> list[str]:
    """The Events on a job that is held."""
    recorded: list[str] = []

    class Executor:
        def record_events(self, notes: Any) -> None:
            recorded.extend(note.message for _, note, _ in notes)

    Problems(Executor()).report(assemble([planning_record_of(made)], [], []), {})  # type: ignore[arg-type]
    return recorded


def test_a_gang_that_is_stopped_with_diflow_while_it_waits_stops_in_all_views(diflow: Cli) -> None:
    made = gang()
    WAIT(made)
    diflow.api.add(WORKFLOW, made)
    assert diflow("stop", "train").code == 0
    found = shown(diflow.api.objects[WORKFLOW.path("default")]["train"], diflow)
    assert set(found.words.values()) == {"stopping"}
    assert set(found.sentences.values()) == {BY_USER}
    assert set(found.queues.values()) == {False}


@pytest.mark.parametrize("ends", [stopped, gave_up, deleted])
def test_the_allocator_parses_the_nodes_of_a_job_that_ends_once(ends: Edit, monkeypatch: pytest.MonkeyPatch) -> None:
    made, parsed, parse = gang(), list[str](), node_names.parse
    for edit in (admitted, with_pods("Failed", "main: Error (exit code 7)"), ends):
        edit(made)

    def noted(workflow: str, name: str) -> Any:
        parsed.append(name)
        return parse(workflow, name)

    monkeypatch.setattr(node_names, "parse", noted)
    read = planning_record_of(made)
    assert sorted(parsed) == sorted(made["status"]["nodes"])
    assert read.texts.ending == derive(made).message
