"""Fields that people bring from Kubernetes and from other programs, and that a DIJob has in another form or not at
all.

`UNKNOWN` is said instead of a guess at a similar name (`unknown`). What Kubernetes has in a pod and Argo
does not pass on is here as well: Argo 3.7 to 4.0 are built with the types of Kubernetes 1.33, and drop what is newer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

_TASKS: Final = "write spec.tasks, one for each role, with replicas and a template"
_REPLICAS: Final = "spec.tasks[].replicas is the number of replicas, and each of them has to succeed"
_TOGETHER: Final = "all replicas start together; with preemptible: true as few as minReplicas of the task"
_RETRIES: Final = "spec.backoffLimit says how often a replica that failed is started again"
_LEAVE: Final = "it has no meaning here: leave it out"
_WORKFLOW: Final = f"it is of Argo's own Workflows: {_TASKS}"
_TRAINER: Final = "it is of Kubeflow's TrainJobs: `diflow convert FILE` writes one as a DIJob"
_PROCESSES: Final = "give it to torchrun as --nproc-per-node, or set PET_NPROC_PER_NODE in the env of the container"
_NEWER: Final = "Argo Workflows does not pass it on to pods (it knows the fields of Kubernetes 1.33): leave it out"

_OF_JOBS: Final[Mapping[str, str]] = {
    # Kubeflow's training operator
    "runPolicy": "its fields are fields of spec here: backoffLimit, cleanPodPolicy, ttlSecondsAfterFinished, "
    "activeDeadlineSeconds and suspend",
    "schedulingPolicy": "write spec.queue and spec.priority; all replicas start together without it",
    "elasticPolicy": "write preemptible: true, and minReplicas and maxReplicas of the task",
    **dict.fromkeys(
        ("pytorchReplicaSpecs", "tfReplicaSpecs", "mpiReplicaSpecs", "xgbReplicaSpecs", "paddleReplicaSpecs",
         "jaxReplicaSpecs", "replicaSpecs", "replicatedJobs", "workerGroupSpecs", "headGroupSpec", "rayClusterSpec"),
        _TASKS,
    ),
    **dict.fromkeys(("nprocPerNode", "nProcPerNode", "numProcPerNode", "slotsPerWorker"), _PROCESSES),
    "enableGangScheduling": _TOGETHER,
    # Kubernetes' Jobs
    **dict.fromkeys(("completions", "parallelism", "worldSize", "numNodes"), _REPLICAS),
    "completionMode": "each replica has its index, as DI_RANK: leave it out",
    "backoffLimitPerIndex": _RETRIES,
    "maxFailedIndexes": _RETRIES,
    "podFailurePolicy": "write spec.failurePolicy (docs/jobs.md#failure-policies)",
    "successPolicy": "a job has succeeded when all of its replicas have",
    **dict.fromkeys(("podReplacementPolicy", "selector", "manualSelector", "managedBy", "startupPolicy"), _LEAVE),
    # Volcano, and schedulers with pod groups
    **dict.fromkeys(("minAvailable", "minMember", "minCount", "podGroup", "podGroupPolicy", "gang"), _TOGETHER),
    **dict.fromkeys(("maxRetry", "maxRestarts", "maxFailures"), _RETRIES),
    "plugins": "the hosts and ranks of all replicas are in their environment (docs/jobs.md): leave it out",
    "policies": "write spec.failurePolicy (docs/jobs.md#failure-policies), or leave it out",
    "dependsOn": "all tasks start together: steps that follow each other are a pipeline (docs/pipelines.md)",
    "priorityClassName": "write spec.priority, normal or high; the class is made of it",
    "priorityClass": "write spec.priority, normal or high; the class is made of it",
    # Argo
    "synchronization": "jobs take turns by their queue (spec.queue): leave it out",
    "onExit": "a step that follows the job is a pipeline (docs/pipelines.md)",
    **dict.fromkeys(("entrypoint", "templates", "arguments", "workflowTemplateRef", "templateDefaults", "dag", "steps"),
                    _WORKFLOW),
    "ttlStrategy": "write spec.ttlSecondsAfterFinished",
    "podGC": "write spec.cleanPodPolicy",
    "retryStrategy": "write spec.backoffLimit, and spec.failurePolicy",
    "podSpecPatch": "write the field into spec.tasks[].template.spec",
    # Kubeflow Trainer
    **dict.fromkeys(("runtimeRef", "trainer", "initializer", "runtimePatches", "podTemplateOverrides",
                     "podSpecOverrides"), _TRAINER),
}  # fmt: skip
_OF_TASKS: Final[Mapping[str, str]] = {
    **{name: _OF_JOBS[name] for name in (
        "completions", "parallelism", "minAvailable", "maxRetry", "maxRestarts", "policies", "dependsOn", "numNodes",
        "priorityClassName", "nprocPerNode", "retryStrategy",
    )},
    "restartPolicy": f"leave it out: {_RETRIES}, as a new pod",
    "backoffLimitPerIndex": _RETRIES,
    "topologyPolicy": _LEAVE,
}  # fmt: skip
_OF_PODS: Final[Mapping[str, str]] = {
    "ephemeralContainers": "it cannot be set when a pod is made: leave it out",
    **dict.fromkeys(("hostnameOverride", "workloadRef", "schedulingGroup", "evictionResponders"), _NEWER),
}

UNKNOWN: Final[Mapping[str, Mapping[str, str]]] = {
    "spec": _OF_JOBS,
    "spec.tasks[]": _OF_TASKS,
    "spec.tasks[].template.spec": _OF_PODS,
    **{
        f"spec.tasks[].template.spec.{kind}[]{part}": {name: _NEWER}
        for kind in ("containers", "initContainers")
        for part, name in (
            ("", "restartPolicyRules"), (".env[].valueFrom", "fileKeyRef"), (".volumeMounts[]", "bindMountOptions"),
            *((f".{handler}.httpGet", "protocol") for handler in (
                "lifecycle.postStart", "lifecycle.preStop", "livenessProbe", "readinessProbe", "startupProbe",
            )),
        )
    },
    **{
        f"{at}volumes[].projected.sources[]": {"podCertificate": _NEWER}
        for at in ("spec.", "spec.tasks[].template.spec.")
    },
}  # fmt: skip
"""What to do with a field that is not known, by the part of a manifest (`[]` for an index) and its name there."""
_RESTARTED: Final = (
    "has no effect: a replica that fails is started again as a new pod, as often as spec.backoffLimit says"
)
_RESTARTS: Final[Mapping[str, str]] = {
    "OnFailure": _RESTARTED,
    "Always": f"{_RESTARTED}, and one that has succeeded is not",
}


def without_effect(templates: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """(path, what follows instead) of each field of the templates of a job's tasks that is accepted, and not passed on
    to its pods."""
    for i, template in enumerate(templates):
        said = _RESTARTS.get(template["spec"].get("restartPolicy") or "")
        if said is not None:
            yield f"spec.tasks[{i}].template.spec.restartPolicy", said
