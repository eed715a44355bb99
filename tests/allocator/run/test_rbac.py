"""RBAC grants the allocator the rights that it uses and no others: its requests are compared with the rules.

The daemon and `diflow allocator once` are real; the fake API server records each request.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path

import pytest

from diflow.allocator import signature
from diflow.allocator.settings import AllocatorSettings
from diflow.common import keys
from diflow.kube.kinds import CONFIG_MAP, LEASE, POD, WORKFLOW
from tests.allocator.faults import eventually
from tests.allocator.lab import Lab, job, lab, task
from tests.allocator.manifests import ANY, EVERYWHERE, Grant, Use, everybody, granted, needed
from tests.allocator.remember.test_applications import REPORT, workflow
from tests.cli.runner import Result, kubeconfig, run
from tests.kube.fakeapi import FakeApi
from tests.record.seen import SeenJob

SYSTEM = "diflow-system"
# Argo's executor in the pod of a scheduled run tells the controller how it ended, and its output:
# https://argo-workflows.readthedocs.io/en/latest/workflow-rbac/
EXECUTOR = {Grant(verb, "argoproj.io", "workflowtaskresults", SYSTEM, ANY) for verb in ("create", "patch")}


@pytest.fixture(scope="module")
def daemons() -> set[Use]:
    """The requests of the daemon in a scenario with all its features."""
    # A Workflow of this size gets no further round.
    with lab(
        begin=False, settings=AllocatorSettings(writers=1, debounce_seconds=0.0, most_nodes=20, lost_after_seconds=3.0)
    ) as found:
        queues = {"metadata": {"name": keys.QUEUES}, "data": {"queues.yaml": "queues: [{name: default}]"}}
        found.api.add(CONFIG_MAP, queues, namespace=SYSTEM)
        found.dry_runs = True
        found.begin()
        live(found)
        record(found)
        read_late(found)
        return {needed(request) for request in found.api.requests}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> set[Use]:
    """The requests of scheduled runs: with a running allocator, without one, and on a cluster that never had one."""
    folder = tmp_path_factory.mktemp("once")
    used: set[Use] = set()
    with lab() as found:
        answered(found, folder)
        used |= by_command(found.api)
    with lab(begin=False) as found:
        crowd(found)
        found.api.add(
            LEASE, {"metadata": {"name": "diflow-allocator"}, "spec": {"leaseTransitions": 1}}, namespace=SYSTEM
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("DIFLOW_ALLOCATOR_MOST_NODES", "1")  # the waiting job begins its round in a new Workflow
            assert "2 jobs on 1 node" in once(found.api, folder).out
            # A run ends with its cycle, whatever its caches have seen by then; the next one continues.
            for _ in range(10):
                if any((use.verb, use.resource) == ("patch", "pods/status") for use in by_command(found.api)):
                    break
                once(found.api, folder)
        used |= by_command(found.api)
    with lab(begin=False) as found:
        late = once(found.api, folder, "--timeout", "1s")
        assert (late.code, "no plan within 1 s" in late.err) == (124, True), late
        used |= by_command(found.api)
    return used


def read_late(found: Lab) -> None:
    """A pod changes that takes long to read, of a namespace that has used its share of the reader's time."""
    assert found.daemon is not None
    caches, told = found.daemon.allocator.caches, len(found.api.requests)
    containers = [{"name": f"c{i}"} for i in range(300)]
    vast = {"metadata": {"name": "vast"}, "spec": {"containers": containers}}
    found.api.add(POD, vast, namespace="heavy")
    eventually(lambda: caches.pods.get("heavy", "vast"), "it is known")
    caches.shares.charge("heavy", 1.2)
    found.api.add(POD, {**vast, "status": {"phase": "Running"}}, namespace="heavy")
    eventually(
        lambda: any(
            needed(request).verb == "get" and "/pods/" in request.path for request in found.api.requests[told:]
        ),
        "it is read late",
    )


def test_the_daemon_asks_for_nothing_that_it_is_not_allowed(daemons: set[Use]) -> None:
    assert refused(daemons, granted("diflow-allocator")) == []


def test_the_daemon_needs_each_rule(daemons: set[Use]) -> None:
    assert idle(daemons, granted("diflow-allocator")) == []


def test_a_scheduled_run_asks_for_nothing_that_it_is_not_allowed(runs: set[Use]) -> None:
    assert refused(runs, granted("diflow-reoptimise") | everybody()) == []


def test_a_scheduled_run_needs_each_rule(runs: set[Use]) -> None:
    rules = granted("diflow-reoptimise")
    assert rules >= EXECUTOR
    assert idle(runs, (rules | everybody()) - EXECUTOR) == []


@pytest.mark.parametrize("account", ["diflow-allocator", "diflow-reoptimise"])
def test_what_is_allowed_everywhere_is_used_outside_the_allocators_own_namespace(
    daemons: set[Use], runs: set[Use], account: str
) -> None:
    used = daemons if account == "diflow-allocator" else runs
    wide = [grant for grant in granted(account) if grant.space == EVERYWHERE]
    assert [g for g in wide if all(use.space == SYSTEM for use in used if g.allows(use))] == []
    assert {g.name for g in wide if g.resource != "configmaps"} == {ANY}
    assert {g.name for g in wide if g.resource == "configmaps"} <= {keys.ENDED_JOBS, keys.APPLICATIONS}, (
        "two ConfigMaps of a namespace alone"
    )


def test_no_account_may_do_everything_or_grant_rights() -> None:
    for account in ("diflow-allocator", "diflow-reoptimise"):
        for grant in granted(account):
            assert "*" not in (grant.verb, grant.group, grant.resource)
            assert grant.resource.split("/")[0] not in ("serviceaccounts", "roles", "clusterroles")
            assert grant.resource != "secrets" or (grant.space, grant.name) == (SYSTEM, signature.NAME), (
                "one Secret alone"
            )
            assert grant.verb not in ("delete", "deletecollection", "escalate", "bind", "impersonate")


