"""Which namespaces may use which queues and priorities, and the message to a job that may not use them."""

from __future__ import annotations

import re
from dataclasses import replace
from fnmatch import fnmatchcase

import pytest

from diflow.allocator.model.plan import Action
from diflow.allocator.model.reasons import NoSuchQueue
from diflow.allocator.model.views import QueueView
from diflow.allocator.plan.inputs import picture
from diflow.allocator.policies.base import load_policy
from diflow.allocator.watch.cluster_state import ClusterState
from diflow.allocator.watch.queues import read_file
from diflow.common import keys
from diflow.common.errors import InvalidError
from diflow.common.queue_access import MOST_RULES, NamespaceRule, as_lines, read_rules, refusal
from diflow.kube.kinds import CONFIG_MAP
from tests.allocator import values
from tests.allocator.lab import Lab, job, lab, task

HIGH = keys.WORKFLOW_PRIORITIES["high"]
TEXT = """
queues: [{name: default}, {name: team}, {name: team-a}, {name: other}]
namespaces:
  - {name: "team-*", queues: [team, "team-*"], priorities: [normal]}
  - {name: free}
  - {name: nothing, queues: []}
"""


@pytest.mark.parametrize(
    ("namespace", "queue", "priority", "words"),
    [
        ("team-x", "team", 0, ""),
        ("team-x", "team-a", 0, ""),
        ("team-x", "default", 0, "may not use the queue 'default': set spec.queue to team or team-*"),
        ("team-x", "other", 0, "may not use the queue 'other'"),
        ("team-x", "team", HIGH, "may not use the priority high: set spec.priority to normal"),
        ("free", "other", HIGH, ""),
        ("nothing", "default", 0, "it may use none"),
        ("team", "team", 0, "names the namespace team"),
        ("elsewhere", "default", 0, "names the namespace elsewhere"),
    ],
)
def test_the_first_rule_that_matches_decides(namespace: str, queue: str, priority: int, words: str) -> None:
    found = refusal(read_file(TEXT).rules, namespace=namespace, queue=queue, priority=priority)
    assert words in found
    assert bool(found) == bool(words)


def test_without_rules_everybody_may_use_everything() -> None:
    assert read_file("queues: []").rules == ()
    assert refusal((), namespace="any", queue="any", priority=HIGH) == ""


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ("{}", "namespaces: must be a list"),
        ("[a]", r"namespaces\[0\]: must be a mapping"),
        (f"[{'{name: a}, ' * (MOST_RULES + 1)}]", "namespaces: has 1001 rules, and may have 1000"),
        ("[{}]", r"namespaces\[0\].name: must be a namespace"),
        ("[{name: A}]", r"namespaces\[0\].name"),
        ("[{name: '[a]'}]", r"namespaces\[0\].name"),
        ("[{name: a, queue: b}]", r"namespaces\[0\].queue: unknown field"),
        ("[{name: a, queues: b}]", r"namespaces\[0\].queues: must be a list"),
        ("[{name: a, queues: }]", r"namespaces\[0\].queues: is empty"),
        ("[{name: a, queues: [5]}]", r"namespaces\[0\].queues\[0\]: must be a name"),
        ("[{name: a, priorities: [urgent]}]", r"namespaces\[0\].priorities\[0\]: must be normal or high"),
    ],
)
def test_a_mistake_in_the_rules_is_named_with_its_path(rules: str, message: str) -> None:
    with pytest.raises(InvalidError, match=message):
        read_file(f"queues: []\nnamespaces: {rules}")


@pytest.mark.parametrize("policy", ["fit", "fair", "goodput", "fair+goodput"])
@pytest.mark.parametrize("queues", [(), (QueueView("default"),)])
def test_a_job_that_may_not_be_in_its_queue_waits_and_keeps_what_it_has(
    policy: str, queues: tuple[QueueView, ...]
) -> None:
    rules = (NamespaceRule("ns", queues=("team",)),)
    at = values.capacity()
    waiting = values.job(values.read())
    state = ClusterState({waiting.key: waiting}, at.nodes, (), queues, rules=rules)
    shown = picture(state, at, now=values.NOW)
    plan = load_policy(policy).optimize(shown.snapshot)
    assert plan.action[0] == Action.WAIT
    assert isinstance(plan.reasons[0], NoSuchQueue)
    placed = values.job(values.read(nodes={"w": ("a", "b")}))
    shown = picture(replace(state, jobs={placed.key: placed}), at, now=values.NOW)
    assert int(load_policy(policy).optimize(shown.snapshot).action[0]) == int(Action.KEEP)


def _queues(at: Lab, text: str) -> None:
    name = at.settings.queues_config
    body = {"metadata": {"name": name, "namespace": at.settings.namespace}, "data": {"queues.yaml": text}}
    at.api.add(CONFIG_MAP, body, namespace=at.settings.namespace)


def test_a_job_is_told_what_it_may_use_and_starts_when_the_rules_allow_it() -> None:
    with lab() as at:
        at.cluster.node("n1", cpu="8")
        _queues(at, "queues: [{name: default}]\nnamespaces: [{name: default, priorities: [normal]}]")
        at.cluster.submit(job("greedy", task("w"), priority="high"))
        at.cluster.submit(job("honest", task("w")))
        at.until(lambda: at.cluster.running("honest"), "the honest job runs")
        at.rest()
        assert at.cluster.running("greedy") == {}
        words = "waits: the namespace default may not use the priority high: set spec.priority to normal"
        assert words in at.decision("greedy")["why"]
        assert (words in at.events("greedy")[0][1], len(at.events("greedy"))) == (True, 1)
        _queues(at, "queues: [{name: default}]\nnamespaces: [{name: default}]")
        at.until(lambda: at.cluster.running("greedy"), "it may now")


def test_the_rules_are_published_as_lines_of_regular_expressions() -> None:
    rules = read_rules(
        [
            {"name": "team-*", "queues": ["team", "team-*"], "priorities": ["normal"]},
            {"name": "lab", "priorities": ["normal", "high"]},
            {"name": "*", "queues": [], "priorities": []},
        ]
    )
    lines = as_lines(rules).splitlines()
    assert [line.split(" ")[3] for line in lines] == ["0", "1000", "0"]
    for rule, line in zip(rules, lines, strict=True):
        names, queues, priorities, _ = line.split(" ")
        for text in ("team", "team-", "team-a", "lab", "x", "labs", "a-team", "normal", "high", "default"):
            assert bool(re.search(names, text)) is fnmatchcase(text, rule.name)
            allowed = rule.queues is None or any(fnmatchcase(text, one) for one in rule.queues)
            assert bool(re.search(queues, text)) is allowed
            assert bool(re.search(priorities, text)) is (rule.priorities is None or text in rule.priorities)
    assert as_lines(()) == ""
