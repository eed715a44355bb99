"""The true behaviour of applications: measured step times, gradient statistics and epochs, read from a folder.

The folder is the data of the Pollux artifact (see docs/policies.md): `APP/placements.csv`, `APP/scalability.csv`,
`APP/validation-B.csv`. For several pools of nodes it has such a folder for each pool, `POOL/APP/...`, as the artifact
of Sia does. This module does not know policies.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from scipy.interpolate import LinearNDInterpolator, NearestNDInterpolator
from scipy.spatial import QhullError

from diflow.allocator.model.arrays import FloatArray, IntArray
from diflow.common.errors import InvalidError
from diflow.record import untrusted

EPOCHS = {"bert": 2, "cifar10": 100, "ncf": 10, "imagenet": 90, "deepspeech2": 80, "yolov3": 50}
MOST_LOCAL = {"yolov3": 8}
"""Largest local batch, where `placements.csv` contains larger ones than were measured on many nodes."""
FIXED_BATCH = {"ncf": 32768}
MOST_REPLICAS = {"ncf": 1}
REPLICAS_LIMIT = 64
LATEST_SECONDS = 1e9
"""Latest arrival, some 30 years: anything later is a mistake."""
MOST_COUNT = 10**9


@dataclass
class Application:
    """One application's measured behaviour. Make it with `load`."""

    name: str
    epochs: int
    batches: IntArray
    progress: FloatArray
    grad_sqr: FloatArray
    grad_var: FloatArray
    min_local: int
    max_local: int
    max_replicas: int
    fixed_batch: int | None
    by_placement: dict[tuple[int, ...], FloatArray]
    local_batches: IntArray
    """The batch sizes of one replica that were measured on one GPU, up to `max_local`."""
    _linear: LinearNDInterpolator = field(repr=False)
    _nearest: NearestNDInterpolator = field(repr=False)
    alone: dict[int, float] = field(default_factory=dict, repr=False)
    """Cache of `isolated_seconds`, by GPUs."""
    pools: dict[str, Application] = field(default_factory=dict, repr=False)
    """The application on the nodes of each pool, by the pool's name; empty if all nodes are alike."""
    _gradients: dict[tuple[float, int], tuple[float, float]] = field(default_factory=dict, repr=False)
    _times: dict[tuple[tuple[int, ...], int], tuple[float, float]] = field(default_factory=dict, repr=False)

    @property
    def initial_batch(self) -> int:
        return int(self.batches[0])

    @property
    def max_batch(self) -> int:
        return self.fixed_batch or int(self.batches[-1])

    def step_and_sync(self, placement: tuple[int, ...], local_batch: int) -> tuple[float, float]:
        """True seconds of a step and of its synchronisation on this placement (GPUs on each node)."""
        key = (placement, local_batch)
        known = self._times.get(key)
        if known is None:
            known = self._times[key] = self._look_up(placement, local_batch)
        return known

    def split(self, total_batch: int, replicas: int, *, least_steps: int = 0) -> tuple[int, int]:
        """(local batch, accumulation steps) that make up this total batch with the fewest steps."""
        local = math.ceil(total_batch / replicas)
        steps = max(least_steps, math.ceil(local / self.max_local) - 1)
        return math.ceil(local / (steps + 1)), steps

    def gradient(self, total_batch: float, epoch: int) -> tuple[float, float]:
        """True (grad_sqr, grad_var) in this epoch, linear between the two nearest measured batch sizes."""
        key = (total_batch, min(epoch, self.epochs - 1))
        known = self._gradients.get(key)
        if known is None:
            low, part = self._between(total_batch)
            pair = [
                float(table[low, key[1]] * (1 - part) + table[low + 1, key[1]] * part)
                for table in (self.grad_sqr, self.grad_var)
            ]
            known = self._gradients[key] = (pair[0], pair[1])
        return known

    def gains(self, total_batch: float) -> FloatArray:
        """`gain` in every epoch."""
        low, part = self._between(total_batch)
        sqr = self.grad_sqr[low] * (1 - part) + self.grad_sqr[low + 1] * part
        var = self.grad_var[low] * (1 - part) + self.grad_var[low + 1] * part
        out: FloatArray = (var + sqr) / (var * self.initial_batch / total_batch + sqr)
        return out

    def _between(self, total_batch: float) -> tuple[int, float]:
        """Index of the measured batch size below, and how far towards the next (clipped to the table)."""
        low = min(max(int(np.searchsorted(self.batches, total_batch, side="right")) - 1, 0), len(self.batches) - 2)
        below, above = float(self.batches[low]), float(self.batches[low + 1])
        return low, min(max((total_batch - below) / (above - below), 0.0), 1.0)

    def gain(self, total_batch: float, epoch: int) -> float:
        """Iterations of M0 that one step of this batch is worth."""
        sqr, var = self.gradient(total_batch, epoch)
        scale = total_batch / self.initial_batch
        return (var + sqr) / (var / scale + sqr)

    def _look_up(self, placement: tuple[int, ...], local_batch: int) -> tuple[float, float]:
        turned = min(placement[i:] + placement[:i] for i in range(len(placement)))
        table = self.by_placement.get(turned)
        if table is not None:
            at = table[:, 0]
            return float(np.interp(local_batch, at, table[:, 1])), float(np.interp(local_batch, at, table[:, 2]))
        point = [[min(len(placement), 16), sum(placement), local_batch]]
        step, sync = self._linear(point)[0]
        if not np.isfinite(step) or not np.isfinite(sync):
            step, sync = self._nearest(point)[0]
        return float(step), float(sync)


