"""Coverage by room: which file counts where, and that no room is left out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import coverage_by_room as rooms

NAMES = ["diflow", "diflow/allocator", "diflow/allocator/fairness", "diflow/cli", "diflow/server"]


def counted(covered: int, statements: int) -> dict[str, int]:
    return {"covered_lines": covered, "num_statements": statements}


FULL = {
    "diflow/version.py": counted(9, 10),
    "diflow/cli/get.py": counted(10, 10),
    "diflow/allocator/plan.py": counted(10, 10),
    "diflow/allocator/fairness/claims.py": counted(8, 10),
    "diflow/allocator/fairness/deep/below.py": counted(4, 10),
    "diflow/server/app.py": counted(0, 0),
}


def test_each_file_counts_in_the_room_with_the_longest_name() -> None:
    found = {room.name: (room.covered, room.statements) for room in rooms.by_room(FULL, NAMES)}
    assert found == {
        "diflow": (9, 10), "diflow/allocator": (10, 10), "diflow/allocator/fairness": (12, 20),
        "diflow/cli": (10, 10), "diflow/server": (0, 0),
    }  # fmt: skip


def test_a_folder_whose_name_only_begins_alike_is_another_room() -> None:
    found = rooms.by_room({"server/pages/a.py": counted(1, 2), "server/page/b.py": counted(3, 3)},
                          ["server/page", "server/pages"])  # fmt: skip
    assert [room.percent for room in found] == [100, 50]


def test_a_room_of_which_nothing_was_measured_is_told() -> None:
    with pytest.raises(ValueError, match="nothing was measured in diflow/new: see"):
        rooms.by_room(FULL, [*NAMES, "diflow/new"])


def test_a_file_in_no_room_is_told() -> None:
    with pytest.raises(ValueError, match="elsewhere/a.py lies in no room"):
        rooms.by_room({**FULL, "elsewhere/a.py": counted(1, 1)}, NAMES)


def test_the_rooms_of_this_checkout_are_its_folders_of_python() -> None:
    found = rooms.folders(rooms.ROOT)
    assert {
        "diflow",
        "diflow/cli",
        "diflow/kube",
        "diflow/allocator",
        "diflow/allocator/policies",
        "diflow/server/api",
    } <= {*found}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for path in FULL:
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    (tmp_path / "diflow" / "labs").mkdir()
    return tmp_path


def report(folder: Path, files: dict[str, dict[str, int]]) -> str:
    path = folder / "coverage.json"
    path.write_text(json.dumps({"files": {name: {"summary": summary} for name, summary in files.items()}}))
    return str(path)


def test_one_room_below_the_least_is_marked_and_fails(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert rooms.main([report(checkout, FULL)], checkout) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if "below 90 %" in line] == ["diflow/allocator/fairness"]
    assert len(lines) == 1 + len(NAMES)


def test_all_rooms_at_the_least_pass_also_by_whole_paths(checkout: Path) -> None:
    files = {str(checkout / name): summary for name, summary in FULL.items()}
    assert rooms.main([report(checkout, files), "--least", "60"], checkout) == 0


def test_a_report_that_leaves_out_a_room_is_an_error(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {name: summary for name, summary in FULL.items() if "server" not in name}
    assert rooms.main([report(checkout, files)], checkout) == 2
    assert capsys.readouterr().err.startswith("error: nothing was measured in diflow/server: ")
