"""Scheduling gates of other controllers: a gang whose pods have some gets places when all of these are gone.

Its pods are made with diflow's own gate beside them, and use no capacity: whoever removes the others sees the pods, and
may take as long as it likes. Nobody else waits meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from diflow.allocator.watch.job import Job
from diflow.allocator.write import patches
from diflow.allocator.write.patches import Note, Write
from diflow.common import keys
from diflow.common.words import named
from diflow.record.parameters import ADMITTED
from diflow.record.patches import live

_MOST_NAMED: Final = 3


def gated(job: Job) -> str:
    """Which gates of others a job without places waits for, for people; "" if there are none."""
    gates = job.foreign_gates
    if not gates:
        return ""
    one = len(gates) == 1
    return (
        f"{'the scheduling gate' if one else 'scheduling gates'} {named(gates, _MOST_NAMED)} of other controllers "
        f"{'is' if one else 'are'} on its pods: it gets places when they are removed"
    )


def is_to_be_gated(job: Job, words: str) -> bool:
    """Whether the pods of a job that waits with these words have to be made, so that others remove their gates."""
    return job.read.argo.awaits_admission and job.may_begin and (why := gated(job)) != "" and why in words


def make_gated(job: Job, decision: Mapping[str, Any]) -> Write:
    """Let Argo make the pods of a job that has no places: they have diflow's gate."""
    return patches.change_job(
        job.read,
        parameters=live(places=ADMITTED),
        labels={keys.ADMITTED: "true"},
        spec={"suspend": None},
        decision=decision,
        note=Note("Waiting", str(decision["why"])),
    )