def test_the_comparison_sees_a_rule_too_many_and_one_too_few() -> None:
    use = Use("get", "", "pods", "default", "one")
    fits, named = Grant("get", "", "pods", EVERYWHERE, ANY), Grant("get", "", "pods", "default", "one")
    other, spare = Grant("get", "", "pods", "other", ANY), Grant("list", "", "pods", EVERYWHERE, ANY)
    assert refused({use}, {fits}) == refused({use}, {named}) == []
    assert refused({use}, {other, spare}) == [use]
    assert idle({use}, {fits}) == idle({use}, {named}) == []
    assert idle({use}, {fits, spare}) == [spare]
    assert idle({use}, {fits, named}) == sorted([fits, named], key=str), "one of two for the same is too many"


# --- what is played -------------------------------------------------------------------------------------------------


def live(found: Lab) -> None:
    """A waiting gang, its admission, a replaced round, a lost node, a job that continues in another Workflow, and two
    plan requests."""
    found.cluster.node("one", cpu="4")
    crowd(found)
    found.until(lambda: len(found.cluster.running("gang")) == 2, "the gang runs")
    found.until(lambda: len(found.cluster.running("many")) == 2, "the others run with what is left")
    found.cluster.node("two", cpu="4")
    found.cluster.remove_node("one")
    found.until(lambda: found.cluster.running("gang").get("worker-0") == "two", "it runs on the other node")
    found.until(lambda: found.cluster.running("many-s2"), "the others go on in another Workflow")
    for number in range(2):
        ask(found, f"question-{number}")
        found.until(lambda n=number: answer(found) == f"question-{n}", "there is an answer")  # type: ignore[misc]


def record(found: Lab) -> None:
    """A job ends and is recorded."""
    made = SeenJob("over", learner=1).ended(50).workflow()
    made["metadata"]["labels"] |= {"workflows.argoproj.io/completed": "true"}
    found.api.add(WORKFLOW, made)
    found.api.add(CONFIG_MAP, {"metadata": {"name": keys.ENDED_JOBS}})
    assert found.daemon is not None
    recorder = found.daemon.allocator.ended_jobs
    recorder.workflows.start()
    eventually(lambda: recorder.workflows.synced, "the ended jobs are listed")
    assert recorder.record() == 1
    learn(found)
    recorder.workflows.stop()


def learn(found: Lab) -> None:
    """A job ends and teaches the memory of its application."""
    found.api.add(CONFIG_MAP, {"metadata": {"name": keys.APPLICATIONS}})
    found.api.add(WORKFLOW, workflow("taught", report=REPORT, ended="Succeeded"))
    assert found.daemon is not None
    memory = found.daemon.allocator.applications
    memory.config_maps.start()
    eventually(memory.learn, "a memory is written")
    memory.config_maps.stop()


def crowd(found: Lab) -> None:
    """A job that fits, and one that fits in part, both resumed by their user: their pods have gates, and those of the
    second are replaced by a smaller round."""
    if not found.cluster.api.objects.get("/api/v1/nodes"):
        found.cluster.node("one", cpu="4")
    found.cluster.submit(job("gang", task(replicas=2)))
    found.cluster.submit(job("many", task(replicas=4, min_replicas=1, max_replicas=4), preemptible=True))
    found.cluster.resume("gang")
    found.cluster.resume("many")
    for _ in range(3):
        found.pass_time()


def ask(found: Lab, text: str) -> None:
    """Request a plan, as another user."""
    lease = found.api.objects[LEASE.path(SYSTEM)]["diflow-allocator"]
    metadata = {**lease["metadata"], "annotations": {"diflow/replan": text}}
    found.api.add(LEASE, {**lease, "metadata": metadata}, namespace=SYSTEM)


def answer(found: Lab) -> str:
    plan = found.api.objects.get(CONFIG_MAP.path(SYSTEM), {}).get("diflow-plan", {})
    return str(plan.get("data", {}).get("id"))


def answered(found: Lab, folder: Path) -> None:
    """A scheduled run, while an allocator leads."""
    results: list[Result] = []
    asking = threading.Thread(target=lambda: results.append(once(found.api, folder)))
    asking.start()
    while asking.is_alive():
        found.step()
        asking.join(0.05)
    assert [result.code for result in results] == [0], results
    assert (folder / "plan").read_text() == "there are no jobs to decide on\n"


def once(api: FakeApi, folder: Path, *options: str) -> Result:
    """`diflow allocator once`, as the CronWorkflow runs it."""
    config = folder / "kubeconfig"
    config.write_text(kubeconfig(api.url))
    return run("allocator", "once", "--output", str(folder / "plan"), *options, "--kubeconfig", str(config))


def by_command(api: FakeApi) -> set[Use]:
    """The requests of the command alone, as the daemon uses no credentials."""
    return {needed(request) for request in api.requests if "Authorization" in request.headers}


# --- how it is judged ---------------------------------------------------------------------------------------------


def refused(used: Iterable[Use], rules: Iterable[Grant]) -> list[Use]:
    """The rights that are used and not granted."""
    rules = list(rules)
    return sorted((use for use in used if not any(rule.allows(use) for rule in rules)), key=str)


def idle(used: Iterable[Use], rules: Iterable[Grant]) -> list[Grant]:
    """The unused rules: no request needs one of them."""
    rules, used = list(rules), list(used)
    alone = {found[0] for use in used if len(found := [rule for rule in rules if rule.allows(use)]) == 1}
    return sorted((rule for rule in rules if rule not in alone), key=str)
