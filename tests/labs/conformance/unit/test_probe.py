"""The probe itself: its errors when it cannot measure, and that it leaves nothing behind."""

# ruff: noqa: ARG002 (the fake has the arguments of the real cluster)

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from diflow.common.errors import ConflictError, InvalidError, NotFoundError, UnauthorizedError, UnavailableError
from diflow.kube.kinds import POD, PRIORITY_CLASS, SERVICE, SERVICE_ACCOUNT, WORKFLOW, Kind
from diflow.labs.conformance import TITLES, Finding, ProbeSettings, probe
from diflow.labs.conformance.lab import LABEL, Lab
from diflow.labs.conformance.shapes import named_group

Json = dict[str, Any]
SETTINGS = ProbeSettings(limit_seconds=0.0)


@dataclass
class Fake:
    """A cluster on which nothing ever happens to a Workflow, or where creating one raises `refusal`."""

    refusal: Exception | None = None
    missing: frozenset[str] = frozenset()
    forbidden: bool = False
    image_trouble: str = ""
    workflows: dict[str, Json] = field(default_factory=dict)
    created: list[str] = field(default_factory=list)

    def get(self, kind: Kind, name: str, *, namespace: str | None = None) -> Json:
        assert kind is WORKFLOW
        return self.workflows[name]

    def find(self, kind: Kind, name: str, *, namespace: str | None = None) -> Json | None:
        assert kind in (SERVICE, SERVICE_ACCOUNT, PRIORITY_CLASS)
        if self.forbidden:
            raise UnauthorizedError("no right to look")
        return None if name in self.missing else {"metadata": {"name": name}}

    def list_all(self, kind: Kind, *, namespace: str | None = None, labels: str = "", fields: str = "") -> list[Json]:
        assert kind is POD
        name = labels.partition("=")[2]
        if not self.image_trouble or name not in self.workflows:
            return []
        waiting = {"name": "main", "state": {"waiting": {"reason": self.image_trouble, "message": "no such image"}}}
        return [{"metadata": {"name": "pod-1"}, "spec": {}, "status": {"containerStatuses": [waiting]}}]

    def create(self, kind: Kind, body: Mapping[str, Any], *, namespace: str | None = None) -> Json:
        assert namespace == "ns"
        if self.refusal is not None:
            raise self.refusal
        name = body["metadata"]["name"]
        self.created.append(name)
        self.workflows[name] = dict(body)
        return dict(body)

    def patch(self, kind: Kind, name: str, body: Any, *, namespace: str | None = None) -> Json:
        return {}

    def delete(self, kind: Kind, name: str, *, namespace: str | None = None, grace_seconds: int | None = None) -> bool:
        return self.workflows.pop(name, None) is not None

    def logs(self, pod: str, *, namespace: str | None = None, container: str = "main") -> Iterator[str]:
        return iter(())


def test_nothing_is_left_when_no_fact_could_be_measured() -> None:
    cluster = Fake()
    findings = probe(cluster, "ns", settings=SETTINGS)
    assert [finding.fact for finding in findings] == sorted(TITLES)
    assert not any(finding.ok for finding in findings)
    assert len(cluster.created) == 10
    assert cluster.workflows == {}


def test_a_fact_that_was_not_seen_in_time_says_what_was_waited_for() -> None:
    (finding,) = probe(Fake(), "ns", facts=[2], settings=SETTINGS)
    assert "0 s were not enough to see the group's first three members" in finding.detail
    assert "is its controller up, and does it watch this namespace?" in finding.detail


def test_an_image_that_cannot_be_pulled_ends_the_wait_at_once() -> None:
    cluster = Fake(image_trouble="ImagePullBackOff")
    (finding,) = probe(cluster, "ns", facts=[9], settings=ProbeSettings(limit_seconds=600))
    assert finding.detail == "pod pod-1 cannot start: ImagePullBackOff: no such image"


def test_only_the_wanted_facts_run_and_each_is_told_as_it_comes() -> None:
    cluster = Fake()
    told: list[Finding] = []
    findings = probe(cluster, "ns", facts=[2, 4], settings=SETTINGS, on_finding=told.append)
    assert len(cluster.created) == 2
    assert sorted(told, key=lambda finding: finding.fact) == findings


def test_an_unknown_fact_is_refused() -> None:
    with pytest.raises(InvalidError, match="there is no fact 99 to measure"):
        probe(Fake(), "ns", facts=[99])


@pytest.mark.parametrize(
    ("name", "remedy"),
    [("diflow-worker", "-k manifests/jobs"), ("di", "-k manifests/jobs"), ("diflow-normal", "-k manifests/cluster")],
)
def test_a_namespace_that_cannot_run_jobs_is_told_before_anything_is_made(name: str, remedy: str) -> None:
    cluster = Fake(missing=frozenset([name]))
    with pytest.raises(NotFoundError, match=remedy):
        probe(cluster, "ns", settings=SETTINGS)
    assert cluster.created == []


def test_who_may_not_look_at_accounts_may_still_probe() -> None:
    assert probe(Fake(forbidden=True), "ns", facts=[2], settings=SETTINGS)


def test_a_missing_right_ends_the_probe() -> None:
    with pytest.raises(UnauthorizedError, match="may not create"):
        probe(Fake(refusal=UnauthorizedError("may not create workflows")), "ns", settings=SETTINGS)


def test_a_lost_cluster_is_a_finding_and_no_crash() -> None:
    (finding,) = probe(Fake(refusal=UnavailableError("gone")), "ns", facts=[4], settings=SETTINGS)
    assert finding.detail == "it could not be measured: gone"


def _lab(cluster: Fake) -> Lab:
    return Lab(cluster=cluster, namespace="ns", image="busybox", id="x", limit_seconds=0)


def test_a_workflow_that_is_somebody_elses_is_not_cleared_up() -> None:
    cluster = Fake(refusal=ConflictError("taken"), workflows={"w": {"metadata": {"name": "w"}}})
    with pytest.raises(ConflictError), _lab(cluster).run(named_group("w")):
        pass
    assert "w" in cluster.workflows


def test_a_workflow_whose_probe_is_killed_ends_and_goes_by_itself() -> None:
    cluster = Fake()
    with _lab(cluster).run(named_group("w")):
        made = cluster.workflows["w"]
    assert made["metadata"]["labels"][LABEL] == "x"
    assert made["spec"]["ttlStrategy"]["secondsAfterCompletion"] > 0
    assert made["spec"]["activeDeadlineSeconds"] > 0
