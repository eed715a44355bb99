"""The job of job.yaml, in Python: both render to the same bytes.

diflow submit cartpole.job:job --watch
"""

from typing import Any

from diflow import DIJob, Task

IMAGE = "docker.io/diflow/diflow:0.2.0"
VOLUME = {"name": "data", "hostPath": {"path": "/var/lib/diflow-demo", "type": "DirectoryOrCreate"}}


def pod(role: str, *, request: str, limit: str, memory_limit: str) -> dict[str, Any]:
    """A pod template that runs one role of the job."""
    container: dict[str, Any] = {
        "name": "di-container",
        "image": IMAGE,
        "command": ["python3", "-m", f"cartpole.{role}"],
        "resources": {
            "requests": {"cpu": request, "memory": "256Mi"},
            "limits": {"cpu": limit, "memory": memory_limit},
        },
    }
    if role != "learner":
        return {"spec": {"containers": [container]}}
    container["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
    return {"spec": {"containers": [container], "volumes": [VOLUME]}}


job = DIJob(
    name="cartpole",
    backoff_limit=3,
    clean_pod_policy="Running",
    tasks=(
        Task(type="learner", replicas=1, template=pod("learner", request="300m", limit="1", memory_limit="1Gi")),
        Task(
            type="collector",
            replicas=3,
            max_replicas=6,
            template=pod("collector", request="200m", limit="500m", memory_limit="512Mi"),
        ),
        Task(
            type="evaluator", replicas=1, template=pod("evaluator", request="200m", limit="500m", memory_limit="512Mi")
        ),
    ),
)
