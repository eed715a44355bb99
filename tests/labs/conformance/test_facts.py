"""Argo does what diflow relies on, in every version that diflow supports."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from diflow.kube.api import Cluster
from diflow.kube.kinds import POD, SERVICE, WORKFLOW
from diflow.labs.conformance import TITLES, Finding
from tests.clusters import TestCluster, wait_until

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize("fact", TITLES, ids=[f"fact-{number}" for number in TITLES])
def test_the_fact_holds(findings: Mapping[int, Finding], fact: int) -> None:
    assert findings[fact].ok, findings[fact].detail


def test_a_reorder_of_a_group_restarts_members_so_diflow_only_appends(findings: Mapping[int, Finding]) -> None:
    assert findings[2].measured["new_after_reorder"] == "group(0:b), group(1:a)"


def test_a_member_that_is_dropped_while_it_runs_hangs_its_workflow_so_diflow_stops_it_first(
    findings: Mapping[int, Finding],
) -> None:
    assert findings[3].measured["dropped_too_early_hangs"] is True


def test_an_empty_group_stays_empty_so_diflow_never_grants_none(findings: Mapping[int, Finding]) -> None:
    assert findings[4].measured["starts_empty_phase"] == "Skipped"
    assert findings[4].measured["starts_empty_is_final"] is True


def test_a_group_that_falls_to_none_ends_its_workflow_in_an_error(findings: Mapping[int, Finding]) -> None:
    assert findings[4].measured["falls_to_zero"] == "Error: node <job>.shrinks already initialized"


def test_a_stopped_pod_says_why_in_the_words_that_diflow_looks_for(findings: Mapping[int, Finding]) -> None:
    assert findings[6].measured["message"] == "Pod was active on the node longer than the specified deadline"


def test_a_retry_expression_does_not_see_a_bare_workflow_parameter(findings: Mapping[int, Finding]) -> None:
    assert findings[7].measured["bare_parameter_attempts"] == 1
    assert "unknown name workflow" in str(findings[7].measured["bare_parameter_message"])


def test_many_texts_were_compared(findings: Mapping[int, Finding]) -> None:
    assert int(findings[9].measured["texts"]) > 300


def test_the_probe_leaves_nothing_behind(findings: Mapping[int, Finding], argo: TestCluster, namespace: str) -> None:
    assert findings
    cluster = Cluster.connect(kubeconfig=str(argo.kubeconfig), namespace=namespace)
    assert cluster.list_all(WORKFLOW) == []
    # The garbage collector follows a moment later.
    wait_until("no pods are left", lambda: not cluster.list_all(POD))
    assert [service["metadata"]["name"] for service in cluster.list_all(SERVICE)] == ["di"], "that of all jobs"
