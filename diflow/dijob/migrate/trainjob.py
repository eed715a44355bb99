"""A TrainJob of Kubeflow Trainer (trainer.kubeflow.org/v1alpha1) as a DIJob.

Most of such a job is in the runtime that it refers to. A runtime in the same file is read; without it the image and the
command have to be in the TrainJob.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from diflow.common import keys
from diflow.common.errors import InvalidError
from diflow.dijob.migrate.reading import Json, Part, Remark, merged_env, metadata, template
from diflow.dijob.rules.complaints import describe

MAIN: Final = "node"
"""The container of the work, and the replicated job that has it, by Trainer's own names."""
RUNTIMES: Final = ("ClusterTrainingRuntime", "TrainingRuntime")
_STEP: Final = "trainer.kubeflow.org/trainjob-ancestor-step"
_GROUP: Final = "trainer.kubeflow.org"
_TORCH: Final = ("torch", "plainML")
_INITIALIZER: Final = (
    "a DIJob has no initializers: write them as init containers, or as a step before it (docs/pipelines.md)"
)


def trainjob(
    data: Json, remarks: list[Remark], runtimes: Mapping[tuple[str, str], Json]
) -> tuple[Json, dict[int, str]]:
    """As `pytorchjob.pytorchjob`. `runtimes`: those of the same file, by kind and name."""
    root = Part(data, "", remarks)
    root.ignore("apiVersion", "kind", "status")
    named, spec = metadata(root.part("metadata")), root.part("spec")
    root.end()
    kind, runtime = _runtime_ref(spec.part("runtimeRef"))
    own = spec.part("trainer")
    spec.remark("initializer", _INITIALIZER)
    for name in ("runtimePatches", "podTemplateOverrides", "podSpecOverrides"):
        spec.remark(name, "write what it changes into spec.tasks[0].template")
    spec.remark("labels", "write them into metadata.labels, or into spec.tasks[0].template.metadata.labels")
    spec.remark(
        "annotations", "write them into metadata.annotations, or into spec.tasks[0].template.metadata.annotations"
    )
    spec.remark("managedBy", "another controller of jobs, as Kueue's, does not see a DIJob")
    out: Json = {"suspend": True} if spec.take("suspend", bool) else {}
    if (seconds := spec.number("activeDeadlineSeconds", least=0)) is not None and seconds:
        out["activeDeadlineSeconds"] = seconds
    spec.end()
    found = runtimes.get((kind, runtime))
    if found is not None:
        nodes, processes, pods = _of_runtime(Part(found, "", remarks))
    else:
        text = (
            f"{kind} {runtime} is not in the file, so what it says is not carried over: put it there "
            f"(kubectl get {kind.lower()} {runtime} -o yaml), or compare the result with it"
        )
        remarks.append(Remark("spec.runtimeRef", text))
        nodes, processes, pods = None, None, {"spec": {"containers": [{"name": MAIN}]}}
    task = _task(own, nodes, processes, pods)
    made = {"apiVersion": keys.API_VERSION, "kind": keys.KIND, "metadata": named, "spec": {**out, "tasks": [task]}}
    return made, {}


def _runtime_ref(of: Part) -> tuple[str, str]:
    name, kind = of.take("name", str), of.take("kind", str) or RUNTIMES[0]
    group = of.take("apiGroup", str) or _GROUP
    of.end()
    if not name:
        raise InvalidError("is missing: a TrainJob names its runtime", path=of.at("name"))
    if kind not in RUNTIMES or group != _GROUP:
        raise InvalidError(f"{kind} of {group} is no runtime that is known", path=of.at("kind"))
    return kind, name


def _task(own: Part, nodes: int | None, processes: str | None, pods: Json) -> Json:
    """The task, of the runtime's template and what `trainer` sets in it."""
    work: Json = dict(pods["spec"]["containers"][0])
    for name, kind in (("image", str), ("command", list), ("args", list)):
        if (value := own.take(name, kind)) is not None:
            work[name] = value
    if (more := own.take("env", list)) is not None:
        work["env"] = merged_env(work, more, path=own.path)
    if (resources := own.take("resourcesPerNode", dict)) is not None:
        work["resources"] = resources
    number = own.number("numNodes", least=0)
    processes = _processes(own, "numProcPerNode") or processes
    own.end()
    if not work.get("image"):
        raise InvalidError("is missing: it is in the runtime, which is not in the file", path=own.at("image"))
    if processes is not None:
        work["env"] = merged_env(work, [{"name": "PET_NPROC_PER_NODE", "value": processes}], path=own.path)
    spec = {**pods["spec"], "containers": [work, *pods["spec"]["containers"][1:]]}
    return {"name": MAIN, "replicas": number or nodes or 1, "template": {**pods, "spec": spec}}


def _processes(of: Part, name: str) -> str | None:
    """The processes of a node: a number, or the word `auto`, `gpu` or `cpu` of earlier versions."""
    value: Any = of.data.get(name)
    of.ignore(name)
    if value is None:
        return None
    if not isinstance(value, int | str) or isinstance(value, bool):
        raise InvalidError(f"must be an integer, not {describe(value)}", path=of.at(name))
    return str(value)


def _of_runtime(root: Part) -> tuple[int | None, str | None, Json]:
    """(the nodes, the processes of each, the pod template) of a runtime."""
    spec = root.part("spec")
    policy, jobs = spec.part("mlPolicy"), spec.part("template").part("spec")
    spec.remark("podGroupPolicy", "all replicas of a DIJob start together without it")
    nodes = policy.number("numNodes", least=0)
    processes = _processes(policy.part("torch"), "numProcPerNode")
    others = [name for name in policy.data if name not in ("numNodes", *_TORCH)]
    if others:
        text = f"is a runtime of {others[0]}: only those of torch, and plain ones, are converted"
        raise InvalidError(text, path=policy.at(others[0]))
    for name, text in (
        ("ttlSecondsAfterFinished", "write spec.ttlSecondsAfterFinished"),
        ("successPolicy", "a job has succeeded when all of its replicas have"),
        ("failurePolicy", "write spec.backoffLimit, or spec.failurePolicy"),
        ("network", "the Service di of the namespace resolves the names of all replicas"),
    ):
        jobs.remark(name, text)
    found = None
    for job in jobs.parts("replicatedJobs"):
        title, made = job.take("name", str), job.part("template")
        labels = made.part("metadata").take("labels", dict) or {}
        if title == MAIN or labels.get(_STEP) == "trainer":
            found = template(made.part("spec"), "template", main=MAIN)
        else:
            job.remarks.append(Remark(job.path, f"{title}: {_INITIALIZER}"))
    if found is None:
        raise InvalidError(f"has no job {MAIN!r}, which trains", path=jobs.at("replicatedJobs"))
    return nodes, processes, found
