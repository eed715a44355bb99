"""Checks that jobs can run in a cluster, for `diflow doctor`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from diflow.common import keys, queue_access
from diflow.common.errors import DiflowError, InvalidError, NotFoundError, UnauthorizedError
from diflow.common.words import DEFAULT_QUEUE, counted, named
from diflow.jobs import lookup
from diflow.jobs.checks import (
    argo_defaults,
    argo_settings,
    fence,
    installed,
    podgroups,
    prerequisites,
    queues,
    rules,
    templates,
    unproven,
)
from diflow.jobs.checks.deployments import Deployed
from diflow.kube.kinds import (
    CONFIG_MAP,
    CRD,
    CSI_NODE,
    DEPLOYMENT,
    EVENT,
    LEASE,
    LIMIT_RANGE,
    NAMESPACE,
    PERSISTENT_VOLUME,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    POD_TEMPLATE,
    PRIORITY_CLASS,
    RESOURCE_QUOTA,
    SERVICE_ACCOUNT,
    STORAGE_CLASS,
    WORKFLOW,
    Kind,
)
from diflow.kube.leader_election import seconds_since_renewal
from diflow.record import untrusted

if TYPE_CHECKING:
    from diflow.kube.api import Cluster

_MOST_SKEW_SECONDS: Final = 5.0
_GIVES_RIGHTS: Final = "kubectl apply -f manifests/crds/roles.yaml gives that right to editors"

# The rights that a user's commands need: verb, kind, subresource, and what does not work without it.
RIGHTS: Final[tuple[tuple[str, Kind, str, str], ...]] = (
    ("create", WORKFLOW, "", "submit"),
    ("get", WORKFLOW, "", "get, describe, wait"),
    ("list", WORKFLOW, "", "list, watch, wait"),
    ("watch", WORKFLOW, "", "watch, wait"),
    ("patch", WORKFLOW, "", "suspend, resume, stop, retry"),
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


Check = Callable[["Cluster", str], Iterator[Finding]]
"""What is found in a cluster about the second argument, which the findings are named by."""


def _passed(what: str, detail: str = "", *, advice: str = "") -> Finding:
    return Finding(what, ok=True, detail=detail, advice=advice)


def _unknown(what: str, detail: str) -> Finding:
    return Finding(what, ok=True, detail=detail, is_known=False)


def _failed(what: str, detail: str, remedy: str) -> Finding:
    return Finding(what, ok=False, detail=detail, remedy=remedy)


def examine(cluster: Cluster) -> Iterator[Finding]:
    """Check everything that diflow needs. Ends early if the cluster does not respond."""
    yield _passed("Kubernetes answers", cluster.version())
    skew = cluster.clock_skew_seconds() or 0.0
    yield Finding(
        "clocks agree",
        ok=abs(skew) <= _MOST_SKEW_SECONDS,
        detail=f"the cluster's is {abs(skew):.0f} s {'ahead' if skew > 0 else 'behind'}" if abs(skew) >= 1 else "",
        remedy="ages and --since will be off by as much: set both machines' clocks (NTP)",
    )
    here = cluster.namespace
    create = f"check -n, or create it: kubectl create namespace {here}"
    (found,) = _looked(cluster, f"namespace {here}", partial(_exists, NAMESPACE, here), remedy=create)
    yield found
    for what, check, remedy in (*_of_cluster(), *(_of_namespace(here) if found.ok else ())):
        yield from _looked(cluster, what, check, remedy=remedy)


def _of_cluster() -> Iterator[tuple[str, Check, str]]:
    """(what, its check, what to do if it is missing) for what all namespaces need."""
    yield "Argo's CRDs", _crds, ""
    yield "Argo's workflow controller", _argo, ""
    yield "Argo's settings", _argo_settings, ""
    for name in keys.PRIORITY_CLASSES.values():
        yield f"PriorityClass {name}", partial(_priority_class, name), "kubectl apply -k manifests/cluster"
    yield "the kind DIJob", _dijobs, ""


def _of_namespace(here: str) -> Iterator[tuple[str, Check, str]]:
    """The same for what a namespace needs, and the programs that look after its jobs."""
    apply = f"kubectl apply -n {here} -k manifests/jobs"
    yield f"your rights in {here}", _rights, ""
    yield f"check of pod templates in {here}", _templates, ""
    for account in (keys.WORKER_ACCOUNT, keys.STEPS_ACCOUNT):
        yield f"service account {account} in {here}", partial(_exists, SERVICE_ACCOUNT, account), apply
    yield f"rights of {keys.WORKER_ACCOUNT} in {here}", _results, ""
    yield f"quotas of {here} and Argo's containers", _quotas, ""
    yield f"Service {keys.SERVICE} in {here}", _service, ""
    for kept, name, without in (
        ("record of ended jobs", keys.ENDED_JOBS, "diflow list --ended shows no job whose Workflow was deleted"),
        (
            "memory of applications",
            keys.APPLICATIONS,
            "under goodput each job starts as if it were the first of its application",
        ),
    ):
        yield f"{kept} in {here}", partial(_optional, name, without), ""
    yield "DIJobs as steps of other Workflows", _steps, ""
    yield "the allocator", _allocator, ""
    yield "the allocator's sight of volumes", _volumes, ""
    yield "what admission adds to pods", _dry_runs, ""
    yield "the queues", _queues, ""
    yield "the fence of the allocator", _fence, ""
    yield f"the rules of queues.yaml for {here}", _rules, ""
    yield f"PodGroups in {here}", _pod_groups, ""
    yield "the server", _server_pods, ""
    yield "the server and pods without a token", _server, ""


def _looked(cluster: Cluster, what: str, check: Check, *, remedy: str) -> Iterator[Finding]:
    """The findings of a check, or its error. A check without access counts as passed."""
    try:
        yield from check(cluster, what)
    except NotFoundError:
        yield _failed(what, "missing", remedy)
    except UnauthorizedError:
        yield _unknown(what, "not checked, as you may not read it")
    except DiflowError as error:
        yield _failed(what, str(error), remedy)


def _exists(kind: Kind, name: str, cluster: Cluster, what: str) -> Iterator[Finding]:
    cluster.get(kind, name)
    yield _passed(what)


def _priority_class(name: str, cluster: Cluster, what: str) -> Iterator[Finding]:
    """Whether there is this class, and no pod of high priority stops others through kube-scheduler."""
    found = cluster.get(PRIORITY_CLASS, name)
    if name == keys.PRIORITY_CLASSES["high"] and found.get("preemptionPolicy") != "Never":
        yield _failed(
            what,
            "is of an earlier release: kube-scheduler stops pods of others for pods of this class, whatever the rules "
            "of queues and namespaces say",
            "kubectl replace --force -f manifests/cluster/priorityclasses.yaml (the field cannot be changed; "
            "pods that run keep what they have: docs/upgrading.md)",
        )
    else:
        yield _passed(what)


def _optional(name: str, without: str, cluster: Cluster, what: str) -> Iterator[Finding]:
    """A ConfigMap of the namespace that jobs can do without, and what is missing then."""
    found = cluster.find(CONFIG_MAP, name)
    apply = f"kubectl apply -n {cluster.namespace} -k manifests/jobs"
    if found is None:
        yield _passed(what, f"missing, so {without}", advice=apply)
    elif found.get("immutable") is True:
        remedy = f"kubectl delete -n {cluster.namespace} configmap {name}, and apply manifests/jobs again"
        yield _failed(what, f"immutable, so {without}", remedy)
    else:
        yield _passed(what)


def _service(cluster: Cluster, what: str) -> Iterator[Finding]:
    problem = prerequisites.service_problem(cluster, cluster.namespace)
    remedy = prerequisites.SERVICE_REMEDY.format(cluster.namespace)
    yield Finding(what, ok=not problem, detail=problem, remedy=remedy)


def _rights(cluster: Cluster, what: str) -> Iterator[Finding]:
    missing = [right for right in RIGHTS if not cluster.can_i(right[0], right[1], subresource=right[2])]
    if not missing:
        yield _passed(what, f"all {len(RIGHTS)}")
    for verb, kind, sub, use in missing:
        resource = f"{kind.resource}/{sub}" if sub else kind.resource
        yield _failed(
            f"your right to {verb} {resource} in {cluster.namespace}",
            f"missing, so no {use}",
            "ask the cluster's administrator for a Role with it",
        )


def _templates(cluster: Cluster, what: str) -> Iterator[Finding]:
    """Whether the API server checks the pod templates of jobs before they are created."""
    why = templates.trouble(cluster, namespace=cluster.namespace)
    if not why:
        yield _passed(what)
    else:
        without = f"{why}; so submit knows diflow's own rules alone (docs/lint.md)"
        yield _passed(what, without, advice=f"let users create {POD_TEMPLATE.resource}: {_GIVES_RIGHTS}")


def _crds(cluster: Cluster, what: str) -> Iterator[Finding]:
    """Argo's CRDs are installed and full: with the minimal ones, a malformed Workflow stops the controller for all."""
    kinds = ("workflows", "workflowtemplates", "cronworkflows", "workflowtaskresults")
    crds = {name: cluster.find(CRD, f"{name}.{WORKFLOW.group}") for name in kinds}
    missing = [name for name, crd in crds.items() if crd is None]
    minimal = [name for name, crd in crds.items() if crd is not None and not _is_full(crd)]
    if missing:
        yield _failed(what, f"missing: {', '.join(missing)}", "install Argo Workflows with its full CRDs")
    elif minimal:
        yield _failed(
            what,
            f"only the minimal ones of {', '.join(minimal)}, which check nothing",
            "apply Argo's manifests/base/crds/full, or one malformed Workflow can stop Argo for everybody",
        )
    else:
        yield _passed(what, "the full ones")


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


