"""Settings of the controller: each with its meaning, its unit and the reason for its default."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from diflow.common import keys
from diflow.daemon.environment import from_environment


class ControllerSettings(BaseSettings):
    """What an administrator may change about the controller (environment: DIFLOW_CONTROLLER_...)."""

    model_config = SettingsConfigDict(env_prefix="DIFLOW_CONTROLLER_", frozen=True, extra="ignore", allow_inf_nan=False)

    namespace: str = "diflow-system"
    """Where the Lease is."""

    watched_namespace: str = ""
    """Only DIJobs of this namespace get Workflows; empty: those of all."""

    workers: int = Field(8, ge=1, le=64)
    """Jobs that are looked at at the same time. A look waits for the API server most of its time."""

    status_seconds: float = Field(1.0, gt=0)
    """The least time between two writes of one job's status, so that a job whose pods change all the time costs one
    write a second."""

    aggregator_config: str = keys.AGGREGATOR_CONFIG
    """The AggregatorConfig with the template of the aggregators of v1alpha1 jobs, as `namespace/name`. It is read when
    a job starts."""

    aggregator_file: Path | None = None
    """A file with an AggregatorConfig, which is read instead."""

    stale_seconds: float = Field(90.0, gt=0)
    """The process is not ready if its caches are older than this: bookmarks come each minute, plus half a minute for
    delays."""


def controller_settings(**given: object) -> ControllerSettings:
    """Settings from the environment and `given`. Raises InvalidError that names the variable."""
    return from_environment(ControllerSettings, given)
