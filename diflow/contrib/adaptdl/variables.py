"""The environment variables that AdaptDL's clients read (its `adaptdl/env.py`)."""

from __future__ import annotations

from typing import Final

from diflow.common import keys
from diflow.dijob.model import DIJob
from diflow.workflows import expressions as expr

PORT: Final = 47000
"""Of the rendezvous of AdaptDL's clients, as in AdaptDL itself."""


def variables(job: DIJob) -> dict[str, str]:
    """The variables of a job that requests them.

    Only for such jobs: with a supervisor's URL, a script that uses AdaptDL alone would wait for its /discover. The
    checkpoint path is not set, as it depends on the user's volumes, and neither is ADAPTDL_NUM_NODES, which is unknown
    before the pods are bound; without it the clients assume a node for each replica.
    """
    if job.annotations.get(keys.ADAPTDL) != "true":
        return {}
    return {
        "ADAPTDL_JOB_ID": "$(DI_JOB_ID)",
        "ADAPTDL_SUPERVISOR_URL": "$(DI_SERVER_URL)",
        "ADAPTDL_REPLICA_RANK": "$(DI_RANK)",
        "ADAPTDL_NUM_REPLICAS": expr.template(expr.replicas()),
        "ADAPTDL_NUM_RESTARTS": expr.template(expr.rounds_before()),
        "ADAPTDL_MASTER_PORT": str(PORT),
        "ADAPTDL_SCHED_VERSION": "0.0.0",  # the clients' own value for no version, which they do not check
    }
