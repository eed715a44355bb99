"""list, get, describe and other commands with hostile Workflows in the cluster: every command still answers."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable
from typing import Any

import pytest

from diflow.kube.kinds import EVENT, POD, WORKFLOW
from tests.cli.runner import Cli
from tests.record.seen import SeenJob

Workflow = dict[str, Any]
_DEEP = "[" * 100_000
_FORGED = "\nFORGED \x1b[31m\u202e"
_NESTED = '{"a":' * 400 + "1" + "}" * 400
_HUGE = 10**30
_DIGITS = "9" * 4400


def annotated(**values: str) -> Callable[[Workflow], None]:
    """Set annotations diflow/...; an underscore stands for a dash."""

    def change(workflow: Workflow) -> None:
        workflow["metadata"]["annotations"] |= {f"diflow/{k.replace('_', '-')}": v for k, v in values.items()}

    return change


def labelled(**values: str) -> Callable[[Workflow], None]:
    def change(workflow: Workflow) -> None:
        workflow["metadata"]["labels"] |= {f"diflow/{k.replace('_', '-')}": v for k, v in values.items()}

    return change


def with_parameters(**values: Any) -> Callable[[Workflow], None]:
    def change(workflow: Workflow) -> None:
        parameters = {p["name"]: p for p in workflow["spec"]["arguments"]["parameters"]}
        for name, value in values.items():
            parameters[name] = {"name": name, "value": value}
        workflow["spec"]["arguments"]["parameters"] = list(parameters.values())

    return change


def put_at(*path: str, value: Any) -> Callable[[Workflow], None]:
    def change(workflow: Workflow) -> None:
        at = workflow
        for step in path[:-1]:
            at = at[step]
        at[path[-1]] = value

    return change


def with_nodes(nodes: Any) -> Callable[[Workflow], None]:
    return put_at("status", "nodes", value=nodes)


def dijob(spec: Any) -> Callable[[Workflow], None]:
    return annotated(dijob=json.dumps({"metadata": {"name": "bad"}, "spec": spec}))


def node(**fields: Any) -> Callable[[Workflow], None]:
    good = {"id": "x", "name": "bad.round(0:1).learner(0:0)(0).learner(0)", "type": "Pod", "phase": "Running"}
    return with_nodes({"x": {**good, **fields}})


_BOMB = base64.b64encode(gzip.compress(b"{" + b" " * (80 * 1024 * 1024))).decode()

CASES: dict[str, Callable[[Workflow], None]] = {
    "a time of submission that is none": annotated(submitted="yesterday"),
    "a time of submission without a zone": annotated(submitted="2026-01-01"),
    "a time of submission with a strange zone": annotated(submitted="2026-01-01T00:00:00+23:59"),
    "a time of submission before all times": annotated(submitted="0001-01-01T00:00:00+14:00"),
    "granted is nested too deep": with_parameters(granted=_DEEP),
    "granted is nested in mappings": with_parameters(granted=_NESTED),
    "granted for tasks that are lists": with_parameters(granted='{"1": {"learner": []}}'),
    "granted of a huge number": with_parameters(granted=json.dumps({"1": {"learner": _HUGE, "other": -5}})),
    "granted of many digits": with_parameters(granted=f'{{"1": {{"learner": {_DIGITS}}}}}'),
    "granted is a list": with_parameters(granted="[1]"),
    "granted of many tasks": with_parameters(granted=json.dumps({"1": {f"t{i}": 100_000 for i in range(400)}})),
    "granted of true": with_parameters(granted='{"1": {"learner": true}}'),
    "granted is not text": with_parameters(granted={"1": 1}),
    "rounds of other digits": with_parameters(rounds='["²", "1", "2"]', current="²"),
    "rounds of many digits": with_parameters(rounds=json.dumps([_DIGITS]), current=_DIGITS),
    "rounds are nested too deep": with_parameters(rounds=_DEEP),
    "rounds are mappings": with_parameters(rounds='[{"a": 1}, null, [1]]'),
    "no rounds at all": with_parameters(rounds="[]", current=""),
    "a current round that is not there": with_parameters(current="77"),
    "incarnations with a list": with_parameters(incarnations='{"1/learner/0": ["x"]}'),
    "incarnations are nested too deep": with_parameters(incarnations=_DEEP),
    "released is a number": with_parameters(released="7"),
    "released of mappings": with_parameters(released='[{"a": 1}]'),
    "profilings are nested too deep": with_parameters(profilings=_DEEP),
    "profilings of NaN": with_parameters(profilings='{"speed": NaN, "step": 1e999}'),
    "profilings with half a character": with_parameters(profilings='{"a": "\\ud83d"}'),
    "profilings of control characters": with_parameters(profilings='{"a": "\\u001b[2J\\u0000"}'),
    "replicas of many digits": with_parameters(replicas=f'{{"learner": {_DIGITS}}}'),
    "a DIJob that is nested too deep": annotated(dijob=_DEEP),
    "a DIJob in mappings": annotated(dijob=_NESTED),
    "a DIJob that is a list": annotated(dijob="[]"),
    "a DIJob that is a text": annotated(dijob='"x"'),
    "a DIJob whose spec is a list": dijob([1]),
    "a DIJob whose tasks are no tasks": dijob({"tasks": [None, 3, [], {"name": ["x"]}, {"name": {}, "replicas": "x"}]}),
    "a DIJob with huge numbers": dijob({"tasks": [{"name": "t", "replicas": _HUGE}], "backoffLimit": _HUGE}),
    "a DIJob with negative numbers": dijob({"tasks": [{"name": "t", "replicas": -3}], "backoffLimit": -1}),
    "a DIJob with a list as limit": dijob({"tasks": [], "backoffLimit": [1]}),
    "a DIJob whose metadata is a list": annotated(dijob='{"metadata": [1], "spec": 5}'),
    "a decision that is nested too deep": annotated(decision=_DEEP),
    "a decision that is no decision": annotated(decision='{"action": [], "why": {"a": 1}, "time": 5}'),
    "a decision at no time": annotated(decision='{"action": "wait", "why": "so", "time": "yesterday"}'),
    "a decision with half a character": annotated(decision='{"action": "wait", "why": "\\ud83d"}'),
    "an allocation of a huge number": annotated(allocation=json.dumps({"round": "1", "moves": _HUGE, "tasks": {}})),
    "an allocation that is nested too deep": annotated(allocation=_DEEP),
    "bounds of many digits": annotated(bounds=f'{{"learner": {{"min": {_DIGITS}, "max": 1}}}}'),
    "a history that is nested too deep": annotated(history_before=_DEEP),
    "a history of strange phases": annotated(history_before='{"started": 5, "phases": [["x", "y"], 3, [1, 2, 3]]}'),
    "a history of an unknown phase": annotated(
        history_before='{"started": "2026-01-01T00:00:00Z", "phases": [["Nope", "2026-01-01T00:00:00Z", "x"]]}'
    ),
    "restarts of many digits": annotated(restarts_before=_DIGITS),
    "restarts of other digits": annotated(restarts_before="²", rounds_before="-7"),
    "a part of many digits": labelled(part=_DIGITS[:63], job="bad"),
    "a part of other digits": labelled(part="abc", job="bad"),
    "another job's name": labelled(job="good", part="2"),
    "a job that continues itself": annotated(continues="bad", continues_uid="uid-bad", continued_in="bad"),
    "a job that goes on elsewhere": annotated(continued_in="../../x"),
    "labels that say nothing": put_at("metadata", "labels", value={"app.kubernetes.io/managed-by": "diflow"}),
    "no annotations": put_at("metadata", "annotations", value=None),
    "no arguments": put_at("spec", "arguments", value=None),
    "arguments without parameters": put_at("spec", "arguments", value={"parameters": None}),
    "parameters without names": put_at("spec", "arguments", value={"parameters": [{"value": "x"}, {"name": "a"}]}),
    "no status": put_at("status", value={}),
    "a phase that Argo does not have": put_at("status", "phase", value="Nope"),
    "times of Argo that are none": put_at("status", value={"phase": "Running", "startedAt": "soon", "finishedAt": "x"}),
    "nodes that are packed nonsense": put_at("status", value={"phase": "Running", "compressedNodes": "x"}),
    "nodes that are packed too well": put_at("status", value={"phase": "Running", "compressedNodes": _BOMB}),
    "nodes in a database": put_at("status", value={"phase": "Running", "offloadNodeStatusVersion": "1"}),
    "nodes without anything": with_nodes({"a": {}, "b": {"name": "bad.round("}}),
    "a node of a strange place": node(name="bad.round(0:²).learner(²:²)(²).learner(²)"),
    "a node of many digits": node(name=f"bad.round(0:1).learner({_DIGITS}:{_DIGITS})(0).learner(0)"),
    "a node of an unknown task": node(name="bad.round(0:1).nobody(7:7)(0).nobody(0)"),
    "a node that has started at no time": node(startedAt="soon", finishedAt="later", phase="Failed"),
    "a node whose time has no zone": node(startedAt="2026-01-01", finishedAt="2026-01-01T00:00:00", phase="Failed"),
    "a node with a strange exit code": node(phase="Failed", outputs={"exitCode": _DIGITS}),
    "a node with a message of control characters": node(phase="Failed", message="\x1b[2J\x00\n" * 1000),
    "a node on a node with lines": node(phase="Failed", hostNodeName=f"a{_FORGED}"),
    "left-out nodes with lines": annotated(
        excluded_nodes=json.dumps(
            [{"node": f"n{_FORGED}", "reason": _FORGED, "source": _FORGED, "since": 1e9, "until": 9e10}]
        )
    ),
    "health with lines": annotated(
        health=json.dumps({"round": "1", "why": _FORGED, "silent": "0", "restarts": 2, "last": _FORGED * 2})
    ),
    "a node check with lines": dijob(
        {"tasks": [{"name": "learner"}], "nodeCheck": {"x": _FORGED}, "health": {"a": [1]}, "failurePolicy": [_FORGED]}
    ),
    "numbers of all sorts": dijob(
        {
            "tasks": [{"name": "learner", "nodeUnit": 7.5, "maxMemory": _FORGED}],
            "pendingSeconds": "15m",
            "startDeadlineSeconds": -1,
            "monitor": {"checkpointPath": "../../x"},
        }
    ),
}  # fmt: skip
LINES = [case for case in CASES if "lines" in case]
_ENDED = ("Succeeded", "Failed", "Error")


def hostile(change: Callable[[Workflow], None], *, phase: str = "Running") -> Workflow:
    made = SeenJob("bad", learner=1).all_ready()
    if phase in _ENDED:
        made.ended(50, phase)
    workflow = made.workflow()
    workflow["metadata"]["labels"] |= {"diflow/scheduling": "gang"}
    change(workflow)
    return workflow


@pytest.fixture
def beside(diflow: Cli) -> Cli:
    """An honest job, and one pod of the hostile one."""
    diflow.has(SeenJob("good", learner=1).all_ready())
    pod = SeenJob("bad", learner=1).all_ready().all_pods()[0]
    pod["metadata"].setdefault("labels", {})["workflows.argoproj.io/workflow"] = "bad"
    diflow.api.add(POD, pod)
    return diflow


@pytest.mark.parametrize("case", CASES)
def test_no_workflow_breaks_the_commands_of_others_or_its_owners(beside: Cli, case: str) -> None:
    beside.api.add(WORKFLOW, hostile(CASES[case]))
    args: tuple[str, ...]
    for args in (("list", "-A", "-o", "wide"), ("list", "-o", "json")):
        result = beside(*args)
        assert (result.code, result.err) == (0, ""), args
        assert "good" in result.out
    for args in (("get", "bad"), ("describe", "bad")):
        result = beside(*args)
        assert result.code == 0, (args, result.err)
        assert "\x1b" not in result.out
    for args in (("logs", "bad"), ("wait", "bad", "--timeout", "0.01s"), ("watch", "bad", "--timeout", "0.01s")):
        result = beside(*args)
        assert "unexpected" not in result.err, (args, result.err)
        assert "\x1b" not in result.out


@pytest.mark.parametrize("case", CASES)
def test_what_has_ended_is_no_better_believed(beside: Cli, case: str) -> None:
    beside.api.add(WORKFLOW, hostile(CASES[case], phase="Failed"))
    for args in (("list", "-A"), ("describe", "bad")):
        result = beside(*args)
        assert result.code == 0, (args, result.err)
        assert "\x1b" not in result.out


@pytest.mark.timeout(60)
def test_a_chain_that_is_tied_into_a_ring_is_not_followed_for_ever(beside: Cli) -> None:
    for name, other, part in (("bad", "worse", "2"), ("worse", "bad", "3")):
        made = SeenJob(name, learner=1).all_ready()
        made.labels |= {"diflow/job": "bad", "diflow/part": part}
        made.annotations |= {
            "diflow/continues": other, "diflow/continues-uid": f"uid-{other}", "diflow/continued-in": other,
        }  # fmt: skip
        beside.api.add(WORKFLOW, made.workflow())
    assert "unexpected" not in beside("wait", "bad", "--for", "phase=Running", "--timeout", "5s").err
    assert len(beside.api.requests) < 50


@pytest.mark.parametrize("case", LINES)
@pytest.mark.parametrize("phase", ["Running", "Failed"])
def test_no_text_of_a_user_begins_a_line(beside: Cli, case: str, phase: str) -> None:
    beside.api.add(WORKFLOW, hostile(CASES[case], phase=phase))
    on = {"kind": f"Pod{_FORGED}", "name": f"bad{_FORGED}", "namespace": "default", "uid": "uid-bad"}
    made = {"reason": _FORGED, "message": _FORGED, "type": f"Warning{_FORGED}", "involvedObject": on}
    beside.api.add(EVENT, {"metadata": {"name": "forged"}, "lastTimestamp": "2099-01-01T00:00:00Z", **made})
    on["kind"], on["name"] = "Workflow", "bad"
    beside.api.add(EVENT, {"metadata": {"name": "forged-too"}, "lastTimestamp": "2099-01-01T00:00:00Z", **made})
    for args in (("list", "-A", "-o", "wide"), ("get", "bad"), ("describe", "bad"), ("nodes", "-A", "-o", "wide")):
        result = beside(*args)
        assert result.code == 0, (args, result.err)
        assert not [line for line in result.out.splitlines() if line.startswith("FORGED")], args
        assert "\u202e" not in result.out
