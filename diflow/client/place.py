"""Where a training process is: which job's, which server answers for it, and what its replica is called now.

All of it comes from the environment that diflow gives each container, and from the files that the kubelet keeps up to
date beside it. A process that runs elsewhere, such as on a developer's laptop, is in no job.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_TOKEN_FILE: Final = "/var/run/secrets/diflow/token"  # noqa: S105 (where it is, not what it says)
_MOST_BYTES: Final = 65_536  # of a file that is read; a token has some 1,100


@dataclass(frozen=True, slots=True)
class Standing:
    """What a replica is in its job at one moment. None is what cannot be known."""

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

    def token(self) -> str | None:
        """The token of this pod as it is now: the kubelet writes a new one before the old one ends. None without."""
        return _text(self.token_file)

    def standing(self) -> Standing:
        """Rank, round and number of replicas as the files say now, else as the process was told at its start."""
        rank, replicas = self._now("rank"), self._now("replicas")
        return Standing(
            rank=self.rank if rank is None else rank,
            round=self._now("round"),
            replicas=self.replicas if replicas is None else replicas,
        )

    def _now(self, name: str) -> int | None:
        return None if self.roster is None else _number(_text(self.roster / name))


def find(environ: Mapping[str, str]) -> Place | None:
    """The place that the environment tells of, None if it tells of no job or of no server.

    DI_SERVER_CA_FILE names the certificates of those who may vouch for a server of `https`; without it they are those
    that `requests` brings.
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
