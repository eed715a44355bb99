"""Users with the rights of one namespace see what is theirs, and are told what is not shown to them."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from diflow.common import keys
from diflow.common.queue_access import NamespaceRule, QueueAccess
from diflow.kube.kinds import CONFIG_MAP
from tests.cli.placed import dijob, node, put, queues
from tests.cli.runner import Cli
from tests.kube.fakeapi import Answer, Request, status

PUBLIC = (keys.ALLOCATOR, keys.PUBLIC_QUEUES, keys.SERVER)
NOT_SHOWN = "jobs of other namespaces, nodes, what queues hold and deserve, and what would be decided now are not shown"
TEXT = """
queues: [{name: default}, {name: research}, {name: secret, guarantee: {cpu: 4}}]
namespaces: [{name: default, queues: [default, research], priorities: [normal]}, {name: "*"}]
"""


LINT = ("lint", "--cluster")


def _queues_in(mine: Cli) -> str:
    """What doctor says of the queues."""
    result = mine("doctor")
    return "\n".join(line for line in (result.out + result.err).splitlines() if "the queues" in line)


def _kubeconfig(mine: Cli, command: tuple[str, ...]) -> list[str]:
    return ["--kubeconfig", str(mine.kubeconfig)] if command == LINT else []


def rights_of_default(request: Request) -> Answer | None:
    """What the roles `admin` and those of manifests/crds allow in the namespace default."""
    space = re.search(r"/namespaces/([^/]+)", request.path)
    name = request.path.rsplit("/", 1)[-1]
    if space is None and request.path.count("/") < 3:
        return None  # discovery
    if space is not None and (space[1] == "default" or (space[1] == "kube-public" and name in PUBLIC)):
        return None
    where = f'in the namespace "{space[1]}"' if space else "at the cluster scope"
    return status(403, f'User "jane" cannot list resource "{name}" in API group "" {where}', reason="Forbidden")


@pytest.fixture
def mine(diflow: Cli) -> Cli:
    """A cluster with jobs of two namespaces, of a user of one of them."""
    diflow.prepare()
    for name in ("node-a", "node-b"):
        node(diflow, name)
    announced = {"scheduling": "gang", "namespace": "diflow-system"}
    diflow.api.add(CONFIG_MAP, {"metadata": {"name": keys.ALLOCATOR}, "data": announced}, namespace="kube-public")
    queues(diflow, TEXT)
    rules = (NamespaceRule("default", ("default", "research"), ("normal",)), NamespaceRule("*"))
    said = {"queues.yaml": QueueAccess(("default", "research", "secret"), rules).text()}
    diflow.api.add(CONFIG_MAP, {"metadata": {"name": keys.PUBLIC_QUEUES}, "data": said}, namespace="kube-public")
    put(diflow, dijob("runs", {"worker": 2}, queue="research"), at={"worker": ["node-a", "node-a"]})
    put(diflow, dijob("waits", {"worker": 12}), decided=("wait", "waits for capacity: 12 at once"))
    put(diflow, dijob("merger", {"worker": 4}), namespace="secret-team", at={"worker": ["node-b"] * 4})
    diflow.api.rule(rights_of_default)
    return diflow


def test_explain_tells_the_last_decision_and_what_it_does_not_show(mine: Cli) -> None:
    result = mine("explain", "waits")
    assert result.code == 0, result.err
    lines = result.out.splitlines()
    assert lines[0] == "default/waits waits for 12 replicas; priority normal, queue default, not preemptible"
    assert "ago: it waits for capacity: 12 at once" in lines[1]
    assert lines[-1].startswith(NOT_SHOWN)
    assert "lacks the right to list nodes in the whole cluster" in lines[-1]
    assert "has 2 of 2 replicas" in mine("explain", "runs").out


@pytest.mark.parametrize("options", [(), ("-n", "default")])
def test_queue_shows_the_jobs_of_the_namespace_with_their_reasons(mine: Cli, options: tuple[str, ...]) -> None:
    result = mine("queue", *options)
    assert (result.code, NOT_SHOWN in result.err) == (0, True), result
    assert re.search(r"^research +1 +0 +cpu 2", result.out, re.MULTILINE), result.out
    assert re.search(r"^1 +default/waits .*12 at once$", result.out, re.MULTILINE), result.out
    assert "merger" not in result.out + result.err
    data = json.loads(mine("queue", "-o", "json", *options).out)
    assert data["not_shown"].startswith(NOT_SHOWN)
    assert {row["name"]: row["running"] for row in data["queues"]} == {"default": 0, "research": 1, "secret": 0}
    assert [row["name"] for row in data["waiting"]] == ["waits"]


def test_top_shows_the_jobs_of_the_namespace(mine: Cli) -> None:
    result = mine("top")
    assert (result.code, result.err) == (0, ""), result
    text = " ".join(result.out.split())
    assert NOT_SHOWN in text
    assert "runs" in text
    assert "node-b" not in text
    assert "merger" not in text
    data = json.loads(mine("top", "-o", "json").out)
    assert ([row["name"] for row in data["jobs"]], data["nodes"]) == (["runs", "waits"], [])
    assert {row["share"] for row in data["jobs"]} == {0.0}
    assert data["not_shown"].startswith(NOT_SHOWN)


def test_plan_tells_the_last_decisions_about_the_jobs_of_the_namespace(mine: Cli) -> None:
    result = mine("plan")
    assert (result.code, NOT_SHOWN in result.err) == (0, True), result
    assert result.out.splitlines() == [
        "default/runs: nothing was decided yet",
        "default/waits: it waits for capacity: 12 at once",
    ]
    data = json.loads(mine("plan", "-o", "json").out)
    assert (list(data["jobs"]), data["not_shown"][: len(NOT_SHOWN)]) == (["default/runs", "default/waits"], NOT_SHOWN)


def test_a_simulated_job_is_told_what_is_known_of_it(mine: Cli) -> None:
    new = mine.file("job.yaml", dijob("new", {"worker": 3}).to_yaml())
    result = mine("plan", "--simulate", new)
    assert (result.code, NOT_SHOWN in result.err) == (0, True), result
    assert result.out == (
        "default/new asks for 3 replicas in queue default; 1 job of its namespace waits before it in this queue: "
        "default/waits\n"
    )
    assert json.loads(mine("plan", "--simulate", new, "-o", "json").out)["before"] == ["default/waits"]
    refused: dict[str, dict[str, Any]] = {
        "no queue 'nope'": {"queue": "nope"},
        "may not use the priority high": {"priority": "high"},
    }
    for said, given in refused.items():
        other = mine.file("other.yaml", dijob("other", {"worker": 3}, **given).to_yaml())
        result = mine("plan", "--simulate", other)
        assert (result.code, said in result.err) == (2, True), result


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"queue": "reserach"}, "spec.queue: there is no queue 'reserach': did you mean 'research'?"),
        ({"queue": "secret"}, "spec.queue: the namespace default may not use the queue 'secret'"),
        ({"priority": "high"}, "spec.priority: the namespace default may not use the priority high"),
    ],
)
@pytest.mark.parametrize("command", [("submit",), ("submit", "--dry-run", "server"), LINT])
def test_what_the_namespace_may_not_use_is_refused(
    mine: Cli, command: tuple[str, ...], given: dict[str, Any], said: str
) -> None:
    text = dijob("new", {"worker": 1}, **given).to_yaml()
    result = mine(*command, mine.file("job.yaml", text), *_kubeconfig(mine, command))
    assert (result.code, said in result.err) == (2, True), result
    if "may not use" in said:
        assert "(`namespaces` in the ConfigMap diflow-queues of diflow-system)" in result.err


def test_doctor_says_what_the_namespace_may_use_and_which_jobs_name_something_else(mine: Cli) -> None:
    assert "the queues: default may use default, research" in _queues_in(mine)
    put(mine, dijob("lost", {"worker": 1}, queue="secret"))
    assert "1 job names a queue that the namespace cannot use: lost (secret)" in _queues_in(mine)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("queues: {", "their text is wrong"),
        ("queues: [{name: a}]\nnamespaces: [{name: other}]", "no job of default can start, as it may use none of them"),
        ("queues: [{name: a}]\nnamespaces: [{name: '*'}, {name: b}]", "the rule 'b' never decides, as the rule '*'"),
        ("queues: [{name: a}]\nnamespaces: [{name: '*', queues: [a, x]}]", "the rule '*' allows x, which no queue is"),
        ("queues: [{name: a}, {name: a}]", "1 queue is defined twice"),
    ],
)
def test_doctor_says_what_contradicts(mine: Cli, text: str, said: str) -> None:
    mine.api.add(
        CONFIG_MAP,
        {"metadata": {"name": keys.PUBLIC_QUEUES}, "data": {"queues.yaml": text}},
        namespace=keys.PUBLIC_NAMESPACE,
    )
    assert said in _queues_in(mine)


def test_what_it_may_use_is_accepted(mine: Cli) -> None:
    for queue in ("research", None):
        text = dijob("new", {"worker": 1}, queue=queue).to_yaml()
        assert mine(*LINT, mine.file("job.yaml", text), *_kubeconfig(mine, LINT)).code == 0
