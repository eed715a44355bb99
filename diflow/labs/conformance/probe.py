"""Runs the scenarios in parallel and makes a finding for each fact."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from typing import Final

from diflow.common import keys
from diflow.common.errors import DiflowError, InvalidError, NotFoundError, UnauthorizedError
from diflow.kube.kinds import PRIORITY_CLASS, SERVICE, SERVICE_ACCOUNT, Kind
from diflow.labs.conformance import admission, groups, growth, pods, retries, rounds, texts
from diflow.labs.conformance.finding import TITLES, FactFailedError, Finding, HopelessError, Measured
from diflow.labs.conformance.lab import Lab, StoppedError, Verbs
from diflow.labs.conformance.outcome import Outcome

DEFAULT_IMAGE: Final = "docker.io/library/busybox:1.37"


@dataclass(frozen=True, slots=True)
class ProbeSettings:
    """The settings of a probe."""

    image: str = DEFAULT_IMAGE
    """The image of the probe's pods. It needs `sh`, `sleep`, `hostname` and `base64`; busybox is the smallest such
    image. It is pulled only if it is not present."""

    limit_seconds: float = 180.0
    """The timeout of a single step, such as a pod's start. Pulling images takes the longest."""

    texts: tuple[str, ...] = ()
    """More texts for fact 9, in addition to the probe's own."""


@dataclass(frozen=True, slots=True)
class _Scenario:
    facts: tuple[int, ...]
    run: Callable[[Lab], Iterable[Outcome]]


# The longest first.
_SCENARIOS: Final = (
    _Scenario((1, 3, 6), growth.resize),
    _Scenario((3,), growth.drop_too_early),
    _Scenario((8, 10), rounds.new_round),
    _Scenario((7,), retries.expressions),
    _Scenario((2,), groups.names),
    _Scenario((4,), groups.empty),
    _Scenario((5, 13), pods.gated),
    _Scenario((17, 20), admission.admitted),
    _Scenario((9,), texts.byte_for_byte),
)


@dataclass(frozen=True, slots=True)
class _Report:
    """The result of one scenario: an outcome for each fact, or the reason why the others have none.

    `retry`: another attempt may succeed.
    """

    scenario: _Scenario
    outcomes: Mapping[int, Outcome]
    failure: str
    seconds: float
    retry: bool = False


def probe(
    cluster: Verbs,
    namespace: str,
    *,
    facts: Collection[int] | None = None,
    settings: ProbeSettings | None = None,
    on_finding: Callable[[Finding], None] | None = None,
) -> list[Finding]:
    """Measure `facts` (all by default) in a namespace of a real cluster, and delete everything afterwards.

    It takes one to two minutes and at most a dozen small pods at a time. A failed scenario is repeated once, as the
    cluster may be busy; the finding says so. `on_finding` is called with each finding as soon as it is known. Raises
    NotFoundError if the namespace cannot run DIJobs, InvalidError for an unknown fact, and UnauthorizedError if the
    user may not create Workflows; a fact that does not hold is a finding with `ok` False.
    """
    settings = settings or ProbeSettings()
    wanted = _wanted(facts)
    _check_ready(cluster, namespace)
    lab = Lab(
        cluster=cluster,
        namespace=namespace,
        image=settings.image,
        id=secrets.token_hex(3),
        limit_seconds=settings.limit_seconds,
        texts=settings.texts,
    )
    scenarios = [scenario for scenario in _SCENARIOS if wanted & set(scenario.facts)]
    reports: list[_Report] = []
    findings: dict[int, Finding] = {}
    with ThreadPoolExecutor(max_workers=len(scenarios), thread_name_prefix="diflow-probe") as pool:
        futures = [pool.submit(_run_twice_at_most, scenario, lab) for scenario in scenarios]
        try:
            for future in as_completed(futures):
                reports.append(future.result())
                for fact in sorted(wanted - set(findings)):
                    if _is_complete(fact, reports, scenarios):
                        findings[fact] = _finding(fact, reports)
                        if on_finding is not None:
                            on_finding(findings[fact])
        except BaseException:
            # Ctrl-C, or a missing right: wait until every scenario has cleaned up.
            lab.stop.set()
            raise
    return [findings[fact] for fact in sorted(findings)]