def _argo(cluster: Cluster, what: str) -> Iterator[Finding]:
    found = prerequisites.controller_version(cluster)
    if found is None:
        yield _failed(what, "not found in any namespace", "install Argo Workflows 3.7 or newer")
    elif problem := prerequisites.is_too_old(found):
        yield _failed(what, problem, "upgrade Argo Workflows")
    else:
        yield _passed(what, prerequisites.version_text(found))


def _argo_settings(cluster: Cluster, what: str) -> Iterator[Finding]:
    """What keeps Argo from running the jobs of the namespace, and what makes it slow."""
    settings = argo_settings.read(cluster)
    if settings is None:
        return
    found = argo_settings.remarks(settings, namespace=cluster.namespace)
    if not found:
        yield _passed(what, f"a changed job is looked at after {settings.requeue_seconds:g} s")
    for remark in found:
        if remark.is_fatal:
            yield _failed(what, remark.what, remark.remedy)
        else:
            yield _passed(what, remark.what, advice=remark.remedy)


def _quotas(cluster: Cluster, what: str) -> Iterator[Finding]:
    """Whether Argo's own containers state what the quotas of the namespace demand of each container."""
    hard: dict[str, Any] = {}
    for quota in cluster.list_all(RESOURCE_QUOTA):
        hard |= untrusted.sub(quota, "spec", "hard")
    settings = argo_settings.read(cluster) if hard else None
    lacking = argo_defaults.lacking(hard, settings.config) if settings is not None else []
    if lacking:
        lacking = [one for one in lacking if not _is_defaulted(cluster, one)]
    if not lacking:
        yield _passed(what, "" if hard else "there are none")
        return
    yield _failed(
        what,
        f"a ResourceQuota of {cluster.namespace} refuses each pod of which a container does not say its limits, and "
        f"those of Argo do not: {', '.join(lacking)} {'is' if len(lacking) == 1 else 'are'} not set",
        f"set {'it' if len(lacking) == 1 else 'them'} in ConfigMap {argo_defaults.MAP} (executor: {{resources: "
        "{requests: {cpu: 100m, memory: 64Mi}, limits: {cpu: 500m, memory: 512Mi}}}), or a default by a LimitRange",
    )


