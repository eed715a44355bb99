"""The Workflow that continues a job, made from the one that has grown too large.

It is a copy, not a new rendering, so it has the settings of the user who submitted the job, and later edits. Only the
identity of the Workflow differs: names that must stay the job's replace `{{workflow.name}}`.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from typing import Any, Final

from diflow.common import keys, names
from diflow.common.errors import InvalidError
from diflow.common.jsontext import canonical_json
from diflow.kube.kinds import WORKFLOW
from diflow.record import chain
from diflow.record.status.observe import observe
from diflow.record.status.status import derive_seen
from diflow.record.untrusted import whole_text

Json = dict[str, Any]

# Labels and annotations that Argo writes for a run, or that belong to a single object.
_PASSING_LABELS: Final = frozenset(
    f"workflows.argoproj.io/{name}"
    for name in (
        "phase",
        "completed",
        "workflow-archiving-status",
        "resubmitted-from-workflow",
        "previous-workflow-name",
    )
)
_PASSING_ANNOTATIONS: Final = frozenset(
    (keys.EPOCH, keys.PROOF, keys.CONTINUED_IN, keys.NODE_CHECK, "kubectl.kubernetes.io/last-applied-configuration")
)
_PART: Final = re.compile(r" \(part \d+\)$")


def successor(
    workflow: Mapping[str, Any],
    *,
    name: str,
    parameters: Mapping[str, str],
    annotations: Mapping[str, str],
    labels: Mapping[str, str] | None = None,
) -> Json:
    """The Workflow `name` that continues `workflow`, with these parameters, annotations and labels in place of its own.

    Its annotations have the job's history: its restarts, reschedules and phases.
    Raises InvalidError if the Workflow was edited into a form that cannot be copied.
    """
    try:
        return _successor(workflow, name, parameters, annotations, labels or {})
    except (TypeError, ValueError, AttributeError, KeyError, InvalidError, RecursionError) as error:
        raise InvalidError(f"the Workflow is not as diflow wrote it, and cannot be continued ({error})") from None


def _successor(
    workflow: Mapping[str, Any],
    name: str,
    parameters: Mapping[str, str],
    annotations: Mapping[str, str],
    labels: Mapping[str, str],
) -> Json:
    metadata = workflow["metadata"]
    job, number = chain.job_name(workflow), chain.part(workflow) + 1
    copied = {k: v for k, v in (metadata.get("labels") or {}).items() if k not in _PASSING_LABELS}
    kept = {k: v for k, v in (metadata.get("annotations") or {}).items() if k not in _PASSING_ANNOTATIONS}
    title = _PART.sub("", kept.get(keys.TITLE) or f"DIJob {job}")
    made: Json = {
        "apiVersion": workflow.get("apiVersion") or WORKFLOW.api_version,
        "kind": WORKFLOW.name,
        "metadata": {
            "name": name,
            "namespace": metadata.get("namespace"),
            "labels": {**copied, **labels, keys.CHAIN: job, keys.PART: str(number)},
            "annotations": {
                **kept,
                **_past(workflow),
                keys.TITLE: f"{title} (part {number})",
                keys.CONTINUES: metadata["name"],
                keys.CONTINUES_UID: metadata["uid"],
                keys.SUBMITTED: chain.submitted(workflow),
                **annotations,
            },
        },
        "spec": copy.deepcopy(dict(workflow["spec"])),
    }
    if owners := metadata.get("ownerReferences"):
        # The owner of the first part owns all parts; blockOwnerDeletion is left to that owner.
        fields = ("apiVersion", "kind", "name", "uid", "controller")
        made["metadata"]["ownerReferences"] = [{f: o[f] for f in fields if f in o} for o in owners]
    arguments = made["spec"].setdefault("arguments", {})
    known = [{**p, "value": parameters.get(p.get("name"), p.get("value"))} for p in arguments.get("parameters") or []]
    missing = parameters.keys() - {p.get("name") for p in known}
    arguments["parameters"] = known + [{"name": name, "value": parameters[name]} for name in sorted(missing)]
    for template in made["spec"].get("templates") or []:
        _name_the_job(template, job)
    if patch := made["spec"].get("podSpecPatch"):
        made["spec"]["podSpecPatch"] = patch.replace(_job_id("{{workflow.name}}"), _job_id(job))
    for volume in made["spec"].get("volumes") or []:
        _make_tokens_for(job, volume)
    return made


def _past(workflow: Mapping[str, Any]) -> dict[str, str]:
    seen = observe(workflow)
    status = derive_seen(seen)
    phases = [[c.type, c.last_transition_time, c.last_update_time] for c in status.conditions]
    annotations = workflow["metadata"].get("annotations") or {}
    if [c.type for c in status.conditions] == ["Pending"] and annotations.get(keys.ALLOCATION):
        # It had an allocation, but Argo has not recorded yet that its pods were bound.
        phases.append(["Starting", phases[0][2], phases[0][2]])
    return {
        keys.RESTARTS_BEFORE: whole_text(seen.job.restarts),
        keys.ROUNDS_BEFORE: whole_text(seen.job.reschedules + 1),
        keys.HISTORY_BEFORE: canonical_json({"started": status.start_time, "phases": phases}),
    }


def _job_id(name: str) -> str:
    """The variable with a job's id, as text of a pod's patch."""
    return canonical_json({"name": "DI_JOB_ID", "value": f"{{{{workflow.namespace}}}}/{name}"})


def _name_the_job(template: Json, job: str) -> None:
    """Keep the job's id and label of the first part; hosts have the names of this part."""
    labels = (template.get("metadata") or {}).get("labels") or {}
    if keys.JOB in labels:
        labels[keys.JOB] = job
    containers = [template.get("container") or {}, *(template.get("sidecars") or ())]
    for container in (*containers, *(template.get("initContainers") or ())):
        for item in container.get("env") or ():
            if item.get("name") == "DI_JOB_ID":
                item["value"] = f"{{{{workflow.namespace}}}}/{job}"


def _make_tokens_for(job: str, volume: Json) -> None:
    """Keep the job's name in the audience of the pods' tokens."""
    templates = ("{{workflow.namespace}}", "{{workflow.name}}")
    for source in (volume.get("projected") or {}).get("sources") or ():
        token = source.get("serviceAccountToken") or {}
        if token.get("audience") == names.audience(*templates):
            token["audience"] = names.audience(templates[0], job)
