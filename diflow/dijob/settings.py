"""The settings for rendering a DIJob, read from the environment.

Each setting has its meaning, its unit and the reason for its default.
"""

from __future__ import annotations

import json
from functools import cached_property
from typing import Any

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from diflow.common.errors import InvalidError
from diflow.common.limits import LONGEST_IMAGE
from diflow.daemon.environment import from_environment
from diflow.version import __version__

_DEFAULT_RESOURCES = '{"resources": {"requests": {"cpu": "1", "memory": "2Gi"}}}'


class RenderSettings(BaseSettings):
    """An administrator's settings for the pods of all jobs."""

    model_config = SettingsConfigDict(env_prefix="DIFLOW_", frozen=True, extra="ignore")

    server_url: str = "http://diflow-server.diflow-system.svc.cluster.local:8081"
    """The URL of the REST API for pods (env DI_SERVER_URL). Default: the Service in manifests/; 8081 is the port of
    DI-orchestrator v1.1's server, so its clients need no change."""

    run_as_user: int = Field(65532, ge=1)
    """User and group id of containers without one in the template. Any id except 0 would do; 65532 is the `nonroot`
    user of widely used base images."""

    image: str = Field(f"docker.io/diflow/diflow:{__version__}", min_length=1, max_length=LONGEST_IMAGE)
    """diflow's image, for the node check in the pods of jobs. Default: the image in manifests/; set it where the image
    is in a registry of your own."""

    resources_json: str = Field(_DEFAULT_RESOURCES, validation_alias="DI_JOB_DEFAULT_RESOURCES")
    """Resources of a main container without requests, in DI-orchestrator's format: 1 CPU and 2 GiB. Limits equal the
    requests unless they are given, too."""

    @cached_property
    def default_resources(self) -> dict[str, dict[str, str]]:
        """The parsed `resources_json`: {"requests": {...}, "limits": {...}} with quantities as text."""
        try:
            given = json.loads(self.resources_json)["resources"]
            requests = _quantities(given["requests"])
            limits = _quantities(given["limits"]) if "limits" in given else dict(requests)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise InvalidError(
                'DI_JOB_DEFAULT_RESOURCES must look like {"resources": {"requests": {"cpu": 2, "memory": "3Gi"}}}, '
                f"not {self.resources_json!r}"
            ) from None
        return {"requests": requests, "limits": limits}


def render_settings() -> RenderSettings:
    """Read the settings from the environment. Raises InvalidError that names the variable."""
    return from_environment(RenderSettings, {})


def _quantities(values: dict[str, Any]) -> dict[str, str]:
    return {str(name): str(quantity) for name, quantity in values.items()}
