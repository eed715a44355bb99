"""Which failures of a pod count against backoffLimit: one list for Argo's expressions and for all readers.

A program's own output must not affect this. Argo shows the pod's status message if there is one (kubelet: evictions,
rejections, shutdowns), else "<container>: <reason> (exit code n)", so each pattern is anchored at the start.
Sources: kubelet's pkg/kubelet/{eviction,lifecycle,nodeshutdown,preemption} and Argo's inferFailedReason.

The patterns use the syntax that Go's regexp and Python's re share.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from diflow.state import untrusted

UNCOUNTED_MESSAGES: Final = (
    # the pod object is gone: the node was lost, or a user deleted the pod
    "^pod deleted",
    # killed by SIGTERM or SIGKILL from outside: eviction by the API, preemption by the scheduler, a drained node.
    # Out of memory has a different reason, OOMKilled.
    "^(main|wait): Error [(]exit code (137|143)[)]",
    # OutOfcpu, OutOfmemory, UnexpectedAdmissionError and the like
    "^Pod was rejected: ",
    # eviction by the kubelet under node pressure (a pod over its own limits has another message, and counts)
    "^The node (was|had) ",
    "^Preempted in order to admit critical pod",
    "^Pod was terminated in response to imminent node shutdown",
    # the node failed with the pod on it: no container's termination was seen, or no container had started
    "^pod failed: neither main nor wait container completed",
    "^Pod failed before [a-z0-9-]+ container starts due to (ContainerCreating|PodInitializing): ",
    "^can.t find failed message for pod",
)

STOPPED_MESSAGE: Final = "^Pod was active on the node longer than the specified deadline"
"""The kubelet's message for a pod that the allocator stops: it sets activeDeadlineSeconds to 1 for a graceful stop."""

_UNCOUNTED: Final = re.compile("|".join(UNCOUNTED_MESSAGES))
_LONGEST: Final = 4096


def is_uncounted(message: str) -> bool:
    """Whether Argo's message says that the pod failed for an external reason, which does not count."""
    return _UNCOUNTED.match(message[:_LONGEST]) is not None


def message_of(status: Mapping[str, Any], terminated: Mapping[str, Any], *, container: str) -> str:
    """The message that Argo will show for a pod that has ended, given its status and its main container's state."""
    if said := untrusted.string(status.get("message"), most=_LONGEST):
        return said
    code = terminated.get("exitCode")
    reason = untrusted.string(terminated.get("reason"), most=100) or "Error"
    return f"{container}: {reason} (exit code {code})" if isinstance(code, int) and code else ""
