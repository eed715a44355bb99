"""The kinds of jobs of other programs: what such a manifest is, and the way to a DIJob."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

_MIGRATING: Final = "docs/migrating.md"
_TRAINING_OPERATOR: Final = "a job of Kubeflow's training operator"


@dataclass(frozen=True, slots=True)
class Other:
    """A kind of another program. `what` it is; `section`: of docs/migrating.md; `converts`: `diflow convert` reads it;
    `instead`: the way over, if it is another one than that page."""

    what: str
    section: str = ""
    converts: bool = False
    instead: str = ""

    @property
    def way(self) -> str:
        """What to do with it, in a few words."""
        if self.instead:
            return self.instead
        page = f"{_MIGRATING}#{self.section}" if self.section else f"{_MIGRATING}#from-other-kinds-of-jobs"
        return f"`diflow convert FILE` writes it as one ({page})" if self.converts else f"write it as one ({page})"


_STEPS: Final = (
    "submit it with `argo submit`; a step of it that trains can be a DIJob (docs/pipelines.md), and a training that is "
    f"all of it is written as one ({_MIGRATING}#from-other-kinds-of-jobs)"
)
_BESIDE: Final = "create it with kubectl; a DIJob needs none of it"
_KINDS: Final[Mapping[tuple[str, str], Other]] = {
    ("kubeflow.org", "PyTorchJob"): Other(_TRAINING_OPERATOR, "from-a-pytorchjob-of-kubeflow", converts=True),
    ("trainer.kubeflow.org", "TrainJob"): Other(
        "a job of Kubeflow Trainer", "from-a-trainjob-of-kubeflow", converts=True
    ),
    **{
        ("trainer.kubeflow.org", kind): Other(
            "what TrainJobs of Kubeflow Trainer refer to", "from-a-trainjob-of-kubeflow",
            instead="`diflow convert FILE` reads it in one file with its TrainJob",
        )
        for kind in ("TrainingRuntime", "ClusterTrainingRuntime")
    },
    **{
        ("kubeflow.org", kind): Other(_TRAINING_OPERATOR)
        for kind in ("TFJob", "MPIJob", "XGBoostJob", "PaddleJob", "JAXJob", "MXJob")
    },
    **{("ray.io", kind): Other("of KubeRay") for kind in ("RayJob", "RayCluster", "RayService", "RayCronJob")},
    ("jobset.x-k8s.io", "JobSet"): Other("a set of Jobs of Kubernetes"),
    ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"): Other("a set of groups of pods that serve, not a job"),
    ("batch", "Job"): Other("a Job of Kubernetes"),
    ("batch", "CronJob"): Other(
        "a CronJob of Kubernetes",
        instead="write its job as a DIJob, which a CronWorkflow can create (docs/pipelines.md)",
    ),
    ("batch.volcano.sh", "Job"): Other("a job of Volcano"),
    ("adaptdl.petuum.com", "AdaptDLJob"): Other("a job of AdaptDL", "from-adaptdl"),
    ("elastic.iml.github.io", "ElasticJob"): Other("a job of DLRover"),
    ("workload.codeflare.dev", "AppWrapper"): Other("a wrapper of CodeFlare around jobs"),
    ("sparkoperator.k8s.io", "SparkApplication"): Other("an application of Spark", instead="a DIJob runs no Spark"),
    ("argoproj.io", "Workflow"): Other("a Workflow of Argo itself", instead=_STEPS),
    ("argoproj.io", "WorkflowTemplate"): Other("a template of Argo's Workflows", instead=_STEPS),
    ("argoproj.io", "ClusterWorkflowTemplate"): Other("a template of Argo's Workflows", instead=_STEPS),
    ("argoproj.io", "CronWorkflow"): Other("a Workflow of Argo on a schedule", instead=_STEPS),
    **{
        (group, "PodGroup"): Other("a gang of a scheduler's own", instead=_BESIDE)
        for group in ("scheduling.volcano.sh", "scheduling.x-k8s.io", "scheduling.k8s.io", "scheduling.run.ai")
    },
    ("", "Pod"): Other("a pod"),
    ("apps", "Deployment"): Other("for programs that do not end, and no job"),
    ("apps", "StatefulSet"): Other("for programs that do not end, and no job"),
}  # fmt: skip
_MOST: Final = 80


def other_kind(manifest: Any) -> Other | None:
    """What a manifest of another program is, by its apiVersion and kind; None if it is of none that is known."""
    if not isinstance(manifest, Mapping):
        return None
    version, kind = manifest.get("apiVersion"), manifest.get("kind")
    if not isinstance(version, str) or not isinstance(kind, str):
        return None
    group = version.rpartition("/")[0]
    return _KINDS.get((group, kind))


def way_over(manifest: Any) -> str:
    """What such a manifest is, and the way to a DIJob, as one sentence; "" if it is of no known kind."""
    found = other_kind(manifest)
    if found is None:
        return ""
    version, kind = str(manifest["apiVersion"])[:_MOST], str(manifest["kind"])[:_MOST]
    return f"{kind} ({version}) is {found.what}, and not a DIJob: {found.way}"
