"""What coordinators send and are answered, for the OpenAPI document. `routes` reads it more loosely."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from diflow.common.limits import MOST_REPLICAS

_Quantity = str | float | None


class WantedModules(BaseModel):
    """How many replicas, and what each requests: quantities of Kubernetes, such as 2, 500m or 4Gi."""

    replicas: Annotated[int, Field(le=MOST_REPLICAS)] | None = None
    cpus: _Quantity = None
    gpus: _Quantity = None
    memory: _Quantity = None


class _Request(BaseModel):
    namespace: str
    coordinator: str = Field(description="The name of the coordinator's pod.")


class ModulesRequest(_Request):
    """Keys match in any case."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "namespace": "default",
                "coordinator": "cartpole-coordinator",
                "collectors": {"replicas": 2, "cpus": "0.5", "gpus": "0", "memory": "1Gi"},
            }
        }
    )

    collectors: WantedModules | None = None
    learners: WantedModules | None = None


class FailedRequest(_Request):
    """Keys match in any case."""

    collectors: list[str] | None = Field(None, description="Names of pods, or `host:port`.")
    learners: list[str] | None = Field(None, description="Names of pods, or `host:port`.")


class ModuleReplicas(BaseModel):
    """The replicas of a coordinator or an aggregator, as `host:port`."""

    namespace: str
    coordinator: str = Field(description="The pod of the coordinator or the aggregator.")
    collectors: list[str]
    learners: list[str] = Field(description="Aggregators, too.")
