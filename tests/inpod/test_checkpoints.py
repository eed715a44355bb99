"""Checkpoints that a training left in memory: only complete ones are saved, as a whole, and nothing else is touched."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from diflow.inpod import checkpoints
from diflow.inpod.checkpoints import KEPT, MARKER, CheckpointError, save


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "memory"
    folder.mkdir()
    return folder


def checkpoint(source: Path, name: str, *, complete: bool = True, text: str = "weights") -> Path:
    folder = source / name
    (folder / "optimizer").mkdir(parents=True)
    (folder / "model.pt").write_text(f"{text} {name}")
    (folder / "optimizer" / "0.pt").write_bytes(os.urandom(100_000))
    if complete:
        (folder / MARKER).touch()
    return folder


def test_the_newest_complete_checkpoint_is_saved(source: Path, tmp_path: Path) -> None:
    for name in ("9", "100", "20"):
        checkpoint(source, name)
    checkpoint(source, "200", complete=False)
    target = tmp_path / "volume" / "rank-0"
    assert save(source, target) == target / "100"
    assert (target / "100" / "model.pt").read_text() == "weights 100"
    assert (target / "100" / "optimizer" / "0.pt").read_bytes() == (source / "100" / "optimizer" / "0.pt").read_bytes()
    assert (target / "100" / MARKER).is_file()
    assert sorted(path.name for path in target.iterdir()) == ["100"]
    assert save(source, target) is None  # it is there already


def test_names_that_are_no_numbers_are_ordered_by_the_time_of_their_marker(source: Path, tmp_path: Path) -> None:
    for at, name in enumerate(("z", "a", "m")):
        os.utime(checkpoint(source, name) / MARKER, (at, at))
    assert save(source, tmp_path / "to") == tmp_path / "to" / "m"


@pytest.mark.parametrize("what", ["nothing", "a file", "half", "hidden", "a marker that is a folder"])
def test_without_a_complete_checkpoint_nothing_is_saved(source: Path, tmp_path: Path, what: str) -> None:
    if what == "a file":
        (source / "7").write_text("x")
    elif what == "half":
        checkpoint(source, "7", complete=False)
    elif what == "hidden":
        checkpoint(source, ".7")
    elif what == "a marker that is a folder":
        (checkpoint(source, "7", complete=False) / MARKER).mkdir()
    assert save(source, tmp_path / "to") is None
    assert not list((tmp_path / "to").glob("*"))
    assert save(source / "missing", tmp_path / "to") is None


def test_links_are_not_followed(source: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / MARKER).touch()
    (source / "9").symlink_to(secret)
    assert save(source, tmp_path / "to") is None
    (checkpoint(source, "8") / "link").symlink_to("/etc/passwd")
    with pytest.raises(CheckpointError, match=".link. is neither a file nor a folder"):
        save(source, tmp_path / "to")
    assert not list((tmp_path / "to").iterdir())


def test_pipes_do_not_hold_it_up(source: Path, tmp_path: Path) -> None:
    os.mkfifo(checkpoint(source, "8") / "pipe")
    with pytest.raises(CheckpointError, match=".pipe. is neither a file nor a folder"):
        save(source, tmp_path / "to")


def test_its_size_in_files_and_levels_is_bounded(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "MOST_FILES", 3)
    checkpoint(source, "8")
    with pytest.raises(CheckpointError, match="more than 3 files"):
        save(source, tmp_path / "to")
    monkeypatch.setattr(checkpoints, "MOST_FILES", 100)
    deep = checkpoint(source, "9")
    for _ in range(checkpoints.MOST_LEVELS + 1):
        deep = deep / "d"
        deep.mkdir()
    with pytest.raises(CheckpointError, match="levels of folders"):
        save(source, tmp_path / "to")
    assert not list((tmp_path / "to").iterdir())


def test_a_checkpoint_that_changes_while_it_is_saved_is_discarded(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = checkpoint(source, "8")
    copy = checkpoints._copy_file

    def slowly(one: Path, other: Path) -> None:
        copy(one, other)
        (made / MARKER).unlink(missing_ok=True)  # the training begins to write it again

    monkeypatch.setattr(checkpoints, "_copy_file", slowly)
    with pytest.raises(CheckpointError):
        save(source, tmp_path / "to")
    assert not list((tmp_path / "to").iterdir())


@pytest.mark.parametrize("at", range(4))
def test_a_monitor_that_is_killed_leaves_no_half_checkpoint(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    checkpoint(source, "8")
    copy, left = checkpoints._copy_file, [at]

    class Killed(BaseException):
        pass

    def killed(one: Path, other: Path) -> None:
        if not left[0]:
            other.write_bytes(b"half")
            raise Killed
        left[0] -= 1
        copy(one, other)

    monkeypatch.setattr(checkpoints, "_copy_file", killed)
    monkeypatch.setattr("shutil.rmtree", lambda *_, **__: None)  # a killed process removes nothing
    target = tmp_path / "to"
    if at < 3:
        with pytest.raises(Killed):
            save(source, target)
        assert not (target / "8").exists()
    monkeypatch.undo()
    assert save(source, target) == (target / "8" if at < 3 else None) or at == 3
    assert at == 3 or sorted(path.name for path in target.iterdir()) == ["8"]


def test_the_last_ones_are_kept(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "to"
    for step in ("1", "2", "3", "10"):
        checkpoint(source, step)
        assert save(source, target) == target / step
    assert sorted(path.name for path in target.iterdir()) == ["10", "3"]
    assert KEPT == 2


def test_other_folders_of_the_volume_stay(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "to"
    (target / "mine").mkdir(parents=True)
    for step in ("1", "2", "3"):
        checkpoint(source, step)
        save(source, target)
    assert (target / "mine").is_dir()


def test_a_volume_that_cannot_be_written_is_said(source: Path, tmp_path: Path) -> None:
    checkpoint(source, "1")
    (tmp_path / "to").write_text("a file")
    with pytest.raises(CheckpointError, match="1 cannot be saved: "):
        save(source, tmp_path / "to")


def test_all_is_written_to_disk_before_the_rename(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    fsync, rename = os.fsync, Path.rename

    def synced(number: int) -> None:
        done.append(os.readlink(f"/proc/self/fd/{number}"))
        fsync(number)

    monkeypatch.setattr(os, "fsync", synced)

    def renamed(self: Path, target: Any) -> Path:
        done.append("rename")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", renamed)
    checkpoint(source, "5")
    save(source, tmp_path / "to")
    at = done.index("rename")
    before = {Path(path).name for path in done[:at]}
    assert before == {"model.pt", "0.pt", "optimizer", MARKER, ".saving-5"}
    assert done[at + 1 :] == [str(tmp_path / "to")]


def test_another_run_of_the_job_replaces_a_checkpoint_of_the_same_name(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "to"
    os.utime(checkpoint(source, "7", text="first run") / MARKER, (1000, 1000))
    assert save(source, target) == target / "7"
    assert save(source, target) is None
    shutil.rmtree(source / "7")
    os.utime(checkpoint(source, "7", text="second run") / MARKER, (2000, 2000))
    assert save(source, target) == target / "7"
    assert (target / "7" / "model.pt").read_text() == "second run 7"
    assert [path.name for path in target.iterdir()] == ["7"]


@pytest.mark.parametrize("at", range(4))
def test_a_monitor_that_is_killed_while_it_replaces_loses_neither(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    target = tmp_path / "to"
    os.utime(checkpoint(source, "7", text="first run") / MARKER, (1000, 1000))
    save(source, target)
    shutil.rmtree(source / "7")
    os.utime(checkpoint(source, "7", text="second run") / MARKER, (2000, 2000))
    rename, left = Path.rename, [at]

    class Killed(BaseException):
        pass

    def renamed(self: Path, other: Path) -> Path:
        if not left[0]:
            raise Killed
        left[0] -= 1
        return rename(self, other)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", renamed)
        patched.setattr(shutil, "rmtree", lambda *_, **__: None)  # a killed process removes nothing
        if at < 2:
            with pytest.raises(Killed):
                save(source, target)
        else:
            assert save(source, target) == target / "7"
    (source / "7" / MARKER).unlink()  # its memory is gone with its pod
    checkpoint(source, "8")
    assert save(source, target) == target / "8"
    assert (target / "7" / "model.pt").read_text() == ("first run 7" if at < 2 else "second run 7")
    assert sorted(path.name for path in target.iterdir()) == ["7", "8"]


def test_holes_stay_holes(source: Path, tmp_path: Path) -> None:
    folder = checkpoint(source, "7", complete=False)
    with (folder / "sparse").open("wb") as file:
        file.write(b"begin")
        file.seek(2**40)
        file.write(b"end")
        file.truncate(2**40 + 2**30)
    (folder / MARKER).touch()
    saved = save(source, tmp_path / "to")
    assert saved is not None
    found = (saved / "sparse").stat()
    assert (found.st_size, found.st_blocks < 100) == (2**40 + 2**30, True)
    with (saved / "sparse").open("rb") as file:
        assert file.read(6) == b"begin\0"
        file.seek(2**40)
        assert file.read(4) == b"end\0"


def test_a_filesystem_that_does_not_know_holes(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = checkpoint(source, "7")
    (made / "empty").touch()

    def refused(*_: Any) -> int:
        raise OSError(errno.EINVAL, "no such whence")

    monkeypatch.setattr(os, "lseek", refused)
    saved = save(source, tmp_path / "to")
    assert saved is not None
    assert (saved / "optimizer" / "0.pt").read_bytes() == (made / "optimizer" / "0.pt").read_bytes()
    assert (saved / "empty").read_bytes() == b""


def test_of_a_full_volume_the_earlier_checkpoint_stays(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "to"
    checkpoint(source, "7")
    save(source, target)
    checkpoint(source, "8")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match="8 cannot be saved: No space left on device"):
        save(source, target)
    assert [path.name for path in target.iterdir()] == ["7"]
    assert (target / "7" / "model.pt").read_text() == "weights 7"


def test_millions_of_names_are_not_listed(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = checkpoint(source, "7")
    for number in range(50):
        (made / f"{number}\n\x1b[31m").touch()
    monkeypatch.setattr(checkpoints, "MOST_FILES", 5)
    seen = []

    def listed(entries: Iterable[Any], most: int) -> list[Any]:
        seen.append(most)
        return list(islice(entries, most))

    monkeypatch.setattr(checkpoints, "islice", listed)
    with pytest.raises(CheckpointError, match="more than 5 files"):
        save(source, tmp_path / "to")
    assert seen == [6]


def test_names_in_messages_print(source: Path, tmp_path: Path) -> None:
    os.mkfifo(checkpoint(source, "7") / "a\n\x1b[31m")
    with pytest.raises(CheckpointError) as caught:
        save(source, tmp_path / "to")
    assert str(caught.value).isprintable()
