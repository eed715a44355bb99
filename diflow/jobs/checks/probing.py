"""Whether an admission policy of manifests/ is in force: by a dry run that it refuses."""

from __future__ import annotations

from diflow.common import keys
from diflow.common.errors import ConflictError, InvalidError
from diflow.kube.api import Cluster
from diflow.kube.kinds import WORKFLOW


def is_refused(cluster: Cluster, name: str, *, message: str, namespace: str, manager: str = "") -> bool:
    """Whether a policy with this message refuses to create a Workflow of this name, with this field manager. It is a
    dry run: nothing is stored.

    Raises the errors of requests that are refused for another reason.
    """
    # It has the label of a job, as the policies look at no other Workflows, and a template, as an invalid Workflow may
    # be refused before any policy is asked.
    probe = {
        "apiVersion": WORKFLOW.api_version,
        "kind": WORKFLOW.name,
        "metadata": {"name": name, "labels": {keys.MANAGED_BY: keys.MANAGED_BY_VALUE}},
        "spec": {"entrypoint": "none", "suspend": True, "templates": [{"name": "none", "suspend": {}}]},
    }
    try:
        cluster.create(WORKFLOW, probe, namespace=namespace, dry_run=True, manager=manager)
    except ConflictError:  # there is a Workflow of that name: the policy was asked before
        return False
    except InvalidError as error:
        if message in str(error):
            return True
        raise
    return False
