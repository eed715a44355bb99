"""`python -m tests.coverage_by_room REPORT`: how much of each room the tests ran, and whether that is enough.

REPORT is what `coverage json` writes. A room is a folder of Python right below diflow/, with all that is below it. Each
folder right below diflow/allocator, diflow/labs and diflow/server is a room of its own. A bound for the whole would let
a large room that is covered well hide a small one that is not.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TOPS = ("diflow", "diflow/allocator", "diflow/labs", "diflow/server")
LEAST_PERCENT = 90.0


@dataclass(frozen=True, slots=True)
class Room:
    """A folder with the number of its statements, and of those that were run."""

    name: str
    statements: int
    covered: int

    @property
    def percent(self) -> float:
        return 100.0 * self.covered / self.statements if self.statements else 100.0


def folders(root: Path) -> list[str]:
    """The rooms that are there."""
    found = {
        f"{top}/{folder.name}"
        for top in TOPS
        for folder in (root / top).iterdir()
        if folder.is_dir() and any(folder.rglob("*.py"))
    }
    return sorted({"diflow", *found})


def by_room(files: Mapping[str, Mapping[str, int]], names: Iterable[str]) -> list[Room]:
    """Sums up the files of each room; `files` has `num_statements` and `covered_lines` by the path from the root.

    A file belongs to the room with the longest name that its path begins with. Raises ValueError for a file that is in
    no room, and for a room of which no file was measured.
    """
    totals = {name: [0, 0, 0] for name in names}
    for path, summary in files.items():
        room = max((name for name in totals if path.startswith(f"{name}/")), key=len, default=None)
        if room is None:
            raise ValueError(f"{path} lies in no room: tests/coverage_by_room.py knows {', '.join(totals)}")
        totals[room][0] += 1
        totals[room][1] += summary["num_statements"]
        totals[room][2] += summary["covered_lines"]
    unseen = [name for name, (number, _, _) in totals.items() if not number]
    if unseen:
        raise ValueError(f"nothing was measured in {', '.join(unseen)}: see [tool.coverage.run] in pyproject.toml")
    return [Room(name, statements, covered) for name, (_, statements, covered) in totals.items()]


def table(rooms: Sequence[Room], least: float) -> str:
    """A line for each room, and a mark at those that lack tests."""
    width = max(len(room.name) for room in rooms)
    lines = [f"{'room':<{width}}  statements  covered"]
    for room in rooms:
        short = f"  below {least:g} %" if room.percent < least else ""
        lines.append(f"{room.name:<{width}}  {room.statements:>10}  {room.percent:>5.1f} %{short}")
    return "\n".join(lines)


def _relative(path: str, root: Path) -> str:
    # Reports name files from where coverage ran, or by their whole path.
    return (root / path).relative_to(root).as_posix()


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Prints the table; returns 1 if a room has less than the least, 2 if the report is not about the rooms."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.coverage_by_room", description="Hold coverage against a least, by room."
    )
    parser.add_argument("report", type=Path, help="what `coverage json` wrote")
    parser.add_argument("--least", type=float, default=LEAST_PERCENT, metavar="PERCENT")
    options = parser.parse_args(arguments)
    measured = json.loads(options.report.read_text())["files"]
    try:
        rooms = by_room({_relative(path, root): file["summary"] for path, file in measured.items()}, folders(root))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201 - a program
        return 2
    print(table(rooms, options.least))  # noqa: T201
    return int(any(room.percent < options.least for room in rooms))


if __name__ == "__main__":
    sys.exit(main())
