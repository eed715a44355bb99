"""Jobs that are DIJob objects in the cluster, beside their Workflows.

The controller (`diflow.controller`) gives each DIJob object a Workflow of its name, which the object owns. This module
reads such objects; it does not know the controller.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from diflow.common import keys, names
from diflow.common.errors import InvalidError, NotFoundError, UnauthorizedError
from diflow.common.jsontext import canonical_json
from diflow.kube.api import Cluster
from diflow.kube.kinds import WORKFLOW, Kind
from diflow.kube.refusals import UnknownKindError
from diflow.record import chain, untrusted
from diflow.record.status.status import PHASES, Condition, JobStatus

if TYPE_CHECKING:
    from diflow.dijob.model import DIJob

Json = dict[str, Any]

_VERSION: Final = keys.API_VERSION.rpartition("/")[2]
DIJOB: Final = Kind(keys.KIND, keys.API_GROUP, _VERSION, "dijobs")
_OF_OTHERS: Final = frozenset(("kubectl.kubernetes.io/last-applied-configuration", keys.WAITED_BY))
"""Annotations of DIJob objects by kubectl and by diflow. Which of diflow's names are for users, is known to
`diflow.dijob.rules.podtemplate`."""
_LONGEST_MESSAGE: Final = 4096
_MOST_CONDITIONS: Final = 32


def find(cluster: Cluster, name: str, *, namespace: str | None = None) -> Json | None:
    """The DIJob object of this name; None if there is none, if the kind is not installed, or if the user may not read
    it."""
    if not names.is_label(name):
        return None
    try:
        return cluster.find(DIJOB, name, namespace=namespace)
    except (UnknownKindError, UnauthorizedError):
        return None


def list_all(cluster: Cluster, **selection: Any) -> list[Json]:
    """All DIJob objects of the selection; none if the kind is not installed, or if the user may not list them."""
    try:
        return cluster.list_all(DIJOB, **selection)
    except (UnknownKindError, UnauthorizedError):
        return []


def owner(workflow: Mapping[str, Any]) -> tuple[str, str]:
    """(name, uid) of the DIJob object that owns a Workflow; empty text if none does."""
    for reference in untrusted.mappings(untrusted.sub(workflow, "metadata").get("ownerReferences")):
        group = untrusted.string(reference.get("apiVersion")).partition("/")[0]
        if reference.get("kind") == keys.KIND and group == keys.API_GROUP:
            return untrusted.string(reference.get("name")), untrusted.string(reference.get("uid"))
    return "", ""


def runs_in(workflow: Mapping[str, Any]) -> tuple[str, str]:
    """(name, uid) of the DIJob object whose job runs in a Workflow; empty text if none does.

    An object may own other Workflows than its job's: `argo resubmit` copies owner references, and users can write them.
    """
    name, uid = owner(workflow)
    return (name, uid) if chain.job_name(workflow) == name else ("", "")


def owner_reference(name: str, uid: str) -> Json:
    """The owner reference of a DIJob's Workflow. A foreground deletion of the object waits for the Workflow."""
    return {
        "apiVersion": keys.API_VERSION,
        "kind": keys.KIND,
        "name": name,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def job_of(obj: Mapping[str, Any]) -> DIJob:
    """The job of a DIJob object. Raises InvalidError.

    Labels and annotations that other programs put on objects, such as those of Helm and Argo CD, are left out where
    diflow does not allow them on its own objects, and so is what diflow itself puts on objects. Those under diflow's
    names are the user's, and refused as in a manifest. Unknown fields are dropped without a warning.
    """
    return read(obj)[0]


def read(obj: Mapping[str, Any]) -> tuple[DIJob, tuple[str, ...]]:
    """As `job_of`, with the paths of the unknown fields that were dropped."""
    # A list of jobs needs no models, which take a while to import.
    from diflow.dijob.model import DIJob, unknown_fields  # noqa: PLC0415
    from diflow.dijob.rules.metadata import check_annotations, check_labels  # noqa: PLC0415

    metadata = untrusted.sub(obj, "metadata")
    kept = {name: untrusted.string(metadata.get(name)) for name in ("name", "namespace")}
    made = {
        "apiVersion": keys.API_VERSION,
        "kind": keys.KIND,
        "metadata": {
            **kept,
            "labels": _allowed(untrusted.sub(metadata, "labels"), check_labels, path="metadata.labels"),
            "annotations": _allowed(own_annotations(metadata), check_annotations, path="metadata.annotations"),
        },
        "spec": obj.get("spec"),
    }
    with unknown_fields() as found:
        job = DIJob.from_manifest(made)
    return job, tuple(dict.fromkeys(str(one.args[1]) for one in found))


def own_annotations(metadata: Mapping[str, Any]) -> Json:
    """The annotations of an object, without the copy of the object that `kubectl apply` keeps there, and without those
    that diflow puts on objects."""
    return {k: v for k, v in untrusted.sub(metadata, "annotations").items() if k not in _OF_OTHERS}


def create(job: DIJob, *, cluster: Cluster, dry_run: bool = False) -> Json:
    """Create the DIJob object of a job. Raises ConflictError if its name is taken, NotFoundError if the kind is not
    installed."""
    body = job.to_manifest()
    body["metadata"]["namespace"] = job.namespace or cluster.namespace
    try:
        return cluster.create(DIJOB, body, namespace=job.namespace, dry_run=dry_run)
    except UnknownKindError:
        raise NotFoundError(
            "the kind DIJob is not installed in this cluster: kubectl apply -k manifests/crds, and then kubectl apply "
            "-k manifests/controller; or submit the job as a Workflow"
        ) from None


def scaled(obj: Mapping[str, Any], task: str, *, low: int, high: int, is_preemptible: bool) -> Json | None:
    """The merge patch of the object's spec that requests `low` to `high` replicas of a task; None if its spec says that
    already, or has no such task. It is valid for this version of the object only."""
    spec = untrusted.sub(obj, "spec")
    if "tasks" not in spec:
        return _one_scaled(obj, low=low, high=high, is_preemptible=is_preemptible) if "template" in spec else None
    tasks: list[Any] = []
    for given in spec["tasks"] or ():
        one = dict(given) if isinstance(given, Mapping) else given
        if isinstance(one, dict) and (one.get("name") or one.get("type")) == task:
            if is_preemptible:
                one |= {"replicas": min(max(_count(one.get("replicas")), low), high)}
                one |= {"minReplicas": low, "maxReplicas": high}
            else:  # bounds, which have no meaning then, must not exclude it
                one["replicas"] = high
                one |= {"minReplicas": min(one["minReplicas"], high)} if "minReplicas" in one else {}
                one |= {"maxReplicas": max(one["maxReplicas"], high)} if "maxReplicas" in one else {}
        tasks.append(one)
    return _patch(obj, {"tasks": tasks}) if tasks != spec["tasks"] else None


def _one_scaled(obj: Mapping[str, Any], *, low: int, high: int, is_preemptible: bool) -> Json | None:
    """The same of an object with one template, whose `minReplicas` is the number of a job that is not preemptible."""
    spec = untrusted.sub(obj, "spec")
    if is_preemptible:
        change = {"minReplicas": low, "maxReplicas": high}
    else:
        change = {"minReplicas": high} | (
            {"maxReplicas": max(_count(spec["maxReplicas"]), high)} if spec.get("maxReplicas") else {}
        )
    return _patch(obj, change) if any(spec.get(name) != value for name, value in change.items()) else None


def _patch(obj: Mapping[str, Any], spec: Json) -> Json:
    metadata = untrusted.sub(obj, "metadata")
    return {"metadata": {name: metadata.get(name) for name in ("uid", "resourceVersion")}, "spec": spec}


def as_workflow(obj: Mapping[str, Any]) -> Json:
    """A DIJob object without a Workflow, represented as a Workflow, for code that displays jobs."""
    metadata = untrusted.sub(obj, "metadata")
    kept = {
        name: metadata[name] for name in ("name", "namespace", "uid", "creationTimestamp", "generation")
        if name in metadata
    }  # fmt: skip
    spec = untrusted.sub(obj, "spec")
    manifest = {
        "apiVersion": keys.API_VERSION,
        "kind": keys.KIND,
        "metadata": {
            "name": metadata.get("name"),
            **{name: dict(untrusted.sub(metadata, name)) for name in ("labels",) if metadata.get(name)},
        },
        "spec": spec,
    }
    labels = {
        **untrusted.sub(metadata, "labels"),
        keys.MANAGED_BY: keys.MANAGED_BY_VALUE,
        keys.PRIORITY: untrusted.string(spec.get("priority"), most=keys.LABEL_LIMIT) or "normal",
        keys.PREEMPTIBLE: str(spec.get("preemptible") is True).lower(),
    }
    return {
        "apiVersion": f"{WORKFLOW.group}/{WORKFLOW.version}",
        "kind": WORKFLOW.name,
        "metadata": {**kept, "labels": labels, "annotations": {keys.DIJOB: canonical_json(manifest)}},
        "spec": {},
    }


def status_of(obj: Mapping[str, Any]) -> JobStatus:
    """The status that a DIJob object has: Pending if the controller has written none."""
    given = untrusted.sub(obj, "status")
    phase = next((phase for phase in PHASES if phase == given.get("phase")), None)
    if phase is None:
        return JobStatus(
            phase="Pending",
            reason="JobPending",
            message="the controller has not made its Workflow yet (`diflow doctor` says whether there is a controller)",
        )
    counts = {name: _count(given.get(name)) for name in ("replicas", "readyReplicas", "restarts", "reschedules")}
    conditions = [_condition(c) for c in untrusted.mappings(given.get("conditions"))][:_MOST_CONDITIONS]
    return JobStatus(
        phase=phase,
        reason=untrusted.string(given.get("reason"), most=keys.LABEL_LIMIT),
        message=untrusted.string(given.get("message"), most=_LONGEST_MESSAGE),
        conditions=tuple(conditions),
        replicas=counts["replicas"],
        ready_replicas=counts["readyReplicas"],
        restarts=counts["restarts"],
        reschedules=counts["reschedules"],
        start_time=untrusted.time(given.get("startTime")),
        completion_timestamp=untrusted.time(given.get("completionTimestamp")),
    )


def _condition(given: Mapping[str, Any]) -> Condition:
    text = {name: untrusted.string(given.get(name), most=_LONGEST_MESSAGE) for name in ("type", "reason", "message")}
    began, updated = (untrusted.time(given.get(name)) for name in ("lastTransitionTime", "lastUpdateTime"))
    status = "True" if given.get("status") == "True" else "False"
    return Condition(text["type"], status, text["reason"], text["message"], began, updated)


def _count(value: Any) -> int:
    return value if untrusted.is_count(value, least=0, most=2**31 - 1) else 0


def _allowed(given: Mapping[str, Any], check: Any, *, path: str) -> dict[str, str]:
    from diflow.dijob.rules.metadata import is_of_diflow  # noqa: PLC0415

    out: dict[str, str] = {}
    for key, value in given.items():
        try:
            check({key: value}, path=path)
        except InvalidError:
            if is_of_diflow(key):
                raise
            continue
        out[key] = value
    return out
