"""Saves a checkpoint that a training has left in memory to a volume, after its process has ended.

The training writes a checkpoint into a folder of its own in `/dev/shm/diflow-checkpoint`, such as its step, and creates
the empty file `.complete` in it last. Folders without that file are not touched: they may be half written. The newest
complete one is copied beside its target, written to disk, and renamed, so the target is complete or not there.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

MARKER: Final = ".complete"
KEPT: Final = 2
"""Saved checkpoints of a replica that are kept: the last one may be the reason why the next attempt fails."""
MOST_FILES: Final = 10_000
MOST_LEVELS: Final = 16
_MOST_FOLDERS: Final = 100_000
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}", re.ASCII)
_TEMPORARY: Final = ".saving-"
_REPLACED: Final = ".replaced-"
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
        saved = _marked(final)
        if saved is not None and _seconds(saved) == _seconds(found.marked):
            return None  # this one
        temporary = target / f"{_TEMPORARY}{found.path.name}"
        try:
            _copy(found.path, temporary, files=[0], level=0)
            if _marked(found.path) != found.marked:
                raise CheckpointError(f"{found.path.name} was changed while it was saved")
            # The saved marker has the time of the training's: a later run may have another checkpoint of this name.
            os.utime(temporary / MARKER, ns=(found.marked[1], found.marked[1]))
            if final.exists():
                final.rename(target / f"{_REPLACED}{found.path.name}")
            temporary.rename(final)
            _sync(target)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
    except OSError as error:
        raise CheckpointError(f"{found.path.name} cannot be saved: {error.strerror or error}") from None
    _remove_unfinished(target)
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


def _seconds(marked: tuple[int, int]) -> int:
    """The time of a marker in seconds, which every filesystem keeps."""
    return marked[1] // 10**9


def _copy(source: Path, target: Path, *, files: list[int], level: int) -> None:
    """Copy a folder and write it to disk: regular files and folders alone. The marker is the last file."""
    if level > MOST_LEVELS:
        raise CheckpointError(f"it has more than {MOST_LEVELS} levels of folders")
    target.mkdir()
    with os.scandir(source) as entries:
        # A list of millions of names would exceed the memory of this container.
        found = list(islice(entries, MOST_FILES + 1 - files[0]))
    files[0] += len(found)
    if files[0] > MOST_FILES:
        raise CheckpointError(f"it has more than {MOST_FILES:,} files")
    for entry in sorted(found, key=lambda entry: (entry.name == MARKER, entry.name)):
        if entry.is_dir(follow_symlinks=False):
            _copy(Path(entry.path), target / entry.name, files=files, level=level + 1)
        elif entry.is_file(follow_symlinks=False):
            _copy_file(Path(entry.path), target / entry.name)
        else:
            raise CheckpointError(f"{entry.name!r} is neither a file nor a folder")
    _sync(target)


def _copy_file(source: Path, target: Path) -> None:
    """Copy as many bytes as the file has now. Holes stay holes: they may be larger than the volume."""
    read = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(read, "rb", buffering=0) as reading, target.open("xb", buffering=0) as writing:
        found = os.fstat(read)
        if not stat.S_ISREG(found.st_mode):
            raise CheckpointError(f"{source.name!r} is not a file any more")
        for start, end in _data(read, found.st_size):
            reading.seek(start)
            writing.seek(start)
            left = end - start
            while left and (piece := reading.read(min(_PIECE, left))):
                left -= len(piece)
                view = memoryview(piece)
                while view:
                    view = view[writing.write(view) :]
        writing.truncate(found.st_size)
        os.fsync(writing.fileno())


def _data(file: int, size: int) -> Iterator[tuple[int, int]]:
    """Where a file has data: (start, end)."""
    at = 0
    while at < size:
        try:
            start = os.lseek(file, at, os.SEEK_DATA)
            end = os.lseek(file, start, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:  # the rest is a hole
                return
            start, end = at, size  # a filesystem that does not say
        yield start, min(end, size)
        at = end


def _sync(folder: Path) -> None:
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _remove_unfinished(target: Path) -> None:
    """Remove what a monitor left that was killed while it saved, and what was replaced. If it was killed between
    the two, the earlier checkpoint comes back."""
    for path in target.glob(f"{_TEMPORARY}*"):
        shutil.rmtree(path, ignore_errors=True)
    for path in target.glob(f"{_REPLACED}*"):
        final = target / path.name.removeprefix(_REPLACED)
        if final.exists():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.rename(final)


def _remove_old(target: Path, newest: Path) -> None:
    saved = sorted(_complete(target), key=lambda one: one.order, reverse=True)
    for one in [one for one in saved if one.path != newest][KEPT - 1 :]:
        shutil.rmtree(one.path, ignore_errors=True)
