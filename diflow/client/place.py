"""The job of a training process, its server, and the replica's present rank.

Read from the environment variables that diflow sets in each container, and from files that the kubelet updates. A
process elsewhere, such as on a developer's laptop, has no job.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_TOKEN_FILE: Final = "/var/run/secrets/diflow/token"  # noqa: S105 (a path)
_MOST_BYTES: Final = 65_536  # of a file; a token has about 1,100


@dataclass(frozen=True, slots=True)
class Membership:
    """A replica's rank, round and number of replicas at one time. None is unknown."""

    rank: int | None
    round: int | None
    replicas: int | None


@dataclass(frozen=True, slots=True)
class Place:
    """A process's place in a job. `job` is `namespace.name`, as the server's paths have it."""

    url: str
    job: str
    token_file: Path
    roster: Path | None
    rank: int | None
    replicas: int | None
    authorities: str | None
    heartbeat_seconds: int | None = None
    """How often the process says that it lives, None if its job does not ask for that."""

    def token(self) -> str | None:
        """The pod's current token, which the kubelet renews before it expires; None if there is none."""
        return _text(self.token_file)

    def membership(self) -> Membership:
        """Rank, round and number of replicas from the files, else from the environment at the start."""
        rank, replicas = self._now("rank"), self._now("replicas")
        return Membership(
            rank=self.rank if rank is None else rank,
            round=self._now("round"),
            replicas=self.replicas if replicas is None else replicas,
        )

    def _now(self, name: str) -> int | None:
        return None if self.roster is None else _number(_text(self.roster / name))


def find(environ: Mapping[str, str]) -> Place | None:
    """The place given by the environment; None if it has no job or no server.

    DI_SERVER_CA_FILE names the CA certificates for a server with `https`; by default those of `requests`.
    """
    job = environ.get("DI_JOB_ID", "").strip().replace("/", ".", 1)
    url = environ.get("DI_SERVER_URL", "").strip().rstrip("/")
    if not job or not url:
        return None
    nodes = [name for name in environ.get("DI_NODES", "").split(",") if name.strip()]
    nodes_file = environ.get("DI_NODES_FILE", "").strip()
    return Place(
        url=url if "://" in url else f"http://{url}",
        job=job,
        token_file=Path(environ.get("DI_TOKEN_FILE", "").strip() or _TOKEN_FILE),
        roster=Path(nodes_file).parent if nodes_file else None,
        rank=_number(environ.get("DI_RANK")),
        replicas=len(nodes) or None,
        authorities=environ.get("DI_SERVER_CA_FILE", "").strip() or None,
        heartbeat_seconds=_number(environ.get("DI_HEARTBEAT_SECONDS")) or None,
    )


def _text(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES)
    except OSError:
        return None
    return data.decode("ascii", "ignore").strip() or None


def _number(text: str | None) -> int | None:
    text = (text or "").strip()
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else None