def load(folder: Path) -> dict[str, Application]:
    """Every application in the folder. Raises InvalidError if there is none, or with the path of an invalid file."""
    return {path.name: _application(path) for path in _folders(folder)}


def load_pools(
    folder: Path, pools: Sequence[str], most_local: Mapping[tuple[str, str], int] | None = None
) -> dict[str, Application]:
    """Every application that was measured in all of these pools, with its behaviour in each.

    `folder` has a folder of applications for each pool. Only one of them needs `validation-B.csv`: statistics do not
    depend on the pool. `most_local`: (pool, application) → its largest local batch there, if that is less than what was
    measured. Raises InvalidError as `load` does.
    """
    of_pool = {pool: {path.name: path for path in _folders(folder / pool)} for pool in pools}
    names = [name for name in of_pool[pools[0]] if all(name in found for found in of_pool.values())]
    if not names:
        raise InvalidError(f"{folder}: no application was measured in all of the pools {', '.join(pools)}")
    limits = most_local or {}
    for pool, name in limits:
        if name not in of_pool.get(pool, {}):
            raise InvalidError(f"there is no application {name!r} in the pool {pool!r} of {folder}")
    out: dict[str, Application] = {}
    for name in names:
        paths = [found[name] for found in of_pool.values()]
        statistics = next((path for path in paths if any(path.glob("validation-*.csv"))), paths[0])
        there = {
            pool: _application(path, statistics, limits.get((pool, name)))
            for pool, path in zip(pools, paths, strict=True)
        }
        for app in there.values():
            app.pools = there
        out[name] = there[pools[0]]
    return out


def _folders(folder: Path) -> list[Path]:
    """The folders of the applications in this one."""
    if not folder.is_dir():
        raise InvalidError(f"there is no folder {folder}: give the folder of the profiles with --profiles")
    found = sorted(path for path in folder.iterdir() if (path / "placements.csv").is_file())
    if not found:
        raise InvalidError(f"{folder} holds no APP/placements.csv: give the folder of the profiles with --profiles")
    return found


def _application(folder: Path, statistics: Path | None = None, most_local: int | None = None) -> Application:
    """`statistics`: the folder with `validation-B.csv`, if it is another one."""
    name = folder.name
    placements = _read(folder / "placements.csv", ("placement", "local_bsz", "step_time", "sync_time"))
    scalability = _read(
        folder / "scalability.csv", ("num_nodes", "num_replicas", "local_bsz", "step_time", "sync_time")
    )
    for table, rows in (("placements", placements), ("scalability", scalability)):
        if (rows[:, :-1] <= 0).any() or (rows[:, -1] < 0).any() or (rows[:, -1] > rows[:, -2]).any():
            raise InvalidError(f"{folder / table}.csv: all is above 0, and no sync_time is longer than its step_time")
    by_placement: dict[tuple[int, ...], list[tuple[float, float, float]]] = {}
    groups: dict[tuple[int, int, float], list[tuple[float, float]]] = {}
    for code, local, step, sync in placements:
        digits = tuple(int(d) for d in str(int(code)))
        turned = min(digits[i:] + digits[:i] for i in range(len(digits)))
        by_placement.setdefault(turned, []).append((local, step, sync))
        groups.setdefault((len(digits), sum(digits), local), []).append((step, sync))
    points = [(*key, *np.mean(values, axis=0)) for key, values in groups.items()]
    known = np.array([*points, *scalability], dtype=np.float64)
    # The interpolation needs distinct points.
    _, first = np.unique(known[:, :3], axis=0, return_index=True)
    known = known[np.sort(first)]
    try:
        linear = LinearNDInterpolator(known[:, :3], known[:, 3:])
    except (QhullError, ValueError):
        raise InvalidError(
            f"{folder}: placements.csv and scalability.csv must vary in nodes, replicas and local_bsz"
        ) from None
    validation = _validation(folder, statistics or folder)
    epochs = min(EPOCHS.get(name, 10**9), *(len(rows) for _, rows in validation))
    columns = np.array([rows[:epochs] for _, rows in validation])
    progress = columns[:, :, 0].min(axis=0)
    if progress[0] <= 0 or (np.diff(progress) <= 0).any() or (columns[:, :, 1:] < 0).any():
        raise InvalidError(f"{folder}: in validation-B.csv progress grows from epoch to epoch, and nothing is below 0")
    if (columns[:, :, 1] + columns[:, :, 2] <= 0).any():
        raise InvalidError(f"{folder}: in validation-B.csv grad_sqr and grad_var are 0 in the same epoch")
    fixed = FIXED_BATCH.get(name)
    local = placements[:, 1]
    alone = by_placement.get((1,)) or [(float(local.min()), 0.0, 0.0), (float(local.max()), 0.0, 0.0)]
    usual = MOST_LOCAL.get(name, 10**9)
    top = min(int(local.max()), most_local or 10**9, max(usual, int(scalability[:, 2].max())))
    return Application(
        name=name,
        epochs=epochs,
        batches=np.array([batch for batch, _ in validation], dtype=np.int64),
        progress=progress,
        grad_sqr=columns[:, :, 1],
        grad_var=columns[:, :, 2],
        min_local=int(local.min()),
        max_local=top,
        max_replicas=MOST_REPLICAS.get(name, REPLICAS_LIMIT),
        fixed_batch=fixed,
        by_placement={key: np.array(sorted(rows)) for key, rows in by_placement.items()},
        local_batches=np.unique([min(int(row[0]), top) for row in alone]),
        _linear=linear,
        _nearest=NearestNDInterpolator(known[:, :3], known[:, 3:]),
    )


