"""Saves a checkpoint that a training has left in memory to a volume, after its process has ended.

The training writes a checkpoint into a folder of its own in `/dev/shm/diflow-checkpoint`, such as its step, and creates
the empty file `.complete` in it last. Folders without that file are not touched: they may be half written. The newest
complete one is copied beside its target, written to disk, and renamed, so the target is complete or not there.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MARKER: Final = ".complete"
KEPT: Final = 2
"""Saved checkpoints of a replica that are kept: the last one may be the reason why the next attempt fails."""
MOST_FILES: Final = 10_000
MOST_LEVELS: Final = 16
_MOST_FOLDERS: Final = 1_000
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}", re.ASCII)
_TEMPORARY: Final = ".saving-"
_PIECE: Final = 4 * 2**20


class CheckpointError(Exception):
    """The checkpoint was not saved. The text is for people."""


@dataclass(frozen=True, slots=True)
class _Found:
    """A complete checkpoint. `marked`: identity and time of its marker."""

    path: Path
    marked: tuple[int, int]

    @property
    def order(self) -> tuple[int, int, str]:
        """By number if the names are numbers, as those of steps are; else by the time of the marker."""
        name = self.path.name
        is_number = name.isdigit() and name.isascii()
        return (int(name) if is_number else -1, self.marked[1], name)


def save(source: Path, target: Path) -> Path | None:
    """Save the newest complete checkpoint of `source` into `target`. Returns its path, None if there is no new one.

    Raises CheckpointError; then nothing of it is in `target`.
    """
    found = max(_complete(source), key=lambda one: one.order, default=None)
    if found is None:
        return None
    final = target / found.path.name
    try:
        target.mkdir(parents=True, exist_ok=True)
        _remove_unfinished(target)
        if (final / MARKER).is_file():
            return None
        temporary = target / f"{_TEMPORARY}{found.path.name}"
        try:
            _copy(found.path, temporary, files=[0], level=0)
            if _marked(found.path) != found.marked:
                raise CheckpointError(f"{found.path.name} was changed while it was saved")
            if final.exists():
                shutil.rmtree(final)  # without its marker: none of ours
            temporary.rename(final)
            _sync(target)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
    except OSError as error:
        raise CheckpointError(f"{found.path.name} cannot be saved: {error.strerror or error}") from None
    _remove_old(target, final)
    return final


def _complete(source: Path) -> Iterator[_Found]:
    try:
        with os.scandir(source) as entries:
            for number, entry in enumerate(entries):
                if number >= _MOST_FOLDERS:
                    return
                if _NAME.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
                    marked = _marked(Path(entry.path))
                    if marked is not None:
                        yield _Found(Path(entry.path), marked)
    except OSError:
        return


def _marked(folder: Path) -> tuple[int, int] | None:
    try:
        found = os.lstat(folder / MARKER)
    except OSError:
        return None
    return (found.st_ino, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else None


def _copy(source: Path, target: Path, *, files: list[int], level: int) -> None:
    """Copy a folder and write it to disk: regular files and folders alone. The marker is the last file."""
    if level > MOST_LEVELS:
        raise CheckpointError(f"it has more than {MOST_LEVELS} levels of folders")
    target.mkdir()
    with os.scandir(source) as entries:
        found = sorted(entries, key=lambda entry: (entry.name == MARKER, entry.name))
    for entry in found:
        files[0] += 1
        if files[0] > MOST_FILES:
            raise CheckpointError(f"it has more than {MOST_FILES:,} files")
        if entry.is_dir(follow_symlinks=False):
            _copy(Path(entry.path), target / entry.name, files=files, level=level + 1)
        elif entry.is_file(follow_symlinks=False):
            _copy_file(Path(entry.path), target / entry.name)
        else:
            raise CheckpointError(f"{entry.name} is neither a file nor a folder")
    _sync(target)


def _copy_file(source: Path, target: Path) -> None:
    read = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(read, "rb", buffering=0) as reading, target.open("xb", buffering=0) as writing:
        while piece := reading.read(_PIECE):
            view = memoryview(piece)
            while view:
                view = view[writing.write(view) :]
        os.fsync(writing.fileno())


def _sync(folder: Path) -> None:
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _remove_unfinished(target: Path) -> None:
    """Remove what a monitor left that was killed while it saved."""
    for path in target.glob(f"{_TEMPORARY}*"):
        shutil.rmtree(path, ignore_errors=True)


def _remove_old(target: Path, newest: Path) -> None:
    saved = sorted(_complete(target), key=lambda one: one.order, reverse=True)
    for one in [one for one in saved if one.path != newest][KEPT - 1 :]:
        shutil.rmtree(one.path, ignore_errors=True)
