"""The server's settings: each with its meaning, its unit and the reason for its default."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from diflow.daemon.environment import from_environment


class ServerSettings(BaseSettings):
    """What an administrator may change (environment: DIFLOW_SERVER_...)."""

    model_config = SettingsConfigDict(env_prefix="DIFLOW_SERVER_", frozen=True, extra="ignore", allow_inf_nan=False)

    # --- addresses -----------------------------------------------------------------------------------------------

    host: str = ""
    """The address to listen on; empty: all, of IPv4 and IPv6."""

    port: int = Field(8081, ge=0, le=65535)
    """The API's port; 0: a free one. The server of DI-orchestrator v1.1 uses 8081."""

    metrics_port: int = Field(8080, ge=-1, le=65535)
    """The port of /metrics, /healthz and /readyz. A port of its own, so that a flood of the API does not fail the
    pod's probes. 0: a free one; -1: none."""

    watched_namespace: str = ""
    """Only jobs of this namespace are served; empty: of all namespaces."""

    argo_url: str = ""
    """The address of the Argo UI, for links on the status page; empty: no links."""

    # --- caches and reviews --------------------------------------------------------------------------------------

    stale_seconds: float = Field(90.0, gt=0)
    """With caches older than this the API answers 503. Bookmarks arrive each minute; half a minute is for delays. The
    allocator has the same limit."""

    reading_share: float = Field(0.25, gt=0, le=100)
    """Seconds of a processor, in each second, that reading the changes of one namespace's objects may cost. Workflows
    of a namespace that needs more are read later; those of others are not."""

    kept_mib: int = Field(128, ge=8)
    """MiB of memory that the jobs of one namespace may take, with what the status page shows of them. Further ones are
    held until there is room."""

    review_seconds: float = Field(60.0, gt=0, le=60)
    """How long a TokenReview or SubjectAccessReview is cached, never beyond the token's expiry. A revoked token works
    no longer than this."""

    denial_seconds: float = Field(10.0, ge=0, le=60)
    """How long a denial is cached, so that a client that retries in a loop causes few reviews."""

    reviews_kept: int = Field(10_000, ge=1)
    """Reviews that are cached at most: several pods of each of a thousand jobs. About 1 KiB each. Of more, the
    namespace or user with the most of them loses one."""

    review_rate: float = Field(50.0, gt=0)
    """TokenReviews of one address a second in the long run, and access reviews of one account; ten seconds of it at
    once. Raise it if pods or users reach the server by a proxy, and so from one address."""

    unproven_pods: bool = False
    """Serve a job's pods without a token, identified by their address, for the jobs of their namespace. DI-engine's
    clients send no tokens. Others on the same network can forge an address, so this is off by default."""

    # --- writes --------------------------------------------------------------------------------------------------

    write_seconds: float = Field(1.0, ge=0)
    """The shortest time between two writes of one job's profilings. Reports that arrive meanwhile are merged."""

    report_rate: float = Field(25.0, gt=0)
    """Writes of reports a second, of all jobs, in the long run; their namespaces take turns. Argo looks at a Workflow
    after each write into it: on two processors, some 60 writes a second leave nothing for other jobs."""

    write_rate: float = Field(25.0, gt=0)
    """The same of requests for replicas, and of results of node checks: as many of each. Four seconds of it may be used
    at once for replicas, as a caller waits for these; of the rate and of that, one namespace gets two fifths."""

    shard_rate: float = Field(100.0, gt=0)
    """The same of data shards. They are in ConfigMaps, at which Argo does not look."""

    writers: int = Field(16, ge=1, le=64)
    """Concurrent requests to the API server, whose own limit for one client is higher. Of these, one namespace gets at
    most as many as it leaves free."""

    job_rate: float = Field(50.0, gt=0)
    """Requests per second of one job in the long run, with up to 250 replicas; of a larger one in proportion. A gang of
    50 reports once a second; 1,000 workers that lease 10,000 shards a minute send 80 requests a second."""

    job_burst: float = Field(200.0, ge=1)
    """Requests of one job at once, after a pause: all its ranks start together."""

    # --- limits of one request -----------------------------------------------------------------------------------

    body_bytes: int = Field(64 * 1024, ge=1024, le=16 * 1024 * 1024)
    """The longest body. A report with all of AdaptDL's fields is under 2 KiB."""

    header_bytes: int = Field(16 * 1024, ge=1024, le=1024 * 1024)
    """The longest head of a request, including its first line. A service-account token is under 2 KiB."""

    header_seconds: float = Field(10.0, gt=0)
    """To receive the head: from the start of the connection, later from its first byte. Also for the TLS handshake."""

    body_seconds: float = Field(10.0, gt=0)
    """To receive the body, from the end of the head."""

    answer_seconds: float = Field(10.0, gt=0)
    """From the end of the request until the client has read the response. After that the answer is 503."""

    poll_seconds: float = Field(60.0, ge=0)
    """The additional time of a long poll. AdaptDL's clients ask for 30 s."""

    # --- limits of connections -----------------------------------------------------------------------------------

    connections: int = Field(1024, ge=1)
    """Open connections. At the limit one is closed for the new one: the oldest with an incomplete request (503), else
    the longest idle one, else the oldest long poll (408: ask again). If there is none, the new one is refused (503). A
    thousand cost about 10 MiB, with TLS 50 MiB."""

    connections_per_address: int = Field(256, ge=0)
    """Of these from one address, so that a single pod cannot take them all; twice as many from one network (/24, or /64
    of IPv6), which is mostly one node. 0: no such limits, as needed behind a proxy."""

    refusals: int = Field(256, ge=0)
    """Connections beyond the limit that are answered (503) at the same time; further ones are reset."""

    idle_seconds: float = Field(15.0, gt=0)
    """An idle connection is closed after this. Jobs that report every few seconds keep theirs."""

    requests_per_connection: int = Field(1000, ge=1)
    """Then it is closed, so that clients spread over the replicas again after one of them was down."""

    pipelined: int = Field(8, ge=1)
    """Pipelined requests that wait on one connection. Hardly any client sends a second."""

    linger_seconds: float = Field(2.0, gt=0)
    """For the client to read the last response of a connection. Then the connection is reset."""

    # --- shutdown ------------------------------------------------------------------------------------------------

    drain_seconds: float = Field(5.0, ge=0)
    """After SIGTERM: for the cluster to route new connections elsewhere. Requests are served; /readyz returns 503."""

    ending_seconds: float = Field(25.0, gt=0)
    """After that: to answer requests in progress and to write reports. With drain_seconds it must stay below the pod's
    grace period (45 s in manifests/server)."""

    # --- TLS -----------------------------------------------------------------------------------------------------

    tls_certificate: Path | None = None
    """The certificate with its chain (PEM). None: no TLS."""

    tls_key: Path | None = None
    """Its key (PEM)."""

    tls_check_seconds: float = Field(10.0, gt=0)
    """How often both files are read; a new pair serves new connections. The kubelet itself needs a minute."""

    @field_validator("port", mode="before")
    @classmethod
    def _not_a_link(cls, value: object) -> object:
        """Kubernetes sets DIFLOW_SERVER_PORT=tcp://... in pods of a namespace with a Service diflow-server."""
        return 8081 if isinstance(value, str) and value.startswith("tcp://") else value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("a certificate needs its key: give both DIFLOW_SERVER_TLS_CERTIFICATE and _TLS_KEY")
        return self


def server_settings(**given: object) -> ServerSettings:
    """Settings from the environment and `given`. Raises InvalidError that names the variable."""
    return from_environment(ServerSettings, given)
