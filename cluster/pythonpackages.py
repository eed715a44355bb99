"""The locked Python packages of the diflow image: those of the project, its allocator, server and examples.

The Dockerfile runs it, too, so it imports no other module of this package:
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
"""The extras that run in pods."""

# The name at the start of a requirement or of a line of the lock file.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def wanted(project: dict[str, Any], extras: Iterable[str] = EXTRAS) -> list[str]:
    """The requirements of the project and of these extras, without duplicates."""
    table = project["project"]
    optional = table.get("optional-dependencies", {})
    return list(
        dict.fromkeys([*table.get("dependencies", []), *(need for extra in extras for need in optional[extra])])
    )


def locked(project: dict[str, Any], lock: str, extras: Iterable[str] = EXTRAS) -> str:
    """The part of a lock file (in pip's form, with hashes) that these requirements need.

    Development tools are left out, so that their new versions do not change the image.
    """
    blocks: list[tuple[str, list[str]]] = []
    wanted_by: dict[str, set[str]] = {}
    for line in lock.splitlines():
        if _NAME.match(line):
            blocks.append((_name(line), [line]))
        elif line.lstrip().startswith("#") and blocks:
            # The comments below a package list its dependents, with the project in parentheses.
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
