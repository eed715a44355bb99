"""Other forms of a DIJob object than one with tasks. What such a form is, is not known here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from diflow.common import contribs
from diflow.dijob.model import DIJob
from diflow.kube.api import Cluster

Json = dict[str, Any]


class Form(Protocol):
    """How the controller treats objects of a form."""

    def is_one(self, job: Mapping[str, Any]) -> bool:
        """Whether an object, of whatever version it was read as, has this form."""
        ...

    def job_of(self, job: Mapping[str, Any], cluster: Cluster) -> DIJob:
        """Its job. Raises InvalidError, and UnavailableError if it has to wait."""
        ...

    def render(self, job: DIJob) -> Json:
        """The Workflow of the job. Raises InvalidError."""
        ...

    def path(self, path: str, job: DIJob) -> str:
        """The path in the object of a field of its job."""
        ...

    def status(self, made: Json) -> Json:
        """The status of the object, made of that of one with tasks."""
        ...


def form_of(job: Mapping[str, Any]) -> Form | None:
    """The form of an object, None if it is one with tasks."""
    forms: tuple[Form, ...] = contribs.found("controller.forms")
    return next((form for form in forms if form.is_one(job)), None)
