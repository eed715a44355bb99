"""Which Python packages the diflow image holds: those of the project, its allocator, server and examples, as locked.

Run by the Dockerfile too, hence a file that imports nothing of its neighbours:
`python3 pythonpackages.py pyproject.toml requirements.lock EXTRAS OUT` writes the file that pip reads, with its hashes.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

EXTRAS = ("allocator", "server", "examples")
"""What runs in pods."""

# The name at the start of a requirement or of a line of the lock file.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def wanted(project: dict[str, Any], extras: Iterable[str] = EXTRAS) -> list[str]:
    """The requirements of the project and of those extras. Two extras may ask for the same: it is taken once."""
    table = project["project"]
    optional = table.get("optional-dependencies", {})
    return list(
        dict.fromkeys([*table.get("dependencies", []), *(need for extra in extras for need in optional[extra])])
    )


def locked(project: dict[str, Any], lock: str, extras: Iterable[str] = EXTRAS) -> str:
    """The part of a lock file (in pip's form, with hashes) that these requirements need.

    The tools for developers are left out: a new version of one is no reason to make the image anew.
    """
    blocks: list[tuple[str, list[str]]] = []
    wanted_by: dict[str, set[str]] = {}
    for line in lock.splitlines():
        if _NAME.match(line):
            blocks.append((_name(line), [line]))
        elif line.lstrip().startswith("#") and blocks:
            # Who wants a package is said in comments below it, the project in parentheses.
            by = line.lstrip(" #").removeprefix("via").strip()
            if _NAME.fullmatch(by):
                wanted_by.setdefault(blocks[-1][0], set()).add(_name(by))
        elif blocks:
            blocks[-1][1].append(line)
    needed = {_name(requirement) for requirement in wanted(project, extras)}
    if absent := needed - {name for name, _ in blocks}:
        raise ValueError(f"the lock file lacks {', '.join(sorted(absent))}: run `make lock`")
    while more := {name for name, by in wanted_by.items() if by & needed} - needed:
        needed |= more
    return "".join(f"{line}\n" for name, lines in blocks if name in needed for line in lines)


def _name(line: str) -> str:
    found = _NAME.match(line)
    assert found is not None, line
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def main(arguments: list[str]) -> None:
    """Writes the file."""
    project, lock, extras, out = arguments
    text = locked(tomllib.loads(Path(project).read_text()), Path(lock).read_text(), extras.split(","))
    Path(out).write_text(text)


if __name__ == "__main__":
    main(sys.argv[1:])
