"""Fences former leaders: none of their writes takes effect after this leader's decisions.

A former leader may still send a write that it decided on before it lost the lead, as its process may be stopped between
the check of the Lease and the write. If the policy of manifests/allocator/fence.yaml is installed, the API server
refuses such a write, which is proven before the first decision. Otherwise this leader changes each job, so that a write
that names an earlier version of it is refused: first the jobs that may be given capacity, the rest while it decides.
"""

from __future__ import annotations

from typing import Final

import structlog

from diflow.allocator.watch.cluster_state import ClusterState
from diflow.allocator.watch.job import Job
from diflow.allocator.write.executor import Executor
from diflow.allocator.write.patches import touch
from diflow.common.clock import Clock
from diflow.common.errors import DiflowError
from diflow.jobs.checks import fence
from diflow.kube.api import Cluster
from diflow.kube.leader_election import Elector

# The API server sees the Lease by a watch, within milliseconds. After this time it is not waited for.
_PROOF_SECONDS: Final = 5.0
_BETWEEN_PROOFS_SECONDS: Final = 0.1
# The jobs are changed for this long in one cycle, so many at a time: a thousand take more than a minute.
_TOUCH_SECONDS: Final = 2.0
_TOUCHES: Final = 32

log = structlog.get_logger("diflow.allocator")


class Takeover:
    """The jobs that this leader has still to write its epoch into, with the versions that it found."""

    def __init__(
        self,
        cluster: Cluster,
        elector: Elector,
        executor: Executor,
        *,
        clock: Clock,
    ) -> None:
        self._cluster, self._elector, self._executor = cluster.without_retries(), elector, executor
        self._clock = clock
        self._epoch = 0
        self._versions: dict[str, str] = {}
        self.is_unfinished = False
        """Whether there are jobs left for the next cycle."""

    def run(self, state: ClusterState) -> bool:
        """Fence the former leader. Returns whether it changed jobs."""
        epoch = self._elector.epoch
        if self._epoch != epoch:
            is_fenced = self._is_fenced()
            self._versions = {
                job.key: job.read.identity.version
                for job in sorted(state.jobs.values(), key=_may_be_given_less)
                if not is_fenced and not job.read.has_ended
            }
            self._epoch = epoch
        self._versions = {
            key: version
            for key, version in self._versions.items()
            if key in state.jobs and state.jobs[key].read.identity.version == version
        }
        out = [touch(state.jobs[key].read) for key in self._versions if not self._executor.backoffs.is_active(key)]
        if out:
            log.info("jobs get the new epoch", jobs=len(out), epoch=epoch)
        ends = self._clock.monotonic() + _TOUCH_SECONDS
        sent = 0
        while sent < len(out) and (not sent or self._clock.monotonic() < ends):
            some = out[sent : sent + _TOUCHES]
            refused = {write.job for write in self._executor.apply(some, state.jobs)}
            for job in {write.job for write in some} - refused:
                del self._versions[job]
            sent += _TOUCHES
        self.is_unfinished = sent < len(out)
        return bool(out)

    def _is_fenced(self) -> bool:
        """Whether the API server refuses the writes of the former leader, and knows this one's Lease."""
        elector = self._elector
        former, none = elector.former_writes_as, elector.writes_as(0)
        ends = self._clock.monotonic() + _PROOF_SECONDS
        if elector.epoch == 1:  # the Lease is new: an earlier one may have been deleted under its leader
            return False
        why = "" if former else "the writes of the former leader do not name it"
        while not why:
            elector.check()
            try:
                if self._is_refused(former):
                    log.info("the former leader is fenced", epoch=elector.epoch)
                    return True
                if not self._is_refused(none):
                    why = "the policy of manifests/allocator/fence.yaml is not in force"
                elif self._clock.monotonic() >= ends:
                    why = f"the API server has not seen the Lease within {_PROOF_SECONDS:g} s"
                else:
                    self._clock.sleep(_BETWEEN_PROOFS_SECONDS)
            except DiflowError as error:
                why = str(error)
        log.warning("former leaders are not fenced: each job is changed once instead", why=why)
        return False

    def _is_refused(self, manager: str) -> bool:
        return fence.is_refused(self._cluster, manager, namespace=self._elector.namespace)


def _may_be_given_less(job: Job) -> tuple[int, float, str]:
    """Sort key: jobs that wait for capacity first, then those that are resized without their users' request."""
    waits = not job.read.live.counts or not job.has_started() or bool(job.lacks())
    return 0 if waits else 1 if job.read.terms.is_preemptible else 2, job.created_seconds, job.key
