"""Jobs that are DIJob objects in the cluster, beside their Workflows: finds, creates and changes such objects.

It does not know the controller (`diflow.controller`), which gives them their Workflows.
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
from diflow.record import untrusted
from diflow.record.dijob import DIJobRecord, dijob_record_of
from diflow.record.status.status import JobStatus
from diflow.record.status.timeline import PHASES

if TYPE_CHECKING:
    from diflow.dijob.model import DIJob

Json = dict[str, Any]

_VERSION: Final = keys.API_VERSION.rpartition("/")[2]
DIJOB: Final = Kind(keys.KIND, keys.API_GROUP, _VERSION, "dijobs")
_LONGEST_MESSAGE: Final = 4096


def find(cluster: Cluster, name: str, *, namespace: str | None = None) -> DIJobRecord | None:
    """The DIJob object of this name; None if there is none, if the kind is not installed, or if the user may not read
    it."""
    if not names.is_label(name):
        return None
    try:
        found = cluster.find(DIJOB, name, namespace=namespace)
    except (UnknownKindError, UnauthorizedError):
        return None
    return dijob_record_of(found) if found is not None else None


def list_all(cluster: Cluster, **selection: Any) -> list[DIJobRecord]:
    """All DIJob objects of the selection; none if the kind is not installed, or if the user may not list them."""
    try:
        return [dijob_record_of(obj) for obj in cluster.list_all(DIJOB, **selection)]
    except (UnknownKindError, UnauthorizedError):
        return []


def job_of(obj: Mapping[str, Any]) -> DIJob:
    """The job of a DIJob object. Raises InvalidError.

    Labels and annotations that other programs put on objects, such as those of Helm and Argo CD, are left out where
    diflow does not allow them on its own objects, and so is what diflow itself puts on objects. Those under diflow's
    names are the user's, and refused as in a manifest. Unknown fields are dropped without a warning.
    """
    return read(dijob_record_of(obj))[0]


def read(obj: DIJobRecord) -> tuple[DIJob, tuple[str, ...]]:
    """As `job_of`, with the paths of the unknown fields that were dropped."""
    # A list of jobs needs no models, which take a while to import.
    from diflow.dijob.model import DIJob, unknown_fields  # noqa: PLC0415
    from diflow.dijob.rules.metadata import check_annotations, check_labels  # noqa: PLC0415

    if obj.problem:
        raise InvalidError(obj.problem)
    made = {
        "apiVersion": keys.API_VERSION,
        "kind": keys.KIND,
        "metadata": {
            "name": obj.identity.name,
            "namespace": obj.identity.namespace,
            "labels": _allowed(obj.labels, check_labels, path="metadata.labels"),
            "annotations": _allowed(obj.annotations, check_annotations, path="metadata.annotations"),
        },
        "spec": obj.spec,
    }
    with unknown_fields() as found:
        job = DIJob.from_manifest(made)
    return job, tuple(dict.fromkeys(one.path for one in found))


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


def scaled(obj: DIJobRecord, task: str, *, low: int, high: int, is_preemptible: bool) -> Json | None:
    """The merge patch of the object's spec that requests `low` to `high` replicas of a task; None if its spec says that
    already, or has no such task. It is valid for this version of the object only."""
    spec = obj.fields
    if "tasks" in spec:
        given = list(spec["tasks"] or ())
        tasks = [_task_scaled(one, task, low=low, high=high, is_preemptible=is_preemptible) for one in given]
        change = {"tasks": tasks} if tasks != given else {}
    elif "template" in spec:
        change = _one_scaled(spec, low=low, high=high, is_preemptible=is_preemptible)
    else:
        change = {}
    return {"metadata": obj.identity.this_version, "spec": change} if change else None


def _task_scaled(given: Any, task: str, *, low: int, high: int, is_preemptible: bool) -> Any:
    if not isinstance(given, Mapping) or (given.get("name") or given.get("type")) != task:
        return given
    one = dict(given)
    if is_preemptible:
        return one | {
            "replicas": min(max(_count(one.get("replicas")), low), high), "minReplicas": low, "maxReplicas": high,
        }  # fmt: skip
    one["replicas"] = high  # bounds, which have no meaning then, must not exclude it
    one |= {"minReplicas": min(one["minReplicas"], high)} if "minReplicas" in one else {}
    return one | ({"maxReplicas": max(one["maxReplicas"], high)} if "maxReplicas" in one else {})


def _one_scaled(spec: Mapping[str, Any], *, low: int, high: int, is_preemptible: bool) -> Json:
    """The same of an object with one template, whose `minReplicas` is the number of a job that is not preemptible."""
    if is_preemptible:
        change = {"minReplicas": low, "maxReplicas": high}
    else:
        change = {"minReplicas": high} | (
            {"maxReplicas": max(_count(spec["maxReplicas"]), high)} if spec.get("maxReplicas") else {}
        )
    return change if any(spec.get(name) != value for name, value in change.items()) else {}


def as_workflow(obj: DIJobRecord) -> Json:
    """A DIJob object without a Workflow, represented as a Workflow, for code that displays jobs."""
    identity = obj.identity
    known = {
        "name": identity.name,
        "namespace": identity.namespace,
        "uid": identity.uid,
        "creationTimestamp": obj.created,
        "generation": obj.generation,
    }
    manifest = {
        "apiVersion": keys.API_VERSION,
        "kind": keys.KIND,
        "metadata": {"name": identity.name, **({"labels": obj.labels} if obj.labels else {})},
        "spec": dict(obj.fields),
    }
    labels = {
        **obj.labels,
        keys.MANAGED_BY: keys.MANAGED_BY_VALUE,
        keys.PRIORITY: untrusted.string(obj.fields.get("priority"), most=keys.LABEL_LIMIT) or "normal",
        keys.PREEMPTIBLE: str(obj.fields.get("preemptible") is True).lower(),
    }
    return {
        "apiVersion": WORKFLOW.api_version,
        "kind": WORKFLOW.name,
        "metadata": {
            **{name: value for name, value in known.items() if value},
            "labels": labels,
            "annotations": {keys.DIJOB: canonical_json(manifest)},
        },
        "spec": {},
    }


def status_of(obj: DIJobRecord) -> JobStatus:
    """The status that a DIJob object has: Pending if the controller has written none."""
    given = obj.status
    phase = next((phase for phase in PHASES if phase == given.get("phase")), None)
    if phase is None:
        return JobStatus(
            phase="Pending",
            reason="JobPending",
            message="the controller has not made its Workflow yet (`diflow doctor` says whether there is a controller)",
        )
    counts = {name: _count(given.get(name)) for name in ("replicas", "readyReplicas", "restarts", "reschedules")}
    return JobStatus(
        phase=phase,
        reason=untrusted.string(given.get("reason"), most=keys.LABEL_LIMIT),
        message=untrusted.string(given.get("message"), most=_LONGEST_MESSAGE),
        conditions=obj.conditions,
        replicas=counts["replicas"],
        ready_replicas=counts["readyReplicas"],
        restarts=counts["restarts"],
        reschedules=counts["reschedules"],
        start_time=untrusted.time(given.get("startTime")),
        completion_timestamp=untrusted.time(given.get("completionTimestamp")),
    )


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