def _is_defaulted(cluster: Cluster, lacking: str) -> bool:
    """Whether a LimitRange of the namespace sets it in containers that do not."""
    _, _, kind, resource = lacking.split(".")
    names = ("default",) if kind == "limits" else ("defaultRequest", "default")
    items = (
        item
        for found in cluster.list_all(LIMIT_RANGE)
        for item in untrusted.mappings(untrusted.sub(found, "spec").get("limits"))
    )
    return any(
        item.get("type") == "Container" and untrusted.sub(item, name).get(resource) for item in items for name in names
    )


def _results(cluster: Cluster, what: str) -> Iterator[Finding]:
    """Whether the account of the pods of jobs may report to Argo how they have ended."""
    missing = [
        verb
        for verb in ("create", "patch")
        if prerequisites.lacks_right(cluster, keys.WORKER_ACCOUNT, verb, namespace=cluster.namespace)
    ]
    if missing:
        yield _failed(
            what,
            f"has no right to {' and '.join(missing)} workflowtaskresults.argoproj.io, so each pod ends as an error",
            f"kubectl apply -n {cluster.namespace} -k manifests/jobs",
        )
    else:
        yield _passed(what)


def _dijobs(cluster: Cluster, what: str) -> Iterator[Finding]:
    """Whether DIJob objects are run, and by whom."""
    has = installed.look(cluster)
    if not has.kind:
        yield _unknown(what, "not installed: jobs are submitted as Workflows")
    else:
        if has.is_ours:
            yield _passed(what, "installed")
        else:
            apply = "kubectl apply --server-side --force-conflicts -k manifests/crds (docs/controller.md)"
            yield _failed(what, "installed by another program, not by diflow's manifests", apply)
        controller = "the controller of DIJob objects"
        if has.controller is None:
            apply = "kubectl apply -k manifests/controller"
            yield _failed(controller, "not installed, so DIJobs stay as they are", apply)
        else:
            yield _ready(controller, has.controller, f"kubectl logs -n diflow-system deployment/{keys.CONTROLLER}")
    if has.operators:
        yield _failed(
            "no other operator acts on DIJobs",
            f"{named(has.operators, 3)} is an operator of DI-orchestrator, which would run the same objects",
            "delete it: diflow's controller and it would both make pods and write the status of each job",
        )


