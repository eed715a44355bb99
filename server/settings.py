"""Settings of the server: each with its meaning, its unit and the reason for its default."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from diflow.environment import from_environment


class ServerSettings(BaseSettings):
    """What an administrator may change about the server (environment: DIFLOW_SERVER_...)."""

    model_config = SettingsConfigDict(env_prefix="DIFLOW_SERVER_", frozen=True, extra="ignore", allow_inf_nan=False)

    # --- where ---------------------------------------------------------------------------------------------------

    host: str = ""
    """The address to listen on; empty: all of them, of both kinds of IP."""

    port: int = Field(8081, ge=0, le=65535)
    """The API's port; 0: a free one. 8081 is that of DI-orchestrator v1.1's server."""

    metrics_port: int = Field(8080, ge=-1, le=65535)
    """Where /metrics, /healthz and /readyz are, apart from the API: a flood of the API does not get the pod killed.
    0: a free one; -1: nowhere."""

    watched_namespace: str = ""
    """Only jobs of this namespace are served; empty: of all."""

    argo_url: str = ""
    """Where the Argo UI is, for the links of the status page; empty: nowhere."""

    # --- what is known of the cluster ----------------------------------------------------------------------------

    stale_seconds: float = Field(90.0, gt=0)
    """From caches older than this nothing is answered (503): bookmarks come each minute, and half a minute is for
    delays. As the allocator has it."""

    review_seconds: float = Field(60.0, gt=0, le=60)
    """How long the answer of a TokenReview holds, and never past the token's end. A token that was taken back works
    no longer than this."""

    denial_seconds: float = Field(10.0, ge=0, le=60)
    """How long it is remembered that a token is worth nothing, so that one client in a loop costs few reviews."""

    reviews_kept: int = Field(10_000, ge=1)
    """Answers of reviews that are kept at most: some pods of each of a thousand jobs. About 1 KiB each."""

    unproven_pods: bool = False
    """Serve pods of jobs that show no token, known by their address, for the jobs of their namespace. Clients of
    DI-engine know nothing of tokens; an address can be forged by whoever shares the network, so it is off."""

    # --- writes --------------------------------------------------------------------------------------------------

    write_seconds: float = Field(1.0, ge=0)
    """Between two writes of one job's profilings: what its ranks report meanwhile becomes one write."""

    writers: int = Field(16, ge=1, le=64)
    """Requests to the API server under way at once. Its own limit for one client is higher."""

    job_rate: float = Field(50.0, gt=0)
    """Requests a second that one job may make for long. A gang of 50 reports once a second."""

    job_burst: float = Field(200.0, ge=1)
    """Requests that one job may make at once, after silence: all its ranks start together."""

    # --- limits of one request -----------------------------------------------------------------------------------

    body_bytes: int = Field(64 * 1024, ge=1024, le=16 * 1024 * 1024)
    """The longest body. A report with all that AdaptDL knows is under 2 KiB."""

    header_bytes: int = Field(16 * 1024, ge=1024, le=1024 * 1024)
    """The longest head of a request, its first line included. A service-account token is under 2 KiB."""

    header_seconds: float = Field(10.0, gt=0)
    """For a whole head to come, from the connection or from its first byte on. Also for the handshake of TLS."""

    body_seconds: float = Field(10.0, gt=0)
    """For the whole body to come, once the head has."""

    answer_seconds: float = Field(10.0, gt=0)
    """For the answer to be made and taken, once the request has come. What takes longer is answered with 503."""

    poll_seconds: float = Field(60.0, ge=0)
    """What a request that waits on purpose (a long poll) may take besides. Clients of AdaptDL ask for 30 s."""

    # --- limits of connections -----------------------------------------------------------------------------------

    connections: int = Field(1024, ge=1)
    """Open at once. At the limit the one makes room that has been without a whole request for longest (it is told 503),
    else the one that has been idle for longest, else the one that has waited on purpose for longest (it is told 408:
    ask again); if there is none, the new one is told 503. A thousand cost about 10 MiB, with TLS 50 MiB."""

    connections_per_address: int = Field(256, ge=0)
    """Of these, from one address: a single pod cannot take them all; and twice as many from one network (/24, or /64 of
    IPv6), which mostly is one node. 0: no such limits, as behind a proxy."""

    refusals: int = Field(256, ge=0)
    """Connections beyond the limit that are answered at once; those beyond this, too, are reset."""

    idle_seconds: float = Field(15.0, gt=0)
    """A connection without a request is closed after this. Jobs that report each few seconds keep theirs."""

    requests_per_connection: int = Field(1000, ge=1)
    """Then it is closed, so that clients spread over the replicas again after one of them was away."""

    pipelined: int = Field(8, ge=1)
    """Requests that wait on one connection for the answer to the one before. Hardly any client sends a second."""

    linger_seconds: float = Field(2.0, gt=0)
    """After an answer that ends a connection: for the client to take it. Then the connection is reset."""

    # --- the end -------------------------------------------------------------------------------------------------

    drain_seconds: float = Field(5.0, ge=0)
    """After SIGTERM: for the cluster to send new connections elsewhere. All is served meanwhile; /readyz says 503."""

    ending_seconds: float = Field(25.0, gt=0)
    """After that: for requests under way to be answered and for reports to be written. With drain_seconds it must stay
    below the pod's grace period (45 s in manifests/server)."""

    # --- TLS -----------------------------------------------------------------------------------------------------

    tls_certificate: Path | None = None
    """The certificate with its chain (PEM). None: no TLS."""

    tls_key: Path | None = None
    """Its key (PEM)."""

    tls_check_seconds: float = Field(10.0, gt=0)
    """How often both files are looked at; a new pair serves new connections. The kubelet itself needs a minute."""

    @field_validator("port", mode="before")
    @classmethod
    def _not_a_link(cls, value: object) -> object:
        """Kubernetes sets DIFLOW_SERVER_PORT=tcp://... in pods beside a Service of the name diflow-server."""
        return 8081 if isinstance(value, str) and value.startswith("tcp://") else value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("a certificate needs its key: give both DIFLOW_SERVER_TLS_CERTIFICATE and _TLS_KEY")
        return self


def server_settings(**given: object) -> ServerSettings:
    """Settings from the environment and `given`. Raises InvalidError that names the variable."""
    return from_environment(ServerSettings, given)
