"""Fences earlier leaders: a new leader writes its epoch into each job.

A former leader may still send a write that it decided on before it lost the lead, as its process may be stopped between
the check of the Lease and the write. Such a write names the version that it was decided for, and is refused after this.
"""

from __future__ import annotations

import structlog

from diflow.allocator.engine.cluster_state import ClusterState
from diflow.allocator.engine.executor import Executor
from diflow.allocator.engine.patches import touch
from diflow.kube.leader_election import Elector

log = structlog.get_logger("diflow.allocator")


class Takeover:
    """The jobs that this leader has still to write its epoch into, with the versions that it found."""

    def __init__(self, elector: Elector, executor: Executor) -> None:
        self._elector, self._executor = elector, executor
        self._epoch = 0
        self._versions: dict[str, str] = {}

    def run(self, state: ClusterState) -> bool:
        """Write the epoch into jobs that have not changed since this process leads. Returns whether it sent writes."""
        epoch = self._elector.epoch
        if self._epoch != epoch:
            self._epoch = epoch
            live = state.jobs.values() if epoch > 1 else ()  # epoch 1 has no predecessor to fence
            self._versions = {job.key: job.read.identity.version for job in live if not job.read.has_ended}
        self._versions = {
            key: version
            for key, version in self._versions.items()
            if key in state.jobs and state.jobs[key].read.identity.version == version
        }
        out = [touch(state.jobs[key].read) for key in self._versions if not self._executor.is_backing_off(key)]
        if out:
            log.info("takes over", jobs=len(out), epoch=epoch)
            self._executor.apply(out, state.jobs)
        return bool(out)
