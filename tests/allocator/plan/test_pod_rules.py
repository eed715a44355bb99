"""The rules of jobs about other pods, as a picture has them: whom they concern, and what they may cost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from diflow.allocator.plan import pod_rules
from diflow.allocator.plan.holding import Standing
from diflow.allocator.watch.cluster_state import assemble
from diflow.allocator.watch.volumes import UNKNOWN
from diflow.common.predicates import PodRules, PodSelector, PodTerm, Requirement
from diflow.record.identity import Identity
from diflow.record.pod import PodRecord
from tests.allocator.values import node, pod, read, role

HOST = "kubernetes.io/hostname"


def avoiding(value: str, namespace: str = "ns", key: str = "app") -> PodRules:
    lines = (Requirement(key, "In", (value,)),)
    return PodRules(((key, value),), apart=(PodTerm(HOST, PodSelector(lines, (namespace,))),))


def standing(name: str, rules: PodRules, namespace: str = "ns") -> Standing:
    found = read(replace(role(replicas=1), rules=rules))
    found = replace(found, identity=Identity(namespace, name, f"uid-{name}", "7"))
    return Standing(assemble([found], [node("a")], []).jobs[f"{namespace}/{name}"])


def foreign(name: str, namespace: str, rules: PodRules) -> PodRecord:
    made = replace(pod("w-0", on="a"), rules=rules, job="", place=None)
    return replace(made, identity=Identity(namespace, name, f"uid-{name}", "7"))


def test_pods_of_other_namespaces_do_not_count() -> None:
    pods = [foreign("x", "ns", PodRules((("app", "db"),))), foreign("y", "other", PodRules((("app", "db"),)))]
    (found,) = pod_rules.rules_of([standing("j", avoiding("db"))], pods, UNKNOWN)
    assert dict(found.base) == {"a": 1}


def test_a_job_is_selected_by_the_labels_that_diflow_gives_it() -> None:
    lines = (Requirement("diengine/task-name", "In", ("w",)),)
    rules = PodRules(apart=(PodTerm(HOST, PodSelector(lines, ("ns",))),))
    (found,) = pod_rules.rules_of([standing("j", rules), standing("k", PodRules((("a", "b"),)))], [], UNKNOWN)
    assert {job for job, _ in found.counted} == {"ns/j", "ns/k"}


def test_the_comparisons_of_a_namespace_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_rules, "MOST_COMPARED", 1000)
    hostile = [standing(f"j{n}", avoiding("x", "hostile", key=f"k{n}"), "hostile") for n in range(100)]
    found = pod_rules.rules_of([*hostile, standing("honest", avoiding("x"))], [], UNKNOWN)
    theirs = [one for one in found if any(job.startswith("hostile/") for job, _ in one.owners)]
    assert 5 <= len(theirs) <= 15
    assert any(("ns/honest", "w") in one.owners for one in found)


def test_many_jobs_with_a_label_each_are_all_known() -> None:
    """As many as there are, each of which keeps its own pods apart."""
    jobs = [standing(f"j{n}", avoiding(f"a{n}")) for n in range(1000)]
    assert len(pod_rules.rules_of(jobs, [], UNKNOWN)) == 1000


def test_without_rules_nothing_is_made() -> None:
    assert pod_rules.rules_of([standing("j", PodRules((("app", "x"),)))], [], UNKNOWN) == []
