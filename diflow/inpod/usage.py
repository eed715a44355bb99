"""What the work of a pod uses, as far as a container beside it can see: CPU time, memory, GPUs.

A container sees only its own processes and its own control group. Those of the others are visible if the pod template
has `shareProcessNamespace: true`: then the files of their control groups are below `/proc/PID/root`.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")
_MOST_PROCESSES: Final = 4096
_MOST_BYTES: Final = 4096
_GPU_SECONDS: Final = 5.0
_HIGHEST: Final = 10**15
_GPU: Final = ("nvidia-smi", "--query-gpu=utilization.gpu,memory.used", "--format=csv,noheader,nounits")


@dataclass(frozen=True, slots=True)
class Usage:
    """CPU seconds so far, and bytes of memory now; None if they cannot be seen."""

    cpu_seconds: float | None = None
    memory_bytes: int | None = None


def of_work(proc: Path = PROC) -> Usage:
    """The usage of the other containers of the pod, without those of Argo and the pause container."""
    mine = _group(proc / "self")
    groups: dict[str, Path] = {}
    for process in _processes(proc):
        group = _group(process)
        if group and group != mine and process.name != "1":
            groups.setdefault(group, process)
            if _is_argos(process):
                groups[group] = proc / "none"
    found = [of_group(process / "root/sys/fs/cgroup") for process in groups.values() if process.name != "none"]
    cpu = [one.cpu_seconds for one in found if one.cpu_seconds is not None]
    memory = [one.memory_bytes for one in found if one.memory_bytes is not None]
    return Usage(round(sum(cpu), 3) if cpu else None, sum(memory) if memory else None)


def of_group(folder: Path) -> Usage:
    """The usage of a control group, of version 2 or 1, mounted as in its container."""
    stat = _text(folder / "cpu.stat").split()
    fields = dict(zip(stat[::2], stat[1::2], strict=False))
    if (micros := _number(fields.get("usage_usec"))) is not None:
        return Usage(micros / 1e6, _number(_text(folder / "memory.current")))
    nanos = _number(_text(folder / "cpuacct/cpuacct.usage")) or _number(_text(folder / "cpu,cpuacct/cpuacct.usage"))
    return Usage(None if nanos is None else nanos / 1e9, _number(_text(folder / "memory/memory.usage_in_bytes")))


def of_gpus(command: tuple[str, ...] = _GPU) -> float | None:
    """The mean utilisation of the visible GPUs, 0 to 1; None without GPUs, or without the driver's tool."""
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(  # noqa: S603
            command, capture_output=True, text=True, timeout=_GPU_SECONDS, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return None
    lines = done.stdout[:_MOST_BYTES].splitlines() if done.returncode == 0 else []
    found = [value for line in lines if (value := _number(line.split(",")[0])) is not None and value <= 100]
    return round(sum(found) / len(found) / 100, 4) if found else None


def _processes(proc: Path) -> list[Path]:
    try:
        found = [path for path in proc.iterdir() if path.name.isdigit()]
    except OSError:
        return []
    return sorted(found, key=lambda path: int(path.name))[:_MOST_PROCESSES]


def _group(process: Path) -> str:
    """The control groups of a process, as one text: equal in one container alone."""
    return _text(process / "cgroup")


def _is_argos(process: Path) -> bool:
    words = _text(process / "cmdline").split("\0")
    return Path(words[0]).name == "argoexec" and "wait" in words[1:2]


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_MOST_BYTES).decode("ascii", "replace")
    except OSError:
        return ""


def _number(text: str | None) -> int | None:
    text = (text or "").strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= _HIGHEST * 10**3 else None
