"""The types of a pod template's fields, as models of pydantic, most of them Argo's."""

from __future__ import annotations

from hera.workflows import models as m
from pydantic import BaseModel, ConfigDict, Field


class _Typed(BaseModel):
    """A part of a PodSpec that Argo's own models do not have."""

    model_config = ConfigDict(frozen=True)


class _Spread(_Typed):
    label_selector: m.LabelSelector | None = Field(None, alias="labelSelector")
    match_label_keys: list[str] | None = Field(None, alias="matchLabelKeys")
    max_skew: int = Field(alias="maxSkew")
    min_domains: int | None = Field(None, alias="minDomains")
    node_affinity_policy: str | None = Field(None, alias="nodeAffinityPolicy")
    node_taints_policy: str | None = Field(None, alias="nodeTaintsPolicy")
    topology_key: str = Field(alias="topologyKey")
    when_unsatisfiable: str = Field(alias="whenUnsatisfiable")


class _ReadinessGate(_Typed):
    condition_type: str = Field(alias="conditionType")


class _PodClaim(_Typed):
    name: str
    resource_claim_name: str | None = Field(None, alias="resourceClaimName")
    resource_claim_template_name: str | None = Field(None, alias="resourceClaimTemplateName")


class _Named(_Typed):
    name: str


class PodMetadata(BaseModel):
    """The metadata of a pod template."""

    model_config = ConfigDict(frozen=True)

    name: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class PodSpec(BaseModel):
    """A Kubernetes PodSpec (v1.34), typed where diflow or Argo looks inside it."""

    model_config = ConfigDict(frozen=True)

    containers: list[m.Container] = Field(min_length=1)
    init_containers: list[m.Container] | None = Field(None, alias="initContainers")
    volumes: list[m.Volume] | None = None
    affinity: m.Affinity | None = None
    tolerations: list[m.Toleration] | None = None
    security_context: m.PodSecurityContext | None = Field(None, alias="securityContext")
    host_aliases: list[m.HostAlias] | None = Field(None, alias="hostAliases")
    image_pull_secrets: list[m.LocalObjectReference] | None = Field(None, alias="imagePullSecrets")
    dns_config: m.PodDNSConfig | None = Field(None, alias="dnsConfig")
    node_selector: dict[str, str] | None = Field(None, alias="nodeSelector")
    topology_spread_constraints: list[_Spread] | None = Field(None, alias="topologySpreadConstraints")
    readiness_gates: list[_ReadinessGate] | None = Field(None, alias="readinessGates")
    resource_claims: list[_PodClaim] | None = Field(None, alias="resourceClaims")
    scheduling_gates: list[_Named] | None = Field(None, alias="schedulingGates")
    overhead: dict[str, m.Quantity] | None = None
    resources: m.ResourceRequirements | None = None
    os: _Named | None = None
    active_deadline_seconds: int | None = Field(None, alias="activeDeadlineSeconds")
    automount_service_account_token: bool | None = Field(None, alias="automountServiceAccountToken")
    dns_policy: str | None = Field(None, alias="dnsPolicy")
    enable_service_links: bool | None = Field(None, alias="enableServiceLinks")
    host_ipc: bool | None = Field(None, alias="hostIPC")
    host_network: bool | None = Field(None, alias="hostNetwork")
    host_pid: bool | None = Field(None, alias="hostPID")
    host_users: bool | None = Field(None, alias="hostUsers")
    hostname: str | None = None
    node_name: str | None = Field(None, alias="nodeName")
    preemption_policy: str | None = Field(None, alias="preemptionPolicy")
    priority: int | None = None
    priority_class_name: str | None = Field(None, alias="priorityClassName")
    restart_policy: str | None = Field(None, alias="restartPolicy")
    runtime_class_name: str | None = Field(None, alias="runtimeClassName")
    scheduler_name: str | None = Field(None, alias="schedulerName")
    service_account: str | None = Field(None, alias="serviceAccount")
    service_account_name: str | None = Field(None, alias="serviceAccountName")
    set_hostname_as_fqdn: bool | None = Field(None, alias="setHostnameAsFQDN")
    share_process_namespace: bool | None = Field(None, alias="shareProcessNamespace")
    subdomain: str | None = None
    termination_grace_period_seconds: int | None = Field(None, alias="terminationGracePeriodSeconds", ge=0)


class PodTemplate(BaseModel):
    """A PodTemplateSpec."""

    model_config = ConfigDict(frozen=True)

    metadata: PodMetadata | None = None
    spec: PodSpec


class Volumes(BaseModel):
    volumes: list[m.Volume]
