"""How long a pod may run on after its job was ended.

To end a job, Argo sends SIGTERM to the containers of its pods, counts the pods as ended at once, and then sees them no
more: the SIGKILL that is due after their grace period is never sent (Argo 3.7 to 4.1). Who has made Argo end the job
therefore has the kubelet stop each pod that still runs after its grace period. The kubelet sends SIGTERM once more, and
SIGKILL after another grace period; the logs and the exit codes are kept.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from diflow.record import untrusted
from diflow.record.pod import PodRecord

SLACK_SECONDS: Final = 5.0
"""For Argo's signal, and for the report of the end of a pod that has used its whole grace period."""
STOP_NOW: Final[Mapping[str, Any]] = {"spec": {"activeDeadlineSeconds": 1}}
"""The patch by which the kubelet stops a pod at once, with its grace period."""


def patience_seconds(pod: PodRecord) -> float:
    """How long a pod may run on after Argo was to end it."""
    return pod.grace_seconds + SLACK_SECONDS


def deadline(pod: Mapping[str, Any], left_seconds: float, *, now: float) -> dict[str, Any] | None:
    """The patch by which the kubelet stops a pod in `left_seconds`; None if it has an earlier deadline already."""
    metadata, spec = untrusted.sub(pod, "metadata"), untrusted.sub(pod, "spec")
    began = untrusted.seconds(untrusted.sub(pod, "status").get("startTime")) or now
    seconds = max(1, math.ceil(now + left_seconds - began))
    given = spec.get("activeDeadlineSeconds")
    if type(given) is int and given <= seconds:
        return None
    return {"metadata": {"uid": metadata.get("uid")}, "spec": {"activeDeadlineSeconds": seconds}}