def _ready(what: str, pods: tuple[int, int], remedy: str) -> Finding:
    """Whether one of the pods of a Deployment is ready. `pods`: (ready ones, all)."""
    return Finding(what, ok=pods[0] > 0, detail=f"{pods[0]} of {pods[1]} pods are ready", remedy=remedy)


def _steps(cluster: Cluster, what: str) -> Iterator[Finding]:
    """Whether DIJobs can be steps of other Workflows in this namespace (manifests/pipelines)."""
    if cluster.find(SERVICE_ACCOUNT, keys.SUBMIT_ACCOUNT) is None:
        yield _unknown(what, f"not prepared: kubectl apply -n {cluster.namespace} -k manifests/pipelines")
        return
    has = installed.look(cluster)
    if has.kind and has.controller:
        yield _passed(what, "prepared")
    else:
        missing = "the controller" if has.kind else "the kind DIJob"
        apply = "kubectl apply -k manifests/crds, and kubectl apply -k manifests/controller"
        yield _failed(what, f"prepared, but {missing} is not installed", apply)


def _installed_allocator(cluster: Cluster) -> tuple[str, Mapping[str, Any] | None] | None:
    """The namespace of the allocator and its Lease, if it has one; None if none was installed."""
    public = cluster.find(CONFIG_MAP, keys.ALLOCATOR, namespace=keys.PUBLIC_NAMESPACE)
    if public is None:
        return None
    home = str((public.get("data") or {}).get("namespace") or "")
    return home, cluster.find(LEASE, keys.ALLOCATOR, namespace=home)


def _allocator(cluster: Cluster, what: str) -> Iterator[Finding]:
    """Whether a process leads: without one, gangs wait and nothing is resized."""
    found = _installed_allocator(cluster)
    if found is None:
        yield _unknown(what, "not installed: Argo alone runs the jobs")
        return
    home, lease = found[0], found[1] or {}
    holder, seconds = (untrusted.sub(lease, "spec").get(name) for name in ("holderIdentity", "leaseDurationSeconds"))
    if holder and isinstance(seconds, int) and seconds_since_renewal(cluster, lease, now=time.time()) <= seconds:
        yield _passed(what, "runs")
    else:
        yield _failed(
            what,
            "installed, and no process leads: gangs wait, and nothing is resized",
            f"kubectl get pods -n {home}; kubectl logs -n {home} deployment/{keys.ALLOCATOR}",
        )


