"""Checks that jobs can run in a cluster, for `diflow doctor`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from diflow.common import keys
from diflow.common.errors import DiflowError, NotFoundError, UnauthorizedError
from diflow.common.words import named
from diflow.jobs import lookup
from diflow.jobs.checks import argo_settings, fence, installed, prerequisites, unproven
from diflow.kube.kinds import (
    CONFIG_MAP,
    CRD,
    DEPLOYMENT,
    EVENT,
    LEASE,
    NAMESPACE,
    POD,
    PRIORITY_CLASS,
    SERVICE_ACCOUNT,
    WORKFLOW,
    Kind,
)
from diflow.kube.leader_election import seconds_since_renewal
from diflow.record import untrusted

if TYPE_CHECKING:
    from diflow.kube.api import Cluster

_MOST_SKEW_SECONDS: Final = 5.0
_ALLOCATOR: Final = "the allocator"
_SERVER: Final = "the server"
_FENCE: Final = "the fence of the allocator"
_DIJOBS: Final = "the kind DIJob"
_STEPS: Final = "DIJobs as steps of other Workflows"

# The rights that a user's commands need: verb, kind, subresource, and what does not work without it.
RIGHTS: Final[tuple[tuple[str, Kind, str, str], ...]] = (
    ("create", WORKFLOW, "", "submit"),
    ("get", WORKFLOW, "", "get, describe, wait"),
    ("list", WORKFLOW, "", "list, watch, wait"),
    ("watch", WORKFLOW, "", "watch, wait"),
    ("patch", WORKFLOW, "", "suspend, resume, stop"),
    ("update", WORKFLOW, "", "retry"),
    ("delete", WORKFLOW, "", "delete"),
    ("list", POD, "", "ready counts, logs"),
    ("watch", POD, "", "watch, logs -f"),
    ("get", POD, "log", "logs"),
    ("delete", POD, "", "retry"),
    ("list", EVENT, "", "describe"),
)


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. `remedy` says what to do if it failed.

    `is_known` False: it could not be checked, which counts as passed. `advice`: it passed, but could be better.
    """

    what: str
    ok: bool
    detail: str = ""
    remedy: str = ""
    is_known: bool = True
    advice: str = ""


def examine(cluster: Cluster) -> Iterator[Finding]:
    """Check everything that diflow needs. Ends early if the cluster does not respond."""
    version = cluster.version()
    yield Finding("Kubernetes answers", ok=True, detail=version)
    skew = cluster.clock_skew_seconds() or 0.0
    yield Finding(
        "clocks agree",
        ok=abs(skew) <= _MOST_SKEW_SECONDS,
        detail=f"the cluster's is {abs(skew):.0f} s {'ahead' if skew > 0 else 'behind'}" if abs(skew) >= 1 else "",
        remedy="ages and --since will be off by as much: set both machines' clocks (NTP)",
    )
    namespace = f"namespace {cluster.namespace}"
    remedy = f"check -n, or create it: kubectl create namespace {cluster.namespace}"
    found = _exists(cluster, NAMESPACE, cluster.namespace, what=namespace, remedy=remedy)
    yield found
    if found.ok:
        yield from _rights(cluster)
    yield _looked(lambda: _crds(cluster), "Argo's CRDs")
    yield _looked(lambda: _argo(cluster), "Argo's workflow controller")
    yield from _argo_settings(cluster)
    for account in (keys.WORKER_ACCOUNT, keys.STEPS_ACCOUNT) if found.ok else ():
        what = f"service account {account} in {cluster.namespace}"
        remedy = f"kubectl apply -n {cluster.namespace} -k manifests/jobs"
        yield _exists(cluster, SERVICE_ACCOUNT, account, what=what, remedy=remedy)
    if found.ok:
        yield _looked(lambda: _service(cluster), f"Service {keys.SERVICE} in {cluster.namespace}")
        yield _looked(lambda: _record(cluster), f"record of ended jobs in {cluster.namespace}")
        yield _looked(lambda: _memory(cluster), f"memory of applications in {cluster.namespace}")
    for name in keys.PRIORITY_CLASSES.values():
        remedy = "kubectl apply -k manifests/cluster"
        yield _exists(cluster, PRIORITY_CLASS, name, what=f"PriorityClass {name}", remedy=remedy)
    yield from _dijobs(cluster)
    if found.ok:
        yield _looked(lambda: _steps(cluster), _STEPS)
        yield _looked(lambda: _allocator(cluster, now=time.time()), _ALLOCATOR)
        yield _looked(lambda: _fence(cluster), _FENCE)
        yield _looked(lambda: _server_pods(cluster), _SERVER)
        yield from _server(cluster)


