"""Settings of the controller for jobs with a coordinator."""

from __future__ import annotations

from pathlib import Path

from pydantic_settings import BaseSettings, SettingsConfigDict

from diflow.common import keys
from diflow.daemon.environment import from_environment


class AggregatorSettings(BaseSettings):
    """Where the template of the aggregators is (environment: DIFLOW_CONTROLLER_...)."""

    model_config = SettingsConfigDict(env_prefix="DIFLOW_CONTROLLER_", frozen=True, extra="ignore")

    aggregator_config: str = keys.AGGREGATOR_CONFIG
    """The AggregatorConfig with it, as `namespace/name`. It is read when a job starts."""

    aggregator_file: Path | None = None
    """A file with an AggregatorConfig, which is read instead."""


def aggregator_settings() -> AggregatorSettings:
    """Settings from the environment. Raises InvalidError that names the variable."""
    return from_environment(AggregatorSettings, {})
