"""A PyTorchJob of Kubeflow's training operator (kubeflow.org/v1) as a DIJob."""

from __future__ import annotations

from typing import Any, Final

from diflow.common import keys, limits
from diflow.common.errors import InvalidError
from diflow.dijob.migrate.reading import Json, Part, Remark, merged_env, metadata, template

MAIN: Final = "pytorch"
"""The container of the work, by the operator's own rule."""
_TYPES: Final = ("Master", "Worker")
_RESTARTS: Final = ("Always", "ExitCode", "Never", "OnFailure")
_TORCHRUN: Final = (
    "torchrun's own rendezvous is not used: the gang is complete when it starts, and its address is in the environment"
)


def pytorchjob(data: Json, remarks: list[Remark]) -> tuple[Json, dict[int, str]]:
    """(the manifest of the DIJob, the path of the template of each of its tasks in the original). What does not carry
    over is added to `remarks`. Raises InvalidError."""
    root = Part(data, "", remarks)
    root.ignore("apiVersion", "kind", "status")
    named, spec = metadata(root.part("metadata")), root.part("spec")
    root.end()
    policy, elastic, roles = spec.part("runPolicy"), spec.part("elasticPolicy"), spec.part("pytorchReplicaSpecs")
    processes = _processes(spec, elastic)
    spec.end()
    out = _of_policy(policy)
    tasks, restarts, paths = _tasks(roles)
    if "backoffLimit" not in out:
        if restarts == {"Never"}:
            out["backoffLimit"] = 0
        else:
            remarks.append(Remark(policy.at("backoffLimit"), "is not set: a DIJob starts a replica again 3 times"))
    if elastic.data:
        out["preemptible"] = True
        _bound(elastic, tasks)
    for name, value in processes.items():
        for i, task in enumerate(tasks):
            work = task["template"]["spec"]["containers"][0]
            path = f"{paths[i]}.spec.containers[0]"
            work["env"] = merged_env(work, [{"name": name, "value": value}], path=path)
    made = {"apiVersion": keys.API_VERSION, "kind": keys.KIND, "metadata": named, "spec": {**out, "tasks": tasks}}
    return made, paths


def _of_policy(policy: Part) -> Json:
    """The fields of the spec that `runPolicy` has."""
    out: Json = {}
    clean = policy.take("cleanPodPolicy", str)
    if clean not in (None, "", "None", "Running", "All"):
        raise InvalidError(f"must be None, Running or All, not {clean!r}", path=policy.at("cleanPodPolicy"))
    out["cleanPodPolicy"] = clean or "None"  # the operator's default
    if (seconds := policy.number("ttlSecondsAfterFinished", least=0)) is not None:
        if seconds < limits.LEAST_TTL_SECONDS:
            text = (
                f"{seconds} s are {limits.LEAST_TTL_SECONDS} s here, in which the end of the job is seen and recorded"
            )
            policy.remarks.append(Remark(policy.at("ttlSecondsAfterFinished"), text))
        out["ttlSecondsAfterFinished"] = max(seconds, limits.LEAST_TTL_SECONDS)
    for name, least in (("activeDeadlineSeconds", 1), ("backoffLimit", 0)):
        if (number := policy.number(name, least=least)) is not None:
            out[name] = number
    if policy.take("suspend", bool):
        out["suspend"] = True
    policy.remark("managedBy", "another controller of jobs, as Kueue's, does not see a DIJob")
    scheduling = policy.part("schedulingPolicy")
    if queue := scheduling.take("queue", str):
        out["queue"] = queue
    scheduling.remark("minAvailable", "all replicas start together; fewer with preemptible: true and minReplicas")
    scheduling.remark("minResources", "the allocator counts what the pods ask for")
    scheduling.remark("priorityClass", "write spec.priority, normal or high")
    scheduling.remark(
        "scheduleTimeoutSeconds", "a gang waits; spec.startDeadlineSeconds ends a job that has waited so long"
    )
    scheduling.end()
    policy.end()
    return out


