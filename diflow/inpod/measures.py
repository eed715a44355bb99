"""What the node check measures on its own node: a matrix product, copies of memory, writes to disk.

Each measurement is bounded in time and bytes, and repeated: the result is the median, as a single one is mostly noise.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

MIB: Final = 2**20
_SIDE: Final = 384  # of the matrices with numpy: a product takes about 3 ms on one core
_SMALL_SIDE: Final = 48  # without numpy: about 10 ms
_MEMORY_BYTES: Final = 16 * MIB
_DISK_BYTES: Final = 8 * MIB
_LITTLE_BYTES: Final = 192 * MIB
"""Below this limit of the container's memory numpy and large buffers are left out: the check must not be what the
kernel ends, in a pod whose work needs little."""
_SECONDS: Final = 0.5  # of one kind of measurement
_LEAST_RUNS: Final = 5
_MOST_RUNS: Final = 500


class NodeError(Exception):
    """The node did not do what it should. The text is for people."""


@dataclass(slots=True)
class Outcome:
    """Seconds by figure (`diflow.record.nodecheck.FIGURES`), and what has failed ("")."""

    figures: dict[str, float] = field(default_factory=dict)
    failed: str = ""


def local(*, seconds: float, clock: Callable[[], float] = time.perf_counter) -> Outcome:
    """All measurements of this node, within about `seconds`. Never raises.

    Each runs in a thread of its own: a disk that does not answer ends the wait for it, and not the check.
    """
    out = Outcome()
    measures: Mapping[str, Callable[[Callable[[], float]], float | None]] = {
        "product": product,
        "memory": memory,
        "disk": disk,
    }
    until = clock() + seconds
    for name, measure in measures.items():
        value, error, has_ended = _in_time(lambda one=measure: one(clock), max(0.1, until - clock()))  # type: ignore[misc]
        if isinstance(error, NodeError):
            out.failed = out.failed or str(error)
        elif not has_ended:
            out.failed = out.failed or f"the measurement of {name} did not end within {seconds:.0f} s"
        elif value is not None:
            out.figures[name] = value
    return out


def _in_time(measure: Callable[[], float | None], seconds: float) -> tuple[float | None, BaseException | None, bool]:
    """(the value, the error, whether it has ended in time)."""
    found: list[tuple[float | None, BaseException | None]] = []

    def run() -> None:
        try:
            found.append((measure(), None))
        except BaseException as error:  # whatever a broken node raises is judged by the caller
            found.append((None, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    return (*found[0], True) if found else (None, None, False)


def repeated(once: Callable[[], object], clock: Callable[[], float], *, seconds: float = _SECONDS) -> float:
    """The median time of `once`, which runs for about `seconds`."""
    once()  # the first one also allocates
    times: list[float] = []
    until = clock() + seconds
    while len(times) < _MOST_RUNS and (len(times) < _LEAST_RUNS or clock() < until):
        start = clock()
        once()
        times.append(clock() - start)
    return statistics.median(times)


def product(clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds for a matrix product, with numpy if it is there. Raises NodeError if its result is wrong."""
    if has_little_memory():
        return _product_in_python(clock)
    try:
        import numpy as np  # noqa: PLC0415 (an image need not have it)
    except ImportError:
        return _product_in_python(clock)
    # Small whole numbers: the sums are exact in floating point, whatever the order in which they are added.
    left = (np.arange(_SIDE * _SIDE, dtype=np.float64).reshape(_SIDE, _SIDE) * 7 % 11) - 5
    right = (np.arange(_SIDE * _SIDE, dtype=np.float64).reshape(_SIDE, _SIDE) * 5 % 13) - 6
    right_sums = right.sum(axis=1)
    _check(np.array_equal((left @ right).sum(axis=1), (left * right_sums).sum(axis=1)))
    median = repeated(lambda: left @ right, clock)
    _check(np.array_equal((left @ right).sum(axis=1), (left * right_sums).sum(axis=1)))  # warm now
    return median


def _product_in_python(clock: Callable[[], float]) -> float:
    n = _SMALL_SIDE
    left = [[(i * n + j) * 7 % 11 - 5 for j in range(n)] for i in range(n)]
    right = [[(i * n + j) * 5 % 13 - 6 for j in range(n)] for i in range(n)]
    columns = list(zip(*right, strict=True))

    def once() -> list[list[int]]:
        return [[sum(map(int.__mul__, row, column)) for column in columns] for row in left]

    sums = [sum(row) for row in right]
    _check([sum(row) for row in once()] == [sum(map(int.__mul__, row, sums)) for row in left])
    return repeated(once, clock)


def _check(is_right: Any) -> None:
    if not is_right:
        raise NodeError("the matrix product is wrong")


def memory(clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds to copy 1 GiB of memory. Raises NodeError if the copy differs."""
    size = MIB if has_little_memory() else _MEMORY_BYTES
    source = bytearray(os.urandom(4096) * (size // 4096))
    target = bytearray(size)

    def once() -> None:
        target[:] = source

    median = repeated(once, clock)
    if target != source:
        raise NodeError("a copy of memory differs from the original")
    return median * (1024 * MIB / size)


def disk(clock: Callable[[], float] = time.perf_counter, *, folder: str | None = None) -> float | None:
    """Seconds to write 1 MiB to the disk of the container; None if it has none that can be written.

    Raises NodeError if other data is read than was written.
    """
    size = MIB if has_little_memory() else _DISK_BYTES
    data = os.urandom(size)
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            times: list[float] = []
            until = clock() + _SECONDS
            while len(times) < _LEAST_RUNS or clock() < until:
                start = clock()
                file.seek(0)
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
                times.append(clock() - start)
            file.seek(0)
            found = file.read(size)
    except OSError:  # read-only, or full: nothing that this node does worse than others
        return None
    if found != data:
        raise NodeError("the disk returns other data than was written")
    return statistics.median(times) / (size / MIB)


def has_little_memory(folder: Path = Path("/sys/fs/cgroup")) -> bool:
    """Whether the limit of the container's memory is low."""
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            text = (folder / name).read_text().strip()
        except OSError:
            continue
        return text.isascii() and text.isdigit() and len(text) < 20 and int(text) < _LITTLE_BYTES
    return False
