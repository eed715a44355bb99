"""What the work of a pod uses, as far as a container beside it can see: CPU time, memory, GPUs.

A container sees only its own processes and its own control group. Those of the others are visible if the pod template
has `shareProcessNamespace: true`: then the files of their control groups are below `/proc/PID/root`.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from diflow.inpod.files import head

PROC: Final = Path("/proc")
_MOST_PROCESSES: Final = 4096
_MOST_BYTES: Final = 4096
_GPU_SECONDS: Final = 5.0
_END_SECONDS: Final = 1.0
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


class Gpus:
    """Asks the driver's tool for the use of the GPUs.

    If the driver hangs, the tool hangs too and cannot be killed. So nothing waits for its end, and no second one is
    started while it hangs.
    """

    def __init__(self, command: tuple[str, ...] = _GPU, *, seconds: float = _GPU_SECONDS) -> None:
        self._command = command
        self._seconds = seconds
        self._hung: subprocess.Popen[bytes] | None = None

    def __call__(self) -> float | None:
        """The mean utilisation of the visible GPUs, 0 to 1; None without GPUs, or without the driver's tool."""
        if self._hung is not None and self._hung.poll() is None:
            return None
        self._hung = None
        if shutil.which(self._command[0]) is None:
            return None
        try:
            process = subprocess.Popen(  # noqa: S603
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # what it starts is ended with it
            )
        except OSError:
            return None
        try:
            text = self._output(process)
            return _mean(text) if text is not None and process.returncode == 0 else None
        finally:
            self._end(process)

    def _output(self, process: subprocess.Popen[bytes]) -> str | None:
        """What it prints; None if that is more than is expected of it, or takes too long."""
        assert process.stdout is not None
        until = time.monotonic() + self._seconds
        out = b""
        with selectors.DefaultSelector() as waiting:
            waiting.register(process.stdout, selectors.EVENT_READ)
            while waiting.select(max(0.0, until - time.monotonic())):
                piece = os.read(process.stdout.fileno(), _MOST_BYTES)
                out += piece
                if len(out) > _MOST_BYTES:
                    return None
                if not piece:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(max(0.0, until - time.monotonic()))
                    return out.decode("ascii", "replace")
                if time.monotonic() > until:
                    return None
        return None

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        assert process.stdout is not None
        process.stdout.close()
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._hung = process


def _mean(text: str) -> float | None:
    found = [n for line in text.splitlines() if (n := _number(line.split(",")[0])) is not None and n <= 100]
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
    return head(path, _MOST_BYTES).decode("ascii", "replace")


def _number(text: str | None) -> int | None:
    text = (text or "").strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= _HIGHEST * 10**3 else None
