"""`diflow allocator once`, `pause` and `resume`: by a running daemon, or by this process under the same Lease."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from diflow.allocator.policies.base import load_policy
from diflow.allocator.run import control_channel
from diflow.allocator.run.daemon import Allocator, Cycle, lead
from diflow.allocator.settings import allocator_settings
from diflow.common import keys
from diflow.kube.kinds import CONFIG_MAP, LEASE, NAMESPACE, WORKFLOW
from diflow.kube.leader_election import Elector, Times
from tests.cli.placed import SYSTEM, dijob, lease, lease_annotations, node, put
from tests.cli.runner import Cli
from tests.cli.test_allocator_run import until
from tests.kube.fakeapi import Answer, Request, status

_LONG_AGO = "2020-01-01T00:00:00Z"


@contextmanager
def daemon(diflow: Cli, *, on_cycle: Callable[[Cycle], None] = lambda _: None, **given: float) -> Iterator[Allocator]:
    """The allocator in this process, as it leads."""
    settings = allocator_settings(debounce_seconds=0, **given)
    cluster = diflow.api.cluster()
    elector = Elector(
        cluster, name=keys.ALLOCATOR, namespace=SYSTEM, identity="the-daemon", times=Times(renew_seconds=0.2)
    )
    allocator = Allocator(cluster, settings, load_policy("fit"), elector, on_cycle=on_cycle)
    stop = threading.Event()
    thread = threading.Thread(target=lead, args=(allocator, stop), daemon=True)
    thread.start()
    try:
        until(elector.is_leader)
        yield allocator
    finally:
        stop.set()
        allocator.ask("end of the test")
        thread.join(20)
        assert not thread.is_alive()


def current(diflow: Cli, name: str) -> dict[str, str]:
    found: dict[str, str] = diflow.api.objects[WORKFLOW.path("default")][name]["metadata"]["annotations"]
    return found


def test_with_no_daemon_it_decides_itself_under_the_lease_and_gives_it_back(diflow: Cli) -> None:
    node(diflow, "a")
    lease(diflow, transitions=7)
    put(diflow, dijob("small", {"worker": 2}))
    put(diflow, dijob("large", {"worker": 20}))
    plan = diflow.folder / "plan.txt"
    result = diflow("allocator", "once", "--output", str(plan))
    assert result.code == 0, result.err
    lines = result.out.splitlines()
    assert lines[0] == "policy fit: 2 jobs on 1 node: 1 starts, 1 waits"
    assert lines[1].startswith("default/small: admit: starts: it gets 2 of the 2 replicas")
    assert lines[2].startswith("default/large: wait: ")
    assert plan.read_text() == result.out
    spec = diflow.api.objects[LEASE.path(SYSTEM)]["diflow-allocator"]["spec"]
    assert (spec["holderIdentity"], spec["leaseTransitions"]) == ("", 8)
    assert json.loads(current(diflow, "small")["diflow/allocation"])["nodes"] == {"worker": ["a", "a"]}
    assert current(diflow, "small")["diflow/epoch"] == "uid-diflow-allocator/8"


def test_a_daemon_that_runs_is_asked_and_answers_and_this_process_writes_no_job(diflow: Cli) -> None:
    node(diflow, "a")
    lease(diflow)
    with daemon(diflow):
        put(diflow, dijob("job", {"worker": 2}))
        result = diflow("allocator", "once", "--timeout", "60s")
        assert result.code == 0, result.err
        assert result.err == "asking the allocator the-daemon\n"
        assert "default/job: " in result.out
        first = lease_annotations(diflow)[keys.REPLAN]
        again = diflow("allocator", "once", "--timeout", "60s")
        assert again.out.splitlines()[0] == "policy fit: 1 job on 1 node: 1 stays as it is"
        assert lease_annotations(diflow)[keys.REPLAN] != first
    answer = diflow.api.objects[CONFIG_MAP.path(SYSTEM)][control_channel.ANSWER]["data"]
    assert answer["id"] == lease_annotations(diflow)[keys.REPLAN]
    epochs = {p.body["metadata"]["annotations"].get("diflow/epoch") for p in diflow.api.seen("PATCH", "/workflows/")}
    assert epochs == {"uid-diflow-allocator/4"}


@pytest.mark.slow
def test_one_that_has_died_is_not_waited_for_longer_than_its_lease(
    diflow: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Lease runs out on this process's own clock."""
    made = Elector

    def quick(*args: object, **given: object) -> Elector:
        return made(*args, **{**given, "lease_seconds": 1.5, "renew_seconds": 0.3})  # type: ignore[arg-type]

    monkeypatch.setattr("diflow.kube.leader_election.Elector", quick)
    node(diflow, "a")
    put(diflow, dijob("job", {"worker": 2}))
    lease(diflow, holder="the-dead", renewed=_LONG_AGO)
    found = diflow.api.objects[LEASE.path(SYSTEM)]["diflow-allocator"]
    found["spec"]["leaseDurationSeconds"] = 1
    result = diflow("allocator", "once", "--timeout", "60s")
    assert result.code == 0, result.err
    assert "default/job: admit" in result.out
    assert "asking the allocator the-dead" in result.err