def _service(cluster: Cluster) -> Finding:
    problem = prerequisites.service_problem(cluster, cluster.namespace)
    return Finding(
        f"Service {keys.SERVICE} in {cluster.namespace}",
        ok=not problem,
        detail=problem,
        remedy=prerequisites.SERVICE_REMEDY.format(cluster.namespace),
    )


def _record(cluster: Cluster) -> Finding:
    """Whether the allocator can record how jobs end, for when their Workflows are deleted."""
    return _optional(
        cluster,
        keys.ENDED_JOBS,
        what=f"record of ended jobs in {cluster.namespace}",
        without="diflow list --ended shows no job whose Workflow was deleted",
    )


def _memory(cluster: Cluster) -> Finding:
    """Whether the allocator can keep what applications have shown."""
    return _optional(
        cluster,
        keys.APPLICATIONS,
        what=f"memory of applications in {cluster.namespace}",
        without="under goodput each job starts as if it were the first of its application",
    )


def _optional(cluster: Cluster, name: str, *, what: str, without: str) -> Finding:
    """A ConfigMap of the namespace that jobs can do without, and what is missing then."""
    found = cluster.find(CONFIG_MAP, name)
    if found is not None and found.get("immutable") is True:
        remedy = f"kubectl delete -n {cluster.namespace} configmap {name}, and apply manifests/jobs again"
        return Finding(what, ok=False, detail=f"immutable, so {without}", remedy=remedy)
    if found is not None:
        return Finding(what, ok=True)
    advice = f"kubectl apply -n {cluster.namespace} -k manifests/jobs"
    return Finding(what, ok=True, detail=f"missing, so {without}", advice=advice)


def _exists(cluster: Cluster, kind: Kind, name: str, *, what: str, remedy: str) -> Finding:
    return _looked(lambda: Finding(what, ok=bool(cluster.get(kind, name))), what, remedy=remedy)


def _looked(look: Callable[[], Finding], what: str, *, remedy: str = "") -> Finding:
    """A finding, or the error of its check. A check without access counts as passed."""
    try:
        return look()
    except NotFoundError:
        return Finding(what, ok=False, detail="missing", remedy=remedy)
    except UnauthorizedError:
        return Finding(what, ok=True, detail="not checked, as you may not read it", is_known=False)
    except DiflowError as error:
        return Finding(what, ok=False, detail=str(error), remedy=remedy)


def _rights(cluster: Cluster) -> Iterator[Finding]:
    missing = [
        (verb, kind, sub, use) for verb, kind, sub, use in RIGHTS if not cluster.can_i(verb, kind, subresource=sub)
    ]
    if not missing:
        yield Finding(f"your rights in {cluster.namespace}", ok=True, detail=f"all {len(RIGHTS)}")
    for verb, kind, sub, use in missing:
        resource = f"{kind.resource}/{sub}" if sub else kind.resource
        yield Finding(
            f"your right to {verb} {resource} in {cluster.namespace}",
            ok=False,
            detail=f"missing, so no {use}",
            remedy="ask the cluster's administrator for a Role with it",
        )


def _crds(cluster: Cluster) -> Finding:
    """Argo's CRDs are installed and full: with the minimal ones, a malformed Workflow stops the controller for all."""
    missing = []
    minimal = []
    for name in ("workflows", "workflowtemplates", "cronworkflows", "workflowtaskresults"):
        crd = cluster.find(CRD, f"{name}.{WORKFLOW.group}")
        if crd is None:
            missing.append(name)
        elif not _is_full(crd):
            minimal.append(name)
    if missing:
        return Finding(
            "Argo's CRDs",
            ok=False,
            detail=f"missing: {', '.join(missing)}",
            remedy="install Argo Workflows with its full CRDs",
        )
    if minimal:
        return Finding(
            "Argo's CRDs",
            ok=False,
            detail=f"only the minimal ones of {', '.join(minimal)}, which check nothing",
            remedy="apply Argo's manifests/base/crds/full, or one malformed Workflow can stop Argo for everybody",
        )
    return Finding("Argo's CRDs", ok=True, detail="the full ones")