def _volumes(cluster: Cluster, what: str) -> Iterator[Finding]:
    """Whether the allocator may read what decides where the volumes of claims can be reached."""
    found = _installed_allocator(cluster)
    if found is None:
        return
    user = f"system:serviceaccount:{found[0]}:{keys.ALLOCATOR}"
    kinds = (PERSISTENT_VOLUME_CLAIM, PERSISTENT_VOLUME, STORAGE_CLASS, CSI_NODE)
    may = {kind.resource: cluster.may(user, "list", kind) for kind in kinds}
    if missing := [name for name, allowed in may.items() if allowed is False]:
        without = f"it may not list {', '.join(missing)}: gangs with claims may be refused, and tried again, at first"
        yield _passed(what, without, advice="kubectl apply -k manifests/allocator")
    elif None in may.values():
        yield _unknown(what, "not checked, as the API server does not say")
    else:
        yield _passed(what)


def _dry_runs(cluster: Cluster, what: str) -> Iterator[Finding]:
    """Whether the allocator may ask, by dry runs of pods, what admission makes of them."""
    found = _installed_allocator(cluster)
    if found is None:
        return
    allowed = cluster.may(f"system:serviceaccount:{found[0]}:{keys.ALLOCATOR}", "create", POD)
    if allowed is False:
        without = (
            "the allocator may not try pods in dry runs: sidecars, tolerations and overheads are not counted before a "
            "gang starts, and pods that quotas, pod security or webhooks refuse are found when they are made"
        )
        yield _passed(what, without, advice="kubectl apply -f manifests/allocator/dry-runs.yaml")
    elif allowed is None:
        yield _unknown(what, "not checked, as the API server does not say")
    else:
        yield _passed(what)


def _queues(cluster: Cluster, what: str) -> Iterator[Finding]:
    """Whether the administrator's queues can be meant as they are, and what this namespace may use of them."""
    public = untrusted.sub(cluster.find(CONFIG_MAP, keys.ALLOCATOR, namespace=keys.PUBLIC_NAMESPACE), "data")
    home, config = str(public.get("namespace") or ""), str(public.get("queues") or keys.QUEUES)
    here = cluster.namespace
    if not home:
        yield _unknown(what, "not needed: there is no allocator")
        return
    edit = f"kubectl edit configmap {config} -n {home} (docs/policies.md)"
    try:
        known = queues.access(cluster, home=home, config=config)
    except InvalidError as error:
        yield _failed(what, f"their text is wrong, and the allocator keeps those of before: {error}", edit)
        return
    if known is None:
        yield _unknown(what, "not checked: you may not read them, and the allocator has not published their names")
        return
    for wrong in known.contradictions():
        yield _failed(what, wrong, edit)
    if not known.queues:
        yield _passed(what, "none are defined: all jobs share one")
        return
    usable = known.usable(here)
    if usable:
        advice = (
            "" if DEFAULT_QUEUE in usable else f"a job without spec.queue waits here: name one of {named(usable, 3)}"
        )
        yield _passed(what, f"{here} may use {named(usable, 8)}", advice=advice)
    else:
        why = queue_access.refusal(known.rules, namespace=here, queue=known.queues[0], priority=0)
        yield _failed(what, f"no job of {here} can start, as it may use none of them: {why}", edit)
    yield from _queues_of_jobs(cluster, known, what)


def _queues_of_jobs(cluster: Cluster, known: queue_access.QueueAccess, what: str) -> Iterator[Finding]:
    """The jobs of the namespace whose queue is missing, or not for it."""
    try:
        live = [job for job in lookup.list_jobs(cluster=cluster) if not job.status.ended and job.record.terms.is_gang]
    except DiflowError:
        return
    usable, named_by = known.usable(cluster.namespace), {job.name: job.record.wishes.queue for job in live}
    wrong = [f"{job} ({queue})" for job, queue in named_by.items() if (queue or DEFAULT_QUEUE) not in usable]
    if wrong:
        yield _failed(
            what,
            f"{counted(len(wrong), 'job names a queue', plural='jobs name queues')} that the namespace cannot use: "
            f"{named(wrong, 3)}",
            "submit them again with another spec.queue",
        )


