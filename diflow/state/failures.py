"""Which ends of a pod count against backoffLimit: the one list, for Argo's expressions and for everybody who reads.

What a program writes must not change what counts. Argo shows the pod's status message if there is one (kubelet:
evictions, rejections, shutdowns), else "<container>: <reason> (exit code n)", so each pattern is anchored at the start.
Sources: kubelet's pkg/kubelet/{eviction,lifecycle,nodeshutdown,preemption} and Argo's inferFailedReason.

The patterns are in the syntax that Go's regexp and Python's re share.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from diflow.state import untrusted

UNCOUNTED_MESSAGES: Final = (
    # the pod object vanished: the node was lost, or somebody deleted the pod
    "^pod deleted",
    # killed by SIGTERM or SIGKILL from outside: eviction by the API, preemption by the scheduler, a drained node.
    # Out of memory is told apart by its reason, OOMKilled.
    "^(main|wait): Error [(]exit code (137|143)[)]",
    # OutOfcpu, OutOfmemory, UnexpectedAdmissionError and the like
    "^Pod was rejected: ",
    # eviction by the kubelet because the node ran short (a pod over its own limits reads otherwise, and counts)
    "^The node (was|had) ",
    "^Preempted in order to admit critical pod",
    "^Pod was terminated in response to imminent node shutdown",
    # the node died with the pod on it, and no container's end was ever seen, or none had begun
    "^pod failed: neither main nor wait container completed",
    "^Pod failed before [a-z0-9-]+ container starts due to (ContainerCreating|PodInitializing): ",
    "^can.t find failed message for pod",
)

STOPPED_MESSAGE: Final = "^Pod was active on the node longer than the specified deadline"
"""The kubelet's words for a pod that the allocator stops: its way to end one gracefully is a deadline of a second."""

_UNCOUNTED: Final = re.compile("|".join(UNCOUNTED_MESSAGES))
_LONGEST: Final = 4096


def is_uncounted(message: str) -> bool:
    """Whether a pod with this message, as Argo shows it, ended for no fault of the job's own."""
    return _UNCOUNTED.match(message[:_LONGEST]) is not None


def message_of(status: Mapping[str, Any], terminated: Mapping[str, Any], *, container: str) -> str:
    """The message that Argo will show of a pod that has ended, from its status and how its main container ended."""
    if said := untrusted.string(status.get("message"), most=_LONGEST):
        return said
    code = terminated.get("exitCode")
    reason = untrusted.string(terminated.get("reason"), most=100) or "Error"
    return f"{container}: {reason} (exit code {code})" if isinstance(code, int) and code else ""