def _validation(folder: Path, statistics: Path) -> list[tuple[int, FloatArray]]:
    """(batch size, its table) of an application, by ascending size."""
    found = {
        size: _read(path, ("progress", "grad_sqr", "grad_var"))
        for path in statistics.glob("validation-*.csv")
        if (size := untrusted.whole(path.stem.removeprefix("validation-")))
    }
    if len(found) < 2:
        raise InvalidError(f"{folder} needs validation-B.csv of two batch sizes B at least")
    return sorted(found.items())


def _read(path: Path, columns: tuple[str, ...]) -> FloatArray:
    rows = [[_number(row, c) for c in columns] for row in _rows(path, columns, "table")]
    if not rows:
        raise InvalidError(f"{path} is empty")
    return np.array(rows)


def _rows(path: Path, columns: tuple[str, ...], what: str) -> list[_Row]:
    """The rows of a CSV, each with its path and line."""
    needs = f"it needs the columns {', '.join(columns)}"
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            head = reader.fieldnames or ()
            rows = [_Row(f"{path}, line {reader.line_num}", row) for row in reader]
    except OSError as error:
        raise InvalidError(f"{path} cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error):
        raise InvalidError(f"{path} is no {what}: it is no CSV text; {needs}") from None
    missing = [column for column in columns if column not in head]
    if missing:
        raise InvalidError(f"{path} is no {what}: {needs}, and lacks {', '.join(missing)}")
    return rows


@dataclass(frozen=True, slots=True)
class _Row:
    where: str
    cells: Mapping[str, str | None]


def _number(row: _Row, column: str) -> float:
    text = row.cells[column] or ""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InvalidError(f"{row.where}: {column} must be a number, not {text[:40]!r}")
    return value


def _whole(row: _Row, column: str) -> int:
    text = (row.cells[column] or "").strip()
    value = untrusted.whole(text, digits=20)
    if value is None or not 1 <= value <= MOST_COUNT:
        raise InvalidError(f"{row.where}: {column} must be a whole number from 1 to {MOST_COUNT:,}, not {text[:40]!r}")
    return value


@dataclass(frozen=True, slots=True)
class Arrival:
    """One line of a workload: a job that arrives at `seconds`. `replicas` and `batch` (total batch size) are what a
    user would have set by hand."""

    name: str
    seconds: float
    application: str
    replicas: int
    batch: int


def read_workload(path: Path) -> list[Arrival]:
    """The workload in this CSV (name, time, application, num_replicas, batch_size), in the order of arrival.

    Raises InvalidError if the file cannot be read, or with the line of the first error.
    """
    arrivals: dict[str, Arrival] = {}
    for row in _rows(path, ("name", "time", "application", "num_replicas", "batch_size"), "workload"):
        name, application = row.cells["name"], row.cells["application"]
        if not name or not application:
            raise InvalidError(f"{row.where}: a job needs a name and an application")
        if name in arrivals:
            raise InvalidError(f"{row.where}: the job {name!r} is there twice")
        seconds = _number(row, "time")
        if not 0 <= seconds <= LATEST_SECONDS:
            raise InvalidError(f"{row.where}: time must be seconds from 0 to {LATEST_SECONDS:g}, not {seconds:g}")
        arrivals[name] = Arrival(name, seconds, application, _whole(row, "num_replicas"), _whole(row, "batch_size"))
    if not arrivals:
        raise InvalidError(f"{path} is empty: no job is in it")
    return sorted(arrivals.values(), key=lambda arrival: (arrival.seconds, arrival.name))
