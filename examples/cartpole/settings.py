"""What a process learns from its environment: its rank, the learner's address, the job's folder and the target.

diflow sets the DI_* variables in every container. The CARTPOLE_* variables are this example's own.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cartpole.faults import SettingError

DEFAULT_PORT = 22270  # the port that diflow names `di-port` in every pod and in the job's Service
DEFAULT_TARGET = 475.0  # Gymnasium's own bar for CartPole-v1: a mean return of 475 over 100 consecutive episodes
DEFAULT_LEARNING_RATE = 2e-5  # see ppo.Rule
DEFAULT_DIR = "/data"


@dataclass(frozen=True, slots=True)
class Address:
    """A host and a TCP port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Settings:
    """One process's place in the job."""

    rank: int
    name: str  # this replica's own node: ranks move up when a job grows, names stay
    learner: Address
    expected: frozenset[str]  # the nodes of the collectors and evaluators that the job had when this process started
    collectors: tuple[str, ...]  # those of the collectors alone
    nodes_file: Path | None  # where diflow writes the nodes that the job has now
    folder: Path
    target: float  # the mean return over 100 episodes that ends the job
    learning_rate: float
    seed: int | None  # None: different at every start

    def present(self) -> frozenset[str] | None:
        """The nodes that the job has now, None if nobody writes them down here."""
        try:
            text = self.nodes_file.read_text(encoding="utf-8") if self.nodes_file is not None else ""
        except OSError:
            return None
        return frozenset(_split(text)) or None


def read(environ: Mapping[str, str]) -> Settings:
    """Read the settings of this process; raises SettingError that names the variable."""
    nodes = _names(environ, "DI_NODES")
    learners = _names(environ, "DI_LEARNER_NODES") or nodes[:1]
    if not learners:
        raise SettingError(
            "no learner to talk to: neither DI_LEARNER_NODES nor DI_NODES is set. diflow sets them in a pod; "
            "on your own machine start all roles with `python3 -m cartpole.local`"
        )
    rank = _number(environ, "DI_RANK", default=0)
    if rank < 0:
        raise SettingError(f"DI_RANK is {rank}: a rank is 0 or more")
    nodes_file = environ.get("DI_NODES_FILE", "").strip()
    seed = environ.get("CARTPOLE_SEED", "").strip()
    return Settings(
        rank=rank,
        name=nodes[rank] if rank < len(nodes) else f"rank-{rank}",
        learner=_address(learners[0]),
        expected=frozenset(nodes) - frozenset(learners),
        collectors=tuple(_names(environ, "DI_COLLECTOR_NODES")),
        nodes_file=Path(nodes_file) if nodes_file else None,
        folder=_folder(environ),
        target=_positive(environ, "CARTPOLE_TARGET", default=DEFAULT_TARGET, highest=500),
        learning_rate=_positive(environ, "CARTPOLE_LEARNING_RATE", default=DEFAULT_LEARNING_RATE, highest=1),
        seed=_number(environ, "CARTPOLE_SEED", default=0) if seed else None,
    )


def _names(environ: Mapping[str, str], variable: str) -> list[str]:
    return _split(environ.get(variable, ""))


def _split(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _address(text: str) -> Address:
    host, colon, port = text.rpartition(":")
    if not colon:
        return Address(text, DEFAULT_PORT)
    if not (port.isascii() and port.isdecimal() and len(port) < 6) or not 0 < int(port) < 2**16 or not host:
        raise SettingError(f"`{text}` in DI_NODES is not a host or host:port")
    return Address(host, int(port))


def _number(environ: Mapping[str, str], variable: str, *, default: int) -> int:
    text = environ.get(variable, "").strip()
    try:
        return int(text) if text else default
    except ValueError:
        raise SettingError(f"{variable} is `{text}`: a whole number was expected") from None


def _positive(environ: Mapping[str, str], variable: str, *, default: float, highest: float) -> float:
    text = environ.get(variable, "").strip()
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= highest:
        raise SettingError(f"{variable} is `{text}`: a number above 0 and at most {highest:g} was expected")
    return value


def _folder(environ: Mapping[str, str]) -> Path:
    """A folder of the job's own inside the volume, so that two jobs on one volume do not mix."""
    volume = Path(environ.get("CARTPOLE_DIR", "").strip() or DEFAULT_DIR)
    job = environ.get("DI_JOB_ID", "").strip().replace("/", ".")
    if not job:
        return volume
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", job):
        raise SettingError(f"DI_JOB_ID is `{job}`: namespace/name was expected")
    return volume / job