def _processes(spec: Part, elastic: Part) -> dict[str, str]:
    """The variables of torchrun for the processes of each replica and their restarts."""
    given: Any = spec.take("nprocPerNode", str)
    number = elastic.number("nProcPerNode", least=1)
    restarts = elastic.number("maxRestarts", least=0)
    each = {"PET_NPROC_PER_NODE": given or number, "PET_MAX_RESTARTS": restarts}
    return {name: str(value) for name, value in each.items() if value is not None}


def _tasks(roles: Part) -> tuple[list[Json], set[str], dict[int, str]]:
    """(the tasks, the restart policies, the paths of their templates): one task if master and workers are alike."""
    found: dict[str, tuple[int, Json, str]] = {}
    restarts: set[str] = set()
    for given in list(roles.data):
        name = next((one for one in _TYPES if one.casefold() == str(given).casefold()), None)
        if name is None:
            raise InvalidError("is not known: a PyTorchJob has Master and Worker", path=roles.at(str(given)))
        if name in found:
            raise InvalidError(f"there are two of {name}", path=roles.at(str(given)))
        role = roles.part(given)
        replicas = role.number("replicas", least=0)
        policy = role.take("restartPolicy", str) or "OnFailure"
        if policy not in _RESTARTS:
            raise InvalidError(f"must be {', '.join(_RESTARTS)}, not {policy!r}", path=role.at("restartPolicy"))
        if policy == "ExitCode":
            text = "ExitCode: write spec.failurePolicy, with FailJob for the exit codes that must not be tried again"
            roles.remarks.append(Remark(role.at("restartPolicy"), text))
        restarts.add(policy)
        pods = template(role, "template", main=MAIN)
        role.end()
        if replicas == 0:
            roles.remarks.append(Remark(role.at("replicas"), "0: a task has at least one replica, so it is left out"))
        else:
            found[name] = (1 if replicas is None else replicas, pods, role.at("template"))
    if not found:
        raise InvalidError("has no replicas", path=roles.path)
    if restarts > {"Never"}:
        text = "Never holds for some replicas only: spec.backoffLimit is one number for all"
        roles.remarks.append(Remark(f"{roles.path}.*.restartPolicy", text))
    if len(found) == 2 and found["Master"][1] == found["Worker"][1]:
        number, pods, path = found["Worker"]
        return [_task("worker", number + found["Master"][0], pods)], restarts, {0: path}
    order = [name for name in _TYPES if name in found]
    tasks = [_task(name.lower(), *found[name][:2]) for name in order]
    return tasks, restarts, {i: found[name][2] for i, name in enumerate(order)}


def _task(name: str, replicas: int, pods: Json) -> Json:
    spec = pods["spec"]
    work = dict(spec["containers"][0])
    return {
        "name": name,
        "replicas": replicas,
        "template": {**pods, "spec": {**spec, "containers": [work, *spec["containers"][1:]]}},
    }


def _bound(elastic: Part, tasks: list[Json]) -> None:
    """Give the last task the bounds of `elasticPolicy`, which counts the workers."""
    low, high = (elastic.number(name, least=1) for name in ("minReplicas", "maxReplicas"))
    task = tasks[-1]
    others = task["replicas"] if low is None and high is None else 0
    task["minReplicas"] = low or high or others
    task["maxReplicas"] = high or low or others
    if task["minReplicas"] > task["maxReplicas"]:
        raise InvalidError(f"is above maxReplicas {task['maxReplicas']}", path=elastic.at("minReplicas"))
    task["replicas"] = min(max(task["replicas"], task["minReplicas"]), task["maxReplicas"])
    for name in ("rdzvBackend", "rdzvPort", "rdzvHost", "rdzvId", "rdzvConf", "standalone"):
        elastic.remark(name, _TORCHRUN)
    elastic.remark("metrics", "the allocator gives replicas by free capacity and the queues, not by a metric")
    elastic.end()