def _is_full(crd: dict[str, Any]) -> bool:
    """Whether the schema defines the spec's fields. (Even full CRDs omit those of task results below the top level.)"""
    for version in crd["spec"]["versions"]:
        properties = (version.get("schema") or {}).get("openAPIV3Schema", {}).get("properties") or {}
        spec = properties.get("spec")
        if spec is not None and not spec.get("properties"):
            return False
        if spec is None and "outputs" not in properties and "phase" not in properties:
            return False
    return True


def _argo(cluster: Cluster) -> Finding:
    found = prerequisites.controller_version(cluster)
    what = "Argo's workflow controller"
    if found is None:
        return Finding(
            what, ok=False, detail="not found in any namespace", remedy="install Argo Workflows 3.7 or newer"
        )
    problem = prerequisites.is_too_old(found)
    return Finding(
        what, ok=not problem, detail=problem or prerequisites.version_text(found), remedy="upgrade Argo Workflows"
    )


def _argo_settings(cluster: Cluster) -> Iterator[Finding]:
    """What keeps Argo from running the jobs of the namespace, and what makes it slow."""
    what = "Argo's settings"
    try:
        settings = argo_settings.read(cluster)
    except UnauthorizedError:
        yield Finding(what, ok=True, detail="not checked, as you may not read them", is_known=False)
        return
    if settings is None:
        return
    found = argo_settings.remarks(settings, namespace=cluster.namespace)
    if not found:
        yield Finding(what, ok=True, detail=f"a changed job is looked at after {settings.requeue_seconds:g} s")
    for remark in found:
        if remark.is_fatal:
            yield Finding(what, ok=False, detail=remark.what, remedy=remark.remedy)
        else:
            yield Finding(what, ok=True, detail=remark.what, advice=remark.remedy)


def _dijobs(cluster: Cluster) -> Iterator[Finding]:
    """Whether DIJob objects are run, and by whom."""
    try:
        has = installed.look(cluster)
    except UnauthorizedError:
        yield Finding(_DIJOBS, ok=True, detail="not checked, as you may not read it", is_known=False)
        return
    except DiflowError as error:
        yield Finding(_DIJOBS, ok=False, detail=str(error))
        return
    apply = "kubectl apply --server-side --force-conflicts -k manifests/crds"
    if not has.kind:
        yield Finding(_DIJOBS, ok=True, detail="not installed: jobs are submitted as Workflows", is_known=False)
    else:
        yield Finding(
            _DIJOBS,
            ok=has.is_ours,
            detail="installed" if has.is_ours else "installed by another program, not by diflow's manifests",
            remedy=f"{apply} (docs/controller.md)",
        )
        ready, pods = has.controller or (0, 0)
        yield Finding(
            "the controller of DIJob objects",
            ok=ready > 0,
            detail=f"{ready} of {pods} pods are ready"
            if has.controller
            else "not installed, so DIJobs stay as they are",
            remedy=f"kubectl logs -n diflow-system deployment/{keys.CONTROLLER}"
            if has.controller
            else "kubectl apply -k manifests/controller",
        )
    if has.operators:
        yield Finding(
            "no other operator acts on DIJobs",
            ok=False,
            detail=f"{named(has.operators, 3)} is an operator of DI-orchestrator, which would run the same objects",
            remedy="delete it: diflow's controller and it would both make pods and write the status of each job",
        )


def _steps(cluster: Cluster) -> Finding:
    """Whether DIJobs can be steps of other Workflows in this namespace (manifests/pipelines)."""
    if cluster.find(SERVICE_ACCOUNT, keys.SUBMIT_ACCOUNT) is None:
        remedy = f"kubectl apply -n {cluster.namespace} -k manifests/pipelines"
        return Finding(_STEPS, ok=True, detail=f"not prepared: {remedy}", is_known=False)
    has = installed.look(cluster)
    missing = "the controller" if has.kind else "the kind DIJob"
    return Finding(
        _STEPS,
        ok=bool(has.kind and has.controller),
        detail="prepared" if has.kind and has.controller else f"prepared, but {missing} is not installed",
        remedy="kubectl apply -k manifests/crds, and kubectl apply -k manifests/controller",
    )


