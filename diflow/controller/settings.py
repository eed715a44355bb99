"""Settings of the controller: each with its meaning, its unit and the reason for its default."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

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

    reading_share: float = Field(0.25, gt=0, le=100)
    """Seconds of a processor, in each second, that reading the changes of one namespace's objects may cost. Those of a
    namespace that needs more are read later; those of others are not. Looks at its jobs may cost twice as much, and
    wait then too."""

    kept_mib: int = Field(64, ge=8)
    """MiB of memory that the DIJob objects of one namespace may take, and as much for their Workflows. Further ones are
    held until there is room."""

    stale_seconds: float = Field(90.0, gt=0)
    """The process is not ready if its caches are older than this: bookmarks come each minute, plus half a minute for
    delays."""


def controller_settings(**given: object) -> ControllerSettings:
    """Settings from the environment and `given`. Raises InvalidError that names the variable."""
    return from_environment(ControllerSettings, given)
