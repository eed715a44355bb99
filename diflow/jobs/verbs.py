"""The DIJob of the Python API: the model, with what can be done with it in a cluster.

Its methods import what they need when they are called: the client of Kubernetes takes 0.4 s, and Hera half a second.
"""

from __future__ import annotations

import warnings
from functools import partial
from typing import TYPE_CHECKING, Self, cast

from diflow.dijob import model

if TYPE_CHECKING:
    from hera.workflows import Workflow

    from diflow.kube.api import Cluster
    from diflow.record.status.status import JobStatus


class DIJob(model.DIJob):
    """A job of one or more tasks, run as one Argo Workflow."""

    @classmethod
    def from_cluster(cls, name: str, *, namespace: str | None = None, cluster: Cluster | None = None) -> Self:
        """The job `name` of a cluster: its DIJob object, or else the job that its Workflow was made of.

        Raises NotFoundError if there is neither.
        """
        from diflow.jobs import dijobs, lookup  # noqa: PLC0415
        from diflow.jobs.checks.connecting import connect  # noqa: PLC0415
        from diflow.record.parameters import stored_text  # noqa: PLC0415

        cluster = cluster or connect()
        found = dijobs.find(cluster, name, namespace=namespace)
        if found is not None:
            job = dijobs.read(found)[0]
        else:
            workflow = lookup.current_workflow(name, namespace=namespace, cluster=cluster)
            job = model.read_annotation(stored_text(workflow))
            job = job.model_copy(update={"namespace": namespace or cluster.namespace})
        # All is validated, and the fields are the same.
        return cast(Self, cls.model_construct(job.model_fields_set, **job.__dict__))

    def workflow(self) -> Workflow:
        """The Argo Workflow of this job, as a Hera Workflow. No request is sent."""
        from diflow.workflows import build  # noqa: PLC0415

        return build(self)

    def submit(self, *, cluster: Cluster | None = None) -> Self:
        """Create the job's Workflow. Returns the job with its namespace.

        Warns if the API server cannot check the pod templates, as the user may not create PodTemplates.

        Waits up to a minute until the pods of an earlier job of this name are gone. Raises ConflictError if they stay,
        or the name is taken.
        """
        from diflow.jobs import submit  # noqa: PLC0415
        from diflow.jobs.checks import templates  # noqa: PLC0415

        def tell(why: str) -> None:
            warnings.warn(why, UserWarning, stacklevel=2)

        return submit.submit(self, cluster=cluster, checks=submit.Checks(templates=partial(templates.check, tell=tell)))

    def wait(self, *, timeout_seconds: float | None = None, cluster: Cluster | None = None) -> JobStatus:
        """Wait until the job has ended and return its status.

        Raises JobFailedError if it failed, TimeoutError after `timeout_seconds`.
        """
        from diflow.jobs import wait  # noqa: PLC0415

        return wait.wait(self.name, namespace=self.namespace, timeout_seconds=timeout_seconds, cluster=cluster)

    def delete(self, *, cluster: Cluster | None = None) -> None:
        """Delete the job's Workflow and its dependents. A missing job is not an error."""
        from diflow.jobs import delete  # noqa: PLC0415

        delete.delete(self.name, namespace=self.namespace, cluster=cluster)

    def _repr_html_(self) -> str:
        from diflow.dijob.html import job_card  # noqa: PLC0415

        return job_card(self)