def _installed_allocator(cluster: Cluster) -> tuple[str, Mapping[str, Any] | None] | None:
    """The namespace of the allocator and its Lease, if it has one; None if none was installed."""
    public = cluster.find(CONFIG_MAP, keys.ALLOCATOR, namespace=keys.PUBLIC_NAMESPACE)
    if public is None:
        return None
    home = str((public.get("data") or {}).get("namespace") or "")
    return home, cluster.find(LEASE, keys.ALLOCATOR, namespace=home)


def _allocator(cluster: Cluster, *, now: float) -> Finding:
    """Whether a process leads: without one, gangs wait and nothing is resized."""
    found = _installed_allocator(cluster)
    if found is None:
        return Finding(_ALLOCATOR, ok=True, detail="not installed: Argo alone runs the jobs", is_known=False)
    home, lease = found
    spec = untrusted.sub(lease or {}, "spec")
    holder, seconds = spec.get("holderIdentity"), spec.get("leaseDurationSeconds")
    is_running = (
        bool(holder) and isinstance(seconds, int) and seconds_since_renewal(cluster, lease or {}, now=now) <= seconds
    )
    return Finding(
        _ALLOCATOR,
        ok=is_running,
        detail="runs" if is_running else "installed, and no process leads: gangs wait, and nothing is resized",
        remedy=f"kubectl get pods -n {home}; kubectl logs -n {home} deployment/{keys.ALLOCATOR}",
    )


def _server_pods(cluster: Cluster) -> Finding:
    """Whether the server serves: without it there are no reports, node checks and data shards."""
    from diflow.dijob.settings import render_settings  # noqa: PLC0415 (pydantic takes a while to import)

    name, _, rest = (urlsplit(render_settings().server_url).hostname or "").partition(".")
    namespace = rest.partition(".")[0]
    found = cluster.find(DEPLOYMENT, name, namespace=namespace) if namespace else None
    if found is None:
        return Finding(_SERVER, ok=True, detail="not found: without it, no REST API and no reports", is_known=False)
    status = untrusted.sub(found, "status")
    ready, pods = int(status.get("readyReplicas") or 0), int(status.get("replicas") or 0)
    return Finding(
        _SERVER,
        ok=ready > 0,
        detail=f"{ready} of {pods} pods are ready",
        remedy=f"kubectl get pods -n {namespace}; kubectl logs -n {namespace} deployment/{name}",
    )


def _fence(cluster: Cluster) -> Finding:
    """Whether the API server refuses the writes of an allocator that does not lead any more, by a dry run."""
    found = _installed_allocator(cluster)
    if found is None:
        return Finding(_FENCE, ok=True, detail="not needed: there is no allocator")
    home, lease = found
    if lease is None or not (lease.get("spec") or {}).get("leaseTransitions"):
        return Finding(_FENCE, ok=True, detail="not checked: the allocator has never led", is_known=False)
    nobody = f"{keys.ALLOCATOR}/{home}/{lease['metadata']['uid']}/0"
    if fence.is_refused(cluster, nobody, namespace=cluster.namespace):
        return Finding(_FENCE, ok=True, detail="in force")
    return Finding(
        _FENCE,
        ok=False,
        detail="not in force, so a new leader changes each job once",
        remedy="kubectl apply -f manifests/allocator/fence.yaml (Kubernetes 1.30 or newer; see docs/allocator.md)",
    )


def _server(cluster: Cluster) -> Iterator[Finding]:
    """Whether the server serves pods without a token, and whether a job here needs that."""
    from diflow.dijob.settings import render_settings  # noqa: PLC0415 (pydantic takes a while to import)

    served = unproven.is_served(cluster, render_settings().server_url)
    what = "the server and pods without a token"
    if served is None:
        yield Finding(what, ok=True, detail="not checked: there is no server, or you may not read its settings",
                      is_known=False)  # fmt: skip
        return
    if served:
        yield Finding(what, ok=True, detail=f"served ({unproven.SETTING} is on)")
        return
    try:
        live = [job for job in lookup.list_jobs(cluster=cluster) if not job.status.ended]
    except DiflowError:
        live = []
    needs = [job.name for job in live if unproven.why_needed(job.dijob)]
    yield Finding(
        what,
        ok=not needs,
        detail=f"refused, and {named(needs, 3)} send none" if needs else f"refused ({unproven.SETTING} is off)",
        remedy=f"their requests and reports get 401: set {unproven.SETTING}=true on the server (docs/security.md)",
    )