def test_one_that_holds_the_lease_and_never_answers_is_given_up(diflow: Cli) -> None:
    node(diflow, "a")
    lease(diflow, holder="the-daemon")
    result = diflow("allocator", "once", "--timeout", "1s")
    assert result.code == 124
    assert "no plan within 1 s: the-daemon holds the Lease and does not answer" in result.err


def test_a_dry_run_takes_no_lease_and_writes_nothing(diflow: Cli, tmp_path: Path) -> None:
    node(diflow, "a")
    lease(diflow, holder="the-daemon")
    put(diflow, dijob("job", {"worker": 2}))
    result = diflow("allocator", "once", "--dry-run", "--policy", "fair", "--output", str(tmp_path / "plan"))
    assert result.code == 0, result.err
    assert result.out.splitlines()[0] == "policy fair: 1 job on 1 node: 1 starts"
    assert {r.method for r in diflow.api.requests} == {"GET"}


def test_a_policy_that_does_not_exist_is_named_with_those_that_do(diflow: Cli) -> None:
    lease(diflow)
    result = diflow("allocator", "once", "--policy", "best")
    assert result.code == 2
    assert "there is no policy 'best': take one of fair, " in result.err


def test_a_plan_that_cannot_be_written_is_an_error_that_names_the_file(diflow: Cli) -> None:
    node(diflow, "a")
    lease(diflow)
    result = diflow("allocator", "once", "--dry-run", "--output", str(diflow.folder / "no" / "plan"))
    assert result.code == 2
    assert "no/plan cannot be written: No such file or directory" in result.err


def test_pause_says_who_and_why_in_the_lease_and_resume_takes_it_away(
    diflow: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_channel, "RENEWAL_SECONDS", 0.0)
    lease(diflow, holder="the-daemon")

    def who(request: Request) -> Answer | None:
        mine = request.path.endswith("/selfsubjectreviews")
        return Answer(201, {"status": {"userInfo": {"username": "jane"}}}) if mine else None

    diflow.api.rule(who)
    result = diflow("pause", "--reason", "rack 3 is\nmoved")
    assert result.code == 0, result.err
    text = lease_annotations(diflow)[keys.PAUSED]
    assert text.startswith("jane at 20")
    assert text.endswith("Z: rack 3 is moved")
    not_read = "(it has not read that yet: it will when it next renews its Lease, or another takes over)"
    assert result.err.splitlines() == [f"the allocator is paused by {text}; diflow resume resumes it", not_read]
    again = diflow("pause", "--reason", "lunch").err.splitlines()
    assert again[0].endswith("Z: lunch; diflow resume resumes it")
    already = f"(it was paused already, by {text}: that is replaced, and one diflow resume ends both)"
    assert again[1:] == [already, not_read]
    text = lease_annotations(diflow)[keys.PAUSED]
    assert diflow("resume").err == f"the allocator is resumed (it was paused by {text})\n"
    assert keys.PAUSED not in lease_annotations(diflow)
    assert diflow("resume").err == "the allocator was not paused\n"


def test_pause_returns_when_the_leader_has_read_it(diflow: Cli) -> None:
    lease(diflow, holder="the-daemon")
    looks = 0

    def renews(request: Request) -> Answer | None:
        nonlocal looks
        found = diflow.api.objects[LEASE.path(SYSTEM)][keys.ALLOCATOR]
        if request.method == "GET" and request.path.endswith(f"/leases/{keys.ALLOCATOR}"):
            looks += keys.PAUSED in (found["metadata"].get("annotations") or {})
            if looks == 4:
                found["spec"]["renewTime"] = "2099-01-01T00:00:00.000000Z"
        return None

    diflow.api.rule(renews)
    result = diflow("pause")
    assert result.code == 0, result.err
    assert looks == 4
    assert "has not read" not in result.err


