"""The learner's folder on the volume: checkpoints that survive a kill at any instruction, the metrics and the lock.

Its files:

    checkpoint.npz            the newest checkpoint, written beside and renamed into place
    checkpoint.previous.npz   the one before it, for when the newest cannot be read
    final.npz                 the last state of a run that was solved and ended: no later run resumes from it
    metrics.jsonl             the history, a JSON object a line
    cartpole.png              the plot
    lock                      held by the learner that runs
"""

import fcntl
import io
import json
import os
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from cartpole import model
from cartpole.faults import StoreError, say
from cartpole.history import Evaluated, History, Played

FORMAT = 1
LOCK_SECONDS = 60.0  # an old learner that was told to stop is gone before this
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile)


@dataclass(slots=True)
class State:
    """All that the learner needs to go on after a restart."""

    params: model.Params
    optimiser: model.Adam
    version: int = 0  # of the weights: the number of updates that made them
    seconds: float = 0.0  # of training, over all starts
    history: History = field(default_factory=History)
    solved: bool = False


class Store:
    """One folder, used by one learner at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock: int | None = None
        self.newest = folder / "checkpoint.npz"
        self.previous = folder / "checkpoint.previous.npz"
        self.final = folder / "final.npz"
        self.metrics = folder / "metrics.jsonl"
        self.plot = folder / "cartpole.png"

    def open(
        self,
        *,
        patience_seconds: float = LOCK_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Make the folder and lock it; raises StoreError when it is not ours to write, or another learner stays."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
            (self._folder / "checkpoint.new").write_bytes(b"")
        except OSError as error:
            raise StoreError(
                f"cannot write to {self._folder} ({error.strerror}): give user {os.getuid()} the right to write to "
                "the volume (see `volumes` in job.yaml), or set CARTPOLE_DIR to another folder"
            ) from None
        end = clock() + patience_seconds
        told = False
        while not self._locked():
            if clock() >= end:
                raise StoreError(
                    f"another learner is at work in {self._folder}: stop it, or give this job its own name"
                )
            if not told:
                say(f"another learner is at work in {self._folder}: waiting {patience_seconds:.0f} s for its end")
                told = True
            sleep(0.5)

    def _locked(self) -> bool:
        if self._lock is None:
            return False
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            say(f"this volume knows no locks ({error.strerror}): going on without")
        return True

    def save(self, state: State) -> None:
        """Replace the newest checkpoint, keep the one before, and rewrite the metrics; raises StoreError."""
        try:
            self._write(self.newest, _to_bytes(state), keep=self.previous)
            self._write(self.metrics, "".join(f"{line}\n" for line in state.history.lines()).encode())
        except OSError as error:
            raise StoreError(f"cannot save a checkpoint in {self._folder}: {error.strerror}") from None

    def load(self, *, learning_rate: float) -> State | None:
        """The newest checkpoint that can be read, or None; each one that cannot is named in the log."""
        for path in (self.newest, self.previous):
            try:
                return _from_bytes(path.read_bytes(), learning_rate)
            except FileNotFoundError:
                continue
            except _UNREADABLE as error:
                say(f"checkpoint {path} cannot be read ({error}): trying the one before it")
        return None

    def close_run(self) -> None:
        """Put a solved run's checkpoint aside, so that the next run in this folder starts afresh."""
        try:
            self.previous.unlink(missing_ok=True)
            self.newest.replace(self.final)
            self._sync()
        except OSError as error:
            raise StoreError(f"cannot put the final checkpoint aside in {self._folder}: {error.strerror}") from None

    def _write(self, path: Path, data: bytes, *, keep: Path | None = None) -> None:
        beside = self._folder / "checkpoint.new"
        with beside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if keep is not None and path.exists():
            path.replace(keep)
        beside.replace(path)
        self._sync()

    def _sync(self) -> None:
        """A rename is on the disk only when its folder is."""
        descriptor = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _to_bytes(state: State) -> bytes:
    about = {
        "format": FORMAT,
        "version": state.version,
        "seconds": state.seconds,
        "solved": state.solved,
        "adam_steps": state.optimiser.steps,
    }
    arrays: dict[str, Any] = {"about": np.frombuffer(json.dumps(about).encode(), dtype=np.uint8)}
    for group, params in (
        ("params", state.params),
        ("adam_first", state.optimiser.first),
        ("adam_second", state.optimiser.second),
    ):
        arrays |= {f"{group}:{name}": value for name, value in params.items()}
    arrays["played"] = np.array([(it.seconds, it.steps, it.total) for it in state.history.played]).reshape(-1, 3)
    arrays["evaluated"] = np.array(
        [(it.seconds, it.version, it.episodes, it.mean) for it in state.history.evaluated]
    ).reshape(-1, 4)
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def _from_bytes(data: bytes, learning_rate: float) -> State:
    """Raises one of _UNREADABLE when the bytes are no checkpoint; every member's checksum is verified on the way."""
    with np.load(io.BytesIO(data), allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    about = json.loads(arrays["about"].tobytes())
    if about["format"] != FORMAT:
        raise ValueError(f"it is of format {about['format']}, this program reads {FORMAT}")

    def group(name: str) -> model.Params:
        start = f"{name}:"
        return model.checked({key[len(start) :]: value for key, value in arrays.items() if key.startswith(start)})

    optimiser = model.Adam(learning_rate, steps=int(about["adam_steps"]))
    if optimiser.steps:
        optimiser.first, optimiser.second = group("adam_first"), group("adam_second")
    return State(
        params=group("params"),
        optimiser=optimiser,
        version=int(about["version"]),
        seconds=float(about["seconds"]),
        history=History(
            played=[Played(float(s), int(n), float(r)) for s, n, r in arrays["played"]],
            evaluated=[Evaluated(float(s), int(v), int(n), float(m)) for s, v, n, m in arrays["evaluated"]],
        ),
        solved=bool(about["solved"]),
    )