def _server_pods(cluster: Cluster, what: str) -> Iterator[Finding]:
    """Whether the server serves: without it there are no reports, node checks and data shards."""
    name, _, rest = (urlsplit(_server_url()).hostname or "").partition(".")
    namespace = rest.partition(".")[0]
    found = cluster.find(DEPLOYMENT, name, namespace=namespace) if namespace else None
    if found is None:
        yield _unknown(what, "not found: without it, no REST API and no reports")
    else:
        remedy = f"kubectl get pods -n {namespace}; kubectl logs -n {namespace} deployment/{name}"
        yield _ready(what, Deployed.of(found).pods, remedy)


def _server_url() -> str:
    from diflow.dijob.settings import render_settings  # noqa: PLC0415 (pydantic takes a while to import)

    return render_settings().server_url


def _fence(cluster: Cluster, what: str) -> Iterator[Finding]:
    """Whether the API server refuses the writes of an allocator that does not lead any more, by a dry run."""
    found = _installed_allocator(cluster)
    if found is None:
        yield _passed(what, "not needed: there is no allocator")
        return
    home, lease = found
    if lease is None or not (lease.get("spec") or {}).get("leaseTransitions"):
        yield _unknown(what, "not checked: the allocator has never led")
        return
    nobody = f"{keys.ALLOCATOR}/{home}/{lease['metadata']['uid']}/0"
    if fence.is_refused(cluster, nobody, namespace=cluster.namespace):
        yield _passed(what, "in force")
    else:
        yield _failed(
            what,
            "not in force, so a new leader changes each job once",
            "kubectl apply -f manifests/allocator/fence.yaml (Kubernetes 1.30 or newer; see docs/allocator.md)",
        )


def _rules(cluster: Cluster, what: str) -> Iterator[Finding]:
    """Whether the rules for namespaces hold for pods and jobs that the allocator does not place, by a dry run."""
    found = _installed_allocator(cluster)
    lines = cluster.find(CONFIG_MAP, keys.PUBLIC_QUEUES, namespace=keys.PUBLIC_NAMESPACE)
    if found is None or not untrusted.sub(lines or {}, "data").get(keys.RULES_LINES):
        yield _passed(what, "there are none, or no allocator has published them")
    elif rules.are_in_force(cluster, namespace=cluster.namespace):
        yield _passed(what, "in force where pods and jobs are made")
    else:
        yield _failed(
            what,
            "they hold for gangs alone: a pod of another priority, or a job with `scheduling: none`, is not asked",
            "kubectl apply -k manifests/admission (Kubernetes 1.30 or newer), if the namespace has not the label "
            "diflow/rules=exempt; or a ResourceQuota with a scope (docs/security.md)",
        )


def _pod_groups(cluster: Cluster, what: str) -> Iterator[Finding]:
    """Whether kube-scheduler itself binds all pods of a gang or none."""
    if not podgroups.are_served(cluster):
        yield _passed(
            what, "this Kubernetes has none (1.37 or newer can): the allocator takes back what starts in part"
        )
    elif podgroups.are_used(cluster, namespace=cluster.namespace):
        yield _passed(what, "kube-scheduler binds the pods of a gang all together or not at all")
    else:
        advice = "kubectl apply -k manifests/podgroups: kube-scheduler then binds all pods of a gang or none"
        yield _passed(what, "served, and not used: the allocator takes back what starts in part", advice=advice)


def _server(cluster: Cluster, what: str) -> Iterator[Finding]:
    """Whether the server serves pods without a token, and whether a job here needs that."""
    served = unproven.is_served(cluster, _server_url())
    if served is None:
        yield _unknown(what, "not checked: there is no server, or you may not read its settings")
        return
    if served:
        yield _passed(what, f"served ({unproven.SETTING} is on)")
        return
    try:
        live = [job for job in lookup.list_jobs(cluster=cluster) if not job.status.ended]
    except DiflowError:
        live = []
    needs = [job.name for job in live if unproven.why_needed(job.dijob)]
    if not needs:
        yield _passed(what, f"refused ({unproven.SETTING} is off)")
    else:
        yield _failed(
            what,
            f"refused, and {named(needs, 3)} send none",
            f"their requests and reports get 401: set {unproven.SETTING}=true on the server (docs/security.md)",
        )