def test_a_lease_that_is_not_there_yet_is_made_so_that_who_comes_is_paused(diflow: Cli) -> None:
    result = diflow("pause")
    assert result.code == 0, result.err
    assert "none runs now: one that starts will be paused" in result.err
    assert lease_annotations(diflow)[keys.PAUSED]


def test_to_resume_in_a_namespace_that_does_not_exist_is_an_error(diflow: Cli) -> None:
    result = diflow("resume", "-n", "typo")
    assert result.code == 3
    assert result.err == "error: there is no namespace 'typo': the allocator is not installed in this cluster\n"
    diflow.api.add(NAMESPACE, {"metadata": {"name": "typo"}})
    assert diflow("resume", "-n", "typo").err == "the allocator was not paused\n"
    diflow.api.remove(NAMESPACE, "typo")
    text = 'namespaces "typo" is forbidden: User "jane" cannot get resource "namespaces" in API group ""'
    diflow.api.fail(status(403, text, reason="Forbidden"), path="/api/v1/namespaces/typo")
    assert diflow("resume", "-n", "typo").err == "the allocator was not paused\n"


def test_without_the_right_to_pause_it_names_the_right(diflow: Cli) -> None:
    text = (
        'leases.coordination.k8s.io "diflow-allocator" is forbidden: User "jane" cannot patch resource "leases" in API '
        'group "coordination.k8s.io" in the namespace "diflow-system"'
    )
    diflow.api.fail(status(403, text, reason="Forbidden"), method="PATCH")
    result = diflow("pause")
    assert result.code == 5
    assert (
        "the user 'jane' lacks the right to patch leases.coordination.k8s.io in the namespace 'diflow-system'"
        in result.err
    )


def test_resume_with_a_job_still_resumes_the_job(diflow: Cli) -> None:
    put(diflow, dijob("job", {"worker": 2}), suspend=True)
    lease(diflow, paused="jane")
    assert diflow("resume", "job").err == "job is resumed\n"
    assert diflow("resume", "job").err == "job was not suspended\n"
    workflow = diflow.api.objects[WORKFLOW.path("default")]["job"]
    assert keys.HELD not in workflow["metadata"]["annotations"]
    assert workflow["spec"]["suspend"] is True, "it waits for its admission, as it was never admitted"
    assert lease_annotations(diflow)[keys.PAUSED] == "jane"


def test_a_paused_daemon_decides_nothing_does_not_spin_and_plans_at_once_when_it_goes_on(diflow: Cli) -> None:
    node(diflow, "a")
    lease(diflow, paused="jane at noon")
    put(diflow, dijob("job", {"worker": 2}))
    cycles: list[Cycle] = []
    with daemon(diflow, on_cycle=cycles.append, period_seconds=0.2) as allocator:
        asked = diflow("allocator", "once", "--timeout", "60s")
        before = len(cycles)
        threading.Event().wait(1.0)
        assert len(cycles) - before < 30
        assert asked.out == "nothing is decided: the allocator is paused by jane at noon\n"
        assert "diflow/allocation" not in current(diflow, "job")
        assert allocator.last is None
        diflow("resume")
        until(lambda: "diflow/allocation" in current(diflow, "job"))


def test_an_answer_that_is_too_long_keeps_whole_lines(diflow: Cli) -> None:
    lines = "".join(f"line {i} of a plan that is far too long for a ConfigMap\n" for i in range(10_000))
    control_channel.answer(diflow.api.cluster(), namespace=SYSTEM, asked="1", text=lines)
    text = control_channel.answer_to(diflow.api.cluster(), "1", namespace=SYSTEM)
    assert text is not None
    assert len(text.encode()) <= control_channel.MOST_TEXT_BYTES
    *kept, last = text.splitlines()
    assert kept == lines.splitlines()[: len(kept)]
    assert last == f"... and {10_000 - len(kept)} lines more"
    assert control_channel.answer_to(diflow.api.cluster(), "2", namespace=SYSTEM) is None
