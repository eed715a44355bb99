"""Why a pod ended, and what follows: DLRover's rules by default, and a job's own first. Argo's expressions agree."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from diflow.allocator.watch.records import planning_record_of
from diflow.common.errors import InvalidError
from diflow.common.limits import MOST_CODES, MOST_POD_CONDITIONS, MOST_RULES
from diflow.dijob.memory import after_out_of_memory, of_container, with_memory
from diflow.dijob.rules import failurerules as spec
from diflow.dijob.stored import ACTIONS, DISRUPTION, OPERATORS, FailurePolicy, FailureRule, OnExitCodes, OnPodCondition
from diflow.dijob.stored import failure_policy as parse
from diflow.record.argo.failures import ALWAYS, Rules, is_of_node, reason_of, rules_of
from diflow.record.argo.nodes import nodes
from diflow.record.job import JobRecord, record_of
from diflow.server.api.reading import served_record_of
from diflow.workflows import expressions as expr
from diflow.workflows import render
from tests.builders import job, task

GIB = 1024


def default(**options: bool) -> Rules:
    return rules_of(FailurePolicy(), **{"has_allocator": True, "has_memory": True, "main": "di-container", **options})


def main(code: int, reason: str = "Error") -> str:
    return f"main: {reason} (exit code {code})"


# --- the table of DLRover's job master --------------------------------------------------------------------------------

EVICTED = "The node was low on resource: memory. Container main was using 5Gi, request is 2Gi"
ROWS = [
    (main(137, "OOMKilled"), "out of memory", "MoreMemory"),
    (main(1, "OOMKilled"), "out of memory", "MoreMemory"),
    (main(247), "out of memory", "MoreMemory"),
    (main(137), "killed", "Ignore"),
    (main(143), "killed", "Ignore"),
    (main(1), "error of the program", "Count"),
    (main(134), "error of the program", "Count"),
    (main(201), "hardware", "Elsewhere"),
    (main(202), "hardware", "Elsewhere"),
    (main(14), "hardware", "Elsewhere"),
    (main(2), "unknown", "Count"),
    (main(255), "unknown", "Count"),
    ("init: Error (exit code 143)", "killed", "Ignore"),
    ("init: Error (exit code 2)", "taken away", "Ignore"),
    ("init: Error (exit code 2): no token", "unknown", "Count"),
    (EVICTED, "taken away", "Ignore"),
    ("Preempted in order to admit critical pod", "taken away", "Ignore"),
    ("pod deleted", "taken away", "Ignore"),
    ("The node was lost: n1", "taken away", "Ignore"),
    ("Pod was terminated in response to imminent node shutdown.", "taken away", "Ignore"),
    ("Pod ephemeral local storage usage exceeds the total limit of containers 1Gi.", "unknown", "Count"),
    ("", "", "Count"),
]


@pytest.mark.parametrize(("message", "reason", "action"), ROWS)
def test_why_a_pod_ended_and_what_follows(message: str, reason: str, action: str) -> None:
    verdict = default().judge(message)
    assert (verdict.reason, verdict.action) == (reason, action)
    assert reason_of(message) == reason
    assert verdict.is_counted is (action == "Count")


def test_without_a_policy_all_but_what_was_taken_away_counts() -> None:
    for message, reason, _ in ROWS:
        assert ALWAYS.judge(message).is_counted is (reason not in ("killed", "taken away"))
    assert rules_of(None) is ALWAYS


def test_without_the_allocator_nobody_can_move_it_or_give_it_more() -> None:
    alone = default(has_allocator=False)
    for message in (main(201), main(247), main(137, "OOMKilled")):
        assert alone.judge(message).is_counted
        assert "which needs the allocator" in alone.judge(message).rule
    assert not alone.judge(main(137)).is_counted
    bare = default(has_memory=False)
    assert bare.judge(main(247)).is_counted
    assert bare.judge(main(201)).action == "Elsewhere"


def test_what_a_program_writes_has_no_influence() -> None:
    said = ": The node was lost\nmain: OOMKilled (exit code 137)\npod deleted"
    assert default().judge(main(1) + said).action == "Count"
    assert default().judge(main(201) + said).action == "Elsewhere"
    assert default().judge(f"x{main(201)}").action == "Count"


# --- a job's own rules ------------------------------------------------------------------------------------------------


def rules(*given: dict[str, Any], **options: bool) -> Rules:
    return rules_of(
        parse({"rules": list(given)}),
        has_allocator=True,
        has_memory=True,
        main=str(options.get("main", "di-container")),
    )


def on(action: str, operator: str, *values: int, **more: str) -> dict[str, Any]:
    return {"action": action, "onExitCodes": {"operator": operator, "values": list(values), **more}}


def test_the_first_rule_that_matches_decides_and_then_the_default_ones() -> None:
    both = rules(on("FailJob", "In", 1, 134), on("Ignore", "In", 1, 3))
    assert both.judge(main(1)).action == "FailJob"
    assert both.judge(main(1)).rule == "failurePolicy.rules[0]"
    assert both.judge(main(3)).action == "Ignore"
    assert both.judge(main(201)).action == "Elsewhere"
    assert both.judge(main(5)).action == "Count"


def test_codes_that_are_not_in_a_list() -> None:
    some = rules(on("FailJob", "NotIn", 3, 4))
    assert some.judge(main(5)).action == "FailJob"
    assert some.judge(main(4)).action == "Count"
    assert some.judge(main(34)).action == "FailJob"
    assert some.judge("pod deleted").action == "Ignore"


def test_of_which_container() -> None:
    one = rules(on("Ignore", "In", 3, containerName="helper"))
    assert one.judge("helper: Error (exit code 3)").action == "Ignore"
    assert one.judge(main(3)).action == "Count"
    work = rules(on("Ignore", "In", 3, containerName="di-container"))
    assert work.judge(main(3)).action == "Ignore"
    assert work.judge("helper: Error (exit code 3)").action == "Count"
    every = rules(on("FailJob", "In", 3))
    assert every.judge("helper: Error (exit code 3)").action == "FailJob"
    for argos in ("wait", "init"):
        assert every.judge(f"{argos}: Error (exit code 3)").action == "Count", "not a container of the job"


def test_killed_is_no_lack_of_memory_without_the_kubelet_saying_so() -> None:
    more = rules(on("MoreMemory", "In", 137, 9))
    assert more.judge(main(137, "OOMKilled")).action == "MoreMemory"
    assert more.judge(main(9)).action == "MoreMemory"
    assert more.judge(main(137)).action == "Ignore"
    assert more.judge("helper: Error (exit code 9)").action == "Count"


def test_a_disruption_may_count_but_not_what_the_allocator_does() -> None:
    counts = rules({"action": "Count", "onPodConditions": [{"type": "DisruptionTarget"}]})
    assert counts.judge(EVICTED).action == "Count"
    assert counts.judge("pod deleted").action == "Count"
    assert counts.judge("Pod was rejected: released for round 2").action == "Ignore"


INVALID: list[tuple[Any, str]] = [
    (3, ""),
    ([], ""),
    ({"rule": []}, ""),
    ({"rules": 3}, "rules"),
    ({"rules": [3]}, "rules[0]"),
    ({"rules": [{}]}, "rules[0].action"),
    ({"rules": [{"action": "Count"}]}, "rules[0]"),
    ({"rules": [{"action": ["Count"]}]}, "rules[0].action"),
    ({"rules": [{**on("Count", "In", 1), "onPodConditions": [{"type": "DisruptionTarget"}]}]}, "rules[0]"),
    ({"rules": [on("Count", "Is", 1)]}, "rules[0].onExitCodes.operator"),
    ({"rules": [on("Count", "In")]}, "rules[0].onExitCodes.values"),
    ({"rules": [on("Count", "In", 0)]}, "rules[0].onExitCodes.values"),
    ({"rules": [on("Count", "In", 256)]}, "rules[0].onExitCodes.values[0]"),
    ({"rules": [on("Count", "In", -1)]}, "rules[0].onExitCodes.values[0]"),
    ({"rules": [on("Count", "In", 1, 1)]}, "rules[0].onExitCodes.values"),
    ({"rules": [on("Count", "In", True)]}, "rules[0].onExitCodes.values[0]"),
    ({"rules": [on("Count", "In", *range(1, 256), 1)]}, "rules[0].onExitCodes.values"),
    ({"rules": [on("Count", "In", 1, containerName="a' || true")]}, "rules[0].onExitCodes.containerName"),
    ({"rules": [on("Count", "In", 1, containerName="a\n")]}, "rules[0].onExitCodes.containerName"),
    ({"rules": [on("Count", "In", 1, container="a")]}, "rules[0].onExitCodes"),
    ({"rules": [{"action": "Count", "onPodConditions": [{"type": "Ready"}]}]}, "rules[0].onPodConditions[0].type"),
    (
        {"rules": [{"action": "Count", "onPodConditions": [{"type": "DisruptionTarget", "status": "False"}]}]},
        "rules[0].onPodConditions[0].status",
    ),
    ({"rules": [{"action": "Count", "onPodConditions": []}]}, "rules[0].onPodConditions"),
    ({"rules": [{"action": "MoreMemory", "onPodConditions": [{"type": "DisruptionTarget"}]}]}, "rules[0].action"),
    (
        {"rules": [{"action": "Count", "onPodConditions": [{"type": "DisruptionTarget"}] * (MOST_POD_CONDITIONS + 1)}]},
        "rules[0].onPodConditions",
    ),
]


@pytest.mark.parametrize(("policy", "path"), INVALID)
def test_an_invalid_policy_is_refused_with_its_path(policy: Any, path: str) -> None:
    with pytest.raises(InvalidError) as error:
        parse(policy)
    assert error.value.path == path
    with pytest.raises(InvalidError) as error:
        spec.FailurePolicy.of(policy)
    assert error.value.path == path


def test_the_rules_and_exit_codes_of_a_policy_are_bounded() -> None:
    assert len(parse({"rules": [on("Count", "In", *range(1, 256))] * MOST_RULES}).rules) == MOST_RULES
    assert MOST_CODES == 255
    with pytest.raises(InvalidError, match="21 rules, at most 20"):
        parse({"rules": [on("Count", "In", 1)] * (MOST_RULES + 1)})


# --- Argo's expressions are made of the same table --------------------------------------------------------------------


def evaluated(expression: str, message: str) -> bool:
    text = re.sub(r"lastRetry\.message matches ('[^']*')", r"bool(search(\1, message))", expression)
    text = text.replace(" && ", " and ").replace(" || ", " or ").replace("!(", "not (")
    return bool(eval(text, {"search": re.search, "message": message, "false": False}))


names = st.sampled_from([None, "di-container", "main", "helper"])
_codes = st.integers(1, 6) | st.sampled_from([14, 134, 137, 143, 201, 247])
_on_codes = st.builds(
    OnExitCodes,
    st.sampled_from(OPERATORS),
    st.lists(_codes, min_size=1, max_size=3, unique=True).map(tuple),
    names,
)
_evicted = (OnPodCondition(DISRUPTION),)
given_policies = st.builds(
    FailurePolicy,
    st.lists(
        st.builds(FailureRule, st.sampled_from(ACTIONS), _on_codes)
        | st.builds(
            FailureRule, st.sampled_from([a for a in ACTIONS if a != "MoreMemory"]), st.none(), st.just(_evicted)
        ),
        max_size=4,
    ).map(tuple),
)
messages = st.one_of(
    st.sampled_from([row[0] for row in ROWS]),
    st.builds(
        lambda name, reason, code, said: f"{name}: {reason} (exit code {code}){said}",
        st.sampled_from(["main", "helper", "wait", "init", "diflow-check"]),
        st.sampled_from(["Error", "OOMKilled", "StartError"]),
        st.one_of(st.just(2), st.integers(1, 255)),
        st.sampled_from(["", ": main: Error (exit code 1)", ": pod deleted"]),
    ),
    st.text(max_size=30),
)


@pytest.mark.slow
@given(given_policies, messages, st.booleans(), st.booleans())
@settings(max_examples=400)
def test_argo_counts_what_the_readers_count(
    policy: FailurePolicy, message: str, has_allocator: bool, has_memory: bool
) -> None:
    made = rules_of(policy, has_allocator=has_allocator, has_memory=has_memory, main="di-container")
    assert evaluated(expr.is_uncounted(made), message) is not made.judge(message).is_counted


@given(given_policies, messages, st.booleans(), st.booleans())
@settings(max_examples=400)
def test_a_verdict_that_is_known_is_that_of_the_patterns(
    policy: FailurePolicy, message: str, has_allocator: bool, checks_nodes: bool
) -> None:
    found = rules_of(policy, has_allocator=has_allocator, main="di-container", checks_nodes=checks_nodes)
    for text in (message, f"{message}: pod deleted", message, f"{message}: a text"):
        by_patterns = next((rule.named for rule in found.rules if rule.applies(text)), "none: all other failures")
        assert found.judge(text).rule == by_patterns


def test_the_largest_policy_is_judged_once_for_pods_that_end_alike() -> None:
    """900 failed pods of one job that no rule is about."""
    many = rules_of(parse({"rules": [on("Count", "NotIn", *range(1, 201))] * MOST_RULES}), has_allocator=True)
    ends = [main(180 + i % 20) for i in range(900)]

    def seconds(judge: Callable[[str], object]) -> float:
        began = time.process_time()
        for message in ends:
            judge(message)
        return time.process_time() - began

    patterns = min(seconds(lambda m: [rule.applies(m) for rule in many.rules]) for _ in range(3))
    assert min(seconds(many.judge) for _ in range(3)) < patterns / 3


def test_the_expression_of_a_job_without_a_policy_has_not_changed() -> None:
    assert expr.is_uncounted() == expr.is_uncounted(ALWAYS)
    assert expr.is_uncounted().startswith("(lastRetry.message matches '^pod deleted|")
    assert expr.is_uncounted().count("matches") == 1


def test_the_hook_that_ends_the_job_sees_the_exit_code_of_the_main_container() -> None:
    assert expr.ends_the_job("w", default()) == ""
    code = "(tasks['w']?.exitCode ?? '')"
    found = expr.ends_the_job("w", rules(on("Count", "In", 3), on("FailJob", "NotIn", 4)))
    assert found == f"({code} in ['3'] ? false : (!({code} in ['', '0', '4']) ? true : false))"


# --- more memory after out of memory ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("current", "highest", "asked", "new"),
    [
        (2 * GIB, 0, 2 * GIB, 4 * GIB),  # doubled
        (6 * GIB, 0, 6 * GIB, 12 * GIB),
        (8 * GIB, 0, 8 * GIB, 16 * GIB),
        (20 * GIB, 0, 8 * GIB, 28 * GIB),  # at most 8 GiB more at once
        (60 * GIB, 0, 8 * GIB, 64 * GIB),  # doubled up to 64 GiB
        (64 * GIB, 0, 8 * GIB, 64 * GIB),  # and then no more
        (64 * GIB, 70 * GIB, 8 * GIB, 70 * GIB),  # but as another one of the task has
        (64 * GIB, 200 * GIB, 8 * GIB, 72 * GIB),
        (64 * GIB, 0, 66 * GIB, 66 * GIB),  # or as its user asked
        (100 * GIB, 0, 8 * GIB, 100 * GIB),
        (2 * GIB, 5 * GIB, 2 * GIB, 5 * GIB),
        (1, 0, 1, 2),
    ],
)
def test_the_formula_of_dlrover(current: int, highest: int, asked: int, new: int) -> None:
    assert after_out_of_memory(current, highest=highest, asked=asked) == new
    assert new == current + min(max(highest, min(2 * current, 64 * GIB), asked, current) - current, 8 * GIB)


def test_the_maximum_bounds_it_and_never_takes_memory_away() -> None:
    assert after_out_of_memory(4 * GIB, highest=0, asked=0, most=6 * GIB) == 6 * GIB
    assert after_out_of_memory(6 * GIB, highest=0, asked=0, most=6 * GIB) == 6 * GIB
    assert after_out_of_memory(8 * GIB, highest=0, asked=0, most=6 * GIB) == 8 * GIB


@given(st.integers(1, 2**40), st.integers(0, 2**40), st.integers(0, 2**40), st.none() | st.integers(1, 2**40))
def test_it_ends_after_few_steps(current: int, highest: int, asked: int, most: int | None) -> None:
    highest, asked = min(highest, 2**20), min(asked, 2**20)
    for _ in range(200):
        new = after_out_of_memory(current, highest=highest, asked=asked, most=most)
        assert 0 <= new - current <= 8 * GIB
        if new == current:
            return
        current = new
    raise AssertionError("it would never reach its maximum")


def test_the_memory_of_a_container() -> None:
    assert of_container(None) == (0, 0)
    assert of_container({"requests": {"cpu": "1"}}) == (0, 0)
    assert of_container({"requests": {"memory": "2Gi"}}) == (2048, 0)
    assert of_container({"limits": {"memory": "2Gi"}}) == (2048, 0)
    assert of_container({"requests": {"memory": "1Gi"}, "limits": {"memory": "2Gi"}}) == (2048, 1024)
    both = {"requests": {"memory": "1Gi", "cpu": "1"}, "limits": {"memory": "2Gi"}}
    assert with_memory(both, 4096) == {"requests": {"memory": "3072Mi", "cpu": "1"}, "limits": {"memory": "4096Mi"}}
    assert with_memory({"limits": {"memory": "2Gi"}}, 4096) == {"limits": {"memory": "4096Mi"}}
    assert of_container(with_memory(both, 4096)) == (4096, 1024)


# --- texts that users can edit ----------------------------------------------------------------------------------------


def state(memory: Any = '{"learner":2048}', policy: Any = None) -> JobRecord:
    amounts = {"resources": {"requests": {"memory": "2Gi"}}}
    body = render(job(task(container=amounts), name="job", failure_policy={}, scheduling="gang"))
    for item in body["spec"]["arguments"]["parameters"]:
        if item["name"] == "memory":
            item["value"] = memory
    if policy is not None:
        given = json.loads(body["metadata"]["annotations"]["diflow/dijob"])
        given["spec"]["failurePolicy"] = policy
        body["metadata"]["annotations"]["diflow/dijob"] = json.dumps(given)
    return record_of(body)


def test_the_rules_of_a_job_are_read_from_its_workflow() -> None:
    made = state()
    assert (made.spec.failure_policy, made.spec.has_allocator) == (FailurePolicy(), True)
    assert (made.live.memory, made.problem) == ({"learner": 2048}, "")
    assert made.rules("learner").judge(main(247)).action == "MoreMemory"
    assert made.rules("other").judge(main(247)).action == "Count"
    assert record_of(render(job(task()))).rules("learner") is ALWAYS


@pytest.mark.parametrize("trimmed", [planning_record_of, served_record_of])
def test_a_record_without_templates_has_the_rules_of_the_whole_one(trimmed: Callable[[Any], JobRecord]) -> None:
    """Only the main container gets more memory, and diflow knows it by its name."""
    body = render(job(task(name="main"), name="job", failure_policy={}, scheduling="gang"))
    whole, found = record_of(body), trimmed(body)
    assert found.spec.tasks[0].template == Raw()
    assert found.spec.tasks[0].without_template().main == whole.spec.tasks[0].main != ""
    assert found.rules("learner") == whole.rules("learner")


@pytest.mark.parametrize(
    "memory",
    ["x", "[]", "3", '{"learner":"2048"}', '{"learner":0}', '{"learner":-1}', '{"learner":1e3}', '{"other":1}',
     '{"learner":true}', '{"learner":1000000000000001}', "[" * 10_000, '{"learner":null}'],
)  # fmt: skip
def test_an_edited_memory_holds_the_job(memory: str) -> None:
    assert "the parameter memory is not what diflow wrote" in state(memory).problem


@pytest.mark.parametrize(("policy", "path"), [one for one in INVALID if one[0] != {}])
def test_an_edited_policy_holds_the_job(policy: Any, path: str) -> None:
    where = f"spec.failurePolicy{f'.{path}' if path else ''}"
    assert f"is not a valid job any more ({where})" in state(policy=policy).problem


@pytest.mark.parametrize("value", [None, 3, True, [], {}, "x", "-1", "1e9", "٣", "1" * 16, " 64"])
def test_an_edited_input_of_a_node_is_none(value: Any) -> None:
    given = {"parameters": [{"name": "memory", "value": value}]}
    for inputs in (given, {"parameters": value}, value, {"parameters": [value]}):
        node = {"id": "a", "name": "job.round(0:1).w(0:0).w(0)", "type": "Pod", "phase": "Failed", "inputs": inputs}
        body = {"metadata": {"name": "job"}, "status": {"nodes": {"a": node}}}
        ((found,), _) = nodes(body)
        assert found.memory == 0


_RUNC = "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed: "


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (f"main: StartError (exit code 128): {_RUNC}unable to start container process: error during container init: "
         "error running hook #0: nvidia-container-cli: initialization error: load library failed: libnvidia-ml.so.1: "
         "cannot open shared object file: no such file or directory", True),
        ("main: StartError (exit code 128)", True),
        ("init: StartError (exit code 128): failed to start containerd task", True),
        ("main: ContainerCannotRun (exit code 127): OCI runtime create failed", True),
        ("Pod was rejected: Allocate failed due to no healthy devices present, which is unexpected", True),
        ("Pod was rejected: Resources cannot be allocated with Topology locality", True),
        (f'main: StartError (exit code 128): {_RUNC}unable to start container process: exec: "trian": executable file '
         "not found in $PATH", False),
        ('main: ContainerCannotRun (exit code 127): container_linux.go:380: starting container process caused: exec: '
         '"/train": permission denied', False),
        ("main: Error (exit code 128)", False),
        ("main: Error (exit code 1): main: StartError (exit code 128)", False),
        ("Pod was rejected: its gang is not complete: it waits for another place", False),
        ("Pod was rejected: Node didn't have enough resource: cpu", False),
    ],
)  # fmt: skip
def test_what_did_not_begin_because_of_its_node(message: str, expected: bool) -> None:
    assert is_of_node(message) is expected