def _wanted(facts: Collection[int] | None) -> frozenset[int]:
    wanted = frozenset(TITLES if facts is None else facts)
    unknown = sorted(wanted - set(TITLES))
    if unknown:
        known = ", ".join(map(str, TITLES))
        raise InvalidError(f"there is no fact {unknown[0]} to measure: choose among {known}")
    return wanted


def _check_ready(cluster: Verbs, namespace: str) -> None:
    """Check first whether DIJobs can run: otherwise the pods would never appear."""
    for account in (keys.WORKER_ACCOUNT, keys.STEPS_ACCOUNT):
        if _may_be_missing(cluster, SERVICE_ACCOUNT, account, namespace):
            raise NotFoundError(
                f"namespace {namespace} has no service account {account}: run `kubectl apply -n {namespace} -k "
                "manifests/jobs` first"
            )
    if _may_be_missing(cluster, SERVICE, keys.SERVICE, namespace):
        raise NotFoundError(
            f"namespace {namespace} has no Service {keys.SERVICE}: run `kubectl apply -n {namespace} -k "
            "manifests/jobs` first"
        )
    if _may_be_missing(cluster, PRIORITY_CLASS, keys.PRIORITY_CLASSES["normal"], namespace):
        raise NotFoundError(
            f"the cluster has no PriorityClass {keys.PRIORITY_CLASSES['normal']}: run `kubectl apply -k "
            "manifests/cluster` first"
        )


def _may_be_missing(cluster: Verbs, kind: Kind, name: str, namespace: str) -> bool:
    try:
        return cluster.find(kind, name, namespace=namespace) is None
    except UnauthorizedError:
        return False  # a user who may not read these may still run jobs


def _run_twice_at_most(scenario: _Scenario, lab: Lab) -> _Report:
    first = _run(scenario, lab)
    if not first.retry:
        return first
    second = _run(scenario, replace(lab, id=f"{lab.id}-again"))
    only_now = {
        fact: replace(outcome, detail=f"{outcome.detail} (at the second attempt; at the first: {first.failure})")
        for fact, outcome in second.outcomes.items()
        if fact not in first.outcomes
    }
    failure = second.failure
    if failure and failure != first.failure:
        failure += f" (at the first attempt: {first.failure})"
    return _Report(
        scenario,
        {**first.outcomes, **second.outcomes, **only_now},
        failure,
        first.seconds + second.seconds,
    )


def _run(scenario: _Scenario, lab: Lab) -> _Report:
    began = time.monotonic()
    outcomes: dict[int, Outcome] = {}
    failure = ""
    retry = False
    try:
        for outcome in scenario.run(lab):
            outcomes[outcome.fact] = outcome
    except FactFailedError as error:
        failure, retry = str(error), not isinstance(error, HopelessError)
    except StoppedError:
        failure = "the probe was stopped"
    except UnauthorizedError:
        raise
    except DiflowError as error:
        failure, retry = f"it could not be measured: {error}", True
    return _Report(scenario, outcomes, failure, time.monotonic() - began, retry)


def _is_complete(fact: int, reports: list[_Report], scenarios: list[_Scenario]) -> bool:
    done = [report.scenario for report in reports]
    return all(scenario in done for scenario in scenarios if fact in scenario.facts)


def _finding(fact: int, reports: list[_Report]) -> Finding:
    """Combine the scenarios of a fact: it holds if it holds in all of them."""
    mine = [report for report in reports if fact in report.scenario.facts]
    mine.sort(key=lambda report: _SCENARIOS.index(report.scenario))
    outcomes = [report.outcomes[fact] for report in mine if fact in report.outcomes]
    failures = [report.failure for report in mine if fact not in report.outcomes]
    measured: dict[str, Measured] = {}
    for outcome in outcomes:
        measured.update(outcome.measured)
    return Finding(
        fact=fact,
        title=TITLES[fact],
        ok=not failures,
        detail="; ".join([*failures, *(outcome.detail for outcome in outcomes)]),
        seconds=round(max(report.seconds for report in mine), 1),
        measured=measured,
    )
